"""Find the optimum by brute force: try every choice of rows to keep at every tick.

It shares no code with `tidegate.optimal` and follows the rules of `docs/concepts` sentence
by sentence. The number of choices doubles with every row, so inputs must be very small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

Time = int | float
Steps = list[tuple[Time, Time]]

LEFT, RIGHT = 0, 1
COMBINE: dict[str, Callable[[float, float], float]] = {
    "min": min,
    "max": max,
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
}


@dataclass(frozen=True)
class Row:
    """One row; `uid` is its number in the input of its side."""

    side: int
    key: int
    time: Time
    uid: int
    importance: float = 1.0


def in_force(steps: Steps, time: Time) -> Time:
    """Return the value of a schedule at a time."""
    value = steps[0][1]
    for start, later in steps:
        if start <= time:
            value = later
    return value


def always(left: Row, right: Row) -> bool:
    """Accept any pair."""
    return True


@dataclass
class Case:
    """A join to solve. `memory` may be infinite; `split` is the left's share or None."""

    rows: list[Row]
    within: tuple[Steps, Steps]
    memory: Steps
    split: float | None = None
    shed_when: str = "after-probe"
    combine: str | None = None
    where: Callable[[Row, Row], bool] = always
    count_from: Time = -math.inf
    pair_value: Callable[[Row, Row], float] | None = None

    def joins(self, a: Row, b: Row) -> bool:
        """Return True if two rows join, provided that neither has been shed."""
        if a.side == b.side:
            return False
        left, right = (a, b) if a.side == LEFT else (b, a)
        return (
            left.key == right.key
            and right.time < left.time + in_force(self.within[LEFT], left.time)
            and right.time > left.time - in_force(self.within[RIGHT], right.time)
            and self.where(left, right)
        )

    def worth(self, ones: Sequence[Row], others: Sequence[Row], time: Time) -> float:
        """Return what the pairs between two lists of rows are worth at a time."""
        if time < self.count_from:
            return 0.0
        return sum(self.value(a, b) for a in ones for b in others if self.joins(a, b))

    def value(self, a: Row, b: Row) -> float:
        """Return what one pair is worth."""
        if self.pair_value is not None:
            return self.pair_value(*((a, b) if a.side == LEFT else (b, a)))
        return 1.0 if self.combine is None else COMBINE[self.combine](a.importance, b.importance)

    def fits(self, held: Sequence[Row], time: Time) -> bool:
        """Return True if these rows fit into the memory."""
        total = in_force(self.memory, time)
        if self.split is None or math.isinf(total):
            return len(held) <= total
        left = min(max(math.floor(total * self.split), 1), total - 1)
        mine = sum(row.side == LEFT for row in held)
        return mine <= left and len(held) - mine <= total - left

    def earned(
        self, old: Sequence[Row], new: Sequence[Row], kept: Sequence[Row], time: Time
    ) -> float:
        """Return what a tick earns, given the rows held before, the newcomers and the rows kept."""
        if self.shed_when == "after-probe":
            return self.worth(new, old, time) + self.worth(new, new, time) / 2
        stay = [row for row in old if row in kept]
        if self.shed_when == "before-arrival":
            new = [row for row in new if row in kept]
        return self.worth(new, stay, time) + self.worth(new, new, time) / 2

    def optimum(self) -> float:
        """Return the best total over all choices."""
        times = sorted({row.time for row in self.rows} | {start for start, _ in self.memory})
        best: dict[frozenset[Row], float] = {frozenset(): 0.0}
        for time in times:
            new = [row for row in self.rows if row.time == time]
            # Rows that can have no more partners may be dropped.
            to_come = [row for row in self.rows if row.time > time]
            awaited = {row for row in self.rows if any(self.joins(row, x) for x in to_come)}
            after: dict[frozenset[Row], float] = {}
            for held, so_far in best.items():
                old = list(held)
                everyone = old + new
                choices = chain.from_iterable(
                    combinations(everyone, n) for n in range(len(everyone) + 1)
                )
                for kept in choices:
                    if self.fits(kept, time):
                        value = so_far + self.earned(old, new, kept, time)
                        state = frozenset(row for row in kept if row in awaited)
                        if value > after.get(state, -math.inf):
                            after[state] = value
            best = after
        return max(best.values())
