"""No policy beats the optimum, on small versions of the data sets of the policy table."""

from __future__ import annotations

from typing import Any

import pytest

import tidegate as tg
from benchmarks.policies import DATA
from tidegate.policies import POLICIES

TICKS = 700
#: Memory, as a share of the rows that are live on average.
MEMORY = 0.2
#: The data sets that need no other package.
MADE = [name for name in DATA if not name.startswith("flights")]


def compare(name: str, **settings: Any) -> None:
    data = DATA[name]
    streams = data.make(TICKS, 5)
    memory = max(2, round(MEMORY * data.live(streams)))
    join: dict[str, Any] = data.settings | {"within": data.within, "memory": memory} | settings
    best = tg.optimal(*streams, **join)
    if settings.get("shed_when") != "before-arrival":
        assert best.upper_bound == best.importance
    assert best.results > 0
    online = {policy: tg.join(*streams, **join, policy=policy) for policy in POLICIES}
    # Sums in another order may differ in the last digits.
    bound = best.upper_bound * (1 + 1e-12)
    above = {policy: found.importance for policy, found in online.items()}
    assert {policy: value for policy, value in above.items() if value > bound} == {}
    # Memory is scarce: no policy finds everything.
    exact = tg.join(*streams, **join | {"memory": None})
    assert max(above.values()) < exact.importance
    if not data.weighed:
        assert all(found.results == found.importance for found in online.values())


def test_only_the_flights_are_left_out() -> None:
    assert len(DATA) - len(MADE) == 2
    assert len(POLICIES) > 10


@pytest.mark.parametrize("split", ["shared", "fixed"])
@pytest.mark.parametrize("name", MADE)
def test_no_policy_beats_the_optimum(name: str, split: str) -> None:
    compare(name, split=split)


@pytest.mark.parametrize("shed_when", ["before-probe", "before-arrival"])
@pytest.mark.parametrize("name", ["Zipf(1)", "importance"])
def test_no_policy_beats_the_optimum_with_another_shed_when(name: str, shed_when: str) -> None:
    compare(name, shed_when=shed_when)
