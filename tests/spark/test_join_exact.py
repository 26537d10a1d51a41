"""`tg.join` without a memory bound gives what Spark's own join gives."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.spark import metrics

from .cases import CASES, Case, bids, numbers, prepared
from .workloads import Pair, bag, counters, delivered, native, start, total, write_files


@pytest.mark.parametrize("make", CASES)
@pytest.mark.proves(join="classic batch")
def test_exact_mode_is_sparks_own_join(
    spark: SparkSession, tmp_path: Path, make: Callable[[], Case]
) -> None:
    case = make()
    local = bag(tg.join(case.left, case.right, **case.settings).table)
    pair = prepared(spark, tmp_path, case, batches=3)
    left, right = pair.batch()
    archived = tg.join(left, right, **case.settings, shards=case.shards)
    rule: dict[str, Any] = {
        "on": case.keys,
        "time": case.time,
        "within": case.sql,
        "names": archived.columns,
        "where": case.where,
    }
    expected = bag(native(left, right, **rule).toArrow())
    assert expected.total() > case.least
    assert local == expected
    assert bag(archived.toArrow()) == expected

    query = start(tg.join(*pair.stream(), **case.settings, shards=case.shards), tmp_path)
    assert bag(delivered(spark, tmp_path)) == expected
    counts = counters(query)
    assert len(counts) == 3
    assert total(counts, "results") == expected.total()
    if case.where is not None:
        assert total(counts, "copies") > 0


@pytest.mark.proves(join="classic stream")
def test_exact_mode_is_sparks_own_stream_join(spark: SparkSession, tmp_path: Path) -> None:
    case = numbers(600)
    pair = prepared(spark, tmp_path, case, batches=3)
    left, right = pair.stream()
    result = tg.join(left.repartition(3), right, **case.settings, shards=3)
    rule: dict[str, Any] = {
        "on": case.keys,
        "time": case.time,
        "within": case.sql,
        "names": result.columns,
    }
    start(native(left, right, **rule), tmp_path / "native")
    start(result, tmp_path / "ours")
    expected = bag(delivered(spark, tmp_path / "native"))
    assert expected.total() > case.least
    assert bag(delivered(spark, tmp_path / "ours")) == expected


def rows(*each: tuple[str, int]) -> pa.Table:
    names, times = zip(*each, strict=True) if each else ((), ())
    return pa.table({"k": pa.array(names, pa.string()), "t": pa.array(times, pa.int64())})


def test_late_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Out-of-order rows join what is held; `lateness` says how long rows are held for them."""
    pair = Pair(spark, tmp_path, ("t", "t"))
    write_files([rows(("a", 10), ("b", 10)), rows(("c", 96)), rows()], tmp_path / "left")
    write_files(
        [rows(("b", 11)), rows(("z", 100)), rows(("a", 12), ("b", 95), ("c", 95))],
        tmp_path / "right",
    )
    # Three joins in one query.
    patience = (0, 65, 80)
    answers = [
        tg.join(
            *pair.stream(), on="k", time="t", within=20, lateness=lateness, shards=2
        ).withColumn("lateness", F.lit(lateness))
        for lateness in patience
    ]
    query = start(reduce(DataFrame.union, answers), tmp_path)
    found = delivered(spark, tmp_path)
    soon = {("b", 10, "b", 11), ("c", 96, "c", 95)}
    # The left row of time 10 is held until the right reaches 10 + 20 + lateness; it is at 100.
    wanted = {0: soon, 65: soon, 80: {*soon, ("a", 10, "a", 12)}}
    assert sorted(zip(*(c.to_pylist() for c in found.columns), strict=True)) == sorted(
        (*row, lateness) for lateness, each in wanted.items() for row in each
    )
    batches = [metrics.observed(p) for p in query.recentProgress if p["numInputRows"]]
    assert all(len(joins) == 3 for joins in batches)
    for joins in zip(*(joins.values() for joins in batches), strict=True):
        assert [count["out_of_order"] for count in joins] == [0, 0, 3]


def test_empty_and_one_sided_streams(spark: SparkSession, tmp_path: Path) -> None:
    pair = Pair(spark, tmp_path, ("t", "t"))
    many = [rows(*((f"k{i % 5}", i) for i in range(n, n + 50))) for n in (0, 50)]
    write_files([rows(), rows(), *many], tmp_path / "left")
    write_files([rows()] * 4, tmp_path / "right")
    result = tg.join(*pair.stream(), on="k", time="t", within=1000, memory=30)
    query = start(result, tmp_path)
    assert delivered(spark, tmp_path).num_rows == 0
    counts = [next(iter(metrics.observed(progress).values())) for progress in query.recentProgress]
    assert total(counts, "arrived") == 100
    assert max(count["held"] for count in counts) == 30
    left, right = pair.batch()
    for one, other in ((left, right), (right, left), (right, right)):
        assert tg.join(one, other, on="k", time="t", within=1000, memory=30).count() == 0


def test_results_feed_further_operators(spark: SparkSession, tmp_path: Path) -> None:
    """Results feed a count by key, and a windowed count that a watermark closes."""
    case = bids()
    pair = prepared(spark, tmp_path, case, batches=3)
    left, right = pair.batch()
    archived = tg.join(left, right, **case.settings)

    by_category = tg.join(*pair.stream(), **case.settings).groupBy("category").count()
    query = (
        by_category.writeStream.format("memory")
        .queryName("by_category")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "counted"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert bag(spark.table("by_category").toArrow()) == bag(
        archived.groupBy("category").count().toArrow()
    )

    def hourly(joined: Any) -> Any:
        counted = joined.groupBy(F.window("at", "10 minutes")).count()
        return counted.select("window.start", "count")

    streamed = tg.join(*pair.stream(), **case.settings).withWatermark("at", "1 second")
    start(hourly(streamed), tmp_path)
    expected = bag(hourly(archived).toArrow())
    found = bag(delivered(spark, tmp_path))
    assert found <= expected
    # The last window stays open: no later result closes it.
    assert (expected - found).total() == 1


def test_watermarks_on_the_inputs_are_carried_along(spark: SparkSession, tmp_path: Path) -> None:
    case = bids()
    pair = prepared(spark, tmp_path, case, batches=3)
    left, right = pair.stream()
    marked = tg.join(
        left.withWatermark("ts", "1 hour"), right.withWatermark("at", "1 hour"), **case.settings
    )
    start(marked, tmp_path)
    assert bag(delivered(spark, tmp_path)) == bag(
        tg.join(case.left, case.right, **case.settings).table
    )
