"""Detect sudden changes in how often keys come, and then forget old counts.

Each arrival measures, in bits, how much better its key's recent count predicted it than its usual
count. Keys that come and go, or rows whose age matters, have a level of their own, which does not
matter. A change is reported if the level rises from one census to the next, several times in a row
(Page's cumulative sum test). A census is the periodic evaluation in `ghosts.refit`.
"""

from __future__ import annotations

import math

from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.layout import Core, Rules
from tidegate.learning.rates import span_of, weigh

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
    model = core.model[0]
    if model.noted == 0.0:
        return False
    gained = model.gained / model.noted
    model.gained, model.noted = 0.0, 0.0
    if model.elapsed < span_of(core, rules):
        return False
    off = gained - model.mean
    if model.censuses >= _FIRST:
        deviation = max(math.sqrt(model.variance), _LEAST)
        model.excess = max(model.excess + min(off / deviation, _CAP) - _SLACK, 0.0)
        off = min(off, _USUAL * deviation)
    model.censuses = min(model.censuses + 1.0, _MOST)
    share = 1.0 / model.censuses
    model.mean += share * off
    model.variance = (1.0 - share) * (model.variance + share * off * off)
    return bool(model.excess > _ENOUGH)


@inner
def forget(core: Core, rules: Rules) -> None:
    """Cut the weight of all arrivals so far to a fraction of a window's, and relearn the level."""
    model = core.model[0]
    model.excess, model.censuses = 0.0, 0.0
    left = _LEFT * span_of(core, rules)
    if rules.halflife > 0 and core.scalars[0].started and model.elapsed > left:
        halvings = math.ceil(math.log2(model.elapsed / left))
        core.scalars[0].epoch -= halvings
        model.elapsed = math.ldexp(model.elapsed, -halvings)
        weigh(core, rules)
