"""Knapsacks of whole components, and the one component that is kept in part."""

from __future__ import annotations

from tidegate.kernel.compiling import Array, entry_point, inlined


@inlined
def _retained(sides: Array, item: int, part: int) -> int:
    """Lemma 1 of paper 1: the results that `part` rows of one value give at the most.

    `sides` has the rows of each relation in ascending order.
    """
    found, last = 1, sides.shape[1]
    for i in range(last):
        even = min(part // (last - i), sides[item, i])
        found *= even
        part -= even
    return found


@entry_point
def add_whole(best: Array, scratch: Array, sizes: Array, values: Array) -> None:
    """Offer whole items to a knapsack: best[w] is the most that w rows of room hold.

    Each item makes a new table from the old one, which the compiler can do many at a time.
    """
    last = best.shape[0]
    old, new = best, scratch
    for i in range(sizes.shape[0]):
        size, value = min(sizes[i], last), values[i]
        for room in range(size):
            new[room] = old[room]
        for room in range(size, last):
            new[room] = max(old[room], old[room - size] + value)
        old, new = new, old
    if sizes.shape[0] % 2:
        for room in range(last):
            best[room] = scratch[room]


@entry_point
def sum_above(
    order: Array, rank: Array, sizes: Array, trees: Array, sums: Array, largest: Array
) -> None:
    """For each item, the sizes of those that come before it in `order` and rank no lower.

    Gives their sum and the largest. `rank` counts from 0 for the highest; `trees` are two Fenwick
    trees over ranks, one longer, zeros.
    """
    last = trees.shape[1] - 1
    for i in order:
        at = rank[i] + 1
        sums[i] = 0
        largest[i] = 0
        while at > 0:
            sums[i] += trees[0, at]
            largest[i] = max(largest[i], trees[1, at])
            at -= at & -at
        at = rank[i] + 1
        while at <= last:
            trees[0, at] += sizes[i]
            trees[1, at] = max(trees[1, at], sizes[i])
            at += at & -at


@entry_point
def best_parts(
    best: Array, rooms: Array, sides: Array, least: Array, most: Array, gains: Array, parts: Array
) -> None:
    """For each item, the best part of it to keep beside a knapsack that does not hold it.

    Item i has `rooms[i]` rows of room for itself and the knapsack, and takes from `least[i]` to
    `most[i]` of them. Room beyond the knapsack's table is room it has no use for.
    """
    last = best.shape[0] - 1
    for i in range(rooms.shape[0]):
        gains[i] = -1
        parts[i] = 0
        for part in range(least[i], min(most[i], rooms[i]) + 1):
            gain = best[min(rooms[i] - part, last)] + _retained(sides, i, part)
            if gain > gains[i]:
                gains[i] = gain
                parts[i] = part


@entry_point
def keep_each(counts: Array, best: Array, kept: Array) -> None:
    """Fill in `kept` [side, value], how many of `counts` to keep, with a budget for each side.

    best[v, x, y] becomes the most results of the first v values with x rows of the left and y of
    the right; its first row is zeros.
    """
    values, rows, columns = counts.shape[1], best.shape[1], best.shape[2]
    for v in range(values):
        for x in range(rows):
            for y in range(columns):
                most = best[v, x, y]
                for a in range(1, min(counts[0, v], x) + 1):
                    for b in range(1, min(counts[1, v], y) + 1):
                        most = max(most, best[v, x - a, y - b] + a * b)
                best[v + 1, x, y] = most
    x, y = rows - 1, columns - 1
    for v in range(values - 1, -1, -1):
        if best[v, x, y] == best[v + 1, x, y]:
            continue
        for a in range(1, min(counts[0, v], x) + 1):
            for b in range(1, min(counts[1, v], y) + 1):
                if best[v, x - a, y - b] + a * b == best[v + 1, x, y]:
                    kept[0, v], kept[1, v] = a, b
        x -= kept[0, v]
        y -= kept[1, v]
