"""A cluster of two executors in processes of their own, one of which is killed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tidegate.spark import compat
from tidegate.streams import zipf

from .workloads import (
    NO_CODEGEN,
    Pair,
    bag,
    delivered,
    ends_processes,
    environment,
    kill,
    processes_of,
)

BATCHES = 4
#: The batch after which an executor is killed.
HALFWAY = BATCHES // 2 - 1
SETTINGS: dict[str, Any] = {"on": "key", "time": "time", "within": 40, "memory": 60, "shards": 2}

PROGRAM = """
import json, sys
from pathlib import Path
import tidegate as tg
from tidegate.spark import metrics
from tidegate.spark.session import session

home, settings, no_codegen = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
config = no_codegen | {
    "spark.sql.shuffle.partitions": 2,
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": 1.0,
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}
spark = session("cluster", master="local-cluster[2,1,512]", config=config)
source = spark.readStream.schema("key long, time long, value double")
source = source.option("maxFilesPerTrigger", 1)
left, right = source.parquet(str(home / "left")), source.parquet(str(home / "right"))
query = (
    tg.join(left, right, **settings)
    .writeStream.format("parquet")
    .option("path", str(home / "cluster/out"))
    .option("checkpointLocation", str(home / "cluster/checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(json.dumps([
    next(iter(metrics.observed(p).values())) for p in query.recentProgress if p["numInputRows"]
]))
spark.stop()
"""


def executor(driver: int, name: str) -> list[int]:
    """Return the Java process of an executor, and then its Python workers."""
    parents, found = {}, []
    for process in processes_of(driver):
        with contextlib.suppress(OSError):
            folder = Path("/proc", str(process))
            parents[process] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if f"--executor-id\0{name}\0" in (folder / "cmdline").read_text():
                found.append(process)
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def engines(processes: list[int]) -> list[int]:
    """Return those of some processes that hold engines."""
    found = []
    for process in processes:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/comm").read_text().strip() == "tidegate-engine":
                found.append(process)
    assert found or compat.VERSION < (4, 3)
    return found


def reached(home: Path, driver: subprocess.Popen[bytes], file: str) -> None:
    """Wait until the query has written a file of its checkpoint."""
    while not (home / "cluster/checkpoint" / file).exists():
        try:
            driver.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail((home / "driver.log").read_text())


@ends_processes
def test_a_cluster_gives_what_local_mode_gives(spark: SparkSession, tmp_path: Path) -> None:
    pair = Pair(spark, tmp_path, ("time", "time"))
    pair.write(*zipf(1200, domain=60, skew=0.9, seed=8), BATCHES)
    expected = bag(tg.join(*pair.batch(), **SETTINGS).toArrow())
    assert expected.total() > 900

    with open(tmp_path / "driver.log", "wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, tmp_path, *map(json.dumps, (SETTINGS, NO_CODEGEN))],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(tmp_path / "scratch"),
            start_new_session=True,
        )
    try:
        reached(tmp_path, driver, f"commits/{HALFWAY}")
        # Both executors took part. Kill one with its Python workers: its shard moves.
        first, second = (executor(driver.pid, name) for name in ("0", "1"))
        assert len(first) > 1
        assert len(second) > 1
        kill(first)
        # In the last batch, only engines of the other one end. Spark tries their tasks again.
        reached(tmp_path, driver, f"offsets/{BATCHES - 1}")
        kill(engines(executor(driver.pid, "1")))
        output, _ = driver.communicate()
    finally:
        kill(processes_of(driver.pid))
    assert driver.returncode == 0, (tmp_path / "driver.log").read_text()
    counts = json.loads(output)
    assert len(counts) == BATCHES
    assert bag(delivered(spark, tmp_path / "cluster")) == expected
    assert sum(count["results"] for count in counts) == expected.total()
    assert all(count["held"] <= 60 and count["shards"] == 2 for count in counts)
    # The engine of the killed executor was rebuilt from the state.
    assert sum(count["rebuilt"] for count in counts[HALFWAY + 1 :]) >= 1
