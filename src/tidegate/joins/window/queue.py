"""The slow CPU: a bounded queue before the window engine (paper 1, section 2.3).

The join takes the first of the queue whenever it has done with the one before. It is simulated on
event time, so that a replay gives the same answer: a tuple waits from its own tick on, and each
takes the join one step. At a tick, the join takes what it has time for until then, the tick's
newcomers enter, and what the queue cannot hold is dropped. A tuple that reaches the join is
processed as ever, by its own time. The loop is `kernel.queue`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Clocks
from tidegate.engine.payload import Payload
from tidegate.engine.prepare import KEY, ROW_HASH, TIME, prepared_schema
from tidegate.engine.state_codec import from_bytes, to_bytes
from tidegate.joins.window import queue_loop as kernel
from tidegate.joins.window.key_counts import Statistics
from tidegate.joins.window.spec import WindowJoin
from tidegate.joins.window.stepped import SteppedWindowEngine
from tidegate.kernel import layout

#: Keys that are counted at the least.
_KEYS = 65_536
#: Rows of a log that may be dead, whatever is waiting.
_LOG_ROWS = 1 << 16
#: No time is later, and no smaller part of a unit is told apart.
_LARGEST = 2**62


class QueueEngine:
    """A window engine that takes tuples from a bounded queue, at a steady rate."""

    def __init__(
        self,
        spec: WindowJoin,
        *,
        shards: int = 1,
        shard: int | None = None,
        keep_shed: bool = False,
        keys: int = _KEYS,
    ) -> None:
        assert spec.cpu is not None
        self.spec = spec
        self._join = SteppedWindowEngine(spec, shards=shards, shard=shard, keep_shed=keep_shed)
        self._statistics = Statistics(spec.frequencies, keys)
        self._rules = _rules(spec, shards, keys)
        self._keep_shed = keep_shed
        self._rows = [Payload(prepared_schema(side.schema, spec.unit)) for side in spec.sides]
        self._item = np.dtype(
            [
                ("number", "i8"),  # of a tuple that waits, or waited; they are in this order
                ("since", spec.unit.dtype),
                ("time", spec.unit.dtype),
                ("side", "i1"),
                ("key", "u8"),
                ("row_hash", "u8"),
                ("row", "i8"),
            ]
        )
        self._clock: int | float | None = None
        self._free: tuple[int | float, int] | None = None
        self._open = np.empty(0, self._item)
        self._queue = np.empty(0, self._item)
        self._next = 0
        self._arrived = self._shed = 0
        # What is in the log: all before a number, less those that have left since.
        self._logged = 0
        self._logged_rows = 0
        self._gone: list[NDArray[np.int64]] = []

    # ---- input and output ---------------------------------------------------------------------

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Take prepared batches of the left and the right; give results as they are found."""
        self._arrived += sum(batch.num_rows for side in inputs for batch in side)
        new = [self._add(side, inputs[side]) for side in range(2)]
        known = [clock for clock in clocks or () if clock is not None]
        told = max(known) if known else None
        yield from self._run(np.concatenate([self._open, *new]), told, clocks, close=False)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Close the tick that is still open, and take all that is waiting."""
        yield from self._run(self._open, None, None, close=True)
        yield from self._join.finish()

    def _run(
        self,
        newcomers: NDArray[Any],
        told: int | float | None,
        clocks: Clocks | None,
        *,
        close: bool,
    ) -> Iterator[pa.RecordBatch]:
        """Go through newcomers, and have the join take what it has time for."""
        names = ("row", "row_hash", "key", "side", "time")
        newcomers = newcomers[np.lexsort([newcomers[name] for name in names])]
        items = np.concatenate([self._queue, newcomers])
        queue = self._loaded(items)
        called: NDArray[np.int64] = np.empty(len(items), np.int64)
        if self._rules.integrated:
            sides = np.argsort(items["side"], kind="stable")
            called[sides] = self._join.begin([self._pieces_of(s, items) for s in range(2)])
        number = self.spec.unit.dtype.type
        why, handed = -1, 0
        while why != kernel.DONE:
            why = kernel.run(queue, self._rules, number(told or 0), told is not None, close)
            if why == kernel.TOO_MANY_KEYS:
                queue.scalars[0].idle = self._statistics.forget(queue.queued)
            elif why == kernel.OVERFLOW:
                served = int(queue.scalars[0].taken)
                yield from self._join.take(called[queue.taken[handed:served]])
                handed = served
                kernel.drop(queue, self._least(queue, called))
        taken = queue.taken[handed : queue.scalars[0].taken]
        if close:
            taken = np.concatenate([taken, np.flatnonzero(queue.state == kernel.WAITING)])
        self._settle(queue, items, close=close)
        if self._rules.integrated:
            yield from self._join.take(called[taken])
            yield from self._join.end()
        else:
            chosen = items[np.sort(taken)]
            told_join = self._told(clocks)
            if len(chosen) or told_join is not None:
                given = [self._pieces_of(side, chosen) for side in range(2)]
                yield from self._join.feed(given, told_join)
        self._sweep()

    def _add(self, side: int, batches: Sequence[pa.RecordBatch]) -> NDArray[Any]:
        """Keep rows; gives them as tuples that have not entered."""
        first = self._rows[side].add(batches)
        items = np.zeros(sum(batch.num_rows for batch in batches), self._item)
        items["side"], items["row"] = side, first + np.arange(len(items))
        for name, column in (("time", TIME), ("key", KEY), ("row_hash", ROW_HASH)):
            parts = [batch.column(column).to_numpy() for batch in batches if batch.num_rows]
            items[name] = np.concatenate(parts) if parts else 0
        return items

    def _rows_of(self, side: int, items: NDArray[Any]) -> pa.RecordBatch:
        """The rows of one side's tuples."""
        return self._rows[side].take(items["row"][items["side"] == side])

    def _pieces_of(self, side: int, items: NDArray[Any]) -> list[pa.RecordBatch]:
        """The same in batches that no column of strings outgrows."""
        return list(self._rows[side].pieces(items["row"][items["side"] == side]))

    def _loaded(self, items: NDArray[Any]) -> kernel.Queue:
        """What the loop works on: all that waits, and after it newcomers."""
        statistics, dtype = self._statistics, self.spec.unit.dtype
        entry = statistics.entries(items["key"])
        never = layout.NEVER if dtype.kind == "i" else -np.inf
        free = (never, 0) if self._free is None else self._free
        queue = kernel.Queue(
            scalars=np.zeros(1, kernel.SCALARS),
            clock=np.full(1, self._clock or 0, dtype),
            target=np.zeros(1, dtype),
            free=np.full(1, free[0], dtype),
            time=items["time"].copy(),
            since=items["since"].copy(),
            part=np.full(1, free[1], np.int64),
            side=items["side"].copy(),
            entry=entry,
            state=np.zeros(len(items), np.int8),
            heap=np.empty(len(items) + 1, layout.ranked_type(np.dtype(np.float64))),
            taken=np.empty(len(items), np.int64),
            dropped=np.empty(len(items), np.int64),
            when=np.empty(len(items), dtype),
            counts=statistics.counts,
            known=statistics.known,
            changed=statistics.changed,
            queued=np.zeros(len(statistics.known), np.int64),
        )
        queue.scalars[0].ticking = self._clock is not None
        queue.scalars[0].started = statistics.first is not None
        queue.scalars[0].epoch = statistics.first or 0
        kernel.begin(queue, self._rules, len(self._queue))
        return queue

    def _least(self, queue: kernel.Queue, called: NDArray[np.int64]) -> NDArray[np.int64]:
        """What an integrated queue drops: by partners in memory, then statistics; the first."""
        waiting = np.flatnonzero(queue.state == kernel.WAITING)
        entry, other = queue.entry[waiting], 1 - queue.side[waiting]
        promise = np.where(entry >= 0, queue.counts[entry, other], 0.0) if len(queue.counts) else 0
        keys = (np.broadcast_to(promise, len(waiting)), self._join.partners_of(called[waiting]))
        return waiting[np.lexsort(keys)[: len(waiting) - self._rules.size]]

    def _settle(self, queue: kernel.Queue, items: NDArray[Any], *, close: bool) -> None:
        """Take over what the loop did."""
        scalars = queue.scalars[0]
        entered, before = int(scalars.entered), len(self._queue)
        items["since"] = queue.since
        items["number"][before:entered] = self._next + np.arange(entered - before)
        self._next += entered - before
        waits = queue.state == kernel.WAITING
        left = np.flatnonzero(~waits[:entered] | close)
        numbers = items["number"][left]
        self._gone.append(numbers[numbers < self._logged])
        dropped = queue.dropped[: scalars.dropped]
        self._shed += len(dropped)
        if self._keep_shed:
            for side in range(2):
                mine = np.flatnonzero(items["side"][dropped] == side)
                gone = self._rows_of(side, items[dropped[mine]])
                self._join.note_dropped(side, gone, queue.when[mine], "queue full")
        self._queue = items[:0] if close else items[waits]
        self._open = items[entered:]
        if scalars.ticking:
            self._clock = queue.clock[0].item()
        if queue.free[0] > layout.NEVER:
            self._free = queue.free[0].item(), int(queue.part[0])
        self._statistics.rewritten |= bool(scalars.rescaled)
        if scalars.started:
            self._statistics.first = int(scalars.epoch)
        self._statistics.tidy()

    def _told(self, clocks: Clocks | None) -> Clocks | None:
        """How far the join may take the streams to have come: not past what is waiting.

        What an integrated queue sees must not depend on where a batch ends.
        """
        if clocks is None:
            return None
        waiting = np.concatenate([self._queue["time"], self._open["time"]])
        first = [waiting.min().item()] if len(waiting) else []
        return [None if c is None else min([c, *first]) for c in clocks]

    # ---- what is dropped ----------------------------------------------------------------------

    def take_shed(self) -> pa.Table:
        """Early departures since the last call, from the queue and from the memory."""
        return self._join.take_shed()

    def take_counters(self) -> dict[str, int | float]:
        """Flows since the last call, and gauges as they are now."""
        taken = self._join.take_counters()
        taken |= {"arrived": self._arrived, "queue_shed": self._shed, "queued": len(self._queue)}
        taken["waiting"] += len(self._open)
        self._arrived = self._shed = 0
        return taken

    def _sweep(self) -> None:
        """Drop the rows that nobody waits with, if they are many."""
        for side, rows in enumerate(self._rows):
            mine = [items["side"] == side for items in (self._queue, self._open)]
            queued, opened = self._queue["row"][mine[0]], self._open["row"][mine[1]]
            kept = np.sort(np.concatenate([queued, opened]))
            if rows.wants_trim(len(kept)):
                rows.trim(0, kept)
                self._queue["row"][mine[0]] = np.searchsorted(kept, queued)
                self._open["row"][mine[1]] = np.searchsorted(kept, opened)

    # ---- state --------------------------------------------------------------------------------

    def changes(self) -> bytes:
        """What has changed since the last record was made."""
        return _nested(self._record(every=False), self._join.changes())

    def snapshot(self) -> list[bytes]:
        """The whole state."""
        first, *others = self._join.snapshot()
        self._logged_rows = 0
        records = [_nested(self._record(every=True), first)]
        return records + [_nested(b"", record) for record in others]

    @property
    def log_is_heavy(self) -> bool:
        """Whether more than three quarters of what was logged is dead."""
        return self._join.log_is_heavy or self._logged_rows > 4 * len(self._queue) + _LOG_ROWS

    def _record(self, *, every: bool) -> bytes:
        """What is waiting, or what of it is new, and who has left."""
        new = self._queue[self._queue["number"] >= (0 if every else self._logged)]
        gone = np.concatenate([np.empty(0, np.int64), *([] if every else self._gone)])
        whole, counts = self._statistics.record(every=every)
        parts = {"gone": pa.record_batch([pa.array(gone)], ["number"]), "counts": counts}
        for side in range(2):
            mine = new[new["side"] == side]
            parts[f"open{side}"] = self._rows_of(side, self._open)
            rows = self._rows_of(side, mine)
            head = [pa.array(mine["number"].copy()), pa.array(mine["since"].copy())]
            names = ["number", "since", *rows.schema.names]
            parts[f"queue{side}"] = pa.RecordBatch.from_arrays([*head, *rows.columns], names)
        self._logged, self._gone = self._next, []
        self._logged_rows += len(new) + len(gone)
        numbers = {"clock": self._clock, "free": self._free, "next": self._next}
        epoch = {"first": self._statistics.first, "all_counts": whole, "all_rows": every}
        return to_bytes(numbers | epoch, parts)

    def restore(self, records: Iterable[bytes]) -> None:
        """Become what the records say; for a new engine."""
        self._join.restore(self._unpacked(records))
        self._queue = self._queue[np.argsort(self._queue["number"])]
        self._sweep()
        self._logged, self._gone = self._next, []

    def _unpacked(self, records: Iterable[bytes]) -> Iterator[bytes]:
        """The join's records, once the queue's beside them are taken in."""
        for record in records:
            size = int.from_bytes(record[:8], "little")
            if size:
                self._load(*from_bytes(record[8 : 8 + size]))
            yield record[8 + size :]

    def _load(self, head: dict[str, Any], parts: dict[str, pa.RecordBatch]) -> None:
        if head["all_rows"]:
            self._queue = self._queue[:0]
        self._clock, self._next = head["clock"], head["next"]
        self._free = None if head["free"] is None else tuple(head["free"])
        self._statistics.restore(head["first"], head["all_counts"], parts["counts"])
        self._open = np.concatenate([self._add(s, [parts[f"open{s}"]]) for s in range(2)])
        for side in range(2):
            batch = parts[f"queue{side}"]
            rows = pa.RecordBatch.from_arrays(batch.columns[2:], schema=self._rows[side].schema)
            items = self._add(side, [rows])
            items["number"], items["since"] = (batch.column(i).to_numpy() for i in range(2))
            self._queue = np.concatenate([self._queue, items])
            self._logged_rows += batch.num_rows
        gone = parts["gone"].column(0).to_numpy()
        self._queue = self._queue[~np.isin(self._queue["number"], gone)]


def _rules(spec: WindowJoin, shards: int, keys: int) -> kernel.Rules:
    """The settings as the loop takes them."""
    assert spec.cpu is not None
    number = spec.unit.dtype.type
    step = (spec.cpu.step(spec.second) * shards).limit_denominator(_LARGEST)
    real = spec.unit.kind == "real number"
    whole, part = divmod(step.numerator, step.denominator)
    return kernel.Rules(
        size=max(spec.cpu.queue // shards, 1),
        integrated=spec.cpu.mode == "integrated",
        learned=spec.frequencies is None,
        halflife=number(spec.cpu_halflife),
        most=keys,
        step=number(float(step) if real else min(whole, _LARGEST)),
        step_part=0 if real else part,
        parts=1 if real else step.denominator,
        last=number(np.inf if real else _LARGEST),
    )


def _nested(own: bytes, join: bytes) -> bytes:
    """The queue's record and the join's in one."""
    return b"".join((len(own).to_bytes(8, "little"), own, join))
