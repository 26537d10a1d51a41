"""The benchmark of paper 2's samples, at a tiny size: figures must fit together."""

from __future__ import annotations

import pytest

from benchmarks import paper2_sampling, sampling_coverage


def test_errors_fall_with_memory_and_clusters_of_all_are_exact() -> None:
    scale = paper2_sampling.Scale(ticks=2_500, spreads=(1.0,))
    tables, names = paper2_sampling.streams(scale, "opposite", 0), tuple(paper2_sampling.METHODS)
    value = "spread 1_left"
    # A little more than the window, which is as many rows only on average.
    every = paper2_sampling.errors(tables, 1.2, (value,), names, 0)
    assert set(every) == set(names)
    assert every["EQ-CLUSTER"][value] == pytest.approx(0.0, abs=1e-9)
    assert every["PPS-CLUSTER"][value] == pytest.approx(0.0, abs=1e-9)
    # UNIFORM misses what the model does not foresee, however large the memory.
    assert every["UNIFORM"][value] > 0.001
    clusters = ("PPS-CLUSTER", "EQ-CLUSTER")
    few = [
        paper2_sampling.errors(
            paper2_sampling.streams(scale, "opposite", seed), 0.2, (value,), clusters, seed
        )
        for seed in range(6)
    ]
    pps, eq = (sum(found[name][value] for found in few) / len(few) for name in clusters)
    assert 0 < pps < eq


def test_a_sample_that_misses_large_clusters_is_warned_of() -> None:
    """EQ-CLUSTER where few clusters are most of the result: its own error does not show it."""
    cells = sampling_coverage.cells((2.0,))
    skewed = sampling_coverage.covered(cells["IC, Zipf(2)"], "cluster", 40)
    assert sum(skewed.inside["count"]) < 36
    warned = [not foreseen for foreseen in skewed.foreseen]
    assert 15 < sum(warned) < 40
    missed = [w for w, inside in zip(warned, skewed.inside["count"], strict=True) if not inside]
    assert all(missed)
    even = sampling_coverage.covered(cells["DC, Zipf(2)"], "cluster", 20)
    assert all(even.foreseen)


def test_intervals_of_longer_streams_are_right() -> None:
    """Where there are some of the large clusters in every sample."""
    longer = sampling_coverage.cells((1.5,), 15_000)["IC, Zipf(1.5)"]
    found = sampling_coverage.covered(longer, "cluster", 60)
    assert sum(found.inside["count"]) >= 54
    assert sum(found.inside["sum"]) >= 54
