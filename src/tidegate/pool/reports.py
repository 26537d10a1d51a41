"""Collect what the shards of a join report: its quality now, and with other budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegate.pool.curves import Curve, of_earnings, of_points
from tidegate.pool.split import together

#: Measures of quality. Recall is the share of all results that a join finds. The accuracy of a
#: sample is one minus the relative standard error of a count over a window.
RECALL, ACCURACY = "recall", "accuracy"


@dataclass
class ShardReports:
    """The reports of one shard, as sums in which older reports count less."""

    sizes: tuple[int, ...] = ()
    hits: list[float] = field(default_factory=list)
    total: float = 0.0
    span: float = 0.0
    worth: float = 0.0
    advance: float = 0.0
    need: float = 0.0
    held: int = 0
    bytes: int = 0
    begun: bool = False

    def add(self, report: Mapping[str, Any], fade: float) -> None:
        """Add one report."""
        self.held, self.bytes = report["held"], report["bytes"]
        if report["span"] <= 0:
            self.need = max(report["need"], self.need)
            return
        self.need = max(report["need"], fade * self.need)
        sizes = tuple(report["sizes"])
        if sizes != self.sizes:
            # The shadow joins try other sizes from now on.
            self.sizes, self.hits, self.total, self.span = sizes, [0.0] * len(sizes), 0.0, 0.0
        self.hits = [fade * a + b for a, b in zip(self.hits, report["hits"], strict=True)]
        # Before the join has any memory there is nothing to measure.
        self.begun = self.begun or report["allowed"] > 0
        measured = ("worth", "advance") if self.begun else ()
        for name in ("total", "span", *measured):
            setattr(self, name, fade * getattr(self, name) + report[name])

    def curve(self) -> Curve | None:
        """Return recall against memory; None while unknown."""
        if self.span <= 0:
            return None
        if self.total <= 0:
            return of_points([], [], 0.0, need=1.0)
        recall = [hits / self.total for hits in self.hits]
        return of_points(self.sizes, recall, self.total / self.span, max(self.need, 1.0))


class Reports:
    """The reports of all shards of a join."""

    def __init__(self, shards: int, measure: str = RECALL) -> None:
        self.measure = measure
        self._shards = [ShardReports() for _ in range(shards)]

    def add(self, shard: int, report: Mapping[str, Any], fade: float) -> None:
        """Add a shard's report."""
        self._shards[shard].add(report, fade)

    @property
    def held(self) -> int:
        """The number of rows held."""
        return sum(shard.held for shard in self._shards)

    @property
    def row_bytes(self) -> float:
        """The mean size of a held row in bytes; 0 while nothing is held."""
        return sum(shard.bytes for shard in self._shards) / self.held if self.held else 0.0

    @property
    def curves(self) -> list[Curve] | None:
        """The recall of each shard against its memory; None while one is unknown."""
        curves = [shard.curve() for shard in self._shards]
        known = [curve for curve in curves if curve is not None]
        return known if len(known) == len(curves) else None

    @property
    def curve(self) -> Curve | None:
        """The join's quality against its memory, divided between its shards in the best way."""
        curves = self.curves
        if curves is None:
            return None
        whole = of_earnings(together([c.hull() for c in curves])) if len(curves) > 1 else curves[0]
        if self.measure == RECALL:
            return whole
        quality = np.array([self._quality(curves, part) for part in whole.quality.tolist()])
        return Curve(whole.memory, quality, sum(math.sqrt(c.results) for c in curves))

    def predicted(self, shares: Sequence[float]) -> float | None:
        """Return the predicted quality of the join with these shares of its shards."""
        curves = self.curves
        if curves is None:
            return None
        kept = sum(c.at(s) * c.results for c, s in zip(curves, shares, strict=True))
        return self._quality(curves, _share_found(kept, curves))

    @property
    def measured(self) -> float | None:
        """The quality in the latest batches; None if the join had no memory yet."""
        curves = self.curves
        if curves is None or not any(shard.advance > 0 for shard in self._shards):
            return None
        found = sum(shard.worth / shard.advance for shard in self._shards if shard.advance > 0)
        return self._quality(curves, min(_share_found(found, curves), 1.0))

    def _quality(self, curves: Sequence[Curve], part: float) -> float:
        """Return the quality of a join whose shards together find this part of all results.

        The variances of samples add up, each as a part of the square of a shard's results. The
        error is the square root of their sum, over the sum of results.
        """
        if self.measure == RECALL:
            return part
        squares = sum(c.results for c in curves)
        results = sum(math.sqrt(c.results) for c in curves)
        missing = math.sqrt(max(1.0 - part, 0.0) * squares)
        return max(1.0 - missing / results, 0.0) if results else 1.0


def _share_found(found: float, curves: Sequence[Curve]) -> float:
    results = sum(curve.results for curve in curves)
    return found / results if results else 1.0
