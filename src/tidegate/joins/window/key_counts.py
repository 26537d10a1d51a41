"""Counts of the arrivals of keys, which fade, for a queue that sheds by frequency."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.joins.window.spec import Frequencies


class Statistics:
    """Arrivals by key and side, learned with decay in bounded memory, or given.

    The compiled queue does the counting. As in the join, old counts do not fade. Instead, a new
    arrival weighs twice as much after each half-life, so that counts only rise.
    """

    def __init__(self, given: Frequencies | None, most: int) -> None:
        self.learned = given is None
        self.most = most
        self._keys = np.empty(0, np.uint64)  # sorted
        self.counts = np.zeros((0, 2))
        if given is not None:
            self._keys, self.counts = given.keys, np.stack([given.left, given.right], axis=1)
        self.known = np.ones(len(self._keys), np.bool_)
        self.changed = np.zeros(len(self._keys), np.bool_)
        self.rewritten = False
        #: The epoch in which an arrival weighs 1, once there was an arrival.
        self.first: int | None = None

    def entries(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the place of each key; -1 for a key that a given table lacks."""
        if self.learned:
            self._place(np.union1d(self._keys, keys))
        if len(self._keys) == 0:
            return np.full(len(keys), -1)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, at, -1)

    def _place(self, keys: NDArray[np.uint64]) -> None:
        """Make places for these keys, which include all present ones."""
        at = np.searchsorted(keys, self._keys)
        counts = np.zeros((len(keys), 2))
        known, changed = np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.bool_)
        counts[at], known[at], changed[at] = self.counts, self.known, self.changed
        self._keys, self.counts, self.known, self.changed = keys, counts, known, changed

    def forget(self, queued: NDArray[np.int64]) -> int:
        """Keep only the more frequent half of the keys with no waiting row; return their number."""
        idle = np.flatnonzero(self.known & (queued == 0))
        order = np.lexsort((self._keys[idle], self.counts[idle].max(axis=1)))
        gone = idle[order[: len(idle) - self.most // 2]]
        self.known[gone], self.counts[gone] = False, 0.0
        self.rewritten = True
        return len(idle) - len(gone)

    def tidy(self) -> None:
        """Free the places of keys that are not counted."""
        if self.learned and not self.known.all():
            kept = np.flatnonzero(self.known)
            self._keys, self.counts = self._keys[kept], self.counts[kept]
            self.known, self.changed = self.known[kept], self.changed[kept]

    def record(self, *, every: bool) -> tuple[bool, pa.RecordBatch]:
        """Return the counts that changed since the last record, or all, and whether it is all."""
        every = every or self.rewritten
        rows = np.flatnonzero(self.known & (self.changed | every) & self.learned)
        counts = self.counts[rows]
        self.changed[:], self.rewritten = False, False
        columns = [pa.array(self._keys[rows]), pa.array(counts[:, 0]), pa.array(counts[:, 1])]
        return every, pa.record_batch(columns, ["key", "left", "right"])

    def restore(self, first: int | None, every: bool, batch: pa.RecordBatch) -> None:
        """Apply a record."""
        if not self.learned:
            return
        self.first = first
        if every:
            self.known[:] = False
            self.tidy()
        keys, left, right = (column.to_numpy() for column in batch.columns)
        at = self.entries(keys)
        self.counts[at] = np.stack([left, right], axis=1)
        self.known[at] = True
