"""The loop of the star join: expire, probe through the facts, admit, evict.

A held tuple is a *slot*; the slots of one stream and key form a *group*, a list. Newcomers of a
tick are linked into their groups too, before they are held or not, so that whoever comes after
finds them. The victim is the top of a heap of slots, which knows where each slot is in it: what
changes a rank moves the slot, and the choice is always exact.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tidegate.kernel.compiling import Array, entry_point, inlined, inner
from tidegate.kernel.facts import Facts, active, last_end
from tidegate.kernel.heap import drop_top, put, sift_up
from tidegate.kernel.layout import (
    DONE,
    EVICT_FIRST,
    OUTPUT_FULL,
    PROBE_FIRST,
    PROBE_TOO_LARGE,
)

#: What ranks: nothing, a number fixed at admission, or one of the formulas of section 3.2; `RATE`
#: is how often partners come, weighed by the tuple's own importance or (`AUTO`) by the results'.
NOTHING, FIXED, SIMPPROB, DIMPPROB, DGL, RATE, AUTO = range(7)

# Places in `Core.ints`.
FREE, SEQ, MARK, GONE, SHED = 0, 1, 2, 3, 4
LATE, ADMITTED, REJECTED, EVICTED, EXPIRED, FILTERED = 5, 6, 7, 8, 9, 10
# Where in a batch the loop is: the tick, its stage, the newcomer, the first sequence number.
TICK_FROM, TICK_TO, STAGE, AT, BASE = 11, 12, 13, 14, 15
EPOCH, STARTED, REWRITTEN = 16, 17, 18
ENDING = 19  # length of `Core.ending`
NEEDED = 20  # the room that a probe needs
INTS = 21

# What a slot is: free, linked but not in memory, or in memory.
PENDING, HELD = 1, 2
# Stages of a tick, and what `_meet` does with what it finds.
BEGIN, FIRST, SECOND, END = 0, 1, 2, 3
EMIT, ADD, TAKE, COUNT = 2, 1, -1, 0


def slot_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """One tuple.

    `until` is when nothing can join it any more, `rank`, `tie`, `matches` and `seq` are what it is
    compared by; `gain` is what DGL has of it, since `last`.
    """
    return np.dtype(
        [
            ("time", time),
            ("until", time),
            ("last", time),
            ("seq", "i8"),
            ("row", "i8"),
            ("weight", "f8"),
            ("rank", "f8"),
            ("gain", "f8"),
            ("tie", "f8"),
            ("matches", "i8"),
            ("next", "i4"),
            ("prev", "i4"),
            ("stream", "i4"),
            ("entry", "i4"),
            ("queue", "i4"),
            ("place", "i4"),
            ("origin", "i4"),
            ("state", "i2"),
            ("seen", "i1"),
            ("learned", "i1"),
        ],
        align=True,
    )


#: The tuples of a stream and key, and how often the key came, as a count and as importance.
GROUP = np.dtype(
    [("rate", "f8"), ("sum", "f8"), ("head", "i4"), ("count", "i4"), ("touched", "i4")], align=True
)


class Core(NamedTuple):
    """All state of one join but the relation; n streams, p pools."""

    ints: Array
    clock: Array  # [1]: the largest time seen
    heard: Array  # [n]: the same of each stream
    slots: Array
    free: Array
    groups: Array  # [n, entries]
    heaps: Array  # [2 p, slots]; the second p are those that DGL has nothing to say for
    sizes: Array  # [2 p]: of the heaps
    used: Array  # [p]
    held: Array  # [n]
    due: Array  # [n, .]: heaps of what expires
    dues: Array  # [n]: their sizes
    ending: Array  # a heap of facts that end
    floor: Array  # [p]: the largest rank evicted so far
    cursor: Array  # [n]: the slots of a combination
    gone: Array  # sequence numbers of what has left since the mark


class Rules(NamedTuple):
    """What does not change while a batch runs."""

    kind: int
    moment: int
    defer: bool  # whether a tick waits for its end before it probes
    pools: int
    budgets: Array
    windows: Array  # [n]; 0: unbounded
    lateness: Any
    halflife: Any  # 0: no decay
    combine: int  # of importance: 0 min, 1 max, 2 sum, 3 product; -1: there is none
    params: Any
    floor_weight: float
    seq_weight: float
    never: Any  # a time before all others, and one after
    always: Any


class Batch(NamedTuple):
    """Newcomers, sorted by (time, stream, key hash, tie)."""

    time: Array
    stream: Array
    entry: Array
    row: Array
    weight: Array
    rank: Array
    probed: Array  # those of the open tick that have probed in an earlier batch
    slot: Array  # where each is linked, -1 if nowhere


class Output(NamedTuple):
    """Results as rows of each stream and a fact, and (where asked for) what was shed."""

    rows: Array  # [n + 1, room]
    shed_row: Array
    shed_stream: Array
    shed_time: Array
    shed_held: Array


# ---- the queue of victims -----------------------------------------------------------------------


@inlined
def _lower(core: Core, a: int, b: int) -> bool:
    x, y = core.slots[a], core.slots[b]
    if x.rank != y.rank:
        return bool(x.rank < y.rank)
    if x.tie != y.tie:
        return bool(x.tie < y.tie)
    if x.tie != 0.0 and x.matches != y.matches:
        return bool(x.matches < y.matches)
    return bool(x.seq < y.seq)


@inlined
def _settle(core: Core, slot: int) -> None:
    """Move a slot to where it belongs in its heap."""
    queue, at = core.slots[slot].queue, core.slots[slot].place
    heap, n = core.heaps[queue], core.sizes[queue]
    while at > 0:
        up = (at - 1) >> 1
        if not _lower(core, slot, heap[up]):
            break
        heap[at] = heap[up]
        core.slots[heap[at]].place = at
        at = up
    while True:
        down = 2 * at + 1
        if down >= n:
            break
        if down + 1 < n and _lower(core, heap[down + 1], heap[down]):
            down += 1
        if not _lower(core, heap[down], slot):
            break
        heap[at] = heap[down]
        core.slots[heap[at]].place = at
        at = down
    heap[at] = slot
    core.slots[slot].place = at


@inner
def _push(core: Core, queue: int, slot: int) -> None:
    core.slots[slot].queue = queue
    core.slots[slot].place = core.sizes[queue]
    core.heaps[queue, core.sizes[queue]] = slot
    core.sizes[queue] += 1
    _settle(core, slot)


@inner
def _pull(core: Core, slot: int) -> None:
    queue, at = core.slots[slot].queue, core.slots[slot].place
    core.sizes[queue] -= 1
    last = core.heaps[queue, core.sizes[queue]]
    if last != slot:
        core.heaps[queue, at] = last
        core.slots[last].place = at
        _settle(core, last)


@inlined
def _pool(rules: Rules, stream: int) -> int:
    return stream if rules.pools > 1 else 0


@inlined
def _balance(core: Core, rules: Rules, slot: int) -> float:
    """What DGL has of a tuple now."""
    held = core.slots[slot]
    return float(held.gain - rules.params[1] * float(core.clock[0] - held.last))


@inlined
def _victim(core: Core, facts: Facts, rules: Rules, pool: int) -> int:
    """The tuple of a pool with the lowest rank."""
    heap = core.heaps[pool]
    if rules.kind == DGL:
        while core.sizes[pool] > 0 and _balance(core, rules, heap[0]) <= 0.0:
            slot = heap[0]
            _pull(core, slot)
            core.slots[slot].rank = 0.0
            _push(core, rules.pools + pool, slot)
        if core.sizes[rules.pools + pool] > 0:
            return int(core.heaps[rules.pools + pool, 0])
    if rules.kind >= RATE:
        # Ranks are as they were when last looked up, and only rise.
        while True:
            slot = heap[0]
            rank = _worth(core, facts, rules, slot)
            if rank == core.slots[slot].rank:
                break
            core.slots[slot].rank = rank
            _settle(core, slot)
    return int(heap[0])


# ---- what facts lead to -------------------------------------------------------------------------


@inlined
def _worth(core: Core, facts: Facts, rules: Rules, slot: int) -> float:
    """How much comes for a tuple: over its facts that are active now, the rate of all others.

    With importance, a rate is that of the results' importance, as if each arrival of a key had the
    mean of the key's. It is written so that more arrivals never make it less.
    """
    held = core.slots[slot]
    streams = rules.windows.shape[0]
    total = 0.0
    fact = facts.first[held.stream, held.entry]
    while fact >= 0:
        if active(facts, fact, held.time) and facts.end[fact] > core.clock[0]:
            rates, sums = 1.0, 1.0
            for o in range(streams):
                if o != held.stream:
                    rates *= core.groups[o, facts.key[fact, o]].rate
                    sums *= core.groups[o, facts.key[fact, o]].sum
            if rules.kind == RATE or rules.combine < 0:
                total += rates
            elif rules.combine == 3:
                total += held.weight * sums
            elif rates > 0.0:
                combined = held.weight * rates
                for o in range(streams):
                    if o == held.stream:
                        continue
                    one = core.groups[o, facts.key[fact, o]].sum
                    for p in range(streams):
                        if p != o and p != held.stream:
                            one *= core.groups[p, facts.key[fact, p]].rate
                    if rules.combine == 0:
                        combined = min(combined, one)
                    elif rules.combine == 1:
                        combined = max(combined, one)
                    else:
                        combined += one
                total += combined
        fact = facts.next[fact, held.stream]
    return float(held.weight * total) if rules.kind == RATE else float(total)


@inlined
def _near(rules: Rules, s: int, a: Any, o: int, b: Any) -> bool:
    """Whether tuples of streams s and o with times a and b lie in each other's window."""
    mine, other = rules.windows[s], rules.windows[o]
    return bool((mine == 0 or b < a + mine) and (other == 0 or a < b + other))


