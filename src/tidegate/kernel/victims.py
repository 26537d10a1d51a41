"""Which tuple leaves next.

The queue of candidates has two parts, so that the cost stays flat as the memory grows: `near` is
a small heap of the lowest ranks, `far` an unsorted rest that is read, in sequence, only when
`near` runs dry. Ranks that can only rise are looked up again when they surface; for ranks that
move otherwise the queue is exact up to `Rules.exact_limit` candidates (by reading them all); above,
it is at most one refill out of date, and takes the first of `near` though it has risen a little.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel.compiling import AHEAD, Array, entry_point, inlined, inner, prefetch
from tidegate.kernel.heap import before, drop_top, heapify, put, select, sift_down, sift_up
from tidegate.kernel.layout import (
    BY_KEY,
    BY_LIFE,
    BY_SCORE,
    BY_TUPLE,
    DETERMINED,
    FAINTEST,
    FAR,
    HELD,
    JOINED,
    NEAR,
    SMALL_HEAP,
    Core,
    Rules,
)
from tidegate.kernel.priorities import as_determined, determine, is_due, keeps
from tidegate.kernel.scores import score
from tidegate.kernel.times import window_of

#: Candidates that are sorted at once, at the least, where ranks move.
_FEW = 32
#: How much is a little: this part of how far ranks in `near` lie apart.
_SLACK = 0.125


@inlined
def worth(core: Core, rules: Rules, group: int, time: Any) -> float:
    """What a tuple of a group is worth now, for the kinds that rank groups."""
    rate = core.groups[group ^ 1].rate
    if rules.kind == BY_LIFE:
        window = window_of(rules, group & 1, time)
        if window != 0:
            return float((time + window - core.clock[0]) * max(rate, FAINTEST))
    return float(rate)


@inlined
def of_tuples(rules: Rules) -> bool:
    """Whether the queue is one of tuples, not of groups."""
    return rules.kind == BY_TUPLE or rules.kind == BY_SCORE


@inlined
def moves(rules: Rules) -> bool:
    """Whether ranks fall as well as rise."""
    return rules.kind == BY_LIFE or rules.kind == BY_SCORE


@inlined
def slot_of(core: Core, rules: Rules, item: int) -> int:
    """The slot of the tuple that a candidate stands for."""
    return int(item) if of_tuples(rules) else int(core.groups[item].head)


@inlined
def rank_of(core: Core, rules: Rules, item: int) -> tuple[float, int]:
    """The rank of a candidate now and the sequence number of the tuple that it stands for."""
    if rules.kind == BY_TUPLE:
        return core.slots[item].rank, core.slots[item].seq
    if rules.kind == BY_SCORE:
        held = core.slots[item]
        if keeps(core):
            return as_determined(core, rules, item), held.seq
        return (
            score(core, rules, held.group, held.time, held.rank, held.gain, held.last),
            held.seq,
        )
    if rules.kind == BY_KEY:
        return core.groups[item ^ 1].rate, core.groups[item].first
    group = core.groups[item]
    return worth(core, rules, item, core.slots[group.head].time), group.first


@inlined
def alive(core: Core, rules: Rules, queued: Any) -> bool:
    """Whether a candidate still stands for what it was queued for."""
    if of_tuples(rules):
        return bool(core.slots[queued.item].seq == queued.seq)
    group = core.groups[queued.item]
    return bool(group.count > 0 and group.life == queued.life)


@inlined
def fetch(core: Core, rules: Rules, queue: Array, i: int, n: int) -> None:
    """Have what candidate i of n stands for fetched from memory."""
    if i < n:
        if of_tuples(rules):
            prefetch(core.slots, queue[i].item)
        else:
            prefetch(core.groups, queue[i].item)


@inlined
def fetch_group(core: Core, group: int) -> None:
    """Have what is known of a group's key fetched from memory."""
    prefetch(core.groups, group)
    if core.recent.shape[0] > 0:
        prefetch(core.recent, group)


