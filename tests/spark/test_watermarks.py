"""Operators after a join wait for its oldest results, as they do after Spark's own join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.joins.window.spec import window_join
from tidegate.settings.times import WATERMARK
from tidegate.spark.watermarks import DELAY, LATENESS

from .workloads import arrivals, bag, delivered, start, write_files

DELAYED = "10 minutes"


class Source:
    """A folder of files, as a stream and as a table."""

    def __init__(self, spark: SparkSession, folder: Path, pieces: list[pa.Table]) -> None:
        write_files(pieces, folder)
        self.table = spark.read.parquet(str(folder))
        files = spark.readStream.schema(self.table.schema).option("maxFilesPerTrigger", 1)
        self.stream = files.parquet(str(folder))

    @property
    def marked(self) -> DataFrame:
        return self.stream.withWatermark("ts", DELAYED)


@pytest.fixture(scope="module")
def sources(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    home = tmp_path_factory.mktemp("watermarks")
    pieces = [arrivals(1), arrivals(2, behind=1), arrivals(3)]
    return [Source(spark, home / str(at), each) for at, each in enumerate(pieces)]


def by_window(joined: DataFrame, time: str) -> DataFrame:
    counted = joined.groupBy(F.window(time, "10 minutes")).count()
    return counted.select("window.start", "count")


def check(
    spark: SparkSession, home: Path, streamed: DataFrame, exact: DataFrame, time: str, least: int
) -> None:
    """Check that emitted windows have the counts of the exact result, and that enough exist."""
    start(by_window(streamed, time), home)
    found = bag(delivered(spark, home))
    assert found <= bag(by_window(exact, time).toArrow())
    assert found.total() >= least


def native(one: DataFrame, other: DataFrame, minutes: int) -> DataFrame:
    near = f"abs(timestampdiff(microsecond, l.ts, r.ts)) < {minutes * 60_000_000}"
    joined = one.alias("l").join(other.alias("r"), F.expr(f"l.k = r.k and {near}"))
    return joined.select(
        F.col("l.k").alias("k"), F.col("l.ts").alias("ts_left"), F.col("r.ts").alias("ts_right")
    )


def test_a_windowed_count_after_a_join_is_that_of_the_whole(
    spark: SparkSession, tmp_path: Path, sources: list[Source]
) -> None:
    """Rows come late, and one stream is behind the other."""
    left, right, _ = sources
    streamed = tg.join(left.marked, right.marked, on="k", time="ts", within="30 minutes")
    for time in ("ts_left", "ts_right"):
        assert streamed.schema[time].metadata == {DELAY: 40 * 60_000, LATENESS: 70 * 60_000}
    exact = native(left.table, right.table, 30)
    check(spark, tmp_path, streamed, exact, "ts_left", least=7)


def test_joins_in_a_chain_wait_for_all_windows(
    spark: SparkSession, tmp_path: Path, sources: list[Source]
) -> None:
    """One input has an operator with its own watermark; only some inputs have a watermark."""
    a, b, c = sources
    once = a.marked.dropDuplicatesWithinWatermark(["n"])
    first = tg.join(once, b.stream, on="k", time="ts", within=("20 minutes", "10 minutes"))
    first = first.select(F.col("k_left").alias("k"), F.col("ts_right").alias("ts"))
    streamed = tg.join(first, c.stream, on="k", time="ts", within="15 minutes")
    exact = tg.join(a.table, b.table, on="k", time="ts", within=("20 minutes", "10 minutes"))
    exact = exact.select(F.col("k_left").alias("k"), F.col("ts_right").alias("ts"))
    check(spark, tmp_path, streamed, native(exact, c.table, 15), "ts_left", least=6)


def test_a_chain_waits_for_a_stream_that_is_behind(spark: SparkSession, tmp_path: Path) -> None:
    """The first join's result of minute 3 comes after the one of minute 59."""

    def source(name: str, *batches: list[tuple[int, int]]) -> Source:
        # The last batch closes all windows.
        pieces = [
            pa.table(
                {
                    "k": [k for k, _ in batch],
                    "ts": pa.array(
                        [60_000_000 * minute for _, minute in batch], pa.timestamp("us", "UTC")
                    ),
                }
            )
            for batch in (*batches, [(-1, 2000)])
        ]
        return Source(spark, tmp_path / name, pieces)

    a = source("a", [(1, 59), (2, 3)], [(9, 59)])
    b = source("b", [(1, 30)], [(2, 31)])
    c = source("c", [(2, 3), (8, 30)], [(8, 31)])

    def joined(*frames: DataFrame) -> DataFrame:
        first = tg.join(frames[0], frames[1], on="k", time="ts", within="30 minutes")
        first = first.select(F.col("k_left").alias("k"), F.col("ts_left").alias("ts"))
        return tg.join(first, frames[2], on="k", time="ts", within="1 minute")

    streamed = joined(*(each.stream.withWatermark("ts", "0 seconds") for each in (a, b, c)))
    start(by_window(streamed, "ts_left"), tmp_path)
    assert delivered(spark, tmp_path).column("count").to_pylist() == [1]


