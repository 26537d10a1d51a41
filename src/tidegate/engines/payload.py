"""The rows behind what is held: Arrow chunks, addressed by row number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.columns import row_bytes

#: Chunks are made no longer than this, so that no column of strings outgrows its offsets.
_CHUNK_ROWS = 1 << 18


class Payload:
    """The rows of one stream that may still be needed.

    Rows are only ever added at the end; `trim` drops rows and numbers anew.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._chunks: list[pa.RecordBatch] = []
        self.rows = 0

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(chunk.nbytes for chunk in self._chunks)

    def add(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Add rows; gives the number of the first."""
        first = self.rows
        self._chunks += [b for b in batches if b.num_rows]
        self.rows += sum(b.num_rows for b in batches)
        return first

    def take(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        """The rows with these numbers."""
        table = pa.Table.from_batches(self._chunks, self.schema)
        return one_batch(table.take(pa.array(rows, pa.int64())))

    def trim(self, first: int, rows: NDArray[np.int64]) -> None:
        """Keep, of the rows from `first` on, only these, which ascend, numbered from `first`."""
        if len(rows) == self.rows - first:
            return
        older = count = 0
        while older < first:
            older += self._chunks[count].num_rows
            count += 1
        chunks, self._chunks, self.rows = self._chunks[count:], self._chunks[:count], first
        stops = first + np.cumsum([chunk.num_rows for chunk in chunks])
        parts = np.split(rows, np.searchsorted(rows, stops[:-1]))
        for chunk, stop, part in zip(chunks, stops, parts, strict=True):
            whole = len(part) == chunk.num_rows
            self.add([chunk if whole else chunk.take(pa.array(part - (stop - chunk.num_rows)))])
        self.join_chunks()

    def join_chunks(self) -> None:
        """Put small chunks together, so that there are few and a row is seldom copied."""
        joined: list[pa.RecordBatch] = []
        for chunk in self._chunks:
            joined.append(chunk)
            while len(joined) > 1:
                last, before = joined[-1].num_rows, joined[-2].num_rows
                if before > 2 * last or max(2 * last, before + last) > _CHUNK_ROWS:
                    break
                joined[-2:] = [pa.concat_batches(joined[-2:])]
        self._chunks = joined

    def wants_trim(self, held: int) -> bool:
        """Whether half of the rows are dead."""
        return self.rows > 2 * held + 64


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """A table as one batch."""
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches([pa.RecordBatch.from_pylist([], table.schema), *batches])


def sizes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """How many bytes each row takes."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        total += row_bytes(column)
    return total
