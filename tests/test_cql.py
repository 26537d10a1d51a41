"""Queries as text: what is read, what it gives, and where an error points."""

from __future__ import annotations

import doctest
import importlib
import math
from collections import Counter
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg

MOTIVATING = """
Select  sum(C.size)
From    C [Range 10 minutes], B [Range 10 minutes],
        O [Range 10 minutes]
Where   C.pid = B.pid and B.pid = O.pid
"""
ISTREAM = """
Select  Istream(*)
From    S1 [Rows 50,000], S2 [Rows 50,000]
Where   S1.A = S2.A and S2.B > 10
"""


def links(n: int = 300, seed: int = 2) -> dict[str, pa.Table]:
    rng = np.random.default_rng(seed)
    when = np.sort(rng.integers(0, 3_600, n))
    tables = {}
    for at, name in enumerate("CBO"):
        seen = rng.random(n) < 0.6 if at else np.ones(n, np.bool_)
        late = when + at * 20 + rng.integers(0, 20, n)
        stamps = pa.array(late[seen] * 10**6, pa.timestamp("us", "UTC"))
        columns = {"pid": np.arange(n)[seen], "ts": stamps, "size": rng.integers(1, 99, n)[seen]}
        tables[name] = pa.table(columns).sort_by("ts")
    return tables


def test_the_motivating_query() -> None:
    tables = links()
    unique = ["C.pid", "B.pid", "O.pid"]
    found = tg.cql(MOTIVATING, tables, time="ts", unique=unique).table.to_pylist()
    rows = {name: {r["pid"]: r for r in t.to_pylist()} for name, t in tables.items()}
    joined = []
    for pid in set(rows["C"]) & set(rows["B"]) & set(rows["O"]):
        times = [rows[name][pid]["ts"].timestamp() for name in "CBO"]
        if max(times) < min(times) + 600:
            joined.append((max(times), min(times) + 600, rows["C"][pid]["size"]))
    assert len(found) > 100
    end = max(r["ts"].timestamp() for of in rows.values() for r in of.values())
    changes = {t for start, until, _ in joined for t in (start, until) if t <= end}
    assert [row["at"].timestamp() for row in found] == sorted(changes)
    for row in found:
        at = row["at"].timestamp()
        live = [size for start, until, size in joined if start <= at < until]
        assert row["sum_size"] == (sum(live) if live else None)


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(0, 3), st.integers(-5, 5)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 9),
    st.integers(1, 30),
)
def test_aggregates_by_group_are_those_of_the_windows(
    given_rows: list[tuple[int, int, int, int]], length: int, cut: int
) -> None:
    many = [(t, k, g, v) for t, (s, k, g, v) in enumerate(given_rows) if s]
    one = {k: t for t, (s, k, _, _) in reversed([*enumerate(given_rows)]) if not s}
    columns = list(zip(*many, strict=True)) if many else [()] * 4
    a = pa.table({n: pa.array(c, pa.int64()) for n, c in zip("tkgv", columns, strict=True)})
    b = pa.table({"k": pa.array(list(one), pa.int64()), "t": pa.array([*one.values()], pa.int64())})
    text = (
        f"Select A.g, count(*), sum(v) as total, avg(v) From A [Range {length}], B [Unbounded] "
        "Where A.k = B.k Group By A.g"
    )
    streams = {"A": a, "B": b}
    found = tg.cql(text, streams, time="t", unique="B.k", lag=None if cut % 2 else 0).table
    joined = [
        (max(t, one[k]), t + length, g, v)
        for t, k, g, v in many
        if k in one and one[k] < t + length
    ]
    last = max([t for t, *_ in many] + list(one.values()))
    expected = []
    for at in sorted({t for start, until, _, _ in joined for t in (start, until) if t <= last}):
        for g in {g for start, until, g, _ in joined if at in (start, until)}:
            live = [v for start, until, h, v in joined if h == g and start <= at < until]
            total = sum(live) if live else None
            mean = sum(live) / len(live) if live else None
            expected.append((at, g, len(live), total, mean))
    assert sorted(tuple(r.values()) for r in found.to_pylist()) == sorted(expected)


def test_istream_with_windows_of_rows_and_a_filter() -> None:
    s1 = pa.table({"t": [1, 2, 3], "A": [7, 8, 7]})
    s2 = pa.table({"t": [4, 5], "A": [7, 8], "B": [11, 10]})
    found = tg.cql(ISTREAM, {"S1": s1, "S2": s2}, time="t", unique=["S2.A"])
    assert found.table.to_pylist() == [
        {"t_S1": t, "A_S1": 7, "t_S2": 4, "A_S2": 7, "B": 11} for t in (1, 3)
    ]


