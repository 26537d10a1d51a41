"""The queue of victims where ranks move either way: which row is shed next.

Ranks move for two reasons: rows age, and keys become more or less frequent. Rows that arrived one
after the other age together. So the rows of each side are divided, in order of arrival, into
slices, and each slice is a heap. It orders its rows by their ranks at one moment, the slice's
`base`. Ageing changes these ranks alike, so the order stays right. The first row of the slice whose
first row has the lowest rank now is the victim.

The last two slices of a side are not closed. Newcomers enter the last one, and their ranks are
computed when they are needed. Once the clock has moved on, they are ranked again and enter the one
before, the open slice, because many ranks change most in the first moment. The open slice is closed
once it has its share of the rows. A rank that has risen is updated when its row becomes the first
of its slice. Where a result may lower a rank, rows that found one are looked at in the next choice.
A rank that has fallen for another reason is noticed when all ranks of its slice are computed again:
slices take turns. Two neighbours that have become small are merged then.

With up to `Rules.exact_limit` rows, the rank of every row is computed for each choice. A pool has
no slices before it first holds more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.joins.window.priorities import determine, is_due, keeps
from tidegate.kernel.compiling import AHEAD, Array, inlined, inner, prefetch
from tidegate.kernel.heap import before, drop_top, heapify, push, put, sift_down
from tidegate.kernel.layout import LAST, MOST_SLICES, Core, Rules
from tidegate.learning.scores import SPARED, is_spared, score

#: The smallest number of rows with which a slice is closed, or that two merged slices may have.
_SMALL = 32
#: The shares of the held rows, as powers of two, with which a slice is closed, and that two merged
#: slices may have.
_CLOSED, _MERGED = 6, 5
#: The first rows of all slices are looked at again after this many choices, or after the same share
#: of the held rows with which a slice is closed.
_CHOICES = 32


@inlined
def held_in(core: Core, rules: Rules, pool: int) -> int:
    """Return how many rows a pool holds."""
    left, right = core.sides[0].held, core.sides[1].held
    if rules.pools == 2:
        return int(right if pool == 1 else left)
    return int(left + right)


@inlined
def _sides(rules: Rules, pool: int) -> tuple[int, int]:
    """Return the range of the sides whose rows a pool holds."""
    return (pool, pool + 1) if rules.pools == 2 else (0, 2)


@inlined
def _is_alive(core: Core, node: Any) -> bool:
    return bool(core.slots[node.item].seq == node.seq)


@inlined
def _rank_at(core: Core, rules: Rules, slot: int, when: Any) -> float:
    """Return the rank of a held row at a time, by which slices are ordered."""
    if keeps(core):
        return float(core.priority[slot])
    held = core.slots[slot]
    group, time, at = held.group, held.time, int(slot)
    return score(core, rules, when, group, time, held.rank, held.gain, held.last, at)


@inlined
def _rank_now(core: Core, rules: Rules, slot: int) -> float:
    """Return the rank of a held row now, which is high if the row may not be shed yet."""
    if is_spared(rules, core.clock[0], core.slots[slot].time):
        return SPARED
    return _rank_at(core, rules, slot, core.clock[0])


@inlined
def _closed(sides: Array, side: int) -> int:
    """Return the number of closed slices of a side."""
    return int(max(sides[side].slices - 2, 0))


@inlined
def _first(own: Any, rank: float, seq: int) -> None:
    """Set the rank of the first row of a slice, and its sequence number."""
    own.rank, own.top = rank, seq


@inner
def _prune(slots: Array, all_nodes: Array, own: Any) -> None:
    """Remove dead nodes from a slice; the order of the others stays."""
    nodes = all_nodes[own.start : own.start + own.length]
    n = 0
    for i in range(own.length):
        if i + AHEAD < own.length:
            prefetch(slots, nodes[i + AHEAD].item)
        if slots[nodes[i].item].seq == nodes[i].seq:
            nodes[n] = nodes[i]
            n += 1
    own.length = n


@inner
def _compact(core: Core, rules: Rules, side: int) -> None:
    """Make room for more nodes of a side. This changes no rank and no order."""
    end = 0
    for at in range(core.sides[side].slices):
        _prune(core.slots, core.nodes[side], core.slices[side, at])
        own = core.slices[side, at]
        for i in range(own.length):
            core.nodes[side, end + i] = core.nodes[side, own.start + i]
        own.start = end
        end += own.length
        if core.pools[side if rules.pools == 2 else 0].sliced:
            heapify(core.nodes[side, own.start :], own.length)


@inner
def _remove(sides: Array, slices: Array, side: int, at: int) -> None:
    """Remove a slice."""
    n = sides[side].slices - 1
    for i in range(at, n):
        slices[side, i] = slices[side, i + 1]
    sides[side].slices = n


@inner
def _add_slice(sides: Array, slices: Array, side: int, first: int) -> None:
    """Add an empty slice to a side, for rows from a sequence number on."""
    n = sides[side].slices
    own, last = slices[side, n], slices[side, n - 1]
    own.start, own.length, own.first = last.start + last.length, 0, first
    own.base = last.base
    _first(own, np.inf, LAST)
    sides[side].slices = n + 1


@inner
def _rank_all(core: Core, rules: Rules, side: int, at: int) -> None:
    """Compute the ranks of all rows of a slice, which must have no dead nodes."""
    own = core.slices[side, at]
    nodes, n = core.nodes[side, own.start :], own.length
    for i in range(n):
        if i + AHEAD < n:
            prefetch(core.slots, nodes[i + AHEAD].item)
        if i + AHEAD // 2 < n:
            fetch_group(core, core.slots[nodes[i + AHEAD // 2].item].group)
        nodes[i].rank = _rank_at(core, rules, nodes[i].item, core.clock[0])
    heapify(nodes, n)
    own.base = core.clock[0]
    _first(own, -np.inf, own.first)


@inlined
def fetch_group(core: Core, group: int) -> None:
    """Prefetch a group and the recent arrivals of its key."""
    prefetch(core.groups, group)
    if core.recent.shape[0] > 0:
        prefetch(core.recent, group)


@inner
def _gather(
    pools: Array, sides: Array, slices: Array, tops: Array, rules: Rules, pool: int, known: bool
) -> None:
    """Make a heap of the closed slices of a pool, by their first rows.

    If the ranks of these rows are no longer known, the next choice looks at all slices.
    """
    n = 0
    first, last = _sides(rules, pool)
    for side in range(first, last):
        for at in range(_closed(sides, side)):
            own = slices[side, at]
            rank = own.rank if known else -np.inf
            put(tops[pool], n, rank, own.top, side * MOST_SLICES + at)
            n += 1
    heapify(tops[pool], n)
    pools[pool].tops = n


@inner
def _cut(core: Core, rules: Rules, pool: int) -> None:
    """Divide the rows of a pool, which are still in order of arrival, into slices."""
    share = max(_SMALL, held_in(core, rules, pool) >> _CLOSED)
    first, last = _sides(rules, pool)
    for side in range(first, last):
        _prune(core.slots, core.nodes[side], core.slices[side, 0])
        total = core.slices[side, 0].length
        newer = core.nodes[side, total - 1].seq + 1 if total > 0 else 0
        for start in range(0, total, share):
            own = core.slices[side, start // share]
            own.start, own.length = start, min(share, total - start)
            own.first = core.nodes[side, start].seq
            core.sides[side].slices = start // share + 1
            _rank_all(core, rules, side, start // share)
        core.sides[side].pushed = 0
        for _ in range(2):
            _add_slice(core.sides, core.slices, side, newer)
    _gather(core.pools, core.sides, core.slices, core.tops, rules, pool, True)
    core.pools[pool].sliced = 1


@inner
def _close(core: Core, rules: Rules, side: int, pool: int) -> None:
    """Close the open slice of a side and open another; remove slices whose rows have expired.

    The slice of newcomers must be empty.
    """
    while _closed(core.sides, side) > 0:
        own = core.slices[side, 0]
        nodes = core.nodes[side, own.start :]
        while own.length > 0 and not _is_alive(core, nodes[0]):
            drop_top(nodes, own.length)
            own.length -= 1
        if own.length > 0:
            break
        _remove(core.sides, core.slices, side, 0)
    n = core.sides[side].slices
    if n < MOST_SLICES:
        _prune(core.slots, core.nodes[side], core.slices[side, n - 2])
        _rank_all(core, rules, side, n - 2)
        _add_slice(core.sides, core.slices, side, core.slices[side, n - 1].first)
        core.sides[side].pushed = 0
    _gather(core.pools, core.sides, core.slices, core.tops, rules, pool, True)


@inlined
def end_tick(core: Core, rules: Rules) -> None:
    """Move the newcomers of earlier ticks to the open slices, with their ranks now."""
    for side in range(2):
        pool = side if rules.pools == 2 else 0
        n = core.sides[side].slices
        newest = core.slices[side, n - 1]
        if not core.pools[pool].sliced or newest.base == core.clock[0]:
            continue
        own = core.slices[side, n - 2]
        nodes, newcomers = core.nodes[side, own.start :], core.nodes[side, newest.start :]
        for i in range(newest.length):
            slot, seq = newcomers[i].item, newcomers[i].seq
            newest.first = max(newest.first, seq + 1)
            if _is_alive(core, newcomers[i]):
                rank = _rank_at(core, rules, slot, core.clock[0])
                push(nodes, own.length, rank, seq, slot)
                own.length += 1
                if before(rank, seq, own.rank, own.top):
                    _first(own, rank, seq)
        newest.start, newest.length = own.start + own.length, 0
        newest.base = core.clock[0]
        _first(newest, np.inf, LAST)
        if core.sides[side].pushed >= max(_SMALL, held_in(core, rules, pool) >> _CLOSED):
            _close(core, rules, side, pool)


@inlined
def _visit(core: Core, rules: Rules, pool: int) -> None:
    """Compute the ranks of the next slice again, merged with its neighbour if both are small."""
    own = core.pools[pool]
    side, last = _sides(rules, pool)
    at = own.at
    if at >= _closed(core.sides, side) and side + 1 < last:
        at -= _closed(core.sides, side)
        side += 1
    if at >= _closed(core.sides, side):
        own.at = 0
        return
    own.at += 1
    _prune(core.slots, core.nodes[side], core.slices[side, at])
    here = core.slices[side, at]
    if at + 1 < _closed(core.sides, side):
        _prune(core.slots, core.nodes[side], core.slices[side, at + 1])
        after = core.slices[side, at + 1]
        share = max(_SMALL, held_in(core, rules, pool) >> _MERGED)
        if here.length + after.length <= share:
            for i in range(after.length):
                core.nodes[side, here.start + here.length + i] = core.nodes[side, after.start + i]
            here.length += after.length
            _remove(core.sides, core.slices, side, at + 1)
        else:
            heapify(core.nodes[side, after.start :], after.length)
    if here.length == 0:
        _remove(core.sides, core.slices, side, at)
    else:
        _rank_all(core, rules, side, at)


@inner
def _maintain(core: Core, rules: Rules, pool: int, choices: int) -> None:
    """Do what is due after a number of choices: visit slices, and look at all first rows again."""
    first, last = _sides(rules, pool)
    closed = 0
    for side in range(first, last):
        closed += _closed(core.sides, side)
    # Each slice has its turn within as many choices as there are rows.
    for _ in range(1 + closed * choices // held_in(core, rules, pool)):
        _visit(core, rules, pool)
    _gather(core.pools, core.sides, core.slices, core.tops, rules, pool, False)
    core.pools[pool].uses = 0


@inner
def rank_again(core: Core, rules: Rules) -> None:
    """Compute all ranks again."""
    for pool in range(rules.pools):
        if core.pools[pool].sliced:
            first, last = _sides(rules, pool)
            for side in range(first, last):
                for at in range(core.sides[side].slices):
                    _prune(core.slots, core.nodes[side], core.slices[side, at])
                    _rank_all(core, rules, side, at)
            _gather(core.pools, core.sides, core.slices, core.tops, rules, pool, True)


@inner
def _determine_all(core: Core, rules: Rules, pool: int) -> None:
    """Compute the stored priorities of all rows of a pool again."""
    first, last = _sides(rules, pool)
    for side in range(first, last):
        for at in range(core.sides[side].slices):
            own = core.slices[side, at]
            for i in range(own.start, own.start + own.length):
                if _is_alive(core, core.nodes[side, i]):
                    determine(core, rules, core.nodes[side, i].item)
    rank_again(core, rules)
    core.scalars[0].determined = 1


@inlined
def add_row(core: Core, rules: Rules, pool: int, slot: int) -> None:
    """Add a held row to the queue."""
    held = core.slots[slot]
    side = held.group & 1
    if keeps(core):
        determine(core, rules, slot)
    own = core.slices[side, core.sides[side].slices - 1]
    if own.start + own.length == core.nodes.shape[1]:
        _compact(core, rules, side)
    if not core.pools[pool].sliced:
        put(core.nodes[side], own.length, 0.0, held.seq, slot)
        own.length += 1
        return
    push(core.nodes[side, own.start :], own.length, -np.inf, held.seq, slot)
    own.length += 1
    _first(own, -np.inf, core.nodes[side, own.start].seq)
    core.sides[side].pushed += 1


@inner
def _scan(core: Core, rules: Rules, pool: int) -> tuple[int, float]:
    """Return the lowest row of a pool, and its rank, from the ranks of all rows."""
    best, best_rank, best_seq = -1, np.inf, LAST
    first, last = _sides(rules, pool)
    for side in range(first, last):
        for at in range(core.sides[side].slices):
            own = core.slices[side, at]
            dead = 0
            for i in range(own.start, own.start + own.length):
                slot, seq = core.nodes[side, i].item, core.nodes[side, i].seq
                if core.slots[slot].seq != seq:
                    dead += 1
                    continue
                rank = _rank_now(core, rules, slot)
                if best < 0 or before(rank, seq, best_rank, best_seq):
                    best, best_rank, best_seq = slot, rank, seq
            if 4 * dead > own.length:
                _prune(core.slots, core.nodes[side], core.slices[side, at])
                if core.pools[pool].sliced:
                    heapify(core.nodes[side, own.start :], own.length)
    return best, best_rank


@inlined
def look_at(core: Core, rules: Rules, slot: int) -> None:
    """Note a row that is about to find a result, and its rank, for the next choice.

    Of more rows than can be noted, those that came first are.
    """
    held = core.slots[slot]
    pool = held.group & 1 if rules.pools == 2 else 0
    own, noted = core.pools[pool], core.noted[pool]
    n, seq = own.noted, held.seq
    if not own.sliced or (n == noted.shape[0] and seq >= noted[n - 1].seq):
        return
    at = n
    while at > 0 and noted[at - 1].seq >= seq:
        at -= 1
    if at < n and noted[at].seq == seq:
        return
    n = min(n + 1, noted.shape[0])
    for i in range(n - 1, at, -1):
        noted[i] = noted[i - 1]
    put(noted, at, _rank_now(core, rules, slot), seq, slot)
    own.noted = n


@inlined
def _lowest_noted(core: Core, rules: Rules, pool: int, slot: int, rank: float) -> tuple[int, float]:
    """Return the lowest of the given row and the noted ones whose rank fell, and its rank.

    Rows that are not lower than the given one are noted no longer.
    """
    own, noted = core.pools[pool], core.noted[pool]
    best, best_rank, n = slot, rank, 0
    for i in range(own.noted):
        if _is_alive(core, noted[i]):
            found, seq = noted[i].item, noted[i].seq
            now = _rank_now(core, rules, found)
            if now < noted[i].rank and before(now, seq, rank, core.slots[slot].seq):
                noted[n] = noted[i]
                n += 1
                if before(now, seq, best_rank, core.slots[best].seq):
                    best, best_rank = found, now
    own.noted = n
    return best, best_rank


@inlined
def _settle(core: Core, rules: Rules, side: int, at: int) -> None:
    """Bring the lowest row of a slice to its front, and compute its rank now."""
    own = core.slices[side, at]
    nodes, n = core.nodes[side, own.start :], own.length
    when = own.base if at < _closed(core.sides, side) else core.clock[0]
    while n > 0:
        slot, seq = nodes[0].item, nodes[0].seq
        if not _is_alive(core, nodes[0]):
            drop_top(nodes, n)
            n -= 1
            continue
        rank = _rank_now(core, rules, slot)
        if seq == own.top and rank <= own.rank:
            own.rank = rank
            break
        # Another row has become the first, or its rank has risen: it may not be the lowest.
        ordered = _rank_at(core, rules, slot, when)
        risen = ordered > nodes[0].rank
        nodes[0].rank = ordered
        if risen:
            sift_down(nodes, 0, n)
        if nodes[0].seq == seq:
            _first(own, rank, seq)
            break
    own.length = n
    if n == 0:
        _first(own, np.inf, LAST)
    for i in range(1, min(5, n)):
        prefetch(core.slots, nodes[i].item)


@inlined
def lowest_row(core: Core, rules: Rules, pool: int) -> tuple[int, float]:
    """Return the slot of the row of a nonempty pool that ranks lowest, and its rank."""
    own = core.pools[pool]
    if keeps(core) and is_due(core, rules, pool):
        _determine_all(core, rules, pool)
    held = held_in(core, rules, pool)
    if held <= rules.exact_limit:
        return _scan(core, rules, pool)
    if not own.sliced:
        _cut(core, rules, pool)
    own.uses += 1
    if own.uses >= max(_CHOICES, held >> _CLOSED):
        _maintain(core, rules, pool, own.uses)
    tops = core.tops[pool]
    first, last = _sides(rules, pool)
    settled = -1
    while True:
        best, rank, seq = -1, np.inf, LAST
        if own.tops > 0:
            best, rank, seq = tops[0].item, tops[0].rank, tops[0].seq
        for side in range(first, last):
            for at in range(_closed(core.sides, side), core.sides[side].slices):
                newer = core.slices[side, at]
                if before(newer.rank, newer.top, rank, seq):
                    best, rank, seq = side * MOST_SLICES + at, newer.rank, newer.top
        side = best // MOST_SLICES
        at = best - side * MOST_SLICES
        chosen = core.slices[side, at]
        if best == settled:
            slot = int(core.nodes[side, chosen.start].item)
            return _lowest_noted(core, rules, pool, slot, float(chosen.rank))
        _settle(core, rules, side, at)
        settled = best
        if at < _closed(core.sides, side):
            tops[0].rank, tops[0].seq = chosen.rank, chosen.top
            sift_down(tops, 0, own.tops)
