"""DGL: a row's rank grows with its results and shrinks while it has none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tidegate.errors import TidegateError
from tidegate.learning import scores
from tidegate.policies.base import Policy, Ranks, Times, at_least


@dataclass(frozen=True)
class DGL(Policy):
    """Rank a row by a balance that grows with each result and shrinks without results.

    The balance starts as `SimpProb` ranks the row. At an instant with results it grows by
    importance * held partners * remaining life / `alpha`. At an instant without results it
    shrinks by `beta`, but not below 0. An instant is a second (or a unit of time, if times are
    plain numbers).

    Parameters
    ----------
    alpha
        The paper's constant alpha, in seconds. By default it is the longer window, so the
        remaining life counts as a share of the window.
    beta
        What a row loses for each second without a result; by default 1 per window.

    References
    ----------
    Towne, Zhu, Zuzarte, Hou, *Window Query Processing for Joining Data Streams with Relations*,
    section 3.2 (DGL). `tidegate.star_join` uses it with a relation.

    Examples
    --------
    The first left row finds a partner when it arrives, so it starts with a balance and stays:

    >>> import tidegate as tg
    >>> left = {"key": [1, 2, 3], "time": [1, 2, 3]}
    >>> right = {"key": [1, 1], "time": [0, 4]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=10, memory=2, split="fixed",
    ...     policy=tg.DGL(),
    ... )
    >>> result.results
    2
    """

    name: ClassVar[str] = "dgl"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.DGL
    for_star_joins: ClassVar[bool] = True

    alpha: float | None = None
    beta: float | None = None

    def __post_init__(self) -> None:
        if self.alpha is not None:
            at_least(self.alpha, 0, "alpha", above=True)
        if self.beta is not None:
            at_least(self.beta, 0, "beta")

    def params(self, times: Times) -> tuple[float, ...]:
        """Return alpha, beta and the length of an instant, in the join's unit of time."""
        if math.isinf(times.window):
            raise TidegateError(
                "DGL weighs the life that is left, and an unbounded window has no end; give "
                "within a length, or use DimpProb"
            )
        alpha = times.window if self.alpha is None else self.alpha * times.unit
        beta = 1.0 / times.window if self.beta is None else self.beta / times.unit
        return alpha, beta, times.unit
