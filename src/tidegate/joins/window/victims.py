"""The queue of victims where ranks never fall: which row is shed next.

The queue has parts, so that its cost stays flat as the memory grows. The sorted head has the lowest
ranks. Late candidates came since the head was filled and rank as low: they are in a heap and, from
its other end, in a sorted run, if they came in order. All others are in the unsorted tail, which is
read in sequence, and only when the other parts are empty. A rank that has risen is updated when it
reaches the front, so the first candidate is always the lowest one. `slices.py` has the queue for
ranks that move either way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.joins.window.slices import held_in, rank_again
from tidegate.kernel.compiling import AHEAD, Array, entry_point, inlined, inner, prefetch
from tidegate.kernel.heap import before, drop_top, heapify, put, sift_up
from tidegate.kernel.layout import BY_KEY, BY_SCORE, BY_TUPLE, SMALL_HEAP, Core, Rules
from tidegate.kernel.sorting import lowest, sort

#: Parts of the queue: none, the sorted head, the late heap, the late run.
_NOWHERE, _IN_HEAD, _IN_HEAP, _IN_RUN = range(4)


@inlined
def of_tuples(rules: Rules) -> bool:
    """Return True if the queue holds rows, not groups."""
    return rules.kind == BY_TUPLE


@inlined
def slot_of(core: Core, rules: Rules, item: int) -> int:
    """Return the slot of the row that a candidate stands for."""
    return int(item) if of_tuples(rules) else int(core.groups[item].head)


@inlined
def rank_of(core: Core, rules: Rules, item: int) -> tuple[float, int]:
    """Return the current rank of a candidate, and the sequence number of its row."""
    if rules.kind == BY_TUPLE:
        return core.slots[item].rank, core.slots[item].seq
    return core.groups[item ^ 1].rate, core.groups[item].first


@inlined
def alive(core: Core, rules: Rules, queued: Any) -> bool:
    """Return True if a candidate is still the row or group that was queued."""
    if of_tuples(rules):
        return bool(core.slots[queued.item].seq == queued.seq)
    group = core.groups[queued.item]
    return bool(group.count > 0 and group.life == queued.life)


@inlined
def fetch(core: Core, rules: Rules, queue: Array, i: int, n: int) -> None:
    """Prefetch the slot or group of candidate i of n."""
    if i < n:
        if of_tuples(rules):
            prefetch(core.slots, queue[i].item)
        else:
            prefetch(core.groups, queue[i].item)


@inlined
def fetch_behind(core: Core, rules: Rules, queue: Array, i: int, n: int) -> None:
    """Prefetch what that refers to: of a row its group and the next row, of a group its head."""
    if i < n:
        if of_tuples(rules):
            prefetch(core.groups, core.slots[queue[i].item].group)
            prefetch(core.slots, core.slots[queue[i].item].next)
        else:
            prefetch(core.slots, core.groups[queue[i].item].head)


@inlined
def fetch_after(core: Core, rules: Rules, queue: Array, i: int, n: int) -> None:
    """Prefetch, of a group, the row after its head."""
    if i < n and not of_tuples(rules):
        prefetch(core.slots, core.slots[core.groups[queue[i].item].head].next)


@inlined
def fetch_ahead(core: Core, rules: Rules, queue: Array, at: int, n: int) -> None:
    """Prefetch what the candidates after `at` need, which are taken in order."""
    fetch(core, rules, queue, at + AHEAD, n)
    fetch_behind(core, rules, queue, at + AHEAD // 2, n)
    fetch_after(core, rules, queue, at + AHEAD // 4, n)


@inner
def move_to_tail(core: Core, pool: int) -> None:
    """Move all candidates to the tail."""
    own = core.pools[pool]
    n, tail = own.tail, core.unsorted_tail[pool]
    for i in range(own.head_from, own.head_to):
        tail[n] = core.sorted_head[pool, i]
        n += 1
    for i in range(own.late_heap):
        tail[n] = core.late[pool, i]
        n += 1
    for i in range(own.run_from, own.run_to):
        tail[n] = core.late[pool, -1 - i]
        n += 1
    own.tail = n
    own.head_from = own.head_to = 0
    own.run_from = own.run_to = 0
    own.late_heap = own.uses = 0
    core.head_end[pool].rank = -np.inf


@inlined
def _living(core: Core, rules: Rules, queue: Array, start: int, stop: int) -> int:
    """Remove dead candidates from a list's [start, stop); return where it stops then."""
    kept = start
    for i in range(start, stop):
        fetch(core, rules, queue, i + AHEAD, stop)
        if alive(core, rules, queue[i]):
            queue[kept] = queue[i]
            kept += 1
    return kept


