"""Compare `tg.star_join` on Spark with Spark's own join in two steps and with the local engine."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import tidegate as tg
from tidegate.spark.metrics import observed
from tidegate.streams import cut_by_time

from .workloads import bag, counters, delivered, start, total, write_files

BATCHES, END, WINDOW = 3, 400, 25
SETTINGS: dict[str, Any] = {"on": ["a", "b"], "time": "t", "within": WINDOW}
NAMES = ("r", "s")


def streams(rows: int = 900, keys: int = 60) -> tuple[pa.Table, pa.Table]:
    """Return two streams, each with a last row that joins nothing and closes all ticks before."""
    rng = np.random.default_rng(5)
    tables = []
    for key in ("a", "b"):
        times = np.append(np.sort(rng.integers(0, END, rows)), END + 1)
        values = np.append(np.minimum(rng.zipf(1.3, rows), keys), -1)
        weights = rng.integers(1, 6, rows + 1).astype(np.float64)
        tables.append(
            pa.table({key: values, "t": times, f"{key}_id": np.arange(rows + 1), "w": weights})
        )
    return tables[0], tables[1]


def relation(keys: int = 60, *, connected: bool = False) -> pa.Table:
    """Return facts that begin and end. Each key is linked to two others, or all are connected."""
    rng = np.random.default_rng(9)
    pairs = [(k, k ^ 1) for k in range(1, keys)] + [(k, k) for k in range(1, keys, 3)]
    if connected:
        pairs += [(1, k) for k in range(2, keys)]
    pairs = sorted(set(pairs))
    begin = rng.integers(0, END // 2, len(pairs)) * (rng.random(len(pairs)) < 0.5)
    end = begin + rng.integers(50, END, len(pairs))
    for_ever = rng.random(len(pairs)) < 0.5
    return pa.table(
        {
            "a": [a for a, _ in pairs],
            "b": [b for _, b in pairs],
            "begin": begin,
            "end": pa.array(end, mask=for_ever),
            "note": [f"fact {i}" for i in range(len(pairs))],
        }
    )


def changes_of(facts: pa.Table) -> pa.Table:
    """Return the same facts as inserts and deletes."""
    rows = []
    for fact in facts.to_pylist():
        own = {"a": fact["a"], "b": fact["b"], "note": fact["note"]}
        rows.append({"op": "insert", "at": fact["begin"], **own})
        if fact["end"] is not None:
            rows.append({"op": "DELETE", "at": fact["end"], **own, "note": None})
    return pa.Table.from_pylist(sorted(rows, key=lambda row: row["at"]))


def native(r: DataFrame, s: DataFrame, f: DataFrame, names: list[str]) -> DataFrame:
    """Return Spark's own join: the relation with one stream, then with the other."""
    first = r.alias("r").join(
        f.alias("f"), F.expr("r.a = f.a and f.begin <= r.t and (f.end is null or r.t < f.end)")
    )
    first = first.select(
        *(F.col(f"r.{n}").alias(f"r_{n}") for n in r.columns), "f.b", "f.begin", "f.end", "f.note"
    )
    both = first.alias("x").join(
        s.alias("s"),
        F.expr(
            "x.b = s.b and x.begin <= s.t and (x.end is null or s.t < x.end) and "
            f"s.t < x.r_t + {WINDOW} and s.t > x.r_t - {WINDOW}"
        ),
    )
    return both.select(
        *(f"x.r_{n}" for n in r.columns), *(f"s.{n}" for n in s.columns), "x.begin", "x.end", "note"
    ).toDF(*names)


