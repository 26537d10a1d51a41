"""Chains: groups of interchangeable rows, and the ticks at which they earn (compiled).

The nodes of the flow are the ticks, 0 to T, and then the gains (a gain is a tick at which a group
earns). The arcs are, in this order: from every gain back to the timeline; into every gain from the
one before it; from the timeline into the first gain after each member's arrival; and along the
timeline. One unit of flow is the memory for one row.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.kernel.compiling import Array, entry_point, inlined
from tidegate.optimal.flow import Network


class Chains(NamedTuple):
    """Rows that compete for one memory, in groups of interchangeable rows.

    Nothing here knows about joins. Any problem fits in which a row arrives, expires, and earns a
    known amount at known ticks while it is in memory.

    Attributes
    ----------
    members, gains
        Where each group's part of the other arrays starts; one more entry than there are groups.
    arrive, expire
        For each member, the tick of its arrival and the first tick after its window. Both ascend
        within a group.
    at, worth
        For each gain, its tick, ascending within a group, and what it is worth to each member that
        arrived before it and is still in memory.
    memory
        For each tick, how many members fit between it and the next.
    late
        0 if memory that a member frees at a tick is available to the newcomers of that tick, 1 if
        it is available from the next tick on.
    """

    members: Array
    arrive: Array
    expire: Array
    gains: Array
    at: Array
    worth: Array
    memory: Array
    late: int


@entry_point
def lay_arcs(chains: Chains, network: Network, excess: Array) -> None:
    """Fill in the arcs and the excess of each node. Arcs that cannot be used get no room."""
    members, arrive, expire = chains.members, chains.arrive, chains.expire
    gains, at, worth, late = chains.gains, chains.at, chains.worth, chains.late
    tail, head, cost, room = network.tail, network.head, network.cost, network.room
    ticks, plenty = chains.memory.shape[0], arrive.shape[0]
    n = at.shape[0]
    into, enter, along = n, 2 * n, 2 * n + arrive.shape[0]
    for group in range(members.shape[0] - 1):
        end = members[group + 1]
        # The ends of: the expired members, those with an arc, those here before the last gain.
        gone = entered = before = members[group]
        for g in range(gains[group], gains[group + 1]):
            node = ticks + 1 + g
            tail[g], head[g], cost[g], room[2 * g] = node, at[g] + late, 0, plenty
            while gone < end and expire[gone] <= at[g]:
                gone += 1
            # The newest members stay: as many as were here before and have not expired.
            a = into + g
            tail[a], head[a], cost[a], room[2 * a] = node, node, -worth[g], 0
            if g > gains[group]:
                while before < end and arrive[before] < at[g - 1]:
                    before += 1
                tail[a], room[2 * a] = node - 1, max(before - gone, 0)
            while entered < end and arrive[entered] < at[g]:
                a = enter + entered
                tail[a], head[a], cost[a] = arrive[entered], node, -worth[g]
                room[2 * a] = 1 if entered >= gone else 0
                entered += 1
        while entered < end:
            a = enter + entered
            tail[a], head[a], cost[a], room[2 * a] = arrive[entered], arrive[entered], 0, 0
            entered += 1
    for i in range(ticks):
        a = along + i
        # More room than ever needed, so that no price along the timeline falls.
        tail[a], head[a], cost[a], room[2 * a] = i, i + 1, 0, plenty + 1
        # At most one unit per member is needed, so `memory` may be arbitrarily large.
        places = min(chains.memory[i], plenty)
        excess[i] += places
        excess[i + 1] -= places


@entry_point
def price_gains(chains: Chains, network: Network) -> None:
    """Price the gains from the prices of the ticks, so that no arc out of a gain pays."""
    gains, at, worth, late = chains.gains, chains.at, chains.worth, chains.late
    room, price = network.room, network.price
    n, ticks = at.shape[0], chains.memory.shape[0]
    for group in range(gains.shape[0] - 1):
        first = gains[group]
        for g in range(gains[group + 1] - 1, first - 1, -1):
            node = ticks + 1 + g
            price[node] = price[at[g] + late]
            if g + 1 < gains[group + 1] and room[2 * (n + g + 1)] > 0:
                price[node] = max(price[node], price[node + 1] + worth[g + 1])


@entry_point
def surplus(chains: Chains, paid: Array, best: Array, queue: Array) -> int:
    """Return the most that all members earn if memory from tick i to j costs `paid[j] - paid[i]`.

    `best` is set to the gain until which each member stays, or -1. Members arrive and expire in
    order, so the best gain of each is the maximum of a window that slides over the group's gains.
    """
    members, arrive, expire = chains.members, chains.arrive, chains.expire
    gains, at, worth, late = chains.gains, chains.at, chains.worth, chains.late
    total = 0
    for group in range(members.shape[0] - 1):
        first, last = gains[group], gains[group + 1]
        head = tail = 0  # a queue of gains, each worth more than all after it
        taken = first
        earned = 0  # up to `taken`
        reached = first
        before = 0  # earned up to `reached`
        for u in range(members[group], members[group + 1]):
            while taken < last and at[taken] < expire[u]:
                earned += worth[taken]
                value = earned - paid[at[taken] + late]
                while tail > head and queue[tail - 1, 1] <= value:
                    tail -= 1
                queue[tail, 0] = taken
                queue[tail, 1] = value
                tail += 1
                taken += 1
            while reached < taken and at[reached] <= arrive[u]:
                before += worth[reached]
                reached += 1
            while tail > head and queue[head, 0] < reached:
                head += 1
            best[u] = -1
            if tail > head:
                value = queue[head, 1] - before + paid[arrive[u]]
                if value > 0:
                    total += value
                    best[u] = queue[head, 0]
    return total


@inlined
def _last_gain(arrive: int, at: Array, first: int, g: int) -> int:
    """Return the gain before `g`, if the member was there for it; else -1."""
    return g - 1 if g > first and at[g - 1] > arrive else -1


@entry_point
def stays(chains: Chains, room: Array, held: Array, until: Array) -> None:
    """Set `until` to the gain until which each member stays in memory, by the flow.

    `until` must be -1 on entry, and remains -1 for members that are not kept. The newest members of
    a group stay: a newcomer takes the place of the oldest.
    """
    members, arrive, expire = chains.members, chains.arrive, chains.expire
    gains, at, late = chains.gains, chains.at, chains.late
    enter = 2 * at.shape[0]
    for group in range(members.shape[0] - 1):
        end = members[group + 1]
        front = back = 0
        u = members[group]
        for g in range(gains[group], gains[group + 1]):
            while u < end and arrive[u] < at[g]:
                if expire[u] > at[g]:
                    if room[2 * (enter + u) + 1] > 0:
                        held[back] = u
                        back += 1
                    elif back > front and not (
                        late > 0 and g > gains[group] and arrive[u] == at[g - 1]
                    ):
                        until[held[front]] = _last_gain(arrive[held[front]], at, gains[group], g)
                        front += 1
                        held[back] = u
                        back += 1
                u += 1
            for _ in range(room[2 * g + 1]):
                until[held[front]] = g
                front += 1


@inlined
def _combined(a: float, b: float, how: int) -> float:
    """Return the importance of a pair: 0 min, 1 max, 2 sum, 3 product."""
    if how == 0:
        return min(a, b)
    if how == 1:
        return max(a, b)
    return a + b if how == 2 else a * b


@entry_point
def count_gains(low: Array, high: Array, tick: Array, counts: Array) -> None:
    """Count the different ticks of each group's partners: `tick[low:high]`, ascending."""
    for group in range(low.shape[0]):
        n = 0
        for i in range(low[group], high[group]):
            if i == low[group] or tick[i] != tick[i - 1]:
                n += 1
        counts[group] = n


@entry_point
def fill_gains(
    low: Array,
    high: Array,
    tick: Array,
    own: Array,
    weight: Array,
    how: int,
    at: Array,
    worth: Array,
) -> None:
    """Fill in when each group earns and how much, by its importance `own` and its partners'."""
    g = -1
    for group in range(low.shape[0]):
        for i in range(low[group], high[group]):
            if i == low[group] or tick[i] != tick[i - 1]:
                g += 1
                at[g] = tick[i]
                worth[g] = 0.0
            worth[g] += 1.0 if how < 0 else _combined(own[group], weight[i], how)
