"""Constrained joins on reports of cars: table 3 of Babu, Srivastava, Widom (section 9)."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.constrained import Ran, ran
from benchmarks.measure import Samples, Step, samples
from benchmarks.report import Figure, Section, Table
from tidegate.joins.constrained.constraints import DETECT, RIDS, Monitor
from tidegate.settings.rows import Rows
from tidegate.streams import car_reports
from tidegate.streams.linear_road import EVERY, EXIT

#: Consecutive equal reports that make an accident, and affected segments before it.
_REPORTS, _AFFECTED = 4, 5
#: The last report (or toll) of each car.
LATEST = Rows(1, by="cid")
MANY_ONE, COUNTED, TIME, SWJ = "many-one", "RIDS in rows", "RIDS in seconds", "SWJ"
#: RIDS in rows, with the largest k that the monitor found.
GIVEN = "RIDS, that k given"


@dataclass(frozen=True)
class Scale:
    """Seconds of traffic, cars entering per second, seconds of a trip; rows per batch; repeats."""

    seconds: int = 7_200
    rate: float = 8.0
    trip: int = 600
    batch: int = 20_000
    monitor: Monitor = field(default_factory=lambda: Monitor(window=500))
    rounds: int = 3

    def reports(self) -> pa.Table:
        """Generate cars on a thousand segments; one in fifty has an accident."""
        return car_reports(
            self.seconds, rate=self.rate, trip=self.trip, segments=1_000, accidents=0.02, seed=1
        )


FULL = Scale()
QUICK = Scale(1_500, 2.0, 150, 2_000, Monitor(window=50), 1)


@dataclass(frozen=True)
class Query:
    """A query of table 3, with the paper's ratios of memory and of time."""

    name: str
    #: The names of the joined streams.
    streams: tuple[str, ...]
    joins: str
    windows: dict[str, Any]
    select: tuple[str, ...]
    #: The join with the constraint RIDS, if the paper uses it.
    rids: str | None
    memory: float | None = None
    time: float | None = None


QUERIES = (
    Query(
        "CurCarSeg",
        ("LastRep", "CurActiveCars"),
        "LastRep.cid -> CurActiveCars.cid",
        {"LastRep": LATEST, "CurActiveCars": EVERY},
        ("LastRep.cid", "LastRep.sid"),
        None,
        0.09,
        0.65,
    ),
    Query(
        "AccSeg",
        ("CurCarSeg", "AccCars"),
        "CurCarSeg.cid -> AccCars.cid",
        {"CurCarSeg": EVERY, "AccCars": EVERY},
        ("CurCarSeg.sid", "CurCarSeg.cid"),
        "CurCarSeg -> AccCars",
        0.13,
        0.99,
    ),
    Query(
        "CarExitStr",
        ("LastRep", "Exits"),
        "LastRep.cid -> Exits.cid",
        {"LastRep": LATEST, "Exits": 1},
        ("LastRep.cid", "LastRep.sid"),
        "LastRep -> Exits",
        0.10,
        0.49,
    ),
    Query(
        "NegTollStr",
        ("LastToll", "Credits"),
        "LastToll.cid -> Credits.cid",
        {"LastToll": LATEST, "Credits": 1},
        ("LastToll.cid", "LastToll.toll"),
        "LastToll -> Credits",
        0.13,
        0.62,
    ),
)
#: The last query without the few credits of cars that stopped themselves, which determine k.
MOVING = Query(
    "NegTollStr, moving cars",
    ("LastToll", "MovingCredits"),
    "LastToll.cid -> MovingCredits.cid",
    {"LastToll": LATEST, "MovingCredits": 1},
    ("LastToll.cid", "LastToll.toll"),
    "LastToll -> MovingCredits",
)


