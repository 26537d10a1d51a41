"""Quality as a function of memory: one representation for every kind of prediction.

Section 5 of paper 2 (Srivastava, Widom) divides a memory by functions f(q): the least memory with
which a join reaches quality q. A `Curve` comes from the frequency and age models (`of_earnings`),
from measurements at a few sizes (`of_points`, used with shadow joins while a join runs), or from
the expected error of a sample (`of_samples`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from tidegate.errors import TidegateError
from tidegate.pool import sampling
from tidegate.pool.split import Earnings

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Recall, or the error of an aggregate, as a piecewise linear function of memory.

    Attributes
    ----------
    memory
        The memory at each point, ascending. For recall it starts at 0.
    quality
        The recall at each point, which never falls, or the error, which never rises.
    results
        The number of results per unit of time if all are found.
    error
        Whether the quality is an error. Below the first point it grows like that of any sample,
        with one over the square root of the memory.
    """

    memory: Floats
    quality: Floats
    results: float = 1.0
    error: bool = False

    def __post_init__(self) -> None:
        gains = np.diff(self.quality) * (-1 if self.error else 1)
        if len(self.memory) != len(self.quality) or len(self.memory) == 0:
            raise TidegateError(
                f"a curve needs as many memories as qualities, and at least one, not "
                f"{len(self.memory)} and {len(self.quality)}"
            )
        if (np.diff(self.memory) <= 0).any() or (gains < 0).any():
            raise TidegateError(
                "a curve's memories must ascend, its recall must not fall and its error not rise; "
                f"got memories {self.memory.tolist()} and qualities {self.quality.tolist()}"
            )

    @property
    def best(self) -> float:
        """The quality with unlimited memory."""
        return float(self.quality[-1])

    @property
    def need(self) -> float:
        """The least memory that reaches the best quality."""
        return self.memory_for(self.best)

    def at(self, memory: float) -> float:
        """Return the quality with this memory."""
        if self.error and memory < self.memory[0] and self.quality[0] > 0:
            grown = math.inf if memory <= 0 else math.sqrt(self.memory[0] / memory)
            return float(self.quality[0] * grown)
        return float(np.interp(memory, self.memory, self.quality))

    def memory_for(self, quality: float) -> float:
        """Return the least memory that reaches a quality (f of section 5); infinite if none."""
        sign = -1.0 if self.error else 1.0
        rising, wanted = sign * self.quality, sign * quality
        at = int(np.searchsorted(rising, wanted))
        if at == len(rising):
            return math.inf
        if at == 0:
            part = (self.quality[0] / quality) ** 2 if self.error and quality > 0 else 0.0
            return float(self.memory[0] * part if self.error else self.memory[0])
        low, high = rising[at - 1], rising[at]
        part = (wanted - low) / (high - low)
        return float(self.memory[at - 1] + part * (self.memory[at] - self.memory[at - 1]))

    def hull(self) -> Earnings:
        """Return the least concave curve above this one, as results gained per further row.

        For an error, the gain is by how much the error falls.
        """
        worth = -self.quality if self.error else self.quality * self.results
        corners = [0]
        for at in range(1, len(worth)):
            while len(corners) > 1 and _slope(self.memory, worth, *corners[-2:]) <= _slope(
                self.memory, worth, corners[-1], at
            ):
                corners.pop()
            corners.append(at)
        rows, gains = np.diff(self.memory[corners]), np.diff(worth[corners])
        good = gains > 0
        return Earnings(rows[good], (gains / np.maximum(rows, 1e-300))[good])


def of_earnings(earnings: Earnings) -> Curve:
    """Return recall as predicted by the frequency or age model (sections 3.2.2 and 3.3)."""
    if earnings.most == 0:
        return Curve(np.zeros(1), np.ones(1), 0.0)
    memory = np.concatenate([[0.0], np.cumsum(earnings.rows)])
    found = np.concatenate([[0.0], np.cumsum(earnings.rows * earnings.rates)])
    return Curve(memory, np.minimum(found / earnings.most, 1.0), earnings.most)


def of_points(
    memory: Sequence[float], recall: Sequence[float], results: float = 1.0, need: float = math.inf
) -> Curve:
    """Return recall from noisy measurements in any order; recall is 1 from `need` on.

    Between two measurements the curve follows `_between`, on a finer grid.
    """
    known = {0.0: 0.0} | {
        m: min(max(r, 0.0), 1.0) for m, r in zip(memory, recall, strict=True) if m < need
    }
    if math.isfinite(need):
        known[need] = 1.0
    at = np.array(sorted(known))
    quality = np.maximum.accumulate(np.array([known[m] for m in at.tolist()]))
    return Curve(*_between(at, quality), results)


def of_samples(
    sides: Sequence[sampling.Side],
    memories: Sequence[float],
    fractions: Callable[[float], Sequence[Floats]],
    alike: Sequence[float] | None,
) -> Curve:
    """Return the relative standard error of an estimated total (sections 4.3.2 and 5).

    `fractions` returns, for a memory, the inclusion probabilities of each side's classes. `alike`
    is an argument of `sampling.variance`.
    """
    total = sum(float(side.rows @ side.matches) for side in sides)
    memory = np.array(sorted(set(memories)), np.float64)
    errors = [
        math.sqrt(max(sampling.variance(sides, fractions(m), alike), 0.0)) / total if total else 0.0
        for m in memory.tolist()
    ]
    return Curve(memory, np.minimum.accumulate(np.array(errors)), total, error=True)


def _slope(x: Floats, y: Floats, one: int, other: int) -> float:
    return float((y[other] - y[one]) / (x[other] - x[one]))


def _between(memory: Floats, quality: Floats, steps: int = 8) -> tuple[Floats, Floats]:
    """Interpolate between measurements by a smooth monotone curve.

    Recall is curved, and measurements are up to a factor of two apart: a straight line between them
    would lie below it.
    """
    if len(memory) < 3:
        return memory, quality
    fine = np.unique(
        np.concatenate([np.linspace(a, b, steps + 1) for a, b in itertools.pairwise(memory)])
    )
    smooth = PchipInterpolator(memory, quality)(fine)
    return fine, np.maximum.accumulate(np.clip(smooth, 0.0, 1.0))