def test_names_windows_and_a_stream_twice() -> None:
    cars = pa.table({"ts": [1, 2, 3, 4], "cid": [1, 1, 2, 1], "sid": [5, 6, 7, 8]})
    ids = pa.table({"ts": [0, 0], "cid": [1, 2]})
    text = """
      select last.sid as segment, ids.cid
      from cars [partition by cid rows 1] as last, ids [unbounded]
      where last.cid = ids.cid and (sid = 6 or sid > 6)
    """
    found = tg.cql(text, {"cars": cars, "ids": ids}, time="ts", unique=["ids.cid"])
    assert found.table.column_names == ["segment", "cid"]
    assert sorted(found.table["segment"].to_pylist()) == [6, 7, 8]


def test_every_window_and_direction_is_understood() -> None:
    a = pa.table({"t": [0, 1], "x": [1, 2], "y": [1, 2]})
    b = pa.table({"t": [0, 1], "x": [1, 2], "y": [1, 9]})
    both = "Select * From a, b [Range Unbounded] Where a.x = b.x and a.y = b.y"
    found = tg.cql(both, {"a": a, "b": b}, time="t", unique="b.x, b.y")
    assert found.results == 1
    with pytest.raises(tg.TidegateError, match="many-many"):
        tg.cql(both, {"a": a, "b": b}, time="t", unique=[])
    for wrong in (["x"], 5, None):
        with pytest.raises(tg.TidegateError, match="unique must list attributes"):
            tg.cql(both, {"a": a, "b": b}, time="t", unique=cast(Any, wrong))
    with pytest.raises(tg.TidegateError, match="no setting 'shed_to'; there are constraints, .*"):
        tg.cql(both, {"a": a, "b": b}, time="t", unique=["b.x"], shed_to="folder")
    with pytest.raises(tg.TidegateError, match="streams must be a mapping by name"):
        tg.cql(both, cast(Any, [a, b]), time="t", unique=["b.x"])
    told = f"-- who\n{both} -- joins whom\n ; "
    assert tg.cql(told, {"a": a, "b": b}, time="t", unique=["b.x"]).results == found.results


A = pa.table({"t": [1], "x": [1], "name": ["n"]})
#: What is wrong, where the error points (line, column), and words that it must hold.
BAD: list[tuple[str, tuple[int, int] | None, str]] = [
    ("", None, "a query must be a text"),
    ("Selekt *", (1, 1), "expected SELECT"),
    ("Select * Form A", (1, 16), "expected FROM"),
    ("Select * From A, C Where A.x = C.x", (1, 18), "no stream 'C'; there are A, B"),
    ("Select * From A [Rows 0], B", (1, 23), "a positive number of rows"),
    ("Select * From A [Last 5], B", (1, 18), "expected a window"),
    ("Select * From A [Range], B", (1, 23), "a length of time"),
    ("Select * From A [Rows 5, B", (1, 24), "expected ] after the window"),
    ("Select * From A, A", (1, 18), "stands twice"),
    ("Select *\nFrom A, B\nWhere A.y = B.x", (3, 9), "A has no column 'y'; it has t, x, name"),
    ("Select * From A, B Where C.x = B.x", (1, 26), "no stream 'C' in From"),
    ("Select * From A, B Where x = 1", (1, 26), "a column of A and B: say which"),
    ("Select * From A, B Where A.x < B.x", (1, 26), "a join, S1.a = S2.b"),
    ("Select * From A, B Where A.x = B.x or A.x = 1", (1, 36), "into parentheses"),
    ("Select * From A, B Where (A.x = 1", (1, 34), "not closed"),
    ("Select * From A, B Where A.x = 1)", (1, 33), "was not opened"),
    ("Select * From A, B Where A.x = B.x and", (1, 39), "expected a condition"),
    ("Select * From A, B Where A.x = B.x Having 1", (1, 36), "no stream has a column 'Having'"),
    ("Select * From A, B Where A.x = ?", (1, 32), "'?' is not known"),
    ("Select * From A; Select * From B", (1, 16), "';' is not known"),
    ("Select max(A.x) From A, B", (1, 8), "no aggregate: count, sum, avg"),
    ("Select sum(A.name) From A, B", (1, 8), "needs numbers"),
    ("Select A.x, count(*) From A, B Where A.x = B.x", (1, 1), "neither in Group By"),
    ("Select A.x From A, B Where A.x = B.x Group By A.x", (1, 1), "needs an aggregate"),
    ("Select distinct A.x From A, B", (1, 8), "Distinct is not in this subset"),
    ("Select A.x From (Select * From A), B", (1, 17), "expected a stream"),
    ("Select * From A, B Where A.t = 1", None, "needs joins"),
    ("Select A.x, A.x From A, B Where A.x = B.x", None, 'two columns named "x"'),
    ("Select count(*) From A [Rows 3], B Where A.x = B.x", None, "windows in time"),
    ("Select * From A [Range 5 parsecs], B Where A.x = B.x", None, "windows must be a number"),
]


