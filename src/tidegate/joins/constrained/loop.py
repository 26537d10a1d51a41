"""The compiled loop of the constrained join: one row after the other, in arrival order.

Babu, Srivastava, Widom: sections 3 to 6 and appendices B, C, D and F. For each row, the loop
inserts it, propagates Yes and No to parents, gives results, and then drops the rows that can never
matter again according to the constraints.
"""

from __future__ import annotations

from tidegate.joins.constrained.deadlines import cluster, deadlines, record, wait
from tidegate.joins.constrained.layout import (
    CHILD,
    CLEARED,
    EMPTY,
    GONE,
    KEYED,
    NEVER,
    NO,
    PARENT,
    PASSES,
    RISING,
    SAMPLED,
    UNKNOWN,
    YES,
    Batch,
    Core,
    Plan,
)
from tidegate.joins.constrained.monitor import (
    adopt,
    is_used,
    judge,
    observe,
    watch_anew,
    watch_rids,
    weigh,
)
from tidegate.joins.constrained.results import evaluate, generate
from tidegate.joins.constrained.synopses import (
    SAVED,
    USELESS,
    add_timer,
    drop_timer,
    eliminate,
    find_group,
    is_over,
    joinable,
    keep_as_no,
    keeps_no,
    leave_unknown,
    link,
    list_one,
    meet,
    mixed,
    need_group,
    new_slot,
    no_on_trial,
    note_changed,
    on_trial,
    push,
    remove,
    set_aside,
    set_status,
    stands,
    useless,
)
from tidegate.kernel.compiling import Array, entry_point, inlined, inner

#: Why `run` stopped.
DONE, FULL = 0, 1


@entry_point
def run(core: Core, plan: Plan, batch: Batch, out: Array, found: int) -> tuple[int, int]:
    """Process a batch. Stop with FULL when the next result does not fit into `out`."""
    scalars = core.scalars[0]
    while True:
        while scalars.stack > 0:
            slot = core.stack[scalars.stack - 1]
            if core.slots[slot].status == RISING and plan.covering[core.slots[slot].stream]:
                core.slots[slot].status = YES
                found = generate(core, plan, slot, out, found)
                if scalars.paused:
                    core.slots[slot].status = RISING
                    return found, FULL
                _count_status(core, slot)
            scalars.stack -= 1
            _spread(core, plan, slot)
            note_changed(core, slot)
        _settle(core, plan)
        if deadlines(core, plan):
            continue
        if scalars.at == batch.time.shape[0]:
            return found, DONE
        _take(core, plan, batch, scalars.at)
        scalars.at += 1


@entry_point
def advance_clock(core: Core, plan: Plan, told: Array) -> None:
    """Advance the stream clocks to times seen elsewhere, and expire rows."""
    for s in range(told.shape[0]):
        core.streams[s].clock = max(core.streams[s].clock, told[s])
    _look_ahead(core, plan)
    _expire(core, plan)


@inlined
def _count_status(core: Core, slot: int) -> None:
    stream = core.slots[slot].stream
    core.held[stream, RISING] -= 1
    core.held[stream, YES] += 1


@inlined
def _spread(core: Core, plan: Plan, slot: int) -> None:
    """Propagate the new status of a row to its parents (figures 14 and 15)."""
    status, stream = core.slots[slot].status, core.slots[slot].stream
    if status == GONE:
        return
    if status == RISING:
        core.slots[slot].status = YES
        _count_status(core, slot)
    for i in range(plan.ups[stream]):
        edge = plan.up[stream, i]
        group = core.links[slot, plan.at_child[edge]].group
        above = core.groups[group].parents
        while above != -1:
            if core.slots[above].status == UNKNOWN and meet(core, slot, above):
                verdict = evaluate(core, plan, above) if stands(status) else NO
                if verdict != UNKNOWN:
                    set_status(core, plan, above, verdict)
            above = core.links[above, plan.at_parent[edge]].next


@inlined
def _settle(core: Core, plan: Plan) -> None:
    """Drop rows whose fate is decided: theorem 3.5, section 3.3.1, and theorem 5.1."""
    scalars = core.scalars[0]
    for i in range(scalars.changed):
        slot = core.changed[i]
        core.slots[slot].pending = 0
        stream, status = core.slots[slot].stream, core.slots[slot].status
        if status == GONE:
            remove(core, plan, slot)
        elif status == NO or (status == YES and plan.single[stream]):
            # In a cycle, a row that has given its only result acts like No for its parents.
            if keeps_no(core, plan, slot):
                keep_as_no(core, plan, slot)
                list_one(core, slot)
            else:
                scalars.eliminated += core.slots[slot].row >= 0
                remove(core, plan, slot)
    scalars.changed = 0
    while scalars.recheck > 0:
        scalars.recheck -= 1
        slot = core.recheck[scalars.recheck]
        core.slots[slot].listed = 0
        if core.slots[slot].status == EMPTY:
            continue
        verdict = useless(core, plan, slot)
        if verdict == USELESS:
            set_aside(core, plan, slot, CLEARED)
            scalars.eliminated += eliminate(core, plan, slot)
        elif verdict == SAVED:
            core.slots[slot].kept = 1
            core.slots[slot].dirty = 1


