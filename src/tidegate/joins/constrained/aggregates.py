"""Aggregates over the results of a constrained join, as its windows change.

A result is in the join from the time of its latest row until the first of its rows leaves its
window (CQL's relations; section 1.1 of Babu, Srivastava, Widom: the total common traffic). The
output has one row for every time at which an aggregate of a group may have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.engine.base import Clocks, Job
from tidegate.engine.exact_sums import Changes, reals, sum_type, sums
from tidegate.engine.extremes import extremes, first_and_last
from tidegate.engine.payload import cut_batch, one_batch
from tidegate.engine.state_log import RECORD_BYTES, LoggedEngine, Replay
from tidegate.errors import TidegateError
from tidegate.joins.constrained.engine import ConstrainedEngine, ConstrainedJob
from tidegate.joins.constrained.layout import NEVER
from tidegate.joins.constrained.spec import ConstrainedJoin
from tidegate.settings.columns import numbered
from tidegate.settings.times import TimeUnit, times
from tidegate.sql.cql_query import aggregate_type
from tidegate.sql.expressions import Output, Outputs

#: The result column with the time of a change.
AT = "at"


@dataclass(frozen=True)
class Aggregates:
    """The aggregates to compute, by the column numbers of the join's results.

    `items` are (name, function, column). Function None means the group's column itself. Column None
    means whole rows. `outputs` are computed from the items, for the rows that meet `having`.
    Without outputs, the items are the result.
    """

    groups: tuple[int, ...]
    items: tuple[tuple[str, str | None, int | None], ...]
    times: tuple[int, ...]
    outputs: tuple[Output, ...] = ()
    having: str | None = None


class AggregatedJob(Job):
    """Aggregates of a constrained join as something to send to where it runs."""

    def __init__(self, spec: ConstrainedJoin, asked: Aggregates) -> None:
        self.join = ConstrainedJob(spec)
        self.asked = asked

    @property
    def kind(self) -> str:
        """The kind of join, as in the table of counters."""
        return "constrained"

    @property
    def result_schema(self) -> pa.Schema:
        """The time, and the requested columns."""
        return self.outputs().schema

    def outputs(self) -> Outputs:
        """Return what the result is computed by."""
        return Outputs(self.item_schema, self.asked.outputs, self.asked.having)

    @property
    def item_schema(self) -> pa.Schema:
        """The time, and the items."""
        source = self.join.result_schema
        fields = [pa.field(AT, at_type(self.join.spec.unit))]
        for name, function, column in self.asked.items:
            if function is None:
                assert column is not None
                fields.append(source.field(column).with_name(name))
            elif column is None:
                fields.append(pa.field(name, pa.int64()))
            else:
                fields.append(pa.field(name, aggregate_type(function, source.field(column).type)))
        return pa.schema(fields)

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Prepare rows as the join does."""
        return self.join.prepare(stream, batch)

    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> AggregatedEngine:
        """Return the engine of the only shard."""
        return AggregatedEngine(self)

    def fingerprint(self) -> dict[str, Any]:
        """The settings that a checkpoint depends on."""
        asked = [list(item) for item in self.asked.items]
        told = self.join.fingerprint() | {"groups": list(self.asked.groups), "items": asked}
        if self.asked.outputs:
            told |= {"outputs": [list(each) for each in self.asked.outputs]}
            told |= {"having": self.asked.having}
        return told


def at_type(times: TimeUnit) -> pa.DataType:
    """Return the type of the time column of the result."""
    if not times.is_time:
        return pa.int64()
    unit = {1: "ns", 1_000: "us", 1_000_000: "ms"}.get(times.per_unit.denominator, "s")
    return pa.timestamp(unit, "UTC" if times.kind == "timestamp" else None)


