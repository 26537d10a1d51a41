"""The two streams as arrays: ticks, windows in ticks, and who can meet whom."""

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
from tidegate.settings.schedules import Schedule
from tidegate.settings.side import Side
from tidegate.sql.conditions import Predicate

Whole = NDArray[np.int64]

#: Pairs looked at in one go.
_PAIRS = 1 << 20


class Spans(NamedTuple):
    """Tuples of one side, each with a run of the other's."""

    side: int
    tuples: Whole
    low: Whole
    high: Whole


@dataclass(frozen=True)
class Stream:
    """One side's tuples, in order of key and tick.

    Attributes
    ----------
    rows
        The tuples themselves.
    number
        Their row numbers in the input.
    key, tick, expire
        The number of the key, the tick of the arrival and the first tick out of the window.
    weight
        The importance, where one was asked for.
    """

    rows: pa.RecordBatch
    number: Whole
    key: Whole
    tick: Whole
    expire: Whole
    weight: NDArray[np.float64] | None

    def __len__(self) -> int:
        """How many tuples there are."""
        return len(self.tick)


@dataclass(frozen=True)
class Sides:
    """Both streams over one timeline.

    Attributes
    ----------
    spec
        The join.
    streams
        The left's tuples and the right's.
    ticks
        The time of each tick.
    counted
        The first tick whose results count.
    where
        What pairs must fulfil besides equal keys.
    dropped
        How many rows can never join, and why.
    """

    spec: WindowJoin
    streams: tuple[Stream, Stream]
    ticks: NDArray[Any]
    counted: int
    where: Predicate | None
    dropped: dict[str, int]

    @property
    def weighted(self) -> bool:
        """Whether results have an importance."""
        return self.streams[0].weight is not None

    def find(self, side: int, key: Whole, tick: Whole, how: Literal["left", "right"]) -> Whole:
        """Where tuples of a side with this key and this tick stand, or would."""
        stream, ticks = self.streams[side], len(self.ticks) + 1
        place = stream.key * ticks + stream.tick
        return np.searchsorted(place, key * ticks + tick, how)

    def later(self, side: int, tuples: Whole, until: Whole) -> Spans:
        """The other side's tuples that come after these, up to the tick `until`, and count."""
        stream = self.streams[side]
        key = stream.key[tuples]
        first = np.maximum(stream.tick[tuples] + 1, self.counted)
        low = self.find(1 - side, key, first, "left")
        high = self.find(1 - side, key, until, "right")
        return Spans(side, tuples, low, np.maximum(low, high))

    def together(self) -> Spans:
        """The right's tuples that come with the left's, and count."""
        left = self.streams[0]
        tuples = np.flatnonzero(left.tick >= self.counted)
        key, tick = left.key[tuples], left.tick[tuples]
        return Spans(0, tuples, self.find(1, key, tick, "left"), self.find(1, key, tick, "right"))

    def pairs(self, spans: Spans) -> Iterator[tuple[Whole, Whole]]:
        """The pairs of spans that fulfil the predicate: left's tuples, right's tuples."""
        sizes = spans.high - spans.low
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        for start in range(0, total, _PAIRS):
            at = np.arange(start, min(start + _PAIRS, total))
            span = np.searchsorted(ends, at, "right")
            own = spans.tuples[span]
            other = spans.low[span] + at - (ends[span] - sizes[span])
            left, right = (own, other) if spans.side == 0 else (other, own)
            if self.where is not None:
                kept = self.where.mask(*self.rows(left, right))
                left, right = left[kept], right[kept]
            yield left, right

    def rows(self, left: Whole, right: Whole) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Tuples as rows with the columns of the inputs."""
        a, b = (
            one_batch(pa.Table.from_batches([s.rows]).take(pa.array(at)))
            for s, at in zip(self.streams, (left, right), strict=True)
        )
        return a, b

    def worth(self, left: Whole, right: Whole) -> NDArray[np.float64]:
        """The importance of pairs; 1 where none was asked for."""
        a, b = (s.weight for s in self.streams)
        if a is None or b is None:
            return np.ones(len(left))
        combined: NDArray[np.float64] = COMBINE[self.spec.combine](a[left], b[right])
        return combined


def read(
    spec: WindowJoin,
    tables: Sequence[pa.RecordBatch],
    changes: NDArray[Any],
    count_from: int | float | None,
) -> Sides:
    """Put both inputs on one timeline, which also has the times at which the memory changes."""
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
    counted = 0 if count_from is None else int(np.searchsorted(seen, count_from))
    where = None
    if spec.where is not None:
        where = Predicate(spec.where, spec.left.schema, spec.right.schema)
    return Sides(spec, (streams[0], streams[1]), seen, counted, where, dropped)


def _expire(side: int, ticks: NDArray[Any], times: NDArray[Any], steps: Schedule) -> Whole:
    """The first tick out of each tuple's window, which is the one in force at its own time."""
    expire = np.full(len(times), len(ticks), np.int64)
    for at, step in enumerate(steps):
        mine = np.ones(len(times), np.bool_) if at == 0 else times >= step.start
        if step.value is None:
            expire[mine] = len(ticks)
        elif side == 0:
            expire[mine] = np.searchsorted(ticks, times[mine] + step.value)
        else:
            # As the engine has it: with real numbers, rounding differs between the two.
            expire[mine] = np.searchsorted(ticks - step.value, times[mine])
    return expire


def _weight(side: Side, rows: pa.RecordBatch) -> NDArray[np.float64] | None:
    """A side's importance, where one was asked for."""
    if side.importance is None:
        return None
    return as_floats(rows.columns[PREPARED + side.schema.get_field_index(side.importance)])
