"""Dividing a memory between joins while they run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidegate.pool.division import Claim, divide
from tidegate.pool.reports import ACCURACY, RECALL, Reports

SIZES = (10, 20, 40, 80)


def claim(
    recall: list[float] | None,
    *,
    results: float = 1.0,
    weight: float = 1.0,
    current: tuple[int, ...] = (50,),
    measure: str = RECALL,
) -> Claim:
    """Return the claim of a join with one shard that has reported these values."""
    reports = Reports(len(current), measure)
    if recall is not None:
        said: dict[str, Any] = {
            "held": 1,
            "bytes": 1,
            "need": 160.0,
            "worth": 0.0,
            "allowed": 1,
            "advance": 1.0,
        }
        hits = [part * results for part in recall]
        said |= {"sizes": SIZES, "hits": hits, "total": results, "span": 1.0}
        for shard in range(len(current)):
            reports.add(shard, said, 0.5)
    return Claim(weight, [1] * len(current), current, reports)


EASY, HARD = [0.4, 0.7, 0.9, 1.0], [0.1, 0.2, 0.4, 0.8]


def test_the_objectives_min_and_sum() -> None:
    least = divide({"a": claim(EASY), "b": claim(HARD)}, 100, "min")
    assert sum(map(sum, least.values())) == 100
    assert least["b"][0] > 2 * least["a"][0]
    most = divide({"a": claim(EASY, results=9.0), "b": claim(HARD)}, 100, "sum")
    assert most["a"][0] > 60


def test_a_join_without_a_curve_keeps_its_share_or_gets_one_by_weight() -> None:
    kept = divide({"a": claim(EASY, current=(70,)), "b": claim(None, current=(30,))}, 100, "min")
    assert kept == {"a": [70], "b": [30]}
    new = {"a": claim(EASY, current=(100,)), "b": claim(None, current=(0,), weight=3.0)}
    assert divide(new, 100, "min") == {"a": [25], "b": [75]}


def test_shares_do_not_change_for_a_small_gain() -> None:
    flat = [0.10, 0.11, 0.12, 0.13]
    claims = {"a": claim(flat, current=(55,)), "b": claim(flat, current=(45,))}
    assert divide(claims, 100, "min") == {"a": [55], "b": [45]}
    claims = {"a": claim(HARD, current=(80,)), "b": claim(HARD, current=(20,))}
    assert divide(claims, 100, "min") == {"a": [50], "b": [50]}


def test_joins_and_samples_are_weighed_against_each_other() -> None:
    """Recall is weighed by results, samples by their error: 1 - 0.6 for 0.64 of the square."""
    claims = {
        "a": claim([0.2, 0.4, 0.7, 1.0], current=(0,)),
        "b": claim([0.2, 0.64, 0.9, 1.0], current=(0,), measure=ACCURACY),
    }
    found = divide(claims, 40, "min")
    assert found["a"] == [pytest.approx(20, abs=1)]


def test_a_share_of_zero_gives_every_shard_zero() -> None:
    """A join waits like this for the former share of another join that is still unknown."""
    waiting = replace(claim(EASY, current=(1, 1)), least=[0, 0])
    found = divide({"a": waiting, "b": claim(None, current=(4,))}, 4, "min")
    assert found == {"a": [0, 0], "b": [4]}


def test_shards_share_by_results() -> None:
    found = divide({"a": claim(EASY, current=(5, 5))}, 10, "min")
    assert sum(found["a"]) == 10
