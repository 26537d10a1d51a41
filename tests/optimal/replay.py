"""Carry out a plan, by its times and on the window engine, to count its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from optimal.exhaustive import LEFT, Case, Row

import tidegate as tg
from tidegate.policies import Arrivals, Policy
from tidegate.settings.columns import hash_columns


def kept_until(found: tg.Optimal) -> dict[tuple[int, int], Any]:
    """Return the last time of each kept row, by side and row number."""
    return {
        (("left", "right").index(row["side"]), row["row"]): row["keep_until"]
        for row in found.keep_until.to_pylist()
    }


def delivered(case: Case, until: Mapping[tuple[int, int], Any]) -> set[tuple[int, int]]:
    """Return the pairs of the exact result whose earlier row was still kept."""
    pairs = set()
    for a in case.rows:
        for b in case.rows:
            if a.side == LEFT and case.joins(a, b):
                earlier, later = (a, b) if a.time <= b.time else (b, a)
                now = later.time
                if now < case.count_from:
                    continue
                there = until.get((earlier.side, earlier.uid), -1) >= now
                if case.shed_when == "before-arrival":
                    there = there and until.get((later.side, later.uid), -1) >= now
                elif a.time == b.time:
                    there = True
                if there:
                    pairs.add((a.uid, b.uid))
    return pairs


def check_bound(case: Case, until: Mapping[tuple[int, int], Any]) -> None:
    """Fail if more rows are held after a tick than fit."""
    rows = {(row.side, row.uid): row for row in case.rows}
    for time in {row.time for row in case.rows} | {start for start, _ in case.memory}:
        held: list[Row] = []
        for at, last in until.items():
            if case.shed_when == "after-probe":
                stays = rows[at].time <= time < last
            else:
                stays = rows[at].time <= time <= last
            held += [rows[at]] if stays else []
        assert case.fits(held, time), f"{len(held)} held at {time}"


@dataclass(frozen=True)
class Planned(Policy):
    """A policy that ranks a row by the time until which the plan keeps it.

    Rows that the plan no longer needs rank lower than rows that it still needs.
    """

    name: ClassVar[str] = "planned"
    ranks: ClassVar[Literal["row", "key", "life"]] = "row"
    until: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def fixed_ranks(self, arrivals: Arrivals) -> NDArray[np.float64]:
        """Return the last time of each row, or a time before all others."""
        known = zip(arrivals.side.tolist(), arrivals.row_hash.tolist(), strict=True)
        return np.array([self.until.get(one, -1e6) for one in known])


def planned(found: tg.Optimal, tables: tuple[pa.Table, pa.Table]) -> Planned:
    """Return the policy of a plan. All rows of an input must differ."""
    row_hashes = [hash_columns([c.chunk(0) for c in t.columns], len(t), exact=True) for t in tables]
    return Planned(
        {
            (side, int(row_hashes[side][row])): float(t)
            for (side, row), t in kept_until(found).items()
        }
    )
