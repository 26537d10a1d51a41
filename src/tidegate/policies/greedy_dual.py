"""GreedyDual: add the largest rank shed so far, to favour rows that were active recently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.learning import scores
from tidegate.policies.base import ByFrequency, Ranks


@dataclass(frozen=True)
class GreedyDual(ByFrequency):
    """Rank a row by its key's rate plus the largest rank that was shed so far.

    The sum is computed when the row arrives and again at each of its results. So active rows
    overtake a row whose key no longer arrives. If the memory is split, each side has its own
    largest rank. A rejected newcomer counts as shed here.

    References
    ----------
    Li, Chang, Bestavros, Kollios, 2004, on caching for joins of streams.

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"key": [1, 2], "time": [2, 3]}
    >>> right = {"key": [1, 1], "time": [1, 4]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=(10, 1), memory=1, policy=tg.GreedyDual()
    ... )
    >>> result.table["key_left"].to_pylist()
    [1]
    """

    name: ClassVar[str] = "greedy-dual"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.GREEDY_DUAL
