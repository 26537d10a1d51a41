"""Conversion between the values of time columns and the numbers that the kernel uses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.settings.columns import plain

#: Times as whole numbers must be below this, windows below a quarter of it.
LARGEST_TIME = 2**62
#: The metadata key of an Arrow field with a watermark: the delay in milliseconds.
WATERMARK = b"watermark_ms"


@dataclass(frozen=True)
class TimeUnit:
    """How the values of a time column are converted to numbers.

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
