"""Truncated joins of rows: Spark gives the same rows as the local call."""

from __future__ import annotations

import math
from collections import Counter
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.joins.truncated.chain import Chain, ndg
from tidegate.joins.truncated.engine import window_numbers
from tidegate.joins.truncated.plan import adg, optdp, results
from tidegate.joins.truncated.plan_each import optimal_each
from tidegate.joins.truncated.spec import truncated_join
from tidegate.spark.truncated import window_number
from tidegate.streams import zipf

from .workloads import bag, delivered, finite, write_files


def skewed(n: int = 600, seed: int = 3) -> tuple[pa.Table, pa.Table]:
    return zipf(n, domain=40, skew=(1.0, 0.7), rate=(1.0, 1.5), seed=seed)


def counts_of(left: pa.Table, right: pa.Table, domain: int = 40) -> Any:
    return np.stack([np.bincount(t["key"].to_numpy(), minlength=domain) for t in (left, right)])


def on_spark(spark: SparkSession, *tables: pa.Table) -> list[DataFrame]:
    """Return DataFrames with the same rows in another order."""
    rng = np.random.default_rng(9)
    mixed = [table.take(pa.array(rng.permutation(len(table)))) for table in tables]
    return [spark.createDataFrame(table) for table in mixed]


def native(table: pa.Table, other: pa.Table, key: str = "key") -> Counter[str]:
    """Return the join of two tables, row by row."""
    found = [
        (*a.values(), *b.values())
        for a in table.to_pylist()
        for b in other.to_pylist()
        if a[key] is not None and a[key] == b[key]
    ]
    return Counter(map(repr, found))


# ---- Arrow and pandas ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "plan"),
    [
        ({"keep": 150}, lambda c: optdp(c, 150)),
        ({"keep": 150, "method": "adg"}, lambda c: adg(c, 150)),
        ({"keep": (100, 90)}, lambda c: optimal_each(c, (100, 90))),
        ({"delete": 1_350}, lambda c: optdp(c, 150)),
        ({"delete": (500, 810), "method": "ndg"}, lambda c: ndg(Chain.of_one_key(c), (100, 90))),
    ],
)
def test_the_join_is_as_large_as_planned(settings: dict[str, Any], plan: Any) -> None:
    left, right = skewed()
    done = tg.truncated_join(left, right, on="key", **settings)
    counts = counts_of(left, right)
    assert done.results == len(done.table) == results(plan(counts)) > 0
    assert done.counters["exact_results"] == results(counts)
    assert bag(done.table) <= native(left, right)
    used = {
        side: {(row[f"key_{side}"], row[f"time_{side}"], row[f"value_{side}"]) for row in rows}
        for side in ("left", "right")
        for rows in [done.table.to_pylist()]
    }
    assert len(used["left"]) + len(used["right"]) <= done.counters["kept"]
    assert len(used["left"]) <= done.counters["kept_left"]


def test_what_was_not_kept_is_in_shed() -> None:
    left, right = skewed()
    left = left.append_column("n", pa.array(np.arange(len(left))))
    done = tg.truncated_join(left, right, on="key", keep=150, keep_shed=True)
    shed = done.shed.filter(pa.compute.equal(done.shed["side"], "left"))
    rows = {row["n"] for row in shed["left"].to_pylist()}
    assert rows.isdisjoint(done.table["n"].to_pylist())
    assert len(rows) == len(shed) == len(left) - done.counters["kept_left"]
    lonely = set(left["key"].to_pylist()) - set(right["key"].to_pylist())
    for row in shed.to_pylist():
        assert (row["why"] == "no partner") == (row["left"]["key"] in lonely)


def test_order_of_rows_does_not_matter_and_the_seed_does() -> None:
    left, right = skewed()
    rng = np.random.default_rng(1)
    mixed = [t.take(pa.array(rng.permutation(len(t)))) for t in (left, right)]
    one = tg.truncated_join(left, right, on="key", keep=101)
    assert bag(tg.truncated_join(*mixed, on="key", keep=101).table) == bag(one.table)
    drawn = [bag(tg.truncated_join(*mixed, on="key", keep=101, seed=s).table) for s in range(5)]
    assert len({each.total() for each in drawn}) == 1
    assert len({frozenset(each.items()) for each in drawn}) > 1


@pytest.mark.parametrize("budget", [{"keep": 10_000}, {"delete": 0}, {"keep": (9_000, 9_000)}])
def test_a_budget_for_everything_gives_everything(budget: dict[str, Any]) -> None:
    left, right = skewed(100)
    assert bag(tg.truncated_join(left, right, on="key", **budget).table) == native(left, right)


@pytest.mark.parametrize("budget", [{"delete": 10_000}, {"keep": 0}, {"delete": (0, 10_000)}])
def test_a_budget_for_nothing_gives_nothing(budget: dict[str, Any]) -> None:
    assert tg.truncated_join(*skewed(100), on="key", **budget).results == 0


