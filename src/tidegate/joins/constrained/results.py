"""Classify a row of a constrained join as Yes, No or Unknown, and generate its results.

Babu, Srivastava, Widom: section 3.2 and appendices B, C and D.
"""

from __future__ import annotations

import numpy as np

from tidegate.joins.constrained.layout import (
    NO,
    RISING,
    UNKNOWN,
    YES,
    Core,
    Plan,
)
from tidegate.joins.constrained.synopses import child_of, stands
from tidegate.kernel.compiling import Array, inlined


@inlined
def evaluate(core: Core, plan: Plan, slot: int) -> int:
    """Return the component of a row: theorems 3.1 and 3.2, figures 13, 18 and 19."""
    stream = core.slots[slot].stream
    missing = False
    if not plan.deep[stream]:
        for i in range(plan.downs[stream]):
            child = child_of(core, plan, slot, plan.down[stream, i])
            if child == -1 or core.slots[child].status == UNKNOWN:
                missing = True
            elif core.slots[child].status == NO:
                return NO
        return UNKNOWN if missing else RISING
    assign = core.assign
    assign[:] = -1
    assign[stream] = slot
    for i in range(plan.walks[stream]):
        edge = plan.walk[stream, i]
        parent = assign[plan.parent[edge]]
        if parent == -1:
            continue
        known = assign[plan.child[edge]]
        if known != -1:
            # A second path to a stream must lead to the same row: one with the same key.
            here = core.links[parent, plan.at_parent[edge]].group
            if here != core.links[known, plan.at_child[edge]].group:
                return NO
            continue
        child = child_of(core, plan, parent, edge)
        if child == -1:
            if stands(core.slots[parent].status):
                return NO  # the child was there, and is gone
            missing = True
        elif core.slots[child].status == NO:
            return NO
        else:
            assign[plan.child[edge]] = child
    return UNKNOWN if missing else RISING


@inlined
def generate(core: Core, plan: Plan, slot: int, out: Array, found: int) -> int:
    """Generate the results of a row of the cover that has just become Yes.

    Results are written to `out` after the `found` that are there; the new number is returned. When
    `out` is full, `PAUSED` is set and the next call continues at `assign` and `cursor`.
    """
    scalars = core.scalars[0]
    assign, cursor = core.assign, core.cursor
    stream = core.slots[slot].stream
    steps = plan.steps[stream]
    at, forward = 0, True
    if scalars.paused:
        scalars.paused = 0
        at = steps
    else:
        assign[:] = -1
        assign[stream] = slot
    while at >= 0:
        if at == steps:
            if _in_windows(core):
                if found == out.shape[0]:
                    scalars.paused = 1
                    return found
                _write(core, plan, out, found)
                found += 1
            at -= 1
            forward = False
            continue
        edge = plan.step_edge[stream, at]
        if plan.step_up[stream, at]:
            parent = plan.parent[edge]
            if forward:
                group = core.links[assign[plan.child[edge]], plan.at_child[edge]].group
                above = core.groups[group].parents
            else:
                above = core.links[assign[parent], plan.at_parent[edge]].next
            while above != -1 and not _can_join(core, plan, above):
                above = core.links[above, plan.at_parent[edge]].next
            assign[parent] = above
            forward = above != -1
        elif forward and assign[plan.child[edge]] != -1:
            here = core.links[assign[plan.parent[edge]], plan.at_parent[edge]].group
            known = assign[plan.child[edge]]
            forward = here == core.links[known, plan.at_child[edge]].group
            cursor[at] = 0
        elif forward:
            child = child_of(core, plan, assign[plan.parent[edge]], edge)
            forward = child != -1 and core.slots[child].status != NO
            # Only in a cycle can a stream of the cover be below another.
            forward = forward and _can_join(core, plan, child)
            cursor[at] = forward
            if forward:
                assign[plan.child[edge]] = child
        elif cursor[at]:
            child = -1
            if plan.whole:
                child = core.links[assign[plan.child[edge]], plan.at_child[edge]].next
                while child != -1 and core.slots[child].status != YES:
                    child = core.links[child, plan.at_child[edge]].next
            assign[plan.child[edge]] = child
            forward = child != -1
        at += 1 if forward else -1
    return found


@inlined
def _can_join(core: Core, plan: Plan, slot: int) -> bool:
    """Return True if a row can be in a result. A row of the cover must have given its own results.

    So each result is given once.
    """
    status = core.slots[slot].status
    if plan.covering[core.slots[slot].stream]:
        return bool(status == YES)
    return bool(status in (YES, UNKNOWN, RISING))


@inlined
def _in_windows(core: Core) -> bool:
    """Return True if all rows were in their windows when the latest arrived."""
    latest = core.slots[core.assign[0]].time
    first_end = core.slots[core.assign[0]].end
    for s in range(1, core.assign.shape[0]):
        latest = max(latest, core.slots[core.assign[s]].time)
        first_end = min(first_end, core.slots[core.assign[s]].end)
    return bool(latest < first_end)


@inlined
def _write(core: Core, plan: Plan, out: Array, at: int) -> None:
    kept = 0
    for s in range(core.assign.shape[0]):
        out[at, s] = core.slots[core.assign[s]].row
        kept |= core.slots[core.assign[s]].kept
    core.scalars[0].kept_results += kept
    # Results of one key belong to the same part.
    parent = core.assign[plan.parent[0]]
    key = core.groups[core.links[parent, plan.at_parent[0]].group].hash
    part = np.int64(key >> np.uint64(60))
    core.losses[part].given += 1
    core.losses[part].kept += kept
