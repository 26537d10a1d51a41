"""Exact running sums of values that are added and removed.

Adding and subtracting floating point numbers accumulates rounding errors, an infinity turns the sum
into NaN for good, and integers overflow. Here every number is split into pieces of 32 bits at fixed
bit positions (Kulisch's long accumulator), and the pieces are added as integers. So a sum is exact,
is rounded once, and depends neither on the order of the values nor on batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_BITS = 32
_MASK = (1 << _BITS) - 1
#: The exponent of the lowest bit of the smallest floating point number.
_LEAST = -1074
_MOST_DIGITS = 38


class Changes(NamedTuple):
    """Additions (sign 1) and removals (sign -1) in order, and the events whose sums are wanted.

    Each group has sums of its own: `begins` has, for each wanted sum, the first event of its group.
    """

    sign: NDArray[np.int64]
    begins: NDArray[np.int64]
    wanted: NDArray[np.int64]

    def sums(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the wanted sums of integers that are too small to overflow."""
        so_far = np.concatenate([[0], np.cumsum(self.sign * values)])
        found: NDArray[np.int64] = so_far[self.wanted + 1] - so_far[self.begins]
        return found


def sum_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a sum, or None for a type that cannot be summed."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal(kind) and kind.precision <= _MOST_DIGITS and kind.scale >= 0:
        return pa.decimal128(min(kind.precision + 10, _MOST_DIGITS), kind.scale)
    return None


def sums(column: pa.Array, changes: Changes) -> pa.Array | None:
    """Return the sums of a column without nulls, or None if one exceeds its type."""
    kind = sum_type(column.type)
    assert kind is not None
    if pa.types.is_floating(kind):
        return pa.array(reals(column, changes))
    limbs = _carried([changes.sums(part) for part in _whole_pieces(column)])
    words = 1 if pa.types.is_integer(kind) else 2
    # The sum fits its type if all pieces above it only repeat the sign.
    sign = (limbs[2 * words - 1] >> (_BITS - 1)) & 1
    above = np.zeros(limbs.shape[1], np.bool_)
    for limb in limbs[2 * words : -1]:
        above |= limb != sign * _MASK
    if above.any() or (limbs[-1] != -sign).any():
        return None
    packed = np.stack([limbs[2 * i] | limbs[2 * i + 1] << _BITS for i in range(words)], axis=1)
    if words == 1:
        return pa.array(packed[:, 0])
    data = pa.py_buffer(np.ascontiguousarray(packed).tobytes())
    made = pa.Array.from_buffers(kind, len(packed), [None, data])
    try:
        made.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return made


def reals(column: pa.Array, changes: Changes) -> NDArray[np.float64]:
    """Return the sums of a column without nulls, each as the nearest float."""
    kind = column.type
    if not pa.types.is_floating(kind):
        totals = _rounded([changes.sums(part) for part in _whole_pieces(column)], 0)
        return totals / 10.0**kind.scale if pa.types.is_decimal(kind) else totals
    values = np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    finite = np.where(np.isfinite(values), values, 0.0)
    lowest, pieces = _real_pieces(finite)
    totals = _rounded([changes.sums(part) for part in pieces], _LEAST + _BITS * lowest)
    if np.isfinite(values).all():
        return totals
    up, down, none = (
        changes.sums(found.astype(np.int64)) > 0
        for found in (values == np.inf, values == -np.inf, np.isnan(values))
    )
    totals[up], totals[down] = np.inf, -np.inf
    totals[none | (up & down)] = np.nan
    return totals


def _whole_pieces(column: pa.Array) -> Iterator[NDArray[np.int64]]:
    """Yield integers, or the digits of decimals, in pieces of 32 bits, lowest first."""
    kind = column.type
    if pa.types.is_decimal(kind):
        column = column.cast(pa.decimal128(_MOST_DIGITS, kind.scale))
        data = np.frombuffer(column.buffers()[1] or b"", np.int64)
        words = list(data[2 * column.offset :][: 2 * len(column)].reshape(-1, 2).T)
    else:
        values = np.asarray(column.to_numpy(zero_copy_only=False))
        if values.dtype == np.uint64:
            words = [values.view(np.int64), np.zeros(len(values), np.int64)]
        else:
            words = [values.astype(np.int64)]
    for i, word in enumerate(words):
        yield word & _MASK
        # Only the last piece is signed.
        yield word >> _BITS if i == len(words) - 1 else (word >> _BITS) & _MASK


def _real_pieces(values: NDArray[np.float64]) -> tuple[int, Iterator[NDArray[np.int64]]]:
    """Return the position of the lowest piece of finite numbers, and their pieces upwards."""
    fraction, exponent = np.frexp(values)
    digits = np.abs(fraction * 2.0**53).astype(np.int64)
    at = exponent.astype(np.int64) - 53 - _LEAST
    digits >>= np.maximum(-at, 0)
    at = np.where(digits == 0, 0, np.maximum(at, 0))
    place, shift = at // _BITS, at % _BITS
    low, high = (digits & _MASK) << shift, (digits >> _BITS) << shift
    sign = np.where(np.signbit(values), -1, 1)
    parts = [sign * part for part in (low & _MASK, (low >> _BITS) + (high & _MASK), high >> _BITS)]
    there = place[digits > 0]
    lowest, highest = (int(there.min()), int(there.max())) if len(there) else (0, 0)

    def pieces() -> Iterator[NDArray[np.int64]]:
        for each in range(lowest, highest + len(parts)):
            yield sum(
                (np.where(place == each - i, part, 0) for i, part in enumerate(parts)),
                np.zeros(len(values), np.int64),
            )

    return lowest, pieces()


def _carried(totals: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Carry over, so that pieces have 32 bits again; a last piece has the sign."""
    limbs = np.stack([*totals, np.zeros_like(totals[0])])
    for i in range(len(totals)):
        limbs[i + 1] += limbs[i] >> _BITS
        limbs[i] &= _MASK
    return limbs


def _rounded(totals: list[NDArray[np.int64]], power: int) -> NDArray[np.float64]:
    """Return the nearest floats of sums whose lowest bit has the value 2**power."""
    negative = _carried(totals)[-1] < 0
    nothing = np.zeros_like(totals[0])
    # Two zero pieces below, as the three highest pieces are read.
    limbs = _carried([nothing, nothing, *(np.where(negative, -part, part) for part in totals)])
    some = limbs != 0
    top = len(limbs) - 1 - np.argmax(some[::-1], axis=0)
    top = np.where(some.any(axis=0), np.maximum(top, 2), 2)
    first, second, third = (
        np.take_along_axis(limbs, (top - i)[None], axis=0)[0].astype(np.uint64) for i in range(3)
    )
    lost = np.logical_or.accumulate(some, axis=0)
    below = np.take_along_axis(lost, np.maximum(top - 3, 0)[None], axis=0)[0] & (top > 2)
    shift = (_BITS - np.frexp(first.astype(np.float64))[1]).astype(np.uint64)
    bits = np.uint64(_BITS)
    digits = ((first << bits | second) << shift) | third >> (bits - shift)
    below |= (third << shift) & np.uint64(_MASK) != 0
    # 64 bits are enough to round once, if the last one is set where lower bits follow.
    digits |= below.astype(np.uint64)
    exponent = power + _BITS * (top - 3) - shift.astype(np.int64)
    with np.errstate(over="ignore"):
        result: NDArray[np.float64] = np.ldexp(digits.astype(np.float64), exponent)
    return np.where(negative, -result, result)
