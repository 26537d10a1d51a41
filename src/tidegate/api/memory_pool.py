"""`tidegate.MemoryPool`: one memory budget for several joins."""

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
#: The number of points of a curve that are shown.
_POINTS = 8


class MemoryPool(PoolController):
    """One memory budget for several joins of a Spark application, divided as streams change.

    Every shard of every join runs small shadow joins with other budgets on a sample of its streams,
    and reports their recall with its counters; a sampled join reports its expected error. After
    every few batches the pool divides the memory by these reports, and sends new budgets through a
    control source: a folder that each query reads in addition to its inputs. A replay after a crash
    therefore applies the same budgets at the same offsets. A join that shrinks sheds its least
    valuable rows immediately; a sampled join is thinned at random. A join that grows waits until
    another has confirmed that it holds less, so that the total never exceeds the memory.

    Parameters
    ----------
    memory
        The budget of all joins together: rows, or a size such as ``"64 MB"``. Shadow joins need
        extra memory: at most 32,768 rows each, without their payload.
    folder
        The folder for budget updates, which only this pool uses and which the driver and all
        executors can read. With this folder and its checkpoint, a restarted query continues with
        its budget. None uses a temporary folder that is deleted with the process, for queries that
        are never restarted.
    objective
        ``"min"`` maximises the smallest recall / weight of any join (ALLOC). ``"sum"`` maximises
        the number of results, each counted with the weight of its join. For a sampled join,
        1 - error takes the place of recall.
    every
        The number of batches of each join between two divisions of the memory.

    Examples
    --------
    >>> import tidegate as tg
    >>> pool = tg.MemoryPool(memory=100_000)
    >>> bids = pool.share("bids", weight=2)
    >>> alarms = pool.share("alarms")

    Joins of Spark DataFrames take the shares: ``tg.join(..., memory=bids)`` and
    ``tg.star_join(..., memory=alarms)``.

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
        """Report the budget and recall of each join, and the recall that more memory would give."""
        standings = tuple(self.standing(name) for name in self.joins)
        return Explanation(self.size, self.in_bytes, self.objective, standings, self.leaving)


@dataclass(frozen=True)
class Explanation:
    """A report on how a pool divides its memory: as text, `json` and `plot`."""

    memory: int
    in_bytes: bool
    objective: str
    joins: tuple[Standing, ...]
    leaving: dict[str, int]

    def json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {
            "memory": self.memory,
            "unit": "bytes" if self.in_bytes else "rows",
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
        """Return a megabyte in the unit of the pool; None while no rows are held."""
        if self.in_bytes:
            return float(_MEGABYTE)
        return _MEGABYTE / standing.row_bytes if standing.row_bytes else None

    def __str__(self) -> str:
        unit = "bytes" if self.in_bytes else "rows"
        best = "least recall / weight" if self.objective == "min" else "weighted results"
        lines = [f"{whole(self.memory)} {unit} for {len(self.joins)} joins, for the best {best}"]
        for standing in self.joins:
            row = self._row(standing)
            lines.append(
                f"{standing.name} (weight {standing.weight:g}): {_state(standing, unit)}; "
                f"{whole(row['share'])} {unit}"
                + (f" in shards of {row['shards']}" if len(standing.share) > 1 else "")
                + f", of which {whole(standing.held)} rows are held"
            )
            lines += _said(standing, row)
        lines += [
            f"{name}: removed, and may hold {whole(most)} {unit} until its query takes its next "
            "batch, or ends"
            for name, most in self.leaving.items()
        ]
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the recall curves of all joins and their current points as PNG."""
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
    """Describe the state of a join, and the memory that it waits for."""
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
    """Describe the recall of a join, or the error of a sampled join."""
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
