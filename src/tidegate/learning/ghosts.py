"""Learn from ghosts how many results rows would find if all of them were kept.

A ghost is the record of a newcomer's key, side and time, whether it was admitted or not. Every
newcomer leaves a ghost, or a pseudo-random share of them do, so that ghosts never outgrow their
list. A ghost that meets a partner counts a result. A census, which is a periodic evaluation, adds
the results that were expected of each ghost since the last one. At fixed marks of its age a ghost
notes its results so far (its trail), so that at the end of its window the results after each mark
are known. `outlook` derives the worth of rows from these counts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tidegate.kernel.compiling import AHEAD, entry_point, inlined, inner
from tidegate.kernel.hash_table import find, prefetch_place
from tidegate.kernel.hashing import FACTOR, GOLDEN, multiply_shift
from tidegate.kernel.layout import Batch, Core, Rules
from tidegate.kernel.partners import (
    are_partners,
    bucket_hash,
    partner_entries,
)
from tidegate.kernel.windows import joins, past, step_of, window_of
from tidegate.learning.drift import forget, has_changed
from tidegate.learning.outlook import (
    EXPECTED,
    FOUND,
    GHOSTS_BY,
    OF_OTHERS,
    OF_RISEN,
    RESULTS,
    RISEN,
    TRIALS,
    fit,
    knows_keys,
    look_ahead,
)
from tidegate.learning.rates import (
    at_level,
    doublings_of,
    level_of,
    piece_of,
    rate_of,
    span_of,
    stage_of,
    start_of,
    trend_of,
)

#: The smallest number of newcomers between two censuses, and between two fits.
_APART, _FITS = 16, 1024
#: Parts of a window after which a census, a visit of all ghosts, and a fit are due.
_CENSUS, _VISIT, _FIT = 1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0
#: What is due: nothing, a census, or a census that visits all ghosts.
NOTHING_DUE, CENSUS_DUE, VISIT_DUE = 0, 1, 2
#: Windows after which a count weighs half.
_HALFLIFE = 8.0


@inlined
def _count(
    core: Core,
    rules: Rules,
    what: int,
    entry: int,
    side: int,
    time: Any,
    age: float,
    amount: float,
) -> None:
    """Count a ghost's result or its expected results; entry -1 is a key that was never seen."""
    _, _, steps, levels, trends = core.cells.shape
    if not knows_keys(core):
        equal_step = int(step_of(rules, side, time, age, steps))
        amount = amount if what == FOUND else amount / span_of(core, rules)
        core.cells[side, what, equal_step, 0, 0] += amount
        return
    came = rate_of(core, 2 * entry + side) if entry >= 0 else 0.0
    doublings = doublings_of(core, rules, came)
    level = level_of(came, doublings, levels)
    trend = 0.0
    if entry >= 0:
        trend = trend_of(core, rules, 2 * entry + side, doublings, trends, float(time) + age)
    add_to_cells(
        core, rules, what, side, int(stage_of(rules, side, time, age)), level, trend, amount
    )


@inlined
def add_to_cells(
    core: Core,
    rules: Rules,
    what: int,
    side: int,
    step: int,
    level: float,
    trend: float,
    amount: float,
) -> None:
    """Add results, or time in which results are expected, at a step of age, a level and a trend.

    A key between two levels or trends counts for both, in proportion. For each of the two, the
    expected results are those at the rate of that level, not at the key's own rate. Interpolation
    between levels is then right where all keys behave alike, however often they have come.
    """
    cells = core.cells[side, what, step]
    i, j = int(level), int(trend)
    over, on = level - i, trend - j
    here, above = amount, amount
    if what == EXPECTED:
        here *= at_level(i) / span_of(core, rules)
        above *= at_level(i + 1) / span_of(core, rules)
    cells[i, j] += (1.0 - over) * (1.0 - on) * here
    if over > 0.0:
        cells[i + 1, j] += over * (1.0 - on) * above
    if on > 0.0:
        cells[i, j + 1] += (1.0 - over) * on * here
        if over > 0.0:
            cells[i + 1, j + 1] += over * on * above


@inlined
def _expect(core: Core, rules: Rules, at: int, entry: int) -> None:
    """Count the results expected of a ghost since this was last done, at its key's current rate.

    The time is cut into pieces in which neither the step of its age nor its trend changes much.
    """
    ghost = core.ghosts[at]
    side, time = ghost.side, ghost.time
    age, stop = float(ghost.until - time), float(core.clock[0] - time)
    window = float(window_of(rules, side, time))
    if window > 0.0:
        stop = min(stop, window)
    ghost.until = core.clock[0]
    while age < stop:
        end = stop
        if knows_keys(core):
            if entry >= 0:
                end = age + piece_of(core, 2 * entry + side, float(time) + age)
            step = int(stage_of(rules, side, time, age))
            if window > 0.0 and step + 1 < core.cells.shape[2]:
                end = min(end, start_of(step + 1) * window)
            end = min(max(end, math.nextafter(age, stop)), stop)
        _count(core, rules, EXPECTED, entry, side, time, 0.5 * (age + end), end - age)
        age = end


