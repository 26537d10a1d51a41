"""The condition of a window join, as the compiled loop takes it: what rows need to be compared.

Rows that may join are found by the hash of their key. If the condition has a band, the bucket of
its value becomes a part of that hash, so that a probe looks up a few buckets next to each other.
The hash of a bucket is `_mixed(key + bucket * GOLDEN)`: the hash of the next bucket follows from
that of the one before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.kernel.hashing import GOLDEN
from tidegate.sql.bands import Band, band_of
from tidegate.sql.conditions import Predicate
from tidegate.sql.pair_programs import EXACT, program_of, values_of

#: Buckets in a cell; rows of one cell go to one shard.
_CELL = 64


class Places(NamedTuple):
    """Where rows are, and where their partners can be."""

    key: NDArray[np.uint64]  # the hash of the row's key and bucket
    start: NDArray[np.uint64]  # of the first bucket of partners, not mixed yet
    span: NDArray[np.int64]  # number of buckets of partners


class Condition:
    """The condition of a join, with the band and the program that were found in it."""

    def __init__(self, predicate: Predicate) -> None:
        self.predicate = predicate
        self.band: Band | None = band_of(self.predicate)
        self.program = program_of(self.predicate)
        #: True while the program decides as the condition does.
        self.certain = self.program.exact

    @property
    def columns(self) -> int:
        """The number of values of a row."""
        return max(map(len, self.program.columns))

    def values(self, side: int, rows: pa.RecordBatch) -> NDArray[np.float64]:
        """Return the values of rows of one side that the program compares."""
        found = np.zeros((rows.num_rows, self.columns))
        nodes = self.program.columns[side]
        found[:, : len(nodes)] = values_of(self.predicate, nodes, "lr"[side], rows)
        if self.certain and (np.abs(found) > EXACT).any():
            self.certain = not bool((np.isfinite(found) & (np.abs(found) > EXACT)).any())
        return found

    def places(self, side: int, keys: NDArray[np.uint64], rows: pa.RecordBatch) -> Places:
        """Return the places of rows of one side, given the hashes of their keys."""
        if self.band is None:
            return Places(keys, mixed(keys), np.ones(len(keys), np.int64))
        values, known = self.band.values(side, rows)
        first, last = self.band.reach(side, values)
        bucket = self.band.buckets(values)
        # A null joins nothing.
        span = np.where(known, last - first + 1, 0)
        return Places(mixed(_moved(keys, bucket)), _moved(keys, first), span)

    def cells(self, side: int, rows: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the last cell to which each row of one side goes.

        A row of the left goes to the cell in which the buckets of its partners begin. A row of the
        right goes to all cells where a partner may be, so that each pair meets in one cell.
        """
        assert self.band is not None
        values, known = self.band.values(side, rows)
        first, last = (each // _CELL for each in self.band.starts(side, values))
        return np.where(known, first, 0), np.where(known, last, 0)


def bucket_hashes(start: NDArray[np.uint64], most: int) -> NDArray[np.uint64]:
    """Return the hashes of the buckets from `start` on, for each row."""
    return mixed(start[:, np.newaxis] + np.arange(most, dtype=np.uint64) * GOLDEN)


def mixed(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the upper bits of hashes into the lower ones; mixed again, they are as before."""
    return hashes ^ (hashes >> np.uint64(32))


def _moved(keys: NDArray[np.uint64], buckets: NDArray[np.int64]) -> NDArray[np.uint64]:
    return keys + buckets.view(np.uint64) * GOLDEN
