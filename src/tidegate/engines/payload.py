"""The rows behind what is held: Arrow chunks, addressed by row number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.columns import row_bytes
from tidegate.engines.pieces import Widths, cut, widths

#: Small chunks are joined to no more than this: so no column of strings outgrows its offsets, and
#: joining never needs much memory besides what is held.
_CHUNK_ROWS = 1 << 18
_CHUNK_BYTES = 64 << 20


class Payload:
    """The rows of one stream that may still be needed.

    Rows are only ever added at the end; `trim` drops rows and numbers anew.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._chunks: list[pa.RecordBatch] = []
        fixed = widths(pa.RecordBatch.from_pylist([], schema))
        self._width = fixed if isinstance(fixed, int) else None
        # By chunk, where rows differ: the bytes of its rows, once they were asked for.
        self._widths: list[NDArray[np.int64] | None] = []
        self._starts: NDArray[np.int64] | None = None
        self.rows = 0

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(chunk.nbytes for chunk in self._chunks)

    def add(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Add rows; gives the number of the first."""
        first = self.rows
        for batch in batches:
            if batch.num_rows:
                self._add(batch, None)
        return first

    def _add(self, batch: pa.RecordBatch, taken: NDArray[np.int64] | None) -> None:
        self._chunks.append(batch)
        self._widths.append(taken)
        self._starts = None
        self.rows += batch.num_rows

    def take(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        """The rows with these numbers."""
        if len(rows) == 0:
            return pa.RecordBatch.from_pylist([], self.schema)
        # Arrow's own take of a chunked column puts all chunks into one first.
        spread = self._by_chunk(rows)
        parts = [self._chunks[chunk].take(pa.array(own)) for chunk, _, own in spread]
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
        taken = np.empty(len(rows), np.int64)
        for chunk, at, own in self._by_chunk(rows):
            known = self._widths[chunk]
            if known is None:
                known = np.asarray(widths(self._chunks[chunk]))
                self._widths[chunk] = known
            taken[at] = known[own]
        return taken

    def _by_chunk(self, rows: NDArray[np.int64]) -> list[tuple[int, Any, NDArray[np.int64]]]:
        """By chunk: the places of its rows among those given, and their numbers in the chunk."""
        starts = self._first_rows()
        ends = np.array([rows.min(), rows.max()])
        first, last = (np.searchsorted(starts, ends, "right") - 1).tolist()
        if first == last:
            return [(first, slice(None), rows - starts[first])]
        chunk = np.searchsorted(starts, rows, "right") - 1
        # A stable sort of 16-bit numbers is a radix sort.
        order = np.argsort(chunk.astype(np.uint16) if last < 1 << 16 else chunk, kind="stable")
        found, begins = np.unique(chunk[order], return_index=True)
        places = np.split(order, begins[1:])
        return [(c, at, rows[at] - starts[c]) for c, at in zip(found.tolist(), places, strict=True)]

    def _first_rows(self) -> NDArray[np.int64]:
        """The number of the first row of each chunk."""
        if self._starts is None:
            sizes = [chunk.num_rows for chunk in self._chunks]
            self._starts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        return self._starts

    def trim(self, first: int, rows: NDArray[np.int64]) -> None:
        """Keep, of the rows from `first` on, only these, which ascend, numbered from `first`."""
        if len(rows) == self.rows - first:
            return
        older = count = 0
        while older < first:
            older += self._chunks[count].num_rows
            count += 1
        chunks, taken = self._chunks[count:], self._widths[count:]
        self._chunks, self._widths, self.rows = self._chunks[:count], self._widths[:count], first
        self._starts = None
        stops = first + np.cumsum([chunk.num_rows for chunk in chunks])
        parts = np.split(rows, np.searchsorted(rows, stops[:-1]))
        for chunk, each, stop, part in zip(chunks, taken, stops, parts, strict=True):
            if len(part) == chunk.num_rows:
                self._add(chunk, each)
            elif len(part):
                kept = part - (stop - chunk.num_rows)
                left = None if each is None else each[kept]
                self._add(chunk.take(pa.array(kept)), left)
        self.join_chunks()

    def join_chunks(self) -> None:
        """Put small chunks together, so that there are few and a row is seldom copied."""
        groups: list[tuple[int, int, int]] = []  # where each ends, its rows, its bytes
        for end, chunk in enumerate(self._chunks, 1):
            groups.append((end, chunk.num_rows, chunk.nbytes))
            while len(groups) > 1:
                (_, before, size), (_, last, more) = groups[-2:]
                if before > 2 * last or max(2 * last, before + last) > _CHUNK_ROWS:
                    break
                if size + more > _CHUNK_BYTES:
                    break
                groups[-2:] = [(end, before + last, size + more)]
        if len(groups) == len(self._chunks):
            return
        chunks, taken = self._chunks, self._widths
        self._chunks, self._widths, self._starts = [], [], None
        start = 0
        for end, _, _ in groups:
            alone = end - start == 1
            self._chunks.append(chunks[start] if alone else pa.concat_batches(chunks[start:end]))
            self._widths.append(taken[start] if alone else None)
            start = end

    def wants_trim(self, held: int) -> bool:
        """Whether half of the rows are dead."""
        return self.rows > 2 * held + 64


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
