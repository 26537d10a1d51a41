"""GreedyDual: a floor that rises with each eviction favours what was active lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.learning import scores
from tidegate.policies.base import ByFrequency, Ranks


@dataclass(frozen=True)
class GreedyDual(ByFrequency):
    """Rank a tuple by its key's rate on top of the largest rank evicted so far.

    The sum is made when the tuple comes and again at each of its results, so that a tuple whose
    key has fallen silent is overtaken by those that are active. Each side has a floor of its own
    where the memory is split; a newcomer that is turned away raises it too.

    References
    ----------
    Li, Chang, Bestavros, Kollios, 2004, on caching for joins of streams.
    """

    name: ClassVar[str] = "greedy-dual"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.GREEDY_DUAL
