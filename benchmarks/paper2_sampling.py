"""Figures 8 and 9 of paper 2: the error of windowed averages from samples of a join."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import tidegate as tg
from benchmarks import sampling_coverage
from benchmarks.measure import Samples, Step, loop_seconds, samples
from benchmarks.report import Figure, Section, Table
from tidegate.joins.sampled import loop as kernel
from tidegate.joins.sampled.engine import SampledJob
from tidegate.joins.sampled.spec import sampled_join
from tidegate.streams import zipf

#: Section 6.2: one left row and five right rows per unit of time, windows of 500, 50 values.
WINDOW, RIGHT, DOMAIN, MEAN = 500, 5, 50, 100.0
#: UNIFORM's rows have two more fields: 34 bytes instead of 32.
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
    """The length and number of the streams, and what is tried."""

    ticks: int = 6_000
    seeds: int = 24
    memories: tuple[float, ...] = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
    spreads: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    skews: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)
    runs: int = 200
    lengths: tuple[int, ...] = (1_500, 15_000, 60_000)
    batch: int = 250_000
    batches: int = 5


FULL = Scale()
QUICK = Scale(
    ticks=3_000,
    seeds=4,
    memories=(0.1, 0.4),
    spreads=(0.5, 2.0),
    skews=(1.0,),
    runs=50,
    lengths=(1_500, 6_000),
    batches=2,
)

Tables = tuple[pa.Table, pa.Table]
#: Errors by method and value column.
Errors = dict[str, dict[str, float]]


def streams(scale: Scale, correlation: str, seed: int) -> Tables:
    """Generate Zipf(2) keys, and normally distributed values: a column per spread."""
    tables = zipf(
        scale.ticks,
        domain=DOMAIN,
        skew=2.0,
        correlation=correlation,
        rate=(1.0, RIGHT),
        seed=seed,
    )
    rng = np.random.default_rng(seed)
    found = []
    for table in tables:
        off = rng.normal(0.0, MEAN, len(table))
        values = {f"spread {s:g}": MEAN + s * off for s in scale.spreads}
        rows = {name: table.column(name) for name in ("key", "time")}
        found.append(pa.table(rows | values))
    return found[0], found[1]


def known(tables: Tables, ticks: int) -> tg.Prob:
    """Return the frequencies of the keys; right rows find no later left rows."""
    left, right = (
        np.bincount(table.column("key").to_numpy(), minlength=DOMAIN) / ticks for table in tables
    )
    return tg.Prob({"key": range(DOMAIN), "left": left, "right": right})


def partners(tables: Tables, ticks: int) -> float:
    """Return how many partners a row of the left stream's most frequent key finds."""
    left, right = (
        np.bincount(table.column("key").to_numpy(), minlength=DOMAIN) for table in tables
    )
    return float(right[left.argmax()] * WINDOW / ticks)


def windows(table: pa.Table, value: str, ticks: int) -> NDArray[np.float64]:
    """Return, at each tick, the weighted average of the last 500 ticks; 0 if unknown.

    Weights are inverse inclusion probabilities. The first two windows are left out.
    """
    weight = np.ones(len(table))
    if "sample_probability" in table.column_names:
        weight /= table.column("sample_probability").to_numpy()
    time, values = (table.column(name).to_numpy() for name in ("time_right", value))
    total, count = (
        np.convolve(np.bincount(time, part, ticks), np.ones(WINDOW), "valid")[2 * WINDOW :]
        for part in (weight * values, weight)
    )
    found: NDArray[np.float64] = np.divide(total, count, out=np.zeros(len(count)), where=count > 0)
    return found