@inlined
def held_in(core: Core, rules: Rules, pool: int) -> int:
    """How many tuples a pool holds."""
    left, right = core.ints[HELD], core.ints[HELD + 1]
    if rules.pools == 2:
        return int(right if pool == 1 else left)
    return int(left + right)


@inner
def spread(core: Core, pool: int) -> None:
    """Move all of `near` to `far`."""
    ints = core.ints
    far = ints[FAR + pool]
    for i in range(ints[NEAR + pool]):
        core.far[pool, far + i] = core.near[pool, i]
    ints[FAR + pool] = far + ints[NEAR + pool]
    ints[NEAR + pool] = 0
    ints[JOINED + pool] = 0
    core.edge[pool].rank = -np.inf


@inlined
def _living(core: Core, rules: Rules, queue: Array, n: int) -> int:
    """Drop the dead from a list of n: how many are left."""
    kept = 0
    for i in range(n):
        fetch(core, rules, queue, i + AHEAD, n)
        if alive(core, rules, queue[i]):
            queue[kept] = queue[i]
            kept += 1
    return kept


@inner
def prune(core: Core, rules: Rules, pool: int) -> None:
    """Drop the dead: which of the others is next stays as it is, so any time will do."""
    ints = core.ints
    ints[FAR + pool] = _living(core, rules, core.far[pool], ints[FAR + pool])
    ints[NEAR + pool] = _living(core, rules, core.near[pool], ints[NEAR + pool])
    heapify(core.near[pool], ints[NEAR + pool])


