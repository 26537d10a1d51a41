"""Lengths of time as people write them: "2 hours", "90 s", "1 day 6 h"."""

from __future__ import annotations

import re
from fractions import Fraction

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


def nanoseconds(text: str) -> Fraction | None:
    """How many nanoseconds a duration has; None if it is none."""
    parts = re.findall(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zµ]+)\s*,?", text.lower())
    if not parts or re.sub(r"[0-9]+(?:\.[0-9]+)?\s*[a-zµ]+|[\s,]", "", text.lower()):
        return None
    if any(unit not in _NANOSECONDS for _, unit in parts):
        return None
    return sum((Fraction(n) * _NANOSECONDS[unit] for n, unit in parts), Fraction(0))