@inlined
def _entry_of(core: Core, hash_: Any) -> int:
    """Return the entry of a ghost's key, or -1 if it is not known or does not matter."""
    return find(core.table, core.hashes, hash_) if knows_keys(core) else -1


@inlined
def credit_ghosts(core: Core, rules: Rules, batch: Batch, i: int) -> None:
    """Count a result for each ghost that newcomer i joins, before the newcomer is counted."""
    side, time = batch.side[i], batch.time[i]
    for part in range(partner_entries(rules, batch, i)):
        h, entry = np.uint64(batch.hash[i]), batch.entry[i]
        if rules.checked:
            h = np.uint64(bucket_hash(batch.start[i], part))
            entry = batch.near[i, part]
        at = core.heads[np.int64(h & np.uint64(core.heads.shape[0] - 1))]
        while at >= 0:
            ghost = core.ghosts[at]
            if (
                ghost.hash == h
                and ghost.side != side
                and (
                    not rules.checked
                    or are_partners(core, rules, side, batch.values[i], core.ghost_values[at])
                )
            ):
                _expect(core, rules, at, entry)
                left, right = (time, ghost.time) if side == 0 else (ghost.time, time)
                if joins(rules, left, right):
                    age = float(core.clock[0] - ghost.time)
                    _count(core, rules, FOUND, entry, ghost.side, ghost.time, age, 1.0)
                    ghost.found += 1
            at = ghost.next


@inlined
def leaves_ghost(core: Core, hash_: Any, seq: int) -> bool:
    """Choose by a hash of key and sequence number, so that the choice is random but repeatable."""
    mixed = multiply_shift(np.uint64(hash_) ^ np.uint64(seq), GOLDEN) * FACTOR
    thinned = core.scalars[0].thinned
    return bool(thinned == 0 or mixed >> np.uint64(64 - thinned) == np.uint64(0))


@inlined
def _index(core: Core, at: int) -> None:
    ghost = core.ghosts[at]
    place = np.int64(ghost.hash & np.uint64(core.heads.shape[0] - 1))
    ghost.next = core.heads[place]
    core.heads[place] = at


@inlined
def sum_up(core: Core, at: int) -> None:
    """Count the results after each mark of a ghost whose window has ended."""
    ghost = core.ghosts[at]
    returns = core.returns[ghost.side]
    for mark in range(ghost.marks):
        level, found = core.trails[at, mark].level, core.trails[at, mark].found
        returns[GHOSTS_BY, mark, level] += 1.0
        returns[RESULTS, mark, level] += float(ghost.found - found)
        for number in range(TRIALS):
            end = mark + (1 << number)
            if end < ghost.marks:
                trial = returns[2 + 3 * number : 5 + 3 * number, mark, level]
                if core.trails[at, end].level > level:
                    trial[RISEN] += 1.0
                    trial[OF_RISEN] += float(ghost.found - found)
                else:
                    trial[OF_OTHERS] += float(core.trails[at, end].found - found)


@inlined
def _leave_trail(core: Core, rules: Rules, at: int, entry: int, age: float) -> None:
    """Note the level of a ghost's key, and its results, at the marks of age that it has passed."""
    ghost = core.ghosts[at]
    marks = core.trails.shape[1]
    reached = int(step_of(rules, ghost.side, ghost.time, age, marks))
    if reached < ghost.marks:
        return
    count = rate_of(core, 2 * entry + ghost.side) if entry >= 0 else 0.0
    level = level_of(count, doublings_of(core, rules, count), core.cells.shape[3])
    pass_marks(core, at, reached, level)


@inlined
def pass_marks(core: Core, at: int, reached: int, level: float) -> None:
    """Note the level of a ghost's key, and its results, at its marks of age up to `reached`."""
    ghost = core.ghosts[at]
    for mark in range(ghost.marks, reached + 1):
        core.trails[at, mark].level = int(level + 0.5)
        core.trails[at, mark].found = ghost.found
    ghost.marks = reached + 1


@inner
def _tidy(core: Core, rules: Rules) -> None:
    """Remove ghosts whose window has ended or that the thinning drops, and index the rest."""
    core.heads[:] = -1
    n = 0
    for i in range(core.scalars[0].ghosts):
        ghost = core.ghosts[i]
        if past(rules, ghost.side, ghost.time, core.clock[0]):
            _expect(core, rules, i, _entry_of(core, ghost.hash))
            sum_up(core, i)
            continue
        if not leaves_ghost(core, ghost.hash, ghost.seq):
            continue
        core.ghosts[n] = ghost
        for column in range(core.ghost_values.shape[1]):
            core.ghost_values[n, column] = core.ghost_values[i, column]
        for mark in range(ghost.marks):
            core.trails[n, mark] = core.trails[i, mark]
        _index(core, n)
        n += 1
    core.scalars[0].ghosts = n


