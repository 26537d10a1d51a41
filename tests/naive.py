"""The obvious slow twin of the window engine: lists, loops, and nothing to be clever about.

It follows the rules of `docs/how_it_works.md` sentence by sentence and shares no code with the
engine, so that a property test which holds the two together checks both. Every choice is a
`min` over a list and every join a double loop: keep inputs small.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any, NamedTuple

import numpy as np

LEFT, RIGHT = 0, 1
MOMENTS = ("probe-first", "evict-first", "shed-first")

Time = int | float
Steps = Sequence[tuple[Time, Any]]
Windows = tuple[Time | Steps, Time | Steps]
Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Row:
    """One input tuple; `tie` is its content hash, `uid` is unique over both sides."""

    side: int
    key: int
    time: Time
    tie: int
    uid: int
    size: int = 1
    importance: float = 1.0


class Held(NamedTuple):
    """A tuple in memory, with its arrival sequence number."""

    row: Row
    seq: int


class Shed(NamedTuple):
    """A tuple that left early: when by the clock, and "evicted" or "rejected"."""

    uid: int
    when: Time
    why: str


def tick_order(row: Row) -> tuple[Time, int, int, int, int]:
    """Time first; inside a tick by content, so that arrival order plays no part."""
    return (row.time, row.side, row.key, row.tie, row.uid)


def in_force(value: Any, time: Time) -> Any:
    """Give what a setting is at a time; one that changes is a list of (from then on, value)."""
    if not isinstance(value, Sequence):
        return value
    found = value[0][1]
    for start, later in value:
        if start <= time:
            found = later
    return found


def joined(lefts: Sequence[Row], rights: Sequence[Row], windows: Windows) -> Pairs:
    """Pairs of a left row of the one list and a right row of the other that join."""
    return [
        (x.uid, y.uid)
        for x in lefts
        for y in rights
        if x.side == LEFT and y.side == RIGHT and x.key == y.key
        if y.time < x.time + in_force(windows[LEFT], x.time)
        if y.time > x.time - in_force(windows[RIGHT], y.time)
    ]


def exact(rows: Sequence[Row], windows: Windows) -> Counter[tuple[int, int]]:
    """Give the multiset of all pairs, as an unlimited memory finds them."""
    return Counter(joined(rows, rows, windows))


class Ranker:
    """What a policy is to the twin. `floor` is the largest rank that ever left the pool, or 0."""

    join: NaiveJoin

    def begin(self, clock: Time) -> None:
        """See a tick begin."""

    def arrived(self, rows: Sequence[Row], seq: int, clock: Time) -> None:
        """See the newcomers of a tick, the first of which has this number, before each is seen."""

    def observe(self, row: Row, clock: Time) -> None:
        """See a newcomer; every newcomer of a tick is seen before the first is admitted."""

    def matched(self, row: Row, clock: Time) -> None:
        """See a held row being joined by a newcomer."""

    def paired(self, key: int) -> None:
        """See a result of a key."""

    def evicted(self, row: Row, clock: Time) -> None:
        """See a held row, or a newcomer, leave before its time."""

    def admitted(self, row: Row, seq: int, floor: float) -> None:
        """Take note that a row was (provisionally) added."""

    def rank(self, row: Row, seq: int, now: Time, floor: float) -> float:
        """Say what a candidate is worth at the moment of choosing."""
        raise NotImplementedError

    def settle(self, held_keys: Collection[int]) -> None:
        """Tidy up after a tick's admissions."""


class Fixed(Ranker):
    """A rank per uid (0 if not given), fixed at admission, on top of the floor if asked."""

    def __init__(self, ranks: Mapping[int, float], use_floor: bool = False) -> None:
        self.given, self.use_floor = ranks, use_floor
        self.fixed: dict[int, float] = {}

    def admitted(self, row: Row, seq: int, floor: float) -> None:
        """Fix the rank."""
        self.fixed[row.uid] = self.given.get(row.uid, 0.0) + (floor if self.use_floor else 0.0)

    def rank(self, row: Row, seq: int, now: Time, floor: float) -> float:
        """Give the rank fixed at admission."""
        return self.fixed[row.uid]


