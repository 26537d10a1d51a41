"""The ranks of each policy, and its results on the papers' data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.policies import POLICIES, Arrivals, policy_of
from tidegate.streams import uniform, zipf


def arrivals(n: int, seed: int) -> Arrivals:
    rng = np.random.default_rng(7)
    row_hashes = rng.integers(0, 2**63, n).astype(np.uint64)
    side, key = np.zeros(n, np.int8), np.zeros(n, np.uint64)
    return Arrivals(np.arange(n), side, key, row_hashes, np.ones(n), seed)


def test_every_policy_is_known_by_its_name() -> None:
    assert {"auto", "prob", "age", "fifo", "rand"} <= set(POLICIES)
    for name, kind in POLICIES.items():
        assert type(policy_of(name)) is kind
    with pytest.raises(tg.TidegateError, match="curve must be the results by age"):
        tg.Age("steep")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (lambda: tg.Age([1.0, 1e308]), r"between 0 and 1e\+150 everywhere, not \[1.0, 1e\+308\]"),
        (lambda: tg.Age([1.0, -1.0]), "everywhere, not"),
        (lambda: tg.Heeb(alpha=0), "alpha must be above 0, not 0; None has it learned"),
    ],
)
def test_settings_that_rank_nothing_are_refused(policy: Any, said: str) -> None:
    table = pa.table({"k": [1], "t": [1]})
    with pytest.raises(tg.TidegateError, match=said):
        tg.join(table, table, on="k", time="t", within=1, memory=1, policy=policy())


def test_numbers_of_numpy_are_numbers() -> None:
    assert tg.IJoin(recompute=3) == tg.IJoin(recompute=np.int64(3))  # type: ignore[arg-type]
    given: Any = np.float32(0.5)
    assert tg.IJoin(penalty=given).settings() == tg.IJoin(penalty=0.5).settings()
    queue: Any = np.int64(4)
    assert tg.SlowCPU(given, queue).settings() == tg.SlowCPU(0.5, 4).settings()


def test_random_numbers_are_uniform_and_follow_the_seed() -> None:
    one, same, other = (arrivals(20_000, seed).uniform() for seed in (1, 1, 2))
    assert (one == same).all()
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
    counts = np.histogram(one, bins=20, range=(0, 1))[0]
    assert abs(counts - 1000).max() < 150
    assert 0 < one.min() < one.max() < 1


def test_rand_sheds_uniformly() -> None:
    """Every candidate is shed with the same probability, so holding times are geometric."""
    n, memory = 6_000, 50
    table = pa.table({"k": np.zeros(n, np.int64), "t": np.arange(n)})
    other = pa.table({"k": pa.array([], pa.int64()), "t": pa.array([], pa.int64())})
    join: dict[str, Any] = {"on": "k", "time": "t", "within": "unbounded", "seed": 3}
    shed = tg.join(table, other, **join, memory=memory, policy="rand", keep_shed=True).shed
    lives = np.array(
        [
            at - row["t"]
            for at, row in zip(shed["shed_at"].to_pylist(), shed["left"].to_pylist(), strict=True)
        ]
    )
    # Each of memory + 1 candidates is shed with probability 1 / (memory + 1): the mean is `memory`.
    assert abs(lives.mean() / memory - 1) < 0.08
    assert abs((lives == 0).mean() - 1 / (memory + 1)) < 0.006
    assert abs(np.median(lives) / (memory * math.log(2)) - 1) < 0.12


def counted(left: pa.Table, right: pa.Table, w: int, **settings: Any) -> int:
    """Count the results after the warm-up of two windows (Das et al., section 5.2)."""
    found = tg.join(left, right, on="key", time="time", within=w, **settings).table
    later = np.maximum(found["time_left"].to_numpy(), found["time_right"].to_numpy())
    return int((later >= 2 * w).sum())


@pytest.mark.parametrize("split", ["fixed", "shared"])
def test_figure_7_in_numbers(split: str) -> None:
    """Zipf(1), domain 50, w = 400, N = 5600, M = w: PROB far above LIFE above RAND."""
    share: dict[str, list[float]] = {"rand": [], "prob": [], "life": []}
    for seed in range(5):
        left, right = zipf(5600, domain=50, skew=1.0, seed=seed)
        exact = counted(left, right, 400)
        for name in share:
            policy = {"rand": tg.Rand(), "prob": tg.Prob("whole"), "life": tg.Life("whole")}[name]
            kept = counted(left, right, 400, memory=400, policy=policy, split=split, seed=seed)
            share[name].append(kept / exact)
    means = {name: float(np.mean(values)) for name, values in share.items()}
    assert 0.48 < means["rand"] < 0.52  # the memory is half of both windows
    assert means["prob"] > 0.85
    assert means["rand"] + 0.2 < means["life"] < means["prob"] - 0.02


def test_rand_falls_linearly_with_memory() -> None:
    left, right = zipf(5600, domain=50, skew=1.0, seed=11)
    exact = counted(left, right, 400)
    for part in (0.1, 0.25, 0.5, 1.0, 1.5):
        kept = counted(left, right, 400, memory=int(400 * part), policy="rand", split="fixed")
        assert abs(kept / exact - part / 2) < 0.03


def test_on_uniform_keys_nothing_helps() -> None:
    left, right = uniform(5600, domain=50, seed=2)
    exact = counted(left, right, 400)
    shares = [
        counted(left, right, 400, memory=400, policy=p) / exact for p in ("rand", "fifo", "prob")
    ]
    assert max(shares) - min(shares) < 0.05


@pytest.mark.parametrize("skew", [0.5, 1.0, 2.0])
def test_learned_frequencies_are_nearly_as_good_as_the_whole_stream_s(skew: float) -> None:
    left, right = zipf(12_000, domain=50, skew=skew, seed=5)
    learned = counted(left, right, 400, memory=200, policy=tg.Prob())
    whole = counted(left, right, 400, memory=200, policy=tg.Prob("whole"))
    assert learned >= 0.97 * whole


def test_a_given_table_is_followed() -> None:
    """Key 1 never arrives again, and the table says so."""
    left = pa.table({"k": [1, 2], "t": [0, 1]})
    right = pa.table({"k": [2], "t": [2]})
    table = {"k": [1, 2], "left": [1, 1], "right": [0, 9]}
    for frequencies in (table, pa.table(table), "whole"):
        join: dict[str, Any] = {"on": "k", "time": "t", "within": 10, "memory": 1}
        found = tg.join(left, right, **join, policy=tg.Prob(frequencies), keep_shed=True)
        assert found.results == 1
        assert found.shed["left"][0].as_py() == {"k": 1, "t": 0}
        assert found.shed["why"][0].as_py() == "shed"


def test_counts_decay_so_that_drift_is_followed() -> None:
    """The right stream's frequent keys change in the middle."""
    rng = np.random.default_rng(0)
    n = 8_000
    hot = np.minimum(rng.geometric(0.2, n), 25)
    keys = rng.integers(0, 50, n), np.where(np.arange(n) < n // 2, hot, hot + 24)
    left, right = (pa.table({"key": k, "time": np.arange(n)}) for k in keys)

    def late(policy: tg.Policy) -> int:
        found = tg.join(
            left, right, on="key", time="time", within=400, memory=60, policy=policy
        ).table
        return int((found["time_left"].to_numpy() > n // 2).sum())

    assert late(tg.Prob(halflife=400)) > 1.2 * late(tg.Prob(halflife=math.inf))


def test_a_gap_of_many_half_lives_forgets_everything() -> None:
    """Weights are rescaled long before they overflow."""
    times = np.concatenate([np.arange(50), 10**9 + np.arange(50)])
    left = pa.table({"k": np.tile([1, 2], 50), "t": times})
    right = pa.table({"k": np.repeat([1, 2], 50), "t": times})
    found = tg.join(left, right, on="k", time="t", within=20, memory=3, policy=tg.Prob(halflife=1))
    exact = tg.join(left, right, on="k", time="t", within=20)
    assert 0 < found.results < exact.results
    assert found.counters["held"] <= 3
