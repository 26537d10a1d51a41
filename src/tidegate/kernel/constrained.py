"""The loop of a constrained join: one tuple after the other, in the order of their arrival.

Babu, Srivastava, Widom: sections 3 to 6 and appendices B, C, D and F. A tuple is taken, what
follows from it is seen to (Yes and No travel to parents, results are given), and then what the
constraints say can never matter again is forgotten.
"""

from __future__ import annotations

from tidegate.kernel.compiling import Array, entry_point, inlined, inner
from tidegate.kernel.constrained_layout import (
    AT,
    CHANGED,
    CHILD,
    ELIMINATED,
    EMPTY,
    EXPIRED,
    GONE,
    HELD_ROWS,
    KEPT_RESULTS,
    KEYED,
    LATE,
    NEVER,
    NO,
    NULL_KEYS,
    PARENT,
    PASSES,
    RECHECK,
    RISING,
    SAMPLED,
    STACK,
    UNKNOWN,
    VIOLATIONS,
    YES,
    Batch,
    Core,
    Plan,
)
from tidegate.kernel.synopses import (
    add_timer,
    child_of,
    drop_timer,
    eliminate,
    find_group,
    joinable,
    keep_as_no,
    keeps_no,
    leave_unknown,
    link,
    list_children,
    list_one,
    maybe_free_group,
    meet,
    mixed,
    need_group,
    new_slot,
    no_on_trial,
    note_changed,
    on_scales,
    on_trial,
    push,
    remember,
    remove,
    set_status,
    stands,
    useless,
)
from tidegate.kernel.watching import adopt, judge, observe, watch_anew, watch_rids, weigh

#: What `run` says when it stops.
DONE, FULL = 0, 1


@entry_point
def run(core: Core, plan: Plan, batch: Batch, out: Array, found: int) -> tuple[int, int]:
    """Take a batch; stops with FULL when the next results may not fit into `out`."""
    ints = core.ints
    while True:
        while ints[STACK] > 0:
            slot = core.stack[ints[STACK] - 1]
            if core.slots[slot].status == RISING and plan.covering[core.slots[slot].stream]:
                core.slots[slot].status = YES
                room = out.shape[0] - found
                branches = plan.branches[core.slots[slot].stream]
                if room == 0 or (branches and generate(core, plan, slot, out, found, False) > room):
                    core.slots[slot].status = RISING
                    return found, FULL
                found += generate(core, plan, slot, out, found, True)
                _count_status(core, slot)
            ints[STACK] -= 1
            _spread(core, plan, slot)
            note_changed(core, slot)
        _settle(core, plan)
        if _timers(core, plan):
            continue
        if ints[AT] == batch.time.shape[0]:
            return found, DONE
        _take(core, plan, batch, ints[AT])
        ints[AT] += 1


@entry_point
def hear(core: Core, plan: Plan, told: Array) -> None:
    """Learn how far the streams have come elsewhere."""
    for s in range(told.shape[0]):
        core.clock[s] = max(core.clock[s], told[s])
    _look_ahead(core, plan)
    _expire(core, plan)


@inlined
def _count_status(core: Core, slot: int) -> None:
    stream = core.slots[slot].stream
    core.held[stream, RISING] -= 1
    core.held[stream, YES] += 1


@inlined
def _spread(core: Core, plan: Plan, slot: int) -> None:
    """Tell the parents of a tuple what has become of it (figures 14 and 15)."""
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
def evaluate(core: Core, plan: Plan, slot: int) -> int:
    """Which component a tuple belongs to: theorems 3.1 and 3.2, figures 13, 18 and 19."""
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
            # Another way to a stream must lead to the same tuple: one that has the same key.
            here = core.links[parent, plan.at_parent[edge]].group
            if here != core.links[known, plan.at_child[edge]].group:
                return NO
            continue
        child = child_of(core, plan, parent, edge)
        if child == -1:
            if stands(core.slots[parent].status):
                return NO  # it was there, and is gone
            missing = True
        elif core.slots[child].status == NO:
            return NO
        else:
            assign[plan.child[edge]] = child
    return UNKNOWN if missing else RISING


