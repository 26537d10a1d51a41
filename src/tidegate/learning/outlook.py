"""What a tuple may still earn, from what ghosts expected and found.

By age, level and trend (see `rates`), results over expectation is how far the expectation is off: a
product of one factor for each feature, fitted in turns, and where a cell of the table has seen
enough, its own ratio. From there, the best rate that a tuple can still reach: by keeping it for a
while as things are; or, as its key may turn out a better one than it seems, by keeping it to its
end, or on trial, and to its end only if its level has risen by then.
"""

from __future__ import annotations

import math

from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.layout import Core
from tidegate.learning.rates import EARLY, EQUAL, at_level, length_of, start_of

#: What a cell has of each side.
EXPECTED, FOUND = 0, 1
#: What is counted of the ghosts that came by a mark at a level: how many, and their results after;
#: then for each trial, of 1, 2 and 4 marks: how many had risen at its end, their results after the
#: mark, and those of the others during the trial.
GHOSTS_BY, RESULTS, TRIALS = 0, 1, 3
RISEN, OF_RISEN, OF_OTHERS = 0, 1, 2
COUNTS = 2 + 3 * TRIALS
#: How many results it takes for a factor, and for a cell of its own, to be believed half; and how
#: many ghosts, for what came after a mark.
_BELIEF, _CELL_BELIEF, _GHOSTS_BELIEF = 8.0, 32.0, 8.0
_SWEEPS = 3
#: How much of a trend is left one equal step of age later.
_LASTING = 0.7
_TRACE = 2.0**-40


@inlined
def knows_keys(core: Core) -> bool:
    """Whether keys are told apart, and not ages alone."""
    return bool(core.recent.shape[0] > 0)


@inner
def fit(core: Core, side: int) -> None:
    """What is earned in each cell, as a multiple of what is expected."""
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
                # Early steps are short, and for all that is known like those after them.
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
    """How much better than by the `usual` rate ghosts did to their end or on trial; at least 1.

    Where few came by, as much better as at the level `before`.
    """
    returns = core.returns[side]
    marks = returns.shape[1]
    mark = int(start_of(step) * marks)
    ghosts = returns[GHOSTS_BY, mark, level]
    # A window's results to those that are expected at the level's rate.
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
    """From what is earned in each cell, the best rate that can be reached from there on.

    A level stays, but a trend passes: what it adds or takes fades from step to step. Where keys
    are told apart, the rate's logarithm is kept: that is what lies on lines between levels.
    """
    worth, expected = core.worth[side], core.cells[side, EXPECTED]
    steps, levels, trends = worth.shape
    usual, more = core.factors[0, 0], core.factors[1, 0]
    lengths, passing = core.factors[2, 0], core.factors[2, 1]
    more[:] = 1.0
    for i in range(steps):
        # In equal steps of the window, where these are not all alike.
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
            best, total, time = 0.0, 0.0, 0.0
            for at in range(i, steps):
                total += usual[at] * lengths[at]
                time += lengths[at]
                best = max(best, total / time)
            if knows_keys(core):
                more[i] = _as_kept(core, side, i, j, best, more[i])
            for k in range(trends):
                best, total, time, lasting = 0.0, 0.0, 0.0, 1.0
                for at in range(i, steps):
                    total += (usual[at] + lasting * (worth[at, j, k] - usual[at])) * lengths[at]
                    time += lengths[at]
                    best = max(best, total / time)
                    lasting *= passing[at]
                # Nothing looks back at this step any more.
                worth[i, j, k] = math.log2(best * more[i]) if knows_keys(core) else best
