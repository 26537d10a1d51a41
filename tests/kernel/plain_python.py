"""A small part of the twin tests of all engines, for `test_without_compiler.py` to run.

By hand: `NUMBA_DISABLE_JIT=1 pytest tests/kernel/plain_python.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joins.constrained import test_constrained_engine as constrained
from joins.sampled import test_sampled_engine as sampled
from joins.star import test_star_engine as star
from joins.window import cases as window
from joins.window import test_queue as queue

import tidegate as tg
from benchmarks import approximation, exact_ranking
from tidegate.joins.constrained.constraints import Constraint
from tidegate.joins.window import slices
from tidegate.joins.window.spec import window_join
from tidegate.settings.slow_cpu import SlowCPU

few = settings(max_examples=20)


@given(window.cases())
@settings(max_examples=50)
def test_window(case: window.Case) -> None:
    window.run_case(case)


@pytest.mark.parametrize(
    "policy",
    [tg.Auto(), tg.Prob("window"), tg.Life("sketch"), tg.IJoin(recompute=5), tg.DGL()],
    ids=str,
)
def test_longer_streams(policy: tg.Policy) -> None:
    """The streams are long enough to learn from, and have more keys than are counted."""
    rng = np.random.default_rng(5)
    keys = rng.zipf(1.5, 300) % 40
    cells = [(int(rng.integers(2)), int(keys[i]), i // 3, i) for i in range(300)]
    schema = window.INTEGERS
    spec = window_join(schema, schema, on="k", time="t", within=15, memory=12, policy=policy)
    window.run_case(window.Case(spec, [cells[:200], cells[200:]], restarts={0}))


@pytest.mark.parametrize(
    "policy", [tg.Prob(), tg.Rand(), tg.GreedyDual(), tg.Age([1, 2, 4, 2, 1])], ids=str
)
def test_larger_memories(policy: tg.Policy) -> None:
    """More rows are held than are ranked again for each choice, so that queues are used."""
    rng = np.random.default_rng(7)
    keys = rng.zipf(1.5, 900) % 60
    cells = [(int(rng.integers(2)), int(keys[i]), i // 3, i) for i in range(900)]
    schema = window.INTEGERS
    spec = window_join(schema, schema, on="k", time="t", within=150, memory=200, policy=policy)
    feeds = [cells[:500], cells[500:]]
    window.run_case(window.Case(spec, feeds, restarts={0}, exact_limit=16))


def test_exact_ranks_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark's exact ranking equals the plain one in blocks of one choice."""
    memory = approximation.Memory(40, 1, windows=3)
    cell = approximation.Cell("Zipf", 40, 0.5, "fixed", "heeb")
    plain = approximation.measure(memory, cell, 0, "exact").results
    monkeypatch.setattr(slices, "_scan", exact_ranking._scan)
    assert approximation.measure(memory, cell, 0, "exact").results == plain
    blocks = approximation.measure(replace(memory, block=8), cell, 0, "exact").results
    assert blocks == pytest.approx(plain, rel=0.02)


@given(window.cases(closed=True))
@few
def test_closed_windows(case: window.Case) -> None:
    window.run_case(case)


@given(window.cases(), queue.cpus, st.sampled_from([1, 65_536]))
@few
def test_queue(case: window.Case, cpu: SlowCPU, keys: int) -> None:
    queue.run_case(replace(case, spec=replace(case.spec, cpu=cpu)), keys)


@given(sampled.cases())
@few
def test_sampled(case: sampled.Case) -> None:
    sampled.run_case(case)


@given(star.cases())
@few
def test_star(case: star.Case) -> None:
    star.check(case)


@given(constrained.cases(), st.integers(1, 25))
@few
def test_constrained(case: constrained.Case, cut: int) -> None:
    assert constrained.run(case, case.spec(), cut)[0] == case.exact()


@given(constrained.constrained(), st.integers(1, 25))
@few
def test_constraints(
    drawn: tuple[constrained.Case, list[Constraint], list[int], list[bool]], cut: int
) -> None:
    case, constraints, _, _ = drawn
    spec = case.spec(constraints=constraints)
    assert constrained.run(case, spec, cut)[0] == case.exact()
