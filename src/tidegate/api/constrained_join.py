"""The friendly call for n-way joins whose state shrinks by itself, on Spark DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError
from tidegate.joins.constrained.aggregates import AggregatedJob
from tidegate.joins.constrained.constraints import Constraint, Monitor
from tidegate.joins.constrained.engine import ConstrainedJob
from tidegate.joins.constrained.repair import archive_settings
from tidegate.joins.constrained.shed_log import archived
from tidegate.joins.constrained.spec import ConstrainedJoin
from tidegate.joins.constrained.spec import constrained_join as checked
from tidegate.joins.window.spec import check_collations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from tidegate.spark.watermarks import Marked


def constrained_join(
    streams: Mapping[str, DataFrame],
    *,
    joins: str | Sequence[str],
    time: str | Mapping[str, str],
    windows: Any = None,
    filters: Mapping[str, str] | None = None,
    select: Sequence[str] | None = None,
    constraints: Constraint | Sequence[Constraint] | None = None,
    monitor: Monitor | None = None,
    lateness: Any = None,
    lag: Any = None,
    choose: bool = True,
    eliminate: bool = True,
    shards: int | None = None,
    shed_to: str | None = None,
) -> DataFrame:
    """Join streams many-one, and hold only what can still matter.

    Rows are dropped as soon as joins and constraints show that no result can have them (Babu,
    Srivastava, Widom, *Exploiting k-Constraints*). The result is that of the sliding window join,
    as long as the constraints hold.

    Parameters
    ----------
    streams
        Spark DataFrames by name, all streaming or all batch.
    joins
        ``"S1.a -> S2.a"``: each row of S1 joins at most one of S2. ``"S1.a <-> S2.a"`` is
        one-one. Several between the same two streams in one direction are one join by several
        attributes. The joins must connect all streams; they may form a tree, a DAG or cycles.
    time
        The event time column, one name or one by stream: timestamps, dates, whole numbers or
        decimals.
    windows
        How long a row can be joined: a duration (a number where times are numbers),
        ``tg.Rows(n)``, ``tg.Rows(n, by="column")`` or ``"unbounded"``, the default; one for all or
        a mapping by stream.
    filters
        Conditions on single streams, ``{"S2": "b > 10"}``. Windows count all rows, also those that
        do not pass.
    select
        The result's columns, ``["S1.a", "S3.d"]``; all by default. Others are not held.
    constraints
        What is known of the streams: ``RIDS("S1 -> S2", k=100)``, ``CA("S1.a", within="5 s")``,
        ``OAP("S1.a", k=10)``, ``OAC("S2.a", k=10)``; without k, it is found by watching. If a k is
        too small, results are missing.
    monitor
        How constraints are watched, ``tg.Monitor(c=1.2, p=0.01, window=1000)``. If given, what
        constraints with a given k cost is estimated too, in the counter ``missed``.
    lateness
        How far behind earlier rows of its own stream a row may come. By default the delay of the
        streams' watermarks, and 0 without any.
    lag
        How far a stream may be behind the others; None for any, so that nothing is forgotten while
        one of the streams is silent.
    choose
        Whether to measure, on a part of the keys, if the state is smaller with No dropped, as RIDS
        and OAC allow, or kept, and if CA and OAP clear more than they have to remember. False
        always drops No and always uses CA and OAP, as the paper does.
    eliminate
        False holds every row that passes its filter for its window, the paper's sliding window
        join: to compare with, or for joins that are many-many, which are then written
        ``"S1.a = S2.a"``.
    shards
        In how many parts the join is run, by a key that all joins share. One, if there is no such
        key, or if a window or a constraint counts rows.
    shed_to
        A folder that all workers can write to, or its address, where rows that a constraint
        drops are archived as Parquet, one file a batch and shard, with when and why.
        `tidegate.repair` finds in it the results that constraints have cost.

    Returns
    -------
    DataFrame
        The selected columns; a name that several streams have gets the stream's behind it. The
        latest time's rows wait for a later one. Counters of every batch are reported as by
        `tidegate.join`: ``held_yes``, ``held_no`` and ``held_unknown`` say what is held,
        ``violations`` how many rows had the key of another where the join says there is one, and
        that other was in its window and still held. Without constraints, all such are seen; one
        whose first was dropped early, on account of a constraint, is not.
    """
    from tidegate.spark import packing

    if not isinstance(streams, Mapping):
        raise TidegateError(
            f"streams must be a mapping of DataFrames by name, not {type(streams).__name__}"
        )
    for name, frame in streams.items():
        if not hasattr(frame, "mapInArrow"):
            raise TidegateError(
                f"the stream {name} must be a Spark DataFrame, not {type(frame).__name__}; "
                "tidegate.local.constrained_join takes Arrow tables and pandas"
            )
    spec = checked(
        {name: packing.arrow_schema(frame.schema) for name, frame in streams.items()},
        joins=joins,
        time=time,
        windows=windows,
        filters=filters,
        select=select,
        constraints=constraints,
        monitor=monitor,
        lateness=lateness,
        lag=lag,
        choose=choose,
        eliminate=eliminate,
    )
    if shed_to is not None:
        spec = archived(spec)
    return on_frames(ConstrainedJob(spec), spec, list(streams.values()), shards, shed_to)


def on_frames(
    job: ConstrainedJob | AggregatedJob,
    spec: ConstrainedJoin,
    frames: Sequence[DataFrame],
    shards: int | None,
    shed_to: str | None = None,
) -> DataFrame:
    """Run a constrained join, or aggregates of one, on DataFrames."""
    from tidegate.spark import archive, operator

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
    kept = None if shed_to is None else archive.archive(shed_to, archive_settings(spec))
    return operator.run(job, marked.inputs, shards=shards, most=most, schema=schema, archive=kept)


def marked_inputs(frames: Sequence[DataFrame], spec: ConstrainedJoin) -> Marked:
    """Give the inputs with watermarks that operators after the join can go by."""
    from tidegate.spark import watermarks

    return watermarks.hold_back(frames, [stream.time for stream in spec.streams], spec)


def result_schema(marked: Marked, spec: ConstrainedJoin) -> StructType:
    """Give the schema of the selected columns."""
    found = {(at, field.name): field for at, field in marked.columns}
    return marked.schema(spec.names, [(s, found[s, column]) for s, column in spec.selected])
