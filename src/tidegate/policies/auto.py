"""AUTO: learn by key and by age which rows will produce results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tidegate.learning import rates, scores
from tidegate.policies.base import Policy, Ranks


@dataclass(frozen=True)
class Auto(Policy):
    """Rank a row by the best average rate of benefit that it can still be expected to earn.

    The default policy. It has no parameters. The expectation starts from how often the row's key
    arrives on the other stream. The join corrects it by what rows of the same age, of equally
    frequent keys, and without results for an equally long time have found so far. So it learns
    whether keys, ages, recent activity, several of them or none of them matter, and it adapts when
    this changes. If rows have an importance, results count by their importance. In a star join,
    a row's partners are those that the links of the relation lead to.

    `Auto` needs a few windows to learn. On very short streams a well-chosen fixed policy can win.

    References
    ----------
    It computes what the papers' priorities estimate: PROB (Das, Gehrke, Riedewald, *Semantic
    Approximation of Data Stream Joins*) if ages do not matter, AGE (Srivastava, Widom,
    *Memory-Limited Execution of Windowed Stream Joins*) if keys do not matter.

    Examples
    --------
    >>> import tidegate as tg
    >>> from tidegate.streams import zipf
    >>> left, right = zipf(4_000, domain=50, seed=1)
    >>> def results(policy):
    ...     join = tg.join(
    ...         left, right, on="key", time="time", within=200, memory=100, policy=policy
    ...     )
    ...     return join.results
    >>> results("auto") > 2 * results("rand")
    True
    """

    name: ClassVar[str] = "auto"
    ranks: ClassVar[Ranks] = "score"
    counts: ClassVar[Literal["nothing", "arrivals", "results"]] = "arrivals"
    formula: ClassVar[int] = scores.AUTO
    for_star_joins: ClassVar[bool] = True

    @property
    def learns(self) -> Literal["ages", "rates"] | None:
        """``"rates"``: results by age and by key."""
        return "rates"

    def curves(self, windows: tuple[float, float]) -> tuple[list[float], list[float]]:
        """Return the curves to start with: all ages are equal."""
        return [1.0] * rates.STEPS, [1.0] * rates.STEPS
