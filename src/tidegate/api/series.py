"""Counters over time: one point for each batch that an engine was fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.engine.base import Engine
from tidegate.engine.counters import COUNTERS, FLOWS, MEASURES
from tidegate.engine.prepare import TIME

Counters = Mapping[str, int | float]

#: The most points of a series. Once there are so many, each two neighbours become one.
POINTS = 4_096


def added(one: Counters, other: Counters) -> dict[str, int | float]:
    """Add the events of two reports of an engine; the present state is that of the later one."""
    summed = {
        name: one.get(name, 0) + value
        for name, value in other.items()
        if name in FLOWS or name in MEASURES
    }
    return {**one, **other, **summed}


class Series:
    """The counters of an engine over time, in a bounded number of points."""

    def __init__(self) -> None:
        self._points: list[tuple[Any, dict[str, int | float]]] = []
        self._size = 1  # batches in a point
        self._batches = 0

    def add(self, inputs: Sequence[Sequence[pa.RecordBatch]], engine: Engine) -> None:
        """Add a batch that the engine was fed."""
        times = [b.column(TIME).to_numpy().max() for each in inputs for b in each if b.num_rows]
        taken = engine.take_counters()
        time = max(times).item() if times else None
        timeless = time is None or (self._points and self._points[-1][0] is None)
        if self._points and (timeless or self._batches % self._size):
            self._put_into_last(time, taken)
        else:
            self._points.append((time, dict(taken)))
        self._batches += 1
        if len(self._points) >= POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [(b[0], added(a[1], b[1])) for a, b in pairs]
            self._size *= 2

    def end(self, engine: Engine) -> None:
        """Add what the engine did at the end of the input."""
        self._put_into_last(None, engine.take_counters())

    def _put_into_last(self, time: Any, taken: Counters) -> None:
        before, counters = self._points[-1]
        self._points[-1] = (before if time is None else time, added(counters, taken))

    def total(self) -> dict[str, int | float]:
        """Return the counters of the whole run."""
        found: dict[str, int | float] = {}
        for _, counters in self._points:
            found = added(found, counters)
        return found

    def table(self) -> pa.Table:
        """Return the points as a table: the time, and a column for each counter."""
        names = [c.name for c in COUNTERS if any(c.name in taken for _, taken in self._points)]
        columns = {"time": [time for time, _ in self._points]}
        columns |= {name: [taken.get(name) for _, taken in self._points] for name in names}
        return pa.table(columns)
