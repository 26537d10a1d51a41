"""The rows behind what is held: Arrow chunks, addressed by row number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.pieces import Widths, cut, widths
from tidegate.settings.columns import row_bytes

#: Small chunks are joined to no more than this: so no column of strings outgrows its offsets, and
#: joining never needs much memory besides what is held.
_CHUNK_ROWS = 1 << 18
_CHUNK_BYTES = 64 << 20
#: Up to this size, all chunks are put into one to take many rows from them.
_WHOLE_BYTES = 32 << 20


@dataclass
class _Chunk:
    """Rows, and how many bytes each takes, once that was asked for."""

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
    """The rows of one stream that may still be needed.

    Rows are only ever added at the end; `trim` drops rows and numbers anew.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        fixed = widths(pa.RecordBatch.from_pylist([], schema))
        self._width = fixed if isinstance(fixed, int) else None
        self._set([])

    def _set(self, chunks: list[_Chunk]) -> None:
        """Consist of these chunks."""
        self._chunks = chunks
        self._starts = np.cumsum([0, *(chunk.rows.num_rows for chunk in chunks)])
        self._whole: _Chunk | None = None

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self._starts[-1])

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(chunk.rows.nbytes for chunk in self._chunks)

    def add(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Add rows; gives the number of the first."""
        first = self.rows
        self._set(self._chunks + [_Chunk(batch) for batch in batches if batch.num_rows])
        return first

    def take(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        """The rows with these numbers."""
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
        """Cut these rows into pieces of at most `most` rows and about `limit` bytes."""
        for part in cut(len(rows), self.widths_of(rows), limit):
            for start in range(part.start, part.stop, most or len(rows)):
                yield slice(start, min(start + (most or len(rows)), part.stop))

    def pieces(self, rows: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """The rows with these numbers, in batches that no column of strings outgrows."""
        for piece in self.cut(rows):
            yield self.take(rows[piece])

    def widths_of(self, rows: NDArray[np.int64]) -> Widths:
        """How many bytes each of the rows with these numbers takes."""
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
        """By chunk: the places of its rows among those given, and their numbers in the chunk.

        Arrow's own take of a chunked column puts all chunks into one each time. That pays if there
        are few rows and most are wanted; it is done once, until there are others.
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
        """Keep, of the rows from `first` on, only these, which ascend, numbered from `first`."""
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
        """Put small chunks together, so that there are few and a row is seldom copied."""
        groups: list[tuple[int, int, int]] = []  # where each ends, its rows, its bytes
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
        """Whether half of the rows are dead."""
        return self.rows > 2 * held + 64


def _some(known: NDArray[np.int64] | None, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
    return None if known is None else known[rows]


def gather(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, rows: NDArray[np.int64]
) -> pa.RecordBatch:
    """Some rows of several batches, counted through."""
    source = Payload(schema)
    source.add(batches)
    return source.take(rows)


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
