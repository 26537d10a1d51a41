"""The best join of whole relations when only some of their tuples may be kept.

Section 3 of paper 1 (Das, Gehrke, Riedewald): how many tuples of each join value to keep, so that
the join of what is kept is as large as it can be. A value with m tuples on one side and n on the
other gives m * n results; the paper calls it a component. All functions take how often each value
occurs in each relation, and give how many of its tuples to keep. To delete k tuples is to keep all
but k: the paper's primal and dual have the same solutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.joins.truncated.knapsack import add_whole, best_parts, sum_above

Counts = NDArray[np.int64]

#: How many components the first core of OPTDP has, and how much larger each further one is.
_CORE = 64
_GROWTH = 4


def results(kept: Any) -> int:
    """How large the join is, given how many tuples of each value each relation has."""
    counts = np.asarray(kept, np.int64)
    return int(counts.prod(axis=0).sum()) if counts.shape[1] else 0


def optdp(counts: Counts, keep: int) -> Counts:
    """Keep `keep` tuples of two relations, the best way: OPTDP of section 3.2.

    The paper's dynamic programme takes time in c * k^2. By its lemma 2 some optimum keeps all
    components whole or not at all, but for one. So it is enough to solve a 0/1 knapsack for each
    component that may be the partial one; and most components need not be asked: what a component
    would lose against the bound of ADG's fractional solution decides it, unless that is less than
    the bound leaves open. Only the rest, the core, is put into knapsacks. The core starts small
    and grows until it holds every component that is undecided.
    """
    return _one_budget(counts, keep, _optimal_parts)


def adg(counts: Counts, keep: int) -> Counts:
    """Keep `keep` tuples of two relations: Average Degree Greedy, section 3.3.2.

    Components come in order of their results a tuple, whole as long as there is room, and the
    next as far as it fits. At least half as many results as the optimum's are kept, and at most
    twice as many lost.
    """
    return _one_budget(counts, keep, lambda items, room: _greedy(items, room).parts)


def ndg(counts: Counts, keep: tuple[int, ...]) -> Counts:
    """Keep `keep[i]` tuples of relation i: Node Degree Greedy, section 3.3.1.

    One relation after the other keeps the tuples that find the most partners in what the ones
    before have kept. Of m relations at most m times as many results as need be are lost. The paper
    also says that two relations keep at least half of what the optimum keeps, but they need not:
    a relation may spend its budget on single tuples of values that the other has slightly more of.
    """
    kept = counts.copy()
    for relation, most in enumerate(keep):
        kept[relation] = _highest_degree(kept, relation, most)
    return kept


def improved(counts: Counts, kept: Counts, keep: tuple[int, ...]) -> Counts:
    """Let one relation after the other choose anew, given the others, for as long as it helps."""
    while True:
        better = kept.copy()
        for relation, most in enumerate(keep):
            better[relation] = counts[relation]
            better[relation] = _highest_degree(better, relation, most)
        if results(better) <= results(kept):
            return kept
        kept = better


def independent(counts: Counts, keep: tuple[int, ...]) -> Counts:
    """Keep `keep[i]` tuples of relation i: the m-approximation of section 3.4.

    Each relation keeps the tuples that find the most partners, whatever the others keep. Of m
    relations at most m times as many results as need be are lost.
    """
    return np.stack([_highest_degree(counts, i, most) for i, most in enumerate(keep)])


def _highest_degree(counts: Counts, relation: int, most: int) -> Counts:
    """How many tuples of each value a relation keeps that prefers those with many partners."""
    own = counts[relation]
    degree = np.delete(counts, relation, axis=0).prod(axis=0, dtype=np.float64)
    order = np.lexsort((-own, -degree))
    order = order[degree[order] > 0]
    before = np.cumsum(own[order]) - own[order]
    kept: Counts = np.zeros_like(own)
    kept[order] = np.clip(most - before, 0, own[order])
    return kept


# ---- one budget for two relations ---------------------------------------------------------------


@dataclass(frozen=True)
class _Components:
    """Values as knapsack items: tuples on the side with fewer, tuples in all, results."""

    smaller: Counts
    size: Counts
    value: Counts

    def __getitem__(self, which: Any) -> _Components:
        return _Components(self.smaller[which], self.size[which], self.value[which])

    def __len__(self) -> int:
        return len(self.size)


def _one_budget(
    counts: Counts, keep: int, parts_of: Callable[[_Components, int], Counts]
) -> Counts:
    """How many tuples of each value either side keeps, given how many both keep."""
    joining = np.flatnonzero(counts.min(axis=0) > 0)
    some = counts[:, joining]
    parts = parts_of(_Components(some.min(axis=0), some.sum(axis=0), some.prod(axis=0)), keep)
    # Lemma 1: as many of one side as of the other, as long as there are.
    smaller = np.minimum(some.min(axis=0), parts // 2)
    left = np.where(some[0] < some[1], smaller, parts - smaller)
    kept = np.zeros_like(counts)
    kept[:, joining] = left, parts - left
    return kept


@dataclass(frozen=True)
class _Greedy:
    """ADG's solution: what it keeps, which components whole, and what that proves.

    `price` is how many results a tuple of the component that did not fit would have given.
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
    # One tuple alone gives no results.
    parts[order[fits]] = rest if rest > 1 else 0
    return _Greedy(parts, whole, rest, float(density[order[fits]]))


