"""Joins whose condition has a band: what each policy finds, and what an epsilon join costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate as tg
from benchmarks.measure import Step, samples
from benchmarks.report import Figure, Section, Table
from tidegate.policies import POLICIES

Tables = tuple[pa.Table, pa.Table]

#: Policies that `Auto` is compared with; the others need importance, or equal one of these.
RIVALS = tuple(name for name in POLICIES if name not in ("auto", "rand"))


@dataclass(frozen=True)
class Scale:
    """Ticks and seeds of the epsilon join, seconds of the WAN trace, and rows of the speed test."""

    ticks: int = 6_000
    seconds: int = 900
    seeds: int = 3
    held: int = 100_000
    repeats: int = 3


FULL = Scale()
QUICK = Scale(ticks=500, seconds=300, seeds=1, held=1_000, repeats=1)


def sensors(ticks: int, seed: int, epsilon: float = 1.0) -> Tables:
    """Generate readings of two sensors, a row a side at every time, which cluster at some values.

    Thirty values, of Zipf(1.2) popularity, are spread over 1,000 units; a reading is off by a
    normal error of three units.
    """
    rng = np.random.default_rng(seed)
    centers = rng.uniform(0, 1000, 30)
    weights = 1 / np.arange(1, 31) ** 1.2
    weights /= weights.sum()

    def side() -> pa.Table:
        values = rng.choice(centers, ticks, p=weights) + rng.normal(0, 3, ticks)
        return pa.table({"x": values / epsilon, "time": np.arange(ticks)})

    return side(), side()


def wan(seconds: int, seed: int, rate: int = 10) -> Tables:
    """Generate the WAN experiment of Srivastava and Widom, section 6.1: packets of two sources.

    Packets have the time at which they were sent. The second source is far away, with a clock that
    is two seconds off: its packets come one second later, give or take 0.3 seconds.
    """
    rng = np.random.default_rng(seed)

    def source(delay: float, jitter: float, skew: float) -> pa.Table:
        sent = np.sort(rng.uniform(0, seconds, seconds * rate))
        came = sent + delay + np.abs(rng.normal(0, jitter, len(sent)))
        order = np.argsort(came, kind="stable")
        columns = {"sent": (sent - skew)[order], "time": came[order]}
        return pa.table({name: np.round(c * 1e6).astype(np.int64) for name, c in columns.items()})

    return source(0.001, 0.001, 0.0), source(1.0, 0.3, 2.0)


@dataclass(frozen=True)
class Workload:
    """A band join: its streams, how it is joined, and the memories in rows."""

    make: Callable[[Scale, int], Tables]
    settings: dict[str, Any]
    memories: tuple[int, ...]


WORKLOADS = {
    "sensors, epsilon join": Workload(
        lambda scale, seed: sensors(scale.ticks, seed),
        {"where": "abs(l.x - r.x) <= 1", "within": 200},
        (50, 100),
    ),
    "WAN, band on the time of sending": Workload(
        lambda scale, seed: wan(scale.seconds, seed),
        {
            "where": "r.sent - l.sent BETWEEN 59900000 AND 60100000",
            "within": (120_000_000, 1),
        },
        (240, 480),
    ),
}


def found(tables: Tables, workload: Workload, **more: Any) -> int:
    """Return the number of results."""
    settings = {"on": None, "time": "time", **workload.settings, **more}
    return int(tg.join(*tables, **settings).results)


def shares(scale: Scale, workload: Workload, memory: int, step: Step) -> dict[str, list[float]]:
    """Return the share of the exact results of each policy and of the optimum, by seed."""
    kept: dict[str, list[float]] = {}
    for seed in range(scale.seeds):
        tables = workload.make(scale, seed)
        exact = found(tables, workload)
        for policy in POLICIES:
            step(f"{policy}, memory {memory}, seed {seed}")
            results = found(tables, workload, memory=memory, policy=policy)
            kept.setdefault(policy, []).append(results / exact)
        settings = {"on": None, "time": "time", **workload.settings}
        best = tg.optimal(*tables, **settings, memory=memory)
        kept.setdefault("optimum", []).append(best.results / exact)
    return kept


def seconds_of(tables: Tables, memory: int, settings: dict[str, Any]) -> tuple[float, int]:
    """Return the processor time of a join, and the number of its results."""
    start = time.process_time()
    result = tg.join(*tables, time="time", memory=memory, policy="prob", **settings)
    return time.process_time() - start, int(result.results)


def speed(scale: Scale, step: Step) -> tuple[Figure, Table]:
    """Compare an epsilon join with an equi-join of as many results, at a large memory."""
    rng = np.random.default_rng(0)
    ticks, values = 3 * scale.held, scale.held // 2
    whole = [rng.integers(0, values, ticks) for _ in range(2)]
    # A row has as many partners within the band as it has with an equal key.
    equal = [pa.table({"k": v, "time": np.arange(ticks)}) for v in whole]
    near = [pa.table({"x": v + rng.uniform(0, 1, ticks), "time": np.arange(ticks)}) for v in whole]
    within = 2 * scale.held
    times: dict[str, list[float]] = {"equi-join": [], "epsilon join": []}
    results = {}
    for repeat in range(scale.repeats):
        step(f"speed, repeat {repeat}")
        for name, tables, settings in (
            ("equi-join", equal, {"on": "k"}),
            ("epsilon join", near, {"on": None, "where": "abs(l.x - r.x) <= 0.5"}),
        ):
            taken, results[name] = seconds_of(
                (tables[0], tables[1]), scale.held, {**settings, "within": within}
            )
            times[name].append(taken)
    ratio = samples(times["equi-join"]).over(samples(times["epsilon join"]))
    figure = Figure(
        f"an epsilon join with {scale.held:,} rows held, against an equi-join with as many results",
        f"{ratio.show()} of its speed",
        ratio.median,
        bar=0.2,
        aim=0.5,
        form="{:.1f}",
    )
    rows = tuple(
        (name, f"{results[name]:,}", f"{2 * ticks / min(taken):,.0f}")
        for name, taken in times.items()
    )
    title = f"Rows a second of processor time, {scale.held:,} rows held"
    return figure, Table(title, ("join", "results", "rows a second"), rows)


def run(scale: Scale, step: Step) -> Section:
    """Measure all workloads, and the speed."""
    tables, over_random, over_best = [], [], []
    for name, workload in WORKLOADS.items():
        for memory in workload.memories:
            kept = shares(scale, workload, memory, step)
            mean = {policy: statistics.mean(values) for policy, values in kept.items()}
            best = max(mean[policy] for policy in RIVALS)
            over_best.append(mean["auto"] / best)
            if "epsilon" in name:
                over_random += [mean[policy] / mean["rand"] for policy in ("prob", "auto")]
            rows = tuple((policy, f"{share:.1%}") for policy, share in _by_share(mean))
            title = f"Share of the exact results: {name}, {memory} rows"
            tables.append(Table(title, ("policy", "share"), rows))
    figure, table = speed(scale, step)
    figures = (
        Figure(
            "`prob` and `auto` on the epsilon join over random, at worst",
            f"{min(over_random):.2f} times",
            min(over_random),
            bar=1.7,
            aim=2.0,
            form="{:.1f}",
        ),
        Figure(
            "`auto` against the best fixed policy of the band joins, at worst",
            f"{min(over_best):.1%}",
            min(over_best),
            bar=0.95,
            aim=0.99,
            form="{:.0%}",
        ),
        figure,
    )
    return Section(
        title="joins whose condition has a band",
        workload=(
            f"sensors: {scale.ticks:,} ticks, window 200 ticks; WAN: {scale.seconds} seconds of 10 "
            f"packets a second and side, window 120 s on the first; mean of {scale.seeds} seeds; "
            "speed: processor time, in turns."
        ),
        figures=figures,
        tables=(*tables, table),
    )


def _by_share(mean: dict[str, float]) -> Sequence[tuple[str, float]]:
    return sorted(mean.items(), key=lambda each: -each[1])
