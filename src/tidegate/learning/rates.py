"""How fast a tuple earns: its key's count on the other stream, corrected by what ghosts found.

Counts alone say that a key which came often will go on to. The correction is a table by the
tuple's age, by how often its key comes, and by how much more or less often it came lately; see
`ghosts` for how it is learned.
"""

from __future__ import annotations

import math
from typing import Any

from tidegate.kernel.compiling import inlined
from tidegate.kernel.layout import EPOCH, STARTED, Core, Rules
from tidegate.kernel.windows import window_of

#: What a key that never came is taken to have had.
UNSEEN = 0.5
#: Places in `Core.model`: how long evicted tuples stayed, when the last census was, for how long
#: arrivals have been counted (old time fading as they do), what a count weighs, when the last fit
#: was; the rest is for `drift`: bits gained since the last census, arrivals that gained them, how
#: many censuses count, what is usually gained, its variance, how far above it recent ones add up.
STAY, LAST, ELAPSED, WEIGHT, FITTED = 0, 1, 2, 3, 4
GAINED, NOTED, CENSUSES, MEAN, VARIANCE, EXCESS = 5, 6, 7, 8, 9, 10
MODEL = 11
#: After so much of a window, an arrival counts half as a recent one.
RECENT = 0.125
#: What a steady rate would have, in a window, of an arrival in the recent count.
_STEADY = math.log2(math.log(2.0) / RECENT)
#: How far below the usual rate trends go, in doublings.
_DOWN = 3.0
#: The level of keys with one partner in a window.
BELOW = 7.0
#: Equal steps of a window, the first of which has so many more in it: from its end, each half the
#: next, so that ages are told apart in windows that are much longer than it takes to find partners.
EQUAL, EARLY = 16, 12
STEPS = EQUAL + EARLY
#: Arrivals that a key's recent count and its usual one are both taken to have had besides, where
#: they are compared: few say little.
_DOUBT = 0.5


@inlined
def weigh(core: Core, rules: Rules) -> None:
    """Find out what counts weigh by the clock: half after each half-life."""
    if rules.halflife > 0 and core.ints[STARTED]:
        age = int(core.clock[0] // rules.halflife) - core.ints[EPOCH]
        core.model[WEIGHT] = math.ldexp(1.0, -min(max(age, 0), 1000))


@inlined
def rate_of(core: Core, group: int) -> float:
    """The rate of the group's key on the other stream, as fading counts would have it."""
    return float(core.groups[group ^ 1].rate * core.model[WEIGHT])


@inlined
def span_of(core: Core, rules: Rules) -> float:
    """The longer window; where there is none, all the time so far."""
    span = max(float(rules.window_left), float(rules.window_right))
    return span if span > 0.0 else max(core.model[ELAPSED], 1.0)


@inlined
def note(core: Core, rules: Rules, group: int, time: Any) -> None:
    """Note that a group's key came, and how much better its recent count foresaw it, in bits."""
    recent, model = core.recent[group], core.model
    if time >= recent.time:
        span = RECENT * span_of(core, rules)
        faded = 0.0
        if recent.count > 0.0:
            faded = recent.count * math.exp2((float(recent.time) - float(time)) / span)
        recent.count, recent.time = 1.0 + faded, time
        # It was counted already.
        usual = max(float(core.groups[group].rate * model[WEIGHT]) - 1.0, 0.0) + UNSEEN
        usual *= span / (math.log(2.0) * (model[ELAPSED] + span))
        bits = math.log2(0.5 + 0.5 * (faded + _DOUBT) / (usual + _DOUBT))
        # So that one key alone says little, however often it comes.
        weight = 1.0 / (1.0 + faded)
        model[GAINED] += weight * bits
        model[NOTED] += weight


@inlined
def expected(core: Core, rules: Rules, count: float) -> float:
    """How many partners to expect in a window, by a count alone."""
    span = span_of(core, rules)
    return float((count + UNSEEN) * span / (core.model[ELAPSED] + RECENT * span))


@inlined
def doublings_of(core: Core, rules: Rules, count: float) -> float:
    """The logarithm of that; of a key that never came it is always the same.

    There is no telling from the time that has passed: all keys may be new ones.
    """
    return math.log2(expected(core, rules, count) if count > 0.0 else UNSEEN)


@inlined
def level_of(count: float, doublings: float, levels: int) -> float:
    """Where among the levels a key is: each is twice the last, but the first is for unseen keys."""
    return min(max(doublings + BELOW, 1.0), float(levels - 1)) if count > 0.0 else 0.0


@inlined
def at_level(level: int) -> float:
    """How many partners are expected in a window at a level."""
    return math.ldexp(1.0, level - int(BELOW)) if level > 0 else UNSEEN


@inlined
def start_of(step: int) -> float:
    """At which age a step begins, as a part of the window."""
    if step > EARLY:
        return float(step - EARLY) / EQUAL
    return math.ldexp(1.0 / EQUAL, step - EARLY - 1) if step > 0 else 0.0


@inlined
def length_of(step: int) -> float:
    """How long it is, as a part of the window."""
    return start_of(step + 1) - start_of(step)


@inlined
def stage_of(rules: Rules, side: int, time: Any, age: float) -> float:
    """Where among the steps a tuple's age is; in the first, if its window never ends."""
    window = window_of(rules, side, time)
    if window == 0:
        return 0.0
    at = min(max(age * EQUAL / float(window), 0.0), EQUAL - 1.0)
    if at >= 1.0:
        return EARLY + at
    if at < math.ldexp(1.0, -EARLY):
        return math.ldexp(at, EARLY)
    part, power = math.frexp(at)
    return EARLY + power + 2.0 * part - 1.0


@inlined
def trend_of(
    core: Core, rules: Rules, group: int, doublings: float, trends: int, when: float
) -> float:
    """Where among the trends, each twice the last, the recent rate was over the usual one then."""
    recent = core.recent[group ^ 1]
    if recent.count == 0.0:
        return 0.0
    since = max(when - float(recent.time), 0.0)
    lately = math.log2(recent.count) + _STEADY - since / (RECENT * span_of(core, rules))
    return min(max(lately - doublings + _DOWN, 0.0), float(trends - 1))
