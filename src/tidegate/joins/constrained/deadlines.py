"""Deadlines of constraints: decide, as counts, times and values pass, what can no longer arrive.

Babu, Srivastava, Widom: sections 4.2, 5.2, 6.2 and F.2.
"""

from __future__ import annotations

from tidegate.joins.constrained.layout import (
    BY_CA,
    BY_OAP,
    GONE,
    NEVER,
    NO,
    UNKNOWN,
    Core,
    Plan,
)
from tidegate.joins.constrained.monitor import asleep, observe
from tidegate.joins.constrained.synopses import (
    add_timer,
    child_of,
    drop_timer,
    find_group,
    is_sampled,
    list_children,
    list_one,
    maybe_free_group,
    mixed,
    need_group,
    on_scales,
    remember,
    set_aside,
    set_status,
)
from tidegate.kernel.compiling import inlined

#: Approximate number of running maxima kept for an ordered attribute whose k is given.
_RECORDS = 64


@inlined
def wait(core: Core, plan: Plan, slot: int) -> None:
    """Set the timers of an Unknown row, one for each child that has not arrived."""
    stream, seq = core.slots[slot].stream, core.slots[slot].seq
    for i in range(plan.downs[stream]):
        edge = plan.down[stream, i]
        if child_of(core, plan, slot, edge) == -1:
            at = plan.at_parent[edge]
            if plan.rids_timer[edge] >= 0:
                add_timer(core, plan.rids_timer[edge], core.links[slot, at].base, seq, slot)
            if plan.oac_timer[edge] >= 0:
                add_timer(core, plan.oac_timer[edge], core.links[slot, at].value, seq, slot)


@inlined
def deadlines(core: Core, plan: Plan) -> bool:
    """Process all deadlines that have passed. Return True if there were any."""
    scalars = core.scalars[0]
    for c in range(plan.axis.shape[0]):
        if plan.ordered[c] >= 0:
            _raise_low(core, plan, c)
    for edge in range(plan.parent.shape[0]):
        if plan.rids_timer[edge] >= 0:
            _end_of_wait(core, plan, edge)
        if plan.oac_timer[edge] >= 0:
            _passed_children(core, plan, edge)
        if plan.ca_timer[edge] >= 0:
            _end_of_cluster(core, plan, edge)
        if plan.oap_timer[edge] >= 0:
            _passed_parents(core, plan, edge)
    return bool(scalars.stack > 0 or scalars.recheck > 0)


@inlined
def _over(core: Core, plan: Plan, c: int, since: int) -> bool:
    """Return True if k rows have come, or more than the time k has passed."""
    if core.constraints[c].k == NEVER:
        return False
    if plan.timed[c]:
        return bool(since + core.constraints[c].k < core.streams[plan.axis[c]].horizon)
    return bool(since + core.constraints[c].k <= core.streams[plan.axis[c]].count)


@inlined
def _give_up(core: Core, plan: Plan, slot: int, edge: int, c: int) -> None:
    """Decide that the missing child of an Unknown row will not come (sections 4.2 and F.2)."""
    if child_of(core, plan, slot, edge) != -1:
        return
    if core.slots[slot].sampled == 1:
        core.slots[slot].kept = 1
        core.slots[slot].dirty = 1
    else:
        set_aside(core, plan, slot, c)
        set_status(core, plan, slot, NO)


@inlined
def _end_of_wait(core: Core, plan: Plan, edge: int) -> None:
    """RIDS: give up on rows after k rows of the child stream."""
    timer, c = plan.rids_timer[edge], plan.rids[edge]
    while core.heaps[timer].length > 0:
        top = core.timers[core.heaps[timer].start]
        slot = top.item
        if core.slots[slot].seq == top.seq and core.slots[slot].status == UNKNOWN:
            if not _over(core, plan, c, top.rank):
                break
            _give_up(core, plan, slot, edge, c)
        drop_timer(core, timer)


@inlined
def _passed_children(core: Core, plan: Plan, edge: int) -> None:
    """OAC: give up on rows whose value the child stream has passed."""
    timer, c = plan.oac_timer[edge], plan.oac[edge]
    if core.constraints[c].k == NEVER:
        return
    while core.heaps[timer].length > 0:
        top = core.timers[core.heaps[timer].start]
        slot = top.item
        if core.slots[slot].seq == top.seq and core.slots[slot].status == UNKNOWN:
            if top.rank >= core.constraints[c].low:
                break
            _give_up(core, plan, slot, edge, c)
        drop_timer(core, timer)


