"""Archive of rows that constraints dropped, with the position of every stream at that time.

A result is missing exactly if one of its rows left before another of its rows came. The archive
therefore stores the row, and for each stream the last row that had come. Rows are ordered by time,
then by content hash, then by number among equal rows. This order does not depend on batches, shards
and restarts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.payload import Payload
from tidegate.errors import TidegateError
from tidegate.joins.constrained import layout as layout
from tidegate.joins.constrained.spec import ConstrainedJoin
from tidegate.settings.columns import hash_columns

#: The column that identifies an archived row and tells which rows came after it left. Hashes are
#: signed, as Spark has no unsigned numbers.
MARK = "mark"
MARK_TYPE = pa.struct(
    [
        ("key", pa.int64()),  # determines the shard
        ("time", pa.int64()),
        ("content", pa.int64()),  # a hash of the held columns of the row
        ("seen_time", pa.list_(pa.int64())),  # by stream: the last row that had come
        ("seen_tie", pa.list_(pa.int64())),
        ("seen_number", pa.list_(pa.int64())),
    ]
)
_HEAD = ("side", "shed_at", "why")


def shed_schema(spec: ConstrainedJoin) -> pa.Schema:
    """Schema of the archive: which stream, when (as a number), why, the row, and its mark."""
    fields = [("side", pa.string()), ("shed_at", pa.int64()), ("why", pa.string())]
    fields += [(s.name, pa.struct(list(s.kept_schema))) for s in spec.streams]
    return pa.schema([*fields, (MARK, MARK_TYPE)])


def archived(spec: ConstrainedJoin) -> ConstrainedJoin:
    """Return the same join with dropped rows recorded."""
    if not spec.eliminate:
        raise TidegateError(
            "nothing is shed with eliminate=False; leave shed_to out, or eliminate=False"
        )
    taken = [s.name for s in spec.streams if s.name in (*_HEAD, MARK)]
    if taken:
        raise TidegateError(
            f"an archive has a column {taken[0]!r} of its own; give the stream another name"
        )
    return replace(spec, archive=True)


def contents(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return a hash of the held columns of each row."""
    return hash_columns(batch.columns, batch.num_rows, exact=True).view(np.int64)


class Places(NamedTuple):
    """Positions of rows in the order of their stream."""

    time: NDArray[np.int64]
    row_hash: NDArray[np.uint64]
    number: NDArray[np.int64]

    def after(self, other: Places) -> NDArray[np.bool_]:
        """Return for each position whether it comes after the other's."""
        same = (self.time == other.time) & (self.row_hash == other.row_hash)
        later: NDArray[np.bool_] = (
            (self.time > other.time)
            | ((self.time == other.time) & (self.row_hash > other.row_hash))
            | (same & (self.number > other.number))
        )
        return later

    def at(self, where: Any) -> Places:
        """Return some of the positions."""
        return Places(self.time[where], self.row_hash[where], self.number[where])

    def put(self, where: Any, other: Places) -> None:
        """Set some of the positions."""
        for mine, others in zip(self, other, strict=True):
            mine[where] = others


def places(
    time: NDArray[np.int64], row_hash: NDArray[np.uint64], last: Places | None = None
) -> Places:
    """Return the positions of rows, given in order and after the row `last`."""
    number = np.zeros(len(time), np.int64)
    if len(time):
        first = np.ones(len(time), np.bool_)
        first[1:] = (time[1:] != time[:-1]) | (row_hash[1:] != row_hash[:-1])
        starts = np.flatnonzero(first)
        lengths = np.diff(np.append(starts, len(time)))
        number = np.arange(len(time)) - np.repeat(starts, lengths)
        if last is not None and (time[0], row_hash[0]) == (last.time[()], last.row_hash[()]):
            number[: lengths[0]] += last.number[()] + 1
    return Places(time, row_hash, number)


