"""The compiled loop of the bounded window join: expire, probe, observe, admit, shed.

`run` takes a batch sorted by (time, side, key hash, row hash), tick by tick (see
`docs/concepts/time.md`). It can stop whenever its output is full and continue later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tidegate.joins.window.held_rows import admit, expire, resize
from tidegate.joins.window.keys import count, observe
from tidegate.joins.window.slices import end_tick, look_at
from tidegate.joins.window.ticks import advance_clock, next_tick
from tidegate.joins.window.victims import requeue
from tidegate.kernel.compiling import entry_point, inlined
from tidegate.kernel.layout import (
    AFTER_PROBE,
    ARRIVALS,
    BEFORE_ARRIVAL,
    BEGIN,
    BY_KEY,
    BY_SCORE,
    BY_TUPLE,
    DONE,
    END,
    FIRST,
    NOTHING,
    OUTPUT_FULL,
    PROBE_TOO_LARGE,
    RESULTS,
    SECOND,
    TOO_MANY_KEYS,
    Batch,
    Core,
    Output,
    Rules,
)
from tidegate.kernel.partners import are_partners, partner_entries, partner_entry
from tidegate.kernel.windows import end_of, expired, joins
from tidegate.learning.ghosts import add_ghost, credit_ghosts, refit
from tidegate.learning.rates import weigh
from tidegate.learning.scores import is_lowered_by_results, learn_match


@inlined
def _learn_result(core: Core, rules: Rules, one: int, other: int) -> None:
    """Count a result for the entries of its rows, if results are counted."""
    if rules.learn == RESULTS:
        for side in range(2):
            count(core, one, side, 1.0)
            if other != one:
                count(core, other, side, 1.0)


@inlined
def _probe(
    core: Core, rules: Rules, batch: Batch, out: Output, i: int, entry: int, n: int, limit: int
) -> int:
    """Write the pairs of newcomer i with the held rows of an entry that are older than `limit`.

    Return the new total. If the program of a condition is not certain, pairs that it refuses are
    written too.
    """
    time, row, side = batch.time[i], batch.row[i], batch.side[i]
    slot = core.groups[2 * entry + 1 - side].head
    while slot >= 0:
        held = core.slots[slot]
        if held.seq < limit:
            is_pair = False
            if side == 0:
                is_pair = joins(rules, time, held.time)
                out.left[n], out.right[n] = row, held.row
            else:
                is_pair = joins(rules, held.time, time)
                out.left[n], out.right[n] = held.row, row
            if is_pair and rules.checked:
                is_pair = are_partners(core, rules, side, batch.values[i], core.values[slot])
                if is_pair:
                    _learn_result(core, rules, batch.entry[i], entry)
                else:
                    n += not rules.certain
            if is_pair:
                n += 1
                if rules.kind == BY_SCORE:
                    if is_lowered_by_results(rules):
                        look_at(core, rules, slot)
                    learn_match(core, rules, slot)
        slot = held.next
    return n


@inlined
def _block(batch: Batch, side: int, h: Any, start: int, stop: int) -> tuple[int, int]:
    """Return the range of the tick's newcomers that have a side and the hash of an entry."""
    low, high = start, stop
    while low < high:
        middle = (low + high) >> 1
        other = batch.side[middle]
        if other < side or (other == side and batch.hash[middle] < h):
            low = middle + 1
        else:
            high = middle
    end = low
    while end < stop and batch.side[end] == side and batch.hash[end] == h:
        end += 1
    return low, end