@inlined
def _end_of_cluster(core: Core, plan: Plan, edge: int) -> None:
    """CA: close keys once more than k rows of other keys have come since their first row."""
    timer, c = plan.ca_timer[edge], plan.ca[edge]
    while core.heaps[timer].length > 0:
        top = core.timers[core.heaps[timer].start]
        group, rank = top.item, top.rank
        if core.groups[group].stamp == top.seq:
            since = core.groups[group].ca
            if not _over(core, plan, c, rank if plan.timed[c] else rank + 1):
                break
            drop_timer(core, timer)
            if since > rank:
                add_timer(core, timer, since, core.groups[group].stamp, group)
                continue
            _close(core, plan, group)
            list_children(core, plan, group)
            maybe_free_group(core, group)
            continue
        drop_timer(core, timer)


@inlined
def _close(core: Core, plan: Plan, group: int) -> None:
    """Close a key, of which no further parent is expected. A sampled one is only marked."""
    if is_sampled(core, plan, group):
        core.groups[group].kept = 1
    else:
        core.groups[group].closed = 1
    core.groups[group].dirty = 1


@inlined
def _passed_parents(core: Core, plan: Plan, edge: int) -> None:
    """OAP: close keys that the parent stream has passed."""
    timer, c = plan.oap_timer[edge], plan.oap[edge]
    if core.constraints[c].k == NEVER or core.savings[BY_OAP, edge].idle > 0:
        return
    while core.heaps[timer].length > 0:
        top = core.timers[core.heaps[timer].start]
        slot = top.item
        if core.slots[slot].seq == top.seq and core.slots[slot].status != GONE:
            if top.rank >= core.constraints[c].low:
                break
            group = core.links[slot, plan.at_child[edge]].group
            _close(core, plan, group)
            list_one(core, slot)
        drop_timer(core, timer)


@inlined
def cluster(core: Core, plan: Plan, edge: int, key: int, time: int, sampled: bool) -> None:
    """CA: count a row of a key (section 5.2)."""
    c = plan.ca[edge]
    hashed = mixed(key, edge)
    if core.savings[BY_CA, edge].idle == 1 and not on_scales(hashed):
        known = find_group(core, hashed)
        if known == -1 or core.groups[known].clustered == 0:
            return
    group = need_group(core, hashed, edge)
    count = core.streams[plan.axis[c]].count
    core.groups[group].dirty = 1
    core.groups[group].sampled |= sampled
    if core.groups[group].clustered == 0:
        core.groups[group].clustered = 1
        remember(core, group, 1)
        core.groups[group].ca = time if plan.timed[c] else count
        add_timer(core, plan.ca_timer[edge], core.groups[group].ca, core.groups[group].stamp, group)
        return
    if plan.timed[c]:
        observe(core, plan, c, time - core.groups[group].ca)
    else:
        core.groups[group].ca += 1
        observe(core, plan, c, count - core.groups[group].ca)


@inlined
def record(core: Core, plan: Plan, c: int, value: int) -> None:
    """OA: update the running maximum (section 6.2), and measure how far out of order a value is."""
    constraint = core.constraints[c]
    if asleep(core, plan, c):
        return
    first = constraint.record_start + constraint.record_first
    size = constraint.record_count
    now = core.streams[plan.axis[c]].clock if plan.timed[c] else core.streams[plan.axis[c]].count
    largest = core.records[first + size - 1].value if size > 0 else constraint.low
    if value > largest or (size == 0 and constraint.low == -NEVER):
        # A given k needs few maxima: with steps, the bound rises slightly later.
        step = 1 if plan.detected[c] or constraint.k == NEVER else constraint.k // _RECORDS + 1
        if size == 0 or core.records[first + size - 1].at // step != now // step:
            size += 1
        core.records[first + size - 1].at = now
        core.records[first + size - 1].value = value
        constraint.record_count = size
        return
    if not plan.detected[c] or value == largest:
        return
    if value < constraint.low:
        observe(core, plan, c, constraint.k + 1)
        return
    low, high = 0, size - 1
    while low < high:
        middle = (low + high) // 2
        if core.records[first + middle].value > value:
            high = middle
        else:
            low = middle + 1
    observe(core, plan, c, now - core.records[first + low].at)


@inlined
def _raise_low(core: Core, plan: Plan, c: int) -> None:
    """OA: raise the lower bound on future values to the maximum k rows back."""
    constraint = core.constraints[c]
    while constraint.record_count > 0:
        record = core.records[constraint.record_start + constraint.record_first]
        if not _over(core, plan, c, record.at):
            break
        constraint.low = record.value
        constraint.record_first += 1
        constraint.record_count -= 1
