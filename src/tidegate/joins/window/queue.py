"""The slow CPU: a bounded queue in front of the window engine (paper 1, section 2.3).

The join takes the first row of the queue whenever it has finished the one before. This is simulated
on event time, so that a replay gives the same answer: a row waits from its own tick on, and each
row takes the join one step. At a tick, the join first takes the rows that it has time for. Then the
newcomers of the tick enter the queue, and rows that the queue cannot hold are dropped. The join
processes a row by the row's own time. The compiled loop is `joins/window/queue_loop.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Clocks
from tidegate.engine.payload import Payload
from tidegate.engine.prepare import KEY, ROW_HASH, TIME, prepared_schema
from tidegate.engine.state_codec import Parts
from tidegate.engine.state_log import LoggedEngine, Replay, batch_of
from tidegate.joins.window import queue_loop as kernel
from tidegate.joins.window.changed_settings import with_new_columns
from tidegate.joins.window.key_counts import Statistics
from tidegate.joins.window.spec import WindowJoin
from tidegate.joins.window.stepped import SteppedWindowEngine
from tidegate.kernel import layout

#: The number of keys whose arrivals are counted.
_KEYS = 65_536
#: The largest time, and the largest denominator of a step.
_LARGEST = 2**62


class QueueEngine(LoggedEngine):
    """A window engine that takes rows from a bounded queue, at a steady rate."""

    _streams = 2

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
        self._inner = self._join
        self._statistics = Statistics(spec.frequencies, keys)
        self._rules = _rules(spec, shards, keys)
        self._keep_shed = keep_shed
        self._rows = [Payload(prepared_schema(side.schema, spec.unit)) for side in spec.sides]
        self._item = np.dtype(
            [
                ("seq", "i8"),  # in the order in which rows entered the queue
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
        self._tick = np.empty(0, self._item)  # the rows of the open tick
        self._queue = np.empty(0, self._item)
        self._next = 0
        self._arrived = self._shed = 0
        # The log has the rows before number `_logged`; `_left` are those that left since.
        self._logged = 0
        self._left: list[NDArray[np.int64]] = []

    # ---- input and output ---------------------------------------------------------------------

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Process prepared record batches of the left and the right; yield results."""
        self._arrived += sum(batch.num_rows for side in inputs for batch in side)
        new = [self._add(side, inputs[side]) for side in range(2)]
        known = [clock for clock in clocks or () if clock is not None]
        clock = max(known) if known else None
        yield from self._run(np.concatenate([self._tick, *new]), clock, clocks, close=False)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Close the open tick and process all waiting rows."""
        yield from self._run(self._tick, None, None, close=True)
        yield from self._join.finish()

    def _run(
        self,
        newcomers: NDArray[Any],
        clock: int | float | None,
        clocks: Clocks | None,
        *,
        close: bool,
    ) -> Iterator[pa.RecordBatch]:
        """Queue the newcomers, and pass to the join the rows that it has time for."""
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
            why = kernel.run(queue, self._rules, number(clock or 0), clock is not None, close)
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
            join_clocks = self._join_clocks(clocks)
            if len(chosen) or join_clocks is not None:
                given = [self._pieces_of(side, chosen) for side in range(2)]
                yield from self._join.feed(given, join_clocks)
        self._sweep()

    def _add(self, side: int, batches: Sequence[pa.RecordBatch]) -> NDArray[Any]:
        """Store prepared rows; return them as items that have not entered the queue."""
        first = self._rows[side].add(batches)
        items = np.zeros(sum(batch.num_rows for batch in batches), self._item)
        items["side"], items["row"] = side, first + np.arange(len(items))
        for name, column in (("time", TIME), ("key", KEY), ("row_hash", ROW_HASH)):
            parts = [batch.column(column).to_numpy() for batch in batches if batch.num_rows]
            items[name] = np.concatenate(parts) if parts else 0
        return items

    def _rows_of(self, side: int, items: NDArray[Any]) -> pa.RecordBatch:
        """Return the prepared rows of the items of one side."""
        return self._rows[side].take(items["row"][items["side"] == side])

    def _pieces_of(self, side: int, items: NDArray[Any]) -> list[pa.RecordBatch]:
        """Return the same in record batches small enough for string columns."""
        return list(self._rows[side].pieces(items["row"][items["side"] == side]))

    def _loaded(self, items: NDArray[Any]) -> kernel.Queue:
        """Return the arrays of the loop: waiting rows, then newcomers."""
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
        """Return the rows that an integrated queue drops: fewest partners, then lowest counts."""
        waiting = np.flatnonzero(queue.state == kernel.WAITING)
        entry, other = queue.entry[waiting], 1 - queue.side[waiting]
        promise = np.where(entry >= 0, queue.counts[entry, other], 0.0) if len(queue.counts) else 0
        keys = (np.broadcast_to(promise, len(waiting)), self._join.partners_of(called[waiting]))
        return waiting[np.lexsort(keys)[: len(waiting) - self._rules.size]]

    def _settle(self, queue: kernel.Queue, items: NDArray[Any], *, close: bool) -> None:
        """Copy the outcome of the loop into the state."""
        scalars = queue.scalars[0]
        entered, before = int(scalars.entered), len(self._queue)
        items["since"] = queue.since
        items["seq"][before:entered] = self._next + np.arange(entered - before)
        self._next += entered - before
        waits = queue.state == kernel.WAITING
        left = np.flatnonzero(~waits[:entered] | close)
        numbers = items["seq"][left]
        self._left.append(numbers[numbers < self._logged])
        dropped = queue.dropped[: scalars.dropped]
        self._shed += len(dropped)
        if self._keep_shed:
            for side in range(2):
                mine = np.flatnonzero(items["side"][dropped] == side)
                gone = self._rows_of(side, items[dropped[mine]])
                self._join.note_dropped(side, gone, queue.when[mine])
        self._queue = items[:0] if close else items[waits]
        self._tick = items[entered:]
        if scalars.ticking:
            self._clock = queue.clock[0].item()
        if queue.free[0] > layout.NEVER:
            self._free = queue.free[0].item(), int(queue.part[0])
        self._statistics.rewritten |= bool(scalars.rescaled)
        if scalars.started:
            self._statistics.first = int(scalars.epoch)
        self._statistics.tidy()

    def _join_clocks(self, clocks: Clocks | None) -> Clocks | None:
        """Return the clocks for the join: none is later than a waiting row.

        The content of an integrated queue must not depend on where a batch ends.
        """
        if clocks is None:
            return None
        waiting = np.concatenate([self._queue["time"], self._tick["time"]])
        first = [waiting.min().item()] if len(waiting) else []
        return [None if c is None else min([c, *first]) for c in clocks]

    # ---- what is dropped ----------------------------------------------------------------------

    def take_shed(self) -> pa.Table:
        """Return the rows dropped or shed since the last call."""
        return self._join.take_shed()

    def take_counters(self) -> dict[str, int | float]:
        """Return the counters: events since the last call, and the present state."""
        taken = self._join.take_counters()
        taken |= {"arrived": self._arrived, "queue_shed": self._shed, "queued": len(self._queue)}
        taken["waiting"] += len(self._tick)
        self._arrived = self._shed = 0
        return taken

    def _sweep(self) -> None:
        """Drop stored rows that no longer wait, if they are many."""
        for side, rows in enumerate(self._rows):
            mine = [items["side"] == side for items in (self._queue, self._tick)]
            queued, opened = self._queue["row"][mine[0]], self._tick["row"][mine[1]]
            kept = np.sort(np.concatenate([queued, opened]))
            if rows.wants_trim(len(kept)):
                rows.trim(0, kept)
                self._queue["row"][mine[0]] = np.searchsorted(kept, queued)
                self._tick["row"][mine[1]] = np.searchsorted(kept, opened)

    # ---- state --------------------------------------------------------------------------------

    def restore(
        self, records: Iterable[bytes], written_with: Mapping[str, Any] | None = None
    ) -> None:
        """Load the state from a snapshot and all later changes, in order; for a new engine."""
        if written_with is not None and "cpu" not in written_with:
            self._join.restore(records, written_with)
        else:
            super().restore(records, written_with)

    def _adapt(self, log: Replay, written_with: Mapping[str, Any]) -> None:
        with_new_columns(log, self.spec, written_with)

    def _head(self) -> dict[str, Any]:
        first = self._statistics.first
        return {"clock": self._clock, "free": self._free, "next": self._next, "first": first}

    def _parts(self, *, changed: bool) -> Parts:
        whole, counts = self._statistics.record(every=not changed)
        return {"all_counts" if whole else "counts": counts}

    def _open_rows(self) -> list[pa.RecordBatch]:
        return [self._rows_of(side, self._tick) for side in range(2)]

    def _load_open(self, rows: list[pa.RecordBatch]) -> None:
        self._tick = np.concatenate([self._add(side, [rows[side]]) for side in range(2)])

    def _held_rows(
        self, stream: int, most: tuple[int, int] | None, *, changed: bool
    ) -> Iterator[pa.RecordBatch]:
        items = self._queue[self._queue["side"] == stream]
        items = items[items["seq"] >= (self._logged if changed else 0)]
        for part in self._rows[stream].cut(items["row"], *(most or ())):
            own = {name: items[name][part] for name in ("seq", "since")}
            yield batch_of(own, self._rows[stream].take(items["row"][part]))

    def _gone(self) -> NDArray[np.int64]:
        return np.concatenate([np.empty(0, np.int64), *self._left])

    def _held_size(self) -> tuple[int, int]:
        return len(self._queue), sum(rows.nbytes for rows in self._rows)

    def _mark(self) -> None:
        self._logged, self._left = self._next, []

    def _load(self, log: Replay) -> None:
        head = log.head
        self._clock, self._next = head["clock"], head["next"]
        self._free = None if head["free"] is None else tuple(head["free"])
        for counts in log.all("counts"):
            self._statistics.restore(head["first"], False, counts)
        types = {name: self._item[name] for name in ("seq", "since", "time", "key", "row_hash")}
        for side, rows in enumerate(self._rows):
            first = rows.rows
            columns = log.held(side, types, rows)
            items = np.zeros(rows.rows - first, self._item)
            items["side"], items["row"] = side, np.arange(first, rows.rows)
            for name in types:
                items[name] = columns[name]
            self._queue = np.concatenate([self._queue, items[log.survivors(items["seq"])]])
        self._queue = self._queue[np.argsort(self._queue["seq"])]
        self._sweep()


def _rules(spec: WindowJoin, shards: int, keys: int) -> kernel.Rules:
    """Return the settings of the loop."""
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
