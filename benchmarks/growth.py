"""Measure the cost per row as memory, window, batches and shards grow, relative to the smallest."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.measure import Feeder, Inputs, Samples, Step, samples
from benchmarks.report import Figure, Section, Table
from tidegate.policies import POLICIES, ByFrequency, Fifo, Policy
from tidegate.streams import uniform


@dataclass(frozen=True)
class Scale:
    """The sizes to measure, and how long."""

    memories: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    windows: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    batches: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    shards: tuple[int, ...] = (1, 2, 4, 8, 16)
    ticks: int = 250_000
    rounds: int = 5
    shard_rows: int = 200_000
    shard_batches: int = 6


FULL = Scale()
QUICK = Scale(
    memories=(1_000, 10_000),
    windows=(1_000, 10_000),
    batches=(1_000, 10_000),
    shards=(1, 4),
    ticks=50_000,
    rounds=2,
    shard_rows=20_000,
    shard_batches=3,
)


@dataclass(frozen=True)
class Cost:
    """Seconds per row, in total and in the loop, and results per row."""

    whole: Samples
    loop: Samples
    results: float


class _Track:
    """One engine with its own input, fed until its memory and window are full."""

    def __init__(self, scale: Scale, within: int, domain: int, **settings: Any) -> None:
        self._ticks = scale.ticks
        self._warm = -(-within // scale.ticks) + 1
        self._tables = uniform((self._warm + scale.rounds) * scale.ticks, domain=domain, seed=1)
        self._within = within
        self._settings = settings
        maker = self._feeder(Fifo())
        self._inputs: list[Inputs] = [
            maker.prepare(self._tables, at * scale.ticks, scale.ticks)
            for at in range(self._warm + scale.rounds)
        ]

    def _feeder(self, policy: Policy) -> Feeder:
        schema: pa.Schema = self._tables[0].schema
        return Feeder(schema, within=self._within, policy=policy, **self._settings)

    def start(self, policy: str) -> Feeder:
        kind = POLICIES[policy]
        memory = self._settings.get("memory")
        feeder = self._feeder(kind(keys=memory) if issubclass(kind, ByFrequency) else kind())
        for inputs in self._inputs[: self._warm]:
            feeder.feed(inputs)
        return feeder

    def round(self, at: int) -> Inputs:
        return self._inputs[self._warm + at]


def _costs(scale: Scale, tracks: Sequence[_Track], policy: str) -> list[Cost]:
    """Measure all tracks in turns, so that other load on the machine affects all of them."""
    feeders = [track.start(policy) for track in tracks]
    fed = [
        [feeder.feed(track.round(at)) for feeder, track in zip(feeders, tracks, strict=True)]
        for at in range(scale.rounds)
    ]
    rows = 2 * scale.ticks
    return [
        Cost(
            samples([took.seconds / rows for took in column]),
            samples([took.loop / rows for took in column]),
            sum(took.results for took in column) / (rows * scale.rounds),
        )
        for column in zip(*fed, strict=True)
    ]


def by_memory(scale: Scale, policy: str, tracks: Sequence[_Track]) -> dict[int, Cost]:
    """Keep the memory full: the window is four times as large, with keys in proportion."""
    return dict(zip(scale.memories, _costs(scale, tracks, policy), strict=True))


def memory_tracks(scale: Scale) -> list[_Track]:
    """Generate input for each memory: a row finds a tenth of a partner, whatever the size."""
    return [_Track(scale, 2 * m, 5 * m, memory=m) for m in scale.memories]


def by_window(scale: Scale) -> dict[int, Cost]:
    """Run the exact join, so that the join holds the whole window."""
    tracks = [_Track(scale, w, 10 * w) for w in scale.windows]
    return dict(zip(scale.windows, _costs(scale, tracks, "prob"), strict=True))


def by_batch(scale: Scale, memory: int | None) -> dict[int, Cost]:
    """Feed the same rows in batches of different sizes; the window is the end-to-end workload's."""
    within, domain = 20_000, 205_000
    most = max(scale.batches) // 2
    fill = max(most, within)
    tables = uniform(fill + most * scale.rounds, domain=domain, seed=1)
    found = {}
    for size in scale.batches:
        feeder = Feeder(tables[0].schema, within=within, memory=memory, policy="prob")
        ticks = size // 2
        # Enough small batches to measure, few enough to finish soon.
        number = min(most // ticks, 100)
        feeder.feed(feeder.prepare(tables, 0, fill))
        whole, loop, results = [], [], 0
        at = fill
        for _ in range(scale.rounds):
            inputs = [feeder.prepare(tables, at + i * ticks, ticks) for i in range(number)]
            at += number * ticks
            fed = [feeder.feed(batch) for batch in inputs]
            whole.append(sum(took.seconds for took in fed) / (2 * ticks * number))
            loop.append(sum(took.loop for took in fed) / (2 * ticks * number))
            results += sum(took.results for took in fed)
        rows = 2 * ticks * number * scale.rounds
        found[size] = Cost(samples(whole), samples(loop), results / rows)
    return found


def by_shards(scale: Scale, step: Step) -> dict[int, tuple[Samples, int]]:
    """Measure seconds per batch on Spark; results must not depend on the number of shards."""
    from benchmarks import queries

    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name, queries.spark() as spark:
        folder = Path(name)
        rows = scale.shard_rows // 2 * scale.shard_batches
        queries.write(folder, rows, scale.shard_batches, domain=205_000)
        found = {}
        for shards in (scale.shards[0], *scale.shards):
            step(f"{shards} shards on Spark")
            way = queries.tidegate(f"{shards} shards", within="20 seconds", shards=shards)
            ran = queries.run(spark, way, folder)
            # The first query warms Spark up; the second with the same number replaces its figures.
            found[shards] = samples(ran.seconds[1:]), sum(ran.results)
    return found


def _rows(first: str, costs: dict[int, Cost]) -> list[tuple[str, ...]]:
    """Return nanoseconds per row, and the ratio to the smallest size."""
    smallest = next(iter(costs.values()))
    return [
        (
            first,
            f"{size:,}",
            samples([s * 1e9 for s in cost.whole.values]).show("{:.0f}"),
            f"{cost.whole.median / smallest.whole.median:.2f}",
            samples([s * 1e9 for s in cost.loop.values]).show("{:.0f}"),
            f"{cost.loop.median / smallest.loop.median:.2f}",
            f"{cost.results:.3f}",
        )
        for size, cost in costs.items()
    ]


def worst(costs: dict[int, Cost], loop: bool) -> float:
    """Return the largest cost relative to the smallest size's."""
    medians = [(cost.loop if loop else cost.whole).median for cost in costs.values()]
    return max(medians) / medians[0]


def run(scale: Scale, step: Step) -> Section:
    """Measure all four kinds of growth."""
    memory_rows: list[tuple[str, ...]] = []
    figures = []
    step("input for each size of memory")
    tracks = memory_tracks(scale)
    grown = {}
    for policy in POLICIES:
        step(f"memory, {policy}")
        grown[policy] = by_memory(scale, policy, tracks)
        memory_rows += _rows(policy, grown[policy])
    del tracks
    for loop, what in ((False, "whole feed"), (True, "loop alone")):
        ratios = {policy: worst(costs, loop) for policy, costs in grown.items()}
        slowest = max(ratios, key=lambda policy: ratios[policy])
        figures.append(
            Figure(
                f"cost a row, memory {scale.memories[0]:,} to {scale.memories[-1]:,}, {what}",
                f"{ratios['prob']:.2f}x for prob; at worst {ratios[slowest]:.2f}x ({slowest})",
                ratios[slowest],
                2,
                1.3,
                "within {}x",
                higher=False,
            )
        )
    step("window, exact")
    window_rows = _rows("exact", by_window(scale))
    batch_rows = []
    for name, memory in (("exact", None), ("prob, a quarter", 10_000)):
        step(f"batch size, {name}")
        batch_rows += _rows(name, by_batch(scale, memory))
    shards = by_shards(scale, step)
    counts = {results for _, results in shards.values()}
    if len(counts) != 1:
        raise RuntimeError(f"the number of shards changed the exact result: {shards}")
    base = next(iter(shards.values()))[0].median
    shard_rows = tuple(
        (str(n), took.show(), f"{took.median / base:.2f}") for n, (took, _) in shards.items()
    )
    costs = ("whole feed, ns", "ratio", "loop alone, ns", "ratio", "results a row")
    return Section(
        title="what a row costs as things grow",
        workload=(
            f"One core, uniform keys, {2 * scale.ticks:,} rows a batch, {scale.rounds} batches "
            "once memory and window are full, all sizes in turns. With memory M the window is 4 M "
            "rows and there are 5 M keys, of which up to M without held rows are counted. So every "
            "row has the same chance to stay and the same number of partners, whatever the size. "
            "`auto` costs most where windows are small, because every row leaves a ghost."
        ),
        figures=tuple(figures),
        tables=(
            Table("With memory", ("policy", "memory", *costs), tuple(memory_rows)),
            Table("With the window", ("memory", "window a side", *costs), tuple(window_rows)),
            Table("With the size of a batch", ("memory", "rows", *costs), tuple(batch_rows)),
            Table(
                f"With shards, on Spark, {scale.shard_rows:,} rows a batch, exact",
                ("shards", "seconds a batch", "ratio"),
                shard_rows,
            ),
        ),
    )
