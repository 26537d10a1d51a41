"""The constrained join: an n-way join whose state shrinks by itself (k-constraints).

Arrow in, Arrow out, around the compiled loop of `kernel.constrained`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.columns import equal, hash_columns, plain
from tidegate.constrained_spec import ConstrainedJoin, Stream
from tidegate.engines.base import FLOWS, Clocks
from tidegate.engines.constrained_tables import Tables, sample_threshold
from tidegate.engines.payload import Payload, one_batch
from tidegate.engines.prepare import KEY, TIE, TIME
from tidegate.engines.records import from_bytes, to_bytes
from tidegate.kernel import constrained as loop
from tidegate.kernel import constrained_layout as layout
from tidegate.kernel.constrained_state import load_group, load_slots
from tidegate.kernel.order import tick_order
from tidegate.predicates import Predicate
from tidegate.times import times

#: Results found before they are handed over, and newcomers taken at once.
_ROOM = 1 << 16
_CHUNK = 1 << 15
#: Rows in one record of a snapshot.
_RECORD_ROWS = 1 << 16
#: What a log may take, whatever is held.
_RECORD_BYTES = 16 << 20
#: What a held tuple costs besides its payload: its slot, its links and timers, its groups.
TUPLE_OVERHEAD = 256
#: What a key costs that is remembered without a tuple.
KEY_OVERHEAD = 96
BITS = "bits"

_COUNTED = {
    "late": layout.LATE,
    "null_keys": layout.NULL_KEYS,
    "expired": layout.EXPIRED,
    "eliminated": layout.ELIMINATED,
    "violations": layout.VIOLATIONS,
}
#: What is written of a tuple, besides its links and its payload.
_SLOT = ("seq", "num", "time", "end", "status", "sampled", "kept")
_MOVED = ("seq", "status", "kept", "bare", "base")
_WATCHED = ("k", "used", "seen", "since", "opened", "begun")
_CHOSEN = ("keep", "cost", "judged", "idle", "worth", "noted")
_STATE = (*_WATCHED, *_CHOSEN, "counts", "clock", "low")


class ConstrainedJob:
    """A constrained join as something to send to where it runs."""

    def __init__(self, spec: ConstrainedJoin) -> None:
        self.spec = spec

    @property
    def result_schema(self) -> pa.Schema:
        """The selected columns."""
        return self.spec.result_schema

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Hash the keys of one input's rows, and see which pass their filter.

        Rows that pass none are not dropped: windows and constraints count all of a stream.
        """
        return _prepare(self.spec, stream, batch)

    def engine(self, shards: int) -> ConstrainedEngine:
        """The engine of one shard."""
        return ConstrainedEngine(self.spec)

    def fingerprint(self) -> dict[str, Any]:
        """The settings that a checkpoint depends on."""
        return self.spec.settings()


class _Side:
    """Where in a prepared batch of one stream what is found."""

    def __init__(self, spec: ConstrainedJoin, at: int) -> None:
        self.stream = spec.streams[at]
        edges = spec.graph.edges
        self.keys = [edges[e].parent_keys for e in spec.graph.children(at)]
        self.keys += [edges[e].child_keys for e in spec.graph.parents(at)]
        if self.stream.by is not None:
            self.keys.append((self.stream.by,))
        head = [(KEY, pa.uint64()), (TIME, pa.int64()), (TIE, pa.uint64()), (BITS, pa.uint8())]
        hashes = [(f"h{j}", pa.uint64()) for j in range(len(self.keys))]
        values = [(f"v{j}", pa.int64()) for j in range(len(self.stream.ordered))]
        payload = [(f"c{i}", f.type) for i, f in enumerate(self.stream.kept_schema)]
        self.payload_at = len(head) + len(hashes) + len(values)
        self.schema = pa.schema([pa.field(n, t) for n, t in head + hashes + values + payload])
        self.payload_schema = pa.schema(list(self.schema)[self.payload_at :])

    def payload(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            batch.columns[self.payload_at :], schema=self.payload_schema
        )


