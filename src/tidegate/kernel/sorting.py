"""Sort lists of (rank, seq, item), with ties by sequence number, and select the lowest items.

Evenly spread ranks are sorted without comparisons, by putting each item into a cell of its rank, so
that the cost of an item stays flat as lists grow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel.compiling import Array, inlined, inner
from tidegate.kernel.heap import before, put

#: Length of the runs that are sorted by insertion.
_RUN = 16
#: The largest number of cells of equal width to sort by. Sorting by cells is given up if one cell
#: has more than `_CROWD` items.
CELLS = 1 << 14
_CROWD = 32
#: Lists that are longer than this are divided into parts first.
_LONG = 1 << 14
#: Number of parts of about equal length, and the steps of the binary search for the right one.
PARTS = 256
_HALVES = (128, 64, 32, 16, 8, 4, 2, 1)
#: Number of items that are sampled to find the bounds of the parts.
_SAMPLE = 1024


@inner
def select(items: Array, n: int, k: int) -> None:
    """Move the k lowest (rank, seq) of n items to the front."""
    low, high = 0, n - 1
    while low < high:
        middle = (low + high) >> 1
        rank, seq = items[middle].rank, items[middle].seq
        i, j = low, high
        while i <= j:
            while before(items[i].rank, items[i].seq, rank, seq):
                i += 1
            while before(rank, seq, items[j].rank, items[j].seq):
                j -= 1
            if i <= j:
                r, s, e, life = items[i].rank, items[i].seq, items[i].item, items[i].life
                items[i] = items[j]
                put(items, j, r, s, e, life)
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break


@inner
def sort(items: Array, spare: Array, start: int, stop: int, counts: Array) -> None:
    """Sort the items from `start` to `stop`; overwrites the same range of `spare`."""
    if _in_order(items, start, stop):
        return
    if stop - start > 2 * _RUN and _sort_by_cell(items, spare, start, stop, counts):
        return
    for first in range(start, stop, _RUN):
        for i in range(first + 1, min(first + _RUN, stop)):
            _insert(items, first, i, items[i])
    width = _RUN
    while width < stop - start:
        # Merge into `spare`, and back.
        _merge_runs(items, spare, start, stop, width)
        _merge_runs(spare, items, start, stop, 2 * width)
        width *= 4


@inlined
def _in_order(items: Array, start: int, stop: int) -> bool:
    i = start + 1
    while i < stop and before(items[i - 1].rank, items[i - 1].seq, items[i].rank, items[i].seq):
        i += 1
    return i >= stop


@inlined
def _insert(items: Array, first: int, at: int, new: Any) -> None:
    """Insert a new item into the sorted items from `first` to `at`."""
    rank, seq, item, life = new.rank, new.seq, new.item, new.life
    while at > first and before(rank, seq, items[at - 1].rank, items[at - 1].seq):
        items[at] = items[at - 1]
        at -= 1
    put(items, at, rank, seq, item, life)


@inlined
def _sort_by_cell(items: Array, spare: Array, start: int, stop: int, counts: Array) -> bool:
    """Sort items by cells of equal width; return False, with nothing done, if a cell is crowded."""
    first, last = items[start].rank, items[start].rank
    for i in range(start, stop):
        first, last = min(first, items[i].rank), max(last, items[i].rank)
    tied = first == last
    if tied:
        first = last = float(items[start].seq)
        for i in range(start, stop):
            first, last = min(first, float(items[i].seq)), max(last, float(items[i].seq))
    cells = _RUN
    while cells < min(stop - start, CELLS):
        cells *= 2
    scale = (cells - 1) / (last - first) if last > first else np.inf
    if not np.isfinite(scale) or scale == 0.0:
        return False
    for cell in range(cells):
        counts[cell] = 0
    for i in range(start, stop):
        counts[_cell_of(items[i], tied, first, scale)] += 1
    at = start
    for cell in range(cells):
        if counts[cell] > _CROWD:
            return False
        counts[cell], at = at, at + counts[cell]
    for i in range(start, stop):
        cell = _cell_of(items[i], tied, first, scale)
        spare[counts[cell]] = items[i]
        counts[cell] += 1
    for i in range(start, stop):
        _insert(items, start, i, spare[i])
    return True


@inlined
def _cell_of(item: Any, tied: bool, first: float, scale: float) -> int:
    return int(((float(item.seq) if tied else item.rank) - first) * scale)


@inlined
def _merge_runs(source: Array, target: Array, start: int, stop: int, width: int) -> None:
    """Merge each pair of sorted runs of a width; copy a run that has no partner."""
    for first in range(start, stop, 2 * width):
        i, j = first, min(first + width, stop)
        middle, end = j, min(first + 2 * width, stop)
        if j == end or before(source[j - 1].rank, source[j - 1].seq, source[j].rank, source[j].seq):
            _move(source, first, end, target, first)
            continue
        for at in range(first, end):
            left = j >= end
            if i < middle and not left:
                left = before(source[i].rank, source[i].seq, source[j].rank, source[j].seq)
            if left:
                target[at] = source[i]
                i += 1
            else:
                target[at] = source[j]
                j += 1


@inlined
def _move(source: Array, start: int, stop: int, target: Array, at: int) -> None:
    for i in range(stop - start):
        target[at + i] = source[start + i]


@inner
def lowest(
    items: Array, n: int, k: int, found: Array, spare: Array, ends: Array, counts: Array
) -> None:
    """Move the k lowest (rank, seq) of n items to `found`, sorted, and the others to the front.

    Overwrites `spare`, which has room for n items, `ends` and `counts`.
    """
    in_order = _in_order(items, 0, n)
    if not in_order and n > _LONG and _deal(items, n, k, found, spare, ends, counts):
        return
    if not in_order and k < n:
        select(items, n, k)
    _move(items, 0, k, found, 0)
    _move(items, k, n, items, 0)
    if not in_order:
        sort(found, spare, 0, k, counts)


@inner
def _deal(
    items: Array, n: int, k: int, found: Array, spare: Array, ends: Array, counts: Array
) -> bool:
    """Do the same by dividing a long list into parts; return False, without effect, on failure."""
    # The last part ends a little above the likely place of k.
    place = _SAMPLE * k // n + _SAMPLE // 16
    if place > _SAMPLE or found.shape[0] < _SAMPLE:
        return False
    for i in range(_SAMPLE):
        found[i] = items[i * n // _SAMPLE]
    sort(found, spare, 0, _SAMPLE, counts)
    for part in range(PARTS):
        ends[part] = found[((part + 1) * place - 1) // PARTS].rank
    rank, seq = found[place - 1].rank, found[place - 1].seq
    low, high = 0, 0
    for i in range(n):
        item = items[i]
        is_high = int((rank < item.rank) | ((rank == item.rank) & (seq < item.seq)))
        spare[low] = item
        items[high] = item
        low += 1 - is_high
        high += is_high
    if not k <= low <= found.shape[0]:
        _move(spare, 0, low, items, high)
        return False
    if _in_order(spare, 0, low):
        _move(spare, 0, low, found, 0)
    else:
        _sort_by_part(spare, low, k, found, ends, counts)
    # Left-over items go before the others, so that a sorted list stays sorted.
    over = low - k
    for i in range(high - 1, -1, -1):
        items[over + i] = items[i]
    _move(found, k, low, items, 0)
    return True


@inlined
def _sort_by_part(items: Array, n: int, k: int, found: Array, ends: Array, counts: Array) -> None:
    """Put n items into `found`, by parts, and sort the parts of the first k."""
    starts = counts[CELLS:]
    starts[:] = 0
    for i in range(n):
        starts[_part_of(ends, items[i].rank)] += 1
    start = 0
    for part in range(PARTS):
        starts[part], start = start, start + starts[part]
    for i in range(n):
        part = _part_of(ends, items[i].rank)
        found[starts[part]] = items[i]
        starts[part] += 1
    start = 0
    for part in range(PARTS):
        if start < k:
            sort(found, items, start, starts[part], counts)
        start = starts[part]


@inlined
def _part_of(ends: Array, rank: float) -> int:
    """Return the first part that does not end before a rank, or the last part."""
    part = 0
    for half in _HALVES:
        part += half if ends[part + half - 1] < rank else 0
    return part