@entry_point
def index_ghosts(core: Core) -> None:
    """Build the index of all ghosts."""
    core.heads[:] = -1
    for i in range(core.scalars[0].ghosts):
        _index(core, i)


@inlined
def add_ghost(core: Core, rules: Rules, batch: Batch, i: int, seq: int) -> None:
    """Add the ghost of a newcomer, unless the thinning drops it."""
    scalars = core.scalars[0]
    if past(rules, batch.side[i], batch.time[i], core.clock[0]):
        return
    while scalars.ghosts == core.ghosts.shape[0]:
        _tidy(core, rules)
        if 4 * scalars.ghosts > 3 * core.ghosts.shape[0]:
            scalars.thinned += 1
            _tidy(core, rules)
    if not leaves_ghost(core, batch.hash[i], seq):
        return
    n = scalars.ghosts
    ghost = core.ghosts[n]
    ghost.hash, ghost.seq, ghost.time, ghost.side = batch.hash[i], seq, batch.time[i], batch.side[i]
    ghost.until, ghost.found, ghost.marks = core.clock[0], 0, 0
    for column in range(core.ghost_values.shape[1]):
        core.ghost_values[n, column] = batch.values[i, column]
    _index(core, n)
    scalars.ghosts = n + 1


@inner
def _fade(core: Core, factor: float) -> None:
    """Multiply all counts so far by a factor."""
    sides, _, steps, levels, trends = core.cells.shape
    for side in range(sides):
        for what in range(core.returns.shape[1]):
            for mark in range(core.returns.shape[2]):
                for j in range(levels):
                    core.returns[side, what, mark, j] *= factor
        for what in range(2):
            for i in range(steps):
                for j in range(levels):
                    for k in range(trends):
                        core.cells[side, what, i, j, k] *= factor


@inlined
def _is_early(core: Core, since: int) -> bool:
    """Return True if the number of arrivals has grown by an eighth since it was `since`."""
    return bool(core.scalars[0].seq - since >= _APART + since // 8)


@inner
def begin_census(core: Core, rules: Rules) -> int:
    """If a census is due, fade all counts; return what is due."""
    scalars, now = core.scalars[0], float(core.clock[0])
    if scalars.seq - scalars.census_seq < _APART:
        return NOTHING_DUE
    since, span = now - core.model[0].last, span_of(core, rules)
    early = _is_early(core, scalars.census_seq)
    turned = np.floor(now / (_VISIT * span)) > np.floor(core.model[0].last / (_VISIT * span))
    if scalars.census_seq == 0:
        since = 0.0
    elif since < _CENSUS * span and not early:
        return NOTHING_DUE
    scalars.census_seq = scalars.seq
    core.model[0].last = now
    _fade(core, math.exp2(-since / (_HALFLIFE * span)))
    if rules.halflife > 0 and scalars.started:
        before = int((now - since) // float(rules.halflife))
        halved = int(now // float(rules.halflife)) - before
        core.model[0].elapsed = math.ldexp(core.model[0].elapsed, -min(halved, 2000))
    core.model[0].elapsed += since
    if 4 * scalars.ghosts < core.ghosts.shape[0] and scalars.thinned > 0:
        scalars.thinned -= 1
    return VISIT_DUE if early or turned else CENSUS_DUE


@inner
def end_census(core: Core, rules: Rules) -> bool:
    """After a census, refit the model now and then; return True if counts were forgotten."""
    scalars, now = core.scalars[0], float(core.clock[0])
    late = now - core.model[0].fitted >= _FIT * span_of(core, rules)
    if _is_early(core, scalars.fit_seq) or (late and scalars.seq - scalars.fit_seq >= _FITS):
        scalars.fit_seq, core.model[0].fitted = scalars.seq, now
        for side in range(core.worth.shape[0]):
            fit(core, side)
            look_ahead(core, side)
    if not has_changed(core, rules):
        return False
    forget(core, rules)
    return True


@inner
def refit(core: Core, rules: Rules) -> bool:
    """Run a census if one is due, and refit the model now and then.

    Return True if counts were forgotten, so that ranks may have fallen.
    """
    due = begin_census(core, rules)
    if due == NOTHING_DUE:
        return False
    if due == VISIT_DUE:
        _visit(core, rules)
    return end_census(core, rules)


@inner
def _visit(core: Core, rules: Rules) -> None:
    """Count the expected results of all ghosts up to now, and let them leave their trails."""
    scalars, now = core.scalars[0], float(core.clock[0])
    _tidy(core, rules)
    for i in range(scalars.ghosts):
        ghost = core.ghosts[i]
        if knows_keys(core) and i + AHEAD < scalars.ghosts:
            prefetch_place(core.table, core.ghosts[i + AHEAD].hash)
        entry = _entry_of(core, ghost.hash)
        _expect(core, rules, i, entry)
        if knows_keys(core):
            _leave_trail(core, rules, i, entry, now - float(ghost.time))