@inner
def _forget_no(core: Core, plan: Plan) -> None:
    """Drop rows that were kept in No only because a constraint had not been found yet."""
    for slot in range(core.scalars[0].slots):
        if core.slots[slot].status == NO and not keeps_no(core, plan, slot):
            remove(core, plan, slot)


# ---- arrival ----------------------------------------------------------------------------------


@inlined
def _take(core: Core, plan: Plan, batch: Batch, i: int) -> None:
    """Process one arrival."""
    scalars = core.scalars[0]
    stream, time, bits = batch.stream[i], batch.time[i], batch.bits[i]
    own = core.streams[stream]
    own.count += 1
    scalars.out_of_order += time < own.clock
    own.clock = max(own.clock, time)
    _look_ahead(core, plan)
    _expire(core, plan)
    if plan.by[stream] >= 0:
        _push_out(core, plan, stream, batch.hashes[i, plan.by[stream]])
    for c in range(plan.axis.shape[0]):
        if plan.axis[c] == stream:
            if plan.ordered[c] >= 0 and bits & KEYED:
                record(core, plan, c, batch.values[i, plan.ordered[c]])
            core.constraints[c].in_use += is_used(core, plan, c)
            if plan.detected[c] and own.count == 1:
                watch_anew(core, plan, c)
                core.constraints[c].begun = core.constraints[c].opened
            elif plan.detected[c] and own.count - core.constraints[c].since >= plan.watch:
                adopt(core, plan, c)
    if scalars.found:
        scalars.found = 0
        _forget_no(core, plan)
    judge(core, plan, stream)
    weigh(core, plan, stream)
    if not bits & KEYED:
        scalars.null_keys += 1
        return
    for j in range(plan.degree[stream]):
        if plan.link_role[stream, j] == PARENT:
            edge = plan.link_edge[stream, j]
            if plan.ca[edge] >= 0:
                cluster(core, plan, edge, batch.hashes[i, j], time, bits & SAMPLED != 0)
    passes = bits & PASSES
    if passes:
        scalars.late += _is_late(core, plan, stream, time)
    if not passes and (plan.ups[stream] == 0 or plan.whole):
        return
    slot = new_slot(core)
    core.slots[slot].stream = stream
    core.slots[slot].time = time
    core.slots[slot].end = batch.end[i]
    core.slots[slot].num = own.count
    core.slots[slot].sampled = 1 if bits & SAMPLED else 0
    core.slots[slot].row = batch.row[i] if passes else -1
    core.slots[slot].status = UNKNOWN if passes else NO
    core.held[stream, core.slots[slot].status] += 1
    scalars.held_rows += 1 if passes else 0
    _enter(core, plan, batch, i, slot)
    if plan.window_timer[stream] >= 0:
        rank = core.slots[slot].num if plan.rows[stream] > 0 else core.slots[slot].end
        add_timer(core, plan.window_timer[stream], rank, core.slots[slot].seq, slot)
    if not passes:
        no_on_trial(core, plan, slot, 1)
        push(core, slot)
        return
    verdict = RISING if plan.whole else evaluate(core, plan, slot)
    if verdict != UNKNOWN:
        set_status(core, plan, slot, verdict)
    else:
        wait(core, plan, slot)


@inlined
def _enter(core: Core, plan: Plan, batch: Batch, i: int, slot: int) -> None:
    """Insert a newcomer into the groups of its keys."""
    stream = core.slots[slot].stream
    for j in range(plan.degree[stream]):
        edge, role = plan.link_edge[stream, j], plan.link_role[stream, j]
        if role == PARENT and core.slots[slot].status == NO:
            continue
        group = need_group(core, mixed(batch.hashes[i, j], edge), edge)
        core.groups[group].sampled |= core.slots[slot].sampled
        core.links[slot, j].base = 0
        if plan.link_value[stream, j] >= 0:
            core.links[slot, j].value = batch.values[i, plan.link_value[stream, j]]
        if role == PARENT:
            core.groups[group].unknowns += 1
            on_trial(core, plan, group, 1)
            rids = plan.rids[edge]
            if rids >= 0:
                timed = plan.timed[rids]
                base = core.slots[slot].time if timed else core.streams[plan.child[edge]].count
                core.links[slot, j].base = base
                if plan.detected[rids] and joinable(core, plan, group, slot) != -1:
                    observe(core, plan, rids, 0)
        elif role == CHILD:
            if not plan.whole:
                core.scalars[0].violations += joinable(core, plan, group, slot) != -1
            watch_rids(core, plan, edge, group, core.slots[slot].time)
            if plan.oap_timer[edge] >= 0:
                value = core.links[slot, j].value
                add_timer(core, plan.oap_timer[edge], value, core.slots[slot].seq, slot)
            if is_over(core, group):
                list_one(core, slot)
        link(core, slot, j, group, role)


