"""`tg.join` on Spark: exact mode is Spark's own join, bounded mode is the local engine's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.spark import metrics
from tidegate.streams import auctions, cut_by_time, zipf

from .workloads import Pair, bag, counters, delivered, native, span, start, total, write_files


@dataclass(frozen=True)
class Case:
    """Two streams, how tidegate is to join them, and the same in SQL."""

    left: pa.Table
    right: pa.Table
    on: Any
    time: tuple[str, str]
    within: Any
    sql: tuple[str | None, str | None]
    least: int = 500
    where: str | None = None

    @property
    def keys(self) -> list[tuple[str, str]]:
        if self.on is None:
            return []
        if isinstance(self.on, dict):
            return list(self.on.items())
        return [(name, name) for name in ([self.on] if isinstance(self.on, str) else self.on)]

    @property
    def settings(self) -> dict[str, Any]:
        return {"on": self.on, "time": self.time, "within": self.within, "where": self.where}


def numbers(n: int = 1200, seed: int = 3) -> Case:
    left, right = zipf(n, domain=40, skew=(1.0, 0.8), rate=(1.0, 1.5), seed=seed)
    return Case(left, right, "key", ("time", "time"), 30, ("30", "30"))


def band() -> Case:
    """No key at all."""
    left, right = zipf(400, domain=40, seed=8)
    where = "abs(l.value - r.value) <= 0.125 AND l.key <> r.key"
    return Case(left, right, None, ("time", "time"), 30, ("30", "30"), where=where)


def bids() -> Case:
    left, right = auctions(300, bids=4.0, skew=0.5, seed=5)
    windows = ("interval 2 hours", "interval 90 seconds")
    right = right.rename_columns(["item", "at", "bidder", "price"])
    return Case(left, right, {"auction_id": "item"}, ("ts", "at"), ("2 hours", "90 s"), windows)


def tangle() -> Case:
    """Duplicate rows, equal times, null keys and times, strings as keys, nested payload."""
    rng = np.random.default_rng(7)

    def side(rows: int) -> pa.Table:
        keys = [None if i % 11 == 0 else f"k{i % 9}" * (i % 9) for i in rng.integers(0, 99, rows)]
        times = [None if i == 0 else int(i) // 4 for i in rng.integers(0, 400, rows)]
        lists = [
            [{"x": int(i), "y": None}] * (i % 3) if i else None for i in rng.integers(0, 4, rows)
        ]
        maps = [[("a", float(i)), ("b", None)] if i else [] for i in rng.integers(0, 3, rows)]
        table = pa.table(
            {
                "name": pa.array(keys, pa.string()),
                "at": pa.array(times, pa.int32()),
                "tags": pa.array(
                    lists, pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())]))
                ),
                "by": pa.array(maps, pa.map_(pa.string(), pa.float64())),
                "raw": pa.array([b"\x00" * int(i) for i in rng.integers(0, 3, rows)], pa.binary()),
            }
        )
        return pa.concat_tables([table, table.slice(0, rows // 3), table.slice(0, 5)])

    return Case(side(300), side(260), "name", ("at", "at"), (7, 3), ("7", "3"))


def composite() -> Case:
    """A decimal, a date and a string together, on timestamps without a time zone."""
    rng = np.random.default_rng(11)
    first = datetime(1969, 12, 31, 23)

    def side(rows: int, time: str) -> pa.Table:
        cents = [None if i == 5 else Decimal(int(i)).scaleb(-2) for i in rng.integers(-3, 6, rows)]
        days = [date(1969, 12, 30) + timedelta(days=int(i)) for i in rng.integers(0, 3, rows)]
        words = ["", "a", "ä\x00b", None]
        times = [first + timedelta(milliseconds=int(i) * 7) for i in rng.integers(0, 2000, rows)]
        return pa.table(
            {
                "cents": pa.array(cents, pa.decimal128(9, 2)),
                "day": pa.array(days, pa.date32()),
                "word": pa.array([words[i] for i in rng.integers(0, 4, rows)], pa.string()),
                time: pa.array(times, pa.timestamp("us")),
                "n": pa.array(np.arange(rows)),
            }
        )

    windows = ("interval 1.5 seconds", "interval 4 seconds")
    return Case(
        side(900, "t"),
        side(700, "u"),
        ["cents", "day", "word"],
        ("t", "u"),
        (timedelta(seconds=1.5), "4 s"),
        windows,
    )


def structs() -> Case:
    """A struct with a null inside as the key, dates as time, one window without an end."""
    rng = np.random.default_rng(13)
    kind = pa.struct([("a", pa.int16()), ("b", pa.list_(pa.string()))])

    def side(rows: int) -> pa.Table:
        keys = [
            None if i == 0 else {"a": int(i) // 3, "b": [["x"], [], None][int(i) % 3]}
            for i in rng.integers(0, 12, rows)
        ]
        days = [date(2026, 2, 20) + timedelta(days=int(i)) for i in rng.integers(0, 40, rows)]
        return pa.table({"key": pa.array(keys, kind), "day": pa.array(days, pa.date32())})

    windows = (None, "interval 36 hours")
    return Case(side(200), side(150), "key", ("day", "day"), ("unbounded", "36 hours"), windows)


def reals() -> Case:
    """Keys that are NaN, -0.0 and 0.0; times that are real numbers, a few of them NaN or null."""
    rng = np.random.default_rng(17)
    choices = [math.nan, -0.0, 0.0, 1.5, -math.inf, None]

    def side(rows: int) -> pa.Table:
        times: list[float | None] = list(rng.random(rows) * 100)
        times[3], times[8] = math.nan, None
        return pa.table(
            {
                "x": pa.array([choices[i] for i in rng.integers(0, 6, rows)], pa.float64()),
                "t": pa.array(times, pa.float64()),
            }
        )

    return Case(side(300), side(300), "x", ("t", "t"), (2.5, 0.75), ("2.5D", "0.75D"))


CASES: list[Callable[[], Case]] = [numbers, band, bids, tangle, composite, structs, reals]


def prepared(spark: SparkSession, home: Path, case: Case, batches: int, seed: int = 0) -> Pair:
    pair = Pair(spark, home, case.time)
    pair.write(case.left, case.right, batches, seed)
    return pair


@pytest.mark.parametrize("make", CASES)
def test_exact_mode_is_sparks_own_join(
    spark: SparkSession, tmp_path: Path, make: Callable[[], Case]
) -> None:
    case = make()
    local = bag(tg.join(case.left, case.right, **case.settings).table)
    pair = prepared(spark, tmp_path, case, batches=3)
    left, right = pair.batch()
    archived = tg.join(left, right, **case.settings)
    rule: dict[str, Any] = {
        "on": case.keys,
        "time": case.time,
        "within": case.sql,
        "names": archived.columns,
        "where": case.where,
    }
    expected = bag(native(left, right, **rule).toArrow())
    assert expected.total() > case.least
    assert local == expected
    assert bag(archived.toArrow()) == expected

    query = start(tg.join(*pair.stream(), **case.settings), tmp_path)
    assert bag(delivered(spark, tmp_path)) == expected
    counts = counters(query)
    assert len(counts) == 3
    assert total(counts, "results") == expected.total()


def test_exact_mode_is_sparks_own_stream_join(spark: SparkSession, tmp_path: Path) -> None:
    case = numbers(600)
    pair = prepared(spark, tmp_path, case, batches=3)
    left, right = pair.stream()
    result = tg.join(left.repartition(3), right, **case.settings, shards=3)
    rule: dict[str, Any] = {
        "on": case.keys,
        "time": case.time,
        "within": case.sql,
        "names": result.columns,
    }
    start(native(left, right, **rule), tmp_path / "native")
    start(result, tmp_path / "ours")
    expected = bag(delivered(spark, tmp_path / "native"))
    assert expected.total() > case.least
    assert bag(delivered(spark, tmp_path / "ours")) == expected


def closed(case: Case) -> Case:
    """The same with a last row on each side that nothing joins, so that every tick is closed."""
    tables = []
    for key, table in ((-1, case.left), (-2, case.right)):
        last = {"key": [key], "time": [1_300], "value": [0.0]}
        tables.append(pa.concat_tables([table, pa.table(last, table.schema)]))
    return replace(case, left=tables[0], right=tables[1])


BOUNDED: list[dict[str, Any]] = [
    {"memory": 40, "policy": "prob"},
    {"memory": 40},
    {"memory": 40, "policy": tg.Life(), "shed_when": "before-arrival", "split": 0.3},
    {"memory": "16 kB", "policy": "rand", "shed_when": "before-probe", "seed": 9},
    {"memory": 40, "policy": tg.IJoin(tau=2, decay=0.1), "importance": "value"},
    {"memory": 40, "policy": "prob", "cpu": tg.SlowCPU(rate=1.7, queue=25)},
]


@pytest.mark.parametrize("bound", BOUNDED, ids=["prob", "auto", "life", "rand", "ijoin", "slow"])
def test_bounded_mode_is_the_local_engines_answer(
    spark: SparkSession, tmp_path: Path, bound: dict[str, Any]
) -> None:
    case = closed(numbers())
    settings = case.settings | bound
    local = tg.join(case.left, case.right, **settings)
    expected = bag(local.table)
    exact = bag(tg.join(case.left, case.right, **case.settings).table)
    assert expected < exact
    assert 100 < expected.total() < 0.9 * exact.total()

    # Neither the order of rows in a file nor the number of input partitions plays a part.
    pair = prepared(spark, tmp_path, case, batches=4, seed=1)
    left, right = pair.batch()
    archived = tg.join(left.repartition(5), right.repartition(2), **settings, shards=1)
    assert bag(archived.toArrow()) == expected
    left, right = pair.stream()
    query = start(tg.join(left.repartition(3), right, **settings, shards=1), tmp_path)
    assert bag(delivered(spark, tmp_path)) == expected
    counts = counters(query)
    assert len(counts) == 4
    for name in ("results", "arrived", "admitted", "shed", "rejected", "queue_shed"):
        # The last tick waits for what may still come in its time.
        waiting = 2 if name == "admitted" else 0
        assert total(counts, name) == local.counters[name] - waiting
    held, most = ("bytes", 16_000) if bound["memory"] == "16 kB" else ("held", 40)
    assert 0.5 * most < max(count[held] for count in counts) <= most
    assert all(count["held"] == count["held_left"] + count["held_right"] for count in counts)


@pytest.mark.parametrize("memory", [None, 10**6])
def test_a_queue_knows_the_frequencies_of_whole_streams(
    spark: SparkSession, tmp_path: Path, memory: int | None
) -> None:
    """Also where everything is kept, and only the queue drops tuples."""
    case = closed(numbers())
    settings: dict[str, Any] = case.settings | {
        "memory": memory,
        "policy": tg.Prob("whole"),
        "cpu": tg.SlowCPU(rate=1.0, queue=25),
    }
    local = tg.join(case.left, case.right, **(settings | {"memory": 10**6}))
    assert local.counters["queue_shed"] > 100
    left, right = prepared(spark, tmp_path, case, batches=1, seed=1).batch()
    assert bag(tg.join(left, right, **settings, shards=1).toArrow()) == bag(local.table)


@pytest.mark.parametrize(
    "policy",
    [tg.Auto(), tg.Heeb(), tg.Prob("window"), tg.Prob("sketch"), tg.IJoin(recompute="adaptive")],
    ids=["auto", "heeb", "window", "sketch", "ijoin"],
)
def test_what_a_policy_has_learned_survives_a_restart(
    spark: SparkSession, tmp_path: Path, policy: tg.Policy
) -> None:
    """One of each kind of model; without Spark, every policy is tried."""
    case = closed(numbers())
    settings = case.settings | {"memory": 40, "policy": policy, "importance": "value"}
    pieces = [
        cut_by_time(table, time="time", batches=2, span=span(case.left["time"]))
        for table in (case.left, case.right)
    ]
    for half in range(2):
        frames = []
        for name, files in zip(("left", "right"), pieces, strict=True):
            write_files([files[half]], tmp_path / name, first=half)
            schema = spark.read.parquet(str(tmp_path / name)).schema
            frames.append(spark.readStream.schema(schema).parquet(str(tmp_path / name)))
        start(tg.join(*frames, **settings, shards=1), tmp_path)
    expected = bag(tg.join(case.left, case.right, **settings).table)
    assert bag(delivered(spark, tmp_path)) == expected
    assert expected.total() > 100


def test_schedules_hold_across_batches_and_shards(spark: SparkSession, tmp_path: Path) -> None:
    """Windows and memory change in the midst of batches."""
    case = closed(numbers())
    within = ([(0, 30), (700, 12)], [(0, 30), (450, 45)])
    settings = case.settings | {"within": within, "memory": [(0, 60), (500, 20), (800, 40)]}
    expected = bag(tg.join(case.left, case.right, **settings).table)
    pair = prepared(spark, tmp_path, case, batches=4, seed=1)
    assert bag(tg.join(*pair.batch(), **settings, shards=1).toArrow()) == expected
    counts = counters(start(tg.join(*pair.stream(), **settings, shards=1), tmp_path / "one"))
    assert bag(delivered(spark, tmp_path / "one")) == expected
    assert counts[0]["held"] > 40
    assert counts[1]["held"] <= 20
    assert 20 < counts[2]["held"] <= 40

    exact = settings | {"memory": None}
    found = start(tg.join(*pair.stream(), **exact, shards=3), tmp_path / "exact")
    assert len(counters(found)) == 4
    assert bag(delivered(spark, tmp_path / "exact")) == bag(
        tg.join(case.left, case.right, **exact).table
    )


def test_shards_share_the_memory(spark: SparkSession, tmp_path: Path) -> None:
    case = numbers()
    pair = prepared(spark, tmp_path, case, batches=4)
    bounded = tg.join(*pair.stream(), **case.settings, memory=61, shards=3)
    query = start(bounded, tmp_path)
    exact = bag(tg.join(case.left, case.right, **case.settings).table)
    found = bag(delivered(spark, tmp_path))
    assert found < exact
    assert found.total() > 0.3 * exact.total()
    counts = counters(query)
    assert total(counts, "results") == found.total()
    assert all(count["shards"] == 3 for count in counts)
    assert all(count["held"] <= 61 for count in counts)
    assert counts[-1]["held"] > 50
    # As a batch, with other partitions, the same shards hold the same tuples.
    left, right = pair.batch()
    archived = tg.join(left.repartition(4), right, **case.settings, memory=61, shards=3)
    assert bag(archived.toArrow()) == found


def test_every_policy_on_batch_frames(spark: SparkSession) -> None:
    case = numbers(500)
    left, right = spark.createDataFrame(case.left), spark.createDataFrame(case.right)
    counts = pa.table({"key": np.arange(40), "left": np.arange(40), "right": np.arange(40)[::-1]})
    policies = ["fifo", "until-expiry", tg.Prob("whole"), tg.Life("whole"), tg.Prob(counts)]
    answers = []
    for policy in policies:
        settings = case.settings | {"memory": 25, "policy": policy}
        expected = bag(tg.join(case.left, case.right, **settings).table)
        assert bag(tg.join(left, right, **settings, shards=1).toArrow()) == expected
        answers.append(expected)
    assert all(a != b for i, a in enumerate(answers) for b in answers[:i])


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.timestamp("us", "UTC")])
def test_a_split_is_predicted_from_what_is_counted(spark: SparkSession, kind: pa.DataType) -> None:
    case = numbers(500)
    tables = [t.set_column(1, "time", t["time"].cast(kind)) for t in (case.left, case.right)]
    within = ("30 us", "15 us") if pa.types.is_timestamp(kind) else (30, 15)
    if kind == pa.float64():
        odd = pa.table({"key": [1], "time": [float("nan")], "value": [0.0]}, tables[0].schema)
        tables[0] = pa.concat_tables([tables[0], odd])
    settings = case.settings | {"within": within, "memory": 25, "split": "predicted"}
    settings["policy"] = tg.Prob("whole")
    local = tg.join(*tables, **settings)
    left, right = (spark.createDataFrame(table) for table in tables)
    assert bag(tg.join(left, right, **settings, shards=1).toArrow()) == bag(local.table)
    assert local.counters["held_left"] > 15


def test_importance_is_counted(spark: SparkSession) -> None:
    case = numbers(300)
    left, right = spark.createDataFrame(case.left), spark.createDataFrame(case.right)
    settings = case.settings | {"memory": 25, "importance": "value", "combine": "product"}
    local = tg.join(case.left, case.right, **settings)
    joined = tg.join(left, right, **settings, shards=1)
    listed = joined.select(F.sum(F.col("value_left") * F.col("value_right"))).collect()
    assert local.importance == pytest.approx(listed[0][0])
    assert 0 < local.importance < local.results


def rows(*each: tuple[str, int]) -> pa.Table:
    names, times = zip(*each, strict=True) if each else ((), ())
    return pa.table({"k": pa.array(names, pa.string()), "t": pa.array(times, pa.int64())})


def test_late_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Late rows join what is held; `lateness` says how long that is held for them."""
    pair = Pair(spark, tmp_path, ("t", "t"))
    write_files([rows(("a", 10), ("b", 10)), rows(("c", 96)), rows()], tmp_path / "left")
    write_files(
        [rows(("b", 11)), rows(("z", 100)), rows(("a", 12), ("b", 95), ("c", 95))],
        tmp_path / "right",
    )
    # Three joins in one query.
    patience = (0, 65, 80)
    answers = [
        tg.join(
            *pair.stream(), on="k", time="t", within=20, lateness=lateness, shards=2
        ).withColumn("lateness", F.lit(lateness))
        for lateness in patience
    ]
    query = start(reduce(DataFrame.union, answers), tmp_path)
    found = delivered(spark, tmp_path)
    soon = {("b", 10, "b", 11), ("c", 96, "c", 95)}
    # The left row of time 10 is kept until the right has come to 10 + 20 + lateness: it is at 100.
    wanted = {0: soon, 65: soon, 80: {*soon, ("a", 10, "a", 12)}}
    assert sorted(zip(*(c.to_pylist() for c in found.columns), strict=True)) == sorted(
        (*row, lateness) for lateness, each in wanted.items() for row in each
    )
    batches = [metrics.observed(p) for p in query.recentProgress if p["numInputRows"]]
    assert all(len(joins) == 3 for joins in batches)
    for joins in zip(*(joins.values() for joins in batches), strict=True):
        assert [count["out_of_order"] for count in joins] == [0, 0, 3]