def test_star_joins_wait(spark: SparkSession, tmp_path: Path, sources: list[Source]) -> None:
    keys = [{"x": k, "y": (k + 1) % 24} for k in range(24)]
    relation = spark.createDataFrame(keys)
    settings: dict[str, Any] = {
        "on": {"s1": {"k": "x"}, "s2": {"k": "y"}},
        "time": "ts",
        "within": "20 minutes",
    }
    left, right, _ = sources
    streamed = tg.star_join([left.marked, right.marked], relation, **settings)
    exact = tg.star_join([left.table, right.table], relation, **settings)
    check(spark, tmp_path, streamed, exact, "ts_s1", least=8)


def test_constrained_joins_wait(spark: SparkSession, tmp_path: Path, sources: list[Source]) -> None:
    settings: dict[str, Any] = {
        "joins": "A.n <-> B.n",
        "time": "ts",
        "within": "60 minutes",
        "filters": {"A": "n < 100000"},
    }
    left, right, _ = sources
    streamed = tg.constrained_join({"A": left.marked, "B": right.marked}, **settings)
    exact = tg.constrained_join({"A": left.table, "B": right.table}, **settings)
    check(spark, tmp_path, streamed, exact, "ts_A", least=4)


@pytest.mark.parametrize("mark", [True, False])
def test_estimates_of_a_sample_wait(
    spark: SparkSession, tmp_path: Path, sources: list[Source], mark: bool
) -> None:
    """The watermark comes from the streams, or from the join's window."""
    settings: dict[str, Any] = {"on": "k", "time": "ts", "within": "20 minutes", "fraction": 1.0}
    windows: dict[str, Any] = {"time": ("ts_left", "ts_right"), "per": "10 minutes"}
    left, right, _ = sources
    late: dict[str, Any] = {} if mark else {"lateness": DELAYED}
    one, other = (source.marked if mark else source.stream for source in (left, right))
    streamed = tg.estimate(tg.sample_join(one, other, **settings, **late), **windows, **late)
    exact = tg.sample_join(left.table, right.table, **settings)
    start(streamed.select("window", "rows"), tmp_path)
    found = bag(delivered(spark, tmp_path))
    assert found <= bag(tg.estimate(exact, **windows).select("window", "rows").toArrow())
    assert found.total() >= 8
    if mark:
        with pytest.raises(tg.TidegateError, match="leave lateness out"):
            tg.estimate(tg.sample_join(one, other, **settings), lateness="1 second", **windows)


@pytest.mark.parametrize(("column", "within"), [("ts", "unbounded"), ("other", "30 minutes")])
def test_results_of_any_age_have_no_watermark(
    sources: list[Source], column: str, within: str
) -> None:
    left, right = (
        source.stream.withColumn("other", F.col("ts")).withWatermark(column, DELAYED)
        for source in sources[:2]
    )
    joined = tg.join(left, right, on="k", time="ts", within=within)
    assert all(DELAY not in field.metadata for field in joined.schema)
    writer = by_window(joined, "ts_left").writeStream.format("memory").queryName("refused")
    with pytest.raises(AnalysisException, match="(?i)without watermark"):
        writer.outputMode("append").start()


def test_no_watermark_if_inputs_emit_rows_by_watermark(
    spark: SparkSession, sources: list[Source]
) -> None:
    """A longer delay also makes such rows later, so results would still be dropped."""
    a, b, c = (source.marked for source in sources)
    counted = a.groupBy(F.window("ts", "1 minute"), "k").count()
    own = a.alias("l").join(b.alias("r"), F.expr("l.k = r.k and l.ts = r.ts")).select("l.*")
    inputs = [
        counted.select("k", F.window_time("window").alias("ts")),
        own,
        a.union(sources[1].stream.withWatermark("ts", "1 hour")),
    ]
    table = spark.createDataFrame([(1, 2)], "k long, x long")
    for one, held_back in [*((each, False) for each in inputs), (a.join(table, "k"), True)]:
        joined = tg.join(one, c, on="k", time="ts", within="30 minutes")
        assert (DELAY in joined.schema["ts_left"].metadata) == held_back


def test_rows_may_be_as_late_as_watermarks_allow() -> None:
    def schema(delay: int | None) -> pa.Schema:
        field = pa.field("ts", pa.timestamp("us"))
        if delay is not None:
            field = field.with_metadata({WATERMARK: str(delay)})
        return pa.schema([("k", pa.int64()), field])

    def lateness(delays: tuple[int | None, int | None], **given: Any) -> int | float:
        left, right = map(schema, delays)
        return window_join(left, right, on="k", time="ts", within="1 hour", **given).lateness

    assert lateness((None, None)) == 0
    assert lateness((5_000, None)) == 5_000_000
    assert lateness((5_000, 7_000)) == 7_000_000
    assert lateness((5_000, 7_000), lateness=0) == 0
    assert lateness((5_000, None), lateness="1 minute") == 60_000_000
