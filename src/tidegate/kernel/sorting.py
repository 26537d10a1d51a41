"""Lists of (rank, seq, item) in order, ties by sequence number; and the least of a list.

Ranks that lie evenly are sorted without comparing: its cell says where an item goes. So what one
costs stays flat as lists grow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel.compiling import Array, inlined, inner
from tidegate.kernel.heap import before, put

#: As many are sorted by inserting one after the other.
_RUN = 16
#: Into at most so many cells of equal width are ranks put to be sorted, if none has more than
CELLS = 1 << 14
_CROWD = 32
#: Longer lists are dealt out first, into
_LONG = 1 << 14
#: parts of about equal length, which are halved so often to find the right one.
PARTS = 256
_HALVES = (128, 64, 32, 16, 8, 4, 2, 1)
#: As many of a list say where these part.
_SAMPLE = 1024


@inner
def select(items: Array, n: int, k: int) -> None:
    """Move the k least (rank, seq) of n to the front."""
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
    """Put the items from `start` to `stop` in order; those of `spare` there are overwritten."""
    if _in_order(items, start, stop):
        return
    if stop - start > 2 * _RUN and _sort_by_cell(items, spare, start, stop, counts):
        return
    for first in range(start, stop, _RUN):
        for i in range(first + 1, min(first + _RUN, stop)):
            _insert(items, first, i, items[i])
    width = _RUN
    while width < stop - start:
        # There and back again.
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
    """Put a new one where it belongs among those from `first` to `at`, which are in order."""
    rank, seq, item, life = new.rank, new.seq, new.item, new.life
    while at > first and before(rank, seq, items[at - 1].rank, items[at - 1].seq):
        items[at] = items[at - 1]
        at -= 1
    put(items, at, rank, seq, item, life)


@inlined
def _sort_by_cell(items: Array, spare: Array, start: int, stop: int, counts: Array) -> bool:
    """The same, if they lie so evenly that few share a cell; false, and nothing done, if not."""
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
    """Merge each two sorted runs of a width; a run that is alone is copied."""
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
    """Move the k least (rank, seq) of n items to `found`, in order, and the others to the front.

    What is in `spare`, where there is room for n, `ends` and `counts` is overwritten.
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
    """The same by way of parts, for a long list; false, and nothing done, if that won't do."""
    # The last part ends a little further than k is likely to lie.
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
    # Those that are left over go before the others: what was in order stays so.
    over = low - k
    for i in range(high - 1, -1, -1):
        items[over + i] = items[i]
    _move(found, k, low, items, 0)
    return True


@inlined
def _sort_by_part(items: Array, n: int, k: int, found: Array, ends: Array, counts: Array) -> None:
    """Put n items into `found`, by parts: the parts of the first k in order."""
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
    """The first part that does not end before a rank, or the last."""
    part = 0
    for half in _HALVES:
        part += half if ends[part + half - 1] < rank else 0
    return part
