"""Jobs on local data: rows are fed to one engine in this process, in order of time."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.api.result import Result
from tidegate.api.series import Series
from tidegate.engine.archive import MADE_BY, Archive, archive_label
from tidegate.engine.base import Engine, Job
from tidegate.engine.payload import Payload
from tidegate.joins.constrained.aggregates import AggregatedJob
from tidegate.joins.constrained.engine import ConstrainedJob
from tidegate.joins.constrained.relation_query import RelationJob
from tidegate.joins.constrained.repair import RepairJob, archive_settings
from tidegate.joins.sampled.engine import SampledJob
from tidegate.joins.star.job import StarJob
from tidegate.joins.window.exact_count import Count, exact_count
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.repair import RepairJob as WindowRepairJob
from tidegate.joins.window.spec import WindowJoin

#: The most bytes of a table that are prepared as one record batch.
_PART_BYTES = 1 << 30

Counters = dict[str, int | float]


def run(
    job: WindowJob | SampledJob | StarJob,
    tables: list[pa.Table],
    batch_rows: int,
    keep_shed: bool,
    archived: dict[str, Any] | None = None,
) -> Result:
    """Feed all rows to a new engine, `batch_rows` at a time.

    `archived` are the settings that the rows dropped early depend on, if they can be repaired.
    """
    engine = job.engine_at(0, 1, keep_shed=keep_shed)
    counters: Counters = {}
    found: list[pa.RecordBatch] = []
    series = Series()
    for inputs in in_order_of_time(job, tables, batch_rows, counters):
        found += engine.feed(inputs)
        series.add(inputs, engine)
    found += engine.finish()
    series.end(engine)
    _add(counters, series.total())
    return Result(
        table=pa.Table.from_batches(found, job.result_schema),
        results=int(counters["results"]),
        importance=float(counters["importance"]),
        counters=counters,
        _shed=_lines(job, engine, tables, archived) if keep_shed else None,
        _series=series.table(),
    )


def _lines(
    job: Job, engine: Engine, tables: list[pa.Table], archived: dict[str, Any] | None
) -> pa.Table:
    """Return the rows that left early, and those that were dropped on arrival."""
    shed = engine.take_shed()
    assert shed is not None
    dropped = (
        job.dropped_lines(stream, part)
        for stream, table in enumerate(tables)
        for part in _parts(table)
    )
    lines = [pa.Table.from_batches([each]) for each in dropped if each is not None]
    label = None if archived is None else {MADE_BY: archive_label(archived)}
    return pa.concat_tables([shed, *lines]).replace_schema_metadata(label)


def results(job: Job, tables: list[pa.Table], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the results of a join piece by piece, without keeping them."""
    engine = job.engine_at(0, 1)
    for inputs in in_order_of_time(job, tables, batch_rows, {}):
        yield from engine.feed(inputs)
    yield from engine.finish()


def run_constrained(
    job: ConstrainedJob | AggregatedJob | RelationJob, tables: list[pa.Table], batch_rows: int
) -> Result:
    """Run a constrained join, or aggregates of one."""
    engine: Any = job.engine_at(0, 1)
    counters: Counters = {}
    found: list[pa.RecordBatch] = []
    peak = 0
    for inputs in in_order_of_time(job, tables, batch_rows, counters):
        found += engine.feed(inputs)
        peak = max(peak, engine.held)
    found += engine.finish()
    _add(counters, engine.take_counters())
    counters["peak_held"] = peak
    counters.setdefault("missed_high", math.inf)
    counters |= engine.details()
    shed = None
    if isinstance(job, ConstrainedJob) and job.spec.archive:
        made_by = archive_label(archive_settings(job.spec))
        shed = engine.take_shed().replace_schema_metadata({MADE_BY: made_by})
    table = pa.Table.from_batches(found, job.result_schema)
    return replace(result_of(table, counters, shed), _explanation=engine.explain())


def with_recall(found: Result, spec: WindowJoin, tables: list[pa.Table]) -> Result:
    """Let a result count the results of the exact join when it is asked for its recall."""

    @functools.cache
    def exact() -> Count:
        if not spec.sheds:
            return Count(found.results, found.results, found.results)
        job = WindowJob(spec)
        prepared = [
            [job.prepare(side, part)[0] for part in _parts(table)]
            for side, table in enumerate(tables)
        ]
        return exact_count(spec, *prepared)

    return replace(found, _exact=exact)


def put_away(found: Result, keep_shed: bool, to: Archive | None) -> Result:
    """Write the rows that were dropped early to an archive, and keep them if asked for."""
    if to is not None:
        to.write(found.shed, shard=0)
    return found if keep_shed else replace(found, _shed=None)


def run_repair(job: RepairJob | WindowRepairJob, tables: list[pa.Table]) -> Result:
    """Run a repair, all rows at once."""
    engine = job.engine_at(0, 1)
    found = list(engine.feed([[job.prepare(s, _single(t))[0]] for s, t in enumerate(tables)]))
    found += engine.finish()
    return result_of(pa.Table.from_batches(found, job.result_schema), engine.take_counters())


def result_of(table: pa.Table, counters: Counters, shed: pa.Table | None = None) -> Result:
    """Return a table of results without importance as a result."""
    return Result(table, table.num_rows, float(table.num_rows), counters, shed)


def _add(counters: Counters, more: Counters | dict[str, int]) -> None:
    for name, value in more.items():
        counters[name] = counters.get(name, 0) + value


def in_order_of_time(
    job: Job, tables: list[pa.Table], batch_rows: int, counters: Counters
) -> Iterator[list[list[pa.RecordBatch]]]:
    """Yield the rows of all tables in order of time, about `batch_rows` at a time."""
    sources, orders, times = [], [], []
    for stream, table in enumerate(tables):
        prepared = []
        for part in _parts(table):
            batch, dropped = job.prepare(stream, part)
            prepared.append(batch)
            _add(counters, dropped)
        sources.append(Payload(prepared[0].schema))
        sources[-1].add(prepared)
        time = np.concatenate([batch.column("time").to_numpy() for batch in prepared])
        orders.append(np.argsort(time, kind="stable"))
        times.append(time[orders[-1]])
    cuts = np.sort(np.concatenate(times))[batch_rows::batch_rows]
    ends = [[*np.searchsorted(t, cuts), len(t)] for t in times]
    for i in range(len(cuts) + 1):
        starts = [e[i - 1] if i else 0 for e in ends]
        yield [
            list(source.pieces(order[start : end[i]]))
            for source, order, start, end in zip(sources, orders, starts, ends, strict=True)
        ]


def _parts(table: pa.Table) -> list[pa.RecordBatch]:
    """Return a table as one record batch, or several if a column of strings would be too large."""
    parts: list[list[pa.RecordBatch]] = []
    size = 0
    for batch in table.to_batches():
        if not parts or size + batch.nbytes > _PART_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(batch)
        size += batch.nbytes
    return [_single(pa.Table.from_batches(part, table.schema)) for part in parts or [[]]]


def _single(table: pa.Table) -> pa.RecordBatch:
    return pa.concat_batches([pa.RecordBatch.from_pylist([], table.schema), *table.to_batches()])
