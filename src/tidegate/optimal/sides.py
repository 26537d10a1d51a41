"""The two streams as arrays: ticks, windows in ticks, and which rows can join."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.payload import one_batch
from tidegate.engine.prepare import KEY, PREPARED, TIME, prepare
from tidegate.joins.window.spec import COMBINE, WindowJoin
from tidegate.settings.columns import as_floats
from tidegate.settings.schedules import Schedule, Side
from tidegate.sql.conditions import PairValue, Predicate

Whole = NDArray[np.int64]

#: The number of pairs processed at a time.
_PAIRS = 1 << 20


class Spans(NamedTuple):
    """Rows of one side, each with a range of the other side's rows."""

    side: int
    rows: Whole
    low: Whole
    high: Whole


@dataclass(frozen=True)
class Stream:
    """One side's rows, sorted by key and tick.

    Attributes
    ----------
    rows
        The rows with the columns of the input.
    number
        Their row numbers in the input.
    key, tick, expire
        The number of the key, the tick of the arrival and the first tick after the window.
    weight
        The importance, or None.
    """

    rows: pa.RecordBatch
    number: Whole
    key: Whole
    tick: Whole
    expire: Whole
    weight: NDArray[np.float64] | None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.tick)


@dataclass(frozen=True)
class Sides:
    """Both streams on one timeline.

    Attributes
    ----------
    spec
        The join.
    streams
        The left's rows and the right's.
    ticks
        The time of each tick.
    counted
        The first tick whose results count.
    where
        The condition on pairs besides equal keys, or None.
    value
        What a pair is worth, if that is not its importance, or None.
    dropped
        The number of rows that can never join, by reason.
    """

    spec: WindowJoin
    streams: tuple[Stream, Stream]
    ticks: NDArray[Any]
    counted: int
    where: Predicate | None
    value: PairValue | None
    dropped: dict[str, int]

    @property
    def weighted(self) -> bool:
        """True if results have an importance or a value."""
        return self.value is not None or self.streams[0].weight is not None

    def find(self, side: int, key: Whole, tick: Whole, how: Literal["left", "right"]) -> Whole:
        """Return the positions of a key and tick among a side's rows, or where they would be."""
        stream, ticks = self.streams[side], len(self.ticks) + 1
        place = stream.key * ticks + stream.tick
        return np.searchsorted(place, key * ticks + tick, how)

    def later(self, side: int, rows: Whole, until: Whole) -> Spans:
        """Return the other side's rows that arrive after these, by the tick `until`, and count."""
        stream = self.streams[side]
        key = stream.key[rows]
        first = np.maximum(stream.tick[rows] + 1, self.counted)
        low = self.find(1 - side, key, first, "left")
        high = self.find(1 - side, key, until, "right")
        return Spans(side, rows, low, np.maximum(low, high))

    def together(self) -> Spans:
        """Return the right's rows that arrive at the same tick as the left's, and count."""
        left = self.streams[0]
        rows = np.flatnonzero(left.tick >= self.counted)
        key, tick = left.key[rows], left.tick[rows]
        return Spans(0, rows, self.find(1, key, tick, "left"), self.find(1, key, tick, "right"))

    def pairs(self, spans: Spans) -> Iterator[tuple[Whole, Whole]]:
        """Yield the pairs of spans that fulfil the predicate: left's rows, right's rows."""
        sizes = spans.high - spans.low
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        for start in range(0, total, _PAIRS):
            at = np.arange(start, min(start + _PAIRS, total))
            span = np.searchsorted(ends, at, "right")
            own = spans.rows[span]
            other = spans.low[span] + at - (ends[span] - sizes[span])
            left, right = (own, other) if spans.side == 0 else (other, own)
            if self.where is not None:
                kept = self.where.mask(*self.rows(left, right))
                left, right = left[kept], right[kept]
            yield left, right

    def rows(self, left: Whole, right: Whole) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return rows of both sides with the columns of the inputs."""
        a, b = (
            one_batch(pa.Table.from_batches([s.rows]).take(pa.array(at)))
            for s, at in zip(self.streams, (left, right), strict=True)
        )
        return a, b

    def worth(self, left: Whole, right: Whole) -> NDArray[np.float64]:
        """Return the value or the importance of pairs; 1 without either."""
        if self.value is not None:
            return self._values(self.value, left, right)
        a, b = (s.weight for s in self.streams)
        if a is None or b is None:
            return np.ones(len(left))
        combined: NDArray[np.float64] = COMBINE[self.spec.combine](a[left], b[right])
        return combined

    def _values(self, value: PairValue, left: Whole, right: Whole) -> NDArray[np.float64]:
        """Return the values of pairs, which must be finite."""
        values = value.of(*self.rows(left, right))
        good = np.isfinite(values)
        if not good.all():
            bad = int(np.argmin(good))
            numbers = [
                int(s.number[at[bad]]) for s, at in zip(self.streams, (left, right), strict=True)
            ]
            raise value.refused(float(values[bad]), *numbers)
        return values


def read(
    spec: WindowJoin,
    tables: Sequence[pa.RecordBatch],
    changes: NDArray[Any],
    value: str | None = None,
) -> Sides:
    """Put both inputs on one timeline that includes the times at which the memory changes."""
    batches, dropped = [], {"null_times": 0, "null_keys": 0}
    for side, table in zip(spec.sides, tables, strict=True):
        numbered = table.append_column("row", pa.array(np.arange(table.num_rows)))
        batch, lost = prepare(side, spec.unit, numbered)
        batches.append(batch)
        dropped = {name: dropped[name] + lost[name] for name in dropped}
    times = [b.column(TIME).to_numpy() for b in batches]
    _, codes = np.unique(
        np.concatenate([b.column(KEY).to_numpy() for b in batches]), return_inverse=True
    )
    seen = np.unique(np.concatenate(times))
    if len(seen):
        inside = changes[(changes > seen[0]) & (changes < seen[-1])]
        seen = np.unique(np.concatenate([seen, inside.astype(seen.dtype)]))
    keys = np.split(codes.astype(np.int64), [len(times[0])])
    streams = []
    for at, side in enumerate(spec.sides):
        tick = np.searchsorted(seen, times[at])
        order = np.lexsort((tick, keys[at]))
        rows = batches[at].take(pa.array(order))
        expire = _expire(at, seen, times[at], side.windows)
        streams.append(
            Stream(
                rows=pa.RecordBatch.from_arrays(rows.columns[PREPARED:-1], schema=side.schema),
                number=rows.columns[-1].to_numpy(),
                key=keys[at][order],
                tick=tick[order],
                expire=expire[order],
                weight=_weight(side, rows),
            )
        )
    counted = 0 if spec.count_from is None else int(np.searchsorted(seen, spec.count_from))
    schemas = spec.left.schema, spec.right.schema
    where = None if spec.where is None else Predicate(spec.where, *schemas)
    worth = None if value is None else PairValue(value, *schemas)
    return Sides(spec, (streams[0], streams[1]), seen, counted, where, worth, dropped)


def _expire(side: int, ticks: NDArray[Any], times: NDArray[Any], steps: Schedule) -> Whole:
    """Return the first tick after each row's window, which is the window at the row's own time."""
    expire = np.full(len(times), len(ticks), np.int64)
    for at, step in enumerate(steps):
        mine = np.ones(len(times), np.bool_) if at == 0 else times >= step.start
        if step.value is None:
            expire[mine] = len(ticks)
        elif side == 0:
            expire[mine] = np.searchsorted(ticks, times[mine] + step.value)
        else:
            # Subtract, as the engine does: with real numbers, rounding would differ.
            expire[mine] = np.searchsorted(ticks - step.value, times[mine])
    return expire


def _weight(side: Side, rows: pa.RecordBatch) -> NDArray[np.float64] | None:
    """Return a side's importance, or None."""
    if side.importance is None:
        return None
    return as_floats(rows.columns[PREPARED + side.schema.get_field_index(side.importance)])
