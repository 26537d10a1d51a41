"""Wide rows on Spark: results of more than 2 GB in one batch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import tidegate as tg
from tidegate.spark.metrics import observed


def test_rows_of_1_mb_meet_tiny_ones(spark: SparkSession, tmp_path: Path) -> None:
    sides = {
        "left": pa.table({"k": [1] * 12, "t": range(12), "s": ["x" * 1_000_000] * 12}),
        "right": pa.table({"k": [1] * 200, "t": range(20, 220)}),
    }
    frames: list[DataFrame] = []
    for side, table in sides.items():
        (tmp_path / side).mkdir()
        pq.write_table(table, tmp_path / side / "0.parquet")
        schema = spark.read.parquet(str(tmp_path / side)).schema
        frames.append(spark.readStream.schema(schema).parquet(str(tmp_path / side)))
    joined = tg.join(*frames, on="k", time="t", within=1_000)
    query = (
        joined.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    counts = [next(iter(observed(p).values()), {}) for p in query.recentProgress]
    assert sum(count.get("results", 0) for count in counts) == 12 * 200
