"""Tuples that left early, as they are archived: with how far every stream had come.

A result is missing exactly if one of its tuples left before another of them came. So what is kept
of a departure is the tuple, and of each stream the last that had come: in order of time, and of
content within a time, which does not depend on batches, shards and restarts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.columns import hash_columns
from tidegate.constrained_spec import ConstrainedJoin
from tidegate.engines.payload import Payload
from tidegate.errors import TidegateError
from tidegate.kernel import constrained_layout as layout

#: The column by which departures are told apart and compared with arrivals. Hashes are signed, as
#: Spark has no unsigned numbers.
MARK = "mark"
MARK_TYPE = pa.struct(
    [
        ("key", pa.int64()),  # decides on the shard
        ("time", pa.int64()),
        ("content", pa.int64()),  # a hash of what was held of the tuple
        ("seen_time", pa.list_(pa.int64())),  # by stream: the last that had come
        ("seen_tie", pa.list_(pa.int64())),
    ]
)
_HEAD = ("side", "left_at", "why")


def shed_schema(spec: ConstrainedJoin) -> pa.Schema:
    """Which stream, when (in the time column's numbers), why, the tuple, and its mark."""
    fields = [("side", pa.string()), ("left_at", pa.int64()), ("why", pa.string())]
    fields += [(s.name, pa.struct(list(s.kept_schema))) for s in spec.streams]
    return pa.schema([*fields, (MARK, MARK_TYPE)])


def archived(spec: ConstrainedJoin) -> ConstrainedJoin:
    """The same join, with what constraints drop noted."""
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
    """A hash of each tuple, as far as it was held."""
    return hash_columns(batch.columns, batch.num_rows, exact=True).view(np.int64)


class Departures:
    """Collects what constraints dropped."""

    def __init__(self, spec: ConstrainedJoin) -> None:
        self._spec = spec
        n = len(spec.streams)
        self._time = np.full(n, -layout.NEVER, np.int64)
        self._tie = np.zeros(n, np.uint64)
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
        ties: NDArray[np.uint64],
        payload: list[Payload],
    ) -> None:
        """Take in what went while newcomers came, and that these came."""
        if not self._spec.archive:
            return
        n = len(payload)
        time = np.repeat(self._time[:, None], len(shed), axis=1)
        tie = np.repeat(self._tie[:, None], len(shed), axis=1)
        for s in range(n):
            own = np.flatnonzero(newcomers.stream == s)
            if len(own) == 0:
                continue
            last = np.searchsorted(own, shed["at"]) - 1
            came = own[np.maximum(last, 0)]
            later = (last >= 0) & self._later(s, newcomers.time[came], ties[came])
            time[s, later], tie[s, later] = newcomers.time[came[later]], ties[came[later]]
            if self._later(s, newcomers.time[own[-1:]], ties[own[-1:]])[0]:
                self._time[s], self._tie[s] = newcomers.time[own[-1]], ties[own[-1]]
        for s in range(n):
            mine = np.flatnonzero(shed["stream"] == s)
            if len(mine):
                rows = payload[s].take(np.ascontiguousarray(shed["row"][mine]))
                self._found.append(self._rows(s, shed[mine], rows, time[:, mine], tie[:, mine]))

    def _later(
        self, stream: int, time: NDArray[np.int64], tie: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Whether tuples come, in a stream's order, after the last of it so far."""
        return after(time, tie, self._time[stream], self._tie[stream])

    def _rows(
        self,
        stream: int,
        shed: NDArray[Any],
        rows: pa.RecordBatch,
        time: NDArray[np.int64],
        tie: NDArray[np.uint64],
    ) -> pa.RecordBatch:
        spec, count = self._spec, len(shed)
        kept = spec.streams[stream].kept_schema
        shards = spec.shard_columns
        key = np.zeros(count, np.int64)
        if shards is not None:
            column = rows.column(kept.get_field_index(shards[stream]))
            key = hash_columns([column], count).view(np.int64)
        texts = [c.text for c in spec.constraints] + [self._clearing[stream]]
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * len(time))
        mark = pa.StructArray.from_arrays(
            [
                pa.array(key),
                pa.array(np.ascontiguousarray(shed["time"])),
                pa.array(contents(rows)),
                pa.ListArray.from_arrays(offsets, pa.array(time.T.ravel())),
                pa.ListArray.from_arrays(offsets, pa.array(tie.T.ravel().view(np.int64))),
            ],
            fields=list(MARK_TYPE),
        )
        names = ["side", "left_at", "why", spec.streams[stream].name, MARK]
        columns = [
            pa.array([spec.streams[stream].name] * count),
            pa.array(time.max(axis=0)),
            pa.array([texts[why] for why in shed["why"].tolist()], pa.string()),
            pa.StructArray.from_arrays(rows.columns, fields=list(kept)),
            mark,
        ]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def take(self) -> pa.Table:
        """What was noted since the last call."""
        parts = [pa.Table.from_batches([batch]) for batch in self._found]
        self._found = []
        empty = self._schema.empty_table()
        return pa.concat_tables([empty, *parts], promote_options="default")

    def marks(self) -> dict[str, Any]:
        """How far the streams have come, for a record."""
        if not self._spec.archive:
            return {}
        return {"seen_time": self._time.tolist(), "seen_tie": self._tie.tolist()}

    def load(self, head: dict[str, Any]) -> None:
        """Go on from a record."""
        if self._spec.archive:
            self._time[:], self._tie[:] = head["seen_time"], head["seen_tie"]


def after(time: Any, tie: Any, seen_time: Any, seen_tie: Any) -> NDArray[np.bool_]:
    """Whether a tuple comes after another of its stream: by time, then by content."""
    later: NDArray[np.bool_] = (time > seen_time) | ((time == seen_time) & (tie > seen_tie))
    return later
