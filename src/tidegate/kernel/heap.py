"""Heaps and lists of (rank, seq, item): four children a node, ties by sequence number."""

from __future__ import annotations

from typing import Any

from tidegate.kernel.compiling import Array, inlined, inner


@inlined
def before(r1: Any, s1: int, r2: Any, s2: int) -> bool:
    """Whether (r1, s1) comes before (r2, s2)."""
    return r1 < r2 or (r1 == r2 and s1 < s2)


@inlined
def put(heap: Array, at: int, rank: Any, seq: int, item: int, life: int = 0) -> None:
    """Set a node."""
    heap[at].rank = rank
    heap[at].seq = seq
    heap[at].item = item
    heap[at].life = life


@inlined
def sift_up(heap: Array, at: int) -> None:
    """Move a node up to where it belongs."""
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
    """Move a node of a heap of n down to where it belongs."""
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
    """Remove the top of a heap of n; it has n - 1 after."""
    heap[0] = heap[n - 1]
    sift_down(heap, 0, n - 1)


@inlined
def heapify(heap: Array, n: int) -> None:
    """Put n nodes in a heap's order."""
    for i in range((n - 2) >> 2, -1, -1):
        sift_down(heap, i, n)


@inner
def select(items: Array, n: int, k: int) -> None:
    """Move the k least (rank, seq) of n to the front."""
    low, high = 0, n - 1
    while low < high:
        middle = (low + high) >> 1
        rank, seq = items[middle].rank, items[middle].seq
        i, j = low, high
        while i <= j:
            while before(items[i].rank, items[i].seq, rank, seq):
                i += 1
            while before(rank, seq, items[j].rank, items[j].seq):
                j -= 1
            if i <= j:
                r, s, e, life = items[i].rank, items[i].seq, items[i].item, items[i].life
                items[i] = items[j]
                put(items, j, r, s, e, life)
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break


#: As many are sorted by inserting one after the other.
_RUN = 16


@inner
def sort(source: Array, target: Array, n: int) -> None:
    """Put the first n of one list into another in order; the first one is overwritten."""
    for start in range(0, n, _RUN):
        for i in range(start, min(start + _RUN, n)):
            rank, seq, item, life = source[i].rank, source[i].seq, source[i].item, source[i].life
            at = i
            while at > start and before(rank, seq, target[at - 1].rank, target[at - 1].seq):
                target[at] = target[at - 1]
                at -= 1
            put(target, at, rank, seq, item, life)
    width = _RUN
    while width < n:
        # There and back again, so that the last is in the target.
        _merge_runs(target, source, n, width)
        _merge_runs(source, target, n, 2 * width)
        width *= 4


@inlined
def _merge_runs(source: Array, target: Array, n: int, width: int) -> None:
    """Merge each two sorted runs of a width; a run that is alone is copied."""
    for start in range(0, n, 2 * width):
        i, j = start, min(start + width, n)
        middle, stop = j, min(start + 2 * width, n)
        for at in range(start, stop):
            left = j >= stop
            if i < middle and not left:
                left = before(source[i].rank, source[i].seq, source[j].rank, source[j].seq)
            if left:
                target[at] = source[i]
                i += 1
            else:
                target[at] = source[j]
                j += 1
