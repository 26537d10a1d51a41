"""Cut results into pieces of bounded size, by the bytes of their rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.settings.columns import row_bits

#: The largest piece of results, unless it is a single row.
PIECE_BYTES = 4 << 20
#: Overhead of a column in bytes: padding and metadata of the IPC message.
_COLUMN_BYTES = 512

#: The bytes of each row; one number if all rows have the same size.
Widths = int | NDArray[np.int64]


def widths(batch: pa.RecordBatch) -> Widths:
    """Return the bytes of each row in Arrow's layout, including validity bits."""
    bits: Widths = 0
    for column in batch.columns:
        bits = bits + row_bits(column)
    return (bits + 7) >> 3


def room(schema: pa.Schema) -> int:
    """Return the bytes of values that fit into a piece with this schema."""
    return max(PIECE_BYTES - _COLUMN_BYTES * (1 + sum(_arrays(f.type) for f in schema)), 1 << 20)


def _arrays(kind: pa.DataType) -> int:
    """Count the arrays in a column of this type."""
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
    """Cut a record batch into pieces that share its buffers."""
    for piece in cut(batch.num_rows, widths(batch), limit or room(batch.schema)):
        yield batch.slice(piece.start, piece.stop - piece.start)
