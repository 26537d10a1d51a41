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
    return listed


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
    start, half, distance, via, settled, heap_key, heap_node = search
    for at in range(order.shape[0]):
        source = order[at]
        while excess[source] > 0:
            # Dijkstra's search, until something that lacks is reached.
            heap_key[0] = 0
            heap_node[0] = source
            size = 1
            distance[source] = 0
            via[source] = -1
            found = -1
            count = 0
            reach = 0
            while size > 0:
                d, u = heap_key[0], heap_node[0]
                _pop(heap_key, heap_node, size)
                size -= 1
                if d > distance[u]:
                    continue
                if excess[u] < 0:
                    found = u
                    reach = d
                    break
                settled[count] = u
                count += 1
                for i in range(start[u], start[u + 1]):
                    h = half[i]
                    if room[h] == 0:
                        continue
                    a = h >> 1
                    if h & 1:
                        v = tail[a]
                        reduced = price[u] - price[v] - cost[a]
                    else:
                        v = head[a]
                        reduced = price[u] - price[v] + cost[a]
                    longer = d + reduced
                    if distance[v] < 0 or longer < distance[v]:
                        distance[v] = longer
                        via[v] = h
                        _push(heap_key, heap_node, size, longer, v)
                        size += 1
            if found < 0:
                return False
            # What was reached gets cheaper, so that every path there is a shortest one.
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
            distance[found] = -1
            for i in range(count):
                u = settled[i]
                price[u] += distance[u] - reach
                distance[u] = -1
            while size > 0:
                size -= 1
                distance[heap_node[size]] = -1
    return True
