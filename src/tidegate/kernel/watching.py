"""Watching constraints: how large k is in the data, and whether keeping No, and CA, pays.

Babu, Srivastava, Widom: sections 4.3, 5.3, 6.3 and 8.
"""

from __future__ import annotations

from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.constrained_layout import NEVER, UNKNOWN, Core, Plan


@inner
def watch_rids(core: Core, plan: Plan, edge: int, group: int, time: int) -> None:
    """RIDS: how long the parents of a newcomer have waited for it (section 4.3)."""
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
    """Take in a distance: one beyond k stops the use of the constraint at once."""
    if not plan.detected[c]:
        return
    core.seen[c] = max(core.seen[c], distance)
    if distance > core.used[c]:
        forget_k(core, plan, c)
        if plan.ordered[c] >= 0:
            core.low[c] = -NEVER


@inlined
def forget_k(core: Core, plan: Plan, c: int) -> None:
    """Stop the use of a constraint, until its k is found again."""
    core.used[c] = NEVER
    core.k[c] = NEVER
    watch_anew(core, plan, c)
    core.begun[c] = core.opened[c]


@inner
def adopt(core: Core, plan: Plan, c: int) -> None:
    """A window of watching is over: take its largest distance for k, if that is less.

    While a constraint is not used, longer distances than since when it is so cannot be seen: one
    that is nearly as long says nothing yet.
    """
    unseen = core.used[c] == NEVER and core.seen[c] > core.opened[c] - core.begun[c]
    if core.seen[c] < core.used[c] and not unseen:
        core.used[c] = core.seen[c]
        core.k[c] = int(core.seen[c] * plan.slack)
    watch_anew(core, plan, c)


@inlined
def watch_anew(core: Core, plan: Plan, c: int) -> None:
    """Begin a window of watching."""
    count = core.counts[plan.axis[c]]
    core.since[c] = count
    core.opened[c] = core.clock[plan.axis[c]] if plan.timed[c] else count
    core.seen[c] = 0


@inlined
def judge(core: Core, plan: Plan, stream: int) -> None:
    """See whether keeping No makes the state smaller or larger (section 8).

    A small part of the keys keeps No and another does not, whatever the rest does. What is compared
    is what they hold over time: No itself, and the parents that wait.
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
    """See whether CA clears more than it has to keep in mind (section 8).

    A small part of the keys always uses it. Compared are, for these, the tuples that it cleared by
    how long they would have stayed, and the values that it remembers over the same time. That is
    done after two windows of the child stream: what CA clears later than that is gone anyway.
    """
    for edge in range(plan.parent.shape[0]):
        if not plan.weighed[edge] or plan.child[edge] != stream:
            continue
        parents = core.counts[plan.parent[edge]]
        now = core.counts[stream] if plan.rows[stream] > 0 else core.clock[stream]
        if core.noted[edge, 0] == -NEVER:
            core.noted[edge, 1] = now
            core.noted[edge, 2] = parents
        else:
            core.worth[edge, 1] += core.entries[edge] * float(now - core.noted[edge, 0])
        core.noted[edge, 0] = now
        whole = 2 * (plan.rows[stream] + plan.length[stream])
        if now - core.noted[edge, 1] < whole or parents - core.noted[edge, 2] < plan.watch:
            continue
        c = plan.ca[edge]
        idle = core.worth[edge, 0] < core.worth[edge, 1]
        if core.idle[edge] == 1 and not idle and plan.detected[c]:
            forget_k(core, plan, c)
        core.idle[edge] = 1 if idle else 0
        core.noted[edge, 1] = now
        core.noted[edge, 2] = parents
        core.worth[edge, 0] /= 2
        core.worth[edge, 1] /= 2
