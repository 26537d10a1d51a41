"""Spark Connect: the same joins from a client without a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.spark import compat
from tidegate.streams import zipf

from .workloads import (
    Pair,
    arrivals,
    bag,
    delivered,
    ends_processes,
    environment,
    kill,
    processes_of,
    start,
    write_files,
)

SETTINGS: dict[str, Any] = {"on": "key", "time": "time", "within": 40, "memory": 60, "shards": 2}

SERVER = """
import sys
from tidegate.spark.session import session

spark = session("server", master="local[2]", config={
    "spark.sql.shuffle.partitions": 2,
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": 0,
})
service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
print(getattr(service, "MODULE$").localPort(), flush=True)
sys.stdin.read()
"""

CLIENT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
import tidegate as tg
from tidegate.spark import metrics

home, port, settings = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect")
report = {"said": []}

def refused(call):
    try:
        call()
    except Exception as error:
        report["said"].append([type(error).__name__, str(error)])

archived = [spark.read.parquet(str(home / side)) for side in ("left", "right")]
tg.join(*archived, **settings).write.parquet(str(home / "batch/out"))

source = spark.readStream.schema(archived[0].schema).option("maxFilesPerTrigger", 1)
streams = [source.parquet(str(home / side)) for side in ("left", "right")]

def advance(**changed):
    query = (
        tg.join(*streams, **settings | changed)
        .writeStream.format("parquet")
        .option("path", str(home / "stream/out"))
        .option("checkpointLocation", str(home / "stream/checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query

query = advance()
report["counts"] = [next(iter(metrics.observed(p).values())) for p in query.recentProgress]
for side in ("left", "right"):
    spark.read.parquet(str(home / side)).limit(1).write.mode("append").parquet(str(home / side))
refused(lambda: advance(within=41))
refused(lambda: tg.join(*streams, **settings | {"memory": "lots"}))
refused(lambda: tg.join(streams[0], archived[1], **settings))
spark.conf.set("spark.sql.streaming.stateStore.providerClass", "org.example.Other")
refused(lambda: tg.join(*streams, **settings))
print(json.dumps(report))
"""

#: Calls that need all of their inputs, with their settings.
WHOLE: list[tuple[str, dict[str, Any]]] = [
    ("truncated_join", {"on": "key", "keep": 70}),
    ("truncated_join", {"on": "key", "delete": (500, 450), "method": "ndg"}),
    ("truncated_join", {"on": "key", "keep": 9, "time": "time", "per": 100, "method": "adg"}),
    ("optimal", {"on": "key", "time": "time", "within": 40, "memory": 20}),
    ("optimal", {"on": "key", "time": "time", "within": 40, "memory": [(0, 20), (300, 5)]}),
]

WHOLE_CLIENT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
import tidegate as tg

home, port, calls = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
archived = [spark.read.parquet(str(home / side)) for side in ("left", "right")]
streams = [
    spark.readStream.schema(frame.schema).parquet(str(home / side))
    for frame, side in zip(archived, ("left", "right"))
]
said = []
for i, (name, settings) in enumerate(calls):
    call = getattr(tg, name)
    found = call(*archived, **settings)
    table = found.table if name == "optimal" else found.toArrow()
    spark.createDataFrame(table).write.parquet(str(home / f"call{i}/out"))
    try:
        call(*streams, **settings)
    except tg.TidegateError as error:
        said.append(str(error))
loose = archived[0].selectExpr("collate('a', 'UTF8_LCASE') AS key", "time")
try:
    tg.optimal(loose, loose, on="key", time="time", within=40)
except tg.TidegateError as error:
    said.append(str(error))
print(json.dumps(said))
"""

WATERMARK_CLIENT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
import tidegate as tg

home, port, settings = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()

def stream(side):
    schema = spark.read.parquet(str(home / side)).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return files.parquet(str(home / side)).withWatermark("ts", "10 minutes").where("k >= 0")

joined = tg.join(stream("left"), stream("right"), **settings)
query = (
    joined.groupBy(F.window("ts_left", "10 minutes")).count().select("window.start", "count")
    .writeStream.format("parquet").outputMode("append")
    .option("path", str(home / "out"))
    .option("checkpointLocation", str(home / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(json.dumps(joined.schema["ts_right"].metadata))
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Connect server on the loopback address."""
    home = tmp_path_factory.mktemp("server")
    with open(home / "server.log", "wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(home / "scratch"),
            start_new_session=True,
        )
    try:
        assert server.stdout is not None
        yield server.stdout.readline().decode().strip()
    finally:
        kill(processes_of(server.pid))
        server.communicate()


