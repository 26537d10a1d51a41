"""`tidegate.sample_join`: a random sample of a join."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, overload

from tidegate.api import run_local
from tidegate.api.inputs import (
    all_on_spark,
    local_pair,
    local_settings,
    refuse_local_settings,
)
from tidegate.api.keywords import LocalSampleJoin, Settings, SparkSampleJoin
from tidegate.api.public_call import public_call
from tidegate.api.result import Result
from tidegate.joins.sampled.engine import SampledJob
from tidegate.joins.sampled.expected_error import Expectations
from tidegate.joins.sampled.spec import CLUSTER, PROBABILITY, sampled_join
from tidegate.joins.window.spec import check_collations
from tidegate.settings.types import LocalData

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.spark.pool_controller import Share


@overload
def sample_join(  # type: ignore[overload-overlap]
    left: DataFrame, right: DataFrame, **settings: Unpack[SparkSampleJoin]
) -> DataFrame: ...
@overload
def sample_join(
    left: LocalData, right: LocalData, **settings: Unpack[LocalSampleJoin]
) -> Result: ...
@public_call(checked_by=sampled_join)
def sample_join(
    left: Any,
    right: Any,
    *,
    memory: int | str | Share | None = None,
    shards: int | None = None,
    batch_rows: int | None = None,
    keep_shed: bool = False,
    **settings: Any,
) -> Any:
    """Take a random sample of the join of two streams within a fixed memory budget.

    A pair belongs to the row of it that came first (at one time, the left). A row with all pairs
    that belong to it is a cluster.

    Parameters
    ----------
    left, right, on, time, within, closed, where, lateness, suffixes, shards, batch_rows, keep_shed
        As in `tidegate.join`. Windows must end and must not change.
    memory
        The most that is held, over all shards: a number of rows, or a size such as ``"64 MB"``. The
        fraction follows from it, unless one is given. With Spark DataFrames, it can also be a share
        of a `tidegate.MemoryPool`; when that shrinks, rows are dropped at random, and
        ``sample_probability`` is smaller from then on.
    fraction
        The share of the result to sample, above 0 and at most 1. With too little memory for it,
        less is sampled, and ``sample_probability`` says how much.
    method
        ``"uniform"`` draws pairs, each with the same probability and independently of all others.
        ``"cluster"`` draws clusters with the same probability (EQ-CLUSTER), ``"pps"`` with a
        probability proportional to their expected size (PPS-CLUSTER). ``"auto"`` uses
        ``"uniform"`` if its model fits the streams and has the smallest expected variance;
        otherwise ``"pps"``, or ``"cluster"`` if sizes are equal or were predicted badly.
    model
        The prediction of future partners: ``"frequency"`` (by key) or ``"age"``, learned while
        running; or ``tidegate.Prob(table)`` with the arrivals of each key in a unit of time (a
        second, where times are timestamps), or ``tidegate.Age(curve, rates=...)``.
    value
        The column of the result that will be aggregated, for the decision of ``"auto"``; None to
        count.
    margin
        How many standard deviations of the number of held rows the memory is above its mean. If
        memory overflows all the same, rows are dropped at random (the counter ``shed``), and
        ``sample_probability`` is smaller from then on. Only rows larger than the memory cannot be
        drawn; the counter ``missed`` divided by ``foreseen`` is the share of results that this
        costs.
    reach
        ``"uniform"`` decides in advance about this many standard deviations more matches of a row
        than expected. Pairs beyond are never sampled; the counter ``beyond`` divided by
        ``monitored`` is their share. 0 is the paper's UNIFORM.
    seed
        The seed of the sample; the same seed gives the same sample.

    Returns
    -------
    DataFrame or Result
        A DataFrame from DataFrames, a `Result` from local data: the columns of the left, those of
        the right, ``sample_probability`` (of the row being in the sample) and ``sample_cluster``
        (one number for all rows of a cluster, or one for each row of a uniform sample).
        `tidegate.estimate` takes it.

    Examples
    --------
    >>> import tidegate as tg
    >>> clicks = {"user": [1, 2, 1, 3], "ts": [0, 1, 2, 3]}
    >>> buys = {"user": [1, 1, 3], "ts": [3, 4, 5], "price": [10, 20, 5]}
    >>> sample = tg.sample_join(clicks, buys, on="user", time="ts", within=5, fraction=1.0)
    >>> sample.results
    5
    >>> sample.table.column_names[-2:]
    ['sample_probability', 'sample_cluster']

    References
    ----------
    Srivastava, Widom, *Memory-Limited Execution of Windowed Stream Joins*, section 4.
    """
    if all_on_spark({"left": left, "right": right}):
        refuse_local_settings(batch_rows, keep_shed)
        return _on_spark(left, right, settings, memory, shards)
    at_once, kept = local_settings(batch_rows, keep_shed, shards=shards, memory=memory)
    tables = local_pair(left, right, settings["on"], settings["time"])
    spec = sampled_join(tables[0].schema, tables[1].schema, memory=memory, **settings)
    return run_local.run(SampledJob(spec), tables, at_once, kept)


def _on_spark(
    left: DataFrame, right: DataFrame, settings: Settings, memory: Any, shards: int | None
) -> DataFrame:
    from tidegate.spark import operator, packing, watermarks
    from tidegate.spark.pool_controller import PoolMembership, shared

    share, memory = shared(memory)
    schemas = [packing.arrow_schema(frame.schema) for frame in (left, right)]
    spec = sampled_join(schemas[0], schemas[1], memory=memory, **settings)
    for frame, keys in ((left, spec.window.left.keys), (right, spec.window.right.keys)):
        check_collations(frame, keys)
    times = [side.time for side in spec.window.sides]
    marked = watermarks.hold_back([left, right], times, spec.window)
    schema = marked.schema(spec.window.names, marked.columns)
    schema = schema.add(PROBABILITY, "double", False, watermarks.window_note(spec.window))
    schema = schema.add(CLUSTER, "long", False)
    return operator.run(
        SampledJob(spec),
        marked.inputs,
        shards=shards,
        most=spec.most_shards,
        schema=schema,
        share=None if share is None else PoolMembership(share, Expectations(spec)),
    )
