"""Queries inside queries: at every time, what they say is what sqlite says of the windows then."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.joins.constrained.cql_plan import RelationPlan, planned
from tidegate.joins.constrained.relation_query import RelationEngine
from tidegate.streams import car_reports

#: Figure 12 of Babu, Srivastava, Widom, as printed.
ACC_SEG = """
Select distinct sid From
  (Select cid, sid From
    (CarStr [Partition By cid Rows 1]) as LastRep,
    (Select distinct cid From
      CarStr [Range 30 seconds]) as CurActiveCars
    Where LastRep.cid = CurActiveCars.cid)
  as CurCarSeg,
  (Select cid
    From CarStr [Partition By cid Rows 4]
    Group By cid
    Having count (distinct xpos) = 1 and count(*) = 4)
  as AccCars
Where CurCarSeg.cid = AccCars.cid
"""
SCHEMA = pa.schema([(name, pa.int64()) for name in ("t", "k", "v")])
#: Queries over A and B: as CQL, and as sqlite has it, with windows as functions.
QUERIES = [
    (
        "Select distinct A.v From A [Range 5], (Select distinct k From B [Range 3]) as C "
        "Where A.k = C.k and A.v > 0",
        "select distinct A.v from {range:A:5} A, (select distinct k from {range:B:3}) C "
        "where A.k = C.k and A.v > 0",
    ),
    (
        "Select x.k, n + 1 as m, B.v From (Select k, count(*) as n, sum(v) as s From A "
        "[Partition By k Rows 2] Group By k Having sum(v) > 0 or count(*) > 1) as x "
        "Join B [Rows 3] On x.k = B.k and s >= 0",
        "select x.k, n + 1 as m, B.v from (select k, count(*) as n, sum(v) as s from {rows:k:A:2} "
        "group by k having sum(v) > 0 or count(*) > 1) x, {rows::B:3} B where x.k = B.k and s >= 0",
    ),
    (
        "Select C.k, D.total From (Select A.k, max(A.v) as most From A [Range 6], B [Unbounded] "
        "Where A.k = B.k Group By A.k Having count(*) > 1) as C, (Select k, sum(v) * 2 as total, "
        "min(v) as least From B [Range 4] Group By k) as D Where C.k = D.k and most is not null",
        "select C.k, D.total from (select A.k, max(A.v) as most from {range:A:6} A, {all:B:} B "
        "where A.k = B.k group by A.k having count(*) > 1) C, (select k, sum(v) * 2 as total "
        "from {range:B:4} group by k) D where C.k = D.k and most is not null",
    ),
    (
        "Select * From (Select k, v From A [Rows 4]) as C, (Select k as j, avg(distinct v) as mean "
        "From (Select k, v From B [Partition By k Rows 3] Where v is not null) as D Group By k) "
        "as E Where C.k = E.j",
        "select C.k, C.v, j, mean from {rows::A:4} C, (select k as j, avg(distinct v) as mean from "
        "{rows:k:B:3} where v is not null group by k) E where C.k = E.j",
    ),
]


def windows(text: str, now: int) -> str:
    """Write the windows of a query as queries of sqlite."""
    while "{" in text:
        before, _, rest = text.partition("{")
        inside, _, after = rest.partition("}")
        kind, *of = inside.split(":")
        if kind == "rows":
            by, stream, n = of
            part = f"partition by {by} " if by else ""
            rows = f"(select *, row_number() over ({part}order by t desc) as nth from {stream} "
            found = f"(select * from {rows} where t <= {now}) where nth <= {n})"
        else:
            stream, length = of
            alive = f"and t + {length} > {now}" if length else ""
            found = f"(select * from {stream} where t <= {now} {alive})"
        text = before + found + after
    return text


def changes(table: pa.Table) -> Iterator[tuple[int, str, tuple[Any, ...]]]:
    for at, change, *values in zip(*(c.to_pylist() for c in table.columns), strict=True):
        yield at, change, tuple(values)


def replayed(table: pa.Table, last: int) -> list[Counter[tuple[Any, ...]]]:
    """Return the relation at every time; no row goes that is not there."""
    relation: Counter[tuple[Any, ...]] = Counter()
    states = []
    told = sorted(changes(table), key=lambda each: (each[0], each[1]))
    for now in range(last + 1):
        mine = [each for each in told if each[0] == now]
        both = Counter(row for _, _, row in mine)
        for _, change, row in mine:
            relation[row] += 1 if change == "insert" else -1
            assert relation[row] >= 0
            assert all(c == change for _, c, r in mine if r == row), both
        states.append(+relation)
    return states


@given(
    st.integers(0, len(QUERIES) - 1),
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.none() | st.integers(-2, 3)),
        min_size=1,
        max_size=24,
    ),
    st.lists(st.integers(0, 24), max_size=4),
    st.sampled_from([None, 0, 3]),
)
def test_every_state_is_sqlites(
    at: int, given_rows: list[tuple[int, int, int | None]], cuts: list[int], lag: int | None
) -> None:
    text, theirs = QUERIES[at]
    assert theirs is not None
    plan = planned(text, {"A": SCHEMA, "B": SCHEMA}, time="t", unique=[], lag=lag)
    assert isinstance(plan, RelationPlan)
    job, engine = plan.relation, plan.relation.engine_at(0, 1)
    rows = [(t, *row) for t, row in enumerate(given_rows)]
    found = [job.result_schema.empty_table()]
    log: list[bytes] = []
    edges = [0, *sorted(cuts), len(rows)]
    for number, (start, stop) in enumerate(pairwise(edges)):
        inputs = []
        for name in plan.inputs:
            own = [r for r in rows[start:stop] if "AB"[r[1]] == name]
            values = [[r[i] for r in reversed(own)] for i in (0, 2, 3)]
            inputs.append([job.prepare(0, pa.record_batch(values, schema=SCHEMA))[0]])
        found.append(pa.Table.from_batches(list(engine.feed(inputs)), job.result_schema))
        log = [*log, engine.changes()] if log and number % 3 else engine.snapshot()
        held = engine.held
        engine = job.engine_at(0, 1)
        engine.restore(log)
        assert engine.held == held
    found.append(pa.Table.from_batches(list(engine.finish()), job.result_schema))
    states = replayed(pa.concat_tables(found), len(rows))
    with closing(sqlite3.connect(":memory:")) as base:
        for number, name in enumerate("AB"):
            base.execute(f"create table {name} (t, k, v)")
            mine = [(t, k, v) for t, s, k, v in rows if s == number]
            base.executemany(f"insert into {name} values (?, ?, ?)", mine)
        for now in range(len(rows)):
            assert states[now] == Counter(base.execute(windows(theirs, now)).fetchall()), now


def test_linear_roads_accseg_runs_as_printed() -> None:
    reports = car_reports(700, rate=0.1, trip=200, segments=20, accidents=0.4, seed=3)
    seconds = np.asarray(reports["ts"])
    stamps = pa.array(seconds * 10**6, pa.timestamp("us", "UTC"))
    found = [
        tg.cql(
            ACC_SEG,
            {"CarStr": reports.set_column(1, "ts", stamps)},
            time="ts",
            unique=[],
            batch_rows=rows,
        )
        for rows in (90, None)
    ]
    one, other = (sorted(each.table.to_pylist(), key=str) for each in found)
    assert one == other
    assert found[0].counters["peak_held"] < len(reports)
    told = [(int(row["at"].timestamp()), row["change"], row["sid"]) for row in one]
    relation: set[int] = set()
    by_car: dict[int, list[tuple[int, int, int]]] = {}
    columns = (reports[name].to_pylist() for name in ("ts", "cid", "xpos", "sid"))
    every = sorted(zip(*columns, strict=True))
    accidents = 0
    for now in range(int(seconds.max()) + 1):
        for t, cid, xpos, sid in every:
            if t == now:
                by_car.setdefault(cid, []).append((t, xpos, sid))
        expected = {
            last[-1][2]
            for last in by_car.values()
            if last[-1][0] + 30 > now and len(last) >= 4 and len({x for _, x, _ in last[-4:]}) == 1
        }
        for at, change, sid in told:
            if at == now:
                (relation.add if change == "insert" else relation.remove)(sid)
        assert relation == expected
        accidents += len(expected)
    assert accidents > 100


def test_changes_of_a_query_are_changes_of_a_relation() -> None:
    """The result is what `changes=` of a star join takes."""
    a = pa.table({"t": [1, 5], "k": [1, 2], "v": [10, 20]})
    inside = "(Select k, v From A [Range 3]) as C"
    text = f"Select C.k, C.v From {inside}, A [Range 3] as D Where C.k = D.k"
    links = tg.cql(text, {"A": a}, time="t", unique=[]).table
    assert links.to_pylist() == [
        {"at": 1, "change": "insert", "k": 1, "v": 10},
        {"at": 4, "change": "delete", "k": 1, "v": 10},
        {"at": 5, "change": "insert", "k": 2, "v": 20},
    ]
    left = pa.table({"k": [1, 1, 2], "t": [3, 4, 5]})
    found = tg.star_join({"L": left}, links, on="k", time="t", changes=("change", "at"))
    assert found.table.to_pylist() == [{"k": 1, "t": 3, "v": 10}, {"k": 2, "t": 5, "v": 20}]


N = "(Select k, v From A) as C"
BAD: list[tuple[str, str]] = [
    ("Select * From (Select * From A)@", "expected a name for what is in parentheses"),
    ("Select C.k From (@Select k, k From A) as C, A Where C.k = A.k", "two columns named 'k'"),
    ("Select k From (Select k, @q From A) as C", "no stream has a column 'q'"),
    ("Select C.@q From (Select k From A) as C", "C has no column 'q'; it has k"),
    (f"Select @k From {N}, A [Range 5] Where C.v = A.v", "is a column of C and A: say which"),
    (f"Select C.k From {N}, @B", "no join connects B with C"),
    (f"Select C.k From {N}, B Where @C.k = B.s", "key columns must have one type"),
    (f"Select @count(*) as n From {N}, B Where C.k = B.k", "needs Group By"),
    ("Select k From (Select k From A Where v > 1@", "expected ) after the query inside"),
    ("Select k From (Select k From @X) as C", "no stream 'X'; there are A, B"),
    ("Select k From (Select k From A [@Range 0]) as C", "must be longer than zero"),
    ("@Select distinct k as at From A", "'at' is a column that says how the result changes"),
    ("Select k, (@Select v From A) From B", "a query inside a query stands in From"),
    ("Select k From (Select @k, sum(v) as s From A Group By v) as C", "is neither in Group By"),
]


@pytest.mark.parametrize(("marked", "words"), BAD)
def test_errors_point_at_the_place(marked: str, words: str) -> None:
    query, column = marked.replace("@", ""), marked.index("@") + 1
    tables = {
        "A": pa.table({"t": [1], "k": [1], "v": [2]}),
        "B": pa.table({"t": [1], "k": [1], "v": [2], "s": ["a"]}),
    }
    with pytest.raises(tg.TidegateError) as caught:
        tg.cql(query, tables, time="t", unique=[])
    assert words in str(caught.value)
    assert f"column {column}: " in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"constraints": "auto"}, "uses no constraints"),
        ({"monitor": tg.Monitor()}, "uses no constraints"),
        ({"keep_shed": True}, "drops no rows early"),
        ({"lateness": -1}, "lateness"),
        ({"time": "q"}, 'no column "q"'),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"time": "t", "unique": [], **settings}
    with pytest.raises(tg.TidegateError, match=words):
        tg.cql("Select distinct k From A", {"A": pa.table({"t": [1], "k": [1]})}, **given)


def test_rows_that_come_too_late_are_counted() -> None:
    schema = pa.schema([("t", pa.int64()), ("k", pa.int64())])
    plan = planned("Select distinct k From A [Range 5]", {"A": schema}, time="t", unique=[])
    assert isinstance(plan, RelationPlan)
    engine: RelationEngine = plan.relation.engine_at(0, 1)
    counts = []
    for rows in ([(4, 1), (9, 2)], [(8, 3), (9, 3)], [(12, 4), (11, 4)]):
        t, k = zip(*rows, strict=True)
        batch = plan.relation.prepare(0, pa.record_batch([t, k], schema=schema))[0]
        list(engine.feed([[batch]]))
        counts.append(engine.take_counters())
    assert [count["late"] for count in counts] == [0, 1, 0]
    assert [count["out_of_order"] for count in counts] == [0, 1, 1]
    assert engine.held == 4


# ---- streams of inserts and deletes -------------------------------------------------------------

CHANGED = SCHEMA.append(pa.field("op", pa.string()))


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.booleans()), max_size=30),
    st.integers(1, 30),
)
def test_what_a_deleted_row_has_joined_is_deleted(
    drawn: list[tuple[int, int, bool]], cut: int
) -> None:
    """A deletion is joined with the rows of the other stream (section 9)."""
    live: list[Counter[int]] = [Counter(), Counter()]
    rows: list[tuple[int, int, int, int, str]] = []
    states = []
    for t, (stream, k, goes) in enumerate(drawn):
        gone = goes and live[stream][k] > 0
        live[stream][k] += -1 if gone else 1
        word = ("Delete", "d")[t % 2] if gone else ("insert", "c", "R")[t % 3]
        rows.append((stream, t, k, 7, word))
        states.append(
            Counter({(k, 7): live[0][k] * live[1][k] for k in range(3) if live[0][k] * live[1][k]})
        )
    tables = {
        name: pa.Table.from_pylist(
            [dict(zip(CHANGED.names, row[1:], strict=True)) for row in rows if row[0] == number],
            CHANGED,
        )
        for number, name in enumerate("AB")
    }
    found = tg.cql(
        "Select A.k, B.v From A, B [Unbounded] Where A.k = B.k",
        tables,
        time="t",
        unique=[],
        changes={"A": "op", "B": "op"},
        batch_rows=cut,
    )
    assert replayed(found.table, len(rows))[: len(rows)] == states
    assert found.counters["held"] == sum(sum(each.values()) for each in live)


def test_the_changes_of_one_query_are_a_stream_of_another() -> None:
    a = pa.table({"t": [1, 5, 6], "k": [1, 2, 1], "v": [10, 20, 30]})
    first = tg.cql("Select distinct k From A [Range 3]", {"A": a}, time="t", unique=[]).table
    second = tg.cql(
        "Select k as j, count(*) as n From D Group By k",
        {"D": first},
        time="at",
        unique=[],
        changes={"D": "change"},
    )
    inside = "(Select distinct k From A [Range 3]) as D"
    whole = f"Select k as j, count(*) as n From {inside} Group By k"
    assert second.table.equals(tg.cql(whole, {"A": a}, time="t", unique=[]).table)
    assert second.results == 4


@pytest.mark.parametrize(
    ("query", "words", "changes", "why"),
    [
        (
            "Select k From A",
            ["insert", "delete", "delete"],
            {"A": "op"},
            "deleted that is not ther",
        ),
        ("Select k From A", ["insert", "update"], {"A": "op"}, "write an update as a delete and"),
        ("Select k From A", ["insert", None], {"A": "op"}, 'column "op" has None'),
        ("Select k From A [Range 5]", ["insert"], {"A": "op"}, "stay until they are deleted"),
        ("Select op From A", ["insert"], {"A": "op"}, "no stream has a column 'op'"),
        ("Select k From A", ["insert"], {"A": "k"}, '"k" of A is int64: cast it'),
        ("Select k From A", ["insert"], {"A": "q"}, 'no column "q"'),
        ("Select k From A", ["insert"], {"B": "op"}, "changes names a stream 'B'"),
        ("Select k From A", ["insert"], "op", "changes must name the column with the operation"),
    ],
)
def test_changes_that_are_wrong(query: str, words: list[Any], changes: Any, why: str) -> None:
    n = len(words)
    table = pa.table({"t": list(range(n)), "k": [1] * n, "v": [1] * n, "op": words}, CHANGED)
    with pytest.raises(tg.TidegateError, match=why):
        tg.cql(query, {"A": table}, time="t", unique=[], changes=changes)
