"""Rankers: the policies as the slow twin computes them, in the simplest possible arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from twins.window import LEFT, RIGHT, Row, Time, Windows, in_force, joined

from tidegate.learning import scores
from tidegate.policies import HeldRow

if TYPE_CHECKING:
    from twins.window import NaiveJoin

#: The name in `Scored` of each formula of `tidegate.learning.scores`, and of its parameters.
FORMULAS: dict[int, tuple[str, tuple[str, ...]]] = {
    scores.RATE: ("rate", ()),
    scores.LIFE: ("life", ()),
    scores.HEEB: ("heeb", ("alpha",)),
    scores.GREEDY_DUAL: ("greedy-dual", ()),
    scores.SIMPPROB: ("simpprob", ()),
    scores.DIMPPROB: ("dimpprob", ()),
    scores.DGL: ("dgl", ("alpha", "beta", "instant")),
    scores.IJOIN: ("ijoin", ("decay", "tau", "delta", "penalty", "p_init", "every")),
    scores.AGE: ("age", ()),
    scores.OWN: ("own", ("first", "second")),
}


class Ranker:
    """Ranks rows for the twin. `floor` is the largest rank ever shed from the pool, or 0."""

    join: NaiveJoin
    lowered_by_results = False  # whether a result may lower a rank

    def begin(self, clock: Time) -> None:
        """Called when a tick begins."""

    def arrived(self, rows: Sequence[Row], seq: int, clock: Time) -> None:
        """Called with a tick's newcomers before `observe`; `seq` is the number of the first."""

    def observe(self, row: Row, clock: Time) -> None:
        """Called for each newcomer; for all newcomers of a tick before the first is admitted."""

    def matched(self, row: Row, clock: Time) -> None:
        """Called when a held row is joined by a newcomer."""

    def paired(self, key: int) -> None:
        """Called for each result, with its key."""

    def shed(self, row: Row, clock: Time) -> None:
        """Called when a held row is shed or a newcomer is rejected."""

    def admitted(self, row: Row, seq: int, floor: float) -> None:
        """Called when a row is added, perhaps only until the budget is enforced."""

    def choosing(self, pool: int, candidates: Sequence[Row], now: Time) -> bool:
        """Called before one of the candidates is shed; return True if all ranks were updated."""
        return False

    def rank(self, row: Row, seq: int, now: Time, floor: float) -> float:
        """Return the rank of a candidate; the lowest is shed."""
        raise NotImplementedError

    def ordered(self, row: Row, seq: int, when: Time, floor: float) -> float:
        """Return the rank of a candidate at a time, even if it may not be shed at that time."""
        return self.rank(row, seq, when, floor)

    def settle(self, held_keys: Collection[int]) -> None:
        """Called after a tick's admissions."""


class Fixed(Ranker):
    """A rank per uid (0 if not given), fixed on admission, plus the weighted floor and number."""

    def __init__(
        self, ranks: Mapping[int, float], floor_weight: float = 0.0, order_weight: float = 0.0
    ) -> None:
        self.given, self.floor_weight, self.order_weight = ranks, floor_weight, order_weight
        self.fixed: dict[int, float] = {}

    def admitted(self, row: Row, seq: int, floor: float) -> None:
        """Fix the rank."""
        rank = self.given.get(row.uid, 0.0)
        self.fixed[row.uid] = rank + self.floor_weight * floor + self.order_weight * float(seq)

    def rank(self, row: Row, seq: int, now: Time, floor: float) -> float:
        """Return the rank that was fixed on admission."""
        return self.fixed[row.uid]