@inlined
def _blocks(
    core: Core,
    rules: Rules,
    batch: Batch,
    i: int,
    entry: int,
    same: bool,
    opened: int,
    open_end: int,
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the ranges of the tick and of the open tick that have the partners in an entry."""
    start, stop = core.scalars[0].tick_from, core.scalars[0].tick_to
    side, h = 1 - batch.side[i], core.hashes[entry] if rules.checked else batch.hash[i]
    new, old = (0, 0), (0, 0)
    if same and stop - start > 1:
        new = _block(batch, side, h, start, stop)
    if start < opened and rules.shed_when == AFTER_PROBE:
        old = _block(batch, side, h, opened, open_end)
    return new, old


@inlined
def _join_newcomers(
    core: Core, rules: Rules, batch: Batch, out: Output, i: int, j: int, n: int
) -> int:
    """Write the pair of two newcomers, if the condition allows it; return the new total."""
    left, right = (i, j) if batch.side[i] == 0 else (j, i)
    out.left[n], out.right[n] = batch.row[left], batch.row[right]
    if rules.checked:
        if are_partners(core, rules, 0, batch.values[left], batch.values[right]):
            _learn_result(core, rules, batch.entry[i], batch.entry[j])
        elif rules.certain:
            return n
    return n + 1


@inlined
def _was_shed(core: Core, rules: Rules, batch: Batch, i: int, base: int, start: int) -> bool:
    """Return True if newcomer i of the tick that began at `start` was rejected or shed already."""
    side = batch.side[i]
    if expired(core, rules, side, batch.time[i]):
        return False
    seq, end = base + (i - start), end_of(rules, side, batch.time[i])
    slot = core.groups[2 * batch.entry[i] + side].tail
    while slot >= 0 and end_of(rules, side, core.slots[slot].time) > end:
        slot = core.slots[slot].prev
    while slot >= 0 and core.slots[slot].seq >= base:
        if core.slots[slot].seq == seq:
            return False
        slot = core.slots[slot].prev
    return True


@inlined
def _probe_tick(
    core: Core, rules: Rules, batch: Batch, out: Output, n: int, opened: int, open_end: int
) -> tuple[int, int]:
    """Probe with every newcomer of the current tick, from the cursor on."""
    scalars = core.scalars[0]
    start, stop = scalars.tick_from, scalars.tick_to
    room = out.left.shape[0]
    base = scalars.newcomers
    # True unless a floating-point time is so large that adding the window does not change it.
    same = joins(rules, batch.time[start], batch.time[start])
    for i in range(scalars.at, stop):
        scalars.at = i
        if rules.shed_when == AFTER_PROBE and batch.probed[i]:
            continue
        side = batch.side[i]
        parts = partner_entries(rules, batch, i)
        most = np.int64(0)
        new, old = (0, 0), (0, 0)
        for part in range(parts):
            entry = partner_entry(rules, batch, i, part)
            if entry >= 0:
                new, old = _blocks(core, rules, batch, i, entry, same, opened, open_end)
                most += core.groups[2 * entry + 1 - side].count
                most += new[1] - new[0] + old[1] - old[0]
        if n + most > room:
            return n, OUTPUT_FULL if n > 0 else PROBE_TOO_LARGE
        if rules.shed_when == BEFORE_ARRIVAL and _was_shed(core, rules, batch, i, base, start):
            continue
        before = n
        for part in range(parts):
            entry = partner_entry(rules, batch, i, part)
            if entry < 0:
                continue
            if parts > 1:
                new, old = _blocks(core, rules, batch, i, entry, same, opened, open_end)
            n = _probe(core, rules, batch, out, i, entry, n, base)
            for j in range(new[0], new[1]):
                # Each pair of newcomers is found from its left row, unless that row probed before.
                if rules.shed_when == AFTER_PROBE:
                    if side == 1 and not batch.probed[j]:
                        continue
                elif side == 1 or (
                    rules.shed_when == BEFORE_ARRIVAL
                    and _was_shed(core, rules, batch, j, base, start)
                ):
                    continue
                n = _join_newcomers(core, rules, batch, out, i, j, n)
            for j in range(old[0], old[1]):
                left, right = (i, j) if side == 0 else (j, i)
                if batch.probed[j] and joins(rules, batch.time[left], batch.time[right]):
                    n = _join_newcomers(core, rules, batch, out, i, j, n)
        if rules.learn == RESULTS and n > before and not rules.checked:
            count(core, batch.entry[i], 0, float(n - before))
            count(core, batch.entry[i], 1, float(n - before))
    return n, DONE


@inlined
def _has_ghosts(core: Core, rules: Rules) -> bool:
    return bool(rules.kind == BY_SCORE and core.ghosts.shape[0] > 0)


@inlined
def _may_resize(core: Core, rules: Rules) -> bool:
    return bool(core.scalars[0].change < rules.changes.shape[0])


@inlined
def _admit_tick(core: Core, rules: Rules, batch: Batch, out: Output) -> None:
    start, stop = core.scalars[0].tick_from, core.scalars[0].tick_to
    if _has_ghosts(core, rules):
        for i in range(start, stop):
            credit_ghosts(core, rules, batch, i)
        for i in range(start, stop):
            add_ghost(core, rules, batch, i, core.scalars[0].seq + (i - start))
    if rules.learn == ARRIVALS:
        observe(core, rules, batch, start, stop)
    if _may_resize(core, rules):
        resize(core, rules, out, True)
    for i in range(start, stop):
        admit(core, rules, batch, out, i)


@inlined
def _run(
    core: Core,
    rules: Rules,
    batch: Batch,
    out: Output,
    n: int,
    opened: int,
    open_end: int,
    close: bool,
) -> tuple[int, int]:
    """Take the batch from the cursor on; return how many pairs are in `out`, and why it stopped.

    `out` has `n` pairs already. `opened` and `open_end` are the bounds in the batch of the tick
    that was open before (both `len(batch)` if there was none). The last tick is left open unless
    `close`.
    """
    scalars = core.scalars[0]
    total = batch.time.shape[0]
    while True:
        stage = scalars.stage
        if stage == BEGIN:
            if not next_tick(core, rules, batch, total):
                return n, DONE
            if rules.kind == BY_SCORE:
                weigh(core, rules)
            if _may_resize(core, rules):
                resize(core, rules, out, False)
            if _has_ghosts(core, rules) and refit(core, rules):
                requeue(core, rules)
            if rules.kind == BY_SCORE:
                end_tick(core, rules)
            scalars.newcomers = scalars.seq
            scalars.stage = FIRST
        waits = scalars.tick_to == total and not close and batch.time[total - 1] >= core.clock[0]
        if stage in (FIRST, SECOND):
            if (stage == FIRST) == (rules.shed_when == AFTER_PROBE):
                n, why = _probe_tick(core, rules, batch, out, n, opened, open_end)
                if why != DONE:
                    return n, why
            elif not waits:
                _admit_tick(core, rules, batch, out)
            scalars.stage = END if waits or stage == SECOND else SECOND
        if stage == END:
            scalars.stage = BEGIN
            if rules.learn and not waits and scalars.stat_only > rules.cap:
                return n, TOO_MANY_KEYS


def _loop_for(kind: int) -> Callable[..., tuple[int, int]]:
    """Compile the loop for one kind of rank, without the code of the other kinds."""

    @entry_point
    def run(core: Core, rules: Rules, *rest: Any) -> tuple[int, int]:
        return _run(core, Rules(kind, *rules[1:]), *rest)

    return run


_LOOPS = tuple(_loop_for(kind) for kind in (NOTHING, BY_KEY, BY_TUPLE, BY_SCORE))


def run(core: Core, rules: Rules, *rest: Any) -> tuple[int, int]:
    """Call `_run` for the kind of rank that the rules have."""
    return _LOOPS[rules.kind](core, rules, *rest)


@entry_point
def advance(core: Core, rules: Rules, out: Output, left: Any, right: Any) -> None:
    """Advance the stream clocks, and drop rows that have expired or do not fit any more."""
    advance_clock(core, 0, left)
    advance_clock(core, 1, right)
    weigh(core, rules)
    expire(core, rules)
    resize(core, rules, out, False)
