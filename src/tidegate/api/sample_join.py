"""The friendly calls for random samples of a join, and for aggregates of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError
from tidegate.joins.sampled.engine import SampledJob
from tidegate.joins.sampled.estimates import estimation
from tidegate.joins.sampled.expected_error import Expectations
from tidegate.joins.sampled.spec import CLUSTER, PROBABILITY, sampled_join
from tidegate.joins.window.spec import check_collations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def sample_join(
    left: DataFrame,
    right: DataFrame,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    time: str | tuple[str, str],
    within: Any,
    where: str | None = None,
    memory: Any = None,
    fraction: float | None = None,
    method: str = "auto",
    model: Any = "frequency",
    value: str | None = None,
    margin: float = 3.0,
    reach: float = 3.0,
    lateness: Any = None,
    shards: int | None = None,
    suffixes: tuple[str, str] = ("_left", "_right"),
    seed: int = 0,
) -> DataFrame:
    """Take a random sample of the join of two streams in a fixed amount of memory.

    A pair belongs to that of its rows which came first (of one time, the left), and a row with
    all pairs that belong to it is a cluster.

    Parameters
    ----------
    left, right
        Spark DataFrames, both streaming or both batch (for archived streams).
    on, time, within, where, lateness, suffixes
        As in `tidegate.join`; windows must end, and do not change.
    memory
        How much is held at the most, over all shards: rows, or a size such as ``"64 MB"``. The
        fraction follows from it, unless one is given. Or a share of a `tidegate.MemoryPool`; when
        that falls, lots decide what leaves, and ``sample_probability`` is smaller from then on.
    fraction
        How much of the result is sampled, above 0 and at most 1. With a memory that is too small
        for it less is, and ``sample_probability`` says how much less.
    method
        ``"uniform"`` draws pairs, each with the same probability and independently of all others.
        ``"cluster"`` draws clusters with the same probability (EQ-CLUSTER), ``"pps"`` with one
        proportional to the size that is foreseen (PPS-CLUSTER). ``"auto"`` takes ``"uniform"``
        where its model is seen to hold and promises the smallest variance; else ``"pps"``, or
        where sizes are equal or misjudged, ``"cluster"``.
    model
        What is known of partners to come: ``"frequency"`` (by key) or ``"age"``, learned while
        running; or ``tidegate.Prob(table)`` with the arrivals of each key in a unit of time (a
        second, where times are timestamps), or ``tidegate.Age(curve, rates=...)``.
    value
        The column of the result that will be aggregated, by which ``"auto"`` decides; None to
        count.
    margin
        By how many standard deviations of what is held the memory lies above its mean. When it
        overflows all the same, lots decide what leaves (the counter ``evicted``), and
        ``sample_probability`` is smaller from then on. Only rows larger than the memory cannot be
        drawn; the counter ``missed`` over ``foreseen`` says which share of results that costs.
    reach
        For how many matches of a row ``"uniform"`` flips coins: so many standard deviations
        above the number that is foreseen. Pairs beyond are never sampled; the counter ``beyond``
        over ``monitored`` says which share of all they are. 0 is the paper's UNIFORM.
    shards
        In how many parts the join is run, by key; by default one a shuffle partition.
    seed
        Another seed gives another sample, the same seed the same one.

    Returns
    -------
    DataFrame
        The left's columns, the right's, ``sample_probability`` (with which the row came into the
        sample) and ``sample_cluster`` (what was drawn: one number for all rows of a cluster, or
        one for each row of a uniform sample). `tidegate.estimate` takes it.

    References
    ----------
    Srivastava, Widom, *Memory-Limited Execution of Windowed Stream Joins*, section 4.
    """
    from tidegate.spark import operator, packing, watermarks
    from tidegate.spark.pool_controller import PoolMembership, shared

    share, memory = shared(memory)
    for frame, side in ((left, "left"), (right, "right")):
        if not hasattr(frame, "mapInArrow"):
            raise TidegateError(
                f"the {side} input must be a Spark DataFrame, not {type(frame).__name__}; "
                "tidegate.local.sample_join takes Arrow tables and pandas"
            )
    spec = sampled_join(
        packing.arrow_schema(left.schema),
        packing.arrow_schema(right.schema),
        on=on,
        time=time,
        within=within,
        where=where,
        memory=memory,
        fraction=fraction,
        method=method,
        model=model,
        value=value,
        margin=margin,
        reach=reach,
        lateness=lateness,
        suffixes=suffixes,
        seed=seed,
    )
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


def estimate(
    sample: Any,
    *,
    value: str | None = None,
    by: str | Sequence[str] | None = None,
    time: str | Sequence[str] | None = None,
    per: Any = None,
    confidence: float = 0.95,
    lateness: Any = 0,
    groups: Any = None,
) -> DataFrame:
    """Estimate counts, sums and averages of a join from a sample of it, with their errors.

    Parameters
    ----------
    sample
        A DataFrame that `tidegate.sample_join` gave, streaming or batch; other columns may have
        been added, and rows left out by a condition of their own.
    value
        The column to add up and average; None only counts.
    by
        The column or columns to group by.
    time, per
        To aggregate by tumbling windows: the time column, or both of a pair, of which the later
        counts; and how long a window is, such as ``"5 minutes"`` (a number where times are).
        Streams need both, on timestamps.
    confidence
        With which probability an interval has the truth in it.
    lateness
        On a stream, for how long a window waits for rows that come late. Where the joined streams
        had watermarks, these say so instead, and `lateness` must be left out.
    groups
        A table of the groups that there are: those that were never sampled are then in the result,
        as unknown (null). Batch only.

    Returns
    -------
    DataFrame
        A row for each window and group: ``window`` (its start) and the group; ``count``, ``sum``
        and ``avg``, each with its standard error (``count_error``) and interval (``count_low``,
        ``count_high``); and how many ``clusters`` and ``rows`` of the sample they rest on. A group
        that was not sampled is unknown: it has no row, or one of nulls where `groups` names it. So
        is the error of an average that rests on one cluster only.

    References
    ----------
    Cochran, *Sampling Techniques*; Srivastava, Widom, *Memory-Limited Execution of Windowed Stream
    Joins*, section 4.3.
    """
    if not hasattr(sample, "mapInArrow"):
        raise TidegateError(
            f"the sample must be a Spark DataFrame, not {type(sample).__name__}; "
            "tidegate.local.estimate takes Arrow tables, pandas and local results"
        )
    from tidegate.spark import estimates, packing

    if hasattr(groups, "toArrow"):
        groups = groups.toArrow()
    spec = estimation(
        packing.arrow_schema(sample.schema),
        value=value,
        by=by,
        time=time,
        per=per,
        confidence=confidence,
        lateness=lateness,
        groups=groups,
    )
    return estimates.run(spec, sample)