def errors(
    tables: Tables, share: float, values: tuple[str, ...], names: tuple[str, ...], seed: int
) -> Errors:
    """Return the mean of |estimate - truth| / truth over all ticks; 1 if there is no estimate."""
    join: dict[str, Any] = {"on": "key", "time": "time", "within": (WINDOW, 1)}
    left, right = tables
    ticks = left.column("time")[-1].as_py() + 1
    exact = tg.join(left, right, **join).table
    truths = {value: windows(exact, value, ticks) for value in values}
    found: Errors = {}
    for name in names:
        settings = METHODS[name]
        room = ROOM if settings["method"] == "uniform" else 1.0
        sample = tg.sample_join(
            left,
            right,
            **join,
            **settings,
            memory=max(round(share * WINDOW * room), 1),
            margin=0.0,
            model=known(tables, ticks),
            value=values[0],
            seed=seed,
        ).table
        found[name] = {}
        for value, truth in truths.items():
            off = np.abs(windows(sample, value, ticks) - truth)
            found[name][value] = float((off[truth != 0] / np.abs(truth[truth != 0])).mean())
    return found


def by_memory(scale: Scale, share: float) -> list[dict[str, float]]:
    """Measure figure 8 with inversely correlated keys; return errors by seed."""
    value = f"spread {max(s for s in scale.spreads if s <= 1):g}_left"
    found = [
        errors(streams(scale, "opposite", seed), share, (value,), tuple(METHODS), seed)
        for seed in range(scale.seeds)
    ]
    return [{name: own[value] for name, own in one.items()} for one in found]


def by_spread(scale: Scale, seed: int) -> tuple[float, Errors]:
    """Measure figure 9 for one seed: partners of the most frequent key, and errors by column."""
    tables = streams(scale, "none", seed)
    found: Errors = {}
    for side in ("left", "right"):
        values = tuple(f"spread {s:g}_{side}" for s in scale.spreads)
        for name, own in errors(tables, 0.1, values, tuple(METHODS), seed).items():
            found.setdefault(name, {}).update(own)
    return partners(tables, scale.ticks), found


def speed(scale: Scale, method: str) -> tuple[Samples, Samples]:
    """Measure rows per second in the compiled loop, by processor time and by the clock.

    The first batch is not counted.
    """
    tables = zipf(scale.batch * (scale.batches + 1), domain=50_000, skew=1.0, seed=1)
    schema = tables[0].schema
    job = SampledJob(
        sampled_join(
            schema, schema, on="key", time="time", within=20_000, memory=10_000, method=method
        )
    )
    engine = job.engine_at(0, 1)
    rates: tuple[list[float], list[float]] = [], []
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
        with (
            loop_seconds(kernel, time.process_time) as processor,
            loop_seconds(kernel) as clock,
        ):
            for _ in engine.feed(inputs):
                pass
        for rate, taken in zip(rates, (processor, clock), strict=True):
            rate.append(2 * scale.batch / sum(taken) / 1e6)
    return samples(rates[0][1:]), samples(rates[1][1:])


def _row(first: str, found: dict[str, float]) -> tuple[str, ...]:
    return (first, *(f"{found[name]:.1%}" for name in METHODS))


def _orders(found: list[tuple[float, Errors]], value: str) -> list[tuple[str, ...]]:
    """Say which method is better, by the number of partners of the left's most frequent key."""
    rows = []
    for low, high in ((0.0, 10.0), (10.0, 100.0), (100.0, float("inf"))):
        own = [one for matches, one in found if low <= matches < high]
        if not own:
            continue
        label = f"{low:g} to {high:g}" if high < float("inf") else f"{low:g} or more"
        ahead = sum(one["UNIFORM"][value] < one["PPS-CLUSTER"][value] for one in own)
        shown = [
            f"{statistics.median(one[name][value] for one in own):.1%}"
            for name in ("UNIFORM", "EQ-CLUSTER", "PPS-CLUSTER")
        ]
        rows.append((label, *shown, f"{ahead} of {len(own)}"))
    return rows