class ByKey(Ranker):
    """PROB (Das et al., 4.2.1): how often the key arrived on the other side.

    `counts` are the (left, right) counts by key to start with. If they are learned, old counts do
    not decay; instead an arrival in epoch e counts 2^(e - first epoch). The order is the same, and
    no division loses precision. Once more than `cap` known keys have no held row, half of `cap`
    stay. With a `span`, only the last `cap` arrivals within that time count, equally. With
    `columns`, a key's count is the smallest of its cells in a sketch of four rows, as of its
    last arrival.
    """

    def __init__(
        self,
        counts: tuple[Mapping[int, float], Mapping[int, float]] = ({}, {}),
        learned: bool = True,
        halflife: Time | None = None,
        cap: int | None = None,
        span: Time | None = None,
        columns: int = 0,
    ) -> None:
        self.lasting, self.columns = span, columns
        self.came: list[tuple[Time, int, int]] = []
        self.sketch: dict[tuple[int, int, int], float] = {}
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
        if self.lasting is not None:
            self.came.append((clock, row.side, row.key))
            self.came = [c for c in self.came if clock < c[0] + self.lasting]
            self.came = self.came[-self.cap :] if self.cap is not None else self.came
            for side in (LEFT, RIGHT):
                found = Counter(k for _, s, k in self.came if s == side)
                self.counts[side] = {k: float(n) for k, n in found.items()}
            return
        epoch = self._epoch(clock)
        if self.first_epoch is None:
            self.first_epoch = epoch
        weight = 2.0 ** (epoch - self.first_epoch)
        own = self.counts[row.side]
        if not self.columns:
            own[row.key] = own.get(row.key, 0.0) + weight
            return
        total = min(self.sketch.get(at, 0.0) for at in self._cells(row.side, row.key)) + weight
        for at in self._cells(row.side, row.key):
            self.sketch[at] = max(self.sketch.get(at, 0.0), total)
        for side in (LEFT, RIGHT):
            self.counts[side][row.key] = min(
                self.sketch.get(at, 0.0) for at in self._cells(side, row.key)
            )

    def _cells(self, side: int, key: int) -> list[tuple[int, int, int]]:
        """Return a key's cell in each row of the sketch: from the two halves of its hash."""
        step = (key >> 32) | 1
        return [(side, row, (key + row * step) % 2**64 % self.columns) for row in range(4)]

    def rank(self, row: Row, seq: int, now: Time, floor: float) -> float:
        """Return the count of the key on the other side."""
        return self.counts[1 - row.side].get(row.key, 0.0)

    def settle(self, held_keys: Collection[int]) -> None:
        """Forget the rarest keys without held rows once there are too many."""
        if not self.learned or self.cap is None or self.lasting is not None:
            return
        left, right = self.counts
        idle = [key for key in left.keys() | right.keys() if key not in held_keys]
        if len(idle) > self.cap:
            idle.sort(key=lambda k: (max(left.get(k, 0.0), right.get(k, 0.0)), k), reverse=True)
            for key in idle[self.cap // 2 :]:
                left.pop(key, None)
                right.pop(key, None)


class Size(ByKey):
    """SIZE (Kulkarni, Ravishankar): how many results the key has produced."""

    def observe(self, row: Row, clock: Time) -> None:
        """Ignore arrivals."""

    def paired(self, key: int) -> None:
        """Count a result, for both sides."""
        for counts in self.counts:
            counts[key] = counts.get(key, 0.0) + 1.0


@dataclass
class Quality:
    """The join's quality, which decides when iJoin computes priorities again."""

    drops: int = 0  # since the last computation
    earned: float = 0.0  # since the last row was shed
    mean: float = 0.0
    peak: float = 0.0
    times: int = 0


class Scored(ByKey):
    """A rank by a formula of what is known about a row: `gain` and `last` by uid, and more."""

    def __init__(self, formula: str, windows: Windows, given: Mapping[str, float], **kw: Any):
        super().__init__(**kw)
        self.formula, self.windows, self.given = formula, windows, given
        self.lowered_by_results = formula == "own"
        self.gain: dict[int, float] = {}
        self.last: dict[int, Time] = {}
        self.stay = given.get("stay", 0.0)
        self.curves: tuple[Sequence[float], Sequence[float]] = ((), ())
        self.every = given.get("every", 0.0)
        self.determined: dict[int, float] = {}  # by uid: the latest priority
        self.pools = [Quality(), Quality()]
        self.own: Any = None  # a policy's own scoring function

    def choosing(self, pool: int, candidates: Sequence[Row], now: Time) -> bool:
        """Compute priorities at every k-th call, or if the quality has fallen."""
        if self.every == 0:
            return False
        quality = self.pools[pool]
        quality.mean += (quality.earned - quality.mean) / 16.0
        quality.earned = 0.0
        due = quality.times == 0
        if self.every > 0:
            due = due or quality.drops >= self.every
        else:
            due = due or quality.mean < (1.0 + self.every) * quality.peak
        quality.peak = quality.mean if due else max(quality.peak, quality.mean)
        if due:
            quality.times, quality.drops = quality.times + 1, 0
            for row in candidates:
                self.determined[row.uid] = self.priority(row, now)
        quality.drops += 1
        return due

    def priority(self, row: Row, now: Time) -> float:
        """Return iJoin's priority of a row, whatever its age."""
        age, since = float(now - row.time), float(now - self.last[row.uid])
        if age <= 0:
            return self.given["p_init"]
        worth = row.importance * self.gain[row.uid] * math.exp(-self.given["decay"] * since) / age
        if since >= self.given["delta"]:
            worth -= self.given["penalty"] * since
        return worth

    def partners(self, row: Row) -> int:
        """Return how many rows of the row's key the other side holds."""
        return sum(h.row.key == row.key and h.row.side != row.side for h in self.join.held)

    def rate(self, row: Row) -> float:
        """Return the row's count on the other side, decayed to the present epoch."""
        count = self.counts[1 - row.side].get(row.key, 0.0)
        if self.first_epoch is None or self.join.clock is None:
            return count
        return count / 2.0 ** (self._epoch(self.join.clock) - self.first_epoch)

    def life(self, row: Row, now: Time) -> float:
        """Return the time until the row's window ends."""
        return float(row.time + in_force(self.windows[row.side], row.time) - now)

    def admitted(self, row: Row, seq: int, floor: float) -> None:
        """Start the row's estimate with the partners that are held now."""
        assert self.join.clock is not None
        n, imp = self.partners(row), row.importance
        self.last[row.uid] = self.join.clock
        if self.formula == "ijoin":
            self.gain[row.uid] = float(n)
            self.determined[row.uid] = self.priority(row, self.join.clock)
        elif self.formula in ("simpprob", "dgl"):
            self.gain[row.uid] = imp * (n + 2.0**-40)
        elif self.formula == "greedy-dual":
            self.gain[row.uid] = floor + imp * self.rate(row)
        else:
            self.gain[row.uid] = 0.0

    def matched(self, row: Row, clock: Time) -> None:
        """Update a held row at a result."""
        gain, since = self.gain[row.uid], float(clock - self.last[row.uid])
        if self.formula == "ijoin":
            self.gain[row.uid] = gain * math.exp(-self.given["decay"] * since) + 1.0
            self.pools[self.join.pool_of(row)].earned += row.importance
            self.last[row.uid] = clock
        elif self.formula == "dgl" and since > 0:
            # P' of paper 4, 3.2: the priority at the previous instant, one unit ago.
            before = max(since - self.given["instant"], 0.0)
            left = max(gain - self.given["beta"] * before, 0.0)
            won = row.importance * self.partners(row) * self.life(row, clock)
            self.gain[row.uid] = left + max(won / self.given["alpha"], 0.0)
            self.last[row.uid] = clock
        elif self.formula == "own":
            self.gain[row.uid], self.last[row.uid] = gain + 1.0, clock
        elif self.formula == "greedy-dual":
            floor = self.join.floors[self.join.pool_of(row)]
            self.gain[row.uid] = floor + row.importance * self.rate(row)

    def shed(self, row: Row, clock: Time) -> None:
        """Update the mean time that shed rows were held."""
        self.stay += (float(clock - row.time) - self.stay) / 256.0

    def rank(self, row: Row, seq: int, now: Time, floor: float) -> float:
        """Apply the formula; iJoin does not shed a row that is younger than `tau`."""
        if self.formula == "ijoin" and float(now - row.time) < self.given["tau"]:
            return 1e300
        return self.ordered(row, seq, now, floor)

    def ordered(self, row: Row, seq: int, when: Time, floor: float) -> float:
        """Apply the formula at a time."""
        now = when
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
        # The row that is being added does not count yet.
        added, there = self.join.added, self.partners(row)
        if added is not None and added.key == row.key and added.side != row.side:
            there -= 1
        if self.formula == "dimpprob":
            return imp * (there + 2.0**-40)
        if self.formula == "own":
            life = math.inf if math.isinf(window) else max(self.life(row, now), 0.0)
            params = (*self.given.values(), *[0.0] * 6)[:6]
            known = imp, max(age, 0.0), life, gain, max(since, 0.0), self.rate(row), float(there)
            rank = float(self.own(HeldRow(*known), params))
            return rank if abs(rank) < 1e300 else -1e300
        if self.formula == "dgl":
            return max(gain - self.given["beta"] * since, 0.0)
        if self.formula == "age":
            curve = self.curves[row.side]
            step: float = min(max(age * len(curve) / window, 0.0), len(curve) - 1.0)
            here, after = curve[int(step)], curve[min(int(step) + 1, len(curve) - 1)]
            return imp * (here + (step - int(step)) * (after - here))
        if self.formula == "ijoin":
            return self.determined[row.uid] if self.every else self.priority(row, now)
        return gain


class Auto(ByKey):
    """AUTO: add a ghost for every newcomer, and count the results that ghosts would have had.

    `cells` holds the expected and the actual results by side, age, level and trend. The constants
    are those of `tidegate.learning.rates` and `tidegate.learning.ghosts`.
    """

    LEVELS, TRENDS, MARKS = 12, 10, 8
    #: Starts of the steps of age, in sixteenths of a window; the first is halved repeatedly.
    STARTS = (0.0, *(2.0**-n for n in range(12, 0, -1)), *map(float, range(1, 16)))
    STEPS = len(STARTS)

    lowered_by_results = True

    def __init__(self, windows: Windows, **settings: Any) -> None:
        super().__init__(**settings)
        self.windows = windows
        self.ghosts: list[Row] = []
        self.found: Counter[int] = Counter()  # by uid
        self.until: dict[int, Time] = {}  # by uid: expected results are counted up to this time
        self.trails: dict[int, list[tuple[int, int]]] = {}  # by uid: level and results at each mark
        # By side and key: time of the last arrival, recent count, and mean of recent gaps.
        self.recent: dict[tuple[int, int], tuple[Time, float, float]] = {}
        shape = (self.STEPS, self.LEVELS, self.TRENDS)
        self.cells = np.zeros((len(windows), 2, *shape))
        self.worth = np.zeros((len(windows), *shape))
        self.returns = np.zeros((len(windows), 11, self.MARKS, self.LEVELS))
        self.elapsed, self.last = 0.0, 0.0
        self.census_at, self.fit_at, self.fitted = 0, 0, 0.0
        self.gains: list[tuple[float, float]] = []  # weights and bits since the last refit
        self.censuses, self.mean, self.variance, self.excess = 0, 0.0, 0.0, 0.0

    @property
    def span(self) -> float:
        """The longer window, or all the time so far."""
        longest = [
            max(value for _, value in w) if isinstance(w, Sequence) else w for w in self.windows
        ]
        ends = [float(w) for w in longest if not math.isinf(w)]
        return max(ends) if ends else max(self.elapsed, 1.0)

    def place(self, row: Row, age: float) -> tuple[float, float, float, float]:
        """Return the results expected per window, and a row's place in the table at an age."""
        side, key, window = row.side, row.key, in_force(self.windows[row.side], row.time)
        count, expected = self.fading(1 - side, key), 0.5
        if count > 0:
            expected = (count + 0.5) * self.span / (self.elapsed + 0.125 * self.span)
        step = 0.0
        if not math.isinf(window):
            at = min(max(age * 16 / window, 0.0), 15.0)
            step = float(np.interp(at, self.STARTS, range(self.STEPS)))
        level = min(max(math.log2(expected) + 7.0, 1.0), self.LEVELS - 1.0) if count > 0 else 0.0
        trend = 0.0
        if (1 - side, key) in self.recent:
            lately = self.lately(1 - side, key, float(row.time) + age)
            trend = lately - math.log2(expected) + 3.0
        return expected, step, level, min(max(trend, 0.0), self.TRENDS - 1.0)

    def lately(self, side: int, key: int, when: float) -> float:
        """Return the logarithm of a key's recent rate per window; it halves with each mean gap."""
        time, _, gap = self.recent[side, key]
        return math.log2(self.span / gap) - max(when - float(time), 0.0) / gap

    def count(self, what: int, ghost: Row, age: float, amount: float) -> None:
        """Add an amount to the four cells around a row's place, by their nearness."""
        _, step, level, trend = self.place(ghost, age)
        i, j = int(level), int(trend)
        for level_at, a in ((i, 1 - (level - i)), (i + 1, level - i)):
            for trend_at, b in ((j, 1 - (trend - j)), (j + 1, trend - j)):
                if a * b > 0:
                    usual = 2.0 ** (level_at - 7) if level_at else 0.5
                    part = a * b * (amount * usual / self.span if what == 0 else amount)
                    self.cells[ghost.side, what, int(step), level_at, trend_at] += part

    def expect(self, ghost: Row, clock: Time) -> None:
        """Add the results expected since the last time.

        The time is split where a step of age ends, and after each mean gap of the key.
        """
        age, stop = (float(at - ghost.time) for at in (self.until[ghost.uid], clock))
        self.until[ghost.uid] = clock
        window = in_force(self.windows[ghost.side], ghost.time)
        stop = min(stop, float(window))
        while age < stop:
            ends = [stop]
            if not math.isinf(window):
                ends += [at for start in self.STARTS if (at := start * window / 16) > age][:1]
            ends.append(max(age + self.piece(ghost, age), math.nextafter(age, stop)))
            self.count(0, ghost, 0.5 * (age + min(ends)), min(ends) - age)
            age = min(ends)

    def piece(self, ghost: Row, age: float) -> float:
        """Return for how long the trend of a ghost stays about the same."""
        if (1 - ghost.side, ghost.key) not in self.recent:
            return math.inf
        time, _, gap = self.recent[1 - ghost.side, ghost.key]
        return gap if 0.0 <= float(ghost.time) + age - float(time) < 12.0 * gap else math.inf

    def arrived(self, rows: Sequence[Row], seq: int, clock: Time) -> None:
        """Count a result for each ghost that a newcomer would have joined; then add new ghosts."""
        for row in rows:
            for ghost in self.ghosts:
                pair = ([ghost], [row]) if ghost.side == LEFT else ([row], [ghost])
                if ghost.side != row.side and ghost.key == row.key:
                    self.expect(ghost, clock)
                    if joined(*pair, self.windows):
                        self.count(1, ghost, float(clock - ghost.time), 1.0)
                        self.found[ghost.uid] += 1
        left = [row for row in rows if not self.join._overdue(row)]
        self.ghosts += left
        self.until |= {row.uid: clock for row in left}

    def observe(self, row: Row, clock: Time) -> None:
        """Count the key, also in the counts of recent arrivals."""
        super().observe(row, clock)
        first = self.span / 128
        time, count, gap = self.recent.get((row.side, row.key), (row.time, 0.0, first))
        if row.time >= time:
            since = float(row.time - time)
            lately = count * math.exp2(-since / (0.125 * self.span))
            if count == 0.0 or since > 8.0 * gap:
                gap = first
            else:
                gap = max(gap + (since - gap) / 3.0, first / 4096)
            self.recent[row.side, row.key] = row.time, 1.0 + lately, gap
            before = max(self.fading(row.side, row.key) - 1.0, 0.0) + 0.5
            lasting = 0.125 * self.span / math.log(2.0)
            usual = before * lasting / (self.elapsed + 0.125 * self.span)
            bits = math.log2(0.5 + 0.5 * (lately + 0.5) / (usual + 0.5))
            self.gains.append((1.0 / (1.0 + lately), bits))

    def fading(self, side: int, key: int) -> float:
        """Return the key's count on a side, decayed to the present epoch."""
        assert self.join.clock is not None
        count = self.counts[side].get(key, 0.0)
        if self.first_epoch is not None:
            count /= 2.0 ** (self._epoch(self.join.clock) - self.first_epoch)
        return count

    def settle(self, held_keys: Collection[int]) -> None:
        """Forget the recent counts of keys whose counts are forgotten."""
        super().settle(held_keys)
        known = self.counts[LEFT].keys() | self.counts[RIGHT].keys()
        self.recent = {at: value for at, value in self.recent.items() if at[1] in known}

    def begin(self, clock: Time) -> None:
        """From time to time, add up expected results and fit the table again."""
        seq = self.join.arrivals
        since = float(clock) - self.last if self.census_at else 0.0
        early = seq - self.census_at >= 16 + self.census_at // 8
        if seq - self.census_at < 16 or (self.census_at and since * 16 < self.span and not early):
            return
        visited = [np.floor(at / (self.span / 8)) for at in (self.last, float(clock))]
        self.census_at, self.last = seq, float(clock)
        self.cells *= math.exp2(-since / (8.0 * self.span))
        self.returns *= math.exp2(-since / (8.0 * self.span))
        if self.halflife is not None:
            halved = clock // self.halflife - (float(clock) - since) // float(self.halflife)
            self.elapsed /= 2.0**halved
        self.elapsed += since
        if early or visited[0] < visited[1]:
            self.visit(clock)
        early = seq - self.fit_at >= 16 + self.fit_at // 8
        late = seq - self.fit_at >= 1024 and float(clock) - self.fitted >= self.span / 4
        if early or late:
            self.fit_at, self.fitted = seq, float(clock)
            for side in range(len(self.windows)):
                self.worth[side] = self.best(self.returns[side], *self.cells[side])
        if self.has_changed():
            self.forget()

    def visit(self, clock: Time) -> None:
        """Remove ghosts whose windows have ended, and add up expected results of the others."""
        for ghost in self.ghosts:
            if self.join._overdue(ghost):
                self.finish(ghost, clock)
                self.sum_up(ghost)
        self.ghosts = [row for row in self.ghosts if not self.join._overdue(row)]
        for ghost in self.ghosts:
            self.expect(ghost, clock)
            self.leave_trail(ghost, clock)

    def finish(self, ghost: Row, clock: Time) -> None:
        """Add the results that are expected of a ghost up to the end of its window."""
        self.expect(ghost, clock)

    def leave_trail(self, ghost: Row, clock: Time) -> None:
        """Note the level of a ghost's key, and its results, at the marks of age it has passed."""
        trail = self.trails.setdefault(ghost.uid, [])
        _, step, where, _ = self.place(ghost, float(clock - ghost.time))
        while len(trail) <= int(self.STARTS[int(step)] * self.MARKS / 16):
            trail.append((int(where + 0.5), self.found[ghost.uid]))

    def has_changed(self) -> bool:
        """Return True if recent counts predict arrivals much better than they used to."""
        if not self.gains:
            return False
        gained = float(np.average([b for _, b in self.gains], weights=[w for w, _ in self.gains]))
        self.gains = []
        if self.elapsed < self.span:
            return False
        off = gained - self.mean
        if self.censuses >= 32:
            deviation = max(math.sqrt(self.variance), 0.03)
            self.excess = max(self.excess + min(off / deviation, 8.0) - 1.0, 0.0)
            off = min(off, 2.0 * deviation)
        self.censuses = min(self.censuses + 1, 64)
        self.mean += off / self.censuses
        self.variance = (1.0 - 1.0 / self.censuses) * (self.variance + off**2 / self.censuses)
        return self.excess > 24.0

    def forget(self) -> None:
        """Reduce old counts to the weight of an eighth of a window of arrivals."""
        self.excess, self.censuses = 0.0, 0
        if self.first_epoch is not None and self.halflife and self.elapsed > self.span / 8:
            halvings = math.ceil(math.log2(self.elapsed / (self.span / 8)))
            self.first_epoch -= halvings
            self.elapsed /= 2.0**halvings

    def sum_up(self, ghost: Row) -> None:
        """Add a ghost's results after each mark, if it is held to the end or dropped early.

        A plan drops the row 1, 2 or 4 marks later unless its level has risen. For each plan, add
        the number of ghosts that rose, their results, and the results of the others.
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
        """Fit factors for each step of each feature and for each cell.

        Return the logarithms of the best rates.
        """
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
                older, early = range(13, self.STEPS), range(11, -1, -1)
                for at in (*older, *early) if axis == 0 else ():
                    belief = had[at] + 8.0 * factors[0][at - 1 if at in older else at + 1]
                    factors[0][at] = belief / (hoped[at] + 8.0)
        fit = scale * math.prod(factors)
        earned = fit * (found + 32.0) / (expected * fit + 32.0)
        usual = np.average(earned, axis=2, weights=expected + 2.0**-40)[:, :, np.newaxis]
        best, steady = np.zeros_like(earned), np.zeros_like(usual)
        starts = np.array(self.STARTS)
        lengths = np.diff(starts, append=16.0)
        for i in range(self.STEPS):
            for at in range(i, self.STEPS):
                path = 0.7 ** (starts[i : at + 1] - starts[i])[:, None, None]
                ahead = usual[i : at + 1] + path * (earned - usual)[i : at + 1]
                time = lengths[i : at + 1]
                best[i] = np.maximum(best[i], np.average(ahead, axis=0, weights=time))
                usually = np.average(usual[i : at + 1], axis=0, weights=time)
                steady[i] = np.maximum(steady[i], usually)
            mark, more = int(starts[i] * self.MARKS / 16), 1.0
            for level in range(self.LEVELS):
                ghosts, results, *tried = returns[:, mark, level]
                left = self.MARKS - mark
                plans = [(results, ghosts * left)]
                for number, length in enumerate((1, 2, 4)):
                    if length < left:
                        rose, of_risen, of_others = tried[3 * number : 3 * number + 3]
                        spent = ghosts * length + rose * (left - length)
                        plans.append((of_risen + of_others, spent))
                usually = steady[i, level, 0] * (2.0 ** (level - 7) if level else 0.5) / self.MARKS
                rates = [(r / usually + 8.0 * left * more) / (t + 8.0 * left) for r, t in plans]
                more = max(*rates, 1.0)
                best[i, level] *= more
        return np.log2(best)

    def rank(self, row: Row, seq: int, now: Time, floor: float) -> float:
        """Return the logarithm of the expected results, corrected by the table around the row."""
        expected, *place = self.place(row, float(now - row.time))
        corrected = self.corrected(row.side, *place)
        rank = math.log2(max(row.importance, 2.0**-200)) + math.log2(expected) + corrected
        return math.floor(rank * 2.0**24) / 2.0**24

    def corrected(self, side: int, step: float, level: float, trend: float) -> float:
        """Interpolate the table around a place."""
        low = int(step), int(level), int(trend)
        corrected = 0.0
        for corner in product((0, 1), repeat=3):
            part = 1.0
            at = []
            for first, over, where in zip(low, corner, (step, level, trend), strict=True):
                part *= where - first if over else 1.0 - (where - first)
                at.append(first + over)
            if part > 0:
                corrected += part * self.worth[(side, *at)]
        return float(corrected)


class LearnedAge(Auto):
    """AGE with a learned curve: count results of ghosts by age only, in equal steps."""

    STEPS = 32

    lowered_by_results = False

    def __init__(self, windows: Windows) -> None:
        super().__init__(windows)
        self.halflife = None
        self.cells = np.zeros((len(windows), 2, self.STEPS))
        self.worth = np.ones((len(windows), self.STEPS))

    def step(self, row: Row, age: float) -> float:
        """Return the step of a row's age, with a fraction."""
        window = float(in_force(self.windows[row.side], row.time))
        return min(max(age * self.STEPS / window, 0.0), self.STEPS - 1.0)

    def count(self, what: int, ghost: Row, age: float, amount: float) -> None:
        """Add results, or the share of a window in which they are expected, at an age."""
        self.cells[ghost.side, what, int(self.step(ghost, age))] += (
            amount if what == 1 else amount / self.span
        )

    def expect(self, ghost: Row, clock: Time) -> None:
        """Add the time since this was last done, at the age in its middle."""
        start, stop = (float(at - ghost.time) for at in (self.until[ghost.uid], clock))
        self.until[ghost.uid] = clock
        stop = min(stop, float(in_force(self.windows[ghost.side], ghost.time)))
        if start < stop:
            self.count(0, ghost, 0.5 * (start + stop), stop - start)

    def observe(self, row: Row, clock: Time) -> None:
        """Ignore arrivals: keys are not counted."""

    def leave_trail(self, ghost: Row, clock: Time) -> None:
        """Do nothing: levels of ghosts are not followed."""

    def best(self, returns: Any, expected: Any, found: Any) -> Any:
        """Fit the results by age; return the best mean rate over any remaining holding time."""
        scale = (found.sum() + 1.0) / (expected.sum() + 1.0)
        factors: list[Any] = [1.0, 1.0, 1.0]  # by age; the other two correct all ages alike
        for _ in range(3):
            factors[0] = (found + 8.0) / (scale * expected * factors[1] * factors[2] + 8.0)
            for own, other in ((1, 2), (2, 1)):
                hoped = (scale * expected * factors[0] * factors[other]).sum()
                factors[own] = (found.sum() + 8.0) / (hoped + 8.0)
        fit = scale * math.prod(factors)
        earned = fit * (found + 32.0) / (expected * fit + 32.0)
        ahead = [
            np.cumsum(earned[i:]) / np.arange(1, self.STEPS - i + 1) for i in range(self.STEPS)
        ]
        return [max(means) for means in ahead]

    def rank(self, row: Row, seq: int, now: Time, floor: float) -> float:
        """Interpolate between two steps of age."""
        step = self.step(row, float(now - row.time))
        here, after = (self.worth[row.side, min(int(step) + n, self.STEPS - 1)] for n in (0, 1))
        return row.importance * float(here + (step - int(step)) * (after - here))
