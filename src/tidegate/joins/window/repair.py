"""Repair: the results that a window join has missed, from its streams and its archive.

`shed_log` has the rule. The repair joins all rows whose key is in the archive without a budget, and
gives the pairs that the rule says are missing. No result is given twice: together with what the
join delivered, this is the exact result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.archive import check_archive, origin_of
from tidegate.engine.base import Clocks, Engine, Job
from tidegate.engine.counters import FLOWS
from tidegate.engine.payload import one_batch
from tidegate.engine.prepare import KEY, PREPARED, ROW_HASH, TIME, prepare, prepared_schema
from tidegate.errors import TidegateError
from tidegate.joins.window.arrays import past
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.shed_log import (
    CAME,
    LEFT,
    LEFT_AT_ONCE,
    MARK,
    NEVER_CAME,
    SIDES,
    mark_type,
)
from tidegate.joins.window.spec import WindowJoin, window_join
from tidegate.settings.schedules import Schedule, Side, Step

#: What the repair adds to the columns of each row: its time, when it came and left (as ranks of
#: places), and the latest time of its own stream when it came.
_MORE = ("time", "came", "left", "clock")
#: The settings that an archive depends on.
_SETTINGS = (
    "on",
    "where",
    "time",
    "within",
    "closed",
    "lateness",
    "shed_when",
    "count_from",
    "columns",
)
#: A rank after all places, and one before.
_STAYED, _NEVER = 2**62, -1

Array = NDArray[Any]


class Slice(NamedTuple):
    """The results to find: those whose later row has a time from `start` to before `end`."""

    start: int | float | None = None
    end: int | float | None = None


ALL = Slice()


class RepairJob(Job):
    """The settings of a repair. Its inputs are the left, the right, and the archive."""

    def __init__(self, spec: WindowJoin, span: Slice = ALL) -> None:
        start = max((t for t in (spec.count_from, span.start) if t is not None), default=None)
        self.spec = replace(spec, budget=(Step(0, None),), in_bytes=False, cpu=None)
        self.spec = replace(self.spec, frequencies=None, count_from=start)
        self.span = Slice(start, span.end)

    @property
    def result_schema(self) -> pa.Schema:
        """The columns of the left, then those of the right."""
        return self.spec.result_schema

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Prepare rows as the join does; of the archive, take the columns `side` and `mark`."""
        if stream < 2:
            prepared, dropped = prepare(self.spec.sides[stream], self.spec.unit, batch)
            return self._in_span(prepared), dropped
        batch = batch.filter(batch.column(MARK).is_valid())
        names = [field.name for field in mark_type(self.spec.unit.dtype)]
        mark = dict(zip(names, batch.column(MARK).flatten(), strict=True))
        key, content = (pa.array(mark[n].to_numpy().view(np.uint64)) for n in ("key", "content"))
        columns = [key, mark["time"], content, batch.column("side")]
        columns += [mark[name] for name in names[3:]]
        return self._in_span(pa.RecordBatch.from_arrays(columns, schema=_lines(self.spec))), {}

    def _in_span(self, prepared: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that can be in a result of the slice."""
        time = prepared.column(TIME).to_numpy()
        wanted = np.ones(len(time), np.bool_)
        reach = [side.window for side in self.spec.sides]
        if self.span.start is not None and None not in reach:
            wanted &= time >= self.span.start - max(each for each in reach if each is not None)
        if self.span.end is not None:
            wanted &= time < self.span.end
        return prepared if wanted.all() else prepared.filter(pa.array(wanted))

    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> RepairEngine:
        """Return the engine of one shard."""
        return RepairEngine(self.spec)

    def fingerprint(self) -> dict[str, Any]:
        """The settings that an archive depends on."""
        return archive_settings(self.spec)


def archive_settings(spec: WindowJoin) -> dict[str, Any]:
    """Return the settings that an archive depends on, as plain JSON values."""
    every = spec.settings()
    return {"join": "window", **{name: every[name] for name in _SETTINGS if name in every}}


def archived_join(left: pa.Schema, right: pa.Schema, made_by: Any, where: str) -> WindowJoin:
    """Return the join that wrote an archive, from the archive's label."""
    _, made = origin_of(made_by, where)
    if made.get("join") != "window":
        raise TidegateError(
            f"{where} was written by a constrained join, whose settings it does not have in full; "
            "call tidegate.repair in Python"
        )
    keys = dict(zip(*made["on"], strict=True))
    spec = window_join(
        left,
        right,
        on=keys or None,
        where=made["where"],
        time=tuple(made["time"]),
        within=None,
        shed_when=made["shed_when"],
        policy="fifo",
    )
    sides = [
        replace(side, windows=_schedule(value))
        for side, value in zip(spec.sides, made["within"], strict=True)
    ]
    rest = {name: made[name] for name in ("closed", "lateness", "count_from") if name in made}
    spec = replace(spec, left=sides[0], right=sides[1], **rest)
    check_archive(made_by, archive_settings(spec), where)
    return spec


def _schedule(value: Any) -> Schedule:
    """Return a window as `WindowJoin.settings` writes it."""
    if isinstance(value, list):
        return tuple(Step(start, each) for start, each in value)
    return (Step(0, value),)


def _lines(spec: WindowJoin) -> pa.Schema:
    """Schema of prepared lines of the archive."""
    head = prepared_schema(pa.schema([("side", pa.string())]), spec.unit)
    return pa.schema([*head, *list(mark_type(spec.unit.dtype))[PREPARED:]])


class _Missing(WindowEngine):
    """The exact window join, restricted to results that were not delivered."""

    def _paired(self, left: Array, right: Array) -> tuple[list[pa.Array], NDArray[np.bool_]]:
        columns, same = super()._paired(left, right)
        width = len(self.spec.left.schema)
        told = [columns[width - len(_MORE) : width], columns[-len(_MORE) :]]
        (t, a, c, a_clock), (u, b, d, b_clock) = ([x.to_numpy() for x in each] for each in told)
        later = np.maximum(a, b)
        if self.spec.shed_when == "after-probe":
            missing = np.minimum(c, d) < later
        elif self.spec.shed_when == "before-arrival":
            missing = np.minimum(c, d) <= later
        else:
            missing = (a != b) & (np.where(a < b, c, d) <= later)
            missing |= np.minimum(c, d) == _NEVER
        missing |= (a < b) & past(self._rules, 0, t, b_clock)
        missing |= (b < a) & past(self._rules, 1, u, a_clock)
        return columns, same & missing


class RepairEngine(Engine):
    """Finds what is missing when all rows are there."""

    def __init__(self, spec: WindowJoin) -> None:
        self.spec = spec
        self._given: list[list[pa.RecordBatch]] = [[], [], []]
        self._counters: dict[str, int | float] = dict.fromkeys((*FLOWS, "importance"), 0)

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Collect prepared batches of both streams and of the archive."""
        for mine, batches in zip(self._given, inputs, strict=True):
            mine += batches
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Give the missing results."""
        *streams, archive = self._given
        lines = one_batch(pa.Table.from_batches(archive, _lines(self.spec)))
        if lines.num_rows == 0:
            return
        keys = np.unique(lines.column(KEY).to_numpy())
        sides = [
            _History(self.spec, side, batches, lines, keys) for side, batches in enumerate(streams)
        ]
        came = _ranks([*(s.came for s in sides), *(s.left for s in sides)])
        widened = [_widened(side, self.spec) for side in self.spec.sides]
        names = [f"{name}{at}" for at, side in enumerate(widened) for name in side.schema.names]
        engine = _Missing(replace(self.spec, left=widened[0], right=widened[1], names=tuple(names)))
        schemas = [prepared_schema(side.schema, self.spec.unit) for side in widened]
        inputs = [
            [s.marked(schema, came[at], came[2 + at])]
            for at, (s, schema) in enumerate(zip(sides, schemas, strict=True))
        ]
        width = len(self.spec.left.schema)
        wanted = [*range(width), *range(width + len(_MORE), len(names) - len(_MORE))]
        for run in (engine.feed(inputs), engine.finish()):
            for batch in run:
                columns = [batch.column(at) for at in wanted]
                yield pa.RecordBatch.from_arrays(columns, schema=self.spec.result_schema)
        taken = engine.take_counters()
        self._counters |= {name: taken[name] for name in ("results", "importance")}

    def take_counters(self) -> dict[str, int | float]:
        """Return the counters of the repair."""
        return self._counters

    def changes(self) -> bytes:
        """Return nothing: a repair is one batch."""
        return b""

    def snapshot(self) -> list[bytes]:
        """Return nothing."""
        return []

    def restore(
        self, records: Iterable[bytes], written_with: Mapping[str, Any] | None = None
    ) -> None:
        """Do nothing."""


class _Places(NamedTuple):
    """Places by row; where `known` is False, the rank is `rest`."""

    after: Array
    step: Array
    known: NDArray[np.bool_]
    rest: NDArray[np.int64]


class _History:
    """When each row of a side came and left.

    Rows that are equal in all columns have the same results, so it does not matter which of them a
    line means. The first of them that came is taken to be the first that left.
    """

    def __init__(
        self,
        spec: WindowJoin,
        side: int,
        batches: Sequence[pa.RecordBatch],
        lines: pa.RecordBatch,
        keys: NDArray[np.uint64],
    ) -> None:
        schema = prepared_schema(spec.sides[side].schema, spec.unit)
        rows = pa.Table.from_batches(batches, schema)
        near = np.isin(rows.column(KEY).to_numpy(), keys)
        self.rows = one_batch(rows.filter(pa.array(near)))
        own = pa.array(lines.column(PREPARED).to_numpy(zero_copy_only=False) == SIDES[side])
        own_lines = lines.filter(own)
        kind, after, step, clock = (
            own_lines.column(name).to_numpy() for name in ("kind", "after", "step", "clock")
        )
        if spec.shed_when == "after-probe":
            kind = np.where(kind == LEFT_AT_ONCE, LEFT, kind)
        self.time = self.rows.column(TIME).to_numpy()
        n = len(self.time)
        group = _grouped(
            *(
                np.concatenate([part.column(name).to_numpy() for part in (self.rows, own_lines)])
                for name in (TIME, ROW_HASH)
            )
        )
        mine, told = group[:n], group[n:]
        groups = int(group.max(initial=-1)) + 1
        count = np.bincount(mine, minlength=groups)
        never, moved = (
            np.bincount(told[kind == each], minlength=groups) for each in (NEVER_CAME, CAME)
        )
        gone = np.bincount(told[kind != CAME], minlength=groups)
        lost = np.maximum(np.maximum(gone, never + moved) - count, 0).sum()
        if lost:
            raise TidegateError(
                f"{lost:,} of {len(told):,} archived rows of the {SIDES[side]} are not among its "
                "rows; repair needs all rows that were joined"
            )
        # Of equal rows, the first never came; the next came in order; the last as lines say.
        number = _numbers(mine)
        is_never = number < never[mine]
        came_after, came_step = self.time.copy(), np.zeros(n, np.int64)
        self.clock = self.time.copy()
        line = np.flatnonzero(kind == CAME)
        line = line[np.lexsort((step[line], after[line], told[line]))]
        row, line = _matched(
            mine, number - (count - moved)[mine], told[line], _numbers(told[line]), line
        )
        came_after[row], came_step[row], self.clock[row] = after[line], step[line], clock[line]
        left_after, left_step = came_after.copy(), came_step.copy()
        gone_rows = np.zeros(n, np.bool_)
        # A row that left at its own tick left where it came.
        line = np.flatnonzero(kind == LEFT_AT_ONCE)
        there = np.flatnonzero(~is_never)
        places = _grouped(
            np.concatenate([mine[there], told[line]]),
            np.concatenate([came_after[there], after[line]]),
            np.concatenate([came_step[there], step[line]]),
        )
        at, given = places[: len(there)], places[len(there) :]
        row, _ = _matched(at, _numbers(at), given, _numbers(given), line)
        gone_rows[there[row]] = True
        # Of the others, the first that came left first.
        line = np.flatnonzero(kind == LEFT)
        line = line[np.lexsort((step[line], after[line], told[line]))]
        rest = np.flatnonzero(~is_never & ~gone_rows)
        rest = rest[np.lexsort((came_step[rest], came_after[rest], mine[rest]))]
        row, line = _matched(
            mine[rest], _numbers(mine[rest]), told[line], _numbers(told[line]), line
        )
        row = rest[row]
        left_after[row], left_step[row], gone_rows[row] = after[line], step[line], True
        self.came = _Places(came_after, came_step, np.ones(n, np.bool_), np.zeros(n, np.int64))
        self.left = _Places(left_after, left_step, gone_rows, np.where(is_never, _NEVER, _STAYED))

    def marked(self, schema: pa.Schema, came: Array, left: Array) -> pa.RecordBatch:
        """Return the rows with the columns that the repair adds."""
        more = [pa.array(each) for each in (self.time, came, left, self.clock)]
        return pa.RecordBatch.from_arrays([*self.rows.columns, *more], schema=schema)


def _widened(side: Side, spec: WindowJoin) -> Side:
    """Return a side with the columns that the repair adds."""
    time = pa.from_numpy_dtype(spec.unit.dtype)
    kinds = (time, pa.int64(), pa.int64(), time)
    more = [pa.field(f"repair: {name}", kind) for name, kind in zip(_MORE, kinds, strict=True)]
    return replace(side, schema=pa.schema([*side.schema, *more]))


def _ranks(places: Sequence[_Places]) -> list[NDArray[np.int64]]:
    """Return ranks in the order of places."""
    group = _grouped(
        np.concatenate([each.after for each in places]),
        np.concatenate([each.step for each in places]),
    )
    cuts = np.cumsum([len(each.after) for each in places])[:-1]
    ranks = zip(np.split(group, cuts), places, strict=True)
    return [np.where(each.known, rank, each.rest) for rank, each in ranks]


def _grouped(*columns: Array) -> NDArray[np.int64]:
    """Return the number of each row's group of equal rows, in order of the columns."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), np.bool_)
    for column in columns:
        ordered = column[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(new)
    return group


def _numbers(group: Array) -> NDArray[np.int64]:
    """Return how many rows of its group come before each row."""
    by = np.argsort(group, kind="stable")
    at = np.arange(len(by))
    first = np.append(True, group[by][1:] != group[by][:-1])[: len(by)]
    number = np.empty(len(by), np.int64)
    number[by] = at - np.maximum.accumulate(np.where(first, at, 0))
    return number


def _matched(
    group: Array, number: Array, other: Array, its_number: Array, names: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Match rows with others by group and number; return the rows, and the others' names."""
    most = max(number.max(initial=0), its_number.max(initial=0)) + 1
    code, others = group * most + number, other * most + its_number
    code = np.where(number < 0, -1, code)
    order = np.argsort(others)
    at = np.searchsorted(others[order], code)
    found = np.flatnonzero(at < len(others))
    found = found[others[order[at[found]]] == code[found]]
    return found, names[order[at[found]]]