class Files:
    """Write tables as files, one per batch, all cut by the same times."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark, self.home = spark, home

    def write(self, name: str, table: pa.Table, time: str, batches: int = BATCHES) -> None:
        pieces = cut_by_time(table, time=time, batches=batches, span=(0, END + 1))
        write_files(pieces, self.home / name, seed=1)

    def batch(self, name: str) -> DataFrame:
        return self.spark.read.parquet(str(self.home / name))

    def stream(self, name: str) -> DataFrame:
        reader = self.spark.readStream.schema(self.batch(name).schema)
        return reader.option("maxFilesPerTrigger", 1).parquet(str(self.home / name))


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Files:
    made = Files(spark, tmp_path)
    for name, table in zip(NAMES, streams(), strict=True):
        made.write(name, table, "t")
    return made


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table)


def run(files: Files, name: str, result: DataFrame) -> tuple[Any, list[dict[str, int | float]]]:
    query: StreamingQuery = start(result, files.home / name)
    return bag(delivered(files.spark, files.home / name)), counters(query)


@pytest.mark.proves(star_join="classic stream, classic batch, local")
def test_exact_mode_is_sparks_own_join_in_two_steps(spark: SparkSession, files: Files) -> None:
    facts = relation()
    f = frame(spark, facts)
    settings = {**SETTINGS, "interval": ("begin", "end")}
    r, s = (files.batch(name) for name in NAMES)
    archived = tg.star_join([r, s], f, **settings)
    expected = bag(native(r, s, f, archived.columns).toArrow())
    assert expected.total() > 1000
    assert bag(archived.toArrow()) == expected
    local = tg.star_join(list(streams()), facts, **settings, batch_rows=100)
    assert bag(local.table) == expected

    live = [files.stream(name) for name in NAMES]
    joined = tg.star_join(live, f, **settings, shards=3)
    ours, counts = run(files, "ours", joined)
    start(native(live[0], live[1], f, archived.columns), files.home / "theirs")
    assert ours == bag(delivered(spark, files.home / "theirs")) == expected
    assert len(counts) == BATCHES
    assert total(counts, "results") == expected.total()
    # Each row has all its facts in one shard; rows without an active fact do not get there.
    assert counts[-1]["shards"] == 3
    assert total(counts, "copies") == 0
    assert total(counts, "filtered") > 100
    assert counts[-1]["facts"] == len(facts)

    # With several shards, the checkpoint depends on the relation's rows, but not on their order.
    files.write("r", streams()[0], "t", batches=BATCHES + 1)
    fewer = tg.star_join(live, frame(spark, facts.slice(1)), **settings, shards=3)
    with pytest.raises(Exception, match="would move between 3 shards"):
        start(fewer, files.home / "ours")
    other = facts.take(pa.array(np.random.default_rng(1).permutation(len(facts))))
    start(tg.star_join(live, frame(spark, other), **settings, shards=3), files.home / "ours")


def test_rows_are_copied_to_shards_if_facts_are_connected(
    spark: SparkSession, files: Files
) -> None:
    facts = relation(connected=True)
    settings = {**SETTINGS, "interval": ("begin", "end")}
    live = [files.stream(name) for name in NAMES]
    joined = tg.star_join(live, frame(spark, facts), **settings, shards=3)
    several, counts = run(files, "several", joined)
    assert several == bag(tg.star_join(list(streams()), facts, **settings).table)
    assert 0 < total(counts, "copies") < 2 * total(counts, "arrived")
    assert counts[-1]["facts"] == len(facts)


BOUNDED: dict[str, dict[str, Any]] = {
    "auto": {"memory": 30},
    "dgl": {"memory": 30, "policy": "dgl", "split": "fixed", "shed_when": "before-probe"},
    "rand": {"memory": 30, "policy": "rand", "seed": 3, "shed_when": "before-arrival"},
}


def test_bounded_mode_is_the_local_engines_answer(spark: SparkSession, files: Files) -> None:
    """Facts change in mid-stream, and the query is restarted in the middle."""
    changes = changes_of(relation())
    settings = {**SETTINGS, "changes": ("op", "at"), "importance": "w"}
    exact = tg.star_join(list(streams()), changes, **settings)
    local = {
        name: tg.star_join(list(streams()), changes, **settings, **bound)
        for name, bound in BOUNDED.items()
    }
    home = Files(spark, files.home / "half")
    given = {"changes": (changes, "at")} | {
        name: (table, "t") for name, table in zip(NAMES, streams(), strict=True)
    }
    cut = {
        name: cut_by_time(table, time=time, batches=BATCHES, span=(0, END + 1))
        for name, (table, time) in given.items()
    }
    counts: dict[str, list[dict[str, int | float]]] = {name: [] for name in BOUNDED}
    for part in (slice(0, 1), slice(1, None)):
        for name, pieces in cut.items():
            write_files(pieces[part], home.home / name, first=part.start)
        live, changing = [home.stream(name) for name in NAMES], home.stream("changes")
        joins = [
            tg.star_join(live, changing, **settings, **bound).withColumn("join", F.lit(name))
            for name, bound in BOUNDED.items()
        ]
        query = start(reduce(DataFrame.union, joins), home.home / "out")
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                made = sorted(observed(progress).items(), key=lambda one: (len(one[0]), one[0]))
                for name, (_, count) in zip(BOUNDED, made, strict=True):
                    counts[name].append(count)
                    assert count["held"] <= 30
        rebuilt = [counts[name][part.start]["rebuilt"] for name in BOUNDED]
        assert rebuilt == [int(part.start > 0)] * len(BOUNDED)
    table = delivered(spark, home.home / "out")
    for name, expected in local.items():
        assert 100 < expected.results < 0.9 * exact.results
        found = table.filter(pc.equal(table["join"], name)).drop_columns("join")
        assert bag(found) == bag(expected.table)
        assert len(counts[name]) == BATCHES
        assert total(counts[name], "importance") == expected.importance
        for counter in ("shed", "rejected", "filtered"):
            assert total(counts[name], counter) == pytest.approx(expected.counters[counter], abs=2)


def test_one_stream_and_three(spark: SparkSession, files: Files) -> None:
    facts = relation()
    f = frame(spark, facts)
    r, s = (files.batch(name) for name in NAMES)
    one = tg.star_join({"r": r}, f, on=["a"], time="t", interval=("begin", "end"))
    expected = r.join(f, "a").where("begin <= t and (end is null or t < end)")
    named = ["a", "t", "a_id", "w", "b", "note"]
    assert bag(one.select(named).toArrow()) == bag(expected.select(named).toArrow())

    third = s.withColumnsRenamed({"b": "c", "b_id": "c_id"}).where("c_id % 3 = 0")
    wide = f.withColumn("c", F.col("a"))
    three = tg.star_join([r, s, third], wide, on=["a", "b", "c"], time="t", within=WINDOW, shards=2)
    joined = r.alias("r").join(wide.alias("f"), F.expr("r.a = f.a"))
    joined = joined.join(s.alias("s"), F.expr("f.b = s.b"))
    joined = joined.join(third.alias("u"), F.expr("f.c = u.c"))
    near = f"greatest(r.t, s.t, u.t) - least(r.t, s.t, u.t) < {WINDOW}"
    columns = ["a_id", "b_id", "c_id", "note"]
    expected = joined.where(near).select("r.a_id", "s.b_id", "u.c_id", "f.note")
    assert expected.count() > 1000
    assert bag(three.select(columns).toArrow()) == bag(expected.toArrow())