@inlined
def _fits(
    core: Core, facts: Facts, rules: Rules, fact: int, slot: int, depth: int, s: int, time: Any
) -> bool:
    """Whether a tuple completes a combination through a fact: active, and in all windows."""
    held = core.slots[slot]
    if not (active(facts, fact, held.time) and _near(rules, s, time, held.stream, held.time)):
        return False
    for i in range(depth):
        other = core.slots[core.cursor[i]]
        if not _near(rules, other.stream, other.time, held.stream, held.time):
            return False
    return True


@inlined
def _other(stream: int, depth: int) -> int:
    """The other streams of a stream, by number."""
    return depth if depth < stream else depth + 1


@inlined
def _learn(core: Core, rules: Rules, slot: int) -> None:
    """DGL: a held tuple has a result now; its matches count once an instant."""
    held = core.slots[slot]
    since = float(core.clock[0] - held.last)
    share = held.weight * max(float(held.time + rules.windows[held.stream] - core.clock[0]), 0.0)
    share /= rules.params[0]
    if since > 0.0:
        held.gain = max(held.gain - rules.params[1] * since, 0.0) + share * float(held.matches)
        held.last = core.clock[0]
    held.gain += share
    held.learned = 1
    _regain(core, rules, slot)


@inlined
def _regain(core: Core, rules: Rules, slot: int) -> None:
    """Have a tuple ranked by its balance: all fall alike, so what differs does not change."""
    held = core.slots[slot]
    pool = _pool(rules, held.stream)
    if held.queue != pool:
        _pull(core, slot)
        held.rank = held.gain + rules.params[1] * float(held.last)
        _push(core, pool, slot)
    else:
        held.rank = held.gain + rules.params[1] * float(held.last)
        _settle(core, slot)


