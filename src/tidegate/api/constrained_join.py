"""`tidegate.constrained_join`: n-way many-one joins that use k-constraints to hold fewer rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from tidegate.api import run_local
from tidegate.api.inputs import (
    all_on_spark,
    local_settings,
    local_table,
    refuse_local_settings,
)
from tidegate.api.keywords import LocalConstrainedJoin, Settings, SparkConstrainedJoin
from tidegate.api.public_call import public_call
from tidegate.api.result import Result
from tidegate.engine.archive import archive
from tidegate.errors import TidegateError
from tidegate.joins.constrained.aggregates import AggregatedJob
from tidegate.joins.constrained.engine import ConstrainedJob
from tidegate.joins.constrained.repair import archive_settings
from tidegate.joins.constrained.shed_log import archived
from tidegate.joins.constrained.spec import ConstrainedJoin
from tidegate.joins.constrained.spec import constrained_join as constrained_spec
from tidegate.joins.window.spec import check_collations
from tidegate.settings.by_stream import named_streams
from tidegate.settings.types import (
    LocalData,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from tidegate.spark.watermarks import Marked


@overload
def constrained_join(  # type: ignore[overload-overlap]
    streams: Sequence[DataFrame] | Mapping[str, DataFrame],
    **settings: Unpack[SparkConstrainedJoin],
) -> DataFrame: ...
@overload
def constrained_join(
    streams: Sequence[LocalData] | Mapping[str, LocalData],
    **settings: Unpack[LocalConstrainedJoin],
) -> Result: ...
@public_call(checked_by=constrained_spec)
def constrained_join(
    streams: Any,
    *,
    shards: int | None = None,
    shed_to: str | None = None,
    batch_rows: int | None = None,
    keep_shed: bool = False,
    **settings: Any,
) -> Any:
    """Join streams many-one, and hold only rows that can still be part of a result.

    Rows are dropped as soon as joins and constraints show that no result can have them (Babu,
    Srivastava, Widom, *Exploiting k-Constraints*). The result is that of the sliding window join,
    as long as the constraints hold.

    Parameters
    ----------
    streams
        Spark DataFrames, all streaming or all batch, or local data as `tidegate.join` takes it: a
        mapping by name, or a list, whose streams are named "s1", "s2" and so on. Settings for each
        stream are one for all, a list with one for each, or a mapping by name.
    joins
        ``"S1.a -> S2.a"``: each row of S1 joins at most one of S2. ``"S1.a <-> S2.a"`` is
        one-one. Several between the same two streams in one direction are one join by several
        attributes. The joins must connect all streams; they may form a tree, a DAG or cycles.
    time
        The event time column of each stream: timestamps, dates, whole numbers or decimals.
    within
        The window of each stream, in which a row can be joined: a duration (a number where times
        are numbers), ``tidegate.Rows(n)``, ``tidegate.Rows(n, by="column")`` or ``"unbounded"``,
        the default. A mapping may leave out streams whose windows are unbounded.
    closed
        True includes the end of a window: rows exactly a window apart join as well. Windows
        of rows stay the same.
    filters
        Conditions on single streams, ``{"S2": "b > 10"}``. Windows count all rows, also those that
        do not pass.
    select
        The columns of the result, ``["S1.a", "S3.d"]``; all by default. Others are not held.
    constraints
        Known properties of the streams: ``RIDS("S1 -> S2", k=100)``, ``CA("S1.a", within="5 s")``,
        ``OAP("S1.a", k=10)``, ``OAC("S2.a", k=10)``. Without k, it is measured while running. If a
        k is too small, results are missing. ``"auto"`` measures, in time, every constraint that the
        joins allow, and uses those that make the state smaller. `tidegate.profile` tells from the
        past which constraints hold.
    monitor
        How constraints are measured, ``tidegate.Monitor(c=1.2, p=0.0025, window=1000)``. If given,
        the results that constraints with a given k cost are estimated too, in the counter
        ``missed``.
    lateness
        How much older than the newest row of its own stream a row may be without losing results, as
        in `tidegate.join`.
    lag
        How far a stream may be behind the others. None allows any lag: rows are then held until all
        other streams have passed their windows, as in `tidegate.join`. A lag also drops rows by the
        progress of the stream that is furthest ahead, so that a silent stream does not make the
        state grow. Local data is read in order of time over all streams, so no stream is behind,
        and None means 0.
    choose
        True measures, on a part of the keys, whether the state is smaller if rows of the No
        synopses are dropped, as RIDS and OAC allow, or kept, and whether CA and OAP free more than
        they need. False always drops No and always uses CA and OAP, as the paper does.
    eliminate
        False holds every row that passes its filter for its window, which is the paper's sliding
        window join: to compare with, or for joins that are many-many, written ``"S1.a = S2.a"``.
    suffixes
        What is added to column names that several streams have, one for each stream; by default the
        names of the streams.
    shards
        The number of parts of the join, by a key that all joins share. One, if there is no such
        key, or if a window or a constraint counts rows. Only with Spark DataFrames.
    shed_to
        A folder that all workers can write to, or its address. Rows that a constraint drops are
        archived there as Parquet, one file for each batch and shard, with the time and the reason.
        `tidegate.repair` finds the missing results from it.
    batch_rows
        As in `tidegate.join`. Only with local data.
    keep_shed
        True keeps the rows that a constraint drops in ``shed`` of the result, for
        `tidegate.repair`. Only with local data.

    Returns
    -------
    DataFrame or Result
        A DataFrame from DataFrames, a `Result` from local data: the selected columns. Results of
        the latest time come when a later row has arrived. Counters ``held_yes``, ``held_no`` and
        ``held_unknown`` tell what is held; ``violations`` is the number of rows with the key of
        another held row although the join says that keys are unique. ``missed`` estimates how many
        results constraints have cost; ``missed_low`` and ``missed_high`` are bounds on their number
        since the start, which hold in 95 % of runs. ``missed_high`` is infinite (null in Spark's
        metrics) where the sample cannot know: without a `monitor` or with ``p=0``, and with several
        constraints on joins that share no key. By stream and constraint there are ``held of S1``,
        ``k of CA("S1.a")`` (infinite for one that is not used now) and ``use of CA("S1.a")``, the
        share of time in which it was used. On Spark, ``tidegate.spark.metrics.observed`` reads them
        from a progress report. A `Result` also has ``peak_held``, the most rows that were held
        after any batch, and ``explain()``, which names what blocks elimination.

    Examples
    --------
    >>> import tidegate as tg
    >>> orders = {"id": [1, 2], "ts": [0, 5], "total": [30, 70]}
    >>> payments = {"order": [1, 2, 2], "ts": [3, 6, 7], "amount": [30, 20, 50]}
    >>> found = tg.constrained_join(
    ...     {"payments": payments, "orders": orders},
    ...     joins="payments.order -> orders.id",
    ...     time="ts",
    ...     within=10,
    ...     select=["orders.id", "payments.amount"],
    ... )
    >>> found.table.to_pylist()
    [{'id': 1, 'amount': 30}, {'id': 2, 'amount': 20}, {'id': 2, 'amount': 50}]
    """
    given = named_streams(streams)
    if all_on_spark(given):
        refuse_local_settings(batch_rows, keep_shed, "give shed_to, a folder, instead")
        spec = constrained_spec(spark_schemas(given), **settings)
        if shed_to is not None:
            spec = archived(spec)
        return on_frames(ConstrainedJob(spec), spec, list(given.values()), shards, shed_to)
    at_once, kept = local_settings(batch_rows, keep_shed, shards=shards)
    tables = {name: local_table(data) for name, data in given.items()}
    schemas = {name: table.schema for name, table in tables.items()}
    spec = constrained_spec(schemas, **in_step(settings))
    if kept or shed_to is not None:
        spec = archived(spec)
    to = None if shed_to is None else archive(shed_to, archive_settings(spec), spec.schemas)
    found = run_local.run_constrained(ConstrainedJob(spec), list(tables.values()), at_once)
    return run_local.put_away(found, kept, to)


def in_step(settings: Settings) -> Settings:
    """Return the settings for local data, whose streams are read in step: no lag is 0."""
    return settings | {"lag": 0 if settings["lag"] is None else settings["lag"]}


def spark_schemas(frames: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Return the Arrow schemas of DataFrames."""
    from tidegate.spark import packing

    return {name: packing.arrow_schema(frame.schema) for name, frame in frames.items()}


