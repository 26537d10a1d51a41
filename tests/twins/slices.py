"""The slow twin of `tidegate.joins.window.slices`: the queue of victims where ranks move.

It follows the docstring of that module sentence by sentence, with lists instead of heaps. Rows that
are no longer held are removed whenever a list is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twins.window import Held, Time

if TYPE_CHECKING:
    from twins.window import NaiveJoin

#: The smallest size of a slice, and the parts of the held rows at which slices close and merge.
SMALL, CLOSED, MERGED = 32, 64, 32
#: The number of choices after which the first rows of all slices are looked at again.
CHOICES = 32
#: The largest number of rows with results that are looked at in the next choice.
NOTED = 8


@dataclass
class Slice:
    """Rows of one side with consecutive arrivals, and their ranks at the time `base`.

    `rank` and `top` are those of the lowest row when it was last looked up.
    """

    first: int
    base: Time
    rows: dict[Held, float] = field(default_factory=dict)
    rank: float = math.inf
    top: float = math.inf


class Slices:
    """The queue of one join. It ranks all rows of a pool with at most `exact_limit` rows."""

    def __init__(self, join: NaiveJoin, exact_limit: int) -> None:
        self.join, self.exact_limit = join, exact_limit
        self.slices: list[list[Slice]] = [
            [Slice(0, 0)],
            [Slice(0, 0)],
        ]  # by side; two are not closed
        self.pushed = [0, 0]  # by side: rows that came since a slice was closed
        self.sliced, self.uses, self.at = [False, False], [0, 0], [0, 0]  # by pool
        self.noted: list[dict[Held, float]] = [{}, {}]  # by pool: rows with results, and ranks

    @property
    def now(self) -> Time:
        """The join's clock."""
        assert self.join.clock is not None
        return self.join.clock

    def sides(self, pool: int) -> list[int]:
        """Return the sides whose rows a pool holds."""
        return [0, 1] if self.join.split is None else [pool]

    def held(self, pool: int) -> int:
        """Return how many rows a pool holds, without the newcomer that is being added."""
        added = self.join.added
        return sum(h.row is not added and self.join.pool_of(h.row) == pool for h in self.join.held)

    def prune(self, part: Slice) -> None:
        """Remove rows that are no longer held."""
        held = set(self.join.held)
        part.rows = {row: rank for row, rank in part.rows.items() if row in held}

    def ordered(self, held: Held, when: Time) -> float:
        """Return the rank by which a slice is ordered."""
        return self.join.ranker.ordered(held.row, held.seq, when, 0.0)

    def rank_all(self, part: Slice) -> None:
        """Compute all ranks of a slice again."""
        self.prune(part)
        part.rows = {held: self.ordered(held, self.now) for held in part.rows}
        part.base, part.rank, part.top = self.now, -math.inf, part.first

    def rank_again(self) -> None:
        """Compute all ranks again."""
        for side, parts in enumerate(self.slices):
            if self.sliced[0 if self.join.split is None else side]:
                for part in parts:
                    self.rank_all(part)

    def push(self, held: Held) -> None:
        """Add a row."""
        side, pool = held.row.side, self.join.pool_of(held.row)
        newest = self.slices[side][-1]
        if not self.sliced[pool]:
            newest.rows[held] = 0.0
            return
        newest.rows[held] = -math.inf
        newest.rank, newest.top = (
            -math.inf,
            min(row.seq for row, rank in newest.rows.items() if rank == -math.inf),
        )
        self.pushed[side] += 1

    def end_tick(self) -> None:
        """Move newcomers of earlier ticks to the open slices, and close these if they are full."""
        for side, parts in enumerate(self.slices):
            pool = 0 if self.join.split is None else side
            if not self.sliced[pool] or parts[-1].base == self.now:
                continue
            newest, opened = parts[-1], parts[-2]
            self.prune(newest)
            for held in newest.rows:
                rank = opened.rows[held] = self.ordered(held, self.now)
                if (rank, held.seq) < (opened.rank, opened.top):
                    opened.rank, opened.top = rank, held.seq
            parts[-1] = Slice(self.join.arrivals, self.now)
            if self.pushed[side] >= max(SMALL, self.held(pool) // CLOSED):
                self.close(side)

    def close(self, side: int) -> None:
        """Close the open slice of a side, after removing slices at the start that are empty."""
        parts = self.slices[side]
        for part in parts:
            self.prune(part)
        while len(parts) > 2 and not parts[0].rows:
            del parts[0]
        self.rank_all(parts[-2])
        parts.append(Slice(self.join.arrivals, self.now))
        self.pushed[side] = 0

    def cut(self, pool: int) -> None:
        """Divide the rows of a pool into slices."""
        share = max(SMALL, self.held(pool) // CLOSED)
        for side in self.sides(pool):
            (whole,) = self.slices[side]
            self.prune(whole)
            rows = sorted(whole.rows, key=lambda held: held.seq)
            parts = [rows[at : at + share] for at in range(0, len(rows), share)]
            self.slices[side] = [
                Slice(part[0].seq, self.now, dict.fromkeys(part, 0.0)) for part in parts
            ] or [whole]
            for part in self.slices[side]:
                self.rank_all(part)
            self.slices[side] += [Slice(self.join.arrivals, self.now) for _ in range(2)]
            self.pushed[side] = 0
        self.sliced[pool] = True

    def visit(self, pool: int) -> None:
        """Compute the ranks of the next slice again, merged with a neighbour if both are small."""
        closed = [
            (side, at) for side in self.sides(pool) for at in range(len(self.slices[side]) - 2)
        ]
        if self.at[pool] >= len(closed):
            self.at[pool] = 0
            return
        side, at = closed[self.at[pool]]
        self.at[pool] += 1
        parts = self.slices[side]
        here, after = parts[at], parts[at + 1]
        self.prune(here)
        self.prune(after)
        share = max(SMALL, self.held(pool) // MERGED)
        if at + 3 < len(parts) and len(here.rows) + len(after.rows) <= share:
            here.rows |= after.rows
            del parts[at + 1]
        if here.rows:
            self.rank_all(here)
        else:
            del parts[at]

    def settle(self, part: Slice, is_open: bool) -> None:
        """Find the lowest row of a slice, and its rank now."""
        self.prune(part)
        while part.rows:
            lowest = min(part.rows, key=lambda held: (part.rows[held], held.seq))
            rank = self.join.ranker.rank(lowest.row, lowest.seq, self.now, 0.0)
            if lowest.seq == part.top and rank <= part.rank:
                part.rank = rank
                return
            before = part.rows[lowest]
            part.rows[lowest] = self.ordered(lowest, self.now if is_open else part.base)
            risen = part.rows[lowest] > before
            if not risen or lowest == min(part.rows, key=lambda h: (part.rows[h], h.seq)):
                part.rank, part.top = rank, lowest.seq
                return
        part.rank = part.top = math.inf

    def look_at(self, held: Held) -> None:
        """Note a row that is about to find a result, and its rank."""
        pool = self.join.pool_of(held.row)
        if self.sliced[pool] and held not in self.noted[pool]:
            rank = self.join.ranker.rank(held.row, held.seq, self.now, 0.0)
            known = {**self.noted[pool], held: rank}
            first = sorted(known, key=lambda row: row.seq)[:NOTED]
            self.noted[pool] = {row: known[row] for row in first}

    def lowest_noted(self, pool: int, rank: float, held: Held) -> tuple[float, Held]:
        """Return the lowest of a row and the noted ones whose rank fell; forget higher ones."""
        found, kept = [(rank, held.seq, held)], {}
        for other, before in self.noted[pool].items():
            if other in self.join.held:
                now = self.join.ranker.rank(other.row, other.seq, self.now, 0.0)
                if now < before and (now, other.seq) < (rank, held.seq):
                    found.append((now, other.seq, other))
                    kept[other] = before
        self.noted[pool] = kept
        lowest = min(found, key=lambda entry: entry[:2])
        return lowest[0], lowest[2]

    def choose(self, pool: int) -> tuple[float, Held]:
        """Return the row of a pool that is shed next, and its rank."""
        if self.held(pool) <= self.exact_limit:
            rows = [h for h in self.join.held if h.row is not self.join.added]
            rows = [h for h in rows if self.join.pool_of(h.row) == pool]
            ranks = [(self.join.ranker.rank(h.row, h.seq, self.now, 0.0), h.seq) for h in rows]
            lowest = min(range(len(rows)), key=ranks.__getitem__)
            return ranks[lowest][0], rows[lowest]
        if not self.sliced[pool]:
            self.cut(pool)
        self.uses[pool] += 1
        if self.uses[pool] >= max(CHOICES, self.held(pool) // CLOSED):
            closed = sum(len(self.slices[side]) - 2 for side in self.sides(pool))
            for _ in range(1 + closed * self.uses[pool] // self.held(pool)):
                self.visit(pool)
            for side in self.sides(pool):
                for part in self.slices[side][:-2]:
                    self.settle(part, is_open=False)
            self.uses[pool] = 0
        settled = None
        while True:
            parts = [part for side in self.sides(pool) for part in self.slices[side]]
            lowest_part = min(parts, key=lambda part: (part.rank, part.top))
            if lowest_part is settled:
                (victim,) = (held for held in settled.rows if held.seq == settled.top)
                return self.lowest_noted(pool, settled.rank, victim)
            self.settle(lowest_part, any(lowest_part in own[-2:] for own in self.slices))
            settled = lowest_part
