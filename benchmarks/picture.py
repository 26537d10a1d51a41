"""Recall against memory for `Auto`, the papers' policies and the optimum: the README's picture."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import tidegate as tg
from benchmarks.measure import Step
from benchmarks.policies import DATA
from benchmarks.report import Section, Table

#: The policies of the papers that need no importance, and tidegate's own.
POLICIES = ("auto", "prob", "life", "age", "ijoin", "fifo", "rand")
STREAMS = ("Zipf(1)", "orders (DEC)")


@dataclass(frozen=True)
class Scale:
    """Ticks of a stream, shares of memory, seeds."""

    ticks: int = 10_000
    shares: tuple[float, ...] = (0.02, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40, 0.50)
    seeds: int = 3


FULL = Scale()
QUICK = Scale(ticks=2_000, shares=(0.10, 0.50), seeds=1)


def recall(scale: Scale, streams: str, share: float, seed: int) -> dict[str, float]:
    """Return the share of the exact results that each policy and the optimum deliver."""
    data = DATA[streams]
    tables = data.make(scale.ticks, seed)
    settings = {**data.settings, "within": data.within}
    exact = tg.join(*tables, **settings).results
    bound = {**settings, "memory": max(round(share * data.live(tables)), 2)}
    found = {name: tg.join(*tables, **bound, policy=name).results for name in POLICIES}
    found["optimum"] = tg.optimal(*tables, **bound).results
    return {name: results / exact for name, results in found.items()}


def run(scale: Scale, step: Step) -> Section:
    """Measure every policy and the optimum on each pair of streams with each memory."""
    rows = []
    for streams in STREAMS:
        for share in scale.shares:
            step(f"{streams}, memory {share:.0%}")
            seeds = [recall(scale, streams, share, seed) for seed in range(scale.seeds)]
            means = [statistics.mean(each[name] for each in seeds) for name in seeds[0]]
            rows.append((streams, f"{share:.0%}", *(f"{mean:.1%}" for mean in means)))
    return Section(
        title="recall against memory",
        workload=(
            f"{scale.ticks:,} ticks, mean of {scale.seeds} seeds. Zipf(1): one row a side at every "
            "tick, 200 keys, windows of 400 ticks. orders (DEC): an order opens every 15 seconds, "
            "four rows follow each within 2 hours, most of them soon. Memory is a share of the "
            "rows that are live on average, shared between the sides. The optimum knows all rows "
            "beforehand (`tidegate.optimal`)."
        ),
        figures=(),
        tables=(
            Table("Recall by memory", ("streams", "memory", *POLICIES, "optimum"), tuple(rows)),
        ),
    )
