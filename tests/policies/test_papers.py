"""The papers' worked examples, through the engine."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aging import aging
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.policies.age import priorities

IMPORTANCE = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}


def slides(values: str) -> pa.Table:
    """Return a stream of paper 5's slides: one value at each of the times 1 to 8."""
    return pa.table(
        {"k": list(values), "t": range(1, 9), "imp": [IMPORTANCE[value] for value in values]}
    )


@pytest.mark.parametrize(
    ("policy", "shed_when", "results", "importance"),
    [
        (None, "before-arrival", 16, 36),
        ("fifo", "before-arrival", 4, 6),
        ("greedy", "before-arrival", 5, 13),
        ("simp", "before-arrival", 5, 13),
        ("size", "before-arrival", 6, 11),
        ("fifo", "after-probe", 9, 20),
        ("greedy", "after-probe", 9, 23),
    ],
)
def test_ijoin_slides(policy: str | None, shed_when: Any, results: int, importance: float) -> None:
    """Kulkarni, Ravishankar: two rows per stream; the window is the whole stream."""
    bounded: dict[str, Any] = {} if policy is None else {"memory": 4, "policy": policy}
    found = tg.join(
        slides("abcddbac"),
        slides("babbccda"),
        on="k",
        time="t",
        within="unbounded",
        split="fixed",
        importance="imp",
        shed_when=shed_when,
        **bounded,
    )
    assert (found.results, found.importance) == (results, importance)


