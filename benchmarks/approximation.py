"""Measure how many results are lost because moving ranks are not all computed at each choice.

`python -m benchmarks approximation` measures all cells. `python -m benchmarks.approximation` takes
the names of streams and policies, and memories, and measures these alone. Both write each run to a
file as it ends, and skip what the file has. So a measurement can be stopped, resumed, and divided.
"""

from __future__ import annotations

import csv
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import typer

from benchmarks import store
from benchmarks.exact_ranking import PLAIN, rank_in_blocks
from benchmarks.measure import Feeder, Inputs, Step, loop_seconds
from benchmarks.report import Figure, Section, Table
from tidegate.joins.window.rules import EXACT_LIMIT
from tidegate.policies import POLICIES, HeldRow, IJoin, Policy, Prob
from tidegate.policies.base import Ranks
from tidegate.streams import echoes, zipf
from tidegate.streams.auctions import draw_ages

Tables = tuple[pa.Table, pa.Table]

#: The share of the exact ranking's results that the queue must reach.
_BAR = 0.99
#: A loop of fewer seconds counts as one of this many, as clocks are coarse.
_LEAST = 0.001


@dataclass(frozen=True)
class Stream:
    """A pair of streams with one row a tick on the left, and how they are joined.

    The arguments of `make` are ticks, window and seed. A stream with `one_side` has a window on the
    left only: its rows wait for replies.
    """

    make: Callable[[int, int, int], Tables]
    one_side: bool = False
    where: str | None = None

    def within(self, window: int) -> Any:
        """Return the windows of both sides."""
        return (window, 1) if self.one_side else window

    def window(self, memory: int, share: float) -> int:
        """Return the window for which a memory holds this share of the live rows."""
        return round(memory / share / (1 if self.one_side else 2))


