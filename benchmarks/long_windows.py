"""Streams in which everything relevant happens within a small part of a window."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate as tg
from benchmarks.measure import Step
from benchmarks.report import Table
from tidegate.policies import POLICIES

Tables = tuple[pa.Table, pa.Table]


def _partners(low: int, high: int, group: int) -> Callable[[int, int], Tables]:
    """Generate keys that come `group` times; partners are `low` to `high` ticks later."""

    def make(n: int, seed: int) -> Tables:
        time = np.arange(n)
        came = time + np.random.default_rng(seed).integers(low, high, n)
        left, right = (pa.table({"key": time // group, "time": t}) for t in (time, came))
        return left, right.sort_by("time")

    return make


def _sliding(n: int, seed: int) -> Tables:
    """Generate Zipf keys, one of which is replaced by a new key every twenty ticks."""
    drawn = np.random.default_rng(seed)
    share = 1.0 / np.arange(1, 301) ** 1.1
    time = np.arange(n)
    keys = [drawn.choice(300, n, p=share / share.sum()) + time // 20 for _ in range(2)]
    left, right = (pa.table({"key": key, "time": time}) for key in keys)
    return left, right


def _hot(n: int, seed: int) -> Tables:
    """Generate keys: five are frequent for 600 ticks, then five others; the rest is constant."""
    drawn = np.random.default_rng(seed)
    time = np.arange(n)
    keys = [
        np.where(
            drawn.random(n) < 0.6,
            2_000 + time // 600 * 5 + drawn.integers(0, 5, n),
            drawn.integers(0, 1_000, n),
        )
        for _ in range(2)
    ]
    left, right = (pa.table({"key": key, "time": time}) for key in keys)
    return left, right


@dataclass(frozen=True)
class Case:
    """Streams, their length and windows, and memories."""

    name: str
    make: Callable[[int, int], Tables]
    ticks: int
    window: int
    memories: tuple[int, ...]


CASES = (
    Case("partners at once", _partners(0, 6, 4), 4_000, 100_000, (10, 50)),
    Case("partners 100 to 200 ticks later", _partners(100, 200, 1), 20_000, 5_000, (50, 200)),
    Case("a new key every 20 ticks", _sliding, 6_000, 4_000, (100, 400, 800)),
    Case("a new key every 20 ticks", _sliding, 30_000, 6_000, (100, 400)),
    Case("keys hot for 600 ticks", _hot, 20_000, 4_000, (50, 200)),
)


def table(seeds: int, step: Step) -> Table:
    """Compare `auto` with the best of the other policies, in the mean of the seeds."""
    rows = []
    for case in CASES:
        found: dict[tuple[int, str], list[float]] = {}
        for seed in range(seeds):
            step(f"long windows, {case.name}, seed {seed}")
            tables = case.make(case.ticks, seed)
            settings: dict[str, Any] = {"on": "key", "time": "time", "within": case.window}
            exact = tg.join(*tables, **settings).results
            for memory in case.memories:
                for name in POLICIES:
                    kept = tg.join(*tables, **settings, memory=memory, policy=name).results
                    found.setdefault((memory, name), []).append(kept / exact)
        for memory in case.memories:
            shares = {name: statistics.mean(found[memory, name]) for name in POLICIES}
            own = shares.pop("auto")
            best = max(shares, key=lambda name: shares[name])
            shown = (f"{own:.1%}", f"{shares[best]:.1%}", best, f"{own / shares[best]:.0%}")
            rows.append((case.name, f"{case.ticks:,}", f"{case.window:,}", f"{memory:,}", *shown))
    return Table(
        f"Windows far longer than what matters, mean of {seeds} seeds",
        ("streams", "ticks", "window", "memory", "auto", "best", "which", "auto over it"),
        tuple(rows),
    )
