"""`tidegate.repair`: the results that shedding, or constraints, have cost a join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

import pyarrow as pa

from tidegate.api import run_local
from tidegate.api.constrained_join import marked_inputs, result_schema, spark_schemas
from tidegate.api.inputs import all_on_spark, local_table, refuse_spark_settings
from tidegate.api.keywords import LocalRepair, Settings, SparkRepair
from tidegate.api.public_call import public_call
from tidegate.api.repair_window import check_frames, local_lines, repair_window
from tidegate.api.result import Result
from tidegate.engine.archive import check_archive
from tidegate.errors import TidegateError
from tidegate.joins.constrained.constraints import Constraints, Monitor
from tidegate.joins.constrained.cql_plan import repaired_spec
from tidegate.joins.constrained.repair import RepairJob, archive_settings
from tidegate.joins.constrained.shed_log import MARK, shed_schema
from tidegate.joins.constrained.spec import ConstrainedJoin
from tidegate.policies import Policy
from tidegate.settings.by_stream import named_streams
from tidegate.settings.slow_cpu import SlowCPU
from tidegate.settings.types import (
    Combine,
    Duration,
    Keys,
    Lateness,
    LocalData,
    Memory,
    ShedWhen,
    Split,
    StreamColumn,
    Suffixes,
    Time,
    TimeColumn,
    Within,
    WithinStreams,
)
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@overload
def repair(  # type: ignore[overload-overlap]
    streams: Sequence[DataFrame] | Mapping[str, DataFrame],
    shed: str,
    **settings: Unpack[SparkRepair],
) -> DataFrame: ...
@overload
def repair(
    streams: Sequence[LocalData] | Mapping[str, LocalData],
    shed: str | Result | LocalData,
    **settings: Unpack[LocalRepair],
) -> Result: ...
@public_call()
def repair(
    streams: Any,
    shed: Any,
    *,
    on: Keys | None = None,
    where: str | None = None,
    shed_when: ShedWhen = "after-probe",
    importance: TimeColumn | None = None,
    combine: Combine | None = None,
    count_from: Time | None = None,
    between: tuple[Time | None, Time | None] | None = None,
    memory: Memory = None,
    policy: str | Policy | None = None,
    split: Split | None = None,
    cpu: SlowCPU | None = None,
    seed: int | None = None,
    query: str | None = None,
    unique: str | Sequence[str] | None = None,
    joins: str | Sequence[str] | None = None,
    time: StreamColumn,
    within: Within | WithinStreams = None,
    closed: bool = False,
    filters: Mapping[str, str] | None = None,
    select: str | Sequence[str] | None = None,
    constraints: Constraints = None,
    monitor: Monitor | None = None,
    lateness: Lateness = None,
    lag: Duration | None = None,
    choose: bool = True,
    eliminate: bool = True,
    suffixes: Suffixes | None = None,
    shards: int | None = None,
) -> Any:
    """Find the results that a join has missed, from its streams and its archive.

    A window join (`on`, `where`) misses a result if one of its rows was shed before the other came;
    a constrained join (`joins`, `query`), if a constraint dropped one of its rows before another
    came. Together with the results that the join delivered, this is the exact result, without
    duplicates. Constrained joins must be many-one as declared, and have no late rows.

    Parameters
    ----------
    streams
        All rows that the join has taken: batch DataFrames or local data. For a window join a pair,
        or a mapping of ``"left"`` and ``"right"``; otherwise as for `tidegate.constrained_join`.
    shed
        What the join dropped: the folder `shed_to`; with local data also the `Result` that
        ``keep_shed=True`` gave, or its ``shed``.
    on, where, shed_when, importance, combine, count_from
        The settings of a window join.
    between
        Only results with a time from the first to before the second; None is no limit. The time of
        a result is that of its later row. So a long archive can be repaired in slices. Only for
        window joins.
    memory, policy, split, cpu, seed
        Accepted, so that the settings of a window join can be given as they are; not used.
    query, unique
        For a query: the text and `unique` of `tidegate.cql`, instead of `joins`, `within`,
        `filters` and `select`.
    time, within, closed, suffixes
        The settings of the join.
    joins, filters, select, eliminate
        The settings of a constrained join.
    lateness
        Accepted like the next ones; a window join takes that of its archive.
    constraints, monitor, lag, choose
        Accepted, so that the settings of a constrained join can be given as they are; not used.
    shards
        The number of parts, as in the join. Only with Spark DataFrames.

    Returns
    -------
    DataFrame or Result
        The missing results: a DataFrame from DataFrames, a `Result` from local data.

    Examples
    --------
    >>> import tidegate as tg
    >>> streams = {
    ...     "c": {"pid": [1, 2, 3], "ts": [0, 1, 2]},
    ...     "b": {"pid": [2, 9, 3], "ts": [2, 30, 60]},
    ... }
    >>> join = dict(joins="c.pid -> b.pid", time="ts", select=["c.pid"])
    >>> hasty = tg.RIDS("c -> b", within=5)
    >>> found = tg.constrained_join(streams, **join, constraints=hasty, keep_shed=True)
    >>> found.table.to_pylist()
    [{'pid': 2}]
    >>> tg.repair(streams, found, **join).table.to_pylist()
    [{'pid': 3}]

    The same for a window join:

    >>> left = {"k": [1, 2], "t": [0, 1]}
    >>> right = {"k": [2, 1], "t": [2, 3]}
    >>> join = dict(on="k", time="t", within=9)
    >>> found = tg.join(left, right, **join, memory=1, policy="fifo", keep_shed=True)
    >>> found.table.column("k_left").to_pylist()
    [2]
    >>> tg.repair([left, right], found, **join).table.column("k_left").to_pylist()
    [1]
    """
    if on is not None or where is not None:
        _refuse_others(query=query, unique=unique, joins=joins, filters=filters, select=select)
        own: Settings = {
            "on": on,
            "where": where,
            "time": time,
            "within": within,
            "closed": closed,
            "shed_when": shed_when,
            "importance": importance,
            "combine": combine,
            "count_from": count_from,
            "suffixes": ("_left", "_right") if suffixes is None else suffixes,
        }
        return repair_window(streams, shed, own, lateness, between, shards)
    if between is not None:
        raise TidegateError(
            f"between={quoted(between)} is for window joins (on, where); leave it out"
        )
    every: Settings = {
        "query": query,
        "unique": unique,
        "joins": joins,
        "time": time,
        "within": within,
        "filters": filters,
        "select": select,
        "constraints": constraints,
        "monitor": monitor,
        "lateness": lateness,
        "lag": lag,
        "suffixes": suffixes,
    }
    settings = {name: value for name, value in every.items() if value is not None}
    settings |= {"closed": closed, "choose": choose, "eliminate": eliminate, "time": time}
    given = named_streams(streams)
    if all_on_spark(given):
        return _on_spark(given, shed, settings, shards)
    refuse_spark_settings(shards=shards)
    tables = {name: local_table(data) for name, data in given.items()}
    names, spec = repaired_spec({n: t.schema for n, t in tables.items()}, settings)
    lines = _checked(shed, spec)
    inputs = [*(tables[name] for name in names), lines.select(["side", MARK])]
    return run_local.run_repair(RepairJob(spec), inputs)


def _refuse_others(**given: Any) -> None:
    """Refuse settings of constrained joins for a window join."""
    for name, value in given.items():
        if value is not None:
            raise TidegateError(
                f"{name}={quoted(value)} is for constrained joins, and on or where for window "
                "joins: give the settings of one of them"
            )


def _checked(shed: Any, spec: ConstrainedJoin) -> pa.Table:
    """Return the dropped rows, if they are those of this join."""
    lines, made_by = local_lines(shed)
    if made_by is not None:
        check_archive(made_by, archive_settings(spec))
    if not lines.schema.equals(shed_schema(spec)):
        raise TidegateError(
            "shed must be what tidegate.constrained_join gave, with the same settings and "
            f"keep_shed=True, with the columns {', '.join(shed_schema(spec).names)}"
        )
    return lines


def _on_spark(
    streams: dict[str, DataFrame], shed: Any, settings: Settings, shards: int | None
) -> DataFrame:
    from tidegate.spark import operator
    from tidegate.spark.archive import checked_departures

    check_frames(streams, shed)
    names, spec = repaired_spec(spark_schemas(streams), settings)
    frames = [streams[name] for name in names]
    lines = checked_departures(frames[0].sparkSession, shed, archive_settings(spec))
    inputs = [*frames, lines.select("side", MARK)]
    most = 1 if spec.shard_columns is None or _counts_rows(spec.streams) else None
    schema = result_schema(marked_inputs(frames, spec), spec)
    return operator.run(RepairJob(spec), inputs, shards=shards, most=most, schema=schema)


def _counts_rows(streams: Any) -> bool:
    """True if a window counts rows, which needs all rows in one order."""
    return any(stream.rows is not None and stream.by is None for stream in streams)
