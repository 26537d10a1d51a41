"""The friendly call for queries as text: read, check, and run as a constrained join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.api import local
from tidegate.api.constrained_join import on_frames
from tidegate.errors import TidegateError
from tidegate.joins.constrained.cql_plan import SAID, Plan, planned
from tidegate.joins.constrained.shed_log import archived
from tidegate.joins.constrained.spec import ConstrainedJoin, constrained_join, flag
from tidegate.policies.base import as_table
from tidegate.settings.checks import check_names
from tidegate.settings.columns import decoded
from tidegate.settings.values import quoted


def cql(
    query: str,
    streams: Mapping[str, Any],
    *,
    time: str | Mapping[str, str],
    unique: str | Sequence[str],
    shards: int | None = None,
    shed_to: str | None = None,
    keep_shed: bool = False,
    **settings: Any,
) -> Any:
    """Run a continuous query, written in a subset of CQL.

    Parameters
    ----------
    query
        ``Select`` columns, aggregates (count, sum, avg), ``*`` or ``Istream(*)``; ``From`` streams
        with windows, ``[Range 10 minutes]``, ``[Rows 100]``, ``[Partition By c Rows 100]`` or
        ``[Unbounded]``; ``Where`` equijoins and conditions on single streams, with And between
        them; ``Group By``.
    streams
        Spark DataFrames by name, or Arrow tables and pandas DataFrames.
    time
        The time column, one name or one by stream.
    unique
        Attributes that no two rows of a stream share, ``["S2.a"]``; ``"S2.a, S2.b"`` where only
        both together are. They say which joins are many-one: each needs one such side.
    shards, **settings
        As `tidegate.constrained_join` takes them: constraints, monitor, lateness, lag, choose.
    shed_to, keep_shed
        Where rows go that a constraint drops: a folder with DataFrames, ``shed`` of the result
        with tables. `repair` takes the query and these settings, and finds the results that this
        has cost. Not for aggregates, as those would change rows that were given.

    Returns
    -------
    DataFrame or Result
        From DataFrames a DataFrame, otherwise a `Result`. Aggregates are those of what is in the
        windows: a row, with a column ``at``, for each time at which one may have changed.

    Examples
    --------
    >>> import pyarrow as pa
    >>> c = pa.table({"pid": [1, 2], "ts": [0, 5], "size": [10, 20]})
    >>> b = pa.table({"pid": [1, 2], "ts": [1, 6]})
    >>> text = "Select sum(C.size) From C [Range 9], B [Range 9] Where C.pid = B.pid"
    >>> cql(text, {"C": c, "B": b}, time="ts", unique=["C.pid", "B.pid"]).table.to_pylist()
    [{'at': 1, 'sum_size': 10}, {'at': 6, 'sum_size': 30}]
    """
    check_names(settings, constrained_join, own=cql, without=SAID)
    local.check_streams(streams)
    flag(keep_shed, "keep_shed")
    on_spark = {hasattr(data, "mapInArrow") for data in streams.values()}
    if on_spark == {True, False}:
        kinds = ", ".join(type(data).__name__ for data in streams.values())
        raise TidegateError(f"the streams must be all Spark DataFrames or none, not {kinds}")
    inputs = dict(streams)
    if on_spark == {True}:
        from tidegate.spark import packing

        schemas = {name: packing.arrow_schema(frame.schema) for name, frame in streams.items()}
    else:
        inputs = {name: decoded(as_table(data)) for name, data in streams.items()}
        schemas = {name: table.schema for name, table in inputs.items()}
        settings = {"lag": 0, **settings}
    plan = planned(query, schemas, time=time, unique=unique, **settings)
    spec = plan.spec
    if shed_to is not None or keep_shed:
        spec = _archived(plan, on_spark == {True}, shed_to, keep_shed)
    job = plan._replace(spec=spec).job()
    given = [inputs[name] for name in plan.inputs]
    if on_spark == {True}:
        return on_frames(job, spec, given, shards, shed_to)
    if shards not in (None, 1):
        raise TidegateError(f"shards={quoted(shards)} is for Spark DataFrames; leave it out")
    return local.run_streams(job, given)


def _archived(plan: Plan, on_spark: bool, shed_to: Any, keep_shed: Any) -> ConstrainedJoin:
    """The join with what constraints drop noted, if that can be repaired."""
    if plan.aggregates is not None:
        raise TidegateError(
            "an aggregate has no shed_to or keep_shed: a result that is found later would change "
            "rows that were given already. Select Istream(*) or columns, repair them, and "
            "aggregate what you have then"
        )
    if on_spark and keep_shed:
        raise TidegateError("keep_shed is for tables; give shed_to=, a folder, with DataFrames")
    if not on_spark and shed_to is not None:
        raise TidegateError("shed_to is for Spark DataFrames; give keep_shed=True with tables")
    return archived(plan.spec)
