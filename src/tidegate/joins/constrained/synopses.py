"""Synopses of a constrained join: rows in Yes, No and Unknown, found by the keys of their joins.

These functions change one row; `loop` decides when. See appendix B of Babu, Srivastava, Widom.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.joins.constrained.layout import (
    BY_CA,
    BY_OAP,
    CHILD,
    EMPTY,
    GONE,
    NEVER,
    NO,
    PARENT,
    RISING,
    UNKNOWN,
    YES,
    Core,
    Plan,
)
from tidegate.kernel import hash_table
from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.hashing import FACTOR, GOLDEN, multiply_shift
from tidegate.kernel.heap import drop_top
from tidegate.kernel.heap import push as push_node

#: Keys are divided into 64 parts by hash. Parts 62 and 63 are on trial (see `trial_of`).
_TRIALS = 62
#: The part of the keys by which CA is measured, and the memory of a row relative to that of a key
#: that CA remembers.
_WEIGHED = 61
_ROW = 4
#: Whether a child row can be in a future result. A SAVED row can be in one only if a constraint
#: fails: it is held because its key is sampled, so that the failure is detected.
NEEDED, SAVED, USELESS = range(3)


@inlined
def mixed(key: Any, edge: int) -> Any:
    """Return the hash of a key in one join, which differs from its hash in other joins."""
    return multiply_shift(key ^ (np.uint64(edge + 1) * GOLDEN), FACTOR)


@inlined
def find_group(core: Core, hashed: Any) -> int:
    """Return the group of a mixed hash; -1 if there is none."""
    return hash_table.find(core.table, core.groups["hash"], hashed)


@inlined
def need_group(core: Core, hashed: Any, edge: int) -> int:
    """Return the group of a mixed hash; create it if there is none."""
    scalars = core.scalars[0]
    at = hash_table.place_of(core.table, core.groups["hash"], hashed)
    if core.table[at] != 0:
        return hash_table.entry_at(core.table, at)
    if scalars.free_groups > 0:
        scalars.free_groups -= 1
        made = core.free_groups[scalars.free_groups]
    else:
        made = scalars.groups
        scalars.groups += 1
    hash_table.set_entry(core.table, at, hashed, made)
    scalars.seq += 1
    core.groups[made].hash = hashed
    core.groups[made].stamp = scalars.seq
    core.groups[made].edge = edge
    core.groups[made].child = -1
    core.groups[made].parents = -1
    core.groups[made].unknowns = 0
    core.groups[made].clustered = 0
    core.groups[made].closed = 0
    core.groups[made].dirty = 0
    core.groups[made].kept = 0
    core.groups[made].sampled = 0
    return int(made)


@inlined
def is_sampled(core: Core, plan: Plan, group: int) -> bool:
    """Return True if a key is sampled: with its rows, or by itself if joins share no key."""
    if plan.keyed:
        return bool(core.groups[group].sampled == 1)
    return bool(core.groups[group].hash < plan.threshold)


@inlined
def on_scales(hashed: Any) -> bool:
    """Return True if a key belongs to the part by which CA is measured."""
    return bool(hashed >> np.uint64(58) == np.uint64(_WEIGHED))


@inlined
def remember(core: Core, group: int, change: int) -> None:
    """Count a key that CA remembers, or with -1 no longer remembers."""
    if on_scales(core.groups[group].hash):
        core.entries[core.groups[group].edge] += change


@inlined
def maybe_free_group(core: Core, group: int) -> None:
    """Free a group if it has no rows and no CA state."""
    g = core.groups[group]
    if g.child != -1 or g.parents != -1:
        return
    if g.clustered == 1 and g.closed == 0 and g.kept == 0:
        return
    scalars = core.scalars[0]
    remember(core, group, -int(g.clustered))
    if g.clustered == 1 and g.stamp <= scalars.mark:
        core.departed_groups[scalars.departed_groups].edge = g.edge
        core.departed_groups[scalars.departed_groups].hash = g.hash
        scalars.departed_groups += 1
    hash_table.remove(core.table, core.groups["hash"], g.hash)
    core.groups[group].stamp = -1
    core.free_groups[scalars.free_groups] = group
    scalars.free_groups += 1


@inlined
def link(core: Core, slot: int, at: int, group: int, role: int) -> None:
    """Insert a row at the head of one of its group's lists."""
    head = core.groups[group].child if role == CHILD else core.groups[group].parents
    core.links[slot, at].group = group
    core.links[slot, at].next = head
    core.links[slot, at].prev = -1
    if head != -1:
        core.links[head, at].prev = slot
    if role == CHILD:
        core.groups[group].child = slot
    else:
        core.groups[group].parents = slot


