"""Durations in text, such as "2 hours", "90 s" or "1 day 6 h"."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

import numpy as np

_DURATION_UNITS = {
    1: ("ns", "nanosecond"),
    1_000: ("us", "µs", "microsecond"),
    1_000_000: ("ms", "millisecond"),
    1_000_000_000: ("s", "sec", "second"),
    60 * 1_000_000_000: ("min", "minute"),
    3_600 * 1_000_000_000: ("h", "hr", "hour"),
    86_400 * 1_000_000_000: ("d", "day"),
    7 * 86_400 * 1_000_000_000: ("w", "week"),
}
_NANOSECONDS = {
    word: ns
    for ns, words in _DURATION_UNITS.items()
    for name in words
    for word in (name, name + "s")
}


_NUMPY_UNITS = {
    "W": Fraction(7 * 86_400 * 10**9),
    "D": Fraction(86_400 * 10**9),
    "h": Fraction(3_600 * 10**9),
    "m": Fraction(60 * 10**9),
    **{unit: Fraction(10**9, 1_000**at) for at, unit in enumerate(("s", "ms", "us", "ns", "ps"))},
}
#: The longest text that is read as a duration.
_LONGEST = 1_000


def nanoseconds(value: str | timedelta | np.timedelta64) -> Fraction | None:
    """Return a duration in nanoseconds; None if the value is no duration."""
    if isinstance(value, np.timedelta64):
        return _of_numpy(value)
    if isinstance(value, timedelta):
        seconds = Fraction(value.days * 86_400 + value.seconds)
        parts_of_one = value.microseconds * 1_000 + getattr(value, "nanoseconds", 0)  # of pandas
        return seconds * 10**9 + parts_of_one
    text = value.lower()
    parts = re.findall(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zµ]+)\s*,?", text[:_LONGEST])
    if not parts or re.sub(r"[0-9]+(?:\.[0-9]+)?\s*[a-zµ]+|[\s,]", "", text):
        return None
    if len(text) > _LONGEST or any(unit not in _NANOSECONDS for _, unit in parts):
        return None
    return sum((Fraction(n) * _NANOSECONDS[unit] for n, unit in parts), Fraction(0))


def _of_numpy(value: np.timedelta64) -> Fraction | None:
    """Return a NumPy duration in nanoseconds; None for months and years, whose length varies."""
    unit, count = np.datetime_data(value.dtype)
    if np.isnat(value) or unit not in _NUMPY_UNITS:
        return None
    return value.astype(np.int64).item() * count * _NUMPY_UNITS[unit]