@inlined
def _rematch(core: Core, rules: Rules, slot: int, change: int) -> None:
    """A tuple in memory has gained or lost matches there."""
    core.slots[slot].matches += change
    if rules.kind == DIMPPROB:
        core.slots[slot].rank = core.slots[slot].weight * float(core.slots[slot].matches)
    _settle(core, slot)


@inlined
def _meet(
    core: Core,
    facts: Facts,
    rules: Rules,
    out: Output,
    n: int,
    stream: int,
    entry: int,
    time: Any,
    row: int,
    action: int,
    only: int,
) -> int:
    """Go through all combinations of a tuple with one of each other stream, by its facts.

    `EMIT` writes those with all that have probed to `out`, after the n that it has; it gives how
    many it has then. The others count those with what is in memory, through facts that have not ended; `ADD` and
    `TAKE` also in the matches of all but the tuple itself. `only` is one fact, or -1.
    """
    others = rules.windows.shape[0] - 1
    fact = only if only >= 0 else facts.first[stream, entry]
    while fact >= 0:
        fits = active(facts, fact, time)
        if action != EMIT and only < 0:
            fits = fits and facts.end[fact] > core.clock[0]
        if fits and others == 0:
            out.rows[0, n], out.rows[1, n] = row, fact
            n += 1
        elif fits:
            depth = 0
            slot = core.groups[_other(stream, 0), facts.key[fact, _other(stream, 0)]].head
            while depth >= 0:
                if slot < 0:
                    depth -= 1
                    if depth >= 0:
                        slot = core.slots[core.cursor[depth]].next
                    continue
                held = core.slots[slot]
                good = held.seen == 1 if action == EMIT else held.state == HELD
                if not good or not _fits(core, facts, rules, fact, slot, depth, stream, time):
                    slot = held.next
                    continue
                core.cursor[depth] = slot
                if depth + 1 < others:
                    depth += 1
                    o = _other(stream, depth)
                    slot = core.groups[o, facts.key[fact, o]].head
                    continue
                for i in range(others):
                    one = core.cursor[i]
                    if action == EMIT:
                        out.rows[_other(stream, i), n] = core.slots[one].row
                        if (
                            rules.kind == DGL
                            and core.slots[one].state == HELD
                            and core.slots[one].seq < core.ints[BASE]
                        ):
                            _learn(core, rules, one)
                    elif action != COUNT:
                        _rematch(core, rules, one, action)
                if action == EMIT:
                    out.rows[stream, n] = row
                    out.rows[others + 1, n] = fact
                n += 1
                slot = held.next
        fact = -1 if only >= 0 else facts.next[fact, stream]
    return n


