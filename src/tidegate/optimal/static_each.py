"""The best truncated join of two relations with a budget for each.

The (k_A, k_B) variant of section 3 of paper 1 (Das, Gehrke, Riedewald). With what one relation
keeps given, the best the other can keep is a vertex of its budget: values whole or not at all, but
for one. So some optimum keeps at most one value in part on either side, and all others whole on
both sides or not at all. That is a knapsack with two weights and few further choices, which is
small enough for an integer programme once a bound has decided most values.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.optimal.static import Counts, improved, ndg, results, stand_ins

#: Whether a value is kept in part on the left, and whether on the right.
_Way = tuple[bool, bool]
_WAYS: tuple[_Way, ...] = ((False, False), (True, False), (False, True), (True, True))

#: When the search is given up, in the solver's own seconds, which no other load changes.
_EFFORT = 1.0


def optimal_each(counts: Counts, keep: tuple[int, int]) -> Counts:
    """Keep `keep[i]` tuples of relation i, the best way.

    Starts from a good solution, and asks whether any is better by at least one result. Where the
    search takes too long, say for a thousand values of nearly equal counts, the best that was found
    is kept, and a warning says how much better any other could be.
    """
    kept = np.zeros_like(counts)
    joining = np.flatnonzero(counts.min(axis=0) > 0)
    if not len(joining):
        return kept
    some = counts[:, joining]
    bound, prices, rounded = _relaxed(some, keep)
    starts = [improved(some, start, keep) for start in (rounded, ndg(some, keep))]
    good = max(starts, key=results)
    allowed = bound * (1 + 1e-9) - results(good) - 1
    if allowed >= 0:
        ways, without = _left_open(some, keep, prices, allowed)
        better, most = _search(some, keep, ways, without, results(good) + 1)
        good = good if better is None else better
        most = math.floor(min(most + 1e-6, bound * (1 + 1e-9)))
        if results(good) < most:
            warnings.warn(
                f"a truncated join keeps {results(good):,} results, and the best with a budget for "
                f"each input {keep} might keep up to {most:,}: the search for it was given up",
                stacklevel=2,
            )
    kept[:, joining] = good
    return kept


def _relaxed(counts: Counts, keep: tuple[int, int]) -> tuple[float, tuple[float, float], Counts]:
    """The optimum if values could be kept in any proportion, both sides alike.

    Gives a bound on the results, what a tuple of either side is worth (any such prices give a
    bound, those of the linear programme the best), and what is kept, rounded down.
    """
    from scipy.optimize import linprog

    left, right = counts
    solved = linprog(-(left * right), A_ub=counts, b_ub=keep, bounds=(0, 1), method="highs")
    a, b = (max(-float(price), 0.0) for price in solved.ineqlin.marginals)
    gains = left * right - a * left - b * right
    bound = a * keep[0] + b * keep[1] + float(np.maximum(gains, 0).sum())
    return bound, (a, b), np.floor(counts * solved.x + 1e-6).astype(np.int64)


def _left_open(
    counts: Counts, keep: tuple[int, int], prices: tuple[float, float], allowed: float
) -> tuple[dict[_Way, NDArray[np.bool_]], NDArray[np.bool_]]:
    """Which values may be kept in each way, and which not at all, to lose no more than allowed.

    What a way loses against the bound is linear in either side's number of tuples, so that it
    loses least in some corner. And as in `static`, all values that could stand in for a value must
    be used, too, and fit: whole, but for one at the most, which may be the value itself.
    """
    left, right = counts
    fits: dict[tuple[int, bool], NDArray[np.bool_]] = {}
    for side in (0, 1):
        sums, largest = stand_ins(left, right, counts[side])
        fits[side, True] = sums + 1 <= keep[side]
        fits[side, False] = sums - largest + counts[side] <= keep[side]

    def gain(a: Counts, b: Counts) -> NDArray[np.float64]:
        earned: NDArray[np.float64] = a * b - prices[0] * a - prices[1] * b
        return earned

    wanted = np.maximum(gain(left, right), 0) - allowed
    ways = {}
    for on_left, on_right in _WAYS:
        some_left = (np.ones_like(left), left - 1) if on_left else (left,)
        some_right = (np.ones_like(right), right - 1) if on_right else (right,)
        there = ((left > 1) | (not on_left)) & ((right > 1) | (not on_right))
        corners = [gain(a, b) for a in some_left for b in some_right]
        there &= fits[0, on_left] & fits[1, on_right]
        ways[on_left, on_right] = there & (np.max(corners, axis=0) >= wanted)
    return ways, wanted <= 0


def _search(
    counts: Counts,
    keep: tuple[int, int],
    ways: dict[_Way, NDArray[np.bool_]],
    without: NDArray[np.bool_],
    least: int,
) -> tuple[Counts | None, float]:
    """The best way that is found to have at least so many results, and the most there can be."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    kept: tuple[list[Any], list[Any]] = ([], [])
    in_part: tuple[list[Any], list[Any]] = ([], [])
    gains: list[Any] = []
    where: list[int] = []
    for value, count in enumerate(counts.T.tolist()):
        options = []
        for way in _WAYS:
            if not ways[way][value]:
                continue
            chosen = model.new_bool_var("")
            options.append(chosen)
            where.append(value)
            a, b = (_number(model, count[side], chosen, way[side]) for side in (0, 1))
            for side, number in ((0, a), (1, b)):
                kept[side].append(number)
                if way[side]:
                    in_part[side].append(chosen)
            if way == (True, True):
                product = model.new_int_var(0, count[0] * count[1], "")
                model.add_multiplication_equality(product, [a, b])
                gains.append(product)
            else:
                gains.append(count[0] * b if way[1] else count[1] * a)
        if without[value]:
            model.add_at_most_one(options)
        else:
            model.add_exactly_one(options)
    for side in (0, 1):
        model.add(sum(kept[side]) <= keep[side])
        model.add_at_most_one(in_part[side])
    model.add(sum(gains) >= least)
    model.maximize(sum(gains))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # the same answer every time
    solver.parameters.max_deterministic_time = _EFFORT
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None, least - 1
    if status == cp_model.UNKNOWN:
        return None, math.inf  # a solver that has found nothing has no bound to tell, either
    found = np.zeros_like(counts)
    for side in (0, 1):
        np.add.at(found[side], where, [solver.value(number) for number in kept[side]])
    return found, solver.best_objective_bound


def _number(model: Any, count: int, chosen: Any, in_part: bool) -> Any:
    """How many tuples are kept of a value, if it is kept in this way: all, or fewer."""
    if not in_part:
        return count * chosen
    part = model.new_int_var(0, count - 1, "")
    model.add(part <= (count - 1) * chosen)
    return part
