"""`tidegate.MemoryPool`: one memory for several joins, and what it says of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.errors import TidegateError
from tidegate.pool.reports import ACCURACY
from tidegate.report.plots import recall_against_memory
from tidegate.report.tables import percent, whole
from tidegate.spark.pool_controller import PoolController, Standing

_MEGABYTE = 1_000_000
#: Points of a curve that are shown.
_POINTS = 8


class MemoryPool(PoolController):
    """One memory for several joins of a Spark application, divided as their streams change.

    ::

        pool = tg.MemoryPool(memory=100_000, folder="/srv/pool")
        bids = tg.join(..., memory=pool.share("bids", weight=2))
        alarms = tg.star_join(..., memory=pool.share("alarms"))
        sample = tg.sample_join(..., memory=pool.share("sample"))

    Every shard of every join runs small copies of itself with other memories, over a sample of its
    streams, and reports what they find with its counters; a sample reports what its models expect
    it to be off by. Every so many batches the pool divides
    the memory by that, and sends new shares through a control source: a folder that each query
    reads beside its inputs, so that a replay after a crash follows the same orders at the same
    offsets. A join that gets less sheds its least valuable tuples at once, a sample is thinned by
    lot; who gets more does so once another has said that it holds less, so that all together are
    never above the memory.

    Parameters
    ----------
    memory
        For all joins together: tuples, or a size such as ``"64 MB"``. The small copies come on
        top, 32,768 tuples each at the most, without their payload.
    folder
        Where orders are kept: a path that driver and executors see, of the pool's own. With it and
        its checkpoint a query goes on with the shares that it had. Without, a folder of this
        machine that is gone with the process: for queries that are never started again.
    objective
        ``"min"``: no join does badly, the least of recall / weight is the largest there is (ALLOC).
        ``"sum"``: the most results, each counted by its join's weight. What recall is to a join,
        one less its error is to a sample.
    every
        After how many batches of each join the memory is divided anew.

    References
    ----------
    Srivastava, Widom, *Memory-Limited Execution of Windowed Stream Joins*, section 5.
    """

    def __init__(
        self,
        *,
        memory: int | str,
        folder: str | os.PathLike[str] | None = None,
        objective: str = "min",
        every: int = 4,
    ) -> None:
        super().__init__(memory=memory, folder=folder, objective=objective, every=every)

    def explain(self) -> Explanation:
        """Say of each join what it has, what that finds, and what more would bring."""
        standings = tuple(self.standing(name) for name in self.joins)
        return Explanation(self.size, self.in_bytes, self.objective, standings, self.leaving)


@dataclass(frozen=True)
class Explanation:
    """What a pool has made of its memory; as text, `json` and `plot`."""

    memory: int
    in_bytes: bool
    objective: str
    joins: tuple[Standing, ...]
    leaving: dict[str, int]

    def json(self) -> dict[str, Any]:
        """All of it, as plain values."""
        return {
            "memory": self.memory,
            "unit": "bytes" if self.in_bytes else "tuples",
            "objective": self.objective,
            "joins": {each.name: self._row(each) for each in self.joins},
            "leaving": self.leaving,
        }

    def _row(self, standing: Standing) -> dict[str, Any]:
        curve = standing.curve
        share = sum(standing.share)
        row: dict[str, Any] = {
            "weight": standing.weight,
            "state": str(standing.state),
            "kept": standing.kept,
            "missing": standing.missing,
            "waits_for": list(standing.waits_for),
            "share": share,
            "shards": list(standing.share),
            "allowed": sum(standing.allowed),
            "held": standing.held,
            "measure": standing.measure,
            "predicted": standing.predicted,
            "measured": standing.measured,
            "curve": None,
            "one_megabyte_more": None,
        }
        if curve is not None:
            points = [self.memory * step / _POINTS for step in range(_POINTS + 1)]
            row["curve"] = [[m, curve.at(m)] for m in points]
            more = self._more(standing)
            if more is not None:
                gain = curve.at(share + more) - curve.at(share)
                results = gain * curve.results
                row["one_megabyte_more"] = {
                    standing.measure: gain,
                    "results_per_second": results,
                }
        return row

    def _more(self, standing: Standing) -> float | None:
        """A megabyte in the pool's unit; unknown while nothing is held."""
        if self.in_bytes:
            return float(_MEGABYTE)
        return _MEGABYTE / standing.tuple_bytes if standing.tuple_bytes else None

    def __str__(self) -> str:
        unit = "bytes" if self.in_bytes else "tuples"
        best = "least recall / weight" if self.objective == "min" else "weighted results"
        lines = [f"{whole(self.memory)} {unit} for {len(self.joins)} joins, for the best {best}"]
        for standing in self.joins:
            row = self._row(standing)
            lines.append(
                f"{standing.name} (weight {standing.weight:g}): {_state(standing, unit)}; "
                f"{whole(row['share'])} {unit}"
                + (f" in shards of {row['shards']}" if len(standing.share) > 1 else "")
                + f", of which {whole(standing.held)} tuples are held"
            )
            lines += _said(standing, row)
        lines += [
            f"{name}: removed, and may hold {whole(most)} {unit} until its query takes its next "
            "batch, or ends"
            for name, most in self.leaving.items()
        ]
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the curves of all joins, with where they are, as PNG."""
        known = [each for each in self.joins if each.curve is not None]
        if not known:
            raise TidegateError(
                "there is nothing to plot yet: a join's curve is known once a window has passed; "
                "str() of the explanation says how far each join is"
            )
        series, points = {}, {}
        for each in known:
            assert each.curve is not None
            steps = [0.5**step for step in range(6, -1, -1)]
            series[each.name] = [(step, each.curve.at(step * self.memory)) for step in steps]
            if each.measured is not None and any(each.share):
                points[f"{each.name}, measured"] = (sum(each.share) / self.memory, each.measured)
        picture = recall_against_memory(
            series, title="Joins of a pool", unit="share of the pool", points=points
        )
        Path(path).write_bytes(picture)


def _state(standing: Standing, unit: str) -> str:
    """Whether a join runs, and why it has less than it should."""
    said = str(standing.state)
    if standing.kept:
        said += (
            f", with {whole(standing.kept)} {unit} kept for the batch that it may have to do again "
            f"when it is started; remove it to give them to others"
        )
    if standing.missing:
        said += f", waits for {whole(standing.missing)} more {unit}"
        if standing.waits_for:
            said += " from " + ", ".join(standing.waits_for)
    return said


def _said(standing: Standing, row: dict[str, Any]) -> list[str]:
    """What is known of a join, in words: of a sample, its error."""
    is_sample = standing.measure == ACCURACY
    name, sign = ("error", -1.0) if is_sample else ("recall", 1.0)

    def shown(quality: float) -> str:
        return percent(1.0 - quality if is_sample else quality)

    if standing.curve is None:
        return ["  not known yet: a window has to pass first"]
    told = "not measured yet"
    if standing.measured is not None:
        told = f"{shown(standing.measured)} measured"
        if row["allowed"] != row["share"]:
            told += f" with {whole(row['allowed'])}"
    if standing.predicted is not None:
        told += f", {shown(standing.predicted)} predicted"
    lines = [
        f"  {name} {told}" + (", of a count over a window" if is_sample else ""),
        f"  {name} by memory: "
        + ", ".join(f"{whole(m)}: {shown(quality)}" for m, quality in row["curve"][1:]),
    ]
    more = row["one_megabyte_more"]
    if more is not None:
        points = f"{100 * sign * more[standing.measure]:+.1f} points of {name}"
        found = f", {more['results_per_second']:+,.1f} results in a unit of time"
        lines.append(f"  one more megabyte: {points}" + ("" if is_sample else found))
    return lines
