"""Shared parts of the Spark tests: streams as files, running queries, Spark's own joins."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import tidegate
from tidegate.spark import metrics
from tidegate.streams import cut_by_time

Bag = Counter[str]

#: For tests that kill processes, which `processes_of` finds.
ends_processes = pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="processes are found in /proc"
)

#: Settings of Spark with which it generates no code for queries. On few rows, to compile that code
#: costs more than it saves.
NO_CODEGEN = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

_FIRST_FILE = 1_700_000_000
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def bag(table: pa.Table) -> Bag:
    """Return rows as a multiset.

    Rows are compared as text: NaN then equals NaN, -0.0 differs from 0.0, and any type works.
    """
    columns = [column.to_pylist() for column in table.columns]
    return Counter(map(repr, zip(*columns, strict=True)))


def span(*columns: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return the first and the last of all times."""
    ends = [pc.min_max(column.filter(finite(column))).as_py() for column in columns]
    return min(e["min"] for e in ends), max(e["max"] for e in ends)


def finite(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return where a column has values that can be ordered."""
    if pa.types.is_floating(column.type):
        return pc.is_finite(column).fill_null(False)
    return pc.is_valid(column)


def write_files(
    pieces: Sequence[pa.Table], folder: Path, *, seed: int | None = 0, first: int = 0
) -> None:
    """Write one file per piece, which Spark reads in this order, with rows shuffled inside."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for index, piece in enumerate(pieces, first):
        if seed is not None:
            piece = piece.take(pa.array(rng.permutation(len(piece))))
        hidden = folder / f".{index:05d}"
        pq.write_table(piece, hidden)
        os.utime(hidden, (_FIRST_FILE + index,) * 2)
        os.replace(hidden, folder / f"{index:05d}.parquet")


@dataclass
class Pair:
    """A left and a right stream as files, cut by the same times."""

    spark: SparkSession
    home: Path
    times: tuple[str, str]
    folders: list[str] = field(default_factory=lambda: ["left", "right"])

    def write(self, left: pa.Table, right: pa.Table, batches: int, seed: int | None = 0) -> None:
        """Cut both tables by time into one file per batch."""
        ends = span(left[self.times[0]], right[self.times[1]])
        for table, time, name in zip((left, right), self.times, self.folders, strict=True):
            pieces = cut_by_time(table, time=time, batches=batches, span=ends)
            write_files(pieces, self.home / name, seed=seed)

    def batch(self) -> tuple[DataFrame, DataFrame]:
        """Return both as batch DataFrames."""
        left, right = (self.spark.read.parquet(str(self.home / name)) for name in self.folders)
        return left, right

    def stream(self) -> tuple[DataFrame, DataFrame]:
        """Return both as streaming DataFrames, which read one file of each per batch."""
        left, right = (
            self.spark.readStream.schema(frame.schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.home / name))
            for frame, name in zip(self.batch(), self.folders, strict=True)
        )
        return left, right


def begin(result: DataFrame, home: Path, *, mode: str = "append", **trigger: Any) -> StreamingQuery:
    """Start a query that writes a streaming DataFrame to Parquet files."""
    writer = (
        result.writeStream.format("parquet")
        .outputMode(mode)
        .option("path", str(home / "out"))
        .option("checkpointLocation", str(home / "checkpoint"))
    )
    return (writer.trigger(**trigger) if trigger else writer).start()


def start(result: DataFrame, home: Path, *, mode: str = "append") -> StreamingQuery:
    """Run a query until it has processed all files."""
    query = begin(result, home, mode=mode, availableNow=True)
    query.awaitTermination()
    return query


def delivered(spark: SparkSession, home: Path) -> pa.Table:
    """Read what a query of `start` has written."""
    return spark.read.parquet(str(home / "out")).toArrow()


