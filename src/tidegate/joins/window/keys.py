"""Key entries: find them by hash, count arrivals, and forget rare keys."""

from __future__ import annotations

import math

import numpy as np

from tidegate.joins.window.victims import requeue
from tidegate.kernel.compiling import AHEAD, Array, entry_point, inlined, inner, prefetch
from tidegate.kernel.hash_table import (
    add,
    entry_at,
    place_of,
    prefetch_hash,
    prefetch_place,
    set_entry,
)
from tidegate.kernel.layout import BY_SCORE, IN_WINDOW, NEVER, SKETCHED, Batch, Core, Rules
from tidegate.kernel.partners import partner_entries, partner_entry
from tidegate.kernel.sketch import add_to, found_in
from tidegate.learning.rates import note, weigh


@entry_point
def intern(core: Core, hashes: Array, entries: Array) -> int:
    """Find or create the entry of each hash; stop if there is no room, and return where."""
    scalars = core.scalars[0]
    table = core.table
    n = hashes.shape[0]
    for i in range(n):
        if i + AHEAD < n:
            prefetch_place(table, hashes[i + AHEAD])
        if i + AHEAD // 2 < n:
            prefetch_hash(table, core.hashes, hashes[i + AHEAD // 2])
        h = hashes[i]
        at = place_of(table, core.hashes, h)
        entry = entry_at(table, at)
        if entry < 0:
            if scalars.free_entries > 0:
                scalars.free_entries -= 1
                entry = core.free_entries[scalars.free_entries]
            elif scalars.entries < core.hashes.shape[0]:
                entry = scalars.entries
                scalars.entries += 1
            else:
                return i
            set_entry(table, at, h, entry)
            core.hashes[entry] = h
        entries[i] = entry
    return int(n)


@inlined
def only_counted(core: Core, entry: int) -> bool:
    """Return True if a key has been counted and holds no row."""
    left, right = core.groups[2 * entry], core.groups[2 * entry + 1]
    return bool(left.count == 0 and right.count == 0 and (left.rate > 0.0 or right.rate > 0.0))


@inlined
def list_idle(core: Core, entry: int) -> None:
    """Note that a key has become one that is only counted."""
    core.scalars[0].stat_only += 1
    if core.groups[2 * entry].listed == 0:
        core.groups[2 * entry].listed = 1
        core.idle[core.scalars[0].idle] = entry
        core.scalars[0].idle += 1


@inlined
def _reset_rates(core: Core, entry: int) -> None:
    """Reset a key to one that never came."""
    for group in (2 * entry, 2 * entry + 1):
        core.groups[group].rate = 0.0
        if core.recent.shape[0] > 0:
            core.recent[group].time = NEVER
            core.recent[group].count = 0.0
            core.recent[group].gap = 0.0


@entry_point
def sweep_entries(core: Core, keep_rates: bool) -> None:
    """Free the entries of keys that hold no row (and are not counted), and index the rest."""
    scalars = core.scalars[0]
    table = core.table
    table[:] = 0
    free = 0
    for entry in range(scalars.entries):
        if entry + AHEAD < scalars.entries:
            prefetch_place(table, core.hashes[entry + AHEAD])
        empty = core.groups[2 * entry].count == 0 and core.groups[2 * entry + 1].count == 0
        if empty and not (keep_rates and only_counted(core, entry)):
            _reset_rates(core, entry)
            core.free_entries[free] = entry
            free += 1
            continue
        add(table, core.hashes[entry], entry)
    scalars.free_entries = free


@entry_point
def idle_rates(core: Core, highest: Array) -> int:
    """Compact the list of keys that are only counted; return their number, and fill in rates."""
    n = 0
    for i in range(core.scalars[0].idle):
        if i + AHEAD < core.scalars[0].idle:
            prefetch(core.groups, 2 * core.idle[i + AHEAD])
        entry = core.idle[i]
        if only_counted(core, entry):
            core.idle[n] = entry
            highest[n] = max(core.groups[2 * entry].rate, core.groups[2 * entry + 1].rate)
            n += 1
        else:
            core.groups[2 * entry].listed = 0
    core.scalars[0].idle = n
    return n


@entry_point
def forget(core: Core, highest: Array, rate: float, tie: int) -> None:
    """Forget the listed keys up to the given (rate, hash)."""
    n = 0
    for i in range(core.scalars[0].idle):
        entry = core.idle[i]
        if highest[i] > rate or (highest[i] == rate and core.hashes[entry] > tie):
            core.idle[n] = entry
            n += 1
            continue
        _reset_rates(core, entry)
        core.groups[2 * entry].listed = 0
    core.scalars[0].idle = n
    core.scalars[0].stat_only = n
    core.scalars[0].rewritten = 1


@inlined
def count(core: Core, entry: int, side: int, weight: float) -> None:
    """Count something for a key."""
    before = only_counted(core, entry)
    core.groups[2 * entry + side].rate += weight
    if not before and only_counted(core, entry):
        list_idle(core, entry)


@inner
def observe_window(core: Core, rules: Rules, batch: Batch, start: int, stop: int) -> None:
    """Count the arrivals of a tick, and stop counting those that came a window ago.

    If more than `rules.cap` arrivals would count, stop counting the oldest.
    """
    scalars = core.scalars[0]
    first = core.ring[scalars.ring_from % core.ring.shape[0]]
    while scalars.ring_from < scalars.ring_to and first.time + rules.span <= core.clock[0]:
        _leave_ring(core)
        first = core.ring[scalars.ring_from % core.ring.shape[0]]
    for i in range(start, stop):
        for part in range(partner_entries(rules, batch, i)):
            entry = partner_entry(rules, batch, i, part)
            if scalars.ring_to - scalars.ring_from == rules.cap:
                _leave_ring(core)
            at = core.ring[scalars.ring_to % core.ring.shape[0]]
            at.time, at.group = core.clock[0], 2 * entry + batch.side[i]
            scalars.ring_to += 1
            count(core, entry, batch.side[i], 1.0)


@inlined
def _leave_ring(core: Core) -> None:
    """Stop counting the oldest arrival."""
    scalars = core.scalars[0]
    group = core.ring[scalars.ring_from % core.ring.shape[0]].group
    scalars.ring_from += 1
    before = only_counted(core, group >> 1)
    core.groups[group].rate -= 1.0
    if before and not only_counted(core, group >> 1):
        scalars.stat_only -= 1


@inlined
def observe_in_sketch(core: Core, entry: int, side: int, weight: float) -> None:
    """Count an arrival in the sketch, and copy the sketch's counts to its key's rates.

    Ranks only rise this way too, because a cell never falls.
    """
    before = only_counted(core, entry)
    hash_ = core.hashes[entry]
    add_to(core.sketch[side], hash_, weight)
    for s in range(2):
        core.groups[2 * entry + s].rate = found_in(core.sketch[s], hash_)
    if not before and only_counted(core, entry):
        list_idle(core, entry)


@inlined
def observe(core: Core, rules: Rules, batch: Batch, start: int, stop: int) -> None:
    """Count the arrivals of a tick; an arrival one half-life later weighs twice as much.

    Weights grow instead of counts shrinking, so that ranks only rise between rescalings. The queue
    of victims relies on that.
    """
    scalars = core.scalars[0]
    if rules.counting == IN_WINDOW:
        observe_window(core, rules, batch, start, stop)
        return
    weight = 1.0
    if rules.halflife > 0:
        epoch = np.int64(core.clock[0] // rules.halflife)
        if scalars.started == 0:
            scalars.started = 1
            scalars.epoch = epoch
        age = epoch - scalars.epoch
        if age > 512:
            shrink = math.ldexp(1.0, -int(min(age, 2000)))
            scalars.stat_only = 0
            for entry in range(scalars.entries):
                core.groups[2 * entry].rate *= shrink
                core.groups[2 * entry + 1].rate *= shrink
                if only_counted(core, entry):
                    scalars.stat_only += 1
            for side in range(2):
                for row in range(core.sketch.shape[1]):
                    for at in range(core.sketch.shape[2]):
                        core.sketch[side, row, at] *= shrink
            scalars.epoch = epoch
            scalars.rewritten = 1
            age = 0
            weigh(core, rules)
            requeue(core, rules)
        weight = math.ldexp(1.0, int(age))
    for i in range(start, stop):
        for part in range(partner_entries(rules, batch, i)):
            entry = partner_entry(rules, batch, i, part)
            if rules.counting == SKETCHED:
                observe_in_sketch(core, entry, batch.side[i], weight)
            else:
                count(core, entry, batch.side[i], weight)
            if rules.kind == BY_SCORE and core.recent.shape[0] > 0:
                note(core, rules, 2 * entry + batch.side[i], batch.time[i])