class ShedLog:
    """Collect the rows that constraints dropped."""

    def __init__(self, spec: ConstrainedJoin) -> None:
        self._spec = spec
        n = len(spec.streams)
        self._last = Places(
            np.full(n, -layout.NEVER, np.int64), np.zeros(n, np.uint64), np.zeros(n, np.int64)
        )
        self._found: list[pa.RecordBatch] = []
        self._schema = shed_schema(spec)
        edges = spec.graph.edges
        self._clearing = [
            " and ".join(
                c.text
                for c in spec.constraints
                if c.kind in ("CA", "OAP") and any(edges[e].child == s for e in c.edges)
            )
            for s in range(n)
        ]

    def note(
        self,
        shed: NDArray[Any],
        newcomers: layout.Batch,
        row_hashes: NDArray[np.uint64],
        payload: list[Payload],
    ) -> None:
        """Record the rows dropped while newcomers came, and advance the streams' positions."""
        if not self._spec.archive:
            return
        n = len(payload)
        seen = self._last.at(np.s_[:, None]).at(np.s_[:, np.zeros(len(shed), np.int64)])
        for s in range(n):
            own = np.flatnonzero(newcomers.stream == s)
            if len(own) == 0:
                continue
            last = self._last.at(s)
            came = places(newcomers.time[own], row_hashes[own], last)
            which = np.searchsorted(own, shed["at"]) - 1
            nearest = came.at(np.maximum(which, 0))
            later = (which >= 0) & nearest.after(last)
            seen.put((s, later), nearest.at(later))
            if came.at(slice(-1, None)).after(last)[0]:
                self._last.put(s, came.at(-1))
        for s in range(n):
            mine = np.flatnonzero(shed["stream"] == s)
            for part in payload[s].cut(shed["row"][mine]):
                own = mine[part]
                rows = payload[s].take(np.ascontiguousarray(shed["row"][own]))
                self._found.append(self._rows(s, shed[own], rows, seen.at(np.s_[:, own])))

    def _rows(
        self,
        stream: int,
        shed: NDArray[Any],
        rows: pa.RecordBatch,
        seen: Places,
    ) -> pa.RecordBatch:
        spec, count = self._spec, len(shed)
        kept = spec.streams[stream].kept_schema
        shards = spec.shard_columns
        key = np.zeros(count, np.int64)
        if shards is not None:
            column = rows.column(kept.get_field_index(shards[stream]))
            key = hash_columns([column], count).view(np.int64)
        texts = [c.text for c in spec.constraints] + [self._clearing[stream]]
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * len(spec.streams))
        told = [each.T.ravel().view(np.int64) for each in seen]
        mark = pa.StructArray.from_arrays(
            [
                pa.array(key),
                pa.array(np.ascontiguousarray(shed["time"])),
                pa.array(contents(rows)),
                *(pa.ListArray.from_arrays(offsets, pa.array(each)) for each in told),
            ],
            fields=list(MARK_TYPE),
        )
        names = ["side", "shed_at", "why", spec.streams[stream].name, MARK]
        columns = [
            pa.array([spec.streams[stream].name] * count),
            pa.array(seen.time.max(axis=0)),
            pa.array([texts[why] for why in shed["why"].tolist()], pa.string()),
            pa.StructArray.from_arrays(rows.columns, fields=list(kept)),
            mark,
        ]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def take(self) -> pa.Table:
        """Return the rows recorded since the last call."""
        parts = [pa.Table.from_batches([batch]) for batch in self._found]
        self._found = []
        empty = self._schema.empty_table()
        return pa.concat_tables([empty, *parts], promote_options="default")

    def marks(self) -> dict[str, Any]:
        """Return the positions of the streams, for a record."""
        return {"last": [each.tolist() for each in self._last]} if self._spec.archive else {}

    def load(self, head: dict[str, Any]) -> None:
        """Continue from a record."""
        if self._spec.archive:
            for mine, told in zip(self._last, head["last"], strict=True):
                mine[:] = told