@inlined
def _most(core: Core, facts: Facts, rules: Rules, stream: int, entry: int, time: Any) -> float:
    """How many results a newcomer may have."""
    total = 0.0
    fact = facts.first[stream, entry]
    while fact >= 0:
        if active(facts, fact, time):
            one = 1.0
            for o in range(rules.windows.shape[0]):
                if o != stream:
                    one *= float(core.groups[o, facts.key[fact, o]].count)
            total += one
        fact = facts.next[fact, stream]
    return total


# ---- memory -------------------------------------------------------------------------------------


@inlined
def _counts(rules: Rules) -> bool:
    """Whether matches in memory are kept count of."""
    return rules.kind == DIMPPROB or rules.kind == DGL


@inner
def _link(core: Core, rules: Rules, slot: int) -> None:
    """Put a tuple into its group."""
    held = core.slots[slot]
    group = core.groups[held.stream, held.entry]
    held.prev, held.next = -1, group.head
    if group.head >= 0:
        core.slots[group.head].prev = slot
    group.head = slot
    group.count += 1


@inner
def _release(core: Core, slot: int) -> None:
    """Take a tuple out of its group, and free its slot."""
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
    core.free[core.ints[FREE]] = slot
    core.ints[FREE] += 1


@inlined
def _arrive(core: Core, facts: Facts, rules: Rules, batch: Batch, i: int, seen: int) -> None:
    """Link newcomer i, if it has an active fact; otherwise it is filtered."""
    stream, entry, time = batch.stream[i], batch.entry[i], batch.time[i]
    end = last_end(facts, stream, entry, time, rules.never)
    batch.slot[i] = -1
    if end == rules.never:
        core.ints[FILTERED] += 1
        return
    core.ints[FREE] -= 1
    slot = core.free[core.ints[FREE]]
    batch.slot[i] = slot
    held = core.slots[slot]
    held.stream, held.entry, held.time, held.row = stream, entry, time, batch.row[i]
    held.until = end
    if rules.windows[stream] != 0:
        held.until = min(end, time + rules.windows[stream])
    held.weight, held.rank = batch.weight[i], batch.rank[i]
    held.state, held.seen, held.learned, held.origin = PENDING, seen, 0, i
    held.matches, held.gain, held.tie, held.last = 0, 0.0, 0.0, core.clock[0]
    held.seq = -1
    _link(core, rules, slot)


