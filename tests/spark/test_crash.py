"""A streaming query that is killed again and again delivers what an undisturbed one delivers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.spark import metrics
from tidegate.spark.session import session
from tidegate.streams import cut_by_time, zipf

from .workloads import (
    Bag,
    bag,
    delivered,
    ends_processes,
    environment,
    kill,
    processes_of,
    start,
    write_files,
)

BATCHES = 6
KILLS = 3
SHARDS = 2
SETTINGS: dict[str, dict[str, Any]] = {
    "auto": {"memory": 60},
    "rand": {"memory": 60, "policy": "rand", "moment": "evict-first", "seed": 4},
    "apart": {"memory": None},
}

#: What a batch writes one after the other: its plan, a shard's state, results, that the sink has
#: them, that it is done. A kill soon after any of them finds another half-done batch.
STEPS = (
    "checkpoint/offsets/[0-9]*",
    "checkpoint/state/*/*/**/*.changelog",
    "out/*.parquet",
    "out/_spark_metadata/[0-9]*",
    "checkpoint/commits/[0-9]*",
)


def all_joins(spark: SparkSession, folder: Path) -> DataFrame:
    """Three joins of the same two streams in one query.

    After a crash Spark's file source may take two files at once, and of two sources one is then
    ahead of the other: what a bounded join keeps depends on that, what an exact one delivers does
    not. So the last join has two sources, and the sides of the others come from one: its rows
    always come in the same order, and how they are cut into batches makes no difference.
    """
    reader = spark.readStream.schema("key long, time long, value double, side string").option(
        "maxFilesPerTrigger", 1
    )
    both = reader.parquet(str(folder))
    joins = []
    for name, settings in SETTINGS.items():
        sources = [reader.parquet(str(folder)) for _ in range(2)] if name == "apart" else [both] * 2
        left, right = (
            source.where(source.side == side).drop("side")
            for source, side in zip(sources, ("left", "right"), strict=True)
        )
        joined = tg.join(left, right, on="key", time="time", within=40, shards=SHARDS, **settings)
        joins.append(joined.withColumn("join", F.lit(name)))
    return reduce(DataFrame.union, joins)


def main(folder: str, home: str) -> None:
    """Run the query to the end of its input, and say how many engines each batch rebuilt."""
    spark = session("crashing", master="local[2]", config={"spark.sql.shuffle.partitions": 2})
    query = start(all_joins(spark, Path(folder)), Path(home))
    counts = [metrics.observed(p) for p in query.recentProgress if p["numInputRows"]]
    print(json.dumps([sum(c["rebuilt"] for c in joins.values()) for joins in counts]))


class Run:
    """The query in a process of its own."""

    def __init__(
        self, folder: Path, home: Path, log: IO[bytes], module: str = "tests.spark.test_crash"
    ) -> None:
        self._home = home
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, folder, home],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(home / "scratch"),
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )

    def passes(self, step: str, times: int) -> bool:
        """Wait until this many more files of a step are there; False if the program ends first."""
        wanted = self._files(step) + times
        while self._files(step) < wanted:
            if self._ends_within(0.01):
                return False
        return True

    def _files(self, step: str) -> int:
        return sum(1 for _ in self._home.glob(step))

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def die(self, after: float) -> int:
        """Kill the program, its JVM and its Python workers; how many processes there were."""
        self._ends_within(after)
        victims = processes_of(self._process.pid)
        kill(victims)
        self._process.communicate()
        return len(victims)

    def rebuilt(self) -> list[int]:
        """Let the program end by itself: how many engines each of its batches rebuilt."""
        output, _ = self._process.communicate()
        assert self._process.returncode == 0
        counts: list[int] = json.loads(output)
        return counts


def committed(home: Path) -> int:
    return sum(1 for _ in home.glob("checkpoint/commits/[0-9]*"))


def by_join(table: pa.Table) -> dict[str, Bag]:
    return {
        name: bag(table.filter(pc.equal(table["join"], name)).drop_columns("join"))
        for name in SETTINGS
    }


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IO[bytes]]:
    with open(tmp_path / "log", "wb") as file:
        yield file


@ends_processes
def test_a_killed_query_loses_nothing_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path, log: IO[bytes]
) -> None:
    left, right = zipf(1200, domain=60, skew=0.9, seed=21)
    sided = [
        table.append_column("side", pa.array([side] * len(table)))
        for table, side in ((left, "left"), (right, "right"))
    ]
    folder, home = tmp_path / "in", tmp_path / "killed"
    write_files(cut_by_time(pa.concat_tables(sided), time="time", batches=BATCHES), folder)

    rng = np.random.default_rng(2026)
    kills = []
    for step in rng.permutation([*STEPS, *STEPS])[:KILLS].tolist():
        run = Run(folder, home, log)
        if not run.passes(step, int(rng.integers(1, 4))):
            break
        # The program and its JVM at least; Python workers too, once it has any.
        assert run.die(float(rng.random() * 0.3)) >= 2
        kills.append((step, committed(home)))
    assert len(kills) == KILLS, kills
    assert kills[-1][1] < BATCHES
    rebuilt = Run(folder, home, log).rebuilt()
    # A new process has no engine: each shard's of each join comes from the state.
    assert rebuilt[0] == len(SETTINGS) * SHARDS

    start(all_joins(spark, folder), tmp_path / "calm")
    expected = by_join(delivered(spark, tmp_path / "calm"))
    found = by_join(delivered(spark, home))
    for name in SETTINGS:
        assert expected[name].total() > 1000
        assert found[name] == expected[name]
    assert found["auto"] < found["apart"]
    exact = tg.local.join(left, right, on="key", time="time", within=40)
    assert found["apart"] == bag(exact.table)


if __name__ == "__main__":
    main(*sys.argv[1:])
