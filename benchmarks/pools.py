"""One memory for several joins: paper 2's figures 10 and 11, predictions, and shards."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate as tg
from benchmarks.foreseen import (
    KINDS,
    METHODS,
    SHARES,
    by_a_sample,
    by_copies,
    of_joins,
    samples,
    sizes_for,
    star,
)
from benchmarks.measure import Step
from benchmarks.policies import DATA, Tables
from benchmarks.report import Figure, Section, Table
from tidegate.engine.prepare import shard_of
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.shadow import WindowCopies
from tidegate.joins.window.spec import window_join
from tidegate.policies import Age, Policy, Prob
from tidegate.pool.allocation import allocate, proportional
from tidegate.pool.curves import Curve, of_earnings
from tidegate.pool.member import PooledJob, RecallEstimator
from tidegate.pool.split import by_age, by_frequency
from tidegate.settings.columns import decoded
from tidegate.spark.budget_updates import latest
from tidegate.spark.pool_controller import PoolMembership
from tidegate.streams import zipf

#: Section 6.2: one left row and five right rows per unit of time, and a window of 500 on the
#: left. Frequencies: 50 values; ages: 20 steps, five partners each.
WINDOW, RIGHT, DOMAIN, STEPS, PARTNERS = 500, 5, 50, 20, 5
#: Ages have a finer unit than times.
FINE = 1_000


@dataclass(frozen=True)
class Scale:
    """The length of the streams, and what is tried."""

    ticks: int = 20_000
    skews: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0)
    powers: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0, 4.0)
    predicted: int = 5_000
    policies: tuple[str, ...] = ("prob", "auto")
    shards: tuple[int, ...] = (2, 4)
    seeds: int = 2
    #: Windows of which shadow joins hold a part, and seeds of samples.
    large: int = 30_000
    samples: int = 60


FULL = Scale()
QUICK = Scale(
    ticks=2_500,
    skews=(0.5, 2.0),
    powers=(1.0, 3.0),
    predicted=2_000,
    policies=("prob",),
    seeds=1,
    large=400,
    samples=5,
)


# ---- figures 10 and 11 --------------------------------------------------------------------------


@dataclass(frozen=True)
class Join:
    """Streams whose left window is joined, the model that predicts recall, and the policy."""

    tables: Tables
    curve: Curve
    policy: Policy
    unit: int = 1

    def recall(self, memory: float) -> float:
        """Measure recall with a given memory."""
        window = WINDOW * self.unit
        settings: dict[str, Any] = {"on": "key", "time": "time", "within": (window, 1)}
        left, right = self.tables
        exact = tg.join(left, right, **settings).results
        found = tg.join(left, right, **settings, memory=max(round(memory), 1), policy=self.policy)
        return float(found.results / exact)


def by_skew(scale: Scale, skew: float, correlation: str, seed: int) -> Join:
    """Return a join of figure 10: Zipf keys, frequent on both sides (DC) or on opposite ones."""
    tables = zipf(
        scale.ticks,
        domain=DOMAIN,
        skew=skew,
        correlation=correlation,
        rate=(1.0, RIGHT),
        seed=seed,
    )
    pace = np.arange(1, DOMAIN + 1) ** -skew
    left = pace / pace.sum()
    right = RIGHT * (left if correlation == "same" else left[::-1])
    # Right rows find no later partners, so they are worth nothing.
    known = {"key": range(DOMAIN), "left": np.zeros(DOMAIN), "right": right}
    return Join(tables, of_earnings(by_frequency(left, right, WINDOW)), Prob(known))


def by_power(scale: Scale, power: float, shape: str, seed: int) -> Join:
    """Return a join of figure 11: partners by age as k**p (INC) or (m - k)**p (DEC)."""
    at = np.arange(1, STEPS + 1) if shape == "inc" else np.arange(STEPS - 1, -1, -1)
    curve = at.astype(np.float64) ** power
    curve *= PARTNERS / curve.sum()
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(WINDOW, scale.ticks, RIGHT * (scale.ticks - WINDOW)))
    steps = rng.choice(STEPS, len(times), p=curve / curve.sum())
    born = np.floor(times - (steps + rng.random(len(times))) * (WINDOW / STEPS)).astype(np.int64)
    left = pa.table({"key": np.arange(scale.ticks), "time": FINE * np.arange(scale.ticks)})
    right = pa.table({"key": np.maximum(born, 0), "time": (FINE * times).astype(np.int64)})
    earned = by_age(curve, 1.0, WINDOW)
    return Join((left, right), of_earnings(earned), Age((curve.tolist(), [0.0])), FINE)


def divided(joins: Sequence[Join], share: float) -> dict[str, list[float]]:
    """Divide a share of what all joins need, by ALLOC and by PROP."""
    curves = [join.curve for join in joins]
    memory = share * sum(curve.need for curve in curves)
    return {
        "ALLOC": allocate(curves, [1.0] * len(curves), memory),
        "PROP": proportional(curves, memory),
    }


@dataclass(frozen=True)
class Point:
    """One setting: ALLOC's shares of what both joins need, and each method's lower recall."""

    shares: list[float]
    foreseen: float
    alloc: float
    prop: float


def point(pairs: Sequence[Sequence[Join]], share: float) -> Point:
    """Return the mean over seeds."""
    found: dict[str, list[float]] = {"ALLOC": [], "PROP": []}
    for joins in pairs:
        for name, shares in divided(joins, share).items():
            recalls = [join.recall(memory) for join, memory in zip(joins, shares, strict=True)]
            found[name].append(min(recalls))
    first = divided(pairs[0], share)["ALLOC"]
    need = sum(join.curve.need for join in pairs[0])
    return Point(
        shares=[memory / need for memory in first],
        foreseen=min(j.curve.at(m) for j, m in zip(pairs[0], first, strict=True)),
        alloc=float(np.mean(found["ALLOC"])),
        prop=float(np.mean(found["PROP"])),
    )


def figure_10(scale: Scale, skew: float) -> Point:
    """Measure with memory for 20 % of what both joins need."""
    kinds = ("same", "opposite")
    return point(
        [[by_skew(scale, skew, kind, seed) for kind in kinds] for seed in range(scale.seeds)], 0.2
    )


def figure_11(scale: Scale, power: float) -> Point:
    """Measure with memory for 50 % of what both joins need."""
    kinds = ("inc", "dec")
    return point(
        [[by_power(scale, power, kind, seed) for kind in kinds] for seed in range(scale.seeds)], 0.5
    )


# ---- predicted and measured ---------------------------------------------------------------------


def predictions(scale: Scale, name: str, policy: str) -> list[tuple[float, float]]:
    """Return predicted and measured recall, by share of the live rows."""
    data = DATA[name]
    tables = [decoded(table) for table in data.make(scale.predicted, 0)]
    live = data.live((tables[0], tables[1]))
    settings = {**data.settings, "within": data.within, "policy": policy}
    sizes = sizes_for(live)
    spec = window_join(tables[0].schema, tables[1].schema, **settings, memory=max(sizes))
    curve = by_copies(WindowCopies(spec), sizes, of_joins(spec, tables, 8))
    plain = {key: value for key, value in settings.items() if key != "policy"}
    exact = tg.join(*tables, **plain).importance
    found = []
    for share in SHARES:
        memory = max(round(share * live), 2)
        measured = tg.join(*tables, **settings, memory=memory).importance / exact
        found.append((curve.at(memory), measured))
    return found


# ---- a pool without Spark -----------------------------------------------------------------------


class PooledRun:
    """Joins of a pool in this process; budget updates and reports work as on Spark."""

    def __init__(self, pool: tg.MemoryPool, *, one_query: bool = False) -> None:
        self._pool, self._one_query = pool, one_query
        self._folders: dict[str, Path] = {}
        self._engines: dict[str, list[Any]] = {}
        self._jobs: dict[str, Any] = {}
        self._batch = 0
        self.allowed: dict[str, list[list[int]]] = {}
        self.held: list[int] = []
        self.results: dict[str, list[int]] = {}

    def add(self, name: str, spec: Any, shards: int = 1, weight: float = 1.0) -> None:
        """Add a window join."""
        self.enter(name, WindowJob(spec), WindowCopies(spec), shards, weight)

    def enter(
        self, name: str, job: Any, estimator: RecallEstimator, shards: int = 1, weight: float = 1.0
    ) -> None:
        """Add any join."""
        place = PoolMembership(self._pool.share(name, weight), estimator)
        member, self._folders[name] = self._pool.admit(place, shards)
        own = self._jobs[name] = PooledJob(job, estimator, member)
        self._engines[name] = [own.engine_at(shard, shards) for shard in range(shards)]
        self.allowed[name], self.results[name] = [], []

    def feed(self, batches: dict[str, list[list[pa.RecordBatch]]]) -> None:
        """Feed one batch to every join."""
        self._batch += 1
        self.held.append(0)
        every: list[str] = []
        for name, inputs in batches.items():
            engines = self._engines[name]
            update = latest(self._folders[name], self._pool.size)
            clocks = [
                max((b["time"].to_numpy().max() for b in i if len(b)), default=None) for i in inputs
            ]
            said, found, allowed = [], 0, []
            for shard, engine in enumerate(engines):
                if update is not None:
                    engine.apply_budget(*update)
                own = self._of_shard(name, inputs, shard)
                found += sum(b.num_rows for b in engine.feed(own, clocks))
                counters = engine.take_counters()
                self.held[-1] += int(counters["held"])
                allowed.append(int(counters["allowed"]))
                said.append(engine.report())
            self.results[name].append(found)
            self.allowed[name].append(allowed)
            every += said
            if not self._one_query:
                self._report(name, said)
        if self._one_query:
            self._report("all", every)

    def _report(self, run: str, said: list[str]) -> None:
        """Report a batch to the pool."""
        metrics = {"tidegate": {"report": "\n".join(said)}}
        batch = {"id": run, "runId": run, "batchId": self._batch}
        self._pool.on_progress(batch | {"observedMetrics": metrics})

    def _of_shard(
        self, name: str, inputs: list[list[pa.RecordBatch]], shard: int
    ) -> list[list[pa.RecordBatch]]:
        """Return the rows of one shard: by key, or as the job says."""
        job, shards = self._jobs[name], len(self._engines[name])
        return [
            [
                b.take(pa.array(rows[to == shard]))
                for b, (rows, to) in zip(batches, routed, strict=True)
            ]
            for batches, routed in (
                (batches, [job.route(stream, b, shards) for b in batches])
                for stream, batches in enumerate(inputs)
            )
        ]


def _of_shard(batch: pa.RecordBatch, shard: int, shards: int) -> pa.RecordBatch:
    return batch.filter(pa.array(shard_of(batch["key"].to_numpy(), shards) == shard))


@dataclass(frozen=True)
class Sharded:
    """Recall over the second half: in one shard, with equal shares, and with a pool's shares."""

    one: float
    equal: float
    adapted: float
    shares: list[int]


