"""Bad input is refused before any data is read, in words that say what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.spark.operator import PROVIDER, PROVIDER_CONF

TABLE = pa.table(
    {
        "k": pa.array([1, 2], pa.int64()),
        "name": pa.array(["a", "b"]),
        "m": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
        "t": pa.array([1, 2], pa.int64()),
        "x": pa.array([0.5, 1.5]),
        "ts": pa.array([1, 2], pa.timestamp("us", "UTC")),
        "ntz": pa.array([1, 2], pa.timestamp("us")),
    }
)
GOOD: dict[str, Any] = {"on": "k", "time": "t", "within": 10}

#: A wrong setting, and words that its error must contain: the value, what was expected, and what
#: to do.
BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"on": "kay"}, ['the left input has no column "kay"', 'it has "k", "name"']),
    ({"on": {"k": "kay"}}, ['the right input has no column "kay"', 'it has "k", "name"']),
    ({"on": []}, ["a column name, a list of them, or a {left: right} mapping", "not []"]),
    ({"on": 7}, ["a column name, a list of them, or a {left: right} mapping", "not 7"]),
    ({"on": {"k": "name"}}, ['left "k" is int64', 'right "name" is string', "cast one of them"]),
    ({"on": "m"}, ['key column "m" is a map<', "no equality", "join on one of its entries"]),
    ({"time": "when"}, ['the left input has no column "when"', '"t"']),
    ({"time": ("t", "when")}, ['the right input has no column "when"', '"t"']),
    ({"time": ("t", "t", "t")}, ["one column name or a pair", "not ('t', 't', 't')"]),
    ({"time": "name"}, ["timestamps, dates or numbers", 'left "name" is string', "cast it"]),
    ({"time": ("t", "x")}, ['left "t" is a whole number', 'right "x" a real number', "cast one"]),
    ({"time": ("ts", "ntz"), "within": "1 s"}, ["of one kind", "a local timestamp", "cast one"]),
    ({"within": 0}, ["within must be longer than zero", "not 0"]),
    ({"within": -3}, ["within must be longer than zero", "not -3"]),
    ({"within": (10, 0)}, ["within must be longer than zero", "not 0"]),
    ({"within": (10, 10, 10)}, ["one window, one schedule", "a pair", "not (10, 10, 10)"]),
    ({"within": []}, ["one window, one schedule of (time, window) pairs", "not []"]),
    ({"within": [(5, 10), (3, 20)]}, ["schedule of within must ascend", "5 comes before 3"]),
    ({"within": [(5, 10), (5, 20)]}, ["schedule of within must ascend", "name each once"]),
    ({"within": [(0, 10), (5, 0)]}, ["longer than zero", "not 0", "schedule of within, from 5 on"]),
    ({"within": [(0, 10), (5, -1)]}, ["longer than zero", "not -1", "from 5 on"]),
    ({"within": [(0, 10), (5, "1 hour")]}, ["must be a number", "not '1 hour'", "from 5 on"]),
    ({"within": ([(0, 10)], [(0, 10), (5,)])}, ["a list of (time, value) pairs", "(5,)"]),
    ({"within": [("noon", 10)]}, ["the schedule of within", "which is int64", "not 'noon'"]),
    ({"within": [(0.5, 10)]}, ["the schedule of within", "which is int64", "not 0.5"]),
    ({"within": [(True, 10)]}, ["the schedule of within", "not True"]),
    ({"within": [(None, 10)]}, ["the schedule of within", "not None"]),
    ({"time": "ts", "within": [(0, "1 h")]}, ["the schedule of within", "a time like", "not 0"]),
    ({"time": "ts", "within": [("2024-05-01", "1 h")]}, ['such as "2024-05-01 12:00:00Z"']),
    ({"time": "x", "within": [(float("inf"), 1)]}, ["the schedule of within", "not inf"]),
    ({"memory": []}, ["one value, or a schedule", "not []"]),
    ({"memory": [(0, 5), 7]}, ["a list of (time, value) pairs", "not [(0, 5), 7]"]),
    ({"memory": [(9, 5), (0, 7)]}, ["schedule of memory must ascend", "9 comes before 0"]),
    ({"memory": [(0, 5), (9, 0)]}, ["a positive number of rows", "not 0", "from 9 on"]),
    ({"memory": [(0, 5), (9, -2)]}, ["a positive number of rows", "not -2", "from 9 on"]),
    ({"memory": [(0, 5), (9, "lots")]}, ["a positive number", "not 'lots'", "from 9 on"]),
    ({"memory": [(0, 5), (9, "1 MB")]}, ["in rows throughout or in sizes", "(9, '1 MB')"]),
    ({"memory": [(0, 5), (9, 1)], "split": "fixed"}, ["at least 2 rows", 'split="shared"']),
    (
        {"memory": 5, "policy": "life", "within": [(0, 5), (9, "unbounded")]},
        ["policy life", "the left's schedule", "give all of them a length", "use Prob"],
    ),
    (
        {"memory": 5, "policy": "age", "within": [(0, 5), (9, "unbounded")]},
        ["an age curve ends with the window"],
    ),
    ({"within": "soon"}, ["within must be a number", "a whole number", "not 'soon'"]),
    ({"within": "2 hours"}, ["within must be a number", "a whole number", "not '2 hours'"]),
    ({"within": True}, ["within must be a number", "not True"]),
    ({"within": float("nan")}, ["within must be finite", "not nan"]),
    ({"within": 2**62}, ["within is too long", str(2**62), '"unbounded"']),
    ({"time": "ts", "within": 400}, ['a duration like "2 hours"', "a timestamp", "not 400"]),
    ({"time": "ts", "within": "soon"}, ['a duration like "2 hours"', "not 'soon'"]),
    ({"time": "ts", "within": "0 s"}, ["longer than zero", "not '0 s'"]),
    ({"time": "ts", "within": timedelta(-1)}, ["longer than zero", "days=-1"]),
    ({"memory": 0}, ['a positive number of rows or a size like "64 MB"', "not 0"]),
    ({"memory": -5}, ['a positive number of rows or a size like "64 MB"', "not -5"]),
    ({"memory": "100 B"}, ["'100 B'", "less than one row takes", "1000 B at the least"]),
    ({"within": "infinite"}, ["'infinite'", '"unbounded" is for ever']),
    ({"memory": "lots"}, ['a positive number of rows or a size like "64 MB"', "not 'lots'"]),
    ({"memory": "0 MB"}, ['a positive number of rows or a size like "64 MB"', "not '0 MB'"]),
    ({"memory": True}, ['a positive number of rows or a size like "64 MB"', "not True"]),
    ({"memory": 1.5}, ['a positive number of rows or a size like "64 MB"', "not 1.5"]),
    ({"memory": 1, "split": "fixed"}, ["at least 2 rows", "not 1", 'split="shared"']),
    ({"policy": "porb"}, ['"age", "auto", "dgl", "dimpprob", "fifo"', 'did you mean "prob"']),
    ({"policy": "oracle"}, ['"prob"', "not 'oracle'"]),
    ({"policy": 3}, ['"prob"', "tg.Prob()", "not 3"]),
    ({"policy": tg.Prob}, ["must be an instance", "write Prob()"]),
    (
        {"split": "even"},
        ['"shared", "fixed", "predicted" or the left\'s share between 0 and 1', "not 'even'"],
    ),
    ({"split": 1}, ["the left's share between 0 and 1", "not 1"]),
    ({"split": 1.5}, ["the left's share between 0 and 1", "not 1.5"]),
    ({"shed_when": "later"}, ['"after-probe", "before-probe", "before-arrival"', "not 'later'"]),
    ({"combine": "mean", "importance": "x"}, ['"min", "max", "sum", "product"', "not 'mean'"]),
    ({"combine": "sum"}, ["combine='sum'", "give importance, or leave combine out"]),
    ({"importance": "weight"}, ['the left input has no column "weight"', '"x"']),
    ({"importance": "name"}, ["a column of numbers", 'left "name" is string', "cast it"]),
    ({"importance": 3}, ["one column name or a pair", "not 3"]),
    ({"importance": ("x", "name")}, ["a column of numbers", 'right "name" is string', "cast it"]),
    ({"on": None, "where": "abs(l.name - r.name) <= 1"}, ["needs numbers or times, not string"]),
    ({"where": "abs(l.x - r.name) <= 1"}, ["'l.x - r.name' needs numbers or times", "cast it"]),
    *(
        ({"memory": 5, "policy": policy, "within": "unbounded"}, ["unbounded", "give within a"])
        for policy in ("age", tg.Age([1, 2]), tg.DGL(), tg.Prob("window"), tg.Life("window"))
    ),
    (
        {"memory": 5, "policy": "age", "within": (5, "unbounded")},
        ["an age curve ends with the window, and this one is unbounded"],
    ),
    ({"lateness": -1}, ["lateness must", "not -1"]),
    ({"lateness": "1 hour"}, ["lateness must be a number", "not '1 hour'"]),
    ({"seed": -1}, ["a whole number that is not negative", "not -1"]),
    ({"seed": 0.5}, ["a whole number that is not negative", "not 0.5"]),
    ({"suffixes": ("_a", "_a")}, ['would be named "k_a"', "('_a', '_a')", "rename a column"]),
    ({"suffixes": "_a"}, ["suffixes must be a pair of strings", "not '_a'"]),
    ({"suffixes": ("_a",)}, ["suffixes must be", "not ('_a',)"]),
]


def names(case: tuple[dict[str, Any], list[str]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in case[0].items())


def says(words: list[str], error: BaseException) -> None:
    missing = [word for word in words if word not in str(error)]
    assert not missing, f"{missing} not in: {error}"


@pytest.mark.parametrize("case", BAD, ids=names)
def test_local(case: tuple[dict[str, Any], list[str]]) -> None:
    settings, words = case
    with pytest.raises(tg.TidegateError) as caught:
        tg.join(TABLE, TABLE, **GOOD | settings)
    says(words, caught.value)


def archive(spark: SparkSession) -> DataFrame:
    """Return the table as a batch frame; Spark would give every timestamp a time zone."""
    return spark.createDataFrame(TABLE).withColumn("ntz", F.col("ntz").cast("timestamp_ntz"))


@pytest.fixture(scope="module")
def stream(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Return a stream of files."""
    folder = tmp_path_factory.mktemp("stream")
    frame = archive(spark)
    frame.write.mode("append").parquet(str(folder))
    return spark.readStream.schema(frame.schema).parquet(str(folder))


