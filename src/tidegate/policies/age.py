"""AGE: keep the rows whose age promises the most results."""

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

#: Number of steps of a learned curve.
_STEPS = 32
#: Minimal number of steps of a given curve. Within one step all rows have the same rank, and the
#: youngest stay: if a step had more rows than fit into memory, no row would ever grow older.
_FINE = 256
#: Curves with at most this many points are written to the settings in full, others as a digest.
_WRITTEN = 4_096
#: The largest value of a curve: the sum of all values stays finite.
_LARGEST = 1e150


@dataclass(frozen=True)
class Age(Policy):
    """Rank a row by the best average rate of results over any remaining holding time.

    With C(i) the number of results a row has by age i, a row of age i has the rank
    max over j > i of (C(j) - C(i)) / (j - i).

    Parameters
    ----------
    curve
        How many results a row finds at each age, from its arrival to the end of its window in
        equal steps: one sequence for both sides, or a pair (left's, right's). By default the join
        learns it while running.
    rates
        How many rows arrive on each stream per unit of time (per second, if times are
        timestamps): one number for both, or a pair (left's, right's). Only ``split="predicted"``
        needs it.

    References
    ----------
    Srivastava, Widom, *Memory-Limited Execution of Windowed Stream Joins*, section 3.2.1.

    Examples
    --------
    Every auction gets its only bid 3 minutes after it opens. The curve tells the join to keep the
    oldest of the open auctions:

    >>> import tidegate as tg
    >>> auctions = {"id": [1, 2, 3], "minute": [0, 1, 2]}
    >>> bids = {"id": [1, 2, 3], "minute": [3, 4, 5]}
    >>> result = tg.join(
    ...     auctions, bids, on="id", time="minute", within=(4, 1), memory=1,
    ...     policy=tg.Age(([0, 0, 0, 1], [0])),
    ... )
    >>> result.table["id_left"].to_pylist()
    [1]
    """

    name: ClassVar[str] = "age"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.AGE

    curve: Any = None
    rates: Any = None

    @property
    def both_curves(self) -> tuple[Any, Any]:
        """The left side's curve and the right side's."""
        return _pair(self.curve)

    @property
    def both_rates(self) -> tuple[float, float]:
        """The arrivals per unit of time on the left and on the right stream."""
        pair = self.rates if isinstance(self.rates, tuple | list) else (self.rates, self.rates)
        return pair[0], pair[1]

    @property
    def learns(self) -> Literal["ages", "rates"] | None:
        """``"ages"``, unless a curve was given."""
        return "ages" if self.curve is None else None

    def __post_init__(self) -> None:
        for curve in self.both_curves:
            try:
                values = np.asarray(curve, np.float64)
            except Exception:  # the values may be of any class, and may fail in any way
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
        """Return the priority at each age, for the left and for the right side."""
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
        """Return the parameters as plain JSON values."""
        given = [_written(curve) for curve in self.both_curves]
        rates = None if self.rates is None else [float(rate) for rate in self.both_rates]
        curve = "learned" if self.curve is None else given
        return {"policy": self.name, "curve": curve, "rates": rates}


def _written(curve: Any) -> Any:
    """Return a curve's values, or a digest of a long curve; every checkpoint stores this."""
    values = np.ascontiguousarray(curve, np.float64)
    if len(values) <= _WRITTEN:
        return values.tolist()
    return f"{len(values)} points {hashlib.sha256(values.tobytes()).hexdigest()[:16]}"


def priorities(curve: Sequence[float] | NDArray[np.float64]) -> list[float]:
    """Return Priority(i) of section 3.2.1 for every age: the slope of the steepest chord of C."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(curve, np.float64))])
    ends = steepest(total)
    slopes: list[float] = ((total[ends] - total[:-1]) / (ends - np.arange(len(ends)))).tolist()
    return slopes


def steepest(total: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return, for each point but the last, the end of its steepest chord; the furthest if several.

    The ends are the corners of the smallest concave curve above the points ahead. The loop keeps
    the corners on a stack, from the last point to the first, and removes each at most once.
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
    """Return the priorities of a curve as results per unit of time, in sufficiently small steps.

    In this unit both sides can be compared, whatever their windows and steps.
    """
    # Dividing by a power of two keeps whole numbers exact.
    parts = 1 << max(math.ceil(math.log2(_FINE / len(curve))), 0)
    fine = np.repeat(np.asarray(curve, np.float64), parts) / parts
    return [float(priority) * len(fine) / window for priority in priorities(fine)]


def _pair(curve: Any) -> tuple[Any, Any]:
    """Return the left side's curve and the right side's."""
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
