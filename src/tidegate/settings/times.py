"""Times and lengths of time, and the numbers that the kernel uses for them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.settings.checks import check_column, input_of
from tidegate.settings.columns import plain
from tidegate.settings.durations import nanoseconds
from tidegate.settings.values import is_number, quoted, real

#: Times as whole numbers must be below this, windows below a quarter of it.
LARGEST_TIME = 2**62
#: The metadata key of an Arrow field with a watermark: the delay in milliseconds.
WATERMARK = b"watermark_ms"


@dataclass(frozen=True)
class TimeUnit:
    """The conversion of the values of a time column to numbers.

    `per_unit` is the number of kernel units in a nanosecond (for times) or in 1 (for plain
    numbers): 1/1000 for a timestamp in microseconds, 100 for a decimal with two places.
    """

    kind: Literal["timestamp", "local timestamp", "date", "whole number", "decimal", "real number"]
    per_unit: Fraction

    @property
    def is_time(self) -> bool:
        """True if lengths of time are durations rather than plain numbers."""
        return self.kind in ("timestamp", "local timestamp", "date")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of times in the kernel."""
        return np.dtype(np.float64 if self.kind == "real number" else np.int64)


def times(column: pa.Array, unit: TimeUnit) -> NDArray[Any]:
    """Convert a time column to the kernel's units."""
    column = plain(column)
    if unit.kind == "real number":
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.float64)
    try:
        values = np.asarray(_numbers(column, unit).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid as error:
        raise TidegateError(
            f"a time is out of range: {error}; times must lie within ±2^62, so use a coarser unit"
        ) from None
    if len(values) and (values.max() >= LARGEST_TIME or values.min() <= -LARGEST_TIME):
        worst = values[np.argmax(np.abs(values.astype(np.float64)))]
        raise TidegateError(
            f"a time is out of range: {worst}; times must lie within ±2^62, so use a coarser unit"
        )
    return values


def milliseconds(length: int | float, unit: TimeUnit) -> int:
    """Convert a length of time to milliseconds, rounded up."""
    return math.ceil(length / unit.per_unit / 10**6)


def shown(number: int | float, unit: TimeUnit) -> str:
    """Return a time as text, as a time column would show it."""
    if unit.is_time:
        text = str(pa.scalar(int(number), pa.timestamp(_finest(unit))).cast(pa.string()).as_py())
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return f"{text}Z" if unit.kind == "timestamp" else text
    return str(number if unit.kind == "real number" else Decimal(int(number)) / int(unit.per_unit))


def _finest(unit: TimeUnit) -> str:
    if unit.kind == "date":
        return "us"
    return {1: "ns", 1_000: "us", 1_000_000: "ms"}.get(unit.per_unit.denominator, "s")


def _numbers(column: pa.Array, unit: TimeUnit) -> pa.Array:
    if unit.kind in ("timestamp", "local timestamp"):
        return column.cast(pa.timestamp(_finest(unit), column.type.tz)).cast(pa.int64())
    if unit.kind == "date":
        return column.cast(pa.timestamp(_finest(unit))).cast(pa.int64())
    if unit.kind == "decimal":
        shift = pa.scalar(unit.per_unit.numerator).cast(pa.decimal128(19, 0))
        return pc.multiply(column, shift).cast(pa.int64())
    return column.cast(pa.int64())


#: A closed window of real-number times has at least this length, because the loops take 0 for
#: an unbounded one. Parts of it, and their squares, are still numbers that can be divided by.
SHORTEST = 2.0**-300


def _unit_of(kind: pa.DataType) -> TimeUnit | None:
    if pa.types.is_timestamp(kind):
        per = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
        return TimeUnit("timestamp" if kind.tz else "local timestamp", Fraction(1, per))
    if pa.types.is_date(kind):
        return TimeUnit("date", Fraction(1, 1000))
    if pa.types.is_integer(kind):
        return TimeUnit("whole number", Fraction(1))
    if pa.types.is_floating(kind):
        return TimeUnit("real number", Fraction(1))
    if pa.types.is_decimal(kind) and kind.precision <= 18 and kind.scale >= 0:
        return TimeUnit("decimal", Fraction(10**kind.scale))
    return None


def time_unit(
    left: pa.Schema, right: pa.Schema, a: str, b: str, sides: tuple[str, str] = ("left", "right")
) -> TimeUnit:
    """Return the unit of two time columns; the finer one if they differ."""
    units = []
    for schema, name, side in ((left, a, sides[0]), (right, b, sides[1])):
        check_column(schema, name, input_of(side))
        kind = schema.field(name).type
        unit = _unit_of(kind)
        if unit is None:
            raise TidegateError(
                f'time must be a column of timestamps, dates or numbers; {side} "{name}" is '
                f"{kind}: cast it"
            )
        units.append(unit)
    if units[0].kind != units[1].kind:
        raise TidegateError(
            f'time columns must be of one kind: {sides[0]} "{a}" is a {units[0].kind}, '
            f'{sides[1]} "{b}" a {units[1].kind}; cast one of them'
        )
    return max(units, key=lambda u: u.per_unit)


#: Advice for settings that also take a value for "no end".
_ENDLESS = {"within": '; "unbounded" is for ever', "halflife": "; math.inf is for ever"}


def duration(
    value: Any, unit: TimeUnit, name: str, *, zero: bool = False, closed: bool = False
) -> int | float:
    """Return a length of time in the kernel's units.

    The kernel joins rows that are less than a window apart. A `closed` length is the window that
    also joins rows exactly this far apart: it ends one unit later. Real numbers have no next unit;
    there a closed length stays as it is, except that zero, which means no end to the kernel, is the
    smallest number above zero.
    """
    if unit.is_time:
        if zero and is_number(value) and real(value) == 0:
            return int(closed)
        if isinstance(value, timedelta | np.timedelta64 | str):
            exact = nanoseconds(value)
        else:
            exact = None
        if exact is None:
            raise TidegateError(
                f'{name} must be a duration like "2 hours", "90 s" or a timedelta, because the '
                f"time columns are a {unit.kind}; not {quoted(value)}{_ENDLESS.get(name, '')}"
            )
    else:
        if not is_number(value):
            raise TidegateError(
                f"{name} must be a number, because the time columns are a {unit.kind}; "
                f"not {quoted(value)}{_ENDLESS.get(name, '')}"
            )
        if not math.isfinite(real(value)):
            raise TidegateError(f"{name} must be finite, not {quoted(value)}")
        exact = Fraction(value.item() if isinstance(value, np.number) else value)
    if exact < 0 or (exact == 0 and not zero):
        least = "must not be negative" if zero else "must be longer than zero"
        hint = "; closed=True allows 0" if exact == 0 and name == "within" else ""
        raise TidegateError(f"{name} {least}, not {quoted(value)}{hint}")
    if unit.kind == "real number":
        return max(float(exact), SHORTEST) if closed else float(exact)
    # A difference of whole numbers is below a length exactly when it is below its ceiling.
    length = math.ceil(exact * unit.per_unit)
    if closed:
        length = math.floor(exact * unit.per_unit) + 1
    if length >= LARGEST_TIME // 4:
        raise TidegateError(
            f"{name} is too long for the time columns' unit: "
            f"{quoted(value)}{_ENDLESS.get(name, '')}"
        )
    return length


def lateness_of(value: Any, unit: TimeUnit, times: Iterable[pa.Field]) -> int | float:
    """Check `lateness`; None takes the longest watermark delay of the time columns."""
    if value is not None:
        return duration(value, unit, "lateness", zero=True)
    marked = [field.metadata for field in times if WATERMARK in (field.metadata or ())]
    longest = max((int(metadata[WATERMARK]) for metadata in marked), default=0)
    return duration(timedelta(milliseconds=longest) if longest else 0, unit, "lateness", zero=True)
