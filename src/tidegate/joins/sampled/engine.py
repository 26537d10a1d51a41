"""The engine of the sampled join: a random sample of the results of a bounded window join.

Section 4 of paper 2 (Srivastava, Widom). It is a window engine with another compiled loop: held
rows, their payload, clocks and the state log are those of the window engine. From time to time it
plans the inclusion probabilities anew, from the memory and from what it has learned of the streams.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Job
from tidegate.engine.payload import cut
from tidegate.engine.prepare import ROW_HASH, prepare
from tidegate.engine.state_codec import Parts
from tidegate.engine.state_log import Replay, batch_of, update_rows
from tidegate.joins.sampled import loop as sampled
from tidegate.joins.sampled.spec import SampledJoin
from tidegate.joins.window.arrays import Tables
from tidegate.joins.window.engine import WindowEngine
from tidegate.kernel import layout
from tidegate.kernel.hashing import fold
from tidegate.kernel.records import plain
from tidegate.learning.rates import UNSEEN
from tidegate.policies import Age
from tidegate.pool import sampling
from tidegate.pool.sampling import Side

#: The number of pairs that the loop finds before results are yielded.
_ROOM = 1 << 18
#: The number of keys without held rows that are still counted, without a memory limit.
_KEYS = 1 << 20
#: The largest number of monitored rows.
_MONITORS = 512
#: Half-lives, in windows, of what monitored rows have found: for the curve by age, and for judging
#: the model, which is poor at first and should soon be judged by later evidence.
_HALFLIFE, _JUDGED = 8.0, 2.0
#: Arrivals before the first plan, and the least number between two later plans.
_FIRST, _APART = 16, 8192
#: The share of the memory that is kept after an overflow, and the tolerance of its sums.
_FULL, _ABOUT = 63 / 64, 1.0 + 1e-9
#: Rows that must have been watched at an age; until then, the reach is without a limit.
_SURE, _ENDLESS = 7.5, 2.0**40
#: "auto" judges the model once this many results of monitored rows are known. It considers UNIFORM
#: if no more than this share of them would have been missed.
_EVIDENCE, _BEYOND = 200.0, 0.01
#: PPS-CLUSTER replaces EQ-CLUSTER if the model predicts at most this share of its variance, and
#: monitored rows show at most this multiple of it.
_PROMISED, _SHOWN = 0.95, 1.2

_METHODS = {"uniform": sampled.UNIFORM, "cluster": sampled.CLUSTER, "pps": sampled.PPS}
_INCLUSION = ("random_word", "passed", "next", "most")
_MONITOR = ("hash", "random_word", "time", "most", "found", "size", "side")


class SampledJob(Job):
    """The settings of a sampled join, and its engines."""

    def __init__(self, spec: SampledJoin) -> None:
        self.spec = spec

    @property
    def result_schema(self) -> pa.Schema:
        """The columns of the left and the right, the probability and the cluster."""
        return self.spec.result_schema

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Hash the rows of one stream; drop and count rows that can never join."""
        return prepare(self.spec.window.sides[stream], self.spec.window.unit, batch)

    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> SampledEngine:
        """Return the engine of one shard; the shares of all shards add up to the memory."""
        return SampledEngine(self.spec, shards=shards, shard=shard, keep_shed=keep_shed)

    def fingerprint(self) -> dict[str, Any]:
        """Return the settings that a checkpoint depends on."""
        return self.spec.settings()


