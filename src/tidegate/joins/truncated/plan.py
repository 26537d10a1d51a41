"""Plans of joins on one key: how many rows of each join value to keep within one budget.

Section 3 of paper 1 (Das, Gehrke, Riedewald): the join of the kept rows should be as large as
possible. A value with m rows on one side and n on the other gives m * n results; the paper calls it
a component. All functions take the counts of each value in each relation, and return how many of
its rows to keep. Deleting k rows means keeping all but k: the paper's primal and dual have the same
solutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.joins.truncated.chain import Counts
from tidegate.joins.truncated.knapsack import add_whole, best_parts, sum_above

#: The number of components in the first core of OPTDP, and the growth of each further core.
_CORE = 64
_GROWTH = 4
#: Numbers of results from here on do not fit into whole numbers of 64 bits.
_COUNTABLE = 2.0**62


def results(kept: Any) -> int:
    """Return the size of the join, given the counts of each value in each relation."""
    counts = np.asarray(kept, np.int64)
    return int(counts.prod(axis=0).sum()) if counts.shape[1] else 0


def optdp(counts: Counts, keep: int) -> Counts:
    """Return the best way to keep `keep` rows of all relations: OPTDP of section 3.2.

    The paper has two relations. With more of them, the results of the first p rows of a component
    are still a convex function of p, which is what its lemmas need.

    The paper's dynamic program takes time in c * k^2. By its lemma 2, some optimum keeps all
    components whole or not at all, except one. It is therefore enough to solve a 0/1 knapsack for
    each component that may be the partial one. Most components are decided without a knapsack:
    their loss against the bound of ADG's fractional solution is larger than the gap that is still
    open. The others form the core. The core starts small and grows until it contains every
    undecided component.
    """
    return _one_budget(counts, keep, _optimal_parts)


def adg(counts: Counts, keep: int) -> Counts:
    """Return a greedy way to keep `keep` rows: Average Degree Greedy, section 3.3.2.

    Components are taken in order of their results per row, whole while they fit, and the next one
    in part. The result has at least half of the results of the optimum, and loses at most twice
    as many.
    """
    return _one_budget(counts, keep, lambda items, room: _greedy(items, room).parts)


@dataclass(frozen=True)
class _Components:
    """Values as knapsack items: rows of each side, ascending; rows of all sides; results."""

    sides: Counts
    size: Counts
    value: Counts

    def __getitem__(self, which: Any) -> _Components:
        return _Components(self.sides[which], self.size[which], self.value[which])

    @property
    def least(self) -> int:
        """The fewest rows that give a result."""
        return int(self.sides.shape[1])

    def __len__(self) -> int:
        return len(self.size)


def _one_budget(
    counts: Counts, keep: int, parts_of: Callable[[_Components, int], Counts]
) -> Counts:
    """Return how many rows of each value either side keeps within one budget for both."""
    joining = np.flatnonzero(counts.min(axis=0) > 0)
    some = _countable(counts[:, joining], keep)
    # Of equal sides, the last one comes first.
    order = np.lexsort((np.broadcast_to(-np.arange(len(some))[:, np.newaxis], some.shape), some), 0)
    sides = np.take_along_axis(some, order, 0)
    parts = parts_of(_Components(sides.T, some.sum(axis=0), some.prod(axis=0)), keep)
    # Lemma 1: keep the same number on all sides, up to the size of the smaller ones.
    balanced = np.zeros_like(sides)
    for i in range(len(sides)):
        balanced[i] = np.minimum(sides[i], parts // (len(sides) - i))
        parts = parts - balanced[i]
    kept = np.zeros_like(counts)
    placed = np.zeros_like(sides)
    np.put_along_axis(placed, order, balanced, 0)
    kept[:, joining] = placed
    return kept


def _countable(counts: Counts, keep: int) -> Counts:
    """Return counts whose products are exact integers, without rows that cannot be kept."""
    for some in (counts, np.minimum(counts, max(keep, 0))):
        if not some.size or float(some.prod(axis=0, dtype=np.float64).sum()) < _COUNTABLE:
            return some
    raise TidegateError(
        f"a budget of {keep:,} rows allows more than {_COUNTABLE:.0e} results, which cannot be "
        "counted; give a smaller budget"
    )


@dataclass(frozen=True)
class _Greedy:
    """The solution of ADG: the rows of each component, which are whole, and what is left.

    `price` is the number of results per row of the component that did not fit.
    """

    parts: Counts
    whole: NDArray[np.bool_]
    rest: int
    price: float


def _greedy(items: _Components, keep: int) -> _Greedy:
    density = items.value / items.size
    order = np.argsort(-density, kind="stable")
    filled = np.cumsum(items.size[order])
    fits = int(np.searchsorted(filled, keep, side="right"))
    whole = np.zeros(len(items), np.bool_)
    whole[order[:fits]] = True
    parts = np.where(whole, items.size, 0)
    if fits == len(items):
        return _Greedy(parts, whole, 0, 0.0)
    rest = keep - int(parts.sum())
    # Fewer rows than sides give no results.
    parts[order[fits]] = rest if rest >= items.least else 0
    return _Greedy(parts, whole, rest, float(density[order[fits]]))


def _optimal_parts(items: _Components, keep: int) -> Counts:
    """Return how many rows of each component the optimum keeps.

    Equal components are grouped first: one of each kind that may be kept in part, and bundles of
    1, 2, 4 and so on of the others, so that any number of them can be composed.
    """
    parts = np.zeros_like(items.size)
    whole, partial = _possible(items, keep)
    possible = np.flatnonzero(whole | partial)
    some = items[possible]
    _, first, kind, many = np.unique(
        some.sides, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    of, times = _bundles(many)
    one = some[first[of]]
    bundled = _Components(one.sides, one.size * times, one.value * times)
    may = np.zeros(len(of), np.bool_)
    may[: len(many)] = np.bincount(kind, partial[possible], len(many)) > 0
    taken = _core_optimum(bundled, keep, may)
    # Keep the first components of each kind whole; the next one gets the remaining rows.
    left = np.bincount(of, taken, len(many)).astype(np.int64)[kind]
    order = np.argsort(kind, kind="stable")
    before = np.empty_like(possible)
    before[order] = np.arange(len(order)) - (np.cumsum(many) - many)[kind[order]]
    parts[possible] = np.clip(left - before * some.size, 0, some.size)
    return parts


def _bundles(many: Counts) -> tuple[Counts, Counts]:
    """Return the kind and the size of each bundle; the first bundles hold one of each kind."""
    of, times = [np.arange(len(many))], [np.ones_like(many)]
    rest, size = many - 1, 1
    while (rest > 0).any():
        which = np.flatnonzero(rest > 0)
        of.append(which)
        times.append(np.minimum(size, rest[which]))
        rest, size = rest - size, size * 2
    return np.concatenate(of), np.concatenate(times)


def _possible(items: _Components, keep: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which components an optimum may keep whole, and which in part.

    The results of some rows of a component depend only on its smaller side. A component that is
    at least as large, with a smaller side at least as large, can therefore replace another. Some
    optimum (the one with the least in the lowest components) uses a component only if it uses all
    that can replace it, all of them whole except at most one. This is used for two sides only.
    """
    if items.least > 2:
        return items.size <= keep, np.full(len(items), items.least <= keep)
    sums, largest = stand_ins(items.sides[:, 0], items.size, items.size)
    return sums - largest + items.size <= keep, sums + 2 <= keep


