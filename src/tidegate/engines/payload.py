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

    Rows are only ever added at the end; `trim` and `rewrite` drop rows and number anew.
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
        """Keep, of the rows from `first` on, only these, numbered from `first` in this order."""
        if len(rows) == self.rows - first and (len(rows) < 2 or bool((np.diff(rows) == 1).all())):
            return
        kept = self._taken(rows)
        older = first
        count = 0
        while older > 0:
            older -= self._chunks[count].num_rows
            count += 1
        self._chunks, self.rows = self._chunks[:count], first
        self.add(kept)

    def join_chunks(self) -> None:
        """Put small chunks together, so that there are few and a row is seldom copied."""
        chunks = self._chunks
        while len(chunks) > 1:
            last, before = chunks[-1].num_rows, chunks[-2].num_rows
            if before > 2 * last or before + last > _CHUNK_ROWS:
                break
            chunks[-2:] = [pa.concat_batches(chunks[-2:])]

    def wants_rewrite(self, held: int) -> bool:
        """Whether a third of the rows is dead."""
        return self.rows > held + held // 2 + 64

    def rewrite(self, rows: NDArray[np.int64]) -> None:
        """Keep these rows only, numbered anew in this order."""
        kept = self._taken(rows)
        self._chunks, self.rows = [], 0
        self.add(kept)

    def _taken(self, rows: NDArray[np.int64]) -> list[pa.RecordBatch]:
        return [self.take(rows[at : at + _CHUNK_ROWS]) for at in range(0, len(rows), _CHUNK_ROWS)]


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
