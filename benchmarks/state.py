"""Measure the bytes of state that a batch writes, as the budget and the held rows grow."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks import queries
from benchmarks.measure import Feeder, Step
from benchmarks.report import Figure, Section, Table
from tidegate.streams import uniform, write_parquet_batches, zipf


@dataclass(frozen=True)
class Scale:
    """A budget and ten times that; one batch of `fill` ticks, then small ones of `ticks`."""

    memory: int = 20_000
    fill: int = 200_000
    ticks: int = 2_000
    long: int = 400
    short: int = 12
    exact_ticks: int = 20_000


FULL = Scale()
QUICK = Scale(memory=2_000, fill=20_000, ticks=200, long=100, short=4, exact_ticks=2_000)


@dataclass(frozen=True)
class Written:
    """By batch: bytes of state, and rows that were admitted or shed."""

    sizes: tuple[int, ...]
    moved: tuple[int, ...]


def written(feeder: Feeder, tables: tuple[pa.Table, pa.Table], scale: Scale) -> Written:
    """Return what batches write after the first, which fills the memory, by the operator's rule."""
    engine = feeder.engine
    sizes, moved = [], []
    at = 0
    for number in range(scale.long + 1):
        ticks = scale.ticks if number else scale.fill
        feeder.feed(feeder.prepare(tables, at, ticks))
        at += ticks
        if number and engine.log_is_heavy:
            sizes.append(sum(map(len, engine.snapshot())))
        else:
            sizes.append(len(engine.changes()))
        counters = engine.take_counters()
        moved.append(int(counters["admitted"] + counters["shed"]))
    return Written(tuple(sizes[1:]), tuple(moved[1:]))


def long_runs(scale: Scale, step: Step) -> dict[str, dict[int, Written]]:
    """Run both budgets on the same input, long enough for several compactions."""
    ticks = scale.fill + scale.long * scale.ticks
    domain = 50 * scale.memory
    inputs = {
        "uniform": uniform(ticks, domain=domain, seed=1),
        "Zipf(1)": zipf(ticks, domain=domain, skew=1.0, seed=1),
    }
    found: dict[str, dict[int, Written]] = {}
    for name, tables in inputs.items():
        for memory in (scale.memory, 10 * scale.memory):
            step(f"{name} keys, budget {memory:,}, {scale.long} batches")
            feeder = Feeder(tables[0].schema, within=scale.fill, memory=memory, policy="prob")
            found.setdefault(name, {})[memory] = written(feeder, tables, scale)
    return found


