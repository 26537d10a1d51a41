"""Copies of a window join that only count: what a miniature runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engines.miniature import OF_HELD, Miniature, Sample, lot
from tidegate.engines.prepare import KEY, PREPARED, TIE, TIME
from tidegate.engines.window import WindowEngine
from tidegate.errors import TidegateError
from tidegate.kernel import layout
from tidegate.policies import ByFrequency
from tidegate.schedules import Step
from tidegate.spec import LEAST_BYTES, Side, WindowJoin

#: Ways to count that take a fixed part of a size.
_OF_A_SIZE = ("window", "sketch")


class WindowCopies:
    """Makes copies of a window join; they carry no more of a tuple than they need."""

    streams, sees_more, measure = 2, True, "recall"

    def __init__(self, spec: WindowJoin, split: object = None) -> None:
        if spec.cpu is not None:
            raise TidegateError(
                "a join with a slow CPU cannot share a memory with others: what it finds depends "
                "on what reaches it; leave cpu out, or give memory a number"
            )
        if split == "predicted":
            raise TidegateError(
                'split="predicted" is for a memory that does not change; with a share of a pool, '
                'use split="shared"'
            )
        policy = spec.policy
        if isinstance(policy, ByFrequency) and spec.in_bytes and policy.counting in _OF_A_SIZE:
            raise TidegateError(
                f'frequencies="{policy.counting}" takes a part of a size, which cannot change '
                'while it counts; with a pool of bytes use frequencies="learned", or give the pool '
                "a number of tuples"
            )
        ends = [side.window for side in spec.sides]
        if None in ends:
            raise TidegateError(
                "a join whose window never ends cannot be foreseen, nor share a memory with "
                "others; give within a length"
            )
        self.horizon = max(float(end) for end in ends if end is not None)
        self._by_key = bool(spec.left.keys)
        self.unit = "bytes" if spec.in_bytes else "held"
        self.least = LEAST_BYTES if spec.in_bytes else 1 if spec.split is None else 2
        self.second = spec.second
        self._whole = spec.where is not None or spec.in_bytes
        self._carried = [side.importance or side.time for side in spec.sides]
        self._spec = spec if self._whole else self._narrow(spec)
        self._sides = spec.sides

    def _narrow(self, spec: WindowJoin) -> WindowJoin:
        left, right = (
            replace(side, schema=pa.schema([side.schema.field(name)]))
            for side, name in zip(spec.sides, self._carried, strict=True)
        )
        return replace(spec, left=left, right=right, names=("left", "right"))

    def watch(self, engine: object, sizes: Sequence[int], shard: int, shards: int) -> Miniature:
        """Small copies beside the engine of a shard."""
        return Miniature(self, sizes)

    def copy(self, memory: int | None, sample: Sample) -> WindowEngine:
        """An engine with this memory, or without a limit."""
        budget = (Step(0, None if memory is None else max(memory, self.least)),)
        return CountingEngine(replace(self._spec, budget=budget), sample.held)

    def kin(self, stream: int, batch: pa.RecordBatch) -> NDArray[np.uint64] | None:
        """Tuples of different keys never meet."""
        hashes: NDArray[np.uint64] = batch.column(KEY).to_numpy()
        return hashes if self._by_key else None

    def narrowed(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The hashes, the time and what is weighed by."""
        if self._whole:
            return batch
        side: Side = self._sides[stream]
        at = PREPARED + side.schema.get_field_index(self._carried[stream])
        columns = [*batch.columns[:PREPARED], batch.column(at)]
        return pa.RecordBatch.from_arrays(columns, [*batch.schema.names[:PREPARED], "c0"])


class CountingEngine(WindowEngine):
    """A window join whose results are counted, and not made.

    It holds a share of the tuples at the most. The others it sees as tuples that are too large to
    be held: they find partners, and are learned from. A pair then counts if its earlier tuple, of
    one time the left, may be held.
    """

    def __init__(self, spec: WindowJoin, held: float) -> None:
        super().__init__(spec)
        self._share = held
        self._first = (0, 0)
        self._times = [np.empty(0)] * 2
        self._may = [np.empty(0, np.bool_)] * 2

    def _batch(
        self, given: list[list[pa.RecordBatch]], waiting: list[int], first: list[int]
    ) -> tuple[layout.Batch, NDArray[np.int64], int]:
        batch, order, left = super()._batch(given, waiting, first)
        if self._share < 1:
            ties, self._times = (
                [np.concatenate([b.column(name).to_numpy() for b in side]) for side in given]
                for name in (TIE, TIME)
            )
            self._first = (first[0], first[1])
            self._may = [lot(each, OF_HELD) < self._share for each in ties]
            batch.size[~np.concatenate(self._may)[order]] = np.iinfo(np.int64).max
        return batch, order, left

    def _results(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> pa.RecordBatch:
        schema = self.spec.result_schema
        if self._share < 1:
            counts = self._counts(left, right)
            left, right = left[counts], right[counts]
        if self._where is not None:
            return super()._results(left, right).slice(0, 0)
        self._flows["results"] += len(left)
        if self.spec.left.importance is None:
            self._importance += len(left)
        else:
            rows = (self._payload[0].take(left), self._payload[1].take(right))
            columns = [column for part in rows for column in part.columns]
            self._importance += self._importance_of(
                pa.RecordBatch.from_arrays(columns, schema=schema)
            )
        return pa.RecordBatch.from_pylist([], schema)

    def _counts(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether pairs count: newcomers of one time meet whether they may be held or not."""
        one, other = left - self._first[0], right - self._first[1]
        counts = np.ones(len(left), np.bool_)
        new = np.flatnonzero((one >= 0) & (other >= 0))
        same = new[self._times[0][one[new]] == self._times[1][other[new]]]
        counts[same] = self._may[0][one[same]]
        return counts
