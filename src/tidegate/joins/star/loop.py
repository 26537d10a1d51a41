"""The compiled loop of the star join: expire, probe through the links, admit, shed.

The relation's rows are called links in the docs and facts in the paper and in the code.
"""

from __future__ import annotations

from typing import Any

from tidegate.joins.star.held_rows import (
    admit,
    arrive,
    end_facts,
    expire,
    fit,
    hold,
    link,
    observe,
    release,
    schedule,
)
from tidegate.joins.star.layout import (
    AT,
    BASE,
    BEGIN,
    EMIT,
    END,
    ENDING,
    FIRST,
    FREE,
    HELD,
    OUT_OF_ORDER,
    PAUSED,
    PENDING,
    RATE,
    RATED,
    SECOND,
    SEQ,
    STAGE,
    TICK_FROM,
    TICK_TO,
    Batch,
    Core,
    Output,
    Rules,
)
from tidegate.joins.star.link_index import Facts, last_end
from tidegate.joins.star.match import join_partners
from tidegate.kernel.compiling import Array, entry_point, inlined
from tidegate.kernel.heap import put, sift_up
from tidegate.kernel.layout import AFTER_PROBE, DONE, OUTPUT_FULL


@inlined
def _hear(core: Core, stream: int, time: Any) -> None:
    core.stream_clock[stream] = max(core.stream_clock[stream], time)
    core.clock[0] = max(core.clock[0], time)


@inlined
def _probe_tick(
    core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output, n: int
) -> tuple[int, int]:
    """Probe with every newcomer of the tick, starting at the cursor."""
    ints = core.ints
    alone = rules.windows.shape[0] == 1
    for i in range(ints[AT], ints[TICK_TO]):
        ints[AT] = i
        if batch.probed[i]:
            continue
        stream, entry, time = batch.stream[i], batch.entry[i], batch.time[i]
        is_first = rules.shed_when == AFTER_PROBE
        if not is_first and batch.slot[i] < 0:
            continue
        if is_first and not ints[PAUSED]:
            arrive(core, facts, rules, batch, i, 0)
            if batch.slot[i] < 0:
                continue
        n = join_partners(
            core, facts, rules, out.rows, n, stream, entry, time, batch.row[i], EMIT, -1
        )
        if ints[PAUSED]:
            return n, OUTPUT_FULL
        if alone:
            release(core, batch.slot[i])
            batch.slot[i] = -1
        else:
            core.slots[batch.slot[i]].seen = 1
    return n, DONE


@inlined
def _admit_tick(core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output) -> None:
    start, stop = core.ints[TICK_FROM], core.ints[TICK_TO]
    if rules.shed_when != AFTER_PROBE:
        for i in range(start, stop):
            arrive(core, facts, rules, batch, i, 0)
    if rules.kind >= RATE:
        observe(core, facts, rules, batch, start, stop)
    for i in range(start, stop):
        admit(core, facts, rules, batch, out, i)


@inlined
def _close_tick(core: Core, batch: Batch) -> None:
    """Free the slots of newcomers that are not held."""
    for i in range(core.ints[TICK_FROM], core.ints[TICK_TO]):
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
    ints = core.ints
    total = batch.time.shape[0]
    if ints[TICK_TO] == 0 and ints[STAGE] == BEGIN:
        for i in range(total):
            if batch.probed[i]:
                arrive(core, facts, rules, batch, i, 1)
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
            ints[RATED] += 1
            for i in range(start, stop):
                ints[OUT_OF_ORDER] += time < core.stream_clock[batch.stream[i]]
                _hear(core, batch.stream[i], time)
            end_facts(core, facts, rules)
            expire(core, facts, rules, batch)
            ints[BASE] = ints[SEQ]
            ints[STAGE] = FIRST
        waits = ints[TICK_TO] == total and not close and batch.time[total - 1] >= core.clock[0]
        if stage in (FIRST, SECOND):
            if waits and rules.defer:
                ints[STAGE] = END
            elif (stage == FIRST) == (rules.shed_when == AFTER_PROBE):
                n, why = _probe_tick(core, facts, rules, batch, out, n)
                if why != DONE:
                    return n, why
                ints[STAGE] = END if waits or stage == SECOND else SECOND
            else:
                _admit_tick(core, facts, rules, batch, out)
                ints[STAGE] = END if stage == SECOND else SECOND
        if stage == END:
            if waits:
                # The rows of an open tick come again with the next batch.
                for i in range(ints[TICK_FROM], total):
                    if batch.slot[i] >= 0:
                        release(core, batch.slot[i])
            else:
                _close_tick(core, batch)
            ints[STAGE] = BEGIN


@entry_point
def advance(core: Core, facts: Facts, rules: Rules, batch: Batch, told: Array) -> None:
    """Advance the stream clocks, and drop rows that have expired."""
    core.ints[RATED] += 1
    for s in range(told.shape[0]):
        _hear(core, s, told[s])
    end_facts(core, facts, rules)
    expire(core, facts, rules, batch)


@entry_point
def shrink(core: Core, facts: Facts, rules: Rules, batch: Batch, out: Output) -> None:
    """Shed rows until the budgets, which have just changed, are met."""
    core.ints[RATED] += 1
    for pool in range(rules.pools):
        fit(core, facts, rules, batch, out, pool, -1)


@entry_point
def reload(core: Core, facts: Facts, rules: Rules, tuples: Array) -> None:
    """Hold rows from a checkpoint again. They come in the order of their sequence numbers."""
    core.ints[RATED] += 1
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
        link(core, slot)
        hold(core, facts, rules, slot, False)


@entry_point
def remind(core: Core, facts: Facts, rules: Rules, ended: Array) -> None:
    """Shorten the lives of held rows whose links have been given an end."""
    core.ints[RATED] += 1
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
    for i in range(fact.shape[0]):
        n = core.ints[ENDING]
        put(core.ending, n, facts.end[fact[i]], fact[i], fact[i])
        sift_up(core.ending, n)
        core.ints[ENDING] = n + 1