def on_spark(scale: Scale, step: Step) -> dict[str, queries.Ran]:
    """Run the same on Spark for a few batches; and exactly, where the held rows only grow."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name, queries.spark() as spark:
        budget, exact = Path(name) / "budget", Path(name) / "exact"
        tables = queries.events(scale.fill + scale.short * scale.ticks, 50 * scale.memory)
        for side, table in zip(("left", "right"), tables, strict=True):
            folder = budget / side
            early, late = table.slice(0, scale.fill), table.slice(scale.fill)
            write_parquet_batches(early, folder, time="time", batches=1, prefix="a")
            write_parquet_batches(late, folder, time="time", batches=scale.short, prefix="b")
        queries.write(exact, scale.exact_ticks * scale.short, scale.short, 50 * scale.memory)
        for memory in (scale.memory, 10 * scale.memory):
            label = f"{memory:,}"
            step(f"budget {label} on Spark")
            way = queries.tidegate(label, within=f"{scale.fill} ms", memory=memory, policy="prob")
            found[label] = queries.run(spark, way, budget)
        step("exact on Spark")
        found["exact"] = queries.run(spark, queries.tidegate("e", within="unbounded"), exact)
    return found


def _for_each(sizes: Sequence[int], moved: Sequence[int]) -> float:
    return sum(sizes) / sum(moved)


def _mean_ratio(small: Sequence[int], large: Sequence[int]) -> float:
    return statistics.mean(large) / statistics.mean(small)


def _long_rows(found: dict[str, dict[int, Written]]) -> tuple[tuple[str, ...], ...]:
    rows = []
    for name, budgets in found.items():
        base = next(iter(budgets.values())).sizes
        for memory, each in budgets.items():
            sizes = each.sizes
            rows.append(
                (
                    name,
                    f"{memory:,}",
                    f"{statistics.mean(sizes):,.0f}",
                    f"{_mean_ratio(base, sizes):.2f}",
                    f"{statistics.median(sizes):,.0f}",
                    f"{statistics.median(sizes) / statistics.median(base):.2f}",
                    f"{max(sizes):,}",
                    f"{statistics.mean(each.moved):,.0f}",
                    f"{_for_each(sizes, each.moved):.0f}",
                )
            )
    return tuple(rows)


def _spark_rows(found: dict[str, queries.Ran]) -> tuple[tuple[str, ...], ...]:
    """Compare the second batch with the last, when the exact join holds far more rows."""
    rows = []
    for name, ran in found.items():
        for at in (1, len(ran.seconds) - 1):
            counters = ran.counters[at]
            rows.append(
                (
                    name,
                    str(at + 1),
                    f"{counters['held']:,}",
                    f"{ran.rows[at]:,}",
                    f"{counters['admitted'] + counters['shed']:,}",
                    f"{counters['state_bytes']:,}",
                    f"{ran.changelogs[at]:,}",
                    f"{ran.seconds[at]:.2f}",
                )
            )
    return tuple(rows)


def _figure(what: str, ratio: float) -> Figure:
    return Figure(
        f"state written a batch, budget 10x larger, same input, {what}",
        f"{ratio:.2f}x",
        ratio,
        bar=1.5,
        aim=1.0,
        form="{}x",
        higher=False,
    )


def run(scale: Scale, step: Step) -> Section:
    """Run the long input without Spark, which compacts, and the short one on Spark."""
    long = long_runs(scale, step)
    spark = on_spark(scale, step)
    figures = []
    for name, budgets in long.items():
        what = f"{name} keys, mean of {scale.long} batches with compactions"
        figures.append(_figure(what, _mean_ratio(*(each.sizes for each in budgets.values()))))
    small, large = (
        [counters["state_bytes"] for counters in ran.counters[1:]]
        for ran in (spark[f"{scale.memory:,}"], spark[f"{10 * scale.memory:,}"])
    )
    what = f"uniform keys, on Spark, mean of {scale.short} batches"
    figures.append(_figure(what, _mean_ratio(small, large)))
    return Section(
        title="bytes of state written a batch",
        workload=(
            f"Budgets of {scale.memory:,} and {10 * scale.memory:,} rows, PROB, a window of "
            f"{2 * scale.fill:,} rows, {50 * scale.memory:,} keys. A first batch fills the "
            f"memory; then {2 * scale.ticks:,} rows a batch. Exact: {2 * scale.exact_ticks:,} "
            "rows a batch and no window, so that the held rows grow by all of them."
        ),
        figures=tuple(figures),
        tables=(
            Table(
                f"Bytes a batch, {scale.long} batches",
                (
                    "keys",
                    "budget",
                    "mean",
                    "ratio",
                    "median",
                    "ratio",
                    "largest",
                    "admitted or shed",
                    "bytes for each of these",
                ),
                _long_rows(long),
                "The engine alone, written out by the operator's rule. A row that is admitted "
                "and shed within one batch is not written. The log has rows that came and went. "
                "Where the larger memory admits more of the same input, it writes more.",
            ),
            Table(
                "On Spark",
                (
                    "budget",
                    "batch",
                    "held",
                    "rows",
                    "admitted or shed",
                    "state_bytes",
                    "changelog files, bytes",
                    "seconds",
                ),
                _spark_rows(spark),
                "`state_bytes` counts what tidegate gave the state store, and the changelog what "
                "the store wrote, compressed.",
            ),
        ),
    )