def test_pandas_and_mapped_keys() -> None:
    left = pd.DataFrame({"a": ["x", "x", None, "y"], "b": [1, 1, 1, 2]})
    right = pd.DataFrame({"c": ["x", None, "y", "z"], "d": [1, 1, 2, 2]})
    on = {"a": "c", "b": "d"}
    done = tg.truncated_join(left, right, on=on, keep=3)
    assert isinstance(done, tg.Result)
    assert done.table.to_pydict() == {"a": ["x"] * 2, "b": [1, 1], "c": ["x"] * 2, "d": [1, 1]}
    assert done.counters["null_keys"] == 2
    # Rows without a key are deleted first, which costs nothing.
    assert tg.truncated_join(left, right, on=on, delete=3).results == 3


def test_each_window_has_its_own_budget() -> None:
    left, right = skewed()
    whole = tg.truncated_join(left, right, on="key", time="time", per=100, keep=20)
    parts = []
    for start in range(0, 600, 100):
        some = [
            t.filter(
                pa.compute.equal(pa.compute.floor(pa.compute.divide(t["time"], 100)), start // 100)
            )
            for t in (left, right)
        ]
        parts.append(tg.truncated_join(*some, on="key", keep=20).table)
    assert whole.results == sum(map(len, parts)) > 0
    for row in whole.table.to_pylist():
        assert row["time_left"] // 100 == row["time_right"] // 100


def test_three_relations() -> None:
    a, b = skewed(100)
    c, _ = skewed(80, seed=5)
    done = tg.truncated_join([a, b, c], on="key", keep=(30, 40, 20))
    assert done.table.column_names[:4] == ["key_1", "time_1", "value_1", "key_2"]
    assert 0 < done.results < done.counters["exact_results"]
    whole = tg.truncated_join([a, b, c], on="key", keep=(1_000, 1_000, 1_000))
    pairs = tg.truncated_join(a, b, on="key", keep=2_000)
    again = tg.truncated_join(
        pairs.table.rename_columns(["key", *"vwxyz"]), c, on="key", keep=100_000
    )
    assert whole.results == again.results == whole.counters["exact_results"]
    assert bag(done.table) <= bag(whole.table)


# ---- Spark --------------------------------------------------------------------------------------


def tangled(rows: int, seed: int) -> pa.Table:
    """Return keys of several types, with nulls, NaN and both zeros, and duplicate rows."""
    rng = np.random.default_rng(seed)
    reals = [0.0, -0.0, math.nan, 1.5, None]
    table = pa.table(
        {
            "name": pa.array([None if i > 3 else f"ä{i}" for i in rng.integers(0, 5, rows)]),
            "real": pa.array([reals[i] for i in rng.integers(0, 5, rows)]),
            "cents": pa.array([Decimal(int(i)) / 4 for i in rng.integers(0, 2, rows)]).cast(
                pa.decimal128(9, 2)
            ),
            "day.": pa.array(
                [date(1969, 12, 31) + timedelta(int(i)) for i in rng.integers(0, 2, rows)]
            ),
            "tags": pa.array([["a"] * int(i) for i in rng.integers(0, 3, rows)]),
        }
    )
    return pa.concat_tables([table, table.slice(0, rows // 4)])


@pytest.mark.parametrize(
    ("on", "budget"),
    [
        (["name", "real", "cents", "day."], {"keep": 61, "seed": 4}),
        (["real"], {"delete": (150, 130)}),
        (["tags", "day."], {"keep": 57, "method": "adg"}),
    ],
)
@pytest.mark.proves(truncated_join="classic batch, local")
def test_spark_is_local_row_for_row(spark: SparkSession, on: Any, budget: dict[str, Any]) -> None:
    left, right = tangled(160, 1), tangled(140, 2)
    expected = tg.truncated_join(left, right, on=on, **budget)
    found = tg.truncated_join(*on_spark(spark, left, right), on=on, **budget)
    assert bag(found.toArrow()) == bag(expected.table)
    assert expected.results > 0
    assert found.columns == expected.table.column_names


def clocked(rows: int, seed: int) -> pa.Table:
    """Return times of every kind on both sides of 1970, some null."""
    rng = np.random.default_rng(seed)
    minutes = [int(i) for i in rng.integers(-200, 200, rows)]
    moments = [datetime(1970, 1, 1) + timedelta(minutes=i, microseconds=i) for i in minutes]
    some = [None if i % 17 == 0 else m for i, m in enumerate(moments)]
    return pa.table(
        {
            "k": pa.array([int(i) for i in rng.integers(0, 4, rows)]),
            "zoned": pa.array(some, pa.timestamp("us", "UTC")),
            "local": pa.array(some, pa.timestamp("us")),
            "day": pa.array([m.date() for m in moments]),
            "whole": pa.array(minutes, pa.int32()),
            "real": pa.array([math.nan if i == 0 else i / 7 for i in minutes]),
            "exact": pa.array([Decimal(i).scaleb(-1) for i in minutes], pa.decimal128(8, 2)),
        }
    )


def test_windows_on_spark_are_numbered_as_locally(spark: SparkSession) -> None:
    table = clocked(150, 1)
    lengths = {"zoned": "7 s", "local": "40 minutes", "day": "36 hours", "whole": 7, "real": 1.25}
    wanted, columns = {}, []
    for time, per in {**lengths, "exact": 2.5}.items():
        spec = truncated_join([table.schema] * 2, on="k", keep=1, time=time, per=per)
        assert spec.unit is not None
        assert spec.per is not None
        there = table.filter(pa.array(finite(table[time]).to_numpy()))
        wanted[time] = window_numbers(there[time].combine_chunks(), spec.unit, spec.per).tolist()
        columns.append(window_number(F.col(time), spec.unit, spec.per).alias(time))
    found = spark.createDataFrame(table).select(*columns).toArrow()
    assert {name: found[name].drop_null().to_pylist() for name in wanted} == wanted
    assert all(min(numbers) < 0 <= max(numbers) for numbers in wanted.values())


@pytest.mark.parametrize(
    ("time", "per", "budget"), [("zoned", "1 hour", {"keep": 15}), ("whole", 50, {"delete": 30})]
)
def test_windows_on_spark_are_the_local_ones(
    spark: SparkSession, time: str, per: Any, budget: dict[str, Any]
) -> None:
    left, right = clocked(150, 1), clocked(130, 2)
    settings: dict[str, Any] = {"on": "k", "time": time, "per": per, **budget}
    expected = tg.truncated_join(left, right, **settings)
    found = tg.truncated_join(*on_spark(spark, left, right), **settings).toArrow()
    assert 0 < expected.results < expected.counters["exact_results"]
    # Spark returns timestamps in the session's time zone.
    assert bag(found.cast(expected.table.schema)) == bag(expected.table)


def test_three_relations_on_spark(spark: SparkSession) -> None:
    tables = [skewed(120, seed)[0] for seed in (1, 2, 3)]
    settings: dict[str, Any] = {"on": "key", "keep": (41, 43, 37)}
    expected = tg.truncated_join(tables, **settings)
    found = tg.truncated_join(on_spark(spark, *tables), **settings)
    assert bag(found.toArrow()) == bag(expected.table)
    assert expected.results > 0


def test_a_chain_on_spark(spark: SparkSession) -> None:
    """A(zoned, k), B(k, whole), C(whole), with a window for each day, and inputs by name."""
    a, b, c = (clocked(120, seed) for seed in (1, 2, 3))
    chain: dict[str, Any] = {"on": [{"k": "k"}, {"whole": "whole"}], "time": "day", "per": "1 day"}
    names = ("a", "b", "c")
    for budget in ({"keep": 60, "seed": 2}, {"delete": {"a": 20, "b": 30, "c": 25}}):
        expected = tg.truncated_join(dict(zip(names, (a, b, c), strict=True)), **chain, **budget)
        frames = dict(zip(names, on_spark(spark, a, b, c), strict=True))
        found = tg.truncated_join(frames, **chain, **budget)
        assert found.columns == expected.table.column_names
        assert bag(found.toArrow().cast(expected.table.schema)) == bag(expected.table)
        assert 0 < expected.results < expected.counters["exact_results"]
    with pytest.raises(tg.TidegateError, match="counts='k' is for local data.*toArrow"):
        tg.truncated_join(frames, on="k", keep=5, counts="k")


def test_a_frame_joins_itself(spark: SparkSession) -> None:
    table, _ = skewed(120)
    [frame] = on_spark(spark, table)
    found = tg.truncated_join(frame, frame, on="key", keep=41)
    expected = tg.truncated_join(table, table, on="key", keep=41)
    assert bag(found.toArrow()) == bag(expected.table)


def test_each_batch_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """The example of the docstring: a truncated join of each batch, inside foreachBatch."""
    left, right = skewed(200)
    pieces = [left.slice(at, 100) for at in (0, 100)]
    write_files(pieces, tmp_path / "in")
    [relation] = on_spark(spark, right)
    stream = (
        spark.readStream.schema(spark.read.parquet(str(tmp_path / "in")).schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(tmp_path / "in"))
    )

    def each(batch: DataFrame, number: int) -> None:
        kept = tg.truncated_join(batch, relation, on="key", keep=61)
        kept.write.mode("append").parquet(str(tmp_path / "out"))

    query = (
        stream.writeStream.foreachBatch(each)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    expected = [tg.truncated_join(piece, right, on="key", keep=61).table for piece in pieces]
    assert bag(delivered(spark, tmp_path)) == bag(pa.concat_tables(expected))
    with pytest.raises(tg.TidegateError, match="streaming DataFrame.*inside foreachBatch"):
        tg.truncated_join(stream, relation, on="key", keep=61)


# ---- bad input ----------------------------------------------------------------------------------


TABLE = pa.table({"k": [1, 2], "name": ["a", "b"], "t": [1, 2], "x": [0.5, 1.5]})
GOOD: dict[str, Any] = {"on": "k", "keep": 2}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"keep": None}, ["one of keep and delete", "keep=None and delete=None"]),
        ({"delete": 3}, ["one of keep and delete", "keep=2 and delete=3"]),
        ({"keep": -1}, ["keep must be a whole number", "not negative", "not -1"]),
        ({"keep": 1.5}, ["keep must be a whole number", "not 1.5"]),
        ({"keep": True}, ["keep must be a whole number", "not True"]),
        ({"keep": (1, -2)}, ["not negative", "not (1, -2)"]),
        ({"keep": (1, 2, 3)}, ["a number for each of the 2 inputs", "not (1, 2, 3)"]),
        ({"method": "best"}, ['"optimal", "adg", "ndg", "independent"', "not 'best'"]),
        ({"method": "ndg"}, ["'ndg' is not for one budget", 'use "optimal" or "adg"']),
        ({"keep": (1, 1), "method": "adg"}, ["'adg' is not for a budget for each", '"ndg"']),
        ({"on": "kay"}, ['the left input has no column "kay"', 'it has "k", "name"']),
        ({"on": {"k": "name"}}, ['left "k" is int64', 'right "name" is string', "cast one"]),
        ({"on": 7}, ["a column name, a list of them", "not 7"]),
        ({"per": 5}, ["per=5 needs time"]),
        ({"time": "t"}, ["time='t' needs per"]),
        ({"time": "t", "per": "1 hour"}, ["per must be a number", "not '1 hour'"]),
        ({"time": "t", "per": 2.5}, ["per must be a whole number", "not 2.5"]),
        ({"time": ("t",), "per": 5}, ["one for each of the 2 inputs", "not ('t',)"]),
        ({"time": ("t", "x"), "per": 5}, ['left "t" is a whole number', "cast one of them"]),
        ({"suffixes": ("_a",)}, ["suffixes must be a pair", "not ('_a',)"]),
        ({"seed": -1}, ["seed must be a whole number", "not -1"]),
    ],
)
def test_bad_settings(wrong: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(tg.TidegateError) as error:
        tg.truncated_join(TABLE, TABLE, **(GOOD | wrong))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("inputs", "settings", "words"),
    [
        (
            [[TABLE] * 3],
            {"method": "adg"},
            ["'adg' is not for one budget for more than two inputs, 2", 'use "optimal"'],
        ),
        (
            [[TABLE] * 3],
            {"keep": (1, 1, 1), "method": "adg"},
            ["'adg' is not for a budget for each input", '"optimal" or "ndg" or "independent"'],
        ),
        ([[TABLE] * 3], {"keep": (1, 1)}, ["a number for each of the 3 inputs", "not (1, 1)"]),
        ([[TABLE] * 3], {"keep": (1, 1, 1), "on": {"k": "k"}}, ["3 inputs", "list of 2 mappings"]),
        (
            [[TABLE, TABLE, TABLE.rename_columns([*"ABCD"])]],
            {"keep": (1, 1, 1)},
            ['the third input has no column "k"'],
        ),
        ([TABLE], {}, ["a left and a right input", "not one"]),
        ([[TABLE, TABLE], TABLE], {}, ["in one list", "into the list"]),
        ([TABLE, 7], {}, ["an Arrow table, a pandas DataFrame", "not int"]),
    ],
)
def test_bad_inputs(inputs: list[Any], settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(tg.TidegateError) as error:
        tg.truncated_join(*inputs, **(GOOD | settings))
    for word in words:
        assert word in str(error.value)


def test_spark_and_arrow_do_not_mix(spark: SparkSession) -> None:
    [frame] = on_spark(spark, TABLE)
    with pytest.raises(tg.TidegateError, match="the right input is not .it is a Table."):
        tg.truncated_join(frame, TABLE, **GOOD)


def test_local_settings_are_checked_by_name() -> None:
    with pytest.raises(tg.TidegateError, match="no setting 'keeps'; there are on, keep"):
        tg.truncated_join(TABLE, TABLE, on="k", keeps=2)  # type: ignore[call-overload]
    with pytest.raises(tg.TidegateError, match="'on' is missing: a join needs on"):
        tg.truncated_join(TABLE, TABLE, keep=2)  # type: ignore[call-overload]
