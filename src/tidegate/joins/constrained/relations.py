"""Relations of CQL that change with time: the rows of windows, and of queries inside queries.

A row of a relation is in it for an interval of time. Every operation maps rows with intervals to
rows with intervals: a join intersects those of its rows, a group has a row from one change to the
next. So a relation over a span of time follows from the rows of its windows in that span, and
nothing else is kept from batch to batch (CQL's relations; section 9 of Babu, Srivastava, Widom).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.exact_sums import Changes
from tidegate.engine.payload import one_batch
from tidegate.errors import TidegateError
from tidegate.joins.constrained.aggregates import totals
from tidegate.joins.constrained.layout import NEVER
from tidegate.settings.columns import hash_columns, numbered
from tidegate.sql.conditions import Filter
from tidegate.sql.cql_query import aggregate_type
from tidegate.sql.expressions import Output, Outputs


class Arrived(NamedTuple):
    """Rows of a stream in the order of time, the times of them, and when they are deleted.

    A deletion is a row, too, which is never in a relation.
    """

    rows: pa.RecordBatch
    time: NDArray[np.int64]
    deleted: NDArray[np.int64]

    def before(self, time: int) -> Arrived:
        """Return the rows before a time."""
        known = int(np.searchsorted(self.time, time))
        return Arrived(self.rows.slice(0, known), self.time[:known], self.deleted[:known])


class Rows(NamedTuple):
    """Rows of a relation, each from its start until before its stop."""

    rows: pa.RecordBatch
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    def take(self, at: NDArray[Any]) -> Rows:
        """Return some of the rows."""
        chosen = pa.array(at)
        rows = self.rows.filter(chosen) if at.dtype == np.bool_ else self.rows.take(chosen)
        return Rows(rows, self.start[at], self.stop[at])


def deletions(
    rows: pa.RecordBatch, time: NDArray[np.int64], is_deletion: NDArray[np.bool_], settled: int
) -> NDArray[np.int64]:
    """Return when each row is deleted: the first of equal rows first.

    For a deletion this is the time at which it may be forgotten, with its row. A deletion before
    `settled` has to have a row.
    """
    code, _ = numbered(list(rows.columns), rows.num_rows)
    order = np.lexsort((np.arange(len(code)), is_deletion, code))
    one, other = (order[is_deletion[order] == sign] for sign in (False, True))
    # The n-th deletion of a row is of its n-th insertion.
    nth = [_nth(code[part]) for part in (one, other)]
    at = np.searchsorted(code[one], code[other]) + nth[1]
    there = at < len(one)
    there[there] = code[one[at[there]]] == code[other[there]]
    there[there] &= time[one[at[there]]] <= time[other[there]]
    wrong = other[~there & (time[other] < settled)]
    if len(wrong):
        raise TidegateError(
            f"a row is deleted that is not there: {rows.slice(int(wrong[0]), 1).to_pylist()[0]}; a "
            "deletion has the columns of its row, except for the time"
        )
    deleted = np.full(len(code), NEVER, np.int64)
    deleted[one[at[there]]] = time[other[there]]
    deleted[is_deletion] = time[is_deletion]
    return deleted


def _nth(code: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each element among equal ones, which stand together."""
    news = np.append(True, code[1:] != code[:-1])[: len(code)]
    begins = np.maximum.accumulate(np.where(news, np.arange(len(code)), 0))
    found: NDArray[np.int64] = np.arange(len(code)) - begins
    return found


@dataclass(frozen=True)
class Window:
    """The rows of a stream that its window holds.

    Attributes
    ----------
    stream
        The number of the stream.
    length
        The length of a window in time.
    count, by
        The number of rows in a window of rows, and the column that parts have in common.
    """

    stream: int
    length: int | None = None
    count: int | None = None
    by: str | None = None

    def until(self, arrived: Arrived) -> NDArray[np.int64]:
        """Return when each row leaves the window, as far as this is known."""
        until = arrived.deleted
        if self.length is not None:
            until = arrived.time + self.length
        if self.count is not None:
            part = np.zeros(len(until), np.uint64)
            if self.by is not None:
                part = hash_columns([arrived.rows.column(self.by)], len(until))
            order = np.argsort(part, kind="stable")
            one, later = order[: -self.count], order[self.count :]
            same = part[one] == part[later]
            until = until.copy()
            until[one[same]] = arrived.time[later[same]]
        return until

    def rows(self, streams: Sequence[Arrived], start: int, stop: int) -> Rows:
        """Return the rows in a span of time."""
        arrived = streams[self.stream].before(stop)
        until = self.until(arrived)
        found = Rows(arrived.rows, np.maximum(arrived.time, start), np.minimum(until, stop))
        return found.take(found.start < found.stop)