def arrivals(seed: int, *, behind: int = 0) -> list[pa.Table]:
    """Return two hours of a stream in three pieces, whose rows come up to eight minutes late.

    The stream starts `behind` pieces later than others.
    """
    rows, size = 240, 80
    rng = np.random.default_rng(seed)
    minutes = rng.uniform(0, 120, rows)
    minutes = minutes[np.argsort(minutes + rng.uniform(0, 8, rows))]
    table = pa.table(
        {
            "k": rng.integers(0, 24, rows),
            "ts": pa.array(
                [_BEGIN + timedelta(minutes=float(m)) for m in minutes], pa.timestamp("us", "UTC")
            ),
            "n": np.arange(rows),
        }
    )
    return [table.slice(0, 0)] * behind + [table.slice(at, size) for at in range(0, rows, size)]


def marked(tables: dict[str, pa.Table], mark: str) -> pa.Table:
    """Concatenate tables, with the name of each in a column."""
    named = [t.append_column(mark, pa.array([name] * len(t))) for name, t in tables.items()]
    return pa.concat_tables(named, promote_options="default")


def counters(query: StreamingQuery) -> list[dict[str, int | float]]:
    """Return the counters of every batch that had input."""
    return [
        next(iter(metrics.observed(progress).values()))
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]


def union_of(joins: dict[str, DataFrame]) -> DataFrame:
    """Return the results of several joins as one DataFrame, with each join's name in `join`.

    Many joins in one query cost much less than a query each.
    """
    named = [frame.withColumn("join", F.lit(name)) for name, frame in joins.items()]
    return reduce(DataFrame.union, named)


def by_join(table: pa.Table) -> dict[str, Bag]:
    """Return the rows of each join of `union_of`, without its name."""
    return {
        name: bag(table.filter(pc.equal(table["join"], name)).drop_columns("join"))
        for name in table["join"].unique().to_pylist()
    }


def counters_by_join(
    query: StreamingQuery, names: Sequence[str]
) -> dict[str, list[dict[str, int | float]]]:
    """Return the counters of every batch that had input, for joins built in this order."""
    found: dict[str, list[dict[str, int | float]]] = {name: [] for name in names}
    for progress in query.recentProgress:
        if progress["numInputRows"]:
            observed = metrics.observed(progress)
            # Spark's names are tidegate, tidegate-2, tidegate-3, and so on.
            counts = [observed[key] for key in sorted(observed, key=lambda key: (len(key), key))]
            for name, count in zip(names, counts, strict=True):
                found[name].append(count)
    return found


def total(counts: Sequence[dict[str, int | float]], name: str) -> int | float:
    """Return the sum of a counter over all batches."""
    return sum(count[name] for count in counts)


def native(
    left: DataFrame,
    right: DataFrame,
    *,
    on: Sequence[tuple[str, str]],
    time: tuple[str, str],
    within: tuple[str | None, str | None],
    names: Sequence[str],
    where: str | None = None,
) -> DataFrame:
    """Return Spark's own join by the same rule. Windows are SQL; None for unbounded."""
    keys = [f"l.{a} = r.{b}" for a, b in on] + ([f"({where})"] if where else [])
    window_left, window_right = within
    if window_right is not None:
        keys.append(f"r.{time[1]} > l.{time[0]} - {window_right}")
    if window_left is not None:
        keys.append(f"r.{time[1]} < l.{time[0]} + {window_left}")
    joined = left.alias("l").join(right.alias("r"), F.expr(" and ".join(keys)))
    return joined.select("l.*", "r.*").toDF(*names)


def environment(scratch: Path) -> dict[str, str]:
    """Return the environment of a program that tests start.

    It can import tidegate, and its temporary files are in `scratch`, even if it is killed.
    """
    source = str(Path(tidegate.__file__).parents[1])
    path = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    scratch.mkdir(parents=True, exist_ok=True)
    return {
        **{name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"},
        "PYTHONPATH": os.pathsep.join(path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
        "JDK_JAVA_OPTIONS": f"{os.environ['JDK_JAVA_OPTIONS']} -Djava.io.tmpdir={scratch}",
    }


def processes_of(session: int) -> list[int]:
    """Return the processes of a session.

    These are a program started with `start_new_session` and all processes that it started, even if
    they formed process groups of their own.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
    return found


def kill(processes: Sequence[int]) -> None:
    """Kill processes at once, without a chance to clean up."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