@pytest.mark.parametrize(("query", "place", "words"), BAD)
def test_errors_point_at_the_place(query: str, place: tuple[int, int] | None, words: str) -> None:
    with pytest.raises(tg.TidegateError) as caught:
        tg.cql(query, {"A": A, "B": A}, time="t", unique=["B.x"])
    message = str(caught.value)
    assert words in message
    if place is not None:
        row, column = place
        assert f"line {row}, column {column}:" in message
        line = query.split("\n")[row - 1]
        assert message.endswith(f"\n  {line}\n  {' ' * (column - 1)}^")


def test_state_of_aggregates_can_be_moved() -> None:
    from tidegate.constrained_spec import constrained_join
    from tidegate.engines.aggregated import AggregatedJob, Aggregates

    schema = pa.schema([("t", pa.int64()), ("x", pa.int64())])
    spec = constrained_join(
        {"A": schema, "B": schema}, joins="A.x -> B.x", time="t", windows={"A": 5}, lag=0
    )
    asked = Aggregates((), (("n", "count", None), ("s", "sum", 1)), (0, 2))
    job = AggregatedJob(spec, asked)
    rng = np.random.default_rng(1)

    def inputs(at: int) -> Any:
        a = pa.record_batch([np.arange(at, at + 4), rng.integers(0, 9, 4)], schema=schema)
        b = pa.record_batch([[at, at + 2], [at // 4, 100 + at]], schema=schema)
        return [[job.prepare(0, a)[0]], [job.prepare(1, b)[0]]]

    stays, moves, records = job.engine(1), job.engine(1), list[bytes]()
    told, moved = Counter[str](), Counter[str]()
    for at in range(0, 40, 4):
        batch = inputs(at)
        told += Counter(str(r) for b in stays.feed(batch) for r in b.to_pylist())
        moved += Counter(str(r) for b in moves.feed(batch) for r in b.to_pylist())
        records = moves.snapshot() if at == 20 else [*records, moves.changes()]
        moves = job.engine(1)
        moves.restore(records)
    assert told == moved
    assert len(told) > 10


def test_examples() -> None:
    assert doctest.testmod(importlib.import_module("tidegate.cql.call")).failed == 0


def of_two(query: str, **columns: Any) -> list[dict[str, Any]]:
    """What a query says of C, three rows with these columns, and B, which has all their keys."""
    b = pa.table({"pid": [1, 2, 3], "ts": [0, 0, 0]})
    c = pa.table({"pid": [1, 2, 3], "ts": [1, 2, 3], **columns})
    found = tg.cql(query, {"C": c, "B": b}, time="ts", unique=["B.pid"])
    rows: list[dict[str, Any]] = found.table.to_pylist()
    return rows


def test_sums_of_groups_do_not_disturb_each_other() -> None:
    rows = of_two(
        "Select C.g, sum(C.v) From C [Range 5], B [Unbounded] Where C.pid = B.pid Group By C.g",
        g=["a", "b", "c"],
        v=[1e17, 0.25, 0.5],
    )
    sums = {row["g"]: row["sum_v"] for row in rows if row["sum_v"]}
    assert sums == {"a": 1e17, "b": 0.25, "c": 0.5}


@pytest.mark.parametrize(
    "group",
    [pa.array([2**53, 2**53 + 1, None], pa.int64()), pa.array([math.nan, None, 1.0])],
    ids=["large", "nothing"],
)
def test_groups_that_look_alike_are_apart(group: pa.Array) -> None:
    rows = of_two(
        "Select C.g, count(*) From C [Unbounded], B [Unbounded] Where C.pid = B.pid Group By C.g",
        g=group,
    )
    assert [row["count"] for row in rows] == [1, 1, 1]


def test_a_comment_in_a_condition_is_none_of_it() -> None:
    rows = of_two(
        "Select C.pid From C [Unbounded], B [Unbounded]\n"
        "Where C.pid = B.pid and C.size > 4 -- 10\n + 1",
        size=[10, 20, 30],
    )
    assert [next(iter(row.values())) for row in rows] == [1, 2, 3]
