"""Streaming queries that are killed again and again deliver what undisturbed ones deliver."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tidegate.streams import zipf

from .workloads import Pair, bag, counters, delivered, environment, kill, processes_of

BATCHES = 10
KILLS = 6
SHARDS = 3
SETTINGS: dict[str, dict[str, Any]] = {
    "prob": {"memory": 60, "policy": "prob"},
    "rand": {"memory": 60, "policy": "rand", "moment": "evict-first", "seed": 4},
    "exact": {"memory": None},
}

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
source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
started = {}
for name, settings in queries.items():
    left, right = source.parquet(str(inputs / "left")), source.parquet(str(inputs / "right"))
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
    left, right = zipf(1500, domain=60, skew=0.9, seed=21)
    pair.write(left, right, BATCHES)

    rng = np.random.default_rng(2026)
    home = tmp_path / "killed"
    kills = []
    for _ in range(KILLS):
        run = Run(tmp_path, home, rng.permutation(list(SETTINGS)).tolist(), log)
        step, times = str(rng.choice(STEPS)), int(rng.integers(1, 5))
        if not run.passes(step, times):
            pytest.fail(f"the program ended before kill {len(kills) + 1}: {run.result()}")
        before = {name: committed(home, name) for name in SETTINGS}
        assert run.die(float(rng.random() * 0.3)) >= 3
        kills.append((step, times, before))
    counts = Run(tmp_path, home, list(SETTINGS), log).result()

    assert all(committed(home, name) >= BATCHES for name in SETTINGS)
    print(*kills, {name: len(batches) for name, batches in counts.items()}, sep="\n")
    assert any(len(batches) > 1 for batches in counts.values())
    for batches in counts.values():
        # A new process has no engine: each shard's comes from the state.
        assert all(count["rebuilt"] == SHARDS for count in batches[:1])
        print([count["rebuilt"] for count in batches])

    for name, settings in SETTINGS.items():
        undisturbed = tmp_path / "undisturbed" / name
        result = tg.join(
            *pair.stream(), on="key", time="time", within=40, shards=SHARDS, **settings
        )
        query = (
            result.writeStream.format("parquet")
            .option("path", str(undisturbed / "out"))
            .option("checkpointLocation", str(undisturbed / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        expected = bag(delivered(spark, undisturbed))
        assert expected.total() > 1000
        assert bag(delivered(spark, home / name)) == expected
        if counts[name]:
            assert counters(query)[-1]["held"] == counts[name][-1]["held"]
    exact = tg.local.join(left, right, on="key", time="time", within=40)
    assert bag(delivered(spark, home / "exact")) == bag(exact.table)
