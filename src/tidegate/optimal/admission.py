"""Bound and plan `before-arrival` for streams too large for an integer programme.

A result needs two rows in memory. Suppose each of the two rows gets a share of the result's worth
whenever it is in memory itself. No plan then earns less than before, so the optimum is an upper
bound; and it is a flow again, with one chain per row. The best shares are found step by step, by
giving less to rows that are in memory without their partner (a Lagrangian relaxation).
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.optimal.chains import Chains
from tidegate.optimal.delivered import Delivered
from tidegate.optimal.plan import best_plan
from tidegate.optimal.sides import Sides, Spans, Whole

#: The most pairs for which this is tried; the most changes of the shares, and the most pairs
#: examined for all changes together.
MOST_PAIRS = 3_000_000
_STEPS, _WORK = 30, 3_000_000
#: The first share of the earlier row of a pair; the first step, and how fast steps shrink.
_EARLIER = 0.8
_STEP, _SHORTER = 0.3, 0.3
#: The integer that stands for the worth of the best pair.
_UNIT = 2.0**32
_ROUNDING = 1e-6
#: The number of splits of a shared memory that are tried one by one.
_SPLITS = 64

Worth = NDArray[np.float64]


class Pairs(NamedTuple):
    """Pairs of rows: the left's row, the right's row, the tick of the later one, the worth."""

    left: Whole
    right: Whole
    now: Whole
    worth: Worth


def all_pairs(sides: Sides) -> Pairs:
    """Return every pair that counts."""
    spans = [sides.later(s, np.arange(len(t)), t.expire - 1) for s, t in enumerate(sides.streams)]
    return pairs_of(sides, [*spans, sides.together()])


def pairs_of(sides: Sides, spans: Sequence[Spans]) -> Pairs:
    """Return the pairs of several spans in one list."""
    found = [pair for span in spans for pair in sides.pairs(span)]
    left = np.concatenate([np.empty(0, np.int64), *(a for a, _ in found)])
    right = np.concatenate([np.empty(0, np.int64), *(b for _, b in found)])
    now = np.maximum(sides.streams[0].tick[left], sides.streams[1].tick[right])
    return Pairs(left, right, now, sides.worth(left, right))


def relaxed(sides: Sides, memory: Sequence[Whole], pairs: Pairs) -> tuple[list[Whole], float]:
    """Return the best plan found and the lowest bound. With too many pairs, neither is tried."""
    best = [np.full(len(s), -1, np.int64) for s in sides.streams]
    value, bound = 0.0, math.inf
    ticks = [s.tick[t] for s, t in zip(sides.streams, pairs[:2], strict=True)]
    # The share of the left's row of each pair.
    share = np.where(ticks[0] < ticks[1], _EARLIER, 1 - _EARLIER)
    share[ticks[0] == ticks[1]] = 0.5
    for step in range(min(_STEPS, _WORK // max(len(pairs.now), 1))):
        until, above = _shared(sides, memory, pairs, share)
        bound = min(bound, above)
        found = Delivered(sides, until, admitted=True).totals()[1]
        if found > value:
            best, value = until, found
        if value >= bound:
            break
        there = [u[t] >= pairs.now for u, t in zip(until, pairs[:2], strict=True)]
        lonely = there[0].astype(np.int64) - there[1]
        share = np.clip(share - _STEP / (1 + _SHORTER * step) * lonely, 0.0, 1.0)
    # Without importance every result counts 1, so the bound can be rounded down.
    return best, bound if sides.weighted else float(np.floor(bound + _ROUNDING))


def _shared(
    sides: Sides, memory: Sequence[Whole], pairs: Pairs, share: Worth
) -> tuple[list[Whole], float]:
    """Return the best plan if each row earns its share of its pairs, and what that plan earns.

    A row may earn at the tick of its own arrival, and then takes memory at that tick. So whatever
    it earns at a tick is entered at the next tick, when its memory is free again.
    """
    most = float(pairs.worth.max(initial=0.0)) or 1.0
    until, bound = [np.full(len(s), -1, np.int64) for s in sides.streams], 0.0
    ticks = len(sides.ticks) + 2
    for at, places in enumerate(memory):
        mine = [0, 1] if len(memory) == 1 else [at]
        sizes = [len(sides.streams[s]) for s in mine]
        starts = dict(zip(mine, [0, *np.cumsum(sizes)[:-1].tolist()], strict=True))
        where = [(starts[s] + pairs[s]) * ticks + pairs.now + 1 for s in mine]
        parts = [(share if s == 0 else 1 - share) * (pairs.worth / most) for s in mine]
        place, code = np.unique(np.concatenate(where), return_inverse=True)
        worth = np.bincount(code, np.concatenate(parts), len(place))
        counts = np.bincount(place // ticks, minlength=sum(sizes))
        chains = Chains(
            members=np.arange(sum(sizes) + 1),
            arrive=np.concatenate([sides.streams[s].tick for s in mine]),
            expire=np.concatenate([sides.streams[s].expire + 1 for s in mine]),
            gains=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            at=place % ticks,
            # Round up, so that the bound stays a bound.
            worth=np.ceil(worth * _UNIT).astype(np.int64),
            memory=places,
            late=0,
        )
        plan = best_plan(chains)
        bound += plan.bound / _UNIT * most
        for s, size in zip(mine, sizes, strict=True):
            last = plan.until[starts[s] : starts[s] + size]
            until[s][last >= 0] = chains.at[last[last >= 0]] - 1
    return until, bound


def peeled(
    sides: Sides, memory: Sequence[Whole], until: Sequence[Whole], pairs: Pairs
) -> list[Whole]:
    """Admit all newcomers to a plan, and at each tick drop the least valuable until the rest fits.

    The value of a row is what it earns at this tick with the rows still there, plus what the plan
    lets it earn later. It falls as partners are dropped.
    """
    kept = [u.copy() for u in until]
    own = [s.tick for s in sides.streams]
    # What each row still earns by the plan, from partners that come later.
    ahead = [np.zeros(len(s)) for s in sides.streams]
    for s in range(2):
        mine = (pairs.left, pairs.right)[s]
        waits = (own[s][mine] < pairs.now) & (pairs.now <= until[s][mine])
        np.add.at(ahead[s], mine[waits], pairs.worth[waits])
    order = np.argsort(pairs.now, kind="stable")
    ends = np.searchsorted(pairs.now[order], np.arange(len(sides.ticks)), "right")
    arrivals: dict[int, list[tuple[int, int]]] = defaultdict(list)
    leaving: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for s in range(2):
        for at in np.unique(np.concatenate([pairs[s], np.flatnonzero(until[s] >= 0)])).tolist():
            arrivals[int(own[s][at])].append((s, at))
    held: list[set[tuple[int, int]]] = [set() for _ in memory]
    queue: list[list[tuple[float, int, int]]] = [[] for _ in memory]

    def pool(s: int) -> int:
        return s if len(memory) == 2 else 0

    start = 0
    for tick, end in enumerate(ends.tolist()):
        for s, at in leaving.pop(tick, ()):
            held[pool(s)].discard((s, at))
        came = arrivals.pop(tick, [])
        for s, at in came:
            held[pool(s)].add((s, at))
        now: dict[tuple[int, int], dict[tuple[int, int], float]] = {one: {} for one in came}
        earns: dict[tuple[int, int], float] = defaultdict(float)
        for i in order[start:end].tolist():
            one, other, worth = (0, int(pairs.left[i])), (1, int(pairs.right[i])), pairs.worth[i]
            for s, at in (one, other):
                if own[s][at] < tick <= until[s][at]:
                    ahead[s][at] -= worth
                    if (s, at) in held[pool(s)]:
                        now.setdefault((s, at), {})
            if one in held[pool(0)] and other in held[pool(1)]:
                now.setdefault(one, {})[other] = now.setdefault(other, {})[one] = worth
                earns[one] += worth
                earns[other] += worth
        start = end
        for s, at in now:
            heapq.heappush(queue[pool(s)], (ahead[s][at] + earns[s, at], s, at))
        for p, places in enumerate(memory):
            while len(held[p]) > places[tick]:
                worth, s, at = heapq.heappop(queue[p])
                if (s, at) not in held[p]:
                    continue
                if worth != ahead[s][at] + earns[s, at]:
                    heapq.heappush(queue[p], (ahead[s][at] + earns[s, at], s, at))
                    continue
                held[p].discard((s, at))
                kept[s][at] = tick - 1 if own[s][at] < tick else -1
                for partner, less in now.get((s, at), {}).items():
                    earns[partner] -= less
                    now[partner].pop((s, at))
                    q = queue[pool(partner[0])]
                    heapq.heappush(q, (ahead[partner[0]][partner[1]] + earns[partner], *partner))
        for s, at in now:
            if (s, at) in held[pool(s)]:
                heapq.heappush(queue[pool(s)], (ahead[s][at], s, at))
        for s, at in came:
            if (s, at) in held[pool(s)]:
                if kept[s][at] < tick and earns[s, at] > 0:
                    kept[s][at] = tick
                leaving[max(int(kept[s][at]), tick) + 1].append((s, at))
    return kept


def most_at_ticks(sides: Sides, memory: Sequence[Whole], pairs: Pairs) -> float:
    """Bound the total by bounding each tick on its own: rows that join must be in memory."""
    grouped = [_by_tick(sides, one, pairs) for one in pairs[:2]]
    first = [np.searchsorted(g.tick, np.arange(len(sides.ticks) + 1)) for g in grouped]
    bound = float(pairs.worth.sum())
    count = [np.diff(f) for f in first]
    if len(memory) == 2:
        crowded = (count[0] > memory[0]) | (count[1] > memory[1])
    else:
        crowded = count[0] + count[1] > memory[0]
    for tick in np.flatnonzero(crowded & (count[0] > 0)).tolist():
        here = [slice(f[tick], f[tick + 1]) for f in first]
        places = [int(m[tick]) for m in memory]
        splits = [(places[0], places[-1])]
        if len(places) == 1:
            # Each range of splits is bounded by the largest memory that either side has in it.
            edges = np.unique(np.linspace(0, places[0], _SPLITS + 1).astype(int)).tolist()
            splits = [(high, places[0] - low - 1) for low, high in pairwise(edges)]
        most = max(
            min(
                _most(g.total[cut], g.best[cut], split[s], split[1 - s])
                for s, (g, cut) in enumerate(zip(grouped, here, strict=True))
            )
            for split in splits
        )
        bound -= max(float(grouped[0].total[here[0]].sum()) - most, 0.0)
    return bound


class _AtTicks(NamedTuple):
    """Rows at the ticks at which they join: the tick, and the worth of all pairs and the best."""

    tick: Whole
    total: Worth
    best: Worth


def _by_tick(sides: Sides, tuples: Whole, pairs: Pairs) -> _AtTicks:
    size = max(map(len, sides.streams)) + 1
    place, code = np.unique(pairs.now * size + tuples, return_inverse=True)
    best = np.zeros(len(place))
    np.maximum.at(best, code, pairs.worth)
    total: Worth = np.bincount(code, pairs.worth, len(place)).astype(np.float64)
    return _AtTicks(place // size, total, best)


def _most(total: Worth, best: Worth, own: int, other: int) -> float:
    """Bound what `own` rows can earn with `other` partners."""
    each = np.sort(np.minimum(total, best * other))[::-1]
    return float(each[:own].sum())
