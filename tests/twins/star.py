"""Slow reference implementation ("twin") of the star engine: lists and products.

It follows formulas (1), (3), (6) and (8) and section 3.2 of the paper and the rules of
`docs/concepts/star_join.md`, and shares no code with the engine. Every join is a product of lists,
so inputs have to be small. The relation's rows are called facts here, as in the paper.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, product
from typing import Any

from twins.star_auto import Auto

Time = int | float
#: The uids of a row of each stream, and of the fact.
Found = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One row; `row_hash` is its content hash, `uid` is unique over all streams."""

    stream: int
    key: int
    time: Time
    row_hash: int
    uid: int
    weight: float = 1.0

    @property
    def side(self) -> int:
        """The stream, by the name that rankers use."""
        return self.stream

    @property
    def credited(self) -> tuple[int, ...]:
        """The keys for which the row counts as an arrival."""
        return (self.key,)


@dataclass
class Fact:
    """One fact, active in [begin, end)."""

    keys: tuple[int, ...]
    begin: Time
    end: Time
    uid: int

    def active(self, time: Time) -> bool:
        return self.begin <= time < self.end


@dataclass
class Held:
    """A held row and what is known of it."""

    row: Row
    seq: int
    fixed: Any = 0.0
    partners: int = 0
    gain: float = 0.0
    last: Time = 0


def tick_order(row: Row) -> tuple[Any, ...]:
    return (row.time, row.stream, row.key, row.row_hash, row.uid)


def combinations(
    facts: Sequence[Fact], candidates: Sequence[Sequence[Row]], windows: Sequence[Time]
) -> list[tuple[tuple[Row, ...], Fact]]:
    """Return all combinations of one row of each stream and a fact: (1), (3) and (6)."""
    found = []
    for fact in facts:
        lists = [
            [u for u in rows if u.key == fact.keys[s] and fact.active(u.time)]
            for s, rows in enumerate(candidates)
        ]
        for chosen in product(*lists):
            last = max(u.time for u in chosen)
            if all(last < u.time + windows[u.stream] for u in chosen):
                found.append((chosen, fact))
    return found


def exact(rows: Sequence[Row], facts: Sequence[Fact], windows: Sequence[Time]) -> Counter[Found]:
    by_stream = [[u for u in rows if u.stream == s] for s in range(len(windows))]
    return Counter(
        (*(u.uid for u in chosen), fact.uid)
        for chosen, fact in combinations(facts, by_stream, windows)
    )


def combined(weights: Sequence[Any], how: str) -> Any:
    """Return the importance of a result."""
    if how in ("min", "max"):
        return min(weights) if how == "min" else max(weights)
    return sum(weights) if how == "sum" else math.prod(weights)


