"""Load the state of a constrained join from records, and maintain its hash table and timers."""

from __future__ import annotations

from tidegate.joins.constrained.deadlines import wait
from tidegate.joins.constrained.layout import (
    CHILD,
    NO,
    PARENT,
    UNKNOWN,
    Core,
    Plan,
)
from tidegate.joins.constrained.synopses import (
    add_timer,
    link,
    need_group,
    new_slot,
    no_on_trial,
    on_trial,
    remember,
)
from tidegate.kernel import hash_table
from tidegate.kernel.compiling import Array, entry_point
from tidegate.kernel.heap import push


@entry_point
def rehash(core: Core) -> None:
    """Insert all groups into a new table."""
    for group in range(core.scalars[0].groups):
        if core.groups[group].stamp >= 0:
            hash_table.add(core.table, core.groups[group].hash, group)


@entry_point
def tidy_timer(core: Core, plan: Plan, timer: int, of_groups: bool) -> None:
    """Drop timer entries of rows and groups that are gone."""
    own = core.heaps[timer]
    heap = core.timers[own.start : own.start + own.room]
    size = 0
    for i in range(own.length):
        item = heap[i].item
        alive = core.groups[item].stamp if of_groups else core.slots[item].seq
        if alive == heap[i].seq:
            push(heap, size, heap[i].rank, heap[i].seq, item)
            size += 1
    own.length = size


@entry_point
def load_group(core: Core, plan: Plan, edge: Array, hashed: Array, ca: Array, bits: Array) -> None:
    """Load the CA state of keys from a record."""
    for i in range(edge.shape[0]):
        group = need_group(core, hashed[i], edge[i])
        core.groups[group].ca = ca[i]
        core.groups[group].clustered = bits[i] & 1
        core.groups[group].closed = (bits[i] >> 1) & 1
        core.groups[group].kept = (bits[i] >> 2) & 1
        core.groups[group].sampled = (bits[i] >> 3) & 1
        remember(core, group, core.groups[group].clustered)
        if core.groups[group].clustered and not core.groups[group].closed:
            timer = plan.ca_timer[edge[i]]
            add_timer(core, timer, ca[i], core.groups[group].stamp, group)


@entry_point
def load_slots(core: Core, plan: Plan, loaded: Array, links: Array, hashes: Array) -> None:
    """Load rows in the order of their sequence numbers; a link without a group has -1 there."""
    scalars = core.scalars[0]
    for i in range(loaded.shape[0]):
        slot = new_slot(core)
        core.slots[slot] = loaded[i]
        core.slots[slot].pending = 0
        core.slots[slot].listed = 0
        core.slots[slot].dirty = 0
        stream, status = loaded[i].stream, loaded[i].status
        core.held[stream, status] += 1
        scalars.held_rows += 1 if loaded[i].row >= 0 else 0
        for j in range(plan.degree[stream]):
            if links[i, j].group == -1:
                continue
            edge, role = plan.link_edge[stream, j], plan.link_role[stream, j]
            group = need_group(core, hashes[i, j], edge)
            core.groups[group].sampled |= loaded[i].sampled
            core.links[slot, j].base = links[i, j].base
            core.links[slot, j].value = links[i, j].value
            if role == PARENT and status == UNKNOWN:
                core.groups[group].unknowns += 1
                on_trial(core, plan, group, 1)
            if role == CHILD and plan.oap_timer[edge] >= 0:
                add_timer(core, plan.oap_timer[edge], links[i, j].value, loaded[i].seq, slot)
            link(core, slot, j, group, role)
        if status == NO:
            no_on_trial(core, plan, slot, 1)
        if plan.window_timer[stream] >= 0:
            rank = loaded[i].num if plan.rows[stream] > 0 else loaded[i].end
            add_timer(core, plan.window_timer[stream], rank, loaded[i].seq, slot)
    for slot in range(scalars.slots):
        if core.slots[slot].status == UNKNOWN:
            wait(core, plan, slot)