@inlined
def _is_late(core: Core, plan: Plan, stream: int, time: int) -> bool:
    """Return True if partners of a row may have been dropped before it came.

    The horizon of a stream is the earliest time at which rows are expected of it, by `lateness` and
    `lag`. A row of stream o with a window in time expires when the horizons of all streams but o
    have reached its end (`_expire`), and it can be in a result with a row of time t only if t is
    before its end. So a row is late if, for some other stream o with such a window, the horizons of
    all streams but o, its own among them, are after t. It is also late if it is before its own
    horizon and a constraint in the time of its stream is used: the constraint drops rows that only
    earlier rows could join (`deadlines`). Windows in rows end by arrivals, whatever their times.
    """
    if time >= core.streams[stream].horizon:
        return False
    for c in range(plan.axis.shape[0]):
        if plan.axis[c] == stream and plan.timed[c] and core.constraints[c].k != NEVER:
            return True
    for o in range(core.streams.shape[0]):
        if o != stream and plan.window_timer[o] >= 0 and plan.rows[o] == 0:
            passed = True
            for p in range(core.streams.shape[0]):
                if p != o and time >= core.streams[p].horizon:
                    passed = False
            if passed:
                return True
    return False


# ---- windows ----------------------------------------------------------------------------------


@inlined
def _look_ahead(core: Core, plan: Plan) -> None:
    """Compute, for each stream, the earliest time that a future row can have."""
    latest = core.streams[0].clock
    for s in range(1, core.streams.shape[0]):
        latest = max(latest, core.streams[s].clock)
    for s in range(core.streams.shape[0]):
        ahead = core.streams[s].clock
        if plan.lag >= 0:
            ahead = max(ahead, latest - plan.lag)
        core.streams[s].horizon = ahead - plan.lateness


@inlined
def _expire(core: Core, plan: Plan) -> None:
    """Drop rows whose window has ended, so that no future row can join them."""
    for s in range(core.streams.shape[0]):
        timer = plan.window_timer[s]
        if timer < 0:
            continue
        limit = core.streams[s].count - plan.rows[s]
        if plan.rows[s] == 0:
            limit = NEVER
            for other in range(core.streams.shape[0]):
                if other != s:
                    limit = min(limit, core.streams[other].horizon)
        while core.heaps[timer].length > 0:
            top = core.timers[core.heaps[timer].start]
            slot = top.item
            if core.slots[slot].seq == top.seq:
                if top.rank > limit:
                    break
                _leave_window(core, plan, slot)
            drop_timer(core, timer)


@inlined
def _leave_window(core: Core, plan: Plan, slot: int) -> None:
    """Drop a row from its window; parents that wait for other children become No."""
    stream, status = core.slots[slot].stream, core.slots[slot].status
    if status == GONE:
        return
    if status == UNKNOWN:
        leave_unknown(core, plan, slot)
    elif status == NO:
        no_on_trial(core, plan, slot, -1)
    core.held[stream, status] -= 1
    core.held[stream, GONE] += 1
    core.slots[slot].status = GONE
    core.scalars[0].expired += 1
    push(core, slot)
    # Update the parents at once: a newcomer may have the same key and be their next child.
    for i in range(plan.ups[stream]):
        edge = plan.up[stream, i]
        above = core.groups[core.links[slot, plan.at_child[edge]].group].parents
        while above != -1:
            if core.slots[above].status == UNKNOWN and meet(core, slot, above):
                set_status(core, plan, above, NO)
            above = core.links[above, plan.at_parent[edge]].next


@inner
def _push_out(core: Core, plan: Plan, stream: int, key: int) -> None:
    """Count a newcomer in the window of its value, and drop the rows that fall out of it."""
    at = plan.by[stream]
    group = find_group(core, mixed(key, plan.link_edge[stream, at]))
    if group == -1:
        return
    slot = core.groups[group].parents
    while slot != -1:
        nxt = core.links[slot, at].next
        core.links[slot, at].base += 1
        core.slots[slot].dirty = 1
        if core.links[slot, at].base >= plan.rows[stream]:
            _leave_window(core, plan, slot)
        slot = nxt
