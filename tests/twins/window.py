"""The slow twin of the window engine: plain lists and loops.

It follows the rules of `docs/concepts` sentence by sentence and shares no code with the
engine, so that a property test which holds the two together checks both. Every choice is a
`min` over a list, and every join is a double loop, so inputs must be small. `rankers` has the
policies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from twins.rankers import ByKey, Ranker
    from twins.slices import Slices

LEFT, RIGHT = 0, 1
SHED_WHEN = ("after-probe", "before-probe", "before-arrival")

Time = int | float
Steps = Sequence[tuple[Time, Any]]
Windows = tuple[Time | Steps, Time | Steps]
Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Row:
    """One input row; `row_hash` is a hash of its content, `uid` is unique over both sides.

    If a condition with a band decides which rows join, `key` is the hash of key and bucket, `near`
    has the hashes of all buckets in which the row may have partners, and `on` is the key alone.
    """

    side: int
    key: int
    time: Time
    row_hash: int
    uid: int
    size: int = 1
    importance: float = 1.0
    near: tuple[int, ...] | None = None
    on: int = 0

    @property
    def credited(self) -> tuple[int, ...]:
        """The keys for which the row counts as an arrival."""
        return (self.key,) if self.near is None else self.near


#: Whether a left and a right row join, whatever their times.
Meets = Callable[[Row, Row], bool]


def same_key(left: Row, right: Row) -> bool:
    """Return True if the keys of two rows are equal."""
    return left.key == right.key


class Held(NamedTuple):
    """A held row, with its sequence number."""

    row: Row
    seq: int


class Shed(NamedTuple):
    """A row that was shed or rejected: at which time of the clock, and why."""

    uid: int
    when: Time
    why: str


def tick_order(row: Row) -> tuple[Time, int, int, int, int]:
    """Return a sort key: time first, then content, so that the order of arrival has no effect."""
    return (row.time, row.side, row.key, row.row_hash, row.uid)


def in_force(value: Any, time: Time) -> Any:
    """Return the value of a setting at a time; a schedule is a list of (start, value)."""
    if not isinstance(value, Sequence):
        return value
    found = value[0][1]
    for start, later in value:
        if start <= time:
            found = later
    return found


def in_windows(left: Time, right: Time, windows: Windows, closed: bool = False) -> bool:
    """Return True if a left and a right row of these times join; a closed window has its end."""
    end = left + in_force(windows[LEFT], left)
    start = left - in_force(windows[RIGHT], right)
    return bool(start <= right <= end if closed else start < right < end)


def joined(
    lefts: Sequence[Row],
    rights: Sequence[Row],
    windows: Windows,
    closed: bool = False,
    meets: Meets = same_key,
) -> Pairs:
    """Return the pairs of a left row of one list and a right row of the other that join."""
    return [
        (x.uid, y.uid)
        for x in lefts
        for y in rights
        if x.side == LEFT and y.side == RIGHT and meets(x, y)
        if in_windows(x.time, y.time, windows, closed)
    ]


def exact(
    rows: Sequence[Row], windows: Windows, closed: bool = False, meets: Meets = same_key
) -> Counter[tuple[int, int]]:
    """Return the multiset of all pairs, which an unlimited memory finds."""
    return Counter(joined(rows, rows, windows, closed, meets))


class NaiveJoin:
    """The bounded window join of two streams.

    `windows` has the left's window and the right's. `memory` counts rows, or sizes if `in_bytes`;
    None keeps everything. `split` is the left's share of the memory; None is one shared pool.
    Windows and memory may be schedules, lists of (start, value). `times` are all times that rows
    may have. Without them, late rows are not counted.
    """

    def __init__(
        self,
        *,
        windows: Windows,
        ranker: Ranker,
        memory: int | Steps | None = None,
        in_bytes: bool = False,
        split: float | None = None,
        shed_when: str = "after-probe",
        lateness: Time = 0,
        closed: bool = False,
        times: Sequence[Time] = (),
        meets: Meets = same_key,
    ) -> None:
        if shed_when not in SHED_WHEN:
            raise ValueError(f"shed_when must be one of {SHED_WHEN}, not {shed_when!r}")
        self.windows, self.ranker, self.in_bytes = windows, ranker, in_bytes
        ranker.join = self
        self.split, self.shed_when, self.lateness = split, shed_when, lateness
        self.closed, self.times, self.meets = closed, times, meets
        self.seen: list[Row] = []
        self.late = 0  # rows of which a possible partner may have expired
        self.missed = 0  # rows of which an actual partner has expired
        steps = memory if isinstance(memory, Sequence) else [(0, memory)]
        self.budgets = self._budgets(steps[0][1])
        self.changes = list(steps[1:])  # changes of the memory that are still to come
        self.added: Row | None = None  # the newcomer that is being added
        self.clock: Time | None = None  # the largest time seen; the open tick's, if one is open
        self.stream_clock: list[Time] = [
            -math.inf,
            -math.inf,
        ]  # the largest time seen of each stream
        self.held: list[Held] = []
        self.open: list[Row] = []
        self.shed: list[Shed] = []
        self.floors = [0.0, 0.0]  # one a pool
        self.arrivals = 0
        self.queue: Slices | None = None  # chooses victims; without it the lowest rank is shed

    def _budgets(self, memory: int | None) -> list[int] | None:
        """Return what each pool may hold; None if there is no limit."""
        if memory is not None and memory < (1 if self.split is None else 2):
            raise ValueError(f"memory must be at least 1 for every pool, not {memory!r}")
        if memory is None or self.split is None:
            return None if memory is None else [memory]
        left = min(max(math.floor(memory * self.split), 1), memory - 1)
        return [left, memory - left]

    def feed(self, rows: Sequence[Row], clocks: Sequence[Time | None] = (None, None)) -> Pairs:
        """Process rows in any order, and return new pairs; the last tick stays open."""
        pairs: Pairs = []
        for time, group in groupby(sorted(rows, key=tick_order), key=lambda row: row.time):
            tick = list(group)
            late = self.clock is not None and time < self.clock
            self._count_late(tick)
            pairs += self._advance([(row.side, time) for row in tick])
            assert self.clock is not None
            self.ranker.begin(self.clock)
            if self.queue is not None:
                self.queue.end_tick()
            if self.shed_when == "after-probe":
                pairs += self._probe(tick, [h.row for h in self.held] + self.open)
            if not late:
                self.open += tick
            elif self.shed_when == "after-probe":
                self._admit(tick)
            else:
                pairs += self._admit_then_probe(tick)
        return pairs + self._advance([(s, t) for s, t in enumerate(clocks) if t is not None])

    def _count_late(self, tick: list[Row]) -> None:
        """Count the rows of a tick of which partners have expired, or may have."""
        for row in tick:
            other, clock = 1 - row.side, self.stream_clock[row.side]
            self.late += any(
                self._meets(row, other, time) and self._past(other, time, clock)
                for time in self.times
            )
            self.missed += any(
                p.side == other and self._meets(row, other, p.time) and self._dead(p)
                for p in self.seen
            )
        self.seen += tick

    def _meets(self, row: Row, other: int, time: Time) -> bool:
        """Return True if a row joins one of the other side and this time."""
        left, right = (time, row.time) if other == LEFT else (row.time, time)
        return in_windows(left, right, self.windows, self.closed)

    def finish(self) -> Pairs:
        """Close the open tick after the last input."""
        tick, self.open = sorted(self.open, key=tick_order), []
        if self.shed_when == "after-probe":  # it probed on arrival
            self._admit(tick)
            return []
        return self._admit_then_probe(tick)

    def _advance(self, stream_clock: Sequence[tuple[int, Time]]) -> Pairs:
        """Advance the stream clocks: close the open tick if they pass it, then expire rows."""
        pairs: Pairs = []
        for side, time in stream_clock:
            if self.clock is None or time > self.clock:
                pairs += self.finish()
                self.clock = time
            self.stream_clock[side] = max(self.stream_clock[side], time)
        self.held = [h for h in self.held if not self._dead(h.row)]
        while self.changes and self.clock is not None and self.changes[0][0] < self.clock:
            self._resize()
        return pairs

    def _dead(self, row: Row) -> bool:
        """Return True if no later row of an ordered other stream can join this one."""
        return self._past(row.side, row.time, self.stream_clock[1 - row.side])

    def _overdue(self, row: Row) -> bool:
        """Return True if the row would be dead if both streams had reached the clock."""
        assert self.clock is not None
        return self._past(row.side, row.time, self.clock)

    def _past(self, side: int, time: Time, clock: Time) -> bool:
        """Return True if a row of this side and time has left its window by a clock."""
        window = in_force(self.windows[side], time)
        if side == LEFT:
            end = time + window + self.lateness
            return bool(clock > end if self.closed else clock >= end)
        start = clock - window - self.lateness
        return bool(start > time if self.closed else start >= time)

    def _probe(self, newcomers: list[Row], others: list[Row]) -> Pairs:
        """Join newcomers with others, and newcomers of the two sides with each other."""
        if not newcomers or self.clock is None:
            return []
        settings = self.windows, self.closed, self.meets
        pairs = (
            joined(newcomers, newcomers, *settings)
            + joined(newcomers, others, *settings)
            + joined(others, newcomers, *settings)
        )
        held = {h.row.uid: h for h in self.held}
        new = {row.uid for row in newcomers}
        keys = {row.uid: row.key for row in [*newcomers, *others]}
        for pair in pairs:
            self.ranker.paired({keys[uid] for uid in pair})
            for uid in pair:
                if uid in held and uid not in new:
                    if self.queue is not None and self.ranker.lowered_by_results:
                        self.queue.look_at(held[uid])
                    self.ranker.matched(held[uid].row, self.clock)
        return pairs

    def _admit_then_probe(self, newcomers: list[Row]) -> Pairs:
        """Admit newcomers, then probe: all of them, or with `before-arrival` those not shed."""
        before = {h.row.uid for h in self.held}
        self._admit(newcomers)
        old = [h.row for h in self.held if h.row.uid in before]
        if self.shed_when == "before-arrival":
            kept = {h.row.uid for h in self.held}
            newcomers = [row for row in newcomers if row.uid in kept or self._dead(row)]
        return self._probe(newcomers, old)

    def _admit(self, newcomers: list[Row]) -> None:
        """Admit a tick's newcomers one by one, in tick order."""
        if not newcomers:
            return
        assert self.clock is not None
        self.ranker.arrived(newcomers, self.arrivals, self.clock)
        for row in newcomers:
            self.ranker.observe(row, self.clock)
        while self.changes and self.changes[0][0] <= self.clock:
            self._resize()
        for row in newcomers:
            seq, self.arrivals = self.arrivals, self.arrivals + 1
            if not self._dead(row):
                self._add(row, seq)
        self.ranker.settle({h.row.key for h in self.held})

    def _resize(self) -> None:
        """Apply the next change of the memory, and shed rows that no longer fit."""
        self.budgets = self._budgets(self.changes.pop(0)[1])
        for pool in range(len(self.budgets or ())):
            self._shed(pool)

    def _add(self, row: Row, seq: int) -> None:
        """Add a newcomer, and shed rows that no longer fit, perhaps the newcomer itself."""
        assert self.clock is not None
        now, pool = self.clock, self.pool_of(row)
        if self.budgets is not None and self.size(row) > self.budgets[pool]:
            why = "overdue" if self._overdue(row) else "rejected"
            self.shed.append(Shed(row.uid, now, why))
            return
        self.held.append(Held(row, seq))
        self.ranker.admitted(row, seq, self.floors[pool])
        self.added = row
        self._shed(pool)
        self.added = None
        if self.queue is not None and Held(row, seq) in self.held:
            self.queue.push(Held(row, seq))

    def _shed(self, pool: int) -> None:
        """While a pool is over its budget, remove a row.

        The overdue row whose window ended first is removed; it counts as expired. If no row is
        overdue, the row with the lowest (rank, seq) is shed.
        """
        while self.budgets is not None and self.used(pool) > self.budgets[pool]:
            assert self.clock is not None
            now, floor = self.clock, self.floors[pool]
            candidates = [h for h in self.held if self.pool_of(h.row) == pool]
            overdue = [h for h in candidates if self._overdue(h.row)]
            if overdue:
                first = min(overdue, key=lambda h: (self._end(h.row), h.seq))
                self.held.remove(first)
                self.shed.append(Shed(first.row.uid, now, "overdue"))
                continue
            updated = self.ranker.choosing(pool, [h.row for h in candidates], now)
            if self.queue is not None:
                if updated:
                    self.queue.rank_again()
                known = [h for h in candidates if h.row is self.added]
                ranked = [(self.ranker.rank(h.row, h.seq, now, floor), h.seq, h) for h in known]
                rank, held = self.queue.choose(pool)
                ranked.append((rank, held.seq, held))
            else:
                ranked = [
                    (self.ranker.rank(h.row, h.seq, now, floor), h.seq, h) for h in candidates
                ]
            rank, _, victim = min(ranked, key=lambda entry: entry[:2])
            self.held.remove(victim)
            self.ranker.shed(victim.row, now)
            self.floors[pool] = max(floor, rank)
            why = "rejected" if victim.row is self.added else "shed"
            self.shed.append(Shed(victim.row.uid, now, why))

    def _end(self, row: Row) -> Time:
        """Return the time at which a row's window ends."""
        end: Time = row.time + in_force(self.windows[row.side], row.time)
        return end

    def are_partners(self, one: Row, other: Row) -> bool:
        """Return True if rows of different sides join, whatever their times."""
        if one.side == other.side:
            return False
        return self.meets(one, other) if one.side == LEFT else self.meets(other, one)

    def pool_of(self, row: Row) -> int:
        """Return the pool of a row: one for each side if the memory is split, otherwise pool 0."""
        return 0 if self.split is None else row.side

    def size(self, row: Row) -> int:
        """Return how much of the budget a row takes."""
        return row.size if self.in_bytes else 1

    def used(self, pool: int) -> int:
        """Return how much of a pool's budget is in use."""
        return sum(self.size(h.row) for h in self.held if self.pool_of(h.row) == pool)


