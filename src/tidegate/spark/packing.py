"""Pack rows into Arrow IPC messages, the form in which they cross Spark's shuffle.

Spark moves rows one by one, and a Python operator pays for each. So the pack stage groups rows by
shard and sends them as Arrow IPC, one binary value per shard and chunk. The shuffle and the
stateful operator then see a few large rows, whatever the number and types of the columns. No packed
row is larger than 4 MB, unless it contains a single row: Java copies each value several times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from tidegate.engine.base import Job
from tidegate.engine.payload import PIECE_BYTES, cut, cut_batch, one_batch, room, widths
from tidegate.errors import TidegateError
from tidegate.settings.times import WATERMARK
from tidegate.spark import watermarks
from tidegate.spark.compat import to_arrow
from tidegate.spark.metrics import COUNTERS

#: A pack task holds at most this much of its input before it passes it on.
CHUNK_BYTES = 32 << 20
CHUNK_ROWS = 1 << 20

#: The schema across the shuffle: the shard, the stream, its rows as Arrow IPC (empty if none), and
#: a note in JSON with the largest time seen so far and the number of dropped rows by reason.
PACKED = StructType(
    [
        StructField("shard", IntegerType(), False),
        StructField("stream", IntegerType(), False),
        StructField("data", BinaryType(), False),
        StructField("note", StringType(), False),
    ]
)
#: The schema of the stateful operator's output: packed results. The last row of a shard and batch
#: also has its counters, and a report if the join shares a pool.
RESULTS = StructType(
    [
        StructField("data", BinaryType(), False),
        COUNTERS,
        StructField("report", StringType(), False),
    ]
)

PACKED_ARROW = to_arrow(PACKED)
#: The stream numbers of a budget update, and of lines for the archive.
NO_STREAM = -1
DROPPED = -2

RESULTS_ARROW = to_arrow(RESULTS)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which a job gets an input's rows.

    Timestamps are in UTC whatever the session's time zone is, so that a query can be restarted
    under another time zone.
    """
    fields = []
    for column in schema.fields:
        try:
            [found] = to_arrow(StructType([column]))
        except PySparkTypeError:
            raise TidegateError(
                f"column {column.name!r} is of type {column.dataType.simpleString()}, which Spark "
                f"cannot hand to Python as Arrow: leave it out, or cast it to a number or a string"
            ) from None
        late = watermarks.lateness_of(column)
        fields.append(found.with_metadata({WATERMARK: str(late)} if late else None))
    return pa.schema(fields)


