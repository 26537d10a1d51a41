"""The engine of the star join: record batches in, record batches out, around the compiled loop.

The relation's rows are *links*. The paper, and names in the code, call them facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Clocks
from tidegate.engine.counters import FLOWS
from tidegate.engine.payload import Payload, cut, gather, room
from tidegate.engine.prepare import KEY, PREPARED, ROW_HASH, TIME, prepared_schema
from tidegate.engine.state_codec import Parts
from tidegate.engine.state_log import LoggedEngine, Replay, batch_of, update_rows
from tidegate.errors import TidegateError
from tidegate.joins.star import layout as star_layout
from tidegate.joins.star import loop as star
from tidegate.joins.star.arrays import StarTables
from tidegate.joins.star.changing_relation import ChangingRelation
from tidegate.joins.star.relation import FactIndex, Known
from tidegate.joins.star.spec import StarJoin
from tidegate.joins.star.table_links import TableLinks
from tidegate.joins.window.spec import COMBINE
from tidegate.kernel import layout
from tidegate.kernel.records import plain
from tidegate.policies import Arrivals, ranks_of
from tidegate.settings.columns import as_floats, equal

#: Results collected before they are handed over.
_ROOM = 1 << 16
#: What a held row costs besides its payload.
TUPLE_OVERHEAD = 256

#: Counters of the loop.
_COUNTED = ("out_of_order", "late", "admitted", "rejected", "shed", "expired", "filtered")
#: Scalars of the loop that a record stores.
_SCALARS = ("seq", "epoch", "started")
#: Those of what is learned, which the first records do not have.
_LEARNED = ("census_seq", "fit_seq", "thinned")
#: Fields of a held row in a record, besides its key and payload.
_LOGGED = ("time", "seq", "weight", "rank", "gain", "last", "matches")


class StarEngine(LoggedEngine):
    """Streams joined through a relation (Towne, Zhu, Zuzarte, Hou; ALGORITHMS section 4).

    Parameters
    ----------
    spec
        The join.
    relation
        For a static relation: its links, an index of the links of this engine's shard, and their
        numbers among all links. None if the relation is a stream of changes.
    memory
        The number of rows it may hold; None for all.
    digest
        The hash of a static relation that may differ after a restart; None if it may not.
    """

    def __init__(
        self,
        spec: StarJoin,
        relation: tuple[Known, FactIndex, NDArray[np.int64]] | None,
        *,
        memory: int | None,
        keep_shed: bool = False,
        digest: str | None = None,
    ) -> None:
        self.spec = spec
        self._changing: ChangingRelation | None = None
        self._table: TableLinks | None = None
        self._table_is_logged = False
        if relation is None:
            self._changing = ChangingRelation(spec)
            self._index = self._changing.index
        else:
            known, self._index, self._numbers = relation
            self._rows = Payload(known.rows.schema)
            self._rows.add([known.rows])
            if digest is not None:
                self._table = TableLinks(spec, known, self._numbers, digest)
        self._memory = memory
        self._tables = StarTables(spec, self._index, memory)
        self._schemas = [prepared_schema(side.schema, spec.unit) for side in spec.streams]
        self._payload = [Payload(pa.schema(list(s)[PREPARED:])) for s in self._schemas]
        self._piece = room(spec.result_schema)
        self._open = [pa.RecordBatch.from_pylist([], schema) for schema in self._schemas]
        self._streams = len(self._open)
        self._done = self._tables.rules.never  # the time of the last tick that is closed
        self._keep_shed = keep_shed
        self._shed: list[pa.RecordBatch] = []
        self._flows = dict.fromkeys(FLOWS, 0)
        self._importance = 0.0
        #: The last budget update: its number, and the new budget.
        self.budget_update: tuple[int, int] | None = None

    # ---- input and output ---------------------------------------------------------------------

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Process prepared batches of the streams, and of the changes if the relation changes."""
        n = len(self.spec.streams)
        self._flows["arrived"] += sum(b.num_rows for stream in inputs[:n] for b in stream)
        if self._changing is not None:
            self._change(inputs[n])
        known = [clock for clock in (clocks or ())[:n] if clock is not None]
        yield from self._run(inputs, close=bool(known) and self._closes(inputs, max(known)))
        if clocks is not None:
            stream_clock = self._tables.core.streams["clock"]
            number = self.spec.unit.dtype.type
            told = [stream_clock[s] if t is None else number(t) for s, t in enumerate(clocks[:n])]
            self._advance(np.array(told, self.spec.unit.dtype))
        if self._changing is not None:
            self._forget_facts()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Close the open tick."""
        yield from self._run([()] * len(self.spec.streams), close=True)

    def resize(self, number: int, memory: int) -> None:
        """Apply a budget update; rows that do not fit are shed at once."""
        self._allow(number, memory)
        self._shrink()

    def _shrink(self) -> None:
        """Shed the rows that do not fit the budget."""
        tables, out = self._tables, self._output(0)
        tables.core.scalars["noted"] = 0
        none = _no_batch(self.spec.unit.dtype)
        star.shrink(tables.core, self._index.arrays, tables.rules, none, out)
        self._note_shed(out)
        self._sweep()

    def _allow(self, number: int, memory: int) -> None:
        self._tables.allow(memory)
        self.budget_update = number, memory

    def _change(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Apply changes of the relation; the loop looks links up by time."""
        assert self._changing is not None
        ended = self._changing.apply(batches, self._done)
        tables = self._tables
        tables.fit()
        tables.note_ends(ended)
        star.remind(tables.core, self._index.arrays, tables.rules, ended)
        self._advance(tables.core.streams["clock"].copy())

    def learn_facts(self, other: StarEngine) -> None:
        """Copy the links of another engine whose relation changes, into this new one."""
        assert self._changing is not None
        assert other._changing is not None
        self._changing.learn(other._changing)
        self._done = other._done
        self._tables.fit()
        self._tables.renumber()

    def _forget_facts(self) -> None:
        """Drop links that ended before every row that can still come, if they are many."""
        assert self._changing is not None
        tables = self._tables
        before = tables.core.streams["clock"].min() - tables.rules.lateness
        if self._changing.forget(min(before, self._done)):
            tables.renumber()

    def _advance(self, told: NDArray[Any]) -> None:
        tables = self._tables
        none = _no_batch(told.dtype)
        star.advance(tables.core, self._index.arrays, tables.rules, none, told)

    def _closes(self, inputs: Sequence[Sequence[pa.RecordBatch]], clock: int | float) -> bool:
        """Return True if the clock is after all rows that are given or waiting."""
        batches = [b for s in inputs[: len(self._open)] for b in s] + self._open
        return all(b.num_rows == 0 or b.column(TIME).to_numpy().max() < clock for b in batches)

    def _run(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], close: bool
    ) -> Iterator[pa.RecordBatch]:
        streams = range(len(self.spec.streams))
        waiting = [batch.num_rows for batch in self._open]
        given = [[self._open[s], *inputs[s]] for s in streams]
        if not any(b.num_rows for stream in given for b in stream):
            return
        first = [self._payload[s].add(given[s]) for s in streams]
        batch, order, starts = self._batch(given, waiting, first)
        tables = self._tables
        core, rules, facts = tables.core, tables.rules, self._index.arrays
        for name in ("tick_to", "stage", "noted"):
            core.scalars[name] = 0
        out = self._output(len(order))
        n, why = 0, layout.OUTPUT_FULL
        while why != layout.DONE:
            n, why = star.run(core, facts, rules, batch, out, n, close)
            if n:
                yield from self._found(out.rows[:, :n])
                n = 0
        self._note_shed(out)
        self._settle(given, batch, order, starts, first, close)

    def _batch(
        self, given: list[list[pa.RecordBatch]], waiting: list[int], first: list[int]
    ) -> tuple[star_layout.Batch, NDArray[np.int64], NDArray[np.int64]]:
        """Return the newcomers as sorted arrays, their order, and where each stream begins."""
        column = {
            name: [np.concatenate([b.column(name).to_numpy() for b in one]) for one in given]
            for name in (KEY, TIME, ROW_HASH)
        }
        sizes = [len(times) for times in column[TIME]]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        key, time, row_hash = (np.concatenate(column[name]) for name in (KEY, TIME, ROW_HASH))
        stream = np.repeat(np.arange(len(sizes)), sizes)
        entry = np.concatenate([self._index.find(s, column[KEY][s]) for s in range(len(sizes))])
        row = np.concatenate([f + np.arange(n) for f, n in zip(first, sizes, strict=True)])
        probed = np.zeros(len(time), np.bool_)
        if not self._tables.rules.defer:
            for start, n in zip(starts[:-1], waiting, strict=True):
                probed[start : start + n] = True
        weight = np.ones(len(time))
        if self.spec.weighed:
            weight = np.concatenate([self._weights(s, b) for s, b in enumerate(given)])
        order = np.lexsort((row_hash, key, stream, time))
        time, stream, key, row_hash = time[order], stream[order], key[order], row_hash[order]
        weight = weight[order]
        rank = np.zeros(len(order))
        if self._tables.rules.kind == star_layout.FIXED:
            arrivals = Arrivals(time, stream.astype(np.int8), key, row_hash, weight, self.spec.seed)
            rank = ranks_of(self.spec.policy, arrivals)
        tick = np.diff(np.flatnonzero(np.append(True, time[1:] != time[:-1])), append=len(time))
        self._tables.make_room(len(order), int(tick.max()) + int(probed.sum()))
        newcomers = star_layout.Batch(
            time=time,
            stream=stream,
            entry=entry[order],
            hash=key,
            row=row[order],
            weight=weight,
            rank=rank,
            probed=probed[order],
            slot=np.full(len(order), -1, np.int64),
        )
        return newcomers, order, starts

    def _weights(self, stream: int, batches: list[pa.RecordBatch]) -> NDArray[np.float64]:
        """Return the importance of the rows of one stream."""
        importance = self.spec.streams[stream].importance
        assert importance is not None
        at = PREPARED + self.spec.streams[stream].schema.get_field_index(importance)
        return np.concatenate([as_floats(b.column(at)) for b in batches])

    def _output(self, newcomers: int) -> star_layout.Output:
        n = newcomers + self._tables.held if self._keep_shed else 0
        return star_layout.Output(
            np.empty((len(self.spec.streams) + 1, _ROOM), np.int64),
            np.empty(n, np.int64),
            np.empty(n, np.int64),
            np.empty(n, self.spec.unit.dtype),
            np.empty(n, np.bool_),
        )

    def _facts(self, facts: NDArray[np.int64]) -> tuple[Payload, NDArray[np.int64]]:
        """Return the payload that contains links, and their numbers there."""
        if self._changing is not None:
            return self._changing.rows, facts
        return self._rows, self._numbers[facts]

    def _found(self, rows: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Give combinations as result rows, in pieces of bounded size."""
        relation, facts = self._facts(rows[-1])
        taken = relation.widths_of(facts)
        for payload, own in zip(self._payload, rows, strict=False):
            taken = taken + payload.widths_of(own)
        for piece in cut(rows.shape[1], taken, self._piece):
            yield self._results(rows[:, piece])

    def _results(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        """Return combinations as result rows, without those whose keys only have the same hash."""
        relation = self.spec.relation
        known, numbers = self._facts(rows[-1])
        facts = known.take(numbers)
        same = np.ones(rows.shape[1], np.bool_)
        columns: list[pa.Array] = []
        weights = []
        for s, side in enumerate(self.spec.streams):
            taken = self._payload[s].take(rows[s])
            for mine, theirs in zip(side.keys, relation.keys[s], strict=True):
                at = relation.schema.get_field_index(theirs)
                same &= equal(taken.column(side.schema.get_field_index(mine)), facts.column(at))
            columns += taken.columns
            if side.importance is not None:
                weights.append(taken.column(side.schema.get_field_index(side.importance)))
        columns += [facts.column(relation.schema.get_field_index(n)) for n in relation.carried]
        result = pa.RecordBatch.from_arrays(columns, schema=self.spec.result_schema)
        worth = np.ones(len(same))
        if weights:
            worth = reduce(COMBINE[self.spec.combine], map(as_floats, weights))
        if not same.all():
            result, worth = result.filter(pa.array(same)), worth[same]
        self._flows["results"] += result.num_rows
        self._importance += float(worth.sum())
        return result

    def _settle(
        self,
        given: list[list[pa.RecordBatch]],
        batch: star_layout.Batch,
        order: NDArray[np.int64],
        starts: NDArray[np.int64],
        first: list[int],
        close: bool,
    ) -> None:
        """After a batch: store the open tick, and drop the payload of rows that are not held."""
        tables = self._tables
        start = len(order)
        if not close and batch.time[-1] >= tables.core.scalars["clock"][0]:
            start = int(np.searchsorted(batch.time, batch.time[-1]))
        if start > 0:
            self._done = max(self._done, batch.time[start - 1])
        opened = order[start:]
        if not tables.rules.defer:
            opened = opened[batch.slot[start:] >= 0]  # the others have no link
        opened = np.sort(opened)
        for s, schema in enumerate(self._schemas):
            own = opened[(opened >= starts[s]) & (opened < starts[s + 1])] - starts[s]
            self._open[s] = gather(given[s], schema, own)
            payload = self._payload[s]
            payload.trim(first[s], tables.keep_rows(s, first[s], payload.rows))
            payload.join_chunks()
        self._sweep()

    def _sweep(self) -> None:
        """Drop the payload of rows that are not held, if these are many."""
        tables = self._tables
        for s, payload in enumerate(self._payload):
            if payload.wants_trim(int(tables.core.streams["held"][s])):
                payload.trim(0, tables.keep_rows(s, 0, payload.rows))

    # ---- what was shed, and counters ----------------------------------------------------------

    def _note_shed(self, out: star_layout.Output) -> None:
        n = int(self._tables.core.scalars["noted"][0])
        for s, side in enumerate(self.spec.streams):
            mine = np.flatnonzero(out.shed_stream[:n] == s)
            if len(mine) == 0:
                continue
            name = self.spec.stream_names[s]
            for part in self._payload[s].cut(out.shed_row[mine]):
                own = mine[part]
                rows = self._payload[s].take(out.shed_row[own])
                columns = [
                    pa.array([name] * len(own)),
                    pa.array(out.shed_time[own]),
                    pa.array(np.where(out.shed_held[own], "shed", "rejected"), pa.string()),
                    pa.StructArray.from_arrays(rows.columns, fields=list(side.schema)),
                ]
                named = ["side", "shed_at", "why", name]
                self._shed.append(pa.RecordBatch.from_arrays(columns, names=named))

    def take_shed(self) -> pa.Table:
        """Return the rows shed since the last call: which stream, when, why, and the row itself."""
        fields = [
            ("side", pa.string()),
            ("shed_at", pa.from_numpy_dtype(self.spec.unit.dtype)),
            ("why", pa.string()),
        ]
        sides = zip(self.spec.stream_names, self.spec.streams, strict=True)
        fields += [(name, pa.struct(list(side.schema))) for name, side in sides]
        parts = [pa.Table.from_batches([b]) for b in self._shed]
        self._shed = []
        empty = pa.schema(fields).empty_table()
        return pa.concat_tables([empty, *parts], promote_options="default")

    def take_counters(self) -> dict[str, int | float]:
        """Return flows since the last call, and current gauges."""
        scalars = self._tables.core.scalars
        for name in _COUNTED:
            self._flows[name] += int(scalars[name][0])
            scalars[name] = 0
        taken: dict[str, int | float] = {**self._flows, "importance": self._importance}
        self._flows = dict.fromkeys(FLOWS, 0)
        self._importance = 0.0
        if self._memory is not None:
            taken["allowed"] = self._memory
        return taken | {
            "held": self._tables.held,
            "waiting": sum(b.num_rows for b in self._open),
            "bytes": self._bytes(),
            "facts": self._index.count,
        }

    def _bytes(self) -> int:
        held = self._tables.held * TUPLE_OVERHEAD
        return held + self._tables.nbytes + sum(p.nbytes for p in self._payload)

    # ---- state --------------------------------------------------------------------------------

    def _head(self) -> dict[str, Any]:
        core = self._tables.core
        table = self._table
        return {
            "table": None if table is None else [table.digest, table.has_changed],
            "clock": core.scalars["clock"][0].item(),
            "stream_clock": core.streams["clock"].tolist(),
            "floor": core.pools["floor"].tolist(),
            "done": self._done.item(),
            "budget_update": self.budget_update,
            "model": plain(core.learning.model)[0].tolist(),
            "edge": core.pools["edge"].tolist(),
            "left": core.pools["left"].tolist(),
            **{name: int(core.scalars[name][0]) for name in (*_SCALARS, *_LEARNED)},
        }

    def _parts(self, *, changed: bool) -> Parts:
        tables = self._tables
        some = changed and not tables.core.scalars["rewritten"][0]
        parts = {"rates" if some else "all_rates": tables.rates(changed=some), **tables.model()}
        if changed:
            parts["learned"] = tables.learned()
        if self._changing is not None:
            parts |= self._changing.log() if changed else self._changing.whole()
        if self._table is not None and not (changed and self._table_is_logged):
            parts["all_links"] = self._table.record()
        return parts

    def _gone(self) -> NDArray[np.int64]:
        core = self._tables.core
        return core.gone[: core.scalars["gone"][0]]

    def _held_rows(
        self, stream: int, most: tuple[int, int] | None, *, changed: bool
    ) -> Iterator[pa.RecordBatch]:
        tables, payload = self._tables, self._payload[stream]
        table = tables.core.slots
        slots = tables.unmarked() if changed else tables.slots_of(stream)
        slots = slots[table["stream"][slots] == stream]
        for part in payload.cut(table["row"][slots], *(most or ())):
            taken = table[slots[part]]
            own = {"key": self._index.arrays.hashes[stream, taken["entry"]]}
            own |= {name: taken[name] for name in _LOGGED}
            yield batch_of(own, payload.take(taken["row"]))

    def _held_size(self) -> tuple[int, int]:
        links = 0 if self._changing is None else self._changing.nbytes
        links += 0 if self._table is None else self._table.nbytes
        return self._tables.held, self._bytes() + links

    def _mark(self) -> None:
        self._tables.mark()
        self._table_is_logged = True

    def _load(self, log: Replay) -> None:
        differs = self._follow_table(log)
        tables, head = self._tables, log.head
        if self._changing is not None:
            for links, ended in zip(log.all("facts"), log.all("ended"), strict=True):
                self._changing.load({"facts": links, "ended": ended})
        self._done = self.spec.unit.dtype.type(head["done"])
        if head["budget_update"] is not None:
            self._allow(*head["budget_update"])
        core = tables.core
        core.scalars["clock"], core.streams["clock"] = head["clock"], head["stream_clock"]
        core.pools["floor"] = head["floor"]
        for name in _SCALARS:
            core.scalars[name] = head[name]
        tables.fit()
        for batch in log.all("rates"):
            tables.load_rates(batch)
        streams = range(self._streams)
        held = np.concatenate([self._survivors(stream, log) for stream in streams])
        held = np.sort(held, order="seq")
        if differs:
            held = self._still_linked(held)
        update_rows(held, log.all("learned"), ("gain", "last"))
        tables.make_room(len(held), len(held))
        tables.renumber()
        star.reload(tables.core, self._index.arrays, tables.rules, held)
        self._load_model(log)
        for stream, payload in enumerate(self._payload):
            payload.trim(0, tables.keep_rows(stream, 0, payload.rows))
        if differs:
            self._advance(tables.core.streams["clock"].copy())
            self._shrink()

    def _adapt(self, log: Replay, written_with: Mapping[str, Any]) -> None:
        """Refuse another table if the log has no links to go on from; `_load` follows it."""
        table = self._table
        differs = table is not None and written_with["relation"] != table.digest
        if differs and log.last("all_links") is None:
            raise TidegateError(
                "the relation differs from that of the checkpoint, which was written without the "
                "relation's links; read the relation as it was once more, and change it at the "
                "restart after that, or start with a new checkpoint location"
            )

    def _follow_table(self, log: Replay) -> bool:
        """Go on from the links of a log. Return True if its table was another one."""
        table, was = self._table, log.head.get("table")
        if table is None:
            return False
        record = log.last("all_links")
        if (
            was is None or record is None
        ):  # the log is older than links in records, or refused other tables
            self._log_is_outdated = True
            return False
        differs = bool(was[0] != table.digest)
        if not (differs or was[1]):
            return False
        table.has_changed = True
        table.follow(record, self.spec.unit.dtype.type(log.head["clock"]))
        ghosts = log.last("ghosts")
        keys = []
        for stream in range(self._streams):
            known = [batch.column("key") for batch in log.all(f"held{stream}")]
            if ghosts is not None:
                mine = pa.array(ghosts.column("side").to_numpy() == stream)
                known.append(ghosts.column("hash").filter(mine))
            keys.append(np.concatenate([np.empty(0, np.uint64), *(k.to_numpy() for k in known)]))
        self._index = table.index(keys)
        self._tables = StarTables(self.spec, self._index, self._memory)
        self._log_is_outdated = differs
        return differs

    def _still_linked(self, held: NDArray[Any]) -> NDArray[Any]:
        """Drop rows whose links are gone."""
        linked = np.zeros(len(held), np.bool_)
        for stream in range(self._streams):
            mine = held["stream"] == stream
            keys = self._index.arrays.hashes[stream, held["entry"][mine]]
            linked[mine] = self._index.matched(stream, keys, held["time"][mine])
        self._flows["expired"] += int(len(held) - linked.sum())
        return held[linked]

    def _load_model(self, log: Replay) -> None:
        """Load what was learned; the first records of `Auto` have only arrival counts."""
        tables, head = self._tables, log.head
        core = tables.core
        if "model" not in head:
            tables.relearn()
            return
        plain(core.learning.model)[0] = head["model"]
        core.pools["edge"], core.pools["left"] = head["edge"], head["left"]
        for name in _LEARNED:
            core.scalars[name] = head[name]
        if tables.learns:
            tables.load_model({name: log.last(name) for name in tables.model()})

    def _survivors(self, stream: int, log: Replay) -> NDArray[Any]:
        """Return the logged rows of one stream that are still held, as slots."""
        slot = self._tables.core.slots.dtype
        types = {name: slot[name] for name in _LOGGED} | {"key": np.dtype(np.uint64)}
        columns = log.held(stream, types, self._payload[stream])
        found = np.zeros(len(columns["seq"]), slot)
        for name in _LOGGED:
            found[name] = columns[name]
        found["entry"] = self._index.find(stream, columns["key"])
        found["stream"] = stream
        found["row"] = np.arange(len(found))
        kept: NDArray[Any] = found[log.survivors(found["seq"])]
        return kept


def _no_batch(time: np.dtype[Any]) -> star_layout.Batch:
    whole, real = np.empty(0, np.int64), np.empty(0)
    return star_layout.Batch(
        time=np.empty(0, time),
        stream=whole,
        entry=whole,
        hash=np.empty(0, np.uint64),
        row=whole,
        weight=real,
        rank=real,
        probed=np.empty(0, np.bool_),
        slot=whole,
    )