@inlined
def unlink(core: Core, slot: int, at: int, role: int) -> None:
    """Remove a row from one of its lists."""
    group = core.links[slot, at].group
    if group == -1:
        return
    nxt, prev = core.links[slot, at].next, core.links[slot, at].prev
    if nxt != -1:
        core.links[nxt, at].prev = prev
    if prev != -1:
        core.links[prev, at].next = nxt
    elif role == CHILD:
        core.groups[group].child = nxt
    else:
        core.groups[group].parents = nxt
    core.links[slot, at].group = -1
    maybe_free_group(core, group)


@inlined
def child_of(core: Core, plan: Plan, slot: int, edge: int) -> int:
    """Return the child row of a row; -1 if there is none."""
    return joinable(core, plan, core.links[slot, plan.at_parent[edge]].group, slot)


@inlined
def joinable(core: Core, plan: Plan, group: int, slot: int) -> int:
    """Return the child row of a group that can be in a result with a row; -1 if there is none."""
    child = core.groups[group].child
    while child != -1 and (core.slots[child].status == GONE or not meet(core, child, slot)):
        child = core.links[child, plan.at_child[core.groups[group].edge]].next
    return int(child)


@inlined
def meet(core: Core, one: int, other: int) -> bool:
    """Return True if the windows of two rows overlap.

    A row whose window has ended is held while another stream may lag behind. Its key may have come
    again meanwhile: rows after its window must not find it.
    """
    here, there = core.slots[one], core.slots[other]
    return bool(here.end > there.time and there.end > here.time)


@inlined
def push(core: Core, slot: int) -> None:
    """Put a row whose status changed on the stack, so that its effects are propagated."""
    scalars = core.scalars[0]
    if core.slots[slot].pending == 0:
        core.slots[slot].pending = 1
        core.stack[scalars.stack] = slot
        scalars.stack += 1


@inner
def list_children(core: Core, plan: Plan, group: int) -> None:
    """List the child rows of a group for a check by `useless`."""
    edge = core.groups[group].edge
    child = core.groups[group].child
    while child != -1:
        list_one(core, child)
        child = core.links[child, plan.at_child[edge]].next


@inlined
def list_one(core: Core, slot: int) -> None:
    """List a row for a check by `useless`."""
    scalars = core.scalars[0]
    if core.slots[slot].listed == 0:
        core.slots[slot].listed = 1
        core.recheck[scalars.recheck] = slot
        scalars.recheck += 1


@inlined
def trial_of(core: Core, plan: Plan, group: int) -> int:
    """Return the trial that a key is in: 0 keeps No, 1 does not; negative for all other keys."""
    if not plan.choosable[plan.child[core.groups[group].edge]]:
        return -1
    return int(np.int64(core.groups[group].hash >> np.uint64(58)) - _TRIALS)


@inlined
def on_trial(core: Core, plan: Plan, group: int, change: int) -> None:
    """Add `change` to the number of rows that the trial of the key holds."""
    trial = trial_of(core, plan, group)
    child = core.streams[plan.child[core.groups[group].edge]]
    if trial == 0:
        child.trial_keeping += change
    elif trial == 1:
        child.trial_dropping += change


@inlined
def leave_unknown(core: Core, plan: Plan, slot: int) -> None:
    """Remove a row from the number of Unknown parents of its children."""
    stream = core.slots[slot].stream
    for i in range(plan.downs[stream]):
        edge = plan.down[stream, i]
        group = core.links[slot, plan.at_parent[edge]].group
        core.groups[group].unknowns -= 1
        on_trial(core, plan, group, -1)
        if core.groups[group].unknowns == 0 and is_over(core, group):
            list_children(core, plan, group)


