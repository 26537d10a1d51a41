"""`tidegate.join`: the bounded window join of two streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, overload

from tidegate.api import run_local
from tidegate.api.count_keys import counted_frames, counted_tables
from tidegate.api.inputs import (
    all_on_spark,
    local_pair,
    local_settings,
    refuse_local_settings,
)
from tidegate.api.keywords import LocalJoin, Settings, SparkJoin
from tidegate.api.public_call import public_call
from tidegate.api.result import Result
from tidegate.engine.archive import archive
from tidegate.errors import TidegateError
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.repair import archive_settings
from tidegate.joins.window.shadow import WindowCopies
from tidegate.joins.window.spec import check_collations, window_join
from tidegate.settings.types import LocalData, Memory
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.spark.pool_controller import Share


@overload
def join(  # type: ignore[overload-overlap]
    left: DataFrame, right: DataFrame, **settings: Unpack[SparkJoin]
) -> DataFrame: ...
@overload
def join(left: LocalData, right: LocalData, **settings: Unpack[LocalJoin]) -> Result: ...
@public_call(checked_by=window_join)
def join(
    left: Any,
    right: Any,
    *,
    memory: Memory | Share = None,
    shards: int | None = None,
    batch_rows: int | None = None,
    keep_shed: bool = False,
    shed_to: str | None = None,
    **settings: Any,
) -> Any:
    """Join two streams over sliding windows within a fixed memory budget.

    Parameters
    ----------
    left, right
        Spark DataFrames, both streaming or both batch; or local data: Arrow tables, record batches,
        readers and datasets, pandas and Polars DataFrames, anything with the Arrow C stream
        interface, or mappings of columns. Rows may be in any order.
    on
        The key: a column name, a list of them, or a ``{left: right}`` mapping. None if `where`
        alone says which rows join.
    time
        The event time column: one name, a pair (left's, right's), or a mapping of ``"left"`` and
        ``"right"``. Times are timestamps, dates or numbers.
    within
        The window: a row joins rows of the other side that come less than this later. One for both,
        a pair (left's, right's), or ``{"left": ..., "right": ...}``. A window is a duration such as
        ``"2 hours"``, a number where times are numbers, ``tidegate.Rows(n)`` where times are
        sequence numbers, or ``"unbounded"`` (also None). Each may be a schedule, a list of (time,
        window) pairs in order of time: the window of a row is the one in force at its own time.
    closed
        True includes the end of a window: rows exactly a window apart join as well. A window of
        zero is then allowed: with ``within=("2 hours", 0), closed=True``, a row of the left joins
        rows of the right that come at its own time or up to 2 hours later.
    where
        A further condition on the pair, such as ``"abs(l.x - r.x) <= 0.5 AND l.kind <> r.kind"``;
        see `tidegate.sql.conditions.Predicate`. Policies learn from the pairs that meet it. If it
        bounds the difference of two columns from both sides, as this one and ``"l.x BETWEEN r.x -
        1 AND r.x + 2"`` do, a row is compared only with rows near it, and policies count arrivals
        near a value. Other conditions without `on` compare all rows with each other.
    memory
        The most that is held, over all shards: rows, such as ``300`` or ``"300 rows"``, or a size
        such as ``"64 MB"``. None keeps everything, so that the result is exact. A schedule, a list
        of (time, memory) pairs in order of time, changes it: each applies from its time on, the
        first also before. When memory shrinks, the least valuable rows are shed immediately. With
        Spark DataFrames, it can also be a share of a `tidegate.MemoryPool`.
    policy
        Which rows to keep when not all fit: a name, or a policy such as ``tidegate.Prob()``.
    split
        ``"shared"`` for one memory, ``"fixed"`` for half of it for each side, a number for the
        left's share, or ``"predicted"`` for the share that the policy's model predicts to be best.
        The model must be known beforehand: ``Age(curve, rates=...)``, or ``Prob``, ``Life`` and
        ``Heeb`` with frequencies that are counted (``"whole"``) or given (arrivals in a unit of
        time).
    shed_when
        When rows are shed: ``"after-probe"``, ``"before-probe"`` or ``"before-arrival"``.
    importance, combine
        The column, or one for each side, with the importance of a row, and how the importance of a
        result follows from those of its rows: ``"min"``, ``"max"``, ``"sum"`` or ``"product"``.
        Policies weigh by it, and the total is reported. Values are finite numbers of at least 0.
    lateness
        How much older than the newest row of its own stream a row may be without losing results.
        Rows are held this much longer than their windows. By default the delay of the watermarks of
        the inputs, and 0 without watermarks. A stream may be behind the other by any time: rows are
        held until the other stream has passed their windows.
    cpu
        The model of a join that cannot keep up, such as
        ``tidegate.SlowCPU(rate=1_000, queue=500)``: rows wait in a bounded queue, and are dropped
        when it is full. None models no such limit: rows never wait.
    suffixes
        What is added to column names that both sides have.
    seed
        The seed of policies that choose at random.
    count_from
        Results before this time are left out, from the table and from all counts: a warm-up, in
        which memory fills and policies learn. The time of a result is that of its later row.
    shards
        The number of parts of the join, by key; by default the number of shuffle partitions.
        Without `on`, the default is 1, and more are possible if `where` bounds a difference: rows
        near a border go to two shards. Only with Spark DataFrames.
    batch_rows
        How many rows are taken at once. The result does not depend on it. Only with local data.
    keep_shed
        True keeps the rows that were dropped early, in ``shed`` of the result. Only with local
        data.
    shed_to
        A folder, or an address that Arrow can write. Rows that leave before their window ends are
        archived there as Parquet, one file for each batch and shard, with the time and the reason;
        so are late rows, and rows without a key or a time. `tidegate.repair` finds the results that
        this cost.

    Returns
    -------
    DataFrame or Result
        A DataFrame from DataFrames, a `Result` from local data: the columns of the left, then those
        of the right. With Spark, counters of every batch are in
        ``query.lastProgress["observedMetrics"]`` under ``"tidegate"`` (``"tidegate-2"`` for the
        second join of a program, and so on); `tidegate.spark.metrics.observed` reads them.

    Examples
    --------
    >>> import tidegate as tg
    >>> auctions = {"item": ["lamp", "desk"], "ts": [0, 10], "reserve": [20, 90]}
    >>> bids = {"item": ["lamp", "lamp", "desk"], "ts": [5, 70, 12], "price": [25, 30, 80]}
    >>> found = tg.join(auctions, bids, on="item", time="ts", within=60, memory=100)
    >>> found.table.select(["item_left", "reserve", "price"]).to_pylist()
    [{'item_left': 'lamp', 'reserve': 20, 'price': 25},
     {'item_left': 'desk', 'reserve': 90, 'price': 80}]
    """
    if all_on_spark({"left": left, "right": right}):
        refuse_local_settings(batch_rows, keep_shed, "give shed_to, a folder, instead")
        return _on_spark(left, right, settings, memory, shards, shed_to)
    at_once, kept = local_settings(batch_rows, keep_shed, shards=shards, memory=memory)
    tables = local_pair(left, right, settings["on"], settings["time"])
    spec = window_join(tables[0].schema, tables[1].schema, memory=memory, **settings)
    if spec.counts_first:
        spec = counted_tables(spec, tables)
    archived = archive_settings(spec)
    to = None if shed_to is None else archive(shed_to, archived)
    found = run_local.run(WindowJob(spec), tables, at_once, kept or to is not None, archived)
    return run_local.with_recall(run_local.put_away(found, kept, to), spec, tables)


def _on_spark(
    left: DataFrame,
    right: DataFrame,
    settings: Settings,
    memory: Any,
    shards: int | None,
    shed_to: str | None,
) -> DataFrame:
    from tidegate.spark import operator, packing, watermarks
    from tidegate.spark.pool_controller import PoolMembership, shared

    share, memory = shared(memory)
    schemas = [packing.arrow_schema(frame.schema) for frame in (left, right)]
    spec = window_join(schemas[0], schemas[1], memory=memory, **settings)
    for frame, keys in ((left, spec.left.keys), (right, spec.right.keys)):
        check_collations(frame, keys)
    if not spec.left.keys:
        if not spec.banded and shards not in (None, 1):
            raise TidegateError(
                "a join without on compares all rows, so it runs in one shard, not "
                f"{quoted(shards)}; leave shards out, give on, or bound the difference of two "
                'columns in where, as "abs(l.x - r.x) <= 0.5" does'
            )
        if shed_to is not None and shards not in (None, 1):
            raise TidegateError(
                f"shed_to={quoted(shed_to)} archives the rows of one shard where there is no on, "
                f"not of {quoted(shards)}: a row near a border leaves two of them; leave out "
                "shards, or shed_to"
            )
        shards = 1 if shards is None else shards
    if spec.counts_first:
        spec = counted_frames(spec, left, right)
    job = WindowJob(spec)
    marked = watermarks.hold_back([left, right], [side.time for side in spec.sides], spec)
    member = None
    if share is not None:
        member = PoolMembership(share, WindowCopies(spec, settings["split"]))
    return operator.run(
        job,
        marked.inputs,
        shards=shards,
        most=spec.most_shards,
        schema=marked.schema(spec.names, marked.columns),
        share=member,
        archive=None if shed_to is None else archive(shed_to, archive_settings(spec)),
    )