def test_empty_and_one_sided_streams(spark: SparkSession, tmp_path: Path) -> None:
    pair = Pair(spark, tmp_path, ("t", "t"))
    many = [rows(*((f"k{i % 5}", i) for i in range(n, n + 50))) for n in (0, 50)]
    write_files([rows(), rows(), *many], tmp_path / "left")
    write_files([rows()] * 4, tmp_path / "right")
    result = tg.join(*pair.stream(), on="k", time="t", within=1000, memory=30)
    query = start(result, tmp_path)
    assert delivered(spark, tmp_path).num_rows == 0
    counts = [next(iter(metrics.observed(progress).values())) for progress in query.recentProgress]
    assert total(counts, "arrived") == 100
    assert max(count["held"] for count in counts) == 30
    left, right = pair.batch()
    for one, other in ((left, right), (right, left), (right, right)):
        assert tg.join(one, other, on="k", time="t", within=1000, memory=30).count() == 0


def test_results_feed_further_operators(spark: SparkSession, tmp_path: Path) -> None:
    """A count by key over all results, and a windowed count that a watermark closes."""
    case = bids()
    pair = prepared(spark, tmp_path, case, batches=3)
    left, right = pair.batch()
    archived = tg.join(left, right, **case.settings)

    by_category = tg.join(*pair.stream(), **case.settings).groupBy("category").count()
    query = (
        by_category.writeStream.format("memory")
        .queryName("by_category")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "counted"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert bag(spark.table("by_category").toArrow()) == bag(
        archived.groupBy("category").count().toArrow()
    )

    def hourly(joined: Any) -> Any:
        counted = joined.groupBy(F.window("at", "10 minutes")).count()
        return counted.select("window.start", "count")

    streamed = tg.join(*pair.stream(), **case.settings).withWatermark("at", "1 second")
    start(hourly(streamed), tmp_path)
    expected = bag(hourly(archived).toArrow())
    found = bag(delivered(spark, tmp_path))
    assert found <= expected
    # The last window stays open: no later result closes it.
    assert (expected - found).total() == 1


def test_watermarks_on_the_inputs_are_carried_along(spark: SparkSession, tmp_path: Path) -> None:
    case = bids()
    pair = prepared(spark, tmp_path, case, batches=3)
    left, right = pair.stream()
    marked = tg.join(
        left.withWatermark("ts", "1 hour"), right.withWatermark("at", "1 hour"), **case.settings
    )
    start(marked, tmp_path)
    assert bag(delivered(spark, tmp_path)) == bag(
        tg.join(case.left, case.right, **case.settings).table
    )
