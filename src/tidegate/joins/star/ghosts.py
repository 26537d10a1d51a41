"""Learn from ghosts how many results rows of a star join would find if all of them were kept.

`learning/ghosts.py` explains ghosts. Here a newcomer meets the ghosts of the other streams through
the links of the relation.
"""

from __future__ import annotations

import math

from tidegate.joins.star.layout import Batch, Core, Rules
from tidegate.joins.star.link_index import Facts, active, last_end
from tidegate.joins.star.match import near
from tidegate.joins.star.ranks import completions, look_through, standing
from tidegate.kernel.compiling import entry_point, inlined, inner
from tidegate.learning.ghosts import (
    NOTHING_DUE,
    VISIT_DUE,
    add_to_cells,
    begin_census,
    end_census,
    leaves_ghost,
    pass_marks,
    sum_up,
)
from tidegate.learning.outlook import EXPECTED, FOUND
from tidegate.learning.rates import stage_in, start_of


@inner
def _standing(core: Core, facts: Facts, rules: Rules, at: int, when: float) -> tuple[float, float]:
    """Return the level and the trend of a ghost's key."""
    ghost = core.learning.ghosts[at]
    came, lately, _, _, _ = look_through(
        core, facts, rules, ghost.side, ghost.entry, ghost.time, 1.0, when
    )
    _, level, trend = standing(core, rules, came, lately)
    return level, trend


@inner
def _expect(core: Core, facts: Facts, rules: Rules, at: int) -> None:
    """Count the results expected of a ghost since this was last done, at its key's current rate."""
    learning = core.learning
    ghost = learning.ghosts[at]
    side, time, clock = ghost.side, ghost.time, core.scalars[0].clock
    age, stop = float(ghost.until - time), float(clock - time)
    window = rules.windows[side]
    if window != 0:
        stop = min(stop, float(window))
    ghost.until = clock
    while age < stop:
        end = stop
        step = int(stage_in(window, age))
        if window != 0 and step + 1 < learning.cells.shape[2]:
            end = min(max(start_of(step + 1) * float(window), math.nextafter(age, stop)), stop)
        middle = 0.5 * (age + end)
        level, trend = _standing(core, facts, rules, at, float(time) + middle)
        step = int(stage_in(window, middle))
        add_to_cells(learning, rules.learning, EXPECTED, side, step, level, trend, end - age)
        age = end


@inlined
def credit_ghosts(core: Core, facts: Facts, rules: Rules, batch: Batch, i: int) -> None:
    """Count results for each ghost that newcomer i joins, before the newcomer is counted.

    With more than two streams, these are as many as the rows of the other streams complete.
    """
    learning = core.learning
    stream, time = batch.stream[i], batch.time[i]
    fact = facts.first[stream, batch.entry[i]]
    while fact >= 0:
        for o in range(core.groups.shape[0]):
            if o == stream or not active(facts, fact, time):
                continue
            ways = completions(core, facts, rules, fact, stream, o)
            at = core.groups[o, facts.key[fact, o]].ghost
            while at >= 0:
                ghost = learning.ghosts[at]
                if active(facts, fact, ghost.time) and near(rules, stream, time, o, ghost.time):
                    _expect(core, facts, rules, at)
                    if ways > 0.0:
                        age = float(core.scalars[0].clock - ghost.time)
                        level, trend = _standing(
                            core, facts, rules, at, float(core.scalars[0].clock)
                        )
                        step = int(stage_in(rules.windows[o], age))
                        add_to_cells(learning, rules.learning, FOUND, o, step, level, trend, ways)
                        ghost.found += ways
                at = ghost.next
        fact = facts.next[fact, stream]


@inlined
def _index(core: Core, at: int) -> None:
    ghost = core.learning.ghosts[at]
    group = core.groups[ghost.side, ghost.entry]
    ghost.next = group.ghost
    group.ghost = at


@entry_point
def index_ghosts(core: Core) -> None:
    """Build the index of all ghosts, which is empty."""
    for i in range(core.scalars[0].ghosts):
        _index(core, i)


@inlined
def _past(core: Core, facts: Facts, rules: Rules, at: int) -> bool:
    """Return True if the window or the last link of a ghost has ended."""
    ghost, clock = core.learning.ghosts[at], core.scalars[0].clock
    window = rules.windows[ghost.side]
    if window != 0 and clock >= ghost.time + window:
        return True
    return bool(last_end(facts, ghost.side, ghost.entry, ghost.time, rules.never) <= clock)


@inner
def _tidy(core: Core, facts: Facts, rules: Rules) -> None:
    """Remove ghosts that have ended or that the thinning drops, and index the rest."""
    learning, scalars = core.learning, core.scalars[0]
    for i in range(scalars.ghosts):
        core.groups[learning.ghosts[i].side, learning.ghosts[i].entry].ghost = -1
    n = 0
    for i in range(scalars.ghosts):
        ghost = learning.ghosts[i]
        if _past(core, facts, rules, i):
            sum_up(learning, i)
            continue
        if not leaves_ghost(learning, ghost.hash, ghost.seq):
            continue
        learning.ghosts[n] = ghost
        for mark in range(ghost.marks):
            learning.trails[n, mark] = learning.trails[i, mark]
        _index(core, n)
        n += 1
    scalars.ghosts = n


@inlined
def add_ghost(core: Core, facts: Facts, rules: Rules, batch: Batch, i: int, seq: int) -> None:
    """Add the ghost of a newcomer, unless it has ended or the thinning drops it."""
    learning, scalars = core.learning, core.scalars[0]
    if core.slots[batch.slot[i]].until <= scalars.clock:
        return
    most = learning.ghosts.shape[0]
    while scalars.ghosts == most:
        _tidy(core, facts, rules)
        if 4 * scalars.ghosts > 3 * most:
            scalars.thinned += 1
            _tidy(core, facts, rules)
    if not leaves_ghost(learning, batch.hash[i], seq):
        return
    n = scalars.ghosts
    ghost = learning.ghosts[n]
    ghost.hash, ghost.seq, ghost.time = batch.hash[i], seq, batch.time[i]
    ghost.side, ghost.entry = batch.stream[i], batch.entry[i]
    ghost.until, ghost.found, ghost.marks = scalars.clock, 0.0, 0
    _index(core, n)
    scalars.ghosts = n + 1


@inner
def refit(core: Core, facts: Facts, rules: Rules) -> None:
    """Run a census if one is due, and refit the model now and then."""
    learning = core.learning
    due = begin_census(learning, rules.learning)
    if due == NOTHING_DUE:
        return
    if due == VISIT_DUE:
        _visit(core, facts, rules)
    if end_census(learning, rules.learning):
        for pool in range(rules.pools):
            core.pools[pool].left = 0


@inner
def _visit(core: Core, facts: Facts, rules: Rules) -> None:
    """Count the expected results of all ghosts up to now, and let them leave their trails."""
    learning, scalars = core.learning, core.scalars[0]
    _tidy(core, facts, rules)
    for i in range(scalars.ghosts):
        ghost = learning.ghosts[i]
        _expect(core, facts, rules, i)
        window, marks, reached = rules.windows[ghost.side], learning.trails.shape[1], 0
        if window != 0:
            age = float(scalars.clock - ghost.time)
            reached = int(min(max(age * marks / float(window), 0.0), float(marks - 1)))
        if reached >= ghost.marks:
            level, _ = _standing(core, facts, rules, i, float(scalars.clock))
            pass_marks(learning, i, reached, level)
