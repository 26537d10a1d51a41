"""Queries as text: their results, and the place that an error points to."""

from __future__ import annotations

import doctest
import importlib
import math
import sqlite3
from collections import Counter
from contextlib import closing
from decimal import Decimal
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


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 2), st.none() | st.integers(-3, 3)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 9),
    st.integers(1, 30),
)
def test_every_row_is_what_sqlite_says_of_the_windows_at_its_time(
    given_rows: list[tuple[int, int, int | None]], length: int, cut: int
) -> None:
    rows = [(t // 2, *row) for t, row in enumerate(given_rows)]
    ones = [(k, 3 * k) for k in range(4)]
    columns = zip("tkgv", zip(*rows, strict=True), strict=True)
    a = pa.table({name: pa.array(column, pa.int64()) for name, column in columns})
    b = pa.table({"k": [k for k, _ in ones], "t": [t for _, t in ones]})
    select = "min(v) as a, max(v) as b, count(distinct v) as c, sum(distinct v) as d, "
    select += "avg(distinct v) as e, sum(v) - 2*count(*) as f, (max(A.v) - g) * 3 as h"
    having = "count(*) > 1 or max(v) in (2,3)"
    on = "On A.k = B.k and A.k in (1,2,3) and (v is null or v not in (0))"
    text = f"Select g, {select} From A [Range {length}] Join B [Unbounded] {on} Group By g"
    settings: dict[str, Any] = {"time": "t", "unique": "B.k", "batch_rows": cut}
    found = tg.cql(text, {"A": a, "B": b}, **settings).table.to_pylist()
    few = tg.cql(f"{text} Having {having}", {"A": a, "B": b}, **settings).table.to_pylist()
    with closing(sqlite3.connect(":memory:")) as base:
        base.execute("create table A (t, k, g, v)")
        base.execute("create table B (k, t)")
        base.executemany("insert into A values (?, ?, ?, ?)", rows)
        base.executemany("insert into B values (?, ?)", ones)
        last = max(*(t for t, *_ in rows), *(t for _, t in ones))
        joined = base.execute(f"select max(A.t, B.t), A.t + {length}, g from A join B {on}")
        live = [(start, until, g) for start, until, g in joined if start < until]
        changes = {(t, g) for *ends, g in live for t in ends if t <= last}
        assert sorted((row["at"], row["g"]) for row in found) == sorted(changes)
        for row in found:
            at, group, *values = row.values()
            there = f"A.t <= {at} and B.t <= {at} and A.t + {length} > {at} and g = {group}"
            counted = select.replace("- g)", f"- {group})")
            query = f"select {counted}, {having} from A join B {on} where {there}"
            *expected, passes = base.execute(query).fetchone()
            assert values == expected
            assert (row in few) == bool(passes)
        assert all(row in found for row in few)


def test_the_least_and_largest_values_of_other_types() -> None:
    text = "Select min(C.v) as a, max(C.v) as b From C [Range 2], B Where C.pid = B.pid"
    for values in (["b", "a", "c"], [True, False, True], [Decimal(2), Decimal(1), Decimal(3)]):
        rows = [(row["a"], row["b"]) for row in of_two(text, v=values)]
        pairs = [values[:1], values[:2], values[1:]]
        assert rows == [(min(pair), max(pair)) for pair in pairs]
    rows = [(row["a"], row["b"]) for row in of_two(text, v=[math.nan, 1.0, math.inf])]
    assert str(rows) == "[(nan, nan), (1.0, nan), (1.0, inf)]"


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
    for wrong in (5, None):
        with pytest.raises(tg.TidegateError, match="unique must list attributes"):
            tg.cql(both, {"a": a, "b": b}, time="t", unique=cast(Any, wrong))
    with pytest.raises(tg.TidegateError, match="streams must be a list of one or more"):
        tg.cql(both, cast(Any, a), time="t", unique=["b.x"])
    listed = tg.cql(
        "Select * From s1, s2 Where s1.x = s2.x and s1.y = s2.y",
        [a, b],
        time=["t", "t"],
        unique=["s2.x"],
    )
    assert listed.results == found.results
    told = f"-- who\n{both} -- joins whom\n ; "
    assert tg.cql(told, {"a": a, "b": b}, time="t", unique=["b.x"]).results == found.results


A = pa.table(
    {
        "t": [1],
        "x": [1],
        "name": ["n"],
        "d": pa.array([100], pa.decimal128(5, -2)),
        "m": pa.array([[(1, 2)]], pa.map_(pa.int64(), pa.int64())),
    }
)
J = "From A, B Where A.x = B.x"
#: A wrong query, with @ where the error points, and words that the error must contain.
BAD: list[tuple[str, str]] = [
    ("@Selekt *", "expected SELECT"),
    ("Select * Form A@", "expected FROM"),
    ("@", "a query must be a text"),
    # Streams and windows.
    ("Select * From A, @C Where A.x = C.x", "no stream 'C'; there are A, B"),
    ("Select * From A, @AA Where A.x = C.x", 'there are A, B; did you mean "A"?'),
    ("Select * From A [Rows @0], B", "a positive number of rows"),
    ("Select * From A [@Last 5], B", "expected a window"),
    ("Select * From A [Range@], B", "a length of time"),
    ("Select * From A [Rows 5@, B", "expected ] after the window"),
    ("Select * From A, @A", "stands twice"),
    ("Select * From A [@Range 5 parsecs], B Where A.x = B.x", "must be a number"),
    ("Select * From A, B [@Range 0] Where A.x = B.x", "must be longer than zero, not 0"),
    ("Select * From A [@Rows 9999999999999999999], B Where A.x = B.x", "up to 2**60"),
    ("Select * From A [Partition By @xx Rows 5], B", "A has no column 'xx'; it has t, x, name"),
    ("Select * From A [Range 5 @Slide 1], B", "Slide is outside this subset of CQL"),
    ("Select count(*) From A [@Rows 3], B Where A.x = B.x", "windows in time"),
    ("Select * From @A", "two streams or more"),
    # Conditions.
    ("Select *\nFrom A, B\nWhere A.@y = B.x", "A has no column 'y'; it has t, x, name, d, m"),
    ("Select * From A, B Where A.@nam = B.x", 'did you mean "name"?'),
    ("Select * From A, B Where @C.x = B.x", "no stream 'C' in From: A, B"),
    ("Select * From A, B Where @x = 1", "a column of A and B: say which"),
    ("Select * From A, B Where @q = 1", "no stream has a column 'q'"),
    ("Select * From A, B Where @A.x < B.x", "a join, S1.a = S2.b"),
    ("Select * From A, B Where A.x = B.x @or A.x = 1", "inside parentheses: (S.a = 1 or"),
    ("Select * From A, B Where (A.x = 1@", "not closed"),
    ("Select * From A, B Where A.x = 1@)", "was not opened"),
    ("Select * From A, B Where A.x = B.x and@", "expected a condition"),
    ("Select * From A, B Where A.x = @?", "'?' is not known"),
    ("Select * From A, B Where A.name = @'it", "a text is opened here and not closed"),
    ("Select * From A, B Where A.name = @`it", "a name is opened here and not closed"),
    ('Select * From A, B Where A.name = @"it"', "texts are written 'text'"),
    (f"Select * {J} and @A.name > 1,000 and A.x = 1", "'A.name > 1000' does not work"),
    (f"Select * {J} and A.x = 1 and @B.name + 1.5 > 2", "'B.name + 1.5' needs numbers or times"),
    (f"Select * {J} and A.x = 1,000 - (2 * @abs(A.name))", "'abs(A.name)' needs numbers"),
    (f"Select * {J} and @A.x + 1", "gives int64, and must be true or false"),
    (f"Select * {J} and (A.x = 1 +@)", "cannot be read"),
    (f"Select * {J} and @A.x = 1 = 2", "join comparisons with AND"),
    (f"Select * {J} and @A.d > 150", "'A.d > 150' does not work on these columns"),
    (f"Select * {J} and @sqrt(A.x) > 1", "no function 'sqrt'; there are abs, lower"),
    ("Select * From A, B Where @A.x = B.name", "key columns must have one type"),
    ("Select * From A, B Where @A.m = B.m", "has no equality"),
    ("Select * From A, B Where @A.d = B.d", "cannot be compared; cast it"),
    ("Select * From A, @B Where A.t = 1", "needs joins that connect its streams"),
    ("Select * From A, B, @A as C Where A.x = B.x", "no join connects C with A"),
    ("Select * From A, B Where @A.t = B.t", "is many-many, because neither side is in unique"),
    # What is selected.
    ("Select @median(A.x) From A, B", "'median' is no aggregate; there are count, sum, avg, min"),
    ("Select max(@A.m) From A, B", "max needs numbers, times, texts or true and false, and m is"),
    ("Select count(distinct @A.m) From A, B", "count needs values with an equality"),
    ("Select sum(@A.name) From A, B", "sum needs numbers, and name is string: cast it"),
    ("Select avg(@A.d) From A, B", "avg needs numbers, and d is decimal128(5, -2)"),
    ("Select sum(A.x @+ 1) From A, B", "an aggregate is of one column"),
    ("Select @A.x + 1 From A, B", "an expression needs a name: ... as name"),
    (f"Select @lower(A.x) as y {J}", "'lower ( `A.x` )' does not work on these columns"),
    (f"Select @1 + A.name as y {J}", "'1 + `A.name`' needs numbers or times, not string"),
    (f"Select (A.x @as y {J}", "expected a column, not 'as'"),
    (f"Select @, A.x {J}", "expected a column, an aggregate or an expression"),
    (f"Select count(*), @A.x * 2 as y {J}", "'A.x' is neither in Group By nor in an aggregate"),
    (f"Select A.t + 1 as y, @A.x as y {J}", "two selected columns are named 'y'"),
    (f"Select count(*) as n {J} Having @count(*) + 1", "gives int64, and must be true or false"),
    (
        f"Select count(*) as n {J} Group By A.name Having count(*) > 1 and @A.name < 2",
        "'`A.name` < 2' does not work on these columns",
    ),
    (f"Select count(*) as n {J} Having count(*) > 1 and @B.x < 2", "'B.x' is neither in Group"),
    (f"Select count(*) as n {J} Having@", "expected a column, an aggregate or an expression"),
    (f"Select * {J} @Having count(*) > 1", "Having is a condition on groups"),
    ("Select A.@q From A, B", "A has no column 'q'"),
    (f"Select count(*), @A.x {J}", "'x' is neither in Group By nor in an aggregate"),
    (f"Select A.x {J} @Group By A.x", "needs an aggregate"),
    (f"Select count(*) {J} Group By A.@q", "A has no column 'q'"),
    (f"Select count(*) {J} Group By @A.m", "has no equality: group by one of its entries"),
    (f"Select A.x, @B.x {J}", "two selected columns are named 'x'; name this one with as"),
    (f"Select @count(*) as at {J}", "'at' is the column that says when"),
    (f"Select Istream(@count(*)) {J}", "write Select count(...) without Istream"),
    (f"Select @Rstream(*) {J}", "Rstream is outside this subset of CQL"),
    # Beyond the subset.
    ("Select A.x From (Select * From A)@, B", "expected a name for what is in parentheses"),
    ("Select A.x, (@Select * From A) From B", "a query inside a query stands in From"),
    (f"Select * {J} @Having 1", "Having is a condition on groups and needs an aggregate"),
    (f"Select * {J} @order by A.x", "order is outside this subset of CQL: sort the result"),
    (f"Select * {J} @Union Select * From A", "Union is outside this subset"),
    (f"Select count(*) {J} Group By A.x @Limit 5", "Limit is outside this subset"),
    ("Select * From A @left join B on A.x = B.x", "Where S1.a = S2.a; there are no outer joins"),
    ("Select * From A Join B@", "expected ON and the conditions of the join, not the end"),
    ("Select * From A Join B On @C.x = B.x", "no stream 'C' in From: A, B"),
    ("Select * From A Join B On @A.x < B.x", "a join, S1.a = S2.b"),
    (f"Select * {J} and A.x @between 1 and 2", "write a >= 1 and a <= 9. There are Select"),
    (f"Select * {J} and @A.x in 1", "'A.x in 1' is not known; write IN (1, 2)"),
    (f"Select * {J} and A.x = @null", "'null' has no place here: compare with IS NULL"),
    (f"Select * {J} and @A.x is 1", "write IS NULL or IS NOT NULL"),
    ("Select * From A@; Select * From B", "';' is not known"),
    ("Select * From A a @b, B", "expected Where, Group By, a comma and a stream or the end"),
    ("Select * From A, B Where A.x = @? -- what", "'?' is not known"),
    # Tabs, wide letters, comments and line ends before the place.
    ("Select\t*\tFrom\tA,\t@C", "no stream 'C'"),
    (f"Select * {J} and A.name = '日本' and A.x = @q", "no stream has a column 'q'"),
    ("Select * -- all\r\nFrom A, B -- of\r\nWhere A.@q = B.x -- both\r\n", "no column 'q'"),
]


@pytest.mark.parametrize(("marked", "words"), BAD)
def test_errors_point_at_the_place(marked: str, words: str) -> None:
    query, at = marked.replace("@", ""), marked.index("@")
    with pytest.raises(tg.TidegateError) as caught:
        tg.cql(query, {"A": A, "B": A}, time="t", unique=["B.x"])
    message = str(caught.value)
    assert words in message
    if not query:
        return
    before = query[:at].rpartition("\n")[2]
    line = query.split("\n")[query[:at].count("\n")].rstrip("\r")
    assert f"line {query[:at].count(chr(10)) + 1}, column {len(before) + 1}: " in message
    below = "".join({"\t": "\t", "日": "  ", "本": "  "}.get(letter, " ") for letter in before)
    assert message.endswith(f"\n  {line}\n  {below}^")


#: Wrong settings beside the text, and words that the error must contain.
BESIDE: list[tuple[dict[str, Any], str]] = [
    ({"time": {"A": "t"}}, "time has nothing for the stream 'B'"),
    ({"time": {"A": "t", "B": "t", "AA": "t"}}, "time names a stream 'AA'.*did you mean \"A\""),
    ({"time": "tt"}, 'no column "tt"'),
    ({"time": "d"}, "time must be a column of .*decimal128"),
    ({"time": None}, "time must be a column name"),
    ({"unique": ["Bx.x"]}, "unique=Bx.x.*names a stream 'Bx'"),
    ({"unique": ["B.nam"]}, 'no column "nam".*did you mean "name"'),
    ({"unique": ["B"]}, "write stream.column"),
    ({"unique": ["A.x, B.x"]}, "attributes of one stream together"),
    ({"unique": [7]}, "unique must list attributes"),
    ({"constraint": ()}, "no setting 'constraint'.*did you mean \"constraints\""),
    ({"constraints": 7}, "constraints must be a list"),
    ({"constraints": "RIDS"}, "constraints must be a list"),
    ({"filters": {}}, "no setting 'filters'"),
    ({"constraints": tg.CA("Q.x", k=1)}, "names a stream 'Q'"),
    ({"shards": 2}, "is for Spark DataFrames"),
    ({"shed_to": "folder"}, 'cannot hold the column "d" of type decimal.* cast the column'),
    ({"keep_shed": 7}, "keep_shed must be True or False"),
]


@pytest.mark.parametrize(("wrong", "words"), BESIDE)
def test_errors_name_the_setting(wrong: dict[str, Any], words: str) -> None:
    settings = {"time": "t", "unique": ["B.x"], **wrong}
    with pytest.raises(tg.TidegateError, match=words):
        tg.cql(f"Select * {J}", {"A": A, "B": A}, **settings)


def test_what_is_odd_and_right() -> None:
    a = pa.table({"t": [1, 2, 3], "x": [1, 2, 3], "left": [1.5, 20.0, 150.0], "n n": [1, 1, 2]})

    def rows(query: str, **settings: Any) -> list[Any]:
        given: dict[str, Any] = {"time": "t", "unique": ["B.x"], **settings}
        found = tg.cql(query, {"A": a, "B": a}, **given).table.to_pylist()
        return [tuple(row.values()) for row in found]

    assert rows(f"Select A.x as y, A.x {J} and A.left > 15.5") == [(2, 2), (3, 3)]
    assert rows("Select A.left From A, B Where (A.x = B.x) and A.left < 1.5e2") == [(1.5,), (20.0,)]
    assert rows(
        "Select A.x From A [Range 1.5], B [Range 1,000] Where A.x = B.x", time={"A": "t", "B": "t"}
    ) == [(1,), (2,), (3,)]
    assert rows(f"Select A.`n n` {J} and A.x <= 1,000 and `A`.`n n` > 1", unique="`B`.`x`") == [
        (2,)
    ]
    assert rows(f"Select A.x {J} and B.x = 1", constraints=None) == [(1,)]


def test_state_of_aggregates_can_be_moved() -> None:
    from tidegate.joins.constrained.aggregates import AggregatedJob, Aggregates
    from tidegate.joins.constrained.spec import constrained_join

    schema = pa.schema([("t", pa.int64()), ("x", pa.int64())])
    spec = constrained_join(
        {"A": schema, "B": schema}, joins="A.x -> B.x", time="t", within={"A": 5}, lag=0
    )
    more = (("least", "min", 1), ("most", "max", 1), ("kinds", "count distinct", 1))
    asked = Aggregates((), (("n", "count", None), ("s", "sum", 1), *more), (0, 2))
    job = AggregatedJob(spec, asked)
    rng = np.random.default_rng(1)

    def inputs(at: int) -> Any:
        a = pa.record_batch([np.arange(at, at + 4), rng.integers(0, 9, 4)], schema=schema)
        b = pa.record_batch([[at, at + 2], [at // 4, 100 + at]], schema=schema)
        return [[job.prepare(0, a)[0]], [job.prepare(1, b)[0]]]

    stays, moves, records = job.engine_at(0, 1), job.engine_at(0, 1), list[bytes]()
    told, moved = Counter[str](), Counter[str]()
    for at in range(0, 40, 4):
        batch = inputs(at)
        told += Counter(str(r) for b in stays.feed(batch) for r in b.to_pylist())
        moved += Counter(str(r) for b in moves.feed(batch) for r in b.to_pylist())
        records = moves.snapshot() if at == 20 else [*records, moves.changes()]
        moves = job.engine_at(0, 1)
        moves.restore(records)
    assert told == moved
    assert len(told) > 10


def test_examples() -> None:
    assert doctest.testmod(importlib.import_module("tidegate.api.cql")).failed == 0


def of_two(query: str, **columns: Any) -> list[dict[str, Any]]:
    """Return the results of a query over C, three rows of these columns, and B with their keys."""
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


def test_what_has_left_a_window_leaves_no_trace_in_sums() -> None:
    text = (
        "Select sum(C.v), avg(C.v), count(C.v) From C [Range 1], B [Unbounded] Where C.pid = B.pid"
    )
    for values in ([math.inf, 1.0, 0.25], [1e300, 0.1, None], [math.nan, -math.inf, 5e-324]):
        rows = of_two(text, v=pa.array(values, pa.float64()))
        assert [row["count_v"] for row in rows] == [value is not None for value in values]
        for name in ("sum_v", "avg_v"):
            told = [row[name] for row in rows]
            assert str(told) == str(values)
    rows = of_two(text, v=pa.array([2**63 - 1, -(2**63), 5], pa.int64()))
    assert [row["sum_v"] for row in rows] == [2**63 - 1, -(2**63), 5]


def test_sums_that_do_not_fit_are_refused_and_averages_are_right() -> None:
    text = "Select {}(C.v) as v From C [Unbounded], B [Unbounded] Where C.pid = B.pid"
    for kind in (pa.int64(), pa.uint64()):
        large = pa.array([2**63 - 1] * 3, kind)
        with pytest.raises(tg.TidegateError, match=r"sum\(C.v\) has become larger .* int64"):
            of_two(text.format("sum"), v=large)
        assert of_two(text.format("avg"), v=large)[-1]["v"] == 2.0**63
    cents = pa.array([Decimal("0.10"), None, Decimal("-99999.99")], pa.decimal128(7, 2))
    table = of_two(text.format("sum"), v=cents)
    assert [row["v"] for row in table] == [Decimal("0.10")] * 2 + [Decimal("-99999.89")]
    assert of_two(text.format("avg"), v=cents)[-1]["v"] == -99999.89 / 2


@pytest.mark.parametrize(
    "group",
    [pa.array([[1], [2], [1]]), pa.array([{"a": 1}, {"a": None}, {"a": 1}])],
    ids=["lists", "structs"],
)
def test_groups_of_nested_values(group: pa.Array) -> None:
    rows = of_two(
        "Select C.g, count(*) From C [Unbounded], B [Unbounded] Where C.pid = B.pid Group By C.g",
        g=group,
    )
    assert [row["count"] for row in rows] == [1, 1, 2]
    assert [row["g"] for row in rows] == group.to_pylist()


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


def test_what_constraints_drop_can_be_repaired() -> None:
    text = "Select C.pid as who, B.ts From C, B [Range 90] Where C.pid = B.pid and C.pid > 1"
    c = pa.table({"pid": [1, 2, 3, 4, 5], "ts": [0, 1, 2, 3, 4]})
    b = pa.table({"pid": [2, 9, 4, 5], "ts": [2, 50, 70, 80]})
    streams = {"C": c, "B": b}
    given: dict[str, Any] = {"time": "ts", "unique": ["B.pid"]}
    exact = tg.cql(text, streams, **given).table
    hasty: dict[str, Any] = {"constraints": tg.RIDS("C -> B", within=5), "keep_shed": True}
    found = tg.cql(text, streams, **given, **hasty)
    assert found.table.column_names == ["who", "ts"]
    assert found.table.to_pylist() == [{"who": 2, "ts": 2}]
    later = tg.repair(streams, found, query=text, **given)
    assert found.table.to_pylist() + later.table.to_pylist() == exact.to_pylist()
    with pytest.raises(tg.TidegateError, match=r'filter of C: "C.pid > 1" -> "C.pid > 2"'):
        tg.repair(streams, found, query=text.replace("> 1", "> 2"), **given)
    with pytest.raises(tg.TidegateError, match="a query needs time and unique"):
        tg.repair(streams, found, query=text, time="ts")
    with pytest.raises(tg.TidegateError, match="there is no setting 'joins'"):
        tg.repair(streams, found, query=text, joins="C.pid -> B.pid", **given)
    counted = "Select count(*) From C, B Where C.pid = B.pid"
    with pytest.raises(tg.TidegateError, match="an aggregate has no shed_to or keep_shed"):
        tg.cql(counted, streams, **given, **hasty)
    with pytest.raises(tg.TidegateError, match="a query with aggregates has no archive"):
        tg.repair(streams, found, query=counted, **given)


def test_expressions_of_columns_and_aggregates() -> None:
    join = "From C [Range 2], B Where C.pid = B.pid"
    rows = of_two(
        f"Select C.v * 2 - B.pid as x, C.`a b`, -C.v as y {join}", v=[5, 6, 7], **{"a b": "pqr"}
    )
    assert rows == [
        {"x": 9, "a b": "p", "y": -5},
        {"x": 10, "a b": "q", "y": -6},
        {"x": 11, "a b": "r", "y": -7},
    ]
    rows = of_two(
        f"Select Istream(upper(C.s) as s, length(C.s) > 1 as b) {join}", s=["a", "bc", None]
    )
    assert rows == [{"s": "A", "b": False}, {"s": "BC", "b": True}, {"s": None, "b": None}]
    text = f"Select sum(C.v) / count(C.v) as mean, abs(min(C.v)) as least {join}"
    assert [tuple(row.values()) for row in of_two(text, v=[-4, 2, None])] == [
        (1, -4.0, 4),
        (2, -1.0, 4),
        (3, 2.0, 2),
    ]
    text = f"Select C.g, C.g + 1 as h {join} Group By C.g Having count(*) = 2"
    assert of_two(text, g=[1, 1, 1]) == [{"at": 2, "g": 1, "h": 2}, {"at": 3, "g": 1, "h": 2}]
