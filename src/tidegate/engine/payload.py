"""The columns of held rows: Arrow record batches, addressed by row number and cut by size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.settings.columns import row_bits, row_bytes

#: Limits of a chunk that is joined from small ones. They keep the offsets of string columns within
#: 32 bits, and bound the memory that joining needs.
_CHUNK_ROWS = 1 << 18
_CHUNK_BYTES = 64 << 20
#: Up to this size, all chunks are joined into one before many rows are taken.
_WHOLE_BYTES = 32 << 20
#: The largest piece of results, unless it is a single row.
PIECE_BYTES = 4 << 20
#: Overhead of a column in bytes: padding and metadata of the IPC message.
_COLUMN_BYTES = 512

#: The bytes of each row; one number if all rows have the same size.
Widths = int | NDArray[np.int64]


@dataclass
class _Chunk:
    """A record batch, with the bytes of each row once they were asked for."""

    rows: pa.RecordBatch
    known: NDArray[np.int64] | None = None

    @property
    def widths(self) -> NDArray[np.int64]:
        if self.known is None:
            self.known = np.asarray(widths(self.rows))
        return self.known

    def take(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        return self.rows.take(pa.array(rows))


class Payload:
    """The columns of the rows of one stream that may still be needed.

    Rows are added at the end only. `trim` drops rows and renumbers the rest.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._set([])

    def _set(self, chunks: list[_Chunk]) -> None:
        """Replace all chunks."""
        self._chunks = chunks
        self._starts = np.cumsum([0, *(chunk.rows.num_rows for chunk in chunks)])
        self._whole: _Chunk | None = None

    @cached_property
    def _width(self) -> int | None:
        """The bytes of a row, or None if rows differ."""
        fixed = widths(pa.RecordBatch.from_pylist([], self.schema))
        return fixed if isinstance(fixed, int) else None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._starts[-1])

    @property
    def nbytes(self) -> int:
        """The bytes in use."""
        return sum(chunk.rows.nbytes for chunk in self._chunks)

    def add(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Add rows; return the number of the first one.

        The last columns of the record batches are taken, as many as the payload has.
        """
        first = self.rows
        self._set(self._chunks + [_Chunk(self._own(batch)) for batch in batches if batch.num_rows])
        return first

    def _own(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        width = len(self.schema)
        if batch.num_columns == width:
            return batch
        return pa.RecordBatch.from_arrays(
            batch.columns[batch.num_columns - width :], schema=self.schema
        )

    def take(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        """Return the rows with the given numbers, in their order."""
        if len(rows) == 0:
            return pa.RecordBatch.from_pylist([], self.schema)
        spread = self._by_chunk(rows)
        parts = [chunk.take(own) for chunk, _, own in spread]
        if len(parts) == 1:
            return parts[0]
        back = np.empty(len(rows), np.int64)
        back[np.concatenate([at for _, at, _ in spread])] = np.arange(len(rows))
        return pa.concat_batches(parts).take(pa.array(back))

    def cut(
        self, rows: NDArray[np.int64], most: int | None = None, limit: int = _CHUNK_BYTES
    ) -> Iterator[slice]:
        """Cut the given rows into pieces of at most `most` rows and about `limit` bytes."""
        for part in cut(len(rows), self.widths_of(rows), limit):
            for start in range(part.start, part.stop, most or len(rows)):
                yield slice(start, min(start + (most or len(rows)), part.stop))

    def pieces(self, rows: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Yield the given rows in record batches small enough for string columns."""
        for piece in self.cut(rows):
            yield self.take(rows[piece])

    def widths_of(self, rows: NDArray[np.int64]) -> Widths:
        """Return the bytes of each of the given rows."""
        if self._width is not None or not self._chunks or len(rows) == 0:
            return self._width or 0
        spread = self._by_chunk(rows)
        if len(spread) == 1:
            return spread[0][0].widths[spread[0][2]]
        taken = np.empty(len(rows), np.int64)
        for chunk, at, own in spread:
            taken[at] = chunk.widths[own]
        return taken

    def _by_chunk(self, rows: NDArray[np.int64]) -> list[tuple[_Chunk, Any, NDArray[np.int64]]]:
        """Return, by chunk, the places of its rows among those given and their numbers in it.

        Arrow's own `take` joins all chunks of a column at every call. That pays where there are
        few rows and most are wanted. Here the joined chunk is kept until rows are added or dropped.
        """
        ends = np.array([rows.min(), rows.max()])
        first, last = (np.searchsorted(self._starts, ends, "right") - 1).tolist()
        if first == last:
            return [(self._chunks[first], slice(None), rows - self._starts[first])]
        if self._whole is None and 2 * len(rows) > self.rows and self.nbytes <= _WHOLE_BYTES:
            self._whole = _Chunk(pa.concat_batches([chunk.rows for chunk in self._chunks]))
        if self._whole is not None:
            return [(self._whole, slice(None), rows)]
        chunk = np.searchsorted(self._starts, rows, "right") - 1
        # A stable sort of 16-bit numbers is a radix sort.
        order = np.argsort(chunk.astype(np.uint16) if last < 1 << 16 else chunk, kind="stable")
        found, begins = np.unique(chunk[order], return_index=True)
        return [
            (self._chunks[c], at, rows[at] - self._starts[c])
            for c, at in zip(found.tolist(), np.split(order, begins[1:]), strict=True)
        ]

    def trim(self, first: int, rows: NDArray[np.int64]) -> None:
        """Drop all rows from `first` on except the given ones, which ascend; renumber them."""
        if len(rows) == self.rows - first:
            return
        count = int(np.searchsorted(self._starts, first))
        stops = self._starts[count + 1 :]
        kept = self._chunks[:count]
        parts = np.split(rows, np.searchsorted(rows, stops[:-1]))
        for chunk, stop, part in zip(self._chunks[count:], stops, parts, strict=True):
            own = part - (stop - chunk.rows.num_rows)
            if len(part) == chunk.rows.num_rows:
                kept.append(chunk)
            elif len(part):
                kept.append(_Chunk(chunk.take(own), _some(chunk.known, own)))
        self._set(kept)
        self.join_chunks()

    def join_chunks(self) -> None:
        """Join small chunks, so that there are few chunks and each row is copied few times."""
        groups: list[tuple[int, int, int]] = []  # the end of each group, its rows, its bytes
        for end, chunk in enumerate(self._chunks, 1):
            groups.append((end, chunk.rows.num_rows, chunk.rows.nbytes))
            while len(groups) > 1:
                (_, before, size), (_, last, more) = groups[-2:]
                if before > 2 * last or max(2 * last, before + last) > _CHUNK_ROWS:
                    break
                if size + more > _CHUNK_BYTES:
                    break
                groups[-2:] = [(end, before + last, size + more)]
        if len(groups) == len(self._chunks):
            return
        joined = []
        start = 0
        for end, _, _ in groups:
            mine = self._chunks[start:end]
            start = end
            joined.append(
                mine[0] if len(mine) == 1 else _Chunk(pa.concat_batches([c.rows for c in mine]))
            )
        self._set(joined)

    def wants_trim(self, held: int) -> bool:
        """True if more than half of the rows are no longer held."""
        return self.rows > 2 * held + 64


def _some(known: NDArray[np.int64] | None, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
    return None if known is None else known[rows]


def gather(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, rows: NDArray[np.int64]
) -> pa.RecordBatch:
    """Return some rows of several record batches, numbered consecutively."""
    source = Payload(schema)
    source.add(batches)
    return source.take(rows)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one record batch."""
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches([pa.RecordBatch.from_pylist([], table.schema), *batches])


def sizes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the bytes of each row."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        total += row_bytes(column)
    return total


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