@pytest.fixture
def idle(spark: SparkSession) -> Iterator[None]:
    """Check that no job and no query was run: an error must come before any data is read."""
    spark.sparkContext.setJobGroup("bad input", "must stay without jobs")
    yield
    assert spark.sparkContext.statusTracker().getJobIdsForGroup("bad input") == []
    assert spark.streams.active == []


def test_spark_refuses_the_same_in_the_same_words(
    spark: SparkSession, stream: DataFrame, idle: None
) -> None:
    """Batch and streaming frames are refused before a job is run or a query can be started."""
    archived = archive(spark)
    for settings, words in BAD:
        for frame in (archived, stream):
            with pytest.raises(tg.TidegateError) as caught:
                tg.join(frame, frame, **GOOD | settings)
            says(words, caught.value)


def test_inputs_of_the_wrong_kind(stream: DataFrame, spark: SparkSession, idle: None) -> None:
    archived = archive(spark)
    wrong: list[tuple[Callable[[], Any], list[str]]] = [
        (lambda: tg.join(stream, archived, **GOOD), ["not streaming, batch", "readStream"]),
        (lambda: tg.join(archived, stream, **GOOD), ["not batch, streaming", "readStream"]),
        (
            lambda: tg.join(TABLE, archived, **GOOD),
            ["the right input is a Spark", "the left input is not"],
        ),
        (lambda: tg.join(archived, [1], **GOOD), ["the right input is not (it is a list)"]),  # type: ignore[call-overload]
        (lambda: tg.join(None, TABLE, **GOOD), ["an Arrow table", "not NoneType"]),  # type: ignore[call-overload]
        (lambda: tg.join(stream, stream, **GOOD, shards=0), ["shards must be", "not 0"]),
        (lambda: tg.join(stream, stream, **GOOD, shards=1.5), ["shards must be", "not 1.5"]),  # type: ignore[call-overload]
        (lambda: tg.join(stream, stream, **GOOD, shards="all"), ["shards must be", "not 'all'"]),  # type: ignore[call-overload]
    ]
    for call, words in wrong:
        with pytest.raises(tg.TidegateError) as caught:
            call()
        says(words, caught.value)


