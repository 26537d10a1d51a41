"""AUTO: what a tuple has still to earn, learned by key and by age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tidegate.learning import rates, scores
from tidegate.policies.base import Policy, Ranks


@dataclass(frozen=True)
class Auto(Policy):
    """Rank a tuple by the best average rate of benefit that it can still be expected to earn.

    What is expected follows from how often its key has come on the other stream, and is corrected
    by what tuples of the same age, of keys as frequent, and quiet for as long, have found so far.
    So it finds out by itself whether keys matter, ages, recent activity, several of them or none,
    and follows when that changes. Results weigh by importance, if there is one. There is nothing
    to set.

    References
    ----------
    It computes what the priorities of the papers estimate: PROB (Das, Gehrke, Riedewald,
    *Semantic Approximation of Data Stream Joins*) where ages do not matter, AGE (Srivastava,
    Widom, *Memory-Limited Execution of Windowed Stream Joins*) where keys do not.
    """

    name: ClassVar[str] = "auto"
    ranks: ClassVar[Ranks] = "score"
    counts: ClassVar[Literal["nothing", "arrivals", "results"]] = "arrivals"
    formula: ClassVar[int] = scores.AUTO

    @property
    def learns(self) -> Literal["ages", "rates"] | None:
        """Both."""
        return "rates"

    def curves(self, windows: tuple[float, float]) -> tuple[list[float], list[float]]:
        """All ages alike, to begin with."""
        return [1.0] * rates.STEPS, [1.0] * rates.STEPS
