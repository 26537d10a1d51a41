"""Estimate how fast a row earns results: its key's count on the other stream, with a correction.

A count alone predicts that a key which came often will continue to do so. The correction is a table
by the row's age, by how often its key comes (its level), and by how much more or less often it came
recently (its trend). The recent rate of a key comes from the mean of its last gaps between
arrivals, so that it needs no time scale: keys that are active for a moment are recognised as well
as keys that are for a day. It halves with each mean gap in which the key does not come. `ghosts`
explains how the table is learned.
"""

from __future__ import annotations

import math
from typing import Any

from tidegate.kernel.compiling import inlined
from tidegate.kernel.layout import Core, Rules
from tidegate.kernel.windows import window_of

#: The count assumed for a key that never came.
UNSEEN = 0.5
#: The part of a window after which an arrival weighs half in the recent count.
RECENT = 0.125
#: The gap assumed before the first arrival of a key, or of a key that was away, and the shortest
#: mean gap, as parts of the window.
_FIRST_GAP, _LEAST_GAP = 2.0**-7, 2.0**-19
#: The share of the latest gap in the mean gap; and how many mean gaps after its last arrival a key
#: has been away.
_GAP_SHARE, _AWAY = 1.0 / 3.0, 8.0
#: Mean gaps after which the recent rate is below all trends.
_FADED = 12.0
#: How far below the usual rate trends reach, in doublings.
_DOWN = 3.0
#: The level of keys with one partner in a window.
BELOW = 7.0
#: Ages are divided into equal steps of a window. The first of these is divided further, each part
#: half as long as the next, so that young ages are distinguished in windows that are much longer
#: than it takes to find partners.
EQUAL, EARLY = 16, 12
STEPS = EQUAL + EARLY
#: Arrivals added to a key's recent and usual counts before they are compared, as small counts say
#: little.
_DOUBT = 0.5


@inlined
def weigh(core: Core, rules: Rules) -> None:
    """Update the weight of one count at the current clock: it halves with each half-life."""
    if rules.halflife > 0 and core.scalars[0].started:
        age = int(core.clock[0] // rules.halflife) - core.scalars[0].epoch
        core.model[0].weight = math.ldexp(1.0, -int(min(max(age, 0), 1000)))


@inlined
def rate_of(core: Core, group: int) -> float:
    """Return the rate of the group's key on the other stream, with old arrivals faded."""
    return float(core.groups[group ^ 1].rate * core.model[0].weight)


@inlined
def span_of(core: Core, rules: Rules) -> float:
    """Return the longer window, or all the time so far if windows never end."""
    span = max(float(rules.window_left), float(rules.window_right))
    return span if span > 0.0 else max(core.model[0].elapsed, 1.0)


@inlined
def note(core: Core, rules: Rules, group: int, time: Any) -> None:
    """Note an arrival of a group's key, and by how many bits its recent count was better.

    A key that comes again after a long absence begins anew: its old gaps say nothing.
    """
    recent, model = core.recent[group], core.model[0]
    if time >= recent.time:
        whole = span_of(core, rules)
        span = RECENT * whole
        faded, gap = 0.0, _FIRST_GAP * whole
        if recent.count > 0.0:
            since = float(time) - float(recent.time)
            faded = recent.count * math.exp2(-since / span)
            if recent.gap > 0.0 and since <= _AWAY * recent.gap:
                gap = max(recent.gap + _GAP_SHARE * (since - recent.gap), _LEAST_GAP * whole)
        recent.gap = gap
        recent.count, recent.time = 1.0 + faded, time
        # The usual count includes this arrival already.
        usual = max(float(core.groups[group].rate * model.weight) - 1.0, 0.0) + UNSEEN
        usual *= span / (math.log(2.0) * (model.elapsed + span))
        bits = math.log2(0.5 + 0.5 * (faded + _DOUBT) / (usual + _DOUBT))
        # A frequent key must not dominate the measure.
        weight = 1.0 / (1.0 + faded)
        model.gained += weight * bits
        model.noted += weight


@inlined
def expected(core: Core, rules: Rules, count: float) -> float:
    """Return how many partners to expect in a window, by a count alone."""
    span = span_of(core, rules)
    return float((count + UNSEEN) * span / (core.model[0].elapsed + RECENT * span))


@inlined
def doublings_of(core: Core, rules: Rules, count: float) -> float:
    """Return the base-2 logarithm of `expected`, which is constant for a key that never came.

    The time that has passed says nothing about such a key, as all keys may be new ones.
    """
    return math.log2(expected(core, rules, count) if count > 0.0 else UNSEEN)


@inlined
def level_of(count: float, doublings: float, levels: int) -> float:
    """Return the level of a key: each is twice the one before; level 0 is for keys never seen."""
    return min(max(doublings + BELOW, 1.0), float(levels - 1)) if count > 0.0 else 0.0


@inlined
def at_level(level: int) -> float:
    """Return how many partners are expected in a window at a level."""
    return math.ldexp(1.0, level - int(BELOW)) if level > 0 else UNSEEN


@inlined
def start_of(step: int) -> float:
    """Return the age at which a step begins, as a part of the window."""
    if step > EARLY:
        return float(step - EARLY) / EQUAL
    return math.ldexp(1.0 / EQUAL, step - EARLY - 1) if step > 0 else 0.0


@inlined
def length_of(step: int) -> float:
    """Return the length of a step, as a part of the window."""
    return start_of(step + 1) - start_of(step)


@inlined
def stage_of(rules: Rules, side: int, time: Any, age: float) -> float:
    """Return the step of a row's age, with a fraction; 0 if its window never ends."""
    return stage_in(window_of(rules, side, time), age)


@inlined
def stage_in(window: Any, age: float) -> float:
    """Return the step of an age in a window, with a fraction; 0 if the window never ends."""
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
    """Return the trend at a time: the recent rate over the usual one, in doublings."""
    recent = core.recent[group ^ 1]
    if recent.gap == 0.0:
        return 0.0
    return as_trend(lately_of(recent, span_of(core, rules), when), doublings, trends)


@inlined
def lately_of(recent: Any, span: float, when: float) -> float:
    """Return the logarithm of the recent rate of a key that has come: arrivals in a window."""
    gap = float(recent.gap)
    return math.log2(span / gap) - max(when - float(recent.time), 0.0) / gap


@inlined
def piece_of(core: Core, group: int, when: float) -> float:
    """Return for how long from a time on the trend of a row stays about the same."""
    recent = core.recent[group ^ 1]
    since = when - float(recent.time)
    return float(recent.gap) if 0.0 <= since < _FADED * recent.gap else math.inf


@inlined
def as_trend(lately: float, doublings: float, trends: int) -> float:
    """Return the trend from the logarithms of the recent and of the usual rate."""
    return min(max(lately - doublings + _DOWN, 0.0), float(trends - 1))
