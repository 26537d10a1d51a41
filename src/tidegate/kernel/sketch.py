"""Counts of any number of keys in a fixed number of cells.

A count-min sketch with conservative updates (Cormode, Muthukrishnan 2005; Estan, Varghese 2002). A
key has a cell in every row, and its count is the smallest of them. The count is never too small. It
is too large only where other keys share all of its cells. An arrival raises no cell further than
the new count requires.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel.compiling import Array, inlined


@inlined
def _place(rows: Array, hash_: Any, row: int) -> int:
    """Return the place of a key's cell in a row, which depends on all bits of the hash."""
    step = (np.uint64(hash_) >> np.uint64(32)) | np.uint64(1)
    return int((np.uint64(hash_) + np.uint64(row) * step) & np.uint64(rows.shape[1] - 1))


@inlined
def found_in(rows: Array, hash_: Any) -> float:
    """Return an upper bound of how often a key came."""
    least = np.inf
    for row in range(rows.shape[0]):
        least = min(least, rows[row, _place(rows, hash_, row)])
    return float(least)


@inlined
def add_to(rows: Array, hash_: Any, weight: float) -> None:
    """Count an arrival of a key."""
    total = found_in(rows, hash_) + weight
    for row in range(rows.shape[0]):
        at = _place(rows, hash_, row)
        rows[row, at] = max(rows[row, at], total)
