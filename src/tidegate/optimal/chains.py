"""Chains: tuples that are as good as each other, and when each of them earns.

The flow's nodes are the ticks, 0 to T, and then the gains. Its arcs, in this order: from every gain
back to the timeline; into every gain from the one before it; from the timeline into the first gain
after every member's arrival; and along the timeline. What flows are places in memory.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.kernel.compiling import Array, entry_point, inlined
from tidegate.optimal.flow import Network


class Chains(NamedTuple):
    """Tuples that compete for one memory, in groups of tuples that are as good as each other.

    Nothing here knows of joins: whatever says when a tuple comes, when it is out of its window and
    what it earns at which time while it is in memory can be put like this.

    Attributes
    ----------
    members, gains
        Where each group's part of the other arrays starts; one more than there are groups.
    arrive, expire
        For each member the tick at which it comes, and the first at which it is out of its window.
        Both ascend within a group.
    at, worth
        For each gain its tick, ascending within a group, and what each member earns then that came
        before it and is still there.
    memory
        For each tick, how many members fit between it and the next.
    late
        0 if a place is free for the newcomers of the tick at which a member leaves, 1 if it is free
        from the next tick on.
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
    """Fill in the arcs, of which those that nothing can take have no room, and what is to flow."""
    members, arrive, expire = chains.members, chains.arrive, chains.expire
    gains, at, worth, late = chains.gains, chains.at, chains.worth, chains.late
    tail, head, cost, room = network.tail, network.head, network.cost, network.room
    ticks, plenty = chains.memory.shape[0], arrive.shape[0]
    n = at.shape[0]
    into, enter, along = n, 2 * n, 2 * n + arrive.shape[0]
    for group in range(members.shape[0] - 1):
        end = members[group + 1]
        gone = entered = before = members[group]  # expired, with an arc, here before the last gain
        for g in range(gains[group], gains[group + 1]):
            node = ticks + 1 + g
            tail[g], head[g], cost[g], room[2 * g] = node, at[g] + late, 0, plenty
            while gone < end and expire[gone] <= at[g]:
                gone += 1
            # Of those that stay, the newest stay: as many as were here and have not expired.
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
        # More than ever flows, so that no price along the timeline falls.
        tail[a], head[a], cost[a], room[2 * a] = i, i + 1, 0, plenty + 1
        # There are never more places than members, so that memory may be as large as it likes.
        places = min(chains.memory[i], plenty)
        excess[i] += places
        excess[i + 1] -= places


@entry_point
def price_gains(chains: Chains, network: Network) -> None:
    """Price the gains, given the prices of the ticks, so that every way on from a gain costs."""
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
    """What all members earn at the most if a place costs `paid[j] - paid[i]` from tick i to j.

    `best` becomes the gain until which each member stays, or -1. As members come and expire in
    order, the best gain of each is the maximum of a window that slides over the group's gains.
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
    """The gain before `g`, if the member was there for it."""
    return g - 1 if g > first and at[g - 1] > arrive else -1


@entry_point
def stays(chains: Chains, room: Array, held: Array, until: Array) -> None:
    """Until which gain each member stays in memory, by the flow.

    `until` is -1 before, and stays so for those that do not. Of a group the newest stay, so that a
    newcomer takes the place of the oldest.
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
    """The importance of a pair: 0 min, 1 max, 2 sum, 3 product."""
    if how == 0:
        return min(a, b)
    if how == 1:
        return max(a, b)
    return a + b if how == 2 else a * b


@entry_point
def count_gains(low: Array, high: Array, tick: Array, counts: Array) -> None:
    """How many different ticks each group's partners have: `tick[low:high]`, ascending."""
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
    """What each group earns when; `own` is a group's importance and `weight` its partners'."""
    g = -1
    for group in range(low.shape[0]):
        for i in range(low[group], high[group]):
            if i == low[group] or tick[i] != tick[i - 1]:
                g += 1
                at[g] = tick[i]
                worth[g] = 0.0
            worth[g] += 1.0 if how < 0 else _combined(own[group], weight[i], how)
