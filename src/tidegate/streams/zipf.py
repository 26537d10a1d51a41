"""Two streams of Zipf-distributed keys, as in section 5.2 of paper 1 (Das, Gehrke, Riedewald)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.settings.values import quoted
from tidegate.streams._checks import MOST, choice, generators, pair, whole, zipf_ranks

CORRELATIONS = ("none", "same", "opposite")
_FINEST = 10**6


def zipf(
    n: int,
    *,
    domain: int = 50,
    skew: float | tuple[float, float] = 1.0,
    correlation: str = "none",
    rate: float | tuple[float, float] = (1.0, 1.0),
    shuffles: int = 0,
    seed: int = 0,
) -> tuple[pa.Table, pa.Table]:
    """Generate a left and a right stream of independent Zipf-distributed keys over ``n`` ticks.

    The defaults are paper 1's setting: a domain of 50 values, Zipf(1), uncorrelated, and one row
    on each stream at every tick. Both sides are Arrow tables with the int64 columns ``key`` (0 to
    domain-1) and ``time`` (0 to n-1, ascending) and a float64 ``value`` in [0, 1).

    Parameters
    ----------
    n
        Length of the streams in ticks; at a rate of one also the number of rows per side.
    domain
        Number of different keys.
    skew
        Zipf parameter, one for both sides or (left, right); 0 is the uniform distribution.
    correlation
        "none": each stream has its own random permutation of the keys. "same": a key is equally
        frequent on both streams (paper 1's correlated). "opposite": keys that are frequent on one
        stream are rare on the other (its anti-correlated).
    rate
        Rows per tick, one number for both sides or (left, right). Arrivals are evenly spaced and
        then rounded down to a tick: 2 puts two rows in each tick, 0.5 one in every second tick.
    shuffles
        How many times, evenly spaced, all keys are permuted: a frequent key may become rare.
    seed
        The same seed gives the same tables. A side does not depend on the other's skew and rate,
        and a longer stream begins with the shorter one (without shuffles).
    """
    n = whole("n", n, least=1, most=math.inf)
    domain = whole("domain", domain, least=1)
    skews = pair("skew", skew, least=0.0)
    rates = pair("rate", rate, least=1 / _FINEST)
    choice("correlation", correlation, CORRELATIONS)
    shuffles = whole("shuffles", shuffles, least=0)
    *randoms, shuffling = generators(seed, 7)
    moved = np.array([np.arange(domain), *(shuffling.permutation(domain) for _ in range(shuffles))])
    sides = []
    for side in (0, 1):
        permuting, drawing, filling = randoms[3 * side : 3 * side + 3]
        keys = np.arange(domain, dtype=np.int64)
        if correlation == "none":
            keys = permuting.permutation(keys)
        elif correlation == "opposite" and side == 1:
            keys = keys[::-1]
        time = _arrivals(n, rates[side])
        ranks = zipf_ranks(drawing, len(time), domain, skews[side])
        value = filling.random(len(time))
        part = np.minimum(time * (shuffles + 1) // n, shuffles)
        sides.append(pa.table({"key": moved[part, keys[ranks]], "time": time, "value": value}))
    return sides[0], sides[1]


def uniform(
    n: int,
    *,
    domain: int = 50,
    rate: float | tuple[float, float] = (1.0, 1.0),
    seed: int = 0,
) -> tuple[pa.Table, pa.Table]:
    """Generate two streams of uniform keys: :func:`zipf` without skew (paper 1, figure 9)."""
    return zipf(n, domain=domain, skew=0.0, correlation="same", rate=rate, seed=seed)


def _arrivals(n: int, rate: float) -> npt.NDArray[np.int64]:
    """Return the ticks below ``n`` at which a stream of this rate has rows.

    The rate is a fraction, so that 0.1 or 1/3 never slips to a neighbouring tick.
    """
    exact = Fraction(rate).limit_denominator(_FINEST)
    count = -(-n * exact.numerator // exact.denominator)
    if count > MOST or count * exact.denominator >= 2**63:
        raise TidegateError(
            f"n must give fewer rows than {quoted(count)} (n={quoted(n)} at rate {quoted(rate)})"
        )
    return np.arange(count, dtype=np.int64) * exact.denominator // exact.numerator