@inlined
def generate(core: Core, plan: Plan, slot: int, out: Array, found: int, write: bool) -> int:
    """Join a tuple of the cover that has come into Yes with all others; how many results."""
    assign, cursor = core.assign, core.cursor
    stream = core.slots[slot].stream
    assign[:] = -1
    assign[stream] = slot
    steps = plan.steps[stream]
    results, at, forward = 0, 0, True
    while at >= 0:
        if at == steps:
            if _in_windows(core):
                if write:
                    _write(core, out, found + results)
                results += 1
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
    return results


@inlined
def _can_join(core: Core, plan: Plan, slot: int) -> bool:
    """Of the cover, only what has given its own results: so each result is given once."""
    status = core.slots[slot].status
    if plan.covering[core.slots[slot].stream]:
        return bool(status == YES)
    return bool(status in (YES, UNKNOWN, RISING))


@inlined
def _in_windows(core: Core) -> bool:
    """Whether all tuples were in their windows when the latest came."""
    latest = core.slots[core.assign[0]].time
    first_end = core.slots[core.assign[0]].end
    for s in range(1, core.assign.shape[0]):
        latest = max(latest, core.slots[core.assign[s]].time)
        first_end = min(first_end, core.slots[core.assign[s]].end)
    return bool(latest < first_end)


@inlined
def _write(core: Core, out: Array, at: int) -> None:
    kept = 0
    for s in range(core.assign.shape[0]):
        out[at, s] = core.slots[core.assign[s]].row
        kept |= core.slots[core.assign[s]].kept
    core.ints[KEPT_RESULTS] += kept


@inlined
def _settle(core: Core, plan: Plan) -> None:
    """Forget what was decided: theorem 3.5, section 3.3.1, and theorem 5.1."""
    ints = core.ints
    for i in range(ints[CHANGED]):
        slot = core.changed[i]
        core.slots[slot].pending = 0
        stream, status = core.slots[slot].stream, core.slots[slot].status
        if status == GONE:
            remove(core, plan, slot)
        elif status == NO or (status == YES and plan.single[stream]):
            # Spent: in a cycle, a tuple that has given its one result is to its parents as No is.
            if keeps_no(core, plan, slot):
                keep_as_no(core, plan, slot)
                list_one(core, slot)
            else:
                ints[ELIMINATED] += core.slots[slot].row >= 0
                remove(core, plan, slot)
    ints[CHANGED] = 0
    while ints[RECHECK] > 0:
        ints[RECHECK] -= 1
        slot = core.recheck[ints[RECHECK]]
        core.slots[slot].listed = 0
        if core.slots[slot].status != EMPTY and useless(core, plan, slot):
            ints[ELIMINATED] += eliminate(core, plan, slot)


# ---- arrival ----------------------------------------------------------------------------------


