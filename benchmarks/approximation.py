"""Measure how many results are lost because moving ranks are not all computed at each eviction."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from benchmarks.measure import Feeder, Step
from benchmarks.report import Figure, Section, Table
from tidegate.joins.window.rules import EXACT_LIMIT
from tidegate.policies import POLICIES, IJoin, Policy, Prob
from tidegate.streams import echoes, zipf

Tables = tuple[pa.Table, pa.Table]


@dataclass(frozen=True)
class Scale:
    """Memories in rows with seeds for each, and the length of the streams."""

    memories: tuple[tuple[int, int], ...] = ((100, 3), (1_000, 2), (10_000, 1))
    windows: int = 5
    most: int = 20_000  # ticks: an exact ranking of a large memory takes long


FULL = Scale()
QUICK = Scale(memories=((100, 1), (400, 1)))

#: Stream generators by what matters in them; arguments are ticks, window and seed.
STREAMS: dict[str, Callable[[int, int, int], Tables]] = {
    "Zipf(1)": lambda n, window, seed: zipf(n, domain=window // 2, seed=seed),
    "replies": lambda n, window, seed: echoes(n, window=window, domain=window // 2, seed=seed),
}


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


def measure(tables: Tables, window: int, memory: int, policy: Policy) -> Kept:
    """Join the same streams with and without the queue."""
    found = []
    for limit in (2**62, 0):
        feeder = Feeder(
            tables[0].schema, exact_limit=limit, within=window, memory=memory, policy=policy
        )
        results, seconds = 0, 0.0
        # Feed in batches, like a stream: after each batch the queue computes all ranks.
        for start in range(0, len(tables[0]), window):
            inputs = feeder.prepare(tables, start, window)
            began = time.process_time()
            results += feeder.feed(inputs).results
            seconds += time.process_time() - began
        found.append((results, seconds))
    (exact, slow), (queue, fast) = found
    return Kept(exact, queue, slow, fast)


def run(scale: Scale, step: Step) -> Section:
    """Measure every policy with moving ranks at every memory."""
    rows, shares = [], {}
    for name, make in STREAMS.items():
        for memory, seeds in scale.memories:
            window = memory  # half of the live rows fit
            ticks = min(scale.windows * window, scale.most)
            streams = [make(ticks, window, seed) for seed in range(seeds)]
            for label, policy in moving().items():
                step(f"{name}, memory {memory:,}, {label}")
                kept = [measure(tables, window, memory, policy) for tables in streams]
                share = sum(k.queue for k in kept) / sum(k.exact for k in kept)
                shares[name, memory, label] = share
                slower = sum(k.exact_seconds for k in kept) / sum(k.queue_seconds for k in kept)
                spread = sorted(k.share for k in kept)
                rows.append(
                    (
                        name,
                        f"{memory:,}",
                        label,
                        f"{sum(k.exact for k in kept) / len(kept):,.0f}",
                        f"{share:.2%}",
                        f"{spread[0]:.2%} to {spread[-1]:.2%}",
                        f"{slower:.1f}x",
                    )
                )
    large = {at: share for at, share in shares.items() if at[1] > EXACT_LIMIT}
    worst = min(large, key=lambda at: large[at])
    middle = statistics.median(large.values())
    figure = Figure(
        f"results with the approximate queue over those with an exact ranking, {len(large)} cells "
        f"above {EXACT_LIMIT} tuples; median {middle:.2%}",
        f"at worst {large[worst]:.2%} ({worst[2]}, {worst[0]}, memory {worst[1]:,})",
        large[worst],
        bar=0.97,
        aim=0.995,
        form="{:.1%}",
    )
    return Section(
        title="what the approximate ranking costs",
        workload=(
            "Zipf(1) keys on both sides, and replies to them that come at some ages more than at "
            "others; half as many keys as ticks in a window. Streams last "
            f"{scale.windows} windows, but {scale.most:,} ticks at the most; "
            f"{scale.memories[0][1]} seeds, {scale.memories[-1][1]} at the largest memory; batches "
            "of a window. Memory for half of what is live, shared. Exact: all ranks are "
            "looked up at every eviction, which is what a join does up to "
            f"{EXACT_LIMIT} candidates. Queue: what it does above, here at every memory."
        ),
        figures=(figure,),
        tables=(
            Table(
                "Results with the approximate queue over results with an exact ranking",
                ("streams", "memory", "policy", "exact", "queue over it", "over seeds", "cost"),
                tuple(rows),
                "Cost: processor time of the exact ranking over that of the queue, of whole feeds.",
            ),
        ),
    )