def sharded(scale: Scale, shards: int, memory: int = 200) -> Sharded:
    """Run a join whose shards have keys of very different worth: Zipf(1.5) over 50."""
    window, batches = 400, 24
    tables = zipf(8 * window, domain=DOMAIN, skew=1.5, correlation="same", seed=1)
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": window, "policy": "prob"}
    spec = window_join(tables[0].schema, tables[1].schema, **settings, memory=memory)
    feeds = of_joins(spec, tables, batches)

    def late(results: Sequence[int]) -> int:
        return sum(results[batches // 2 :])

    def plain(memory: int | None, parts: int) -> int:
        each = None if memory is None else memory // parts
        own = window_join(tables[0].schema, tables[1].schema, **settings, memory=each)
        engines = [WindowJob(own).engine_at(0, 1) for _ in range(parts)]
        return late(
            [
                sum(
                    b.num_rows
                    for at, engine in enumerate(engines)
                    for b in engine.feed([[_of_shard(b, at, parts) for b in s] for s in inputs])
                )
                for inputs in feeds
            ]
        )

    with tempfile.TemporaryDirectory() as folder:
        run = PooledRun(tg.MemoryPool(memory=memory, folder=folder, every=2))
        run.add("join", spec, shards)
        run._pool.rebalance()
        for inputs in feeds:
            run.feed({"join": inputs})
    exact = plain(None, 1)
    return Sharded(
        one=plain(memory, 1) / exact,
        equal=plain(memory, shards) / exact,
        adapted=late(run.results["join"]) / exact,
        shares=run.allowed["join"][-1],
    )


# ---- the report ---------------------------------------------------------------------------------


def run(scale: Scale, step: Step) -> Section:
    """Run all parts."""
    tenth, eleventh = [], []
    for skew in scale.skews:
        step(f"figure 10, Z = {skew:g}")
        tenth.append((f"{skew:g}", figure_10(scale, skew)))
    for power in scale.powers:
        step(f"figure 11, p = {power:g}")
        eleventh.append((f"{power:g}", figure_11(scale, power)))
    rows, worst, where = [], 0.0, ""
    for policy in scale.policies:
        for name in DATA:
            step(f"predicted and measured, {policy}, {name}")
            pairs = predictions(scale, name, policy)
            off = max(abs(a - b) for a, b in pairs)
            if off >= worst:
                worst, where = off, f"{name}, {policy}"
            rows.append((policy, name, *(f"{a:.1%} / {b:.1%}" for a, b in pairs), f"{off:.1%}"))
    others = _others(scale, step)
    parts = {}
    for shards in scale.shards:
        step(f"{shards} shards")
        parts[shards] = sharded(scale, shards)
    gap = max(1 - each.adapted / each.one for each in parts.values())
    figures = (
        Figure(
            f"predicted against measured recall, {len(rows)} streams and policies, 4 memories each",
            f"{100 * worst:.1f} points at worst ({where})",
            100 * worst,
            3,
            1,
            "{} points",
            higher=False,
        ),
        Figure(
            "recall of shards with adapted shares, below that of one shard",
            f"{gap:.1%} at worst",
            100 * gap,
            1,
            0.5,
            "{}%",
            higher=False,
        ),
    )
    return Section(
        title="one memory for several joins",
        workload=(
            f"Figures 10 and 11 of paper 2: two joins, {RIGHT} right rows for a left one, a "
            f"window of {WINDOW} on the left, {scale.ticks:,} ticks, mean of {scale.seeds} seeds; "
            "ALLOC by the models of frequency and of age, recall as measured."
        ),
        figures=figures,
        tables=(
            _points("Figure 10: PROB, memory 20 % of what both need", "Z", ("DC", "IC"), tenth),
            _points("Figure 11: AGE, memory 50 % of what both need", "p", ("INC", "DEC"), eleventh),
            Table(
                "Predicted / measured recall, by memory as a share of the live rows",
                ("policy", "streams", "5%", "10%", "25%", "50%", "off at most"),
                tuple(rows),
                f"{scale.predicted:,} ticks. Predicted by ten copies of the join, with memories "
                "from all live rows down by the root of 2, and up to six more where recall rises "
                "much: 25 % and 50 % are among the ten, 5 % and 10 % lie between.",
            ),
            others,
            Table(
                "A join in shards, recall",
                ("shards", "one shard", "equal shares", "adapted shares", "shares"),
                tuple(
                    (
                        str(n),
                        f"{each.one:.1%}",
                        f"{each.equal:.1%}",
                        f"{each.adapted:.1%}",
                        " ".join(map(str, each.shares)),
                    )
                    for n, each in parts.items()
                ),
                "Zipf(1.5) over 50 keys on both sides, memory a quarter of the window.",
            ),
        ),
    )


def _others(scale: Scale, step: Step) -> Table:
    """Predict with a sample of the streams, for star joins, and for samples."""
    rows: list[tuple[str, ...]] = []

    def add(what: str, how: str, pairs: Sequence[tuple[float, float]]) -> None:
        off = max(abs(a - b) for a, b in pairs)
        rows.append((what, how, *(f"{a:.1%} / {b:.1%}" for a, b in pairs), f"{off:.1%}"))

    for policy in scale.policies:
        for kind in KINDS:
            step(f"predicted by a sample, {policy}, {kind}")
            add(f"recall, {kind}, by a sample", policy, by_a_sample(kind, policy, scale.large))
    for policy in ("auto", "fifo"):
        step(f"predicted and measured, star join, {policy}")
        add("recall, star join", policy, star(scale.predicted, policy))
    for method in METHODS:
        step(f"predicted and measured, samples, {method}")
        add("error of a sample", method, samples(scale.predicted, method, scale.samples))
    return Table(
        "The same with a sample of the streams, of star joins, and of samples",
        ("of", "policy or method", "5%", "10%", "25%", "50%", "off at most"),
        tuple(rows),
        f"By a sample: windows of {scale.large:,} ticks, with more rows than copies hold. Star "
        f"join: facts connect keys in threes. Samples: the error of a count over a "
        f"window, expected, and as counts of {scale.samples} seeds differ.",
    )


def _points(title: str, name: str, joins: Sequence[str], found: list[tuple[str, Point]]) -> Table:
    return Table(
        title,
        (name, "ALLOC foreseen", "ALLOC", "PROP", *(f"ALLOC's share of {j}" for j in joins)),
        tuple(
            (
                value,
                f"{p.foreseen:.1%}",
                f"{p.alloc:.1%}",
                f"{p.prop:.1%}",
                *(f"{share:.1%}" for share in p.shares),
            )
            for value, p in found
        ),
        "The least recall of both joins.",
    )
