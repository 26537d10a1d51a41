"""Samples and estimates on Spark equal the local ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.streams import zipf

from .workloads import (
    Pair,
    bag,
    counters,
    delivered,
    start,
    total,
)

JOIN: dict[str, Any] = {"on": "key", "time": "ts", "within": ("40 s", "25 s")}
WINDOWS: dict[str, Any] = {"time": ("ts_left", "ts_right"), "per": "100 seconds"}


def streams(n: int = 600) -> tuple[pa.Table, pa.Table]:
    """Return streams with timestamps, and a last row on each side that closes all ticks before."""
    tables = []
    for key, table in zip((-1, -2), zipf(n, domain=20, skew=0.7, seed=5), strict=True):
        last = pa.table({"key": [key], "time": [n + 200], "value": [0.0]}, table.schema)
        table = pa.concat_tables([table, last])
        seconds = pc.multiply(table["time"], 1_000_000).cast(pa.timestamp("us", "UTC"))
        tables.append(table.set_column(1, "ts", seconds))
    return tables[0], tables[1]


def rounded(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows in a fixed order, with rounded numbers: sums depend on the order of addition."""
    return [
        {k: float(f"{v:.9g}") if isinstance(v, float) else v for k, v in row.items()}
        for row in sorted(table.to_pylist(), key=lambda row: str(list(row.values())[:2]))
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"memory": 30, "method": "uniform", "seed": 3},
        {"memory": 30, "method": "pps"},
        {"memory": "20 kB", "method": "cluster", "model": "age"},
        {"fraction": 0.3, "where": "l.value < r.value"},
    ],
    ids=["uniform", "pps", "cluster", "fraction"],
)
@pytest.mark.proves(sample_join="classic stream, classic batch, local")
def test_a_sample_is_the_local_one(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    left, right = streams()
    local = tg.sample_join(left, right, **JOIN, **settings)
    assert local.results > 50
    pair = Pair(spark, tmp_path, ("ts", "ts"))
    pair.write(left, right, 4, 1)
    all_settings: dict[str, Any] = JOIN | settings | {"shards": 1}
    archived = tg.sample_join(*pair.batch(), **all_settings)
    assert bag(archived.toArrow().cast(local.table.schema)) == bag(local.table)

    query = start(tg.sample_join(*pair.stream(), **all_settings), tmp_path)
    assert bag(delivered(spark, tmp_path).cast(local.table.schema)) == bag(local.table)
    counts = counters(query)
    for name in ("results", "rejected", "foreseen", "missed"):
        assert total(counts, name) == pytest.approx(local.counters[name], rel=0.02)
    if settings.get("memory") == 30:
        assert 10 < max(count["held"] for count in counts) <= 30


@pytest.mark.proves(estimate="classic batch, local")
def test_estimates_of_a_batch_with_groups_never_sampled(spark: SparkSession) -> None:
    left, right = streams(200)
    local = tg.sample_join(left, right, **JOIN, fraction=0.2, method="cluster")
    frame = spark.createDataFrame(local.table)
    groups = pa.table({"key_left": [1, 2, 77]})
    for given in (groups, spark.createDataFrame(groups)):
        found = tg.estimate(frame, value="value_left", by="key_left", groups=given).toArrow()
        expected = tg.estimate(local, value="value_left", by="key_left", groups=groups).table
        assert rounded(found) == rounded(expected)
        [unknown] = [row for row in found.to_pylist() if row["key_left"] == 77]
        assert unknown["clusters"] == 0
        assert unknown["count"] is unknown["sum"] is unknown["avg"] is None
    whole = tg.estimate(frame.withColumn("n", F.col("key_right") * 2), value="n", by=[]).toArrow()
    assert len(whole) == 1
    sliding = WINDOWS | {"every": "35 seconds"}
    in_windows = tg.estimate(frame, by="key_left", groups=groups, **sliding).toArrow()
    expected = tg.estimate(local, by="key_left", groups=groups, **sliding).table
    assert rounded(in_windows) == rounded(expected)


def test_sliding_windows_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    left, right = streams(200)
    settings: dict[str, Any] = JOIN | {"fraction": 0.4, "method": "cluster"}
    sliding = WINDOWS | {"every": "40 seconds"}
    local = tg.estimate(tg.sample_join(left, right, **settings), value="value_left", **sliding)
    pair = Pair(spark, tmp_path, ("ts", "ts"))
    pair.write(left, right, 3)
    streamed = tg.sample_join(*pair.stream(), **settings, shards=1)
    start(tg.estimate(streamed, value="value_left", **sliding), tmp_path)
    found = delivered(spark, tmp_path)
    # The last windows are not over when the stream ends.
    expected = rounded(local.table)
    assert rounded(found) == expected[: len(found)]
    assert len(expected) - 4 <= len(found) < len(expected)


def test_what_is_refused_on_streams(spark: SparkSession, tmp_path: Path) -> None:
    left, right = streams(50)
    pair = Pair(spark, tmp_path, ("ts", "ts"))
    pair.write(left, right, 1)
    sample = tg.sample_join(*pair.stream(), **JOIN, fraction=0.5)
    with pytest.raises(tg.TidegateError, match=r"window by window.*time \(a timestamp column\)"):
        tg.estimate(sample)
    with pytest.raises(tg.TidegateError, match="groups is for batch samples"):
        tg.estimate(sample, by="key_left", groups={"key_left": [1]}, **WINDOWS)
    with pytest.raises(tg.TidegateError, match="the right input is not"):
        tg.sample_join(pair.stream()[0], right, **JOIN, fraction=0.5)