class NaiveStar:
    """The star join as plain products of lists."""

    def __init__(
        self,
        *,
        windows: Sequence[Time],
        facts: list[Fact],
        ranker: str = "nothing",
        memory: int | None = None,
        fixed_split: bool = False,
        shed_when: str = "after-probe",
        lateness: Time = 0,
        dynamic: bool = False,
        combine: str | None = None,
        params: tuple[float, ...] = (),
        halflife: Time = 0,
        ranks: dict[int, float] | None = None,
        floor_weight: float = 0.0,
        order_weight: float = 0.0,
    ) -> None:
        self.windows, self.facts, self.ranker = windows, facts, ranker
        self.memory, self.fixed_split, self.shed_when = memory, fixed_split, shed_when
        self.lateness, self.combine, self.params = lateness, combine, params
        self.halflife, self.ranks = halflife, ranks or {}
        self.floor_weight, self.order_weight = floor_weight, order_weight
        self.deferred = dynamic or shed_when != "after-probe"
        n = len(windows)
        self.clock: Time = -math.inf
        self.stream_clock: list[Time] = [-math.inf] * n
        self.held: list[Held] = []
        self.open: list[Row] = []
        self.counts: dict[tuple[int, int], Fraction] = {}
        self.epoch: int | None = None
        self.floors = [0.0] * n
        self.dynamic = dynamic
        self.arrivals = self.filtered = self.expired = self.late = 0
        self.shed: list[tuple[int, Time, str]] = []
        # For a table that differs after a restart: each link as listed, and since when it counts.
        self.listed = {(f.keys, f.begin, f.uid): f.begin for f in facts}
        self.auto = Auto(self)
        # For `auto`, by pool: the ranks of the rows that may be shed next, by uid; the rank below
        # which newcomers are among them; and how many are shed before all rows are ranked again.
        self.lowest: list[dict[int, float]] = [{} for _ in range(n)]
        self.edge, self.left = [-math.inf] * n, [0] * n

    # ---- time ---------------------------------------------------------------------------------

    def feed(self, rows: Sequence[Row], clocks: Sequence[Time | None] = ()) -> list[Found]:
        found: list[Found] = []
        for time, group in groupby(sorted(rows, key=tick_order), key=lambda row: row.time):
            tick = list(group)
            behind = time < self.clock
            self.late += sum(self._late(row) for row in tick)
            found += self._advance([(row.stream, time) for row in tick])
            self._begin()
            if not self.deferred:
                tick = self._filtered(tick)
                found += self._probe(tick, [h.row for h in self.held] + self.open)
            if not behind:
                self.open += tick
            else:
                found += self._close(tick)
        self._begin()
        return found + self._advance([(s, t) for s, t in enumerate(clocks) if t is not None])

    def _begin(self) -> None:
        """Let `auto` learn, before a tick and, as the open tick begins again, after a batch."""
        if self.ranker == "auto" and self.clock > -math.inf:
            self.auto.begin(self.clock)

    def replace_table(self, facts: list[Fact]) -> None:
        """Go on with another table: links that are not in both end, or begin after the clock."""
        real = isinstance(self.clock, float)
        after = math.nextafter(self.clock, math.inf) if real else self.clock + 1
        listed = {(f.keys, f.begin, f.uid): max(f.begin, after) for f in facts}
        listed |= {name: since for name, since in self.listed.items() if name in listed}
        for fact in facts:
            fact.begin = listed[fact.keys, fact.begin, fact.uid]
        self.facts, self.listed = facts, listed
        linked = [h for h in self.held if self._facts(h.row) and not self._dead(h.row)]
        self.expired += len(self.held) - len(linked)
        self.held = linked
        if not self.deferred and len(self.windows) > 1:  # a single stream holds nothing
            self.open = self._filtered(self.open)

    def finish(self) -> list[Found]:
        tick, self.open = sorted(self.open, key=tick_order), []
        return self._close(tick)

    def _advance(self, stream_clock: Sequence[tuple[int, Time]]) -> list[Found]:
        found: list[Found] = []
        for stream, time in stream_clock:
            if time > self.clock:
                found += self.finish()
                self.clock = time
            self.stream_clock[stream] = max(self.stream_clock[stream], time)
        dead = [h for h in self.held if self._dead(h.row)]
        self.expired += len(dead)
        self.held = [h for h in self.held if h not in dead]
        return found

    def _filtered(self, rows: list[Row]) -> list[Row]:
        kept = [u for u in rows if self._facts(u)]
        self.filtered += len(rows) - len(kept)
        return kept

    def _facts(self, row: Row) -> list[Fact]:
        return [f for f in self.facts if f.keys[row.stream] == row.key and f.active(row.time)]

    def until(self, row: Row) -> Time:
        """Return the time from which nothing can join a row: the end of its window, and (8)."""
        return min(row.time + self.windows[row.stream], max(f.end for f in self._facts(row)))

    def _dead(self, row: Row) -> bool:
        others = [t for s, t in enumerate(self.stream_clock) if s != row.stream]
        return all(t >= self.until(row) + self.lateness for t in others)

    def _late(self, row: Row) -> bool:
        """Return True if a row in time for this one may have expired.

        By `_dead`, rows of a stream that end just after this row's time expire as soon as all other
        clocks are after that time, plus the lateness.
        """
        if not (self.dynamic or self._facts(row)):
            return False
        ends = self.dynamic or any(f.end < math.inf for f in self.facts)
        return any(
            stream != row.stream
            and (ends or self.windows[stream] < math.inf)
            and all(
                clock > row.time + self.lateness
                for other, clock in enumerate(self.stream_clock)
                if other != stream
            )
            for stream in range(len(self.windows))
        )

    def _close(self, tick: list[Row]) -> list[Found]:
        if not tick:
            return []
        if self.shed_when == "after-probe":
            found: list[Found] = []
            if self.deferred:
                tick = self._filtered(tick)
                found = self._probe(tick, [h.row for h in self.held])
            self._admit(tick)
            return found
        tick = self._filtered(tick)
        before = {h.row.uid for h in self.held}
        self._admit(tick)
        old = [h.row for h in self.held if h.row.uid in before]
        if self.shed_when == "before-arrival":
            kept = {h.row.uid for h in self.held}
            tick = [u for u in tick if u.uid in kept or self._dead(u)]
        return self._probe(tick, old)

    def _probe(self, newcomers: list[Row], others: list[Row]) -> list[Found]:
        new = {u.uid for u in newcomers}
        every = [*others, *newcomers]
        lists = [[u for u in every if u.stream == s] for s in range(len(self.windows))]
        held = {h.row.uid: h for h in self.held if h.row.uid not in new}
        found = []
        for chosen, fact in combinations(self.facts, lists, self.windows):
            if not any(u.uid in new for u in chosen):
                continue
            found.append((*(u.uid for u in chosen), fact.uid))
            for u in chosen:
                if u.uid in held and self.ranker == "dgl":
                    self._learn(held[u.uid])
        return found

    # ---- memory -------------------------------------------------------------------------------

    def _admit(self, tick: list[Row]) -> None:
        if len(self.windows) == 1:
            return
        if self.ranker == "auto":
            self.auto.arrived(tick, self.arrivals, self.clock)
        for row in tick:
            if self.ranker == "auto":
                self.auto.observe(row, self.clock)
            else:
                self._observe(row)
        for row in tick:
            seq, self.arrivals = self.arrivals, self.arrivals + 1
            if self._dead(row):
                continue
            new = Held(row, seq, last=self.clock)
            self.held.append(new)
            new.partners = self.matches(row)
            new.gain = row.weight * new.partners
            new.fixed = self.ranks.get(row.uid, 0.0) + self.order_weight * seq
            new.fixed += self.floor_weight * self.floors[self.pool(row)]
            if self.ranker == "auto":
                rank = self.auto.rank(row, seq, self.clock, 0.0)
                if rank < self.edge[self.pool(row)]:
                    self.lowest[self.pool(row)][row.uid] = rank
            self._fit(self.pool(row), row)

    def resize(self, memory: int) -> None:
        """Set another memory budget."""
        self.memory = memory
        for pool in range(len(self.windows) if self.fixed_split else 1):
            self._fit(pool)

    def _fit(self, pool: int, newcomer: Row | None = None) -> None:
        while True:
            mine = [h for h in self.held if self.pool(h.row) == pool]
            if self.memory is None or len(mine) <= self.budget(pool):
                return
            overdue = [h for h in mine if self.clock >= self.until(h.row) + self.lateness]
            if overdue:
                self.held.remove(min(overdue, key=lambda h: (self.until(h.row), h.seq)))
                self.expired += 1
                continue
            if self.ranker == "auto":
                victim = self._learned_victim(pool, mine)
            else:
                victim = min(mine, key=self.rank)
                self.floors[pool] = max(self.floors[pool], float(self.rank(victim)[0]))
            self.held.remove(victim)
            why = "rejected" if victim.row is newcomer else "shed"
            self.shed.append((victim.row.uid, self.clock, why))

    def _learned_victim(self, pool: int, mine: list[Held]) -> Held:
        """Return the lowest of the candidates: the lowest eighth of rows when all were last ranked.

        Newcomers that rank as low become candidates. A row that ranks higher now is none any more.
        """
        ranks = {h.row.uid: self.auto.rank(h.row, h.seq, self.clock, 0.0) for h in mine}
        seq = {h.row.uid: h.seq for h in mine}

        def rank_all() -> dict[int, float]:
            order = sorted(ranks, key=lambda uid: (ranks[uid], seq[uid]))
            few = order[: max(len(order) // 8, 1)]
            self.edge[pool], self.left[pool] = ranks[few[-1]], len(few)
            return {uid: ranks[uid] for uid in few}

        low = {uid: rank for uid, rank in self.lowest[pool].items() if uid in ranks}
        if self.left[pool] == 0:
            low = rank_all()
        self.left[pool] -= 1
        while True:
            low = low or rank_all()
            uid = min(low, key=lambda uid: (low[uid], seq[uid]))
            if ranks[uid] <= low[uid]:
                self.lowest[pool] = low
                return next(h for h in mine if h.row.uid == uid)
            low[uid] = ranks[uid]
            if ranks[uid] > self.edge[pool]:
                del low[uid]

    def combined(self, weights: Sequence[Any]) -> Any:
        """Return the importance of a result of rows with these weights."""
        assert self.combine is not None
        return combined(weights, self.combine)

    def _overdue(self, row: Row) -> bool:
        """Return True if the row's window or its last fact has ended."""
        return not self._facts(row) or self.clock >= self.until(row)

    def pool(self, row: Row) -> int:
        return row.stream if self.fixed_split else 0

    def budget(self, pool: int) -> int:
        assert self.memory is not None
        if not self.fixed_split:
            return self.memory
        share, rest = divmod(self.memory, len(self.windows))
        return share + (pool < rest)

    # ---- ranks: section 3.2 -------------------------------------------------------------------

    def matches(self, row: Row) -> int:
        """Return mn: combinations with held rows, through facts that have not ended."""
        facts = [f for f in self.facts if f.end > self.clock]
        lists = [
            [row] if s == row.stream else [h.row for h in self.held if h.row.stream == s]
            for s in range(len(self.windows))
        ]
        return len(combinations(facts, lists, self.windows))

    def rank(self, held: Held) -> tuple[Any, ...]:
        """Return the rank of a row; the lowest is shed."""
        weight = held.row.weight
        if self.ranker == "fixed":
            return (held.fixed, held.seq)
        if self.ranker == "simpprob":
            return (weight * held.partners, weight, held.partners, held.seq)
        now = self.matches(held.row)
        if self.ranker == "dimpprob":
            return (weight * now, weight, now, held.seq)
        if self.ranker == "dgl":
            return (self._balance(held, self.clock), weight, now, held.seq)
        return (self._worth(held.row), held.seq)

    def _balance(self, held: Held, at: Time) -> float:
        """Return P of section 3.2, assuming no output since the last instant with output."""
        return max(held.gain - self.params[1] * max(at - held.last, 0), 0.0)

    def _learn(self, held: Held) -> None:
        life = max(held.row.time + self.windows[held.row.stream] - self.clock, 0)
        share = held.row.weight * life / self.params[0]
        if self.clock > held.last:
            # P' + gain: P' is the priority from the previous instant.
            held.gain = self._balance(held, self.clock - self.params[2])
            held.gain += share * self.matches(held.row)
            held.last = self.clock
        held.gain += share

    def _observe(self, row: Row) -> None:
        age = 0
        if self.halflife:
            epoch = math.floor(self.clock / self.halflife)
            self.epoch = epoch if self.epoch is None else self.epoch
            age = epoch - self.epoch
        at = row.stream, row.key
        self.counts[at] = self.counts.get(at, Fraction(0)) + Fraction(2) ** age

    def _worth(self, row: Row) -> Fraction:
        """Return the rate at which F leads results to a row, weighted by its importance."""
        worth = Fraction(0)
        for fact in self._facts(row):
            if fact.end > self.clock:
                others = [s for s in range(len(self.windows)) if s != row.stream]
                counts = [self.counts.get((s, fact.keys[s]), Fraction(0)) for s in others]
                worth += math.prod(counts, start=Fraction(1))
        return worth * Fraction(row.weight)
