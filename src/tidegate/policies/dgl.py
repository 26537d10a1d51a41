"""DGL: a tuple gains by its results and loses while it has none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tidegate.errors import TidegateError
from tidegate.learning import scores
from tidegate.policies.base import Policy, Ranks, Times, at_least


@dataclass(frozen=True)
class DGL(Policy):
    """Rank a tuple by a balance that grows with its results and shrinks without them.

    It begins as `SimpProb`. At an instant with results it grows by importance * partners in memory
    * life left / `alpha`; at one without it shrinks by `beta`, to no less than 0. An instant is a
    second (or a unit of time, where times are plain numbers).

    Parameters
    ----------
    alpha
        The paper's constant, in seconds; by default the longer window, so that the life left counts
        as a share.
    beta
        What a tuple loses for each second without a result; by default 1 for each window.

    References
    ----------
    Towne, Zhu, Zuzarte, Hou, *Window Query Processing for Joining Data Streams with Relations*,
    section 3.2 (DGL); with a relation in `tidegate.star_join`.
    """

    name: ClassVar[str] = "dgl"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.DGL

    alpha: float | None = None
    beta: float | None = None

    def __post_init__(self) -> None:
        if self.alpha is not None:
            at_least(self.alpha, 0, "alpha", above=True)
        if self.beta is not None:
            at_least(self.beta, 0, "beta")

    def params(self, times: Times) -> tuple[float, ...]:
        """The two constants, and how long an instant is."""
        if math.isinf(times.window):
            raise TidegateError(
                "DGL weighs the life that is left, and an unbounded window has no end; give "
                "within a length, or use DimpProb"
            )
        alpha = times.window if self.alpha is None else self.alpha * times.unit
        beta = 1.0 / times.window if self.beta is None else self.beta / times.unit
        return alpha, beta, times.unit
