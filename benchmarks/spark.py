"""End to end on Spark: tidegate against Spark's own stream-stream join, in one session."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import first, queries
from benchmarks.measure import Samples, Step, samples
from benchmarks.report import Figure, Section, Table
from tidegate.spark.operator import PROVIDER

EXACT = "tidegate, exact"
QUARTER = "tidegate, memory a quarter of the window"  # and a policy
POLICIES = ("prob", "auto")
HDFS, ROCKS = "Spark's own, HDFS-backed state", "Spark's own, RocksDB state"
WITHIN = 20_000  # milliseconds


@dataclass(frozen=True)
class Scale:
    """`rows` per side in `batches`; the slow competitor gets fewer batches and one round."""

    rows: int = 4_000_000
    batches: int = 8
    domain: int = 205_000
    rounds: int = 3
    slow_batches: int = 2
    processes: int = 2


FULL = Scale()
QUICK = Scale(rows=80_000, batches=4, rounds=1, slow_batches=3, processes=1)


def _bounded(policy: str) -> str:
    return f"{QUARTER}, {policy}"


def ways() -> list[queries.Way]:
    """Return the joins to compare."""
    within = f"{WITHIN // 1000} seconds"
    return [
        queries.tidegate(EXACT, within=within),
        *(
            queries.tidegate(_bounded(p), within=within, memory=2 * WITHIN // 4, policy=p)
            for p in POLICIES
        ),
        queries.native(HDFS, queries.HDFS_BACKED, within),
    ]


def end_to_end(
    scale: Scale, folder: Path, expected: int, step: Step
) -> dict[str, list[queries.Ran]]:
    """Run all joins in turns; exact ones must have the same counts, batch by batch."""
    found: dict[str, list[queries.Ran]] = {}
    with queries.spark() as spark:
        for turn in range(scale.rounds):
            for way in ways():
                step(f"{way.name}, round {turn + 1} of {scale.rounds}")
                found.setdefault(way.name, []).append(queries.run(spark, way, folder))
        step(f"{ROCKS}, {scale.slow_batches} batches")
        slow = queries.native(ROCKS, PROVIDER, f"{WITHIN // 1000} seconds")
        short = queries.beginning(folder, scale.slow_batches)
        found[ROCKS] = [queries.run(spark, slow, short)]
    _check_counts(found, expected)
    return found


def _check_counts(found: dict[str, list[queries.Ran]], expected: int) -> None:
    truth = found[HDFS][0].results
    wrong = {
        (name, ran.results)
        for name in (EXACT, HDFS, ROCKS)
        for ran in found[name]
        if ran.results != truth[: len(ran.results)]
    }
    if wrong or sum(truth) != expected:
        raise RuntimeError(f"exact joins differ: {expected=} {truth=} {wrong=}")


def first_batches(scale: Scale, folder: Path, step: Step) -> dict[str, list[dict[str, Any]]]:
    """Run new processes in turns, and one for tidegate without compiled code."""
    one = queries.beginning(folder, 1)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in first.WAYS}
    for turn in range(scale.processes):
        for name, runs in found.items():
            step(f"first batch in a new process, {name}, {turn + 1} of {scale.processes}")
            runs.append(first.in_new_process(name, one))
    step("first batch in a new process, tidegate, nothing compiled yet")
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as cache:
        found["uncompiled"] = [first.in_new_process("tidegate", one, NUMBA_CACHE_DIR=cache)]
    return found


def steady(runs: list[queries.Ran]) -> Samples:
    """Return the median batch after the first, of each round."""
    return samples([statistics.median(ran.seconds[1:]) for ran in runs])


def _ran_row(name: str, runs: list[queries.Ran], scale: Scale) -> tuple[str, ...]:
    later = samples([seconds for ran in runs for seconds in ran.seconds[1:]])
    rows = runs[0].rows[-1]
    batches = len(runs[0].seconds)
    total = samples([sum(ran.seconds) for ran in runs]).show("{:.1f}")
    if batches < scale.batches:
        scaled = runs[0].seconds[0] + later.median * (scale.batches - 1)
        total = f"{scaled:.0f}, scaled up from {batches} batches"
    return (
        name,
        later.show(),
        f"{later.spread:.0%}",
        samples([ran.seconds[0] for ran in runs]).show(),
        f"{rows / later.median:,.0f}",
        total,
        f"{sum(runs[0].results):,}",
    )


def _first_rows(found: dict[str, list[dict[str, Any]]]) -> tuple[tuple[str, ...], ...]:
    names = {
        "tidegate": EXACT,
        "spark": HDFS,
        "uncompiled": "tidegate, nothing compiled on this machine yet",
    }
    return tuple(
        (
            names[name],
            samples([run["session"] for run in runs]).show(),
            *(
                samples([run[when][what] for run in runs]).show()
                for when in ("cold", "warm")
                for what in ("batch", "whole")
            ),
        )
        for name, runs in found.items()
    )


def _figures(
    found: dict[str, list[queries.Ran]], firsts: dict[str, list[dict[str, Any]]], scale: Scale
) -> tuple[Figure, ...]:
    size = f"{2 * scale.rows / 1e6:g} M rows"
    figures = []
    bounded = {_bounded(p): f"memory a quarter of the window, {p}" for p in POLICIES}
    for name, what in ({EXACT: "exact mode"} | bounded).items():
        ratio = steady(found[HDFS]).over(steady(found[name]))
        figures.append(
            Figure(
                f"end to end on Spark, {size}, {what}, steady batches, throughput against "
                "Spark's own (HDFS-backed)",
                ratio.show("{:.1f}") + "x",
                ratio.median,
                4,
                8,
                "{}x",
            )
        )
    for when, what in (("cold", "a fresh process"), ("warm", "a process that ran one before")):
        times = {
            name: samples([run[when]["batch"] for run in firsts[name]])
            for name in ("tidegate", "spark")
        }
        ratio = times["tidegate"].over(times["spark"])
        figures.append(
            Figure(
                f"first batch of a new query in {what}, against Spark's own",
                ratio.show() + "x its time",
                ratio.median,
                1.5,
                1,
                "{}x",
                higher=False,
            )
        )
    return tuple(figures)


def run(scale: Scale, step: Step) -> Section:
    """Measure steady batches, then first batches."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        step(f"writing {2 * scale.rows:,} rows")
        tables = queries.write(folder, scale.rows, scale.batches, scale.domain)
        expected = queries.exact_results(tables, WITHIN)
        del tables
        found = end_to_end(scale, folder, expected, step)
        firsts = first_batches(scale, folder, step)
    kept = [sum(found[_bounded(p)][0].results) / expected for p in POLICIES]
    return Section(
        title="end to end against Spark's own stream-stream join",
        workload=(
            f"{scale.rows:,} rows a side of key, time and value, 1 ms apart, "
            f"{scale.domain:,} uniform keys, within {WITHIN // 1000} s either way: "
            f"{expected:,} results, the same from every exact join, batch by batch. Parquet files, "
            f"{2 * scale.rows // scale.batches:,} rows a batch, no sink; two cores, two shuffle "
            "partitions for all (Spark's own is slower with its default of 200), a heap of 4 GB, "
            "RocksDB with changelog checkpointing."
        ),
        figures=_figures(found, firsts, scale),
        tables=(
            Table(
                "Seconds a batch",
                (
                    "way",
                    "batches after the first",
                    "spread",
                    "first batch",
                    "rows a second",
                    "all batches",
                    "results",
                ),
                tuple(_ran_row(way, runs, scale) for way, runs in found.items()),
                f"In turns, {scale.rounds} rounds; RocksDB state once. A quarter of the memory "
                f"found {min(kept):.1%} to {max(kept):.1%} of the results: uniform keys give a "
                "policy nothing to choose by.",
            ),
            Table(
                "First batch, seconds",
                (
                    "way",
                    "Spark's start",
                    "first query: batch",
                    "from building it",
                    "second query: batch",
                    "from building it",
                ),
                _first_rows(firsts),
                f"{scale.processes} fresh processes each, in turns. The second query is a new one "
                "in the same process.",
            ),
        ),
    )