def _replies(ticks: int, window: int, seed: int, shape: str) -> Tables:
    """Generate rows of new keys, half of which get a reply at an age of some distribution."""
    rng = np.random.default_rng(seed)
    key = rng.integers(0, ticks, ticks // 2)
    if shape == "two humps":
        middle = np.where(rng.random(len(key)) < 0.5, 0.2, 0.75)
        age = (window * np.clip(rng.normal(middle, 0.06), 0.0, 0.999)).astype(np.int64)
    else:
        age = draw_ages(rng, len(key), window, shape)
    order = np.lexsort((key, key + age))
    key, age = key[order], age[order]
    known = key + age < ticks
    return (
        pa.table({"key": np.arange(ticks), "time": np.arange(ticks)}),
        pa.table({"key": key[known], "time": (key + age)[known]}),
    )


def _band(ticks: int, window: int, seed: int) -> Tables:
    """Generate readings of a few sensors; a pair of one sensor joins if its values are close."""
    rng = np.random.default_rng(seed)
    return tuple(
        pa.table(
            {
                "key": rng.integers(0, max(window // 20, 1), ticks),
                "time": np.arange(ticks),
                "x": rng.normal(0.0, 10.0, ticks),
            }
        )
        for _ in range(2)
    )


STREAMS: dict[str, Stream] = {
    "Zipf": Stream(lambda n, window, seed: zipf(n, domain=window // 2, seed=seed)),
    "echoes": Stream(
        lambda n, window, seed: echoes(n, window=window, domain=window // 2, seed=seed)
    ),
    "bell": Stream(lambda n, window, seed: _replies(n, window, seed, "bell"), True),
    "increasing": Stream(lambda n, window, seed: _replies(n, window, seed, "inc"), True),
    "decreasing": Stream(lambda n, window, seed: _replies(n, window, seed, "dec"), True),
    "two humps": Stream(lambda n, window, seed: _replies(n, window, seed, "two humps"), True),
    "band join": Stream(_band, where="abs(l.x - r.x) <= 1"),
}


@dataclass(frozen=True)
class LfuAging(Policy):
    """A user's own formula: least frequently used with aging."""

    name: ClassVar[str] = "benchmark-lfu-aging"
    ranks: ClassVar[Ranks] = "score"

    @staticmethod
    def score(row: HeldRow, params: Any) -> float:
        """Return the results that the row has found, over its age."""
        return (1.0 + row.matches) / (1.0 + row.age)


def moving() -> dict[str, Policy]:
    """Return every policy whose ranks fall as well as rise."""
    found = {name: kind() for name, kind in POLICIES.items() if kind.ranks in ("life", "score")}
    more: dict[str, Policy] = {
        "prob, window": Prob("window"),
        "ijoin, every 100 drops": IJoin(recompute=100),
        "ijoin, adaptive": IJoin(recompute="adaptive"),
        "lfu-aging": LfuAging(),
    }
    return found | more


@dataclass(frozen=True)
class Memory:
    """A memory in rows, and what is measured with it.

    The exact ranking computes all ranks once in `block` choices. Streams last for some windows, but
    for no more ticks than `most` after the first window.
    """

    rows: int
    seeds: int
    block: int = 1
    windows: int = 5
    most: int = 100_000
    splits: tuple[str, ...] = ("shared", "fixed")
    streams: tuple[str, ...] = tuple(STREAMS)


@dataclass(frozen=True)
class Scale:
    """Memories, the shares of the live rows that fit, and the policies; the file of all runs."""

    memories: tuple[Memory, ...] = (
        Memory(1_000, 10),
        Memory(10_000, 3, block=16),
        # Keys of echoes as frequent as there have too many results.
        Memory(100_000, 1, block=64, streams=tuple(name for name in STREAMS if name != "echoes")),
    )
    shares: tuple[float, ...] = (0.3, 0.7)
    policies: tuple[str, ...] = tuple(moving())
    file: Path | None = store.RESULTS / "cells" / "approximation.csv"


FULL = Scale()
QUICK = Scale(
    memories=(Memory(400, 1, windows=3, splits=("shared",), streams=("Zipf", "bell")),),
    shares=(0.7,),
    policies=("age", "auto", "ijoin", "lfu-aging"),
    file=None,
)


class Cell(NamedTuple):
    """One comparison: a stream, a memory, how it is split, and a policy."""

    stream: str
    memory: int
    share: float
    split: str
    policy: str


class Run(NamedTuple):
    """The results of one join, and the seconds in its loop; `ranking` is "exact" or "queue"."""

    cell: Cell
    seed: int
    ranking: str
    results: int
    loop: float


def cells(scale: Scale) -> Iterator[tuple[Memory, Cell]]:
    """Yield all cells, those of the same streams one after the other."""
    for memory in scale.memories:
        for name in memory.streams:
            for share in scale.shares:
                for split in memory.splits:
                    for policy in scale.policies:
                        yield memory, Cell(name, memory.rows, share, split, policy)


@functools.lru_cache(maxsize=10)
def _streams(name: str, ticks: int, window: int, seed: int) -> Tables:
    return STREAMS[name].make(ticks, window, seed)


def measure(memory: Memory, cell: Cell, seed: int, ranking: str) -> Run:
    """Join the streams of a cell."""
    stream = STREAMS[cell.stream]
    window = stream.window(cell.memory, cell.share)
    ticks = window + min((memory.windows - 1) * window, memory.most)
    tables = _streams(cell.stream, ticks, window, seed)
    settings: dict[str, Any] = {"split": cell.split, "memory": cell.memory}
    settings |= {"within": stream.within(window), "policy": moving()[cell.policy]}
    if stream.where is not None:
        settings["where"] = stream.where
    limit = PLAIN + memory.block - 1 if ranking == "exact" else 0
    feeder = Feeder(tables[0].schema, exact_limit=limit, **settings)
    results = 0
    with loop_seconds(clock=time.process_time) as loop:
        for start in range(0, ticks, window):
            inputs = _cut(feeder, tables, start, start + window)
            results += sum(batch.num_rows for batch in feeder.engine.feed(inputs))
    return Run(cell, seed, ranking, results, sum(loop))


def _cut(feeder: Feeder, tables: Sequence[pa.Table], start: int, stop: int) -> Inputs:
    """Prepare the rows of a range of times."""
    found = []
    for side, table in enumerate(tables):
        first, last = np.searchsorted(table.column("time").to_numpy(), [start, stop]).tolist()
        batches = table.slice(first, last - first).combine_chunks().to_batches()
        found.append([feeder.job.prepare(side, batch)[0] for batch in batches])
    return found[0], found[1]


_FIELDS = (*Cell._fields, "seed", "ranking", "results", "loop")


def runs_in(file: Path | None) -> list[Run]:
    """Return the runs in a file."""
    return [
        Run(
            Cell(
                row["stream"], int(row["memory"]), float(row["share"]), row["split"], row["policy"]
            ),
            int(row["seed"]),
            row["ranking"],
            int(row["results"]),
            float(row["loop"]),
        )
        for row in (store.read(file) if file is not None else ())
    ]


def complete(scale: Scale, step: Step) -> list[Run]:
    """Return all runs of a scale; make those that its file lacks, and add them to it."""
    known = {run[:3]: run for run in runs_in(scale.file)}
    if any(memory.block > 1 for memory in scale.memories):
        rank_in_blocks()
    found = []
    for memory, cell in cells(scale):
        for seed in range(memory.seeds):
            for ranking in ("exact", "queue"):
                run = known.get((cell, seed, ranking))
                if run is None:
                    step(", ".join(map(str, (*cell, seed, ranking))))
                    run = measure(memory, cell, seed, ranking)
                    if scale.file is not None:
                        _append(scale.file, run)
                found.append(run)
    return found


def _append(file: Path, run: Run) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    is_new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        if is_new:
            writer.writerow(_FIELDS)
        writer.writerow((*run.cell, *run[1:4], f"{run.loop:.3f}"))


@dataclass(frozen=True)
class Compared:
    """The runs of a cell by seed, with the exact ranking and with the queue."""

    exact: tuple[Run, ...]
    queue: tuple[Run, ...]

    @property
    def share(self) -> float:
        """The queue's results as a share of the exact ranking's."""
        return sum(run.results for run in self.queue) / sum(run.results for run in self.exact)

    @property
    def error(self) -> float:
        """The standard error of the share, from pairs of runs with the same seed."""
        pairs = zip(self.exact, self.queue, strict=True)
        lost = [queue.results - self.share * exact.results for exact, queue in pairs]
        if len(lost) == 1:
            return math.nan
        mean = statistics.mean(run.results for run in self.exact)
        return statistics.stdev(lost) / math.sqrt(len(lost)) / mean

    @property
    def speed(self) -> float:
        """The time in the loop of the exact ranking over that of the queue."""
        exact, queue = (sum(run.loop for run in runs) for runs in (self.exact, self.queue))
        return exact / max(queue, _LEAST)


def compared(runs: Sequence[Run]) -> dict[Cell, Compared]:
    """Return the runs of each cell."""
    found: dict[Cell, dict[str, list[Run]]] = {}
    for run in runs:
        found.setdefault(run.cell, {"exact": [], "queue": []})[run.ranking].append(run)
    return {cell: Compared(*(tuple(own[name]) for name in own)) for cell, own in found.items()}


def run(scale: Scale, step: Step) -> Section:
    """Measure every policy with moving ranks on every stream, at every memory."""
    found = compared(complete(scale, step))
    figures, rows = [], []
    for memory in scale.memories:
        own = {cell: each for cell, each in found.items() if cell.memory == memory.rows}
        worst = min(own, key=lambda cell: own[cell].share)
        below = [each for each in own.values() if each.share < _BAR]
        sure = [each for each in below if each.share + 2 * each.error < _BAR]
        names = ", ".join(map(str, (*worst[:1], f"{worst.share:.0%}", *worst[3:])))
        figures.append(
            Figure(
                f"results with the queue of moving ranks over those with an exact ranking, "
                f"{memory.rows:,} rows, {len(own)} cells; median "
                f"{statistics.median(each.share for each in own.values()):.2%}; {len(below)} cells "
                f"below {_BAR:.0%}, {len(sure)} of them by more than two standard errors",
                f"at worst {own[worst].share:.2%} ({names})",
                own[worst].share,
                bar=_BAR,
                aim=0.995,
                form="{:.1%}",
            )
        )
    for cell, each in found.items():
        spread = "" if math.isnan(each.error) else f"{each.error:.2%}"
        exact = statistics.mean(run.results for run in each.exact)
        rows.append(
            (
                cell.stream,
                f"{cell.memory:,}",
                f"{cell.share:.0%}",
                cell.split,
                cell.policy,
                f"{exact:,.0f}",
                f"{each.share:.2%}",
                spread,
                f"{each.speed:.1f}x",
            )
        )
    return Section(
        title="what the approximate ranking costs",
        workload=(
            "Zipf(1) keys on both sides, and echoes of them that come at some ages more than at "
            "others, with half as many keys as ticks in a window. New keys on the left, half of "
            "which get one reply at an age of a bell, increasing, decreasing or two-humped "
            "distribution. A band join of sensor readings. Memory for a share of the live rows, "
            "shared or split in halves. Exact: the ranks of all rows are computed for each choice, "
            f"which is what a join does up to {EXACT_LIMIT} rows; with 10,000 rows once in 16 and "
            "with 100,000 rows once in 64 choices, see `benchmarks/exact_ranking.py`. Queue: what "
            "a join does above that limit."
        ),
        figures=tuple(figures),
        tables=(
            Table(
                "Results with the queue over results with an exact ranking",
                (
                    "streams",
                    "memory",
                    "of the live rows",
                    "split",
                    "policy",
                    "exact",
                    "queue over it",
                    "standard error",
                    "cost",
                ),
                tuple(rows),
                "Standard error: of the share, from pairs of runs on the same streams. Cost: time "
                "in the loop with the exact ranking over that with the queue.",
            ),
        ),
    )


def main(
    only: Annotated[
        list[str] | None,
        typer.Argument(help="Streams, splits, policies and memories to measure; all by default."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="The file of runs to complete.")] = FULL.file,
) -> None:
    """Measure the cells that match, write each run to the file, and show what is below the bar."""
    names = set(only or ())
    every = {str(word) for _, cell in cells(FULL) for word in cell}
    if not names <= every:
        raise typer.BadParameter(f"{', '.join(names - every)}: there is no such cell")

    def chosen(all_names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in all_names if name in names or not names & set(all_names))

    memories = chosen([str(memory.rows) for memory in FULL.memories])
    scale = replace(
        FULL,
        memories=tuple(
            replace(memory, splits=chosen(memory.splits), streams=chosen(memory.streams))
            for memory in FULL.memories
            if str(memory.rows) in memories
        ),
        policies=chosen(FULL.policies),
        file=file,
    )
    for cell, each in compared(complete(scale, lambda what: None)).items():
        if each.share < _BAR or names:
            typer.echo(f"{each.share:.2%} ± {each.error:.2%} {', '.join(map(str, cell))}")


if __name__ == "__main__":
    typer.run(main)
