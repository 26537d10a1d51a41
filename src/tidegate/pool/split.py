"""Predict what memory earns: the models of paper 2 (Srivastava, Widom) in one representation.

Both models say what each further row of memory earns on a side, best first. Under the age model
this is the slope of the least concave curve above C, the results of a row by its age. Its straight
parts are the paper's staggered strategy; where it equals C, keeping every row as long as memory
allows is best. Under the frequency model it is the rate at which partners of a key arrive, for as
many rows of the key as the window contains. The best use of two or more memories takes the best
pieces of all sides, so that no search for a split is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.policies.age import steepest
from tidegate.settings.values import quoted


@dataclass(frozen=True)
class Earnings:
    """Results per unit of time as a concave, piecewise linear function of memory.

    Attributes
    ----------
    rows
        The number of rows of each piece.
    rates
        The results per unit of time that a row of each piece earns: positive and descending.
    """

    rows: NDArray[np.float64]
    rates: NDArray[np.float64]

    @property
    def most(self) -> float:
        """All results per unit of time."""
        return float((self.rows * self.rates).sum())

    @property
    def need(self) -> float:
        """The least memory that earns all results."""
        return float(self.rows.sum())

    def results(self, memory: float) -> float:
        """Return the results per unit of time with a memory of this many rows."""
        left = memory - np.concatenate([[0.0], np.cumsum(self.rows)[:-1]])
        return float((np.clip(left, 0.0, self.rows) * self.rates).sum())

    def memory(self, results: float) -> float:
        """Return the least memory that earns these results per unit of time; infinite if none."""
        earned = np.concatenate([[0.0], np.cumsum(self.rows * self.rates)])
        if results > earned[-1] * (1 + 1e-12):
            return math.inf
        return float(np.interp(results, earned, np.concatenate([[0.0], np.cumsum(self.rows)])))

    def recall(self, memory: float) -> float:
        """Return the share of all results with a memory of this many rows."""
        return self.results(memory) / self.most if len(self.rates) else 1.0

    def memory_for(self, recall: float) -> float:
        """Return the least memory that reaches a recall (f of section 5)."""
        return self.memory(recall * self.most)


def by_age(curve: Sequence[float] | NDArray[Any], rate: float, window: float) -> Earnings:
    """Predict what AGE earns on a side (equations (2) and (3); example 3.4 where C has minima).

    Parameters
    ----------
    curve
        The results of a row at each age, in equal steps from its arrival to its window's end.
    rate
        The number of the side's rows that arrive per unit of time.
    window
        The length of the window.
    """
    ages = np.linspace(0.0, window, len(curve) + 1)
    total = np.concatenate([[0.0], np.cumsum(np.asarray(curve, np.float64))])
    ends, corners = steepest(total).tolist(), [0]
    while corners[-1] < len(ends):
        corners.append(ends[corners[-1]])
    lengths, gains = np.diff(ages[corners]), np.diff(total[corners])
    return _earnings(rate * lengths, gains / lengths)


def by_frequency(own: NDArray[np.float64], other: NDArray[np.float64], window: float) -> Earnings:
    """Predict what PROB earns on a side (section 3.3).

    Parameters
    ----------
    own, other
        The arrivals of each key per unit of time, on the side itself and on the other side.
    window
        The side's window.
    """
    return _earnings(window * own, other)


def together(earnings: Sequence[Earnings]) -> Earnings:
    """Predict what one memory earns that is divided between several sides in the best way."""
    return _earnings(
        np.concatenate([each.rows for each in earnings]),
        np.concatenate([each.rates for each in earnings]),
    )


def best_split(left: Earnings, right: Earnings, memory: int) -> tuple[int, int]:
    """Divide a memory so that both sides together earn the most; each gets at least one row.

    Pieces with equal rates share memory in proportion to their size, and so do both sides with
    memory that neither needs: real streams are less even than the models.
    """
    if memory < 2:
        raise TidegateError(f"memory must be at least 2 rows to be split, not {quoted(memory)}")
    wanted = _division(left, right, float(memory))
    best = max(
        (min(max(n, 1), memory - 1) for n in (math.floor(wanted), math.floor(wanted) + 1)),
        key=lambda n: (left.results(n) + right.results(memory - n), -abs(n - wanted)),
    )
    return best, memory - best


def _division(left: Earnings, right: Earnings, memory: float) -> float:
    """Return the left side's part of the best division, as a real number."""
    need = left.need + right.need
    if need == 0:
        return memory / 2
    if memory >= need:
        return memory * left.need / need
    both = together([left, right])
    last = int(np.searchsorted(np.cumsum(both.rows), memory))
    worst = both.rates[min(last, len(both.rates) - 1)]
    sure = [float(side.rows[side.rates > worst].sum()) for side in (left, right)]
    even = [float(side.rows[side.rates == worst].sum()) for side in (left, right)]
    return sure[0] + (memory - sum(sure)) * even[0] / sum(even)


def _earnings(rows: NDArray[np.float64], rates: NDArray[np.float64]) -> Earnings:
    """Sort pieces by descending rate, and drop those that earn nothing."""
    order = np.argsort(-rates, kind="stable")
    rows, rates = rows[order], rates[order]
    good = (rows > 0) & (rates > 0)
    return Earnings(rows[good], rates[good])