@inlined
def _take(core: Core, plan: Plan, batch: Batch, i: int) -> None:
    """A tuple arrives."""
    ints = core.ints
    stream, time, bits = batch.stream[i], batch.time[i], batch.bits[i]
    core.counts[stream] += 1
    ints[LATE] += time < core.clock[stream]
    core.clock[stream] = max(core.clock[stream], time)
    _look_ahead(core, plan)
    _expire(core, plan)
    if plan.by[stream] >= 0:
        _push_out(core, plan, stream, batch.hashes[i, plan.by[stream]])
    for c in range(plan.axis.shape[0]):
        if plan.axis[c] == stream:
            if plan.ordered[c] >= 0 and bits & KEYED:
                _record(core, plan, c, batch.values[i, plan.ordered[c]])
            if plan.detected[c] and core.counts[stream] == 1:
                watch_anew(core, plan, c)
                core.begun[c] = core.opened[c]
            elif plan.detected[c] and core.counts[stream] - core.since[c] >= plan.watch:
                adopt(core, plan, c)
    judge(core, plan, stream)
    weigh(core, plan, stream)
    if not bits & KEYED:
        ints[NULL_KEYS] += 1
        return
    for j in range(plan.degree[stream]):
        if plan.link_role[stream, j] == PARENT:
            edge = plan.link_edge[stream, j]
            if plan.ca[edge] >= 0:
                _cluster(core, plan, edge, batch.hashes[i, j], time)
    passes = bits & PASSES
    if not passes and (plan.ups[stream] == 0 or plan.whole):
        return
    slot = new_slot(core)
    core.slots[slot].stream = stream
    core.slots[slot].time = time
    core.slots[slot].end = batch.end[i]
    core.slots[slot].num = core.counts[stream]
    core.slots[slot].sampled = 1 if bits & SAMPLED else 0
    core.slots[slot].row = batch.row[i] if passes else -1
    core.slots[slot].status = UNKNOWN if passes else NO
    core.held[stream, core.slots[slot].status] += 1
    ints[HELD_ROWS] += 1 if passes else 0
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
    """Put a newcomer into the lists of its keys."""
    stream = core.slots[slot].stream
    for j in range(plan.degree[stream]):
        edge, role = plan.link_edge[stream, j], plan.link_role[stream, j]
        if role == PARENT and core.slots[slot].status == NO:
            continue
        group = need_group(core, mixed(batch.hashes[i, j], edge), edge)
        core.links[slot, j].base = 0
        if plan.link_value[stream, j] >= 0:
            core.links[slot, j].value = batch.values[i, plan.link_value[stream, j]]
        if role == PARENT:
            core.groups[group].unknowns += 1
            on_trial(core, plan, group, 1)
            rids = plan.rids[edge]
            if rids >= 0:
                timed = plan.timed[rids]
                base = core.slots[slot].time if timed else core.counts[plan.child[edge]]
                core.links[slot, j].base = base
        elif role == CHILD:
            if not plan.whole:
                core.ints[VIOLATIONS] += joinable(core, plan, group, slot) != -1
            watch_rids(core, plan, edge, group, core.slots[slot].time)
            if plan.oap_timer[edge] >= 0:
                value = core.links[slot, j].value
                add_timer(core, plan.oap_timer[edge], value, core.slots[slot].seq, slot)
            if core.groups[group].closed == 1:
                list_one(core, slot)
        link(core, slot, j, group, role)


@inlined
def wait(core: Core, plan: Plan, slot: int) -> None:
    """Set the timers of an Unknown tuple, for each child that is not there."""
    stream, seq = core.slots[slot].stream, core.slots[slot].seq
    for i in range(plan.downs[stream]):
        edge = plan.down[stream, i]
        if child_of(core, plan, slot, edge) == -1:
            at = plan.at_parent[edge]
            if plan.rids_timer[edge] >= 0:
                add_timer(core, plan.rids_timer[edge], core.links[slot, at].base, seq, slot)
            if plan.oac_timer[edge] >= 0:
                add_timer(core, plan.oac_timer[edge], core.links[slot, at].value, seq, slot)


# ---- windows ----------------------------------------------------------------------------------


@inlined
def _look_ahead(core: Core, plan: Plan) -> None:
    """Reckon for each stream how early a tuple may still come."""
    latest = core.clock[0]
    for s in range(1, core.clock.shape[0]):
        latest = max(latest, core.clock[s])
    for s in range(core.clock.shape[0]):
        ahead = core.clock[s]
        if plan.lag >= 0:
            ahead = max(ahead, latest - plan.lag)
        core.horizon[s] = ahead - plan.lateness


@inlined
def _expire(core: Core, plan: Plan) -> None:
    """Let go of what has dropped out of its window: of no use to any tuple that comes."""
    for s in range(core.clock.shape[0]):
        timer = plan.window_timer[s]
        if timer < 0:
            continue
        limit = core.counts[s] - plan.rows[s]
        if plan.rows[s] == 0:
            limit = NEVER
            for other in range(core.clock.shape[0]):
                if other != s:
                    limit = min(limit, core.horizon[other])
        while core.timer_size[timer] > 0:
            top = core.timers[core.timer_at[timer]]
            slot = top.item
            if core.slots[slot].seq == top.seq:
                if top.rank > limit:
                    break
                _leave_window(core, plan, slot)
            drop_timer(core, timer)


