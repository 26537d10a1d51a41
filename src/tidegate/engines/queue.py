"""The slow CPU: a bounded queue before the window engine (paper 1, section 2.3).

The join takes the first of the queue whenever it has done with the one before. It is simulated on
event time, so that a replay gives the same answer: a tuple waits from its own tick on, and each
takes the join one step. At a tick, the join takes what it has time for until then, the tick's
newcomers enter, and what the queue cannot hold is dropped. A tuple that reaches the join is
processed as ever, by its own time.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.engines.base import Clocks
from tidegate.engines.payload import Payload
from tidegate.engines.prepare import KEY, TIE, TIME, prepared_schema
from tidegate.engines.records import from_bytes, to_bytes
from tidegate.engines.statistics import Statistics
from tidegate.engines.window import WindowEngine
from tidegate.spec import WindowJoin

#: Keys that are counted at the least.
_KEYS = 65_536
#: Rows of a log that may be dead, whatever is waiting.
_LOG_ROWS = 1 << 16


class _Waiting(NamedTuple):
    """A tuple before the join; tuples of a tick enter the queue in this order."""

    time: int | float
    side: int
    key: int
    tie: int
    row: int


#: Tuples that were dropped, and when.
_Dropped = list[tuple[int | float, _Waiting]]


class QueueEngine:
    """A window engine that takes tuples from a bounded queue, at a steady rate."""

    def __init__(
        self,
        spec: WindowJoin,
        *,
        shards: int = 1,
        keep_shed: bool = False,
        keys: int = _KEYS,
    ) -> None:
        assert spec.cpu is not None
        self.spec = spec
        self._join = WindowEngine(spec, shards=shards, keep_shed=keep_shed)
        self._integrated = spec.cpu.mode == "integrated"
        self._size = max(spec.cpu.queue // shards, 1)
        # Times are multiplied so that a step is a whole number, and nothing is ever rounded.
        step = spec.cpu.step(spec.second) * shards
        real = spec.unit.kind == "real number"
        self._scale: int | float = 1.0 if real else step.denominator
        self._step: int | float = float(step) if real else step.numerator
        self._statistics = Statistics(spec.frequencies, spec.cpu_halflife, keys)
        self._keep_shed = keep_shed
        self._rows = [Payload(prepared_schema(side.schema, spec.unit)) for side in spec.sides]
        self._clock: int | float | None = None
        self._open: list[_Waiting] = []
        #: By number, the first first: since when it waits, and the tuple.
        self._queue: OrderedDict[int, tuple[int | float, _Waiting]] = OrderedDict()
        #: What each promised when that was last looked up; some have left.
        self._promises: list[tuple[float, int]] = []
        self._taken: list[_Waiting] = []
        self._free: int | float | None = None
        self._next = 0
        self._arrived = self._shed = 0
        self._dropped: tuple[_Dropped, _Dropped] = ([], [])
        # What is in the log: all before a number, less those that have left since.
        self._logged = 0
        self._logged_rows = 0
        self._gone: list[int] = []

    # ---- input and output ---------------------------------------------------------------------

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Take prepared batches of the left and the right; give results as they are found."""
        rows = sorted(w for side in range(2) for w in self._add(side, inputs[side]))
        self._arrived += len(rows)
        for time, tick in groupby(rows, key=lambda waiting: waiting.time):
            yield from self._advance(time)
            self._open += tick
        for clock in clocks or ():
            if clock is not None:
                yield from self._advance(clock)
        yield from self._hand_over(self._told(clocks))
        self._sweep()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Close the tick that is still open, and take all that is waiting."""
        yield from self._close()
        while self._queue:
            self._take()
        yield from self._hand_over(None)
        yield from self._join.finish()
        self._sweep()

    def _add(self, side: int, batches: Sequence[pa.RecordBatch]) -> Iterator[_Waiting]:
        first = self._rows[side].add(batches)
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in (TIME, KEY, TIE))
            for at, (time, key, tie) in enumerate(zip(*columns, strict=True)):
                yield _Waiting(time, side, key, tie, first + at)
            first += batch.num_rows

    def _advance(self, time: int | float) -> Iterator[pa.RecordBatch]:
        """Close the open tick if a later time is there, and take what the join has time for."""
        if self._clock is None or time > self._clock:
            yield from self._close()
            self._clock = time
            self._take_until(time, inclusive=False)

    def _close(self) -> Iterator[pa.RecordBatch]:
        """Let the open tick's tuples into the queue, and drop what it cannot hold."""
        if not self._open:
            return
        assert self._clock is not None
        newcomers, self._open = sorted(self._open), []
        smaller = [self._statistics.see(w.side, w.key, self._clock) for w in newcomers]
        for waiting in newcomers:
            self._enter(self._clock, waiting)
        if any(smaller) or len(self._promises) > 2 * len(self._queue) + 64:
            self._look_up()
        self._take_until(self._clock, inclusive=True)
        surplus = len(self._queue) - self._size
        if surplus > 0:
            if self._integrated:
                yield from self._hand_over(None)
            self._drop(self._least(surplus))
        self._statistics.forget(lambda: {w.key for _, w in self._queue.values()})

    def _enter(self, since: int | float, waiting: _Waiting) -> None:
        self._queue[self._next] = (since, waiting)
        if not self._integrated:
            heapq.heappush(self._promises, (self._promise(waiting), self._next))
        self._next += 1

    def _take_until(self, time: int | float, *, inclusive: bool) -> None:
        """Take what the join has time for before a time, or at it too."""
        end = time * self._scale
        while self._queue:
            since, _ = next(iter(self._queue.values()))
            start = (
                since * self._scale if self._free is None else max(since * self._scale, self._free)
            )
            if start > end or (start == end and not inclusive):
                return
            self._free = start + self._step
            self._take()

    def _take(self) -> None:
        """Take the first of the queue."""
        number, (_, waiting) = self._queue.popitem(last=False)
        self._leave(number)
        self._taken.append(waiting)

    def _leave(self, number: int) -> None:
        if number < self._logged:
            self._gone.append(number)

    def _hand_over(self, clocks: Clocks | None) -> Iterator[pa.RecordBatch]:
        """Give the join what was taken for it."""
        taken, self._taken = self._taken, []
        if taken or clocks is not None:
            yield from self._join.feed([[self._batch(s, taken)] for s in range(2)], clocks)

    def _batch(self, side: int, tuples: Iterable[_Waiting]) -> pa.RecordBatch:
        """The rows of one side's tuples."""
        return self._rows[side].take(np.array([w.row for w in tuples if w.side == side], np.int64))

    def _told(self, clocks: Clocks | None) -> Clocks | None:
        """How far the join may take the streams to have come: not past what is waiting.

        What an integrated queue sees must not depend on where a batch ends.
        """
        if clocks is None or self._integrated:
            return None
        waiting = [w.time for _, w in self._queue.values()] + [w.time for w in self._open]
        return [None if c is None else min([c, *waiting]) for c in clocks]

    # ---- what is dropped ----------------------------------------------------------------------

    def _promise(self, waiting: _Waiting) -> float:
        return self._statistics.partners(waiting.side, waiting.key)

    def _look_up(self) -> None:
        """Look up all promises anew."""
        if not self._integrated:
            self._promises = [(self._promise(w), n) for n, (_, w) in self._queue.items()]
            heapq.heapify(self._promises)

    def _least(self, count: int) -> list[int]:
        """The tuples that promise least; of equal ones, those that came first."""
        if self._integrated:
            waiting = [w for _, w in self._queue.values()]
            partners = self._join.partners([w.side for w in waiting], [w.key for w in waiting])
            promises = [(p, self._promise(w)) for p, w in zip(partners, waiting, strict=True)]
            ranked = sorted(zip(promises, self._queue, strict=True))
            return [number for _, number in ranked[:count]]
        least: list[int] = []
        while len(least) < count:
            promise, number = heapq.heappop(self._promises)
            if number not in self._queue:
                continue
            # Promises only rise, so the lowest that is still true is the lowest of all.
            now = self._promise(self._queue[number][1])
            if now > promise:
                heapq.heappush(self._promises, (now, number))
            else:
                least.append(number)
        return least

    def _drop(self, numbers: list[int]) -> None:
        assert self._clock is not None
        for number in numbers:
            self._leave(number)
            _, waiting = self._queue.pop(number)
            if self._keep_shed:
                self._dropped[waiting.side].append((self._clock, waiting))
        self._shed += len(numbers)

    def _note_dropped(self) -> None:
        """Have the join take down what was dropped, while its rows are there."""
        for side, dropped in enumerate(self._dropped):
            rows = self._batch(side, [waiting for _, waiting in dropped])
            self._join.note_dropped(side, rows, [when for when, _ in dropped], "queue full")
        self._dropped = ([], [])

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
        self._note_dropped()
        for side, rows in enumerate(self._rows):
            kept = [w.row for _, w in self._queue.values() if w.side == side]
            kept += [w.row for w in self._open if w.side == side]
            if not rows.wants_rewrite(len(kept)):
                continue
            new = {row: at for at, row in enumerate(kept)}
            rows.rewrite(np.array(kept, np.int64))
            for number, (since, w) in self._queue.items():
                if w.side == side:
                    self._queue[number] = (since, w._replace(row=new[w.row]))
            self._open = [w._replace(row=new[w.row]) if w.side == side else w for w in self._open]

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
        first = 0 if every else self._logged
        new = [(n, since, w) for n, (since, w) in self._queue.items() if n >= first]
        gone = [] if every else self._gone
        whole, counts = self._statistics.record(every=every)
        parts = {"gone": pa.record_batch([pa.array(gone, pa.int64())], ["number"])}
        parts |= {"counts": counts}
        for side in range(2):
            mine = [entry for entry in new if entry[2].side == side]
            parts[f"open{side}"] = self._batch(side, self._open)
            rows = self._batch(side, [w for _, _, w in mine])
            head = [
                pa.array([n for n, _, _ in mine], pa.int64()),
                pa.array(
                    [since for _, since, _ in mine], pa.from_numpy_dtype(self.spec.unit.dtype)
                ),
            ]
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
        self._queue = OrderedDict(sorted(self._queue.items()))
        self._look_up()
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
            self._queue.clear()
        self._clock, self._free, self._next = head["clock"], head["free"], head["next"]
        self._statistics.restore(head["first"], head["all_counts"], parts["counts"])
        self._open = [w for side in range(2) for w in self._add(side, [parts[f"open{side}"]])]
        for side in range(2):
            batch = parts[f"queue{side}"]
            numbers, since = (batch.column(i).to_pylist() for i in range(2))
            rows = pa.RecordBatch.from_arrays(batch.columns[2:], schema=self._rows[side].schema)
            entries = zip(numbers, since, self._add(side, [rows]), strict=True)
            self._queue.update({number: (when, waiting) for number, when, waiting in entries})
            self._logged_rows += batch.num_rows
        for number in parts["gone"].column(0).to_pylist():
            del self._queue[number]


def _nested(own: bytes, join: bytes) -> bytes:
    """The queue's record and the join's in one."""
    return b"".join((len(own).to_bytes(8, "little"), own, join))
