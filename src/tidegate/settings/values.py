"""Values that users give: how messages quote them, and checks of numbers."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np

from tidegate.errors import shortened

#: The most characters of a value that a message quotes.
_QUOTED = 200


def quoted(value: Any) -> str:
    """Return a value as messages quote it: shortened, even if its `repr` fails."""
    try:
        return shortened(repr(value), _QUOTED)
    except Exception:
        # A number with more digits than Python writes, or a class whose __repr__ fails.
        size = f" of {value.bit_length():,} bits" if isinstance(value, int) else ""
        return f"a value of type {type(value).__name__}{size}"


def is_number(value: Any) -> bool:
    """True for a real number; booleans and durations are no numbers."""
    return isinstance(value, int | float | Decimal | np.integer | np.floating) and not isinstance(
        value, bool | np.timedelta64
    )


def is_whole(value: Any) -> bool:
    """True for a whole number; booleans are none."""
    return is_number(value) and isinstance(value, int | np.integer)


def real(value: Any) -> float:
    """Return a value as a float: infinite if it is too large, NaN if it is no number."""
    if not is_number(value):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except ValueError:  # a signalling NaN
        return math.nan