def _prepare(
    spec: ConstrainedJoin, at: int, batch: pa.RecordBatch
) -> tuple[pa.RecordBatch, dict[str, int]]:
    side = _Side(spec, at)
    stream = side.stream
    timed = batch.column(stream.time).is_valid()
    dropped = {"null_times": batch.num_rows - timed.true_count}
    if timed.true_count < batch.num_rows:
        batch = batch.filter(timed)
    rows = batch.num_rows
    keyed = np.ones(rows, np.bool_)
    joined = side.keys if stream.by is None else side.keys[:-1]
    for name in {name for names in joined for name in names}:
        keyed &= batch.column(name).is_valid().to_numpy(zero_copy_only=False)
    bits = np.where(keyed, layout.KEYED, 0).astype(np.uint8)
    bits[_passing(stream, batch) & keyed] |= layout.PASSES
    ties = hash_columns(batch.columns, rows, exact=True)
    if spec.watched:
        bits[ties < sample_threshold(spec.monitor.p)] |= layout.SAMPLED
    shards = spec.shard_columns
    key = ties if shards is None else hash_columns([batch.column(shards[at])], rows)
    when = times(batch.column(stream.time), spec.unit)
    columns = [pa.array(key), pa.array(when), pa.array(ties), pa.array(bits)]
    for names in side.keys:
        columns.append(pa.array(hash_columns([batch.column(n) for n in names], rows)))
    columns += [pa.array(order_of(batch.column(name))) for name in stream.ordered]
    columns += [batch.column(name) for name in stream.kept]
    return pa.RecordBatch.from_arrays(columns, schema=side.schema), dropped


def _passing(stream: Stream, batch: pa.RecordBatch) -> NDArray[np.bool_]:
    if stream.filter is None:
        return np.ones(batch.num_rows, np.bool_)
    empty = pa.schema([])
    nothing = pa.RecordBatch.from_pylist([], empty)
    return Predicate(stream.filter, stream.schema, empty).mask(batch, nothing)


def order_of(column: pa.Array) -> NDArray[np.int64]:
    """Whole numbers in the order of a column's values; nulls anywhere."""
    column = plain(column)
    kind = column.type
    if pa.types.is_floating(kind):
        reals = np.asarray(column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False))
        reals = np.where(np.isnan(reals), np.inf, reals + 0.0)
        bits = reals.view(np.int64)
        order: NDArray[np.int64] = np.where(bits < 0, np.int64(-(2**63)) - bits, bits) >> 1
        return order
    if pa.types.is_decimal(kind):
        shift = pa.scalar(10**kind.scale).cast(pa.decimal128(19, 0))
        column = pc.multiply(column, shift).cast(pa.int64(), safe=False)
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    values = np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))
    # Within half of what fits, so that sums with any k do; the order of the far ends is lost.
    clipped: NDArray[np.int64] = np.clip(values, -(2**61), 2**61).astype(np.int64)
    return clipped