@inlined
def _expired(core: Core, rules: Rules, stream: int, until: Any) -> bool:
    """Whether nothing can join a tuple any more, if the other streams are in order."""
    for o in range(rules.windows.shape[0]):
        if o != stream and not core.heard[o] >= until + rules.lateness:
            return False
    return True


@inlined
def _overdue(core: Core, rules: Rules, pool: int) -> int:
    """The tuple of a pool that ended first, of those that only a lagging stream could join."""
    best = -1
    for s in range(rules.windows.shape[0]):
        if rules.pools > 1 and s != pool:
            continue
        slot = _oldest(core, s)
        if slot < 0 or not core.clock[0] >= core.slots[slot].until + rules.lateness:
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
    """The tuple of a stream that ends first, or -1."""
    due = core.due[stream]
    while core.dues[stream] > 0:
        slot = due[0].item
        held = core.slots[slot]
        if held.seq == due[0].seq and held.state == HELD and held.until == due[0].rank:
            return int(slot)
        drop_top(due, core.dues[stream])
        core.dues[stream] -= 1
    return -1


@inner
def _schedule(core: Core, slot: int) -> None:
    """Remember when a tuple ends."""
    stream = core.slots[slot].stream
    due = core.due[stream]
    if core.dues[stream] == due.shape[0]:
        # Most of these are gone, or end at another time by now.
        n = 0
        for i in range(due.shape[0]):
            held = core.slots[due[i].item]
            if held.seq == due[i].seq and held.state == HELD and held.until == due[i].rank:
                due[n] = due[i]
                sift_up(due, n)
                n += 1
        core.dues[stream] = n
    n = core.dues[stream]
    put(due, n, core.slots[slot].until, core.slots[slot].seq, slot)
    sift_up(due, n)
    core.dues[stream] = n + 1


@inlined
def _leave(core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output, slot: int) -> None:
    """Take a tuple out of memory."""
    held = core.slots[slot]
    held.state = PENDING
    if rules.kind != NOTHING:
        _pull(core, slot)
    if _counts(rules):
        _meet(core, facts, rules, out, 0, held.stream, held.entry, held.time, 0, TAKE, -1)
    core.used[_pool(rules, held.stream)] -= 1
    core.held[held.stream] -= 1
    if held.seq < core.ints[MARK]:
        core.gone[core.ints[GONE]] = held.seq
        core.ints[GONE] += 1
    if held.seq >= core.ints[BASE] and core.ints[STAGE] != BEGIN:
        # A newcomer of this tick: the others may still find it.
        if rules.moment == EVICT_FIRST:
            return
        batch.slot[held.origin] = -1
    _release(core, slot)