def test_columns_that_cannot_be_told_apart_or_compared(spark: SparkSession, idle: None) -> None:
    archived = archive(spark)
    twice = archived.withColumn("k2", F.col("k")).toDF(*archived.columns, "k")
    folded = archived.withColumn("name", F.expr("name collate UTF8_LCASE"))
    table = pa.table([TABLE["k"], TABLE["k"], TABLE["t"]], ["k", "k", "t"])
    wrong: list[tuple[Callable[[], Any], list[str]]] = [
        (lambda: tg.join(archived, twice, **GOOD), ["the right", 'two columns named "k"']),
        (lambda: tg.join(table, TABLE, **GOOD), ["the left", 'two columns named "k"']),
        (
            lambda: tg.join(folded, folded, **GOOD | {"on": "name"}),
            ['"name" has the collation UTF8_LCASE', "by their bytes", "lower(column)"],
        ),
    ]
    for call, words in wrong:
        with pytest.raises(tg.TidegateError) as caught:
            call()
        says(words, caught.value)


def test_bad_policies() -> None:
    wrong: list[tuple[Callable[[], Any], list[str]]] = [
        (
            lambda: tg.Prob("often"),
            ['"learned", "window", "sketch", "whole" or a table', "not 'often'"],
        ),
        (lambda: tg.IJoin(recompute="never"), ['"successive", "adaptive" or', "not 'never'"]),  # type: ignore[arg-type]
        (lambda: tg.Prob(keys=0), ["a positive number of keys", "not 0"]),
        (lambda: tg.Prob("sketch", keys=2**40), ["at most 67,108,864", f"not {2**40}"]),
        (lambda: tg.Prob(None), ['"learned", "window", "sketch", "whole" or a table', "not None"]),
        (lambda: tg.Prob([1, 2]), ["or a table with the key columns", "not [1, 2]"]),
        (lambda: tg.Life(halflife=0), ["longer than zero", "not 0"]),
        (
            lambda: tg.join(TABLE, TABLE, **GOOD, memory=2, policy=tg.Prob(halflife="soon")),
            ["halflife must be a number", "not 'soon'"],
        ),
    ]
    for call, words in wrong:
        with pytest.raises(tg.TidegateError) as caught:
            call()
        says(words, caught.value)


