"""Which rows can be partners, if a condition besides the key decides: buckets, and the program.

Rows of one key, and of one bucket of the condition's band if it has one, share an entry. The
partners of a row are in `span` buckets. `start` is the hash of the first of them before it is
mixed; see `joins/window/conditions.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel.compiling import AHEAD, Array, entry_point, inlined, inner
from tidegate.kernel.hash_table import find, prefetch_hash, prefetch_place
from tidegate.kernel.hashing import GOLDEN
from tidegate.kernel.layout import Batch, Core, Rules
from tidegate.kernel.programs import meets


@inlined
def bucket_hash(start: Any, number: int) -> Any:
    """Return the hash of a bucket, counted from the first one that has partners of a row."""
    hash_ = start + np.uint64(number) * GOLDEN
    return hash_ ^ (hash_ >> np.uint64(32))


@inlined
def are_partners(core: Core, rules: Rules, side: int, own: Array, other: Array) -> bool:
    """Return True if the values of a row of one side and a row of the other meet the condition."""
    if side == 0:
        return meets(rules.program, rules.numbers, core.stack, core.missing, own, other)
    return meets(rules.program, rules.numbers, core.stack, core.missing, other, own)


@inlined
def partner_entries(rules: Rules, batch: Batch, i: int) -> int:
    """Return the number of entries that may have partners of newcomer i."""
    return int(batch.span[i]) if rules.checked else 1


@inlined
def partner_entry(rules: Rules, batch: Batch, i: int, part: int) -> Any:
    """Return one of the entries that may have partners of newcomer i, or -1."""
    return batch.near[i, part] if rules.checked else batch.entry[i]


@entry_point
def find_buckets(table: Array, hashes: Array, start: Array, span: Array, near: Array) -> None:
    """Find the entries of the buckets of each row; -1 for a bucket that has none."""
    for i in range(start.shape[0]):
        if i + AHEAD < start.shape[0]:
            for j in range(span[i + AHEAD]):
                prefetch_place(table, bucket_hash(start[i + AHEAD], j))
        if i + AHEAD // 2 < start.shape[0]:
            for j in range(span[i + AHEAD // 2]):
                prefetch_hash(table, hashes, bucket_hash(start[i + AHEAD // 2], j))
        for j in range(near.shape[1]):
            near[i, j] = -1
            if j < span[i]:
                near[i, j] = find(table, hashes, bucket_hash(start[i], j))


@inlined
def counts_partners(core: Core) -> bool:
    """Return True if the partners of each row are counted, because their keys do not say them."""
    return bool(core.partners.shape[0] > 0)


@inlined
def partners_of(core: Core, group: int, slot: int) -> float:
    """Return how many rows that the other side holds have the key of a row, and join it.

    Slot -1 is the newcomer that is being admitted.
    """
    if counts_partners(core):
        return float(core.partners[slot])
    return float(core.groups[group ^ 1].count)


@inner
def meet_held(core: Core, rules: Rules, side: int, at: int, change: int) -> int:
    """Return how many held rows of the other side a row joins, and change their own counts.

    `at` is the row's slot, or -1 for the newcomer.
    """
    found, right = 0, np.int64(side)
    for j in range(core.span[at]):
        entry = find(core.table, core.hashes, bucket_hash(core.start[at], j))
        slot = core.groups[2 * entry + 1 - right].head if entry >= 0 else -1
        while slot >= 0:
            if are_partners(core, rules, side, core.values[at], core.values[slot]):
                core.partners[slot] += change
                found += 1
            slot = core.slots[slot].next
    return found


@entry_point
def count_held(core: Core, rules: Rules, batch: Batch, rows: Array, found: Array) -> None:
    """Count for each of some newcomers the held rows of the other side that it joins."""
    for at in range(rows.shape[0]):
        i = rows[at]
        found[at] = 0
        for part in range(partner_entries(rules, batch, i)):
            entry = partner_entry(rules, batch, i, part)
            group = 2 * entry + 1 - batch.side[i]
            if not rules.checked:
                found[at] += core.groups[group].count
                continue
            slot = core.groups[group].head if entry >= 0 else -1
            while slot >= 0:
                own, other = batch.values[i], core.values[slot]
                found[at] += are_partners(core, rules, batch.side[i], own, other)
                slot = core.slots[slot].next


@inlined
def greet_newcomer(core: Core, rules: Rules, batch: Batch, i: int) -> None:
    """Count the partners of newcomer i, before it is admitted."""
    if counts_partners(core):
        core.start[-1], core.span[-1] = batch.start[i], batch.span[i]
        for column in range(core.values.shape[1]):
            core.values[-1, column] = batch.values[i, column]
        core.partners[-1] = meet_held(core, rules, int(batch.side[i]), -1, 0)