@inlined
def _shed(core: Core, out: Output, slot: int, was_held: bool) -> None:
    n = core.ints[SHED]
    if n < out.shed_row.shape[0]:
        out.shed_row[n], out.shed_stream[n] = core.slots[slot].row, core.slots[slot].stream
        out.shed_time[n], out.shed_held[n] = core.clock[0], was_held
        core.ints[SHED] = n + 1


@inlined
def _hold(core: Core, facts: Facts, rules: Rules, out: Output, slot: int, fresh: bool) -> None:
    """Have a tuple in memory; one that is not `fresh` knows its rank and its gain."""
    held = core.slots[slot]
    held.state = HELD
    pool = _pool(rules, held.stream)
    core.used[pool] += 1
    core.held[held.stream] += 1
    _schedule(core, slot)
    if rules.kind == NOTHING:
        return
    partners = 0
    if _counts(rules) or (rules.kind == SIMPPROB and fresh):
        # SIMPPROB counts its own matches only, and changes nobody else's.
        action = COUNT if rules.kind == SIMPPROB else ADD
        partners = _meet(
            core, facts, rules, out, 0, held.stream, held.entry, held.time, 0, action, -1
        )
        held.matches = partners
    if rules.kind == FIXED:
        if fresh:
            held.rank += rules.floor_weight * core.floor[pool] + rules.seq_weight * float(held.seq)
    elif rules.kind >= RATE:
        held.rank = _worth(core, facts, rules, slot)
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
    _push(core, pool, slot)


@inlined
def _admit(core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output, i: int) -> None:
    """Have newcomer i in memory, and drop what does not fit then: it, or another."""
    ints = core.ints
    slot = batch.slot[i]
    if slot < 0:
        return
    held = core.slots[slot]
    held.seq = ints[SEQ]
    ints[SEQ] += 1
    held.last = core.clock[0]
    if _expired(core, rules, held.stream, held.until):
        return
    _hold(core, facts, rules, out, slot, True)
    pool = _pool(rules, held.stream)
    ints[ADMITTED] += 1
    while core.used[pool] > rules.budgets[pool]:
        least = _overdue(core, rules, pool)
        if least >= 0:
            ints[EXPIRED] += 1
        else:
            least = _victim(core, facts, rules, pool)
            core.floor[pool] = max(core.floor[pool], core.slots[least].rank)
            was_held = least != slot
            ints[EVICTED if was_held else REJECTED] += 1
            if not was_held:
                ints[ADMITTED] -= 1
            _shed(core, out, least, was_held)
        _leave(core, facts, rules, batch, out, least)