@dataclass(frozen=True)
class Block:
    """A query over relations.

    Attributes
    ----------
    sources
        The relations, and the condition that rows of each have to meet.
    joins
        For each relation but the first: its number, and pairs of its columns with columns that are
        joined before, which have names such as ``0.a``.
    items
        Columns and aggregates of them: name, aggregate, column.
    groups
        Columns to group by; None if rows are not grouped.
    """

    sources: tuple[tuple[Window | Block, str, str | None], ...]
    joins: tuple[tuple[int, tuple[tuple[str, str], ...]], ...]
    items: tuple[tuple[str, str | None, str | None], ...]
    groups: tuple[str, ...] | None
    outputs: tuple[Output, ...]
    having: str | None
    distinct: bool
    schema: pa.Schema

    def windows(self) -> list[Window]:
        """Return the windows of this query and of those inside."""
        inside = [[s] if isinstance(s, Window) else s.windows() for s, _, _ in self.sources]
        return [window for windows in inside for window in windows]

    def rows(self, streams: Sequence[Arrived], start: int, stop: int) -> Rows:
        """Return the rows in a span of time."""
        found = self._source(0, streams, start, stop)
        for at, pairs in self.joins:
            found = _joined(found, self._source(at, streams, start, stop), pairs)
        if self.groups is None:
            columns = [found.rows.column(str(column)) for _, _, column in self.items]
            names = [name for name, _, _ in self.items]
            found = found._replace(rows=_batch(columns, names, found.rows.num_rows))
        else:
            found = _grouped(found, self.groups, self.items, stop)
        outputs = Outputs(found.rows.schema, self.outputs, self.having)
        kept = outputs.met(found.rows)
        found = found if kept is None else found.take(kept)
        computed = outputs.computed(found.rows)
        found = found._replace(
            rows=pa.RecordBatch.from_arrays(computed.columns, schema=self.schema)
        )
        if self.distinct:
            every = tuple(self.schema.names)
            found = _grouped(found, every, tuple((n, None, n) for n in every), stop)
        return found

    def _source(self, at: int, streams: Sequence[Arrived], start: int, stop: int) -> Rows:
        """Return the rows of a source, whose columns get its number."""
        source, name, where = self.sources[at]
        found = source.rows(streams, start, stop)
        if where is not None:
            found = found.take(Filter(where, found.rows.schema, name).passing(found.rows))
        return found._replace(
            rows=found.rows.rename_columns([f"{at}.{n}" for n in found.rows.schema.names])
        )


def _batch(columns: Sequence[pa.Array], names: Sequence[str], rows: int) -> pa.RecordBatch:
    if not columns:
        return pa.record_batch([pa.nulls(rows)], [""])
    return pa.RecordBatch.from_arrays(list(columns), list(names))


def _joined(one: Rows, other: Rows, pairs: Sequence[tuple[str, str]]) -> Rows:
    """Join two relations; a row of the result is in it while both of its rows are."""
    n, m = one.rows.num_rows, other.rows.num_rows
    keys = [
        pa.concat_arrays([one.rows.column(theirs), other.rows.column(mine)])
        for mine, theirs in pairs
    ]
    code, _ = numbered(keys, n + m)
    good = np.ones(n + m, np.bool_)
    for key in keys:
        good &= key.is_valid().to_numpy(zero_copy_only=False)
    left, right = np.flatnonzero(good[:n]), np.flatnonzero(good[n:])
    right = right[np.argsort(code[n:][right], kind="stable")]
    sorted_code = code[n:][right]
    first = np.searchsorted(sorted_code, code[:n][left])
    count = np.searchsorted(sorted_code, code[:n][left], side="right") - first
    a = np.repeat(left, count)
    offset = np.arange(len(a)) - np.repeat(np.cumsum(count) - count, count)
    b = right[np.repeat(first, count) + offset]
    start, stop = np.maximum(one.start[a], other.start[b]), np.minimum(one.stop[a], other.stop[b])
    there = start < stop
    a, b = a[there], b[there]
    columns = [*one.rows.take(pa.array(a)).columns, *other.rows.take(pa.array(b)).columns]
    names = [*one.rows.schema.names, *other.rows.schema.names]
    return Rows(_batch(columns, names, len(a)), start[there], stop[there])


