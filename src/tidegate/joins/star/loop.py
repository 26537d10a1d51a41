"""The compiled loop of the star join: expire, probe through the links, admit, shed.

The relation's rows are called links in the docs and facts in the paper and in the code.
"""

from __future__ import annotations

from typing import Any

from tidegate.joins.star.ghosts import add_ghost, credit_ghosts, refit
from tidegate.joins.star.held_rows import (
    admit,
    arrive,
    end_facts,
    expire,
    fit,
    hold,
    is_late,
    link,
    observe,
    release,
    schedule,
)
from tidegate.joins.star.layout import (
    AUTO,
    BEGIN,
    EMIT,
    END,
    FIRST,
    HELD,
    PENDING,
    RATE,
    SECOND,
    Batch,
    Core,
    Output,
    Rules,
)
from tidegate.joins.star.link_index import Facts, last_end
from tidegate.joins.star.match import join_partners
from tidegate.joins.star.ranks import pool_of
from tidegate.joins.star.ranks import push as push_slot
from tidegate.kernel.compiling import Array, entry_point, inlined
from tidegate.kernel.heap import push
from tidegate.kernel.layout import AFTER_PROBE, DONE, OUTPUT_FULL
from tidegate.learning.rates import weigh


@inlined
def _advance_clock(core: Core, stream: int, time: Any) -> None:
    """Advance the clocks of a stream and of the join to a time."""
    scalars = core.scalars[0]
    core.streams[stream].clock = max(core.streams[stream].clock, time)
    scalars.clock = max(scalars.clock, time)


@inlined
def _probe_tick(
    core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output, n: int
) -> tuple[int, int]:
    """Probe with every newcomer of the tick, starting at the cursor."""
    scalars = core.scalars[0]
    alone = rules.windows.shape[0] == 1
    for i in range(scalars.at, scalars.tick_to):
        scalars.at = i
        if batch.probed[i]:
            continue
        stream, entry, time = batch.stream[i], batch.entry[i], batch.time[i]
        is_first = rules.shed_when == AFTER_PROBE
        if not is_first and batch.slot[i] < 0:
            continue
        if is_first and not scalars.paused:
            arrive(core, facts, rules, batch, i, 0)
            if batch.slot[i] < 0:
                continue
        n = join_partners(
            core, facts, rules, out.rows, n, stream, entry, time, batch.row[i], EMIT, -1
        )
        if scalars.paused:
            return n, OUTPUT_FULL
        if alone:
            release(core, batch.slot[i])
            batch.slot[i] = -1
        else:
            core.slots[batch.slot[i]].seen = 1
    return n, DONE


@inlined
def _admit_tick(core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output) -> None:
    scalars = core.scalars[0]
    start, stop = scalars.tick_from, scalars.tick_to
    if rules.shed_when != AFTER_PROBE:
        for i in range(start, stop):
            arrive(core, facts, rules, batch, i, 0)
    if rules.kind == AUTO:
        for i in range(start, stop):
            if batch.slot[i] >= 0:
                credit_ghosts(core, facts, rules, batch, i)
        seq = scalars.seq
        for i in range(start, stop):
            if batch.slot[i] >= 0:
                add_ghost(core, facts, rules, batch, i, seq)
                seq += 1
    if rules.kind >= RATE:
        observe(core, facts, rules, batch, start, stop)
    for i in range(start, stop):
        admit(core, facts, rules, batch, out, i)


@inlined
def _close_tick(core: Core, batch: Batch) -> None:
    """Free the slots of newcomers that are not held."""
    scalars = core.scalars[0]
    for i in range(scalars.tick_from, scalars.tick_to):
        slot = batch.slot[i]
        if slot >= 0 and core.slots[slot].state == PENDING:
            release(core, slot)
        batch.slot[i] = -1