@inlined
def _observe(core: Core, facts: Facts, rules: Rules, batch: Batch, start: int, stop: int) -> None:
    """Count the arrivals of a tick; an arrival one half-life later weighs twice as much."""
    ints = core.ints
    weight = 1.0
    if rules.halflife > 0:
        epoch = np.int64(core.clock[0] // rules.halflife)
        if ints[STARTED] == 0:
            ints[STARTED], ints[EPOCH] = 1, epoch
        age = epoch - ints[EPOCH]
        if age > 512:
            shrink = math.ldexp(1.0, -min(age, 2000))
            for s in range(core.groups.shape[0]):
                for e in range(core.groups.shape[1]):
                    core.groups[s, e].rate *= shrink
                    core.groups[s, e].sum *= shrink
            ints[EPOCH], ints[REWRITTEN] = epoch, 1
            age = 0
            for pool in range(rules.pools):
                size = core.sizes[pool]
                core.sizes[pool] = 0
                for at in range(size):
                    slot = core.heaps[pool, at]
                    core.slots[slot].rank = _worth(core, facts, rules, slot)
                    _push(core, pool, slot)
        weight = math.ldexp(1.0, age)
    for i in range(start, stop):
        if batch.slot[i] >= 0:
            group = core.groups[batch.stream[i], batch.entry[i]]
            group.rate += weight
            group.sum += weight * batch.weight[i]
            group.touched = 1


# ---- time ---------------------------------------------------------------------------------------


@inner
def _end_facts(core: Core, facts: Facts, rules: Rules, out: Output) -> None:
    """What the facts that have ended by the clock led to does not count any more."""
    ints = core.ints
    while ints[ENDING] > 0 and core.ending[0].rank <= core.clock[0]:
        fact = core.ending[0].item
        drop_top(core.ending, ints[ENDING])
        ints[ENDING] -= 1
        if _counts(rules):
            slot = core.groups[0, facts.key[fact, 0]].head
            while slot >= 0:
                held = core.slots[slot]
                if held.state == HELD:
                    lost = _meet(
                        core, facts, rules, out, 0, 0, held.entry, held.time, 0, TAKE, fact
                    )
                    if lost > 0:
                        _rematch(core, rules, slot, -lost)
                slot = held.next
            continue
        for s in range(rules.windows.shape[0]):
            slot = core.groups[s, facts.key[fact, s]].head
            while slot >= 0:
                held = core.slots[slot]
                if held.state == HELD and active(facts, fact, held.time):
                    held.rank = _worth(core, facts, rules, slot)
                    _settle(core, slot)
                slot = held.next


@inlined
def _expire(core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output) -> None:
    for s in range(rules.windows.shape[0]):
        slot = _oldest(core, s)
        while slot >= 0 and _expired(core, rules, s, core.slots[slot].until):
            _leave(core, facts, rules, batch, out, slot)
            core.ints[EXPIRED] += 1
            slot = _oldest(core, s)


@inlined
def _hear(core: Core, stream: int, time: Any) -> None:
    core.heard[stream] = max(core.heard[stream], time)
    core.clock[0] = max(core.clock[0], time)


@inlined
def _probe_tick(
    core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output, n: int
) -> tuple[int, int]:
    """Probe with every newcomer of the tick, from the cursor on."""
    ints = core.ints
    alone = rules.windows.shape[0] == 1
    for i in range(ints[AT], ints[TICK_TO]):
        ints[AT] = i
        if batch.probed[i]:
            continue
        stream, entry, time = batch.stream[i], batch.entry[i], batch.time[i]
        is_first = rules.moment == PROBE_FIRST
        if not is_first and batch.slot[i] < 0:
            continue
        if entry >= 0:
            most = _most(core, facts, rules, stream, entry, time)
            if n + most > out.rows.shape[1]:
                ints[NEEDED] = int(min(most, 1e15))
                return n, OUTPUT_FULL if n > 0 else PROBE_TOO_LARGE
        if is_first:
            _arrive(core, facts, rules, batch, i, 0)
            if batch.slot[i] < 0:
                continue
        n = _meet(core, facts, rules, out, n, stream, entry, time, batch.row[i], EMIT, -1)
        if alone:
            _release(core, batch.slot[i])
            batch.slot[i] = -1
        else:
            core.slots[batch.slot[i]].seen = 1
    return n, DONE


@inlined
def _admit_tick(core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output) -> None:
    start, stop = core.ints[TICK_FROM], core.ints[TICK_TO]
    if rules.moment != PROBE_FIRST:
        for i in range(start, stop):
            _arrive(core, facts, rules, batch, i, 0)
    if rules.kind >= RATE:
        _observe(core, facts, rules, batch, start, stop)
    for i in range(start, stop):
        _admit(core, facts, rules, batch, out, i)


@inlined
def _close_tick(core: Core, rules: Rules, batch: Batch) -> None:
    """Let go of the newcomers that are not in memory."""
    for i in range(core.ints[TICK_FROM], core.ints[TICK_TO]):
        slot = batch.slot[i]
        if slot >= 0 and core.slots[slot].state == PENDING:
            _release(core, slot)
        batch.slot[i] = -1


@entry_point
def run(
    core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output, n: int, close: bool
) -> tuple[int, int]:
    """Take the batch from the cursor on: how many results there are, and why it stopped.

    `out` has `n` results already. The last tick is left open unless `close`. A tick that was open
    before and has probed is linked first, so that late tuples find it, too.
    """
    ints = core.ints
    total = batch.time.shape[0]
    if ints[TICK_TO] == 0 and ints[STAGE] == BEGIN:
        for i in range(total):
            if batch.probed[i]:
                _arrive(core, facts, rules, batch, i, 1)
    while True:
        stage = ints[STAGE]
        if stage == BEGIN:
            start = ints[TICK_TO]
            if start >= total:
                return n, DONE
            time = batch.time[start]
            stop = start + 1
            while stop < total and batch.time[stop] == time:
                stop += 1
            ints[TICK_FROM], ints[TICK_TO], ints[AT] = start, stop, start
            for i in range(start, stop):
                ints[LATE] += time < core.heard[batch.stream[i]]
                _hear(core, batch.stream[i], time)
            _end_facts(core, facts, rules, out)
            _expire(core, facts, rules, batch, out)
            ints[BASE] = ints[SEQ]
            ints[STAGE] = FIRST
        waits = ints[TICK_TO] == total and not close and batch.time[total - 1] >= core.clock[0]
        if stage in (FIRST, SECOND):
            if waits and rules.defer:
                ints[STAGE] = END
            elif (stage == FIRST) == (rules.moment == PROBE_FIRST):
                n, why = _probe_tick(core, facts, rules, batch, out, n)
                if why != DONE:
                    return n, why
                ints[STAGE] = END if waits or stage == SECOND else SECOND
            else:
                _admit_tick(core, facts, rules, batch, out)
                ints[STAGE] = END if stage == SECOND else SECOND
        if stage == END:
            if waits:
                # Its tuples will come again, with the rest of it.
                for i in range(ints[TICK_FROM], total):
                    if batch.slot[i] >= 0:
                        _release(core, batch.slot[i])
            else:
                _close_tick(core, rules, batch)
            ints[STAGE] = BEGIN


@entry_point
def advance(core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output, told: Array) -> None:
    """Hear how far the streams have come, and drop what has expired by then."""
    for s in range(told.shape[0]):
        _hear(core, s, told[s])
    _end_facts(core, facts, rules, out)
    _expire(core, facts, rules, batch, out)


@entry_point
def reload(core: Core, facts: Facts, rules: Rules, out: Output, tuples: Array) -> None:
    """Hold tuples that were held before, given in order of their sequence numbers."""
    for i in range(tuples.shape[0]):
        core.ints[FREE] -= 1
        slot = core.free[core.ints[FREE]]
        core.slots[slot] = tuples[i]
        held = core.slots[slot]
        held.state, held.seen, held.learned = PENDING, 1, 0
        end = last_end(facts, held.stream, held.entry, held.time, rules.never)
        held.until = end
        if rules.windows[held.stream] != 0:
            held.until = min(end, held.time + rules.windows[held.stream])
        _link(core, rules, slot)
        _hold(core, facts, rules, out, slot, False)


@entry_point
def remind(core: Core, facts: Facts, rules: Rules, ended: Array) -> None:
    """Facts have been given an end: held tuples may end with them."""
    for i in range(ended.shape[0]):
        fact = ended[i]
        for s in range(rules.windows.shape[0]):
            slot = core.groups[s, facts.key[fact, s]].head
            while slot >= 0:
                held = core.slots[slot]
                if held.state == HELD:
                    end = last_end(facts, s, held.entry, held.time, rules.never)
                    if end < held.until:
                        held.until = end
                        _schedule(core, slot)
                slot = held.next


@entry_point
def note_ends(core: Core, facts: Facts, fact: Array) -> None:
    """Remember which facts end, for which there is room."""
    for i in range(fact.shape[0]):
        n = core.ints[ENDING]
        put(core.ending, n, facts.end[fact[i]], fact[i], fact[i])
        sift_up(core.ending, n)
        core.ints[ENDING] = n + 1