class NaiveQueue:
    """The slow CPU (Das et al., 2.3): a queue of `size` rows before a join that takes `step` a row.

    `counts` has the frequencies of keys. An `integrated` queue first counts partners in memory.
    """

    def __init__(
        self, join: NaiveJoin, *, step: Any, size: int, integrated: bool, counts: ByKey
    ) -> None:
        self.join, self.step, self.size = join, step, size
        self.integrated, self.counts = integrated, counts
        self.clock: Time | None = None
        self.free: Any = -math.inf  # when the join is done with the row it took last
        self.open: list[Row] = []
        self.waiting: list[tuple[Time, Row]] = []  # since when each row waits, in order
        self.taken: list[Row] = []
        self.shed: list[Shed] = []

    def feed(self, rows: Sequence[Row], clocks: Sequence[Time | None] = (None, None)) -> Pairs:
        """Process rows in any order, and return new pairs; the last tick stays open."""
        pairs: Pairs = []
        for row in sorted(rows, key=tick_order):
            pairs += self._advance(row.time)
            self.open.append(row)
        for clock in clocks:
            pairs += self._advance(clock) if clock is not None else []
        first = [row.time for _, row in self.waiting] + [row.time for row in self.open]
        told = [None if c is None or self.integrated else min([c, *first]) for c in clocks]
        return pairs + self._hand_over(told)

    def finish(self) -> Pairs:
        """Close the open tick after the last input, and take all waiting rows."""
        pairs = self._close()
        self.taken += [row for _, row in self.waiting]
        self.waiting = []
        return pairs + self._hand_over() + self.join.finish()

    def _advance(self, time: Time) -> Pairs:
        """If time advances, close the open tick, and take the rows for which there is time."""
        if self.clock is not None and time <= self.clock:
            return []
        pairs = self._close()
        self.clock = time
        self._take_until(time, inclusive=False)
        return pairs

    def _take_until(self, time: Time, inclusive: bool) -> None:
        """Take the first waiting rows, as long as the join is free before (or at) a time."""
        while self.waiting:
            since, row = self.waiting[0]
            start = max(since, self.free)
            if start > time or (start == time and not inclusive):
                break
            self.free = start + self.step
            self.taken.append(row)
            del self.waiting[0]

    def _hand_over(self, clocks: Sequence[Time | None] = (None, None)) -> Pairs:
        taken, self.taken = self.taken, []
        return self.join.feed(taken, clocks)

    def _close(self) -> Pairs:
        """Add the open tick, then drop rows that do not fit, the least promising ones first."""
        if not self.open:
            return []
        pairs: Pairs = []
        assert self.clock is not None
        for row in sorted(self.open, key=tick_order):
            self.counts.observe(row, self.clock)
            self.waiting.append((self.clock, row))
        self.open = []
        self._take_until(self.clock, inclusive=True)
        if len(self.waiting) > self.size and self.integrated:
            pairs = self._hand_over()
        while len(self.waiting) > self.size:
            worst = min(self.waiting, key=lambda entry: self._promise(entry[1]))
            self.waiting.remove(worst)
            self.shed.append(Shed(worst[1].uid, self.clock, "queue full"))
        self.counts.settle({row.key for _, row in self.waiting})
        return pairs

    def _promise(self, row: Row) -> tuple[int, float]:
        partners = [h for h in self.join.held if self.join.are_partners(h.row, row)]
        assert self.clock is not None
        rate = self.counts.rank(row, 0, self.clock, 0.0)
        return (len(partners) if self.integrated else 0, rate)


def check_bound(join: NaiveJoin) -> None:
    """Fail if a pool holds more than its budget."""
    for pool, budget in enumerate(join.budgets or []):
        used = join.used(pool)
        assert used <= budget, f"pool {pool} holds {used}, its budget is {budget}"
