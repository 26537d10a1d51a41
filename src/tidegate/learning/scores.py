"""Score held rows by the formula of a policy.

A formula sees the row (side, time, importance), what was learned of it (`gain`, and when: `last`),
its key's rate on the other stream, and how many partners the other side holds. All times are in the
clock's unit.
"""

from __future__ import annotations

import math
from typing import Any

from tidegate.kernel.compiling import Array, call_back, inlined
from tidegate.kernel.layout import FAINTEST, Core, Rules
from tidegate.kernel.partners import partners_of
from tidegate.kernel.windows import life_of, step_of, window_of
from tidegate.learning.rates import doublings_of, level_of, rate_of, stage_of, trend_of

# Formulas, named as in the papers; see `policies/`.
FORMULAS = 11
RATE, LIFE, HEEB, GREEDY_DUAL, SIMPPROB, DIMPPROB, DGL, IJOIN, AGE, AUTO, OWN = range(FORMULAS)

#: Those that read how many partners of a row are held.
MEETING = (SIMPPROB, DIMPPROB, DGL, IJOIN, OWN)
#: Those that read what was learned of a row.
LEARNING = (GREEDY_DUAL, SIMPPROB, DGL, IJOIN, OWN)

#: Epsilon added to partner counts, so that importance breaks ties at zero.
TRACE = 2.0**-40
#: The score of a row that is no candidate unless there is no other.
SPARED = 1e300
#: Resolution of `AUTO`'s ranks: values between two whole numbers.
DIGITS = 2.0**24
#: Share by which a new stay moves the mean of stays.
_STEP = 1.0 / 256.0


@inlined
def _at_age(worth: Array, step: float, level: int, trend: int) -> float:
    """Interpolate the table between two steps of age."""
    at = int(step)
    here, after = worth[at, level, trend], worth[min(at + 1, worth.shape[0] - 1), level, trend]
    return float(here + (step - at) * (after - here))


@inlined
def _corrected(core: Core, rules: Rules, now: Any, group: int, time: Any, age: float) -> float:
    """Return the logarithm of the results expected of a row, corrected for age, level and trend."""
    worth = core.worth[group & 1]
    _, levels, trends = worth.shape
    came = rate_of(core, group)
    doublings = doublings_of(core, rules, came)
    step = stage_of(rules, group & 1, time, age)
    level = level_of(came, doublings, levels)
    trend = trend_of(core, rules, group, doublings, trends, float(now))
    return doublings + correction(worth, step, level, trend)


@inlined
def correction(worth: Array, step: float, level: float, trend: float) -> float:
    """Interpolate the table of corrections at an age, a level and a trend."""
    _, levels, trends = worth.shape
    i, j = int(level), int(trend)
    up, on = min(i + 1, levels - 1), min(j + 1, trends - 1)
    low = _at_age(worth, step, i, j)
    low += (level - i) * (_at_age(worth, step, up, j) - low)
    high = _at_age(worth, step, i, on)
    high += (level - i) * (_at_age(worth, step, up, on) - high)
    return float(low + (trend - j) * (high - low))


@inlined
def score(
    core: Core,
    rules: Rules,
    now: Any,
    group: int,
    time: Any,
    weight: float,
    gain: float,
    last: Any,
    slot: int,
) -> float:
    """Return what a row is worth at the time `now`, by what is known of it.

    Slot -1 is the newcomer that is being admitted.
    """
    formula, params = rules.formula, rules.params
    age = float(now - time)
    since = float(now - last)
    if formula == RATE:
        return float(weight * rate_of(core, group))
    if formula == LIFE:
        ends = window_of(rules, group & 1, time) != 0
        life = life_of(rules, now, group, time) if ends else 1.0
        return float(weight * max(rate_of(core, group), FAINTEST) * life)
    if formula == HEEB:
        stay = params[0] if params[0] > 0 else max(core.model[0].stay, TRACE)
        part = 1.0
        if window_of(rules, group & 1, time) != 0:
            part = -math.expm1(-max(life_of(rules, now, group, time), 0.0) / stay)
        return float(weight * rate_of(core, group) * part)
    if formula == DIMPPROB:
        return weight * (partners_of(core, group, slot) + TRACE)
    if formula == DGL:
        return float(max(gain - params[1] * since, 0.0))
    if formula == AGE:
        worth = core.worth[group & 1]
        step = step_of(rules, group & 1, time, age, worth.shape[0])
        return weight * _at_age(worth, step, 0, 0)
    if formula == AUTO:
        value = _corrected(core, rules, now, group, time, age)
        if weight != 1.0:
            value += math.log2(max(weight, FAINTEST))
        # Smaller differences are ties: the last digits depend on the order of sums.
        return math.floor(value * DIGITS) / DIGITS
    if formula == IJOIN:
        return priority(rules, weight, gain, age, since)
    if formula == OWN:
        return _own_score(core, rules, now, group, time, weight, gain, since, slot)
    return gain


