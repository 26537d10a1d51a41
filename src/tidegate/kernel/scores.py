"""What a tuple is worth now, by the formula of a policy.

A formula sees the tuple (side, time, importance), what was learned of it (`gain`, since `last`),
its key's rate on the other stream, and how many partners the other side holds. Times that a
formula is given or gives are those of the clock.
"""

from __future__ import annotations

import math
from typing import Any

from tidegate.kernel.ages import bucket, is_watched
from tidegate.kernel.compiling import inlined
from tidegate.kernel.layout import EPOCH, FAINTEST, LEARNED, MARK, STARTED, Core, Rules

# Formulas, named as in the papers; see the policies.
RATE, LIFE, HEEB, GREEDY_DUAL, SIMPPROB, DIMPPROB, DGL, IJOIN, AGE = 0, 1, 2, 3, 4, 5, 6, 7, 8

#: So much of a partner does every tuple have: of those without any, the least important leaves.
TRACE = 2.0**-40
#: A tuple that is no candidate, unless there is no other.
SPARED = 1e300
#: A new stay moves the mean of stays by this share.
_STEP = 1.0 / 256.0


@inlined
def rate_of(core: Core, rules: Rules, group: int) -> float:
    """The rate of the group's key on the other stream, as fading counts would have it."""
    rate = core.groups[group ^ 1].rate
    if rules.halflife > 0 and core.ints[STARTED]:
        age = int(core.clock[0] // rules.halflife) - core.ints[EPOCH]
        rate = math.ldexp(rate, -min(max(age, 0), 2000))
    return float(rate)


@inlined
def life_of(core: Core, rules: Rules, group: int, time: Any) -> float:
    """How long until a tuple leaves its window; 0 where it never does."""
    if group & 1 == 0:
        return float(time + rules.window_left - core.clock[0]) if rules.bounded_left else 0.0
    return float(time + rules.window_right - core.clock[0]) if rules.bounded_right else 0.0


@inlined
def score(
    core: Core, rules: Rules, group: int, time: Any, weight: float, gain: float, last: Any
) -> float:
    """What a tuple is worth now."""
    formula, params = rules.formula, rules.params
    bounded = rules.bounded_left if group & 1 == 0 else rules.bounded_right
    age = float(core.clock[0] - time)
    since = float(core.clock[0] - last)
    if formula == RATE:
        return float(weight * rate_of(core, rules, group))
    if formula == LIFE:
        life = life_of(core, rules, group, time) if bounded else 1.0
        return float(weight * max(rate_of(core, rules, group), FAINTEST) * life)
    if formula == HEEB:
        stay = params[0] if params[0] > 0 else max(core.model[0], TRACE)
        part = 1.0
        if bounded:
            part = -math.expm1(-max(life_of(core, rules, group, time), 0.0) / stay)
        return float(weight * rate_of(core, rules, group) * part)
    if formula == DIMPPROB:
        return weight * (float(core.groups[group ^ 1].count) + TRACE)
    if formula == DGL:
        return float(max(gain - params[1] * since, 0.0))
    if formula == AGE:
        if gain > 0.0:
            return SPARED
        curve = core.curve[group & 1]
        return float(weight * curve[bucket(rules, group & 1, age, curve.shape[0])])
    if formula == IJOIN:
        if age < params[1]:
            return SPARED
        if age <= 0.0:
            return float(params[4])
        worth = weight * gain * math.exp(-params[0] * since) / age
        if since >= params[2]:
            worth -= params[3] * since
        return float(worth)
    return gain


@inlined
def first_gain(
    core: Core, rules: Rules, group: int, weight: float, pool: int, hash_: Any, seq: int
) -> float:
    """What a newcomer begins with."""
    if rules.formula == AGE:
        return 1.0 if is_watched(core, hash_, seq) else 0.0
    partners = float(core.groups[group ^ 1].count)
    if rules.formula == IJOIN:
        return partners
    if rules.formula == SIMPPROB or rules.formula == DGL:
        return weight * (partners + TRACE)
    if rules.formula == GREEDY_DUAL:
        return float(core.floor[pool] + weight * rate_of(core, rules, group))
    return 0.0


@inlined
def learn_match(core: Core, rules: Rules, slot: int) -> None:
    """Learn from a result of a held tuple."""
    formula, params = rules.formula, rules.params
    held = core.slots[slot]
    group = held.group
    now = core.clock[0]
    since = float(now - held.last)
    if formula == IJOIN:
        held.gain = held.gain * math.exp(-params[0] * since) + 1.0
    elif formula == DGL:
        if not since > 0.0:
            return
        won = held.rank * float(core.groups[group ^ 1].count)
        won *= life_of(core, rules, group, held.time) / params[0]
        held.gain = max(held.gain - params[1] * since, 0.0) + max(won, 0.0)
    elif formula == GREEDY_DUAL:
        pool = group & 1 if rules.pools == 2 else 0
        held.gain = core.floor[pool] + held.rank * rate_of(core, rules, group)
    else:
        if formula == AGE and held.gain > 0.0:
            side = group & 1
            steps = core.curve.shape[1]
            core.ages[side, 1, bucket(rules, side, float(now - held.time), steps)] += 1.0
        return
    if formula != GREEDY_DUAL:
        held.last = now
    if held.seq < core.ints[MARK] and not core.is_learned[slot]:
        core.is_learned[slot] = True
        core.learned[core.ints[LEARNED]] = slot
        core.ints[LEARNED] += 1


@inlined
def learn_stay(core: Core, time: Any) -> None:
    """Learn from an eviction how long tuples stay."""
    core.model[0] += (float(core.clock[0] - time) - core.model[0]) * _STEP
