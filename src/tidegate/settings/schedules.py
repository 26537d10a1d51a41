"""Schedules: settings that change over time, given as a list of (start time, value) pairs.

Changes follow the event times of the streams, not the wall clock, so that a replay applies the same
values at the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.settings.times import LARGEST_TIME, TimeUnit, times
from tidegate.settings.values import quoted


class Step(NamedTuple):
    """A value and the time from which it applies; the first step also applies before its time."""

    start: int | float
    value: Any


#: Units of NumPy's times that Arrow does not have.
_COARSE = ("Y", "M", "W", "h", "m")
#: The steps of a setting in order of time; one step if it does not change.
Schedule = tuple[Step, ...]


def is_schedule(value: Any) -> bool:
    """True for a list of (time, value) pairs, which a pair of windows is not."""
    return (
        isinstance(value, tuple | list)
        and len(value) > 0
        and all(
            isinstance(step, tuple | list)
            and len(step) == 2
            and not isinstance(step[0], tuple | list)
            for step in value
        )
    )


def steps_of(
    value: Any, name: str, unit: TimeUnit, kind: pa.DataType, checked: Callable[[Any], Any]
) -> Schedule:
    """Read a schedule or a single value, and check each value with `checked`."""
    if not is_schedule(value):
        if isinstance(value, tuple | list | dict):
            raise TidegateError(
                f"{name} must be one value, or a schedule: a list of (time, value) pairs in order "
                f"of time, each of which holds from its time on; not {quoted(value)}"
            )
        return (Step(0, checked(value)),)
    found = []
    for time, each in value:
        start = time_of(time, f"the schedule of {name}", unit, kind)
        try:
            found.append(Step(start, checked(each)))
        except TidegateError as error:
            raise TidegateError(
                f"{error} (in the schedule of {name}, from {quoted(time)} on)"
            ) from None
    for i in range(1, len(found)):
        if not found[i - 1].start < found[i].start:
            raise TidegateError(
                f"the times in a schedule of {name} must ascend; {quoted(value[i - 1][0])} "
                "comes before "
                f"{quoted(value[i][0])}: put them in order and name each once"
            )
    return tuple(found)


def time_of(value: Any, name: str, unit: TimeUnit, kind: pa.DataType) -> int | float:
    """Convert a time, given as the time columns hold it, to the kernel's units."""
    written = str(value) if isinstance(value, float) and pa.types.is_decimal(kind) else value
    if isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] in _COARSE:
        written = value.astype("datetime64[s]")  # Arrow has no hours and minutes
    try:
        if isinstance(written, Decimal) and abs(written) >= LARGEST_TIME:
            written = math.inf  # Arrow would write out all digits
        is_cast = isinstance(written, str | np.datetime64)
        array = pa.array([written]).cast(kind) if is_cast else pa.array([written], kind)
        number: Any = times(array, unit)[0].item() if array.null_count == 0 else math.nan
    except Exception:  # a value of any class may fail in any way
        number = math.nan
    bare = isinstance(value, int | float) and unit.is_time
    cut = isinstance(value, float) and pa.types.is_integer(kind) and not value.is_integer()
    if isinstance(value, bool) or bare or cut or not math.isfinite(number):
        zone = ', such as "2024-05-01 12:00:00Z"' if unit.kind == "timestamp" else ""
        raise TidegateError(
            f"{name} must have a time like those of the time column, which is {kind}{zone}, not "
            f"{quoted(value)}"
        )
    plain: int | float = number
    return plain
