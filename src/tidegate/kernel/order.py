"""The order inside a tick: left before right, then by key hash, then by row hash."""

from __future__ import annotations

import numpy as np

from tidegate.kernel.compiling import Array, entry_point, inlined


@inlined
def _after(side: Array, key: Array, row_hash: Array, a: int, b: int) -> bool:
    if side[a] != side[b]:
        return bool(side[a] > side[b])
    if key[a] != key[b]:
        return bool(key[a] > key[b])
    return bool(row_hash[a] > row_hash[b])


@entry_point
def settle_ties(
    order: Array, time: Array, side: Array, key: Array, row_hash: Array, start: int
) -> tuple[int, int]:
    """Put rows of equal time in tick order, from `start` on, given an order by time.

    Stop at a tick that is too long to sort by insertion, and return its bounds.
    """
    n = order.shape[0]
    while start < n:
        stop = start + 1
        t = time[order[start]]
        while stop < n and time[order[stop]] == t:
            stop += 1
        if stop - start > 24:
            return start, stop
        for i in range(start + 1, stop):
            row = order[i]
            j = i
            while j > start and _after(side, key, row_hash, order[j - 1], row):
                order[j] = order[j - 1]
                j -= 1
            order[j] = row
        start = stop
    return n, n


@entry_point
def merge_halves(time: Array, left: int, order: Array) -> bool:
    """Order two halves that each ascend; return False, with no order, if one does not."""
    n = time.shape[0]
    for i in range(1, n):
        if time[i] < time[i - 1] and i != left:
            return False
    i, j = 0, left
    for at in range(n):
        if j >= n or (i < left and time[i] <= time[j]):
            order[at] = i
            i += 1
        else:
            order[at] = j
            j += 1
    return True


def tick_order(time: Array, left: int, side: Array, key: Array, row_hash: Array) -> Array:
    """Return the order in which newcomers are taken; the first `left` rows are the left stream's.

    Streams are mostly in order of time, so that merging the two is enough.
    """
    n = len(time)
    order: Array = np.empty(n, np.int64)
    if not merge_halves(time, left, order):
        order = np.argsort(time, kind="stable")
    start, stop = settle_ties(order, time, side, key, row_hash, 0)
    while start < n:
        tick = order[start:stop]
        order[start:stop] = tick[np.lexsort((row_hash[tick], key[tick], side[tick]))]
        start, stop = settle_ties(order, time, side, key, row_hash, stop)
    return order
