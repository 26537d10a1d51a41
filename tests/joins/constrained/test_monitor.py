"""Monitored constraints: the detected k, and whether a constraint saves memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from twins.constrained import Join, Tup, Window

import tidegate as tg
from tidegate.engine.state_codec import from_bytes
from tidegate.joins.constrained.constraints import CA, OAC, OAP, RIDS, Constraint, Monitor
from tidegate.joins.constrained.engine import ConstrainedJob
from tidegate.joins.constrained.spec import constrained_join
from tidegate.settings.rows import Rows
from tidegate.streams import many_one

from .test_constrained_engine import Case, run


def _waits(distances: list[int]) -> Case:
    """Parents whose child comes a given number of child arrivals later."""
    arrivals: list[Tup] = []
    due: dict[int, list[int]] = {}
    time = filler = 0
    for at, distance in enumerate(distances):
        time += 1
        arrivals.append(Tup("A", time, time, (("x", at),)))
        due.setdefault(at + distance, []).append(at)
        for key in due.pop(at, [10**6 + filler]):
            time += 1
            filler += 1
            arrivals.append(Tup("B", time, time, (("x", key),)))
    return Case({"A": ["x"], "B": ["x"]}, [Join("A", "B", (("x", "x"),))], arrivals)


def test_k_is_found_and_a_rise_stops_its_use() -> None:
    case = _waits([3] * 60 + [8] * 80)
    spec = case.spec([RIDS("A -> B")], monitor=Monitor(c=1.0, p=1.0, window=20))
    job = ConstrainedJob(spec)
    engine = job.engine_at(0, 1)
    seen: list[int | None] = []
    for tup in case.arrivals:
        list(engine.feed(case.batches(job, [tup])))
        seen.append(engine.adherence['RIDS("A -> B")'])
    assert seen[0] is None
    found = [k for k in dict.fromkeys(seen) if k is not None]
    assert 4 in found or 3 in found
    start = next(i for i, k in enumerate(seen) if k is not None)
    rise = next(i for i in range(start, len(seen)) if seen[i] is None)
    assert rise >= 120  # not before the distances have grown
    assert seen[-1] is not None
    assert seen[-1] > min(found)


@pytest.mark.parametrize(
    ("kind", "joins", "constraints"),
    [
        ("rids", ["S1.A -> S2.A", "S1.B -> S3.B"], [RIDS("S1 -> S2")]),
        ("ca", ["S1.A -> S3.A", "S2.A -> S3.A"], [CA("S1.A"), CA("S2.A")]),
        (
            "oap",
            ["S1.A -> S3.A", "S2.A -> S3.A"],
            [OAP("S1.A", within="detect"), OAP("S2.A", within="detect")],
        ),
        ("oac", ["S1.A -> S2.A"], [OAC("S2.A")]),
    ],
)
def test_every_kind_of_k_is_found(
    kind: str, joins: list[str], constraints: list[Constraint]
) -> None:
    streams = many_one(600, kind=kind, k=20, seed=4)
    settings: dict[str, Any] = {"joins": joins, "time": "t", "within": Rows(500)}
    exact = tg.constrained_join(streams, **settings)
    schemas = {name: table.schema for name, table in streams.items()}
    monitor = Monitor(c=1.5, window=100)
    more: dict[str, Any] = {"constraints": constraints, "monitor": monitor, "lag": 0}
    job = ConstrainedJob(constrained_join(schemas, **settings, **more))
    engine = job.engine_at(0, 1)
    found, ks = 0, []
    last = sum(map(len, streams.values()))
    for at in range(0, last, 100):
        pieces = [
            table.filter((pc.field("t") >= at) & (pc.field("t") < at + 100)).combine_chunks()
            for table in streams.values()
        ]
        inputs = [
            [job.prepare(s, batch)[0] for batch in piece.to_batches()]
            for s, piece in enumerate(pieces)
        ]
        found += sum(batch.num_rows for batch in engine.feed(inputs))
        ks += [k for k in engine.adherence.values() if k is not None]
    found += sum(batch.num_rows for batch in engine.finish())
    assert found == exact.results > 1_000
    assert ks
    per_tuple = 11 / 5 if constraints[0].within else 1  # `t` counts the tuples of all streams
    assert 0.25 * 20 <= max(ks) <= 20 * per_tuple * 1.5
    assert engine.take_counters()["missed"] == 0


def test_what_was_missed_is_estimated() -> None:
    case = _waits([0] * 200 + [50] * 2_000)
    exact = run(case, case.spec())[0]
    monitor = Monitor(c=1.0, p=0.2, window=50)
    spec = case.spec([RIDS("A -> B", k=10)], monitor=monitor)
    found, engine = run(case, spec)
    counters = engine.take_counters()
    assert not found - exact
    missing = (exact - found).total()
    assert missing > 1_000
    spread = 3 * math.sqrt(missing * 0.8 / 0.2)
    assert abs(counters["missed"] - missing) < spread


def test_a_result_that_several_constraints_cost_is_estimated_once() -> None:
    """All joins share a key, which is sampled: all rows of a result are kept, or none."""
    at = np.arange(4_000) * 3
    late = np.where(np.arange(4_000) % 2, 40, 4_000)
    streams = {
        name: pa.table({"key": np.arange(4_000), "t": at + i * late + i}).sort_by("t")
        for i, name in enumerate("CBO")
    }
    settings: dict[str, Any] = {"joins": ["C.key -> B.key", "B.key -> O.key"], "time": "t"}
    exact = tg.constrained_join(streams, **settings).results
    hasty = [RIDS("C -> B", within=200), RIDS("B -> O", within=200)]
    for share in (0.05, 0.5):
        monitor = Monitor(c=1.0, p=share)
        found = tg.constrained_join(streams, constraints=hasty, monitor=monitor, **settings)
        missing = exact - found.results
        assert missing > 900
        spread = 3 * math.sqrt(missing / share)
        assert abs(found.counters["missed"] - missing) < spread


def test_a_constraint_that_makes_the_state_larger_is_not_used() -> None:
    """Example 8.2 at length: CA clears No at once, and without No its parents wait for k."""
    arrivals: list[Tup] = []
    for key in range(6_000):
        arrivals.append(Tup("B", 3 * key, 3 * key, (("x", key),), passes=key % 10 == 0))
        arrivals += [Tup("A", 3 * key + i, 3 * key + i, (("x", key),)) for i in (1, 2)]
    case = Case({"A": ["x"], "B": ["x"]}, [Join("A", "B", (("x", "x"),))], arrivals)
    constraints = [CA("A.x", k=0), RIDS("A -> B", k=500)]
    settings: dict[str, Any] = {"monitor": Monitor(window=200, p=0), "lag": 0}
    drops = run(case, case.spec(constraints, choose=False, **settings), 600)
    chooses = run(case, case.spec(constraints, **settings), 600)
    alone = run(case, case.spec(constraints[:1], **settings), 600)
    exact = Counter((3 * k + i, 3 * k) for k in range(0, 6_000, 10) for i in (1, 2))
    assert drops[0] == chooses[0] == alone[0] == exact
    assert alone[1].held < 50
    assert drops[1].held > 800
    assert chooses[1].held < 150  # the keys on trial that do without No


def test_a_constraint_that_makes_the_state_smaller_is_used() -> None:
    """Parents come first and few: No would only take memory."""
    arrivals = [Tup("B", key, key, (("x", key),), passes=key % 2 == 0) for key in range(4_000)]
    case = Case({"A": ["x"], "B": ["x"]}, [Join("A", "B", (("x", "x"),))], arrivals)
    _, engine = run(
        case, case.spec([RIDS("A -> B", k=0)], lag=0, monitor=Monitor(window=200, p=0)), 500
    )
    assert engine.components()["B"]["no"] < 200


def _strangers(count: int) -> Case:
    """Parents of values that come once and have no child: CA only has to remember them."""
    arrivals = []
    for i in range(count):
        arrivals.append(Tup("A", 2 * i, 2 * i, (("x", i),)))
        arrivals.append(Tup("B", 2 * i + 1, 2 * i + 1, (("x", count + i),)))
    windows = {"A": Window(rows=5), "B": Window(rows=5)}
    return Case({"A": ["x"], "B": ["x"]}, [Join("A", "B", (("x", "x"),))], arrivals, windows)


def test_a_constraint_that_remembers_more_than_it_clears_is_not_used() -> None:
    case = _strangers(4_000)
    settings: dict[str, Any] = {"monitor": Monitor(window=200, p=0), "lag": 0}
    constraints = [CA("A.x", k=3_000)]
    follows = run(case, case.spec(constraints, choose=False, **settings), 500)[1]
    chooses = run(case, case.spec(constraints, **settings), 500)[1]
    assert follows.adherence == {'CA("A.x")': 3_000}
    assert chooses.adherence == {'CA("A.x")': None}
    assert follows.take_counters()["bytes"] > 10 * chooses.take_counters()["bytes"]


@pytest.mark.parametrize("k", [3_000, None])
def test_an_order_that_clears_nothing_is_not_used(k: int | None) -> None:
    """Children have left their windows before OAP tells that all their parents have come."""
    case = _strangers(4_000)
    out_of_order = [
        replace(t, values=(("x", t["x"] - 2_900 * (t.time % 40 == 0)),)) for t in case.arrivals
    ]
    case = replace(case, arrivals=out_of_order)
    settings: dict[str, Any] = {"monitor": Monitor(window=200, p=0), "lag": 0}
    constraints = [OAP("A.x", k=k)]
    follows = run(case, case.spec(constraints, choose=False, **settings), 500)
    chooses = run(case, case.spec(constraints, **settings), 500)
    assert follows[0] == chooses[0]
    assert chooses[1].adherence == {'OAP("A.x")': None}
    assert follows[1].take_counters()["bytes"] > chooses[1].take_counters()["bytes"]


@pytest.mark.parametrize("known", [CA("A.x", k=300), OAP("A.x", k=300)])
def test_what_is_chosen_survives_a_restart(known: Constraint) -> None:
    case = _strangers(600)
    spec = case.spec([known], monitor=Monitor(window=50, p=0), lag=0)
    job = ConstrainedJob(spec)
    stays, moves = job.engine_at(0, 1), job.engine_at(0, 1)
    for at in range(0, len(case.arrivals), 100):
        batches = case.batches(job, case.arrivals[at : at + 100])
        list(stays.feed(batches))
        list(moves.feed(batches))
        records = moves.snapshot()
        moves = job.engine_at(0, 1)
        moves.restore(records)
        heads = [from_bytes(each.snapshot()[0])[0] for each in (moves, stays)]
        assert {**heads[0], "seq": 0} == {**heads[1], "seq": 0}
    assert list(stays.adherence.values()) == [None]


@pytest.mark.parametrize("kind", [CA, OAP])
def test_a_constraint_that_clears_is_used_and_one_that_cannot_is_not(
    kind: type[Constraint],
) -> None:
    """Theorem 5.1 needs all parents of a cover: with one of two, nothing follows."""
    streams = many_one(1_500, kind=kind.__name__.lower(), k=20, seed=2)
    both = [kind("S1.A", k=20), kind("S2.A", k=20)]
    settings: dict[str, Any] = {
        "joins": ["S1.A -> S3.A", "S2.A -> S3.A"],
        "time": "t",
        "within": Rows(300),
        "batch_rows": 500,
        "monitor": Monitor(window=200, p=0),
    }
    chosen = tg.constrained_join(streams, constraints=both, **settings)
    always = tg.constrained_join(streams, constraints=both, choose=False, **settings)
    alone = tg.constrained_join(streams, constraints=both[:1], **settings)
    assert chosen.results == always.results == alone.results > 5_000
    text = f'k of {kind.__name__}("S1.A")'
    assert chosen.counters[text] == always.counters[text] == 20
    assert chosen.counters["peak_held"] == always.counters["peak_held"]
    assert alone.counters[text] == math.inf
    assert alone.counters["peak_held"] > 2 * chosen.counters["peak_held"]
