"""Joins of one pool on Spark: shares follow the streams, and never exceed the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import tidegate as tg
from tidegate.spark import metrics
from tidegate.streams import cut_by_time, zipf

from .workloads import Pair, write_files

MEMORY = 60
TURN, TICKS, BATCHES = 200, 800, 8
JOIN: dict[str, Any] = {"on": "key", "time": "time", "within": 60, "policy": "prob"}


def turning(first: float, then: float, seed: int) -> list[pa.Table]:
    """Return both sides as one table per batch. The skew of keys changes in mid-stream."""
    sides = []
    for start, end, skew in ((0, TURN, first), (TURN, TICKS, then)):
        pair = zipf(end - start, domain=40, skew=skew, correlation="same", seed=seed + start)
        for name, table in zip(("left", "right"), pair, strict=True):
            time = pa.array(table["time"].to_numpy() + start)
            named = pa.array([name] * len(table))
            sides.append(table.set_column(1, "time", time).append_column("side", named))
    whole = pa.concat_tables(sides).sort_by("time")
    return cut_by_time(whole, time="time", batches=BATCHES, span=(0, TICKS - 1))


STREAMS = {"easy": turning(1.0, 1.0, 1), "turning": turning(1.0, 0.0, 5)}


def write(home: Path, batch: int) -> None:
    for name, pieces in STREAMS.items():
        write_files([pieces[batch]], home / name, first=batch)


def both(spark: SparkSession, home: Path, pool: tg.MemoryPool, names: list[str]) -> DataFrame:
    """Return two joins of one pool in one query. Both sides of each come from one source."""
    reader = spark.readStream.schema("key long, time long, value double, side string")
    joins = []
    for name in names:
        rows = reader.option("maxFilesPerTrigger", 1).parquet(str(home / name))
        left, right = (rows.where(rows.side == side).drop("side") for side in ("left", "right"))
        joined = tg.join(left, right, **JOIN, memory=pool.share(name), shards=1)
        joins.append(joined.withColumn("join", F.lit(name)))
    return joins[0].union(joins[1])


def begin(result: DataFrame, home: Path) -> StreamingQuery:
    where = str(home / "checkpoint")
    return result.writeStream.format("noop").option("checkpointLocation", where).start()


def forget_after(home: Path, batch: int) -> None:
    """Make the checkpoint look like one after a crash: the batch is planned, but not committed."""
    for folder, first in (("commits", batch), ("offsets", batch + 1)):
        for path in (home / "checkpoint" / folder).glob("[0-9]*"):
            if int(path.name) >= first:
                path.unlink()
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def by_batch(query: StreamingQuery) -> dict[int, list[dict[str, Any]]]:
    """Return the reports of shards in each batch."""
    return {p["batchId"]: metrics.reports(p) for p in query.recentProgress if metrics.reports(p)}


@pytest.mark.proves(MemoryPool="classic stream")
def test_shares_follow_the_streams_and_a_replay_gets_the_same_updates(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = list(STREAMS)
    pool = tg.MemoryPool(memory=MEMORY, folder=tmp_path / "pool", every=1)
    write(tmp_path, 0)
    query = begin(both(spark, tmp_path, pool, names), tmp_path)
    try:
        for batch in range(BATCHES):
            if batch:
                write(tmp_path, batch)
            query.processAllAvailable()
            pool.on_progress(query.lastProgress)
            assert pool.granted <= MEMORY
        explained = pool.explain()
    finally:
        query.stop()
        query.awaitTermination()
    seen = by_batch(query)
    # A batch with budget updates only, and no rows, counts as well.
    assert len(seen) >= BATCHES
    now: dict[tuple[str, int], int] = {}
    shares = []
    for reports in seen.values():
        now |= {(report["join"], report["shard"]): report["allowed"] for report in reports}
        assert sum(now.values()) <= MEMORY
        assert all(report["held"] <= report["allowed"] for report in reports)
        shares.append(now.get(("turning", 0), 0))
    # Half of the memory at first, and much more after the keys became uniform.
    assert max(shares[:2]) == MEMORY // 2
    assert shares[-1] > 0.6 * MEMORY, shares
    # Spark decides which batch applies an update first, so `tests/pool/test_pool.py` checks how
    # near predicted and measured quality are.
    for standing in explained.joins:
        assert standing.curve is not None
        assert standing.predicted == pytest.approx(standing.curve.at(sum(standing.share)))
        assert standing.measured is not None
        assert 0.2 < standing.measured < 0.8
    assert "one more megabyte" in str(explained)

    last = max(seen)
    forget_after(tmp_path, last)
    again = tg.MemoryPool(memory=MEMORY, folder=tmp_path / "pool", every=1)
    query = begin(both(spark, tmp_path, again, names), tmp_path)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
        query.awaitTermination()

    def updates(reports: list[dict[str, Any]]) -> list[tuple[str, int, int, int]]:
        return sorted((r["join"], r["shard"], r["number"], r["allowed"]) for r in reports)

    assert updates(by_batch(query)[last]) == updates(seen[last])


@pytest.mark.proves(MemoryPool="classic batch refused")
def test_joins_that_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    left, right = zipf(50, domain=5, seed=1)
    pair = Pair(spark, tmp_path, ("time", "time"))
    pair.write(left, right, 1)
    pool = tg.MemoryPool(memory=3, folder=tmp_path / "pool")
    tg.join(*pair.stream(), **JOIN, memory=pool.share("a"), shards=2)
    with pytest.raises(tg.TidegateError, match='has a join "a" already; each needs a name'):
        tg.join(*pair.stream(), **JOIN, memory=pool.share("a"), shards=1)
    with pytest.raises(tg.TidegateError, match="a pool of 3 is too small for 2 joins"):
        tg.join(*pair.stream(), **JOIN, memory=pool.share("b"), shards=2)
    with pytest.raises(tg.TidegateError, match="a share of a pool is for streams"):
        tg.join(*pair.batch(), **JOIN, memory=pool.share("b"), shards=1)
    assert pool.joins == ["a"]
    # It has no query that could hold anything.
    pool.remove("a")
    with pytest.raises(tg.TidegateError, match='the pool has no join "a"; it has none'):
        pool.remove("a")


def run_out(frame: DataFrame, home: Path, *, fails: bool = False) -> list[dict[str, Any]]:
    """Process all files into nothing or a failing sink. Return the last batch's reports."""

    def fail(*_: Any) -> None:
        raise ValueError("the sink is full")

    writer = frame.writeStream.option("checkpointLocation", str(home))
    writer = writer.foreachBatch(fail) if fails else writer.format("noop")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return metrics.reports(query.lastProgress)


