"""Figures 8 and 9 of paper 2: the error of windowed averages from samples of a join."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate as tg
from benchmarks.measure import Samples, Step, loop_seconds, samples
from benchmarks.report import Figure, Section, Table
from tidegate.engines.sampled import SampledJob
from tidegate.kernel import sampled as kernel
from tidegate.sampled_spec import sampled_join
from tidegate.streams import zipf

#: Section 6.2: one left tuple and five right ones in a unit of time, windows of 500, 50 values.
WINDOW, RIGHT, DOMAIN, MEAN = 500, 5, 50, 100.0
#: UNIFORM's tuples have two more fields: 34 bytes for 32.
ROOM = 32 / 34
METHODS: dict[str, dict[str, Any]] = {
    "UNIFORM": {"method": "uniform", "reach": 0.0},
    "UNIFORM, reach 3": {"method": "uniform", "reach": 3.0},
    "EQ-CLUSTER": {"method": "cluster"},
    "PPS-CLUSTER": {"method": "pps"},
    "auto": {"method": "auto"},
}


@dataclass(frozen=True)
class Scale:
    """How long the streams are, how many of them, and what is tried."""

    ticks: int = 6_000
    seeds: int = 3
    memories: tuple[float, ...] = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
    spreads: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    batch: int = 250_000
    batches: int = 5


FULL = Scale()
QUICK = Scale(ticks=3_000, seeds=1, memories=(0.1, 0.4), spreads=(0.5, 2.0), batches=2)

Tables = tuple[pa.Table, pa.Table]


def streams(scale: Scale, correlation: str, spread: float, seed: int) -> Tables:
    """Zipf(2) keys, and values on both sides that are normal around 100."""
    tables = zipf(
        scale.ticks,
        domain=DOMAIN,
        skew=2.0,
        correlation=correlation,
        rate=(1.0, RIGHT),
        seed=seed,
    )
    rng = np.random.default_rng(seed)
    left, right = (
        t.set_column(2, "value", pa.array(rng.normal(MEAN, spread * MEAN, len(t)))) for t in tables
    )
    return left, right


def known(tables: Tables, ticks: int) -> tg.Policy:
    """What there is to know of the keys; of right tuples, that none waits for a left one."""
    right = np.bincount(tables[1].column("key").to_numpy(), minlength=DOMAIN) / ticks
    left = np.bincount(tables[0].column("key").to_numpy(), minlength=DOMAIN) / ticks
    return tg.Prob({"key": range(DOMAIN), "left": left, "right": right})


def windows(table: pa.Table, value: str) -> dict[int, float]:
    """The average of each window of 500, after the first two."""
    probability = pa.array(np.ones(len(table)))
    if "sample_probability" in table.column_names:
        probability = table.column("sample_probability")
    plain = pa.table(
        {
            "at": table.column("time_right"),
            "v": table.column(value),
            "sample_probability": probability,
            "sample_cluster": pa.array(np.arange(len(table))),
        }
    )
    found = tg.local.estimate(plain, value="v", time="at", per=WINDOW)
    pairs = zip(found.column("window").to_pylist(), found.column("avg").to_pylist(), strict=True)
    return {start: avg for start, avg in pairs if start >= 2 * WINDOW}


def error(tables: Tables, share: float, settings: dict[str, Any], value: str, seed: int) -> float:
    """|estimate - truth| / truth, the mean over all windows."""
    join: dict[str, Any] = {"on": "key", "time": "time", "within": (WINDOW, 1)}
    ticks = tables[0].column("time")[-1].as_py() + 1
    uniform = settings["method"] == "uniform"
    left, right = tables
    sampled = tg.local.sample_join(
        left,
        right,
        **join,
        **settings,
        memory=max(round(share * WINDOW * (ROOM if uniform else 1.0)), 1),
        margin=0.0,
        model=known(tables, ticks),
        value=value,
        seed=seed,
    )
    truth = windows(tg.local.join(*tables, **join).table, value)
    found = windows(sampled.table, value)
    return statistics.mean(
        abs(found.get(start, 0.0) - true) / abs(true) for start, true in truth.items()
    )


def errors(
    scale: Scale, correlation: str, spread: float, share: float, value: str
) -> dict[str, float]:
    """The mean error of each method over all seeds."""
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    for seed in range(scale.seeds):
        tables = streams(scale, correlation, spread, seed)
        for name, settings in METHODS.items():
            found[name].append(error(tables, share, settings, value, seed))
    return {name: statistics.mean(values) for name, values in found.items()}


def speed(scale: Scale, method: str) -> Samples:
    """Tuples a second in the compiled loop; the first batch is not counted."""
    tables = zipf(scale.batch * (scale.batches + 1), domain=50_000, skew=1.0, seed=1)
    schema = tables[0].schema
    job = SampledJob(
        sampled_join(
            schema, schema, on="key", time="time", within=20_000, memory=10_000, method=method
        )
    )
    engine, rates = job.engine(1), []
    for at in range(scale.batches + 1):
        inputs = [
            [
                job.prepare(side, batch)[0]
                for batch in table.slice(at * scale.batch, scale.batch)
                .combine_chunks()
                .to_batches()
            ]
            for side, table in enumerate(tables)
        ]
        with loop_seconds(kernel) as loop:
            for _ in engine.feed(inputs):
                pass
        rates.append(2 * scale.batch / sum(loop))
    return samples(rates[1:])


def _row(first: str, found: dict[str, float]) -> tuple[str, ...]:
    return (first, *(f"{found[name]:.1%}" for name in METHODS))


def run(scale: Scale, step: Step) -> Section:
    """Error by memory (figure 8), and by the spread of values (figure 9), on either side."""
    by_memory: list[Sequence[str]] = []
    for share in scale.memories:
        step(f"figure 8, memory {share:.0%}")
        by_memory.append(_row(f"{share:.0%}", errors(scale, "opposite", 1.0, share, "value_left")))
    by_spread: dict[str, list[Sequence[str]]] = {}
    for value in ("value_left", "value_right"):
        for spread in scale.spreads:
            step(f"figure 9, {value}, spread {spread:g}")
            found = errors(scale, "none", spread, 0.1, value)
            by_spread.setdefault(value, []).append(_row(f"{spread:g}", found))
    figures = []
    for method in ("uniform", "cluster", "pps"):
        step(f"the loop, {method}")
        millions = samples([rate / 1e6 for rate in speed(scale, method).values])
        measured = millions.show("{:.1f}") + " M tuples/s a core"
        figures.append(
            Figure(f"sampled join, kernel alone, {method}", measured, millions.median, 1, 1, "{} M")
        )
    columns = tuple(METHODS)
    return Section(
        title="paper 2's samples",
        workload=(
            f"Zipf(2) over {DOMAIN} keys, 1 left and {RIGHT} right tuples a tick, a window of "
            f"{WINDOW} ticks on the left, {scale.ticks:,} ticks, frequencies known; the average of "
            f"tumbling windows of {WINDOW}, relative error, mean over windows and {scale.seeds} "
            "seeds. UNIFORM has 32/34 of the memory, as in the paper."
        ),
        figures=tuple(figures),
        tables=(
            Table(
                "Figure 8: error by memory; inversely correlated keys, the left's value",
                ("memory", *columns),
                tuple(map(tuple, by_memory)),
                "The paper: PPS-CLUSTER is ahead of EQ-CLUSTER; UNIFORM is ahead of both at 10 % "
                "and behind PPS-CLUSTER at more; its error does not go to 0 at 100 %, as data do "
                "not follow the model to the letter.",
            ),
            Table(
                "Figure 9: error by spread (deviation over mean); uncorrelated, the left's value",
                ("spread", *columns),
                tuple(map(tuple, by_spread["value_left"])),
                "Memory 10 %. The paper: as values spread, cluster samples lose to UNIFORM, since "
                "all values of a cluster are the same.",
            ),
            Table(
                "The same, the right's value",
                ("spread", *columns),
                tuple(map(tuple, by_spread["value_right"])),
                "The paper: cluster samples are much better than UNIFORM, as values of a cluster "
                "are unrelated.",
            ),
        ),
    )
