"""Measure how often 95 % intervals of samples contain the truth, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate as tg
from benchmarks.measure import Step
from benchmarks.report import Table
from tidegate.joins.sampled.engine import SampledJob
from tidegate.joins.sampled.spec import sampled_join
from tidegate.streams import auctions, zipf

METHODS = ("uniform", "cluster", "pps")
WHAT = ("count", "sum", "avg")
CORRELATIONS = {"DC": "same", "IC": "opposite", "UC": "none"}
#: The memory is 30 % of both windows of 100 ticks.
TICKS, WINDOW, MEMORY = 1_500, 100, 60


@dataclass(frozen=True)
class Cell:
    """Two streams, how they are joined, and the left column that is aggregated."""

    tables: tuple[pa.Table, pa.Table]
    value: str
    settings: dict[str, Any]


def cells(skews: Sequence[float], ticks: int = TICKS) -> dict[str, Cell]:
    """Return Zipf keys in the paper's three cases, and auctions, whose bids depend on age."""
    join = {"on": "key", "time": "time", "within": WINDOW, "memory": MEMORY}
    found = {
        f"{name}, Zipf({skew:g})": Cell(
            zipf(ticks, domain=50, skew=skew, correlation=correlation, seed=4), "value_left", join
        )
        for name, correlation in CORRELATIONS.items()
        for skew in skews
    }
    join = {"on": "auction_id", "time": "ts", "within": ("2 hours", "1 s")}
    by_age = auctions(1_500, bids=5.0, shape="inc", seed=4)
    found["by age"] = Cell(by_age, "reserve", join | {"memory": 144, "model": "age"})
    return found


@dataclass
class Covered:
    """The outcome of many samples of one cell: whether intervals contain the truth."""

    inside: dict[str, list[bool]] = field(default_factory=lambda: {what: [] for what in WHAT})
    off: dict[str, list[float]] = field(default_factory=lambda: {what: [] for what in WHAT})
    #: True if the estimated error of the count was at least half of the model's.
    foreseen: list[bool] = field(default_factory=list)
    #: The share of monitored results that UNIFORM cannot sample, which is its bias.
    beyond: list[float] = field(default_factory=list)

    def show(self) -> str:
        """Return the shares of intervals that contain the truth, as text."""
        return " / ".join(f"{np.mean(self.inside[what]):.1%}" for what in WHAT)

    def show_bias(self) -> str:
        """Return the mean error of counts, and the error that the counters report, as text."""
        return f"{np.mean(self.off['count']):+.1%}; {-np.mean(self.beyond):+.1%}"

    def show_warned(self) -> str:
        """Return how many samples underestimate their error, and how often the others are right."""
        inside = np.array(self.inside["count"])[self.foreseen]
        rest = f"{np.mean(inside):.1%}" if len(inside) else "-"
        return f"{1 - np.mean(self.foreseen):.0%}; of the others {rest}"


def drawn(cell: Cell, method: str, seeds: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield estimates and counters of many samples, one per seed."""
    spec = sampled_join(
        cell.tables[0].schema, cell.tables[1].schema, method=method, **cell.settings
    )
    job = SampledJob(spec)
    inputs = [
        [job.prepare(side, batch)[0] for batch in table.combine_chunks().to_batches()]
        for side, table in enumerate(cell.tables)
    ]
    for seed in range(seeds):
        engine = SampledJob(replace(spec, window=replace(spec.window, seed=seed))).engine_at(0, 1)
        sample = pa.Table.from_batches([*engine.feed(inputs), *engine.finish()], spec.result_schema)
        for row in tg.estimate(sample, value=cell.value).table.to_pylist():
            yield row, engine.take_counters()


def covered(cell: Cell, method: str, seeds: int) -> Covered:
    """Sample a cell repeatedly, and compare with the truth."""
    known = {k: v for k, v in cell.settings.items() if k not in ("memory", "model")}
    values = tg.join(*cell.tables, **known).table.column(cell.value).to_numpy()
    truth = {"count": float(len(values)), "sum": values.sum(), "avg": values.mean()}
    found = Covered()
    for row, counters in drawn(cell, method, seeds):
        for what, true in truth.items():
            low, high = (row[f"{what}_{end}"] for end in ("low", "high"))
            found.inside[what].append(low is not None and low <= true <= high)
            found.off[what].append(row[what] / true - 1)
        found.foreseen.append(row["count_error"] >= math.sqrt(counters["variance"]) / 2)
        found.beyond.append(counters["beyond"] / max(counters["monitored"], 1))
    return found


def table(skews: Sequence[float], seeds: int, step: Step) -> Table:
    """Measure the coverage of every cell and method."""
    rows = []
    for name, cell in cells(skews).items():
        step(f"intervals, {name}")
        by_method = {method: covered(cell, method, seeds) for method in METHODS}
        shown = [found.show() for found in by_method.values()]
        bias, warned = by_method["uniform"].show_bias(), by_method["cluster"].show_warned()
        rows.append((name, *shown, bias, warned))
    return Table(
        "How often 95 % intervals have the truth in them: count / sum / avg",
        (
            "streams",
            "UNIFORM",
            "EQ-CLUSTER",
            "PPS-CLUSTER",
            "UNIFORM's counts, mean error; as told",
            "EQ-CLUSTER, warned of",
        ),
        tuple(rows),
        f"{TICKS:,} ticks of one row on either side, 50 keys, a memory of 30 % of both windows, "
        f"models learned; {seeds} seeds, so that a share of 95 % is measured to within "
        f"{2 * math.sqrt(0.95 * 0.05 / seeds):.1%}. Where one or two clusters are a large part of "
        "the result, EQ-CLUSTER mostly misses them and cannot know it, so that no interval is "
        "right (the next table has longer streams). The model does know: a sample gives a warning "
        "if its error is less than half of the error that the counter `variance` expects. This "
        "rule was made on these streams, and has not been tried on others. UNIFORM finds no more "
        "partners of a row than its model expects. So its counts are too small by the share "
        "`beyond / monitored`, and its intervals miss the truth where this share is large.",
    )


#: Cells of the table above in which results depend on a few clusters.
_HARD = ("IC, Zipf(1.5)", "IC, Zipf(2)", "UC, Zipf(2)")


def by_length(lengths: Sequence[int], seeds: int, step: Step) -> Table:
    """Measure the coverage of EQ-CLUSTER if results depend on a few clusters, as these increase."""
    rows = []
    for ticks in lengths:
        step(f"intervals of EQ-CLUSTER, {ticks:,} ticks")
        hard = cells((1.5, 2.0), ticks)
        rows.append(
            (f"{ticks:,}", *(covered(hard[name], "cluster", seeds).show() for name in _HARD))
        )
    return Table(
        "The same for EQ-CLUSTER as streams grow longer: count / sum / avg",
        ("ticks", *_HARD),
        tuple(rows),
        "As above. In 1,500 ticks the rarest keys, whose clusters are the largest, come once or "
        "not at all. With some of them in every sample, intervals are right or a little too long.",
    )
