"""A query with queries inside, as a job: its result is a stream of inserts and deletes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.engine.base import Clocks, Job
from tidegate.engine.counters import FLOWS
from tidegate.engine.payload import cut_batch, one_batch
from tidegate.engine.prepare import PREPARED, ROW_HASH, TIME, prepare, prepared_schema
from tidegate.engine.state_log import RECORD_BYTES, LoggedEngine, Replay
from tidegate.errors import TidegateError
from tidegate.joins.constrained.aggregates import AT, at_type
from tidegate.joins.constrained.layout import NEVER
from tidegate.joins.constrained.relations import Arrived, Block, deletions, differences, kept
from tidegate.settings.schedules import Side
from tidegate.settings.times import TimeUnit
from tidegate.settings.values import quoted

#: The result column that says whether a row comes or goes, and its values.
CHANGE, INSERT, DELETE = "change", "insert", "delete"
#: The words for both in a stream of inserts and deletes, in lower case; Debezium's codes, too.
_INSERTS, _DELETES = pa.array(["insert", "c", "r"]), pa.array(["delete", "d"])


def _is_deletion(operations: pa.Array) -> NDArray[np.bool_]:
    lower = pc.utf8_lower(operations)
    found: NDArray[np.bool_] = pc.is_in(lower, _DELETES).to_numpy(zero_copy_only=False)
    return found


def _check_operations(name: str, operations: pa.Array) -> None:
    known = pc.is_in(pc.utf8_lower(operations), pa.concat_arrays([_INSERTS, _DELETES]))
    wrong = np.flatnonzero(~known.to_numpy(zero_copy_only=False))
    if len(wrong):
        raise TidegateError(
            f'a change must be "insert" or "delete", and column "{name}" has '
            f"{quoted(operations[int(wrong[0])].as_py())}; write an update as a delete and an "
            "insert"
        )


@dataclass(frozen=True)
class RelationJob(Job):
    """The settings of a query with queries inside."""

    text: str
    block: Block
    streams: tuple[Side, ...]
    unit: TimeUnit
    lateness: int
    lag: int | None
    #: For each stream: the column with the operation, if its rows are inserts and deletes.
    operations: tuple[str | None, ...]

    @property
    def result_schema(self) -> pa.Schema:
        """The time, the kind of change, and the selected columns."""
        head = [pa.field(AT, at_type(self.unit)), pa.field(CHANGE, pa.string())]
        return pa.schema([*head, *self.block.schema])

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Drop rows without a time, and check the operations of the others."""
        operation = self.operations[stream]
        if operation is not None:
            _check_operations(operation, batch.column(operation))
        return prepare(self.streams[stream], self.unit, batch)

    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> RelationEngine:
        """Return the engine of the only shard."""
        return RelationEngine(self)

    def fingerprint(self) -> dict[str, Any]:
        """The settings that a checkpoint depends on."""
        return {
            "query": self.text,
            "time": [side.time for side in self.streams],
            "windows": [[w.length, w.count, w.by] for w in self.block.windows()],
            "columns": [[f"{f.name}: {f.type}" for f in side.schema] for side in self.streams],
            "lateness": self.lateness,
            "lag": self.lag,
            "changes": list(self.operations),
        }


