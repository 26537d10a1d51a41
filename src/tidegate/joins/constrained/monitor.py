"""Monitor constraints: how large k is in the data, and whether No, CA and OAP save memory.

Babu, Srivastava, Widom: sections 4.3, 5.3, 6.3 and 8.
"""

from __future__ import annotations

import math

from tidegate.joins.constrained.layout import NEVER, UNKNOWN, Core, Plan
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
            distance = time - base if plan.timed[c] else core.counts[plan.child[edge]] - base
            observe(core, plan, c, max(distance, 0))
        above = core.links[above, at].next


@inlined
def observe(core: Core, plan: Plan, c: int, distance: int) -> None:
    """Record a distance. A distance above k stops the use of the constraint at once."""
    if not plan.detected[c]:
        return
    core.seen[c] = max(core.seen[c], distance)
    if distance > core.used[c]:
        forget_k(core, plan, c)
        if plan.ordered[c] >= 0:
            core.low[c] = -NEVER


@inlined
def forget_k(core: Core, plan: Plan, c: int) -> None:
    """Stop the use of a constraint until its k has been found again."""
    core.used[c] = NEVER
    core.k[c] = NEVER
    watch_anew(core, plan, c)
    core.begun[c] = core.opened[c]


@inner
def adopt(core: Core, plan: Plan, c: int) -> None:
    """At the end of an observation window, adopt its largest distance as k if that is smaller.

    While a constraint is not used, only distances up to the time since then can be seen. A distance
    that is nearly as long is therefore not conclusive.
    """
    unseen = core.used[c] == NEVER and core.seen[c] > core.opened[c] - core.begun[c]
    if core.seen[c] < core.used[c] and not unseen:
        core.used[c] = core.seen[c]
        core.k[c] = math.ceil(core.seen[c] * plan.slack)
    watch_anew(core, plan, c)


@inlined
def watch_anew(core: Core, plan: Plan, c: int) -> None:
    """Begin an observation window."""
    count = core.counts[plan.axis[c]]
    core.since[c] = count
    core.opened[c] = core.clock[plan.axis[c]] if plan.timed[c] else count
    core.seen[c] = 0


@inlined
def judge(core: Core, plan: Plan, stream: int) -> None:
    """Decide whether keeping No makes the state smaller (section 8).

    One small part of the keys always keeps No, and another never does. The loop compares the number
    of rows they hold over time: rows in No, and parents that wait.
    """
    for s in range(core.keep.shape[0]):
        if plan.choosable[s]:
            core.cost[s, 0] += core.trial[s, 0]
            core.cost[s, 1] += core.trial[s, 1]
    if plan.choosable[stream] and core.counts[stream] - core.judged[stream] >= plan.watch:
        core.keep[stream] = 1 if core.cost[stream, 0] < core.cost[stream, 1] else 0
        core.judged[stream] = core.counts[stream]
        core.cost[stream, 0] //= 2
        core.cost[stream, 1] //= 2


@inlined
def weigh(core: Core, plan: Plan, stream: int) -> None:
    """Decide whether CA and OAP free more memory than they need (section 8).

    The loop compares the rows they dropped, weighted by how long these would have stayed, with the
    keys and maxima remembered over the same time. It does so after two windows of the child stream,
    since rows dropped later would have expired anyway. A small part of the keys always uses CA, and
    only this part is measured. OAP keeps running maxima for all keys at once, so it is switched off
    for a while and then tried again.
    """
    edges = plan.parent.shape[0]
    for edge in range(edges):
        if plan.child[edge] != stream:
            continue
        if plan.weighed[edge] and _add_up(core, plan, edge, edge, float(core.entries[edge])):
            idle = core.worth[edge, 0] < core.worth[edge, 1]
            if core.idle[edge] == 1 and not idle and plan.detected[plan.ca[edge]]:
                forget_k(core, plan, plan.ca[edge])
            core.idle[edge] = 1 if idle else 0
            core.worth[edge, 0] /= 2
            core.worth[edge, 1] /= 2
        at, c = edges + edge, plan.oap[edge]
        if plan.ordering[edge] and _add_up(core, plan, edge, at, _RECORD * core.record_size[c]):
            if core.idle[at] > 0:
                core.idle[at] -= 1
                if core.idle[at] == 0 and plan.detected[c]:
                    forget_k(core, plan, c)
                    core.low[c] = -NEVER
            elif core.worth[at, 0] < core.worth[at, 1]:
                core.idle[at] = _REST
                if asleep(core, plan, c):
                    core.record_size[c] = 0
            core.worth[at, 0] = 0.0
            core.worth[at, 1] = 0.0


@inlined
def _add_up(core: Core, plan: Plan, edge: int, at: int, remembered: float) -> bool:
    """Add the memory in use since the last call. Return True if it is time to compare."""
    stream = plan.child[edge]
    parents = core.counts[plan.parent[edge]]
    now = core.counts[stream] if plan.rows[stream] > 0 else core.clock[stream]
    if core.noted[at, 0] == -NEVER:
        core.noted[at, 1] = now
        core.noted[at, 2] = parents
    else:
        core.worth[at, 1] += remembered * float(now - core.noted[at, 0])
    core.noted[at, 0] = now
    whole = 2 * (plan.rows[stream] + plan.length[stream])
    if now - core.noted[at, 1] < whole or parents - core.noted[at, 2] < plan.watch:
        return False
    core.noted[at, 1] = now
    core.noted[at, 2] = parents
    return True


@inlined
def asleep(core: Core, plan: Plan, c: int) -> bool:
    """Return True if no join uses an OAP now."""
    found = False
    for edge in range(plan.parent.shape[0]):
        if plan.oap[edge] == c:
            if core.idle[plan.parent.shape[0] + edge] == 0:
                return False
            found = True
    return found
