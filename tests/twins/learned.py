"""Rankers that learn what rows are worth: the twins of `Auto` and of `Age` with a learned curve."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import product
from typing import Any

import numpy as np
from twins.rankers import ByKey
from twins.window import LEFT, RIGHT, Row, Time, Windows, in_force, in_windows


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
                one, other = (ghost, row) if ghost.side == LEFT else (row, ghost)
                if self.join.are_partners(ghost, row):
                    self.expect(ghost, clock)
                    if in_windows(one.time, other.time, self.windows):
                        self.count(1, ghost, float(clock - ghost.time), 1.0)
                        self.found[ghost.uid] += 1
        left = [row for row in rows if not self.join._overdue(row)]
        self.ghosts += left
        self.until |= {row.uid: clock for row in left}

    def observe(self, row: Row, clock: Time) -> None:
        """Count the key, also in the counts of recent arrivals."""
        super().observe(row, clock)
        for key in row.credited:
            self.note(row, key)

    def note(self, row: Row, key: int) -> None:
        """Note an arrival in the recent count of a key."""
        first = self.span / 128
        time, count, gap = self.recent.get((row.side, key), (row.time, 0.0, first))
        if row.time >= time:
            since = float(row.time - time)
            lately = count * math.exp2(-since / (0.125 * self.span))
            if count == 0.0 or since > 8.0 * gap:
                gap = first
            else:
                gap = max(gap + (since - gap) / 3.0, first / 4096)
            self.recent[row.side, key] = row.time, 1.0 + lately, gap
            before = max(self.fading(row.side, key) - 1.0, 0.0) + 0.5
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
