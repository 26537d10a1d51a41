"""Held rows: admit, expire and shed them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.joins.window.keys import list_idle, only_counted
from tidegate.joins.window.slices import add_row, lowest_row
from tidegate.joins.window.victims import enqueue, of_tuples, victim
from tidegate.kernel.compiling import AHEAD, Array, entry_point, inlined, inner, ones, prefetch
from tidegate.kernel.heap import before, drop_top, heapify, push
from tidegate.kernel.layout import (
    BEGIN,
    BY_SCORE,
    BY_TUPLE,
    NOTHING,
    OVERDUE,
    REJECTED,
    SHED,
    Batch,
    Core,
    Output,
    Rules,
)
from tidegate.kernel.partners import counts_partners, greet_newcomer, meet_held
from tidegate.kernel.windows import end_of, expired, past, window_of
from tidegate.learning.scores import SPARED, first_gain, is_spared, learn_stay, score


@inlined
def unlink(core: Core, rules: Rules, slot: int) -> None:
    """Remove a row from memory."""
    scalars = core.scalars[0]
    held = core.slots[slot]
    group = held.group
    side = group & 1
    if counts_partners(core):
        meet_held(core, rules, side, slot, -1)
    before, after = held.prev, held.next
    if before >= 0:
        core.slots[before].next = after
    else:
        core.groups[group].head = after
        if after >= 0:
            core.groups[group].first = core.slots[after].seq
    if after >= 0:
        core.slots[after].prev = before
    else:
        core.groups[group].tail = before
    core.groups[group].count -= 1
    if rules.learn and only_counted(core, group >> 1):
        list_idle(core, group >> 1)
    core.pools[side if rules.pools == 2 else 0].used -= held.size
    core.sides[side].held -= 1
    core.slots[slot].seq = -1
    core.free[scalars.free] = slot
    scalars.free += 1


@inlined
def oldest(core: Core, rules: Rules, side: int) -> int:
    """Return the slot of the side's row that expires next, or -1."""
    own = core.sides[side]
    due, heap = core.due[side], core.due_heap[side]
    at, stop = own.due_from, own.due_to
    while at < stop and core.slots[due[at].item].seq != due[at].seq:
        at += 1
        if at + AHEAD < stop:
            prefetch(core.slots, due[at + AHEAD].item)
            prefetch(core.groups, core.slots[due[at + AHEAD // 2].item].group)
    own.due_from = at
    while own.due_heap > 0 and core.slots[heap[0].item].seq != heap[0].seq:
        drop_top(heap, own.due_heap)
        own.due_heap -= 1
    first = due[at].item if at < stop else -1
    if own.due_heap > 0:
        slot = heap[0].item
        if first < 0:
            return int(slot)
        end = end_of(rules, side, core.slots[first].time)
        if before(heap[0].rank, heap[0].seq, end, due[at].seq):
            return int(slot)
    return int(first)


@inlined
def overdue(core: Core, rules: Rules, pool: int) -> int:
    """Return the oldest row of a pool that only a lagging stream could still join, or -1.

    Only the side that is ahead has such rows.
    """
    side = 0 if core.stream_clock[0] >= core.stream_clock[1] else 1
    if rules.pools == 2 and side != pool:
        return -1
    slot = oldest(core, rules, side)
    if slot >= 0 and past(rules, side, core.slots[slot].time, core.clock[0]):
        return slot
    return -1


@inlined
def expire(core: Core, rules: Rules) -> None:
    """Drop rows that have left their window."""
    scalars = core.scalars[0]
    for side in range(2):
        slot = oldest(core, rules, side)
        while slot >= 0 and expired(core, rules, side, core.slots[slot].time):
            unlink(core, rules, slot)
            scalars.expired += 1
            slot = oldest(core, rules, side)


@inlined
def schedule(core: Core, rules: Rules, side: int, slot: int) -> None:
    """Add a row to the list of rows in order of expiry, or to a heap if it is out of that order.

    It is out of that order if its time is before that of earlier arrivals, or if its window is
    shorter.
    """
    own = core.sides[side]
    seq, end = core.slots[slot].seq, end_of(rules, side, core.slots[slot].time)
    due, heap = core.due[side], core.due_heap[side]
    stop = own.due_to
    if own.due_from == stop or end >= core.ends[side]:
        if stop == due.shape[0]:
            stop = 0
            for i in range(own.due_from, due.shape[0]):
                if i + AHEAD < due.shape[0]:
                    prefetch(core.slots, due[i + AHEAD].item)
                if core.slots[due[i].item].seq == due[i].seq:
                    due[stop] = due[i]
                    stop += 1
            own.due_from = 0
        due[stop].seq = seq
        due[stop].item = slot
        own.due_to = stop + 1
        core.ends[side] = end
        return
    n = own.due_heap
    if n == heap.shape[0]:
        n = 0
        for i in range(heap.shape[0]):
            if core.slots[heap[i].item].seq == heap[i].seq:
                heap[n] = heap[i]
                n += 1
        heapify(heap, n)
    push(heap, n, end, seq, slot)
    own.due_heap = n + 1


@inlined
def link(core: Core, rules: Rules, slot: int, pool: int) -> None:
    """Append a filled slot to its group, and add it to the queue of victims."""
    scalars = core.scalars[0]
    group = core.slots[slot].group
    side = group & 1
    before = core.groups[group].tail
    core.slots[slot].prev = before
    core.slots[slot].next = -1
    if before >= 0:
        core.slots[before].next = slot
    else:
        core.groups[group].head = slot
        core.groups[group].first = core.slots[slot].seq
    core.groups[group].tail = slot
    if rules.learn and only_counted(core, group >> 1):
        scalars.stat_only -= 1
    core.groups[group].count += 1
    core.pools[pool].used += core.slots[slot].size
    core.sides[side].held += 1
    if counts_partners(core):
        core.partners[slot] = meet_held(core, rules, side, slot, 1)
    if rules.kind == BY_SCORE:
        add_row(core, rules, pool, slot)
    elif of_tuples(rules):
        enqueue(core, rules, pool, slot)
    elif rules.kind != NOTHING and core.groups[group].count == 1:
        core.groups[group].life += 1
        enqueue(core, rules, pool, group)


@inlined
def shed(core: Core, out: Output, row: int, side: int, seq: int, why: int) -> None:
    """Note a row that left before its window ended, if the caller asked for them."""
    scalars = core.scalars[0]
    n = scalars.noted
    if n < out.shed_row.shape[0]:
        admitting = scalars.stage != BEGIN
        out.shed_row[n], out.shed_side[n] = row, side
        out.shed_time[n], out.shed_why[n] = core.clock[0], why
        out.shed_tick[n] = scalars.tick_from if admitting else -1 - scalars.tick_from
        out.shed_own[n] = admitting and seq >= scalars.newcomers
        scalars.noted = n + 1


@inlined
def drop(core: Core, rules: Rules, slot: int) -> None:
    """Remove a row from memory, and log its departure, which the clocks do not imply."""
    scalars = core.scalars[0]
    seq = core.slots[slot].seq
    if seq < scalars.mark:
        core.gone[scalars.gone] = seq
        scalars.gone += 1
    unlink(core, rules, slot)


@inlined
def evict(core: Core, rules: Rules, out: Output, slot: int) -> None:
    """Shed a held row."""
    core.scalars[0].shed += 1
    if rules.kind == BY_SCORE:
        learn_stay(core, core.slots[slot].time)
    held = core.slots[slot]
    shed(core, out, held.row, held.group & 1, held.seq, SHED)
    drop(core, rules, slot)


@inlined
def drop_overdue(core: Core, rules: Rules, out: Output, slot: int) -> None:
    """Remove a row that only a lagging stream could still join."""
    core.scalars[0].expired += 1
    held = core.slots[slot]
    shed(core, out, held.row, held.group & 1, held.seq, OVERDUE)
    drop(core, rules, slot)


@inlined
def choose(core: Core, rules: Rules, pool: int) -> tuple[int, float]:
    """Return the slot of the row to be shed from a nonempty pool, and its rank."""
    if rules.kind == BY_SCORE:
        return lowest_row(core, rules, pool)
    return victim(core, rules, pool)


@inlined
def make_room(
    core: Core,
    rules: Rules,
    out: Output,
    pool: int,
    size: int,
    time: Any,
    group: int,
    fixed: float,
    gain: float,
) -> bool:
    """Shed the lowest rows until a newcomer fits; return False if the newcomer is the lowest.

    Overdue rows go first, in order of expiry. Of equal ranks the earlier arrival leaves, so the
    newcomer loses to higher ranks only.
    """
    side = group & 1
    is_overdue = past(rules, side, time, core.clock[0])
    while core.pools[pool].used + size > core.pools[pool].budget:
        slot = overdue(core, rules, pool)
        if slot >= 0 and not (
            is_overdue and end_of(rules, side, time) < end_of(rules, side, core.slots[slot].time)
        ):
            drop_overdue(core, rules, out, slot)
            continue
        if is_overdue:
            return False
        slot, lowest = choose(core, rules, pool)
        if rules.kind == BY_TUPLE:
            rank = fixed
        elif rules.kind == BY_SCORE:
            now = core.clock[0]
            rank = SPARED
            if not is_spared(rules, now, time):
                if counts_partners(core):
                    core.partners[-1] = meet_held(core, rules, side, -1, 0)
                rank = score(core, rules, now, group, time, fixed, gain, now, -1)
        else:
            rank = core.groups[group ^ 1].rate
        core.floor[pool] = max(core.floor[pool], min(lowest, rank))
        if rank < lowest:
            if rules.kind == BY_SCORE:
                learn_stay(core, time)
            return False
        evict(core, rules, out, slot)
    return True


@inner
def resize(core: Core, rules: Rules, out: Output, now: bool) -> None:
    """Apply the changes of the budget before the clock (with `now`, also at it), one by one.

    Rows that do not fit any more are shed at once.
    """
    scalars = core.scalars[0]
    while scalars.change < rules.changes.shape[0]:
        start = rules.changes[scalars.change]
        if start > core.clock[0] or (start == core.clock[0] and not now):
            return
        scalars.change += 1
        for pool in range(rules.pools):
            core.pools[pool].budget = rules.budgets[scalars.change, pool]
            while core.pools[pool].used > core.pools[pool].budget:
                slot = overdue(core, rules, pool)
                if slot >= 0:
                    drop_overdue(core, rules, out, slot)
                    continue
                slot, lowest = choose(core, rules, pool)
                core.floor[pool] = max(core.floor[pool], lowest)
                evict(core, rules, out, slot)


@inlined
def admit(core: Core, rules: Rules, batch: Batch, out: Output, i: int) -> None:
    """Admit newcomer i, or reject it."""
    scalars = core.scalars[0]
    side = batch.side[i]
    seq = scalars.seq
    scalars.seq = seq + 1
    time, size = batch.time[i], batch.size[i]
    if expired(core, rules, side, time):
        return
    pool = side if rules.pools == 2 else 0
    group = 2 * batch.entry[i] + side
    rank = batch.rank[i] + rules.floor_weight * core.floor[pool] + rules.seq_weight * float(seq)
    greet_newcomer(core, rules, batch, i)
    gain = first_gain(core, rules, group, rank, pool) if rules.kind == BY_SCORE else 0.0
    if size > core.pools[pool].budget or not make_room(
        core, rules, out, pool, size, time, group, rank, gain
    ):
        is_overdue = past(rules, side, time, core.clock[0])
        scalars.rejected += not is_overdue
        shed(core, out, batch.row[i], side, seq, OVERDUE if is_overdue else REJECTED)
        return
    scalars.free -= 1
    slot = core.free[scalars.free]
    held = core.slots[slot]
    held.time, held.seq, held.row, held.size = time, seq, batch.row[i], size
    held.group, held.rank, held.gain, held.last = group, rank, gain, core.clock[0]
    for column in range(core.values.shape[1]):
        core.values[slot, column] = batch.values[i, column]
    if counts_partners(core):
        core.start[slot], core.span[slot] = batch.start[i], batch.span[i]
    link(core, rules, slot, pool)
    scalars.admitted += 1
    core.fresh[scalars.fresh] = slot
    scalars.fresh += 1
    if window_of(rules, side, time) != 0:
        schedule(core, rules, side, slot)


@entry_point
def reload(
    core: Core,
    rules: Rules,
    time: Array,
    seq: Array,
    row: Array,
    size: Array,
    rank: Array,
    gain: Array,
    last: Array,
    group: Array,
    start: Array,
    span: Array,
    values: Array,
) -> None:
    """Hold rows given in order of their sequence numbers, in addition to the held ones."""
    scalars = core.scalars[0]
    for i in range(time.shape[0]):
        scalars.free -= 1
        slot = core.free[scalars.free]
        held = core.slots[slot]
        held.time, held.seq, held.row, held.size = time[i], seq[i], row[i], size[i]
        held.rank, held.gain, held.last, held.group = rank[i], gain[i], last[i], group[i]
        side = group[i] & 1
        for column in range(core.values.shape[1]):
            core.values[slot, column] = values[i, column]
        if counts_partners(core):
            core.start[slot], core.span[slot] = start[i], span[i]
        link(core, rules, slot, side if rules.pools == 2 else 0)


@entry_point
def mark_rows(core: Core, slots: Array, due: Array, starts: Array, bits: Array) -> int:
    """Set the bits of the payload rows that slots hold, for each side that is due.

    Bits count from the side's start. Move these slots to the front, each once, and return their
    number.
    """
    n, count = slots.shape[0], 0
    for i in range(n):
        if i + AHEAD < n:
            prefetch(core.slots, slots[i + AHEAD])
        slot = slots[i]
        side = core.slots[slot].group & 1
        if core.slots[slot].seq < 0 or not due[side]:
            continue
        at = np.uint64(core.slots[slot].row - starts[side])
        bit = np.uint64(1) << (at & np.uint64(63))
        word = at >> np.uint64(6)
        if bits[side, word] & bit == 0:
            bits[side, word] |= bit
            slots[count] = slot
            count += 1
    return count


@entry_point
def number_rows(core: Core, slots: Array, starts: Array, bits: Array, ahead: Array) -> None:
    """Renumber the payload rows of slots, by how many bits are set before theirs.

    `ahead` has the number of set bits up to the end of each word.
    """
    n = slots.shape[0]
    for i in range(n):
        if i + AHEAD < n:
            prefetch(core.slots, slots[i + AHEAD])
        held = core.slots[slots[i]]
        side = held.group & 1
        at = np.uint64(held.row - starts[side])
        word = at >> np.uint64(6)
        rest = bits[side, word] >> (at & np.uint64(63))
        held.row = starts[side] + ahead[side, word] - ones(rest)


@entry_point
def reschedule(core: Core, rules: Rules, side: int, slots: Array) -> None:
    """Set the list of rows in order of expiry to held rows of one side, given in that order."""
    own = core.sides[side]
    own.due_heap = 0
    own.due_from = 0
    own.due_to = slots.shape[0]
    for i in range(slots.shape[0]):
        core.due[side, i].seq = core.slots[slots[i]].seq
        core.due[side, i].item = slots[i]
        core.ends[side] = end_of(rules, side, core.slots[slots[i]].time)
