"""Values as users give them: how messages quote them, and numbers of any kind as one kind."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np

from tidegate.errors import shortened

#: Letters of a value that a message quotes.
_QUOTED = 200


def quoted(value: Any) -> str:
    """A value as a message quotes it: not too long, and whatever the value makes of it."""
    try:
        return shortened(repr(value), _QUOTED)
    except Exception:
        # A number with more digits than Python writes, or a class whose __repr__ fails.
        size = f" of {value.bit_length():,} bits" if isinstance(value, int) else ""
        return f"a value of type {type(value).__name__}{size}"


def is_number(value: Any) -> bool:
    """Whether it is a real number; true and false, and lengths of time, are none."""
    return isinstance(value, int | float | Decimal | np.integer | np.floating) and not isinstance(
        value, bool | np.timedelta64
    )


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, and neither true nor false."""
    return is_number(value) and isinstance(value, int | np.integer)


def real(value: Any) -> float:
    """A value as a float: infinite where it is a number too large for one, NaN where it is none."""
    if not is_number(value):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except ValueError:  # a signalling NaN
        return math.nan
