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
#: A row: its side and its index there.
_Row = tuple[int, int]


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
    arrivals: dict[int, list[_Row]] = defaultdict(list)
    for s in range(2):
        for at in np.unique(np.concatenate([pairs[s], np.flatnonzero(until[s] >= 0)])).tolist():
            arrivals[int(sides.streams[s].tick[at])].append((s, at))
    order = np.argsort(pairs.now, kind="stable")
    ends = np.searchsorted(pairs.now[order], np.arange(len(sides.ticks)), "right")
    peeling = _Peeling(sides, memory, until, pairs)
    start = 0
    for tick, end in enumerate(ends.tolist()):
        peeling.expire(tick)
        peeling.admit(arrivals.pop(tick, []))
        peeling.match(tick, order[start:end].tolist())
        peeling.drop(tick)
        peeling.plan_departures(tick)
        start = end
    return peeling.kept


class _Peeling:
    """The rows in memory from tick to tick, while `peeled` drops the least valuable.

    Attributes
    ----------
    kept
        The new plan: the last tick at which each row of a side is kept, or -1.
    later
        What each row of a side still earns by the old plan, from partners that come later.
    held
        The rows in each memory: one for both sides, or one per side.
    queue
        A heap of values and rows for each memory. An entry counts if its value is still right.
    newcomers, partners, earns
        At the current tick: the rows that arrive, the partners of each row that joins and the worth
        of each pair, and their sum.
    """

    def __init__(
        self, sides: Sides, memory: Sequence[Whole], until: Sequence[Whole], pairs: Pairs
    ) -> None:
        self._memory, self._until, self._pairs = memory, until, pairs
        self._arrive = [s.tick for s in sides.streams]
        self.kept = [u.copy() for u in until]
        self.later = [np.zeros(len(s)) for s in sides.streams]
        for s, mine in enumerate((pairs.left, pairs.right)):
            waits = (self._arrive[s][mine] < pairs.now) & (pairs.now <= until[s][mine])
            np.add.at(self.later[s], mine[waits], pairs.worth[waits])
        self.held: list[set[_Row]] = [set() for _ in memory]
        self.queue: list[list[tuple[float, int, int]]] = [[] for _ in memory]
        self._departures: dict[int, list[_Row]] = defaultdict(list)
        self.newcomers: list[_Row] = []
        self.partners: dict[_Row, dict[_Row, float]] = {}
        self.earns: dict[_Row, float] = {}

    def _pool(self, row: _Row) -> int:
        return row[0] if len(self._memory) == 2 else 0

    def _is_held(self, row: _Row) -> bool:
        return row in self.held[self._pool(row)]

    def _value(self, row: _Row) -> float:
        return float(self.later[row[0]][row[1]] + self.earns.get(row, 0.0))

    def _push(self, row: _Row) -> None:
        heapq.heappush(self.queue[self._pool(row)], (self._value(row), *row))

    def expire(self, tick: int) -> None:
        """Remove the rows that leave before this tick."""
        for row in self._departures.pop(tick, ()):
            self.held[self._pool(row)].discard(row)

    def admit(self, newcomers: list[_Row]) -> None:
        """Add all rows that arrive at this tick."""
        self.newcomers = newcomers
        for row in newcomers:
            self.held[self._pool(row)].add(row)

    def match(self, tick: int, numbers: list[int]) -> None:
        """Join the pairs of this tick, by number, and queue all rows whose value changes."""
        self.partners, self.earns = {row: {} for row in self.newcomers}, defaultdict(float)
        pairs = self._pairs
        for i in numbers:
            left, right, worth = (0, int(pairs.left[i])), (1, int(pairs.right[i])), pairs.worth[i]
            for s, at in (left, right):
                if self._arrive[s][at] < tick <= self._until[s][at]:
                    self.later[s][at] -= worth
                    if self._is_held((s, at)):
                        self.partners.setdefault((s, at), {})
            if self._is_held(left) and self._is_held(right):
                self.partners.setdefault(left, {})[right] = worth
                self.partners.setdefault(right, {})[left] = worth
                self.earns[left] += worth
                self.earns[right] += worth
        for row in self.partners:
            self._push(row)

    def drop(self, tick: int) -> None:
        """Drop the least valuable rows until the rest fits."""
        for held, queue, places in zip(self.held, self.queue, self._memory, strict=True):
            while len(held) > places[tick]:
                value, s, at = heapq.heappop(queue)
                row = (s, at)
                if row not in held:
                    continue
                if value != self._value(row):
                    self._push(row)
                    continue
                held.discard(row)
                self.kept[s][at] = tick - 1 if self._arrive[s][at] < tick else -1
                for partner, worth in self.partners.get(row, {}).items():
                    self.earns[partner] -= worth
                    self.partners[partner].pop(row)
                    self._push(partner)

    def plan_departures(self, tick: int) -> None:
        """Queue the remaining rows by what they earn later, and note when newcomers leave."""
        for row in self.partners:
            if self._is_held(row):
                heapq.heappush(
                    self.queue[self._pool(row)], (float(self.later[row[0]][row[1]]), *row)
                )
        for s, at in self.newcomers:
            if self._is_held((s, at)):
                if self.kept[s][at] < tick and self.earns[s, at] > 0:
                    self.kept[s][at] = tick
                self._departures[max(int(self.kept[s][at]), tick) + 1].append((s, at))


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


def _by_tick(sides: Sides, rows: Whole, pairs: Pairs) -> _AtTicks:
    size = max(map(len, sides.streams)) + 1
    place, code = np.unique(pairs.now * size + rows, return_inverse=True)
    best = np.zeros(len(place))
    np.maximum.at(best, code, pairs.worth)
    total: Worth = np.bincount(code, pairs.worth, len(place)).astype(np.float64)
    return _AtTicks(place // size, total, best)


def _most(total: Worth, best: Worth, own: int, other: int) -> float:
    """Bound what `own` rows can earn with `other` partners."""
    each = np.sort(np.minimum(total, best * other))[::-1]
    return float(each[:own].sum())
