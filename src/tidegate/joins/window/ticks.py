"""Advance from tick to tick: move the clocks, and drop expired rows."""

from __future__ import annotations

from typing import Any

from tidegate.joins.window.held_rows import expire
from tidegate.joins.window.slices import fetch_group
from tidegate.kernel.compiling import AHEAD, inlined, prefetch
from tidegate.kernel.layout import Batch, Core, Rules
from tidegate.kernel.windows import is_late


@inlined
def advance_clock(core: Core, side: int, time: Any) -> None:
    """Advance the clocks to a time of one stream; clocks only move forward."""
    core.stream_clock[side] = max(core.stream_clock[side], time)
    core.clock[0] = max(core.clock[0], time)


@inlined
def next_tick(core: Core, rules: Rules, batch: Batch, total: int) -> bool:
    """Start the next tick before row `total`, if any: advance clocks, drop expired rows."""
    scalars = core.scalars[0]
    start = scalars.tick_to
    if start >= total:
        return False
    time = batch.time[start]
    stop = start + 1
    while stop < total and batch.time[stop] == time:
        stop += 1
    scalars.tick_from, scalars.tick_to, scalars.at = start, stop, start
    for i in range(start + AHEAD, min(stop + AHEAD, total)):
        fetch_group(core, 2 * batch.entry[i])
    for i in range(start + AHEAD // 2, min(stop + AHEAD // 2, total)):
        # The first row that it may join, and the one that it may be appended to.
        group = 2 * batch.entry[i] + batch.side[i]
        prefetch(core.slots, core.groups[group ^ 1].head)
        prefetch(core.slots, core.groups[group].tail)
    for i in range(start, stop):
        clock = core.stream_clock[batch.side[i]]
        if time < clock:
            scalars.out_of_order += 1
            scalars.late += is_late(rules, batch.side[i], time, clock)
    # Rows of a tick are in order of their sides.
    advance_clock(core, batch.side[start], time)
    advance_clock(core, batch.side[stop - 1], time)
    expire(core, rules)
    return True
