"""A real cluster: a master and two workers with an executor each, one of which is killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tidegate.spark import java
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
MASTER = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")

PROGRAM = """
import json, sys
from pathlib import Path
import tidegate as tg
from tidegate.spark import metrics
from tidegate.spark.session import session

home, master = Path(sys.argv[1]), sys.argv[2]
settings, no_codegen = json.loads(sys.argv[3]), json.loads(sys.argv[4])
config = no_codegen | {
    "spark.sql.shuffle.partitions": 2,
    "spark.executor.cores": 1,
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": 1.0,
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}
spark = session("cluster", master=master, config=config)
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


@contextmanager
def daemon(
    home: Path, name: str, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run one of Spark's services until the end of the block."""
    home.mkdir(exist_ok=True)
    log = home / f"{name}.log"
    launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
    options = ["--host", "127.0.0.1", "--webui-port", "0"]
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [launcher, f"org.apache.spark.deploy.{name}", *options, *arguments],
            stdout=file,
            stderr=file,
            env=environment(home / "scratch") | {"JAVA_HOME": str(java.find())},
            start_new_session=True,
        )
    try:
        yield process, log
    finally:
        kill(processes_of(process.pid))
        process.wait()


def address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return the master's address, once its log contains it."""
    while (found := MASTER.search(log.read_text())) is None:
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(log.read_text())
    return found[1]


def executors(worker: subprocess.Popen[bytes]) -> list[int]:
    """Return the executors of a worker, with their Python workers."""
    return [process for process in processes_of(worker.pid) if process != worker.pid]


@ends_processes
def test_a_cluster_gives_what_local_mode_gives(spark: SparkSession, tmp_path: Path) -> None:
    pair = Pair(spark, tmp_path, ("time", "time"))
    pair.write(*zipf(1200, domain=60, skew=0.9, seed=8), BATCHES)
    expected = bag(tg.join(*pair.batch(), **SETTINGS).toArrow())
    assert expected.total() > 900

    with ExitStack() as services:
        master = services.enter_context(daemon(tmp_path, "master.Master", "--port", "0"))
        url = address(*master)
        workers = [
            services.enter_context(
                daemon(
                    tmp_path / str(i),
                    "worker.Worker",
                    *("--cores", "1", "--memory", "1g"),
                    *("--work-dir", str(tmp_path / str(i) / "work")),
                    url,
                )
            )
            for i in (1, 2)
        ]
        settings = (SETTINGS, NO_CODEGEN)
        with open(tmp_path / "driver.log", "wb") as log:
            driver = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, tmp_path, url, *map(json.dumps, settings)],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(tmp_path / "scratch"),
                start_new_session=True,
            )
        try:
            commits = tmp_path / "cluster/checkpoint/commits"
            while not (commits / str(HALFWAY)).exists():
                try:
                    driver.wait(0.02)
                except subprocess.TimeoutExpired:
                    continue
                pytest.fail((tmp_path / "driver.log").read_text())
            # Both executors took part. Kill one with its Python workers: its shard moves.
            assert all(executors(worker) for worker, _ in workers)
            kill(executors(workers[0][0]))
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