def on_frames(
    job: ConstrainedJob | AggregatedJob,
    spec: ConstrainedJoin,
    frames: Sequence[DataFrame],
    shards: int | None,
    shed_to: str | None = None,
) -> DataFrame:
    """Run a constrained join, or aggregates of one, on DataFrames."""
    from tidegate.spark import operator

    for at, frame in enumerate(frames):
        keys = {k for e in spec.graph.edges if e.parent == at for k in e.parent_keys}
        keys |= {k for e in spec.graph.edges if e.child == at for k in e.child_keys}
        check_collations(frame, tuple(keys))
    plain = isinstance(job, ConstrainedJob)
    why = spec.one_shard if plain else "aggregates are of all results"
    if why is not None and shards not in (None, 1):
        raise TidegateError(
            f"a join in several shards is not possible here, because {why}; leave shards out"
        )
    most = None if why is None else 1
    marked = marked_inputs(frames, spec)
    schema = result_schema(marked, spec) if plain else None
    kept = None if shed_to is None else archive(shed_to, archive_settings(spec), spec.schemas)
    return operator.run(job, marked.inputs, shards=shards, most=most, schema=schema, archive=kept)


def marked_inputs(frames: Sequence[DataFrame], spec: ConstrainedJoin) -> Marked:
    """Return the inputs with watermarks that operators after the join can use."""
    from tidegate.spark import watermarks

    return watermarks.hold_back(frames, [stream.time for stream in spec.streams], spec)


def result_schema(marked: Marked, spec: ConstrainedJoin) -> StructType:
    """Return the schema of the selected columns."""
    found = {(at, field.name): field for at, field in marked.columns}
    schema = marked.schema(spec.names, [(s, found[s, column]) for s, column in spec.selected])
    if not spec.outputs:
        return schema
    from pyspark.sql.types import StructField, StructType

    from tidegate.spark import compat

    fields = []
    for output, computed in zip(spec.outputs, compat.from_arrow(spec.result_schema), strict=True):
        if output.expression is None:
            of = schema[output.column]
            computed = StructField(output.name, of.dataType, of.nullable, of.metadata)
        fields.append(computed)
    return StructType(fields)
