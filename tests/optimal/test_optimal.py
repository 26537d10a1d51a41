"""The optimum against brute force, against online policies, and carried out on the engine."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optimal.exhaustive import LEFT, RIGHT, Case, Row, Steps, always
from optimal.replay import check_bound, delivered, kept_until, planned

import tidegate as tg
from tidegate.streams import zipf

SHED_WHEN = ("after-probe", "before-probe", "before-arrival")
SPLITS: dict[float | None, Any] = {None: "shared", 0.5: "fixed", 0.3: 0.3}


def tables(rows: list[Row]) -> tuple[pa.Table, pa.Table]:
    found = []
    kind = pa.float64() if any(isinstance(row.time, float) for row in rows) else pa.int64()
    for side in (LEFT, RIGHT):
        mine = sorted((row for row in rows if row.side == side), key=lambda row: row.uid)
        found.append(
            pa.table(
                {
                    "k": pa.array([row.key for row in mine], pa.int64()),
                    "t": pa.array([row.time for row in mine], kind),
                    "x": pa.array([row.uid % 4 for row in mine], pa.int64()),
                    "imp": pa.array([row.importance for row in mine], pa.float64()),
                    "uid": pa.array([row.uid for row in mine], pa.int64()),
                }
            )
        )
    return found[0], found[1]


def settings(case: Case) -> dict[str, Any]:
    """Return the case as keywords of `tidegate.optimal`."""

    def plain(steps: Steps) -> Any:
        values = [(t, "unbounded" if math.isinf(v) else v) for t, v in steps]
        return values[0][1] if len(values) == 1 else values

    memory: Any = [(t, m) for t, m in case.memory]
    if len(memory) == 1:
        memory = None if math.isinf(memory[0][1]) else memory[0][1]
    found: dict[str, Any] = {
        "on": "k",
        "time": "t",
        "within": (plain(case.within[0]), plain(case.within[1])),
        "memory": memory,
        "split": SPLITS[case.split],
        "shed_when": case.shed_when,
    }
    if case.combine is not None:
        found |= {"importance": "imp", "combine": case.combine}
    if case.where is not always:
        found["where"] = "abs(l.x - r.x) <= 1"
    if case.pair_value is not None:
        found["value"] = "l.imp * r.imp - 3 * r.x + l.x"
    if not math.isinf(case.count_from):
        found["count_from"] = case.count_from
    return found


def near(left: Row, right: Row) -> bool:
    return abs(left.uid % 4 - right.uid % 4) <= 1


def valued(left: Row, right: Row) -> float:
    return left.importance * right.importance - 3 * (right.uid % 4) + left.uid % 4


def random_rows(draw: np.random.Generator, n: int, span: int, real: bool) -> list[Row]:
    rows = []
    counts = [0, 0]
    for _ in range(n):
        side = int(draw.integers(2))
        time: int | float = int(draw.integers(span))
        if real:
            time = time / 4 + 0.1
        # Only a few values, so that rows of equal importance occur.
        importance = float(draw.choice([0.5, 1.0, 2.5, 4.0]))
        rows.append(Row(side, int(draw.integers(2)), time, counts[side], importance))
        counts[side] += 1
    return rows


def random_case(seed: int, **changes: Any) -> Case:
    """Draw a case with any options, except for those that `changes` sets."""
    draw = np.random.default_rng(seed)
    real = bool(draw.random() < 0.25)
    span = int(draw.integers(3, 10))
    n = int(draw.integers(4, 10))
    if changes.pop("crowded", False):
        span, n = 3, 10
    rows = random_rows(draw, n, span, real)
    unit = 0.25 if real else 1

    def window() -> float:
        return math.inf if draw.random() < 0.15 else int(draw.integers(1, 7)) * unit

    def starts(most: int) -> list[Any]:
        count = int(draw.integers(1, most + 1))
        picked = np.sort(draw.choice(np.arange(-1, span + 1), count, replace=False))
        return [float(t) / 4 if real else int(t) for t in picked]

    split = [None, 0.5, 0.3][int(draw.integers(3))]
    low = 1 if split is None else 2
    case = Case(
        rows=rows,
        within=([(0, window())], [(0, window())]),
        memory=[(0, int(draw.integers(low, low + 3)))],
        split=split,
        shed_when=SHED_WHEN[int(draw.integers(2))],
    )
    if changes.pop("memory_changes", draw.random() < 0.2):
        case.memory = [(t, int(draw.integers(low, low + 3))) for t in starts(4)]
    if changes.pop("window_changes", draw.random() < 0.2):
        case.within = ([(t, window()) for t in starts(3)], [(t, window()) for t in starts(3)])
    if changes.pop("weighted", draw.random() < 0.3):
        case.combine = ["min", "max", "sum", "product"][int(draw.integers(4))]
    if changes.pop("filtered", draw.random() < 0.2):
        case.where = near
    if changes.pop("warmed_up", draw.random() < 0.2):
        case.count_from = starts(1)[0]
    return replace(case, **changes)


def check(case: Case) -> tg.Optimal:
    """Check that the value is optimal, that the plan delivers it, and that it fits."""
    found = tg.optimal(*tables(case.rows), **settings(case))
    assert found.importance == pytest.approx(case.optimum())
    assert found.upper_bound == found.importance
    until = kept_until(found)
    check_bound(case, until)
    pairs = delivered(case, until)
    got = zip(*(found.table.column(f"uid_{s}").to_pylist() for s in ("left", "right")), strict=True)
    assert set(got) == pairs
    assert found.results == found.table.num_rows == len(pairs)
    rows = {(row.side, row.uid): row for row in case.rows}
    value = sum(case.value(rows[LEFT, a], rows[RIGHT, b]) for a, b in pairs)
    assert found.importance == pytest.approx(value)
    return found


def test_the_example_of_figure_3_of_paper_1() -> None:
    r = pa.table({"k": [1, 1, 1, 3, 2], "t": range(5)})
    s = pa.table({"k": [2, 3, 1, 1, 3], "t": range(5)})
    join: dict[str, Any] = {"on": "k", "time": "t", "within": 3}
    assert tg.join(r, s, **join).results == 7
    assert tg.optimal(r, s, **join).results == 7
    found = tg.optimal(r, s, **join, memory=2, split="fixed")
    assert found.results == found.upper_bound == found.table.num_rows == 5


@pytest.mark.parametrize("part", range(8))
def test_random_cases_match_brute_force(part: int) -> None:
    for seed in range(100 * part, 100 * part + 100):
        check(random_case(seed))


@pytest.mark.parametrize("split", list(SPLITS))
@pytest.mark.parametrize("shed_when", SHED_WHEN[:2])
def test_splits_and_times_of_shedding_match_brute_force(
    split: float | None, shed_when: str
) -> None:
    for seed in range(30):
        case = random_case(1_000 + seed, split=split, shed_when=shed_when)
        case.memory = [(t, max(m, 2)) for t, m in case.memory]
        check(case)


@pytest.mark.parametrize(
    "option", ["weighted", "filtered", "memory_changes", "window_changes", "warmed_up"]
)
def test_options_match_brute_force(option: str) -> None:
    for seed in range(60):
        check(random_case(2_000 + seed, **{option: True}))


@pytest.mark.parametrize("combine", ["min", "max", "sum", "product"])
def test_importance_matches_brute_force(combine: str) -> None:
    for seed in range(25):
        check(random_case(3_000 + seed, combine=combine))


@pytest.mark.parametrize("shed_when", SHED_WHEN)
def test_values_of_pairs_match_brute_force(shed_when: str) -> None:
    negative = dropped = 0
    for seed in range(80):
        case = random_case(
            10_000 + seed, weighted=False, pair_value=valued, shed_when=shed_when, crowded=seed > 50
        )
        found = check(case)
        worth = [valued(*pair) for pair in _joining(case)]
        negative += any(value < 0 for value in worth)
        dropped += found.importance > sum(worth)
    assert negative > 40
    assert dropped > 20


def test_values_without_a_limit_of_memory_match_brute_force() -> None:
    for seed in range(40):
        case = random_case(11_000 + seed, weighted=False, pair_value=valued, split=None)
        case.memory = [(0, math.inf)]
        check(case)


def _joining(case: Case) -> list[tuple[Row, Row]]:
    return [
        (a, b)
        for a in case.rows
        for b in case.rows
        if a.side == LEFT and case.joins(a, b) and max(a.time, b.time) >= case.count_from
    ]


def test_many_arrivals_at_one_time_match_brute_force() -> None:
    for seed in range(60):
        check(random_case(4_000 + seed, crowded=True))


def test_a_condition_without_a_key_matches_brute_force() -> None:
    for seed in range(60):
        case = random_case(9_000 + seed, filtered=True)
        case.rows = [replace(row, key=0) for row in case.rows]
        found = check(case)
        join = settings(case) | {"on": None}
        assert tg.optimal(*tables(case.rows), **join).importance == found.importance


def test_unbounded_windows_match_brute_force() -> None:
    for seed in range(60):
        check(random_case(5_000 + seed, within=([(0, math.inf)], [(0, math.inf)])))


def test_small_cases_of_before_arrival_are_exact() -> None:
    for seed in range(80):
        check(random_case(6_000 + seed, shed_when="before-arrival"))


def test_the_engine_carries_out_the_plan() -> None:
    for seed in range(150):
        case = random_case(8_000 + seed, warmed_up=False, filtered=False)
        given_tables, join = tables(case.rows), settings(case)
        found = tg.optimal(*given_tables, **join)
        policy = planned(found, given_tables)
        online = tg.join(*given_tables, **join, policy=policy)
        assert online.importance == pytest.approx(found.importance)
        # No online policy is better.
        for name in ("prob", "fifo", "rand"):
            other = tg.join(*given_tables, **join, policy=name)
            assert other.importance <= found.importance + 1e-9


@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(["rand", "fifo", "prob", "life"]),
    memory=st.integers(2, 40),
    split=st.sampled_from(["shared", "fixed", 0.25]),
    shed_when=st.sampled_from(SHED_WHEN),
    rate=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_no_policy_beats_the_optimum(
    seed: int, policy: str, memory: int, split: Any, shed_when: Any, rate: float
) -> None:
    streams = zipf(100, domain=8, skew=1.0, rate=rate, seed=seed)
    join: dict[str, Any] = {"on": "key", "time": "time", "within": 25, "split": split}
    online = tg.join(*streams, **join, memory=memory, shed_when=shed_when, policy=policy, seed=seed)
    best = tg.optimal(*streams, **join, memory=memory, shed_when=shed_when)
    assert online.results <= best.upper_bound
    if shed_when != "before-arrival":
        assert best.upper_bound == best.importance
        assert best.results == best.table.num_rows
    exact = tg.join(*streams, **join)
    assert best.results <= exact.results
    assert tg.optimal(*streams, **join).results == exact.results