@inner
def renew(core: Core, rules: Rules, pool: int) -> None:
    """Drop the dead from `far` and look up the ranks of the others."""
    n = 0
    far = core.far[pool]
    total = core.ints[FAR + pool]
    for i in range(total):
        fetch(core, rules, far, i + AHEAD, total)
        if moves(rules) and i + AHEAD // 2 < total:
            if of_tuples(rules):
                fetch_group(core, core.slots[far[i + AHEAD // 2].item].group)
            else:
                prefetch(core.slots, core.groups[far[i + AHEAD // 2].item].head)
        if alive(core, rules, far[i]):
            item, life = far[i].item, far[i].life
            rank, seq = rank_of(core, rules, item)
            put(far, n, rank, seq, item, life)
            n += 1
    core.ints[FAR + pool] = n


@inner
def refill(core: Core, rules: Rules, pool: int) -> None:
    """Move the lowest part of `far` to `near`.

    By the ranks that they had when last seen: those that have risen since are found out when
    they surface. Only where ranks also fall are they looked up here.
    """
    ints = core.ints
    near, far = core.near[pool], core.far[pool]
    if moves(rules):
        renew(core, rules, pool)
    n = ints[FAR + pool]
    # To look up ranks that move costs more than to sort, but they must be looked up soon again.
    k = min(n, max(_FEW, n >> 2) if moves(rules) else max(SMALL_HEAP, n >> 3))
    if k < n:
        select(far, n, k)
    core.edge[pool].rank = np.inf
    for i in range(k):
        near[i] = far[i]
    if k < n:
        top = 0
        for i in range(1, k):
            if before(near[top].rank, near[top].seq, near[i].rank, near[i].seq):
                top = i
        core.edge[pool] = near[top]
    heapify(near, k)
    for i in range(k, n):
        far[i - k] = far[i]
    ints[NEAR + pool] = k
    ints[FAR + pool] = n - k
    ints[JOINED + pool] = 0


@inlined
def enqueue(core: Core, rules: Rules, pool: int, item: int) -> None:
    """Make a candidate known to the queue.

    Where it goes must not depend on how many dead are still in the queue: they are dropped at
    other times after a restart.
    """
    ints = core.ints
    if ints[NEAR + pool] + ints[FAR + pool] + 1 >= core.far.shape[1]:
        prune(core, rules, pool)
    if ints[JOINED + pool] > max(2 * SMALL_HEAP, held_in(core, rules, pool)):
        spread(core, pool)
    if rules.kind == BY_SCORE and keeps(core):
        determine(core, rules, item)
    rank, seq = rank_of(core, rules, item)
    life = 0 if of_tuples(rules) else core.groups[item].life
    if before(core.edge[pool].rank, core.edge[pool].seq, rank, seq):
        put(core.far[pool], ints[FAR + pool], rank, seq, item, life)
        ints[FAR + pool] += 1
    else:
        put(core.near[pool], ints[NEAR + pool], rank, seq, item, life)
        sift_up(core.near[pool], ints[NEAR + pool])
        ints[NEAR + pool] += 1
        ints[JOINED + pool] += 1


@inner
def determine_all(core: Core, rules: Rules, pool: int) -> None:
    """Determine the priority of all candidates anew."""
    spread(core, pool)
    for i in range(core.ints[FAR + pool]):
        if alive(core, rules, core.far[pool, i]):
            determine(core, rules, core.far[pool, i].item)
    renew(core, rules, pool)
    core.ints[DETERMINED] = 1


@inner
def scan(core: Core, rules: Rules, pool: int) -> tuple[int, float]:
    """The lowest candidate of a small queue whose ranks all move, and its rank."""
    spread(core, pool)
    prune(core, rules, pool)
    best, best_rank, best_seq = -1, np.inf, 0
    for i in range(core.ints[FAR + pool]):
        item = core.far[pool, i].item
        rank, seq = rank_of(core, rules, item)
        if best < 0 or before(rank, seq, best_rank, best_seq):
            best, best_rank, best_seq = item, rank, seq
    return best, best_rank


@inlined
def _slack(core: Core, pool: int) -> float:
    """By how much the first of `near` may have risen and still be taken, where ranks move."""
    span = core.edge[pool].rank - core.near[pool, 0].rank
    return _SLACK * span if np.isfinite(span) else 0.0


@inlined
def victim(core: Core, rules: Rules, pool: int) -> tuple[int, float]:
    """The slot with the lowest (rank, sequence number) in a pool that holds something; its rank."""
    ints = core.ints
    near = core.near[pool]
    if rules.kind == BY_SCORE and keeps(core) and is_due(core, rules, pool):
        determine_all(core, rules, pool)
    if moves(rules) and held_in(core, rules, pool) <= rules.exact_limit:
        best, lowest = scan(core, rules, pool)
        return slot_of(core, rules, best), lowest
    while True:
        n = ints[NEAR + pool]
        if n == 0:
            refill(core, rules, pool)
            continue
        top = near[0].item
        # One of the first four comes next, the others soon: in a queue that outgrows the cache,
        # have fetched what they lead to.
        if n <= 2 * SMALL_HEAP:
            pass
        elif of_tuples(rules):
            for i in range(5, min(n, 21)):
                prefetch(core.slots, near[i].item)
            for i in range(1, min(n, 5)):
                fetch_group(core, core.slots[near[i].item].group)
        else:
            for i in range(5, min(n, 21)):
                prefetch(core.groups, near[i].item)
            for i in range(1, min(n, 5)):
                prefetch(core.slots, core.groups[near[i].item].head)
        drop = not alive(core, rules, near[0])
        if not drop and rules.kind == BY_TUPLE:
            return int(top), near[0].rank
        if not drop:
            rank, seq = rank_of(core, rules, top)
            fallen = moves(rules) and rank <= near[0].rank + _slack(core, pool)
            if seq == near[0].seq and (rank == near[0].rank or fallen):
                return slot_of(core, rules, top), rank
            drop = before(core.edge[pool].rank, core.edge[pool].seq, rank, seq)
            if drop:
                put(core.far[pool], ints[FAR + pool], rank, seq, top, near[0].life)
                ints[FAR + pool] += 1
            else:
                put(near, 0, rank, seq, top, near[0].life)
                sift_down(near, 0, n)
        if drop:
            drop_top(near, n)
            ints[NEAR + pool] = n - 1


@entry_point
def requeue(core: Core, rules: Rules) -> None:
    """Look up all ranks: wherever those may have fallen that otherwise only rise."""
    if rules.kind == BY_KEY or moves(rules):
        for pool in range(rules.pools):
            spread(core, pool)
            renew(core, rules, pool)
