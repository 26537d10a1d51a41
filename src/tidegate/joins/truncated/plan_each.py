"""The best truncated join of two relations with a budget for each, and the searches of one call.

The (k_A, k_B) variant of section 3 of paper 1 (Das, Gehrke, Riedewald). If the rows of one relation
are fixed, the best choice of the other is a vertex of its budget: all values whole or not at all,
except one. Some optimum therefore keeps at most one value in part on either side, and all others
whole on both sides or not at all. That is a knapsack with two weights and few further choices. It
is small enough for an integer program once a bound has decided most values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import require
from tidegate.joins.truncated.chain import Chain, Counts, Kept, improved, ndg
from tidegate.joins.truncated.knapsack import keep_each
from tidegate.joins.truncated.plan import optdp, results, stand_ins
from tidegate.joins.truncated.plan_chain import best_chain

#: (kept in part on the left, kept in part on the right).
_Way = tuple[bool, bool]
_WAYS: tuple[_Way, ...] = ((False, False), (True, False), (False, True), (True, True))

#: The limit for all searches of one call, in the solver's deterministic seconds, which do not
#: depend on the load of the machine.
EFFORT = 1.0
#: Up to this many steps, the plain dynamic program is faster than setting up the solver.
_PLAIN = 1 << 18


def optimal_each(counts: Counts, keep: tuple[int, int]) -> Counts:
    """Return the best way to keep `keep[i]` rows of relation i."""
    searches = Searches()
    kept = searches.optimal(counts, keep)
    searches.warn()
    return kept


class Searches:
    """The searches for the best joins of one call, one for each window.

    If a search takes too long, for example for a thousand values of nearly equal counts, the best
    solution found is used, and a warning gives the upper bound.
    """

    def __init__(self) -> None:
        self._left = EFFORT
        self._found = self._most = self._given_up = self._all = 0

    def optimal(self, counts: Counts, keep: tuple[int, int]) -> Counts:
        """Return the best way found to keep `keep[i]` rows of relation i.

        The search starts from a good solution and looks for one with at least one more result.
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
        pair = Chain.of_one_key(counts)
        starts = [improved(pair, start, keep) for start in (list(rounded), ndg(pair, keep))]
        good = max(map(np.stack, starts), key=results)
        most = math.floor(bound * (1 + 1e-9))
        if results(good) < most:
            # Two budgets allow at most the results of one budget of their sum.
            most = min(most, results(optdp(counts, sum(keep))))
        if results(good) < most:
            ways, without = _left_open(counts, keep, prices, bound * (1 + 1e-9) - results(good) - 1)
            better, proved = self._search(counts, keep, ways, without, results(good) + 1)
            good = good if better is None else better
            most = math.floor(min(proved + 1e-6, most))
        self._record(results(good), most)
        return good

    def chain(self, chain: Chain, keep: Sequence[int]) -> Kept:
        """Return the best way found to keep rows of a chain, with one budget or one for each."""
        self._all += 1
        found, used = best_chain(chain, keep, self._left)
        self._left -= used
        self._record(found.results, found.most)
        return found.kept

    def _record(self, found: int, most: int) -> None:
        if found < most:
            self._given_up += 1
            self._found += found
            self._most += most

    def warn(self) -> None:
        """Warn if searches were given up, with the upper bound of the results."""
        if self._given_up:
            where = f" in {self._given_up:,} of {self._all:,} windows" if self._all > 1 else ""
            warnings.warn(
                f"a truncated join keeps {self._found:,} results{where}, and the best within the "
                f"budget might keep up to {self._most:,}: the search for it was given up",
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
        """Return the best solution with at least `least` results, and the upper bound."""
        require("ortools", "optimal", "the best truncated join with a budget for each input")
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
            return None, math.inf  # no solution found, so no bound either
        found = np.zeros_like(counts)
        for side in (0, 1):
            np.add.at(found[side], where, [solver.value(number) for number in kept[side]])
        return found, solver.best_objective_bound


def _plain_steps(counts: Counts, keep: tuple[int, int]) -> int:
    """Return the number of steps of the paper's dynamic program."""
    parts = np.minimum(counts, np.array(keep)[:, np.newaxis]) + 1.0
    return int(min(parts.prod(axis=0).sum() * (keep[0] + 1.0) * (keep[1] + 1.0), 2.0**62))


def _plain(counts: Counts, keep: tuple[int, int]) -> Counts:
    """Solve a small case by the paper's dynamic program."""
    kept = np.zeros_like(counts)
    best = np.zeros((counts.shape[1] + 1, keep[0] + 1, keep[1] + 1), np.int64)
    keep_each(counts, best, kept)
    return kept


def _relaxed(counts: Counts, keep: tuple[int, int]) -> tuple[float, tuple[float, float], Counts]:
    """Solve the relaxation in which values can be kept in any proportion, equal on both sides.

    Return an upper bound of the results, the price of a row of either side (any prices give a
    bound; those of the linear program give the best one), and the kept rows, rounded down.
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
    """Return which values may be kept in each way, and which may be left out.

    A choice may lose at most `allowed` against the bound. The loss is linear in the number of rows
    of either side, so it is smallest in a corner. As in `plan`, all values that could replace a
    value must be used too, and fit: whole, except at most one, which may be the value itself.
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
    """Return the solver's expression for the kept rows of a value: all, or fewer in part."""
    if not in_part:
        return count * chosen
    part = model.new_int_var(0, count - 1, "")
    model.add(part <= (count - 1) * chosen)
    return part