def with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the same buffers under a schema of equal layout, such as another time zone.

    Arrow's own cast refuses some nested types with nulls. An IPC message contains no types, so it
    can be read with another schema.
    """
    if batch.schema.equals(schema):
        return batch
    return pa.ipc.read_record_batch(batch.serialize(), schema)


def encode(batches: Iterable[pa.RecordBatch], schema: pa.Schema, sink: pa.NativeFile) -> None:
    """Write record batches as one uncompressed Arrow IPC stream."""
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def decode(data: Any) -> list[pa.RecordBatch]:
    """Read the record batches of an IPC stream, without copying their data."""
    with pa.ipc.open_stream(data) as reader:
        return list(reader)


@dataclass
class Note:
    """The message of a pack task to every shard: its clock and its counts of dropped rows."""

    clock: int | float | None = None
    dropped: dict[str, int] = field(default_factory=dict)

    def advance(self, clock: int | float | None) -> None:
        """Advance the clock to a time, if that is later."""
        if clock is not None and (self.clock is None or clock > self.clock):
            self.clock = clock

    def count(self, dropped: dict[str, int]) -> None:
        """Add dropped rows, by reason."""
        for reason, rows in dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + rows

    def dump(self) -> str:
        """Return the note as JSON."""
        return json.dumps({"clock": self.clock, "dropped": self.dropped})

    def load(self, text: str) -> None:
        """Add the content of another note, given as JSON."""
        other = json.loads(text)
        self.advance(other["clock"])
        self.count(other["dropped"])


@dataclass(frozen=True)
class Pack:
    """The `mapInArrow` function before the shuffle: prepare one stream's rows, group by shard.

    Each task sends every shard at least one packed row, which may be empty. So all shards take part
    in every batch and know the latest time of every stream.
    """

    job: Job
    stream: int
    schema: pa.Schema
    labels: tuple[int, ...]
    #: Whether dropped rows are sent to the first shard, which archives them.
    keep_dropped: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the record batches of one task."""
        note = Note()
        held: list[pa.RecordBatch] = []
        rows = size = 0
        sent = False
        for batch in batches:
            named = with_schema(batch.rename_columns(self.schema.names), self.schema)
            for part in cut_batch(named, CHUNK_BYTES):
                held.append(part)
                rows += part.num_rows
                size += part.nbytes
                if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                    sent = True
                    yield from self._chunk(held, note)
                    held, rows, size = [], 0, 0
        if held or not sent:
            yield from self._chunk(held, note)

    def _chunk(self, held: list[pa.RecordBatch], note: Note) -> Iterator[pa.RecordBatch]:
        """Pack some rows into at least one packed row for every shard."""
        parts: Iterable[tuple[int, pa.RecordBatch | None]]
        parts = ((shard, None) for shard in range(len(self.labels)))
        if held:
            batch = one_batch(pa.Table.from_batches(held, self.schema))
            prepared, dropped = self.job.prepare(self.stream, batch)
            note.count(dropped)
            lines = self.job.dropped_lines(self.stream, batch) if self.keep_dropped else None
            if lines is not None and lines.num_rows:
                yield from self._lines(lines)
            if prepared.num_rows:
                note.advance(pc.max(prepared.column("time")).as_py())
            parts = self._split(prepared, note)
        yield from self._rows(parts, note)

    def _split(
        self, prepared: pa.RecordBatch, note: Note
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """Yield the rows of every shard in turn, in pieces; None for a shard without rows."""
        shards = len(self.labels)
        if prepared.num_rows == 0:
            yield from ((shard, None) for shard in range(shards))
            return
        if shards == 1:
            yield from ((0, piece) for piece in cut_batch(prepared))
            return
        rows, shard = self.job.route(self.stream, prepared, shards)
        if len(rows) > prepared.num_rows:
            note.count({"copies": len(rows) - prepared.num_rows})
        # A stable sort of 16-bit numbers is a radix sort: a pass a byte, and order is kept.
        order = rows[np.argsort(shard, kind="stable")]
        taken, limit = widths(prepared), room(prepared.schema)
        ends = np.cumsum(np.bincount(shard, minlength=shards))
        for at, own in enumerate(np.split(order, ends[:-1])):
            if len(own) == 0:
                yield at, None
            mine = taken if isinstance(taken, int) else taken[own]
            for piece in cut(len(own), mine, limit):
                yield at, prepared.take(pa.array(own[piece]))

    def _rows(
        self, parts: Iterable[tuple[int, pa.RecordBatch | None]], note: Note
    ) -> Iterator[pa.RecordBatch]:
        """Make packed rows, a few at a time. Dropped rows are reported to the first shard only."""
        sink = pa.BufferOutputStream()
        shards: list[int] = []
        notes: list[str] = []
        ends = [0]
        for shard, part in parts:
            if part is not None and ends[-1] and ends[-1] + part.nbytes > PIECE_BYTES:
                yield self._packed(shards, ends, notes, sink.getvalue())
                sink = pa.BufferOutputStream()
                shards, ends, notes = [], [0], []
            if part is not None:
                encode([part], part.schema, sink)
            shards.append(self.labels[shard])
            ends.append(sink.tell())
            notes.append(note.dump())
            note.dropped = {}
        yield self._packed(shards, ends, notes, sink.getvalue())

    def _lines(self, lines: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Make packed rows of lines for the archive."""
        for piece in cut_batch(lines):
            sink = pa.BufferOutputStream()
            encode([piece], piece.schema, sink)
            data, note = sink.getvalue().to_pybytes(), Note().dump()
            columns = [[self.labels[0]], [DROPPED], [data], [note]]
            arrays = [pa.array(c, f.type) for c, f in zip(columns, PACKED_ARROW, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=PACKED_ARROW)

    def _packed(
        self, shards: list[int], ends: list[int], notes: list[str], data: pa.Buffer
    ) -> pa.RecordBatch:
        """Make a record batch of packed rows whose data lie one after the other in a buffer."""
        # An Arrow array of binaries has the same layout, so nothing is copied.
        offsets = pa.py_buffer(np.array(ends, np.int32))
        return pa.RecordBatch.from_arrays(
            [
                pa.array(shards, pa.int32()),
                pa.array([self.stream] * len(shards), pa.int32()),
                pa.Array.from_buffers(pa.binary(), len(shards), [None, offsets, data]),
                pa.array(notes, pa.string()),
            ],
            schema=PACKED_ARROW,
        )


@dataclass(frozen=True)
class BudgetUpdates:
    """The `mapInArrow` function of a pool's budget updates: send each update to every shard.

    An update travels as a note of the stream `NO_STREAM`.
    """

    labels: tuple[int, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Address each update, a text, to all shards."""
        for batch in batches:
            for update in batch.column(0).to_pylist():
                n = len(self.labels)
                columns = [self.labels, [NO_STREAM] * n, [b""] * n, [update] * n]
                arrays = [pa.array(c, f.type) for c, f in zip(columns, PACKED_ARROW, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=PACKED_ARROW)
