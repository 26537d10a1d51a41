"""HEEB: the benefit that is expected, the near one more than the far one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.errors import TidegateError
from tidegate.learning import scores
from tidegate.policies.base import ByFrequency, Ranks, Times, check_length
from tidegate.settings.values import quoted


@dataclass(frozen=True)
class Heeb(ByFrequency):
    """Rank a tuple by its expected benefit, discounted by ``exp(-t / alpha)``.

    With partners that come at a steady rate this is rate * (1 - exp(-life left / alpha)).

    Parameters
    ----------
    alpha
        How long a tuple stays, as a duration or a number like `within`; by default the mean time
        that evicted tuples have stayed, learned while running.

    References
    ----------
    Xie, Yang, Chen, *On Joining and Caching Stochastic Streams*, SIGMOD 2005.
    """

    name: ClassVar[str] = "heeb"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.HEEB

    alpha: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length(self.alpha, "alpha")

    def params(self, times: Times) -> tuple[float, ...]:
        """Alpha, or 0 to have it learned."""
        alpha = 0.0 if self.alpha is None else times.read(self.alpha, "alpha")
        if self.alpha is not None and not alpha > 0:
            raise TidegateError(
                f"alpha must be above 0, not {quoted(self.alpha)}; None has it learned from "
                "how long "
                "tuples stay"
            )
        return (alpha,)