@inner
def prune(core: Core, rules: Rules, pool: int) -> None:
    """Remove dead candidates; the order of the others stays, so this can happen at any time."""
    own = core.pools[pool]
    start, stop = own.head_from, own.head_to
    own.head_to = _living(core, rules, core.sorted_head[pool], start, stop)
    own.tail = _living(core, rules, core.unsorted_tail[pool], 0, own.tail)
    own.late_heap = _living(core, rules, core.late[pool], 0, own.late_heap)
    heapify(core.late[pool], own.late_heap)
    run = core.late[pool, ::-1]
    start, stop = own.run_from, own.run_to
    own.run_to = _living(core, rules, run, start, stop)


@inner
def update_tail(core: Core, rules: Rules, pool: int) -> None:
    """Remove dead candidates from the tail and update the ranks of the others."""
    n = 0
    tail = core.unsorted_tail[pool]
    total = core.pools[pool].tail
    for i in range(total):
        fetch(core, rules, tail, i + AHEAD, total)
        if alive(core, rules, tail[i]):
            item, life = tail[i].item, tail[i].life
            rank, seq = rank_of(core, rules, item)
            put(tail, n, rank, seq, item, life)
            n += 1
    core.pools[pool].tail = n


@inner
def fill_head(core: Core, rules: Rules, pool: int) -> None:
    """Move the lowest part of the tail to the head, by last known ranks."""
    own = core.pools[pool]
    head, tail = core.sorted_head[pool], core.unsorted_tail[pool]
    n = own.tail
    k = min(n, max(SMALL_HEAP, n >> 2))
    lowest(tail, n, k, head, core.late[pool], core.bounds, core.tally)
    core.head_end[pool].rank = np.inf
    if k < n:
        core.head_end[pool] = head[k - 1]
    own.head_from, own.head_to = 0, k
    own.tail = n - k
    own.uses = 0


@inner
def _add_late(own: Any, late: Array, rank: float, seq: int, item: int, life: int) -> None:
    """Add a late candidate: to the run if it comes after all there but the last, or to the heap."""
    run = late[::-1]
    start, stop, n = own.run_from, own.run_to, own.late_heap
    if n + stop == late.shape[0]:
        for i in range(start, stop):
            run[i - start] = run[i]
        start, stop = 0, stop - start
    if start < stop and before(rank, seq, run[stop - 1].rank, run[stop - 1].seq):
        if start < stop - 1 and before(rank, seq, run[stop - 2].rank, run[stop - 2].seq):
            put(late, n, rank, seq, item, life)
        else:
            late[n] = run[stop - 1]
            put(run, stop - 1, rank, seq, item, life)
        sift_up(late, n)
        own.late_heap = n + 1
    else:
        put(run, stop, rank, seq, item, life)
        stop += 1
    own.run_from, own.run_to = start, stop


@inner
def _merge_late(own: Any, late: Array, spare: Array, tally: Array) -> None:
    """Merge the late heap into the late run."""
    run = late[::-1]
    start, stop, n = own.run_from, own.run_to, own.late_heap
    sort(late, spare, 0, n, tally)
    i = total = 0
    for at in range(start, stop):
        while i < n and before(late[i].rank, late[i].seq, run[at].rank, run[at].seq):
            spare[total] = late[i]
            i += 1
            total += 1
        spare[total] = run[at]
        total += 1
    for at in range(i, n):
        spare[total] = late[at]
        total += 1
    for at in range(total):
        run[at] = spare[at]
    own.late_heap = 0
    own.run_from, own.run_to = 0, total


@inlined
def _heap_is_long(core: Core, pool: int) -> bool:
    """Return True if the late heap is so long that merging it into the run is cheaper."""
    own = core.pools[pool]
    length = own.run_to - own.run_from
    return bool(own.late_heap > max(2 * SMALL_HEAP, length >> 2))


