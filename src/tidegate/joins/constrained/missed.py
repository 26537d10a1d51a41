"""Bounds on the number of results that constraints have cost, from a sample of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, variance

#: The bounds are those of a confidence interval of 95 %: 2.5 % beyond each, in standard deviations.
_Z = 1.96


def missed_between(saved: Sequence[int], given: Sequence[int], p: float) -> tuple[float, float]:
    """Return bounds on the results missed, if a share p of the keys was sampled.

    A result that a constraint would have cost is seen with probability p. If keys have one result
    each, the number seen follows Poisson's law. If they have several, parts of the keys differ by
    more than this law lets them, and both bounds are widened by that factor.

    Parameters
    ----------
    saved
        Results of sampled keys that constraints would have cost, by part of the keys.
    given
        All results, by part of the keys.
    p
        The share of keys that is sampled.
    """
    seen = sum(saved)
    spreads = [variance(parts) / mean(parts) for parts in (saved, given) if any(parts)]
    spread = max([1.0, *spreads])
    keys = seen / spread
    low = _gamma(keys, -_Z) if seen else 0.0
    high = _gamma(keys + 1, _Z)
    return max(low * spread / p - seen, 0.0), high * spread / p - seen


def _gamma(shape: float, z: float) -> float:
    """Return a quantile of the gamma distribution, by the formula of Wilson and Hilferty."""
    root = max(0.0, 1 - 1 / (9 * shape) + z / (3 * shape**0.5))
    return float(shape * root**3)
