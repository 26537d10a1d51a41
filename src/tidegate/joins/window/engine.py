"""The engine of the bounded window join: record batches in and out of the compiled loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Clocks
from tidegate.engine.counters import FLOWS
from tidegate.engine.payload import Payload, cut, gather, room
from tidegate.engine.prepare import KEY, PREPARED, ROW_HASH, TIME, payload_of, prepared_schema
from tidegate.engine.state_codec import Parts
from tidegate.engine.state_log import LoggedEngine, Replay, batch_of, update_rows
from tidegate.joins.window import changed_settings, victims
from tidegate.joins.window import loop as window
from tidegate.joins.window.arrays import Tables, past
from tidegate.joins.window.candidates import Candidates
from tidegate.joins.window.conditions import Condition, Places, bucket_hashes
from tidegate.joins.window.rules import EXACT_LIMIT, TUPLE_OVERHEAD, rules_of, share_of
from tidegate.joins.window.shed_log import ShedLog
from tidegate.joins.window.spec import COMBINE, WindowJoin
from tidegate.kernel import layout
from tidegate.kernel.order import tick_order
from tidegate.kernel.partners import find_buckets
from tidegate.kernel.records import plain
from tidegate.learning import scores
from tidegate.policies import Arrivals, ranks_of
from tidegate.settings.columns import as_floats, equal, hash_columns
from tidegate.settings.schedules import Step
from tidegate.settings.times import times
from tidegate.sql.conditions import Predicate

#: The number of pairs that the loop finds before results are yielded.
_ROOM = 1 << 18

#: Columns of a held row besides its payload; a type of None is that of times.
_HELD = {
    "key": np.uint64,
    "time": None,
    "seq": np.int64,
    "size": np.int32,
    "rank": np.float64,
    "gain": np.float64,
    "last": None,
}
_DEFAULTS = {"size": 1, "rank": 1.0, "gain": 0.0, "last": 0}
#: The numbers of the loop that a record keeps, and their fields in `layout.SCALARS`.
_SCALARS = {
    "seq": "seq",
    "epoch": "epoch",
    "started": "started",
    "refit": "census_seq",
    "fit": "fit_seq",
    "thinned": "thinned",
    "change": "change",
    "ring_from": "ring_from",
    "ring_to": "ring_to",
}
#: The largest number of ghosts, and the classes that `Auto` learns besides ages.
_GHOSTS = 1024
_FEATURES = {"levels": 12, "trends": 10}

#: The counters of the loop, which are fields of `layout.SCALARS`.
_COUNTED = ("out_of_order", "late", "admitted", "rejected", "shed", "expired")


class WindowEngine(LoggedEngine):
    """A bounded join of two streams over sliding windows (ALGORITHMS section 0)."""

    _streams = 2
    #: True if the loop evaluates the condition, and looks for partners in the buckets of its band.
    _checks_pairs = True

    def __init__(
        self,
        spec: WindowJoin,
        *,
        shards: int = 1,
        shard: int | None = None,
        keep_shed: bool = False,
        exact_limit: int = EXACT_LIMIT,
    ) -> None:
        self.spec = spec
        self._schemas = [prepared_schema(side.schema, spec.unit) for side in spec.sides]
        self._payload = [Payload(pa.schema(list(s)[PREPARED:])) for s in self._schemas]
        self._piece = room(spec.result_schema)
        self._condition = None
        self._where = None
        if spec.where is not None:
            self._where = Predicate(spec.where, spec.left.schema, spec.right.schema)
        if self._where is not None and self._checks_pairs:
            self._condition = Condition(self._where)
        self._rules = rules_of(spec, shards, exact_limit, shard, self._condition)
        self._shares = [
            None if step.value is None else share_of(step.value, spec, shards, shard)
            for step in spec.budget
        ]
        columns = 0 if self._condition is None else self._condition.columns
        self._tables = Tables(spec.unit.dtype, self._rules, spec.curves, columns)
        self._candidates = Candidates(self._rules)
        if spec.memory is not None and spec.policy.learns is not None:
            shape = _FEATURES if spec.policy.learns == "rates" else {}
            self._tables.leave_ghosts(_GHOSTS, **shape)
        self._open: list[pa.RecordBatch] = [self._no_rows(0), self._no_rows(1)]
        #: Rows from the queue of a slow CPU, if the join had one before a restart.
        self._queued: list[list[pa.RecordBatch]] = [[], []]
        self._keep_shed = keep_shed
        self._shed_log = ShedLog(spec, self._rules)
        self._flows = dict.fromkeys(FLOWS, 0)
        self._importance = 0.0
        #: The last budget update of a pool: its number and the memory.
        self.budget_update: tuple[int, int] | None = None
        # Columns of a held row that a record stores besides key and payload: those that vary.
        self._logged = ["time", "seq"]
        self._logged += ["size"] if spec.in_bytes else []
        scored = self._rules.kind == layout.BY_SCORE
        varies = spec.left.importance is not None or self._rules.floor_weight != 0.0
        varies |= self._rules.seq_weight != 0.0
        ranked = self._rules.kind == layout.BY_TUPLE or (scored and varies)
        self._logged += ["rank"] if ranked else []
        learns = scored and self._rules.formula in scores.LEARNING
        self._logged += ["gain", "last"] if learns else []

    # ---- input and output ---------------------------------------------------------------------

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Process prepared record batches of the left and the right; yield results."""
        if any(self._queued):
            inputs = [[*self._queued[s], *inputs[s]] for s in range(2)]
            self._queued = [[], []]
        self._flows["arrived"] += sum(b.num_rows for side in inputs for b in side)
        known = [clock for clock in clocks or () if clock is not None]
        yield from self._run(inputs, close=bool(known) and self._closes(inputs, max(known)))
        if clocks is not None:
            stream_clock, number = self._tables.core.stream_clock, self.spec.unit.dtype.type
            times = [stream_clock[s] if t is None else number(t) for s, t in enumerate(clocks)]
            self._advance(*times)

    def _advance(self, *times: Any) -> None:
        """Advance the clocks of the streams, and shed rows if a budget falls by then."""
        core, out = self._tables.core, self._output(0, pairs=0)
        core.scalars[0].noted = 0
        before = core.scalars[0].shed
        window.advance(core, self._rules, out, *times)
        self._note_shed(out)
        if core.scalars[0].shed > before:
            self._sweep(tight=self._overweight)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Close the tick that is still open."""
        yield from self._run(((), ()), close=True)

    def resize(self, number: int, memory: int) -> None:
        """Change the budget to `memory` rows or bytes, by budget update `number`.

        Rows that do not fit are shed at once. With a memory of 0 nothing is held.
        """
        self._allow(number, memory)
        self._shed_excess()

    def _shed_excess(self) -> None:
        """Shed the rows that do not fit into the budget in force."""
        scalars, stream_clock = self._tables.core.scalars[0], self._tables.core.stream_clock
        rules, change = self._rules, int(scalars.change)
        # The loop sheds when a scheduled budget changes: schedule a change at the earliest time.
        allowed = rules.budgets[[change, change]]
        first = np.full(
            1, -np.inf if stream_clock.dtype.kind == "f" else layout.NEVER, stream_clock.dtype
        )
        scalars.change = 0
        self._rules = rules._replace(budgets=allowed, changes=first)
        self._tables.allow(self._rules)
        self._advance(*stream_clock)
        self._tables.core.scalars[0].change = change
        self._rules = rules
        self._tables.allow(rules)

    def _allow(self, number: int, memory: int) -> None:
        """Replace the budget without shedding; the held rows must fit."""
        new = self._rules_for(memory)
        budgets = new.budgets if memory else np.zeros_like(new.budgets)
        self._rules = self._rules._replace(budgets=budgets, changes=new.changes, cap=new.cap)
        self._tables.core.scalars[0].change = 0
        self._tables.allow(self._rules)
        self.budget_update = number, memory

    def _rules_for(self, memory: int) -> layout.Rules:
        spec = replace(self.spec, budget=(Step(0, max(memory, 1)),))
        return rules_of(spec, 1, self._rules.exact_limit)

    def _closes(self, inputs: Sequence[Sequence[pa.RecordBatch]], clock: int | float) -> bool:
        """True if the clock is later than all rows of the input and of the open tick."""
        batches = [b for side in inputs for b in side] + self._open
        return all(b.num_rows == 0 or b.column(TIME).to_numpy().max() < clock for b in batches)

    def _run(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], close: bool
    ) -> Iterator[pa.RecordBatch]:
        waiting = [batch.num_rows for batch in self._open]
        given = [[self._open[s], *inputs[s]] for s in range(2)]
        if not any(b.num_rows for side in given for b in side):
            return
        first = [self._payload[s].add(given[s]) for s in range(2)]
        batch, order, left = self._batch(given, waiting, first)
        self._tables.begin_batch()
        self._shed_log.begin()
        core = self._tables.core
        clocks, opened = core.stream_clock.copy(), _opened(batch)
        out = self._output(len(order))
        pairs, why = 0, layout.OUTPUT_FULL
        while why != layout.DONE:
            pairs, why = window.run(core, self._rules, batch, out, pairs, *opened, close)
            if why == layout.TOO_MANY_KEYS:
                self._tables.forget()
                continue
            if pairs:
                yield from self._found(out.left[:pairs], out.right[:pairs])
                pairs = 0
            if why == layout.PROBE_TOO_LARGE:
                most = 2 * len(out.left)
                out = out._replace(left=np.empty(most, np.int64), right=np.empty(most, np.int64))
        self._note_run(batch, out, clocks, close=close)
        self._settle(given, batch, order, left, first, close)

    def _batch(
        self, given: list[list[pa.RecordBatch]], waiting: list[int], first: list[int]
    ) -> tuple[layout.Batch, NDArray[np.int64], int]:
        """Return the newcomers as sorted arrays, their order, and the number of left rows."""
        column = {
            name: [np.concatenate([b.column(name).to_numpy() for b in side]) for side in given]
            for name in (KEY, TIME, ROW_HASH)
        }
        left, right = (len(times) for times in column[TIME])
        joined, time, row_hash = (np.concatenate(column[name]) for name in (KEY, TIME, ROW_HASH))
        placed = [
            self._placed(s, column[KEY][s], [payload_of(b) for b in given[s]]) for s in range(2)
        ]
        places, compared = zip(*placed, strict=True)
        key, start, span = map(np.concatenate, zip(*places, strict=True))
        values = np.concatenate(compared)
        side = np.zeros(left + right, np.int8)
        side[left:] = 1
        row = np.concatenate([first[0] + np.arange(left), first[1] + np.arange(right)])
        probed = np.zeros(left + right, np.bool_)
        if self._rules.shed_when == layout.AFTER_PROBE:
            probed[: waiting[0]] = True
            probed[left : left + waiting[1]] = True
        stream_clock = self._tables.core.stream_clock
        late = max(int((column[TIME][s] < stream_clock[s]).sum()) for s in range(2))
        order = tick_order(time, left, side, key, row_hash)
        time, side, key, row_hash = time[order], side[order], key[order], row_hash[order]
        joined, start, span, values = joined[order], start[order], span[order], values[order]
        size = np.ones(len(order), np.int64)
        if self.spec.in_bytes:
            weights = [changed_settings.sizes_of(payload_of(b)) for s in given for b in s]
            size = np.concatenate(weights)[order]
        counted = int(span.sum()) if self._rules.checked else len(order)
        self._tables.make_room(len(order), late, counted)
        entry, near = self._entries(key, start, span)
        if self.spec.frequencies is not None:
            self._tables.set_rates(entry, joined, *self.spec.frequencies)
        weight = np.ones(len(order))
        if self.spec.left.importance is not None:
            weight = np.concatenate([self._weights(s, given[s]) for s in range(2)])[order]
        if self._rules.kind == layout.BY_TUPLE:
            arrivals = Arrivals(time, side, joined, row_hash, weight, self.spec.seed)
            rank = ranks_of(self.spec.policy, arrivals)
        else:
            rank = weight
        newcomers = layout.Batch(
            time,
            side,
            key,
            entry,
            row[order],
            size,
            rank,
            probed[order],
            near=near,
            start=start,
            span=span,
            values=values,
        )
        return newcomers, order, left

    def _placed(
        self, side: int, keys: NDArray[np.uint64], rows: Sequence[pa.RecordBatch]
    ) -> tuple[Places, NDArray[np.float64]]:
        """Return where rows of one side and their partners are, and what the condition compares."""
        condition = self._condition
        if condition is None:
            return Places(keys, keys, np.empty(len(keys), np.int64)), np.empty((len(keys), 0))
        ends = np.cumsum([batch.num_rows for batch in rows])
        own = np.split(keys, ends[:-1])
        values = np.concatenate([condition.values(side, batch) for batch in rows])
        if self._rules.certain and not condition.certain:
            self._rules = self._rules._replace(certain=False)
        places = [condition.places(side, k, b) for k, b in zip(own, rows, strict=True)]
        return Places(*map(np.concatenate, zip(*places, strict=True))), values

    def _entries(
        self, key: NDArray[np.uint64], start: NDArray[np.uint64], span: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the entry of each newcomer, and those of the buckets of its partners."""
        tables, n = self._tables, len(key)
        if not self._rules.checked:
            return tables.intern(key), np.empty((n, 0), np.int64)
        near = np.full((n, int(span.max(initial=0))), -1)
        if self._rules.learn != layout.ARRIVALS:
            entry = tables.intern(key)
            core = tables.core
            find_buckets(core.table, core.hashes, start, span, near)
            return entry, near
        # Newcomers count for the buckets of their partners.
        some = np.arange(near.shape[1]) < span[:, np.newaxis]
        entries = tables.intern(np.concatenate([key, bucket_hashes(start, near.shape[1])[some]]))
        near[some] = entries[n:]
        return entries[:n], near

    def _weights(self, side: int, batches: list[pa.RecordBatch]) -> NDArray[np.float64]:
        """Return the importance of the rows of one side."""
        importance = self.spec.sides[side].importance
        assert importance is not None
        at = PREPARED + self.spec.sides[side].schema.get_field_index(importance)
        return np.concatenate([as_floats(b.column(at)) for b in batches])

    def _output(self, newcomers: int, pairs: int = _ROOM) -> layout.Output:
        n = newcomers + self._tables.held if self._keep_shed else 0
        return layout.Output(
            np.empty(pairs, np.int64),
            np.empty(pairs, np.int64),
            np.empty(n, np.int64),
            np.empty(n, np.int8),
            np.empty(n, self.spec.unit.dtype),
            np.empty(n, np.int8),
            np.empty(n, np.int64),
            np.empty(n, np.bool_),
        )

    def _paired(
        self, left: NDArray[np.int64], right: NDArray[np.int64]
    ) -> tuple[list[pa.Array], NDArray[np.bool_]]:
        """Return the columns of pairs, and True where keys are equal and not just their hashes."""
        a, b = self._payload[0].take(left), self._payload[1].take(right)
        same = np.ones(len(left), np.bool_)
        for x, y in zip(self.spec.left.keys, self.spec.right.keys, strict=True):
            at, other = (
                s.schema.get_field_index(k) for s, k in zip(self.spec.sides, (x, y), strict=True)
            )
            same &= equal(a.column(at), b.column(other))
        if self._where is not None:
            same &= self._where.mask(a, b)
        return [*a.columns, *b.columns], same

    def _found(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Yield pairs as result rows, in pieces."""
        for piece in self._cut(left, right):
            yield self._results(left[piece], right[piece])

    def _cut(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> Iterator[slice]:
        """Cut pairs into pieces of bounded size."""
        taken = self._payload[0].widths_of(left) + self._payload[1].widths_of(right)
        return cut(len(left), taken, self._piece)

    def _results(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> pa.RecordBatch:
        """Return pairs as result rows."""
        columns, same = self._paired(left, right)
        if self.spec.count_from is not None:
            same &= self._times_of(columns) >= self.spec.count_from
        result = pa.RecordBatch.from_arrays(columns, schema=self.spec.result_schema)
        if not same.all():
            result = result.filter(pa.array(same))
        self._flows["results"] += result.num_rows
        self._importance += self._importance_of(result)
        return result

    def _times_of(self, columns: list[pa.Array]) -> NDArray[Any]:
        """Return the time of each result, which is that of its later row."""
        left, right = self.spec.sides
        at = left.schema.get_field_index(left.time)
        other = len(left.schema) + right.schema.get_field_index(right.time)
        later: NDArray[Any] = np.maximum(
            times(columns[at], self.spec.unit), times(columns[other], self.spec.unit)
        )
        return later

    def _importance_of(self, result: pa.RecordBatch) -> float:
        left, right = self.spec.sides
        if left.importance is None or right.importance is None:
            return float(result.num_rows)
        columns = [
            as_floats(result.column(left.schema.get_field_index(left.importance))),
            as_floats(
                result.column(len(left.schema) + right.schema.get_field_index(right.importance))
            ),
        ]
        with np.errstate(over="ignore"):  # an overflow gives infinity
            return float(COMBINE[self.spec.combine](*columns).sum())

    def _settle(
        self,
        given: list[list[pa.RecordBatch]],
        batch: layout.Batch,
        order: NDArray[np.int64],
        left: int,
        first: list[int],
        close: bool,
    ) -> None:
        """Keep the rows of the open tick, and drop rows that are not held."""
        tables = self._tables
        start = len(order)
        if not close and len(order) and batch.time[-1] >= tables.core.clock[0]:
            start = int(np.searchsorted(batch.time, batch.time[-1]))
        rows = np.sort(order[start:])
        split = int(np.searchsorted(rows, left))
        for s, own in enumerate((rows[:split], rows[split:] - left)):
            self._open[s] = gather(given[s], self._schemas[s], own)
        self._trim(tables.fresh(), first)

    def _trim(self, slots: NDArray[np.int64], first: Sequence[int]) -> None:
        """Drop the payload of rows from `first` on, by side, that are in none of the slots."""
        spans = [(start, payload.rows) for start, payload in zip(first, self._payload, strict=True)]
        # If most rows were admitted, the rest may wait, unless memory is counted in bytes.
        if self.spec.in_bytes or 2 * len(slots) < sum(stop - start for start, stop in spans):
            kept = self._tables.keep_rows(slots, spans)
            for start, rows, payload in zip(first, kept, self._payload, strict=True):
                payload.trim(start, rows)
        self._sweep(tight=self._overweight)
        for payload in self._payload:
            payload.join_chunks()

    def _sweep(self, *, tight: bool) -> None:
        """Drop the payload of rows that are not held, if it is large or `tight` is set."""
        tables = self._tables
        due = [
            payload.rows > 0 and (tight or payload.wants_trim(tables.held_on(s)))
            for s, payload in enumerate(self._payload)
        ]
        if any(due):
            spans = [(0, p.rows * now) for p, now in zip(self._payload, due, strict=True)]
            kept = tables.keep_rows(tables.every(), spans)
            for s in np.flatnonzero(due):
                self._payload[s].trim(0, kept[s])

    def _no_rows(self, side: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], self._schemas[side])

    # ---- what was shed, and counters ----------------------------------------------------------

    def _note_run(
        self, batch: layout.Batch, out: layout.Output, clocks: NDArray[Any], *, close: bool
    ) -> None:
        """Record the rows that left in a run of the loop, and those that came out of order."""
        if self._keep_shed:
            core = self._tables.core
            waits = not close and len(batch.time) > 0 and bool(batch.time[-1] >= core.clock[0])
            noted = int(core.scalars[0].noted)
            self._shed_log.ran(batch, out, noted, self._payload, clocks, waits)

    def _note_shed(self, out: layout.Output) -> None:
        """Record the rows that left between two runs of the loop."""
        self._shed_log.advanced(out, int(self._tables.core.scalars[0].noted), self._payload)

    def note_dropped(self, side: int, batch: pa.RecordBatch, when: NDArray[Any]) -> None:
        """Record prepared rows that were dropped before they reached the join."""
        self._shed_log.never_came(side, batch, when)

    def take_shed(self) -> pa.Table:
        """Return the lines of the archive since the last call; see `shed_log`."""
        return self._shed_log.take()

    def take_counters(self) -> dict[str, int | float]:
        """Return the counters: events since the last call, and the present state."""
        scalars = self._tables.core.scalars[0]
        for name in _COUNTED:
            self._flows[name] += int(scalars[name])
            scalars[name] = 0
        taken: dict[str, int | float] = {**self._flows, "importance": self._importance}
        self._flows = dict.fromkeys(FLOWS, 0)
        self._importance = 0.0
        left, right = self._tables.held_on(0), self._tables.held_on(1)
        allowed = self._shares[int(scalars.change)]
        if allowed is not None:
            taken["allowed"] = allowed
        return taken | {
            "held": left + right,
            "held_left": left,
            "held_right": right,
            "waiting": sum(b.num_rows for b in self._open),
            "queued": 0,
            "bytes": self._bytes(),
        }

    def _bytes(self) -> int:
        """Return the bytes in use: payload, including rows to be dropped, and indexes."""
        return self._tables.held * TUPLE_OVERHEAD + sum(p.nbytes for p in self._payload)

    @property
    def _overweight(self) -> bool:
        """True if payload that is no longer held takes more than its reserve."""
        budgets = self._tables.core.pools["budget"][: self._rules.pools]
        return self.spec.in_bytes and self._bytes() > sum(budgets.tolist())

    # ---- state --------------------------------------------------------------------------------

    def _head(self) -> dict[str, Any]:
        core = self._tables.core
        scalars = {name: int(core.scalars[0][field]) for name, field in _SCALARS.items()}
        arrays = {"stream_clock": core.stream_clock.tolist(), "floor": core.floor.tolist()}
        arrays |= {"model": plain(core.model)[0].tolist(), "quality": plain(core.quality).tolist()}
        own = {"clock": core.clock[0].item(), "budget_update": self.budget_update}
        place = self._shed_log.head() if self._keep_shed else {}
        return {**own, **arrays, **scalars, **self._candidates.head(core), **place}

    def _parts(self, *, changed: bool) -> Parts:
        tables, core = self._tables, self._tables.core
        some = changed and not core.scalars[0].rewritten
        return {
            "rates" if some else "all_rates": tables.rates(changed=some),
            **({"learned": tables.learned()} if changed else {}),
            **tables.priorities(changed=changed),
            **self._candidates.record(core, changed=changed),
            **tables.arrivals(changed=changed),
            **self._model(changed=changed),
        }

    def _model(self, *, changed: bool) -> Parts:
        """Return the parts of what was learned from ghosts, all of it in every record."""
        return self._tables.model() if len(self._tables.core.ghosts) else {}

    def _gone(self) -> NDArray[np.int64]:
        core = self._tables.core
        return core.gone[: core.scalars[0].gone]

    def _held_rows(
        self, stream: int, most: tuple[int, int] | None, *, changed: bool
    ) -> Iterator[pa.RecordBatch]:
        tables, payload = self._tables, self._payload[stream]
        table = tables.core.slots
        slots = tables.unmarked() if changed else tables.slots_of(stream)
        slots = slots[table["group"][slots] & 1 == stream]
        for part in payload.cut(table["row"][slots], *(most or ())):
            taken = table[slots[part]]
            own = {"key": tables.core.hashes[taken["group"] >> 1]}
            own |= {name: taken[name] for name in self._logged}
            yield batch_of(own, payload.take(taken["row"]))

    def _held_size(self) -> tuple[int, int]:
        return self._tables.held, self._bytes()

    def _held_by_stream(self) -> list[int]:
        return [self._tables.held_on(side) for side in range(2)]

    def _mark(self) -> None:
        self._tables.mark()

    def restore(
        self, records: Iterable[bytes], written_with: Mapping[str, Any] | None = None
    ) -> None:
        """Load the state from a snapshot and all later changes, in order; for a new engine."""
        had_queue = written_with is not None and "cpu" in written_with and self.spec.cpu is None
        if written_with is not None and had_queue:
            queue = Replay(records)
            changed_settings.with_new_columns(queue, self.spec, written_with)
            self._queued = changed_settings.queued_rows(queue, self.spec)
            records = queue.inner
        super().restore(records, written_with)
        if written_with is not None:
            if not changed_settings.keeps_learned(self.spec, written_with):
                self._tables.start_gains()
            self._shed_excess()

    def _adapt(self, log: Replay, written_with: Mapping[str, Any]) -> None:
        changed_settings.with_new_columns(log, self.spec, written_with)
        keeps = changed_settings.keeps_learned(self.spec, written_with)
        if not keeps:
            changed_settings.without_learned(log, self._head())
        changed_settings.with_own_columns(log, self.spec, self._logged, ranked_anew=not keeps)
        # The change of a budget at the clock itself is still to come.
        passed = (step.start < log.head["clock"] for step in self.spec.budget[1:])
        log.head["change"] = sum(passed)

    def _load(self, log: Replay) -> None:
        tables, head = self._tables, log.head
        self._shed_log.load(head)
        if log.last("ghosts") is not None:
            tables.load_model({name: log.last(name) for name in self._model(changed=False)})
        for batch in log.all("sketch"):
            tables.load_sketch(batch)
        for batch in log.all("rates"):
            tables.load_rates(batch, replace=False)
        core = tables.core
        core.clock[0] = head["clock"]
        core.stream_clock[:], core.floor[:] = head["stream_clock"], head["floor"]
        plain(core.model)[0], plain(core.quality)[:] = head["model"], head["quality"]
        for name, field in _SCALARS.items():
            core.scalars[0][field] = head[name]
        tables.set_budget()
        if head["budget_update"] is not None:
            self._allow(*head["budget_update"])
        sides = [self._survivors(side, log) for side in range(2)]
        held = {name: np.concatenate([side[name] for side in sides]) for name in sides[0]}
        order = np.argsort(held["seq"], kind="stable")
        held = {name: column[order] for name, column in held.items()}
        update_rows(held, log.all("learned"), ("gain", "last"))
        if ring := log.all("ring"):
            tables.load_ring(ring, head["ring_from"], head["ring_to"])
        tables.reload(held)
        tables.load_priorities(log.all("priorities"))
        self._sweep(tight=True)
        if self.spec.frequencies is not None:
            tables.set_rates(tables.intern(held["key"]), held["joined"], *self.spec.frequencies)
            victims.requeue(tables.core, self._rules)
        self._candidates.load(tables.core, log.all("queue"), log.last("slices"), head)

    def _survivors(self, side: int, log: Replay) -> dict[str, NDArray[Any]]:
        """Return the logged rows of one side that were neither shed nor expired since."""
        types = {
            name: self.spec.unit.dtype if kind is None else np.dtype(kind)
            for name, kind in _HELD.items()
        }
        stored = {name: types[name] for name in ("key", *self._logged)}
        columns = log.held(side, stored, self._payload[side])
        total = len(columns["seq"])
        columns |= {
            name: np.full(total, _DEFAULTS[name], dtype)
            for name, dtype in types.items()
            if name not in stored
        }
        live = log.survivors(columns["seq"])
        live &= ~past(self._rules, side, columns["time"], self._tables.core.stream_clock[1 - side])
        rows = np.flatnonzero(live)
        held = {name: column[rows] for name, column in columns.items()} | {
            "row": rows,
            "side": np.full(len(rows), side, np.int64),
        }
        return held | self._located(side, held["key"], rows)

    def _located(
        self, side: int, keys: NDArray[np.uint64], rows: NDArray[np.int64]
    ) -> dict[str, NDArray[Any]]:
        """Return where held rows of one side and their partners are; see `_placed`."""
        payload, own, parts = self._payload[side], self.spec.sides[side], []
        if self._condition is not None:
            parts = [payload.take(rows[part]) for part in (slice(0, 0), *payload.cut(rows))]
            at = [own.schema.get_field_index(name) for name in own.keys]
            hashes = [hash_columns([part.column(i) for i in at], part.num_rows) for part in parts]
            keys = np.concatenate(hashes)
        places, values = self._placed(side, keys, parts)
        return {"joined": keys, "values": values, **places._asdict()}


def _opened(batch: layout.Batch) -> tuple[int, int]:
    """Return the range of the tick that was open before; its rows have probed already."""
    probed = np.flatnonzero(batch.probed)
    if len(probed) == 0:
        return len(batch.time), len(batch.time)
    time = batch.time[probed[0]]
    return int(np.searchsorted(batch.time, time)), int(np.searchsorted(batch.time, time, "right"))
