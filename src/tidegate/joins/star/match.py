"""Combine a row with rows of the other streams through the links (facts) of the relation."""

from __future__ import annotations

from typing import Any

from tidegate.joins.star.layout import (
    COUNT,
    DGL,
    EMIT,
    HELD,
    Core,
    Rules,
)
from tidegate.joins.star.link_index import Facts, active
from tidegate.joins.star.ranks import learn, rematch
from tidegate.kernel.compiling import Array, inlined, inner


@inlined
def near(rules: Rules, s: int, a: Any, o: int, b: Any) -> bool:
    """Return True if rows of streams s and o with times a and b are in each other's window."""
    mine, other = rules.windows[s], rules.windows[o]
    return bool((mine == 0 or b < a + mine) and (other == 0 or a < b + other))


@inlined
def _fits(
    core: Core, facts: Facts, rules: Rules, fact: int, slot: int, depth: int, s: int, time: Any
) -> bool:
    """Return True if a row completes a combination: its link is active, and all windows agree."""
    held = core.slots[slot]
    if not (active(facts, fact, held.time) and near(rules, s, time, held.stream, held.time)):
        return False
    for i in range(depth):
        other = core.slots[core.cursor[i]]
        if not near(rules, other.stream, other.time, held.stream, held.time):
            return False
    return True


@inlined
def _other(stream: int, depth: int) -> int:
    """Return the number of the other stream at a given depth of the search."""
    return depth if depth < stream else depth + 1


@inlined
def _pause(core: Core, fact: int, slot: int) -> None:
    scalars = core.scalars[0]
    scalars.paused, scalars.paused_fact, scalars.paused_slot = 1, fact, slot


@inlined
def join_partners(
    core: Core,
    facts: Facts,
    rules: Rules,
    rows: Array,
    n: int,
    stream: int,
    entry: int,
    time: Any,
    row: int,
    action: int,
    only: int,
) -> int:
    """Enumerate all combinations of a row with one row of each other stream, link by link.

    `EMIT` writes combinations of rows that have probed to `rows`, after the `n` that are there, and
    returns the new number. When `rows` is full it sets `PAUSED`; the next call continues from
    there. `COUNT`, `ADD` and `TAKE` count combinations of held rows through links that have not
    ended. `ADD` and `TAKE` also update the matches of the other rows. `only` restricts the search
    to one link; -1 means all links of the row.
    """
    scalars = core.scalars[0]
    others = rules.windows.shape[0] - 1
    fact = only if only >= 0 else facts.first[stream, entry]
    resumes = action == EMIT and scalars.paused == 1
    if resumes:
        fact = scalars.paused_fact
        scalars.paused = 0
    while fact >= 0:
        fits = active(facts, fact, time)
        if action != EMIT and only < 0:
            fits = fits and facts.end[fact] > scalars.clock
        if fits and others == 0:
            if n == rows.shape[1]:
                _pause(core, fact, -1)
                return n
            rows[0, n], rows[1, n] = row, fact
            n += 1
        elif fits:
            depth = 0
            slot = core.groups[_other(stream, 0), facts.key[fact, _other(stream, 0)]].head
            if resumes:
                # `core.cursor` still contains the slots of the streams before the last.
                depth, slot = others - 1, scalars.paused_slot
                resumes = False
            while depth >= 0:
                if slot < 0:
                    depth -= 1
                    if depth >= 0:
                        slot = core.slots[core.cursor[depth]].next
                    continue
                held = core.slots[slot]
                good = held.seen == 1 if action == EMIT else held.state == HELD
                if not good or not _fits(core, facts, rules, fact, slot, depth, stream, time):
                    slot = held.next
                    continue
                core.cursor[depth] = slot
                if depth + 1 < others:
                    depth += 1
                    o = _other(stream, depth)
                    slot = core.groups[o, facts.key[fact, o]].head
                    continue
                if action == EMIT and n == rows.shape[1]:
                    _pause(core, fact, slot)
                    return n
                for i in range(others):
                    one = core.cursor[i]
                    if action == EMIT:
                        rows[_other(stream, i), n] = core.slots[one].row
                        if (
                            rules.kind == DGL
                            and core.slots[one].state == HELD
                            and core.slots[one].seq < scalars.first_new
                        ):
                            learn(core, rules, one)
                    elif action != COUNT:
                        rematch(core, rules, one, action)
                if action == EMIT:
                    rows[stream, n] = row
                    rows[others + 1, n] = fact
                n += 1
                slot = held.next
        fact = -1 if only >= 0 else facts.next[fact, stream]
    return n


@inner
def recount(core: Core, facts: Facts, rules: Rules, slot: int, action: int, only: int) -> int:
    """Count the matches of a held row, and update those of its partners; see `join_partners`."""
    held = core.slots[slot]
    none = core.cursor.reshape(1, -1)
    return join_partners(
        core, facts, rules, none, 0, held.stream, held.entry, held.time, 0, action, only
    )
