"""Paper 1's policies relative to the optimum, and what their figures depend on."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate as tg
from benchmarks.measure import Step
from benchmarks.recall import counted
from benchmarks.report import Section, Table
from tidegate.policies import Life, Policy, Prob
from tidegate.streams import zipf

LENGTH, WINDOW = 5_600, 400
RATIOS = ("PROB/OPT", "RAND/OPT", "LIFE/OPT", "OPT/exact")

Tables = tuple[pa.Table, pa.Table]


@dataclass(frozen=True)
class Setting:
    """Deviations from the setting of section 5.2.1: Zipf(1), domain 50, fixed, after 2w."""

    streams: dict[str, Any] = field(default_factory=dict)
    split: str = "fixed"
    shed_when: str = "after-probe"
    count_from: int = 2 * WINDOW
    #: True if the optimum maximises all results, although only the later ones are counted.
    best_of_all: bool = False
    #: Count frequencies on streams that are longer by this factor.
    longer: int = 1


SETTINGS: dict[str, Setting] = {
    "as the paper says": Setting(),
    "one memory for both": Setting(split="shared"),
    "the same keys frequent on both": Setting({"correlation": "same"}),
    "frequent on one, rare on the other": Setting({"correlation": "opposite"}),
    "before-probe": Setting(shed_when="before-probe"),
    "OPT of all results": Setting(best_of_all=True),
    "counted from the first row": Setting(count_from=0),
    "frequencies of a tenfold stream": Setting(longer=10),
    "domain 200": Setting({"domain": 200}),
}


@dataclass(frozen=True)
class Scale:
    """Memories as shares of the window, the number of seeds, and how many seeds to choose from."""

    shares: tuple[float, ...] = (0.1, 1.0)
    seeds: int = 10
    chosen_from: int = 60


FULL = Scale()
QUICK = Scale(shares=(1.0,), seeds=2, chosen_from=4)


def streams(setting: Setting, seed: int, longer: int = 1) -> Tables:
    """Generate both streams; a longer stream begins with the shorter one."""
    return zipf(LENGTH * longer, **{"domain": 50, "skew": 1.0, "seed": seed} | setting.streams)


def meetings(tables: Tables) -> float:
    """Return the probability that two random rows, one of each stream, have the same key."""
    table = counted(tables)
    left, right = (table.column(side).to_numpy() for side in ("left", "right"))
    return float(left @ right / (left.sum() * right.sum()))


def meeting_most(setting: Setting, seeds: Iterable[int], count: int) -> list[int]:
    """Return the seeds whose streams have equal keys most often."""
    return sorted(seeds, key=lambda seed: meetings(streams(setting, seed)))[-count:]


def ratios(setting: Setting, memory: int, seed: int) -> dict[str, float]:
    """Return PROB, RAND and LIFE over the optimum, and the optimum over the exact join."""
    tables = streams(setting, seed)
    join: dict[str, Any] = {"on": "key", "time": "time", "within": WINDOW}
    bounded = join | {"memory": memory, "split": setting.split, "shed_when": setting.shed_when}
    start = None if setting.best_of_all else setting.count_from
    best = _late(tg.optimal(*tables, **bounded, count_from=start).table, setting)
    exact = _late(tg.join(*tables, **join).table, setting)
    given = counted(streams(setting, seed, setting.longer))
    policies: dict[str, str | Policy] = {"PROB": Prob(given), "RAND": "rand", "LIFE": Life(given)}
    online = {
        name: _late(tg.join(*tables, **bounded, policy=policy, seed=seed).table, setting)
        for name, policy in policies.items()
    }
    return {f"{name}/OPT": n / best for name, n in online.items()} | {"OPT/exact": best / exact}


def _late(table: pa.Table, setting: Setting) -> int:
    """Count the results after the warm-up."""
    left, right = (table.column(f"time_{side}").to_numpy() for side in ("left", "right"))
    return int((np.maximum(left, right) >= setting.count_from).sum())


def over_seeds(setting: Setting, memory: int, seeds: Iterable[int]) -> dict[str, list[float]]:
    """Return each of the ratios, by seed."""
    found = [ratios(setting, memory, seed) for seed in seeds]
    return {name: [one[name] for one in found] for name in RATIOS}


def run(scale: Scale, step: Step) -> Section:
    """Run all settings, then the paper's setting on streams whose keys are often equal."""
    plain = Setting()
    chosen = meeting_most(plain, range(scale.chosen_from, 2 * scale.chosen_from), scale.seeds)
    rows = []
    cases = [(name, setting, list(range(scale.seeds))) for name, setting in SETTINGS.items()]
    cases.append(("as the paper says, equal keys meet often", plain, chosen))
    for name, setting, seeds in cases:
        for share in scale.shares:
            step(f"{name}, M = {share:g} w")
            found = over_seeds(setting, round(share * WINDOW), seeds)
            cells = [
                f"{statistics.mean(v):.1%} ({min(v):.1%} to {max(v):.1%})" for v in found.values()
            ]
            rows.append((name, f"{share:g} w", *cells))
    return Section(
        title="paper 1's policies over the optimum",
        workload=(
            f"Zipf(1), domain 50, uncorrelated, w = {WINDOW}, {LENGTH:,} rows a side, half of "
            "the memory for each side, frequencies those of the whole streams, output counted "
            f"after 2w; mean of {scale.seeds} seeds, lowest and highest. Each line changes one "
            "thing."
        ),
        figures=(),
        tables=(
            Table(
                "Share of the optimum",
                ("setting", "memory", *RATIOS),
                tuple(rows),
                "Expected: PROB 96 to 97 % of OPT, at a tenth of the memory about the same, RAND "
                "about 53 %, LIFE about 91 %; with domain 200, OPT 99.7 % of exact. The results of "
                "PROB and LIFE depend on the keys that are frequent in both streams, which the "
                "streams' permutations decide. So the last line uses the "
                f"{scale.seeds} of the seeds {scale.chosen_from} to {2 * scale.chosen_from - 1} "
                "on whose streams two rows have the same key most often; the rule was found on "
                "the seeds before these. This is weak evidence that the expected figures come from "
                "such streams, because the ratio of PROB rises with that probability and has to "
                "pass the expected one at some point. On unselected seeds, no setting gives all "
                "expected figures. If each side has memory for w rows, nothing is shed.",
            ),
        ),
    )
