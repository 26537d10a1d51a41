"""Measure the compiled loop alone, and the engine around it: rows per second on one core."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from benchmarks.measure import Feeder, Samples, Step, samples
from benchmarks.report import Figure, Section, Table
from tidegate.streams import uniform, zipf


@dataclass(frozen=True)
class Scale:
    """The input: `ticks` with one row per side, in each of `repeats` batches."""

    ticks: int = 500_000
    repeats: int = 7
    within: int = 20_000


FULL = Scale()
QUICK = Scale(ticks=100_000, repeats=3)


@dataclass(frozen=True)
class Measured:
    """The batches of one setting: rows per second in total and in the loop, and results of each."""

    whole: Samples
    loop: Samples
    results: tuple[int, ...]


def workloads(scale: Scale) -> dict[str, tuple[pa.Table, pa.Table]]:
    """Return the end-to-end workload's keys, and skewed keys."""
    ticks = scale.ticks * (scale.repeats + 1)
    return {
        "uniform, 205,000 keys": uniform(ticks, domain=205_000, seed=1),
        "Zipf(1), 50,000 keys": zipf(ticks, domain=50_000, skew=1.0, seed=1),
    }


def measure(
    tables: tuple[pa.Table, pa.Table], scale: Scale, memories: dict[str, int | None]
) -> dict[str, Measured]:
    """Feed the same batches to an engine of each memory in turns; do not count the first."""
    feeders = {
        name: Feeder(tables[0].schema, within=scale.within, memory=memory, policy="prob")
        for name, memory in memories.items()
    }
    first = next(iter(feeders.values()))
    fed: dict[str, list[tuple[float, float, int]]] = {name: [] for name in feeders}
    for at in range(scale.repeats + 1):
        inputs = first.prepare(tables, at * scale.ticks, scale.ticks)
        rows = 2 * scale.ticks
        for name, feeder in feeders.items():
            took = feeder.feed(inputs)
            fed[name].append((rows / took.seconds, rows / took.loop, took.results))
    return {
        name: Measured(
            samples([whole for whole, _, _ in batches[1:]]),
            samples([loop for _, loop, _ in batches[1:]]),
            tuple(results for _, _, results in batches),
        )
        for name, batches in fed.items()
    }


def run(scale: Scale, step: Step) -> Section:
    """Measure with the whole window in memory, and with a quarter of it."""
    window = 2 * scale.within
    memories = {"exact": None, "PROB, the window": window, "PROB, a quarter of it": window // 4}
    rows = []
    figures = []
    for shape, tables in workloads(scale).items():
        step(shape)
        for name, found in measure(tables, scale, memories).items():
            millions = samples([rate / 1e6 for rate in found.loop.values])
            whole = samples([rate / 1e6 for rate in found.whole.values])
            rows.append(
                (
                    shape,
                    name,
                    millions.show(),
                    f"{millions.spread:.0%}",
                    whole.show(),
                    f"{whole.spread:.0%}",
                    f"{sum(found.results[1:]) / (2 * scale.ticks * scale.repeats):.3f}",
                )
            )
            if memories[name] is not None:
                figures.append(
                    Figure(
                        f"kernel alone, {name} in memory; {shape}",
                        millions.show("{:.1f}") + " M rows/s a core",
                        millions.median,
                        3,
                        8,
                        "{:.0f} M",
                    )
                )
    columns = ("keys", "memory", "loop alone, M/s", "spread", "whole feed, M/s", "spread")
    return Section(
        title="the compiled loop",
        workload=(
            f"One core, {2 * scale.ticks:,} rows a batch, {scale.repeats} batches after the "
            f"first, a window of {window:,} rows. The whole feed also sorts a batch, finds its "
            "keys, assembles the results and trims the payload of held rows."
        ),
        figures=tuple(figures),
        tables=(Table("Rows a second", (*columns, "results a row"), tuple(rows)),),
    )
