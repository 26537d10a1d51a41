"""Monitor constraints: how large k is in the data, and whether No, CA and OAP save memory.

Babu, Srivastava, Widom: sections 4.3, 5.3, 6.3 and 8.
"""

from __future__ import annotations

import math

from tidegate.joins.constrained.layout import (
    BY_CA,
    BY_OAP,
    NEVER,
    UNKNOWN,
    Core,
    Plan,
)
from tidegate.kernel.compiling import inlined, inner

#: Memory of a running maximum relative to that of a key that CA remembers.
_RECORD = 1 / 6
#: An OAP that does not save memory is switched off for this many times its observation period.
_REST = 8


@inner
def watch_rids(core: Core, plan: Plan, edge: int, group: int, time: int) -> None:
    """RIDS: measure how long the parents of a newcomer have waited for it (section 4.3)."""
    c = plan.rids[edge]
    if c < 0 or not plan.detected[c]:
        return
    at = plan.at_parent[edge]
    above = core.groups[group].parents
    while above != -1:
        if core.slots[above].status == UNKNOWN:
            base = core.links[above, at].base
            distance = time - base if plan.timed[c] else core.streams[plan.child[edge]].count - base
            observe(core, plan, c, max(distance, 0))
        above = core.links[above, at].next


@inlined
def observe(core: Core, plan: Plan, c: int, distance: int) -> None:
    """Record a distance. One above k_u raises k_u at once; one above k_e stops its use.

    The paper stops the use of the constraint in both cases (`Plan.suspends`). That is needed only
    above k_e: up to there, no row was dropped that would have shown the distance.
    """
    constraint = core.constraints[c]
    if not plan.detected[c]:
        return
    constraint.observed += 1
    constraint.seen = max(constraint.seen, distance)
    if distance <= constraint.used:
        return
    if distance <= constraint.k and not plan.suspends:
        use_k(core, plan, c, distance)
        return
    forget_k(core, plan, c)
    constraint.before = distance
    if plan.ordered[c] >= 0:
        constraint.low = -NEVER


@inlined
def use_k(core: Core, plan: Plan, c: int, k: int) -> None:
    """Use a constraint with k as its k_u."""
    if core.constraints[c].k == NEVER:
        core.scalars[0].found = 1
    core.constraints[c].used = k
    core.constraints[c].k = math.ceil(k * plan.slack)


@inlined
def forget_k(core: Core, plan: Plan, c: int) -> None:
    """Stop the use of a constraint until its k has been found again."""
    constraint = core.constraints[c]
    constraint.used = NEVER
    constraint.k = NEVER
    watch_anew(core, plan, c)
    constraint.begun = constraint.opened


@inner
def adopt(core: Core, plan: Plan, c: int) -> None:
    """At the end of an observation window, adopt its largest distance as k if that is smaller.

    The window goes on until it has enough distances. k is the largest distance of this window and
    of the one before, so that it falls slowly (the paper takes this window alone, and needs no
    distance at all). While a constraint is not used, only distances up to the time since then can
    be seen. A distance of more than half that time is therefore not conclusive.
    """
    constraint = core.constraints[c]
    largest = constraint.seen
    longest = constraint.opened - constraint.begun
    if not plan.suspends:
        if constraint.observed < plan.enough[c]:
            return
        largest = max(largest, constraint.before)
        longest = (_now(core, plan, c) - constraint.begun) // 2
    unseen = constraint.used == NEVER and largest > longest
    if largest < constraint.used and not unseen:
        use_k(core, plan, c, largest)
    constraint.before = constraint.seen
    watch_anew(core, plan, c)


@inlined
def _now(core: Core, plan: Plan, c: int) -> int:
    """Return the present count or time of a constraint's stream."""
    stream = core.streams[plan.axis[c]]
    return int(stream.clock if plan.timed[c] else stream.count)


@inlined
def is_used(core: Core, plan: Plan, c: int) -> bool:
    """Return True if a constraint is used now, on one of its joins at least."""
    if core.constraints[c].k == NEVER:
        return False
    for edge in range(plan.parent.shape[0]):
        if plan.rids[edge] == c or plan.oac[edge] == c:
            return True
        if plan.ca[edge] == c and core.savings[BY_CA, edge].idle == 0:
            return True
        if plan.oap[edge] == c and core.savings[BY_OAP, edge].idle == 0:
            return True
    return False


