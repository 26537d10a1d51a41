"""Constrained joins with every combination of constraints, against Spark's own n-way joins."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from twins import constrained as naive
from twins.constrained import Join, Tup

import tidegate as tg
from tidegate.joins.constrained.constraints import Constraint

from .workloads import bag

WINDOW = 90
#: Joins by name, each "parent child": one graph of each shape that the paper distinguishes.
GRAPHS = {
    "tree": ["A B", "A C", "D C"],
    "chain": ["A B", "B C", "C D"],
    "DAG": ["A B", "A C", "B D", "C D"],
    "cycle": ["A B", "B C", "C A"],
    "one-one": ["A B", "B A", "B C", "C B"],
}
KINDS = ("RIDS", "CA", "OAP", "OAC")


def joins_of(graph: str) -> list[Join]:
    """Return joins in which each child has a `key`, and a parent one key per child."""
    return [Join(j[0], j[2], ((f"to{j[2]}", "key"),)) for j in GRAPHS[graph]]


def arrivals(joins: list[Join], seed: int) -> list[Tup]:
    """Return rows whose keys roughly follow time, so that all constraints hold with some k."""
    rng = np.random.default_rng(seed)
    names = sorted({name for join in joins for name in (join.parent, join.child)})
    count = 70
    key = {name: np.arange(count) for name in names}
    time = {name: 5 * np.arange(count) + rng.integers(0, 25, count) for name in names}
    found = []
    for name in names:
        for i in range(count):
            values = {"key": int(key[name][i])}
            for join in joins:
                if join.parent == name:
                    # Mostly the row of the same number, so that several paths lead to one row.
                    far = int(rng.integers(-2, 3)) if rng.random() < 0.15 else 0
                    values[f"to{join.child}"] = min(max(i + far, 0), count - 1)
            passes = bool(rng.random() < 0.9)
            found.append((int(time[name][i]), name, values, passes))
    found.sort(key=lambda each: each[:2])
    # All times differ, so that the slow twin processes rows in the same order.
    return [
        Tup(name, at, at, tuple(values.items()), passes)
        for at, (_, name, values, passes) in enumerate(found)
    ]


def tables_of(tuples: list[Tup]) -> dict[str, pa.Table]:
    return {
        name: pa.Table.from_pylist(
            [{"ts": t.time, "ok": t.passes} | dict(t.values) for t in tuples if t.stream == name]
        )
        for name in sorted({t.stream for t in tuples})
    }


def native(spark: SparkSession, tables: dict[str, pa.Table], joins: list[Join]) -> Counter[str]:
    for name, table in tables.items():
        spark.createDataFrame(table).createOrReplaceTempView(name)
    latest = f"greatest({', '.join(f'{name}.ts' for name in tables)})"
    where = [f"{j.parent}.{a} = {j.child}.{b}" for j in joins for a, b in j.on]
    where += [f"{name}.ok and {latest} < {name}.ts + {WINDOW}" for name in tables]
    columns = ", ".join(f"{name}.ts" for name in tables)
    query = f"select {columns} from {', '.join(tables)} where {' and '.join(where)}"
    return bag(spark.sql(query).toArrow())


def constraint(kind: str, join: Join, tuples: list[Tup], *, timed: bool) -> Constraint:
    """Return a constraint that holds, with the smallest k for which it does."""
    [(a, b)] = join.on
    if kind == "RIDS":
        k = naive.rids_time(tuples, join) if timed else naive.rids(tuples, join)
        return tg.RIDS(f"{join.parent} -> {join.child}", **{"within" if timed else "k": k})
    stream, column = (join.child, b) if kind == "OAC" else (join.parent, a)
    measure = naive.clustering if kind == "CA" else naive.scrambling
    k = measure(tuples, stream, column, timed=timed)
    made: type[Constraint] = getattr(tg, kind)
    return made(f"{stream}.{column}", **{"within" if timed else "k": k})


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_combination_of_constraints_gives_sparks_own_join(
    spark: SparkSession, graph: str
) -> None:
    joins = joins_of(graph)
    tuples = arrivals(joins, seed=len(graph))
    tables = tables_of(tuples)
    expected = native(spark, tables, joins)
    assert expected.total() > 20
    common: dict[str, Any] = {
        "joins": [f"{j.parent}.{a} -> {j.child}.{b}" for j in joins for a, b in j.on],
        "time": "ts",
        "within": WINDOW,
        "filters": dict.fromkeys(tables, "ok"),
        "select": [f"{name}.ts" for name in tables],
    }
    known = {
        (kind, timed): {
            c.on: c for c in (constraint(kind, join, tuples, timed=timed) for join in joins)
        }.values()
        for kind in KINDS
        for timed in (False, True)
    }
    most = tg.constrained_join(tables, **common, batch_rows=40)
    least = most.counters["peak_held"]
    for count in range(len(KINDS) + 1):
        for kinds in itertools.combinations(KINDS, count):
            for timed in (False, True):
                constraints = [c for kind in kinds for c in known[kind, timed]]
                found = tg.constrained_join(
                    tables, constraints=constraints, batch_rows=40, **common
                )
                assert bag(found.table) == expected, (kinds, timed)
                least = min(least, found.counters["peak_held"])
    assert least < most.counters["peak_held"]

    # With a k that is too small, results are missing, and can be repaired.
    lost = 0
    for kind, timed in known:
        unit = "within" if timed else "k"
        small = [type(c)(c.on, **{unit: getattr(c, unit) // 4}) for c in known[kind, timed]]
        found = tg.constrained_join(tables, constraints=small, keep_shed=True, **common)
        missing = tg.repair(tables, found, **common)
        assert bag(found.table) + bag(missing.table) == expected, kind
        lost += missing.results
    assert lost > 0
