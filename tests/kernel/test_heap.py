"""Heaps and hash tables compared with sorted lists and dictionaries."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tidegate.kernel import hash_table, heap
from tidegate.kernel.layout import ranked_type
from tidegate.kernel.records import record_type

NODE = ranked_type(np.dtype(np.float64))
ITEM = record_type([("rank", "i8"), ("place", "i8")])


@numba.njit
def push_all(nodes: Any, ranks: Any) -> None:
    for i in range(ranks.shape[0]):
        heap.push(nodes, i, ranks[i], i, i)


@numba.njit
def heapify(nodes: Any, ranks: Any) -> None:
    for i in range(ranks.shape[0]):
        heap.put(nodes, i, ranks[i], i, i)
    heap.heapify(nodes, ranks.shape[0])


@numba.njit
def pop_all(nodes: Any, order: Any) -> None:
    n = order.shape[0]
    for i in range(n):
        order[i] = nodes[0].item
        heap.drop_top(nodes, n - i)


@given(st.lists(st.integers(0, 5), max_size=40), st.booleans())
def test_a_heap_pops_in_order(ranks: list[int], one_by_one: bool) -> None:
    nodes, order = np.zeros(len(ranks) + 1, NODE), np.zeros(len(ranks), np.int64)
    (push_all if one_by_one else heapify)(nodes, np.array(ranks, np.float64))
    pop_all(nodes, order)
    assert order.tolist() == sorted(range(len(ranks)), key=lambda i: (ranks[i], i))


@numba.njit
def lower(items: Any, a: int, b: int) -> bool:
    return bool(items[a].rank < items[b].rank) or (items[a].rank == items[b].rank and a < b)


@numba.njit
def change(nodes: Any, n: int, items: Any, item: int, rank: int) -> int:
    """Set the rank of an item, and add or (rank -1) remove it; return the new length."""
    if rank < 0:
        if items[item].rank >= 0:
            heap.remove_item(nodes, n, items, item, lower, items)
            n -= 1
    elif items[item].rank < 0:
        items[item].rank = rank
        heap.push_item(nodes, n, items, item, lower, items)
        n += 1
    else:
        items[item].rank = rank
        heap.settle_item(nodes, n, items, item, lower, items)
    items[item].rank = rank
    return n


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(-1, 5)), max_size=60))
def test_items_of_an_indexed_heap_can_move_and_leave(changes: list[tuple[int, int]]) -> None:
    nodes, items = np.zeros(20, np.int64), np.zeros(20, ITEM)
    items["rank"] = -1
    n = 0
    for item, rank in changes:
        n = change(nodes, n, items, item, rank)
        inside = np.flatnonzero(items["rank"] >= 0)
        assert n == len(inside)
        assert sorted(nodes[:n]) == inside.tolist()
        assert all(nodes[items["place"][i]] == i for i in inside)
        if n:
            assert nodes[0] == min(inside, key=lambda i: (items["rank"][i], i))


@numba.njit
def toggle(table: Any, hashes: Any, wanted: Any, found: Any) -> None:
    """Add each hash that is missing as the entry of its number, and remove it the next time."""
    for i in range(wanted.shape[0]):
        at = hash_table.place_of(table, hashes, wanted[i])
        found[i] = hash_table.entry_at(table, at)
        if found[i] < 0:
            hashes[i] = wanted[i]
            hash_table.set_entry(table, at, wanted[i], i)
        else:
            hash_table.remove(table, hashes, wanted[i])


@numba.njit
def look_up(table: Any, hashes: Any, wanted: Any, found: Any) -> None:
    for i in range(wanted.shape[0]):
        found[i] = hash_table.find(table, hashes, wanted[i])


@numba.njit
def add_all(table: Any, hashes: Any) -> None:
    for i in range(hashes.shape[0]):
        hash_table.add(table, hashes[i], i)


#: Hashes that collide in the low bits, in the high bits, and in neither.
HASHES: NDArray[np.uint64] = np.array(
    [high << 32 | low for high in (0, 1, 2**32 - 1) for low in (0, 1, 15, 31, 64)], np.uint64
)


@given(st.lists(st.integers(0, len(HASHES) - 1), max_size=40))
def test_a_hash_table_finds_what_was_added_and_not_removed(numbers: list[int]) -> None:
    wanted = HASHES[np.array(numbers, np.int64)]
    table, hashes = np.zeros(32, np.uint64), np.zeros(len(wanted), np.uint64)
    found, known, expected = np.zeros(len(wanted), np.int64), dict[int, int](), []
    with np.errstate(over="ignore"):  # as an entry point does where it is not compiled
        toggle(table, hashes, wanted, found)
    for i, number in enumerate(numbers):
        expected.append(known.pop(number, -1))
        if expected[-1] < 0:
            known[number] = i
    assert found.tolist() == expected
    every = np.zeros(len(HASHES), np.int64)
    look_up(table, hashes, HASHES, every)
    assert every.tolist() == [known.get(number, -1) for number in range(len(HASHES))]


def test_entries_can_be_added_without_a_search() -> None:
    table, found = np.zeros(32, np.uint64), np.zeros(len(HASHES), np.int64)
    add_all(table, HASHES)
    look_up(table, HASHES, HASHES, found)
    assert found.tolist() == list(range(len(HASHES)))
