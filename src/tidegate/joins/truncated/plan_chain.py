"""The best truncated join of a chain of relations, with one budget or one for each.

This is NP-hard from three relations on (theorem 3 of paper 1: Das, Gehrke, Riedewald). Several
greedy plans are made and improved. A linear program gives an upper bound of every plan. If the best
plan is below the bound and the chain is small enough, an integer program looks for a better one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.errors import installed
from tidegate.joins.truncated.chain import Chain, Counts, Floats, Kept, improved, ndg

#: Up to this many combinations of groups, all of them are looked at, and the linear program takes
#: a few seconds at the most. Larger chains lose some percent of the results.
_COMBINATIONS = 1 << 14
#: Up to this many combinations, and up to this many results, the integer program is worth a try.
_SEARCHED, _RESULTS = 1 << 10, 1 << 40
#: The shares of a plan that are dropped and filled up again, and how often in small chains.
_DROPPED = (0.5, 0.25, 0.125, 0.0625, 0.03125)
_ROUNDS = 12
#: Candidates this near to the best one are taken together; the share of them at the most.
_NEAR, _TOGETHER = 0.95, 1 / 256


@dataclass(frozen=True)
class Budget:
    """How many rows may be kept: `keep[0]` of all relations together, or `keep[i]` of each."""

    keep: tuple[int, ...]

    def left(self, kept: Sequence[Counts]) -> list[int]:
        """Return how many rows of each relation may still be kept."""
        used = [int(rows.sum()) for rows in kept]
        if len(self.keep) == 1:
            return [self.keep[0] - sum(used)] * len(kept)
        return [most - rows for most, rows in zip(self.keep, used, strict=True)]

    def price(self, relation: int) -> float:
        """Return what a row costs: the share of the budget that it uses."""
        return 1.0 / max(self.keep[0 if len(self.keep) == 1 else relation], 1)

    def bound(self, chain: Chain) -> float:
        """Return the most results if all kept rows joined each other."""
        rows = [float(each.sum()) for each in chain.counts]
        if len(self.keep) > 1:
            return math.prod(min(most, each) for most, each in zip(self.keep, rows, strict=True))
        found, left = 1.0, self.keep[0]
        for i, each in enumerate(sorted(rows)):
            even = min(left // (len(rows) - i), int(each))
            found, left = found * even, left - even
        return found

    def clipped(self, chain: Chain) -> Chain:
        """Return the chain without rows that no plan can keep."""
        others = len(chain.counts) - 1 if len(self.keep) == 1 else 0
        most = self.left([np.zeros(0, np.int64)] * len(chain.counts))
        counts = tuple(
            np.minimum(rows, max(limit - others, 0))
            for rows, limit in zip(chain.counts, most, strict=True)
        )
        return Chain(counts, chain.after, chain.before)


@dataclass(frozen=True)
class Found:
    """A plan, its results, and the most results that any plan can have."""

    kept: Kept
    results: int
    most: int


def best_chain(chain: Chain, keep: Sequence[int], effort: float) -> tuple[Found, float]:
    """Return the best plan found, and the effort that the search for it took.

    `keep` is one budget for all relations, or one for each.
    """
    budget = Budget(tuple(keep))
    some = budget.clipped(chain)
    every = list(some.counts)
    if min(budget.left(every)) >= 0:
        whole = some.results(every)
        return Found(every, whole, whole), 0.0
    ones = [np.ones_like(rows) for rows in some.counts]
    combinations = some.results(ones)
    paths = some.paths() if combinations <= _COMBINATIONS else None
    starts: list[Kept] = []
    bound = min(float(some.results(every)), budget.bound(some))
    if paths is not None:
        relaxed, rounded = _relaxed(some, paths, budget)
        bound = min(bound, relaxed)
        starts.append(rounded)
    starts += [
        [np.zeros_like(rows) for rows in some.counts],
        _dropped(some, every, budget, 0.0),
    ]
    if len(keep) > 1:
        starts.append(ndg(some, keep))
    plans = [_polished(some, start, paths, budget) for start in starts]
    kept = max(plans, key=lambda plan: some.results(plan))
    found = Found(kept, some.results(kept), math.floor(bound * (1 + 1e-9)))
    small = combinations <= _SEARCHED and found.most <= _RESULTS
    if found.results >= found.most or paths is None or not small or effort <= 0:
        return found, 0.0
    if not installed("ortools"):
        return found, 0.0
    return _searched(some, paths, budget, found, effort)


def _polished(chain: Chain, start: Kept, paths: Counts | None, budget: Budget) -> Kept:
    """Fill a plan up, and improve it by dropping parts of it and filling it up again."""
    best = _settled(chain, _filled(chain, start, paths, budget), paths, budget)
    total = chain.results(best)
    small = paths is not None and len(paths) <= _SEARCHED
    for _ in range(_ROUNDS if small else 1):
        before = total
        for share in _DROPPED:
            less = _dropped(chain, best, budget, share)
            other = _settled(chain, _filled(chain, less, paths, budget), paths, budget)
            if chain.results(other) > total:
                best, total = other, chain.results(other)
        if total == before:
            break
    return best


def _settled(chain: Chain, kept: Kept, paths: Counts | None, budget: Budget) -> Kept:
    """Let the relations choose again in turn, then use what that frees."""
    while True:
        before = chain.results(kept)
        split = [int(rows.sum()) for rows in kept] if len(budget.keep) == 1 else budget.keep
        kept = improved(chain, kept, split)
        degrees = chain.degrees(kept)
        kept = [np.where(d > 0, rows, 0) for d, rows in zip(degrees, kept, strict=True)]
        kept = _filled(chain, kept, paths, budget)
        if chain.results(kept) <= before:
            return kept


def _dropped(chain: Chain, kept: Kept, budget: Budget, share: float) -> Kept:
    """Drop rows of the lowest degree until the budget is kept and `share` of the rest is free."""
    kept = [rows.copy() for rows in kept]
    one = len(budget.keep) == 1
    used = [int(rows.sum()) for rows in kept]
    goals = [
        math.floor(min(most, rows) * (1.0 - share))
        for most, rows in zip(budget.keep, [sum(used)] if one else used, strict=True)
    ]
    relation = np.repeat(np.arange(len(kept)), [len(rows) for rows in kept])
    while True:
        rows = np.concatenate(kept)
        degree = np.concatenate(chain.degrees(kept))
        order = np.lexsort((rows, degree))
        done = True
        for at, goal in enumerate(goals):
            mine = order if one else order[relation[order] == at]
            surplus = int(rows[mine].sum()) - goal
            if surplus <= 0:
                continue
            # Degrees change with what is dropped, so only a part is dropped at a time.
            now = surplus if surplus <= 8 else -(-surplus // 8)
            before = np.cumsum(rows[mine]) - rows[mine]
            rows[mine] -= np.clip(now - before, 0, rows[mine])
            done = done and now == surplus
        kept = np.split(rows, np.cumsum([len(part) for part in kept])[:-1])
        if done:
            return kept


def _filled(chain: Chain, kept: Kept, paths: Counts | None, budget: Budget) -> Kept:
    """Keep more rows within the budget, those with the most results for their price first.

    A candidate is a group, or all groups of a combination.
    """
    kept = [rows.copy() for rows in kept]
    while True:
        left = budget.left(kept)
        degrees = chain.degrees(kept)
        pools: list[tuple[Floats, int]] = []
        for i, rows in enumerate(kept):
            space = (chain.counts[i] > rows) & (left[i] > 0)
            pools.append((np.where(space, degrees[i] / budget.price(i), 0.0), i))
        if paths is not None:
            pools.append((_worth(chain, kept, paths, degrees, budget, left), -1))
        best = max((float(worth.max(initial=0.0)) for worth, _ in pools), default=0.0)
        if best <= 0.0:
            return kept
        changed = False
        for worth, relation in pools:
            near = np.flatnonzero(worth >= max(best * _NEAR, 1e-300))
            near = near[np.argsort(-worth[near], kind="stable")][: 1 + int(len(worth) * _TOGETHER)]
            for at in near.tolist():
                if relation >= 0:
                    more = min(int(chain.counts[relation][at] - kept[relation][at]), left[relation])
                    kept[relation][at] += more
                    changed = changed or more > 0
                else:
                    assert paths is not None
                    changed = _completed(chain, kept, paths[at], budget, left) or changed
                left = budget.left(kept)
        if not changed:
            return kept


def _worth(
    chain: Chain, kept: Kept, paths: Counts, degrees: list[Floats], budget: Budget, left: list[int]
) -> Floats:
    """Return the results for its price of keeping more of all groups of each combination."""
    one = len(budget.keep) == 1
    now = np.stack([kept[i][paths[:, i]] for i in range(len(kept))], axis=1).astype(np.float64)
    full = np.stack([chain.counts[i][paths[:, i]] for i in range(len(kept))], axis=1)
    missing = full - now
    cost = missing.sum(axis=1) if one else missing
    room = np.array(left[:1] if one else left, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        fits = np.where(missing > 0, 1.0, np.inf) if not one else np.ones((len(paths), 1))
        shares = room / (cost[:, np.newaxis] if one else cost) * fits
    share = np.clip(np.nan_to_num(shares, nan=np.inf, posinf=np.inf).min(axis=1), 0.0, 1.0)
    then = now + missing * share[:, np.newaxis]
    gain = then.prod(axis=1) - now.prod(axis=1)
    for i in range(len(kept)):
        own = np.delete(now, i, axis=1).prod(axis=1)
        gain += (degrees[i][paths[:, i]] - own) * (then[:, i] - now[:, i])
    prices = np.array([budget.price(i) for i in range(len(kept))])
    spent = ((then - now) * prices).sum(axis=1)
    found: Floats = np.divide(gain, spent, out=np.zeros(len(paths)), where=spent > 0)
    return found


def _completed(chain: Chain, kept: Kept, path: Counts, budget: Budget, left: list[int]) -> bool:
    """Keep more rows of the groups of one combination, evenly; return True if any were kept."""
    own = [int(kept[i][at]) for i, at in enumerate(path)]
    full = [int(chain.counts[i][at]) for i, at in enumerate(path)]
    if len(budget.keep) == 1 and left[0] < sum(full) - sum(own):
        # Raise the smallest groups first: their product is then the largest.
        low, high = 0, max(full)
        while low < high:
            level = (low + high + 1) // 2
            need = sum(max(min(level, f) - o, 0) for o, f in zip(own, full, strict=True))
            low, high = (level, high) if need <= left[0] else (low, level - 1)
        target = [max(min(low, f), o) for o, f in zip(own, full, strict=True)]
        rest = left[0] - sum(t - o for t, o in zip(target, own, strict=True))
        for i in range(len(target)):
            if rest > 0 and own[i] <= target[i] == low < full[i]:
                target[i] += 1
                rest -= 1
    else:
        target = [o + min(f - o, room) for o, f, room in zip(own, full, left, strict=True)]
    for i, at in enumerate(path):
        kept[i][at] = target[i]
    return target != own


def _relaxed(chain: Chain, paths: Counts, budget: Budget) -> tuple[float, Kept]:
    """Solve the relaxation in which a combination gives its share if all its groups keep theirs.

    Return an upper bound of the results, and the kept rows, rounded down. A product of shares is
    at most the smallest share, so every plan is a solution of it.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    starts = np.cumsum([0] + [len(rows) for rows in chain.counts])
    groups, many = int(starts[-1]), len(paths)
    size = np.concatenate(chain.counts).astype(np.float64)
    value = np.ones(many)
    for i, rows in enumerate(chain.counts):
        value *= rows[paths[:, i]]
    m = len(chain.counts)
    one = len(budget.keep) == 1
    row = np.arange(many * m)
    group = (paths + starts[:-1]).ravel()
    relation = np.repeat(np.arange(m), [len(rows) for rows in chain.counts])
    data = np.concatenate([np.ones(many * m), -np.ones(many * m), size])
    at_row = np.concatenate([row, row, many * m + (np.zeros_like(relation) if one else relation)])
    at_column = np.concatenate([groups + np.repeat(np.arange(many), m), group, np.arange(groups)])
    limits = np.concatenate([np.zeros(many * m), np.array(budget.keep, np.float64)])
    a = coo_array((data, (at_row, at_column)), shape=(len(limits), groups + many)).tocsr()
    scale = float(value.max(initial=1.0))
    cost = np.concatenate([np.zeros(groups), -value / scale])
    solved = linprog(cost, A_ub=a, b_ub=limits, bounds=(0, 1), method="highs")
    if solved.x is None:
        return math.inf, [np.zeros_like(rows) for rows in chain.counts]
    kept = np.floor(size * solved.x[:groups] + 1e-6).astype(np.int64)
    # Any prices that are not negative give a bound, so rounding does not make it wrong.
    prices = np.maximum(-solved.ineqlin.marginals, 0.0)
    shares, of_rows = prices[: many * m], prices[many * m :]
    worth = np.bincount(group, shares, groups) - size * (of_rows[0 if one else relation])
    rest = value / scale - shares.reshape(many, m).sum(axis=1)
    bound = np.maximum(worth, 0.0).sum() + np.maximum(rest, 0.0).sum()
    bound += float(np.dot(of_rows, np.array(budget.keep, np.float64)))
    return float(bound) * scale, np.split(kept, starts[1:-1])


