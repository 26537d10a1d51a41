"""Measure recall against memory: join the same streams under different settings.

It uses the local join: the same engine as on Spark, but without Spark's time of about a second per
batch, so dozens of settings take seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate import quality
from tidegate.api.join import join
from tidegate.policies import Policy, policy_of


@dataclass(frozen=True)
class Point:
    """The result of one policy with one memory."""

    policy: str
    memory_share: float
    memory: int
    results: int
    recall: float

    def as_row(self) -> dict[str, Any]:
        """Return the point as plain data."""
        return asdict(self)


def window_rows(times: tuple[NDArray[Any], NDArray[Any]], windows: tuple[float, float]) -> int:
    """Return the largest number of rows that are live at once: what an exact join has to hold.

    Parameters
    ----------
    times
        The times of the left and the right stream, as numbers, in any order.
    windows
        The left's and the right's window, in the same unit.
    """
    ordered = [np.sort(side) for side in times]
    moments = np.concatenate(ordered)
    live = np.zeros(len(moments), np.int64)
    for side, window in zip(ordered, windows, strict=True):
        arrived = np.searchsorted(side, moments, side="right")
        live += arrived - np.searchsorted(side, moments - window, side="right")
    return int(live.max(initial=0))


def sweep(
    left: pa.Table,
    right: pa.Table,
    exact: pa.Table,
    *,
    policies: Sequence[str | Policy],
    shares: Sequence[float],
    window: int,
    **settings: Any,
) -> Iterator[Point]:
    """Join with every policy and every memory, and compare with the exact result.

    Parameters
    ----------
    left, right
        The streams.
    exact
        All result rows, with the columns of the join's results.
    policies
        The policies to try.
    shares
        The memories to try, as shares of `window`.
    window
        How many rows an exact join has to hold; see `window_rows`.
    **settings
        The other settings of the join.
    """
    for policy in map(policy_of, policies):
        for share in shares:
            memory = max(1, round(share * window))
            result = join(left, right, memory=memory, policy=policy, **settings)
            recall = quality.recall(result.table, exact)
            yield Point(policy.name, share, memory, result.results, recall)


def best_first(points: Iterable[Point]) -> list[Point]:
    """Return the points by policy, highest mean recall first; equals keep their order."""
    by_policy: dict[str, list[Point]] = {}
    for point in points:
        by_policy.setdefault(point.policy, []).append(point)

    def mean(of: list[Point]) -> float:
        return sum(p.recall for p in of) / len(of)

    return [p for each in sorted(by_policy.values(), key=mean, reverse=True) for p in each]