@inlined
def set_status(core: Core, plan: Plan, slot: int, status: int) -> None:
    """Move a row to another component, and have the effects propagated."""
    old = core.slots[slot].status
    stream = core.slots[slot].stream
    if old == UNKNOWN:
        leave_unknown(core, plan, slot)
    if status == NO:
        no_on_trial(core, plan, slot, 1)
    core.held[stream, old] -= 1
    core.held[stream, status] += 1
    core.slots[slot].status = status
    core.slots[slot].dirty = 1
    push(core, slot)


@inlined
def new_slot(core: Core) -> int:
    """Return an unused slot."""
    scalars = core.scalars[0]
    if scalars.free > 0:
        scalars.free -= 1
        slot = core.free[scalars.free]
    else:
        slot = scalars.slots
        scalars.slots += 1
    scalars.seq += 1
    core.slots[slot].seq = scalars.seq
    core.slots[slot].pending = 0
    core.slots[slot].listed = 0
    core.slots[slot].kept = 0
    core.slots[slot].dirty = 0
    for at in range(core.links.shape[1]):
        core.links[slot, at].group = -1
    return int(slot)


@inlined
def remove(core: Core, plan: Plan, slot: int) -> None:
    """Remove a row and free its slot."""
    scalars = core.scalars[0]
    stream, status = core.slots[slot].stream, core.slots[slot].status
    if status == UNKNOWN:
        leave_unknown(core, plan, slot)
    if status == NO:
        no_on_trial(core, plan, slot, -1)
    core.held[stream, status] -= 1
    for at in range(plan.degree[stream]):
        unlink(core, slot, at, plan.link_role[stream, at])
    if core.slots[slot].row >= 0:
        scalars.held_rows -= 1
    if core.slots[slot].seq <= scalars.mark:
        core.departed[scalars.departed] = core.slots[slot].seq
        scalars.departed += 1
    core.slots[slot].status = EMPTY
    core.slots[slot].pending = 0
    core.slots[slot].seq = -1
    core.free[scalars.free] = slot
    scalars.free += 1


@inlined
def keep_as_no(core: Core, plan: Plan, slot: int) -> None:
    """Move a row to No: keep only its key for its parents, and drop its payload (section 3.3.2)."""
    stream, status = core.slots[slot].stream, core.slots[slot].status
    if status != NO:
        no_on_trial(core, plan, slot, 1)
    core.held[stream, status] -= 1
    core.held[stream, NO] += 1
    core.slots[slot].status = NO
    core.slots[slot].dirty = 1
    for at in range(plan.degree[stream]):
        if plan.link_role[stream, at] == PARENT:
            unlink(core, slot, at, PARENT)
    if core.slots[slot].row >= 0:
        core.slots[slot].row = -1
        core.scalars[0].held_rows -= 1


@inlined
def no_on_trial(core: Core, plan: Plan, slot: int, change: int) -> None:
    """Count a row in No, or with -1 no longer, if its stream is on trial."""
    stream = core.slots[slot].stream
    if plan.choosable[stream]:
        on_trial(core, plan, core.links[slot, plan.at_child[plan.up[stream, 0]]].group, change)


@inlined
def keeps_no(core: Core, plan: Plan, slot: int) -> bool:
    """Return True if a row has to be kept in No.

    This is required if some parent cannot learn of it otherwise (section 4.1). Otherwise No is kept
    if that makes the state smaller (example 8.2).
    """
    stream = core.slots[slot].stream
    if plan.choosable[stream]:
        group = core.links[slot, plan.at_child[plan.up[stream, 0]]].group
        trial = trial_of(core, plan, group)
        if trial == 0 or (trial != 1 and core.streams[stream].keep == 1):
            return True
    for i in range(plan.ups[stream]):
        edge = plan.up[stream, i]
        rids, oac = plan.rids[edge], plan.oac[edge]
        no_rids = rids < 0 or core.constraints[rids].k == NEVER
        if no_rids and (oac < 0 or core.constraints[oac].k == NEVER):
            return True
    return False


@inlined
def is_over(core: Core, group: int) -> bool:
    """Return True if constraints say that no parent with this key comes, also if it is sampled."""
    return bool(core.groups[group].closed == 1 or core.groups[group].kept == 1)


