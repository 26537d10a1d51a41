"""Running minima, maxima and distinct values of a multiset that values enter and leave.

A minimum cannot be updated when its value leaves. So each value is written to all events during
which it is there, and the smallest of those at an event is the minimum.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.engine.exact_sums import Changes
from tidegate.settings.columns import plain


def has_order(kind: pa.DataType) -> bool:
    """True if values of a type have a smallest and a largest one."""
    if pa.types.is_interval(kind):
        return False
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )


def first_and_last(
    sign: NDArray[np.int64], group: NDArray[np.int64], value: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the signs of events in order, with 0 where an equal value stays in the group."""
    order = np.lexsort((value, group))
    group, value, change = group[order], value[order], sign[order]
    begins = np.append(True, (group[1:] != group[:-1]) | (value[1:] != value[:-1]))[: len(order)]
    so_far = np.cumsum(change)
    before = (so_far - change)[begins]
    there = so_far - np.repeat(before, np.diff(np.append(np.flatnonzero(begins), len(order))))
    found = np.empty(len(order), np.int64)
    found[order] = (there > 0).astype(np.int64) - (there - change > 0)
    return found


def extremes(
    column: pa.Array,
    row: NDArray[np.int64],
    group: NDArray[np.int64],
    changes: Changes,
    *,
    largest: bool,
) -> pa.Array:
    """Return the least or the largest value after each wanted event; null if there is none.

    `row` tells which row an event adds or removes. NaN is larger than any number, as in Spark.
    """
    n = len(row)
    sorted_rows = _order(column)
    if largest:
        sorted_rows = sorted_rows[::-1]
    rank = np.empty(n, np.int64)
    rank[sorted_rows] = np.arange(n)
    # A row is there from the event that adds it to the one that removes it, or to its group's end.
    last = np.append(np.flatnonzero(group[1:] != group[:-1]), n - 1) + 1
    ends = last[np.searchsorted(last, np.arange(n), side="right")]
    added = np.flatnonzero(changes.sign > 0)
    removed = np.flatnonzero(changes.sign < 0)
    at = np.full(int(row.max()) + 1, -1, np.int64)
    at[row[removed]] = removed
    stop = np.where(at[row[added]] >= 0, at[row[added]], ends[added])
    valid = column.is_valid().to_numpy(zero_copy_only=False)[added]
    # Within one time, a removal may come before the addition: the row is then never there.
    some = valid & (stop > added)
    least = _least(n, added[some], stop[some], rank[added[some]])[changes.wanted]
    found = least < n
    source = np.append(sorted_rows, 0)[np.where(found, least, n)]
    return column.take(pa.array(source, mask=~found))


def _order(column: pa.Array) -> NDArray[np.int64]:
    """Return row numbers in the order of the values."""
    order = pc.sort_indices(plain(column)).to_numpy()
    return np.asarray(order, np.int64)


def _least(
    n: int, start: NDArray[np.int64], stop: NDArray[np.int64], rank: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the smallest rank of the ranges [start, stop) over each of n places, n for none.

    Each range is two overlapping blocks whose length is a power of two. From the longest blocks on,
    each hands its rank to its two halves.
    """
    level = np.frexp(stop - start)[1] - 1
    least = np.full(n, n, np.int64)
    for power in range(int(level.max(initial=0)), -1, -1):
        mine = level == power
        np.minimum.at(least, start[mine], rank[mine])
        np.minimum.at(least, stop[mine] - (1 << power), rank[mine])
        if power:
            half = 1 << (power - 1)
            halves = least.copy()
            halves[half:] = np.minimum(halves[half:], least[:-half])
            least = halves
    return least
