"""Delivered and repaired results together are the exact join, and none comes twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins.constrained import Join, Tup

import tidegate as tg
from tidegate.joins.constrained.constraints import CA, OAC, OAP, RIDS, Constraint
from tidegate.joins.constrained.engine import ConstrainedJob
from tidegate.joins.constrained.repair import RepairJob
from tidegate.joins.constrained.shed_log import MARK
from tidegate.joins.constrained.spec import ConstrainedJoin

from .test_constrained_engine import Case, Results, cases, results_of


@st.composite
def guessed(draw: st.DrawFn) -> tuple[Case, list[Constraint]]:
    """A case, and constraints of all kinds with any k: most do not hold."""
    case = draw(cases())
    constraints: list[Constraint] = []
    for join in case.joins:
        [(a, b)] = join.on
        places = {
            RIDS: f"{join.parent} -> {join.child}",
            CA: f"{join.parent}.{a}",
            OAP: f"{join.parent}.{a}",
            OAC: f"{join.child}.{b}",
        }
        for kind in draw(st.sets(st.sampled_from((RIDS, CA, OAP, OAC)))):
            unit = draw(st.sampled_from(("k", "within")))
            constraints.append(kind(places[kind], **{unit: draw(st.integers(0, 6))}))
    return case, constraints


def delivered(case: Case, spec: ConstrainedJoin, cuts: Sequence[int]) -> tuple[Results, pa.Table]:
    """Return what a join gives and archives, with a restart after each batch."""
    job = ConstrainedJob(spec)
    engine, records = job.engine_at(0, 1), list[bytes]()
    found: Results = Counter()
    shed = []
    for start, end in zip([0, *cuts], [*cuts, len(case.arrivals)], strict=True):
        found += results_of(engine.feed(case.batches(job, case.arrivals[start:end])))
        shed.append(engine.take_shed())
        records.append(engine.changes())
        engine = job.engine_at(0, 1)
        engine.restore(records)
    found += results_of(engine.finish())
    return found, pa.concat_tables([*shed, engine.take_shed()])


def repaired(case: Case, spec: ConstrainedJoin, shed: pa.Table) -> Results:
    job = RepairJob(spec)
    engine = job.engine_at(0, 1)
    batches = shed.select(["side", MARK]).combine_chunks().to_batches()
    lines = [job.prepare(len(spec.streams), batch)[0] for batch in batches]
    plain = ConstrainedJob(spec)
    assert not list(engine.feed([*case.batches(plain, case.arrivals), lines]))
    return results_of(engine.finish())


@given(guessed(), st.sets(st.integers(1, 23), max_size=3), st.sampled_from([None, 0]))
def test_what_constraints_cost_is_repaired(
    drawn: tuple[Case, list[Constraint]], cuts: set[int], lag: int | None
) -> None:
    case, constraints = drawn
    spec = replace(case.spec(constraints, lag=lag), archive=True)
    chosen = sorted(cut for cut in cuts if cut < len(case.arrivals))
    found, shed = delivered(case, spec, chosen)
    assert found + repaired(case, spec, shed) == case.exact()


@given(guessed(), st.integers(2, 4))
def test_where_joins_are_not_many_one_nothing_is_wrong_or_twice(
    drawn: tuple[Case, list[Constraint]], fold: int
) -> None:
    case, constraints = drawn
    arrivals = [
        Tup(t.stream, t.time, t.uid, tuple((n, v // fold) for n, v in t.values), t.passes)
        for t in case.arrivals
    ]
    case = Case(case.columns, case.joins, arrivals, case.windows)
    spec = replace(case.spec(constraints), archive=True)
    found, shed = delivered(case, spec, [])
    assert not (found + repaired(case, spec, shed)) - case.exact()


@given(guessed(), st.integers(1, 8), st.randoms())
def test_where_rows_come_late_nothing_is_wrong_or_twice(
    drawn: tuple[Case, list[Constraint]], cut: int, random: Random
) -> None:
    case, constraints = drawn
    spec = replace(case.spec(constraints), archive=True)
    parts = [case.arrivals[at : at + cut] for at in range(0, len(case.arrivals), cut)]
    random.shuffle(parts)
    late = replace(case, arrivals=[t for part in parts for t in part])
    found, shed = delivered(late, spec, list(range(cut, len(case.arrivals), cut)))
    given = found + repaired(case, spec, shed)
    assert not given - replace(case, windows={}).exact()


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_rows_that_are_the_same_are_told_apart(cut: int) -> None:
    """The first of three equal rows advances the clock, and OAP clears what all of them join."""
    rows = [("B", 0, 1), ("A", 10, 4), ("A", 17, 1), ("A", 17, 1), ("A", 17, 1), ("B", 18, 4)]
    rows += [("A", 18, 1), ("A", 18, 1)]
    arrivals = [Tup(name, time, 0, (("x", x),)) for name, time, x in rows]
    case = Case({"A": ["x"], "B": ["x"]}, [Join("A", "B", (("x", "x"),))], arrivals)
    spec = replace(case.spec([OAP("A.x", within=4)], lag=0), archive=True)
    found, shed = delivered(case, spec, [cut])
    assert len(shed) == 1
    assert (found.total(), repaired(case, spec, shed).total()) == (2, 4)


def test_what_was_not_noted_is_not_taken_for_nothing() -> None:
    streams = {
        "C": pa.table({"pid": [1, 2], "ts": [0, 5]}),
        "B": pa.table({"pid": [1, 2], "ts": [1, 6]}),
    }
    through: dict[str, Any] = {"joins": "C.pid -> B.pid", "time": "ts"}
    found = tg.constrained_join(streams, constraints=[tg.RIDS("C -> B", k=0)], **through)
    with pytest.raises(tg.TidegateError, match="keep_shed=True"):
        tg.repair(streams, found, **through)


def test_settings_of_another_join_are_refused() -> None:
    table = pa.table({"ts": [1, 2, 3], "k": [1, 2, 3]})
    streams = {"A": table, "B": table}
    through: dict[str, Any] = {"joins": "A.k -> B.k", "time": "ts", "within": 9}
    known = tg.RIDS("A -> B", k=0)
    found = tg.constrained_join(streams, **through, constraints=known, keep_shed=True)
    assert tg.repair(streams, found, **through, choose=False).results >= 0
    for other, words in (
        ({"within": {"A": 9, "B": 5}}, "window of B: 9 -> 5"),
        ({"filters": {"A": "k > 1"}}, 'filter of A: null -> "k > 1"'),
        ({"joins": "A.k <-> B.k"}, "joins: "),
        ({"select": ["A.k"]}, "select: "),
    ):
        with pytest.raises(tg.TidegateError, match=f"other settings(.|\n)*{words}"):
            tg.repair(streams, found, **{**through, **other})
    with pytest.raises(tg.TidegateError, match="streams: "):
        tg.repair({"B": table, "A": table}, found, **through)
