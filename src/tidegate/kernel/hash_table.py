"""A hash table with open addressing and linear probing, from 64-bit hashes to entries.

A *table* is an array of words whose length is a power of two. A word is 0 if its place is empty.
Otherwise its upper half is the upper half of a hash and its lower half is an entry + 1. The caller
numbers the entries, and keeps the whole hash of each in `hashes[entry]`. The upper half of a hash
in the table makes it rare that a search reads a hash that differs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel.compiling import Array, inlined, prefetch

#: Masks of the halves of a word: the upper bits of a hash, and an entry + 1.
UPPER, LOWER = np.uint64(0xFFFFFFFF00000000), np.uint64(0xFFFFFFFF)


@inlined
def entry_at(table: Array, at: Any) -> int:
    """Return the entry at a place, or -1 if the place is empty."""
    return int(table[at] & LOWER) - 1


@inlined
def place_of(table: Array, hashes: Array, hash_: Any) -> int:
    """Return the place of a hash, or the empty place where it belongs."""
    mask = np.uint64(table.shape[0] - 1)
    at = hash_ & mask
    while table[at] != 0:
        if table[at] & UPPER == hash_ & UPPER and hashes[entry_at(table, at)] == hash_:
            break
        at = (at + np.uint64(1)) & mask
    return int(at)


@inlined
def find(table: Array, hashes: Array, hash_: Any) -> int:
    """Return the entry of a hash, or -1 if it has none."""
    return entry_at(table, place_of(table, hashes, hash_))


@inlined
def set_entry(table: Array, at: int, hash_: Any, entry: int) -> None:
    """Fill the empty place of a hash, which `place_of` found, with its entry."""
    table[at] = hash_ & UPPER | np.uint64(entry + 1)


@inlined
def add(table: Array, hash_: Any, entry: int) -> None:
    """Add an entry whose hash is known to be new, for instance to an empty table."""
    mask = np.uint64(table.shape[0] - 1)
    at = hash_ & mask
    while table[at] != 0:
        at = (at + np.uint64(1)) & mask
    table[at] = hash_ & UPPER | np.uint64(entry + 1)


@inlined
def remove(table: Array, hashes: Array, hash_: Any) -> None:
    """Remove a hash that is in the table; its entry still has its hash."""
    one, mask = np.uint64(1), np.uint64(table.shape[0] - 1)
    at = np.uint64(place_of(table, hashes, hash_))
    # Close the gap: move back every later word that a search could not reach across it.
    after = (at + one) & mask
    while table[after] != 0:
        home = hashes[entry_at(table, after)] & mask
        if (after - home) & mask >= (after - at) & mask:
            table[at] = table[after]
            at = after
        after = (after + one) & mask
    table[at] = 0


@inlined
def prefetch_place(table: Array, hash_: Any) -> None:
    """Prefetch the place where the search for a hash begins."""
    prefetch(table, hash_ & np.uint64(table.shape[0] - 1))


@inlined
def prefetch_hash(table: Array, hashes: Array, hash_: Any) -> None:
    """Prefetch the hash of the entry where the search for a hash begins."""
    prefetch(hashes, entry_at(table, hash_ & np.uint64(table.shape[0] - 1)))
