"""Constraints combined: figures 10 and 11 of Babu, Srivastava, Widom (section 8)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.constrained import FIGURE_3A, FIGURE_3C, Ran, ran
from benchmarks.measure import Step
from benchmarks.report import Figure, Section, Table
from tidegate.joins.constrained.constraints import CA, OAC, RIDS, Constraint
from tidegate.settings.rows import Rows
from tidegate.streams.constrained import Numbers, Places, arrivals


@dataclass(frozen=True)
class Scale:
    """Child rows and k of figure 10, child rows and ks of figure 11, windows in rows."""

    children: int = 60_000
    oac: int = 5_000
    parents_of: int = 100_000
    ca: int = 5_000
    ks: tuple[int, ...] = (0, 500, 1_000, 2_000, 3_000, 5_000, 10_000)
    window: int = 50_000
    batch: int = 4_000


FULL = Scale()
QUICK = Scale(3_000, 250, 4_000, 200, (0, 80, 400), 2_500, 500)
#: The paper's microseconds per row in figure 10.
PAPER = {"CA": 25, "OAC": 23, "CA and OAC": 28}
#: The k above which, in figure 11, the paper's state is larger with both constraints.
CROSSING = 2_000


@dataclass(frozen=True)
class Mixed:
    """Streams, and the constraints that they satisfy."""

    tables: dict[str, pa.Table]
    constraints: tuple[Constraint, ...]


def clustered_and_ordered(scale: Scale, seed: int = 1) -> Mixed:
    """Generate CA(0) on S1.A and OAC(k) on S3.B; a quarter of S1 has no child in S3 (figure 10)."""
    n, k = scale.children, scale.oac
    moving, filling = (np.random.default_rng([seed, each]) for each in range(2))
    values = np.arange(n, dtype=np.int64)
    many = np.repeat(values, 5)
    late = values + moving.integers(0, k // 2 + 1, n)
    ordered = np.empty(n)
    ordered[np.argsort(late, kind="stable")] = values
    near = np.clip(many + moving.integers(-50, 51, len(many)), 0, n - 1)
    # Odd values occur in no row of S3; they have a place in the order like other values.
    b = 2 * near + (moving.random(len(many)) < 0.25)
    names = moving.permutation(values)
    places = {"S1": np.arange(len(many)) / 5, "S2": values - 0.1, "S3": ordered + 0.05}
    keys = {"S1": {"A": names[many], "B": b}, "S2": {"A": names}, "S3": {"B": 2 * values}}
    constraints = (CA("S1.A", k=0), OAC("S3.B", k=k))
    return Mixed(_tables(places, keys, filling), constraints)


def clustered_and_referring(scale: Scale, k: int, seed: int = 1) -> Mixed:
    """Generate CA on S1.A and RIDS(k) on S1 -> S2, two parents per child (figure 11).

    The parents arrive close together, up to k rows before their child. Both constraints hold with
    equality.
    """
    # Parents come before their children. With these extra parents, and without the rows after
    # `parents_of` children, both streams last to the end.
    n = scale.parents_of + k + scale.ca
    moving, filling = (np.random.default_rng([seed, k, each]) for each in range(2))
    values = np.arange(n, dtype=np.int64)
    many = np.repeat(values, 2)
    early = moving.integers(0, k + 1, n)
    apart = moving.random(len(many)) * scale.ca / 2
    child = values.astype(np.float64)
    parent = child[many] - early[many] + apart
    rank = np.empty(len(many), np.int64)
    rank[np.argsort(parent, kind="stable")] = np.arange(len(many))
    pairs = rank.reshape(n, 2)
    between = int((np.abs(pairs[:, 0] - pairs[:, 1]) - 1).max())
    waits = many - np.searchsorted(child, parent) + 1
    names = moving.permutation(values)
    here, there = parent < scale.parents_of, child < scale.parents_of
    tables = _tables(
        {"S1": parent[here], "S2": child[there]},
        {"S1": {"A": names[many[here]]}, "S2": {"A": names[there]}},
        filling,
    )
    longest = max(int(waits.max()), 0)
    return Mixed(tables, (CA("S1.A", k=between), RIDS("S1 -> S2", k=longest)))


def _tables(
    places: dict[str, Places], keys: dict[str, dict[str, Numbers]], filling: np.random.Generator
) -> dict[str, pa.Table]:
    """Put streams into one order of arrival, like `tidegate.streams.many_one`."""
    return {
        name: pa.table({**keys[name], "D": filling.integers(0, 100, len(own)), "t": own}).sort_by(
            "t"
        )
        for name, own in arrivals(places).items()
    }


def figure_10(scale: Scale, step: Step) -> dict[str, Ran]:
    """Run CA and OAC, each alone and together, and SWJ."""
    mixed = clustered_and_ordered(scale)
    ca, oac = mixed.constraints
    common: dict[str, Any] = {
        "joins": FIGURE_3A,
        "time": "t",
        "within": Rows(scale.window),
        "filters": dict.fromkeys(("S2", "S3"), "D < 50"),
    }
    ways: dict[str, Sequence[Constraint]] = {"CA": [ca], "OAC": [oac], "CA and OAC": [ca, oac]}
    found = {}
    for name, constraints in ways.items():
        step(f"figure 10, {name}")
        found[name] = ran(
            mixed.tables, scale.batch, constraints=constraints, choose=False, **common
        )
    step("figure 10, SWJ")
    found["SWJ"] = ran(mixed.tables, scale.batch, eliminate=False, **common)
    assert len({each.results.num_rows for each in found.values()}) == 1
    return found


def figure_11(k: int, scale: Scale) -> dict[str, Ran]:
    """Run CA alone, CA with RIDS, and tidegate's choice."""
    mixed = clustered_and_referring(scale, k)
    common: dict[str, Any] = {
        "joins": FIGURE_3C,
        "time": "t",
        "within": Rows(scale.window),
        "filters": {"S2": "D < 10"},
    }
    both = mixed.constraints
    found = {
        "CA": ran(mixed.tables, scale.batch, constraints=both[:1], choose=False, **common),
        "both": ran(mixed.tables, scale.batch, constraints=both, choose=False, **common),
        "chosen": ran(mixed.tables, scale.batch, constraints=both, **common),
    }
    assert len({each.results.num_rows for each in found.values()}) == 1
    return found


