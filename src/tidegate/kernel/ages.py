"""What a tuple is worth by its age, learned from a few that are watched to the end.

One newcomer in `ONE_IN` is watched, as long as there is room for it on the list: it is spared from
eviction, its results are counted by age, and at every census so is the time that the watched have
spent at each age. Results over time is the curve, and the steepest chord from an age on is what a
tuple of that age is worth (Srivastava, Widom, section 3.2.1).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.layout import CENSUS_SEQ, SEQ, WATCH_LIVE, WATCHED, Core, Rules

ONE_IN = 16
#: Newcomers between two censuses, at least.
_APART = 64
#: After so many windows a count weighs half.
_HALFLIFE = 8.0
#: Places in `Core.model`: when the last census was.
LAST = 1


@inlined
def bucket(rules: Rules, side: int, age: float, steps: int) -> int:
    """Which step of the curve an age is in."""
    window = float(rules.window_left if side == 0 else rules.window_right)
    return min(max(int(age * steps / window), 0), steps - 1)


@inlined
def is_watched(core: Core, hash_: Any, seq: int) -> bool:
    """Whether a newcomer is one to watch: by its key and number, so by lot, but always the same."""
    if 2 * core.ints[WATCH_LIVE] >= core.watch.shape[0]:
        return False
    mixed = (np.uint64(hash_) + np.uint64(seq)) * np.uint64(0x9E3779B97F4A7C15)
    return bool(mixed >> np.uint64(60) == np.uint64(0))


@inner
def _tidy(core: Core) -> None:
    """Take those that have left off the list of the watched."""
    n = 0
    for i in range(core.ints[WATCHED]):
        if core.slots[core.watch[i].item].seq == core.watch[i].seq:
            core.watch[n] = core.watch[i]
            n += 1
    core.ints[WATCHED] = n


@inlined
def watch(core: Core, slot: int) -> None:
    """Put a tuple on the list of the watched."""
    if core.ints[WATCHED] == core.watch.shape[0]:
        _tidy(core)
    n = core.ints[WATCHED]
    core.watch[n].seq = core.slots[slot].seq
    core.watch[n].item = slot
    core.ints[WATCHED] = n + 1
    core.ints[WATCH_LIVE] += 1


@inner
def _redraw(core: Core, side: int) -> None:
    """The worth by age from what was counted; ages that were hardly seen lean on the mean."""
    spent, found, curve = core.ages[side, 0], core.ages[side, 1], core.curve[side]
    steps = curve.shape[0]
    total, results = 0.0, 0.0
    for i in range(steps):
        total += spent[i]
        results += found[i]
    if total <= 0.0:
        return
    mean = results / total
    # As much of the mean as a twentieth of an even share of all that was seen.
    lean = 0.05 * total / steps
    for i in range(steps):
        best, sum_ = 0.0, 0.0
        for j in range(i, steps):
            sum_ += (found[j] + lean * mean) / (spent[j] + lean)
            best = max(best, sum_ / (j - i + 1))
        curve[i] = best


@inner
def census(core: Core, rules: Rules) -> None:
    """Count the time that the watched have spent at their ages since the last census."""
    ints, now = core.ints, float(core.clock[0])
    if ints[SEQ] - ints[CENSUS_SEQ] < _APART:
        return
    since = now - core.model[LAST]
    steps = core.curve.shape[1]
    shortest = float(min(rules.window_left, rules.window_right))
    if since * steps < shortest:
        return
    if ints[CENSUS_SEQ] == 0:
        since = 0.0
    ints[CENSUS_SEQ] = ints[SEQ]
    core.model[LAST] = now
    fade = math.exp2(-since / (_HALFLIFE * float(max(rules.window_left, rules.window_right))))
    for side in range(2):
        for step in range(steps):
            core.ages[side, 0, step] *= fade
            core.ages[side, 1, step] *= fade
    _tidy(core)
    for i in range(ints[WATCHED]):
        slot = core.watch[i].item
        side = core.slots[slot].group & 1
        age = now - float(core.slots[slot].time)
        # It was younger when this stretch of time began.
        core.ages[side, 0, bucket(rules, side, age - 0.5 * since, steps)] += min(since, age)
    for side in range(2):
        _redraw(core, side)
