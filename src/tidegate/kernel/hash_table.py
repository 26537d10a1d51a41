"""A hash table with open addressing, from key hashes to entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel.compiling import inlined
from tidegate.kernel.layout import Core

#: Masks of the halves of a place in `Core.table`: the upper bits of a hash, and an entry + 1.
UPPER, LOWER = np.uint64(0xFFFFFFFF00000000), np.uint64(0xFFFFFFFF)


@inlined
def place_of(core: Core, hash_: Any) -> int:
    """Return the place of a key in the table, or the empty place where it belongs."""
    table = core.table
    mask = np.uint64(table.shape[0] - 1)
    at = hash_ & mask
    while table[at] != 0:
        if table[at] & UPPER == hash_ & UPPER and core.hashes[entry_at(core, at)] == hash_:
            break
        at = (at + np.uint64(1)) & mask
    return int(at)


@inlined
def entry_at(core: Core, at: int) -> int:
    """Return the entry at a place in the table, or -1 if the place is empty."""
    return int(core.table[at] & LOWER) - 1
