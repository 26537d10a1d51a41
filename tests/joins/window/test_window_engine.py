"""Compare the window engine with its slow twin, result for result."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from twins import window as naive

from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.spec import SHED_WHEN, window_join
from tidegate.policies import (
    Age,
    Policy,
    Prob,
    Rand,
)
from tidegate.settings.schedules import Step

from .cases import (
    EVERY,
    GIVEN,
    INTEGERS,
    REALS,
    Case,
    Cell,
    cases,
    held_of,
    naive_rows,
    passed_on,
    prepared,
    run_case,
    shed_of,
    windows_of,
)


@given(cases())
@settings(max_examples=400)
def test_engine_equals_twin(case: Case) -> None:
    run_case(case)


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
@pytest.mark.parametrize("importance", [None, "w"])
def test_every_policy_equals_its_twin(policy: Policy, importance: str | None) -> None:
    """A new policy needs no entry here: the twin follows from its class attributes."""
    rng = np.random.default_rng(3)
    cells = [(int(rng.integers(2)), int(rng.zipf(1.5)) % 8, t // 2, t) for t in range(200)]
    feeds = [cells[start : start + 50] for start in range(0, len(cells), 50)]
    for memory, split in ((6, "shared"), (9, "fixed")):
        spec = window_join(
            INTEGERS,
            INTEGERS,
            on="k",
            time="t",
            within=(20, 12),
            memory=memory,
            split=split,
            policy=policy,
            importance=importance,
        )
        assert run_case(Case(spec, feeds, restarts={1}))


@given(cases(closed=True))
@settings(max_examples=100)
def test_closed_windows_have_their_end(case: Case) -> None:
    run_case(case)


def test_a_row_exactly_a_closed_window_away_joins() -> None:
    spec = window_join(REALS, REALS, on="k", time="t", within=(1.5, 0.5))
    cells = [(0, 1, 1.0, 0), (1, 1, 2.5, 1), (1, 1, 2.75, 2), (1, 1, 0.5, 3), (1, 1, 0.25, 4)]
    assert run_case(Case(spec, [cells])) == Counter()
    assert run_case(Case(spec, [cells], closed=True)) == Counter([(0, 1), (0, 3)])


def test_a_row_is_late_if_its_partners_may_have_expired() -> None:
    spec = window_join(INTEGERS, INTEGERS, on="k", time="t", within=(5, None), lateness=3)
    for time, out_of_order, late in ((20, 0, 0), (19, 1, 0), (17, 1, 0), (16, 1, 1)):
        engine = WindowEngine(spec)
        for feed in ([(1, 1, 20, 0)], [(1, 1, time, 1)]):
            list(engine.feed([[prepared(spec, feed, side)] for side in range(2)]))
        counters = engine.take_counters()
        assert (counters["out_of_order"], counters["late"]) == (out_of_order, late)


@given(cases(order="whole"))
@settings(max_examples=150)
def test_cuts_and_restarts_change_nothing(case: Case) -> None:
    whole = Case(case.spec, [[c for feed in case.feeds for c in feed]])
    assert run_case(case) == run_case(whole)


@given(cases(order="each"))
@settings(max_examples=150)
def test_streams_need_not_keep_in_step_to_be_exact(case: Case) -> None:
    exact = replace(case.spec, budget=(Step(0, None),))
    cells = [c for feed in case.feeds for c in feed]
    wanted = naive.exact(naive_rows(exact, cells), windows_of(exact))
    assert run_case(replace(case, spec=exact)) == wanted
    assert run_case(case) <= wanted


@given(cases(order="whole"))
@settings(max_examples=150)
def test_results_are_exact_ones_and_all_of_them_with_memory(case: Case) -> None:
    cells = [c for feed in case.feeds for c in feed]
    wanted = naive.exact(naive_rows(case.spec, cells), windows_of(case.spec))
    found = run_case(case)
    assert found <= wanted
    if case.spec.memory is None or (not case.spec.in_bytes and case.spec.memory >= 4 * len(cells)):
        assert found == wanted


@pytest.mark.parametrize(
    "policy",
    [*EVERY, Prob(GIVEN), Age([1, 2])],
    ids=lambda policy: policy.name,
)
@pytest.mark.parametrize("shed_when", SHED_WHEN)
def test_memory_of_the_whole_window_is_exact(policy: Policy, shed_when: str) -> None:
    rng = np.random.default_rng(5)
    cells = [(int(rng.integers(2)), int(rng.integers(4)), t // 3, t) for t in range(300)]
    settings_of: dict[str, Any] = {
        "on": "k",
        "time": "t",
        "within": (7, 11),
        "policy": policy,
        "shed_when": shed_when,
    }
    wanted = run_case(Case(window_join(INTEGERS, INTEGERS, **settings_of), [cells]))
    enough = run_case(Case(window_join(INTEGERS, INTEGERS, memory=60, **settings_of), [cells]))
    assert sum(wanted.values()) > 100
    assert enough == wanted


@pytest.mark.parametrize("policy", [Rand(), Prob(), Prob("window"), Prob("sketch")])
def test_bytes_are_those_really_held(policy: Policy) -> None:
    """All arrays and all payload fit in the memory, except those of the current batch."""
    budget, batch = 4_000_000, 500
    spec = window_join(
        INTEGERS, INTEGERS, on="k", time="t", within=10**9, memory="4 MB", policy=policy
    )
    rng = np.random.default_rng(0)
    engine = WindowEngine(spec)
    for start in range(0, 40_000, batch):
        cells = [
            (side, int(rng.integers(10**6)), start + i, start + i)
            for i in range(batch)
            for side in range(2)
        ]
        for _ in engine.feed([[prepared(spec, cells, side)] for side in range(2)]):
            pass
    in_use = engine._tables.nbytes + sum(p.nbytes for p in engine._payload)
    assert engine.take_counters()["bytes"] <= budget
    assert 0.6 * budget < in_use < budget + 2 * batch * 500


def test_a_long_window_before_short_ones() -> None:
    """Many rows expire before earlier ones; held rows and their heap stay few."""
    spec = window_join(
        INTEGERS, INTEGERS, on="k", time="t", within=[(0, 10**6), (5, 10)], memory=64
    )
    engine = WindowEngine(spec)
    for start in range(0, 20_000, 100):
        cells = [(side, t, t, 2 * t + side) for t in range(start, start + 100) for side in range(2)]
        for _ in engine.feed([[prepared(spec, cells, side)] for side in range(2)]):
            pass
    counters = engine.take_counters()
    # Per side: five rows of the long window, nine of the short one; the last tick is still open.
    assert counters["held"] == 2 * (5 + 9)
    assert counters["shed"] == 0
    assert engine._tables.core.due_heap.shape[1] < 1000


def test_a_quiet_shard_keeps_to_a_smaller_memory() -> None:
    """Other shards' clocks tell it that a smaller memory is in force."""
    spec = window_join(
        INTEGERS, INTEGERS, on="k", time="t", within=100, memory=[(0, 8), (20, 2)], policy="fifo"
    )
    engine = WindowEngine(spec, keep_shed=True)
    cells: list[Cell] = [(0, t, t, t) for t in range(6)]
    inputs = [[prepared(spec, cells, side)] for side in range(2)]
    for clock, held in ((20, 6), (21, 2)):
        for _ in engine.feed(inputs if clock == 20 else [[], []], (clock, clock)):
            pass
        assert engine.take_counters()["held"] == held
    assert shed_of(engine) == Counter(naive.Shed(uid, 21, "shed") for uid in range(4))
    new = passed_on(engine, [])
    assert held_of(new) == {4, 5}