class AggregatedEngine(LoggedEngine):
    """A constrained join, and the aggregates of what its windows hold."""

    _streams = 1

    def __init__(self, job: AggregatedJob) -> None:
        self._job = job
        self._asked = job.asked
        self._outputs = job.outputs()
        self._join: ConstrainedEngine = job.join.engine_at(0, 1)
        self._inner = self._join
        source = job.join.result_schema
        used = {c for _, _, c in self._asked.items if c is not None} | {*self._asked.groups}
        self._columns = sorted(used)
        fields = [("from", pa.int64()), ("until", pa.int64())]
        self._schema = pa.schema(
            [pa.field(n, t) for n, t in fields]
            + [source.field(c).with_name(f"c{c}") for c in self._columns]
        )
        self._rows = self._schema.empty_table()
        self._fresh = self._schema.empty_table()
        self._told = -NEVER

    # ---- input and output ---------------------------------------------------------------------

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Process prepared batches of every stream; give the aggregates that have changed."""
        yield from self._give(self._join.feed(inputs, clocks), final=False)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Close the open tick, and give the aggregates at its time."""
        yield from self._give(self._join.finish(), final=True)

    def _give(self, found: Iterator[pa.RecordBatch], *, final: bool) -> Iterator[pa.RecordBatch]:
        # Keep only the columns that are needed.
        new = pa.concat_tables([self._schema.empty_table(), *map(self._timed, found)])
        self._fresh = pa.concat_tables([self._fresh, new])
        rows = pa.concat_tables([self._rows, new])
        end = self._join.latest + 1 if final else self._join.settled
        changed = self._changed(rows, end)
        self._told = max(self._told, end)
        self._rows = rows.filter(pc.greater_equal(rows.column("until"), self._told))
        if changed is not None:
            yield from cut_batch(changed)

    def _timed(self, batch: pa.RecordBatch) -> pa.Table:
        """Return results with the time interval during which they are in the join."""
        spec = self._job.join.spec
        start = np.full(batch.num_rows, -NEVER, np.int64)
        end = np.full(batch.num_rows, NEVER, np.int64)
        for stream, at in zip(spec.streams, self._asked.times, strict=True):
            when = times(batch.column(at), spec.unit)
            start = np.maximum(start, when)
            if stream.window is not None:
                end = np.minimum(end, when + stream.window)
        columns = [pa.array(start), pa.array(end), *(batch.column(c) for c in self._columns)]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _changed(self, rows: pa.Table, end: int) -> pa.RecordBatch | None:
        """Return the aggregates of every group at every time of change before `end`."""
        start, until = (rows.column(name).to_numpy() for name in ("from", "until"))
        held = np.flatnonzero(start < self._told)
        comes = np.flatnonzero((start >= self._told) & (start < end))
        goes = np.flatnonzero((until >= self._told) & (until < end))
        if len(comes) + len(goes) == 0:
            return None
        row = np.concatenate([held, comes, goes])
        sign = np.repeat([1, 1, -1], [len(held), len(comes), len(goes)])
        when = np.concatenate([np.full(len(held), -NEVER), start[comes], until[goes]])
        group, first = self._grouped(rows, row)
        order = np.lexsort((when, group))
        row, sign, when, group = row[order], sign[order], when[order], group[order]
        last = np.append((group[1:] != group[:-1]) | (when[1:] != when[:-1]), True)
        told = np.flatnonzero(last & (when > -NEVER))
        starts = np.append(0, np.flatnonzero(group[1:] != group[:-1]) + 1)
        lengths = np.diff(np.append(starts, len(group)))
        changes = Changes(sign, np.repeat(starts, lengths)[told], told)
        columns: list[Any] = [pa.array(when[told]).cast(at_type(self._job.join.spec.unit))]
        for _, function, column in self._asked.items:
            if function is None:
                source = rows.column(f"c{column}")
                columns.append(source.take(pa.array(first[group[told]])))
            else:
                columns.append(self._totals(rows, function, column, row, group, changes))
        by_time = np.argsort(when[told], kind="stable")
        schema = self._job.item_schema
        made = pa.RecordBatch.from_arrays([_whole(c) for c in columns], schema=schema)
        return self._outputs.of(made.take(pa.array(by_time)))

    def _grouped(
        self, rows: pa.Table, row: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of each row's group, and one row of each group."""
        if not self._asked.groups:
            return np.zeros(len(row), np.int64), row[:1]
        keys = rows.select([f"c{c}" for c in self._asked.groups]).take(pa.array(row))
        group, first = numbered([_whole(key) for key in keys.columns], len(row))
        return group, row[first]

    def _totals(
        self,
        rows: pa.Table,
        function: str,
        column: int | None,
        row: NDArray[np.int64],
        group: NDArray[np.int64],
        changes: Changes,
    ) -> pa.Array:
        """Return an aggregate after each change that is reported."""
        taken = None
        if column is not None:
            taken = _whole(rows.column(f"c{column}").take(pa.array(row)))
        total = totals(taken, function, row, group, changes)
        if total is None:
            assert column is not None
            raise self._too_large(column)
        return total

    def _too_large(self, column: int) -> TidegateError:
        spec = self._job.join.spec
        stream, name = spec.selected[column]
        kind = sum_type(spec.result_schema.field(column).type)
        return TidegateError(
            f"sum({spec.streams[stream].name}.{name}) has become larger than its type, {kind}, can "
            "hold; cast the column to a decimal of more digits or to a floating point number, or "
            "take shorter windows"
        )

    # ---- counters and state -------------------------------------------------------------------

    def take_counters(self) -> dict[str, int | float]:
        """Return the counters of the join, and the number of results in its windows."""
        return self._join.take_counters() | {"waiting": self._rows.num_rows}

    def details(self) -> dict[str, int | float]:
        """Return gauges by stream and constraint; see `ConstrainedEngine.details`."""
        return self._join.details()

    def explain(self) -> str:
        """Return what the join holds, and why; see `ConstrainedEngine.explain`."""
        return self._join.explain()

    def report(self) -> str:
        """Return the gauges of the join as JSON; see `ConstrainedEngine.report`."""
        return self._join.report()

    @property
    def held(self) -> int:
        """Number of rows the join holds."""
        return self._join.held

    def _head(self) -> dict[str, Any]:
        return {"reported": self._told}

    def _open_rows(self) -> list[pa.RecordBatch]:
        return []

    def _load_open(self, rows: list[pa.RecordBatch]) -> None:
        pass

    def _held_rows(
        self, stream: int, most: tuple[int, int] | None, *, changed: bool
    ) -> Iterator[pa.RecordBatch]:
        rows = self._fresh if changed else self._rows
        return cut_batch(one_batch(rows), RECORD_BYTES)

    def _held_size(self) -> tuple[int, int]:
        return self._rows.num_rows, self._rows.nbytes

    def _mark(self) -> None:
        self._fresh = self._schema.empty_table()

    def _load(self, log: Replay) -> None:
        self._told = log.head["reported"]
        rows = pa.Table.from_batches(log.all("held0"), self._schema)
        self._rows = rows.filter(pc.greater_equal(rows.column("until"), self._told))


def totals(
    taken: pa.Array | None,
    function: str,
    row: NDArray[np.int64],
    group: NDArray[np.int64],
    changes: Changes,
) -> pa.Array | None:
    """Return an aggregate after each wanted change; None if a sum is too large for its type.

    `taken` has the value of each change; without it, whole rows are counted.
    """
    if taken is None:
        return pa.array(changes.sums(np.ones(len(row), np.int64)))
    if function in ("min", "max"):
        return extremes(taken, row, group, changes, largest=function == "max")
    function, _, distinct = function.partition(" ")
    there = taken.is_valid().to_numpy(zero_copy_only=False)
    if distinct:
        value, _ = numbered([taken], len(row))
        changes = changes._replace(sign=first_and_last(changes.sign, group, value))
    count = changes.sums(there.astype(np.int64))
    if function == "count":
        return pa.array(count)
    taken = taken.fill_null(pa.scalar(0, taken.type))
    if function == "avg":
        return pa.array(reals(taken, changes) / np.maximum(count, 1), mask=count == 0)
    total = sums(taken, changes)
    if total is None:
        return None
    return pc.if_else(pa.array(count == 0), pa.scalar(None, total.type), total)


def _whole(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