def _grouped(
    given: Rows,
    groups: Sequence[str],
    items: Sequence[tuple[str, str | None, str | None]],
    end: int,
) -> Rows:
    """Return a row for each group, from one change of it to the next."""
    n = given.rows.num_rows
    goes = np.flatnonzero(given.stop < end)
    row = np.concatenate([np.arange(n), goes])
    sign = np.repeat([1, -1], [n, len(goes)])
    when = np.concatenate([given.start, given.stop[goes]])
    of, first = numbered([given.rows.column(name) for name in groups], n)
    group = of[row]
    order = np.lexsort((when, group))
    row, sign, when, group = row[order], sign[order], when[order], group[order]
    news = np.append(True, group[1:] != group[:-1])[: len(group)]
    told = np.flatnonzero(np.append((when[1:] != when[:-1]) | news[1:], True)[: len(group)])
    begins = np.maximum.accumulate(np.where(news, np.arange(len(group)), 0))[told]
    changes = Changes(sign, begins, told)
    there = changes.sums(np.ones(len(row), np.int64)) > 0
    stop = np.append(when[told][1:], end)
    stop[np.append(group[told][1:] != group[told][:-1], True)[: len(told)]] = end
    columns: list[pa.Array] = []
    for name, function, column in items:
        if function is None:
            columns.append(given.rows.column(str(column)).take(pa.array(first[group[told]])))
            continue
        taken = None if column is None else given.rows.column(column).take(pa.array(row))
        if n == 0:
            kind = pa.int64() if taken is None else aggregate_type(function, taken.type)
            columns.append(pa.array([], kind))
            continue
        total = totals(taken, function, row, group, changes)
        if total is None:
            raise TidegateError(
                f"{name} has become larger than its type can hold; cast the column to a decimal of "
                "more digits or to a floating point number, or take shorter windows"
            )
        columns.append(total)
    whole = _batch([_plain(c) for c in columns], [name for name, _, _ in items], len(told))
    return Rows(whole, when[told], stop[: len(told)]).take(there)


def _plain(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def differences(found: Rows, start: int, stop: int) -> tuple[pa.RecordBatch, Any, Any]:
    """Return the rows that a relation gains or loses in a span of time, when, and how many.

    A row that one interval loses when another gains it has not changed.
    """
    n = found.rows.num_rows
    comes, goes = np.flatnonzero(found.start > start), np.flatnonzero(found.stop < stop)
    row = np.concatenate([comes, goes])
    when = np.concatenate([found.start[comes], found.stop[goes]])
    sign = np.repeat([1, -1], [len(comes), len(goes)])
    code, _ = numbered(list(found.rows.columns), n)
    order = np.lexsort((code[row], when))
    row, when, sign = row[order], when[order], sign[order]
    begins = np.flatnonzero(
        np.append(True, (when[1:] != when[:-1]) | (code[row][1:] != code[row][:-1]))[: len(row)]
    )
    net = np.add.reduceat(sign, begins) if len(begins) else np.empty(0, np.int64)
    row, when = row[begins], when[begins]
    # Of one time, rows that go come first.
    order = np.lexsort((net > 0, when))
    order = order[net[order] != 0]
    times = np.abs(net[order])
    return (
        one_batch(pa.Table.from_batches([found.rows])).take(pa.array(np.repeat(row[order], times))),
        np.repeat(when[order], times),
        np.repeat(net[order] > 0, times),
    )


def kept(windows: Sequence[Window], streams: Sequence[Arrived], before: int) -> list[Any]:
    """Return for each stream which rows are in a window at the time before a time, or come then."""
    masks = [arrived.time >= before for arrived in streams]
    for window in windows:
        arrived = streams[window.stream]
        settled = arrived.before(before)
        masks[window.stream][: len(settled.time)] |= window.until(settled) >= before
    return masks