class RelationEngine(LoggedEngine):
    """A relation that follows from the windows of streams, and how it changes.

    The rows of a time are complete when all streams have passed it. The state are the rows that the
    windows hold then, and those of later times.
    """

    def __init__(self, job: RelationJob) -> None:
        self._job = job
        self._schemas = [prepared_schema(side.schema, job.unit) for side in job.streams]
        self._streams = len(job.streams)
        self._rows = [schema.empty_table() for schema in self._schemas]
        self._fresh = [schema.empty_table() for schema in self._schemas]
        self._clock = [-NEVER] * self._streams
        self._told = -NEVER
        self._flows = dict.fromkeys(FLOWS, 0)

    # ---- input and output ---------------------------------------------------------------------

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Take rows, and give the changes up to the time that all streams have passed."""
        for stream, batches in enumerate(inputs):
            self._arrive(stream, batches)
        for stream, clock in enumerate(clocks or ()):
            if clock is not None:
                self._clock[stream] = max(self._clock[stream], int(clock))
        end = min(self._clock)
        if self._job.lag is not None:
            end = max(end, max(self._clock) - self._job.lag)
        yield from self._advance(end - self._job.lateness)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Give the changes up to the newest row."""
        yield from self._advance(max(self._clock) + 1)

    def _arrive(self, stream: int, batches: Sequence[pa.RecordBatch]) -> None:
        new = pa.Table.from_batches(batches, self._schemas[stream])
        if new.num_rows == 0:
            return
        times = new.column(TIME).to_numpy()
        behind = np.maximum.accumulate(np.append(self._clock[stream], times))[:-1]
        self._flows["arrived"] += len(times)
        self._flows["out_of_order"] += int((times < behind).sum())
        late = times < self._told
        self._flows["late"] += int(late.sum())
        if late.any():
            new = new.filter(pa.array(~late))
        self._clock[stream] = max(self._clock[stream], int(times.max()))
        self._fresh[stream] = pa.concat_tables([self._fresh[stream], new])
        self._rows[stream] = _in_order(pa.concat_tables([self._rows[stream], new]))

    def _arrived(self, settled: int) -> list[Arrived]:
        found = []
        job = self._job
        for side, operation, table in zip(job.streams, job.operations, self._rows, strict=True):
            batch = one_batch(table)
            rows = pa.RecordBatch.from_arrays(batch.columns[PREPARED:], schema=side.schema)
            time = batch.column(TIME).to_numpy()
            deleted = np.full(len(time), NEVER, np.int64)
            if operation is not None:
                is_deletion = _is_deletion(rows.column(operation))
                rows = rows.drop_columns([operation])
                content = rows.drop_columns([side.time])
                deleted = deletions(content, time, is_deletion, settled)
            found.append(Arrived(rows, time, deleted))
        return found

    def _advance(self, end: int) -> Iterator[pa.RecordBatch]:
        if end <= self._told:
            return
        start = self._told - 1
        found = self._job.block.rows(self._arrived(end), start, end)
        rows, when, comes = differences(found, start, end)
        self._told = end
        self._prune()
        if len(when) == 0:
            return
        change = pa.array(np.where(comes, INSERT, DELETE), pa.string())
        at = pa.array(when).cast(at_type(self._job.unit))
        self._flows["results"] += len(when)
        yield from cut_batch(
            pa.RecordBatch.from_arrays([at, change, *rows.columns], schema=self._job.result_schema)
        )

    def _prune(self) -> None:
        """Drop rows that no window holds any more."""
        masks = kept(self._job.block.windows(), self._arrived(self._told), self._told)
        for stream, mask in enumerate(masks):
            if not mask.all():
                self._flows["expired"] += int(len(mask) - mask.sum())
                self._rows[stream] = self._rows[stream].filter(pa.array(mask)).combine_chunks()

    # ---- counters and state -------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Number of rows that windows hold."""
        return sum(table.num_rows for table in self._rows)

    def take_counters(self) -> dict[str, int | float]:
        """Return flows since the last call, and current gauges."""
        taken: dict[str, int | float] = {**self._flows}
        self._flows = dict.fromkeys(FLOWS, 0)
        return taken | {"held": self.held, "bytes": sum(table.nbytes for table in self._rows)}

    def details(self) -> dict[str, int | float]:
        """Return no gauges: no constraint is used."""
        return {}

    def explain(self) -> str:
        """Say what is held."""
        return (
            f"{self.held} rows of {self._streams} streams, all that their windows hold: a query "
            "with queries inside uses no constraints"
        )

    def _head(self) -> dict[str, Any]:
        return {"told": self._told, "clock": self._clock}

    def _open_rows(self) -> list[pa.RecordBatch]:
        return []

    def _load_open(self, rows: list[pa.RecordBatch]) -> None:
        pass

    def _held_rows(
        self, stream: int, most: tuple[int, int] | None, *, changed: bool
    ) -> Iterator[pa.RecordBatch]:
        rows = (self._fresh if changed else self._rows)[stream]
        if rows.num_rows:
            yield from cut_batch(one_batch(rows), RECORD_BYTES)

    def _held_size(self) -> tuple[int, int]:
        return self.held, sum(table.nbytes for table in self._rows)

    def _mark(self) -> None:
        self._fresh = [schema.empty_table() for schema in self._schemas]

    def _load(self, log: Replay) -> None:
        self._told, self._clock = log.head["told"], list(log.head["clock"])
        for stream, schema in enumerate(self._schemas):
            table = pa.Table.from_batches(log.all(f"held{stream}"), schema)
            self._rows[stream] = _in_order(table)
        if self._told > -NEVER:
            self._prune()
        self._flows = dict.fromkeys(FLOWS, 0)


def _in_order(table: pa.Table) -> pa.Table:
    """Sort rows by time; those of one time by their content."""
    hashes: NDArray[np.uint64] = table.column(ROW_HASH).to_numpy()
    order = np.lexsort((hashes, table.column(TIME).to_numpy()))
    return table.take(pa.array(order)).combine_chunks()
