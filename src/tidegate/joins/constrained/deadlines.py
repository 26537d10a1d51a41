"""Deadlines of constraints: decide, as counts, times and values pass, what can no longer arrive.

Babu, Srivastava, Widom: sections 4.2, 5.2, 6.2 and F.2.
"""

from __future__ import annotations

from tidegate.joins.constrained.layout import GONE, NEVER, NO, RECHECK, STACK, UNKNOWN, Core, Plan
from tidegate.joins.constrained.monitor import asleep, observe
from tidegate.joins.constrained.synopses import (
    add_timer,
    child_of,
    drop_timer,
    find_group,
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
from tidegate.kernel.compiling import inlined, inner

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
    return bool(core.ints[STACK] > 0 or core.ints[RECHECK] > 0)


@inlined
def _over(core: Core, plan: Plan, c: int, since: int) -> bool:
    """Return True if k rows have come, or more than the time k has passed."""
    if core.k[c] == NEVER:
        return False
    if plan.timed[c]:
        return bool(since + core.k[c] < core.horizon[plan.axis[c]])
    return bool(since + core.k[c] <= core.counts[plan.axis[c]])


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
    while core.timer_size[timer] > 0:
        top = core.timers[core.timer_at[timer]]
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
    if core.k[c] == NEVER:
        return
    while core.timer_size[timer] > 0:
        top = core.timers[core.timer_at[timer]]
        slot = top.item
        if core.slots[slot].seq == top.seq and core.slots[slot].status == UNKNOWN:
            if top.rank >= core.low[c]:
                break
            _give_up(core, plan, slot, edge, c)
        drop_timer(core, timer)


@inlined
def _end_of_cluster(core: Core, plan: Plan, edge: int) -> None:
    """CA: close keys once more than k rows of other keys have come since their first row."""
    timer, c = plan.ca_timer[edge], plan.ca[edge]
    while core.timer_size[timer] > 0:
        top = core.timers[core.timer_at[timer]]
        group, rank = top.item, top.rank
        if core.groups[group].stamp == top.seq:
            since = core.groups[group].ca
            if not _over(core, plan, c, rank if plan.timed[c] else rank + 1):
                break
            drop_timer(core, timer)
            if since > rank:
                add_timer(core, timer, since, core.groups[group].stamp, group)
                continue
            if core.groups[group].hash < plan.threshold:
                _keep_group(core, plan, group)
            else:
                core.groups[group].closed = 1
                core.groups[group].dirty = 1
                list_children(core, plan, group)
            maybe_free_group(core, group)
            continue
        drop_timer(core, timer)


@inner
def _keep_group(core: Core, plan: Plan, group: int) -> None:
    """Keep the rows of a sampled key, and mark them as kept by sampling."""
    core.groups[group].kept = 1
    core.groups[group].dirty = 1
    edge = core.groups[group].edge
    child = core.groups[group].child
    while child != -1:
        core.slots[child].kept = 1
        core.slots[child].dirty = 1
        child = core.links[child, plan.at_child[edge]].next


@inlined
def _passed_parents(core: Core, plan: Plan, edge: int) -> None:
    """OAP: close keys that the parent stream has passed."""
    timer, c = plan.oap_timer[edge], plan.oap[edge]
    if core.k[c] == NEVER or core.idle[plan.parent.shape[0] + edge] > 0:
        return
    while core.timer_size[timer] > 0:
        top = core.timers[core.timer_at[timer]]
        slot = top.item
        if core.slots[slot].seq == top.seq and core.slots[slot].status != GONE:
            if top.rank >= core.low[c]:
                break
            group = core.links[slot, plan.at_child[edge]].group
            if core.groups[group].hash < plan.threshold:
                _keep_group(core, plan, group)
            else:
                core.groups[group].closed = 1
                core.groups[group].dirty = 1
                list_one(core, slot)
        drop_timer(core, timer)


@inlined
def cluster(core: Core, plan: Plan, edge: int, key: int, time: int) -> None:
    """CA: count a row of a key (section 5.2)."""
    c = plan.ca[edge]
    hashed = mixed(key, edge)
    if core.idle[edge] == 1 and not on_scales(hashed):
        known = find_group(core, hashed)
        if known == -1 or core.groups[known].clustered == 0:
            return
    group = need_group(core, hashed, edge)
    count = core.counts[plan.axis[c]]
    core.groups[group].dirty = 1
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
    if asleep(core, plan, c):
        return
    first, size = core.record_at[c] + core.record_first[c], core.record_size[c]
    now = core.clock[plan.axis[c]] if plan.timed[c] else core.counts[plan.axis[c]]
    largest = core.records[first + size - 1].value if size > 0 else core.low[c]
    if value > largest or (size == 0 and core.low[c] == -NEVER):
        # A given k needs few maxima: with steps, the bound rises slightly later.
        step = 1 if plan.detected[c] or core.k[c] == NEVER else core.k[c] // _RECORDS + 1
        if size == 0 or core.records[first + size - 1].at // step != now // step:
            size += 1
        core.records[first + size - 1].at = now
        core.records[first + size - 1].value = value
        core.record_size[c] = size
        return
    if not plan.detected[c] or value == largest:
        return
    if value < core.low[c]:
        observe(core, plan, c, core.k[c] + 1)
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
    while core.record_size[c] > 0:
        record = core.records[core.record_at[c] + core.record_first[c]]
        if not _over(core, plan, c, record.at):
            break
        core.low[c] = record.value
        core.record_first[c] += 1
        core.record_size[c] -= 1