def said_by(program: str, home: Path, port: str, settings: Any) -> Any:
    """Run a client program. Return the JSON it prints."""
    client = subprocess.run(
        [sys.executable, "-c", program, home, port, json.dumps(settings)],
        capture_output=True,
        text=True,
        # A client needs no Java.
        env=environment(home / "scratch") | {"JAVA_HOME": os.devnull},
    )
    assert client.returncode == 0, client.stderr
    return json.loads(client.stdout)


@ends_processes
@pytest.mark.skipif(compat.VERSION < (4, 1), reason="Connect has no stateful operator")
@pytest.mark.proves(join="Connect stream, Connect batch")
def test_a_connect_session_gives_what_a_classic_one_gives(
    spark: SparkSession, tmp_path: Path, port: str
) -> None:
    pair = Pair(spark, tmp_path, ("time", "time"))
    pair.write(*zipf(1000, domain=60, skew=0.9, seed=30), 3)
    report = said_by(CLIENT, tmp_path, port, SETTINGS)

    for name in ("left", "right"):
        for extra in (tmp_path / name).glob("part-*"):
            extra.unlink()
    start(tg.join(*pair.stream(), **SETTINGS), tmp_path / "classic")
    expected = bag(delivered(spark, tmp_path / "classic"))
    assert expected.total() > 1000
    assert bag(delivered(spark, tmp_path / "stream")) == expected
    assert bag(delivered(spark, tmp_path / "batch")) == expected

    counts = report["counts"]
    assert len(counts) == 3
    assert sum(count["results"] for count in counts) == expected.total()
    assert all(0 < count["held"] <= 60 for count in counts)

    other, lots, mixed, store = report["said"]
    assert other[0] == "StreamingQueryException"
    assert "TidegateError: this checkpoint was written with other settings" in other[1]
    assert "within: [40, 40] -> [41, 41]" in other[1]
    assert lots[0] == mixed[0] == store[0] == "TidegateError"
    assert "not 'lots'" in lots[1]
    assert "not streaming, batch" in mixed[1]
    assert "spark.conf.set(" in store[1]


@ends_processes
@pytest.mark.proves(
    truncated_join="Connect batch, Connect stream refused",
    optimal="Connect batch, Connect stream refused",
)
def test_calls_on_whole_inputs_give_what_local_ones_give(
    spark: SparkSession, tmp_path: Path, port: str
) -> None:
    tables = zipf(600, domain=60, skew=0.9, seed=31)
    Pair(spark, tmp_path, ("time", "time")).write(*tables, 2)
    *streaming, collation = said_by(WHOLE_CLIENT, tmp_path, port, WHOLE)
    for i, (name, settings) in enumerate(WHOLE):
        found = bag(delivered(spark, tmp_path / f"call{i}"))
        if name == "optimal":
            # With rows in another order, another plan that is equally good may be found.
            assert found.total() == tg.optimal(*tables, **settings).results
            assert found <= bag(tg.join(*tables, on="key", time="time", within=40).table)
        else:
            assert found == bag(tg.truncated_join(*tables, **settings).table)
        assert found.total() > 50
    assert len(streaming) == len(WHOLE)
    assert all("the left input is a streaming DataFrame" in said for said in streaming)
    assert 'key column "key" has the collation UTF8_LCASE' in collation


@ends_processes
def test_a_count_after_the_join_waits_for_its_results(
    spark: SparkSession, tmp_path: Path, port: str
) -> None:
    pieces = [arrivals(seed) for seed in (4, 5)]
    for table, side in zip(pieces, ("left", "right"), strict=True):
        write_files(table, tmp_path / side)
    settings: dict[str, Any] = {"on": "k", "time": "ts", "within": "30 minutes"}
    metadata = said_by(WATERMARK_CLIENT, tmp_path, port, settings)
    assert metadata["spark.watermarkDelayMs"] == 40 * 60_000

    left, right = (spark.read.parquet(str(tmp_path / side)) for side in ("left", "right"))
    counted = tg.join(left, right, **settings).groupBy(F.window("ts_left", "10 minutes")).count()
    found = bag(delivered(spark, tmp_path))
    assert found <= bag(counted.select("window.start", "count").toArrow())
    assert found.total() >= 5
