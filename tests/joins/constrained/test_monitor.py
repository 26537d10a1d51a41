"""Monitored constraints: the detected k, and whether a constraint saves memory."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins.constrained import Join, Monitored, Tup, Window

import tidegate as tg
from tidegate.engine.state_codec import from_bytes
from tidegate.joins.constrained.constraints import CA, OAC, OAP, RIDS, Constraint, Monitor
from tidegate.joins.constrained.engine import ConstrainedEngine, ConstrainedJob
from tidegate.joins.constrained.missed import missed_between
from tidegate.joins.constrained.spec import ConstrainedJoin, constrained_join
from tidegate.settings.rows import Rows
from tidegate.streams import links, many_one

from .test_constrained_engine import Case, run


def _waits(distances: list[int]) -> Case:
    """Return parents whose child comes a given number of child arrivals later."""
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
    monitor = Monitor(c=1.0, p=1.0, window=20, on_rise="suspend")
    spec = case.spec([RIDS("A -> B")], monitor=monitor)
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
    per_tuple = 11 / 5 if constraints[0].within else 1  # `t` counts the rows of all streams
    assert 0.25 * 20 <= max(ks) <= 20 * per_tuple * 1.5
    assert engine.take_counters()["missed"] == 0


def _followed(case: Case, monitor: Monitor) -> list[int | None]:
    """Return the k in use after each row, if rows are fed one by one."""
    job = ConstrainedJob(case.spec([RIDS("A -> B")], monitor=monitor))
    engine = job.engine_at(0, 1)
    seen: list[int | None] = []
    for tup in case.arrivals:
        list(engine.feed(case.batches(job, [tup])))
        seen.append(engine.adherence['RIDS("A -> B")'])
    list(engine.finish())
    return [*seen[1:], engine.adherence['RIDS("A -> B")']]  # a row waits for the next one


@given(
    st.lists(st.integers(0, 9), min_size=40, max_size=90),
    st.sampled_from([1.0, 1.2, 2.0]),
    st.integers(3, 12),
    st.booleans(),
)
def test_k_follows_the_rule(distances: list[int], c: float, window: int, suspends: bool) -> None:
    """Every row is sampled, so that the engine sees every distance, as its twin does."""
    case = _waits(distances)
    twin = Monitored(c, window, enough=window, suspends=suspends)
    expected: list[float] = []
    for at, tup in enumerate(case.arrivals):
        before = case.arrivals[:at]
        if tup.stream == "B":
            twin.row()
            # The engine visits the latest parent first.
            for i in reversed(range(at)):
                if before[i].stream == "A" and before[i]["x"] == tup["x"]:
                    later = case.arrivals[i + 1 : at + 1]
                    twin.distance(sum(t.stream == "B" for t in later))
        elif any(t.stream == "B" and t["x"] == tup["x"] for t in before):
            twin.distance(0)
        expected.append(twin.used)
    monitor = Monitor(c=c, p=1.0, window=window, on_rise="suspend" if suspends else "raise")
    found = _followed(case, monitor)
    assert [math.inf if k is None else k for k in found] == expected


@pytest.mark.parametrize(("largest", "follows"), [(11, True), (12, False)])
def test_a_distance_up_to_k_e_raises_k_and_one_beyond_suspends(largest: int, follows: bool) -> None:
    """All distances are 10, and k_e is 12; `_waits` counts from 0."""
    case = _waits([9] * 80 + [largest] + [9] * 30)
    seen = _followed(case, Monitor(c=1.2, p=1.0, window=20))
    first = next(i for i, k in enumerate(seen) if k is not None)
    later = set(seen[first:])
    assert 10 in later
    assert (12 in later) is follows
    assert (None in later) is not follows
    exact = run(case, case.spec())[0]
    lossy = case.spec([RIDS("A -> B")], monitor=Monitor(c=1.2, p=0.0, window=20))
    lost = exact - run(case, lossy)[0]
    assert (lost.total() == 0) is follows


def test_k_falls_only_after_two_windows() -> None:
    case = _waits([20] * 100 + [4] * 80)
    seen = [k for k in _followed(case, Monitor(c=1.2, p=1.0, window=20)) if k is not None]
    falls = [i for i, (one, other) in enumerate(itertools.pairwise(seen)) if other < one]
    assert seen[0] == 21
    assert seen[-1] == 5
    # A window has 20 rows of B, and as many of A.
    assert len(falls) == 1
    assert falls[0] > 40


def test_without_enough_distances_no_k_is_adopted() -> None:
    """Most parents have no child: a window without distances says nothing about k."""
    arrivals = []
    for i in range(400):
        arrivals.append(Tup("A", 2 * i, 2 * i, (("x", i if i % 50 == 0 else 10_000 + i),)))
        late = i - 30
        arrivals.append(Tup("B", 2 * i + 1, 2 * i + 1, (("x", late if late >= 0 else -1 - i),)))
    case = Case({"A": ["x"], "B": ["x"]}, [Join("A", "B", (("x", "x"),))], arrivals)
    assert set(_followed(case, Monitor(p=1.0, window=20))) == {None}
    assert 0 in _followed(case, Monitor(p=1.0, window=20, on_rise="suspend"))


@pytest.mark.parametrize("seed", range(3))
def test_the_motivating_query_finds_its_ks(seed: int) -> None:
    """The query of section 1.1: three links, one-one joins, packets that take up to a second."""
    streams = links(900, rate=5, delay=1.0, seed=seed)
    settings: dict[str, Any] = {
        "joins": ["C.pid <-> B.pid", "B.pid <-> O.pid"],
        "time": "ts",
        "within": 600_000,
    }
    ks = {"B -> C": 0, "O -> B": 0, "C -> B": 1_000, "B -> O": 1_000}
    monitor = Monitor(window=200)
    exact = tg.constrained_join(streams, **settings)
    known = [RIDS(join, within=k) for join, k in ks.items()]
    given = tg.constrained_join(streams, constraints=known, **settings)
    detect = [RIDS(join, within="detect") for join in ks]
    ways: list[Any] = [detect, "auto"]
    for way in ways:
        found = tg.constrained_join(streams, constraints=way, monitor=monitor, **settings)
        assert found.results == exact.results > 25
        assert found.counters["held"] <= 3 * given.counters["held"]
        assert found.counters["missed"] == found.counters["missed_low"] == 0
        assert 0 < found.counters["missed_high"] < 4_000
        for join, k in ks.items():
            assert found.counters[f'use of RIDS("{join}")'] > 0.5
            assert 0.9 * k <= found.counters[f'k of RIDS("{join}")'] <= k


def test_auto_watches_every_constraint_that_the_joins_allow() -> None:
    streams = many_one(600, kind="oac", k=20, seed=4)
    schemas = {name: table.schema for name, table in streams.items()}
    settings: dict[str, Any] = {"joins": "S1.A -> S2.A", "time": "t"}
    spec = constrained_join(schemas, constraints="auto", **settings)
    every = [RIDS("S1 -> S2", within="detect"), CA("S1.A", within="detect")]
    every += [OAP("S1.A", within="detect"), OAC("S2.A", within="detect")]
    assert spec.settings() == constrained_join(schemas, constraints=every, **settings).settings()
    text = {n: pa.schema([("A", pa.string()), ("t", pa.int64())]) for n in ("S1", "S2")}
    unordered = constrained_join(text, constraints="auto", **settings)
    assert [c.kind for c in unordered.constraints] == ["RIDS", "CA"]


def test_what_blocks_elimination_is_named() -> None:
    streams = many_one(300, kind="rids", k=20, seed=4)
    settings: dict[str, Any] = {"joins": ["S1.A -> S2.A", "S1.B -> S3.B"], "time": "t"}
    short = {name: table.slice(0, 20 if name == "S2" else 200) for name, table in streams.items()}
    without = tg.constrained_join(short, **settings).explain()
    assert 'no RIDS("S1 -> S2") or OAC("S2.A") is given' in without
    assert "yes rows wait for more rows of S1" in without
    told = tg.constrained_join(short, constraints=RIDS("S1 -> S2", k=20), **settings).explain()
    assert "unknown rows wait for S2" not in told
    assert 'RIDS("S1 -> S2"): used with k = 20 rows' in told
    swj = tg.constrained_join(short, eliminate=False, **settings).explain()
    assert "every row is held for its window: eliminate=False" in swj


@pytest.mark.parametrize("per_key", [1, 6])
@pytest.mark.parametrize("share", [0.0025, 0.05, 0.5])
def test_the_bounds_on_what_was_missed_hold_in_nine_of_ten_runs(share: float, per_key: int) -> None:
    rng = np.random.default_rng(11)
    covered = runs = 0
    for keys in (5, 60, 800):
        for _ in range(100):
            part, sampled = rng.integers(0, 16, keys), rng.random(keys) < share
            saved = (np.bincount(part[sampled], minlength=16) * per_key).tolist()
            all_given = (
                np.bincount(rng.integers(0, 16, 20 * keys), minlength=16) * per_key
            ).tolist()
            low, high = missed_between(saved, all_given, share)
            covered += low <= per_key * (~sampled).sum() <= high
            runs += 1
    assert covered >= 0.9 * runs


def test_where_the_sample_cannot_know_there_is_no_upper_bound() -> None:
    case = _waits([50] * 300)
    settings: dict[str, Any] = {"joins": "A.x -> B.x", "time": "t"}
    streams = {
        name: pa.table(
            {
                "x": [t["x"] for t in case.arrivals if t.stream == name],
                "t": [t.time for t in case.arrivals if t.stream == name],
            }
        )
        for name in "AB"
    }

    def bounds(constraints: Any, monitor: Monitor | None = None) -> tuple[float, float]:
        found = tg.constrained_join(streams, constraints=constraints, monitor=monitor, **settings)
        return found.counters["missed_low"], found.counters["missed_high"]

    assert bounds(None) == (0, 0)
    assert bounds(RIDS("A -> B", k=60)) == (0, 0)  # nothing was dropped
    assert bounds(RIDS("A -> B", k=10)) == (0, math.inf)  # nothing was sampled
    assert bounds(RIDS("A -> B", k=10), Monitor(p=0)) == (0, math.inf)
    low, high = bounds(RIDS("A -> B", k=10), Monitor(p=0.3))
    assert 0 < low < 300 * 0.7 < high < 600


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
    assert 0 < counters["missed_low"] < missing < counters["missed_high"] < 2 * missing


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
    """Example 8.2 on a long stream: CA clears No at once, and without No its parents wait for k."""
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
    """Return parents of values that come once and have no child, so that CA saves nothing."""
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
    stays = _moved(case, spec)
    assert list(stays.adherence.values()) == [None]


def test_what_is_measured_survives_a_restart() -> None:
    distances = np.random.default_rng(3).integers(0, 12, 400).tolist()
    case = _waits([*distances, *[25] * 80])
    spec = case.spec("auto", monitor=Monitor(window=30, p=0.2), lag=0)
    stays = _moved(case, spec)
    assert stays.take_counters()["missed"] > 0
    assert stays.details()['use of RIDS("A -> B")'] > 0.3


def _moved(case: Case, spec: ConstrainedJoin) -> ConstrainedEngine:
    """Feed two engines, one of which is moved after every batch, and compare their states."""
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
    assert moves.components() == stays.components()
    return stays


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