class ByKey(Ranker):
    """PROB (Das et al., 4.2.1): how often the key came on the other side.

    `counts` are (left's, right's) by key. Learned ones start from there, and instead of fading
    the old counts, an arrival in epoch e counts 2^(e - first epoch): the order is the same and
    no division blurs it. Once more than `cap` known keys have no held tuple, half of that stay.
    """

    def __init__(
        self,
        counts: tuple[Mapping[int, float], Mapping[int, float]] = ({}, {}),
        learned: bool = True,
        halflife: Time | None = None,
        cap: int | None = None,
    ) -> None:
        self.counts = [dict(counts[LEFT]), dict(counts[RIGHT])]
        self.learned, self.halflife, self.cap = learned, halflife, cap
        self.first_epoch: int | None = None

    def _epoch(self, clock: Time) -> int:
        if self.halflife is None:
            return 0
        return int(clock // self.halflife)

    def observe(self, row: Row, clock: Time) -> None:
        """Count the key on the row's own side."""
        if not self.learned:
            return
        epoch = self._epoch(clock)
        if self.first_epoch is None:
            self.first_epoch = epoch
        own = self.counts[row.side]
        own[row.key] = own.get(row.key, 0.0) + 2.0 ** (epoch - self.first_epoch)

    def rank(self, row: Row, seq: int, now: Time, floor: float) -> float:
        """Give the count of the key on the other side."""
        return self.counts[1 - row.side].get(row.key, 0.0)

    def settle(self, held_keys: Collection[int]) -> None:
        """Forget the rarest keys that nothing in memory needs, once they are too many."""
        if not self.learned or self.cap is None:
            return
        left, right = self.counts
        idle = [key for key in left.keys() | right.keys() if key not in held_keys]
        if len(idle) > self.cap:
            idle.sort(key=lambda k: (max(left.get(k, 0.0), right.get(k, 0.0)), k), reverse=True)
            for key in idle[self.cap // 2 :]:
                left.pop(key, None)
                right.pop(key, None)


class Life(ByKey):
    """LIFE (Das et al., 4.2.2): remaining life times PROB's count; `lateness` adds no life.

    A count of zero weighs a life by next to nothing, so that of such tuples the older leaves.
    """

    def __init__(self, windows: Windows, **settings: Any) -> None:
        super().__init__(**settings)
        self.windows = windows

    def rank(self, row: Row, seq: int, now: Time, floor: float) -> float:
        """Give life times count; where life never ends, the count alone."""
        count = super().rank(row, seq, now, floor)
        window = in_force(self.windows[row.side], row.time)
        return count if math.isinf(window) else (row.time + window - now) * max(count, 2.0**-200)


class Size(ByKey):
    """SIZE (Kulkarni, Ravishankar): how many results the key has produced."""

    def observe(self, row: Row, clock: Time) -> None:
        """Arrivals do not count."""

    def paired(self, key: int) -> None:
        """Count a result, for both sides."""
        for counts in self.counts:
            counts[key] = counts.get(key, 0.0) + 1.0


class Scored(ByKey):
    """A rank by a formula of what is known of a tuple: `gain` and `last` by uid, and more."""

    def __init__(self, formula: str, windows: Windows, given: Mapping[str, float], **kw: Any):
        super().__init__(**kw)
        self.formula, self.windows, self.given = formula, windows, given
        self.gain: dict[int, float] = {}
        self.last: dict[int, Time] = {}
        self.stay = given.get("stay", 0.0)
        self.curves: tuple[Sequence[float], Sequence[float]] = ((), ())

    def partners(self, row: Row) -> int:
        """How many tuples of the row's key the other side holds."""
        return sum(h.row.key == row.key and h.row.side != row.side for h in self.join.held)

    def rate(self, row: Row) -> float:
        """The row's count on the other side, as fading counts would have it."""
        count = self.counts[1 - row.side].get(row.key, 0.0)
        if self.first_epoch is None or self.join.clock is None:
            return count
        return count / 2.0 ** (self._epoch(self.join.clock) - self.first_epoch)

    def life(self, row: Row, now: Time) -> float:
        """The time until the row leaves its window."""
        return float(row.time + in_force(self.windows[row.side], row.time) - now)

    def admitted(self, row: Row, seq: int, floor: float) -> None:
        """Begin with the partners that are there."""
        assert self.join.clock is not None
        n, imp = self.partners(row), row.importance
        self.last[row.uid] = self.join.clock
        if self.formula == "ijoin":
            self.gain[row.uid] = float(n)
        elif self.formula in ("simpprob", "dgl"):
            self.gain[row.uid] = imp * (n + 2.0**-40)
        elif self.formula == "greedy-dual":
            self.gain[row.uid] = floor + imp * self.rate(row)
        else:
            self.gain[row.uid] = 0.0

    def matched(self, row: Row, clock: Time) -> None:
        """Learn from a result."""
        gain, since = self.gain[row.uid], float(clock - self.last[row.uid])
        if self.formula == "ijoin":
            self.gain[row.uid] = gain * math.exp(-self.given["decay"] * since) + 1.0
            self.last[row.uid] = clock
        elif self.formula == "dgl" and since > 0:
            lost = max(gain - self.given["beta"] * since, 0.0)
            won = row.importance * self.partners(row) * self.life(row, clock)
            self.gain[row.uid] = lost + max(won / self.given["alpha"], 0.0)
            self.last[row.uid] = clock
        elif self.formula == "greedy-dual":
            floor = self.join.floors[self.join.pool_of(row)]
            self.gain[row.uid] = floor + row.importance * self.rate(row)

    def evicted(self, row: Row, clock: Time) -> None:
        """Follow how long tuples stay."""
        self.stay += (float(clock - row.time) - self.stay) / 256.0

    def rank(self, row: Row, seq: int, now: Time, floor: float) -> float:
        """Apply the formula."""
        imp, gain, age = row.importance, self.gain[row.uid], float(now - row.time)
        since = float(now - self.last[row.uid])
        window = in_force(self.windows[row.side], row.time)
        if self.formula == "rate":
            return imp * self.rate(row)
        if self.formula == "life":
            life = 1.0 if math.isinf(window) else self.life(row, now)
            return imp * max(self.rate(row), 2.0**-200) * life
        if self.formula == "heeb":
            stay = self.given["alpha"] or max(self.stay, 2.0**-40)
            part = 1.0
            if not math.isinf(window):
                part = -math.expm1(-max(self.life(row, now), 0.0) / stay)
            return imp * self.rate(row) * part
        if self.formula == "dimpprob":
            # The one that is being added is not there yet.
            added, there = self.join.added, self.partners(row)
            if added is not None and added.key == row.key and added.side != row.side:
                there -= 1
            return imp * (there + 2.0**-40)
        if self.formula == "dgl":
            return max(gain - self.given["beta"] * since, 0.0)
        if self.formula == "age":
            curve = self.curves[row.side]
            step: float = min(max(age * len(curve) / window, 0.0), len(curve) - 1.0)
            here, after = curve[int(step)], curve[min(int(step) + 1, len(curve) - 1)]
            return imp * (here + (step - int(step)) * (after - here))
        if self.formula == "ijoin":
            if age < self.given["tau"]:
                return 1e300
            if age <= 0:
                return self.given["p_init"]
            worth = imp * gain * math.exp(-self.given["decay"] * since) / age
            if since >= self.given["delta"]:
                worth -= self.given["penalty"] * since
            return worth
        return gain


class Auto(ByKey):
    """AUTO: every newcomer leaves a ghost, and ghosts that could have joined say what pays.

    `cells` are what was expected and found, by side, age, level and trend; see the kernel's
    `rates` and `ghosts`, whose numbers these are.
    """

    STEPS, LEVELS, TRENDS, MARKS = 16, 12, 10, 8

    def __init__(self, windows: Windows, **settings: Any) -> None:
        super().__init__(**settings)
        self.windows = windows
        self.ghosts: list[Row] = []
        self.found: Counter[int] = Counter()  # by uid
        self.trails: dict[int, list[tuple[int, int]]] = {}  # by uid: level and results at marks
        self.recent: dict[tuple[int, int], tuple[Time, float]] = {}
        shape = (self.STEPS, self.LEVELS, self.TRENDS)
        self.cells = np.zeros((2, 2, *shape))
        self.worth = np.zeros((2, *shape))
        self.returns = np.zeros((2, 11, self.MARKS, self.LEVELS))
        self.elapsed, self.last = 0.0, 0.0
        self.census_at, self.fit_at = 0, 0

    @property
    def span(self) -> float:
        """The longer window, or all the time so far."""
        longest = [
            max(value for _, value in w) if isinstance(w, Sequence) else w for w in self.windows
        ]
        ends = [float(w) for w in longest if not math.isinf(w)]
        return max(ends) if ends else max(self.elapsed, 1.0)

    def place(self, row: Row, age: float) -> tuple[float, float, float, float]:
        """What is expected in a unit of time; and where in the table a tuple of an age is."""
        assert self.join.clock is not None
        side, key, window = row.side, row.key, in_force(self.windows[row.side], row.time)
        count = self.counts[1 - side].get(key, 0.0)
        if self.first_epoch is not None:
            count /= 2.0 ** (self._epoch(self.join.clock) - self.first_epoch)
        time, lately = self.recent.get((1 - side, key), (self.join.clock, 0.0))
        half = 0.125 * self.span
        lately *= math.exp2(-float(self.join.clock - time) / half) * (math.log(2.0) / half)
        expected = (count + 0.5) / (self.elapsed + 0.125 * self.span)
        step = 0.0
        if not math.isinf(window):
            step = min(max(age * self.STEPS / window, 0.0), self.STEPS - 1.0)
        level = min(max(math.log2(expected * self.span) + 7.0, 0.0), self.LEVELS - 1.0)
        trend = math.log2(lately / expected + 2.0**-20) + 3.0
        return expected, step, level, min(max(trend, 0.0), self.TRENDS - 1.0)

    def count(self, what: int, ghost: Row, age: float, amount: float) -> None:
        """Count for the four cells around, the nearer ones more."""
        expected, step, level, trend = self.place(ghost, age)
        i, j = int(level), int(trend)
        for level_at, a in ((i, 1 - (level - i)), (i + 1, level - i)):
            for trend_at, b in ((j, 1 - (trend - j)), (j + 1, trend - j)):
                if a * b > 0:
                    part = a * b * (amount * expected if what == 0 else amount)
                    self.cells[ghost.side, what, int(step), level_at, trend_at] += part

    def arrived(self, rows: Sequence[Row], seq: int, clock: Time) -> None:
        """Have the ghosts that a newcomer would join count a result; then leave new ones."""
        for row in rows:
            for ghost in self.ghosts:
                pair = ([ghost], [row]) if ghost.side == LEFT else ([row], [ghost])
                if ghost.side != row.side and joined(*pair, self.windows):
                    self.count(1, ghost, float(clock - ghost.time), 1.0)
                    self.found[ghost.uid] += 1
        self.ghosts += [row for row in rows if not self.join._overdue(row)]

    def observe(self, row: Row, clock: Time) -> None:
        """Count the key, and count it as a recent one."""
        super().observe(row, clock)
        time, count = self.recent.get((row.side, row.key), (row.time, 0.0))
        if row.time >= time:
            fade = math.exp2(-float(row.time - time) / (0.125 * self.span))
            self.recent[row.side, row.key] = row.time, 1.0 + count * fade

    def settle(self, held_keys: Collection[int]) -> None:
        """Forget of a key all or nothing."""
        super().settle(held_keys)
        known = self.counts[LEFT].keys() | self.counts[RIGHT].keys()
        self.recent = {at: value for at, value in self.recent.items() if at[1] in known}

    def begin(self, clock: Time) -> None:
        """Now and then, count what was expected since the last time, and fit."""
        seq = self.join.arrivals
        since = float(clock) - self.last if self.census_at else 0.0
        if seq - self.census_at < 64 or (self.census_at and since * 32 < self.span):
            return
        self.census_at, self.last = seq, float(clock)
        self.cells *= math.exp2(-since / (8.0 * self.span))
        self.returns *= math.exp2(-since / (8.0 * self.span))
        if self.halflife is not None:
            halved = clock // self.halflife - (float(clock) - since) // float(self.halflife)
            self.elapsed /= 2.0**halved
        self.elapsed += since
        for ghost in self.ghosts:
            if self.join._overdue(ghost):
                self.sum_up(ghost)
        self.ghosts = [row for row in self.ghosts if not self.join._overdue(row)]
        for ghost in self.ghosts:
            age = float(clock - ghost.time)
            self.count(0, ghost, age - 0.5 * min(since, age), min(since, age))
            trail = self.trails.setdefault(ghost.uid, [])
            _, step, where, _ = self.place(ghost, age)
            while len(trail) <= int(step * self.MARKS / self.STEPS):
                trail.append((int(where + 0.5), self.found[ghost.uid]))
        if seq - self.fit_at >= min(512, 64 + self.fit_at // 8):
            self.fit_at = seq
            for side in (LEFT, RIGHT):
                self.worth[side] = np.log2(self.best(self.returns[side], *self.cells[side]))

    def sum_up(self, ghost: Row) -> None:
        """At every mark: results to the end; and if dropped after 1, 2 or 4 without having risen.

        Of such trials, the number of those that rose, their results, and those of the others.
        """
        trail = self.trails.get(ghost.uid, [])
        for mark, (level, found) in enumerate(trail):
            after = self.found[ghost.uid] - found
            self.returns[ghost.side, :2, mark, level] += 1.0, after
            for number, end in enumerate((mark + 1, mark + 2, mark + 4)):
                if end < len(trail):
                    rose = trail[end][0] > level
                    tried = (1.0, after, 0.0) if rose else (0.0, 0.0, trail[end][1] - found)
                    self.returns[ghost.side, 2 + 3 * number : 5 + 3 * number, mark, level] += tried

    def best(self, returns: Any, expected: Any, found: Any) -> Any:
        """A factor for each step of each feature, cells of their own; and the best way on."""
        scale = (found.sum() + 1.0) / (expected.sum() + 1.0)
        shapes = [(-1, 1, 1), (1, -1, 1), (1, 1, -1)]
        factors = [np.ones(n).reshape(s) for n, s in zip(expected.shape, shapes, strict=True)]
        for _ in range(3):
            for axis in range(3):
                others = tuple(a for a in range(3) if a != axis)
                rest = scale * math.prod(factors[a] for a in others)
                hoped = (expected * rest).sum(axis=others, keepdims=True)
                had = found.sum(axis=others, keepdims=True)
                factors[axis] = (had + 8.0) / (hoped + 8.0)
        fit = scale * math.prod(factors)
        earned = fit * (found + 32.0) / (expected * fit + 32.0)
        usual = np.average(earned, axis=2, weights=expected + 2.0**-40)[:, :, np.newaxis]
        best, steady = np.zeros_like(earned), np.zeros_like(usual)
        for i in range(self.STEPS):
            for at in range(i, self.STEPS):
                path = np.array([0.7 ** (n - i) for n in range(i, at + 1)])[:, None, None]
                ahead = usual[i : at + 1] + path * (earned - usual)[i : at + 1]
                best[i] = np.maximum(best[i], ahead.mean(axis=0))
                steady[i] = np.maximum(steady[i], usual[i : at + 1].mean(axis=0))
            mark = i * self.MARKS // self.STEPS
            for level in range(self.LEVELS):
                ghosts, results, *tried = returns[:, mark, level]
                left = self.MARKS - mark
                plans = [(results, ghosts * left)]
                for number, length in enumerate((1, 2, 4)):
                    if length < left:
                        rose, of_risen, of_others = tried[3 * number : 3 * number + 3]
                        time = ghosts * length + rose * (left - length)
                        plans.append((of_risen + of_others, time))
                usually = steady[i, level, 0] * 2.0 ** (level - 7) / self.MARKS
                rates = [(r / usually + 8.0 * left) / (t + 8.0 * left) for r, t in plans]
                best[i, level] *= max(*rates, 1.0)
        return best

    def rank(self, row: Row, seq: int, now: Time, floor: float) -> float:
        """The logarithm of what is expected, corrected by the table around it."""
        expected, step, level, trend = self.place(row, float(now - row.time))
        low = int(step), int(level), int(trend)
        corrected = 0.0
        for corner in product((0, 1), repeat=3):
            part = 1.0
            at = []
            for first, over, where in zip(low, corner, (step, level, trend), strict=True):
                part *= where - first if over else 1.0 - (where - first)
                at.append(first + over)
            if part > 0:
                corrected += part * self.worth[(row.side, *at)]
        return math.log2(max(row.importance, 2.0**-200)) + math.log2(expected) + corrected


class NaiveJoin:
    """The bounded window join of two streams, as slow and plain as it can be.

    `windows` are (left's, right's), `memory` counts tuples or, `in_bytes`, sizes (None keeps
    everything), `split` is the left's share of it (None: one shared pool). Windows and memory may
    be lists of (from this time on, value).
    """

    def __init__(
        self,
        *,
        windows: Windows,
        ranker: Ranker,
        memory: int | Steps | None = None,
        in_bytes: bool = False,
        split: float | None = None,
        moment: str = "probe-first",
        lateness: Time = 0,
    ) -> None:
        if moment not in MOMENTS:
            raise ValueError(f"moment must be one of {MOMENTS}, not {moment!r}")
        self.windows, self.ranker, self.in_bytes = windows, ranker, in_bytes
        ranker.join = self
        self.split, self.moment, self.lateness = split, moment, lateness
        steps = memory if isinstance(memory, Sequence) else [(0, memory)]
        self.budgets = self._budgets(steps[0][1])
        self.changes = list(steps[1:])  # those of the memory that have not come yet
        self.added: Row | None = None  # the newcomer that is being added
        self.clock: Time | None = None  # the largest time seen; the open tick's, if one is open
        self.heard: list[Time] = [-math.inf, -math.inf]  # the largest time seen of each stream
        self.held: list[Held] = []
        self.open: list[Row] = []
        self.shed: list[Shed] = []
        self.floors = [0.0, 0.0]  # one a pool
        self.arrivals = 0

    def _budgets(self, memory: int | None) -> list[int] | None:
        """Say what each pool may hold; None if anything."""
        if memory is not None and memory < (1 if self.split is None else 2):
            raise ValueError(f"memory must be at least 1 for every pool, not {memory!r}")
        if memory is None or self.split is None:
            return None if memory is None else [memory]
        left = min(max(math.floor(memory * self.split), 1), memory - 1)
        return [left, memory - left]

    def feed(self, rows: Sequence[Row], clocks: Sequence[Time | None] = (None, None)) -> Pairs:
        """Take rows in any order and give the pairs they lead to; the last tick stays open."""
        pairs: Pairs = []
        for time, group in groupby(sorted(rows, key=tick_order), key=lambda row: row.time):
            tick = list(group)
            late = self.clock is not None and time < self.clock
            pairs += self._advance([(row.side, time) for row in tick])
            assert self.clock is not None
            self.ranker.begin(self.clock)
            if self.moment == "probe-first":
                pairs += self._probe(tick, [h.row for h in self.held] + self.open)
            if not late:
                self.open += tick
            elif self.moment == "probe-first":
                self._admit(tick)
            else:
                pairs += self._admit_then_probe(tick)
        return pairs + self._advance([(s, t) for s, t in enumerate(clocks) if t is not None])

    def finish(self) -> Pairs:
        """No more input: close the open tick."""
        tick, self.open = sorted(self.open, key=tick_order), []
        if self.moment == "probe-first":  # it probed on arrival
            self._admit(tick)
            return []
        return self._admit_then_probe(tick)

    def _advance(self, heard: Sequence[tuple[int, Time]]) -> Pairs:
        """Hear of times of the streams: close the open tick if they pass it, then expire."""
        pairs: Pairs = []
        for side, time in heard:
            if self.clock is None or time > self.clock:
                pairs += self.finish()
                self.clock = time
            self.heard[side] = max(self.heard[side], time)
        self.held = [h for h in self.held if not self._dead(h.row)]
        while self.changes and self.clock is not None and self.changes[0][0] < self.clock:
            self._resize()
        return pairs

    def _dead(self, row: Row) -> bool:
        """Whether no row of the other stream can join it any more, if that one is in order."""
        return self._past(row, self.heard[1 - row.side])

    def _overdue(self, row: Row) -> bool:
        """Whether it would be dead if both streams had come as far as the clock."""
        assert self.clock is not None
        return self._past(row, self.clock)

    def _past(self, row: Row, time: Time) -> bool:
        window = in_force(self.windows[row.side], row.time)
        if row.side == LEFT:
            return bool(time >= row.time + window + self.lateness)
        return bool(time - window - self.lateness >= row.time)

    def _probe(self, newcomers: list[Row], others: list[Row]) -> Pairs:
        """Newcomers against others, and newcomers of the two sides against each other."""
        if not newcomers or self.clock is None:
            return []
        pairs = (
            joined(newcomers, newcomers, self.windows)
            + joined(newcomers, others, self.windows)
            + joined(others, newcomers, self.windows)
        )
        held = {h.row.uid: h.row for h in self.held}
        new = {row.uid for row in newcomers}
        keys = {row.uid: row.key for row in [*newcomers, *others]}
        for pair in pairs:
            self.ranker.paired(keys[pair[0]])
            for uid in pair:
                if uid in held and uid not in new:
                    self.ranker.matched(held[uid], self.clock)
        return pairs

    def _admit_then_probe(self, newcomers: list[Row]) -> Pairs:
        """`evict-first`: all newcomers probe what is left; `shed-first`: not those shed."""
        before = {h.row.uid for h in self.held}
        self._admit(newcomers)
        old = [h.row for h in self.held if h.row.uid in before]
        if self.moment == "shed-first":
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
        """Take the next change of the memory; what does not fit any more leaves."""
        self.budgets = self._budgets(self.changes.pop(0)[1])
        for pool in range(len(self.budgets or ())):
            self._shed(pool)

    def _add(self, row: Row, seq: int) -> None:
        """Add a newcomer; what does not fit leaves, be it the newcomer."""
        assert self.clock is not None
        now, pool = self.clock, self.pool_of(row)
        if self.budgets is not None and self.size(row) > self.budgets[pool]:
            if not self._overdue(row):
                self.shed.append(Shed(row.uid, now, "rejected"))
            return
        self.held.append(Held(row, seq))
        self.ranker.admitted(row, seq, self.floors[pool])
        self.added = row
        self._shed(pool)
        self.added = None

    def _shed(self, pool: int) -> None:
        """While a pool is over its budget, one leaves.

        The one of those overdue whose window ended first, which counts as expired; or the lowest
        (rank, seq).
        """
        while self.budgets is not None and self.used(pool) > self.budgets[pool]:
            assert self.clock is not None
            now, floor = self.clock, self.floors[pool]
            candidates = [h for h in self.held if self.pool_of(h.row) == pool]
            overdue = [h for h in candidates if self._overdue(h.row)]
            if overdue:
                self.held.remove(min(overdue, key=lambda h: (self._end(h.row), h.seq)))
                continue
            ranked = [(self.ranker.rank(h.row, h.seq, now, floor), h.seq, h) for h in candidates]
            rank, _, victim = min(ranked, key=lambda entry: entry[:2])
            self.held.remove(victim)
            self.ranker.evicted(victim.row, now)
            self.floors[pool] = max(floor, rank)
            why = "rejected" if victim.row is self.added else "evicted"
            self.shed.append(Shed(victim.row.uid, now, why))

    def _end(self, row: Row) -> Time:
        """Say when a row leaves its window."""
        end: Time = row.time + in_force(self.windows[row.side], row.time)
        return end

    def pool_of(self, row: Row) -> int:
        """Shared: pool 0; split: a pool per side."""
        return 0 if self.split is None else row.side

    def size(self, row: Row) -> int:
        """Say what a row takes of the budget."""
        return row.size if self.in_bytes else 1

    def used(self, pool: int) -> int:
        """Say how much of a pool's budget is taken."""
        return sum(self.size(h.row) for h in self.held if self.pool_of(h.row) == pool)


class NaiveQueue:
    """The slow CPU (Das et al., 2.3): `size` places before a join that takes `step` a tuple.

    `counts` are the statistics; an `integrated` queue looks for partners in memory first. Times
    are exact if `step` and they are.
    """

    def __init__(
        self, join: NaiveJoin, *, step: Any, size: int, integrated: bool, counts: ByKey
    ) -> None:
        self.join, self.step, self.size = join, step, size
        self.integrated, self.counts = integrated, counts
        self.clock: Time | None = None
        self.free: Any = -math.inf  # when the join is done with what it took last
        self.open: list[Row] = []
        self.waiting: list[tuple[Time, Row]] = []  # since when, in order
        self.taken: list[Row] = []
        self.shed: list[Shed] = []

    def feed(self, rows: Sequence[Row], clocks: Sequence[Time | None] = (None, None)) -> Pairs:
        """Take rows in any order and give the pairs they lead to; the last tick stays open."""
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
        """No more input: close the open tick and take all that waits."""
        pairs = self._close()
        self.taken += [row for _, row in self.waiting]
        self.waiting = []
        return pairs + self._hand_over() + self.join.finish()

    def _advance(self, time: Time) -> Pairs:
        """If time goes on, close the open tick and take what there is time for before it."""
        if self.clock is not None and time <= self.clock:
            return []
        pairs = self._close()
        self.clock = time
        self._take_until(time, inclusive=False)
        return pairs

    def _take_until(self, time: Time, inclusive: bool) -> None:
        """Take the first in the queue, as long as the join is free before (or at) a time."""
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
        """Let the open tick in, then drop what is too much: the least promising, then oldest."""
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
        partners = [h for h in self.join.held if h.row.key == row.key and h.row.side != row.side]
        assert self.clock is not None
        rate = self.counts.rank(row, 0, self.clock, 0.0)
        return (len(partners) if self.integrated else 0, rate)


def check_bound(join: NaiveJoin) -> None:
    """Fail if a pool holds more than its budget."""
    for pool, budget in enumerate(join.budgets or []):
        used = join.used(pool)
        assert used <= budget, f"pool {pool} holds {used}, its budget is {budget}"
