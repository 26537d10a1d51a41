"""The life of a row in a star join: linked on arrival, held, expired or shed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tidegate.joins.star.layout import (
    ADD,
    AUTO,
    BEGIN,
    COUNT,
    DGL,
    DIMPPROB,
    FIXED,
    HELD,
    NOTHING,
    PENDING,
    RATE,
    SIMPPROB,
    TAKE,
    Batch,
    Core,
    Output,
    Rules,
)
from tidegate.joins.star.link_index import Facts, active, last_end
from tidegate.joins.star.match import recount
from tidegate.joins.star.ranks import add, pool_of, pull, push, rematch, settle, victim, worth
from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.heap import drop_top, sift_up
from tidegate.kernel.heap import push as push_node
from tidegate.kernel.layout import BEFORE_PROBE
from tidegate.learning.rates import note, weigh


@inlined
def _counts(rules: Rules) -> bool:
    """Return True if the policy needs the current number of matches of each held row."""
    return rules.kind == DIMPPROB or rules.kind == DGL


@inner
def link(core: Core, slot: int) -> None:
    """Insert a row into its group."""
    held = core.slots[slot]
    group = core.groups[held.stream, held.entry]
    held.prev, held.next = -1, group.head
    if group.head >= 0:
        core.slots[group.head].prev = slot
    group.head = slot
    group.count += 1


@inner
def release(core: Core, slot: int) -> None:
    """Remove a row from its group, and free its slot."""
    scalars = core.scalars[0]
    held = core.slots[slot]
    if held.prev >= 0:
        core.slots[held.prev].next = held.next
    else:
        core.groups[held.stream, held.entry].head = held.next
    if held.next >= 0:
        core.slots[held.next].prev = held.prev
    core.groups[held.stream, held.entry].count -= 1
    held.state = 0
    held.seq = -1
    core.free[scalars.free] = slot
    scalars.free += 1


@inlined
def arrive(core: Core, facts: Facts, rules: Rules, batch: Batch, i: int, seen: int) -> None:
    """Insert newcomer i into its group if it has an active link; otherwise count it as filtered."""
    scalars = core.scalars[0]
    stream, entry, time = batch.stream[i], batch.entry[i], batch.time[i]
    end = last_end(facts, stream, entry, time, rules.never)
    batch.slot[i] = -1
    if end == rules.never:
        scalars.filtered += 1
        return
    scalars.free -= 1
    slot = core.free[scalars.free]
    batch.slot[i] = slot
    held = core.slots[slot]
    held.stream, held.entry, held.time, held.row = stream, entry, time, batch.row[i]
    held.until = end
    if rules.windows[stream] != 0:
        held.until = min(end, time + rules.windows[stream])
    held.weight, held.rank = batch.weight[i], batch.rank[i]
    held.state, held.seen, held.learned, held.origin = PENDING, seen, 0, i
    held.matches, held.gain, held.tie, held.last = 0, 0.0, 0.0, scalars.clock
    held.seq, held.queue = -1, -1
    link(core, slot)


@inlined
def _expired(core: Core, rules: Rules, stream: int, until: Any) -> bool:
    """Return True if no future row can join a row, as long as the other streams are in order."""
    for o in range(rules.windows.shape[0]):
        if o != stream and not core.streams[o].clock >= until + rules.lateness:
            return False
    return True


@inlined
def is_late(core: Core, facts: Facts, rules: Rules, stream: int, entry: int, time: Any) -> bool:
    """Return True if partners of a row may have expired before it came.

    A row of stream o with end e expires when the clocks of all streams but o have reached
    e + lateness (`_expired`). It can be in a result with a row of time t only if t < e. So a row is
    late if, for some other stream o whose rows can expire, the clocks of all streams but o, its own
    among them, are after t + lateness. A row without an active link has no partners, and is not
    late. If the relation changes, its links may have been forgotten, so it is counted.
    """
    if not rules.changing and last_end(facts, stream, entry, time, rules.never) == rules.never:
        return False
    for o in range(rules.windows.shape[0]):
        if o != stream and rules.expires[o]:
            passed = True
            for p in range(rules.windows.shape[0]):
                if p != o and not core.streams[p].clock > time + rules.lateness:
                    passed = False
            if passed:
                return True
    return False


@inlined
def _overdue(core: Core, rules: Rules, pool: int) -> int:
    """Return the row of a pool that ended first, if only a lagging stream could still join it."""
    best = -1
    for s in range(rules.windows.shape[0]):
        if rules.pools > 1 and s != pool:
            continue
        slot = _oldest(core, s)
        if slot < 0 or not core.scalars[0].clock >= core.slots[slot].until + rules.lateness:
            continue
        if (
            best < 0
            or core.slots[slot].until < core.slots[best].until
            or (
                core.slots[slot].until == core.slots[best].until
                and core.slots[slot].seq < core.slots[best].seq
            )
        ):
            best = slot
    return best


@inlined
def _oldest(core: Core, stream: int) -> int:
    """Return the slot of the row of a stream that ends first, or -1."""
    due = core.due[stream]
    while core.streams[stream].due > 0:
        slot = due[0].item
        held = core.slots[slot]
        if held.seq == due[0].seq and held.state == HELD and held.until == due[0].rank:
            return int(slot)
        drop_top(due, core.streams[stream].due)
        core.streams[stream].due -= 1
    return -1


@inner
def schedule(core: Core, slot: int) -> None:
    """Add a row to the heap of expiry times."""
    stream = core.slots[slot].stream
    due = core.due[stream]
    if core.streams[stream].due == due.shape[0]:
        # The heap is full: drop entries of rows that are gone or end at another time.
        n = 0
        for i in range(due.shape[0]):
            held = core.slots[due[i].item]
            if held.seq == due[i].seq and held.state == HELD and held.until == due[i].rank:
                due[n] = due[i]
                sift_up(due, n)
                n += 1
        core.streams[stream].due = n
    n = core.streams[stream].due
    push_node(due, n, core.slots[slot].until, core.slots[slot].seq, slot)
    core.streams[stream].due = n + 1


@inlined
def _count_held(core: Core, rules: Rules, stream: int, entry: int, change: int) -> None:
    """Update the number of held rows of a key, on which `AUTO` depends with several partners."""
    core.groups[stream, entry].held += change
    if rules.kind == AUTO and core.groups.shape[0] > 2:
        core.scalars[0].rated += 1


@inner
def _leave(core: Core, facts: Facts, rules: Rules, batch: Batch, slot: int) -> None:
    """Remove a row from memory."""
    scalars = core.scalars[0]
    held = core.slots[slot]
    held.state = PENDING
    if rules.kind != NOTHING:
        pull(core, slot)
    if _counts(rules):
        recount(core, facts, rules, slot, TAKE, -1)
    core.pools[pool_of(rules, held.stream)].used -= 1
    core.streams[held.stream].held -= 1
    _count_held(core, rules, held.stream, held.entry, -1)
    if held.seq < scalars.mark:
        core.gone[scalars.gone] = held.seq
        scalars.gone += 1
    if held.seq >= scalars.first_new and scalars.stage != BEGIN:
        # Other newcomers of this tick may still probe this newcomer.
        if rules.shed_when == BEFORE_PROBE:
            return
        batch.slot[held.origin] = -1
    release(core, slot)


@inlined
def _shed(core: Core, out: Output, slot: int, was_held: bool) -> None:
    scalars = core.scalars[0]
    n = scalars.noted
    if n < out.shed_row.shape[0]:
        out.shed_row[n], out.shed_stream[n] = core.slots[slot].row, core.slots[slot].stream
        out.shed_time[n], out.shed_held[n] = scalars.clock, was_held
        scalars.noted = n + 1


@inner
def hold(core: Core, facts: Facts, rules: Rules, slot: int, fresh: bool) -> None:
    """Hold a row. A row that is not `fresh` comes from a checkpoint with its rank and gain."""
    held = core.slots[slot]
    held.state = HELD
    pool = pool_of(rules, held.stream)
    core.pools[pool].used += 1
    core.streams[held.stream].held += 1
    _count_held(core, rules, held.stream, held.entry, 1)
    schedule(core, slot)
    if rules.kind == NOTHING:
        return
    partners = 0
    if _counts(rules) or (rules.kind == SIMPPROB and fresh):
        # SIMPPROB counts a row's matches once, and does not update those of its partners.
        action = COUNT if rules.kind == SIMPPROB else ADD
        partners = recount(core, facts, rules, slot, action, -1)
        held.matches = partners
    if rules.kind == FIXED:
        if fresh:
            held.rank += rules.floor_weight * core.pools[pool].floor
            held.rank += rules.seq_weight * float(held.seq)
    elif rules.kind >= RATE:
        # The heap of `AUTO` is restored from the checkpoint later.
        if rules.kind == RATE or fresh:
            add(core, facts, rules, pool, slot)
        return
    else:
        held.tie = held.weight
        if fresh:
            held.gain = held.weight * float(partners)
        if rules.kind == DIMPPROB:
            held.rank = held.weight * float(partners)
        elif rules.kind == DGL:
            held.rank = held.gain + rules.params[1] * float(held.last)
        else:
            held.rank = held.gain
    push(core, pool, slot)


@inlined
def admit(core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output, i: int) -> None:
    """Admit newcomer i; if the pool is over budget then, shed rows or reject the newcomer."""
    scalars = core.scalars[0]
    slot = batch.slot[i]
    if slot < 0:
        return
    held = core.slots[slot]
    held.seq = scalars.seq
    scalars.seq += 1
    held.last = scalars.clock
    if _expired(core, rules, held.stream, held.until):
        return
    hold(core, facts, rules, slot, True)
    scalars.admitted += 1
    fit(core, facts, rules, batch, out, pool_of(rules, held.stream), slot)


@inner
def fit(
    core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output, pool: int, slot: int
) -> None:
    """Shed rows of a pool that is over budget. `slot` is the newcomer, or -1."""
    scalars = core.scalars[0]
    while core.pools[pool].used > rules.budgets[pool]:
        least = _overdue(core, rules, pool)
        if least >= 0:
            scalars.expired += 1
        else:
            least = victim(core, facts, rules, pool)
            core.pools[pool].floor = max(core.pools[pool].floor, core.slots[least].rank)
            was_held = least != slot
            if was_held:
                scalars.shed += 1
            else:
                scalars.rejected += 1
                scalars.admitted -= 1
            _shed(core, out, least, was_held)
        _leave(core, facts, rules, batch, least)


@inlined
def observe(core: Core, facts: Facts, rules: Rules, batch: Batch, start: int, stop: int) -> None:
    """Count the arrivals of a tick. The weight of an arrival doubles every half-life."""
    scalars, learning = core.scalars[0], core.learning
    weight = 1.0
    if rules.halflife > 0:
        epoch = np.int64(scalars.clock // rules.halflife)
        if scalars.started == 0:
            scalars.started, scalars.epoch = 1, epoch
        age = epoch - scalars.epoch
        if age > 512:
            shrink = math.ldexp(1.0, -int(min(age, 2000)))
            for s in range(core.groups.shape[0]):
                for e in range(core.groups.shape[1]):
                    core.groups[s, e].rate *= shrink
                    core.groups[s, e].sum *= shrink
            scalars.epoch, scalars.rewritten = epoch, 1
            scalars.rated += 1
            age = 0
            weigh(learning, rules.learning)
            for pool in range(rules.pools if rules.kind == RATE else 0):
                size = core.sizes[pool]
                core.sizes[pool] = 0
                for at in range(size):
                    slot = core.heaps[pool, at]
                    core.slots[slot].rank = worth(core, facts, rules, slot)
                    push(core, pool, slot)
        weight = math.ldexp(1.0, int(age))
    for i in range(start, stop):
        if batch.slot[i] >= 0:
            group = core.groups[batch.stream[i], batch.entry[i]]
            group.rate += weight
            group.sum += weight * batch.weight[i]
            group.touched = 1
            if rules.kind == AUTO:
                at = batch.stream[i] * core.groups.shape[1] + batch.entry[i]
                note(learning, rules.learning, at, batch.time[i])
    scalars.rated += 1


@inner
def end_facts(core: Core, facts: Facts, rules: Rules) -> None:
    """Process links that have ended: update the ranks of the rows they connected."""
    scalars = core.scalars[0]
    while scalars.ending > 0 and core.ending[0].rank <= scalars.clock:
        fact, end = core.ending[0].item, core.ending[0].rank
        drop_top(core.ending, scalars.ending)
        scalars.ending -= 1
        if facts.end[fact] != end:
            continue  # the link was given an earlier end
        if _counts(rules):
            slot = core.groups[0, facts.key[fact, 0]].head
            while slot >= 0:
                held = core.slots[slot]
                if held.state == HELD:
                    lost = recount(core, facts, rules, slot, TAKE, fact)
                    if lost > 0:
                        rematch(core, rules, slot, -lost)
                slot = held.next
            continue
        for s in range(rules.windows.shape[0]):
            slot = core.groups[s, facts.key[fact, s]].head
            while slot >= 0:
                held = core.slots[slot]
                if held.state == HELD and active(facts, fact, held.time):
                    held.rank = worth(core, facts, rules, slot)
                    settle(core, slot)
                slot = held.next


@inlined
def expire(core: Core, facts: Facts, rules: Rules, batch: Batch) -> None:
    """Drop rows that no future row can join."""
    for s in range(rules.windows.shape[0]):
        slot = _oldest(core, s)
        while slot >= 0 and _expired(core, rules, s, core.slots[slot].until):
            _leave(core, facts, rules, batch, slot)
            core.scalars[0].expired += 1
            slot = _oldest(core, s)