@inlined
def watch_anew(core: Core, plan: Plan, c: int) -> None:
    """Begin an observation window."""
    constraint = core.constraints[c]
    constraint.since = core.streams[plan.axis[c]].count
    constraint.opened = _now(core, plan, c)
    constraint.seen = 0
    constraint.observed = 0


@inlined
def judge(core: Core, plan: Plan, stream: int) -> None:
    """Decide whether keeping No makes the state smaller (section 8).

    One small part of the keys always keeps No, and another never does. The loop compares the number
    of rows they hold over time: rows in No, and parents that wait.
    """
    for s in range(core.streams.shape[0]):
        if plan.choosable[s]:
            core.streams[s].cost_keeping += core.streams[s].trial_keeping
            core.streams[s].cost_dropping += core.streams[s].trial_dropping
    own = core.streams[stream]
    if plan.choosable[stream] and own.count - own.judged >= plan.watch:
        own.keep = 1 if own.cost_keeping < own.cost_dropping else 0
        own.judged = own.count
        own.cost_keeping //= 2
        own.cost_dropping //= 2


@inlined
def weigh(core: Core, plan: Plan, stream: int) -> None:
    """Decide whether CA and OAP free more memory than they need (section 8).

    The loop compares the rows they dropped, weighted by how long these would have stayed, with the
    keys and maxima remembered over the same time. It does so after two windows of the child stream,
    since rows dropped later would have expired anyway. A small part of the keys always uses CA, and
    only this part is measured. OAP keeps running maxima for all keys at once, so it is switched off
    for a while and then tried again.
    """
    for edge in range(plan.parent.shape[0]):
        if plan.child[edge] != stream:
            continue
        if plan.weighed[edge] and _add_up(core, plan, edge, BY_CA, float(core.entries[edge])):
            saving = core.savings[BY_CA, edge]
            idle = saving.cleared < saving.remembered
            if saving.idle == 1 and not idle and plan.detected[plan.ca[edge]]:
                forget_k(core, plan, plan.ca[edge])
            saving.idle = 1 if idle else 0
            saving.cleared /= 2
            saving.remembered /= 2
        if plan.ordering[edge]:
            constraint = core.constraints[plan.oap[edge]]
            if _add_up(core, plan, edge, BY_OAP, _RECORD * constraint.record_count):
                _rest_or_try(core, plan, edge)


@inlined
def _rest_or_try(core: Core, plan: Plan, edge: int) -> None:
    """Switch an OAP off if it needs more memory than it frees, or on again after a while."""
    c = plan.oap[edge]
    saving, constraint = core.savings[BY_OAP, edge], core.constraints[c]
    if saving.idle > 0:
        saving.idle -= 1
        if saving.idle == 0 and plan.detected[c]:
            forget_k(core, plan, c)
            constraint.low = -NEVER
    elif saving.cleared < saving.remembered:
        saving.idle = _REST
        if asleep(core, plan, c):
            constraint.record_count = 0
    saving.cleared = 0.0
    saving.remembered = 0.0


@inlined
def _add_up(core: Core, plan: Plan, edge: int, kind: int, remembered: float) -> bool:
    """Add the memory in use since the last call. Return True if it is time to compare."""
    saving = core.savings[kind, edge]
    stream = plan.child[edge]
    parents = core.streams[plan.parent[edge]].count
    child = core.streams[stream]
    now = child.count if plan.rows[stream] > 0 else child.clock
    if saving.added_at == -NEVER:
        saving.compared_at = now
        saving.parents = parents
    else:
        saving.remembered += remembered * float(now - saving.added_at)
    saving.added_at = now
    whole = 2 * (plan.rows[stream] + plan.length[stream])
    if now - saving.compared_at < whole or parents - saving.parents < plan.watch:
        return False
    saving.compared_at = now
    saving.parents = parents
    return True


@inlined
def asleep(core: Core, plan: Plan, c: int) -> bool:
    """Return True if no join uses an OAP now."""
    found = False
    for edge in range(plan.parent.shape[0]):
        if plan.oap[edge] == c:
            if core.savings[BY_OAP, edge].idle == 0:
                return False
            found = True
    return found
