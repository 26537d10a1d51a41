"""`tidegate.repair`: the results that a constrained join has missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

import pyarrow as pa

from tidegate.api import run_local
from tidegate.api.constrained_join import marked_inputs, result_schema, spark_schemas
from tidegate.api.inputs import all_on_spark, local_table, refuse_spark_settings
from tidegate.api.keywords import LocalRepair, Settings, SparkRepair
from tidegate.api.public_call import public_call
from tidegate.api.result import Result
from tidegate.errors import TidegateError
from tidegate.joins.constrained.constraints import Constraints, Monitor
from tidegate.joins.constrained.cql_plan import repaired_spec
from tidegate.joins.constrained.repair import MADE_BY, RepairJob, archive_settings, check_archive
from tidegate.joins.constrained.shed_log import MARK, shed_schema
from tidegate.joins.constrained.spec import ConstrainedJoin
from tidegate.settings.by_stream import named_streams
from tidegate.settings.columns import as_table
from tidegate.settings.types import (
    Duration,
    Lateness,
    LocalData,
    StreamColumn,
    Suffixes,
    WithinStreams,
)
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@overload
def repair(
    streams: Sequence[DataFrame] | Mapping[str, DataFrame],
    shed: str,
    **settings: Unpack[SparkRepair],
) -> DataFrame: ...
@overload
def repair(
    streams: Sequence[LocalData] | Mapping[str, LocalData],
    shed: Result | LocalData,
    **settings: Unpack[LocalRepair],
) -> Result: ...
@public_call()
def repair(
    streams: Any,
    shed: Any,
    *,
    query: str | None = None,
    unique: str | Sequence[str] | None = None,
    joins: str | Sequence[str] | None = None,
    time: StreamColumn,
    within: WithinStreams = None,
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
    """Find the results that constraints have cost a join, from its streams and its archive.

    A result is missing exactly if a constraint dropped one of its rows before another came.
    Together with the results that the join delivered, this is therefore the exact result, without
    duplicates, as long as joins are many-one as declared and no rows were late.

    Parameters
    ----------
    streams
        All rows that the join has taken: batch DataFrames or local data, as for
        `tidegate.constrained_join`.
    shed
        What the join dropped: the folder `shed_to` with DataFrames; with local data the `Result`
        that ``keep_shed=True`` gave, or its ``shed``.
    query, unique
        For a query: the text and `unique` of `tidegate.cql`, instead of `joins`, `within`,
        `filters` and `select`.
    joins, time, within, closed, filters, select, suffixes, eliminate
        The settings of the join.
    constraints, monitor, lateness, lag, choose
        Accepted, so that the settings of the join can be given as they are; not used.
    shards
        The number of parts, as in `tidegate.constrained_join`. Only with Spark DataFrames.

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
    """
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
    if isinstance(shed, str):
        raise TidegateError(
            f"shed={quoted(shed)} is a folder, and the streams are local data: give what the join "
            "gave with keep_shed=True"
        )
    tables = {name: local_table(data) for name, data in given.items()}
    names, spec = repaired_spec({n: t.schema for n, t in tables.items()}, settings)
    lines = _checked(shed, spec)
    inputs = [*(tables[name] for name in names), lines.select(["side", MARK])]
    return run_local.run_repair(RepairJob(spec), inputs)


def _checked(shed: Any, spec: ConstrainedJoin) -> pa.Table:
    """Return the dropped rows, if they are those of this join."""
    lines = shed.shed if isinstance(shed, Result) else as_table(shed)
    made_by = (lines.schema.metadata or {}).get(MADE_BY.encode())
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
    from tidegate.spark.archive import departures

    for name, frame in streams.items():
        if frame.isStreaming:
            raise TidegateError(
                f"the stream {name} must be a batch Spark DataFrame (spark.read) with all rows "
                "that were joined"
            )
    if not isinstance(shed, str):
        raise TidegateError(
            "the streams are Spark DataFrames: give the folder that was shed_to, not "
            f"{quoted(shed)}"
        )
    names, spec = repaired_spec(spark_schemas(streams), settings)
    frames = [streams[name] for name in names]
    lines = departures(frames[0].sparkSession, shed, archive_settings(spec))
    inputs = [*frames, lines.select("side", MARK)]
    most = 1 if spec.shard_columns is None or _counts_rows(spec.streams) else None
    schema = result_schema(marked_inputs(frames, spec), spec)
    return operator.run(RepairJob(spec), inputs, shards=shards, most=most, schema=schema)


def _counts_rows(streams: Any) -> bool:
    """True if a window counts rows, which needs all rows in one order."""
    return any(stream.rows is not None and stream.by is None for stream in streams)
