"""`tidegate.cql`: continuous queries as text, run as constrained joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from tidegate.api import run_local
from tidegate.api.constrained_join import in_step, on_frames, spark_schemas
from tidegate.api.inputs import (
    all_on_spark,
    local_settings,
    local_table,
    refuse_local_settings,
)
from tidegate.api.keywords import LocalCql, Settings, SparkCql
from tidegate.api.public_call import public_call
from tidegate.api.result import Result
from tidegate.engine.archive import archive
from tidegate.errors import TidegateError
from tidegate.joins.constrained.constraints import Constraints, Monitor
from tidegate.joins.constrained.cql_plan import Plan, RelationPlan, planned
from tidegate.joins.constrained.repair import archive_settings
from tidegate.joins.constrained.shed_log import archived
from tidegate.settings.by_stream import named_streams
from tidegate.settings.types import Duration, Lateness, LocalData, StreamColumn
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@overload
def cql(  # type: ignore[overload-overlap]
    query: str,
    streams: Sequence[DataFrame] | Mapping[str, DataFrame],
    **settings: Unpack[SparkCql],
) -> DataFrame: ...
@overload
def cql(
    query: str,
    streams: Sequence[LocalData] | Mapping[str, LocalData],
    **settings: Unpack[LocalCql],
) -> Result: ...
@public_call()
def cql(
    query: str,
    streams: Any,
    *,
    time: StreamColumn,
    unique: str | Sequence[str],
    closed: bool = False,
    changes: Mapping[str, str] | None = None,
    constraints: Constraints = None,
    monitor: Monitor | None = None,
    lateness: Lateness = None,
    lag: Duration | None = None,
    choose: bool = True,
    eliminate: bool = True,
    shards: int | None = None,
    shed_to: str | None = None,
    batch_rows: int | None = None,
    keep_shed: bool = False,
) -> Any:
    """Run a continuous query, written in a subset of CQL.

    Parameters
    ----------
    query
        ``Select`` columns, aggregates (count, sum, avg, min, max, also of distinct values),
        expressions of these with a name (``sum(C.size) / count(*) as mean``), ``*`` or
        ``Istream(*)``; ``From`` streams with windows, ``[Range 10 minutes]``, ``[Rows 100]``,
        ``[Partition By c Rows 100]`` or ``[Unbounded]``, and ``Join ... On``; ``Where`` equijoins
        and conditions on single streams, with And between them; ``Group By``; ``Having``.
        ``Select distinct``, and queries in parentheses with a name in ``From``, give a relation
        that changes.
    streams
        Spark DataFrames, or local data as `tidegate.join` takes it: a mapping by name, or a list,
        whose streams are named "s1", "s2" and so on.
    time
        The time column of each stream: one for all, a list with one for each, or a mapping by name.
    unique
        Attributes that no two rows of a stream share, ``["S2.a"]``; ``"S2.a, S2.b"`` if only both
        together are unique. They tell which joins are many-one: each needs one such side.
    changes
        For streams whose rows are inserts and deletes: the column with the operation,
        ``{"S1": "op"}``. A row stays until a row with the same columns, except for the time,
        deletes it; what it has joined is then deleted from the result.
    closed, constraints, monitor, lateness, lag, choose, eliminate, shards, batch_rows
        As in `tidegate.constrained_join`.
    shed_to, keep_shed
        Where rows go that a constraint drops: a folder, or with local data also ``shed`` of the
        result. `tidegate.repair` takes the query and these settings, and finds the missing
        results. Not for aggregates, because a late result would change rows that were delivered.

    Returns
    -------
    DataFrame or Result
        A DataFrame from DataFrames, a `Result` from local data. Aggregates are over the rows in the
        windows: one row, with a column ``at``, for each time at which an aggregate may have
        changed. A query with queries inside, ``Select distinct`` or ``changes`` gives the changes
        of a relation: columns ``at`` and ``change``, which is ``"insert"`` or ``"delete"``. It uses
        no constraints.

    Examples
    --------
    >>> import tidegate as tg
    >>> c = {"pid": [1, 2], "ts": [0, 5], "size": [10, 20]}
    >>> b = {"pid": [1, 2], "ts": [1, 6]}
    >>> text = "Select sum(C.size) From C [Range 9], B [Range 9] Where C.pid = B.pid"
    >>> tg.cql(text, {"C": c, "B": b}, time="ts", unique=["C.pid", "B.pid"]).table.to_pylist()
    [{'at': 1, 'sum_size': 10}, {'at': 6, 'sum_size': 30}]
    """
    settings: Settings = {
        "time": time,
        "unique": unique,
        "closed": closed,
        "changes": changes,
        "constraints": constraints,
        "monitor": monitor,
        "lateness": lateness,
        "lag": lag,
        "choose": choose,
        "eliminate": eliminate,
    }
    given = named_streams(streams)
    if all_on_spark(given):
        refuse_local_settings(batch_rows, keep_shed, "give shed_to, a folder, instead")
        plan = planned(query, spark_schemas(given), **settings)
        if shed_to is not None:
            plan = _archived(plan)
        frames = [given[name] for name in plan.inputs]
        if isinstance(plan, RelationPlan):
            return _relation_on_frames(plan, frames, shards)
        return on_frames(plan.job(), plan.spec, frames, shards, shed_to)
    at_once, kept = local_settings(batch_rows, keep_shed, shards=shards)
    tables = {name: local_table(data) for name, data in given.items()}
    schemas = {name: table.schema for name, table in tables.items()}
    plan = planned(query, schemas, **in_step(settings))
    if kept or shed_to is not None:
        plan = _archived(plan)
    inputs = [tables[name] for name in plan.inputs]
    if isinstance(plan, RelationPlan):
        return run_local.run_constrained(plan.relation, inputs, at_once)
    to = (
        None
        if shed_to is None
        else archive(shed_to, archive_settings(plan.spec), plan.spec.schemas)
    )
    found = run_local.run_constrained(plan.job(), inputs, at_once)
    return run_local.put_away(found, kept, to)


def _relation_on_frames(
    plan: RelationPlan, frames: Sequence[DataFrame], shards: int | None
) -> DataFrame:
    """Run a query with queries inside on DataFrames."""
    from tidegate.spark import operator

    if shards not in (None, 1):
        raise TidegateError(
            f"a query with queries inside takes one shard, not {quoted(shards)}; leave shards out"
        )
    return operator.run(plan.relation, frames, shards=shards, most=1)


def _archived(plan: Plan | RelationPlan) -> Plan:
    """Return the plan of a join that records the rows that constraints drop."""
    if isinstance(plan, RelationPlan):
        raise TidegateError(
            "a query with queries inside drops no rows early, so there is nothing for shed_to or "
            "keep_shed; leave it out"
        )
    if plan.aggregates is not None:
        raise TidegateError(
            "an aggregate has no shed_to or keep_shed: a result that is found later would change "
            "rows that were given already. Select Istream(*) or columns, repair them, and "
            "aggregate what you have then"
        )
    return plan._replace(spec=archived(plan.spec))
