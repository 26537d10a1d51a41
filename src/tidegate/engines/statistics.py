"""How often keys arrive, for a queue that is shed by it: plain counts that fade."""

from __future__ import annotations

from collections.abc import Callable, Container

import numpy as np
import pyarrow as pa

from tidegate.spec import Frequencies

#: After so many half-lives counts are made small again, before they outgrow a float.
_EPOCHS = 512


class Statistics:
    """Arrivals by key and side, learned with decay in bounded memory, or given.

    As in the engine, old counts do not fade: a new arrival weighs twice as much after each
    half-life, so that what is promised to a key only rises.
    """

    def __init__(self, given: Frequencies | None, halflife: int | float, most: int) -> None:
        self._learned = given is None
        self._halflife = halflife
        self._most = most
        self._counts: dict[int, list[float]] = {}
        self._changed: set[int] = set()
        self._rewritten = False
        self.first: int | None = None
        if given is not None:
            columns = (given.keys.tolist(), given.left.tolist(), given.right.tolist())
            self._counts = {key: [a, b] for key, a, b in zip(*columns, strict=True)}

    def partners(self, side: int, key: int) -> float:
        """How often a key arrives on the side that is not this one."""
        counts = self._counts.get(key)
        return 0.0 if counts is None else counts[1 - side]

    def see(self, side: int, key: int, clock: int | float) -> bool:
        """Count an arrival; whether all counts have been made smaller for it."""
        if not self._learned:
            return False
        epoch = int(clock // self._halflife) if self._halflife else 0
        first = epoch if self.first is None else self.first
        smaller = epoch - first > _EPOCHS
        if smaller:
            factor = 2.0 ** -min(epoch - first, 2_000)
            self._counts = {k: [factor * a, factor * b] for k, (a, b) in self._counts.items()}
            first, self._rewritten = epoch, True
        self.first = first
        self._counts.setdefault(key, [0.0, 0.0])[side] += 2.0 ** (epoch - first)
        self._changed.add(key)
        return smaller

    def forget(self, needed: Callable[[], Container[int]]) -> None:
        """Keep only the more frequent half of the keys that nobody needs, once they are many."""
        if not self._learned or len(self._counts) <= self._most:
            return
        kept = needed()
        idle = [key for key in self._counts if key not in kept]
        if len(idle) <= self._most:
            return
        idle.sort(key=lambda key: (max(self._counts[key]), key), reverse=True)
        for key in idle[self._most // 2 :]:
            del self._counts[key]
        self._rewritten = True

    def record(self, *, every: bool) -> tuple[bool, pa.RecordBatch]:
        """The counts that changed since the last record, or all; whether these are all."""
        every = every or self._rewritten
        keys = sorted(self._counts if every else self._changed) if self._learned else []
        values = [self._counts[key] for key in keys]
        self._changed, self._rewritten = set(), False
        columns = [
            pa.array(np.array(keys, np.uint64)),
            pa.array([v[0] for v in values], pa.float64()),
            pa.array([v[1] for v in values], pa.float64()),
        ]
        return every, pa.record_batch(columns, ["key", "left", "right"])

    def restore(self, first: int | None, every: bool, batch: pa.RecordBatch) -> None:
        """Take over a record."""
        if not self._learned:
            return
        self.first = first
        if every:
            self._counts = {}
        for key, left, right in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            self._counts[key] = [left, right]
