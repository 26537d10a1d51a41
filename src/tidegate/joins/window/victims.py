"""The queue of victims where ranks never fall: which row is shed next.

The queue has parts, so that its cost stays flat as the memory grows. `near` holds the lowest ranks,
sorted. `joiners` holds candidates that became as low later: a heap and, from its other end, a run
of those that came in order (the line). `far` is unsorted, and is read, in sequence, only when the
other parts are empty. A rank that has risen is updated when it reaches the front, so the first
candidate is always the lowest one. `slices.py` has the queue for ranks that move either way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.joins.window.slices import held_in, rank_again
from tidegate.kernel.compiling import AHEAD, Array, entry_point, inlined, inner, prefetch
from tidegate.kernel.heap import before, drop_top, heapify, put, sift_up
from tidegate.kernel.layout import BY_KEY, BY_SCORE, BY_TUPLE, SMALL_HEAP, Core, Rules
from tidegate.kernel.sorting import lowest, sort

#: Parts of the queue: none, `near`, the heap of joiners, the line of joiners.
_NOWHERE, _IN_ORDER, _IN_HEAP, _IN_LINE = range(4)


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
def spread(core: Core, pool: int) -> None:
    """Move all near candidates to `far`."""
    own = core.pools[pool]
    n, far = own.far, core.far[pool]
    for i in range(own.near_from, own.near_to):
        far[n] = core.near[pool, i]
        n += 1
    for i in range(own.joiners):
        far[n] = core.joiners[pool, i]
        n += 1
    for i in range(own.line_from, own.line_to):
        far[n] = core.joiners[pool, -1 - i]
        n += 1
    own.far = n
    own.near_from = own.near_to = 0
    own.line_from = own.line_to = 0
    own.joiners = own.uses = 0
    core.edge[pool].rank = -np.inf


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
    start, stop = own.near_from, own.near_to
    own.near_to = _living(core, rules, core.near[pool], start, stop)
    own.far = _living(core, rules, core.far[pool], 0, own.far)
    own.joiners = _living(core, rules, core.joiners[pool], 0, own.joiners)
    heapify(core.joiners[pool], own.joiners)
    line = core.joiners[pool, ::-1]
    start, stop = own.line_from, own.line_to
    own.line_to = _living(core, rules, line, start, stop)


@inner
def renew(core: Core, rules: Rules, pool: int) -> None:
    """Remove dead candidates from `far` and update the ranks of the others."""
    n = 0
    far = core.far[pool]
    total = core.pools[pool].far
    for i in range(total):
        fetch(core, rules, far, i + AHEAD, total)
        if alive(core, rules, far[i]):
            item, life = far[i].item, far[i].life
            rank, seq = rank_of(core, rules, item)
            put(far, n, rank, seq, item, life)
            n += 1
    core.pools[pool].far = n


@inner
def refill(core: Core, rules: Rules, pool: int) -> None:
    """Move the lowest part of `far` to `near`, by last known ranks."""
    own = core.pools[pool]
    near, far = core.near[pool], core.far[pool]
    n = own.far
    k = min(n, max(SMALL_HEAP, n >> 2))
    lowest(far, n, k, near, core.joiners[pool], core.bounds, core.tally)
    core.edge[pool].rank = np.inf
    if k < n:
        core.edge[pool] = near[k - 1]
    own.near_from, own.near_to = 0, k
    own.far = n - k
    own.uses = 0


@inner
def _join(own: Any, joiners: Array, rank: float, seq: int, item: int, life: int) -> None:
    """Add a candidate to the joiners: to the line, if it comes after all there but the last."""
    line = joiners[::-1]
    start, stop, n = own.line_from, own.line_to, own.joiners
    if n + stop == joiners.shape[0]:
        for i in range(start, stop):
            line[i - start] = line[i]
        start, stop = 0, stop - start
    if start < stop and before(rank, seq, line[stop - 1].rank, line[stop - 1].seq):
        if start < stop - 1 and before(rank, seq, line[stop - 2].rank, line[stop - 2].seq):
            put(joiners, n, rank, seq, item, life)
        else:
            joiners[n] = line[stop - 1]
            put(line, stop - 1, rank, seq, item, life)
        sift_up(joiners, n)
        own.joiners = n + 1
    else:
        put(line, stop, rank, seq, item, life)
        stop += 1
    own.line_from, own.line_to = start, stop


@inner
def _line_up(own: Any, joiners: Array, spare: Array, tally: Array) -> None:
    """Merge the heap of joiners into the line."""
    line = joiners[::-1]
    start, stop, n = own.line_from, own.line_to, own.joiners
    sort(joiners, spare, 0, n, tally)
    i = total = 0
    for at in range(start, stop):
        while i < n and before(joiners[i].rank, joiners[i].seq, line[at].rank, line[at].seq):
            spare[total] = joiners[i]
            i += 1
            total += 1
        spare[total] = line[at]
        total += 1
    for at in range(i, n):
        spare[total] = joiners[at]
        total += 1
    for at in range(total):
        line[at] = spare[at]
    own.joiners = 0
    own.line_from, own.line_to = 0, total


@inlined
def _is_long(core: Core, pool: int) -> bool:
    """Return True if the heap is so long that merging it into the line is cheaper."""
    own = core.pools[pool]
    length = own.line_to - own.line_from
    return bool(own.joiners > max(2 * SMALL_HEAP, length >> 2))


@inlined
def enqueue(core: Core, rules: Rules, pool: int, item: int) -> None:
    """Add a candidate to the queue."""
    own = core.pools[pool]
    near = own.near_to - own.near_from
    joined = own.joiners + own.line_to - own.line_from
    if near + joined + own.far + 1 >= core.far.shape[1]:
        prune(core, rules, pool)
    if own.uses > max(2 * SMALL_HEAP, held_in(core, rules, pool)):
        spread(core, pool)
    rank, seq = rank_of(core, rules, item)
    life = 0 if of_tuples(rules) else core.groups[item].life
    if before(core.edge[pool].rank, core.edge[pool].seq, rank, seq):
        put(core.far[pool], own.far, rank, seq, item, life)
        own.far += 1
    else:
        _join(own, core.joiners[pool], rank, seq, item, life)
        own.uses += 1


@inlined
def victim(core: Core, rules: Rules, pool: int) -> tuple[int, float]:
    """Return the slot with the lowest (rank, sequence number) of a nonempty pool, and its rank."""
    own = core.pools[pool]
    near, joiners = core.near[pool], core.joiners[pool]
    while True:
        place = _lowest_place(core, pool)
        if place == _NOWHERE:
            refill(core, rules, pool)
            continue
        if place == _IN_HEAP and _is_long(core, pool):
            spare = core.far[pool][own.far :]
            _line_up(own, joiners, spare, core.tally)
            continue
        first = joiners[0]
        if place == _IN_ORDER:
            first = near[own.near_from]
        elif place == _IN_LINE:
            first = joiners[-1 - own.line_from]
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
        if before(core.edge[pool].rank, core.edge[pool].seq, rank, seq):
            put(core.far[pool], own.far, rank, seq, item, life)
            own.far += 1
        else:
            _join(own, joiners, rank, seq, item, life)


@inlined
def _lowest_place(core: Core, pool: int) -> int:
    """Return the part of the queue that has the first near candidate."""
    own, near, joiners = core.pools[pool], core.near[pool], core.joiners[pool]
    place, rank, seq = _NOWHERE, np.inf, np.iinfo(np.int64).max
    if own.near_from < own.near_to:
        first = near[own.near_from]
        place, rank, seq = _IN_ORDER, first.rank, first.seq
    if own.line_from < own.line_to:
        first = joiners[-1 - own.line_from]
        if place == _NOWHERE or before(first.rank, first.seq, rank, seq):
            place, rank, seq = _IN_LINE, first.rank, first.seq
    if own.joiners > 0 and (
        place == _NOWHERE or before(joiners[0].rank, joiners[0].seq, rank, seq)
    ):
        place = _IN_HEAP
    return place


@inlined
def _take_first(core: Core, rules: Rules, pool: int, place: int) -> None:
    """Remove the first candidate of a part, and prefetch the next ones."""
    own, near, joiners = core.pools[pool], core.near[pool], core.joiners[pool]
    if place == _IN_ORDER:
        at, stop = own.near_from, own.near_to
        fetch_ahead(core, rules, near, at, stop)
        own.near_from = at + 1
    elif place == _IN_LINE:
        line = joiners[::-1]
        at, stop = own.line_from, own.line_to
        fetch_ahead(core, rules, line, at, stop)
        own.line_from = at + 1
    else:
        n = own.joiners - 1
        drop_top(joiners, n + 1)
        own.joiners = n
        fetch_behind(core, rules, joiners, 0, n)
        for i in range(1, 5):
            fetch(core, rules, joiners, i, n)


@entry_point
def requeue(core: Core, rules: Rules) -> None:
    """Update all ranks; needed when ranks that otherwise only rise may have fallen."""
    if rules.kind == BY_SCORE:
        rank_again(core, rules)
    if rules.kind == BY_KEY:
        for pool in range(rules.pools):
            spread(core, pool)
            renew(core, rules, pool)
