"""The same calls as on Spark, on Arrow tables and pandas, in this process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Job
from tidegate.engine.payload import Payload
from tidegate.errors import TidegateError
from tidegate.joins.constrained.aggregates import AggregatedJob
from tidegate.joins.constrained.cql_plan import repaired_spec
from tidegate.joins.constrained.engine import ConstrainedEngine, ConstrainedJob
from tidegate.joins.constrained.repair import (
    MADE_BY,
    RepairJob,
    archive_label,
    archive_settings,
    check_archive,
)
from tidegate.joins.constrained.shed_log import MARK, archived, shed_schema
from tidegate.joins.constrained.spec import constrained_join as spec_of_constrained
from tidegate.joins.constrained.spec import flag
from tidegate.joins.sampled.engine import SampledJob
from tidegate.joins.sampled.estimates import estimated, estimation
from tidegate.joins.sampled.spec import sampled_join
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.spec import named
from tidegate.joins.star.spec import star_join as spec_of_star
from tidegate.joins.truncated import engine as truncation
from tidegate.joins.truncated.spec import TruncatedJoin
from tidegate.joins.truncated.spec import truncated_join as spec_of_truncated
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import WindowJoin, frequencies_of, window_join, with_frequencies
from tidegate.policies import ByFrequency
from tidegate.policies.base import as_table
from tidegate.settings.checks import check_names
from tidegate.settings.columns import decoded, hash_columns
from tidegate.settings.times import times
from tidegate.settings.values import quoted

#: A table is taken as one batch up to this size.
_PART_BYTES = 1 << 30


@dataclass(frozen=True)
class Result:
    """What a join gave.

    Attributes
    ----------
    table
        The result rows: the left's columns, then the right's.
    results
        How many there are.
    importance
        Their total importance; the number of rows where none was asked for.
    counters
        What happened to the rows: arrived, admitted, evicted, expired and so on.
    """

    table: pa.Table
    results: int
    importance: float
    counters: dict[str, int | float]
    _shed: pa.Table | None = field(default=None, repr=False)

    @property
    def shed(self) -> pa.Table:
        """The rows that left early, if the call was made with ``keep_shed=True``.

        ``side``, ``left_at`` (when, in the time column's numbers), ``why`` (``"evicted"``,
        ``"rejected"`` on arrival, ``"queue full"``, or the constraint that dropped it) and the
        row, a struct in column ``left`` or ``right``; the other is null.
        """
        if self._shed is None:
            raise TidegateError(
                "shed was not kept, because it can take more memory than the join itself: give "
                "the call keep_shed=True"
            )
        return self._shed


def join(
    left: Any,
    right: Any,
    *,
    batch_rows: int = 1 << 20,
    keep_shed: bool = False,
    **settings: Any,
) -> Result:
    """Join two finite streams in bounded memory; see `tidegate.join` for the settings.

    Parameters
    ----------
    left, right
        Arrow tables or pandas DataFrames, in any order of rows. Columns that are encoded
        (dictionaries, runs, views) are decoded.
    batch_rows
        How many rows are taken at once. The answer does not depend on it.
    keep_shed
        Whether the result has ``shed``, the rows that left early. They take memory of their own.
    **settings
        As `tidegate.join` takes them, except `shards`: there is one.
    """
    _check_batch(batch_rows)
    check_names(settings, window_join)
    tables = [decoded(as_table(left)), decoded(as_table(right))]
    spec = window_join(tables[0].schema, tables[1].schema, **settings)
    return _run(WindowJob(_counted(spec, tables)), tables, batch_rows, keep_shed)


def star_join(
    streams: Any,
    relation: Any,
    *,
    batch_rows: int = 1 << 20,
    keep_shed: bool = False,
    **settings: Any,
) -> Result:
    """Join finite streams through a relation; see `tidegate.star_join` for the settings.

    Parameters
    ----------
    streams
        Arrow tables or pandas DataFrames, in any order of rows: a list of them, or a mapping of
        names to them.
    relation
        An Arrow table or pandas DataFrame: facts, or changes of them.
    batch_rows
        How many rows are taken at once. The answer does not depend on it.
    keep_shed
        Whether the result has ``shed``, the rows that left early.
    **settings
        As `tidegate.star_join` takes them, except `shards`: there is one.
    """
    _check_batch(batch_rows)
    check_names(settings, spec_of_star)
    tables = {name: decoded(as_table(data)) for name, data in named(streams).items()}
    facts = decoded(as_table(relation))
    spec = spec_of_star({n: t.schema for n, t in tables.items()}, facts.schema, **settings)
    inputs = list(tables.values())
    if spec.dynamic:
        job = StarJob(spec, None)
        inputs.append(facts)
    else:
        job = StarJob(spec, LocalRelation(*in_order(facts)))
    return _run(job, inputs, batch_rows, keep_shed)


def sample_join(
    left: Any,
    right: Any,
    *,
    batch_rows: int = 1 << 20,
    keep_shed: bool = False,
    **settings: Any,
) -> Result:
    """Sample the join of two finite streams; see `tidegate.sample_join` for the settings.

    Parameters
    ----------
    left, right, batch_rows, keep_shed
        As `join` takes them.
    **settings
        As `tidegate.sample_join` takes them, except `shards`: there is one.
    """
    _check_batch(batch_rows)
    check_names(settings, sampled_join)
    tables = [decoded(as_table(left)), decoded(as_table(right))]
    spec = sampled_join(tables[0].schema, tables[1].schema, **settings)
    return _run(SampledJob(spec), tables, batch_rows, keep_shed)


def estimate(sample: Any, **settings: Any) -> pa.Table:
    """Estimate aggregates of a join from a sample; see `tidegate.estimate` for the settings.

    Parameters
    ----------
    sample
        What `sample_join` gave, or its table (Arrow or pandas).
    **settings
        As `tidegate.estimate` takes them.
    """
    check_names(settings, estimation)
    table = decoded(sample.table if isinstance(sample, Result) else as_table(sample))
    return estimated(estimation(table.schema, **settings), table)


def _check_batch(rows: Any) -> None:
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise TidegateError(f"batch_rows must be a positive number of rows, not {quoted(rows)}")


def _run(
    job: WindowJob | SampledJob | StarJob,
    tables: list[pa.Table],
    batch_rows: int,
    keep_shed: bool,
) -> Result:
    """Feed a new engine all rows."""
    engine = job.engine_at(0, 1, keep_shed=flag(keep_shed, "keep_shed"))
    counters: dict[str, int | float] = {}
    found: list[pa.RecordBatch] = []
    for inputs in _in_step(job, tables, batch_rows, counters):
        found += engine.feed(inputs)
    found += engine.finish()
    for name, value in engine.take_counters().items():
        counters[name] = counters.get(name, 0) + value
    return Result(
        table=pa.Table.from_batches(found, job.result_schema),
        results=int(counters["results"]),
        importance=float(counters["importance"]),
        counters=counters,
        _shed=engine.take_shed() if keep_shed else None,
    )


def truncated_join(
    left: Any, right: Any = None, *, keep_shed: bool = False, **settings: Any
) -> Result:
    """Join the best part of finite relations; see `tidegate.truncated_join` for the settings.

    Parameters
    ----------
    left, right
        Arrow tables or pandas DataFrames; or a list of two and more as the first.
    keep_shed
        Whether the result has ``shed``, the rows that were not kept.
    **settings
        As `tidegate.truncated_join` takes them.

    Returns
    -------
    Result
        Its counters say how many rows were ``kept``, also of each input, and how many results
        the join of everything has (``exact_results``). In ``shed`` are the rows that were not
        kept: for want of room (``"truncated"``) or of any partner (``"no partner"``). They have no
        ``left_at``.
    """
    check_names(settings, spec_of_truncated)
    flag(keep_shed, "keep_shed")
    tables = [decoded(as_table(data)) for data in relations(left, right)]
    spec = spec_of_truncated([table.schema for table in tables], **settings)
    done = truncation.run(spec, tables)
    shed = [
        _departed(spec, at, table, rows, why)
        for at, table in enumerate(tables)
        for why, rows in (
            ("truncated", done.left_out[at]),
            ("no partner", done.partnerless[at]),
        )
        if keep_shed
    ]
    results = len(done.table)
    return Result(
        table=done.table,
        results=results,
        importance=float(results),
        counters=done.counters,
        _shed=pa.concat_tables(shed) if keep_shed else None,
    )


def constrained_join(
    streams: Mapping[str, Any],
    *,
    batch_rows: int = 1 << 20,
    keep_shed: bool = False,
    **settings: Any,
) -> Result:
    """Join finite streams many-one; see `tidegate.constrained_join` for the settings.

    Parameters
    ----------
    streams
        Arrow tables or pandas DataFrames by name, in any order of rows.
    batch_rows
        How many rows are taken at once; the answer does not depend on it.
    keep_shed
        Whether ``shed`` of the result has the rows that a constraint dropped; its column
        ``mark`` is for `repair`.
    **settings
        As `tidegate.constrained_join` takes them, except `shards`, as there is one, and `shed_to`.
        Streams are taken in step, so `lag` is 0 by default.

    Returns
    -------
    Result
        Its counters also have what k each constraint ended with (infinity for one that is not
        used), and ``peak_held``, the most rows that were held after any batch.
    """
    _check_batch(batch_rows)
    check_names(settings, spec_of_constrained)
    check_streams(streams)
    flag(keep_shed, "keep_shed")
    tables = {name: decoded(as_table(data)) for name, data in streams.items()}
    schemas = {name: table.schema for name, table in tables.items()}
    spec = spec_of_constrained(schemas, **{"lag": 0, **settings})
    if keep_shed:
        spec = archived(spec)
    return run_streams(ConstrainedJob(spec), list(tables.values()), batch_rows)


def check_streams(streams: Any) -> None:
    """Refuse streams that have no names."""
    if not isinstance(streams, Mapping):
        raise TidegateError(
            f'streams must be a mapping by name, {{"S1": ..., "S2": ...}}, not '
            f"{type(streams).__name__}"
        )
    for name in streams:
        if not isinstance(name, str):
            raise TidegateError(
                f'a stream must have a text as its name, such as "S1", not {quoted(name)}'
            )


def repair(streams: Mapping[str, Any], shed: Any, **settings: Any) -> Result:
    """Find the results that constraints have cost a join; see `tidegate.repair`.

    Parameters
    ----------
    streams
        As `constrained_join` took them.
    shed
        What it gave with ``keep_shed=True``, or ``shed`` of that.
    **settings
        As it took them; those of `tidegate.cql`, with the text as `query`, for a query.

    Returns
    -------
    Result
        The missing results: with those that the join gave, they are the exact ones.
    """
    check_streams(streams)
    tables = {name: decoded(as_table(data)) for name, data in streams.items()}
    schemas = {name: table.schema for name, table in tables.items()}
    names, spec = repaired_spec(schemas, settings)
    lines = shed.shed if isinstance(shed, Result) else as_table(shed)
    made_by = (lines.schema.metadata or {}).get(MADE_BY.encode())
    if made_by is not None:
        check_archive(made_by, archive_settings(spec))
    if not lines.schema.equals(shed_schema(spec)):
        raise TidegateError(
            "shed must be what tidegate.local.constrained_join gave, with the same settings and "
            f"keep_shed=True, with the columns {', '.join(shed_schema(spec).names)}"
        )
    job = RepairJob(spec)
    inputs = [*(tables[name] for name in names), lines.select(["side", MARK])]
    engine = job.engine_at(0, 1)
    found = list(engine.feed([[job.prepare(s, _single(t))[0]] for s, t in enumerate(inputs)]))
    found += engine.finish()
    table = pa.Table.from_batches(found, job.result_schema)
    return Result(
        table=table,
        results=table.num_rows,
        importance=float(table.num_rows),
        counters=engine.take_counters(),
    )


def run_streams(
    job: ConstrainedJob | AggregatedJob, tables: list[pa.Table], batch_rows: int = 1 << 20
) -> Result:
    """Run a constrained join, or aggregates of one, on tables."""
    engine = job.engine_at(0, 1)
    counters: dict[str, int | float] = {}
    found: list[pa.RecordBatch] = []
    peak = 0
    for inputs in _in_step(job, tables, batch_rows, counters):
        found += engine.feed(inputs)
        peak = max(peak, engine.held)
    found += engine.finish()
    for name, value in engine.take_counters().items():
        counters[name] = counters.get(name, 0) + value
    counters["peak_held"] = peak
    for text, k in engine.adherence.items():
        counters[f"k of {text}"] = math.inf if k is None else k
    table = pa.Table.from_batches(found, job.result_schema)
    shed = None
    if isinstance(engine, ConstrainedEngine) and engine.spec.archive:
        made_by = archive_label(archive_settings(engine.spec))
        shed = engine.take_shed().replace_schema_metadata({MADE_BY: made_by})
    return Result(
        table=table,
        results=table.num_rows,
        importance=float(table.num_rows),
        counters=counters,
        _shed=shed,
    )


def relations(left: Any, right: Any) -> list[Any]:
    """The inputs of a truncated join: two, or a list of two and more."""
    given = left if right is None else [left, right]
    if not isinstance(given, list | tuple) or len(given) < 2:
        raise TidegateError(
            "a truncated join takes a left and a right input, or a list of two and more as its "
            f"first argument, not {'one' if right is None else 'none'}"
        )
    if right is not None and isinstance(left, list | tuple):
        raise TidegateError(
            "a truncated join takes all its inputs in one list, or a left and a right one: put the "
            "right input into the list"
        )
    return list(given)


def _departed(
    spec: TruncatedJoin, at: int, table: pa.Table, rows: NDArray[np.int64], why: str
) -> pa.Table:
    """Rows that were not kept, as `Result.shed` has them."""
    count = len(rows)
    columns = {
        "side": pa.array([spec.relations[at].name] * count, pa.string()),
        "shed_at": pa.nulls(count, pa.int64()),
        "why": pa.array([why] * count, pa.string()),
    }
    for i, relation in enumerate(spec.relations):
        kind = pa.struct(list(relation.schema))
        tuples = table.take(pa.array(rows)).to_struct_array() if i == at else pa.nulls(count, kind)
        columns[relation.name] = tuples
    return pa.table(columns)


def _in_step(
    job: Job, tables: list[pa.Table], batch_rows: int, counters: dict[str, int | float]
) -> Iterator[list[list[pa.RecordBatch]]]:
    """The rows of all tables in order of time, some at once."""
    sources, orders, times = [], [], []
    for stream, table in enumerate(tables):
        prepared = []
        for part in _parts(table):
            batch, dropped = job.prepare(stream, part)
            prepared.append(batch)
            for name, value in dropped.items():
                counters[name] = counters.get(name, 0) + value
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
    """A table as one batch, or as a few where one column of strings would be too large."""
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


def _counted(spec: WindowJoin, tables: list[pa.Table]) -> WindowJoin:
    """Count both inputs first, if the policy asks for the whole streams' frequencies."""
    policy = spec.policy
    if not (spec.sheds and isinstance(policy, ByFrequency) and policy.whole):
        return spec
    counts = []
    for side, table in zip(spec.sides, tables, strict=True):
        keys = _single(table.select(list(side.keys)).drop_null())
        hashes = hash_columns(keys.columns, keys.num_rows)
        counts.append((hashes, np.ones(len(hashes))))
    return with_frequencies(spec, frequencies_of(counts[0], counts[1]), _span(spec, tables))


def _span(spec: WindowJoin, tables: list[pa.Table]) -> float:
    """From the first to the last of all times, if that matters."""
    if not spec.unsplit:
        return 0.0
    columns = [
        _single(table.select([side.time]).drop_null()).column(0)
        for side, table in zip(spec.sides, tables, strict=True)
    ]
    found = np.concatenate([times(column, spec.unit) for column in columns])
    found = found[np.isfinite(found)]
    return float(np.ptp(found)) if len(found) else 0.0
