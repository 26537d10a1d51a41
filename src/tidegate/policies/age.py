"""AGE: keep the tuples whose age is about to pay."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.learning import scores
from tidegate.policies.base import Policy, Ranks, at_least
from tidegate.settings.values import quoted

#: Steps of a curve that is learned.
_STEPS = 32
#: Steps at the least of a curve that is given: inside one, all tuples have one rank, and the
#: youngest stay, so that a memory smaller than a step's tuples would have none grow older.
_FINE = 256
#: Points of a curve that are written out in the settings of a checkpoint.
_WRITTEN = 4_096
#: The largest value of a curve: the sum of all is still a number.
_LARGEST = 1e150


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
    rates
        How many tuples arrive on each stream in a unit of time (a second, where times are
        timestamps): one number for both or a pair (left's, right's). Only ``split="predicted"``
        needs it.

    References
    ----------
    Srivastava, Widom, *Memory-Limited Execution of Windowed Stream Joins*, section 3.2.1.
    """

    name: ClassVar[str] = "age"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.AGE

    curve: Any = None
    rates: Any = None

    @property
    def both_curves(self) -> tuple[Any, Any]:
        """The left's curve and the right's."""
        return _pair(self.curve)

    @property
    def both_rates(self) -> tuple[float, float]:
        """The left's arrivals in a unit of time, and the right's."""
        pair = self.rates if isinstance(self.rates, tuple | list) else (self.rates, self.rates)
        return pair[0], pair[1]

    @property
    def learns(self) -> Literal["ages", "rates"] | None:
        """The curve, unless it was given."""
        return "ages" if self.curve is None else None

    def __post_init__(self) -> None:
        for curve in self.both_curves:
            try:
                values = np.asarray(curve, np.float64)
            except Exception:  # a list may hold anything, and so may fail in any way
                values = np.empty(0)
            if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
                raise TidegateError(
                    f"an age curve must be a row of finite numbers, not {quoted(curve)}"
                )
            if (values < 0).any() or (values > _LARGEST).any():
                raise TidegateError(
                    f"an age curve must be between 0 and {_LARGEST:g} everywhere, not "
                    f"{quoted(curve)}"
                )
        if self.rates is not None:
            if isinstance(self.rates, tuple | list) and len(self.rates) != 2:
                raise TidegateError(
                    "rates must be one number or a pair (left's, right's), not "
                    f"{quoted(self.rates)}"
                )
            for rate in self.both_rates:
                at_least(rate, 0, "rates", above=True)

    def curves(self, windows: tuple[float, float]) -> tuple[list[float], list[float]]:
        """The priorities by age."""
        if any(map(math.isinf, windows)):
            raise TidegateError(
                "an age curve ends with the window, and this one is unbounded; give within a "
                "length, or use Prob"
            )
        if self.curve is None:
            return [1.0] * _STEPS, [1.0] * _STEPS
        left, right = self.both_curves
        found = _in_time(left, windows[0])
        same = left is right and windows[0] == windows[1]
        return found, found if same else _in_time(right, windows[1])

    def settings(self) -> dict[str, Any]:
        """By its numbers."""
        given = [_written(curve) for curve in self.both_curves]
        rates = None if self.rates is None else [float(rate) for rate in self.both_rates]
        curve = "learned" if self.curve is None else given
        return {"policy": self.name, "curve": curve, "rates": rates}


def _written(curve: Any) -> Any:
    """A curve's numbers; a long one's digest, as every checkpoint has them."""
    values = np.ascontiguousarray(curve, np.float64)
    if len(values) <= _WRITTEN:
        return values.tolist()
    return f"{len(values)} points {hashlib.sha256(values.tobytes()).hexdigest()[:16]}"


def priorities(curve: Sequence[float] | NDArray[np.float64]) -> list[float]:
    """Priority(i) of section 3.2.1 for every age: the steepest chord of C from there on."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(curve, np.float64))])
    ends = steepest(total)
    slopes: list[float] = ((total[ends] - total[:-1]) / (ends - np.arange(len(ends)))).tolist()
    return slopes


def steepest(total: NDArray[np.float64]) -> NDArray[np.int64]:
    """From each point but the last, where its steepest chord ends; of equals, the furthest.

    These are the corners of the least concave curve above the points from there on. They are kept
    in a stack from the last point to the first, and each is taken off it once at the most.
    """
    height = total.tolist()
    ends = np.empty(len(height) - 1, np.int64)
    corners = [len(height) - 1]
    for i in range(len(height) - 2, -1, -1):
        while len(corners) > 1:
            near, far = corners[-1], corners[-2]
            if (height[near] - height[i]) * (far - near) > (height[far] - height[near]) * (
                near - i
            ):
                break
            corners.pop()
        ends[i] = corners[-1]
        corners.append(i)
    return ends


def _in_time(curve: Sequence[float], window: float) -> list[float]:
    """Priorities in steps that are fine enough, as results in a unit of time.

    So the sides can be compared, whatever their windows and steps.
    """
    # A power of two, so that whole numbers remain exact.
    parts = 1 << max(math.ceil(math.log2(_FINE / len(curve))), 0)
    fine = np.repeat(np.asarray(curve, np.float64), parts) / parts
    return [float(priority) * len(fine) / window for priority in priorities(fine)]


def _pair(curve: Any) -> tuple[Any, Any]:
    """The left's curve and the right's."""
    if curve is None:
        return [1.0], [1.0]
    is_row = isinstance(curve, Sequence) or (isinstance(curve, np.ndarray) and curve.ndim > 0)
    if not is_row or isinstance(curve, str | bytes):
        raise TidegateError(
            "curve must be the results by age, one sequence or a pair (left's, right's), not "
            f"{quoted(curve)}"
        )
    if len(curve) == 2 and not isinstance(curve[0], int | float | np.number):
        return curve[0], curve[1]
    return curve, curve
