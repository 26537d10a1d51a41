"""Measure how many results each policy delivers, and what it costs to learn frequencies."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf

import numpy as np
import pyarrow as pa

from benchmarks.measure import Feeder, Step
from benchmarks.report import Figure, Section, Table
from tidegate.policies import Life, Policy, Prob
from tidegate.streams import zipf


@dataclass(frozen=True)
class Scale:
    """The settings to try."""

    skews: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)
    domains: tuple[int, ...] = (50, 5_000)
    windows: tuple[int, ...] = (400, 5_000)
    shares: tuple[float, ...] = (0.1, 0.25, 0.5)
    seeds: int = 3
    paper_seeds: int = 10


FULL = Scale()
QUICK = Scale(skews=(0.5, 1.5), windows=(400,), shares=(0.25,), seeds=1, paper_seeds=2)


#: Cells in a row of a small sketch.
SMALL = 512
#: Settings with fewer results are left out: their ratios are noise.
FEWEST = 200


@dataclass(frozen=True)
class Setting:
    """One row of the table of learned against whole-stream frequencies."""

    domain: int
    window: int
    skew: float
    share: float

    @property
    def ticks(self) -> int:
        """The length of the streams: paper 1's 14 windows, and 20 rows for every key.

        On a shorter stream, the counts of the whole stream are not frequencies but the future: a
        key that comes twice is known to come again.
        """
        return max(14 * self.window, 20 * self.domain)

    def __str__(self) -> str:
        return (
            f"domain {self.domain:,}, w {self.window:,}, skew {self.skew:g}, "
            f"memory {self.share:.0%}"
        )


@dataclass(frozen=True)
class Kept:
    """Results by seed for each kind of frequencies: in total, and after two windows."""

    learned: tuple[tuple[int, int], ...]
    lasting: tuple[tuple[int, int], ...]  # learned, without decay
    whole: tuple[tuple[int, int], ...]
    long_run: tuple[tuple[int, int], ...]  # counted on streams that are ten times as long
    window: tuple[tuple[int, int], ...]  # counted over the last window
    sketch: tuple[tuple[int, int], ...]
    small: tuple[tuple[int, int], ...]  # counted in a sketch with few cells

    def share(self, one: str, other: str, after: bool = True) -> float:
        """Return one kind's results relative to another's, over all seeds."""
        a, b = (sum(pair[after] for pair in getattr(self, kind)) for kind in (one, other))
        return float(a / b)

    @property
    def seeds(self) -> list[float]:
        """Return learned relative to whole, by seed, counted after two windows; smallest first."""
        pairs = zip(self.learned, self.whole, strict=True)
        return sorted(one[1] / other[1] for one, other in pairs if other[1])


def counted(tables: tuple[pa.Table, pa.Table]) -> pa.Table:
    """Count the frequencies of the whole streams, as in the papers' figures."""
    keys = [table.column("key").to_numpy() for table in tables]
    size = int(max(k.max() for k in keys)) + 1
    left, right = (np.bincount(k, minlength=size).astype(np.float64) for k in keys)
    return pa.table({"key": np.arange(size), "left": left, "right": right})


def results(
    tables: tuple[pa.Table, pa.Table],
    window: int,
    memory: int | None,
    policy: str | Policy,
    split: str = "shared",
    seed: int = 0,
) -> tuple[int, int]:
    """Return the number of all results, and of those from time 2w on."""
    feeder = Feeder(
        tables[0].schema, within=window, memory=memory, policy=policy, split=split, seed=seed
    )
    length = len(tables[0])
    early = feeder.feed(feeder.prepare(tables, 0, 2 * window)).results
    late = feeder.feed(feeder.prepare(tables, 2 * window, length - 2 * window)).results
    return early + late, late


def settings(scale: Scale) -> Iterator[Setting]:
    """Yield every combination."""
    for values in product(scale.domains, scale.windows, scale.skews, scale.shares):
        yield Setting(*values)


def learned_over_whole(scale: Scale, setting: Setting) -> Kept | None:
    """Join the same streams with each kind of frequencies; None if there are too few results."""
    found = []
    for seed in range(scale.seeds):
        # A longer stream begins with the shorter one.
        longer = zipf(10 * setting.ticks, domain=setting.domain, skew=setting.skew, seed=seed)
        tables = longer[0].slice(0, setting.ticks), longer[1].slice(0, setting.ticks)
        memory = round(setting.share * 2 * setting.window)
        policies = (
            Prob(),
            Prob(halflife=inf),
            Prob(counted(tables)),
            Prob(counted(longer)),
            Prob("window"),
            Prob("sketch"),
            Prob("sketch", keys=SMALL),
        )
        found.append([results(tables, setting.window, memory, policy) for policy in policies])
    kept = Kept(*zip(*found, strict=True))
    return kept if sum(after for _, after in kept.whole) >= FEWEST else None


def paper(scale: Scale) -> dict[tuple[str, float, str], float]:
    """Paper 1's setting: the share of the exact result, counted after 2w, mean over seeds."""
    window = 400
    shares: dict[tuple[str, float, str], list[float]] = {}
    for seed in range(scale.paper_seeds):
        tables = zipf(5_600, domain=50, skew=1.0, seed=seed)
        exact = results(tables, window, None, "prob")[1]
        given = counted(tables)
        policies: dict[str, str | Policy] = {
            "PROB": Prob(given),
            "PROB, learned": "prob",
            "LIFE": Life(given),
            "LIFE, learned": "life",
            "RAND": "rand",
        }
        for split, times, name in product(("fixed", "shared"), (0.1, 0.25, 0.5, 1.0), policies):
            found = results(tables, window, round(times * window), policies[name], split, seed)[1]
            shares.setdefault((split, times, name), []).append(found / exact)
    return {key: statistics.mean(values) for key, values in shares.items()}


