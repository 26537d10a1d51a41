"""Minimum-cost flow by repair: start from good prices, then mend what does not balance.

Every arc is two half arcs, `2 * arc` along it and `2 * arc + 1` back. `cost` is an arc's cost,
`room` what a half arc can still take, `price` a node's potential. The reduced cost of a half arc
from u to v is `cost + price[u] - price[v]`. A flow whose half arcs with room all have a reduced
cost of zero or more is optimal for what it carries: `saturate` makes it so, and `repair` keeps it
so while it moves excess to where it is missing, along shortest paths. With prices near the optimal
ones these paths are short, and so is the work, however long the streams are.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.kernel.compiling import Array, entry_point, inlined


class Network(NamedTuple):
    """The arcs, what they can take, and the prices of the nodes."""

    tail: Array
    head: Array
    cost: Array
    room: Array
    price: Array


class Search(NamedTuple):
    """What a search needs: half arcs by node, and arrays of nodes; `distance` is -1 between."""

    start: Array
    half: Array
    distance: Array
    via: Array
    settled: Array
    stack: Array
    heap_key: Array
    heap_node: Array


@entry_point
def list_halves(network: Network, start: Array, half: Array) -> int:
    """List the half arcs of each node that can ever take anything; gives how many there are.

    They are `half[start[v]:start[v + 1]]`; `start` is zero before.
    """
    tail, head, room = network.tail, network.head, network.room
    for a in range(tail.shape[0]):
        if room[2 * a] + room[2 * a + 1] > 0:
            start[tail[a] + 1] += 1
            start[head[a] + 1] += 1
    for v in range(1, start.shape[0]):
        start[v] += start[v - 1]
    listed = start[start.shape[0] - 1]
    for a in range(tail.shape[0] - 1, -1, -1):
        if room[2 * a] + room[2 * a + 1] > 0:
            start[tail[a] + 1] -= 1
            half[start[tail[a] + 1]] = 2 * a
            start[head[a] + 1] -= 1
            half[start[head[a] + 1]] = 2 * a + 1
    for v in range(start.shape[0] - 1):
        start[v] = start[v + 1]
    start[start.shape[0] - 1] = listed
    return int(listed)


@entry_point
def saturate(network: Network, excess: Array) -> None:
    """Fill what pays and empty what does not, whatever becomes of the balance."""
    tail, head, cost, room, price = network
    for a in range(tail.shape[0]):
        u, v = tail[a], head[a]
        reduced = cost[a] + price[u] - price[v]
        moved = 0
        if reduced < 0:
            moved = room[2 * a]
        elif reduced > 0:
            moved = -room[2 * a + 1]
        room[2 * a] -= moved
        room[2 * a + 1] += moved
        excess[u] -= moved
        excess[v] += moved


@inlined
def _push(heap_key: Array, heap_node: Array, size: int, key: int, node: int) -> None:
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if heap_key[up] <= key:
            break
        heap_key[at] = heap_key[up]
        heap_node[at] = heap_node[up]
        at = up
    heap_key[at] = key
    heap_node[at] = node


@inlined
def _pop(heap_key: Array, heap_node: Array, size: int) -> None:
    """Take the first away, of `size`."""
    last = size - 1
    key, node = heap_key[last], heap_node[last]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= last:
            break
        if down + 1 < last and heap_key[down + 1] < heap_key[down]:
            down += 1
        if heap_key[down] >= key:
            break
        heap_key[at] = heap_key[down]
        heap_node[at] = heap_node[down]
        at = down
    heap_key[at] = key
    heap_node[at] = node


@entry_point
def repair(network: Network, search: Search, excess: Array, order: Array) -> bool:
    """Move all excess to where it is missing, node by node; false if there is no way."""
    tail, head, cost, room, price = network
    start, half, distance, via, settled, stack, heap_key, heap_node = search
    for at in range(order.shape[0]):
        source = order[at]
        while excess[source] > 0:
            # Dijkstra's search, until something that lacks is reached. What is no farther than
            # where the search is now waits on a stack: there is much of that, and a heap is slow.
            distance[source] = 0
            stack[0] = source
            high, size, count = 1, 0, 0
            found = -1
            reach = 0
            while found < 0:
                if high > 0:
                    high -= 1
                    u = stack[high]
                elif size > 0:
                    key, u = heap_key[0], heap_node[0]
                    _pop(heap_key, heap_node, size)
                    size -= 1
                    if key > distance[u]:
                        continue
                    reach = key
                    if excess[u] < 0:
                        found = u
                        break
                else:
                    return False
                settled[count] = u
                count += 1
                for i in range(start[u], start[u + 1]):
                    h = half[i]
                    if room[h] == 0:
                        continue
                    a = h >> 1
                    v = tail[a] if h & 1 else head[a]
                    reduced = price[u] - price[v]
                    reduced += -cost[a] if h & 1 else cost[a]
                    there = reach + reduced
                    if 0 <= distance[v] <= there:
                        continue
                    distance[v] = there
                    via[v] = h
                    if reduced > 0:
                        _push(heap_key, heap_node, size, there, v)
                        size += 1
                    elif excess[v] < 0:
                        found = v
                        break
                    else:
                        stack[high] = v
                        high += 1
            # Move as much as the way takes.
            amount = min(excess[source], -excess[found])
            v = found
            while v != source:
                h = via[v]
                amount = min(amount, room[h])
                v = head[h >> 1] if h & 1 else tail[h >> 1]
            v = found
            while v != source:
                h = via[v]
                room[h] -= amount
                room[h ^ 1] += amount
                v = head[h >> 1] if h & 1 else tail[h >> 1]
            excess[source] -= amount
            excess[found] += amount
            # What was reached before gets cheaper, so that the way there costs nothing now.
            for i in range(count):
                price[settled[i]] += distance[settled[i]] - reach
                distance[settled[i]] = -1
            distance[found] = -1
            for i in range(high):
                distance[stack[i]] = -1
            for i in range(size):
                distance[heap_node[i]] = -1
    return True
