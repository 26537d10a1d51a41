"""Streaming queries that are killed again and again deliver what undisturbed ones deliver."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tidegate.streams import cut_by_time, zipf

from .workloads import Pair, bag, delivered, environment, kill, processes_of, write_files

BATCHES = 8
KILLS = 5
SHARDS = 3
SETTINGS: dict[str, dict[str, Any]] = {
    "prob": {"memory": 60, "policy": "prob"},
    "rand": {"memory": 60, "policy": "rand", "moment": "evict-first", "seed": 4},
    "exact": {"memory": None, "lateness": 2_000},
}
#: Spark's file source may take two files at once after a crash, and of two sources one may then
#: run ahead of the other. So the bounded joins read both sides from one source, where rows come in
#: the same order however they are cut into batches; the exact one reads two, and allows for
#: lateness.

#: Runs the three queries side by side, and says what their batches counted when all are done.
PROGRAM = """
import json, sys
from pathlib import Path
import tidegate as tg
from tidegate.spark import metrics
from tidegate.spark.session import session

inputs, home = Path(sys.argv[1]), Path(sys.argv[2])
queries, shards = json.loads(sys.argv[3]), int(sys.argv[4])
spark = session("crashing", master="local[2]")
schema = "key long, time long, value double"
source = spark.readStream.option("maxFilesPerTrigger", 1)
started = {}
for name, settings in queries.items():
    if settings["memory"] is None:
        left, right = (source.schema(schema).parquet(str(inputs / s)) for s in ("left", "right"))
    else:
        both = source.schema(schema + ", side string").parquet(str(inputs / "both"))
        left, right = (both.where(both.side == s).drop("side") for s in ("left", "right"))
    result = tg.join(left, right, on="key", time="time", within=40, shards=shards, **settings)
    started[name] = (
        result.writeStream.format("parquet")
        .option("path", str(home / name / "out"))
        .option("checkpointLocation", str(home / name / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    # Spark gives a query's first Python process ten seconds to start: not all of them at once.
    while started[name].isActive and not started[name].recentProgress:
        started[name].awaitTermination(0.05)
counts = {}
for name, query in started.items():
    query.awaitTermination()
    counts[name] = [
        next(iter(metrics.observed(p).values())) for p in query.recentProgress if p["numInputRows"]
    ]
print(json.dumps(counts))
"""

#: What a batch writes one after the other: its plan, a state, its result files, that the sink has
#: them, that it is done. A kill after any of them finds another half-done batch.
STEPS = (
    "checkpoint/offsets/[0-9]*",
    "checkpoint/state/0/*/**/*.changelog",
    "out/*.parquet",
    "out/_spark_metadata/[0-9]*",
    "checkpoint/commits/[0-9]*",
)


class Run:
    """The program on its checkpoints."""

    def __init__(self, inputs: Path, home: Path, order: list[str], errors: IO[bytes]) -> None:
        self.home = home
        queries = json.dumps({name: SETTINGS[name] for name in order})
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, inputs, home, queries, str(SHARDS)],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(home / "scratch"),
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
        return sum(1 for name in SETTINGS for _ in (self.home / name).glob(step))

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

    def result(self) -> dict[str, list[dict[str, int | float]]]:
        output, _ = self._process.communicate()
        assert self._process.returncode == 0
        counts: dict[str, list[dict[str, int | float]]] = json.loads(output)
        return counts


def committed(home: Path, name: str) -> int:
    return sum(1 for path in (home / name / "checkpoint/commits").glob("*") if path.name.isdigit())


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IO[bytes]]:
    with open(tmp_path / "log", "wb") as file:
        yield file


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are found in /proc")
def test_killed_queries_lose_nothing_and_repeat_nothing(
    spark: SparkSession, tmp_path: Path, log: IO[bytes]
) -> None:
    pair = Pair(spark, tmp_path, ("time", "time"))
    left, right = zipf(1200, domain=60, skew=0.9, seed=21)
    pair.write(left, right, BATCHES)
    sided = [
        table.append_column("side", pa.array([side] * len(table)))
        for table, side in ((left, "left"), (right, "right"))
    ]
    both = cut_by_time(pa.concat_tables(sided), time="time", batches=BATCHES)
    write_files(both, tmp_path / "both")

    rng = np.random.default_rng(2026)
    home = tmp_path / "killed"
    kills = []
    for _ in range(KILLS):
        run = Run(tmp_path, home, rng.permutation(list(SETTINGS)).tolist(), log)
        step, times = str(rng.choice(STEPS)), int(rng.integers(1, 7))
        if not run.passes(step, times):
            break
        assert run.die(float(rng.random() * 0.3)) >= 3
        kills.append((step, times, {name: committed(home, name) for name in SETTINGS}))
    assert len(kills) >= KILLS - 1, kills
    counts = Run(tmp_path, home, list(SETTINGS), log).result()
    print(*kills, *counts.values(), sep="\n")
    for batches in counts.values():
        # A new process has no engine: each shard's comes from the state.
        assert all(count["rebuilt"] == SHARDS for count in batches[:1])

    calm = Run(tmp_path, tmp_path / "calm", list(SETTINGS), log).result()
    for name in SETTINGS:
        expected = bag(delivered(spark, tmp_path / "calm" / name))
        assert expected.total() > 1000
        assert bag(delivered(spark, home / name)) == expected
        assert sum(count["results"] for count in calm[name]) == expected.total()
        if counts[name]:
            assert calm[name][-1]["held"] == counts[name][-1]["held"]
    exact = tg.local.join(left, right, on="key", time="time", within=40)
    assert bag(delivered(spark, home / "exact")) == bag(exact.table)
