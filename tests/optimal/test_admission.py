"""`before-arrival` for larger inputs: plan and bound hold, and are close to each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from optimal.replay import check_bound, delivered, kept_until
from optimal.test_optimal import random_case, settings, tables

import tidegate as tg
from tidegate.optimal import shedding
from tidegate.policies import POLICIES
from tidegate.streams import zipf

JOIN: dict[str, Any] = {"on": "key", "time": "time", "shed_when": "before-arrival"}


@pytest.mark.parametrize(
    ("memory", "split", "best"),
    [
        (2, "shared", 1),
        (3, "shared", 2),
        (7, "shared", 12),
        (2, "fixed", 1),
        (10, "fixed", 25),
        (10, 0.2, 16),
        (39, "shared", 380),
        (40, "shared", 400),
    ],
)
def test_many_rows_of_one_key_at_one_time(memory: int, split: Any, best: int) -> None:
    """Twenty rows of one key on each side: a times b results with a + b rows in memory."""
    crowd = pa.table({"key": [1] * 20, "time": [0] * 20})
    found = tg.optimal(crowd, crowd, **JOIN, within=5, memory=memory, split=split)
    assert found.results == found.upper_bound == found.table.num_rows == best


def test_many_rows_of_several_keys_at_one_time() -> None:
    keys = [i // 5 for i in range(60)]
    worth = [float(1 + key) for key in keys]
    crowd = pa.table({"key": keys, "time": [0] * 60, "i": worth})
    found = tg.optimal(crowd, crowd, **JOIN, within=5, memory=10, importance="i")
    # All rows of the best key.
    assert (found.results, found.importance, found.upper_bound) == (25, 300.0, 300.0)


@pytest.mark.parametrize(
    ("ticks", "rate", "window", "memory", "split", "above"),
    [
        (100, 1.0, 25, 10, "shared", 0.02),
        (100, 1.0, 25, 10, "fixed", 0.02),
        (300, 1.0, 50, 20, "fixed", 0.01),
        (1_000, 1.0, 50, 30, "shared", 0.01),
        # With less memory than newcomers per tick, plan and bound are further apart.
        (20, 4.0, 5, 6, "shared", 0.5),
    ],
)
def test_plan_and_bound_are_close(
    ticks: int, rate: float, window: int, memory: int, split: Any, above: float
) -> None:
    streams = zipf(ticks, domain=8, skew=1.0, rate=rate, seed=2)
    join = JOIN | {"within": window, "memory": memory, "split": split}
    found = tg.optimal(*streams, **join)
    assert tg.join(*streams, **JOIN, within=window).results > shedding.MOST_PAIRS
    assert found.results <= found.upper_bound <= (1 + above) * found.results
    online = [tg.join(*streams, **join, policy=policy).results for policy in POLICIES]
    assert max(online) <= found.results
    assert tg.optimal(*streams, **join).keep_until.equals(found.keep_until)


@pytest.mark.parametrize("crowded", [False, True])
def test_plan_and_bound_match_brute_force(monkeypatch: pytest.MonkeyPatch, crowded: bool) -> None:
    monkeypatch.setattr(shedding, "MOST_PAIRS", -1)
    value = optimum = 0.0
    for seed in range(80):
        case = random_case(7_000 + seed, shed_when="before-arrival", crowded=crowded)
        found = tg.optimal(*tables(case.rows), **settings(case))
        best = case.optimum()
        assert found.importance <= best + 1e-9 <= found.upper_bound + 2e-9
        until = kept_until(found)
        check_bound(case, until)
        assert found.results == len(delivered(case, until))
        loose = tg.optimal(*tables(case.rows), **settings(replace(case, shed_when="before-probe")))
        assert found.upper_bound <= loose.importance + 1e-9
        value, optimum = value + found.importance, optimum + best
    assert value >= 0.95 * optimum
