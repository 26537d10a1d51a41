"""The slow twin of the sampled join, with lists, loops and bisection.

It follows `docs/concepts/sampled_join.md` and section 4 of paper 2, and shares no code with the
engine: random words come from plain Python, models are sums over all arrivals, and every equation
is solved by halving an interval. It takes fewer than 512 rows: all of them are monitored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from twins.window import LEFT, Row, Time, tick_order

WORD = 2**64
THINNING = 0x2545F491
STEPS = 32


def mix(h: int) -> int:
    """Return the hash of 64 bits, as keys are hashed."""
    for _ in range(2):
        h ^= h >> 32
        h = h * 0xD6E8FEB86659FD93 % WORD
    return h ^ (h >> 32)


def random_word_of(seed: int, words: Sequence[int]) -> int:
    """Return the hash of a seed and the values that identify a row."""
    golden, state = 0x9E3779B97F4A7C15, seed % WORD
    for word in words:
        state = mix(((state + golden) % WORD) ^ mix((word + golden) % WORD))
    return state


def split_mix(random_word: int, number: int) -> int:
    """Return one word of the random sequence that begins at a word."""
    z = (random_word + (number % WORD) * 0x9E3779B97F4A7C15) % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def drawn(random_word: int, number: int) -> float:
    """Return one number in (0, 1) of the random sequence that begins at a word."""
    return float(((split_mix(random_word, number) >> 12) + 0.5) / 2**52)


def halved(low: float, high: float, is_low: Callable[[float], bool]) -> float:
    """Return the argument at which `is_low` turns from True to False, by bisection."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return low


def rounded(number: float) -> float:
    """Return a number rounded to nine digits."""
    return float(f"{number:.9g}")


@dataclass
class Held:
    """A row in memory; with a `most` of 0 it stands for its whole cluster."""

    row: Row
    seq: int
    random_word: int
    share: float
    most: int = 0
    passed: int = 0
    next: int = 0
    thinned: int = 0


@dataclass
class Watched:
    """A row whose matches are counted, whether it is held or not."""

    row: Row
    most: int
    ages: list[float]


class Drawn(NamedTuple):
    """A sampled pair."""

    left: int
    right: int
    share: float
    unit: int


