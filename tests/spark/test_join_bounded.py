"""`tg.join` with a memory bound gives on Spark what the engine gives on local data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.policies import HeldRow
from tidegate.policies.base import Ranks
from tidegate.policies.own_score import Params
from tidegate.streams import cut_by_time

from .cases import closed, numbers, prepared
from .workloads import (
    bag,
    by_join,
    counters,
    counters_by_join,
    delivered,
    span,
    start,
    total,
    union_of,
    write_files,
)

BOUNDED: dict[str, dict[str, Any]] = {
    "prob": {"memory": 40, "policy": "prob"},
    "auto": {"memory": 40},
    "life": {"memory": 40, "policy": tg.Life(), "shed_when": "before-arrival", "split": 0.3},
    "rand": {"memory": "16 kB", "policy": "rand", "shed_when": "before-probe", "seed": 9},
    "ijoin": {"memory": 40, "policy": tg.IJoin(tau=2, decay=0.1), "importance": "value"},
    "slow": {"memory": 40, "policy": "prob", "cpu": tg.SlowCPU(rate=1.7, queue=25)},
}
#: One policy for each kind of model. Without Spark, every policy is tested.
LEARNING: dict[str, tg.Policy] = {
    "auto": tg.Auto(),
    "heeb": tg.Heeb(),
    "window": tg.Prob("window"),
    "sketch": tg.Prob("sketch"),
    "ijoin": tg.IJoin(recompute="adaptive"),
}


def own_formula() -> tg.Policy:
    """Return a policy that workers cannot import: Spark sends them its code."""

    @dataclass(frozen=True)
    class Used(tg.Policy):
        name: ClassVar[str] = "used-on-spark"
        ranks: ClassVar[Ranks] = "score"

        @staticmethod
        def score(row: HeldRow, params: Params) -> float:
            return float(row.importance * (1.0 + row.matches) / (1.0 + row.age))

    return Used()


def test_bounded_mode_is_the_local_engines_answer(spark: SparkSession, tmp_path: Path) -> None:
    """All bounds are joins of one query, as batch DataFrames and as streams."""
    case = closed(numbers())
    settings = {name: case.settings | bound for name, bound in BOUNDED.items()}
    local = {name: tg.join(case.left, case.right, **each) for name, each in settings.items()}
    exact = bag(tg.join(case.left, case.right, **case.settings).table)

    # Neither the order of rows in a file nor the number of input partitions matters.
    pair = prepared(spark, tmp_path, case, batches=4, seed=1)
    left, right = pair.batch()
    left, right = left.repartition(5), right.repartition(2)
    archived = by_join(
        union_of(
            {name: tg.join(left, right, **each, shards=1) for name, each in settings.items()}
        ).toArrow()
    )
    left, right = pair.stream()
    left = left.repartition(3)
    query = start(
        union_of({name: tg.join(left, right, **each, shards=1) for name, each in settings.items()}),
        tmp_path,
    )
    streamed = by_join(delivered(spark, tmp_path))
    counts = counters_by_join(query, list(settings))
    for name, result in local.items():
        expected = bag(result.table)
        assert expected < exact, name
        assert 100 < expected.total() < 0.9 * exact.total(), name
        assert archived[name] == expected, name
        assert streamed[name] == expected, name
        assert len(counts[name]) == 4
        counted = ["results", "arrived", "admitted", "shed", "rejected"]
        if "cpu" in settings[name]:
            counted.append("queue_shed")
        else:
            assert "queue_shed" not in counts[name][0]
        for counter in counted:
            # The rows of the last tick are admitted when a later row comes.
            waiting = 2 if counter == "admitted" else 0
            assert total(counts[name], counter) == result.counters[counter] - waiting, name
        held, most = ("bytes", 16_000) if name == "rand" else ("held", 40)
        assert 0.5 * most < max(count[held] for count in counts[name]) <= most, name
        for count in counts[name]:
            assert count["held"] == count["held_left"] + count["held_right"], name


@pytest.mark.parametrize("memory", [None, 10**6])
def test_a_queue_knows_the_frequencies_of_whole_streams(
    spark: SparkSession, tmp_path: Path, memory: int | None
) -> None:
    """The queue may be the only place that drops rows, with everything else kept."""
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


def test_what_a_policy_has_learned_survives_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    case = closed(numbers())
    settings = {
        name: case.settings | {"memory": 40, "policy": policy, "importance": "value"}
        for name, policy in (LEARNING | {"own": own_formula()}).items()
    }
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
        joins = {name: tg.join(*frames, **each, shards=1) for name, each in settings.items()}
        start(union_of(joins), tmp_path)
    found = by_join(delivered(spark, tmp_path))
    for name, each in settings.items():
        expected = bag(tg.join(case.left, case.right, **each).table)
        assert found[name] == expected, name
        assert expected.total() > 100, name


def test_schedules_hold_across_batches_and_shards(spark: SparkSession, tmp_path: Path) -> None:
    """Windows and memory change within batches."""
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
    # As a batch, with other partitions, the same shards hold the same rows.
    left, right = pair.batch()
    archived = tg.join(left.repartition(4), right, **case.settings, memory=61, shards=3)
    assert bag(archived.toArrow()) == found


def test_every_policy_on_batch_frames(spark: SparkSession) -> None:
    case = numbers(500)
    left, right = spark.createDataFrame(case.left), spark.createDataFrame(case.right)
    counts = pa.table({"key": np.arange(40), "left": np.arange(40), "right": np.arange(40)[::-1]})
    policies = ["fifo", "until-expiry", tg.Prob("whole"), tg.Life("whole"), tg.Prob(counts)]
    settings: dict[str, dict[str, Any]] = {
        str(at): case.settings | {"memory": 25, "policy": policy}
        for at, policy in enumerate(policies)
    }
    joins = {name: tg.join(left, right, **each, shards=1) for name, each in settings.items()}
    found = by_join(union_of(joins).toArrow())
    answers = []
    for name, each in settings.items():
        expected = bag(tg.join(case.left, case.right, **each).table)
        assert found[name] == expected, policies[int(name)]
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
