"""Slow reference implementation of `Auto` in star joins, based on that of the window join."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from twins import learned


class Auto(learned.Auto):
    """The window join's `Auto` for n streams whose rows meet through the facts of a relation.

    `join` is the `NaiveStar` that it ranks for. Streams take the place of sides.
    """

    join: Any
    windows: Any
    found: Any

    def __init__(self, join: Any) -> None:
        super().__init__(join.windows, halflife=join.halflife or None)
        self.join = join
        self.counts = [{} for _ in join.windows]
        self.sums: dict[tuple[int, int], float] = {}  # by stream and key: importance

    def observe(self, row: Any, clock: Any) -> None:
        """Count the key, and add up its importance with the same weights."""
        before = self.counts[row.side].get(row.key, 0.0)
        super().observe(row, clock)
        weight = self.counts[row.side][row.key] - before
        at = row.side, row.key
        self.sums[at] = self.sums.get(at, 0.0) + weight * row.weight

    def ways(self, fact: Any, *streams: int) -> float:
        """Return the combinations of rows of all streams but two, for a fact.

        Held rows count 1, and recent arrivals a quarter.
        """
        ways, held = 1.0, [h.row for h in self.join.held]
        for s, key in enumerate(fact.keys):
            if s not in streams:
                recent = self.faded(s, key, float(self.join.clock))
                ways *= sum(u.side == s and u.key == key for u in held) + 0.25 * recent
        return ways

    def faded(self, stream: int, key: int, when: float) -> float:
        """Return the recent count of a key at a time."""
        time, count, _ = self.recent.get((stream, key), (0, 0.0, 1.0))
        return count * math.exp2(-max(when - float(time), 0.0) / (0.125 * self.span))

    def through(self, row: Any, when: float) -> tuple[float, float, float]:
        """Return usual and recent arrivals through the facts of a row, and the former's importance.

        An arrival counts once for each combination of held rows that completes a result.
        """
        came = lately = value = 0.0
        for fact in self.join._facts(row):
            if fact.end <= self.join.clock:
                continue
            own, means = 0.0, []
            for s, key in enumerate(fact.keys):
                if s == row.side:
                    continue
                ways, count = self.ways(fact, row.side, s), self.fading(s, key)
                own += ways * count
                if (s, key) in self.recent:
                    lately += ways * 2.0 ** self.lately(s, key, when)
                known = self.counts[s].get(key, 0.0)
                means.append(self.sums[s, key] / known if known > 0 else 0.0)
            came += own
            if self.join.combine is not None and own > 0:
                value += own * self.join.combined([row.weight, *means])
        return came, lately, value

    def place(self, row: Any, age: float) -> tuple[float, float, float, float]:
        """Return the results expected per window, and a row's place in the table at an age."""
        window = self.windows[row.side]
        came, lately, _ = self.through(row, float(row.time) + age)
        expected, level, trend, step = 0.5, 0.0, 0.0, 0.0
        if came > 0:
            expected = (came + 0.5) * self.span / (self.elapsed + 0.125 * self.span)
            level = min(max(math.log2(expected) + 7.0, 1.0), self.LEVELS - 1.0)
        if lately > 0:
            trend = math.log2(lately) - math.log2(expected) + 3.0
        if not math.isinf(window):
            at = min(max(age * 16 / window, 0.0), 15.0)
            step = float(np.interp(at, self.STARTS, range(self.STEPS)))
        return expected, step, level, min(max(trend, 0.0), self.TRENDS - 1.0)

    def piece(self, ghost: Any, age: float) -> float:
        """Return infinity: where links lead to several keys, only steps of age are told apart."""
        return math.inf

    def finish(self, ghost: Any, clock: Any) -> None:
        """Add nothing: the links of a ghost may have ended before its window."""

    def arrived(self, rows: Sequence[Any], seq: int, clock: Any) -> None:
        """Count results for the ghosts that newcomers would have joined; then add new ghosts."""
        for row in rows:
            for ghost in list(self.ghosts):
                for fact in self.join._facts(row):
                    if ghost.side == row.side or fact not in self.join._facts(ghost):
                        continue
                    last = max(row.time, ghost.time)
                    if any(last >= u.time + self.windows[u.side] for u in (row, ghost)):
                        continue
                    self.expect(ghost, clock)
                    if ways := self.ways(fact, row.side, ghost.side):
                        self.count(1, ghost, float(clock - ghost.time), ways)
                        self.found[ghost.uid] += ways
        left = [row for row in rows if not self.join._overdue(row)]
        self.ghosts += left
        self.until |= {row.uid: clock for row in left}

    def forget(self) -> None:
        """Reduce old counts, and rank all rows again before the next is shed."""
        super().forget()
        self.join.left = [0] * len(self.windows)

    def rank(self, row: Any, seq: int, now: Any, floor: float) -> float:
        """Return the logarithm of the importance expected, corrected by the table."""
        came, _, value = self.through(row, float(now))
        mean = value / came if value > 0 else row.weight
        expected, step, level, trend = self.place(row, float(now - row.time))
        corrected = self.corrected(row.side, step, level, trend)
        rank = math.log2(max(mean, 2.0**-200)) + math.log2(expected) + corrected
        return math.floor(rank * 2.0**24 + 0.5) / 2.0**24