def held(each: Ran) -> float:
    """Return the mean number of held rows over the second half of the stream."""
    return statistics.mean(each.held[len(each.held) // 2 :])


def run(scale: Scale, step: Step) -> Section:
    """Figure 10: both constraints beat each one. Figure 11: both may be worse than one."""
    together = figure_10(scale, step)
    state = {name: held(each) for name, each in together.items()}
    less = state["CA and OAC"] / min(state["CA"], state["OAC"])
    alone: dict[int, dict[str, float]] = {}
    for k in scale.ks:
        step(f"figure 11, k={k:,}")
        alone[k] = {name: held(each) for name, each in figure_11(k, scale).items()}
    worst = max(each["chosen"] / min(each["CA"], each["both"]) for each in alone.values())
    crossed = [k for k, each in alone.items() if each["both"] > each["CA"]]
    first = f"from k = {min(crossed):,} on" if crossed else "for none of these k"
    rows = sum(5 * scale.children if s == "S1" else scale.children for s in ("S1", "S2", "S3"))
    return Section(
        title="constraints combined",
        workload="Streams of benchmarks.combined, engine alone, one core.",
        figures=(
            Figure(
                "CA and OAC together, rows held over those with the better of them (figure 10)",
                f"{less:.2f}",
                less,
                bar=1.0,
                aim=0.8,
                form="{:.1f}",
                higher=False,
            ),
            Figure(
                "CA and RIDS, rows held as chosen over those of the better way (figure 11)",
                f"{worst:.2f} at worst",
                worst,
                bar=1.5,
                aim=1.1,
                form="{:.1f}",
                higher=False,
            ),
        ),
        tables=(
            Table(
                "Figure 10: CA and OAC",
                ("constraints", "held", "of SWJ", "us a row", "paper's us"),
                tuple(
                    (
                        name,
                        f"{state[name]:,.0f}",
                        f"{state[name] / state['SWJ']:.3f}",
                        f"{each.micros:.2f}",
                        str(PAPER.get(name, "")),
                    )
                    for name, each in together.items()
                ),
                f"Join graph 3(a), CA(0) on S1.A and OAC({scale.oac:,}) on S3.B, a quarter of S1 "
                f"without a child in S3, windows of {scale.window:,} rows, {rows:,} rows. "
                "The column held counts rows, on average over the second half. In the paper, both "
                "together give the best reduction.",
            ),
            Table(
                "Figure 11: CA and RIDS",
                ("k of RIDS", "CA alone", "CA and RIDS", "chosen"),
                tuple(
                    (f"{k:,}", *(f"{each[way]:,.0f}" for way in ("CA", "both", "chosen")))
                    for k, each in alone.items()
                ),
                "Rows held on average over the second half, join graph 3(c), CA on S1.A with a k "
                f"of about {scale.ca:,}, two parents to a child, a filter that a tenth passes, "
                f"{3 * scale.parents_of:,} rows. With both the state is larger {first}; in the "
                f"paper from about {CROSSING:,} on. The last "
                "column is `choose=True`, which measures whether to keep No.",
            ),
        ),
    )
