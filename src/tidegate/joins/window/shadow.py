"""Shadow joins of a window join: small copies that only count their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.prepare import KEY, PREPARED, ROW_HASH, TIME
from tidegate.errors import TidegateError
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.spec import LEAST_BYTES, WindowJoin
from tidegate.kernel import layout
from tidegate.policies import ByFrequency
from tidegate.pool.shadow_joins import OF_HELD, Sample, ShadowJoins, random_share
from tidegate.settings.schedules import Side, Step

#: Ways to count frequencies whose size is a fixed part of the memory.
_OF_A_SIZE = ("window", "sketch")


class WindowCopies:
    """Builds shadow joins of a window join, with only the columns that they need."""

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
                "a number of rows"
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
        # Memory is divided by all results, those of a warm-up too.
        spec = replace(spec, count_from=None)
        self._spec = spec if self._whole else self._narrow(spec)
        self._sides = spec.sides

    def _narrow(self, spec: WindowJoin) -> WindowJoin:
        left, right = (
            replace(side, schema=pa.schema([side.schema.field(name)]))
            for side, name in zip(spec.sides, self._carried, strict=True)
        )
        return replace(spec, left=left, right=right, names=("left", "right"))

    def watch(self, engine: object, sizes: Sequence[int], shard: int, shards: int) -> ShadowJoins:
        """Return the shadow joins of one shard."""
        return ShadowJoins(self, sizes)

    def copy(self, memory: int | None, sample: Sample) -> CountingEngine:
        """Return a counting engine with the given memory; None means no limit."""
        budget = (Step(0, None if memory is None else max(memory, self.least)),)
        return CountingEngine(replace(self._spec, budget=budget), sample)

    def stands_for(self, engine: CountingEngine, counters: Mapping[str, int | float]) -> float:
        """Return the memory in use; a sampled row counts as the rows that it represents."""
        return float(engine.used)

    def key_group(self, stream: int, batch: pa.RecordBatch) -> NDArray[np.uint64] | None:
        """Return the hash of the keys: rows of different keys never join."""
        hashes: NDArray[np.uint64] = batch.column(KEY).to_numpy()
        return hashes if self._by_key else None

    def narrowed(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the prepared columns and the importance, which are all that is needed."""
        if self._whole:
            return batch
        side: Side = self._sides[stream]
        at = PREPARED + side.schema.get_field_index(self._carried[stream])
        columns = [*batch.columns[:PREPARED], batch.column(at)]
        return pa.RecordBatch.from_arrays(columns, [*batch.schema.names[:PREPARED], "c0"])


class CountingEngine(WindowEngine):
    """A window join that counts its results and does not build them.

    It holds all rows of some keys and a sample of the other rows. A sampled row takes the memory of
    all rows that it represents. Rows outside of the sample count as too large to be held: they
    probe, and the policy learns from them. A pair counts if its earlier row may be held (the left
    row, if both have one time), with the number of rows that this row represents.
    """

    def __init__(self, spec: WindowJoin, sample: Sample) -> None:
        super().__init__(spec)
        self._share = sample.held
        self._always = sample.sure or (np.empty(0, np.uint64),) * 2
        self._first = (0, 0)
        self._times = [np.empty(0)] * 2
        self._keys = [np.empty(0, np.uint64)] * 2
        self._may = [np.empty(0, np.bool_)] * 2

    @property
    def used(self) -> int:
        """The memory in use."""
        return int(self._tables.core.pools["used"].sum())

    def _batch(
        self, given: list[list[pa.RecordBatch]], waiting: list[int], first: list[int]
    ) -> tuple[layout.Batch, NDArray[np.int64], int]:
        batch, order, left = super()._batch(given, waiting, first)
        if self._share < 1:
            row_hashes, self._times, self._keys = (
                [np.concatenate([b.column(name).to_numpy() for b in side]) for side in given]
                for name in (ROW_HASH, TIME, KEY)
            )
            self._first = (first[0], first[1])
            sure = [_among(k, a) for k, a in zip(self._keys, self._always, strict=True)]
            self._may = [
                own | (random_share(each, OF_HELD) < self._share)
                for own, each in zip(sure, row_hashes, strict=True)
            ]
            size, stand = batch.size, ~np.concatenate(sure)[order]
            size[stand] = np.minimum(size[stand] / self._share, np.iinfo(np.int32).max)
            size[~np.concatenate(self._may)[order]] = np.iinfo(np.int64).max
        return batch, order, left

    def _results(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> pa.RecordBatch:
        if self._share < 1:
            counts = self._counts(left, right)
            left, right = left[counts], right[counts]
            sure = self._is_sure(left, right)
            self._count(left[sure], right[sure])
            before = self._importance
            self._count(left[~sure], right[~sure])
            self._importance = before + (self._importance - before) / self._share
        else:
            self._count(left, right)
        return pa.RecordBatch.from_pylist([], self.spec.result_schema)

    def _count(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> None:
        if self._where is not None:
            super()._results(left, right)
            return
        self._flows["results"] += len(left)
        if self.spec.left.importance is None:
            self._importance += len(left)
        else:
            rows = (self._payload[0].take(left), self._payload[1].take(right))
            columns = [column for part in rows for column in part.columns]
            self._importance += self._importance_of(
                pa.RecordBatch.from_arrays(columns, schema=self.spec.result_schema)
            )

    def _is_sure(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return True where the earlier row of a pair represents only itself."""
        one, other = left - self._first[0], right - self._first[1]
        both = np.flatnonzero((one >= 0) & (other >= 0))
        left_held = one < 0
        left_held[both] = self._times[0][one[both]] <= self._times[1][other[both]]
        keys = np.empty(len(left), np.uint64)
        keys[other >= 0] = self._keys[1][other[other >= 0]]
        keys[other < 0] = self._keys[0][one[other < 0]]
        return np.where(left_held, *(_among(keys, own) for own in self._always))

    def _counts(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return True where pairs count; newcomers of one time always join each other."""
        one, other = left - self._first[0], right - self._first[1]
        counts = np.ones(len(left), np.bool_)
        new = np.flatnonzero((one >= 0) & (other >= 0))
        same = new[self._times[0][one[new]] == self._times[1][other[new]]]
        counts[same] = self._may[0][one[same]]
        return counts


def _among(keys: NDArray[np.uint64], some: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return True where keys are in a sorted array."""
    if len(some) == 0:
        return np.zeros(len(keys), np.bool_)
    at = np.minimum(np.searchsorted(some, keys), len(some) - 1)
    found: NDArray[np.bool_] = some[at] == keys
    return found
