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

from tidegate.joins.truncated.knapsack import keep_each
from tidegate.joins.truncated.plan import Counts, improved, ndg, optdp, results, stand_ins

#: Whether a value is kept in part on the left, and whether on the right.
_Way = tuple[bool, bool]
_WAYS: tuple[_Way, ...] = ((False, False), (True, False), (False, True), (True, True))

#: When searches are given up, all of one call together, in the solver's own seconds, which no other
#: load changes.
_EFFORT = 1.0
#: Up to how many steps the plain programme takes no longer than setting up another.
_PLAIN = 1 << 18


def optimal_each(counts: Counts, keep: tuple[int, int]) -> Counts:
    """Keep `keep[i]` tuples of relation i, the best way."""
    searches = Searches()
    kept = searches.optimal(counts, keep)
    searches.warn()
    return kept


class Searches:
    """The best joins of one call, say one for each window.

    Where searching takes too long, say for a thousand values of nearly equal counts, the best that
    was found is kept, and a warning says how much better any other could be.
    """

    def __init__(self) -> None:
        self._left = _EFFORT
        self._found = self._most = self._given_up = self._all = 0

    def optimal(self, counts: Counts, keep: tuple[int, int]) -> Counts:
        """Keep `keep[i]` tuples of relation i, the best way there is or that was found.

        Starts from a good solution, and asks whether any is better by at least one result.
        """
        self._all += 1
        kept = np.zeros_like(counts)
        joining = np.flatnonzero(counts.min(axis=0) > 0)
        if not len(joining):
            return kept
        some = counts[:, joining]
        if (some.sum(axis=1) <= keep).all():
            kept[:, joining] = some
        elif _plain_steps(some, keep) <= _PLAIN:
            kept[:, joining] = _plain(some, keep)
        else:
            kept[:, joining] = self._searched(some, keep)
        return kept

    def _searched(self, counts: Counts, keep: tuple[int, int]) -> Counts:
        bound, prices, rounded = _relaxed(counts, keep)
        starts = [improved(counts, start, keep) for start in (rounded, ndg(counts, keep))]
        good = max(starts, key=results)
        most = math.floor(bound * (1 + 1e-9))
        if results(good) < most:
            # Two budgets allow no more than one that is as large as both.
            most = min(most, results(optdp(counts, sum(keep))))
        if results(good) < most:
            ways, without = _left_open(counts, keep, prices, bound * (1 + 1e-9) - results(good) - 1)
            better, proved = self._search(counts, keep, ways, without, results(good) + 1)
            good = good if better is None else better
            most = math.floor(min(proved + 1e-6, most))
        if results(good) < most:
            self._given_up += 1
            self._found += results(good)
            self._most += most
        return good

    def warn(self) -> None:
        """Say how far from the best the searches that were given up may be."""
        if self._given_up:
            where = f" in {self._given_up:,} of {self._all:,} windows" if self._all > 1 else ""
            warnings.warn(
                f"a truncated join keeps {self._found:,} results{where}, and the best with a "
                f"budget for each input might keep up to {self._most:,}: the search for it was "
                "given up",
                stacklevel=2,
            )

    def _search(
        self,
        counts: Counts,
        keep: tuple[int, int],
        ways: dict[_Way, NDArray[np.bool_]],
        without: NDArray[np.bool_],
        least: int,
    ) -> tuple[Counts | None, float]:
        """The best way found that has at least so many results, and the most there can be."""
        from ortools.sat.python import cp_model

        if self._left <= 0:
            return None, math.inf
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
        solver.parameters.max_deterministic_time = self._left
        status = solver.solve(model)
        self._left -= solver.response_proto.deterministic_time
        if status == cp_model.INFEASIBLE:
            return None, least - 1
        if status == cp_model.UNKNOWN:
            return None, math.inf  # a solver that has found nothing has no bound to tell, either
        found = np.zeros_like(counts)
        for side in (0, 1):
            np.add.at(found[side], where, [solver.value(number) for number in kept[side]])
        return found, solver.best_objective_bound


def _plain_steps(counts: Counts, keep: tuple[int, int]) -> int:
    """How long the paper's programme takes: for each value and budget, all it could keep."""
    parts = np.minimum(counts, np.array(keep)[:, np.newaxis]) + 1.0
    return int(min(parts.prod(axis=0).sum() * (keep[0] + 1.0) * (keep[1] + 1.0), 2.0**62))


def _plain(counts: Counts, keep: tuple[int, int]) -> Counts:
    """The paper's programme, which small cases are solved by soonest."""
    kept = np.zeros_like(counts)
    best = np.zeros((counts.shape[1] + 1, keep[0] + 1, keep[1] + 1), np.int64)
    keep_each(counts, best, kept)
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


def _number(model: Any, count: int, chosen: Any, in_part: bool) -> Any:
    """How many tuples are kept of a value, if it is kept in this way: all, or fewer."""
    if not in_part:
        return count * chosen
    part = model.new_int_var(0, count - 1, "")
    model.add(part <= (count - 1) * chosen)
    return part