@entry_point
def run(
    core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output, n: int, close: bool
) -> tuple[int, int]:
    """Process the batch from the cursor on; return the number of results and why it stopped.

    `out` contains `n` results already. The last tick stays open unless `close` is true. If the open
    tick of an earlier batch has probed, its rows are linked first, so that out-of-order rows find
    them.
    """
    scalars = core.scalars[0]
    total = batch.time.shape[0]
    if scalars.tick_to == 0 and scalars.stage == BEGIN:
        for i in range(total):
            if batch.probed[i]:
                arrive(core, facts, rules, batch, i, 1)
    while True:
        stage = scalars.stage
        if stage == BEGIN:
            start = scalars.tick_to
            if start >= total:
                return n, DONE
            time = batch.time[start]
            stop = start + 1
            while stop < total and batch.time[stop] == time:
                stop += 1
            scalars.tick_from, scalars.tick_to, scalars.at = start, stop, start
            scalars.rated += 1
            for i in range(start, stop):
                stream = batch.stream[i]
                if time < core.streams[stream].clock:
                    scalars.out_of_order += 1
                    scalars.late += is_late(core, facts, rules, stream, batch.entry[i], time)
                _advance_clock(core, stream, time)
            end_facts(core, facts, rules)
            expire(core, facts, rules, batch)
            if rules.kind == AUTO:
                weigh(core.learning, rules.learning)
                refit(core, facts, rules)
            scalars.first_new = scalars.seq
            scalars.stage = FIRST
        waits = scalars.tick_to == total and not close and batch.time[total - 1] >= scalars.clock
        if stage in (FIRST, SECOND):
            if waits and rules.defer:
                scalars.stage = END
            elif (stage == FIRST) == (rules.shed_when == AFTER_PROBE):
                n, why = _probe_tick(core, facts, rules, batch, out, n)
                if why != DONE:
                    return n, why
                scalars.stage = END if waits or stage == SECOND else SECOND
            else:
                _admit_tick(core, facts, rules, batch, out)
                scalars.stage = END if stage == SECOND else SECOND
        if stage == END:
            if waits:
                # The rows of an open tick come again with the next batch.
                for i in range(scalars.tick_from, total):
                    if batch.slot[i] >= 0:
                        release(core, batch.slot[i])
            else:
                _close_tick(core, batch)
            scalars.stage = BEGIN


@entry_point
def advance(core: Core, facts: Facts, rules: Rules, batch: Batch, told: Array) -> None:
    """Advance the stream clocks, and drop rows that have expired."""
    core.scalars[0].rated += 1
    for s in range(told.shape[0]):
        _advance_clock(core, s, told[s])
    weigh(core.learning, rules.learning)
    end_facts(core, facts, rules)
    expire(core, facts, rules, batch)


@entry_point
def shrink(core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output) -> None:
    """Shed rows until the budgets, which have just changed, are met."""
    core.scalars[0].rated += 1
    for pool in range(rules.pools):
        fit(core, facts, rules, batch, out, pool, -1)


@entry_point
def reload(core: Core, facts: Facts, rules: Rules, rows: Array) -> None:
    """Hold rows from a checkpoint again. They come in the order of their sequence numbers."""
    scalars = core.scalars[0]
    weigh(core.learning, rules.learning)
    scalars.rated += 1
    for i in range(rows.shape[0]):
        scalars.free -= 1
        slot = core.free[scalars.free]
        core.slots[slot] = rows[i]
        held = core.slots[slot]
        held.state, held.seen, held.learned, held.queue = PENDING, 1, 0, -1
        end = last_end(facts, held.stream, held.entry, held.time, rules.never)
        held.until = end
        if rules.windows[held.stream] != 0:
            held.until = min(end, held.time + rules.windows[held.stream])
        link(core, slot)
        hold(core, facts, rules, slot, False)


@entry_point
def refill(core: Core, rules: Rules, slots: Array) -> None:
    """Put rows from a checkpoint, which have their ranks, into the heaps of `AUTO`."""
    for i in range(slots.shape[0]):
        push_slot(core, pool_of(rules, core.slots[slots[i]].stream), slots[i])


@entry_point
def remind(core: Core, facts: Facts, rules: Rules, ended: Array) -> None:
    """Shorten the lives of held rows whose links have been given an end."""
    core.scalars[0].rated += 1
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
                        schedule(core, slot)
                slot = held.next


@entry_point
def note_ends(core: Core, facts: Facts, fact: Array) -> None:
    """Add the ends of links to the heap of ends, which has room for them."""
    scalars = core.scalars[0]
    for i in range(fact.shape[0]):
        n = scalars.ending
        push(core.ending, n, facts.end[fact[i]], fact[i], fact[i])
        scalars.ending = n + 1