def stand_ins(one: Counts, other: Counts, sizes: Counts) -> tuple[Counts, Counts]:
    """For each item, return the total and the largest size of items no smaller by both measures.

    Of equal items, only earlier ones count.
    """
    order = np.lexsort((-other, -one))
    rank = np.unique(-other, return_inverse=True)[1]
    sums, largest = np.empty_like(sizes), np.empty_like(sizes)
    sum_above(order, rank, sizes, np.zeros((2, len(sizes) + 1), np.int64), sums, largest)
    return sums, largest


def _core_optimum(items: _Components, keep: int, partial: NDArray[np.bool_]) -> Counts:
    """Return the rows of each component or bundle in the optimum.

    Only items in `partial` may be kept in part.
    """
    greedy = _greedy(items, keep)
    if greedy.rest == 0:
        return greedy.parts  # lemma 3
    # A component gives at most its mean number of results per row, so this is an upper bound.
    bound = int(items.value[greedy.whole].sum()) + greedy.rest * greedy.price
    bound *= 1 + 1e-12  # allow for rounding
    loss = np.abs(items.value - greedy.price * items.size)
    nearest = np.argsort(loss, kind="stable")
    size = _CORE
    while True:
        core = np.zeros(len(items), np.bool_)
        core[nearest[:size]] = True
        base = np.where(greedy.whole & ~core, items.size, 0)
        chosen = _choice(items, keep, base, core, partial)
        total = int(items.value[base > 0].sum()) + chosen.gain
        # A solution with one more result may lose less than this against the bound.
        if size >= len(items) or loss[nearest[size]] > bound - total - 1:
            return _filled(items, keep, base, core, chosen)
        size *= _GROWTH


