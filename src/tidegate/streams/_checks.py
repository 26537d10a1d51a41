"""Argument checks and seeded random generators that the stream generators share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.errors import TidegateError
from tidegate.settings.values import is_whole, quoted, real

#: The largest number of rows, keys or seconds; more would not fit into memory.
MOST = 10**10


def whole(name: str, value: Any, *, least: int, most: float = MOST) -> int:
    """Return ``value`` as an int, or raise an error that names the expected range."""
    if not is_whole(value) or value < least:
        raise TidegateError(
            f"{name} must be a whole number of at least {least}, not {quoted(value)}"
        )
    if value > most:
        raise TidegateError(f"{name} must be at most {most:,}, not {quoted(value)}")
    return int(value)


def number(name: str, value: Any, *, least: float) -> float:
    """Return ``value`` as a finite float of at least ``least``."""
    found = real(value)
    if not math.isfinite(found) or found < least:
        raise TidegateError(
            f"{name} must be a finite number of at least {least:g}, not {quoted(value)}"
        )
    if found > MOST:
        raise TidegateError(f"{name} must be at most {MOST:,}, not {quoted(value)}")
    return found


def share(name: str, value: Any) -> float:
    """Return ``value`` as a float between 0 and 1."""
    found = number(name, value, least=0.0)
    if found > 1:
        raise TidegateError(f"{name} must be a share between 0 and 1, not {quoted(value)}")
    return found


def pair(name: str, value: Any, *, least: float) -> tuple[float, float]:
    """Return a number for each side; a single number stands for both sides."""
    if not isinstance(value, (tuple, list)):
        return (number(name, value, least=least),) * 2
    if len(value) != 2:
        raise TidegateError(
            f"{name} must be one number or a pair (left, right), not {quoted(value)}"
        )
    left, right = (number(name, side, least=least) for side in value)
    return left, right


def choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``, or raise an error that lists them."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(f'"{each}"' for each in choices)
        raise TidegateError(f"{name} must be one of {listed}, not {quoted(value)}")
    return str(value)


def generators(seed: Any, count: int) -> list[np.random.Generator]:
    """Return ``count`` independent random generators.

    Each random quantity has its own generator, so drawing more of one does not change the others.
    PCG64 is explicit because NumPy's default bit generator may change.
    """
    root = np.random.SeedSequence(whole("seed", seed, least=0, most=math.inf))
    return [np.random.Generator(np.random.PCG64(child)) for child in root.spawn(count)]


def zipf_ranks(
    rng: np.random.Generator, size: int, domain: int, skew: float
) -> npt.NDArray[np.int64]:
    """Draw ``size`` ranks in 0..domain-1, rank r with probability proportional to (r+1)**-skew."""
    cumulative = np.cumsum(np.arange(1, domain + 1, dtype=np.float64) ** -skew)
    drawn = np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right")
    ranks: npt.NDArray[np.int64] = np.minimum(drawn, domain - 1).astype(np.int64)
    return ranks
