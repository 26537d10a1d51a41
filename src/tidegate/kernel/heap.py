"""Heaps: of values, with four children a node, and of items that can move, with two.

A *heap* here is an array of nodes (rank, seq, item, life), see `layout.ranked_type`. The top is the
node with the lowest rank, and among equal ranks the lowest sequence number. The caller keeps the
number of nodes.

An *indexed heap* is an array of item numbers. `items[item].place` is where in the heap an item is,
so that it can be moved or removed when its rank changes. A function of the caller compares items.
A comparison reads the items, which are far apart in memory, so two children cost less than four.
"""

from __future__ import annotations

from typing import Any

from tidegate.kernel.compiling import Array, inlined


@inlined
def before(r1: Any, s1: int, r2: Any, s2: int) -> bool:
    """Return True if (r1, s1) comes before (r2, s2)."""
    return r1 < r2 or (r1 == r2 and s1 < s2)


@inlined
def put(heap: Array, at: int, rank: Any, seq: int, item: int, life: int = 0) -> None:
    """Fill in a node."""
    heap[at].rank = rank
    heap[at].seq = seq
    heap[at].item = item
    heap[at].life = life


@inlined
def push(heap: Array, n: int, rank: Any, seq: int, item: int, life: int = 0) -> None:
    """Add a node to a heap of n nodes, which makes n + 1."""
    put(heap, n, rank, seq, item, life)
    sift_up(heap, n)


@inlined
def sift_up(heap: Array, at: int) -> None:
    """Move a node up to its place."""
    rank, seq, item, life = heap[at].rank, heap[at].seq, heap[at].item, heap[at].life
    while at > 0:
        up = (at - 1) >> 2
        if not before(rank, seq, heap[up].rank, heap[up].seq):
            break
        heap[at] = heap[up]
        at = up
    put(heap, at, rank, seq, item, life)


@inlined
def sift_down(heap: Array, at: int, n: int) -> None:
    """Move a node of a heap of n down to its place."""
    rank, seq, item, life = heap[at].rank, heap[at].seq, heap[at].item, heap[at].life
    while True:
        first = 4 * at + 1
        if first >= n:
            break
        least = first
        for child in range(first + 1, min(first + 4, n)):
            if before(heap[child].rank, heap[child].seq, heap[least].rank, heap[least].seq):
                least = child
        if not before(heap[least].rank, heap[least].seq, rank, seq):
            break
        heap[at] = heap[least]
        at = least
    put(heap, at, rank, seq, item, life)


@inlined
def drop_top(heap: Array, n: int) -> None:
    """Remove the top of a heap of n nodes, which leaves n - 1."""
    heap[0] = heap[n - 1]
    sift_down(heap, 0, n - 1)


@inlined
def heapify(heap: Array, n: int) -> None:
    """Arrange n nodes as a heap."""
    for i in range((n - 2) >> 2, -1, -1):
        sift_down(heap, i, n)


# ---- indexed heaps ------------------------------------------------------------------------------


@inlined
def push_item(heap: Array, n: int, items: Array, item: int, lower: Any, context: Any) -> None:
    """Add an item to an indexed heap of n items, which makes n + 1.

    `lower(context, a, b)` is True if item a comes before item b.
    """
    items[item].place = n
    settle_item(heap, n + 1, items, item, lower, context)


@inlined
def remove_item(heap: Array, n: int, items: Array, item: int, lower: Any, context: Any) -> None:
    """Remove an item from an indexed heap of n items, which leaves n - 1."""
    last = heap[n - 1]
    if last != item:
        items[last].place = items[item].place
        settle_item(heap, n - 1, items, last, lower, context)


@inlined
def settle_item(heap: Array, n: int, items: Array, item: int, lower: Any, context: Any) -> None:
    """Move an item of an indexed heap of n items to where it belongs."""
    at = items[item].place
    while at > 0:
        up = (at - 1) >> 1
        if not lower(context, item, heap[up]):
            break
        heap[at] = heap[up]
        items[heap[at]].place = at
        at = up
    while True:
        least = 2 * at + 1
        if least >= n:
            break
        if least + 1 < n and lower(context, heap[least + 1], heap[least]):
            least += 1
        if not lower(context, heap[least], item):
            break
        heap[at] = heap[least]
        items[heap[at]].place = at
        at = least
    heap[at] = item
    items[item].place = at