@inlined
def _own_score(
    core: Core,
    rules: Rules,
    now: Any,
    group: int,
    time: Any,
    weight: float,
    gain: float,
    since: float,
    slot: int,
) -> float:
    """Return the score by a policy's own function; see `tidegate.policies.own_score`."""
    life = math.inf
    if window_of(rules, group & 1, time) != 0:
        life = max(float(life_of(rules, now, group, time)), 0.0)
    # A queue may ask for the score at an earlier time, when the row had no age yet.
    age, idle = max(float(now - time), 0.0), max(since, 0.0)
    partners = partners_of(core, group, slot)
    known = (float(weight), age, life, float(gain), idle, rate_of(core, group), partners)
    value = call_back(rules.own_score, known + rules.params)
    return value if abs(value) < SPARED else -SPARED


@inlined
def is_lowered_by_results(rules: Rules) -> bool:
    """Return True if a result may lower a row's score."""
    return bool(rules.formula == AUTO or rules.formula == OWN)


@inlined
def is_spared(rules: Rules, now: Any, time: Any) -> bool:
    """Return True if a row may not be shed yet because it is too young."""
    return bool(rules.formula == IJOIN and float(now - time) < rules.params[1])


@inlined
def priority(rules: Rules, weight: float, gain: float, age: float, since: float) -> float:
    """Return the priority that iJoin gives a row, whether it is mature or not."""
    params = rules.params
    if age <= 0.0:
        return float(params[4])
    earned = weight * gain * math.exp(-params[0] * since) / age
    if since >= params[2]:
        earned -= params[3] * since
    return float(earned)


@inlined
def first_gain(core: Core, rules: Rules, group: int, weight: float, pool: int) -> float:
    """Return the gain that a newcomer starts with."""
    partners = partners_of(core, group, -1)
    if rules.formula == IJOIN:
        return partners
    if rules.formula == SIMPPROB or rules.formula == DGL:
        return weight * (partners + TRACE)
    if rules.formula == GREEDY_DUAL:
        return float(core.floor[pool] + weight * rate_of(core, group))
    return 0.0


@inlined
def learn_match(core: Core, rules: Rules, slot: int) -> None:
    """Update what was learned of a held row after one of its results."""
    formula, params = rules.formula, rules.params
    held = core.slots[slot]
    group = held.group
    now = core.clock[0]
    since = float(now - held.last)
    if formula == IJOIN:
        held.gain = held.gain * math.exp(-params[0] * since) + 1.0
        core.quality[group & 1 if rules.pools == 2 else 0].earned += held.rank
    elif formula == DGL:
        if not since > 0.0:
            return
        won = held.rank * partners_of(core, group, slot)
        won *= life_of(rules, now, group, held.time) / params[0]
        # An instant with a result costs nothing: only instants between the last result and this one
        # do.
        idle = max(since - params[2], 0.0)
        held.gain = max(held.gain - params[1] * idle, 0.0) + max(won, 0.0)
    elif formula == OWN:
        held.gain += 1.0
    elif formula == GREEDY_DUAL:
        pool = group & 1 if rules.pools == 2 else 0
        held.gain = core.floor[pool] + held.rank * rate_of(core, group)
    else:
        return
    if formula != GREEDY_DUAL:
        held.last = now
    if held.seq < core.scalars[0].mark and not core.is_learned[slot]:
        core.is_learned[slot] = True
        core.learned[core.scalars[0].learned] = slot
        core.scalars[0].learned += 1


@inlined
def learn_stay(core: Core, time: Any) -> None:
    """Update the mean time that rows stay after one was shed."""
    core.model[0].stay += (float(core.clock[0] - time) - core.model[0].stay) * _STEP