def _searched(
    chain: Chain, paths: Counts, budget: Budget, found: Found, effort: float
) -> tuple[Found, float]:
    """Look for a better plan by an integer program, or prove that there is none.

    If the other relations are fixed, the best choice of a relation keeps all groups whole or not
    at all, except one. Some optimum therefore keeps at most one group of each relation in part.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    numbers: list[list[Any]] = []
    for i, rows in enumerate(chain.counts):
        in_part, own = [], []
        for at, count in enumerate(rows.tolist()):
            number = model.new_int_var(0, count, "")
            model.add_hint(number, int(found.kept[i][at]))
            whole, part = model.new_bool_var(""), model.new_bool_var("")
            model.add(number >= count * whole)
            model.add(number <= count * whole + max(count - 1, 0) * part)
            model.add_at_most_one([whole, part])
            in_part.append(part)
            own.append(number)
        model.add_at_most_one(in_part)
        numbers.append(own)
    if len(budget.keep) == 1:
        model.add(sum(number for own in numbers for number in own) <= budget.keep[0])
    else:
        for own, most in zip(numbers, budget.keep, strict=True):
            model.add(sum(own) <= most)
    gains = []
    for path in paths.tolist():
        product = numbers[0][path[0]]
        most = int(chain.counts[0][path[0]])
        for i, at in enumerate(path[1:], 1):
            most *= int(chain.counts[i][at])
            gain = model.new_int_var(0, most, "")
            model.add_multiplication_equality(gain, [product, numbers[i][at]])
            product = gain
        gains.append(product)
    model.add(sum(gains) >= found.results + 1)
    model.add(sum(gains) <= found.most)
    model.maximize(sum(gains))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # the same answer every time
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    used = float(solver.response_proto.deterministic_time)
    if status == cp_model.INFEASIBLE:
        return Found(found.kept, found.results, found.results), used
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return found, used
    kept = [np.array([solver.value(n) for n in own], np.int64) for own in numbers]
    most = min(found.most, math.floor(solver.best_objective_bound + 1e-6))
    return Found(kept, chain.results(kept), most), used