def derived(reports: pa.Table) -> dict[str, pa.Table]:
    """Compute the streams of the subqueries: as in the paper, the joined query is a single block.

    CurActiveCars is each report for 30 seconds, which is one for each active car. Exits are cars
    that report no more after the exit lane, noticed 30 seconds later. Credits are those of them
    that leave within five segments before an accident; they get their last toll back.
    MovingCredits are the credits of cars without an accident of their own.
    """
    by_car = np.lexsort((reports["ts"].to_numpy(), reports["cid"].to_numpy()))
    cid, ts, lane, xpos, sid = (
        reports[name].to_numpy()[by_car] for name in ("cid", "ts", "lane", "xpos", "sid")
    )
    same = np.zeros(len(cid), np.bool_)
    back = _REPORTS - 1
    same[back:] = (cid[back:] == cid[:-back]) & (xpos[back:] == xpos[:-back])
    entered = np.ones(len(cid), np.bool_)
    entered[1:] = (cid[1:] != cid[:-1]) | (sid[1:] != sid[:-1])
    out = (lane == EXIT) & (ts + EVERY <= ts.max())
    reached = _places(sid[same][:, None] - np.arange(_AFFECTED), ts[same][:, None])
    near = out & np.isin(_places(sid, ts), reached)
    moving = near & ~np.isin(cid, cid[same])
    _, of, volume = np.unique(_places(sid, ts), return_inverse=True, return_counts=True)
    toll = volume[of] ** 2
    plain = reports.select(["cid", "sid", "ts"])
    return {
        "LastRep": plain,
        "CurActiveCars": plain.select(["cid", "ts"]),
        "CurCarSeg": plain,
        "AccCars": _in_time(cid=cid[same], ts=ts[same]),
        "Exits": _in_time(cid=cid[out], ts=ts[out] + EVERY),
        "LastToll": _in_time(cid=cid[entered], toll=toll[entered], ts=ts[entered]),
        "Credits": _in_time(cid=cid[near], ts=ts[near] + EVERY),
        "MovingCredits": _in_time(cid=cid[moving], ts=ts[moving] + EVERY),
    }


def _places(sid: Any, ts: Any) -> Any:
    """Return segments at half-minutes, as numbers."""
    return (sid << 32) + ts // EVERY


def _in_time(**columns: Any) -> pa.Table:
    return pa.table(columns).sort_by([("ts", "ascending"), ("cid", "ascending")])


