"""The friendly calls on Spark DataFrames: check, then hand over to the operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.shadow import WindowCopies
from tidegate.joins.window.spec import (
    WindowJoin,
    check_collations,
    frequencies_of,
    window_join,
    with_frequencies,
)
from tidegate.policies import ByFrequency, Policy
from tidegate.settings.columns import hash_columns, whole
from tidegate.settings.slow_cpu import SlowCPU
from tidegate.settings.times import times
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def join(
    left: DataFrame,
    right: DataFrame,
    *,
    on: str | Sequence[str] | Mapping[str, str] | None = None,
    time: str | tuple[str, str],
    within: Any,
    where: str | None = None,
    memory: Any = None,
    policy: str | Policy = "auto",
    split: str | float = "shared",
    shed_when: str = "after-probe",
    importance: str | tuple[str, str] | None = None,
    combine: str | None = None,
    lateness: Any = None,
    cpu: SlowCPU | None = None,
    shards: int | None = None,
    suffixes: tuple[str, str] = ("_left", "_right"),
    seed: int = 0,
) -> DataFrame:
    """Join two streams over sliding windows in a fixed amount of memory.

    Parameters
    ----------
    left, right
        Spark DataFrames, both streaming or both batch (for archived streams).
    on
        The key: a column name, a list of them, or a ``{left: right}`` mapping. None where `where`
        alone says what joins; then all rows are compared with each other, in one shard.
    time
        The event time column, one name or a pair (left's, right's): timestamps, dates or numbers.
    within
        The window: a row joins those of the other side that come less than this later. One for
        both or a pair (left's, right's); a duration such as ``"2 hours"``, a number where times
        are numbers, or ``"unbounded"`` (also None). Each may also be a schedule, a list of (time,
        window) pairs in order of time: a row's window is the one in force at its own time.
    where
        A further condition on the pair, such as ``"abs(l.x - r.x) <= 0.5 AND l.kind <> r.kind"``;
        see `tidegate.sql.conditions.Predicate`. Policies do not know of it.
    memory
        How much is held at the most, over all shards: rows, or a size such as ``"64 MB"``.
        None keeps everything, so that the result is exact. Or a schedule, a list of (time,
        memory) pairs in order of time: each holds from its time on, the first also before. What
        does not fit when memory falls leaves at once, the least valuable first. Or a share of a
        `tidegate.MemoryPool`, which changes as that finds best.
    policy
        Which rows to keep when not all fit: a name or a policy such as ``tidegate.Prob()``.
    split
        ``"shared"`` for one memory, ``"fixed"`` for half of it a side, the left's share, or
        ``"predicted"`` for the share with which the policy's model promises most results, where
        that is known beforehand: ``Age(curve, rates=...)``, or ``Prob``, ``Life`` and ``Heeb``
        with frequencies that are counted (``"whole"``) or given (arrivals in a unit of time).
    moment
        When a victim leaves: ``"after-probe"``, ``"before-probe"`` or ``"before-arrival"``.
    importance, combine
        The column or columns that say how important a row is, and how the importance of a
        result follows: ``"min"``, ``"max"``, ``"sum"`` or ``"product"``. Policies weigh by it, and
        the total is reported. Every value must be a finite number of at least 0.
    lateness
        How long rows are kept beyond their window for partners that come late. By default the
        delay of the inputs' watermarks, and 0 without any.
    cpu
        A join that cannot keep up, such as ``tidegate.SlowCPU(rate=1_000, queue=500)``: rows wait
        in a bounded queue, and are dropped where it is full. None takes all at once.
    shards
        In how many parts the join is run, by key; by default one a shuffle partition.
    suffixes
        What is added to column names that both sides have.
    seed
        For policies that draw lots.

    Returns
    -------
    DataFrame
        The left's columns, then the right's. Counters of every batch reach
        ``query.lastProgress["observedMetrics"]`` under ``"tidegate"`` (``"tidegate-2"`` for the
        second join that a program makes, and so on); `tidegate.spark.metrics.observed` reads them.
    """
    from tidegate.spark import operator, packing, watermarks
    from tidegate.spark.pool_controller import PoolMembership, shared

    share, memory = shared(memory)
    for frame, side in ((left, "left"), (right, "right")):
        if not hasattr(frame, "mapInArrow"):
            raise TidegateError(
                f"the {side} input must be a Spark DataFrame, not {type(frame).__name__}; "
                "tidegate.local.join takes Arrow tables and pandas"
            )
    spec = window_join(
        packing.arrow_schema(left.schema),
        packing.arrow_schema(right.schema),
        on=on,
        time=time,
        within=within,
        where=where,
        memory=memory,
        policy=policy,
        split=split,
        shed_when=shed_when,
        importance=importance,
        combine=combine,
        lateness=lateness,
        cpu=cpu,
        suffixes=suffixes,
        seed=seed,
    )
    for frame, keys in ((left, spec.left.keys), (right, spec.right.keys)):
        check_collations(frame, keys)
    if not spec.left.keys and shards not in (None, 1):
        raise TidegateError(
            "a join without on compares all rows, so it runs in one shard, not "
            f"{quoted(shards)}; "
            "leave shards out, or give on"
        )
    job = WindowJob(_counted(spec, left, right))
    marked = watermarks.hold_back([left, right], [side.time for side in spec.sides], spec)
    return operator.run(
        job,
        marked.inputs,
        shards=shards,
        most=spec.most_shards,
        schema=marked.schema(spec.names, marked.columns),
        share=None if share is None else PoolMembership(share, WindowCopies(job.spec, split)),
    )


def _counted(spec: WindowJoin, left: DataFrame, right: DataFrame) -> WindowJoin:
    """Count both inputs first, if the policy asks for the whole streams' frequencies."""
    policy = spec.policy
    if not (spec.sheds and isinstance(policy, ByFrequency) and policy.whole):
        return spec
    if left.isStreaming or right.isStreaming:
        raise TidegateError(
            'frequencies="whole" needs finite inputs, and these are streaming; use "learned", or '
            "give a table of frequencies"
        )
    counts = []
    for frame, side in zip((left, right), spec.sides, strict=True):
        keys = frame.select(*(_quoted(name) for name in side.keys))
        keys = keys.toDF(*(f"k{i}" for i in range(len(side.keys)))).dropna()
        table: pa.Table = keys.groupBy(*keys.columns).count().toArrow()
        arrays = [
            whole(column.cast(spec.left.schema.field(name).type))
            for column, name in zip(table.columns, spec.left.keys, strict=False)
        ]
        hashes = hash_columns(arrays, table.num_rows)
        counts.append((hashes, table.column("count").to_numpy().astype(np.float64)))
    span = _span(spec, (left, right)) if spec.unsplit else 0.0
    return with_frequencies(spec, frequencies_of(counts[0], counts[1]), span)


def _span(spec: WindowJoin, frames: tuple[DataFrame, DataFrame]) -> float:
    """From the first to the last of all times."""
    from pyspark.sql import functions as F

    found = [np.empty(0)]
    for frame, side in zip(frames, spec.sides, strict=True):
        time = F.col(_quoted(side.time))
        if spec.unit.kind == "real number":
            time = F.when(F.abs(time) < float("inf"), time)
        ends = frame.agg(F.min(time), F.max(time)).toArrow()
        known = pa.concat_arrays([whole(column) for column in ends.columns]).drop_null()
        found.append(times(known, spec.unit))
    every = np.concatenate(found)
    return float(np.ptp(every)) if len(every) else 0.0


def _quoted(name: str) -> str:
    """A column name as Spark takes it, dots and all."""
    return "`" + name.replace("`", "``") + "`"