def test_bad_tables_of_frequencies() -> None:
    def given(**columns: Any) -> None:
        tg.join(TABLE, TABLE, **GOOD, memory=2, policy=tg.Prob(pd.DataFrame(columns)))

    for columns, words in (
        ({"k": [1], "left": [1]}, ['the table of frequencies has no column "right"']),
        ({"k": [1, 1], "left": [1, 2], "right": [1, 2]}, ["names a key twice", "add its rows up"]),
        ({"k": [1], "left": [-1.0], "right": [1]}, ["not negative", '"left" has -1.0']),
        (
            {"k": [1, None], "left": [1, 2], "right": [1, 2]},
            ['"k"', "has a null", "leave such rows"],
        ),
    ):
        with pytest.raises(tg.TidegateError) as caught:
            given(**columns)
        says(words, caught.value)


def test_whole_frequencies_of_a_stream(stream: DataFrame, idle: None) -> None:
    with pytest.raises(tg.TidegateError) as caught:
        tg.join(stream, stream, **GOOD, memory=5, policy=tg.Prob("whole"))
    says(['frequencies="whole" needs finite inputs', '"learned"', "a table"], caught.value)


def test_the_wrong_state_store(spark: SparkSession, stream: DataFrame, idle: None) -> None:
    spark.conf.set(PROVIDER_CONF, PROVIDER.replace("RocksDB", "HDFSBacked"))
    try:
        with pytest.raises(tg.TidegateError) as caught:
            tg.join(stream, stream, **GOOD)
    finally:
        spark.conf.set(PROVIDER_CONF, PROVIDER)
    says(["HDFSBackedStateStoreProvider", f'spark.conf.set("{PROVIDER_CONF}"'], caught.value)