def held(each: Ran) -> float:
    """Return the mean number of held rows over the last quarter of the stream."""
    return statistics.mean(each.held[3 * len(each.held) // 4 :])


@dataclass(frozen=True)
class Way:
    """A query with some constraints, compared with SWJ."""

    query: Query
    constraints: str
    mine: Ran
    swj: Ran
    #: Microseconds per row in each round, with constraints and as SWJ.
    micros: Samples
    swj_micros: Samples

    @property
    def memory(self) -> float:
        """Held rows, relative to SWJ."""
        return held(self.mine) / held(self.swj)

    @property
    def time(self) -> Samples:
        """Processor time, relative to SWJ in the same round."""
        return self.micros.over(self.swj_micros)

    @property
    def missing(self) -> float:
        """The share of results that are missing because k was monitored and not known."""
        exact = self.swj.results.num_rows
        return 1 - self.mine.results.num_rows / exact if exact else 0.0

    def cells(self) -> tuple[str, ...]:
        """Return a table row; the paper's ratios are for RIDS in rows, if it has that."""
        ks = [k for k in self.mine.used if k is not None]
        theirs = self.constraints == (COUNTED if self.query.rids else MANY_ONE)
        return (
            self.query.name,
            self.constraints,
            f"{max(ks):,}" if ks else "",
            f"{len(ks) / len(self.mine.used):.0%}" if self.mine.used else "",
            f"{held(self.mine):,.0f}",
            f"{self.memory:.3f}",
            f"{self.query.memory:.2f}" if theirs and self.query.memory else "",
            f"{self.micros.median:.2f}",
            self.time.show(),
            f"{self.query.time:.2f}" if theirs and self.query.time else "",
            f"{self.missing:.3%}",
        )


def compared(query: Query, streams: dict[str, pa.Table], scale: Scale) -> list[Way]:
    """Run a query with many-one joins alone, with RIDS monitored and given, and as SWJ."""
    tables = {name: streams[name] for name in query.streams}
    common: dict[str, Any] = {
        "joins": query.joins,
        "time": "ts",
        "within": query.windows,
        "select": list(query.select),
    }
    ways: dict[str, dict[str, Any]] = {MANY_ONE: {}}
    if query.rids:
        watched = {"monitor": scale.monitor}
        ways[COUNTED] = {"constraints": RIDS(query.rids), **watched}
        ways[GIVEN] = {}
        ways[TIME] = {"constraints": RIDS(query.rids, within=DETECT), **watched}
    ways[SWJ] = {"eliminate": False}
    runs: dict[str, Ran] = {}
    micros: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(scale.rounds):
        for name, settings in ways.items():
            if name == GIVEN:
                k = max((k for k in runs[COUNTED].used if k is not None), default=None)
                settings = {"constraints": RIDS(str(query.rids), k=k)}
            runs[name] = ran(tables, scale.batch, **settings, **common)
            micros[name].append(runs[name].micros)
    taken = {name: samples(each) for name, each in micros.items()}
    return [Way(query, name, runs[name], runs[SWJ], taken[name], taken[SWJ]) for name in ways]


def run(scale: Scale, step: Step) -> Section:
    """Table 3: memory and time with constraints, relative to SWJ."""
    step("reports")
    reports = scale.reports()
    streams = derived(reports)
    found: list[Way] = []
    best = []
    for query in QUERIES:
        step(query.name)
        ways = compared(query, streams, scale)
        best.append(min(ways, key=lambda way: way.memory))
        found += ways
    step(MOVING.name)
    found += compared(MOVING, streams, scale)
    stood = streams["Credits"].num_rows - streams["MovingCredits"].num_rows
    worst = max(best, key=lambda way: way.memory)
    slowest = max(best, key=lambda way: way.time.median)
    cars = len(np.unique(reports["cid"].to_numpy()))
    monitor = scale.monitor
    return Section(
        title="the Linear Road queries of k-constraints",
        workload=(
            f"tidegate.streams.car_reports: {reports.num_rows:,} reports of {cars:,} cars in "
            f"{scale.seconds:,} seconds, {scale.trip} seconds a trip; engine alone, one core."
        ),
        figures=(
            Figure(
                "four Linear Road queries, the best way, rows held over those held by SWJ",
                f"{worst.memory:.2f} at worst ({worst.query.name})",
                worst.memory,
                bar=0.13,
                aim=0.09,
                form="{:.2f}",
                higher=False,
            ),
            Figure(
                "four Linear Road queries, the same way, time a row over that of SWJ",
                f"{slowest.time.show()} at worst ({slowest.query.name})",
                slowest.time.median,
                bar=0.99,
                aim=0.65,
                form="{:.2f}",
                higher=False,
            ),
        ),
        tables=(
            Table(
                "Table 3",
                (
                    *("query", "constraints", "k", "in use", "held", "of SWJ", "paper"),
                    *("us a row", "of SWJ", "paper", "missing"),
                ),
                tuple(way.cells() for way in found),
                "The column held counts rows, on average over the last quarter. k is the largest "
                f"one that monitoring found (c = {monitor.c}, p = {monitor.p}, "
                f"W = {monitor.window:,}); beside it is the share of the stream in which the "
                "constraint was in use. The column missing counts the results lost by monitoring. "
                "If k rises beyond c times k, RIDS is not used until W rows of the child stream "
                "have come, which take six minutes of the two hours. Until then the state is that "
                "of many-one joins alone. If k is given, RIDS is in use all the time. A child "
                "comes with its parent, and 3 to 7 other children come in the same second: this is "
                "the distance in rows. The distance in seconds is 0 and never rises. "
                f"{stood:,} of {streams['Credits'].num_rows:,} credits of NegTollStr belong to "
                "cars that had an accident themselves. Some of these cars stood for minutes in the "
                "segment whose toll they get back, and so determine k. The last rows leave them "
                "out, and no figure uses these rows. Subqueries are computed before the run, and "
                "their results are streams. The paper uses another dataset, of 2003, and prints "
                "AccSeg and CurCarSeg only. CarExitStr (cars that are gone after the exit lane) "
                "and NegTollStr (the last toll of cars that exit before an accident) follow their "
                "names and constraints.",
            ),
        ),
    )
