"""The state log of a constrained join."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.engine.payload import Payload
from tidegate.engine.state_codec import from_bytes, in_pieces, to_bytes
from tidegate.joins.constrained import layout as layout
from tidegate.joins.constrained.arrays import Tables
from tidegate.joins.constrained.load import load_group, load_slots
from tidegate.joins.constrained.prepare import Side
from tidegate.joins.constrained.shed_log import ShedLog

#: The number of rows in one record of a snapshot.
_RECORD_ROWS = 1 << 16
#: The bytes of these rows, and the size below which a log is never heavy.
_RECORD_BYTES = 16 << 20
#: Columns of a held row that a record stores besides its links and payload.
_SLOT = ("seq", "num", "time", "end", "status", "sampled", "kept")
_MOVED = ("seq", "status", "kept", "bare", "base")


class Log:
    """Writes and loads the state of one engine."""

    def __init__(
        self,
        sides: list[Side],
        tables: Tables,
        payload: list[Payload],
        waiting: list[pa.RecordBatch],
        shed_log: ShedLog,
    ) -> None:
        self._sides = sides
        self._tables = tables
        self._payload = payload
        self._open = waiting
        self._shed_log = shed_log
        self._logged_rows = 0
        self._logged_bytes = 0

    def changes(self) -> bytes:
        """Return a record of all changes since the last record."""
        core, mark = self._tables.core, self._tables.core.scalars["mark"]
        used = self._tables.used_slots()
        seq = core.slots["seq"][used]
        new = used[seq > mark]
        old = used[(seq <= mark) & (core.slots["dirty"][used] == 1)]
        gone = core.departed[: core.scalars["departed"][0]].copy()
        lost = core.departed_groups[: core.scalars["departed_groups"][0]]
        parts = {
            "gone": pa.record_batch([pa.array(gone)], ["seq"]),
            "lost": pa.record_batch(
                [pa.array(np.ascontiguousarray(lost[name])) for name in ("edge", "hash")],
                ["edge", "hash"],
            ),
            "moved": self._moved(old),
            **self._common(self._tables.groups_to_log(changed=True)),
        }
        for s in range(len(self._sides)):
            parts |= in_pieces(f"held{s}", self._held_rows(s, new))
        record = to_bytes(self._head(), parts)
        self._logged_rows += len(new) + len(gone) + len(old)
        self._logged_bytes += len(record)
        self._tables.mark()
        return record

    def snapshot(self) -> list[bytes]:
        """Return the whole state as records."""
        groups = self._tables.groups_to_log(changed=False)
        records = [to_bytes(self._head() | {"whole": True}, self._common(groups))]
        used = self._tables.used_slots()
        for s in range(len(self._sides)):
            for held in self._held_rows(s, used, _RECORD_ROWS, _RECORD_BYTES):
                records.append(to_bytes(self._head(), {f"held{s}": held}))
        self._logged_rows = self._tables.held
        self._logged_bytes = sum(map(len, records))
        self._tables.mark()
        return records

    def is_heavy(self, held_bytes: int) -> bool:
        """True if more than three quarters of the log are outdated."""
        return (
            self._logged_rows > 4 * self._tables.held + _RECORD_ROWS
            or self._logged_bytes > 4 * held_bytes + _RECORD_BYTES
        )

    def _head(self) -> dict[str, Any]:
        seq = int(self._tables.core.scalars["seq"][0])
        return self._tables.values() | self._shed_log.marks() | {"seq": seq}

    def _common(self, groups: NDArray[Any]) -> dict[str, pa.RecordBatch]:
        """Return the parts that belong to no single row: keys, ordered columns, the open tick."""
        bits = groups["clustered"] | groups["closed"] << 1 | groups["kept"] << 2
        columns = [groups["edge"], groups["hash"], groups["ca"], bits]
        parts = {
            "groups": pa.record_batch(
                [pa.array(np.ascontiguousarray(c)) for c in columns], ["edge", "hash", "ca", "bits"]
            )
        }
        for c in range(len(self._tables.core.constraints)):
            records = self._tables.records_of(c)
            parts[f"records{c}"] = pa.record_batch(
                [pa.array(np.ascontiguousarray(records[name])) for name in ("at", "value")],
                ["at", "value"],
            )
        return parts | {f"open{s}": batch for s, batch in enumerate(self._open)}

    def _moved(self, slots: NDArray[np.int64]) -> pa.RecordBatch:
        """Return the changes of rows of earlier records: component, window, payload."""
        core = self._tables.core
        columns = {name: core.slots[name][slots] for name in ("seq", "status", "kept")}
        columns["bare"] = core.slots["row"][slots] < 0
        last = np.maximum(self._tables.plan.by[core.slots["stream"][slots]], 0)
        columns["base"] = core.links["base"][slots, last]
        return pa.record_batch([pa.array(c) for c in columns.values()], list(columns))

    def _held_rows(
        self, stream: int, slots: NDArray[np.int64], *most: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the held rows of a stream as a record stores them, in pieces (`Payload.cut`)."""
        table = self._tables.core.slots
        slots = slots[table["stream"][slots] == stream]
        for part in self._payload[stream].cut(np.maximum(table["row"][slots], 0), *most):
            yield self._held_piece(stream, slots[part])

    def _held_piece(self, stream: int, slots: NDArray[np.int64]) -> pa.RecordBatch:
        core = self._tables.core
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
        """Load the state from records; for a new engine."""
        head: dict[str, Any] = {}
        kept = _Kept(len(self._sides))
        for record in records:
            head, parts = from_bytes(record)
            self._logged_bytes += len(record)
            kept.take(parts)
            for s in range(len(self._sides)):
                self._open[s] = parts.get(f"open{s}", self._open[s])
        tables = self._tables
        tables.load_values(head)
        self._shed_log.load(head)
        tables.core.scalars["seq"] = head["seq"]
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
        tables.core.scalars["seq"] = np.maximum(tables.core.scalars["seq"], head["seq"])
        self._logged_rows = kept.rows
        tables.mark()

    def _survivors(
        self, stream: int, kept: _Kept
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint64]]:
        """Return the logged rows of one stream that are still held."""
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
        payload.add(list(stored.pieces(rows)))
        return slots[live], links[live], hashes[live]

    def _move(
        self,
        stream: int,
        moved: pa.RecordBatch,
        slots: NDArray[Any],
        links: NDArray[Any],
        bare: NDArray[np.bool_],
    ) -> None:
        """Apply the changes of a later record to rows of one stream."""
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
    """The content of several records, later ones over earlier ones."""

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
                self.held[int(name.partition("/")[0].removeprefix("held"))].append(batch)
                self.rows += batch.num_rows


def _lists(batch: pa.RecordBatch) -> list[list[int]]:
    return [column.to_pylist() for column in batch.columns]


def _take_or_null(payload: Payload, rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Return rows of a payload, with nulls for row numbers below 0."""
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
