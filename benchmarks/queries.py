"""Run streaming queries over Parquet files, and read Spark's reports about their batches."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.spark.metrics import observed
from tidegate.spark.operator import PROVIDER, PROVIDER_CONF
from tidegate.spark.session import session
from tidegate.streams import uniform, write_parquet_batches

HDFS_BACKED = (
    "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"  # Spark's default
)
#: Always two cores, so that figures can be compared; and a heap large enough that garbage
#: collection does not slow down Spark's own join, which keeps its state there.
MASTER = "local[2]"
CONF = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": 2}

_START = 1_700_000_000_000
_SIDES = ("left", "right")


@dataclass(frozen=True)
class Way:
    """A way to join two streams of key, time and value."""

    name: str
    provider: str
    join: Callable[[DataFrame, DataFrame], DataFrame]


@dataclass(frozen=True)
class Ran:
    """The figures of a query, by batch."""

    until_first: float  # from building the query to the end of its first batch
    seconds: tuple[float, ...]
    rows: tuple[int, ...]
    results: tuple[int, ...]
    counters: tuple[dict[str, Any], ...]  # tidegate's counters
    changelogs: tuple[int, ...]  # bytes written by the state store


@contextmanager
def spark() -> Iterator[SparkSession]:
    """Yield embedded Spark, and stop it afterwards."""
    running = session("benchmarks", master=MASTER, config=CONF)
    try:
        yield running
    finally:
        running.stop()


def tidegate(name: str, **settings: Any) -> Way:
    """Join with this package."""
    return Way(
        name, PROVIDER, lambda left, right: tg.join(left, right, on="key", time="time", **settings)
    )


def native(name: str, provider: str, within: str) -> Way:
    """Join with Spark's own stream-stream join; watermarks follow the data without delay."""

    def join(left: DataFrame, right: DataFrame) -> DataFrame:
        one = left.withWatermark("time", "0 seconds").alias("l")
        other = right.withWatermark("time", "0 seconds").alias("r")
        window = F.expr(f"INTERVAL {within}")
        return one.join(
            other,
            (F.col("l.key") == F.col("r.key"))
            & (F.col("r.time") > F.col("l.time") - window)
            & (F.col("r.time") < F.col("l.time") + window),
        )

    return Way(name, provider, join)


def events(rows: int, domain: int, seed: int = 1) -> tuple[pa.Table, pa.Table]:
    """Generate two streams of uniform keys, one row per millisecond on each."""
    left, right = (_timed(table) for table in uniform(rows, domain=domain, seed=seed))
    return left, right


def _timed(table: pa.Table) -> pa.Table:
    millis = pa.array(table.column("time").to_numpy() + _START, pa.timestamp("ms", "UTC"))
    return table.set_column(1, "time", millis.cast(pa.timestamp("us", "UTC")))


def write(folder: Path, rows: int, batches: int, domain: int) -> tuple[pa.Table, pa.Table]:
    """Write both streams as files, one per batch; return them, too."""
    tables = events(rows, domain)
    for side, table in zip(_SIDES, tables, strict=True):
        write_parquet_batches(table, folder / side, time="time", batches=batches)
    return tables


def beginning(folder: Path, batches: int) -> Path:
    """Make a folder with the first batches of another, as hard links to its files."""
    short = folder / f"first-{batches}"
    for side in _SIDES:
        (short / side).mkdir(parents=True, exist_ok=True)
        for path in sorted((folder / side).glob("*.parquet"))[:batches]:
            if not (short / side / path.name).exists():
                os.link(path, short / side / path.name)
    return short


def exact_results(tables: tuple[pa.Table, pa.Table], within: int) -> int:
    """Count the pairs of equal keys that are less than `within` milliseconds apart."""
    keys = [table.column("key").to_numpy() for table in tables]
    times = [
        table.column("time").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy() - _START
        for table in tables
    ]
    stretch = int(max(t.max() for t in times)) + 2 * within + 1
    left, right = (np.sort(k * stretch + t + within) for k, t in zip(keys, times, strict=True))
    upto = np.searchsorted(right, left + within, "left")
    since = np.searchsorted(right, left - within, "right")
    return int((upto - since).sum())


def run(spark: SparkSession, way: Way, folder: Path) -> Ran:
    """Run a query over all files, one file per side in each batch, without a sink."""
    spark.conf.set(PROVIDER_CONF, way.provider)
    began = time.time()
    left, right = (_read(spark, folder / side) for side in _SIDES)
    counted = way.join(left, right).observe("counted", F.count(F.lit(1)).alias("results"))
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as checkpoint:
        query = (
            counted.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches: list[Any] = [p for p in query.recentProgress if p["numInputRows"]]
        changelogs = _changelogs(Path(checkpoint), len(batches))
    return Ran(
        until_first=_end(batches[0]) - began,
        seconds=tuple(p["durationMs"]["triggerExecution"] / 1000 for p in batches),
        rows=tuple(int(p["numInputRows"]) for p in batches),
        results=tuple(int(p["observedMetrics"]["counted"]["results"]) for p in batches),
        counters=tuple(next(iter(observed(p).values()), {}) for p in batches),
        changelogs=changelogs,
    )


def _read(spark: SparkSession, folder: Path) -> DataFrame:
    return (
        spark.readStream.schema("key long, time timestamp, value double")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder))
    )


def _end(progress: Any) -> float:
    """Return when a batch was done, in seconds since 1970."""
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    return float(began + progress["durationMs"]["triggerExecution"] / 1000)


def _changelogs(checkpoint: Path, batches: int) -> tuple[int, ...]:
    """Return the bytes of the state store's changelogs, by batch."""
    sizes = [0] * batches
    for path in checkpoint.glob("state/**/*.changelog"):
        # Batch n - 1 writes version n.
        version = int(path.stem.partition("_")[0])
        if 1 <= version <= batches:
            sizes[version - 1] += path.stat().st_size
    return tuple(sizes)
