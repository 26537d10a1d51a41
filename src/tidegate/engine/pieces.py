"""Results leave in pieces of bounded size, cut by the bytes of the rows that they are made of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.settings.columns import row_bits

#: No piece of results is larger, unless it is a single row.
PIECE_BYTES = 4 << 20
#: What a column may take besides its values: padding, and what an IPC message says about it.
_COLUMN_BYTES = 512

#: The bytes of each row: one number where all rows take the same.
Widths = int | NDArray[np.int64]


def widths(batch: pa.RecordBatch) -> Widths:
    """Return how many bytes each row takes in Arrow's layout, validity bits included."""
    bits: Widths = 0
    for column in batch.columns:
        bits = bits + row_bits(column)
    return (bits + 7) >> 3


def room(schema: pa.Schema) -> int:
    """Return how many bytes of values fit into a piece of this schema."""
    return max(PIECE_BYTES - _COLUMN_BYTES * (1 + sum(_arrays(f.type) for f in schema)), 1 << 20)


def _arrays(kind: pa.DataType) -> int:
    """Count the arrays that a column of this type consists of."""
    if isinstance(kind, pa.BaseExtensionType):
        return _arrays(kind.storage_type)
    return 1 + sum(_arrays(kind.field(i).type) for i in range(kind.num_fields))


def cut(rows: int, taken: Widths, limit: int) -> Iterator[slice]:
    """Cut rows into pieces of at most `limit` bytes; a larger row is a piece of its own."""
    if isinstance(taken, int):
        step = max(limit // max(taken, 1), 1)
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))
        return
    ends = np.cumsum(taken)
    start = 0
    while start < rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + limit, "right")), start + 1)
        yield slice(start, stop)
        start = stop


def cut_batch(batch: pa.RecordBatch, limit: int | None = None) -> Iterator[pa.RecordBatch]:
    """Cut a batch into pieces, which share its buffers."""
    for piece in cut(batch.num_rows, widths(batch), limit or room(batch.schema)):
        yield batch.slice(piece.start, piece.stop - piece.start)
