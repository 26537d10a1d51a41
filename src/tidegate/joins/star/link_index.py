"""Index of the relation of a star join: from a key of any stream to the links that have it.

Each stream has its own keys, found by hash. The links of one key form a list. Links (facts in the
paper and in the code) are numbered in the order in which they were added, and only a rebuild
removes any.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tidegate.kernel import hash_table
from tidegate.kernel.compiling import AHEAD, Array, entry_point, inlined


class Facts(NamedTuple):
    """An index of n streams, with room for e keys per stream and f links."""

    table: Array  # [n, slots]: hash tables (see `kernel/hash_table.py`)
    hashes: Array  # [n, e]
    first: Array  # [n, e]: a key's first link, or -1
    begin: Array  # [f]
    end: Array  # [f]
    key: Array  # [f, n]
    next: Array  # [f, n]: the next link with the same key of the stream, or -1


@entry_point
def find(facts: Facts, stream: int, hashes: Array, entries: Array) -> None:
    """Find the entry of each hash; -1 if there is none."""
    table, known, n = facts.table[stream], facts.hashes[stream], hashes.shape[0]
    for i in range(n):
        if i + 2 * AHEAD < n:
            hash_table.prefetch_place(table, hashes[i + 2 * AHEAD])
        if i + AHEAD < n:
            hash_table.prefetch_hash(table, known, hashes[i + AHEAD])
        entries[i] = hash_table.find(table, known, hashes[i])


@entry_point
def intern(facts: Facts, stream: int, hashes: Array, entries: Array, used: int) -> int:
    """Find or create the entry of each hash, and return the number of entries.

    The table has room for all of them.
    """
    table, known = facts.table[stream], facts.hashes[stream]
    for i in range(hashes.shape[0]):
        at = hash_table.place_of(table, known, hashes[i])
        if table[at] == 0:
            hash_table.set_entry(table, at, hashes[i], used)
            known[used] = hashes[i]
            facts.first[stream, used] = -1
            used += 1
        entries[i] = hash_table.entry_at(table, at)
    return used


@entry_point
def chain(facts: Facts, start: int, stop: int) -> None:
    """Add links, whose keys are set, to the lists of their keys."""
    for fact in range(start, stop):
        for stream in range(facts.key.shape[1]):
            entry = facts.key[fact, stream]
            facts.next[fact, stream] = facts.first[stream, entry]
            facts.first[stream, entry] = fact


@inlined
def active(facts: Facts, fact: int, time: Any) -> bool:
    """Return True if a link is active at a time."""
    return bool(facts.begin[fact] <= time < facts.end[fact])


@inlined
def last_end(facts: Facts, stream: int, entry: int, time: Any, none: Any) -> Any:
    """Return when the last active link of a row ends; `none` if the row has no active link.

    This is condition (8) of the paper: no row can join it from that time on.
    """
    latest = none
    if entry >= 0:
        fact = facts.first[stream, entry]
        while fact >= 0:
            if active(facts, fact, time) and facts.end[fact] > latest:
                latest = facts.end[fact]
            fact = facts.next[fact, stream]
    return latest


@entry_point
def matched(facts: Facts, stream: int, entries: Array, times: Array, found: Array) -> None:
    """Set for each row whether it has an active link."""
    for i in range(entries.shape[0]):
        if entries[i] < 0:
            found[i] = False
            continue
        fact = facts.first[stream, entries[i]]
        while fact >= 0 and not active(facts, fact, times[i]):
            fact = facts.next[fact, stream]
        found[i] = fact >= 0


@entry_point
def lead(
    facts: Facts, stream: int, entries: Array, times: Array, shard: Array, rows: Array, to: Array
) -> int:
    """Find the shards of the active links of each row, each shard once per row.

    Return the number of (row, shard) pairs. Write them to `rows` and `to` as far as there is room.
    """
    n = 0
    for i in range(entries.shape[0]):
        start = n
        fact = facts.first[stream, entries[i]] if entries[i] >= 0 else -1
        while fact >= 0:
            if active(facts, fact, times[i]):
                known = False
                for j in range(start, min(n, rows.shape[0])):
                    known = known or to[j] == shard[fact]
                if not known:
                    if n < rows.shape[0]:
                        rows[n], to[n] = i, shard[fact]
                    n += 1
            fact = facts.next[fact, stream]
    return n


@entry_point
def components(facts: Facts, count: int, parent: Array, offset: Array) -> None:
    """Unite the keys that a link connects (union-find).

    `parent` contains the keys of all streams, one stream after the other, each its own parent at
    first. `offset[s]` is where the keys of stream s begin.
    """
    for fact in range(count):
        root = -1
        for stream in range(facts.key.shape[1]):
            at = offset[stream] + facts.key[fact, stream]
            while parent[at] != at:
                parent[at] = parent[parent[at]]
                at = parent[at]
            if root < 0 or at == root:
                root = at
            elif at < root:
                parent[root] = at
                root = at
            else:
                parent[at] = root
    for at in range(parent.shape[0]):
        root = at
        while parent[root] != root:
            parent[root] = parent[parent[root]]
            root = parent[root]
        parent[at] = root