def test_the_memory_of_an_ended_query_goes_to_the_next(spark: SparkSession, tmp_path: Path) -> None:
    """A window join, and a star join with a changing relation; the first one fails in a batch."""
    write(tmp_path, 0)
    rows = spark.readStream.schema("key long, time long, value double, side string").parquet(
        str(tmp_path / "easy")
    )
    left, right = (rows.where(rows.side == side).drop("side") for side in ("left", "right"))
    facts = pa.table({"op": ["insert"] * 40, "at": [-1] * 40, "a": range(40), "b": range(40)})
    write_files([facts], tmp_path / "facts")
    changes = spark.readStream.schema("op string, at long, a long, b long").parquet(
        str(tmp_path / "facts")
    )
    pool = tg.MemoryPool(memory=MEMORY, folder=tmp_path / "pool", every=1)
    join = tg.join(left, right, **JOIN, memory=pool.share("join"), shards=1)
    [report] = run_out(join, tmp_path / "one")
    assert (report["join"], report["allowed"]) == ("join", MEMORY)
    star = tg.star_join(
        [left, right],
        changes,
        on=[{"key": "a"}, {"key": "b"}],
        time="time",
        within=60,
        changes=("op", "at"),
        memory=pool.share("star"),
    )
    [report] = run_out(star, tmp_path / "two")
    assert (report["join"], report["allowed"]) == ("star", MEMORY)
    assert report["worth"] > 0
    assert pool.standing("join").state == "ended"
    # A join that fails in a batch will replay it, and keeps its budget.
    write(tmp_path, 1)
    with pytest.raises(Exception, match="the sink is full"):
        run_out(join, tmp_path / "one", fails=True)
    [report] = run_out(star, tmp_path / "two")
    assert report["allowed"] == 0
    assert pool.standing("join").kept == MEMORY
    assert pool.granted == MEMORY
