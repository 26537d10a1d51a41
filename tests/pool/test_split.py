"""Predicted earnings of memory, against the paper's equations and against the engine."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aging import aging
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate as tg
from tidegate.pool import predicted_split as predicted
from tidegate.pool.split import Earnings, best_split, by_age, by_frequency, together
from tidegate.streams import auctions, zipf

#: The largest difference between predicted and measured recall (set by issue 8).
POINTS = 0.03
#: The least share of the best split's results that the predicted split reaches, given noise.
OF_THE_BEST = 0.98


def equation_3(curve: list[float], memory: float, rate: float) -> float:
    """Equation 3 of Srivastava and Widom, section 3.2.2: curves without minima, steps of 1."""
    total = [0.0, *accumulate(curve)]
    k_opt = max(range(1, len(total)), key=lambda k: (total[k] / k, k))
    if memory / rate <= k_opt:
        return memory * total[k_opt] / k_opt
    return rate * float(np.interp(memory / rate, range(len(total)), total))


def section_3_3(own: list[float], other: list[float], window: float, memory: float) -> float:
    """Return the results of the keys that PROB keeps whole, and of the one it keeps in part."""
    found = 0.0
    for mine, theirs in sorted(zip(own, other, strict=True), key=lambda pair: -pair[1]):
        kept = min(window * mine, memory)
        memory -= kept
        found += kept * theirs
    return found


numbers = st.integers(0, 20).map(float)
#: Curves that rise and then fall.
curves = st.builds(
    lambda up, down: [*sorted(up), *sorted(down, reverse=True)],
    st.lists(numbers, min_size=1, max_size=5),
    st.lists(numbers, max_size=5),
).filter(any)
frequencies = st.lists(st.tuples(numbers, numbers), max_size=6)


def side_of(rows: list[tuple[float, float]], window: float) -> Earnings:
    own, other = (np.array([row[at] for row in rows], np.float64) for at in range(2))
    return by_frequency(own, other, window)


sides = st.one_of(
    st.builds(by_age, curves, st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([2.0, 10.0])),
    st.builds(side_of, frequencies, st.sampled_from([1.0, 4.0])),
)


def test_the_examples_of_paper_2() -> None:
    first = by_age([1, 1, 2, 1], 1, 4)
    assert [first.results(cells) for cells in range(6)] == pytest.approx([0, 4 / 3, 8 / 3, 4, 5, 5])
    assert by_age([3, 0, 2], 1, 3).results(2) == pytest.approx(4)


@given(curves, st.floats(0, 40), st.sampled_from([0.5, 1.0, 2.0, 5.0]))
def test_earnings_by_age_follow_equation_3(curve: list[float], memory: float, rate: float) -> None:
    earned = by_age(curve, rate, len(curve)).results(memory)
    assert earned == pytest.approx(equation_3(curve, memory, rate), abs=1e-9)


@given(frequencies, st.sampled_from([1.0, 3.0]), st.floats(0, 200))
def test_earnings_by_frequency_follow_section_3_3(
    rows: list[tuple[float, float]], window: float, memory: float
) -> None:
    own, other = [row[0] for row in rows], [row[1] for row in rows]
    earned = side_of(rows, window).results(memory)
    assert earned == pytest.approx(section_3_3(own, other, window, memory), abs=1e-9)


@given(sides, st.floats(0, 1))
def test_memory_is_the_inverse_of_results(side: Earnings, part: float) -> None:
    assert side.results(side.memory(part * side.most)) == pytest.approx(part * side.most)
    assert side.memory(side.results(part * side.need)) == pytest.approx(part * side.need)
    assert side.memory_for(part) == pytest.approx(side.memory(part * side.most))
    assert side.recall(side.need) == pytest.approx(1)
    assert side.memory(side.most + 1) == float("inf")


@given(sides, sides, st.integers(2, 60))
def test_no_other_split_is_better(left: Earnings, right: Earnings, memory: int) -> None:
    earned = [left.results(n) + right.results(memory - n) for n in range(memory + 1)]
    mine, rest = best_split(left, right, memory)
    assert mine + rest == memory
    assert earned[mine] == pytest.approx(max(earned[1:-1]))
    whole = together([left, right])
    assert max(earned) <= whole.results(memory) + 1e-9
    assert whole.most == pytest.approx(left.most + right.most)


@given(sides, st.integers(1, 30))
def test_equal_sides_have_equal_memory(side: Earnings, half: int) -> None:
    assert best_split(side, side, 2 * half) == (half, half)


@given(curves, st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_priorities_reach_the_closed_form(curve: list[float], cells: int) -> None:
    """Section 3.2.1: without minima, ranking by priority does as well as k_opt and M."""
    units = 200
    left, right = aging([int(n) for n in curve], units)
    found = tg.join(
        left,
        right,
        on="k",
        time="t",
        within=(10 * len(curve), 1),
        memory=cells + 1,
        split=(cells + 0.5) / (cells + 1),
        policy=tg.Age(curve),
    )
    wanted = units * equation_3(curve, cells, 1)
    # The tolerance covers the first and the last rows, whose windows are cut off.
    assert found.results == pytest.approx(wanted, abs=2 * len(curve) * sum(curve))


def measured(tables: tuple[pa.Table, pa.Table], **settings: Any) -> int:
    found: tg.Result = tg.join(*tables, on="key", time="time", **settings)
    return found.results


ZIPF = [
    {"skew": (1.0, 1.0), "rate": (1.0, 1.0), "correlation": "same"},
    {"skew": (1.0, 0.5), "rate": (1.0, 2.0), "correlation": "none"},
    {"skew": (1.5, 1.0), "rate": (2.0, 1.0), "correlation": "opposite"},
]


@pytest.mark.parametrize("shape", ZIPF)
@pytest.mark.parametrize("within", [(60, 60), (90, 30)])
def test_split_and_recall_are_as_predicted_on_zipf_keys(
    shape: dict[str, Any], within: tuple[int, int]
) -> None:
    tables = zipf(3_000, domain=50, seed=3, **shape)
    policy = tg.Prob("whole")
    exact = measured(tables, within=within)
    for memory in (24, 60):
        every = [
            measured(tables, within=within, memory=memory, policy=policy, split=(n + 0.5) / memory)
            for n in range(1, memory, max(memory // 12, 1))
        ]
        found = measured(tables, within=within, memory=memory, policy=policy, split="predicted")
        assert found >= OF_THE_BEST * max(every)
        rows = [pa.array(table["key"].to_numpy()).value_counts().to_pylist() for table in tables]
        counts = [{row["values"]: row["counts"] for row in side} for side in rows]
        keys = sorted({*counts[0], *counts[1]})
        span = 3_000.0
        pace = predicted.Pace(
            np.array([counts[0].get(key, 0) / span for key in keys]),
            np.array([counts[1].get(key, 0) / span for key in keys]),
        )
        both = together(predicted.earnings(policy, (within[0], within[1]), pace))
        assert both.recall(memory) == pytest.approx(found / exact, abs=POINTS)


SHAPES = {
    "inc": lambda k, m: k**2,
    "dec": lambda k, m: (m - k) ** 2,
    "bell": lambda k, m: k**2 if k < m / 2 else (m - k) ** 2,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.8])
def test_recall_is_as_predicted_on_auctions(shape: str, part: float) -> None:
    """One side earns all results (section 6.2.2), so the other gets one row."""
    tables = auctions(3_000, life=timedelta(minutes=100), every=timedelta(seconds=20), shape=shape)
    buckets = [SHAPES[shape](k + 0.5, 20) for k in range(20)]
    curve = [5 * bucket / sum(buckets) for bucket in buckets]
    policy = tg.Age((curve, [0.0]), rates=(1 / 20, 5 / 20))
    memory = round(part * 300)
    found = tg.join(
        *tables,
        on="auction_id",
        time="ts",
        within=("100 minutes", "1 s"),
        memory=memory,
        policy=policy,
        split="predicted",
    )
    left, right = predicted.earnings(policy, (6_000, 1), None)
    assert best_split(left, right, memory) == (memory - 1, 1)
    assert left.recall(memory - 1) == pytest.approx(found.results / (3_000 * 5), abs=POINTS)


def two_ways(first: list[int], second: list[int], units: int) -> tuple[pa.Table, pa.Table]:
    """Return left rows at random times, half as many right rows, and partners of both."""
    rng = np.random.default_rng(5)
    rows: list[list[tuple[int, int]]] = [[], []]
    for side, curve, count in ((0, first, units), (1, second, units // 2)):
        for at, time in enumerate(rng.integers(0, 100 * units, count).tolist()):
            key = 2 * at + side
            rows[side].append((key, time))
            for age, partners in enumerate(curve):
                later = time + 1_000 * age + rng.integers(0, 1_000, partners)
                rows[1 - side] += [(key, int(when)) for when in later]
    left, right = (pa.table({"k": [k for k, _ in r], "t": [t for _, t in r]}) for r in rows)
    return left, right


@pytest.mark.parametrize("memory", [60, 120, 240])
def test_split_and_recall_are_as_predicted_by_age(memory: int) -> None:
    first, second, units = [0, 1, 1, 3, 3, 1], [3, 2, 1, 1, 0, 0, 0, 0], 2_000
    left, right = two_ways(first, second, units)
    rates = (1 + sum(second) / 2, 0.5 + sum(first))
    # Averages over all rows: rows that are partners of others have no results themselves.
    curves = [n / rates[0] for n in first], [n / 2 / rates[1] for n in second]
    policy = tg.Age(curves, rates=(rates[0] / 100, rates[1] / 100))
    within = (1_000 * len(first), 1_000 * len(second))
    settings: dict[str, Any] = {"on": "k", "time": "t", "within": within}
    exact = tg.join(left, right, **settings).results
    settings |= {"memory": memory, "policy": policy}
    every = [
        tg.join(left, right, **settings, split=(n + 0.5) / memory).results
        for n in range(1, memory, memory // 12)
    ]
    found = tg.join(left, right, **settings, split="predicted").results
    both = together(predicted.earnings(policy, (within[0], within[1]), None))
    assert found >= OF_THE_BEST * max(every)
    assert both.recall(memory) == pytest.approx(found / exact, abs=POINTS)


TABLE = pa.table({"key": [1, 1, 2], "time": [1, 2, 3]})
GOOD: dict[str, Any] = {"on": "key", "time": "time", "within": 5, "split": "predicted"}


def test_a_table_has_arrivals_per_unit_of_time() -> None:
    tables = zipf(1_000, domain=20, skew=(1.0, 0.0), rate=(1.0, 2.0), seed=1)
    counts = [np.bincount(table["key"].to_numpy(), minlength=20) for table in tables]
    given = {"key": np.arange(20), "left": counts[0] / 999, "right": counts[1] / 999}
    settings: dict[str, Any] = {"within": (40, 20), "memory": 30, "split": "predicted"}
    by_table = tg.join(*tables, on="key", time="time", policy=tg.Prob(given), **settings)
    counted = tg.join(*tables, on="key", time="time", policy=tg.Prob("whole"), **settings)
    assert by_table.table == counted.table
    assert counted.counters["held_left"] != 15


@pytest.mark.parametrize("policy", [tg.Prob("whole"), tg.Life("whole"), tg.Heeb("whole")])
def test_times_of_any_kind_give_the_same_split(policy: tg.Policy) -> None:
    left, right = zipf(600, domain=20, skew=(1.0, 0.3), rate=(1.0, 2.0), seed=2)
    found = []
    for kind, within in ((pa.int64(), 30), (pa.timestamp("ms", "UTC"), "30 ms")):
        tables = [t.set_column(1, "time", t["time"].cast(kind)) for t in (left, right)]
        settings: dict[str, Any] = {"within": within, "memory": 20, "split": "predicted"}
        found.append(tg.join(*tables, on="key", time="time", policy=policy, **settings).counters)
    assert found[0] == found[1]


def test_empty_streams_and_single_ticks_are_split_in_half() -> None:
    for table in (TABLE.slice(0, 0), pa.table({"key": [1, 2, 3, 4], "time": [7, 7, 7, 7]})):
        found = tg.join(table, table, **GOOD, memory=4, policy=tg.Prob("whole"))
        assert found.counters["held_left"] == min(len(table), 2)


def test_without_a_budget_nothing_is_predicted() -> None:
    assert tg.join(TABLE, TABLE, **GOOD).results == 5


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"policy": "prob"}, 'not Prob.*use split="shared"'),
        ({"policy": tg.Age()}, 'not Age.*use split="shared"'),
        ({"policy": "fifo"}, "a model that is known beforehand"),
        ({"policy": tg.Age([1, 2])}, "Age\\(curve, rates="),
        ({"policy": tg.Prob("whole"), "memory": "1 MB"}, "a number of rows, not '1 MB'"),
        ({"policy": tg.Prob("whole"), "within": "unbounded"}, "windows that end"),
        ({"policy": tg.Prob("whole"), "memory": 1}, "at least 2 rows"),
    ],
)
def test_splits_that_cannot_be_predicted_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(tg.TidegateError, match=said):
        tg.join(TABLE, TABLE, **GOOD | {"memory": 4} | changed)


@pytest.mark.parametrize("rates", [0, -1, "many", (1, 2, 3), (1, float("nan")), True])
def test_bad_rates_are_refused(rates: Any) -> None:
    with pytest.raises(tg.TidegateError, match="rates must be"):
        tg.Age([1, 2], rates=rates)
