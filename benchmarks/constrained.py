"""Constrained joins in the settings of Babu, Srivastava, Widom: state, cost, and tracking k."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any, Literal

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
    seeds: int = 10


FULL = Scale()
QUICK = Scale(2_000, 1_500, (0, 100, 500), 500, 4_000, 200, 900, 4, 2)

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
#: c, p and W of the paper's monitors (sections 4.4, 5.4 and 6.4), and tidegate's own.
FIGURE_5 = "RIDS, c=1.0, p=0.01, W=500 (figure 5)"
MONITORS: dict[str, tuple[str, dict[str, Any]]] = {
    FIGURE_5: ("rids", {"c": 1.0, "p": 0.01, "window": 500}),
    "CA, c=1.2, p=0.01, W=1,000 (figure 7)": ("ca", {"p": 0.01}),
    "OAP, c=1.2, p=0.01, W=1,000 (figure 9)": ("oap", {"p": 0.01}),
    "RIDS, tidegate's defaults": ("rids", {}),
}
#: tidegate's rule for a distance above k, and the paper's.
RULES: tuple[Literal["raise", "suspend"], ...] = ("raise", "suspend")
#: The ks of the motivating query, in milliseconds.
LINK_KS = {"B -> C": 0, "O -> B": 0, "C -> B": 1_000, "B -> O": 1_000}
#: No variation, gradual rise, gradual fall, sudden rise, sudden fall, as shares of the largest k.
COURSE = ((0, 0.5), (0.2, 0.5), (0.35, 1), (0.5, 0.5), (0.65, 0.5), (0.65, 1), (0.8, 1), (0.8, 0.5))


@dataclass(frozen=True)
class Ran:
    """One run of a join: rows held after each batch, time, results, and the k in use."""

    held: tuple[int, ...]
    micros: float
    results: pa.Table
    used: tuple[int | None, ...]
    counters: dict[str, int | float]

    @property
    def settled(self) -> float:
        """Rows held on average over the second half of the streams."""
        return statistics.mean(self.held[len(self.held) // 2 :])


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
    results = pa.concat_tables(found)
    micros = 1e6 * taken / len(every)
    return Ran(tuple(held), micros, results, tuple(used), engine.take_counters())


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
    """The accuracy with which the monitor tracked k."""

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


def motivating(scale: Scale, seed: int, **settings: Any) -> Ran:
    """Run the query of section 1.1: three links, windows of 10 minutes."""
    return ran(
        links(scale.seconds, rate=scale.rate, delay=1.0, seed=seed),
        scale.batch,
        joins=["C.pid <-> B.pid", "B.pid <-> O.pid"],
        time="ts",
        within=600_000,
        select=["C.pid", "C.size"],
        **settings,
    )


@dataclass(frozen=True)
class Detected:
    """Runs of the motivating query whose ks are not given, over all seeds."""

    held: float  # rows held on average over the second half
    peak: int
    lost: int
    results: int
    covered: int  # runs in which the bounds of `missed` hold
    estimate: float  # the mean of `missed`
    bounds: tuple[float, float]  # the means of `missed_low` and `missed_high`


def detected(scale: Scale, exact: list[int], **settings: Any) -> Detected:
    """Run the motivating query for each seed; `exact` has the numbers of all results."""
    runs = [motivating(scale, seed + 1, **settings) for seed in range(scale.seeds)]
    lost = [every - each.results.num_rows for every, each in zip(exact, runs, strict=True)]
    bounds = [(r.counters["missed_low"], r.counters["missed_high"]) for r in runs]
    return Detected(
        statistics.mean(each.settled for each in runs),
        max(max(each.held) for each in runs),
        sum(lost),
        sum(exact),
        sum(low <= n <= high for n, (low, high) in zip(lost, bounds, strict=True)),
        statistics.mean(each.counters["missed"] for each in runs),
        (statistics.mean(b[0] for b in bounds), statistics.mean(b[1] for b in bounds)),
    )


def all_detected(scale: Scale, step: Step) -> tuple[float, dict[str, Detected]]:
    """Return the rows held with given ks, and the runs with ks that are found or too small."""
    given = [RIDS(join, within=k) for join, k in LINK_KS.items()]
    half = [RIDS(join, within=k // 2) for join, k in LINK_KS.items()]
    detect = [RIDS(join, within="detect") for join in LINK_KS]
    step("the motivating query with given ks")
    known = [motivating(scale, seed + 1, constraints=given) for seed in range(scale.seeds)]
    exact = [each.results.num_rows for each in known]
    ways: dict[str, dict[str, Any]] = {
        "detected": {"constraints": detect},
        'constraints="auto"': {"constraints": "auto"},
        "detected, the paper's rule": {
            "constraints": detect,
            "monitor": Monitor(p=0.01, on_rise="suspend"),
        },
        "given half the delay, p=0.05": {"constraints": half, "monitor": Monitor(p=0.05)},
    }
    found = {}
    for name, settings in ways.items():
        step(f"the motivating query, {name}")
        found[name] = detected(scale, exact, **settings)
    return statistics.mean(each.settled for each in known), found


def run(scale: Scale, step: Step) -> Section:
    """Measure state against k, cost against SWJ, tracking of k, and the motivating query."""
    rows = [row for kind in JOINS for row in against_k(kind, scale, step)]
    found = {}
    for name, (kind, monitor) in MONITORS.items():
        for rule in RULES:
            step(f"{name} with a k that changes, on a rise: {rule}")
            found[name, rule] = tracked(kind, Monitor(on_rise=rule, **monitor), scale)
    step("the motivating query")
    given = [RIDS(join, within=k) for join, k in LINK_KS.items()]
    mine = motivating(scale, 1, constraints=given, choose=False)
    swj = motivating(scale, 1, eliminate=False)
    reduction = max(swj.held) / max(mine.held)
    known, ways = all_detected(scale, step)
    ours, hasty = ways["detected"], ways["given half the delay, p=0.05"]
    times_given = ours.held / known
    lost = ours.lost / ours.results
    covered = (ours.covered + hasty.covered) / (2 * scale.seeds)
    worst = max(
        each.worst_block
        for (name, rule), each in found.items()
        if rule == "raise" and name != FIGURE_5
    )
    in_paper = found[FIGURE_5, "raise"].worst_block
    tables = (
        Table(
            "State and cost against k",
            ("kind", "k", "most held", "SWJ", "ratio", "us a row", "SWJ", "ratio", "paper"),
            tuple(rows),
            f"Windows of {scale.window:,} rows, {scale.children:,} rows a child stream, five "
            "parents to a child, filters that half pass (section 3.5). Held are rows, in all "
            "components. Microseconds are of processor time. The last column is the ratio of the "
            "times in the paper's table 1.",
        ),
        Table(
            "A k that is found by watching while it changes",
            ("kind", "on a rise", "worst block missing", "missing", "in use", "k used / k"),
            tuple(
                (
                    name,
                    rule,
                    f"{each.worst_block:.2%}",
                    f"{each.missing:.3%}",
                    f"{each.in_use:.0%}",
                    f"{each.ratio:.2f}",
                )
                for (name, rule), each in found.items()
            ),
            f"k holds still, rises and falls slowly, and jumps up and down, up to "
            f"{scale.watched_k:,}. On a rise above k, tidegate raises k up to c times k and only "
            "then suspends the constraint; the paper always suspends it. With c=1, as in figure 5, "
            "a rise shows only in the sample, after 1/p results are lost on average. "
            f"Blocks are of {scale.batch:,} rows; the paper's worst one misses 2.3 %. "
            "k used is the median over blocks.",
        ),
        Table(
            "The motivating query with ks that are not given",
            (
                "way",
                "held, second half",
                "times given ks",
                "most held",
                "lost",
                "missed",
                "bounds",
                "bounds hold",
            ),
            (
                ("given ks", f"{known:,.0f}", "1.0", "", "0", "", "", ""),
                *(
                    (
                        name,
                        f"{each.held:,.0f}",
                        f"{each.held / known:.1f}",
                        f"{each.peak:,}",
                        f"{each.lost:,} of {each.results:,}",
                        f"{each.estimate:,.0f}",
                        f"{each.bounds[0]:,.0f} to {each.bounds[1]:,.0f}",
                        f"{each.covered} of {scale.seeds}",
                    )
                    for name, each in ways.items()
                ),
            ),
            f"{scale.seeds} seeds. Most held includes the start, when no k is known. `missed` and "
            "its bounds are means over the runs. The last row has ks that are too small, so that "
            "there is something to estimate.",
        ),
        Table(
            "The motivating query (section 1.1)",
            ("way", "most held", "us a row", "results"),
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
                "motivating query, rows held by SWJ over those held with constraints",
                f"{reduction:,.0f}x",
                reduction,
                bar=100.0,
                aim=400.0,
                form="{:.0f}x",
            ),
            Figure(
                "motivating query, rows held with detected ks over those with given ks",
                f"{times_given:.1f}x",
                times_given,
                bar=3.0,
                aim=2.0,
                form="{:.1f}x",
                higher=False,
            ),
            Figure(
                f"motivating query, results lost with detected ks, {scale.seeds} seeds",
                f"{lost:.2%}",
                lost,
                bar=0.01,
                aim=0.001,
                form="{:.1%}",
                higher=False,
            ),
            Figure(
                "motivating query, runs in which the bounds of `missed` hold",
                f"{covered:.0%}",
                covered,
                bar=0.9,
                aim=0.95,
                form="{:.0%}",
            ),
            Figure(
                "results missed in the worst block while k changes, RIDS as in figure 5, c=1",
                f"{in_paper:.2%}",
                in_paper,
                bar=0.023,
                aim=0.01,
                form="{:.1%}",
                higher=False,
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