def _choice(
    items: _Components,
    keep: int,
    base: Counts,
    core: NDArray[np.bool_],
    partial: NDArray[np.bool_],
) -> _Choice:
    """Return the component to keep in part, given `base` and the best use of the core."""
    inside, outside = (base > 0) & partial, ~core & (base == 0) & partial
    room = keep - int(base.sum())
    most = room + int(items.size[inside].max(initial=0))
    asked = np.flatnonzero(core & partial)
    others = _knapsack(items[np.flatnonzero(core & ~partial)], most)
    best = others.copy()
    _add(best, items[asked])
    return max(
        _Choice(int(best[room])),
        _part_of(items, np.flatnonzero(outside), best, room, whole=False),
        _part_of(items, np.flatnonzero(inside), best, room, whole=True),
        *_parts_of_core(items, asked, others[: room + 1]),
        key=lambda choice: choice.gain,
    )


def _filled(
    items: _Components, keep: int, base: Counts, core: NDArray[np.bool_], chosen: _Choice
) -> Counts:
    """Return the rows of each component that a choice keeps."""
    parts = base.copy()
    left = core.copy()
    if chosen.item is not None:
        parts[chosen.item] = chosen.part
        left[chosen.item] = False
    offered = np.flatnonzero(left)
    taken = offered[_taken(items[offered], keep - int(parts.sum()))]
    parts[taken] = items.size[taken]
    return parts


@dataclass(frozen=True)
class _Choice:
    """A component to keep in part, its rows, and the results of it and the best of the core."""

    gain: int
    item: int | None = None
    part: int = 0


def _part_of(items: _Components, which: Counts, best: Counts, room: int, *, whole: bool) -> _Choice:
    """Return the best component outside the core to keep in part.

    If components are kept `whole` now, keeping one in part frees room for the core.
    """
    some = items[which]
    freed = some.size if whole else np.zeros_like(some.size)
    gains, parts = np.empty_like(which), np.empty_like(which)
    least = np.full(len(which), items.least)
    best_parts(best, room + freed, some.sides, least, some.size - 1, gains, parts)
    gains -= np.where(whole, some.value, 0)
    at = int(np.argmax(gains)) if len(which) else 0
    return _Choice(int(gains[at]), int(which[at]), int(parts[at])) if len(which) else _Choice(-1)


def _parts_of_core(items: _Components, core: Counts, best: Counts) -> list[_Choice]:
    """For each of some components of the core, find the best way to keep it in part.

    That needs the knapsack of all other components; `best` is the knapsack without `core`. Halving
    `core` and adding each half to the knapsack of the other takes the time of log c knapsacks
    instead of c.
    """
    if len(core) <= 1:
        return [_part_of(items, core, best, len(best) - 1, whole=False)]
    found = []
    halves = np.array_split(core, 2)
    for half, other in (halves, halves[::-1]):
        with_other = best.copy()
        _add(with_other, items[other])
        found += _parts_of_core(items, half, with_other)
    return found


def _knapsack(items: _Components, room: int) -> Counts:
    best = np.zeros(room + 1, np.int64)
    _add(best, items)
    return best


def _add(best: Counts, items: _Components) -> None:
    add_whole(best, np.empty_like(best), items.size, items.value)


def _taken(items: _Components, room: int) -> NDArray[np.bool_]:
    """Return which items the best knapsack holds.

    The room is divided between two halves of the items (Hirschberg), which needs the memory of one
    row of the table instead of the whole table.
    """
    if len(items) <= 1 or int(items.size.sum()) <= room:
        return items.size <= room
    middle = len(items) // 2
    first, second = items[:middle], items[middle:]
    given = int(np.argmax(_knapsack(first, room) + _knapsack(second, room)[::-1]))
    return np.concatenate([_taken(first, given), _taken(second, room - given)])