def test_a_checkpoint_of_other_settings(spark: SparkSession, tmp_path: Path) -> None:
    """The query fails with the differences, commits nothing, and goes on with the old ones."""
    source = tmp_path / "in"

    def arrive(first: int) -> None:
        frame = spark.range(first, first + 40).selectExpr("id % 5 as k", "id as t", "id as v")
        frame.coalesce(1).write.mode("append").parquet(str(source))

    def advance(**changed: Any) -> None:
        frame = spark.readStream.schema("k long, t long, v long").parquet(str(source))
        settings: dict[str, Any] = GOOD | {"memory": 20, "shards": 2} | changed
        query = (
            tg.join(frame, frame, **settings)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def committed() -> list[str]:
        return sorted(path.name for path in (tmp_path / "checkpoint/commits").glob("[0-9]*"))

    arrive(0)
    advance()
    before, batches = spark.read.parquet(str(tmp_path / "out")).count(), committed()
    assert before > 0
    arrive(40)
    with pytest.raises(StreamingQueryException) as caught:
        advance(seed=1, shed_when="before-probe", shards=1)
    when = 'shed_when: "after-probe" -> "before-probe"'
    differences = ["seed: 0 -> 1", when, "shards: 2 -> 1"]
    says(["TidegateError", "(old -> new)", *differences, "new checkpoint location"], caught.value)
    # It lists the differences and nothing else.
    listed = re.findall(r"^  (\w[\w ]*): .* -> ", str(caught.value), re.MULTILINE)
    assert set(listed) == {"seed", "shed_when", "shards"}
    assert committed() == batches
    assert spark.read.parquet(str(tmp_path / "out")).count() == before
    advance()
    assert len(committed()) == len(batches) + 1
    everything = spark.read.parquet(str(source))
    wanted = tg.join(everything, everything, **GOOD, memory=20, shards=2).count()
    assert spark.read.parquet(str(tmp_path / "out")).count() == wanted


BAD_WEIGHTS = {"null": None, "NaN": math.nan, "infinite": math.inf, "negative": -0.5}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
@pytest.mark.parametrize("side", [0, 1])
def test_an_importance_that_is_none(name: str, side: int) -> None:
    """On either side, the error comes before the batch is processed, and quotes the value."""
    bad = BAD_WEIGHTS[name]
    tables = [pa.table({"k": [1, 2], "t": [1, 2], w: [1.0, 2.0]}) for w in ("w", "v")]
    weights = pa.array([1.0, bad], pa.float64())
    tables[side] = tables[side].set_column(2, "wv"[side], weights)
    for memory in (None, 1):
        with pytest.raises(tg.TidegateError) as caught:
            tg.join(*tables, **GOOD, memory=memory, importance=("w", "v"))
        says(["a finite number of at least 0", f'column "{"wv"[side]}" has {bad!r}'], caught.value)


def test_an_importance_that_is_none_fails_the_query(spark: SparkSession) -> None:
    for bad in BAD_WEIGHTS.values():
        table = pa.table({"k": [1, 2], "t": [1, 2], "w": pa.array([1.0, bad], pa.float64())})
        frame = spark.createDataFrame(table)
        with pytest.raises(PySparkException, match='column "w" has'):
            tg.join(frame, frame, **GOOD, memory=1, importance="w").collect()


def test_bad_times_in_the_data_fail_the_query(spark: SparkSession) -> None:
    """A time out of range is found when it arrives, because settings cannot show it."""
    far = pa.table({"k": [1], "t": pa.array([2**62], pa.int64())})
    with pytest.raises(tg.TidegateError) as caught:
        tg.join(far, far, **GOOD)
    says([str(2**62), "a coarser unit"], caught.value)
    frame = spark.createDataFrame(far)
    with pytest.raises(PySparkException, match="a coarser unit"):
        tg.join(frame, frame, **GOOD).collect()
