"""The times of iJoin's computations: the slides' "Performance of Re-computation Schemes"."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.measure import Step
from benchmarks.report import Section, Table
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join
from tidegate.policies import IJoin
from tidegate.quality import fairness

Tables = tuple[pa.Table, pa.Table]


@dataclass(frozen=True)
class Scale:
    """Ticks of a stream, seeds, and memories with the window for each."""

    ticks: int = 3_000
    seeds: int = 5
    settings: tuple[tuple[int, int], ...] = ((10, 25), (200, 500))


FULL = Scale()
QUICK = Scale(ticks=600, seeds=1, settings=((10, 25),))

SCHEMES: dict[str, IJoin] = {
    "successive": IJoin(tau=2, delta=3, penalty=0.1),
    "every 10 drops": IJoin(tau=2, delta=3, penalty=0.1, recompute=10),
    "every 100 drops": IJoin(tau=2, delta=3, penalty=0.1, recompute=100),
    "adaptive, fall 2%": IJoin(tau=2, delta=3, penalty=0.1, recompute="adaptive", fall=0.02),
    "adaptive, fall 10%": IJoin(tau=2, delta=3, penalty=0.1, recompute="adaptive"),
    "adaptive, fall 30%": IJoin(tau=2, delta=3, penalty=0.1, recompute="adaptive", fall=0.3),
}


@dataclass(frozen=True)
class Kept:
    """The results of one scheme on one pair of streams."""

    importance: float
    results: float
    fairness: float
    drops: float
    times: float
    seconds: float


def streams(ticks: int, seed: int) -> Tables:
    """Generate Zipf keys of 100 values, each with an importance from 1 to 100."""
    rng = np.random.default_rng(seed)
    importance = rng.integers(1, 101, 101).astype(np.float64)
    keys = [np.minimum(rng.zipf(1.3, ticks), 100) for _ in range(2)]
    left, right = (
        pa.table({"key": k, "time": np.arange(ticks), "importance": importance[k]}) for k in keys
    )
    return left, right


def measure(tables: Tables, memory: int, window: int, policy: IJoin) -> Kept:
    """Run one scheme on one pair of streams."""
    spec = window_join(
        tables[0].schema,
        tables[1].schema,
        on="key",
        time="time",
        within=window,
        memory=memory,
        policy=policy,
        importance="importance",
    )
    job, engine = WindowJob(spec), WindowEngine(spec, keep_shed=True)
    inputs = [[job.prepare(s, b)[0] for b in t.to_batches()] for s, t in enumerate(tables)]
    start = time.process_time()
    for _ in engine.feed(inputs):
        pass
    seconds = time.process_time() - start
    found, shed = engine.take_counters(), engine.take_shed()
    rows = [shed.column(side).combine_chunks().field("time") for side in ("left", "right")]
    came = np.where(rows[0].is_valid(), rows[0].fill_null(0), rows[1].fill_null(0))
    early = shed.column("shed_at").to_numpy() - came
    stays = np.concatenate([early, np.full(2 * len(tables[0]) - len(early), window)])
    drops = found["shed"] + found["rejected"]
    anew = engine._tables.core.quality["times"].sum() if policy.recompute != "successive" else drops
    return Kept(found["importance"], found["results"], fairness(stays), drops, anew, seconds)


def run(scale: Scale, step: Step) -> Section:
    """Run every scheme at every memory."""
    tables = []
    for memory, window in scale.settings:
        kept: dict[str, list[Kept]] = {}
        for seed in range(scale.seeds):
            step(f"memory {memory}, seed {seed}")
            both = streams(scale.ticks, seed)
            for name, policy in SCHEMES.items():
                kept.setdefault(name, []).append(measure(both, memory, window, policy))

        def mean(name: str, what: str, of: dict[str, list[Kept]] = kept) -> float:
            return float(statistics.mean(getattr(k, what) for k in of[name]))

        first = next(iter(SCHEMES))
        rows = tuple(
            (
                name,
                f"{mean(name, 'importance'):,.0f}",
                f"{mean(name, 'importance') / mean(first, 'importance'):.1%}",
                f"{mean(name, 'results'):,.0f}",
                f"{mean(name, 'fairness'):.2f}",
                f"{mean(name, 'drops'):,.0f}",
                f"{mean(name, 'times'):,.0f}",
                f"{mean(name, 'seconds') / mean(first, 'seconds'):.2f}x",
            )
            for name in SCHEMES
        )
        kept_columns = ("scheme", "importance", "of successive's", "results", "fairness")
        columns = (*kept_columns, "drops", "determined", "time")
        title = f"Memory {memory}, window {window}"
        tables.append(Table(title, columns, rows))
    return Section(
        title="iJoin's schemes of recomputation",
        workload=(
            f"Zipf(1.3) keys of 100 values, each of an importance of 1 to 100, a row a side at "
            f"every time, {scale.ticks:,} ticks, mean of {scale.seeds} seeds; tau 2, Delta 3, "
            "penalty 0.1. The slides have 1,400, 1,200 and 1,300 of importance for successive, "
            "k-successive and adaptive, with 1,000, 100 and 600 recomputations."
        ),
        figures=(),
        tables=tuple(tables),
    )
