"""Detect sudden changes in how often keys come, and then forget old counts.

Each arrival measures, in bits, how much better its key's recent count predicted it than its usual
count. Keys that come and go, or rows whose age matters, have a level of their own, which does not
matter. A change is reported if the level rises from one census to the next, several times in a row
(Page's cumulative sum test). A census is the periodic evaluation in `ghosts.refit`.
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

#: Censuses after which the level is known, and over how many it is averaged.
_FIRST, _MOST = 32.0, 64.0
#: Deviations that are ignored; that one census can add at most; that add up to a change; and up to
#: which a census still updates the usual level.
_SLACK, _CAP, _ENOUGH, _USUAL = 1.0, 8.0, 24.0, 2.0
#: Smallest standard deviation of the level, in bits.
_LEAST = 0.03
#: Time for which arrivals have been counted after forgetting, in windows.
_LEFT = 0.125


@inlined
def has_changed(core: Core, rules: Rules) -> bool:
    """Return True at a census if keys no longer arrive as usual.

    The usual level is known from the second window on.
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
    """Cut the weight of all arrivals so far to a fraction of a window's, and relearn the level."""
    model = core.model
    model[EXCESS], model[CENSUSES] = 0.0, 0.0
    left = _LEFT * span_of(core, rules)
    if rules.halflife > 0 and core.ints[STARTED] and model[ELAPSED] > left:
        halvings = math.ceil(math.log2(model[ELAPSED] / left))
        core.ints[EPOCH] -= halvings
        model[ELAPSED] = math.ldexp(model[ELAPSED], -halvings)
        weigh(core, rules)
