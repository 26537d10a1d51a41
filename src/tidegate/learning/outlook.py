"""Estimate what a row may still earn, from what ghosts were expected to find and found.

The ratio of found to expected results, by age, level and trend (see `rates`), corrects the expected
rate. It is modelled as a product of one factor for each of the three features, and a cell of the
table that has seen enough results uses its own ratio. From these follows the best average rate that
a row can still reach: by keeping it for some time as things are, by keeping it to the end of its
window, or by keeping it on trial, and to the end only if the level of its key has risen by then.
"""

from __future__ import annotations

import math

from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.layout import Core
from tidegate.learning.rates import EARLY, EQUAL, at_level, length_of, start_of

#: Places in `Core.cells` of each side.
EXPECTED, FOUND = 0, 1
#: Counts of the ghosts that passed a mark at a level: how many, and their results afterwards. Then,
#: for each trial, which lasts 1, 2 or 4 marks: how many had risen at its end, the results of these
#: after the mark, and the results of the others during the trial.
GHOSTS_BY, RESULTS, TRIALS = 0, 1, 3
RISEN, OF_RISEN, OF_OTHERS = 0, 1, 2
COUNTS = 2 + 3 * TRIALS
#: Results after which a factor, and a cell of its own, are trusted half; and ghosts after which
#: their results after a mark are.
_BELIEF, _CELL_BELIEF, _GHOSTS_BELIEF = 8.0, 32.0, 8.0
_SWEEPS = 3
#: The part of a trend that is left one equal step of age later.
_LASTING = 0.7
_TRACE = 2.0**-40


@inlined
def knows_keys(core: Core) -> bool:
    """Return True if the model distinguishes keys, and not only ages."""
    return bool(core.recent.shape[0] > 0)


@inner
def fit(core: Core, side: int) -> None:
    """Fit the results in each cell as a multiple of the expected ones."""
    _, _, steps, levels, trends = core.cells.shape
    expected, found = core.cells[side, EXPECTED], core.cells[side, FOUND]
    factors, hoped, had = core.factors[0], core.factors[1], core.factors[2]
    sizes = (steps, levels, trends)
    all_expected, all_found = 0.0, 0.0
    for i in range(steps):
        for j in range(levels):
            for k in range(trends):
                all_expected += expected[i, j, k]
                all_found += found[i, j, k]
    scale = (all_found + 1.0) / (all_expected + 1.0)
    factors[:] = 1.0
    for _ in range(_SWEEPS):
        for axis in range(3):
            hoped[:] = 0.0
            had[:] = 0.0
            for i in range(steps):
                for j in range(levels):
                    for k in range(trends):
                        if expected[i, j, k] == 0.0 and found[i, j, k] == 0.0:
                            continue
                        at = (i, j, k)[axis]
                        product = scale * factors[0, i] * factors[1, j] * factors[2, k]
                        hoped[axis, at] += expected[i, j, k] * product / factors[axis, at]
                        had[axis, at] += found[i, j, k]
            for back in range(sizes[axis]):
                at = sizes[axis] - 1 - back
                # Early steps are short, and without evidence they are like those after them.
                usual = factors[0, at + 1] if axis == 0 and knows_keys(core) and at < EARLY else 1.0
                belief = had[axis, at] + _BELIEF * usual
                factors[axis, at] = belief / (hoped[axis, at] + _BELIEF)
    for i in range(steps):
        for j in range(levels):
            for k in range(trends):
                product = scale * factors[0, i] * factors[1, j] * factors[2, k]
                own = (found[i, j, k] + _CELL_BELIEF) / (expected[i, j, k] * product + _CELL_BELIEF)
                core.worth[side, i, j, k] = product * own


@inlined
def _as_kept(core: Core, side: int, step: int, level: int, usual: float, before: float) -> float:
    """Return the factor, at least 1, by which longer or conditional keeping beats the `usual` rate.

    It is measured on ghosts that were kept to the end or on trial. Where few ghosts passed, the
    factor is near the one at the level `before`.
    """
    returns = core.returns[side]
    marks = returns.shape[1]
    mark = int(start_of(step) * marks)
    ghosts = returns[GHOSTS_BY, mark, level]
    # Converts results in a window to multiples of those expected at the level's rate.
    unit = float(marks) / (at_level(level) * usual)
    belief = _GHOSTS_BELIEF * float(marks - mark)
    hoped = belief * before
    best = (returns[RESULTS, mark, level] * unit + hoped) / (ghosts * (marks - mark) + belief)
    for number in range(TRIALS):
        length = 1 << number
        if mark + length < marks:
            trial = returns[2 + 3 * number : 5 + 3 * number, mark, level]
            results = trial[OF_RISEN] + trial[OF_OTHERS]
            time = ghosts * length + trial[RISEN] * (marks - mark - length)
            best = max(best, (results * unit + hoped) / (time + belief))
    return max(float(best), 1.0)


@inner
def look_ahead(core: Core, side: int) -> None:
    """Replace the earnings in each cell by the best rate that can be reached from there on.

    A level stays, but a trend passes: its effect fades from step to step. Where the model
    distinguishes keys, the result is the logarithm of the rate, which interpolates well between
    levels.
    """
    worth, expected = core.worth[side], core.cells[side, EXPECTED]
    steps, levels, trends = worth.shape
    usual, more = core.factors[0, 0], core.factors[1, 0]
    lengths, passing = core.factors[2, 0], core.factors[2, 1]
    more[:] = 1.0
    for i in range(steps):
        # In units of equal steps of the window, where steps differ in length.
        lengths[i] = EQUAL * length_of(i) if knows_keys(core) else 1.0
        passing[i] = _LASTING ** lengths[i]
    for j in range(levels):
        for i in range(steps):
            total, weight = 0.0, 0.0
            for k in range(trends):
                total += (expected[i, j, k] + _TRACE) * worth[i, j, k]
                weight += expected[i, j, k] + _TRACE
            usual[i] = total / weight
        for i in range(steps):
            steady, total, time = 0.0, 0.0, 0.0
            for at in range(i, steps):
                total += usual[at] * lengths[at]
                time += lengths[at]
                steady = max(steady, total / time)
            if knows_keys(core):
                more[i] = _as_kept(core, side, i, j, steady, more[i])
            best, earned = core.factors[1, 1], core.factors[1, 2]
            best[:trends] = 0.0
            earned[:trends] = 0.0
            time, lasting = 0.0, 1.0
            for at in range(i, steps):
                time += lengths[at]
                for k in range(trends):
                    mean = usual[at] + lasting * (worth[at, j, k] - usual[at])
                    earned[k] += mean * lengths[at]
                    best[k] = max(best[k], earned[k] / time)
                lasting *= passing[at]
            for k in range(trends):
                # No later step reads this one any more.
                value = best[k]
                worth[i, j, k] = math.log2(value * more[i]) if knows_keys(core) else value
