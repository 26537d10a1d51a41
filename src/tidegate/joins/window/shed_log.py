"""Archive of a window join: the rows that left early, and the rows that came out of order.

A pair is missing exactly if its earlier row left before the later one came. To decide that without
the join, every line says at which *place* its row left or came. A place is a pair of numbers
(`after`, `step`): the time of the last tick in order, and how many ticks and other events came
since. A tick is in order if its time is later than all before it in its shard; its place is (its
time, 0). So the place at which a row came follows from its time, unless the archive says otherwise.

Let a pair's rows have come at A and B, and left at C and D, of which the first is smaller in both
cases (a row that did not leave early has left after everything). The pair is missing exactly if

- `after-probe`: min(C, D) < max(A, B);
- `before-probe`: A and B differ, and the row that came first left at max(A, B) or before;
- `before-arrival`: min(C, D) <= max(A, B), as a newcomer that is not admitted does not probe.

A late row also misses partners that had expired when it came, and a row that the full queue of a
slow CPU dropped misses all partners.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.engine.payload import Payload
from tidegate.engine.prepare import KEY, ROW_HASH, TIME, payload_of, usable
from tidegate.joins.window.spec import WindowJoin
from tidegate.kernel import layout
from tidegate.settings.columns import hash_columns
from tidegate.settings.times import times

MARK = "mark"
#: What a line tells: that a held row left; that a row left at its own tick; that a row came out of
#: order; that a row never reached the join.
LEFT, LEFT_AT_ONCE, CAME, NEVER_CAME = 0, 1, 2, 3
#: Reasons by number, as the loop has them.
_REASONS = np.array(["rejected", "shed", "overdue"])
LATE, OUT_OF_ORDER, QUEUE_FULL = "late", "out of order", "queue full"
SIDES = ("left", "right")


def mark_type(dtype: np.dtype[Any]) -> pa.DataType:
    """Return the type of the column by which `tidegate.repair` identifies rows and places."""
    time = pa.from_numpy_dtype(dtype)
    fields = [
        ("key", pa.int64()),  # the hash of the key, signed, as Spark has no unsigned numbers
        ("time", time),
        ("content", pa.int64()),  # the hash of the whole row
        ("kind", pa.int8()),
        ("after", time),
        ("step", pa.int64()),
        ("clock", time),  # the latest time of its own stream when it came, or its own
    ]
    return pa.struct(fields)


def shed_schema(spec: WindowJoin) -> pa.Schema:
    """Schema of the archive: which side, when (as a number), why, the row, and its mark."""
    return pa.schema(
        [
            ("side", pa.string()),
            ("shed_at", pa.from_numpy_dtype(spec.unit.dtype)),
            ("why", pa.string()),
            *((name, pa.struct(list(s.schema))) for name, s in zip(SIDES, spec.sides, strict=True)),
            (MARK, mark_type(spec.unit.dtype)),
        ]
    )


class _Ticks(NamedTuple):
    """The ticks of a batch: where they begin, and their places."""

    start: NDArray[np.int64]
    time: NDArray[Any]
    after: NDArray[Any]
    step: NDArray[np.int64]
    #: The place just before the tick.
    before: NDArray[Any]
    before_step: NDArray[np.int64]


class ShedLog:
    """Collect the rows that left early, and those that came out of order."""

    def __init__(self, spec: WindowJoin, rules: layout.Rules) -> None:
        self._spec, self._rules = spec, rules
        self._schema = shed_schema(spec)
        dtype = spec.unit.dtype
        never = -np.inf if dtype.kind == "f" else layout.NEVER
        self._after, self._step = dtype.type(never), 0
        #: The `after` of the last place at which a row left.
        self._last = dtype.type(never)
        self._found: list[pa.RecordBatch] = []
        self._noted = 0

    # ---- what the engine tells ----------------------------------------------------------------

    def begin(self) -> None:
        """Start with an output in which no row is noted."""
        self._noted = 0

    def ran(
        self,
        batch: layout.Batch,
        out: layout.Output,
        noted: int,
        payload: list[Payload],
        clocks: NDArray[Any],
        waits: bool,
    ) -> None:
        """Record what happened in a run of the loop.

        `clocks` has the latest time of each stream before the run. With `waits`, the last tick is
        still open.
        """
        if len(batch.time) == 0:
            return
        probes_first = self._rules.shed_when == layout.AFTER_PROBE
        ticks = self._ticks(batch)
        at = slice(self._noted, noted)
        tick = out.shed_tick[at]
        within = tick >= 0
        which = np.searchsorted(ticks.start, np.where(within, tick, -1 - tick))
        after = np.where(within, ticks.after[which], ticks.before[which])
        step = np.where(within, ticks.step[which], ticks.before_step[which])
        self._left(out, at, after, step, payload)
        if len(after):
            self._last = max(self._last, after.max())
        done = len(ticks.start)
        if waits and not probes_first:
            done -= 1
            self._after, self._step = ticks.before[done], int(ticks.before_step[done])
        else:
            self._after, self._step = ticks.after[-1], int(ticks.step[-1])
        self._came(batch, ticks, done, clocks, payload)

    def advanced(self, out: layout.Output, noted: int, payload: list[Payload]) -> None:
        """Record the rows that left between two runs of the loop."""
        at = slice(0, noted)
        if noted:
            self._step += 1
            self._last = max(self._last, self._after)
        after = np.full(noted, self._after)
        self._left(out, at, after, np.full(noted, self._step), payload)

    def never_came(self, side: int, batch: pa.RecordBatch, when: NDArray[Any]) -> None:
        """Record prepared rows that were dropped before they reached the join."""
        n, time = batch.num_rows, batch.column(TIME).to_numpy()
        mark = {
            "key": batch.column(KEY).to_numpy().view(np.int64),
            "time": time,
            "content": batch.column(ROW_HASH).to_numpy().view(np.int64),
            "kind": np.full(n, NEVER_CAME, np.int8),
            "after": time,
            "step": np.zeros(n, np.int64),
            "clock": time,
        }
        self._add(side, payload_of(batch), when, np.full(n, QUEUE_FULL), mark)

    def take(self) -> pa.Table:
        """Return the lines since the last call."""
        parts = [pa.Table.from_batches([batch]) for batch in self._found]
        self._found = []
        return pa.concat_tables([self._schema.empty_table(), *parts], promote_options="default")

    # ---- places -------------------------------------------------------------------------------

    def _ticks(self, batch: layout.Batch) -> _Ticks:
        """Return the ticks of a batch and their places."""
        start = np.flatnonzero(np.append(True, batch.time[1:] != batch.time[:-1]))
        time = batch.time[start]
        old = int(np.searchsorted(time, self._after, "right"))
        after = time.copy()
        step = np.zeros(len(time), np.int64)
        after[:old] = self._after
        step[:old] = self._step + 2 * np.arange(1, old + 1)
        before = np.append(self._after, after[:-1])
        before_step = np.append(self._step, step[:-1]) + 1
        if (
            old == 1
            and self._step == 0
            and batch.probed[: np.append(start, len(batch.time))[1]].any()
        ):
            # The tick was open, and nothing happened since it probed.
            step[0] = 0
            before_step[1:2] = 1
        return _Ticks(start, time, after, step, before, before_step)

    def _left(
        self,
        out: layout.Output,
        at: slice,
        after: NDArray[Any],
        step: NDArray[np.int64],
        payload: list[Payload],
    ) -> None:
        """Record noted rows, by the places at which they left."""
        kind = np.where(out.shed_own[at], LEFT_AT_ONCE, LEFT).astype(np.int8)
        why = _REASONS[out.shed_why[at]]
        sides, rows, when = out.shed_side[at], out.shed_row[at], out.shed_time[at]
        for side in range(2):
            mine = np.flatnonzero(sides == side)
            self._record(payload, side, rows, mine, when, why, kind, after, step, None)
        self._noted = at.stop

    def _came(
        self,
        batch: layout.Batch,
        ticks: _Ticks,
        done: int,
        clocks: NDArray[Any],
        payload: list[Payload],
    ) -> None:
        """Record the rows of which the time does not tell the place, and late rows."""
        stop = ticks.start[done] if done < len(ticks.start) else len(batch.time)
        time = batch.time[:stop]
        # Most batches are in order.
        if stop == 0 or not (time[0] < clocks.max() or ticks.step[0] > 0):
            return
        which = np.repeat(np.arange(done), np.diff(np.append(ticks.start[:done], stop)))
        clock = clocks[batch.side[:stop]]
        late = (time + self._rules.lateness < clock) & self._ends()[1 - batch.side[:stop]]
        moved = (ticks.step[which] > 0) & (time <= self._last)
        rows = np.flatnonzero((late | moved) & ~batch.probed[:stop])
        why = np.where(late, LATE, OUT_OF_ORDER)
        kind = np.full(stop, CAME, np.int8)
        when = np.maximum(time, clocks.max())
        after, step = ticks.after[which], ticks.step[which]
        for side in range(2):
            mine = rows[batch.side[rows] == side]
            clock = np.maximum(time, clocks[side])
            self._record(payload, side, batch.row, mine, when, why, kind, after, step, clock)

    def _ends(self) -> NDArray[np.bool_]:
        """Return for each side whether its windows end."""
        lengths = [{step.value for step in side.windows} for side in self._spec.sides]
        return np.array([each != {None} for each in lengths])

    # ---- lines --------------------------------------------------------------------------------

    def _record(
        self,
        payload: list[Payload],
        side: int,
        row: NDArray[np.int64],
        mine: NDArray[np.int64],
        when: NDArray[Any],
        why: NDArray[np.str_],
        kind: NDArray[np.int8],
        after: NDArray[Any],
        step: NDArray[np.int64],
        clock: NDArray[Any] | None,
    ) -> None:
        """Record some rows of a side; their clock is their own time unless one is given."""
        for part in payload[side].cut(row[mine]):
            own = mine[part]
            rows = payload[side].take(np.ascontiguousarray(row[own]))
            mark = marks_of(self._spec, side, rows)
            mark |= {"kind": kind[own], "after": after[own], "step": step[own]}
            mark["clock"] = mark["time"] if clock is None else clock[own]
            self._add(side, rows, when[own], why[own], mark)

    def _add(
        self,
        side: int,
        rows: pa.RecordBatch,
        when: NDArray[Any],
        why: NDArray[np.str_],
        mark: dict[str, NDArray[Any]],
    ) -> None:
        if rows.num_rows == 0:
            return
        fields = list(self._schema.field(MARK).type)
        columns = [
            pa.array([SIDES[side]] * rows.num_rows),
            pa.array(when),
            pa.array(why, pa.string()),
            pa.StructArray.from_arrays(rows.columns, fields=list(self._spec.sides[side].schema)),
            pa.StructArray.from_arrays([pa.array(mark[f.name]) for f in fields], fields=fields),
        ]
        names = ["side", "shed_at", "why", SIDES[side], MARK]
        self._found.append(pa.RecordBatch.from_arrays(columns, names=names))

    # ---- state --------------------------------------------------------------------------------

    def head(self) -> dict[str, Any]:
        """Return the place of the join, for a record."""
        return {"place": [self._after.item(), self._step, self._last.item()]}

    def load(self, head: dict[str, Any]) -> None:
        """Continue from a record."""
        if "place" in head:
            kind = self._spec.unit.dtype.type
            after, self._step, last = head["place"]
            self._after, self._last = kind(after), kind(last)


def dropped_lines(spec: WindowJoin, side: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the raw rows that can never join, as lines without a mark."""
    own, schema = spec.sides[side], shed_schema(spec)
    timed, keyed = usable(own, spec.unit, batch)
    bad = pc.invert(pc.and_(timed, keyed))
    rows, timed = batch.filter(bad), timed.filter(bad)
    n = rows.num_rows
    when = pa.nulls(n, schema.field("shed_at").type)
    if timed.true_count:
        kept = rows.filter(timed)
        when = pc.replace_with_mask(when, timed, pa.array(times(kept.column(own.time), spec.unit)))
    columns = {
        "side": pa.array([SIDES[side]] * n, pa.string()),
        "shed_at": when,
        "why": pc.if_else(timed, "null key", "null time"),
        SIDES[side]: pa.StructArray.from_arrays(rows.columns, fields=list(own.schema)),
    }
    every = [columns.get(f.name, pa.nulls(n, f.type)) for f in schema]
    return pa.RecordBatch.from_arrays(every, schema=schema)


def marks_of(spec: WindowJoin, side: int, rows: pa.RecordBatch) -> dict[str, NDArray[Any]]:
    """Return the key, the time and the content of rows as their marks have them."""
    own = spec.sides[side]
    keys = [rows.column(own.schema.get_field_index(name)) for name in own.keys]
    return {
        "key": hash_columns(keys, rows.num_rows).view(np.int64),
        "time": times(rows.column(own.schema.get_field_index(own.time)), spec.unit),
        "content": hash_columns(rows.columns, rows.num_rows, exact=True).view(np.int64),
    }
