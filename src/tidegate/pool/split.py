"""What memory earns, predicted: the models of paper 2 (Srivastava, Widom) in one form.

Both models say of a side what each further tuple of memory would earn, best first. Under the age
model that is the slope of the least concave curve above C, the results of a tuple by its age: its
straight parts are the paper's staggered strategy, and it is C itself where keeping every tuple for
as long as there is memory is best. Under the frequency model it is the rate at which partners of
a key come, for as many tuples as the window has of it. The best use of two memories, or of many,
then takes the best part of all: no split has to be searched for.
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
    """Results per unit of time as a function of memory, concave and in straight pieces.

    Attributes
    ----------
    tuples
        How much memory each piece takes.
    rates
        What a tuple of each piece earns in a unit of time: above zero, and falling.
    """

    tuples: NDArray[np.float64]
    rates: NDArray[np.float64]

    @property
    def most(self) -> float:
        """All results per unit of time."""
        return float((self.tuples * self.rates).sum())

    @property
    def need(self) -> float:
        """The least memory that earns them."""
        return float(self.tuples.sum())

    def results(self, memory: float) -> float:
        """Results per unit of time that a memory of so many tuples earns."""
        left = memory - np.concatenate([[0.0], np.cumsum(self.tuples)[:-1]])
        return float((np.clip(left, 0.0, self.tuples) * self.rates).sum())

    def memory(self, results: float) -> float:
        """The least memory that earns so many results per unit of time; infinite if none does."""
        earned = np.concatenate([[0.0], np.cumsum(self.tuples * self.rates)])
        if results > earned[-1] * (1 + 1e-12):
            return math.inf
        return float(np.interp(results, earned, np.concatenate([[0.0], np.cumsum(self.tuples)])))

    def recall(self, memory: float) -> float:
        """The share of all results that a memory of so many tuples earns."""
        return self.results(memory) / self.most if len(self.rates) else 1.0

    def memory_for(self, recall: float) -> float:
        """The least memory that earns a share of all results (f of section 5)."""
        return self.memory(recall * self.most)


def by_age(curve: Sequence[float] | NDArray[Any], rate: float, window: float) -> Earnings:
    """Predict what AGE earns on a side (equations (2) and (3); example 3.4 where C has minima).

    Parameters
    ----------
    curve
        How many results a tuple has at each age, in equal steps from its arrival to its window's
        end.
    rate
        How many tuples of the side arrive in a unit of time.
    window
        The window's length.
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
        How many tuples of each key arrive in a unit of time on the side itself, and on the other.
    window
        The side's window.
    """
    return _earnings(window * own, other)


def together(earnings: Sequence[Earnings]) -> Earnings:
    """Predict what one memory earns that is divided between several in the best way."""
    return _earnings(
        np.concatenate([each.tuples for each in earnings]),
        np.concatenate([each.rates for each in earnings]),
    )


def best_split(left: Earnings, right: Earnings, memory: int) -> tuple[int, int]:
    """Divide a memory so that both sides together earn the most; each has at least one tuple.

    Pieces that earn the same have equal parts of what they need, and so has all that neither side
    has a use for: real streams do not come as evenly as models.
    """
    if memory < 2:
        raise TidegateError(f"memory must be at least 2 tuples to be split, not {quoted(memory)}")
    wanted = _division(left, right, float(memory))
    best = max(
        (min(max(n, 1), memory - 1) for n in (math.floor(wanted), math.floor(wanted) + 1)),
        key=lambda n: (left.results(n) + right.results(memory - n), -abs(n - wanted)),
    )
    return best, memory - best


def _division(left: Earnings, right: Earnings, memory: float) -> float:
    """How much the left has of the best division, as a real number."""
    need = left.need + right.need
    if need == 0:
        return memory / 2
    if memory >= need:
        return memory * left.need / need
    both = together([left, right])
    last = int(np.searchsorted(np.cumsum(both.tuples), memory))
    worst = both.rates[min(last, len(both.rates) - 1)]
    sure = [float(side.tuples[side.rates > worst].sum()) for side in (left, right)]
    even = [float(side.tuples[side.rates == worst].sum()) for side in (left, right)]
    return sure[0] + (memory - sum(sure)) * even[0] / sum(even)


def _earnings(tuples: NDArray[np.float64], rates: NDArray[np.float64]) -> Earnings:
    """The best first, and without what earns nothing."""
    update = np.argsort(-rates, kind="stable")
    tuples, rates = tuples[update], rates[update]
    good = (tuples > 0) & (rates > 0)
    return Earnings(tuples[good], rates[good])
