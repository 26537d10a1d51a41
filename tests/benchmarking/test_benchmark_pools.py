"""The benchmark of pools, at a tiny size: figures must fit together."""

from __future__ import annotations

import pytest

from benchmarks import pools

SCALE = pools.Scale(ticks=3_000, seeds=1, predicted=1_000)


def test_alloc_is_ahead_of_prop_where_joins_differ() -> None:
    """Figures 10 and 11: one join is hard, the other easy."""
    even, uneven = pools.figure_11(SCALE, 0.0), pools.figure_11(SCALE, 3.0)
    assert even.shares == pytest.approx([0.25, 0.25], abs=0.01)
    assert even.alloc == pytest.approx(even.prop, abs=0.02)
    assert uneven.shares[0] > 2 * uneven.shares[1]
    assert uneven.alloc > uneven.prop + 0.1
    assert uneven.alloc == pytest.approx(uneven.foreseen, abs=0.05)
    hard = pools.by_skew(SCALE, 1.0, "same", 1)
    assert hard.recall(100) == pytest.approx(hard.curve.at(100), abs=0.05)


def test_predictions_are_near_what_is_measured() -> None:
    for predicted, measured in pools.predictions(SCALE, "Zipf(1)", "prob"):
        assert predicted == pytest.approx(measured, abs=0.03)
