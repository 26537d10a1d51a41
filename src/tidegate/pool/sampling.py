"""The share of a join that a memory can sample: section 4 of paper 2 (Srivastava, Widom).

The rows in a side's window form *classes*. Each class has a number of rows, and an expected number
of partners per row. Under the frequency model a class is a key (theorem 4.2). Under the age model
all rows are in one class, and a curve says when partners arrive (theorem 4.3).

UNIFORM keeps a row until the last of its matches that the coin chose. With `most` coin flips per
row, that match is after the j-th one with probability ``1 - q**(most - j)``. So the memory a row
takes is the sum over j of that probability times how long the row has exactly j matches behind it.
The theorems take matches as evenly spaced (frequency), or exactly as the curve says (age). A
`reach` above 0 takes them as random, as real ones are, and flips coins for more of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammainc, gammaln

Floats = NDArray[np.float64]

#: Above this number of partners, random arrivals are treated as evenly spaced.
_MANY = 64.0
#: The smallest sampling fraction: below it an estimate would be meaningless.
_LEAST = 1e-9
#: Sums that differ by no more than this factor count as equal.
_ABOUT = 1.0 - 1e-9
#: Number of points in time per step of an age curve.
_FINE = 8
#: The smallest size of a row in PPS-CLUSTER, relative to the mean. Without it, a row whose
#: frequency was underestimated would get a weight (1/probability) that drowns out all others.
FLOOR = 0.05


@dataclass(frozen=True)
class Side:
    """The rows in one side's window, by class.

    Attributes
    ----------
    rows
        The memory that all rows of each class would take.
    matches
        The expected number of partners of a row of each class.
    curve
        Under the age model, the matches by age, from 0 to the window's end in equal steps.
    """

    rows: Floats
    matches: Floats
    curve: Floats | None = None

    @property
    def mean(self) -> float:
        """The expected number of partners of a row, averaged over all classes."""
        total = float(self.rows.sum())
        if total > 0:
            return float(self.rows @ self.matches) / total
        return float(self.matches.mean()) if len(self.matches) else 0.0

    @property
    def sizes(self) -> Floats:
        """The cluster sizes for PPS-CLUSTER."""
        return np.maximum(self.matches, FLOOR * self.mean)


def most_matches(matches: Floats, reach: float) -> Floats:
    """Return for how many matches of a row UNIFORM flips coins: mean plus `reach` deviations."""
    most: Floats = np.ceil(matches + reach * np.sqrt(matches))
    return most


def target(memory: float, margin: float) -> float:
    """Return the mean whose distance from `memory` is `margin` standard deviations.

    The rows held are many rows kept independently of each other, so the variance of their number is
    at most its mean. The margin makes overflow improbable (section 4.2.2).
    """
    return ((math.sqrt(margin**2 + 4.0 * memory) - margin) / 2.0) ** 2


def kept_by_frequency(matches: Floats, reach: float) -> Callable[[float], Floats]:
    """Return a function from the sampling fraction to the part of its window a row is kept.

    With a `reach` of 0 this is the summand of theorem 4.2. A row without partners is discarded on
    arrival (figure 4: the first skip already passes n = 0); the theorem would divide by zero there.
    """
    most = matches if reach == 0 else most_matches(matches, reach)
    even = (matches > _MANY) if reach > 0 else np.ones(len(matches), np.bool_)
    terms = np.arange(float(most[~even].max(initial=0.0)))
    few = np.maximum(matches[~even], 1e-12)
    # A Poisson process with `few` points per window has exactly j of them behind it for this part.
    stays = gammainc(terms + 1.0, few[:, np.newaxis]) / few[:, np.newaxis]
    left = np.maximum(most[~even][:, np.newaxis] - terms, 0.0)

    def kept(p: float) -> Floats:
        q, found = 1.0 - p, np.empty(len(matches))
        n = np.maximum(matches[even], 1e-12)
        found[even] = 1.0 - q ** (most[even] - matches[even] + 1.0) * (1.0 - q**n) / (p * n)
        found[~even] = ((1.0 - q**left) * stays).sum(axis=1)
        found[matches == 0] = 0.0
        return found

    return kept


def kept_by_age(curve: Floats, reach: float) -> Callable[[float], Floats]:
    """Return the same function for rows whose matches come by age.

    With a `reach` of 0 this is theorem 4.3, without the rate of arrivals. The theorem's ages are
    single instants, so its inverse of C is a step function. A step of a curve here covers many
    instants, over which partners are spread, so the inverse is a line within each step. With steps
    of one instant, the two differ by less than an instant. With longer steps, the step function
    overestimates the memory.
    """
    total = np.concatenate([[0.0], np.cumsum(curve)])
    most = float(most_matches(total[-1:], reach)[0])
    terms = np.arange(most)
    if reach == 0:
        # The inverse of C: the first age at which a given number of matches is behind.
        passed, first = np.unique(total, return_index=True)
        stays = np.diff(np.interp(np.arange(most + 1.0), passed, first / len(curve), right=1.0))
    else:
        steps = len(curve) * _FINE
        middle = (np.arange(steps) + 0.5) / steps
        passed = np.interp(middle, np.linspace(0.0, 1.0, len(total)), total)
        log = np.log(np.maximum(passed, 1e-300))
        chance = np.exp(terms[:, np.newaxis] * log - passed - gammaln(terms + 1.0)[:, np.newaxis])
        stays = chance.mean(axis=1)

    def kept(p: float) -> Floats:
        return np.array([((1.0 - (1.0 - p) ** (most - terms)) * stays).sum()])

    return kept


def uniform_memory(sides: Sequence[Side], reach: float) -> Callable[[float], float]:
    """Return the expected memory of UNIFORM as a function of p (theorems 4.2 and 4.3)."""
    parts = [
        (
            side.rows,
            kept_by_frequency(side.matches, reach)
            if side.curve is None
            else kept_by_age(side.curve, reach),
        )
        for side in sides
    ]
    return lambda p: float(sum((rows * kept(p)).sum() for rows, kept in parts))


def uniform_fraction(sides: Sequence[Side], memory: float, reach: float) -> float:
    """Return the sampling fraction with which UNIFORM takes this memory, by root finding."""
    needed = uniform_memory(sides, reach)
    if needed(1.0) <= memory:
        return 1.0
    if needed(_LEAST) >= memory:
        return _LEAST
    return float(brentq(lambda p: needed(p) - memory, _LEAST, 1.0, xtol=1e-15, rtol=1e-12))


def cluster_fraction(sides: Sequence[Side], memory: float) -> float:
    """Return the share of clusters that EQ-CLUSTER can keep to their end (strategy 2)."""
    window = sum(float(side.rows.sum()) for side in sides)
    return min(max(memory / window, _LEAST), 1.0) if window > 0 else 1.0


def pps_constant(sizes: Floats, costs: Floats, budget: float) -> float:
    """Return the c for which clusters kept with probability c * size cost `budget` on average.

    No probability may exceed 1 (footnote 2 of the paper). Clusters for which c * size does are
    certain and cost their full cost, which leaves more for the others. This is repeated until no
    more clusters become certain.
    """
    used = sizes > 0
    sizes, costs = sizes[used], costs[used]
    if budget >= costs.sum() * _ABOUT or not len(sizes):
        return math.inf
    certain = np.zeros(len(sizes), np.bool_)
    while True:
        rest = float((costs * sizes)[~certain].sum())
        constant = max(budget - float(costs[certain].sum()), 0.0) / rest if rest > 0 else math.inf
        over = ~certain & (constant * sizes >= 1.0)
        if not over.any():
            return max(constant, _LEAST / float(sizes.max()))
        certain |= over


def pps_for_memory(sides: Sequence[Side], memory: float) -> float:
    """Return the constant with which PPS-CLUSTER takes this memory (strategy 3)."""
    sizes = np.concatenate([side.sizes for side in sides])
    return pps_constant(sizes, np.concatenate([side.rows for side in sides]), memory)


def pps_for_fraction(sides: Sequence[Side], fraction: float) -> float:
    """Return the constant with which PPS-CLUSTER samples this share of all results."""
    sizes = np.concatenate([side.sizes for side in sides])
    results = np.concatenate([side.rows * side.matches for side in sides])
    return pps_constant(sizes, results, fraction * float(results.sum()))


def variance(
    sides: Sequence[Side], shares: Sequence[Floats], alike: Sequence[float] | None
) -> float:
    """Return the variance of an estimated total, in units of one value's (section 4.3.2).

    `shares` are the inclusion probabilities by class: of clusters, or of pairs if `alike` is None.
    `alike` says for each side whether the values within a cluster are equal (1: the value is the
    side's own, or rows are only counted) or independent (0).
    """
    total = 0.0
    for at, (side, share) in enumerate(zip(sides, shares, strict=True)):
        square = 0.0 if alike is None else alike[at] * side.matches**2
        total += float((side.rows * (1.0 / share - 1.0) * (side.matches + square)).sum())
    return total


def classes(rows: Floats, matches: Floats, most: int = 64) -> tuple[Floats, Floats]:
    """Merge keys with about the same number of partners into classes, if there are many keys."""
    used = rows > 0
    rows, matches = rows[used], matches[used]
    if len(rows) <= most:
        return rows, matches
    level = np.floor(4.0 * np.log2(np.maximum(matches, 2.0**-12))).astype(np.int64)
    level = np.minimum(level - level.min(), 4 * 64)
    total = np.bincount(level, rows).astype(np.float64)
    weighted = np.bincount(level, rows * matches)
    filled = total > 0
    return total[filled], weighted[filled] / total[filled]
