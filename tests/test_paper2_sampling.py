"""The benchmark of paper 2's samples, at a tiny size: figures must fit together."""

from __future__ import annotations

import pytest

from benchmarks import paper2_sampling


def test_errors_fall_with_memory_and_clusters_of_all_are_exact() -> None:
    scale = paper2_sampling.Scale(ticks=2_500, seeds=1)
    few = paper2_sampling.errors(scale, "opposite", 1.0, 0.2, "value_left")
    # A little more than the window, which is as many tuples only on average.
    every = paper2_sampling.errors(scale, "opposite", 1.0, 1.2, "value_left")
    assert set(few) == set(every) == set(paper2_sampling.METHODS)
    assert every["EQ-CLUSTER"] == pytest.approx(0.0, abs=1e-9)
    assert every["PPS-CLUSTER"] == pytest.approx(0.0, abs=1e-9)
    # UNIFORM misses what the model does not foresee, however large the memory.
    assert every["UNIFORM"] > 0.001
    assert few["PPS-CLUSTER"] < few["EQ-CLUSTER"]