class NaiveSample:
    """A sample of a join, as slow and simple as possible.

    `given` is a pair of mappings from keys to arrivals in a unit of time, `curves` a pair of
    results by age, `rates` a pair of arrivals in a unit of time: what is None is learned.
    """

    def __init__(
        self,
        *,
        windows: tuple[Time, Time],
        budget: int,
        method: str,
        fraction: float | None,
        margin: float,
        reach: float,
        by_age: bool = False,
        given: tuple[dict[int, float], dict[int, float]] | None = None,
        curves: tuple[list[float], list[float]] | None = None,
        rates: tuple[float, float] | None = None,
        halflife: Time = 0,
        in_bytes: bool = False,
        lateness: Time = 0,
        cap: int = 2**62,
        seed: int = 0,
    ) -> None:
        self.windows, self.budget, self.method, self.fraction = windows, budget, method, fraction
        self.margin, self.reach, self.by_age, self.given = margin, reach, by_age, given
        self.curves, self.rates, self.halflife = curves, rates, halflife
        self.in_bytes, self.lateness, self.cap, self.seed = in_bytes, lateness, cap, seed
        self.span = max(windows)
        self.clock: Time = -math.inf
        self.stream_clock: list[Time] = [-math.inf, -math.inf]
        self.open: list[Row] = []
        self.held: list[Held] = []
        self.seq = 0
        self.rejected: list[int] = []
        self.shed: list[int] = []
        # Counts: arrivals with the half-life in which they came, and the time they cover.
        self.counted: list[tuple[Row, int]] = []
        self.arrived: list[list[float]] = [[0.0, 0.0], [0.0, 0.0]]  # number and size, by side
        self.elapsed = 0.0
        self.last: Time | None = None
        self.watched: list[Watched] = []
        self.tallies = [[0.0] * STEPS + [0.0], [0.0] * STEPS + [0.0]]
        self.planned: Time = 0
        # The plan.
        self.drawing = "uniform" if method == "uniform" and not self._ages_to_learn else "cluster"
        self.share = 1.0 if fraction is None else fraction
        self.constant = 0.0
        self.means, self.floors = [1.0, 1.0], [0.0, 0.0]
        self.reserve = budget / 2 if fraction is None else 0.0
        self.brake = 1.0
        self.again = [math.inf, math.inf]
        self.replan_at = min(16, max(budget // 8, 1))
        if given is not None or (curves is not None and rates is not None):
            self._plan()

    # ---- input --------------------------------------------------------------------------------

    def feed(
        self, rows: Sequence[Row], clocks: Sequence[Time | None] = (None, None)
    ) -> list[Drawn]:
        """Process rows in any order; the last tick waits, unless a clock has passed it."""
        told = [c for c in clocks if c is not None]
        every = self.open + list(rows)
        close = bool(told) and all(row.time < max(told) for row in every)
        found = self._take(every, close)
        for side, time in enumerate(clocks):
            if time is not None:
                self._hear(side, time)
        self._expire()
        return found

    def finish(self) -> list[Drawn]:
        """End the input: process the last tick."""
        return self._take(self.open, True)

    def _take(self, rows: list[Row], close: bool) -> list[Drawn]:
        order = sorted(rows, key=tick_order)
        self.open = []
        if order and not close and order[-1].time >= self.clock:
            self.open = [row for row in order if row.time == order[-1].time]
        base, before = self.seq, list(self.stream_clock)
        found: list[Drawn] = []
        done: list[Row] = []
        for _, group in groupby(order[: len(order) - len(self.open)], key=lambda row: row.time):
            tick = list(group)
            for row in tick:
                self._hear(row.side, row.time)
            self._expire()
            self._pass_time()
            more = any(self.arrived[side][0] >= self.again[side] for side in range(2))
            if more or self.seq >= self.replan_at:
                self._replan()
            for row in tick:
                epoch = math.floor(self.clock / self.halflife) if self.halflife else 0
                self.counted.append((row, epoch))
            for row in tick:
                number = sum(_alike(row, other) for other in done)
                if row.time < before[row.side]:
                    number = base + len(done) + len(order)
                random_word = random_word_of(self.seed, [row.side, row.key, row.row_hash, number])
                found += self._probe(row)
                self._meet(row)
                self._admit(row, random_word)
                done.append(row)
            self._forget()
        return found

    def _forget(self) -> None:
        """Forget the less frequent of the keys without held rows, once there are too many."""
        idle = {row.key for row, _ in self.counted} - {held.row.key for held in self.held}
        if len(idle) > self.cap:
            order = sorted(idle, key=lambda k: (max(self.count(s, k) for s in (0, 1)), k))
            gone = order[: len(order) - self.cap // 2]
            self.counted = [each for each in self.counted if each[0].key not in gone]

    def _hear(self, side: int, time: Time) -> None:
        self.stream_clock[side] = max(self.stream_clock[side], time)
        self.clock = max(self.clock, time)

    def _expire(self) -> None:
        self.held = [
            h for h in self.held if not self._past(h.row, self.stream_clock[1 - h.row.side])
        ]

    def _past(self, row: Row, time: Time) -> bool:
        window = self.windows[row.side]
        if row.side == LEFT:
            return bool(time >= row.time + window + self.lateness)
        return bool(time - window - self.lateness >= row.time)

    def _joins(self, one: Row, other: Row) -> bool:
        left, right = (one, other) if one.side == LEFT else (other, one)
        return (
            one.side != other.side
            and one.key == other.key
            and right.time < left.time + self.windows[0]
            and right.time > left.time - self.windows[1]
        )

    # ---- rows ---------------------------------------------------------------------------------

    def _probe(self, row: Row) -> list[Drawn]:
        found = []
        for held in list(self.held):
            if not self._joins(row, held.row):
                continue
            unit = held.random_word
            if held.most:
                held.passed += 1
                if held.passed != held.next:
                    continue
                unit = split_mix(held.random_word, -held.passed)
            left, right = (row, held.row) if row.side == LEFT else (held.row, row)
            found.append(Drawn(left.uid, right.uid, held.share, unit))
            if held.most:
                u = drawn(held.random_word, held.passed)
                held.next = held.passed + self._skip(u, held.share, held.most - held.passed)
                if held.next > held.most:
                    self.held.remove(held)
        return found

    @staticmethod
    def _skip(u: float, p: float, left: int) -> int:
        """Return which of `left` coin flips succeeds first; `left + 1` if none does."""
        if p >= 1:
            return 1
        for k in range(1, left + 1):
            if u > (1 - p) ** k:
                return k
        return left + 1

    def _admit(self, row: Row, random_word: int) -> None:
        seq, self.seq = self.seq, self.seq + 1
        size = self._size(row)
        self.arrived[row.side][0] += 1
        self.arrived[row.side][1] += size if size <= self.budget else 0
        if self._past(row, self.stream_clock[1 - row.side]):
            return
        n = self.foreseen(row)
        most = math.ceil(n + self.reach * math.sqrt(n))
        self.watched.append(Watched(row, most, [0.0] * STEPS))
        p = self.share
        if self.drawing == "pps":
            everything = math.isinf(self.constant)
            p = 1.0 if everything else min(self.constant * max(n, self.floors[row.side]), 1.0)
        p *= self.brake
        while size > self.free:
            overdue = [h for h in self.held if self._past(h.row, self.clock)]
            if not overdue:
                break
            self.held.remove(min(overdue, key=lambda h: (h.row.time, h.seq)))
        fits = size <= self.free
        if fits and self.free < self.reserve:
            p *= self.free / self.reserve
        u = drawn(random_word, 0)
        first = self._skip(u, p, most)
        if not (first <= most if self.drawing == "uniform" else u < p):
            return
        if size > self.budget:
            self.rejected.append(row.uid)
            return
        held = Held(row, seq, random_word, p)
        if self.drawing == "uniform":
            held.most, held.next = most, first
        self.held.append(held)
        if not fits:
            self.brake *= self._thin(self.budget * 63 / 64)
            self.replan_at = min(self.replan_at, self.seq + max(16, self.seq // 8))

    @property
    def free(self) -> int:
        """Return how much of the memory is free."""
        return self.budget - sum(self._size(h.row) for h in self.held)

    # ---- another memory -----------------------------------------------------------------------

    def resize(self, memory: int) -> None:
        """Change the memory, and thin the held rows if they do not fit."""
        self.budget = memory
        if self.free < 0:
            self._thin(memory)
        if self.elapsed > 0 or self.given is not None or (self.curves and self.rates):
            self._plan()
        else:
            self.reserve = memory / 2

    def _thin(self, memory: float) -> float:
        """Lower the share that is kept to the largest with which the rows fit."""
        largest = max(self._size(h.row) for h in self.held)
        wanted = max(min(self._aim(), memory), min(largest, self.budget))
        shares = sorted(self._stays_above(held) for held in self.held)
        fits = 0.0
        for share in shares:
            some = [h for h in self.held if self._stays_above(h) < share]
            if sum(self._size(h.row) for h in some) <= wanted * (1 + 1e-9):
                fits = share
        kept = []
        for held in self.held:
            if self._stays_above(held) >= fits:
                self.shed.append(held.row.uid)
                continue
            random_word = self._fate(held)
            held.share *= fits
            if held.most and drawn(random_word, 0) >= fits:
                left = held.most - held.next
                held.next += self._skip(drawn(random_word, 1), held.share, left)
            if held.most:
                held.random_word = split_mix(random_word, 2)
            else:
                held.thinned += 1
            kept.append(held)
        self.held = kept
        return fits

    @staticmethod
    def _fate(held: Held) -> int:
        """Return another random word, which decides whether a row stays."""
        return split_mix(held.random_word, THINNING + held.thinned)

    def _stays_above(self, held: Held) -> float:
        """Return the share of thinning below which a row is dropped."""
        random_word = self._fate(held)
        lowest = drawn(random_word, 0)
        if held.most > held.next:
            # No coin of those that are left shows heads with a probability of (1 - p) ** left.
            none = drawn(random_word, 1) ** (1 / (held.most - held.next))
            lowest = min(lowest, (1 - none) / held.share)
        return lowest

    def _size(self, row: Row) -> int:
        return row.size if self.in_bytes else 1

    # ---- models -------------------------------------------------------------------------------

    def _pass_time(self) -> None:
        if self.last is not None and self.clock > self.last:
            if self.halflife:
                halves = math.floor(self.clock / self.halflife) - math.floor(
                    self.last / self.halflife
                )
                self.elapsed *= 0.5**halves
                self.arrived = [[x * 0.5**halves for x in side] for side in self.arrived]
            self.elapsed += self.clock - self.last
        self.last = self.clock if self.last is None else max(self.clock, self.last)

    def count(self, side: int, key: int) -> float:
        """Return the arrivals of a key; old arrivals count less."""
        now = math.floor(self.clock / self.halflife) if self.halflife else 0
        return sum(
            0.5 ** (now - epoch)
            for row, epoch in self.counted
            if (row.side, row.key) == (side, key)
        )

    def partners(self, side: int, key: int) -> float:
        """Return the expected number of partners of a row of a key, by frequency."""
        if self.given is not None:
            return self.given[1 - side].get(key, 0.0) * self.windows[side]
        rate = (self.count(1 - side, key) + 0.5) / (self.elapsed + 0.125 * self.span)
        return rate * self.windows[side]

    def foreseen(self, row: Row) -> float:
        """Return the expected number of partners of a row."""
        return self.means[row.side] if self.by_age else self.partners(row.side, row.key)

    def _meet(self, row: Row) -> None:
        for seen in self.watched:
            if self._joins(row, seen.row):
                age = (self.clock - seen.row.time) * STEPS / self.windows[seen.row.side]
                seen.ages[int(min(max(age, 0), STEPS - 1))] += 1

    def _replan(self) -> None:
        for seen in self.watched:
            if self._past(seen.row, self.clock):
                tally = self.tallies[seen.row.side]
                tally[:] = [a + b for a, b in zip(tally, [*seen.ages, 1.0], strict=True)]
        self.watched = [seen for seen in self.watched if not self._past(seen.row, self.clock)]
        since = max(self.clock - self.planned, 0) if self.planned else 0
        fade = 2.0 ** -(since / (8 * self.span))
        self.tallies = [[x * fade for x in tally] for tally in self.tallies]
        self.planned = self.clock
        self.replan_at = self.seq + 1
        if self.elapsed > 0:
            part = max(self._aim() / max(self.budget - self.free, 1), 1)
            self.brake = min(rounded(self.brake * part ** min(since / self.span, 1)), 1.0)
            self._plan()
            self.replan_at = self.seq + max(self.seq, 16)
            came = [number for number, _ in self.arrived]
            self.again = [max(2 * number, number + 1) for number in came]

    @property
    def _ages_to_learn(self) -> bool:
        return self.by_age and self.curves is None

    def _seen_at(self, side: int, step: int) -> float:
        """Return the number of rows that were watched at an age."""
        lived = [
            min(max((self.clock - s.row.time) / self.windows[side] * STEPS - step, 0), 1)
            for s in self.watched
            if s.row.side == side
        ]
        return sum(lived) + self.tallies[side][STEPS]

    def _curve(self, side: int) -> list[float]:
        if self.curves is not None:
            return self.curves[side]
        curve = []
        for step in range(STEPS):
            mine = [seen.ages[step] for seen in self.watched if seen.row.side == side]
            found = self.tallies[side][step] + sum(mine)
            curve.append((found + 1 / STEPS) / (self._seen_at(side, step) + 1))
        return curve

    def _classes(self) -> list[list[tuple[float, float]]]:
        """Return the memory of a window's rows of each key, and their partners, by side."""
        number, size = (sum(side[i] for side in self.arrived) for i in range(2))
        mean = size / number if size else 1.0
        sides = []
        for side in range(2):
            load = mean * self.windows[side]
            if self.by_age:
                rate = self.rates[side] if self.rates else self.arrived[side][0] / self.elapsed
                sides.append([(rate * load, sum(self._curve(side)))])
                continue
            if self.given is not None:
                rates = self.given[side]
                keys = set(self.given[0]) | set(self.given[1])
            else:
                keys = {row.key for row, _ in self.counted}
                rates = {key: self.count(side, key) / self.elapsed for key in keys}
            of_key = [(load * rates.get(k, 0.0), self.partners(side, k)) for k in sorted(keys)]
            if self.given is None:  # for the keys that were forgotten
                unknown = self.arrived[side][0] / self.elapsed - sum(rates.values())
                of_key.append((load * max(unknown, 0.0), self.partners(side, -1)))
            sides.append(of_key)
        return sides

    def _plan(self) -> None:
        sides = self._classes()
        for at, side in enumerate(sides):
            total = sum(rows for rows, _ in side)
            mean = side[0][1] if self.by_age else 0.0
            if total:
                mean = sum(rows * n for rows, n in side) / total
            self.means[at], self.floors[at] = rounded(mean), rounded(0.05 * mean)
        memory = self._aim()
        self.drawing = "pps" if self.method == "auto" else self.method
        if self.drawing == "uniform" and self._ages_to_learn:
            known = [self._seen_at(side, step) for side in range(2) for step in range(STEPS)]
            if min(known) < 7.5:
                self.drawing = "cluster"
        if self.fraction is None:
            self.reserve = rounded((self.budget - memory) / 2)
        if self.drawing == "pps":
            self.constant = rounded(self._constant(sides, memory))
        elif self.fraction is None and self.drawing == "cluster":
            window = sum(rows for side in sides for rows, _ in side)
            self.share = rounded(min(memory / window, 1.0)) if window else 1.0
        elif self.fraction is None:
            needed = self._needed(sides)
            self.share = 1.0
            if needed(1.0) > memory:
                self.share = rounded(halved(0, 1, lambda p: needed(p) < memory))

    def _aim(self) -> float:
        """Return the average number of rows that the join aims to hold."""
        number, size = (sum(side[i] for side in self.arrived) for i in range(2))
        each = size / number if size else 1.0
        places = self.budget / each
        return each * halved(0, places, lambda m: m + self.margin * math.sqrt(m) < places)

    def _constant(self, sides: list[list[tuple[float, float]]], memory: float) -> float:
        """Return the constant with which clusters take the memory, or give the share of results."""
        parts = [
            (rows, n, max(n, 0.05 * sum(t * m for t, m in side) / sum(t for t, _ in side)))
            for side in sides
            if sum(t for t, _ in side)
            for rows, n in side
            if rows
        ]
        by_results = self.fraction is not None
        parts = [(rows * n if by_results else rows, n, size) for rows, n, size in parts if size]
        total = sum(cost for cost, _, _ in parts)
        budget = self.fraction * total if self.fraction is not None else memory
        if budget >= total * (1 - 1e-9):
            return math.inf
        most = max(1 / size for _, _, size in parts)

        def is_low(c: float) -> bool:
            return sum(cost * min(c * size, 1.0) for cost, _, size in parts) < budget

        return halved(0, most, is_low)

    def _stays(self, sides: list[list[tuple[float, float]]]) -> list[tuple[float, list[float]]]:
        """Return the memory of each class, and the part of a window with j matches found, j < most.

        Matches are even or as the curve has them (theorems 4.2 and 4.3), or random.
        """
        found = []
        for at, side in enumerate(sides):
            for rows, n in side:
                if not rows or not n:
                    continue
                numbers = range(math.ceil(n + self.reach * math.sqrt(n)))
                if self.by_age and self.reach == 0:
                    ages = [self._age_of(at, i) for i in range(len(numbers) + 1)]
                    stays = [b - a for a, b in pairwise(ages)]
                elif self.by_age:
                    stays = [self._stay(at, j) for j in numbers]
                else:
                    assert n <= 64
                    chances = [math.exp(j * math.log(n) - n - math.lgamma(j + 1)) for j in numbers]
                    stays = [max(1 - sum(chances[: j + 1]), 0.0) / n for j in numbers]
                found.append((rows, stays))
        return found

    def _needed(self, sides: list[list[tuple[float, float]]]) -> Callable[[float], float]:
        """Return the expected memory of UNIFORM by its fraction."""
        if self.reach == 0 and not self.by_age:
            return lambda p: sum(
                rows * (1 - (1 - p) * (1 - (1 - p) ** n) / (p * n))
                for side in sides
                for rows, n in side
                if rows and n and p > 0
            )
        classes = self._stays(sides)
        return lambda p: sum(
            rows * sum((1 - (1 - p) ** (len(stays) - j)) * stay for j, stay in enumerate(stays))
            for rows, stays in classes
        )

    def _age_of(self, side: int, match: int) -> float:
        """Return the part of its window at which a row has its i-th match (C inverse)."""
        passed, curve = 0.0, self._curve(side)
        for step, found in enumerate(curve):
            if match == 0:
                return 0.0
            if passed + found >= match:
                return (step + (match - passed) / found) / len(curve)
            passed += found
        return 1.0

    def _stay(self, side: int, number: int) -> float:
        """Return the part of its window for which a row has found this many matches."""
        curve, points, total = self._curve(side), 8, 0.0
        for step in range(len(curve)):
            for part in range(points):
                passed = sum(curve[:step]) + curve[step] * (part + 0.5) / points
                log = number * math.log(max(passed, 1e-300)) - passed - math.lgamma(number + 1)
                total += math.exp(log)
        return total / (len(curve) * points)


def _alike(one: Row, other: Row) -> bool:
    of = ("time", "side", "key", "row_hash")
    values: list[Any] = [getattr(one, name) == getattr(other, name) for name in of]
    return all(values)