@inlined
def _leave_window(core: Core, plan: Plan, slot: int) -> None:
    """A tuple drops out: those above that wait for others can no longer be complete."""
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
    core.ints[EXPIRED] += 1
    push(core, slot)
    # At once: the newcomer for which it makes room may have the same key, and another child.
    for i in range(plan.ups[stream]):
        edge = plan.up[stream, i]
        above = core.groups[core.links[slot, plan.at_child[edge]].group].parents
        while above != -1:
            if core.slots[above].status == UNKNOWN and meet(core, slot, above):
                set_status(core, plan, above, NO)
            above = core.links[above, plan.at_parent[edge]].next


@inner
def _push_out(core: Core, plan: Plan, stream: int, key: int) -> None:
    """Count a newcomer against the window of its value, and let go of what drops out."""
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


# ---- constraints ------------------------------------------------------------------------------


@inlined
def _timers(core: Core, plan: Plan) -> bool:
    """See to what constraints have settled; whether anything was."""
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
    """Whether k tuples have come, or a time of more than k has passed."""
    if core.k[c] == NEVER:
        return False
    if plan.timed[c]:
        return bool(since + core.k[c] < core.horizon[plan.axis[c]])
    return bool(since + core.k[c] <= core.counts[plan.axis[c]])


@inlined
def _give_up(core: Core, plan: Plan, slot: int, edge: int) -> None:
    """The child tuple of an Unknown tuple will not come (sections 4.2 and F.2)."""
    if child_of(core, plan, slot, edge) != -1:
        return
    if core.slots[slot].sampled == 1:
        core.slots[slot].kept = 1
        core.slots[slot].dirty = 1
    else:
        set_status(core, plan, slot, NO)


@inlined
def _end_of_wait(core: Core, plan: Plan, edge: int) -> None:
    """RIDS: k tuples of the child stream have come."""
    timer, c = plan.rids_timer[edge], plan.rids[edge]
    while core.timer_size[timer] > 0:
        top = core.timers[core.timer_at[timer]]
        slot = top.item
        if core.slots[slot].seq == top.seq and core.slots[slot].status == UNKNOWN:
            if not _over(core, plan, c, top.rank):
                break
            _give_up(core, plan, slot, edge)
        drop_timer(core, timer)


@inlined
def _passed_children(core: Core, plan: Plan, edge: int) -> None:
    """OAC: the child stream has passed a value."""
    timer, c = plan.oac_timer[edge], plan.oac[edge]
    if core.k[c] == NEVER:
        return
    while core.timer_size[timer] > 0:
        top = core.timers[core.timer_at[timer]]
        slot = top.item
        if core.slots[slot].seq == top.seq and core.slots[slot].status == UNKNOWN:
            if top.rank >= core.low[c]:
                break
            _give_up(core, plan, slot, edge)
        drop_timer(core, timer)


@inlined
def _end_of_cluster(core: Core, plan: Plan, edge: int) -> None:
    """CA: more than k other values have come since the first of a value."""
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
    """A value is sampled: leave its tuples be, and remember why."""
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
    """OAP: the parent stream has passed a value."""
    timer, c = plan.oap_timer[edge], plan.oap[edge]
    if core.k[c] == NEVER:
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
def _cluster(core: Core, plan: Plan, edge: int, key: int, time: int) -> None:
    """CA: another tuple of a value (section 5.2)."""
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
def _record(core: Core, plan: Plan, c: int, value: int) -> None:
    """OA: keep the running maximum (section 6.2), and see how far out of order a value is."""
    first, size = core.record_at[c] + core.record_first[c], core.record_size[c]
    now = core.clock[plan.axis[c]] if plan.timed[c] else core.counts[plan.axis[c]]
    largest = core.records[first + size - 1].value if size > 0 else core.low[c]
    if value > largest or (size == 0 and core.low[c] == -NEVER):
        core.records[first + size].at = now
        core.records[first + size].value = value
        core.record_size[c] = size + 1
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
    """OA: what is k tuples back is a lower bound on all to come."""
    while core.record_size[c] > 0:
        record = core.records[core.record_at[c] + core.record_first[c]]
        if not _over(core, plan, c, record.at):
            break
        core.low[c] = record.value
        core.record_first[c] += 1
        core.record_size[c] -= 1