@inlined
def useless(core: Core, plan: Plan, slot: int) -> int:
    """Return USELESS, SAVED or NEEDED for a child row (theorem 5.1, and section 5.1 for No)."""
    stream = core.slots[slot].stream
    if core.slots[slot].status == NO:
        for i in range(plan.ups[stream]):
            group = core.links[slot, plan.at_child[plan.up[stream, i]]].group
            if core.groups[group].closed == 0:
                return NEEDED
        return USELESS if plan.ups[stream] > 0 else NEEDED
    verdict = NEEDED
    for at in range(plan.covers[stream]):
        closed, over = True, True
        for i in range(plan.ups[stream]):
            if (plan.cover[stream, at] >> i) & 1:
                group = core.links[slot, plan.at_child[plan.up[stream, i]]].group
                closed = closed and core.groups[group].closed == 1
                over = over and is_over(core, group) and core.groups[group].unknowns == 0
        if over and closed:
            return USELESS
        if over:
            verdict = SAVED
    return verdict


@inner
def eliminate(core: Core, plan: Plan, slot: int) -> int:
    """Remove a useless row and all rows above that join it; return their number (section 5.1)."""
    scalars = core.scalars[0]
    gone = 0
    first = core.slots[slot].stream
    stays = core.slots[slot].end - core.streams[first].clock
    if plan.rows[first] > 0:
        stays = core.slots[slot].num + plan.rows[first] - core.streams[first].count
    credit, passed = 0, 0
    for i in range(plan.ups[first]):
        edge = plan.up[first, i]
        at_child = core.links[slot, plan.at_child[edge]]
        if plan.weighed[edge] and on_scales(core.groups[at_child.group].hash):
            credit |= 1 << i
        if plan.ordering[edge] and at_child.value < core.constraints[plan.oap[edge]].low:
            passed |= 1 << i
    core.slots[slot].pending = 1
    core.stack[scalars.stack] = slot
    scalars.stack += 1
    while scalars.stack > 0:
        scalars.stack -= 1
        at = core.stack[scalars.stack]
        stream = core.slots[at].stream
        for i in range(plan.ups[stream]):
            edge = plan.up[stream, i]
            group = core.links[at, plan.at_child[edge]].group
            above = core.groups[group].parents
            while above != -1:
                push(core, above)
                above = core.links[above, plan.at_parent[edge]].next
        remove(core, plan, at)
        gone += 1
    for i in range(plan.ups[first]):
        if (credit >> i) & 1:
            core.savings[BY_CA, plan.up[first, i]].cleared += _ROW * gone * float(max(stays, 0))
        if (passed >> i) & 1:
            core.savings[BY_OAP, plan.up[first, i]].cleared += _ROW * gone * float(max(stays, 0))
    return gone


@inlined
def add_timer(core: Core, timer: int, rank: int, seq: int, item: int) -> None:
    """Schedule a check for when a value is passed."""
    own = core.heaps[timer]
    heap = core.timers[own.start : own.start + own.room]
    push_node(heap, own.length, rank, seq, item)
    own.length += 1


@inlined
def drop_timer(core: Core, timer: int) -> None:
    """Remove the first entry of a timer."""
    own = core.heaps[timer]
    heap = core.timers[own.start : own.start + own.room]
    drop_top(heap, own.length)
    own.length -= 1


@inlined
def note_changed(core: Core, slot: int) -> None:
    """List a row to be settled after all effects have been propagated."""
    scalars = core.scalars[0]
    core.changed[scalars.changed] = slot
    scalars.changed += 1


@inlined
def set_aside(core: Core, plan: Plan, slot: int, why: int) -> None:
    """Record a row that a constraint drops, so that a repair finds the results that may be missing.

    Rows that are dropped together with it need no record. They join it, and joins are many-one, so
    all their results contain this row.
    """
    scalars = core.scalars[0]
    scalars.dropped += 1
    if plan.archived and core.slots[slot].row >= 0:
        noted = scalars.noted
        core.shed[noted].row = core.slots[slot].row
        core.shed[noted].time = core.slots[slot].time
        core.shed[noted].at = scalars.at
        core.shed[noted].stream = core.slots[slot].stream
        core.shed[noted].why = why
        scalars.noted += 1


@inlined
def stands(status: int) -> bool:
    """Return True if a row is in Yes."""
    return bool(status in (YES, RISING))
