"""Measure how many results are lost because moving ranks are not all computed at each choice."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import Feeder, Inputs, Step
from benchmarks.report import Figure, Section, Table
from tidegate.joins.window.rules import EXACT_LIMIT
from tidegate.policies import POLICIES, IJoin, Policy, Prob
from tidegate.streams import echoes, zipf
from tidegate.streams.auctions import draw_ages

Tables = tuple[pa.Table, pa.Table]


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
    "Zipf(1)": Stream(lambda n, window, seed: zipf(n, domain=window // 2, seed=seed)),
    "replies": Stream(
        lambda n, window, seed: echoes(n, window=window, domain=window // 2, seed=seed)
    ),
    "bell": Stream(lambda n, window, seed: _replies(n, window, seed, "bell"), True),
    "increasing": Stream(lambda n, window, seed: _replies(n, window, seed, "inc"), True),
    "decreasing": Stream(lambda n, window, seed: _replies(n, window, seed, "dec"), True),
    "two humps": Stream(lambda n, window, seed: _replies(n, window, seed, "two humps"), True),
    "band join": Stream(_band, where="abs(l.x - r.x) <= 1"),
}


@dataclass(frozen=True)
class Memory:
    """A memory in rows, with seeds, splits, the length of streams and the policies to measure."""

    rows: int
    seeds: int
    splits: tuple[str, ...] = ("shared",)
    windows: int = 5
    most: int = 20_000  # ticks after the first window: an exact ranking of many rows takes long
    policies: tuple[str, ...] | None = None  # all of them


@dataclass(frozen=True)
class Scale:
    """Memories, the shares of the live rows that fit, and the streams."""

    memories: tuple[Memory, ...] = (
        Memory(1_000, 2, ("shared", "fixed")),
        Memory(10_000, 1),
        Memory(100_000, 1, most=10_000, policies=("age", "auto", "ijoin", "dimpprob")),
    )
    shares: tuple[float, ...] = (0.3, 0.7)
    streams: tuple[str, ...] = tuple(STREAMS)


FULL = Scale()
QUICK = Scale(memories=(Memory(400, 1, windows=3),), shares=(0.7,), streams=("Zipf(1)", "bell"))


def moving() -> dict[str, Policy]:
    """Return every policy whose ranks fall as well as rise."""
    found = {name: kind() for name, kind in POLICIES.items() if kind.ranks in ("life", "score")}
    more: dict[str, Policy] = {
        "prob, window": Prob("window"),
        "ijoin, every 100 drops": IJoin(recompute=100),
        "ijoin, adaptive": IJoin(recompute="adaptive"),
    }
    return found | more


@dataclass(frozen=True)
class Kept:
    """Results and seconds of one policy, with the exact ranking and with the queue."""

    exact: float
    queue: float
    exact_seconds: float
    queue_seconds: float

    @property
    def share(self) -> float:
        """The queue's results as a share of the exact ranking's."""
        return self.queue / self.exact


def measure(tables: Tables, window: int, memory: int, policy: Policy, **settings: Any) -> Kept:
    """Join the same streams with and without the queue."""
    found = []
    bound = {"within": window, "memory": memory, "policy": policy, **settings}
    for limit in (2**62, 0):
        feeder = Feeder(tables[0].schema, exact_limit=limit, **bound)
        results, seconds = 0, 0.0
        for start in range(0, len(tables[0]), window):
            inputs = _cut(feeder, tables, start, start + window)
            began = time.process_time()
            results += feeder.feed(inputs).results
            seconds += time.process_time() - began
        found.append((results, seconds))
    (exact, slow), (queue, fast) = found
    return Kept(exact, queue, slow, fast)


def _cut(feeder: Feeder, tables: Sequence[pa.Table], start: int, stop: int) -> Inputs:
    """Prepare the rows of a range of times."""
    found = []
    for side, table in enumerate(tables):
        first, last = np.searchsorted(table.column("time").to_numpy(), [start, stop]).tolist()
        batches = table.slice(first, last - first).combine_chunks().to_batches()
        found.append([feeder.job.prepare(side, batch)[0] for batch in batches])
    return found[0], found[1]


def run(scale: Scale, step: Step) -> Section:
    """Measure every policy with moving ranks on every stream, at every memory."""
    rows, shares = [], {}
    for name in scale.streams:
        stream = STREAMS[name]
        for memory in scale.memories:
            for part in scale.shares:
                window = stream.window(memory.rows, part)
                ticks = window + min((memory.windows - 1) * window, memory.most)
                streams = [stream.make(ticks, window, seed) for seed in range(memory.seeds)]
                for split in memory.splits:
                    for label, policy in moving().items():
                        if memory.policies is not None and label not in memory.policies:
                            continue
                        cell = (name, f"{memory.rows:,}", f"{part:.0%}", split, label)
                        step(", ".join(cell))
                        settings = {"within": stream.within(window), "split": split}
                        if stream.where is not None:
                            settings["where"] = stream.where
                        kept = [
                            measure(tables, window, memory.rows, policy, **settings)
                            for tables in streams
                        ]
                        exact = sum(k.exact for k in kept)
                        shares[cell] = sum(k.queue for k in kept) / exact
                        seconds = [sum(getattr(k, what) for k in kept) for what in _SECONDS]
                        spread = sorted(k.share for k in kept)
                        rows.append(
                            (
                                *cell,
                                f"{exact / len(kept):,.0f}",
                                f"{shares[cell]:.2%}",
                                f"{spread[0]:.2%} to {spread[-1]:.2%}",
                                f"{seconds[0] / seconds[1]:.1f}x",
                            )
                        )
    worst = min(shares, key=lambda at: shares[at])
    middle = statistics.median(shares.values())
    figure = Figure(
        f"results with the queue of moving ranks over those with an exact ranking, {len(shares)} "
        f"cells; median {middle:.2%}",
        f"at worst {shares[worst]:.2%} ({', '.join(worst)})",
        shares[worst],
        bar=0.99,
        aim=0.995,
        form="{:.1%}",
    )
    return Section(
        title="what the approximate ranking costs",
        workload=(
            "Zipf(1) keys on both sides, and replies to them that come at some ages more than at "
            "others, with half as many keys as ticks in a window. New keys on the left, half of "
            "which get one reply at an age of a bell, increasing, decreasing or two-humped "
            "distribution. A band join of sensor readings. Memory for a share of the live rows, "
            "shared or split in halves. Exact: the ranks of all rows are computed for each choice, "
            f"as a join does up to {EXACT_LIMIT} rows. Queue: as a join does with more rows."
        ),
        figures=(figure,),
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
                    "over seeds",
                    "cost",
                ),
                tuple(rows),
                "Cost: processor time of the exact ranking over that of the queue, of whole feeds.",
            ),
        ),
    )


#: The fields of `Kept` that have seconds: of the exact ranking, and of the queue.
_SECONDS = ("exact_seconds", "queue_seconds")