class ConstrainedEngine:
    """A select-project-join over n streams that exploits constraints (section 3 to 6)."""

    def __init__(self, spec: ConstrainedJoin) -> None:
        self.spec = spec
        self._sides = [_Side(spec, at) for at in range(len(spec.streams))]
        self._tables = Tables(spec)
        self._payload = [Payload(side.payload_schema) for side in self._sides]
        self._open = [self._no_rows(s) for s in range(len(self._sides))]
        self._flows = dict.fromkeys(FLOWS, 0)
        self._logged_rows = 0
        self._logged_bytes = 0

    # ---- input and output ---------------------------------------------------------------------

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Take prepared batches of every stream; give results as they are found."""
        self._flows["arrived"] += sum(b.num_rows for side in inputs for b in side)
        told = [clock for clock in clocks or () if clock is not None]
        yield from self._run(inputs, int(max(told)) if told else None)
        if told and clocks is not None:
            never = -layout.NEVER
            heard = np.array([never if c is None else int(c) for c in clocks], np.int64)
            if (heard > self._tables.core.clock).any():
                self._tables.make_room(1)
                loop.hear(self._tables.core, self._tables.plan, heard)
                yield from self._loop(self._no_batch())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Take the tick that is still open."""
        yield from self._run([[] for _ in self._sides], layout.NEVER)

    def _run(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], told: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Take all rows but those of the latest time, of which more may come."""
        given = [
            one_batch(pa.Table.from_batches([self._open[s], *inputs[s]]))
            for s in range(len(self._sides))
        ]
        lengths = [batch.num_rows for batch in given]
        if not any(lengths):
            return
        time = np.concatenate([batch.column(TIME).to_numpy() for batch in given])
        stream = np.repeat(np.arange(len(given), dtype=np.int8), lengths)
        tie = np.concatenate([batch.column(TIE).to_numpy() for batch in given])
        order = tick_order(time, lengths[0], stream, tie, tie)
        latest = time[order[-1]]
        ready = len(order)
        if (told is None or told <= latest) and latest >= self._tables.core.clock.max():
            ready = int(np.searchsorted(time[order], latest))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        waiting = np.sort(order[ready:])
        for s, batch in enumerate(given):
            own = waiting[(waiting >= starts[s]) & (waiting < starts[s + 1])] - starts[s]
            self._open[s] = batch.take(pa.array(own)) if len(own) else self._no_rows(s)
        order = order[:ready]
        first = [self._payload[s].add([self._sides[s].payload(b)]) for s, b in enumerate(given)]
        newcomers = self._batch(given, order, time, stream, starts, first)
        for at in range(0, ready, _CHUNK):
            part = layout.Batch(*(column[at : at + _CHUNK] for column in newcomers))
            yield from self._loop(part)
        self._drop_rows(first)

    def _batch(
        self,
        given: list[pa.RecordBatch],
        order: NDArray[np.int64],
        time: NDArray[np.int64],
        stream: NDArray[np.int8],
        starts: NDArray[np.int64],
        first: list[int],
    ) -> layout.Batch:
        """The newcomers as arrays, in their order."""
        width = self._tables.core.links.shape[1]
        ordered = max(1, *(len(side.stream.ordered) for side in self._sides))
        hashes = np.zeros((len(time), width), np.uint64)
        values = np.zeros((len(time), ordered), np.int64)
        bits = np.zeros(len(time), np.uint8)
        row = np.zeros(len(time), np.int64)
        end = np.full(len(time), layout.NEVER, np.int64)
        for s, (side, batch) in enumerate(zip(self._sides, given, strict=True)):
            mine = slice(starts[s], starts[s + 1])
            for j in range(len(side.keys)):
                hashes[mine, j] = batch.column(f"h{j}").to_numpy()
            for j in range(len(side.stream.ordered)):
                values[mine, j] = batch.column(f"v{j}").to_numpy()
            bits[mine] = batch.column(BITS).to_numpy()
            row[mine] = first[s] + np.arange(batch.num_rows)
            if side.stream.window is not None:
                end[mine] = time[mine] + side.stream.window
        return layout.Batch(
            stream[order],
            time[order],
            end[order],
            row[order],
            bits[order],
            hashes[order],
            values[order],
        )

    def _no_batch(self) -> layout.Batch:
        empty = [self._no_rows(s) for s in range(len(self._sides))]
        nothing = np.zeros(0, np.int64)
        starts = np.zeros(len(self._sides) + 1, np.int64)
        first = [0] * len(self._sides)
        return self._batch(empty, nothing, nothing, nothing.astype(np.int8), starts, first)

    def _loop(self, newcomers: layout.Batch) -> Iterator[pa.RecordBatch]:
        """Run the compiled loop over newcomers."""
        tables = self._tables
        tables.make_room(len(newcomers.time))
        tables.core.ints[layout.AT] = 0
        out = np.empty((_ROOM, len(self._sides)), np.int64)
        stopped = loop.FULL
        while stopped != loop.DONE:
            found, stopped = loop.run(tables.core, tables.plan, newcomers, out, 0)
            if found:
                yield self._results(out[:found])
            elif stopped == loop.FULL:
                out = np.empty((2 * len(out), len(self._sides)), np.int64)

    def _results(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        """Results as rows, less those whose keys only had the same hash."""
        parts = [p.take(np.ascontiguousarray(rows[:, s])) for s, p in enumerate(self._payload)]
        streams = self.spec.streams
        same = np.ones(len(rows), np.bool_)
        for edge in self.spec.graph.edges:
            for a, b in zip(edge.parent_keys, edge.child_keys, strict=True):
                one = parts[edge.parent].column(streams[edge.parent].kept.index(a))
                other = parts[edge.child].column(streams[edge.child].kept.index(b))
                same &= equal(one, other)
        columns = [parts[s].column(streams[s].kept.index(name)) for s, name in self.spec.selected]
        result = pa.RecordBatch.from_arrays(columns, schema=self.spec.result_schema)
        if not same.all():
            result = result.filter(pa.array(same))
        self._flows["results"] += result.num_rows
        return result

    def _drop_rows(self, first: list[int]) -> None:
        """Drop the rows that nobody holds: the new ones at once, others when they are many."""
        slots = self._tables.core.slots
        used = self._tables.used_slots()
        used = used[slots["row"][used] >= 0]
        for s, payload in enumerate(self._payload):
            mine = used[slots["stream"][used] == s]
            mine = mine[np.argsort(slots["row"][mine], kind="stable")]
            rows = slots["row"][mine]
            new = int(np.searchsorted(rows, first[s]))
            payload.trim(first[s], rows[new:])
            rows[new:] = first[s] + np.arange(len(rows) - new)
            payload.join_chunks()
            if payload.wants_rewrite(len(rows)):
                payload.rewrite(rows)
                rows = np.arange(len(rows))
            slots["row"][mine] = rows

    def _no_rows(self, stream: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], self._sides[stream].schema)

    # ---- counters -----------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """How many tuples are held, in all components."""
        return self._tables.held

    @property
    def settled(self) -> int:
        """A time before which no result will come any more."""
        return int(self._tables.core.horizon.min())

    @property
    def latest(self) -> int:
        """The largest time that was taken."""
        return int(self._tables.core.clock.max())

    @property
    def adherence(self) -> dict[str, int | None]:
        """The k of each constraint that is used now; None for one that is not."""
        core = self._tables.core
        found: dict[str, int | None] = {}
        for known, k in zip(self.spec.constraints, core.used.tolist(), strict=True):
            idle = known.kind == "CA" and core.idle[list(known.edges)].all()
            found[known.text] = None if k == layout.NEVER or idle else k
        return found

    def take_counters(self) -> dict[str, int | float]:
        """Flows since the last call, and gauges as they are now."""
        core, ints = self._tables.core, self._tables.core.ints
        for name, at in _COUNTED.items():
            self._flows[name] += int(ints[at])
            ints[at] = 0
        share = self.spec.monitor.p
        missed = int(ints[layout.KEPT_RESULTS]) * (1 - share) / share if share else 0.0
        ints[layout.KEPT_RESULTS] = 0
        taken: dict[str, int | float] = dict(self._flows)
        taken["importance"] = float(self._flows["results"])
        self._flows = dict.fromkeys(FLOWS, 0)
        return taken | {
            "held": self._tables.held,
            "held_yes": int(core.held[:, layout.YES].sum()),
            "held_no": int(core.held[:, layout.NO].sum()),
            "held_unknown": int(core.held[:, layout.UNKNOWN].sum()),
            "waiting": sum(batch.num_rows for batch in self._open),
            "bytes": self._bytes(),
            "missed": missed,
        }

    def components(self) -> dict[str, dict[str, int]]:
        """How many tuples of each stream are in Yes, No and Unknown."""
        held = self._tables.core.held
        names = {"yes": layout.YES, "no": layout.NO, "unknown": layout.UNKNOWN}
        return {
            stream.name: {name: int(held[s, at]) for name, at in names.items()}
            for s, stream in enumerate(self.spec.streams)
        }

    def _bytes(self) -> int:
        """What is held: payload, dead rows among it, and indexes."""
        indexes = self._tables.held * TUPLE_OVERHEAD + self._tables.lone_groups() * KEY_OVERHEAD
        return indexes + sum(p.nbytes for p in self._payload)

    # ---- state --------------------------------------------------------------------------------

    def changes(self) -> bytes:
        """What has changed since the last record was made."""
        core, ints = self._tables.core, self._tables.core.ints
        used = self._tables.used_slots()
        seq = core.slots["seq"][used]
        new = used[seq > ints[layout.MARK]]
        old = used[(seq <= ints[layout.MARK]) & (core.slots["dirty"][used] == 1)]
        gone = core.departed[: ints[layout.DEPARTED]].copy()
        lost = core.departed_groups[: ints[layout.DEPARTED_GROUPS]]
        parts = {
            "gone": pa.record_batch([pa.array(gone)], ["seq"]),
            "lost": pa.record_batch(
                [pa.array(np.ascontiguousarray(lost[:, i])) for i in range(2)], ["edge", "hash"]
            ),
            "moved": self._moved(old),
            **self._common(self._tables.groups_to_log(changed=True)),
            **{f"held{s}": self._held_rows(s, new) for s in range(len(self._sides))},
        }
        record = to_bytes(self._head(), parts)
        self._logged_rows += len(new) + len(gone) + len(old)
        self._logged_bytes += len(record)
        self._tables.mark()
        return record

    def snapshot(self) -> list[bytes]:
        """The whole state."""
        groups = self._tables.groups_to_log(changed=False)
        records = [to_bytes(self._head() | {"whole": True}, self._common(groups))]
        used = self._tables.used_slots()
        for s in range(len(self._sides)):
            mine = used[self._tables.core.slots["stream"][used] == s]
            for at in range(0, len(mine), _RECORD_ROWS):
                held = self._held_rows(s, mine[at : at + _RECORD_ROWS])
                records.append(to_bytes(self._head(), {f"held{s}": held}))
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
        state = {name: getattr(core, name).tolist() for name in _STATE}
        return state | {"seq": int(core.ints[layout.SEQ])}

    def _common(self, groups: NDArray[Any]) -> dict[str, pa.RecordBatch]:
        """What is not of one tuple: keys, ordered attributes, the tick that is open."""
        bits = groups["clustered"] | groups["closed"] << 1 | groups["kept"] << 2
        columns = [groups["edge"], groups["hash"], groups["ca"], bits]
        parts = {
            "groups": pa.record_batch(
                [pa.array(np.ascontiguousarray(c)) for c in columns], ["edge", "hash", "ca", "bits"]
            )
        }
        for c in range(len(self.spec.constraints)):
            records = self._tables.records_of(c)
            parts[f"records{c}"] = pa.record_batch(
                [pa.array(np.ascontiguousarray(records[name])) for name in ("at", "value")],
                ["at", "value"],
            )
        return parts | {f"open{s}": batch for s, batch in enumerate(self._open)}

    def _moved(self, slots: NDArray[np.int64]) -> pa.RecordBatch:
        """Tuples of earlier records whose component or window has changed."""
        core = self._tables.core
        columns = {name: core.slots[name][slots] for name in ("seq", "status", "kept")}
        columns["bare"] = core.slots["row"][slots] < 0
        last = np.maximum(self._tables.plan.by[core.slots["stream"][slots]], 0)
        columns["base"] = core.links["base"][slots, last]
        return pa.record_batch([pa.array(c) for c in columns.values()], list(columns))

    def _held_rows(self, stream: int, slots: NDArray[np.int64]) -> pa.RecordBatch:
        """Held tuples of one stream, as they go into a record."""
        core = self._tables.core
        slots = slots[core.slots["stream"][slots] == stream]
        own: dict[str, Any] = {name: core.slots[name][slots] for name in _SLOT}
        for j in range(len(self._sides[stream].keys)):
            links = core.links[slots, j]
            linked = links["group"] >= 0
            own[f"h{j}"] = np.where(linked, core.groups["hash"][links["group"]], 0)
            own[f"l{j}"] = linked
            own[f"b{j}"], own[f"v{j}"] = links["base"], links["value"]
        rows = core.slots["row"][slots]
        own["bare"] = rows < 0
        payload = self._payload[stream]
        taken = _take_or_null(payload, rows)
        columns = [pa.array(np.ascontiguousarray(c)) for c in own.values()]
        names = [*own, *payload.schema.names]
        return pa.RecordBatch.from_arrays([*columns, *taken.columns], names)

    def restore(self, records: Iterable[bytes]) -> None:
        """Become what the records say; for a new engine."""
        head: dict[str, Any] = {}
        kept = _Kept(len(self._sides))
        for record in records:
            head, parts = from_bytes(record)
            self._logged_bytes += len(record)
            kept.take(parts)
            for s in range(len(self._sides)):
                self._open[s] = parts.get(f"open{s}", self._open[s])
        tables = self._tables
        for name in _STATE:
            getattr(tables.core, name)[:] = head[name]
        tables.core.ints[layout.SEQ] = head["seq"]
        loaded = [self._survivors(s, kept) for s in range(len(self._sides))]
        slots, links, hashes = (np.concatenate([part[i] for part in loaded]) for i in range(3))
        order = np.argsort(slots["seq"], kind="stable")
        keys = kept.groups
        tables.make_room(len(slots) + len(keys))
        for c, batch in kept.records.items():
            records_of = np.zeros(batch.num_rows, layout.RECORD)
            records_of["at"], records_of["value"] = (
                batch.column(name).to_numpy() for name in ("at", "value")
            )
            tables.load_records(c, records_of)
        table = np.array(list(keys.values()), np.int64).reshape(-1, 2)
        edges = np.array([edge for edge, _ in keys], np.int64)
        hashed = np.array([h for _, h in keys], np.uint64)
        load_group(tables.core, tables.plan, edges, hashed, table[:, 0].copy(), table[:, 1].copy())
        load_slots(tables.core, tables.plan, slots[order], links[order], hashes[order])
        tables.core.ints[layout.SEQ] = max(int(tables.core.ints[layout.SEQ]), head["seq"])
        self._logged_rows = kept.rows
        tables.mark()

    def _survivors(
        self, stream: int, kept: _Kept
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint64]]:
        """The logged tuples of one stream that are still held."""
        batches = kept.held[stream]
        payload, width = self._payload[stream], self._tables.core.links.shape[1]
        total = sum(b.num_rows for b in batches)
        slots, links = np.zeros(total, layout.SLOT), np.zeros((total, width), layout.LINK)
        links["group"] = -1
        hashes = np.zeros((total, width), np.uint64)
        at, bare = 0, np.zeros(total, np.bool_)
        for batch in batches:
            mine = slice(at, at + batch.num_rows)
            at += batch.num_rows
            for name in _SLOT:
                slots[name][mine] = batch.column(name).to_numpy()
            bare[mine] = batch.column("bare").to_numpy(zero_copy_only=False)
            for j in range(len(self._sides[stream].keys)):
                linked = batch.column(f"l{j}").to_numpy(zero_copy_only=False)
                hashes[mine, j] = batch.column(f"h{j}").to_numpy()
                links["group"][mine, j] = np.where(linked, 0, -1)
                links["base"][mine, j] = batch.column(f"b{j}").to_numpy()
                links["value"][mine, j] = batch.column(f"v{j}").to_numpy()
        slots["stream"] = stream
        for moved in kept.moved:
            self._move(stream, moved, slots, links, bare)
        live = ~np.isin(slots["seq"], np.concatenate(kept.gone))
        rows = np.flatnonzero(live & ~bare)
        slots["row"] = -1
        slots["row"][rows] = np.arange(len(rows))
        schema = payload.schema
        stored = Payload(schema)
        stored.add(
            [pa.RecordBatch.from_arrays(b.columns[-len(schema) :], schema=schema) for b in batches]
        )
        if len(rows):
            payload.add([stored.take(rows)])
        return slots[live], links[live], hashes[live]

    def _move(
        self,
        stream: int,
        moved: pa.RecordBatch,
        slots: NDArray[Any],
        links: NDArray[Any],
        bare: NDArray[np.bool_],
    ) -> None:
        """Take in what a later record says of tuples of one stream."""
        told = {name: moved.column(name).to_numpy(zero_copy_only=False) for name in _MOVED}
        _, at, here = np.intersect1d(
            slots["seq"], told["seq"], assume_unique=True, return_indices=True
        )
        told = {name: column[here] for name, column in told.items()}
        slots["status"][at], slots["kept"][at] = told["status"], told["kept"]
        by = int(self._tables.plan.by[stream])
        if by >= 0:
            links["base"][at, by] = told["base"]
        bare[at] |= told["bare"]
        roles = self._tables.plan.link_role[stream]
        for j in np.flatnonzero(roles == layout.PARENT):
            links["group"][at[told["bare"]], j] = -1


class _Kept:
    """What records say, the later over the earlier."""

    def __init__(self, streams: int) -> None:
        self.held: list[list[pa.RecordBatch]] = [[] for _ in range(streams)]
        self.moved: list[pa.RecordBatch] = []
        self.gone = [np.empty(0, np.int64)]
        self.groups: dict[tuple[int, int], tuple[int, int]] = {}
        self.records: dict[int, pa.RecordBatch] = {}
        self.rows = 0

    def take(self, parts: dict[str, pa.RecordBatch]) -> None:
        if "gone" in parts:
            self.gone.append(parts["gone"].column("seq").to_numpy())
        if "moved" in parts:
            self.moved.append(parts["moved"])
        if "lost" in parts:
            for key in zip(*_lists(parts["lost"]), strict=True):
                self.groups.pop(key, None)
        if "groups" in parts:
            for edge, h, ca, bits in zip(*_lists(parts["groups"]), strict=True):
                self.groups[edge, h] = ca, bits
        for name, batch in parts.items():
            if name.startswith("records"):
                self.records[int(name.removeprefix("records"))] = batch
            elif name.startswith("held"):
                self.held[int(name.removeprefix("held"))].append(batch)
                self.rows += batch.num_rows


def _lists(batch: pa.RecordBatch) -> list[list[int]]:
    return [column.to_pylist() for column in batch.columns]


def _take_or_null(payload: Payload, rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Rows of a payload; nulls where there is none."""
    bare = rows < 0
    if not bare.any():
        return payload.take(rows)
    if bare.all():
        nulls = [pa.nulls(len(rows), field.type) for field in payload.schema]
        return pa.RecordBatch.from_arrays(nulls, schema=payload.schema)
    there = payload.take(np.where(bare, rows[~bare][0], rows))
    blank = pa.array(bare)
    columns = [
        pc.if_else(blank, pa.nulls(len(rows), column.type), column) for column in there.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=payload.schema)
