"""Dividing one memory: theorem 5.1 and the best sum, against all divisions on a grid."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.pool import sampling
from tidegate.pool.allocation import allocate, equal, in_whole, proportional
from tidegate.pool.curves import Curve, of_earnings, of_points, of_samples
from tidegate.pool.split import by_age, by_frequency

GRID = 24


@st.composite
def recalls(draw: st.DrawFn, *, concave: bool = False) -> Curve:
    """Draw a recall curve from (0, 0): any non-decreasing one, or a concave one."""
    n = draw(st.integers(1, 5))
    steps = draw(st.lists(st.integers(1, 12), min_size=n, max_size=n))
    gains = draw(st.lists(st.integers(0, 10), min_size=n, max_size=n))
    if concave:
        gains = sorted(gains, reverse=True)
        steps = [draw(st.integers(1, 12))] * n
    memory = np.concatenate([[0.0], np.cumsum(steps)])
    quality = np.concatenate([[0.0], np.cumsum(gains)]) / max(sum(gains), 1)
    return Curve(memory, quality, float(draw(st.integers(1, 20))))


@st.composite
def errors(draw: st.DrawFn) -> Curve:
    """Draw the errors of samples, which fall with memory."""
    n = draw(st.integers(1, 4))
    memory = np.cumsum(draw(st.lists(st.integers(1, 12), min_size=n, max_size=n)))
    falls = np.cumsum(draw(st.lists(st.integers(0, 10), min_size=n, max_size=n))[::-1])[::-1]
    return Curve(memory.astype(np.float64), falls / 10.0, error=True)


weights = st.sampled_from([0.5, 1.0, 2.0, 3.0])


def divisions(joins: int, memory: float) -> list[list[float]]:
    """Return every division on a grid."""
    return [
        [memory * part / GRID for part in parts]
        for parts in itertools.product(range(GRID + 1), repeat=joins)
        if sum(parts) == GRID
    ]


@given(st.lists(st.tuples(recalls(), weights), min_size=1, max_size=3), st.integers(1, 60))
def test_no_other_division_has_a_higher_minimum(
    joins: list[tuple[Curve, float]], memory: int
) -> None:
    curves, weighed = [c for c, _ in joins], [w for _, w in joins]

    def least(shares: list[float]) -> float:
        return min(c.at(s) / w for (c, w), s in zip(joins, shares, strict=True))

    shares = allocate(curves, weighed, memory)
    assert sum(shares) == pytest.approx(memory)
    best = max(map(least, divisions(len(joins), memory)))
    assert least(shares) >= best - 1e-9


@given(st.lists(st.tuples(recalls(), weights), min_size=2, max_size=3), st.integers(1, 60))
def test_all_joins_are_equally_good(joins: list[tuple[Curve, float]], memory: int) -> None:
    """The theorem itself: curves rise everywhere, and no memory is left over."""
    assume(all((np.diff(c.quality) > 0).all() for c, _ in joins))
    shares = allocate([c for c, _ in joins], [w for _, w in joins], memory)
    found = [c.at(s) for (c, _), s in zip(joins, shares, strict=True)]
    # A join that already finds everything cannot reach the level of the others.
    level = {round(q / w, 6) for q, (_, w) in zip(found, joins, strict=True) if q < 1}
    assert len(level) <= 1


@given(st.lists(st.tuples(errors(), weights), min_size=1, max_size=3), st.integers(1, 60))
def test_no_other_division_has_a_lower_error(joins: list[tuple[Curve, float]], memory: int) -> None:
    def worst(shares: list[float]) -> float:
        return max(c.at(s) * w for (c, w), s in zip(joins, shares, strict=True))

    shares = allocate([c for c, _ in joins], [w for _, w in joins], memory)
    best = min(map(worst, divisions(len(joins), memory)))
    assert worst(shares) <= best * (1 + 1e-9) + 1e-9


@given(
    st.lists(st.tuples(recalls(concave=True), weights), min_size=1, max_size=3), st.integers(1, 60)
)
def test_no_other_division_has_a_larger_sum(joins: list[tuple[Curve, float]], memory: int) -> None:
    def total(shares: list[float]) -> float:
        return sum(c.at(s) * c.results * w for (c, w), s in zip(joins, shares, strict=True))

    shares = allocate([c for c, _ in joins], [w for _, w in joins], memory, "sum")
    assert sum(shares) == pytest.approx(memory)
    assert total(shares) >= max(map(total, divisions(len(joins), memory))) - 1e-9


@given(recalls(), st.floats(0, 1), st.floats(0, 80))
def test_a_curve_matches_its_inverse(curve: Curve, quality: float, memory: float) -> None:
    least = curve.memory_for(quality)
    if math.isfinite(least):
        assert curve.at(least) >= quality - 1e-9
        assert curve.at(least * (1 - 1e-6) - 1e-6) <= quality + 1e-9
    assert curve.memory_for(curve.at(memory)) <= memory + 1e-9
    hull = curve.hull()
    assert (np.diff(hull.rates) <= 1e-12).all()
    assert hull.results(memory) >= curve.at(memory) * curve.results - 1e-9


@given(errors(), st.floats(0.05, 2), st.floats(0.1, 80))
def test_an_error_matches_its_inverse(curve: Curve, quality: float, memory: float) -> None:
    least = curve.memory_for(quality)
    if math.isfinite(least):
        assert curve.at(least) <= quality + 1e-9
    assert curve.memory_for(curve.at(memory)) <= memory * (1 + 1e-9)


@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(1, 3)), min_size=1, max_size=5),
    st.integers(0, 100),
)
def test_whole_shares_are_close_and_never_add_up_to_too_much(
    parts: list[tuple[float, int]], spare: int
) -> None:
    least = [n for _, n in parts]
    memory = sum(least) + spare
    whole = in_whole([s for s, _ in parts], memory, least)
    assert sum(whole) == memory
    assert all(w >= n for w, n in zip(whole, least, strict=True))


def test_models_give_the_curves_of_their_sections() -> None:
    """The two joins of figure 10: the same keys frequent on both sides, and opposite ones."""
    own = np.array([1.0, 2.0, 4.0])
    hard = of_earnings(by_frequency(own, own, 10))
    easy = of_earnings(by_frequency(own, own[::-1].copy(), 10))
    assert hard.need == easy.need == 70
    assert hard.results == 210.0
    assert (hard.at(40), hard.memory_for(16 / 21)) == pytest.approx((16 / 21, 40))
    assert easy.at(10) == pytest.approx(4 / 12)
    hard_share, easy_share = allocate([hard, easy], [1, 1], 14)
    assert hard_share > easy_share
    assert hard.at(hard_share) == pytest.approx(easy.at(easy_share))
    assert proportional([hard, easy], 14) == equal(2, 14) == [7, 7]
    ages = of_earnings(by_age([1, 1, 2, 1], 1, 4))
    assert ages.at(1) == pytest.approx(4 / 15)
    nothing = of_earnings(by_frequency(np.zeros(2), np.zeros(2), 10))
    assert (nothing.at(0), nothing.need) == (1.0, 0.0)


def test_measurements_become_a_curve() -> None:
    curve = of_points([40, 10, 20], [0.7, 0.4, 0.39], results=5, need=100)
    assert curve.at(10) == pytest.approx(0.4)
    assert curve.at(20) == pytest.approx(0.4)
    assert curve.at(40) == pytest.approx(0.7)
    assert 0.7 < curve.at(70) < 1.0
    assert curve.at(100) == curve.at(1000) == 1.0
    assert of_points([], []).at(7) == 0.0


def test_the_error_of_a_sample_follows_its_fraction() -> None:
    """EQ-CLUSTER with clusters of one size: the square root of (1/p - 1) / n."""
    side = sampling.Side(np.array([100.0]), np.array([4.0]))

    def fractions(memory: float) -> list[sampling.Floats]:
        return [np.array([sampling.cluster_fraction([side], memory)])]

    curve = of_samples([side], [5, 25, 100], fractions, (1.0,))
    one = math.sqrt(100 * (4 + 16)) / 400
    assert curve.at(25) == pytest.approx(math.sqrt(3) * one)
    assert curve.at(100) == 0.0
    assert curve.at(1.25) == pytest.approx(2 * curve.at(5))
    assert curve.results == 400


def test_impossible_divisions_are_refused() -> None:
    curve = of_points([10], [0.5])
    for weight in (0, -1.0, math.inf, math.nan, True, "much"):
        with pytest.raises(tg.TidegateError, match="a weight must be a number above 0"):
            allocate([curve], [weight], 10)  # type: ignore[list-item]
    with pytest.raises(tg.TidegateError, match="memory must be above 0"):
        allocate([curve], [1.0], 0)
    with pytest.raises(tg.TidegateError, match="a weight for each"):
        allocate([curve], [], 10)
    with pytest.raises(tg.TidegateError, match='objective must be one of "min", "sum"'):
        allocate([curve], [1.0], 10, "max")
    with pytest.raises(tg.TidegateError, match="recall and errors"):
        allocate([curve, Curve(np.ones(1), np.ones(1), error=True)], [1, 1], 10)
    with pytest.raises(tg.TidegateError, match="less than the 4 that 2 need"):
        in_whole([1.0, 1.0], 3, [2, 2])
    with pytest.raises(tg.TidegateError, match="memories must ascend"):
        Curve(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    with pytest.raises(tg.TidegateError, match="as many memories as qualities"):
        Curve(np.zeros(0), np.zeros(0))
