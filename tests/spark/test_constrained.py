"""`tg.constrained_join` on Spark: against Spark's own joins, with checkpoints and shards."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.spark.metrics import observed
from tidegate.streams import cut_by_time

from .workloads import bag, counters, delivered, start, total, union_of, write_files

NAMES = ("C", "B", "O")
WINDOW = 200
#: The time of a last row that joins nothing: the rows of the latest time wait for a later one.
LAST = 10_000
CONSTRAINTS = [
    tg.RIDS("B -> C", within=0),
    tg.RIDS("O -> B", within=0),
    tg.RIDS("C -> B", within=30),
    tg.RIDS("B -> O", within=30),
]
JOINS = ["C.pid <-> B.pid", "B.pid <-> O.pid"]


def packets(n: int = 400, seed: int = 1) -> dict[str, pa.Table]:
    """Return packets on three links: a third of those on C are seen on B, half of these on O."""
    rng = np.random.default_rng(seed)
    pid = np.arange(n)
    time = np.sort(rng.integers(0, 4_000, n))
    size = rng.integers(40, 1_500, n)
    seen = {"C": np.ones(n, np.bool_), "B": rng.random(n) < 0.4}
    seen["O"] = seen["B"] & (rng.random(n) < 0.6)
    late = {"C": np.zeros(n, np.int64)}
    for before, name in itertools.pairwise(NAMES):
        late[name] = late[before] + rng.integers(0, 31, n)
    tables = {}
    for at, name in enumerate(NAMES):
        keep = seen[name] | (rng.random(n) < 0.2 * at)
        stray = np.where(seen[name], 0, n * (at + 1))[keep]
        order = np.argsort((time + late[name])[keep], kind="stable")
        columns = {"pid": pid[keep] + stray, "ts": (time + late[name])[keep], "size": size[keep]}
        table = pa.table(columns).take(pa.array(order))
        end = pa.table({"pid": [-1 - at], "ts": [LAST], "size": [0]})
        tables[name] = pa.concat_tables([table, end])
    return tables


def settings(**more: Any) -> dict[str, Any]:
    return {
        "joins": JOINS,
        "time": "ts",
        "within": WINDOW,
        "filters": {"B": "size > 100"},
        "constraints": CONSTRAINTS,
        **more,
    }


def native(spark: SparkSession, tables: dict[str, pa.Table]) -> DataFrame:
    for name, table in tables.items():
        spark.createDataFrame(table).createOrReplaceTempView(name)
    ends = " and ".join(f"greatest(C.ts, B.ts, O.ts) < {n}.ts + {WINDOW}" for n in NAMES)
    return spark.sql(
        "select C.*, B.*, O.* from C join B on C.pid = B.pid join O on B.pid = O.pid "
        f"where B.size > 100 and {ends}"
    )


def written(tables: dict[str, pa.Table], home: Path, batches: int, parts: slice) -> None:
    for name, table in tables.items():
        pieces = cut_by_time(table, time="ts", batches=batches, span=(0, LAST // 2))
        chosen = list(range(batches))[parts]
        write_files([pieces[i] for i in chosen], home / name, first=chosen[0])


def streams(spark: SparkSession, home: Path) -> dict[str, DataFrame]:
    schema = "pid long, ts long, size long"
    return {
        name: spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(home / name))
        for name in NAMES
    }


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    return packets()


@pytest.mark.proves(constrained_join="classic batch, local")
def test_batch_frames_give_sparks_own_join(
    spark: SparkSession, tables: dict[str, pa.Table]
) -> None:
    frames = {name: spark.createDataFrame(table) for name, table in tables.items()}
    expected = bag(native(spark, tables).toArrow())
    assert expected.total() > 50
    assert bag(tg.constrained_join(frames, **settings()).toArrow()) == expected
    assert bag(tg.constrained_join(frames, **settings(constraints=())).toArrow()) == expected
    assert bag(tg.constrained_join(tables, **settings()).table) == expected


@pytest.mark.proves(constrained_join="classic stream")
def test_a_stream_goes_on_from_its_checkpoint_and_holds_little(
    spark: SparkSession, tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    written(tables, tmp_path, 6, slice(0, 3))
    query = start(tg.constrained_join(streams(spark, tmp_path), **settings()), tmp_path)
    counts = counters(query)
    written(tables, tmp_path, 6, slice(3, 6))
    # New DataFrames: the engines of the first query are not found again, but rebuilt.
    query = start(tg.constrained_join(streams(spark, tmp_path), **settings()), tmp_path)
    later = counters(query)
    assert later[0]["rebuilt"] == 2
    expected = bag(native(spark, tables).toArrow())
    assert bag(delivered(spark, tmp_path)) == expected
    assert total([*counts, *later], "results") == expected.total()
    swj = sum((t["ts"].to_numpy() < WINDOW).sum() for t in tables.values())
    assert max(c["held"] for c in [*counts, *later]) < swj
    assert total([*counts, *later], "violations") == 0


def test_counts_need_one_shard(
    spark: SparkSession, tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    counted = settings(constraints=[tg.RIDS("C -> B", k=60), tg.RIDS("B -> C", k=60)])
    written(tables, tmp_path, 4, slice(0, 4))
    query = start(tg.constrained_join(streams(spark, tmp_path), **counted), tmp_path)
    assert {c["shards"] for c in counters(query)} == {1}
    assert bag(delivered(spark, tmp_path)) == bag(native(spark, tables).toArrow())
    frames = {name: spark.createDataFrame(table) for name, table in tables.items()}
    with pytest.raises(tg.TidegateError, match=r"RIDS\(.* counts rows, which needs one order"):
        tg.constrained_join(frames, **counted, shards=2)


def test_streams_may_be_out_of_step(
    spark: SparkSession, tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """C is far ahead of the others: its rows are held for them."""
    for name, table in tables.items():
        pieces = 2 if name == "C" else 5
        cut = cut_by_time(table, time="ts", batches=pieces, span=(0, LAST // 2))
        write_files(cut, tmp_path / name)
    start(tg.constrained_join(streams(spark, tmp_path), **settings()), tmp_path)
    assert bag(delivered(spark, tmp_path)) == bag(native(spark, tables).toArrow())


def test_a_violated_join_is_reported(spark: SparkSession, tables: dict[str, pa.Table]) -> None:
    twice = {**tables, "B": pa.concat_tables([tables["B"], tables["B"].slice(0, 20)])}
    found = tg.constrained_join(twice, **settings())
    assert found.counters["violations"] >= 5
    assert not bag(found.table) - bag(native(spark, twice).toArrow())


@pytest.mark.proves(cql="classic stream, local")
def test_a_query_as_text_gives_on_a_stream_what_it_gives_on_tables(
    spark: SparkSession, tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    text = f"""
      Select sum(C.size) as traffic, count(*)
      From C [Range {WINDOW}], B [Range {WINDOW}], O [Range {WINDOW}]
      Where C.pid = B.pid and B.pid = O.pid and B.size > 100
    """
    groups = f"""
      Select B.size, min(O.ts), max(C.ts) as last, count(distinct C.size) as sizes,
        avg(distinct C.ts) as mean, sum(C.size) / 2 + count(*) as half
      From C [Range {WINDOW}] Join B [Range {WINDOW}] On C.pid = B.pid and B.size not in (1, 100)
        Join O [Range {WINDOW}] On B.pid = O.pid and O.size is not null
      Group By B.size Having count(*) > 0 or B.size < 500
    """
    rows = f"""
      Select Istream(C.pid * 2 - O.ts as x, B.size, length('ab') as two)
      From C [Range {WINDOW}], B [Range {WINDOW}], O [Range {WINDOW}]
      Where C.pid = B.pid and B.pid = O.pid and (B.size in (100, 101) or B.size > 300)
    """
    inside = f"""
      Select distinct B.size, n From B [Range {WINDOW}], (Select pid, count(*) as n
        From C [Range {WINDOW}] Group By pid) as D, (O [Partition By pid Rows 1]) as E
      Where B.pid = D.pid and D.pid = E.pid
    """
    more: dict[str, Any] = {"time": "ts", "unique": [f"{name}.pid" for name in NAMES]}
    queries = {
        "text": (text, more | {"constraints": CONSTRAINTS}),
        "groups": (groups, more | {"constraints": CONSTRAINTS}),
        "rows": (rows, more | {"constraints": CONSTRAINTS}),
        "inside": (inside, more),
    }
    written(tables, tmp_path, 3, slice(0, 3))
    live = streams(spark, tmp_path)
    joins = {}
    for name, (each, given) in queries.items():
        found = tg.cql(each, live, **given, shards=1)
        joins[name] = found.select(F.to_json(F.struct("*")).alias("row"))
    query = start(union_of(joins), tmp_path)
    live_shards = [c["shards"] for p in query.recentProgress for c in observed(p).values()]
    assert set(live_shards) - {None} == {1}
    table = delivered(spark, tmp_path)
    for name, (each, given) in queries.items():
        local = tg.cql(each, tables, **given)
        assert local.results > 50
        mine = [json.loads(row["row"]) for row in table.to_pylist() if row["join"] == name]
        expected = [
            {k: v for k, v in row.items() if v is not None}
            for row in local.table.to_pylist()
            if row.get("at", 0) < LAST  # rows of the latest time wait for a later one
        ]
        assert sorted(map(str, mine)) == sorted(map(str, expected)), name


def test_gauges_by_stream_and_constraint_reach_observed_metrics(
    spark: SparkSession, tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    written(tables, tmp_path, 3, slice(0, 3))
    monitor = tg.Monitor(window=40)
    more = settings(constraints="auto", monitor=monitor)
    query = start(tg.constrained_join(streams(spark, tmp_path), **more), tmp_path)
    last = counters(query)[-1]
    assert sum(last[f"held of {name}"] for name in NAMES) == last["held"]
    ks = {name: value for name, value in last.items() if name.startswith("k of ")}
    assert set(ks) >= {f'k of RIDS("{join}")' for join in ("B -> C", "O -> B", "C -> B", "B -> O")}
    assert all(k is None or 0 <= k <= WINDOW for k in ks.values())
    assert any(k is not None for k in ks.values())
    uses = [value for name, value in last.items() if name.startswith("use of ")]
    assert len(uses) == len(ks)
    assert all(0 <= use <= 1 for use in uses)
    assert 0 <= last["missed_low"] <= last["missed_high"]
    latest = [p for p in query.recentProgress if p["numInputRows"]][-1]
    [raw] = latest["observedMetrics"].values()
    reports = [json.loads(line) for line in raw["report"].splitlines()]
    assert len(reports) == last["shards"]
    assert all(set(report["blocked"]) == set(NAMES) for report in reports)


def test_no_upper_bound_is_null_in_observed_metrics(
    spark: SparkSession, tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """Constraints with a given k and no monitor: nothing is sampled."""
    written(tables, tmp_path, 2, slice(0, 2))
    query = start(tg.constrained_join(streams(spark, tmp_path), **settings()), tmp_path)
    last: dict[str, Any] = {**counters(query)[-1]}
    assert last["missed_low"] == 0
    assert last["missed_high"] is None
    assert last['k of RIDS("C -> B")'] == 30
    assert last['use of RIDS("C -> B")'] == 1


@pytest.mark.proves(profile="classic batch, classic stream refused")
def test_a_profile_takes_batch_frames_and_no_streaming_ones(
    spark: SparkSession, tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    frames = {name: spark.createDataFrame(table) for name, table in tables.items()}
    asked: dict[str, Any] = {
        "joins": ["C.pid = B.pid", "B.pid = O.pid"],
        "time": "ts",
        "within": WINDOW,
    }
    assert str(tg.profile(frames, **asked)) == str(tg.profile(tables, **asked))
    written(tables, tmp_path, 2, slice(0, 2))
    with pytest.raises(tg.TidegateError, match="is a streaming DataFrame"):
        tg.profile(streams(spark, tmp_path), **asked)