class SampledEngine(WindowEngine):
    """A random sample of the join of two streams over sliding windows."""

    _checks_pairs = False

    def __init__(
        self,
        spec: SampledJoin,
        *,
        shards: int = 1,
        shard: int | None = None,
        keep_shed: bool = False,
    ) -> None:
        super().__init__(spec.window, shards=shards, shard=shard, keep_shed=keep_shed)
        if not spec.bounded:
            self._shares = [None]
        self.sampled, self._shards = spec, shards
        self._rules = self._rules._replace(
            kind=layout.NOTHING,
            cap=min(self._rules.cap, _KEYS) if not spec.bounded else self._rules.cap,
        )
        dtype = spec.window.unit.dtype
        self._tables = Tables(dtype, self._rules)
        self._logged = ["time", "seq"] + (["size"] if spec.window.in_bytes else [])
        self._sampler = sampled.SamplerState(
            scalars=np.zeros(1, sampled.SCALARS),
            plan=np.zeros(1, sampled.PLAN),
            sums=np.zeros(1, sampled.SUMS),
            flows=np.zeros(1, sampled.FLOWS),
            inclusions=np.zeros(0, sampled.INCLUSION),
            touched=np.zeros(0, np.int32),
            is_touched=np.zeros(0, np.bool_),
            monitors=np.zeros(_MONITORS, sampled.monitor_type(dtype)),
            ages=np.zeros((_MONITORS, sampled.STEPS), np.int32),
            heads=np.full(2 * _MONITORS, -1, np.int32),
            tallies=np.zeros(2, sampled.TALLY),
        )
        self._begin()

    # ---- input and output ---------------------------------------------------------------------

    def _run(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], close: bool
    ) -> Iterator[pa.RecordBatch]:
        """Process all complete ticks; the last one waits, as more of its rows may come."""
        given = [[self._open[s], *inputs[s]] for s in range(2)]
        if not any(b.num_rows for side in given for b in side):
            return
        first = [self._payload[s].add(given[s]) for s in range(2)]
        batch, order, left = self._batch(given, [0, 0], first)
        random_word = self._draw(given, batch, order)
        self._widen()
        core, total = self._tables.core, len(order)
        if not close and batch.time[-1] >= core.clock[0]:
            total = int(np.searchsorted(batch.time, batch.time[-1]))
        self._tables.begin_batch()
        out = self._sample(total)
        pairs, why = 0, layout.OUTPUT_FULL
        while why != layout.DONE:
            pairs, why = sampled.run(
                core, self._rules, self._sampler, batch, random_word, out, pairs, total
            )
            if why == sampled.REPLAN:
                self._replan()
                continue
            if why == sampled.OVERFULL:
                self._brake(out.pairs)
                continue
            if why == layout.TOO_MANY_KEYS:
                self._tables.forget()
                continue
            if pairs:
                for piece in self._cut(out.pairs.left[:pairs], out.pairs.right[:pairs]):
                    yield self._rows(out, piece)
                pairs = 0
            if why == layout.PROBE_TOO_LARGE:
                out = self._sample(total, pairs=2 * len(out.share))
        self._note_shed(out.pairs)
        self._settle(given, batch, order, left, first, close)

    def _draw(
        self, given: list[list[pa.RecordBatch]], batch: layout.Batch, order: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        """Return a random word for each row, by content and seed.

        So the sample depends neither on the order of rows nor on the cut into batches. Equal rows
        differ by their number in the tick, or in the stream if they are out of order.
        """
        row_hash = np.concatenate([b.column(ROW_HASH).to_numpy() for side in given for b in side])[
            order
        ]
        at = np.arange(len(order))
        same = np.zeros(len(order), np.bool_)
        same[1:] = (batch.hash[1:] == batch.hash[:-1]) & (row_hash[1:] == row_hash[:-1])
        same[1:] &= (batch.time[1:] == batch.time[:-1]) & (batch.side[1:] == batch.side[:-1])
        number = at - np.maximum.accumulate(np.where(same, 0, at))
        core = self._tables.core
        late = batch.time < core.stream_clock[batch.side]
        number[late] = core.scalars[0].seq + at[late] + len(order)
        random_word = np.full(len(order), self.spec.seed % 2**64, np.uint64)
        for words in (batch.side, batch.hash, row_hash, number):
            fold(random_word, words.astype(np.uint64))
        return random_word

    def _sample(self, newcomers: int, pairs: int = _ROOM) -> sampled.Sample:
        return sampled.Sample(
            self._output(newcomers, pairs=pairs), np.empty(pairs), np.empty(pairs, np.uint64)
        )

    def _cut(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> Iterator[slice]:
        """Cut pairs into pieces, with the bytes of their probability and cluster."""
        taken = self._payload[0].widths_of(left) + self._payload[1].widths_of(right)
        return cut(len(left), taken + 2 * 8, self._piece)

    def _rows(self, out: sampled.Sample, piece: slice) -> pa.RecordBatch:
        """Return sampled pairs as result rows."""
        columns, same = self._paired(out.pairs.left[piece], out.pairs.right[piece])
        # Copy, as the loop overwrites the arrays while a piece is still in use.
        columns += [
            pa.array(out.share[piece].copy()),
            pa.array(out.unit[piece].view(np.int64).copy()),
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.sampled.result_schema)
        if not same.all():
            rows = rows.filter(pa.array(same))
        self._flows["results"] += rows.num_rows
        self._importance += rows.num_rows
        return rows

    def _widen(self) -> None:
        """Grow the arrays of inclusions to one entry for every slot."""
        sampler, slots = self._sampler, len(self._tables.core.slots)
        old = len(sampler.inclusions)
        if old == slots:
            return
        inclusions, touched = np.zeros(slots, sampled.INCLUSION), np.zeros(slots, np.int32)
        is_touched = np.zeros(slots, np.bool_)
        inclusions[:old], touched[:old], is_touched[:old] = (
            sampler.inclusions,
            sampler.touched,
            sampler.is_touched,
        )
        self._sampler = sampler._replace(
            inclusions=inclusions, touched=touched, is_touched=is_touched
        )

    def take_counters(self) -> dict[str, int | float]:
        """Return the counters, with those of predicted and monitored results."""
        taken = self._sampler.flows
        flows = {name: float(taken[name][0]) for name in sampled.FLOWS.fields or ()}
        taken[:] = np.zeros_like(taken)
        return super().take_counters() | flows

    # ---- another memory -----------------------------------------------------------------------

    def resize(self, number: int, memory: int) -> None:
        """Change the budget to `memory` rows or bytes, by budget update `number`.

        If the held rows do not fit, a random sample of them stays. Its share is known, so the
        inclusion probabilities of the rest are known too. With a memory of 0 nothing is held.
        """
        self._allow(number, memory)
        core, budget = self._tables.core, float(self._rules.budgets[0, 0])
        if core.pools[0].used > budget:
            self._widen()
            out = self._output(0, pairs=0)
            core.scalars[0].noted = 0
            self._thin(budget, out)
            self._note_shed(out)
            self._sweep(tight=self._overweight)
        if core.model[0].elapsed > 0.0 or self._is_given:
            self._plan(self.sides())
        else:
            self._sampler.plan[0].reserve = budget / 2

    def _brake(self, out: layout.Output) -> None:
        """Thin the held rows after an overflow, and lower later probabilities by that share."""
        sampler, seen = self._sampler, int(self._tables.core.scalars[0].seq)
        share = self._thin(_FULL * float(self._rules.budgets[0, 0]), out)
        sampler.plan[0].brake *= share
        soon = seen + max(_FIRST, seen // 8)
        sampler.scalars[0].replan_at = min(int(sampler.scalars[0].replan_at), soon)

    def _thin(self, memory: float, out: layout.Output) -> float:
        """Shed rows at random until the rest fits the plan and the memory; return the share kept.

        It is the largest share that fits. It is the threshold of the first row that does not stay,
        and so does not depend on the rows that stay: given the share, each row stays with exactly
        that probability. One row always stays, if it fits at all.
        """
        core, sampler = self._tables.core, self._sampler
        budget = float(self._rules.budgets[0, 0])
        slots = np.flatnonzero(core.slots["seq"] >= 0)
        size = core.slots["size"][slots].astype(np.float64)
        wanted = max(min(self._room(budget), memory), min(float(size.max()), budget))
        above = np.empty(len(slots))
        sampled.thresholds(core, sampler, slots, above)
        order = np.argsort(above, kind="stable")
        stay = int((np.cumsum(size[order]) <= wanted * _ABOUT).sum())
        share = float(above[order[stay]])
        sampled.thin(core, self._rules, sampler, out, slots, above, share)
        return share

    # ---- the plan -----------------------------------------------------------------------------

    @property
    def fraction(self) -> float:
        """The present sampling fraction; under PPS-CLUSTER the expected share of results."""
        plan = self._sampler.plan[0]
        if plan.method != sampled.PPS:
            return float(plan.share)
        sides = self.sides()
        shares = [np.minimum(plan.constant * side.sizes, 1.0) for side in sides]
        total = sum(float(side.rows @ side.matches) for side in sides)
        kept = [(s.rows * s.matches) @ share for s, share in zip(sides, shares, strict=True)]
        return float(sum(kept)) / total if total else 1.0

    @property
    def method(self) -> str:
        """The present method."""
        number = int(self._sampler.plan[0].method)
        return next(name for name, code in _METHODS.items() if code == number)

    def _begin(self) -> None:
        """Make the first plan, from a given model if there is one."""
        spec, plan = self.sampled, self._sampler.plan[0]
        budget = float(self._rules.budgets[0, 0])
        plan.by_age = float(spec.by_age)
        plan.mean[:] = 1.0
        plan.brake = 1.0
        plan.again[:] = math.inf
        plan.share = 1.0 if spec.fraction is None else spec.fraction
        self._draw_by(sampled.UNIFORM if spec.method == "uniform" else sampled.CLUSTER)
        if spec.fraction is None:
            plan.reserve = budget / 2
        self._sampler.scalars[0].replan_at = min(_FIRST, max(int(budget) // 8, 1))
        if self._is_given:
            self._plan(self.sides())

    @property
    def _is_given(self) -> bool:
        """True if the model is given and nothing needs to be learned."""
        return self._rates(given=True) is not None and not self._rules.learn

    def _replan(self) -> None:
        """Add the findings of monitored rows, and make a new plan."""
        core, sampler = self._tables.core, self._sampler
        sampled.tidy(core, self._rules, sampler)
        now, seen = float(core.clock[0]), int(core.scalars[0].seq)
        since = max(now - sampler.plan[0].planned, 0.0) if sampler.plan[0].planned else 0.0
        for name in sampled.TALLY.names or ():
            halflife = _HALFLIFE if name in ("by_step", "watched") else _JUDGED
            sampler.tallies[name] *= 2.0 ** -(since / (halflife * self.horizon))
        sampler.plan[0].planned = now
        if 4 * sampler.scalars[0].monitors < _MONITORS and sampler.scalars[0].thinned:
            sampler.scalars[0].thinned -= 1
        sampler.scalars[0].replan_at = seen + 1
        if core.model[0].elapsed <= 0.0:
            return
        self._release(since)
        self._plan(self.sides())
        arrived = sampler.sums[0].arrived
        sampler.plan[0].again[:] = np.maximum(2.0 * arrived, arrived + 1.0)
        rate = float(sampler.sums[0].arrived.sum()) / core.model[0].elapsed
        apart = max(_APART, int(core.scalars[0].stat_only), rate * self.horizon / 16)
        sampler.scalars[0].replan_at = seen + int(min(max(seen, _FIRST), apart))

    def _release(self, since: float) -> None:
        """Raise probabilities again after an overflow, within about a window, as memory allows."""
        plan, held = self._sampler.plan[0], float(self._tables.core.pools[0].used)
        more = max(self._room(float(self._rules.budgets[0, 0])) / max(held, 1.0), 1.0)
        part = more ** min(since / self.horizon, 1.0)
        plan.brake = min(_rounded(plan.brake * part), 1.0)

    def _plan(self, sides: list[Side]) -> None:
        """Choose the method and the probabilities (sections 4.2.2 and 4.3.1)."""
        spec, plan = self.sampled, self._sampler.plan[0]
        for at, side in enumerate(sides):
            plan.mean[at] = _rounded(side.mean)
            plan.floor[at] = _rounded(sampling.FLOOR * side.mean)
        budget = float(self._rules.budgets[0, 0])
        memory = self._aim(budget)
        if spec.fraction is None:
            plan.reserve = _rounded((budget - memory) / 2)
        method = self._method(sides, memory)
        self._draw_by(method)
        if method == sampled.PPS:
            plan.constant = _rounded(self._constant(sides, memory))
        elif spec.fraction is None:
            plan.share = _rounded(self._share(sides, memory, method))

    def _aim(self, budget: float) -> float:
        """Return the memory to fill on average; infinite if a fraction is given."""
        return self._room(budget) if self.sampled.fraction is None else math.inf

    def _room(self, budget: float) -> float:
        """Return the memory that can be filled on average, so that overflows are rare."""
        return sampling.target(budget / self.mean_size, self.sampled.margin) * self.mean_size

    def _method(self, sides: list[Side], memory: float) -> int:
        asked = self.sampled.method
        return self._possible(_METHODS[self._best(sides, memory) if asked == "auto" else asked])

    def _possible(self, method: int) -> int:
        """Return the method, or CLUSTER in place of UNIFORM until matches can be predicted."""
        return sampled.CLUSTER if method == sampled.UNIFORM and not self._is_sure() else method

    def _share(self, sides: list[Side], memory: float, method: int) -> float:
        """Return the probability of every pair, or of every cluster."""
        if self.sampled.fraction is not None:
            return self.sampled.fraction
        if method == sampled.UNIFORM:
            return sampling.uniform_fraction(sides, memory, self.sampled.reach)
        return sampling.cluster_fraction(sides, memory)

    def error(self, sides: list[Side], budget: int) -> float:
        """Return the relative variance of a count over a window with a budget (section 5)."""
        total = sum(float(side.rows @ side.matches) for side in sides) / self.mean_size
        if total <= 0:
            return 0.0
        memory = self._aim(float(self._rules_for(budget).budgets[0, 0]))
        method = self._method(sides, memory)
        if method == sampled.PPS:
            constant = self._constant(sides, memory)
            shares = [np.minimum(constant * side.sizes, 1.0) for side in sides]
        else:
            share = self._share(sides, memory, method)
            shares = [np.full(len(side.rows), share) for side in sides]
        alike = None if method == sampled.UNIFORM else (1.0, 1.0)
        return sampling.variance(sides, shares, alike) / self.mean_size / total**2

    def _draw_by(self, method: int) -> None:
        """Use a method from now on."""
        plan = self._sampler.plan[0]
        plan.reach = self.sampled.reach if self._is_sure() else _ENDLESS
        plan.method = self._possible(method)

    def _constant(self, sides: list[Side], memory: float) -> float:
        if self.sampled.fraction is None:
            return sampling.pps_for_memory(sides, memory)
        return sampling.pps_for_fraction(sides, self.sampled.fraction)

    def _best(self, sides: list[Side], memory: float) -> str:
        """Return the method with the smallest predicted variance, if the model can be trusted.

        Section 4.3.2: UNIFORM if the model is accurate and clusters differ in what they add to the
        result. Otherwise clusters, by size if sizes differ and can be predicted.
        """
        spec, tallies = self.sampled, self._sampler.tallies
        found = tallies["found"].sum()
        if found < _EVIDENCE:
            return "pps"
        pairs = self._share(sides, memory, sampled.UNIFORM)
        equal = self._share(sides, memory, sampled.CLUSTER)
        constant = self._constant(sides, memory)
        one = [np.ones(len(side.rows)) for side in sides]
        by_size = [np.minimum(constant * side.sizes, 1.0) for side in sides]
        drawn = sampling.variance(sides, [pairs * part for part in one], None)
        alike = sampling.variance(sides, [equal * part for part in one], spec.alike)
        sized = sampling.variance(sides, by_size, spec.alike)
        if tallies["over"].sum() <= _BEYOND * found and drawn < min(alike, sized):
            return "uniform"
        if sized > _PROMISED * alike or self._shown > _SHOWN:
            return "cluster"
        return "pps"

    @property
    def _shown(self) -> float:
        """The variance of PPS-CLUSTER over that of EQ-CLUSTER, measured on monitored rows."""
        tallies, alike = self._sampler.tallies, np.array(self.sampled.alike)
        of_results = _stacked(tallies, "found", "found_by_size")
        of_squares = _stacked(tallies, "squares", "squares_by_size")
        equal, by_size = (alike @ of_squares + (1.0 - alike) @ of_results).tolist()
        judged = _stacked(tallies, "judged", "sizes_foreseen")
        rows, sizes = np.array(self.windows) @ judged
        return float(by_size * sizes / (equal * rows)) if equal > 0 else 1.0

    @property
    def windows(self) -> tuple[float, float]:
        """The windows of the left and the right, in the time unit of the kernel."""
        return float(self._rules.window_left), float(self._rules.window_right)

    @property
    def horizon(self) -> float:
        """The longest window."""
        return max(self.windows)

    @property
    def clock(self) -> float | None:
        """The largest time seen so far."""
        return float(self._tables.core.clock[0]) if self._sampler.scalars[0].seen else None

    @property
    def mean_size(self) -> float:
        """The mean size of a row."""
        sums = self._sampler.sums[0]
        arrived, sizes = sums.arrived.sum(), sums.sizes.sum()
        return float(sizes / arrived) if sizes > 0 else 1.0

    def _rates(self, *, given: bool = False) -> list[float] | None:
        """Return the arrivals per unit of time, by side; with `given`, None if they are learned."""
        spec = self.spec
        if spec.frequencies is not None:
            return [float(f.sum()) / self._shards for f in spec.frequencies[1:]]
        policy = spec.policy
        if isinstance(policy, Age) and policy.curve is not None and policy.rates is not None:
            return [rate / spec.second / self._shards for rate in policy.both_rates]
        if given:
            return None
        arrived = self._sampler.sums[0].arrived
        learned: list[float] = (arrived / self._tables.core.model[0].elapsed).tolist()
        return learned

    def sides(self) -> list[Side]:
        """Return the content of both windows, by the model."""
        rates = self._rates()
        assert rates is not None
        sides = []
        for at, (rate, window) in enumerate(zip(rates, self.windows, strict=True)):
            load = window * self.mean_size
            if self.sampled.by_age:
                curve = self._curve(at)
                sides.append(Side(np.array([rate * load]), np.array([curve.sum()]), curve))
                continue
            own, matches = self._by_key(at, rate, window)
            sides.append(Side(*sampling.classes(load * own, matches)))
        return sides

    def _by_key(
        self, side: int, rate: float, window: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the arrivals of a side per unit of time and their partners, by key."""
        given = self.spec.frequencies
        if given is not None:
            own, other = (given.left, given.right) if side == 0 else (given.right, given.left)
            return own / self._shards, other * window
        core = self._tables.core
        elapsed, used = float(core.model[0].elapsed), int(core.scalars[0].entries)
        counts = core.groups["rate"][: 2 * used].reshape(-1, 2) * core.model[0].weight
        own, other = counts[:, side] / elapsed, counts[:, 1 - side]
        unknown = max(rate - float(own.sum()), 0.0)
        own, other = np.append(own, unknown), np.append(other, 0.0)
        return own, (other + UNSEEN) / (elapsed + 0.125 * self.horizon) * window

    def _curve(self, side: int) -> NDArray[np.float64]:
        """Return the results of a row by age: given, or measured on monitored rows (section 2.3).

        One additional row, with one result spread over all ages, is the prior.
        """
        policy = self.spec.policy
        assert isinstance(policy, Age)
        if policy.curve is not None:
            return np.asarray(policy.both_curves[side], np.float64)
        sampler, number = self._sampler, int(self._sampler.scalars[0].monitors)
        mine = sampler.monitors["side"][:number] == side
        found = sampler.tallies[side].by_step + sampler.ages[:number][mine].sum(axis=0)
        curve: NDArray[np.float64] = (found + 1.0 / sampled.STEPS) / (self._watched(side) + 1.0)
        return curve

    def _watched(self, side: int) -> NDArray[np.float64]:
        """Return the number of monitored rows that have passed each step of age."""
        sampler, number = self._sampler, int(self._sampler.scalars[0].monitors)
        mine = sampler.monitors["side"][:number] == side
        window = self.windows[side]
        times = sampler.monitors["time"][:number][mine]
        lived = float(self._tables.core.clock[0]) - times.astype(np.float64)
        steps = np.arange(sampled.STEPS)
        by_step = np.clip((lived / window * sampled.STEPS)[:, np.newaxis] - steps, 0.0, 1.0)
        watched: NDArray[np.float64] = by_step.sum(axis=0) + sampler.tallies[side].watched
        return watched

    def _is_sure(self) -> bool:
        """True if matches can be predicted, as UNIFORM samples none beyond the prediction.

        A learned age curve is unknown until rows have reached the oldest ages.
        """
        policy = self.spec.policy
        if not isinstance(policy, Age) or policy.curve is not None:
            return True
        return all(self._watched(side).min() >= _SURE for side in range(2))

    # ---- state --------------------------------------------------------------------------------

    def _head(self) -> dict[str, Any]:
        own = {name: plain(array)[0].tolist() for name, array in self._numbers().items()}
        return super()._head() | {"sampler": own}

    def _numbers(self) -> dict[str, NDArray[Any]]:
        """Return the numbers that a record keeps, by the name that it has for them."""
        sampler = self._sampler
        return {"ints": sampler.scalars, "plan": sampler.plan, "sums": sampler.sums}

    def _model(self, *, changed: bool) -> Parts:
        """Return the inclusions that are new or changed, or all; and the monitored rows."""
        sampler, slots = self._sampler, self._tables.core.slots
        if changed:
            touched = sampler.touched[: sampler.scalars[0].touched].astype(np.int64)
            wanted = np.concatenate([self._tables.unmarked(), touched[slots["seq"][touched] >= 0]])
        else:
            wanted = np.flatnonzero(slots["seq"][: len(sampler.inclusions)] >= 0)
        inclusions = {name: slots[name][wanted] for name in ("seq", "rank")}
        inclusions |= {name: sampler.inclusions[name][wanted] for name in _INCLUSION}
        number = int(sampler.scalars[0].monitors)
        ages = sampler.ages[:number].ravel()
        places = np.flatnonzero(ages)
        return {
            "inclusions": batch_of(inclusions),
            "monitors": batch_of({name: sampler.monitors[name][:number] for name in _MONITOR}),
            "ages": batch_of({"place": places, "found": ages[places]}),
            "tallies": batch_of({"value": plain(sampler.tallies).ravel()}),
        }

    def _mark(self) -> None:
        super()._mark()
        self._sampler.scalars[0].touched = 0
        self._sampler.is_touched[:] = False

    def _load(self, log: Replay) -> None:
        super()._load(log)
        self._widen()
        sampler, core = self._sampler, self._tables.core
        for name, array in self._numbers().items():
            plain(array)[0] = log.head["sampler"][name]
        slots = np.flatnonzero(core.slots["seq"] >= 0)
        slots = slots[np.argsort(core.slots["seq"][slots])]
        known = {name: core.slots[name][slots] for name in ("seq", "rank")}
        known |= {name: sampler.inclusions[name][slots] for name in _INCLUSION}
        update_rows(known, log.all("inclusions"), ("rank", *_INCLUSION))
        core.slots["rank"][slots] = known["rank"]
        for name in _INCLUSION:
            sampler.inclusions[name][slots] = known[name]
        monitors = log.last("monitors")
        for name in _MONITOR:
            sampler.monitors[name][: monitors.num_rows] = monitors.column(name).to_numpy()
        places, found = (column.to_numpy() for column in log.last("ages").columns)
        sampler.ages.reshape(-1)[places] = found
        plain(sampler.tallies).reshape(-1)[:] = log.last("tallies").column(0).to_numpy()
        sampled.index_monitors(sampler)


def _rounded(number: float) -> float:
    """Round to nine digits, as the order in which keys are summed depends on batches."""
    return float(f"{number:.9g}")


def _stacked(rows: NDArray[Any], *names: str) -> NDArray[np.float64]:
    """Return fields of a structured array as the columns of a matrix."""
    return np.stack([rows[name] for name in names], axis=1)
