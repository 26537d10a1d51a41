"""AGE: keep the tuples whose age is about to pay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tidegate.errors import TidegateError
from tidegate.kernel import scores
from tidegate.policies.base import Policy, Ranks

#: Steps of a curve that is learned.
_STEPS = 32


@dataclass(frozen=True)
class Age(Policy):
    """Rank a tuple by the best average rate of results that its age promises.

    With C(i) results by age i, a tuple of age i has the rank max over j > i of
    (C(j) - C(i)) / (j - i).

    Parameters
    ----------
    curve
        How many results a tuple has at each age, from its arrival to the end of its window in
        equal steps: one sequence for both sides or a pair (left's, right's). By default it is
        learned while running.

    References
    ----------
    Srivastava, Widom, *Memory-Limited Execution of Windowed Stream Joins*, section 3.2.1.
    """

    name: ClassVar[str] = "age"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.AGE

    curve: Any = None

    @property
    def learns(self) -> Literal["ages", "rates"] | None:
        """The curve, unless it was given."""
        return "ages" if self.curve is None else None

    def __post_init__(self) -> None:
        for curve in _pair(self.curve):
            try:
                values = np.asarray(curve, np.float64)
            except (TypeError, ValueError):
                values = np.empty(0)
            if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
                raise TidegateError(f"an age curve must be a row of finite numbers, not {curve!r}")
            if (values < 0).any():
                raise TidegateError(f"an age curve must not be negative, not {curve!r}")

    def curves(self, windows: tuple[float, float]) -> tuple[list[float], list[float]]:
        """The priorities by age."""
        if any(map(math.isinf, windows)):
            raise TidegateError(
                "an age curve ends with the window, and this one is unbounded; give within a "
                "length, or use Prob"
            )
        if self.curve is None:
            return [1.0] * _STEPS, [1.0] * _STEPS
        left, right = _pair(self.curve)
        return priorities(left), priorities(right)

    def settings(self) -> dict[str, Any]:
        """By its numbers."""
        given = [[float(x) for x in curve] for curve in _pair(self.curve)]
        return {"policy": self.name, "curve": "learned" if self.curve is None else given}


def priorities(curve: Sequence[float]) -> list[float]:
    """Priority(i) of section 3.2.1 for every age: the steepest chord of C from there on."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(curve, np.float64))])
    ages = np.arange(len(total), dtype=np.float64)
    return [
        float(np.max((total[i + 1 :] - total[i]) / (ages[i + 1 :] - ages[i])))
        for i in range(len(curve))
    ]


def _pair(curve: Any) -> tuple[Any, Any]:
    """The left's curve and the right's."""
    if curve is None:
        return [1.0], [1.0]
    if not isinstance(curve, Sequence | np.ndarray) or isinstance(curve, str):
        raise TidegateError(
            "curve must be the results by age, one sequence or a pair (left's, right's), not "
            f"{curve!r}"
        )
    if len(curve) == 2 and not isinstance(curve[0], int | float | np.number):
        return curve[0], curve[1]
    return curve, curve
