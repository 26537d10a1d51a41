"""The state of a constrained join: what its records contain, and how they are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.engine.payload import Payload
from tidegate.engine.state_codec import Parts
from tidegate.engine.state_log import LoggedEngine, Replay, batch_of
from tidegate.joins.constrained import layout as layout
from tidegate.joins.constrained.arrays import Tables
from tidegate.joins.constrained.load import load_group, load_slots
from tidegate.joins.constrained.prepare import Side
from tidegate.joins.constrained.shed_log import ShedLog

#: Columns of a held row that a record stores besides its links and payload.
_SLOT = ("seq", "num", "time", "end", "status", "sampled", "kept")
_MOVED = ("seq", "status", "kept", "bare", "base")


class ConstrainedState(LoggedEngine):
    """The half of the engine of a constrained join that writes and loads its state."""

    _sides: list[Side]
    _tables: Tables
    _payload: list[Payload]
    _shed_log: ShedLog

    def _head(self) -> dict[str, Any]:
        seq = int(self._tables.core.scalars["seq"][0])
        return self._tables.values() | self._shed_log.marks() | {"seq": seq}

    def _parts(self, *, changed: bool) -> Parts:
        core, tables = self._tables.core, self._tables
        groups = tables.groups_to_log(changed=changed)
        bits = (
            groups["clustered"]
            | groups["closed"] << 1
            | groups["kept"] << 2
            | groups["sampled"] << 3
        )
        own = {name: groups[name] for name in ("edge", "hash", "ca")}
        parts = {"groups": batch_of(own | {"bits": bits})}
        for c in range(len(core.constraints)):
            records = tables.records_of(c)
            parts[f"records{c}"] = batch_of({name: records[name] for name in ("at", "value")})
        if changed:
            lost = core.departed_groups[: core.scalars["departed_groups"][0]]
            parts["lost"] = batch_of({name: lost[name] for name in ("edge", "hash")})
            parts["moved"] = self._moved()
        return parts

    def _moved(self) -> pa.RecordBatch:
        """Return the changes of rows of earlier records: component, window, payload."""
        core = self._tables.core
        used = self._tables.used_slots()
        logged = core.slots["seq"][used] <= core.scalars["mark"]
        slots = used[logged & (core.slots["dirty"][used] == 1)]
        columns = {name: core.slots[name][slots] for name in ("seq", "status", "kept")}
        columns["bare"] = core.slots["row"][slots] < 0
        last = np.maximum(self._tables.plan.by[core.slots["stream"][slots]], 0)
        columns["base"] = core.links["base"][slots, last]
        return batch_of(columns)

    def _gone(self) -> NDArray[np.int64]:
        core = self._tables.core
        return core.departed[: core.scalars["departed"][0]]

    def _held_rows(
        self, stream: int, most: tuple[int, int] | None, *, changed: bool
    ) -> Iterator[pa.RecordBatch]:
        core, payload = self._tables.core, self._payload[stream]
        slots = self._tables.used_slots()
        slots = slots[core.slots["stream"][slots] == stream]
        if changed:
            slots = slots[core.slots["seq"][slots] > core.scalars["mark"]]
        for part in payload.cut(np.maximum(core.slots["row"][slots], 0), *(most or ())):
            own = slots[part]
            rows = core.slots["row"][own]
            columns = {name: core.slots[name][own] for name in _SLOT} | self._links(stream, own)
            yield batch_of(columns | {"bare": rows < 0}, _take_or_null(payload, rows))

    def _links(self, stream: int, slots: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the links of rows: hash of the group, whether there is one, base and value."""
        core, columns = self._tables.core, {}
        for j in range(len(self._sides[stream].keys)):
            links = core.links[slots, j]
            linked = links["group"] >= 0
            columns[f"h{j}"] = np.where(linked, core.groups["hash"][links["group"]], 0)
            columns[f"l{j}"] = linked
            columns[f"b{j}"], columns[f"v{j}"] = links["base"], links["value"]
        return columns

    def _mark(self) -> None:
        self._tables.mark()

    def _load(self, log: Replay) -> None:
        tables, head = self._tables, log.head
        tables.load_values(head)
        self._shed_log.load(head)
        tables.core.scalars["seq"] = head["seq"]
        loaded = [self._survivors(s, log) for s in range(self._streams)]
        slots, links, hashes = (np.concatenate([part[i] for part in loaded]) for i in range(3))
        order = np.argsort(slots["seq"], kind="stable")
        keys = _groups(log)
        tables.make_room(len(slots) + len(keys))
        for c in range(len(tables.core.constraints)):
            stored = log.last(f"records{c}")
            records = np.zeros(stored.num_rows, layout.RECORD)
            for name in ("at", "value"):
                records[name] = stored.column(name).to_numpy()
            tables.load_records(c, records)
        table = np.array(list(keys.values()), np.int64).reshape(-1, 2)
        edges = np.array([edge for edge, _ in keys], np.int64)
        hashed = np.array([h for _, h in keys], np.uint64)
        load_group(tables.core, tables.plan, edges, hashed, table[:, 0].copy(), table[:, 1].copy())
        load_slots(tables.core, tables.plan, slots[order], links[order], hashes[order])
        tables.core.scalars["seq"] = np.maximum(tables.core.scalars["seq"], head["seq"])

    def _survivors(
        self, stream: int, log: Replay
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint64]]:
        """Return the logged rows of one stream that are still held: slots, links and hashes."""
        keys = range(len(self._sides[stream].keys))
        flags = {"bare", *(f"l{j}" for j in keys)}
        whole = {f"{kind}{j}" for kind in "bv" for j in keys}
        types = {name: layout.SLOT[name] for name in _SLOT}
        types |= {f"h{j}": np.dtype(np.uint64) for j in keys}
        types |= {name: np.dtype(np.bool_) for name in flags}
        types |= {name: np.dtype(np.int64) for name in whole}
        stored = Payload(self._payload[stream].schema)
        columns = log.held(stream, types, stored)
        total, width = stored.rows, self._tables.core.links.shape[1]
        slots, links = np.zeros(total, layout.SLOT), np.zeros((total, width), layout.LINK)
        links["group"] = -1
        hashes = np.zeros((total, width), np.uint64)
        for name in _SLOT:
            slots[name] = columns[name]
        for j in keys:
            hashes[:, j] = columns[f"h{j}"]
            links["group"][:, j] = np.where(columns[f"l{j}"], 0, -1)
            links["base"][:, j], links["value"][:, j] = columns[f"b{j}"], columns[f"v{j}"]
        slots["stream"] = stream
        bare = columns["bare"]
        for moved in log.all("moved"):
            self._move(stream, moved, slots, links, bare)
        live = log.survivors(slots["seq"])
        rows = np.flatnonzero(live & ~bare)
        slots["row"] = -1
        slots["row"][rows] = np.arange(len(rows))
        self._payload[stream].add(list(stored.pieces(rows)))
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


def _groups(log: Replay) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the groups of a log, by edge and hash, without those that were dropped."""
    groups: dict[tuple[int, int], tuple[int, int]] = {}
    for parts in log.records:
        if "lost" in parts:
            for key in zip(*_lists(parts["lost"]), strict=True):
                groups.pop(key, None)
        if "groups" in parts:
            for edge, h, ca, bits in zip(*_lists(parts["groups"]), strict=True):
                groups[edge, h] = ca, bits
    return groups


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
