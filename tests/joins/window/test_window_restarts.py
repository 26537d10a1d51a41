"""Restarts and the division into batches change no result of the window join."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.rules import EXACT_LIMIT
from tidegate.joins.window.spec import window_join
from tidegate.policies import (
    POLICIES,
    Heeb,
    IJoin,
    Life,
    Policy,
    Prob,
)

from .cases import INTEGERS, held_of, pairs_of, passed_on, prepared


@pytest.mark.parametrize(
    "policy",
    [kind() for kind in POLICIES.values()]
    + [Prob("window"), Life("window", keys=70), Heeb("window"), Prob("sketch", keys=16)]
    + [Heeb("sketch", keys=16), IJoin(2, 9, 0.1, 0.01, recompute=7)]
    + [IJoin(2, 9, 0.1, 0.01, recompute="adaptive")],
    ids=lambda policy: "-".join(str(value) for value in policy.settings().values()),
)
def test_what_was_learned_survives_restarts(policy: Policy) -> None:
    """A new engine after each batch gives the same results as one engine."""
    rng = np.random.default_rng(11)
    spec = window_join(
        INTEGERS, INTEGERS, on="k", time="t", within=90, memory=48, policy=policy, importance="w"
    )
    cells = [(int(rng.integers(2)), int(rng.zipf(1.5)) % 40, t // 2, t) for t in range(1500)]
    found = []
    for restarts in (False, True):
        engine = WindowEngine(spec, keep_shed=True)
        log: list[bytes] = []
        pairs: Counter[tuple[int, int]] = Counter()
        for start in range(0, len(cells), 60):
            feed = cells[start : start + 60]
            inputs = [[prepared(spec, feed, side)] for side in range(2)]
            pairs += pairs_of(engine.feed(inputs))
            if restarts:
                engine = passed_on(engine, log)
        found.append(pairs + pairs_of(engine.finish()))
    assert found[0] == found[1]
    assert sum(found[0].values()) > 200


@pytest.mark.parametrize(
    "policy",
    [*POLICIES, Prob("window"), Prob("sketch"), Life("sketch"), Heeb("sketch")],
    ids=lambda policy: policy if isinstance(policy, str) else f"{policy.name}-{policy.frequencies}",
)
def test_cuts_and_restarts_change_nothing_in_a_large_memory(policy: Any) -> None:
    """Above the limit of exact ranking, and with keys that come and go."""
    rng = np.random.default_rng(12)
    spec = window_join(
        INTEGERS,
        INTEGERS,
        on="k",
        time="t",
        within=4000,
        memory=1500,
        policy=policy,
        importance="w",
    )
    assert spec.memory is not None
    assert spec.memory > EXACT_LIMIT
    sides, keys = rng.integers(2, size=40_000), (5000 * rng.random(40_000) ** 2).astype(int)
    cells = [(side, key, t // 2, t) for t, (side, key) in enumerate(zip(sides, keys, strict=True))]

    def joined(size: int, *, restarts: bool) -> Counter[tuple[int, int]]:
        engine, log = WindowEngine(spec), list[bytes]()
        found: Counter[tuple[int, int]] = Counter()
        for start in range(0, len(cells), size):
            inputs = [[prepared(spec, cells[start : start + size], side)] for side in range(2)]
            found += pairs_of(engine.feed(inputs))
            if restarts:
                engine = passed_on(engine, log)
        return found + pairs_of(engine.finish())

    whole = joined(len(cells), restarts=False)
    assert sum(whole.values()) > 1000
    assert joined(7001, restarts=False) == whole
    assert joined(8000, restarts=True) == whole


@pytest.mark.parametrize("name", POLICIES)
def test_many_rows_of_few_keys_survive_a_restart(name: str) -> None:
    """There are more rows than the initial tables have room for, and few keys."""
    spec = window_join(INTEGERS, INTEGERS, on="k", time="t", within=5000, memory=3000, policy=name)
    first = [(0, t % 10, t, t) for t in range(4000)]
    last = [(1, t % 10, t, t) for t in range(4000, 4020)]
    found = []
    for restarts in (False, True):
        engine = WindowEngine(spec)
        assert not pairs_of(engine.feed([[prepared(spec, first, side)] for side in range(2)]))
        if restarts:
            engine = passed_on(engine, [])
        assert len(held_of(engine)) == 3000
        pairs = pairs_of(engine.feed([[prepared(spec, last, side)] for side in range(2)]))
        found.append(pairs + pairs_of(engine.finish()))
    assert found[0] == found[1]
    assert sum(found[0].values()) > 1000


@pytest.mark.parametrize("name", POLICIES)
def test_schedules_survive_restarts(name: str) -> None:
    """For every policy, a new engine after each batch gives the same results as one engine."""
    rng = np.random.default_rng(7)
    spec = window_join(
        INTEGERS,
        INTEGERS,
        on="k",
        time="t",
        within=([(0, 60), (150, 20), (400, 90)], [(0, 30), (300, 75)]),
        memory=[(0, 40), (200, 12), (350, 60), (351, 30), (500, 48)],
        policy=name,
    )
    cells = [(int(rng.integers(2)), int(rng.zipf(1.5)) % 40, t // 2, t) for t in range(1200)]
    found = []
    for restarts in (False, True):
        engine = WindowEngine(spec, keep_shed=True)
        log: list[bytes] = []
        pairs: Counter[tuple[int, int]] = Counter()
        most = 0.0
        for start in range(0, len(cells), 50):
            feed = cells[start : start + 50]
            pairs += pairs_of(engine.feed([[prepared(spec, feed, side)] for side in range(2)]))
            held = engine.take_counters()["held"]
            most = max(most, held)
            if 200 < feed[-1][2] < 350:
                assert held <= 12
            if restarts:
                engine = passed_on(engine, log)
        assert 12 < most <= 60
        found.append(pairs + pairs_of(engine.finish()))
    assert found[0] == found[1]
    assert sum(found[0].values()) > 200
