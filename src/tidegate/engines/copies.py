"""Copies of a window join that only count: what a miniature runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engines.prepare import PREPARED
from tidegate.engines.window import WindowEngine
from tidegate.errors import TidegateError
from tidegate.policies import ByFrequency
from tidegate.schedules import Step
from tidegate.spec import LEAST_BYTES, Side, WindowJoin

#: Ways to count that take a fixed part of a size.
_OF_A_SIZE = ("window", "sketch")


class WindowCopies:
    """Makes copies of a window join; they carry no more of a tuple than they need."""

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
        self.by_key = bool(spec.left.keys)
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

    def copy(self, memory: int | None) -> WindowEngine:
        """An engine with this memory, or without a limit."""
        budget = (Step(0, None if memory is None else max(memory, self.least)),)
        return CountingEngine(replace(self._spec, budget=budget))

    def narrowed(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The hashes, the time and what is weighed by."""
        if self._whole:
            return batch
        side: Side = self._sides[stream]
        at = PREPARED + side.schema.get_field_index(self._carried[stream])
        columns = [*batch.columns[:PREPARED], batch.column(at)]
        return pa.RecordBatch.from_arrays(columns, [*batch.schema.names[:PREPARED], "c0"])


class CountingEngine(WindowEngine):
    """A window join whose results are counted, and not made."""

    def _results(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> pa.RecordBatch:
        schema = self.spec.result_schema
        if self._where is not None:
            return super()._results(left, right).slice(0, 0)
        if self.spec.left.importance is None:
            self._flows["results"] += len(left)
            self._importance += len(left)
        else:
            rows = (self._payload[0].take(left), self._payload[1].take(right))
            columns = [column for part in rows for column in part.columns]
            self._flows["results"] += len(left)
            self._importance += self._importance_of(
                pa.RecordBatch.from_arrays(columns, schema=schema)
            )
        return pa.RecordBatch.from_pylist([], schema)
