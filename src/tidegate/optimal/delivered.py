"""Derive results from a plan: the pairs it delivers, the rows it sheds, and until when it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.optimal.sides import Sides, Spans, Whole
from tidegate.settings.columns import whole

SIDES = ("left", "right")


@dataclass(frozen=True)
class Delivered:
    """A plan for both sides, and what follows from it.

    Attributes
    ----------
    sides
        The streams.
    until
        For each row of a side, the last tick at which it is kept, or -1.
    admitted
        Whether only newcomers that are kept at their own tick join (`before-arrival`).
    """

    sides: Sides
    until: Sequence[Whole]
    admitted: bool = False

    def _spans(self) -> list[Spans]:
        """Return rows with the partners that find them in memory, or arrive with them."""
        kept = [np.flatnonzero(until >= 0) for until in self.until]
        spans = [self.sides.later(s, kept[s], self.until[s][kept[s]]) for s in range(2)]
        return [*spans, self.sides.together()]

    def pairs(self) -> Iterator[tuple[Whole, Whole]]:
        """Yield the delivered pairs, as rows of the left and of the right, in pieces."""
        left, right = self.sides.streams
        for spans in self._spans():
            for a, b in self.sides.pairs(spans):
                if not self.admitted:
                    yield a, b
                    continue
                # The later row, or both if they arrive together, must have been admitted.
                now = np.maximum(left.tick[a], right.tick[b])
                seen = (self.until[0][a] >= now) & (self.until[1][b] >= now)
                yield a[seen], b[seen]

    def totals(self) -> tuple[int, float]:
        """Return the number of results, and their importance."""
        if self.sides.where is None and not self.admitted and not self.sides.weighted:
            results = sum(int((s.high - s.low).sum()) for s in self._spans())
            return results, float(results)
        results, importance = 0, 0.0
        for left, right in self.pairs():
            results += len(left)
            importance += float(self.sides.worth(left, right).sum())
        return results, importance

    def missed(self) -> list[NDArray[np.bool_]]:
        """Return which rows left before their last result that counts."""
        found = []
        for s, stream in enumerate(self.sides.streams):
            other = self.sides.streams[1 - s]
            last = np.full(len(stream), -1, np.int64)
            spans = self.sides.later(s, np.arange(len(stream)), stream.expire - 1)
            if self.sides.where is None:
                some = spans.high > spans.low
                last[some] = other.tick[spans.high[some] - 1]
            else:
                for pair in self.sides.pairs(spans):
                    np.maximum.at(last, pair[s], other.tick[pair[1 - s]])
            found.append(last > self.until[s])
        return found

    def table(self) -> pa.Table:
        """Return the results: the left's columns, then the right's."""
        schema = self.sides.spec.result_schema
        batches = []
        for left, right in self.pairs():
            a, b = self.sides.rows(left, right)
            batches.append(pa.RecordBatch.from_arrays([*a.columns, *b.columns], schema=schema))
        return pa.Table.from_batches(batches, schema)

    def keep_until(self) -> pa.Table:
        """Return the side, the row number and the last time of every row that is kept."""
        times = self._times()
        names, numbers, ticks = [], [], []
        for s, stream in enumerate(self.sides.streams):
            kept = np.flatnonzero(self.until[s] >= 0)
            kept = kept[np.argsort(stream.number[kept])]
            names += [SIDES[s]] * len(kept)
            numbers.append(stream.number[kept])
            ticks.append(self.until[s][kept])
        return pa.table(
            {
                "side": pa.array(names, pa.string()),
                "row": np.concatenate(numbers),
                "keep_until": times.take(pa.array(np.concatenate(ticks))),
            }
        )

    def _times(self) -> pa.Array:
        """Return the time of each tick, in the type of the time columns; null if no row has it."""
        spec = self.sides.spec
        columns = [
            stream.rows.column(side.time)
            for stream, side in zip(self.sides.streams, spec.sides, strict=True)
        ]
        kind = _finer_type(columns[0].type, columns[1].type)
        both = whole(pa.chunked_array([c.cast(kind) for c in columns], kind))
        sample = np.zeros(len(self.sides.ticks), np.int64)
        at = np.concatenate([s.tick for s in self.sides.streams])
        sample[at] = np.arange(len(at))
        return both.take(pa.array(sample)) if len(at) else both

    def shed(self) -> pa.Table:
        """Return the rows that left early, in the form of `Result.shed`."""
        parts, missed = [], self.missed()
        for s, stream in enumerate(self.sides.streams):
            gone = np.flatnonzero(missed[s])
            gone = gone[np.argsort(stream.number[gone])]
            until = self.until[s][gone]
            rows = stream.rows.take(pa.array(gone))
            columns = {
                "side": pa.array([SIDES[s]] * len(gone), pa.string()),
                "shed_at": self.sides.ticks[np.where(until >= 0, until, stream.tick[gone])],
                "why": pa.array(np.where(until >= 0, "shed", "rejected"), pa.string()),
            }
            structs = [
                pa.nulls(len(gone), pa.struct(list(side.schema)))
                if at != s
                else pa.StructArray.from_arrays(rows.columns, fields=list(side.schema))
                for at, side in enumerate(self.sides.spec.sides)
            ]
            parts.append(pa.table(columns | dict(zip(SIDES, structs, strict=True))))
        return pa.concat_tables(parts)


def _finer_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return a type that holds the times of both sides."""
    if left == right:
        return left
    if pa.types.is_timestamp(left):
        finest = max(left.unit, right.unit, key=["s", "ms", "us", "ns"].index)
        return pa.timestamp(finest, left.tz)
    if pa.types.is_integer(left):
        return pa.int64()
    if pa.types.is_decimal(left):
        return pa.decimal128(38, max(left.scale, right.scale))
    return pa.float64() if pa.types.is_floating(left) else pa.date64()