@inlined
def enqueue(core: Core, rules: Rules, pool: int, item: int) -> None:
    """Add a candidate to the queue."""
    own = core.pools[pool]
    head, run = own.head_to - own.head_from, own.run_to - own.run_from
    if head + run + own.late_heap + own.tail + 1 >= core.unsorted_tail.shape[1]:
        prune(core, rules, pool)
    if own.uses > max(2 * SMALL_HEAP, held_in(core, rules, pool)):
        move_to_tail(core, pool)
    rank, seq = rank_of(core, rules, item)
    life = 0 if of_tuples(rules) else core.groups[item].life
    if before(core.head_end[pool].rank, core.head_end[pool].seq, rank, seq):
        put(core.unsorted_tail[pool], own.tail, rank, seq, item, life)
        own.tail += 1
    else:
        _add_late(own, core.late[pool], rank, seq, item, life)
        own.uses += 1


@inlined
def victim(core: Core, rules: Rules, pool: int) -> tuple[int, float]:
    """Return the slot with the lowest (rank, sequence number) of a nonempty pool, and its rank."""
    own = core.pools[pool]
    head, late = core.sorted_head[pool], core.late[pool]
    while True:
        place = _lowest_place(core, pool)
        if place == _NOWHERE:
            fill_head(core, rules, pool)
            continue
        if place == _IN_HEAP and _heap_is_long(core, pool):
            spare = core.unsorted_tail[pool][own.tail :]
            _merge_late(own, late, spare, core.tally)
            continue
        first = late[0]
        if place == _IN_HEAD:
            first = head[own.head_from]
        elif place == _IN_RUN:
            first = late[-1 - own.run_from]
        seen, known, item, life = first.rank, first.seq, first.item, first.life
        if not alive(core, rules, first):
            _take_first(core, rules, pool, place)
            continue
        if rules.kind == BY_TUPLE:
            return int(item), seen
        rank, seq = rank_of(core, rules, item)
        if seq == known and rank == seen:
            return slot_of(core, rules, item), rank
        _take_first(core, rules, pool, place)
        if before(core.head_end[pool].rank, core.head_end[pool].seq, rank, seq):
            put(core.unsorted_tail[pool], own.tail, rank, seq, item, life)
            own.tail += 1
        else:
            _add_late(own, late, rank, seq, item, life)


@inlined
def _lowest_place(core: Core, pool: int) -> int:
    """Return the part of the queue that has the first candidate outside the tail."""
    own, head, late = core.pools[pool], core.sorted_head[pool], core.late[pool]
    place, rank, seq = _NOWHERE, np.inf, np.iinfo(np.int64).max
    if own.head_from < own.head_to:
        first = head[own.head_from]
        place, rank, seq = _IN_HEAD, first.rank, first.seq
    if own.run_from < own.run_to:
        first = late[-1 - own.run_from]
        if place == _NOWHERE or before(first.rank, first.seq, rank, seq):
            place, rank, seq = _IN_RUN, first.rank, first.seq
    if own.late_heap > 0 and (place == _NOWHERE or before(late[0].rank, late[0].seq, rank, seq)):
        place = _IN_HEAP
    return place


@inlined
def _take_first(core: Core, rules: Rules, pool: int, place: int) -> None:
    """Remove the first candidate of a part, and prefetch the next ones."""
    own, head, late = core.pools[pool], core.sorted_head[pool], core.late[pool]
    if place == _IN_HEAD:
        at, stop = own.head_from, own.head_to
        fetch_ahead(core, rules, head, at, stop)
        own.head_from = at + 1
    elif place == _IN_RUN:
        run = late[::-1]
        at, stop = own.run_from, own.run_to
        fetch_ahead(core, rules, run, at, stop)
        own.run_from = at + 1
    else:
        n = own.late_heap - 1
        drop_top(late, n + 1)
        own.late_heap = n
        fetch_behind(core, rules, late, 0, n)
        for i in range(1, 5):
            fetch(core, rules, late, i, n)


@entry_point
def requeue(core: Core, rules: Rules) -> None:
    """Update all ranks; needed when ranks that otherwise only rise may have fallen."""
    if rules.kind == BY_SCORE:
        rank_again(core, rules)
    if rules.kind == BY_KEY:
        for pool in range(rules.pools):
            move_to_tail(core, pool)
            update_tail(core, rules, pool)
