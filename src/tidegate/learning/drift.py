"""Whether keys come as they used to: when they suddenly do not, old counts are forgotten.

Every arrival says how much better its key's recent count foresaw it than its usual one, in bits.
Keys that come and go, or tuples whose age matters, give a level of their own, which does not count:
only that it rises from one census to the next, for several in turn, does (Page's sum).
"""

from __future__ import annotations

import math

from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.layout import EPOCH, STARTED, Core, Rules
from tidegate.learning.rates import (
    CENSUSES,
    ELAPSED,
    EXCESS,
    GAINED,
    MEAN,
    NOTED,
    VARIANCE,
    span_of,
    weigh,
)

#: After so many censuses the level is known; so many weigh in it.
_FIRST, _MOST = 32.0, 64.0
#: Deviations that do not count, that count at most for one census, that add up to a change; and up
#: to which a census still says what is usual.
_SLACK, _CAP, _ENOUGH, _USUAL = 1.0, 8.0, 24.0, 2.0
#: No level is known better than this, in bits.
_LEAST = 0.03
#: What is left of the time for which arrivals were counted, in windows.
_LEFT = 0.125


@inlined
def has_changed(core: Core, rules: Rules) -> bool:
    """At a census: whether arrivals since the last one say that keys no longer come as usual.

    What is usual can be told from the second window on.
    """
    model = core.model
    if model[NOTED] == 0.0:
        return False
    gained = model[GAINED] / model[NOTED]
    model[GAINED], model[NOTED] = 0.0, 0.0
    if model[ELAPSED] < span_of(core, rules):
        return False
    off = gained - model[MEAN]
    if model[CENSUSES] >= _FIRST:
        deviation = max(math.sqrt(model[VARIANCE]), _LEAST)
        model[EXCESS] = max(model[EXCESS] + min(off / deviation, _CAP) - _SLACK, 0.0)
        off = min(off, _USUAL * deviation)
    model[CENSUSES] = min(model[CENSUSES] + 1.0, _MOST)
    share = 1.0 / model[CENSUSES]
    model[MEAN] += share * off
    model[VARIANCE] = (1.0 - share) * (model[VARIANCE] + share * off * off)
    return bool(model[EXCESS] > _ENOUGH)


@inner
def forget(core: Core, rules: Rules) -> None:
    """Have arrivals from now on weigh so much that those so far are a fraction of a window's.

    What is usual from now on has to be learned.
    """
    model = core.model
    model[EXCESS], model[CENSUSES] = 0.0, 0.0
    left = _LEFT * span_of(core, rules)
    if rules.halflife > 0 and core.ints[STARTED] and model[ELAPSED] > left:
        halvings = math.ceil(math.log2(model[ELAPSED] / left))
        core.ints[EPOCH] -= halvings
        model[ELAPSED] = math.ldexp(model[ELAPSED], -halvings)
        weigh(core, rules)
