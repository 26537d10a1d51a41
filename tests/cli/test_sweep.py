from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.cli.sweep import Point, best_first, sweep, window_rows
from tidegate.policies import POLICIES
from tidegate.streams import zipf

JOIN: dict[str, Any] = {"on": "key", "time": "time", "within": 20}
times = st.lists(st.integers(0, 30), max_size=12)


@given(times, times, st.integers(1, 10), st.integers(1, 10))
def test_window_rows_is_the_most_that_are_live_at_once(
    left: list[int], right: list[int], left_window: int, right_window: int
) -> None:
    live = [
        sum(t - left_window < u <= t for u in left) + sum(t - right_window < u <= t for u in right)
        for t in range(31)
    ]
    found = window_rows((np.array(left), np.array(right)), (left_window, right_window))
    assert found == max(live)


def test_the_whole_window_gives_the_whole_answer_and_less_gives_less() -> None:
    left, right = zipf(300, domain=10, seed=3)
    exact = tg.join(left, right, **JOIN).table
    window = window_rows((left["time"].to_numpy(), right["time"].to_numpy()), (20, 20))
    assert window == 40
    points = list(
        sweep(left, right, exact, policies=list(POLICIES), shares=(0.1, 1), window=window, **JOIN)
    )
    assert [point.policy for point in points[::2]] == list(POLICIES)
    for point in points:
        assert point.memory == round(point.memory_share * window)
        assert point.recall == point.results / len(exact)
        assert (point.recall == 1) == (point.memory_share == 1)


def test_memory_is_never_less_than_a_row() -> None:
    left, right = zipf(50, domain=5)
    exact = tg.join(left, right, **JOIN).table
    (point,) = sweep(left, right, exact, policies=["fifo"], shares=(0.001,), window=40, **JOIN)
    assert point.memory == 1


def test_the_best_policy_comes_first_and_equals_keep_their_order() -> None:
    def point(policy: str, recall: float) -> Point:
        return Point(policy, 0.5, 1, 1, recall)

    given = [point("a", 0.1), point("b", 0.5), point("c", 0.5), point("a", 0.2), point("b", 0.5)]
    assert [(p.policy, p.recall) for p in best_first(given)] == [
        ("b", 0.5),
        ("b", 0.5),
        ("c", 0.5),
        ("a", 0.1),
        ("a", 0.2),
    ]
