"""Compare what the window join learns from ghosts with its twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.rules import LEARNED
from tidegate.joins.window.spec import window_join
from tidegate.policies import (
    Age,
    Fifo,
    Rand,
)

from .cases import INTEGERS, REALS, Case, pairs_of, prepared, run_case


@pytest.mark.parametrize("within", [(60, 60), (90, 30), (70, None), (None, None)])
@pytest.mark.parametrize("schema", [INTEGERS, REALS])
def test_auto_learns_as_its_twin_does(schema: pa.Schema, within: tuple[Any, Any]) -> None:
    """The stream has several fits, feeds and restarts, and the frequencies of keys change."""
    rng = np.random.default_rng(5)
    spec = window_join(schema, schema, on="k", time="t", within=within, memory=20, policy="auto")
    cells = []
    for uid in range(420):
        hot = int(rng.zipf(1.6)) % 15 + (5 if uid > 200 else 0)
        cells.append((int(rng.integers(2)), hot, uid // 2, uid))
    feeds = [cells[at : at + 70] for at in range(0, len(cells), 70)]
    learned = run_case(Case(spec, feeds, restarts={1, 3, 4}))
    assert sum(learned.values()) > 100


@pytest.mark.parametrize("within", [60, (90, 30), [(0, 40), (120, 80)]])
@pytest.mark.parametrize("memory", [20, 100])
@pytest.mark.parametrize("exact_limit", [0, 256])
def test_age_learns_its_curve_as_its_twin_does(exact_limit: int, memory: int, within: Any) -> None:
    """Partners come after a delay, so that middle ages are worth most."""
    rng = np.random.default_rng(11)
    spec = window_join(
        INTEGERS, INTEGERS, on="k", time="t", within=within, memory=memory, policy="age"
    )
    times = sorted(
        [(uid // 2, 0, uid) for uid in range(450)]
        + [(uid // 2 + int(rng.normal(25, 6)), 1, uid) for uid in range(450)]
    )
    cells = [(side, key, time, uid) for uid, (time, side, key) in enumerate(times)]
    feeds = [cells[at : at + 150] for at in range(0, len(cells), 150)]
    learned = run_case(Case(spec, feeds, restarts={1, 3}, exact_limit=exact_limit))
    assert sum(learned.values()) > 50


@pytest.mark.parametrize(("name", "learns"), [("auto", "rates"), ("age", "ages")])
def test_what_is_learned_is_part_of_a_memory_in_bytes(name: str, learns: str) -> None:
    spec = window_join(INTEGERS, INTEGERS, on="k", time="t", within=60, memory="8 MB", policy=name)
    engine = WindowEngine(spec)
    core = engine._tables.core
    taken = (core.worth, core.cells, core.returns, core.factors, core.ghosts, core.trails)
    assert 0.8 * LEARNED[learns] < sum(part.nbytes for part in taken) + core.heads.nbytes
    assert sum(part.nbytes for part in taken) + core.heads.nbytes <= LEARNED[learns]
    assert spec.memory is not None
    assert engine._rules.budgets[0, 0] <= spec.memory - LEARNED[learns]


def test_auto_forgets_as_its_twin_does() -> None:
    """All keys change their frequencies, after several refits."""
    rng = np.random.default_rng(7)
    spec = window_join(INTEGERS, INTEGERS, on="k", time="t", within=60, memory=40, policy="auto")
    cells = []
    for uid in range(3800):
        key = int(100 * rng.random() ** 3)
        place = key if uid < 3000 else 99 - key
        cells.append((int(rng.integers(2)), place, uid // 4, uid))
    whole = run_case(Case(spec, [cells[:3100], cells[3100:]], restarts={0}))
    assert sum(whole.values()) > 1000
    engine = WindowEngine(spec)
    found = pairs_of(engine.feed([[prepared(spec, cells, side)] for side in range(2)]))
    assert found + pairs_of(engine.finish()) == whole
    assert engine._tables.core.scalars[0].epoch < 0


def test_an_age_curve_is_learned() -> None:
    """Partners come at two ages only; the join learns the ranks of rows between these ages."""
    units, window = 3000, 100
    left = [(0, key, 10 * key, key) for key in range(units)]
    right = [
        (1, key, 10 * key + age, 10**6 + 9 * key + age) for key in range(units) for age in (5, 75)
    ]
    cells = sorted(left + right, key=lambda cell: cell[2])
    recall = {}
    for policy in (Age(), Age([1, 0, 0, 0, 0, 0, 0, 1, 0, 0]), Fifo(), Rand()):
        spec = window_join(
            INTEGERS,
            INTEGERS,
            on="k",
            time="t",
            within=(window, 1),
            memory=5,
            split=0.8,
            policy=policy,
        )
        engine = WindowEngine(spec)
        pairs = pairs_of(engine.feed([[prepared(spec, cells, side)] for side in range(2)]))
        recall[policy.name + ("" if policy != Age() else " learned")] = sum(pairs.values()) / (
            2 * units
        )
    assert recall["age learned"] > 0.9 * recall["age"]
    assert recall["age"] > 1.2 * max(recall["fifo"], recall["rand"])
