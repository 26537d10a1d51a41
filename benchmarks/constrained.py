"""Constrained joins in the settings of Babu, Srivastava, Widom: state, cost, and tracking k."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import Step
from benchmarks.report import Figure, Section, Table
from tidegate.joins.constrained.constraints import CA, OAC, OAP, RIDS, Constraint, Monitor
from tidegate.joins.constrained.engine import ConstrainedJob
from tidegate.joins.constrained.spec import constrained_join
from tidegate.settings.rows import Rows
from tidegate.streams import links, many_one


@dataclass(frozen=True)
class Scale:
    """Rows of a child stream, windows in rows, ks, and packets of the links."""

    children: int = 60_000
    window: int = 50_000
    ks: tuple[int, ...] = (0, 1_000, 5_000, 10_000, 20_000)
    batch: int = 4_000
    watched: int = 40_000
    watched_k: int = 4_000
    seconds: int = 1_500
    rate: int = 20


FULL = Scale()
QUICK = Scale(2_000, 1_500, (0, 100, 500), 500, 4_000, 200, 900, 2)

FIGURE_3A = ["S1.A -> S2.A", "S1.B -> S3.B"]
FIGURE_3B = ["S1.A -> S3.A", "S2.A -> S3.A"]
FIGURE_3C = ["S1.A -> S2.A"]
JOINS = {"rids": FIGURE_3A, "ca": FIGURE_3B, "oap": FIGURE_3B, "oac": FIGURE_3C}
FILTERED = {"rids": ("S2", "S3"), "ca": ("S3",), "oap": ("S3",), "oac": ("S2",)}
#: Microseconds per row in the paper's table 1, for k-Mon and SWJ.
PAPER = {
    "rids": ((20, 24), (40, 26), (43, 28), (45, 28), (46, 28)),
    "ca": ((22, 20), (24, 21), (25, 23), (27, 23), (28, 24)),
    "oap": ((21, 21), (23, 21), (24, 22), (25, 23), (27, 25)),
    "oac": ((20, 18), (20, 18), (20, 18), (21, 18), (22, 18)),
}
#: The paper's monitors (sections 4.4, 5.4 and 6.4).
MONITORS = {
    "RIDS": ("rids", Monitor(c=1.0, p=0.01, window=500)),
    "CA": ("ca", Monitor(c=1.2, p=0.01, window=1000)),
    "OAP": ("oap", Monitor(c=1.2, p=0.01, window=1000)),
}
#: tidegate's default monitors, if they differ.
OURS = {"RIDS, c=1.2, W=1,000": ("rids", Monitor())}
#: No variation, gradual rise, gradual fall, sudden rise, sudden fall, as shares of the largest k.
COURSE = ((0, 0.5), (0.2, 0.5), (0.35, 1), (0.5, 0.5), (0.65, 0.5), (0.65, 1), (0.8, 1), (0.8, 0.5))


@dataclass(frozen=True)
class Ran:
    """One run of a join: rows held after each batch, time, results, and the k in use."""

    held: tuple[int, ...]
    micros: float
    results: pa.Table
    used: tuple[int | None, ...]


def constraints_of(kind: str, k: int | None) -> list[Constraint]:
    """Return the constraints that a kind of stream satisfies."""
    if kind == "rids":
        return [RIDS("S1 -> S2", k=k), RIDS("S1 -> S3", k=k)]
    if kind == "oac":
        return [OAC("S2.A", k=k)]
    made = CA if kind == "ca" else OAP
    return [made("S1.A", k=k), made("S2.A", k=k)]


def ran(tables: dict[str, pa.Table], batch: int, **settings: Any) -> Ran:
    """Run a join over tables, a number of rows at a time; preparing the rows is not measured."""
    spec = constrained_join({n: t.schema for n, t in tables.items()}, lag=0, **settings)
    job = ConstrainedJob(spec)
    order = [
        t.column(s.time).to_numpy() for t, s in zip(tables.values(), spec.streams, strict=True)
    ]
    every = np.sort(np.concatenate(order))
    ends = np.append(every[batch::batch], every[-1] + 1)
    batches, starts = [], [0] * len(order)
    for end in ends:
        stops = [int(np.searchsorted(times, end)) for times in order]
        pieces = []
        for s, table in enumerate(tables.values()):
            part = table.slice(starts[s], stops[s] - starts[s]).combine_chunks()
            pieces.append([job.prepare(s, each)[0] for each in part.to_batches()])
        batches.append(pieces)
        starts = stops
    engine = job.engine_at(0, 1)
    held, used, found = [], [], [pa.Table.from_batches([], spec.result_schema)]
    taken = 0.0
    for pieces in batches:
        start = time.process_time()
        results = list(engine.feed(pieces))
        taken += time.process_time() - start
        found.append(pa.Table.from_batches(results, spec.result_schema))
        held.append(engine.held)
        used += list(engine.adherence.values())[:1]
    found.append(pa.Table.from_batches(list(engine.finish()), spec.result_schema))
    return Ran(tuple(held), 1e6 * taken / len(every), pa.concat_tables(found), tuple(used))


def against_k(kind: str, scale: Scale, step: Step) -> list[tuple[str, ...]]:
    """Measure state and cost for each k, and for SWJ (figures 4, 6, 8 and 20)."""
    rows: list[tuple[str, ...]] = []
    for at, k in enumerate(scale.ks):
        step(f"{kind.upper()}, k={k:,}")
        tables = many_one(scale.children, kind=kind, k=k, seed=at + 1)
        common: dict[str, Any] = {
            "joins": JOINS[kind],
            "time": "t",
            "within": Rows(scale.window),
            "filters": dict.fromkeys(FILTERED[kind], "D < 50"),
        }
        mine = ran(tables, scale.batch, constraints=constraints_of(kind, k), choose=False, **common)
        swj = ran(tables, scale.batch, eliminate=False, **common)
        assert mine.results.num_rows == swj.results.num_rows
        paper = PAPER[kind][at] if len(scale.ks) == len(PAPER[kind]) else None
        rows.append(
            (
                kind.upper(),
                f"{k:,}",
                f"{max(mine.held):,}",
                f"{max(swj.held):,}",
                f"{max(mine.held) / max(swj.held):.3f}",
                f"{mine.micros:.2f}",
                f"{swj.micros:.2f}",
                f"{mine.micros / swj.micros:.2f}",
                f"{paper[0] / paper[1]:.2f}" if paper else "",
            )
        )
    return rows


@dataclass(frozen=True)
class Tracked:
    """How well the monitor tracked k."""

    worst_block: float
    missing: float
    in_use: float
    ratio: float


def tracked(kind: str, monitor: Monitor, scale: Scale) -> Tracked:
    """Track a k that changes (figures 5, 7 and 9)."""
    course = [(share, part * scale.watched_k) for share, part in COURSE]
    tables = many_one(scale.watched, kind=kind, k=course, seed=7)
    common: dict[str, Any] = {
        "joins": JOINS[kind],
        "time": "t",
        "within": Rows(scale.window),
        "filters": dict.fromkeys(FILTERED[kind], "D < 50"),
    }
    mine = ran(
        tables, scale.batch, constraints=constraints_of(kind, None), monitor=monitor, **common
    )
    exact = ran(tables, scale.batch, **common)
    blocks = [_blocks(each.results, scale.batch) for each in (mine, exact)]
    size = max(map(len, blocks))
    found, every = (np.pad(block, (0, size - len(block))) for block in blocks)
    missing = np.maximum(every - found, 0)
    some = every > 0
    shares, parts = zip(*course, strict=True)
    actual = np.interp(np.arange(len(mine.used)) / len(mine.used), shares, parts)
    ratios = [k / true for k, true in zip(mine.used, actual, strict=True) if k is not None and true]
    return Tracked(
        float((missing[some] / every[some]).max()),
        float(missing.sum() / every.sum()),
        len(ratios) / len(mine.used),
        statistics.median(ratios) if ratios else float("nan"),
    )


def _blocks(results: pa.Table, size: int) -> Any:
    """Count results by block of arrivals."""
    times = [results.column(name).to_numpy() for name in results.column_names if name[:2] == "t_"]
    return np.bincount(np.max(times, axis=0) // size)


def motivating(scale: Scale) -> tuple[Ran, Ran]:
    """Run the query of section 1.1: three links, windows of 10 minutes."""
    tables = links(scale.seconds, rate=scale.rate, delay=1.0, seed=1)
    common: dict[str, Any] = {
        "joins": ["C.pid <-> B.pid", "B.pid <-> O.pid"],
        "time": "ts",
        "within": 600_000,
        "select": ["C.pid", "C.size"],
    }
    constraints = [
        RIDS("B -> C", within=0),
        RIDS("O -> B", within=0),
        RIDS("C -> B", within=1_000),
        RIDS("B -> O", within=1_000),
    ]
    mine = ran(tables, scale.batch, constraints=constraints, choose=False, **common)
    return mine, ran(tables, scale.batch, eliminate=False, **common)


def run(scale: Scale, step: Step) -> Section:
    """Measure state against k, cost against SWJ, tracking of k, and the motivating query."""
    rows = [row for kind in JOINS for row in against_k(kind, scale, step)]
    found = {}
    for name, (kind, monitor) in {**MONITORS, **OURS}.items():
        step(f"{name} with a k that changes")
        found[name] = tracked(kind, monitor, scale)
    step("the motivating query")
    mine, swj = motivating(scale)
    reduction = max(swj.held) / max(mine.held)
    worst = max(each.worst_block for name, each in found.items() if name != "RIDS")
    tables = (
        Table(
            "State and cost against k",
            ("kind", "k", "most held", "SWJ", "ratio", "us a tuple", "SWJ", "ratio", "paper"),
            tuple(rows),
            f"Windows of {scale.window:,} rows, {scale.children:,} tuples a child stream, five "
            "parents to a child, filters that half pass (section 3.5). Held are tuples, in all "
            "components. Microseconds are of processor time. The last column is the ratio of the "
            "times in the paper's table 1.",
        ),
        Table(
            "A k that is found by watching while it changes",
            ("kind", "worst block missing", "missing", "in use", "k used / k"),
            tuple(
                (
                    name,
                    f"{each.worst_block:.2%}",
                    f"{each.missing:.3%}",
                    f"{each.in_use:.0%}",
                    f"{each.ratio:.2f}",
                )
                for name, each in found.items()
            ),
            f"k holds still, rises and falls slowly, and jumps up and down, up to "
            f"{scale.watched_k:,}; c, p and W are the paper's, and in the last row tidegate's. "
            f"Blocks are of {scale.batch:,} tuples; the paper's worst one misses 2.3 %. "
            "k used is the median over blocks.",
        ),
        Table(
            "The motivating query (section 1.1)",
            ("way", "most held", "us a tuple", "results"),
            tuple(
                (name, f"{max(r.held):,}", f"{r.micros:.2f}", f"{r.results.num_rows:,}")
                for name, r in (("constraints", mine), ("SWJ", swj))
            ),
            f"Links C, B and O with {scale.rate}, {10 * scale.rate} and {scale.rate} packets a "
            "second, windows of 10 minutes, a delay of at most 1 second from link to link.",
        ),
    )
    return Section(
        title="constrained joins: state, cost, and k that changes",
        workload="Streams of tidegate.streams.many_one and links, engine alone, one core.",
        figures=(
            Figure(
                "motivating query, tuples held by SWJ over those held with constraints",
                f"{reduction:,.0f}x",
                reduction,
                bar=100.0,
                aim=400.0,
                form="{:.0f}x",
            ),
            Figure(
                "results missed in the worst block while k changes, c=1.2",
                f"{worst:.2%}",
                worst,
                bar=0.023,
                aim=0.01,
                form="{:.1%}",
                higher=False,
            ),
        ),
        tables=tables,
    )