@pytest.mark.parametrize("seconds", [False, True])
def test_dgl_loses_nothing_at_an_instant_with_output(seconds: bool) -> None:
    """Towne, Zhu, Zuzarte, Hou, section 3.2: P' + gain with output, P' - beta without.

    Each stream has room for one row. s0 begins with 2 * 1, because of r0, and has no output at 1:
    2 - 1. At 2 it joins r2: P' + gain is 1 + 2 * 1 * 3/5 = 2.2, more than the 2 * 1 of s2. So s0
    stays and joins r3. If beta were subtracted at 2 as well, s0 would have 1.2, and s2 would stay
    and join r3.
    """

    def stream(rows: list[tuple[int, int]], key: str) -> pa.Table:
        times: Any = pa.array(range(4), pa.int64())
        if seconds:
            times = pa.array([1_000_000 * t for t in range(4)], pa.timestamp("us"))
        return pa.table({key: [k for k, _ in rows], "t": times, "w": [float(w) for _, w in rows]})

    found = tg.star_join(
        {
            "r": stream([(1, 1), (0, 4), (1, 2), (1, 3)], "a"),
            "s": stream([(0, 2), (1, 1), (0, 2), (1, 1)], "b"),
        },
        pa.table({"a": [1, 0], "b": [0, 1]}),
        on=["a", "b"],
        time="t",
        within="5 s" if seconds else 5,
        memory=2,
        split="fixed",
        importance="w",
        policy=tg.DGL(beta=1.0),
    )
    times = [found.table.column(name).cast(pa.int64()).to_pylist() for name in ("t_r", "t_s")]
    second = 1_000_000 if seconds else 1
    pairs = {(r // second, s // second) for r, s in zip(*times, strict=True)}
    assert pairs == {(0, 0), (1, 1), (2, 0), (2, 2), (3, 0)}


@pytest.mark.parametrize(
    ("curve", "cells", "a_unit"),
    [
        ([1, 1, 2, 1], 1, 4 / 3),  # example 3.3
        ([1, 1, 2, 1], 2, 8 / 3),  # the same, staggered over two cells
        ([3, 0, 2], 2, 4),  # example 3.4, a curve with a minimum
        ([4, 2, 1], 2, 6),  # no minimum and k_opt = 1: hold each row as long as memory allows
    ],
)
def test_age_reaches_the_paper_s_rates(curve: list[int], cells: int, a_unit: float) -> None:
    """Srivastava, Widom, section 3.2.1: results per unit of time."""
    units = 300
    left, right = aging(curve, units)
    # The right side's share of the memory finds nothing: no left row comes after its partners.
    found = tg.join(
        left,
        right,
        on="k",
        time="t",
        within=(10 * len(curve), 1),
        memory=cells + 1,
        split=cells / (cells + 1),
        policy=tg.Age(curve),
    )
    assert found.results == pytest.approx(units * a_unit, rel=0.02)


@pytest.mark.parametrize("curve", [[1, 1, 2, 1], [1, 2, 3, 4], [5, 3, 1], [1, 4, 9, 4, 1], [2]])
def test_priority_agrees_with_the_closed_form(curve: list[int]) -> None:
    """Without minima: at age 0 it is the best C(k)/k, and beyond k_opt it only falls."""
    sums = [sum(curve[: k + 1]) for k in range(len(curve))]
    rates = [total / (k + 1) for k, total in enumerate(sums)]
    best = rates.index(max(rates)) + 1
    ranks = priorities(curve)
    assert ranks[0] == pytest.approx(max(rates))
    assert all(rank >= ranks[0] - 1e-12 for rank in ranks[:best])
    assert all(later <= ranks[0] + 1e-12 for later in ranks[best:])
    assert ranks[best:] == sorted(ranks[best:], reverse=True)


@pytest.mark.parametrize("shape", ["falls", "rises", "flat", "any"])
def test_a_curve_may_have_a_million_points(shape: str) -> None:
    """The steepest chords are the sides of a hull, so each point is visited only a few times."""
    points = np.linspace(2.0, 1.0, 1_000_000)
    curve = {
        "falls": points,
        "rises": points[::-1],
        "flat": np.ones(1_000_000),
        "any": np.random.default_rng(1).random(1_000_000),
    }[shape]
    ranks = np.array(priorities(curve))
    total = np.concatenate([[0.0], np.cumsum(curve)])
    for i in (0, 1, 17, 499_999, 999_990, 999_999):
        chords = (total[i + 1 :] - total[i]) / np.arange(1, len(total) - i)
        assert ranks[i] == pytest.approx(chords.max(), rel=1e-9)
    assert len(json.dumps(tg.Age(curve).settings())) < 1_000


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_priorities_are_the_paper_s(curve: list[int]) -> None:
    """The formula of section 3.2.1, literally."""
    total = [sum(curve[:i]) for i in range(len(curve) + 1)]
    for i, rank in enumerate(priorities(curve)):
        chords = [(total[j] - total[i]) / (j - i) for j in range(i + 1, len(total))]
        assert rank == pytest.approx(max(chords), rel=1e-12)


def test_steps_of_a_curve_play_no_part() -> None:
    """Sides are compared by results per unit of time, whatever their steps and windows."""
    left, right = aging([1, 1, 2, 1], 60)
    both = pa.concat_tables([left, right]).sort_by("t")
    given = ([1, 3], [4, 2, 2, 1, 1, 1, 1, 0])
    as_fine = ([0.25] * 4 + [0.75] * 4, given[1])
    found = [
        tg.join(both, both, on="k", time="t", within=(40, 20), memory=9, policy=tg.Age(curves))
        for curves in (given, as_fine)
    ]
    assert found[0].table == found[1].table
    assert found[0].counters["shed"] > 0


def test_a_memory_smaller_than_a_step_lets_rows_grow_old() -> None:
    """All results come in the second half of the window."""
    left = pa.table({"k": range(400), "t": range(400)})
    right = pa.table({"k": range(400), "t": range(90, 490)})
    found = tg.join(
        left, right, on="k", time="t", within=(100, 1), memory=11, split=0.95, policy=tg.Age([0, 1])
    )
    assert found.results == pytest.approx(400 * 10 / 91, rel=0.1)


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), -1.0])
def test_an_importance_that_weighs_nothing_is_refused(bad: float | None) -> None:
    table = pa.table({"k": [1, 2], "t": [1, 2], "w": pa.array([1.0, bad], pa.float64())})
    with pytest.raises(tg.TidegateError, match=f'column "w" has {bad!r}; filter such rows'):
        tg.join(table, table, on="k", time="t", within=1, importance="w")


@pytest.mark.parametrize("policy", [tg.Age([1, 2]), tg.DGL()])
def test_a_window_without_an_end_has_no_age_and_no_life(policy: tg.Policy) -> None:
    table = pa.table({"k": [1], "t": [1]})
    with pytest.raises(tg.TidegateError, match="unbounded"):
        tg.join(table, table, on="k", time="t", within="unbounded", memory=5, policy=policy)
