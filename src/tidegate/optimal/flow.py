"""Minimum-cost flow by repair: start from good prices, then balance the flow (compiled).

Every arc has two half arcs, `2 * arc` forwards and `2 * arc + 1` backwards. `cost` is an arc's
cost, `room` the remaining capacity of a half arc, `price` a node's potential. The reduced cost of a
half arc from u to v is `cost + price[u] - price[v]`. A flow is optimal for what it carries if every
half arc with room has a reduced cost of at least zero. `saturate` establishes this, and `repair`
maintains it while it moves excess to nodes that lack flow, along shortest paths. With prices near
the optimal ones these paths are short, however long the streams are.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.kernel.compiling import Array, entry_point, inlined


class Network(NamedTuple):
    """The arcs, their remaining capacities, and the prices of the nodes."""

    tail: Array
    head: Array
    cost: Array
    room: Array
    price: Array


class Search(NamedTuple):
    """Working memory of a search: half arcs by node, arrays of nodes. `distance` is -1 first."""

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
    """List the usable half arcs of each node. Return how many there are.

    Those of node v are `half[start[v]:start[v + 1]]`. `start` must be zero on entry.
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
    """Fill arcs that pay and empty arcs that do not, without regard to balance."""
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


# This heap stays beside that of `kernel.heap`: an entry is a distance and a node, 16 bytes, half of
# an entry there, which also breaks ties by a sequence number. Distances need no order among equals.


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
    """Remove the first of `size` entries."""
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
    """Move all excess to nodes that lack flow, node by node. Return False if there is no path."""
    tail, head, cost, room, price = network
    start, half, distance, via, settled, stack, heap_key, heap_node = search
    for at in range(order.shape[0]):
        source = order[at]
        while excess[source] > 0:
            # Dijkstra's algorithm, until a node that lacks flow is reached. Nodes at the current
            # distance go on a stack instead of the heap: they are many, and a stack is faster.
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
            # Move as much as the path can take.
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
            # Lower the prices of the settled nodes, so that the path has reduced cost zero.
            for i in range(count):
                price[settled[i]] += distance[settled[i]] - reach
                distance[settled[i]] = -1
            distance[found] = -1
            for i in range(high):
                distance[stack[i]] = -1
            for i in range(size):
                distance[heap_node[i]] = -1
    return True
