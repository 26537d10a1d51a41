"""HEEB: expected benefit, where near benefit counts more than distant benefit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.errors import TidegateError
from tidegate.learning import scores
from tidegate.policies.base import ByFrequency, Ranks, Times, check_length
from tidegate.settings.values import quoted


@dataclass(frozen=True)
class Heeb(ByFrequency):
    """Rank a row by its expected benefit, discounted by ``exp(-t / alpha)``.

    If partners arrive at a steady rate, the rank is rate * (1 - exp(-remaining life / alpha)).

    Parameters
    ----------
    alpha
        How long a row is held on average, as a duration or a number like `within`. By default the
        join learns it: the mean time that shed rows were held.

    References
    ----------
    Xie, Yang, Chen, *On Joining and Caching Stochastic Streams*, SIGMOD 2005.

    Examples
    --------
    Key 1 arrives more often on the right, so its left row is kept:

    >>> import tidegate as tg
    >>> left = {"key": [1, 2], "time": [1, 2]}
    >>> right = {"key": [1, 2], "time": [3, 3]}
    >>> often = {"key": [1, 2], "left": [1, 1], "right": [9, 1]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=(10, 1), memory=1,
    ...     policy=tg.Heeb(often, alpha=5),
    ... )
    >>> result.table["key_left"].to_pylist()
    [1]
    """

    name: ClassVar[str] = "heeb"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.HEEB

    alpha: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length(self.alpha, "alpha")

    def params(self, times: Times) -> tuple[float, ...]:
        """Return alpha, or 0 if the join should learn it."""
        alpha = 0.0 if self.alpha is None else times.read(self.alpha, "alpha")
        if self.alpha is not None and not alpha > 0:
            raise TidegateError(
                f"alpha must be above 0, not {quoted(self.alpha)}; None has it learned from how "
                "long rows are held"
            )
        return (alpha,)
