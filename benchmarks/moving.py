"""Streams whose keys do not last: `Auto`, the best fixed policy, and the optimum."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import tidegate as tg
from benchmarks.measure import Step
from benchmarks.report import Figure, Table
from tidegate.policies import POLICIES
from tidegate.streams import bursts, zipf

Tables = tuple[pa.Table, pa.Table]
Make = Callable[[int, np.random.Generator], Tables]
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


def _stream(key: Any, time: Any) -> pa.Table:
    """Return a stream in order of time."""
    table = pa.table({"key": np.asarray(key, np.int64), "time": np.asarray(time, np.int64)})
    return table.sort_by("time")


def _ranks(n: int, domain: int, skew: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return Zipf-distributed ranks from 0 on."""
    share = np.arange(1, domain + 1) ** -skew
    return rng.choice(domain, n, p=share / share.sum())


def _partners(ages: Draw) -> Make:
    """Generate keys that come once, and once on the right at an age that is drawn."""

    def make(n: int, rng: np.random.Generator) -> Tables:
        time = np.arange(n)
        return _stream(time, time), _stream(time, time + ages(rng, n).astype(np.int64))

    return make


def _rotating(domain: int, skew: float, ticks: int) -> Make:
    """Generate Zipf keys; every so many ticks, each key takes the rank of the one after it."""

    def make(n: int, rng: np.random.Generator) -> Tables:
        time, names = np.arange(n), rng.permutation(domain)
        left, right = (
            _stream(names[(_ranks(n, domain, skew, rng) + time // ticks) % domain], time)
            for _ in range(2)
        )
        return left, right

    return make


def _replaced(ticks: int) -> Make:
    """Generate Zipf keys, the first of which is gone after so many ticks; a new key comes last."""

    def make(n: int, rng: np.random.Generator) -> Tables:
        time = np.arange(n)
        left, right = (_stream(_ranks(n, 300, 1.1, rng) + time // ticks, time) for _ in range(2))
        return left, right

    return make


def _walking(step: float) -> Make:
    """Generate 200 keys, the logarithms of whose popularity walk at random every 50 ticks."""

    def make(n: int, rng: np.random.Generator) -> Tables:
        at, keys = rng.normal(0.0, 1.5, 200), np.empty((2, n), np.int64)
        for start in range(0, n, 50):
            share, stop = np.exp(at), min(start + 50, n)
            keys[:, start:stop] = rng.choice(200, (2, stop - start), p=share / share.sum())
            # They stay as different as they were at first.
            at = at * (1.0 - step**2 / 4.5) + rng.normal(0.0, step, 200)
        return _stream(keys[0], np.arange(n)), _stream(keys[1], np.arange(n))

    return make


def _hot(ticks: int, hot: int, others: int) -> Make:
    """Generate some keys that are frequent for so many ticks, then others; the rest is constant."""

    def make(n: int, rng: np.random.Generator) -> Tables:
        time = np.arange(n)
        left, right = (
            _stream(
                np.where(
                    rng.random(n) < 0.6,
                    others + time // ticks * hot + rng.integers(0, hot, n),
                    rng.integers(0, others, n),
                ),
                time,
            )
            for _ in range(2)
        )
        return left, right

    return make


def _sessions(length: float, rows: float, lag: int = 0) -> Make:
    """Generate keys that come for a while; on the right, everything is later by a lag."""

    def make(n: int, rng: np.random.Generator) -> Tables:
        total = int(n / rows)
        born, lasts = rng.random(total) * n, rng.exponential(length, total)
        streams = []
        for side in range(2):
            of = rng.integers(0, total, n)
            streams.append(_stream(of, born[of] + lasts[of] * rng.random(n) + side * lag))
        return streams[0], streams[1]

    return make


def _lagged(lag: int, jitter: int, domain: int, skew: float) -> Make:
    """Generate Zipf keys; the right stream is the left one, later."""

    def make(n: int, rng: np.random.Generator) -> Tables:
        key, time = _ranks(n, domain, skew, rng), np.arange(n)
        return _stream(key, time), _stream(key, time + lag + rng.integers(-jitter, jitter + 1, n))

    return make


def _weighed(make: Make) -> Make:
    """Add an importance to each row, most of them small."""

    def made(n: int, rng: np.random.Generator) -> Tables:
        left, right = (
            table.append_column("importance", pa.array(rng.lognormal(0.0, 1.0, len(table))))
            for table in make(n, rng)
        )
        return left, right

    return made


def _zipf(domain: int, rate: float = 1.0) -> Make:
    """Generate Zipf keys that last; the right stream has the given rate."""

    def make(n: int, rng: np.random.Generator) -> Tables:
        return zipf(n, domain=domain, rate=(1.0, rate), seed=int(rng.integers(2**31)))

    return make


def _bursts(length: int) -> Make:
    def make(n: int, rng: np.random.Generator) -> Tables:
        return bursts(n, length=length, seed=int(rng.integers(2**31)))

    return make


@dataclass(frozen=True)
class Case:
    """Streams, their length in ticks, and the windows."""

    make: Make
    ticks: int
    within: int | tuple[int, int]
    importance: bool = False

    def tables(self, length: float, seed: int) -> Tables:
        """Return both streams, at a part of their length."""
        ticks = int(self.ticks * length)
        return self.make(ticks, np.random.default_rng([seed, self.ticks]))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the join."""
        more = {"importance": "importance"} if self.importance else {}
        return {"on": "key", "time": "time", "within": self.within} | more

    def memory(self, tables: Tables, share: float) -> int:
        """Return a share of the rows that are live on average."""
        windows = self.within if isinstance(self.within, tuple) else (self.within, self.within)
        live = 0.0
        for table, window in zip(tables, windows, strict=True):
            time = table.column("time").to_numpy()
            live += len(table) * min(window / (time.max() - time.min() + 1), 1.0)
        return max(round(share * live), 10)

    def worth(self, result: tg.Result | tg.Optimal) -> float:
        """Return what counts: results, or their importance."""
        return result.importance if self.importance else float(result.results)


CASES: dict[str, Case] = {
    "ages: Pareto(1)": Case(_partners(lambda rng, n: 20 * rng.pareto(1.0, n)), 8_000, (400, 1)),
    "ages: lognormal": Case(_partners(lambda rng, n: rng.lognormal(4.1, 1.2, n)), 8_000, (400, 1)),
    "ranks rotate every 20 ticks": Case(_rotating(200, 1.0, 20), 10_000, 400),
    "ranks rotate every 200 ticks": Case(_rotating(200, 1.0, 200), 16_000, 400),
    "ranks rotate every 5 ticks": Case(_rotating(300, 1.2, 5), 10_000, 1_000),
    "popularity walks": Case(_walking(0.3), 12_000, 400),
    "popularity walks slowly": Case(_walking(0.1), 12_000, 400),
    "hot for 600 of 4,000 ticks": Case(_hot(600, 5, 1_000), 20_000, 4_000),
    "hot for 50 of 400 ticks": Case(_hot(50, 2, 100), 8_000, 400),
    "a new key every 20 ticks, 1.5 windows": Case(_replaced(20), 6_000, 4_000),
    "a new key every 5 ticks": Case(_replaced(5), 10_000, 1_000),
    "bursts of 200 ticks": Case(_bursts(200), 10_000, 400),
    "bursts of 1,000 ticks": Case(_bursts(1_000), 16_000, 1_000),
    "sessions of 40 ticks": Case(_sessions(40.0, 4), 8_000, 400),
    "sessions of 2,000 ticks": Case(_sessions(2_000.0, 20), 12_000, 1_000),
    "sessions that start late": Case(_sessions(40.0, 4, lag=100), 8_000, 400),
    "a lag of 100 ticks": Case(_lagged(100, 0, 1_000, 0.0), 8_000, 400),
    "a lag of 300 ticks": Case(_lagged(300, 50, 2_000, 0.5), 8_000, 400),
    "few rows on the right": Case(_zipf(200, 0.2), 16_000, 400),
    "windows of 1,000 and 100": Case(_zipf(200), 8_000, (1_000, 100)),
    "windows of 100": Case(_zipf(50), 5_000, 100),
    "importance, sessions": Case(_weighed(_sessions(100.0, 6)), 8_000, 400, True),
    "importance, ranks rotate": Case(_weighed(_rotating(200, 1.0, 20)), 8_000, 400, True),
}


@dataclass(frozen=True)
class Scale:
    """The part of the streams' length, shares of memory, seeds, and which streams."""

    length: float = 1.0
    shares: tuple[float, ...] = (0.05, 0.10, 0.25)
    seeds: int = 2
    cases: tuple[str, ...] = tuple(CASES)


FULL = Scale()
QUICK = Scale(0.2, (0.10,), 1, ("ranks rotate every 20 ticks", "sessions of 40 ticks"))


def measure(scale: Scale, step: Step) -> dict[tuple[str, float], dict[str, float]]:
    """Return the recall of each policy and of the optimum, by streams and memory."""
    found: dict[tuple[str, float], dict[str, float]] = {}
    for name in scale.cases:
        case = CASES[name]
        for seed in range(scale.seeds):
            step(f"{name}, seed {seed}")
            tables = case.tables(scale.length, seed)
            exact = case.worth(tg.join(*tables, **case.settings))
            for share in scale.shares:
                bound = case.settings | {"memory": case.memory(tables, share)}
                cell = found.setdefault((name, share), dict.fromkeys((*POLICIES, "optimum"), 0.0))
                for policy in POLICIES:
                    kept = case.worth(tg.join(*tables, **bound, policy=policy))
                    cell[policy] += kept / exact / scale.seeds
                cell["optimum"] += case.worth(tg.optimal(*tables, **bound)) / exact / scale.seeds
    return found


def compare(scale: Scale, step: Step) -> tuple[Figure, Table]:
    """Measure all streams; return the worst cell, and the whole table."""
    rows, ratios = [], {}
    for at, cell in measure(scale, step).items():
        others = {name: cell[name] for name in POLICIES if name != "auto"}
        best = max(others, key=lambda name: others[name])
        ratios[at] = cell["auto"] / cell[best]
        own, optimum = cell["auto"], cell["optimum"]
        shown = (f"{each:.1%}" for each in (own, cell[best], optimum, ratios[at], own / optimum))
        rows.append((at[0], f"{at[1]:.0%}", best, *shown))
    worst = min(ratios, key=lambda at: ratios[at])
    good = sum(ratio >= 0.98 for ratio in ratios.values())
    figure = Figure(
        f"`auto` against the best fixed policy where keys do not last, {len(ratios)} cells; "
        f"{good} reach 98%, median {statistics.median(ratios.values()):.1%}",
        f"at worst {ratios[worst]:.1%} ({worst[0]}, {worst[1]:.0%})",
        ratios[worst],
        bar=0.98,
        aim=0.99,
        form="{:.0%}",
    )
    table = Table(
        f"Streams whose keys do not last, mean of {scale.seeds} seeds",
        (
            "streams",
            "memory",
            "best",
            "auto",
            "best recall",
            "optimum",
            "auto over it",
            "auto over the optimum",
        ),
        tuple(rows),
        "Memory is a share of the rows that are live on average. The optimum knows the streams.",
    )
    return figure, table
