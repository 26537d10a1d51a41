"""Find the band in a condition, and cut its values into buckets.

A band bounds the difference of a value of the left and a value of the right, as
``abs(l.x - r.x) <= 0.5`` and ``l.x BETWEEN r.x - 1 AND r.x + 2`` do. Values are cut into buckets, a
few to the width of the band, so that the partners of a row are in a few buckets next to each other.

Buckets only say where partners can be: the condition itself decides. So rounding may only ever make
the range of buckets wider, and it may hold more than the partners.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.settings.columns import plain
from tidegate.sql.conditions import Predicate
from tidegate.sql.pair_programs import (
    Unknown,
    as_numbers,
    as_whole,
    conjuncts,
    constant,
    is_abs,
    microseconds_in,
)

#: Buckets to the width of a band. With more of them, counts by bucket are finer and probes visit
#: fewer rows that do not join, but more buckets.
PARTS = 4
#: Buckets of equal width reach to this number; the buckets of values beyond have equal numbers of
#: floating point numbers.
_EQUAL = 2.0**50
#: As a power of two: how many floating point numbers such a bucket has.
_FEW = 5
#: Rounding moves a difference by less than this share of its terms.
_ROUNDING = 2.0**-51
_LARGEST = float(np.finfo(np.float64).max)
_WHOLE = np.iinfo(np.int64)


class _Bound(NamedTuple):
    """The difference of two values, one of each side, is at most or at least `limit`."""

    left: ast.AST
    right: ast.AST
    is_upper: bool
    limit: float
    #: The sum of the sizes of its constants, by which rounding is measured.
    size: float


@dataclass(frozen=True)
class Band:
    """A value of the left minus one of the right is from `low` to `high`."""

    predicate: Predicate
    nodes: tuple[ast.AST, ast.AST]
    low: float
    high: float
    #: True if values are whole numbers, whose differences are not rounded.
    whole: bool
    #: The size of the constants in the bounds.
    size: float

    @property
    def width(self) -> float:
        """The width of a bucket."""
        part = (self.high - self.low) / PARTS
        if self.whole:
            return max(math.ceil(part), 1.0)
        return max(part, self.size * 2.0**-49, 2.0**-960)

    def values(self, side: int, rows: pa.RecordBatch) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the values of rows of one side, and where they are not null."""
        found = plain(self.predicate.evaluated(self.nodes[side], {"lr"[side]: rows}))
        known = found.is_valid().to_numpy(zero_copy_only=False)
        if not self.whole:
            numbers = as_numbers(found)
            numbers[np.isnan(numbers)] = np.inf  # a NaN is larger than any number
            return np.clip(numbers, -_LARGEST, _LARGEST), known
        if pa.types.is_floating(found.type):  # a sum of whole numbers overflowed
            numbers = np.clip(as_numbers(found), _WHOLE.min, 2.0**63 - 1024)
            return np.where(known, numbers, 0.0).astype(np.int64), known
        return np.asarray(as_whole(found).fill_null(0).to_numpy()), known

    def buckets(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the bucket of each value; a larger value is never in an earlier bucket."""
        if self.whole:
            own: NDArray[np.int64] = values // np.int64(self.width)
            return own
        size = np.abs(values)
        first = self.width * _EQUAL
        far = size >= first
        near = np.floor(np.where(far, 0.0, values) / self.width).astype(np.int64)
        bits = (size.view(np.int64) >> _FEW) - (np.float64(first).view(np.int64) >> _FEW)
        beyond = bits + np.int64(_EQUAL)
        return np.where(far, np.where(values < 0, -1 - beyond, beyond), near)

    def reach(self, side: int, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the first and the last bucket that can have partners of each value."""
        # A partner of a left value x is from x - high to x - low.
        low, high = (self.high, self.low) if side == 0 else (-self.low, -self.high)
        return self.buckets(self._less(values, low, -1)), self.buckets(self._less(values, high, 1))

    def starts(self, side: int, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the first and the last bucket that `reach` can begin with, for left partners.

        For a row of the left itself, both are the bucket that its own reach begins with.
        """
        if side == 0:
            first, _ = self.reach(0, values)
            return first, first
        # A partner x of a right value y is from y + low to y + high; its reach begins at x - high.
        return (
            self.buckets(self._less(values, self.high - self.low, -4)),
            self.buckets(self._less(values, 0.0, 4)),
        )

    def _less(self, values: NDArray[Any], step: float, towards: int) -> NDArray[Any]:
        """Return values minus a step, moved in one direction by more than rounding may be."""
        if not self.whole:
            margin = np.abs(values) * _ROUNDING + (self.size + abs(step)) * _ROUNDING
            with np.errstate(over="ignore"):
                less: NDArray[Any] = values - step + towards * margin
            return less.clip(-_LARGEST, _LARGEST)
        by = np.int64(step)
        moved = values - by  # it wraps around
        if by > 0:
            return np.where(moved > values, _WHOLE.min, moved)
        return np.where(moved < values, _WHOLE.max, moved)


def band_of(predicate: Predicate) -> Band | None:
    """Return the narrowest band that a condition has, if any."""
    bounds: list[_Bound] = []
    for part in conjuncts(predicate.tree):
        try:
            bounds += _bounds(predicate, part)
        except (Unknown, RecursionError):
            continue
    bands = []
    for own in {(ast.dump(b.left), ast.dump(b.right)): b for b in bounds}.values():
        both = [b for b in bounds if _same(b.left, own.left) and _same(b.right, own.right)]
        low = max((b.limit for b in both if not b.is_upper), default=-math.inf)
        high = min((b.limit for b in both if b.is_upper), default=math.inf)
        band = _checked(predicate, own, low, high, max(b.size for b in both))
        if band is not None:
            bands.append(band)
    return min(bands, key=lambda band: band.high - band.low, default=None)


def _same(one: ast.AST, other: ast.AST) -> bool:
    return ast.dump(one) == ast.dump(other)


def _checked(
    predicate: Predicate, bound: _Bound, low: float, high: float, size: float
) -> Band | None:
    """Return the band of two bounds, or None if it is empty or has no end."""
    nodes = bound.left, bound.right
    kinds = [predicate.type_of(node) for node in nodes]
    if not all(_is_ordered(kind) for kind in kinds) or not 0 <= high - low < math.inf:
        return None
    units = {_microseconds(kind) for kind in kinds}
    whole = len(units) == 1 and not any(
        pa.types.is_floating(k) or pa.types.is_decimal(k) or k == pa.uint64() for k in kinds
    )
    if whole:
        # Times are whole numbers of their own unit.
        (unit,) = units
        low, high = _outwards(low / unit, -1), _outwards(high / unit, 1)
    if whole and max(abs(low), abs(high)) >= 2.0**62:
        return None
    return Band(predicate, nodes, low, high, whole, size)


def _outwards(value: float, towards: int) -> float:
    """Round to a whole number in one direction, and further if the value may be rounded itself."""
    value += towards * abs(value) * 2.0**-50 if abs(value) > 2.0**50 else 0.0
    return float(math.floor(value) if towards < 0 else math.ceil(value))


def _is_ordered(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_temporal(kind)
    )


def _microseconds(kind: pa.DataType) -> float:
    """Return the microseconds in a unit of a time; 1 for numbers, which are never times."""
    return microseconds_in(kind) if pa.types.is_temporal(kind) else 1.0


def _bounds(predicate: Predicate, part: ast.AST) -> list[_Bound]:
    """Return the bounds that a part of a condition sets."""
    if not isinstance(part, ast.Compare):
        return []
    if len(part.ops) == 2:
        if isinstance(part.ops[0], ast.IsNot):
            return []
        least, most = part.comparators
        return [
            *_compared(predicate, least, part.left),
            *_compared(predicate, part.left, most),
        ]
    one, op, other = part.left, part.ops[0], part.comparators[0]
    if isinstance(op, ast.Lt | ast.LtE):
        return _compared(predicate, one, other)
    if isinstance(op, ast.Gt | ast.GtE):
        return _compared(predicate, other, one)
    if isinstance(op, ast.Eq):
        return [*_compared(predicate, one, other), *_compared(predicate, other, one)]
    return []


def _compared(predicate: Predicate, lower: ast.AST, upper: ast.AST) -> list[_Bound]:
    """Return the bounds that follow from `lower <= upper`."""
    timed = any(pa.types.is_duration(predicate.type_of(node)) for node in (lower, upper))
    if isinstance(lower, ast.Call) and is_abs(lower) and not predicate.sides_of(upper):
        # |d| <= c is d <= c and -c <= d.
        limit, inside = constant(predicate, upper, timed=timed), lower.args[0]
        terms = [*_terms(predicate, inside, 1, timed)]
        return [
            *_bound(predicate, [*terms, (-1, limit)]),
            *_bound(predicate, [*((-sign, term) for sign, term in terms), (-1, limit)]),
        ]
    return _bound(
        predicate,
        [*_terms(predicate, lower, 1, timed), *_terms(predicate, upper, -1, timed)],
    )


_Term = tuple[int, ast.AST | float]


def _terms(predicate: Predicate, node: ast.AST, sign: int, timed: bool) -> list[_Term]:
    """Return the terms of a sum, each with its sign.

    A part of one side is one term, but for the numbers that are added to it.
    """
    sides = predicate.sides_of(node)
    if not sides:
        return [(sign, constant(predicate, node, timed=timed))]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        own = -sign if isinstance(node.op, ast.USub) else sign
        return _terms(predicate, node.operand, own, timed)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        parts = [(node.left, sign), (node.right, sign)]
        if isinstance(node.op, ast.Sub):
            parts[1] = node.right, -sign
        if len(sides) == 2 or not all(predicate.sides_of(part) for part, _ in parts):
            return [term for part in parts for term in _terms(predicate, *part, timed)]
    if len(sides) == 1:
        return [(sign, node)]
    raise Unknown


def _bound(predicate: Predicate, terms: list[_Term]) -> list[_Bound]:
    """Return the bound that follows if the sum of the terms is at most 0."""
    numbers = [sign * term for sign, term in terms if isinstance(term, float)]
    nodes = [(sign, term) for sign, term in terms if isinstance(term, ast.AST)]
    sides = [predicate.sides_of(node) for _, node in nodes]
    if len(nodes) != 2 or nodes[0][0] == nodes[1][0] or sides[0] == sides[1]:
        return []
    if not all(math.isfinite(number) for number in numbers):
        return []
    at = 0 if sides[0] == {"l"} else 1
    sign, total = nodes[at][0], math.fsum(numbers)
    size = math.fsum(abs(number) for number in numbers)
    # Either left - right + total <= 0, or right - left + total <= 0.
    limit = -total if sign > 0 else total
    return [_Bound(nodes[at][1], nodes[1 - at][1], sign > 0, limit, size)]