def run(scale: Scale, step: Step) -> Section:
    """Measure the error by memory (figure 8) and by the spread of values (figure 9)."""
    figure_8 = []
    for share in scale.memories:
        step(f"figure 8, memory {share:.0%}")
        found = by_memory(scale, share)
        middle = {name: statistics.median(one[name] for one in found) for name in METHODS}
        ahead = sum(one["UNIFORM"] < one["PPS-CLUSTER"] for one in found)
        figure_8.append((*_row(f"{share:.0%}", middle), f"{ahead} of {len(found)}"))
    orders = []
    for seed in range(scale.seeds):
        step(f"figure 9, order {seed}")
        orders.append(by_spread(scale, seed))
    figure_9 = {
        side: tuple(
            _row(
                f"{spread:g}",
                {
                    name: statistics.median(
                        one[name][f"spread {spread:g}_{side}"] for _, one in orders
                    )
                    for name in METHODS
                },
            )
            for spread in scale.spreads
        )
        for side in ("left", "right")
    }
    figures = []
    for method in ("uniform", "cluster", "pps"):
        step(f"the loop, {method}")
        processor, clock = speed(scale, method)
        measured = (
            f"{processor.show('{:.1f}')} M rows/s a core of processor time, "
            f"{clock.show('{:.1f}')} by the clock"
        )
        name = f"sampled join, kernel alone, {method}"
        figures.append(Figure(name, measured, processor.median, 1, 1, "{} M"))
    columns = tuple(METHODS)
    return Section(
        title="paper 2's samples",
        workload=(
            f"Zipf(2) over {DOMAIN} keys, 1 left and {RIGHT} right rows a tick, a window of "
            f"{WINDOW} ticks on the left, {scale.ticks:,} ticks, frequencies known; the average of "
            f"the last {WINDOW} ticks, relative error, mean over all ticks as in the paper, median "
            f"over {scale.seeds} seeds. UNIFORM has 32/34 of the memory, as in the paper."
        ),
        figures=tuple(figures),
        tables=(
            Table(
                "Figure 8: error by memory; inversely correlated keys, the left's value",
                ("memory", *columns, "UNIFORM ahead of PPS"),
                tuple(figure_8),
                _NOTE_8,
            ),
            Table(
                "Figure 9: error by spread (deviation over mean); uncorrelated, the left's value",
                ("spread", *columns),
                figure_9["left"],
                _NOTE_9,
            ),
            Table(
                "The same by order of keys: partners of a left row of the commonest key",
                ("partners", "UNIFORM", "EQ-CLUSTER", "PPS-CLUSTER", "UNIFORM ahead of PPS"),
                tuple(_orders(orders, f"spread {scale.spreads[0]:g}_left")),
                _NOTE_ORDERS,
            ),
            Table(
                "Figure 9, the right's value",
                ("spread", *columns),
                figure_9["right"],
                "In the paper, cluster samples are much better than UNIFORM, because the values of "
                "a cluster are unrelated.",
            ),
            sampling_coverage.table(scale.skews, scale.runs, step),
            sampling_coverage.by_length(scale.lengths, scale.runs, step),
        ),
    )


_NOTE_8 = (
    "In the paper, PPS-CLUSTER is better than EQ-CLUSTER. UNIFORM is better than both at 10 % of "
    "the memory, and worse than PPS-CLUSTER above; its error is not 0 at 100 %, because data do "
    "not follow the model exactly. Our figures agree except at 10 %, where UNIFORM and "
    "PPS-CLUSTER are about equal; the last column counts the streams in which UNIFORM is better. "
    "The margin is 0 here, so that a memory overflows at times and the sample is thinned. So "
    "clusters are not exact at 100 % either. `auto` does not use the paper's UNIFORM (reach 0): it "
    "never samples the partners of a row beyond the mean, so that counts and sums are too small."
)
_NOTE_9 = (
    "Memory 10 %. In the paper, cluster samples become worse than UNIFORM as values spread, since "
    "all values of a cluster are equal. An average is a ratio of two sums, and its error is "
    "proportional to the spread for every method. So all errors grow in the same way, and the "
    "order of the methods does not depend on the spread. At a spread of 2 some averages are near "
    "0, so that relative errors are large for all methods."
)
_NOTE_ORDERS = (
    "Which method is better depends on the order of the keys. It is drawn for each seed, and the "
    "paper only says that it is uncorrelated. In most orders the left's most frequent key has few "
    "partners, and both methods are about equal. Where it has more, PPS-CLUSTER is better, but "
    "there are too few such orders to be sure."
)
