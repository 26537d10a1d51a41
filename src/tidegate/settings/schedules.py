"""Windows and budgets, and schedules: lists of (start time, value) pairs by which they change.

Changes follow the event times of the streams, not the wall clock, so that a replay applies the same
values at the same rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.settings.checks import of_sides
from tidegate.settings.rows import Rows
from tidegate.settings.times import LARGEST_TIME, TimeUnit, duration, times
from tidegate.settings.values import is_whole, quoted


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


@dataclass(frozen=True)
class Side:
    """An input stream: its columns, keys, time column and windows."""

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str
    windows: Schedule
    importance: str | None

    @property
    def window(self) -> int | float | None:
        """The longest window of any row; None if a window is unbounded."""
        lengths = [step.value for step in self.windows]
        return None if None in lengths else max(lengths)


def window_pair(within: Any) -> tuple[Any, Any]:
    """Return the windows of the left and the right; each may be a schedule."""
    within = of_sides(within)
    if is_schedule(within) or not isinstance(within, tuple | list):
        return within, within
    if len(within) != 2:
        raise TidegateError(
            "within must be one window, one schedule of (time, window) pairs, or a pair of them "
            f"(left's, right's), not {quoted(within)}"
        )
    return within[0], within[1]


def window_length(value: Any, unit: TimeUnit, closed: bool = False) -> int | float | None:
    """Return a window in the kernel's units; None if it is unbounded."""
    if isinstance(value, Rows):
        return _rows_length(value, unit)
    if value is None or (isinstance(value, float) and value == math.inf):
        return None
    if isinstance(value, str) and value.strip().lower() == "unbounded":
        return None
    return duration(value, unit, "within", zero=closed, closed=closed)


def _rows_length(window: Rows, unit: TimeUnit) -> int:
    """Return a window of rows, whose times must be sequence numbers."""
    if window.by is not None:
        raise TidegateError(
            f"within={quoted(window)} counts the rows of each value of a column, which "
            "tidegate.constrained_join does; here, leave by out"
        )
    if unit.kind != "whole number":
        raise TidegateError(
            f"within={quoted(window)} counts rows, so the time columns must be sequence numbers, "
            f"and they are a {unit.kind}: number the rows in order of time, give that column as "
            "time, or give within a length of time"
        )
    return int(window.n)


_SIZES = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}


#: Roughly the least memory in bytes for one row and the state that policies learn.
_ONE_ROW = 1000


def budget_steps(memory: Any, unit: TimeUnit, kind: pa.DataType) -> tuple[Schedule, bool]:
    """Return the steps of the budget, and whether they are in bytes."""
    found = steps_of(memory, "memory", unit, kind, memory_of)
    units = {step.value[1] for step in found if step.value[0] is not None}
    if len(units) > 1:
        raise TidegateError(
            "a schedule of memory must be in rows throughout or in sizes throughout, not "
            f"{quoted(memory)}"
        )
    return tuple(Step(step.start, step.value[0]) for step in found), True in units


def memory_of(value: Any, *, none: str = "None keeps everything") -> tuple[int | None, bool]:
    """Read a budget; return its number and whether that counts bytes.

    `none` tells, in error messages, what None would do.
    """
    if value is None:
        return None, False
    rows = rows_of(value)
    if rows is not None:
        return not_too_large(rows, value, none), False
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*", value)
        if match and len(match[1]) < 100 and match[2].lower() in _SIZES:
            size = int(Fraction(match[1]) * _SIZES[match[2].lower()])
            if 0 < size < _ONE_ROW:
                raise TidegateError(
                    f"memory of {quoted(value)} is less than one row takes with its place in the "
                    f"indexes; give it {_ONE_ROW} B at the least, better some MB, or a number "
                    "of rows"
                )
            if size > 0:
                return not_too_large(size, value, none), True
    raise TidegateError(
        f'memory must be a positive number of rows or a size like "64 MB", not {quoted(value)}'
        + (none and f"; {none}")
    )


def rows_of(value: Any) -> int | None:
    """Read a number of rows, such as 300 or "300 rows"; None if it is none, or not positive."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9][0-9_,]{0,99})\s*rows?\s*", value, re.IGNORECASE)
        value = int(re.sub("[_,]", "", match[1])) if match else None
    return int(value) if is_whole(value) and value > 0 else None


def not_too_large(memory: int, value: Any, none: str = "None keeps everything") -> int:
    """Refuse a budget larger than the memory of any machine."""
    if memory >= LARGEST_TIME:
        said = f"memory is larger than any machine's: {quoted(value)}"
        raise TidegateError(said + (none and f"; {none}"))
    return memory