def _optimal_parts(items: _Components, keep: int) -> Counts:
    """How many tuples of each component the optimum keeps.

    Equal components are put together first: one of each kind that may be kept in part, and bundles
    of 1, 2, 4 and so on of the others, of which any number of them can be made.
    """
    parts = np.zeros_like(items.size)
    whole, partial = _possible(items, keep)
    possible = np.flatnonzero(whole | partial)
    some = items[possible]
    shapes = np.stack([some.smaller, some.size])
    _, first, kind, many = np.unique(
        shapes, axis=1, return_index=True, return_inverse=True, return_counts=True
    )
    of, times = _bundles(many)
    one = some[first[of]]
    bundled = _Components(one.smaller, one.size * times, one.value * times)
    may = np.zeros(len(of), np.bool_)
    may[: len(many)] = np.bincount(kind, partial[possible], len(many)) > 0
    taken = _core_optimum(bundled, keep, may)
    # Of each kind the first ones are kept whole, and the next has what is left over.
    left = np.bincount(of, taken, len(many)).astype(np.int64)[kind]
    order = np.argsort(kind, kind="stable")
    before = np.empty_like(possible)
    before[order] = np.arange(len(order)) - (np.cumsum(many) - many)[kind[order]]
    parts[possible] = np.clip(left - before * some.size, 0, some.size)
    return parts


def _bundles(many: Counts) -> tuple[Counts, Counts]:
    """Which kind each bundle is of, and how many it holds; the first ones hold one of each kind."""
    of, times = [np.arange(len(many))], [np.ones_like(many)]
    rest, size = many - 1, 1
    while (rest > 0).any():
        which = np.flatnonzero(rest > 0)
        of.append(which)
        times.append(np.minimum(size, rest[which]))
        rest, size = rest - size, size * 2
    return np.concatenate(of), np.concatenate(times)


def _possible(items: _Components, keep: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which components an optimum may keep whole, and which in part.

    What some tuples of a component give depends on its smaller side only. So a component that is
    as large, with a smaller side as large, can stand in for another, and some optimum (the one
    with the least in the lowest components) uses a component only if it uses all that can stand
    in for it: whole, but for one at the most.
    """
    sums, largest = stand_ins(items.smaller, items.size, items.size)
    return sums - largest + items.size <= keep, sums + 2 <= keep


def stand_ins(one: Counts, other: Counts, sizes: Counts) -> tuple[Counts, Counts]:
    """How large those items are together, and the largest, that are no smaller by both measures.

    Of equal items the earlier ones count.
    """
    order = np.lexsort((-other, -one))
    rank = np.unique(-other, return_inverse=True)[1]
    sums, largest = np.empty_like(sizes), np.empty_like(sizes)
    sum_above(order, rank, sizes, np.zeros((2, len(sizes) + 1), np.int64), sums, largest)
    return sums, largest


def _core_optimum(items: _Components, keep: int, partial: NDArray[np.bool_]) -> Counts:
    """How many tuples of each component or bundle the optimum keeps; `partial` may be in part."""
    greedy = _greedy(items, keep)
    if greedy.rest == 0:
        return greedy.parts  # lemma 3
    # No tuple of a component gives more results than the component's mean, so this is a bound.
    bound = int(items.value[greedy.whole].sum()) + greedy.rest * greedy.price
    bound *= 1 + 1e-12  # what rounding may have taken away
    loss = np.abs(items.value - greedy.price * items.size)
    nearest = np.argsort(loss, kind="stable")
    size = _CORE
    while True:
        core = np.zeros(len(items), np.bool_)
        core[nearest[:size]] = True
        base = np.where(greedy.whole & ~core, items.size, 0)
        chosen = _choice(items, keep, base, core, partial)
        total = int(items.value[base > 0].sum()) + chosen.gain
        # To do better by a result, a solution may lose less than this against the bound.
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
    """What to keep in part, if `base` is kept but for that, and whatever is best of the core."""
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
    """What a choice keeps in all."""
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
    """A component to keep in part, how much of it, and what that and the core's best give."""

    gain: int
    item: int | None = None
    part: int = 0


def _part_of(items: _Components, which: Counts, best: Counts, room: int, *, whole: bool) -> _Choice:
    """The best of some components, none of them in the core, to keep in part.

    If they are kept `whole` now, part of each goes, and the core has room for more.
    """
    some = items[which]
    freed = some.size if whole else np.zeros_like(some.size)
    gains, parts = np.empty_like(which), np.empty_like(which)
    least = np.full(len(which), 2)
    best_parts(best, room + freed, some.smaller, least, some.size - 1, gains, parts)
    gains -= np.where(whole, some.value, 0)
    at = int(np.argmax(gains)) if len(which) else 0
    return _Choice(int(gains[at]), int(which[at]), int(parts[at])) if len(which) else _Choice(-1)


def _parts_of_core(items: _Components, core: Counts, best: Counts) -> list[_Choice]:
    """For each of some components of the core, how best to keep it in part.

    It needs the knapsack of all others; `best` is that of all that are not asked for. Halving them
    and offering each half to the other's knapsack makes all in the time of log c, not c, knapsacks.
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
    """Which items the best knapsack holds.

    Found by dividing the room between two halves of the items (Hirschberg), in the memory of one
    row of the table instead of all.
    """
    if len(items) <= 1 or int(items.size.sum()) <= room:
        return items.size <= room
    middle = len(items) // 2
    first, second = items[:middle], items[middle:]
    given = int(np.argmax(_knapsack(first, room) + _knapsack(second, room)[::-1]))
    return np.concatenate([_taken(first, given), _taken(second, room - given)])
