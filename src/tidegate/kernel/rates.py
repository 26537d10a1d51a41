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

#: What a key that never came is taken to have had.
UNSEEN = 0.5
#: Places in `Core.model`: how long evicted tuples stayed, when the last census was, for how long
#: arrivals have been counted (old time fading as they do).
STAY, LAST, ELAPSED = 0, 1, 2
#: After so much of a window, an arrival counts half as a recent one.
_RECENT = 0.125
#: How far below the usual rate trends go, in doublings, and a ratio that is below all.
_DOWN, _FAINT = 3.0, 2.0**-20
#: As many doublings of a key's partners in a window are told apart below one partner.
BELOW = 7.0


@inlined
def rate_of(core: Core, rules: Rules, group: int) -> float:
    """The rate of the group's key on the other stream, as fading counts would have it."""
    rate = core.groups[group ^ 1].rate
    if rules.halflife > 0 and core.ints[STARTED]:
        age = int(core.clock[0] // rules.halflife) - core.ints[EPOCH]
        rate = math.ldexp(rate, -min(max(age, 0), 2000))
    return float(rate)


@inlined
def span_of(core: Core, rules: Rules) -> float:
    """The longer window; where there is none, all the time so far."""
    span = max(float(rules.window_left), float(rules.window_right))
    return span if span > 0.0 else max(core.model[ELAPSED], 1.0)


@inlined
def recently(core: Core, rules: Rules, group: int) -> float:
    """How often the group's key came on the other stream lately, in a unit of time."""
    half = _RECENT * span_of(core, rules)
    recent = core.recent[group ^ 1]
    since = float(core.clock[0]) - float(recent.time)
    return float(recent.count * math.exp2(-since / half) * (math.log(2.0) / half))


@inlined
def note(core: Core, rules: Rules, group: int, time: Any) -> None:
    """Note that a group's key came."""
    recent = core.recent[group]
    if time >= recent.time:
        since = float(time) - float(recent.time)
        recent.count = 1.0 + recent.count * math.exp2(-since / (_RECENT * span_of(core, rules)))
        recent.time = time


@inlined
def density(core: Core, rules: Rules, count: float) -> float:
    """How many partners to expect in a unit of time, by a count alone."""
    return float((count + UNSEEN) / (core.model[ELAPSED] + 0.125 * span_of(core, rules)))


@inlined
def level_of(core: Core, rules: Rules, expected: float, levels: int) -> float:
    """Where among the levels, each twice the last, a key's partners in a window are."""
    level = math.log2(expected * span_of(core, rules)) + BELOW
    return min(max(level, 0.0), float(levels - 1))


@inlined
def trend_of(expected: float, recent: float, trends: int) -> float:
    """Where among the trends, each twice the last, the recent rate is over the usual one."""
    trend = math.log2(recent / expected + _FAINT) + _DOWN
    return min(max(trend, 0.0), float(trends - 1))
