"""Solve `before-arrival`: a rejected newcomer does not probe, so a result needs two held rows.

This is not a flow. Small cases are solved as an integer programme. Larger ones start from the
optimum of `before-probe`, which no plan can beat; `tidegate.optimal.admission` then improves it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tidegate.errors import require
from tidegate.optimal.admission import Pairs
from tidegate.optimal.sides import Sides, Whole

#: The most pairs for which the integer programme is tried, and its time limit in the solver's
#: own deterministic unit, which does not depend on the machine.
MOST_PAIRS = 300
_EFFORT = 2.0

#: A row: its side and its index there.
_Row = tuple[int, int]


def count_pairs(sides: Sides) -> int:
    """Count the pairs, without regard to the predicate."""
    spans = [sides.later(s, np.arange(len(t)), t.expire - 1) for s, t in enumerate(sides.streams)]
    return sum(int((s.high - s.low).sum()) for s in [*spans, sides.together()])


def some_are_negative(sides: Sides) -> bool:
    """Return True if a pair has a negative value."""
    if sides.value is None:
        return False
    spans = [sides.later(s, np.arange(len(t)), t.expire - 1) for s, t in enumerate(sides.streams)]
    return any(
        bool((sides.worth(*pair) < 0).any())
        for span in [*spans, sides.together()]
        for pair in sides.pairs(span)
    )


def exact(sides: Sides, memory: Sequence[Whole], found: Pairs) -> tuple[list[Whole] | None, float]:
    """Solve by integer programme. Return until when rows are kept, if solved, and a bound."""
    require("ortools", "optimal", 'the optimum with shed_when="before-arrival"')
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    left, right, _, worth = found
    # Scale the worth: the solver expects numbers of ordinary size.
    most = float(np.abs(worth).max(initial=0.0)) or 1.0
    worth = worth / most
    streams = sides.streams
    # For each row, the ticks at which it may be needed, including its own.
    needed: dict[_Row, set[int]] = defaultdict(set)
    pairs = list(zip(left.tolist(), right.tolist(), worth.tolist(), strict=True))
    for a, b, _ in pairs:
        now = int(max(streams[0].tick[a], streams[1].tick[b]))
        needed[0, a] |= {int(streams[0].tick[a]), now}
        needed[1, b] |= {int(streams[1].tick[b]), now}
    held = {
        (u, tick): model.new_bool_var("") for u, ticks in needed.items() for tick in sorted(ticks)
    }
    load: dict[tuple[int, int], list[cp_model.IntVar]] = defaultdict(list)
    for (side, at), ticks in needed.items():
        pool = side if len(memory) == 2 else 0
        before = int(streams[side].tick[at])
        for last, tick in zip([before, *sorted(ticks)], sorted(ticks), strict=False):
            model.add_implication(held[(side, at), tick], held[(side, at), last])
            for after in range(before if tick == before else last + 1, tick + 1):
                load[pool, after].append(held[(side, at), tick])
    for (pool, after), variables in load.items():
        if len(variables) > memory[pool][after]:
            model.add(sum(variables) <= int(memory[pool][after]))
    results = []
    for a, b, value in pairs:
        now = int(max(streams[0].tick[a], streams[1].tick[b]))
        both = model.new_bool_var("")
        one, other = held[(0, a), now], held[(1, b), now]
        model.add_implication(both, one)
        model.add_implication(both, other)
        if value < 0:
            # Rows that are both held join, whether that is wanted or not.
            model.add_bool_or([one.negated(), other.negated(), both])
        results.append(both)
    model.maximize(sum(w * both for both, (_, _, w) in zip(results, pairs, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = _EFFORT
    status = solver.solve(model)
    bound = float(solver.best_objective_bound) * most
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, bound
    until = [np.full(len(s), -1, np.int64) for s in streams]
    for ((side, at), tick), variable in held.items():
        if solver.value(variable):
            until[side][at] = max(until[side][at], tick)
    return until, bound


def fill(sides: Sides, memory: Sequence[Whole], until: Sequence[Whole]) -> list[Whole]:
    """Admit newcomers for their own tick where there is room, those with most results first.

    `until` is a plan for `before-probe`.
    """
    kept = [u.copy() for u in until]
    ticks = len(sides.ticks)
    load = [np.zeros(ticks + 1, np.int64) for _ in memory]
    for side, stream in enumerate(sides.streams):
        mine = load[side if len(memory) == 2 else 0]
        stay = kept[side] >= 0
        np.add.at(mine, stream.tick[stay], 1)
        np.add.at(mine, kept[side][stay] + 1, -1)
    room = [places - np.cumsum(mine)[:-1] for places, mine in zip(memory, load, strict=True)]
    newcomers: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for side, stream in enumerate(sides.streams):
        other = sides.streams[1 - side]
        gain = np.zeros(len(stream))
        there = np.flatnonzero(kept[1 - side] >= 0)
        for pair in sides.pairs(sides.later(1 - side, there, kept[1 - side][there])):
            np.add.at(gain, pair[side], sides.worth(*pair))
        for pair in sides.pairs(sides.together()):
            both = kept[1 - side][pair[1 - side]] >= other.tick[pair[1 - side]]
            np.add.at(gain, pair[side][both], sides.worth(*pair)[both])
        for at in np.flatnonzero((kept[side] < 0) & (gain > 0)).tolist():
            newcomers[int(stream.tick[at])].append((-gain[at], side, at))
    for tick, candidates in newcomers.items():
        for _, side, at in sorted(candidates):
            pool = side if len(memory) == 2 else 0
            if room[pool][tick] > 0:
                room[pool][tick] -= 1
                kept[side][at] = tick
    return kept
