"""Spark Connect: the same joins from a client without a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.spark import compat
from tidegate.streams import zipf

from .workloads import Pair, arrivals, bag, delivered, environment, start, write_files

SETTINGS: dict[str, Any] = {"on": "key", "time": "time", "within": 40, "memory": 60, "shards": 2}

#: A client: it runs the programs that it is sent, and answers with the `report` that each leaves.
CLIENT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
import tidegate as tg
from tidegate.spark import metrics

spark = SparkSession.builder.remote(f"sc://127.0.0.1:{sys.argv[1]}").getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect")
names = globals()
for line in sys.stdin:
    program, home, settings = json.loads(line)
    found = {**names, "home": Path(home), "settings": settings}
    exec(program, found)
    print(json.dumps(found["report"]), flush=True)
"""

JOINS = """
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
refused(lambda: advance(shed_when="before-probe"))
refused(lambda: tg.join(*streams, **settings | {"memory": "lots"}))
refused(lambda: tg.join(streams[0], archived[1], **settings))
provider = "spark.sql.streaming.stateStore.providerClass"
before = spark.conf.get(provider)
spark.conf.set(provider, "org.example.Other")
refused(lambda: tg.join(*streams, **settings))
spark.conf.set(provider, before)
"""

#: Calls that need all of their inputs, with their settings.
WHOLE: list[tuple[str, dict[str, Any]]] = [
    ("truncated_join", {"on": "key", "keep": 70}),
    ("truncated_join", {"on": "key", "delete": (500, 450), "method": "ndg"}),
    ("truncated_join", {"on": "key", "keep": 9, "time": "time", "per": 100, "method": "adg"}),
    ("optimal", {"on": "key", "time": "time", "within": 40, "memory": 20}),
    ("optimal", {"on": "key", "time": "time", "within": 40, "memory": [(0, 20), (300, 5)]}),
]

WHOLE_CALLS = """
archived = [spark.read.parquet(str(home / side)) for side in ("left", "right")]
streams = [
    spark.readStream.schema(frame.schema).parquet(str(home / side))
    for frame, side in zip(archived, ("left", "right"))
]
report = []
for i, (name, chosen) in enumerate(settings):
    call = getattr(tg, name)
    found = call(*archived, **chosen)
    table = found.table if name == "optimal" else found.toArrow()
    spark.createDataFrame(table).write.parquet(str(home / f"call{i}/out"))
    try:
        call(*streams, **chosen)
    except tg.TidegateError as error:
        report.append(str(error))
loose = archived[0].selectExpr("collate('a', 'UTF8_LCASE') AS key", "time")
try:
    tg.optimal(loose, loose, on="key", time="time", within=40)
except tg.TidegateError as error:
    report.append(str(error))
"""

COUNT_BY_WINDOW = """
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
report = joined.schema["ts_right"].metadata
"""


@pytest.fixture(scope="module")
def port(spark: SparkSession) -> Iterator[str]:
    """Start a Connect server on the loopback address, in the Spark of the other tests."""
    jvm: Any = spark.sparkContext._jvm
    context = spark.sparkContext._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1")
    context.conf().set("spark.connect.grpc.binding.port", "0")
    service = jvm.org.apache.spark.sql.connect.service.SparkConnectService
    service.start(context)
    itself = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    yield str(getattr(itself, "MODULE$").localPort())
    service.stop(jvm.scala.Option.empty(), jvm.scala.Option.empty())


Client = Callable[[str, Path, Any], Any]


@pytest.fixture(scope="module")
def client(port: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Start a client. Return a function that runs a program there and returns its report."""
    home = tmp_path_factory.mktemp("client")
    with open(home / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # A client needs no Java.
            env=environment(home / "scratch") | {"JAVA_HOME": os.devnull},
        )

    def reported(program: str, folder: Path, settings: Any) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([program, str(folder), settings]) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, (home / "log").read_text()
        return json.loads(line)

    yield reported
    process.communicate()


@pytest.mark.skipif(compat.VERSION < (4, 1), reason="Connect has no stateful operator")
@pytest.mark.proves(join="Connect stream, Connect batch")
def test_a_connect_session_gives_what_a_classic_one_gives(
    spark: SparkSession, tmp_path: Path, client: Client
) -> None:
    pair = Pair(spark, tmp_path, ("time", "time"))
    pair.write(*zipf(1000, domain=60, skew=0.9, seed=30), 3)
    report = client(JOINS, tmp_path, SETTINGS)

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
    assert 'shed_when: "after-probe" -> "before-probe"' in other[1]
    assert lots[0] == mixed[0] == store[0] == "TidegateError"
    assert "not 'lots'" in lots[1]
    assert "not streaming, batch" in mixed[1]
    assert "spark.conf.set(" in store[1]


@pytest.mark.proves(
    truncated_join="Connect batch, Connect stream refused",
    optimal="Connect batch, Connect stream refused",
)
def test_calls_on_whole_inputs_give_what_local_ones_give(
    spark: SparkSession, tmp_path: Path, client: Client
) -> None:
    tables = zipf(600, domain=60, skew=0.9, seed=31)
    Pair(spark, tmp_path, ("time", "time")).write(*tables, 2)
    *streaming, collation = client(WHOLE_CALLS, tmp_path, WHOLE)
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


def test_a_count_after_the_join_waits_for_its_results(
    spark: SparkSession, tmp_path: Path, client: Client
) -> None:
    pieces = [arrivals(seed) for seed in (4, 5)]
    for table, side in zip(pieces, ("left", "right"), strict=True):
        write_files(table, tmp_path / side)
    settings: dict[str, Any] = {"on": "k", "time": "ts", "within": "30 minutes"}
    metadata = client(COUNT_BY_WINDOW, tmp_path, settings)
    assert metadata["spark.watermarkDelayMs"] == 40 * 60_000

    left, right = (spark.read.parquet(str(tmp_path / side)) for side in ("left", "right"))
    counted = tg.join(left, right, **settings).groupBy(F.window("ts_left", "10 minutes")).count()
    found = bag(delivered(spark, tmp_path))
    assert found <= bag(counted.select("window.start", "count").toArrow())
    assert found.total() >= 5
