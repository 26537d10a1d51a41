"""Truncated joins of chains, and plans from histograms, on local data."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg

CHAIN: dict[str, Any] = {"on": [{"j1": "j1"}, {"j2": "k2"}]}
ROWS = {"a": 40, "b": 60, "c": 50}


def inputs(seed: int, rows: dict[str, int] = ROWS) -> dict[str, pa.Table]:
    """Return A(j1), B(j1, j2), C(k2) with times, some null keys, and a number for each row."""
    rng = np.random.default_rng(seed)

    def keys(count: int) -> pa.Array:
        drawn = [int(i) for i in rng.zipf(1.6, count) % 7]
        return pa.array([None if i == 6 else i for i in drawn], pa.int64())

    columns = {"a": ["j1"], "b": ["j1", "j2"], "c": ["k2"]}
    return {
        name: pa.table(
            {key: keys(count) for key in columns[name]}
            | {"t": rng.integers(-20, 20, count), f"n{name}": range(count)}
        )
        for name, count in rows.items()
    }


def brute(tables: dict[str, pa.Table], per: int | None = None) -> Counter[str]:
    """Return the numbers of the rows of the whole chain."""
    a, b, c = (table.to_pylist() for table in tables.values())
    return Counter(
        repr((x["na"], y["nb"], z["nc"]))
        for x in a
        for y in b
        if x["j1"] is not None and x["j1"] == y["j1"]
        for z in c
        if y["j2"] is not None and y["j2"] == z["k2"]
        if per is None or x["t"] // per == y["t"] // per == z["t"] // per
    )


def numbers(table: pa.Table) -> Counter[str]:
    rows = table.select(["na", "nb", "nc"]).to_pylist()
    return Counter(repr(tuple(row.values())) for row in rows)


def kept_rows(done: tg.Result, tables: dict[str, pa.Table]) -> dict[str, set[int]]:
    """Return the numbers of the rows of each input that were kept."""
    found = {}
    for name, table in tables.items():
        valid = {row[f"n{name}"] for row in table.to_pylist() if None not in row.values()}
        mine = done.shed.filter(pc.equal(done.shed["side"], name))[name].to_pylist()
        found[name] = valid - {row[f"n{name}"] for row in mine}
    return found


@pytest.mark.parametrize(
    "more",
    [
        {"keep": 31},
        {"keep": (9, 12, 10)},
        {"keep": {"b": 12, "a": 9, "c": 10}, "method": "ndg"},
        {"delete": (30, 40, 35), "method": "independent"},
        {"delete": 120, "seed": 3},
        {"keep": 9, "time": "t", "per": 10},
        {"delete": {"a": 4, "b": 4, "c": 4}, "time": {"a": "t", "b": "t", "c": "t"}, "per": 10},
        {"keep": 1_000},
    ],
)
def test_the_kept_rows_of_a_chain_are_joined(more: dict[str, Any]) -> None:
    tables = inputs(1)
    done = tg.truncated_join(tables, **CHAIN, **more, keep_shed=True)
    kept = kept_rows(done, tables)
    some = {name: table.take(pa.array(sorted(kept[name]))) for name, table in tables.items()}
    assert numbers(done.table) == brute(some, more.get("per"))
    assert done.results == done.counters["results"] > 0
    assert done.counters["exact_results"] == brute(tables, more.get("per")).total()
    for name, rows in kept.items():
        assert done.counters[f"kept_{name}"] == len(rows)
    if isinstance(more.get("keep"), int) and "per" not in more:
        assert done.counters["kept"] <= more["keep"]
    names = ["j1_a", "t_a", "na", "j1_b", "j2", "t_b", "nb", "k2", "t_c", "nc"]
    assert done.table.column_names == names
    lonely = [row["why"] == "no partner" for row in done.shed.to_pylist()]
    assert all(lonely) == (more.get("keep") == 1_000)


def test_the_order_of_rows_and_lists_do_not_matter() -> None:
    tables = inputs(2)
    rng = np.random.default_rng(1)
    mixed = [t.take(pa.array(rng.permutation(len(t)))) for t in tables.values()]
    one = tg.truncated_join(tables, **CHAIN, keep=31)
    other = tg.truncated_join(mixed, **CHAIN, keep=31)
    assert numbers(one.table) == numbers(other.table)
    assert other.table.column_names[:3] == ["j1_1", "t_1", "na"]
    assert other.counters["kept_second"] == one.counters["kept_b"]


def test_one_budget_for_three_inputs_with_one_key() -> None:
    """Keys with 3, 2, 2 and with 1, 1, 9 rows: all seven rows of the first give 12 results."""
    tables = [{"k": [1] * 3 + [2]}, {"k": [1] * 2 + [2]}, {"k": [1] * 2 + [2] * 9}]
    done = tg.truncated_join(tables, on="k", keep=7)
    assert done.results == 12
    assert [done.counters[f"kept_{name}"] for name in ("first", "second", "third")] == [3, 2, 2]
    assert tg.truncated_join(tables, on="k", keep=10).results == 13
    assert tg.truncated_join(tables, on="k", keep=2).results == 0


def test_a_chain_of_four() -> None:
    a, b, c = inputs(3, {"a": 12, "b": 20, "c": 14}).values()
    d = pa.table({"n": range(0, 14, 2)})
    links = [*CHAIN["on"], {"nc": "n"}]
    every = tg.truncated_join([a, b, c, d], on=links, keep=1_000)
    even = pc.equal(pc.bit_wise_and(c["nc"], 1), 0)
    assert numbers(every.table) == brute({"a": a, "b": b, "c": c.filter(even)})
    assert every.table["nc"].to_pylist() == every.table["n"].to_pylist()
    assert 0 < tg.truncated_join([a, b, c, d], on=links, keep=16).results < every.results


# ---- histograms ---------------------------------------------------------------------------------


def histogram(table: pa.Table, *keys: str) -> pa.Table:
    counted = table.group_by([*keys]).aggregate([([], "count_all")])
    return counted.rename_columns([*keys, "rows"])


@pytest.mark.parametrize("more", [{"keep": 31}, {"keep": (9, 12, 10)}, {"delete": 100}])
def test_a_plan_from_histograms_is_that_of_the_rows(more: dict[str, Any]) -> None:
    tables = inputs(4)
    columns = {"a": ["j1"], "b": ["j1", "j2"], "c": ["k2"]}
    counted = {name: histogram(table, *columns[name]) for name, table in tables.items()}
    plan = tg.truncated_join(counted, **CHAIN, **more, counts="rows")
    done = tg.truncated_join(tables, **CHAIN, **more, keep_shed=True)
    assert plan.results == done.results > 0
    assert plan.counters == done.counters
    kept = kept_rows(done, tables)
    for name, table in tables.items():
        mine = plan.table.filter(pc.equal(plan.table["input"], name))
        assert len(mine) == len(counted[name])
        rows = table.take(pa.array(sorted(kept[name]))).select(columns[name]).to_pylist()
        wanted = Counter(repr(row) for row in rows)
        asked = {
            repr({key: row[key] for key in columns[name]}): row["keep"]
            for row in mine.to_pylist()
            if row["keep"]
        }
        assert asked == wanted


def test_several_sensors_and_windows() -> None:
    """Each row of a histogram says how many rows its sensor sends."""
    left = {"sensor": [1, 1, 2, 2], "k": [7, 8, 7, None], "hour": [0, 0, 0, 0], "n": [2, 3, 4, 5]}
    right = {"k": [7, 7, 8], "hour": [0, 1, 0], "n": [6, 9, 0]}
    settings: dict[str, Any] = {"on": "k", "time": "hour", "per": 1, "counts": "n"}
    plan = tg.truncated_join(left, right, keep=9, **settings)
    # Key 7 has 6 rows on either side in hour 0; key 8 and hour 1 have no partners.
    assert plan.results == 20
    assert plan.counters["kept"] == 9
    keep = plan.table["keep"].to_pylist()
    assert (keep[0] + keep[2], keep[1], keep[3]) in [(4, 0, 0), (5, 0, 0)]
    assert keep[0] + keep[2] + keep[4] == 9
    assert keep[5:] == [0, 0]
    assert plan.table.column_names == ["input", "sensor", "k", "hour", "n", "keep"]
    assert plan.counters["arrived"] == 29
    assert plan.counters["null_keys"] == 5
    assert tg.truncated_join(left, right, delete=(0, 2), **settings).results == 6 * 4


# ---- bad input ----------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"on": "k", "keep": 3}
TABLE: dict[str, Any] = {"k": [1, 2], "x": [0.5, 1.5], "n": [1, 2]}


@pytest.mark.parametrize(
    ("given", "settings", "words"),
    [
        ([TABLE] * 3, {"on": [{"k": "k"}]}, "for each of the 2 joins of a chain of 3 inputs.*'j1'"),
        ([TABLE] * 3, {"on": [{"k": "k"}, "k"]}, "a mapping for each of the 2 joins"),
        ([TABLE] * 3, {"on": [{"k": "k"}, {"k": "x"}]}, 'second "k" is int64, third "x" is double'),
        ({"a": TABLE, "b": TABLE}, {"on": [{"k": "z"}]}, 'the b input has no column "z"'),
        ({"a": TABLE, 5: TABLE}, {}, "a text as its name, not 5"),
        ({"a": TABLE}, {}, "a list or mapping of two and more"),
        ({"a": TABLE, "b": TABLE}, {"keep": {"a": 1, "c": 2}}, "keep must be a whole number"),
        ([TABLE, TABLE], {"counts": "z"}, 'the left input has no column "z"'),
        ([TABLE, TABLE], {"counts": "x"}, '"x" of the left input is double; cast it'),
        ([TABLE, TABLE], {"counts": 3}, "given by its name, not 3"),
        ([TABLE, TABLE], {"counts": "n", "keep_shed": True}, "counts='n' makes a plan"),
        ([TABLE, TABLE | {"n": [1, -2]}], {"counts": "n"}, "of the right input has -2"),
        ([TABLE, TABLE | {"n": [1, None]}], {"counts": "n"}, "of the right input has a null"),
        ([TABLE, TABLE | {"n": [1, 2**41]}], {"counts": "n"}, "must be below 1,099,511,627,776"),
        ([TABLE | {"keep": [1, 1]}, TABLE], {"counts": "n"}, 'a column "keep", as the plan has'),
        ([TABLE, TABLE | {"x": ["a", "b"]}], {"counts": "n"}, "double in the left input and str"),
    ],
)
def test_bad_chains_and_histograms(given: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(tg.TidegateError, match=words):
        tg.truncated_join(given, **(GOOD | settings))
