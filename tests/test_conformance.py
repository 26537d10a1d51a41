"""Built-in and user-written policies keep the rules; those that break them are named in errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tidegate as tg
from tidegate import conformance
from tidegate.policies import POLICIES, Arrivals, Policy
from tidegate.policies.base import Ranks


@dataclass(frozen=True)
class Small(Policy):
    """Keep the rows with the smallest key hashes: useless, but a valid policy."""

    name: ClassVar[str] = "small"
    ranks: ClassVar[Ranks] = "row"

    def fixed_ranks(self, arrivals: Arrivals) -> NDArray[np.float64]:
        return -arrivals.key.astype(np.float64) * arrivals.importance


class Moody(Small):
    """A policy whose ranks depend on how often it was called."""

    name: ClassVar[str] = "moody"
    asked: ClassVar[list[int]] = []

    def fixed_ranks(self, arrivals: Arrivals) -> NDArray[np.float64]:
        self.asked.append(len(arrivals.time))
        return np.random.default_rng(len(self.asked)).random(len(arrivals.time))


class Whole(Small):
    """A policy whose ranks are integers."""

    name: ClassVar[str] = "whole"

    def fixed_ranks(self, arrivals: Arrivals) -> NDArray[np.float64]:
        return arrivals.time.astype(np.int64)


def too_few(policy: Policy, arrivals: Arrivals) -> NDArray[np.float64]:
    return np.zeros(len(arrivals.time) - 1)


def of_text(policy: Policy, arrivals: Arrivals) -> NDArray[np.float64]:
    return np.array(["high"] * len(arrivals.time))


def with_gaps(policy: Policy, arrivals: Arrivals) -> NDArray[np.float64]:
    return np.ma.masked_array(arrivals.importance, arrivals.time > 1)


def failing(policy: Policy, arrivals: Arrivals) -> NDArray[np.float64]:
    raise ZeroDivisionError("by nothing")


def changing(policy: Policy, arrivals: Arrivals) -> NDArray[np.float64]:
    arrivals.time[:] = 0
    return arrivals.importance


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_conforms(name: str) -> None:
    conformance.check(name, seed=3)


def test_a_policy_of_ones_own_conforms() -> None:
    conformance.check(Small())
    conformance.check(Whole())


@pytest.mark.parametrize(
    ("fixed_ranks", "says"),
    [
        (too_few, r"gives ranks of the shape \(\d+,\) for \d+ rows"),
        (of_text, "in fixed_ranks: ValueError: could not convert string to float"),
        (with_gaps, "ranks a row nan; ranks must be finite numbers"),
        (failing, "in fixed_ranks: ZeroDivisionError: by nothing"),
        (changing, "in fixed_ranks: ValueError: assignment destination is read-only"),
    ],
)
def test_a_policy_that_fails_to_rank_is_named(
    fixed_ranks: Callable[..., NDArray[np.float64]], says: str
) -> None:
    policy = type("Mine", (Small,), {"name": "failing", "fixed_ranks": fixed_ranks})()
    table = pa.table({"k": [1, 2, 3], "t": [1, 2, 3]})
    with pytest.raises(tg.TidegateError, match=f"policy failing .*{says}"):
        tg.join(table, table, on="k", time="t", within=2, memory=2, policy=policy)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"floor_weight": np.nan}, "must be a finite number, not nan"),
        ({"order_weight": "x"}, "must be a finite number, not 'x'"),
        ({"ranks": None}, "must have ranks, one of .*, not None"),
        ({"ranks": "banana"}, "must have ranks, one of .*, not 'banana'"),
        ({"fixed_ranks": Policy.fixed_ranks}, "ranks all rows alike: write fixed_ranks"),
        ({"ranks": "key"}, "ranks by key, and counts nothing"),
        ({"ranks": "score", "formula": 999}, "a formula of tidegate.learning.scores, not 999"),
    ],
)
def test_a_policy_that_cannot_rank_is_refused(written: dict[str, Any], says: str) -> None:
    policy = type("Mine", (Small,), written)()
    table = pa.table({"k": [1, 2, 3], "t": [1, 2, 3]})
    with pytest.raises(tg.TidegateError, match=f"policy Mine .*{says}"):
        conformance.check(policy)
    with pytest.raises(tg.TidegateError, match=f"policy Mine .*{says}"):
        tg.join(table, table, on="k", time="t", within=2, memory=2, policy=policy)


def test_a_policy_without_a_name_is_refused() -> None:
    with pytest.raises(tg.TidegateError, match="policy Nameless has no name; write one"):
        conformance.check(type("Nameless", (Policy,), {})())


@pytest.mark.parametrize(
    "policy",
    [
        tg.Prob(halflife=10),
        tg.Prob("window"),
        tg.Life("window", keys=20),
        tg.Heeb("sketch", keys=4),
        tg.IJoin(tau=2, recompute=5),
        tg.IJoin(tau=2, recompute="adaptive"),
    ],
    ids=str,
)
def test_policies_with_other_settings_conform(policy: Policy) -> None:
    conformance.check(policy)


def test_a_policy_that_depends_on_more_than_its_input_is_found_out() -> None:
    with pytest.raises(tg.TidegateError, match="policy moody gives another answer"):
        conformance.check(Moody())
