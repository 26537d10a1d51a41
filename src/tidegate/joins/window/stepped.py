"""A window engine that takes the rows of one feed step by step.

An integrated queue inspects the memory, so the join takes only a row or two at a time. The costs of
a feed besides the loop (Arrow conversion, key lookup) are paid once for all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.payload import gather
from tidegate.engine.prepare import payload_of
from tidegate.joins.window import loop as window
from tidegate.joins.window.engine import WindowEngine, _opened
from tidegate.kernel import layout
from tidegate.kernel.partners import count_held


class SteppedWindowEngine(WindowEngine):
    """A window engine whose memory can be inspected between the steps of a feed."""

    _all: layout.Batch
    _order: NDArray[np.int64]
    _waiting: NDArray[np.int64]

    def begin(self, inputs: Sequence[Sequence[pa.RecordBatch]]) -> NDArray[np.int64]:
        """Prepare all rows that may be taken; return a number for each, the left's first."""
        waiting = [batch.num_rows for batch in self._open]
        self._given = [[self._open[s], *inputs[s]] for s in range(2)]
        self._first = [
            self._payload[s].add([payload_of(b) for b in self._given[s]]) for s in range(2)
        ]
        self._all, self._order, self._left = self._batch(self._given, waiting, self._first)
        total = len(self._order)
        # Any of them may be taken after later ones.
        self._tables.make_room(total, total)
        names = np.empty(total, np.int64)
        names[self._order] = np.arange(total)
        left, right = names[: self._left], names[self._left :]
        self._waiting = np.sort(np.concatenate([left[: waiting[0]], right[: waiting[1]]]))
        self._out, self._pairs = self._output(total), 0
        self._tables.core.scalars[0].noted = 0
        self._shed_log.begin()
        return np.concatenate([left[waiting[0] :], right[waiting[1] :]])

    def take(self, names: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Take some of the rows, as a feed of their own would; yield results in large pieces."""
        if len(names) == 0:
            return
        at = np.sort(np.concatenate([self._waiting, names]))
        batch = layout.Batch._make(column[at] for column in self._all)
        core, opened = self._tables.core, _opened(batch)
        clocks = core.stream_clock.copy()
        scalars = core.scalars[0]
        scalars.tick_to = scalars.stage = scalars.fresh = 0
        why = layout.OUTPUT_FULL
        while why != layout.DONE:
            self._pairs, why = window.run(
                core, self._rules, batch, self._out, self._pairs, *opened, False
            )
            if why == layout.TOO_MANY_KEYS:
                self._tables.forget()
            elif why != layout.DONE:
                yield from self._so_far()
            if why == layout.PROBE_TOO_LARGE:
                room = 2 * len(self._out.left)
                wider = {name: np.empty(room, np.int64) for name in ("left", "right")}
                self._out = self._out._replace(**wider)
        self._note_run(batch, self._out, clocks, close=False)
        start = len(at)
        if batch.time[-1] >= core.clock[0]:
            start = int(np.searchsorted(batch.time, batch.time[-1]))
        self._waiting = at[start:]
        self._all.probed[self._waiting] = self._rules.shed_when == layout.AFTER_PROBE

    def partners_of(self, names: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return how many held rows of the other side each row joins by key and condition."""
        counts = np.empty(len(names), np.int32)
        count_held(self._tables.core, self._rules, self._all, names, counts)
        return counts

    def end(self) -> Iterator[pa.RecordBatch]:
        """End the feed: yield the last results, and drop the payload of rows that are not held."""
        yield from self._so_far()
        rows = np.sort(self._order[self._waiting])
        split = int(np.searchsorted(rows, self._left))
        table, held = self._tables.core.slots["row"], []
        for s, own in enumerate((rows[:split], rows[split:] - self._left)):
            self._open[s] = gather(self._given[s], self._schemas[s], own)
            slots = self._tables.slots_of(s)
            held.append(slots[table[slots] >= self._first[s]])
        self._trim(np.concatenate(held), self._first)

    def _so_far(self) -> Iterator[pa.RecordBatch]:
        """Yield the results so far."""
        if self._pairs:
            yield from self._found(self._out.left[: self._pairs], self._out.right[: self._pairs])
        self._pairs = 0