def _paper_rows(found: dict[tuple[str, float, str], float]) -> tuple[tuple[str, ...], ...]:
    names = list(dict.fromkeys(name for _, _, name in found))
    lines = dict.fromkeys((split, times) for split, times, _ in found)
    return tuple(
        (split, f"{times:g} w", *(f"{found[split, times, name]:.1%}" for name in names))
        for split, times in lines
    )


def _figure(what: str, measured: str, value: float) -> Figure:
    return Figure(what, measured, value, bar=0.97, aim=0.995, form="{:.1%}")


def run(scale: Scale, step: Step) -> Section:
    """Compare learned with whole-stream frequencies, then run paper 1's setting."""
    kept = {}
    for setting in settings(scale):
        step(f"domain {setting.domain:,}, w {setting.window:,}, skew {setting.skew:g}")
        found = learned_over_whole(scale, setting)
        if found is not None:
            kept[setting] = found
    step("paper 1, domain 50, w = 400")
    shares = paper(scale)
    figures = []
    for what, after in (("counted after 2w", True), ("from the first row", False)):
        means = {s: k.share("learned", "whole", after) for s, k in kept.items()}
        middle = statistics.median(means.values())
        lowest = min(means, key=lambda s: means[s])
        figures += [
            _figure(
                f"recall, learned frequencies against whole-stream ones, {what}, median of "
                f"{len(kept)} settings",
                f"{middle:.1%}",
                middle,
            ),
            _figure(
                f"the same, {what}, the worst of them",
                f"{means[lowest]:.1%} ({lowest})",
                means[lowest],
            ),
        ]
    kept_up = {s: k.share("learned", "lasting") for s, k in kept.items()}
    lowest = min(kept_up, key=lambda s: kept_up[s])
    figures.append(
        _figure(
            "recall, learned frequencies against the most that can be learned (nothing forgotten), "
            f"counted after 2w; median {statistics.median(kept_up.values()):.1%}",
            f"at worst {kept_up[lowest]:.1%} ({lowest})",
            kept_up[lowest],
        )
    )
    rows = tuple(
        (
            f"{s.domain:,}",
            f"{s.window:,}",
            f"{s.skew:g}",
            f"{s.share:.0%}",
            f"{k.share('learned', 'whole'):.1%}",
            f"{k.seeds[0]:.1%} to {k.seeds[-1]:.1%}",
            f"{k.share('learned', 'whole', after=False):.1%}",
            f"{k.share('lasting', 'whole'):.1%}",
            f"{k.share('learned', 'long_run'):.1%}",
            f"{k.share('long_run', 'whole'):.1%}",
        )
        for s, k in kept.items()
    )
    ways = ("learned", "window", "sketch", "small")
    by_way = tuple(
        (
            f"{s.domain:,}",
            f"{s.window:,}",
            f"{s.skew:g}",
            f"{s.share:.0%}",
            *(f"{k.share(way, 'whole'):.1%}" for way in ways),
        )
        for s, k in kept.items()
    )
    middles = [statistics.median(k.share(way, "whole") for k in kept.values()) for way in ways]
    by_way += (("median", "", "", "", *(f"{middle:.1%}" for middle in middles)),)
    policies = dict.fromkeys(name for _, _, name in shares)
    return Section(
        title="what is kept",
        workload=(
            f"Zipf keys, uncorrelated, a row a side at every time, {scale.seeds} seeds. Streams "
            "have 14 w rows a side, but at least 20 for every key. Memory is a share of the 2w "
            f"rows of a full window, in one pool. Settings with fewer than {FEWEST} results are "
            "left out."
        ),
        figures=tuple(figures),
        tables=(
            Table(
                "Results with learned frequencies over results with whole-stream ones",
                (
                    "domain",
                    "w",
                    "skew",
                    "memory",
                    "after 2w",
                    "over seeds",
                    "from the first row",
                    "after 2w, never forgetting",
                    "after 2w, over long-run ones",
                    "long-run over whole",
                ),
                rows,
                "Long-run frequencies are counted on streams that are ten times as long. "
                "Whole-stream frequencies give more only because they know the future. Counts that "
                "never decay are the most that can be learned of keys that do not change: a key "
                "that came more often is more likely to be frequent, and nothing else "
                "distinguishes keys. Only more arrivals would improve them.",
            ),
            Table(
                "Ways to learn frequencies: results over those with whole-stream ones, after 2w",
                ("domain", "w", "skew", "memory", *ways[:-1], f"sketch of {SMALL} cells a row"),
                by_way,
                "Learned: counts by key that fade. Window: exact counts of the last window. "
                "Sketch: fading counts in four rows of 16,384 cells for each side, whatever the "
                "keys.",
            ),
            Table(
                "Share of the exact result, paper 1's setting",
                ("split", "memory", *policies),
                _paper_rows(shares),
                "Zipf(1), domain 50, w = 400, 5,600 rows a side, output counted after 2w, mean "
                f"of {scale.paper_seeds} seeds; frequencies are the whole streams' unless learned.",
            ),
        ),
    )
