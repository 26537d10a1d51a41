"""The bounded window join: Arrow in, Arrow out, around the compiled loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import FLOWS, Clocks
from tidegate.engine.payload import Payload, gather, sizes
from tidegate.engine.pieces import cut, room
from tidegate.engine.prepare import KEY, PREPARED, ROW_HASH, TIME, payload_of, prepared_schema
from tidegate.engine.state_codec import from_bytes, in_pieces, pieces_of, to_bytes
from tidegate.joins.window import loop as window
from tidegate.joins.window import victims
from tidegate.joins.window.arrays import Tables, past
from tidegate.joins.window.candidates import Candidates
from tidegate.joins.window.rules import EXACT_LIMIT, TUPLE_OVERHEAD, rules_of, share_of
from tidegate.joins.window.spec import COMBINE, WindowJoin
from tidegate.kernel import layout
from tidegate.kernel.order import tick_order
from tidegate.kernel.records import plain
from tidegate.policies import Arrivals, ranks_of
from tidegate.settings.columns import as_floats, equal
from tidegate.settings.schedules import Step
from tidegate.sql.conditions import Predicate

#: Pairs found before results are handed over.
_ROOM = 1 << 18
#: Rows in one record of a snapshot.
_RECORD_ROWS = 1 << 16
#: Bytes of these rows; and what a log may take, whatever is held.
_RECORD_BYTES = 16 << 20

#: What is known of a held tuple besides its payload; by default a size of 1 and a rank of 0.
_HELD = {
    "key": np.uint64,
    "time": None,
    "seq": np.int64,
    "size": np.int32,
    "rank": np.float64,
    "gain": np.float64,
    "last": None,
}
_DEFAULTS = {"size": 1, "rank": 0.0, "gain": 0.0, "last": 0}
#: The numbers of the loop that a record keeps, and their fields in `layout.SCALARS`.
_SCALARS = {
    "seq": "seq",
    "epoch": "epoch",
    "started": "started",
    "census": "census_seq",
    "fit": "fit_seq",
    "thinned": "thinned",
    "change": "change",
    "ring_from": "ring_from",
    "ring_to": "ring_to",
}
#: How many ghosts there are at the most, and what is told apart besides their age.
_GHOSTS = 1024
_FEATURES = {"levels": 12, "trends": 10}

#: The counters of the loop, which are fields of `layout.SCALARS`.
_COUNTED = ("out_of_order", "late", "admitted", "rejected", "shed", "expired")


class WindowEngine:
    """A bounded join of two streams over sliding windows (ALGORITHMS section 0)."""

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
        self._shares = [
            None if step.value is None else share_of(step.value, spec, shards, shard)
            for step in spec.budget
        ]
        self._schemas = [prepared_schema(side.schema, spec.unit) for side in spec.sides]
        self._rules = rules_of(spec, shards, exact_limit, shard)
        self._tables = Tables(spec.unit.dtype, self._rules, spec.curves)
        self._candidates = Candidates(self._rules)
        if spec.memory is not None and spec.policy.learns is not None:
            shape = _FEATURES if spec.policy.learns == "rates" else {}
            self._tables.leave_ghosts(_GHOSTS, **shape)
        self._payload = [Payload(pa.schema(list(s)[PREPARED:])) for s in self._schemas]
        self._piece = room(spec.result_schema)
        self._open: list[pa.RecordBatch] = [self._no_rows(0), self._no_rows(1)]
        self._where = None
        if spec.where is not None:
            self._where = Predicate(spec.where, spec.left.schema, spec.right.schema)
        self._keep_shed = keep_shed
        self._shed: list[pa.RecordBatch] = []
        self._flows = dict.fromkeys(FLOWS, 0)
        self._importance = 0.0
        #: The last order to hold another amount: its number, and how much.
        self.budget_update: tuple[int, int] | None = None
        self._logged_rows = 0
        self._logged_bytes = 0
        # What a record says of a held tuple besides its key and payload: nothing that is constant.
        self._logged = ["time", "seq"]
        self._logged += ["size"] if spec.in_bytes else []
        scored = self._rules.kind == layout.BY_SCORE
        self._logged += ["rank"] if scored or self._rules.kind == layout.BY_TUPLE else []
        self._logged += ["gain", "last"] if scored else []

    # ---- input and output ---------------------------------------------------------------------

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Take prepared batches of the left and the right; give results as they are found."""
        self._flows["arrived"] += sum(b.num_rows for side in inputs for b in side)
        known = [clock for clock in clocks or () if clock is not None]
        yield from self._run(inputs, close=bool(known) and self._closes(inputs, max(known)))
        if clocks is not None:
            stream_clock, number = self._tables.core.stream_clock, self.spec.unit.dtype.type
            told = [stream_clock[s] if t is None else number(t) for s, t in enumerate(clocks)]
            self._advance(*told)

    def _advance(self, *told: Any) -> None:
        """Hear how far the streams have come, and see to what that makes leave."""
        core, out = self._tables.core, self._output(0, pairs=0)
        core.scalars[0].noted = 0
        evicted = core.scalars[0].shed
        window.advance(core, self._rules, out, *told)
        if core.scalars[0].shed > evicted:
            self._note_shed(out)
            self._sweep(tight=self._overweight)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Close the tick that is still open."""
        yield from self._run(((), ()), close=True)

    def resize(self, number: int, memory: int) -> None:
        """Follow an order to hold no more than this, tuples or bytes, of which 0 is none.

        What does not fit leaves at once, as if it had to make room.
        """
        before, stream_clock = self._rules.budgets[-1:], self._tables.core.stream_clock
        self._allow(number, memory)
        final = self._rules
        # A change of the memory at the beginning of all times, for the loop to act on.
        both = np.concatenate([before, final.budgets])
        first = np.full(
            1, -np.inf if stream_clock.dtype.kind == "f" else layout.NEVER, stream_clock.dtype
        )
        self._rules = final._replace(budgets=both, changes=first)
        self._tables.allow(self._rules)
        self._advance(*stream_clock)
        self._tables.core.scalars[0].change = 0
        self._rules = final
        self._tables.allow(final)

    def _allow(self, number: int, memory: int) -> None:
        """Go by the rules of another memory, which must do for what is held."""
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
        """Whether the clock lies after all that is given and all that is waiting."""
        batches = [b for side in inputs for b in side] + self._open
        return all(b.num_rows == 0 or b.column(TIME).to_numpy().max() < clock for b in batches)

    def _run(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], close: bool
    ) -> Iterator[pa.RecordBatch]:
        waiting = [batch.num_rows for batch in self._open]
        given = [[self._open[s], *inputs[s]] for s in range(2)]
        if not any(b.num_rows for side in given for b in side):
            return
        first = [self._payload[s].add([payload_of(b) for b in given[s]]) for s in range(2)]
        batch, order, left = self._batch(given, waiting, first)
        core = self._tables.core
        opened = _opened(batch)
        self._tables.begin_batch()
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
        self._note_shed(out)
        self._settle(given, batch, order, left, first, close)

    def _batch(
        self, given: list[list[pa.RecordBatch]], waiting: list[int], first: list[int]
    ) -> tuple[layout.Batch, NDArray[np.int64], int]:
        """The newcomers as sorted arrays; also the order, and how many are of the left."""
        column = {
            name: [np.concatenate([b.column(name).to_numpy() for b in side]) for side in given]
            for name in (KEY, TIME, ROW_HASH)
        }
        left, right = (len(times) for times in column[TIME])
        key, time, row_hash = (np.concatenate(column[name]) for name in (KEY, TIME, ROW_HASH))
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
        size = np.ones(len(order), np.int64)
        if self.spec.in_bytes:
            weights = [sizes(payload_of(b)) for s in given for b in s]
            size = TUPLE_OVERHEAD + np.concatenate(weights)[order] * 5 // 4
            size = np.minimum(size, np.iinfo(np.int32).max)
        self._tables.make_room(len(order), late)
        entry = self._tables.intern(key)
        if self.spec.frequencies is not None:
            self._tables.set_rates(np.unique(entry), *self.spec.frequencies)
        weight = np.ones(len(order))
        if self.spec.left.importance is not None:
            weight = np.concatenate([self._weights(s, given[s]) for s in range(2)])[order]
        if self._rules.kind == layout.BY_TUPLE:
            arrivals = Arrivals(time, side, key, row_hash, weight, self.spec.seed)
            rank = ranks_of(self.spec.policy, arrivals)
        else:
            rank = weight
        newcomers = layout.Batch(time, side, key, entry, row[order], size, rank, probed[order])
        return newcomers, order, left

    def _weights(self, side: int, batches: list[pa.RecordBatch]) -> NDArray[np.float64]:
        """How important the rows of one side are."""
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
            np.empty(n, np.bool_),
        )

    def _paired(
        self, left: NDArray[np.int64], right: NDArray[np.int64]
    ) -> tuple[list[pa.Array], NDArray[np.bool_]]:
        """The pairs' columns, and which of them join: not those whose hashes only were equal."""
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
        """The pairs as rows, in pieces."""
        for piece in self._cut(left, right):
            yield self._results(left[piece], right[piece])

    def _cut(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> Iterator[slice]:
        """Cut pairs so that the rows of each piece fit into one."""
        taken = self._payload[0].widths_of(left) + self._payload[1].widths_of(right)
        return cut(len(left), taken, self._piece)

    def _results(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> pa.RecordBatch:
        """The pairs as rows."""
        columns, same = self._paired(left, right)
        result = pa.RecordBatch.from_arrays(columns, schema=self.spec.result_schema)
        if not same.all():
            result = result.filter(pa.array(same))
        self._flows["results"] += result.num_rows
        self._importance += self._importance_of(result)
        return result

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
        with np.errstate(over="ignore"):  # what is beyond all numbers is infinite
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
        """After a batch: remember the open tick, and drop the rows that nobody holds."""
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
        """Drop of the rows from each side's `first` on those that none of the slots given holds."""
        spans = [(start, payload.rows) for start, payload in zip(first, self._payload, strict=True)]
        # Where most were admitted, those that are dead may wait, if it is tuples that are counted.
        if self.spec.in_bytes or 2 * len(slots) < sum(stop - start for start, stop in spans):
            kept = self._tables.keep_rows(slots, spans)
            for start, rows, payload in zip(first, kept, self._payload, strict=True):
                payload.trim(start, rows)
        self._sweep(tight=self._overweight)
        for payload in self._payload:
            payload.join_chunks()

    def _sweep(self, *, tight: bool) -> None:
        """Drop the rows that nobody holds, if they are many or must go."""
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

    def _note_shed(self, out: layout.Output) -> None:
        n = int(self._tables.core.scalars[0].noted)
        for s in range(2):
            mine = np.flatnonzero(out.shed_side[:n] == s)
            if len(mine) == 0:
                continue
            for part in self._payload[s].cut(out.shed_row[mine]):
                own = mine[part]
                rows = self._payload[s].take(out.shed_row[own])
                why = np.where(out.shed_held[own], "shed", "rejected")
                self._depart(s, rows, out.shed_time[own], why)

    def note_dropped(self, side: int, batch: pa.RecordBatch, when: NDArray[Any], why: str) -> None:
        """Take down prepared rows that never reached the join."""
        self._depart(side, payload_of(batch), when, np.full(batch.num_rows, why))

    def _depart(
        self, side: int, rows: pa.RecordBatch, when: NDArray[Any], why: NDArray[np.str_]
    ) -> None:
        if rows.num_rows == 0:
            return
        name = "left" if side == 0 else "right"
        fields = list(self.spec.sides[side].schema)
        columns = [
            pa.array([name] * rows.num_rows),
            pa.array(when),
            pa.array(why, pa.string()),
            pa.StructArray.from_arrays(rows.columns, fields=fields),
        ]
        self._shed.append(
            pa.RecordBatch.from_arrays(columns, names=["side", "shed_at", "why", name])
        )

    def take_shed(self) -> pa.Table:
        """Early departures since the last call: which side, when, why, and the tuple itself."""
        schema = pa.schema(
            [
                ("side", pa.string()),
                ("shed_at", pa.from_numpy_dtype(self.spec.unit.dtype)),
                ("why", pa.string()),
                ("left", pa.struct(list(self.spec.left.schema))),
                ("right", pa.struct(list(self.spec.right.schema))),
            ]
        )
        parts = [pa.Table.from_batches([b]) for b in self._shed]
        self._shed = []
        return pa.concat_tables([schema.empty_table(), *parts], promote_options="default")

    def take_counters(self) -> dict[str, int | float]:
        """Flows since the last call, and gauges as they are now."""
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
        """What is held: payload, dead rows among it, and indexes."""
        return self._tables.held * TUPLE_OVERHEAD + sum(p.nbytes for p in self._payload)

    @property
    def _overweight(self) -> bool:
        """Whether dead rows take more than what is set aside for them."""
        budgets = self._tables.core.pools["budget"][: self._rules.pools]
        return self.spec.in_bytes and self._bytes() > sum(budgets.tolist())

    # ---- state --------------------------------------------------------------------------------

    def changes(self) -> bytes:
        """What has changed since the last record was made."""
        core = self._tables.core
        rewritten = bool(core.scalars[0].rewritten)
        gone = pa.array(core.gone[: core.scalars[0].gone].copy())
        new = self._tables.unmarked()
        parts = {
            "gone": pa.record_batch([gone], ["seq"]),
            "rates": self._tables.rates(changed=not rewritten),
            "learned": self._tables.learned(),
            **self._tables.priorities(changed=True),
            **self._candidates.record(core, changed=True),
            **self._tables.arrivals(changed=True),
            **self._model(),
            **{f"open{s}": self._open[s] for s in range(2)},
        }
        for s in range(2):
            parts |= in_pieces(f"held{s}", self._held_rows(s, new))
        record = to_bytes(self._head() | {"all_rates": rewritten}, parts)
        self._logged_rows += len(new) + len(gone)
        self._logged_bytes += len(record)
        self._tables.mark()
        return record

    def snapshot(self) -> list[bytes]:
        """The whole state."""
        parts: dict[str, pa.RecordBatch] = {
            "rates": self._tables.rates(changed=False),
            **self._tables.priorities(changed=False),
            **self._candidates.record(self._tables.core, changed=False),
            **self._tables.arrivals(changed=False),
            **self._model(),
            **{f"open{s}": self._open[s] for s in range(2)},
        }
        records = [to_bytes(self._head() | {"all_rates": True}, parts)]
        for s in range(2):
            slots = self._tables.slots_of(s)
            for held in self._held_rows(s, slots, _RECORD_ROWS, _RECORD_BYTES):
                records.append(to_bytes(self._head() | {"all_rates": False}, {f"held{s}": held}))
        self._logged_rows = self._tables.held
        self._logged_bytes = sum(map(len, records))
        self._tables.mark()
        return records

    @property
    def log_is_heavy(self) -> bool:
        """Whether more than three quarters of what was logged is dead."""
        return (
            self._logged_rows > 4 * self._tables.held + _RECORD_ROWS
            or self._logged_bytes > 4 * self._bytes() + _RECORD_BYTES
        )

    def _head(self) -> dict[str, Any]:
        core = self._tables.core
        scalars = {name: int(core.scalars[0][field]) for name, field in _SCALARS.items()}
        clocks = {"clock": core.clock[0].item(), "heard": core.stream_clock.tolist()}
        model = {"floor": core.floor.tolist(), "model": plain(core.model)[0].tolist()}
        model["quality"] = plain(core.quality).tolist()
        queue = self._candidates.head(core)
        return {**clocks, **model, **scalars, **queue, "order": self.budget_update}

    def _model(self) -> dict[str, pa.RecordBatch]:
        return self._tables.model() if len(self._tables.core.ghosts) else {}

    def _held_rows(
        self, side: int, slots: NDArray[np.int64], *most: int
    ) -> Iterator[pa.RecordBatch]:
        """Give the held rows of one side as they go into a record, in pieces (`Payload.cut`)."""
        table = self._tables.core.slots
        slots = slots[table["group"][slots] & 1 == side]
        for part in self._payload[side].cut(table["row"][slots], *most):
            taken = table[slots[part]]
            keys = self._tables.core.hashes[taken["group"] >> 1]
            own = {"key": keys} | {name: taken[name] for name in self._logged}
            rows = self._payload[side].take(taken["row"])
            names = [*own, *(f"c{i}" for i in range(rows.num_columns))]
            columns = [pa.array(np.ascontiguousarray(column)) for column in own.values()]
            yield pa.RecordBatch.from_arrays([*columns, *rows.columns], names)

    def restore(self, records: Iterable[bytes]) -> None:
        """Become what the records say; for a new engine."""
        head: dict[str, Any] = {}
        held: list[list[pa.RecordBatch]] = [[], []]
        gone = [np.empty(0, np.int64)]
        names = ("learned", "priorities", "ring", "queue")
        logs: dict[str, list[pa.RecordBatch]] = {name: [] for name in names}
        for record in records:
            head, parts = from_bytes(record)
            self._logged_bytes += len(record)
            for s in range(2):
                held[s] += pieces_of(parts, f"held{s}")
                self._open[s] = parts.get(f"open{s}", self._open[s])
            if "gone" in parts:
                gone.append(parts["gone"].column(0).to_numpy())
            if "ghosts" in parts:
                self._tables.load_model(parts)
            for name, log in logs.items():
                log += [parts[name]] if name in parts else []
            if "sketch" in parts:
                self._tables.load_sketch(parts["sketch"])
            if "rates" in parts:
                self._tables.load_rates(parts["rates"], replace=head["all_rates"])
        core = self._tables.core
        core.clock[0] = head["clock"]
        core.stream_clock[:] = head["heard"]
        core.floor[:] = head["floor"]
        plain(core.model)[0] = head["model"]
        plain(core.quality)[:] = head["quality"]
        for name, field in _SCALARS.items():
            core.scalars[0][field] = head[name]
        self._tables.set_budget()
        if head.get("order") is not None:
            self._allow(*head["order"])
        departed = np.concatenate(gone)
        sides = [self._survivors(s, held[s], departed) for s in range(2)]
        merged = {name: np.concatenate([side[name] for side in sides]) for name in sides[0]}
        order = np.argsort(merged["seq"], kind="stable")
        merged = {name: column[order] for name, column in merged.items()}
        for batch in logs["learned"]:
            _update(merged, batch)
        if logs["ring"]:
            self._tables.load_ring(logs["ring"], head["ring_from"], head["ring_to"])
        self._tables.reload(merged)
        self._tables.load_priorities(logs["priorities"])
        self._sweep(tight=True)
        if self.spec.frequencies is not None:
            self._tables.set_rates(self._tables.intern(merged["key"]), *self.spec.frequencies)
            victims.requeue(self._tables.core, self._rules)
        self._candidates.load(self._tables.core, logs["queue"], head)
        self._logged_rows = sum(b.num_rows for side in held for b in side) + len(departed)
        self._tables.mark()

    def _survivors(
        self, side: int, batches: list[pa.RecordBatch], departed: NDArray[np.int64]
    ) -> dict[str, NDArray[Any]]:
        """The logged tuples of one side that have neither been shed nor expired since."""
        payload = self._payload[side]
        payload.add(
            [
                pa.RecordBatch.from_arrays(
                    b.columns[1 + len(self._logged) :], schema=payload.schema
                )
                for b in batches
            ]
        )
        columns: dict[str, NDArray[Any]] = {}
        total = sum(b.num_rows for b in batches)
        for name, kind in _HELD.items():
            dtype = self.spec.unit.dtype if kind is None else np.dtype(kind)
            if name in ("key", *self._logged):
                parts = [b.column(name).to_numpy() for b in batches]
                columns[name] = np.concatenate([np.empty(0, dtype), *parts])
            else:
                columns[name] = np.full(total, _DEFAULTS[name], dtype)
        live = ~np.isin(columns["seq"], departed)
        live &= ~past(self._rules, side, columns["time"], self._tables.core.stream_clock[1 - side])
        rows = np.flatnonzero(live)
        return {name: column[rows] for name, column in columns.items()} | {
            "row": rows,
            "side": np.full(len(rows), side, np.int64),
        }


def _update(held: dict[str, NDArray[Any]], learned: pa.RecordBatch) -> None:
    """Take in what was learned of held tuples, which are in order of their sequence numbers."""
    seq = learned.column("seq").to_numpy()
    at = np.minimum(np.searchsorted(held["seq"], seq), max(len(held["seq"]) - 1, 0))
    known = held["seq"][at] == seq if len(held["seq"]) else np.zeros(len(seq), np.bool_)
    for name in ("gain", "last"):
        held[name][at[known]] = learned.column(name).to_numpy()[known]


def _opened(batch: layout.Batch) -> tuple[int, int]:
    """Where in the batch the tick stands that was open before and has probed."""
    probed = np.flatnonzero(batch.probed)
    if len(probed) == 0:
        return len(batch.time), len(batch.time)
    time = batch.time[probed[0]]
    return int(np.searchsorted(batch.time, time)), int(np.searchsorted(batch.time, time, "right"))
