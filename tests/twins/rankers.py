"""Rankers: the policies as the slow twin computes them, in the simplest possible arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from twins.window import LEFT, RIGHT, Row, Time, Windows, in_force

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

    def paired(self, keys: Collection[int]) -> None:
        """Called for each result, with its key, or the keys of both rows if they differ."""

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
            self.came += [(clock, row.side, key) for key in row.credited]
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
        for key in row.credited:
            self._count(row.side, key, weight)

    def _count(self, side: int, key: int, weight: float) -> None:
        """Count an arrival."""
        if not self.columns:
            self.counts[side][key] = self.counts[side].get(key, 0.0) + weight
            return
        total = min(self.sketch.get(at, 0.0) for at in self._cells(side, key)) + weight
        for at in self._cells(side, key):
            self.sketch[at] = max(self.sketch.get(at, 0.0), total)
        for each in (LEFT, RIGHT):
            self.counts[each][key] = min(self.sketch.get(at, 0.0) for at in self._cells(each, key))

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

    def paired(self, keys: Collection[int]) -> None:
        """Count a result, for both sides."""
        for counts, key in product(self.counts, keys):
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
        """Return how many partners of the row the other side holds."""
        return sum(self.join.are_partners(h.row, row) for h in self.join.held)

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
        if added is not None and self.join.are_partners(added, row):
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
