"""The constrained join: an n-way join that drops rows early by k-constraints.

Record batches in, record batches out, around the compiled loop of `joins/constrained/loop.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Clocks, Job
from tidegate.engine.counters import FLOWS
from tidegate.engine.payload import Payload, Widths, cut, gather, room
from tidegate.engine.prepare import ROW_HASH, TIME
from tidegate.joins.constrained import layout as layout
from tidegate.joins.constrained import loop as loop
from tidegate.joins.constrained.arrays import Tables
from tidegate.joins.constrained.explain import blocks, explain
from tidegate.joins.constrained.log import ConstrainedState
from tidegate.joins.constrained.missed import missed_between
from tidegate.joins.constrained.prepare import BITS, Side, prepare
from tidegate.joins.constrained.shed_log import ShedLog
from tidegate.joins.constrained.spec import ConstrainedJoin
from tidegate.kernel.order import tick_order
from tidegate.settings.columns import equal
from tidegate.sql.expressions import Outputs

#: Results collected before they are handed over, and newcomers processed at once.
_ROOM = 1 << 16
_CHUNK = 1 << 15
#: Bytes per held row besides its payload: its slot, links, timers and groups.
TUPLE_OVERHEAD = 256
#: Bytes per key that is remembered without a row.
KEY_OVERHEAD = 96

#: Counters of the loop.
_COUNTED = ("out_of_order", "late", "null_keys", "expired", "eliminated", "violations")


class JoinFrame(Job):
    """Base class of the jobs of a constrained join and of its repair."""

    def __init__(self, spec: ConstrainedJoin) -> None:
        self.spec = spec

    @property
    def kind(self) -> str:
        """The kind of join, as in the table of counters."""
        return "constrained"

    @property
    def result_schema(self) -> pa.Schema:
        """The selected columns."""
        return self.spec.result_schema

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Hash the keys of one input's rows, and evaluate their filter.

        Rows that do not pass are not dropped: windows and constraints count all rows of a stream.
        """
        return prepare(self.spec, stream, batch)


class ConstrainedJob(JoinFrame):
    """The settings of a constrained join, sent to where it runs."""

    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> ConstrainedEngine:
        """Return the engine of one shard; it keeps shed rows if the spec says so."""
        return ConstrainedEngine(self.spec)

    def fingerprint(self) -> dict[str, Any]:
        """The settings that a checkpoint depends on."""
        return self.spec.settings()


class ConstrainedEngine(ConstrainedState):
    """A select-project-join over n streams that exploits constraints (section 3 to 6)."""

    def __init__(self, spec: ConstrainedJoin, more: Sequence[pa.Field] = ()) -> None:
        self.spec = spec
        self._sides = [Side(spec, at, more) for at in range(len(spec.streams))]
        self._tables = Tables(spec)
        self._payload = [Payload(side.payload_schema) for side in self._sides]
        self._piece = room(spec.result_schema)
        self._outputs = Outputs(spec.selected_schema, spec.outputs)
        self._open = [self._no_rows(s) for s in range(len(self._sides))]
        self._streams = len(self._open)
        self._flows = dict.fromkeys(FLOWS, 0)
        self._shed_log = ShedLog(spec)

    # ---- input and output ---------------------------------------------------------------------

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Process prepared batches of every stream; give results as they are found."""
        self._flows["arrived"] += sum(b.num_rows for side in inputs for b in side)
        told = [clock for clock in clocks or () if clock is not None]
        yield from self._run(inputs, int(max(told)) if told else None)
        if told and clocks is not None:
            never = -layout.NEVER
            stream_clock = np.array([never if c is None else int(c) for c in clocks], np.int64)
            if (stream_clock > self._tables.core.streams["clock"]).any():
                self._tables.make_room(1)
                loop.advance_clock(self._tables.core, self._tables.plan, stream_clock)
                yield from self._loop(self._no_batch(), np.zeros(0, np.uint64))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Close the open tick."""
        yield from self._run([[] for _ in self._sides], layout.NEVER)

    def _run(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], told: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Process all rows except those of the latest time, of which more may come."""
        given = [[self._open[s], *inputs[s]] for s in range(len(self._sides))]
        lengths = [sum(batch.num_rows for batch in batches) for batches in given]
        if not any(lengths):
            return
        time = np.concatenate([_column(batches, TIME) for batches in given])
        stream = np.repeat(np.arange(len(given), dtype=np.int8), lengths)
        row_hash = np.concatenate([_column(batches, ROW_HASH) for batches in given])
        order = tick_order(time, lengths[0], stream, row_hash, row_hash)
        latest = time[order[-1]]
        ready = len(order)
        if (told is None or told <= latest) and latest >= self.latest:
            ready = int(np.searchsorted(time[order], latest))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        waiting = np.sort(order[ready:])
        for s, batches in enumerate(given):
            own = waiting[(waiting >= starts[s]) & (waiting < starts[s + 1])] - starts[s]
            self._open[s] = gather(batches, self._sides[s].schema, own)
        order = order[:ready]
        first = [
            payload.add([side.payload(batch) for batch in batches])
            for payload, side, batches in zip(self._payload, self._sides, given, strict=True)
        ]
        newcomers = self._batch(given, order, time, stream, starts, first)
        for at in range(0, ready, _CHUNK):
            part = layout.Batch(*(column[at : at + _CHUNK] for column in newcomers))
            yield from self._loop(part, row_hash[order[at : at + _CHUNK]])
        self._drop_rows(first)

    def _batch(
        self,
        given: list[list[pa.RecordBatch]],
        order: NDArray[np.int64],
        time: NDArray[np.int64],
        stream: NDArray[np.int8],
        starts: NDArray[np.int64],
        first: list[int],
    ) -> layout.Batch:
        """Return the newcomers as arrays, in arrival order."""
        width = self._tables.core.links.shape[1]
        ordered = max(1, *(len(side.stream.ordered) for side in self._sides))
        hashes = np.zeros((len(time), width), np.uint64)
        values = np.zeros((len(time), ordered), np.int64)
        bits = np.zeros(len(time), np.uint8)
        row = np.zeros(len(time), np.int64)
        end = np.full(len(time), layout.NEVER, np.int64)
        for s, (side, batches) in enumerate(zip(self._sides, given, strict=True)):
            mine = slice(starts[s], starts[s + 1])
            for j in range(len(side.keys)):
                hashes[mine, j] = _column(batches, f"h{j}")
            for j in range(len(side.stream.ordered)):
                values[mine, j] = _column(batches, f"v{j}")
            bits[mine] = _column(batches, BITS)
            row[mine] = first[s] + np.arange(len(row[mine]))
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
        empty = [[self._no_rows(s)] for s in range(len(self._sides))]
        nothing = np.zeros(0, np.int64)
        starts = np.zeros(len(self._sides) + 1, np.int64)
        first = [0] * len(self._sides)
        return self._batch(empty, nothing, nothing, nothing.astype(np.int8), starts, first)

    def _loop(
        self, newcomers: layout.Batch, row_hashes: NDArray[np.uint64]
    ) -> Iterator[pa.RecordBatch]:
        """Run the compiled loop over newcomers."""
        tables = self._tables
        tables.make_room(len(newcomers.time))
        tables.core.scalars["at"] = 0
        out = np.empty((_ROOM, len(self._sides)), np.int64)
        stopped = loop.FULL
        while stopped != loop.DONE:
            found, stopped = loop.run(tables.core, tables.plan, newcomers, out, 0)
            if found:
                yield from self._found(out[:found])
        self._shed_log.note(tables.take_shed(), newcomers, row_hashes, self._payload)

    def _found(self, rows: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Give results as rows, in pieces of bounded size."""
        taken: Widths = 0
        for s, payload in enumerate(self._payload):
            taken = taken + payload.widths_of(rows[:, s])
        for piece in cut(len(rows), taken, self._piece):
            yield self._results(rows[piece])

    def _results(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        """Return results as rows, without those whose keys only have the same hash."""
        parts = [p.take(np.ascontiguousarray(rows[:, s])) for s, p in enumerate(self._payload)]
        streams = self.spec.streams
        same = np.ones(len(rows), np.bool_)
        for edge in self.spec.graph.edges:
            for a, b in zip(edge.parent_keys, edge.child_keys, strict=True):
                one = parts[edge.parent].column(streams[edge.parent].kept.index(a))
                other = parts[edge.child].column(streams[edge.child].kept.index(b))
                same &= equal(one, other)
        columns = [parts[s].column(streams[s].kept.index(name)) for s, name in self.spec.selected]
        result = pa.RecordBatch.from_arrays(columns, schema=self.spec.selected_schema)
        if not same.all():
            result = result.filter(pa.array(same))
        self._flows["results"] += result.num_rows
        return self._outputs.of(result)

    def _drop_rows(self, first: list[int]) -> None:
        """Drop the payload of rows not held: of new rows at once, of others if they are many."""
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
            if payload.wants_trim(len(rows)):
                payload.trim(0, rows)
                rows = np.arange(len(rows))
            slots["row"][mine] = rows

    def _no_rows(self, stream: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], self._sides[stream].schema)

    # ---- counters -----------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Number of held rows, in all components."""
        return self._tables.held

    @property
    def settled(self) -> int:
        """A time before which no further result will come."""
        return int(self._tables.core.streams["horizon"].min())

    @property
    def latest(self) -> int:
        """The largest time processed."""
        return int(self._tables.core.streams["clock"].max())

    @property
    def adherence(self) -> dict[str, int | None]:
        """The k of each constraint that is used now; None for one that is not."""
        core = self._tables.core
        found: dict[str, int | None] = {}
        for known, k in zip(self.spec.constraints, core.constraints["used"].tolist(), strict=True):
            rows = {"CA": layout.BY_CA, "OAP": layout.BY_OAP}
            idle = False
            if known.kind in rows and known.edges:
                idle = bool(core.savings["idle"][rows[known.kind], list(known.edges)].all())
            found[known.text] = None if k == layout.NEVER or idle else k
        return found

    def take_counters(self) -> dict[str, int | float]:
        """Return flows since the last call, and current gauges."""
        core, scalars = self._tables.core, self._tables.core.scalars
        for name in _COUNTED:
            self._flows[name] += int(scalars[name][0])
            scalars[name] = 0
        share = self.spec.monitor.p
        missed = int(scalars["kept_results"][0]) * (1 - share) / share if share else 0.0
        scalars["kept_results"] = 0
        low, high = self._missed_since_start()
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
            "missed_low": low,
            **({} if high is None else {"missed_high": high}),
        }

    def _missed_since_start(self) -> tuple[float, float | None]:
        """Return bounds on all results missed so far; None if the sample cannot give an upper one.

        Without a key that all joins share, rows are sampled one by one, and a result that several
        constraints have cost is hardly ever seen.
        """
        spec, core = self.spec, self._tables.core
        if core.scalars["dropped"][0] == 0:
            return 0.0, 0.0
        if not spec.watched or spec.monitor.p == 0:
            return 0.0, None
        losses = core.losses
        low, high = missed_between(
            losses["kept"].tolist(), losses["given"].tolist(), spec.monitor.p
        )
        alone = spec.shard_columns is not None or len(spec.constraints) == 1
        return low, high if alone else None

    @property
    def monitored(self) -> tuple[NDArray[Any], layout.Plan]:
        """What was measured of each constraint, and the plan of the join."""
        return self._tables.core.constraints, self._tables.plan

    def details(self) -> dict[str, int | float]:
        """Return gauges by stream and constraint: rows held, k in use, and share of time in use.

        An infinite k is that of a constraint that is not used now. The share of time is that of the
        rows of the constraint's stream that came while it was used.
        """
        found: dict[str, int | float] = {
            f"held of {name}": sum(parts.values()) for name, parts in self.components().items()
        }
        core, plan = self._tables.core, self._tables.plan
        came = core.streams["count"][plan.axis]
        shares = core.constraints["in_use"] / np.maximum(came, 1)
        for (text, k), share in zip(self.adherence.items(), shares.tolist(), strict=True):
            found[f"k of {text}"] = math.inf if k is None else k
            found[f"use of {text}"] = share
        return found

    def explain(self) -> str:
        """Return which rows are held, by stream, and what would let them be dropped earlier."""
        kept = self._tables.core.slots["kept"][self._tables.used_slots()].sum()
        return explain(self.spec, self.components(), self.adherence, int(kept))

    def report(self) -> str:
        """Return the gauges by stream and constraint as JSON, in which an infinite k is null."""
        plain = {n: None if math.isinf(value) else value for n, value in self.details().items()}
        blocked = blocks(self.spec, self.components(), self.adherence)
        return json.dumps({"gauges": plain, "blocked": blocked})

    def components(self) -> dict[str, dict[str, int]]:
        """Return the number of rows of each stream in Yes, No and Unknown."""
        held = self._tables.core.held
        names = {"yes": layout.YES, "no": layout.NO, "unknown": layout.UNKNOWN}
        return {
            stream.name: {name: int(held[s, at]) for name, at in names.items()}
            for s, stream in enumerate(self.spec.streams)
        }

    def _bytes(self) -> int:
        """Return the bytes held: payload (with rows not yet dropped), and indexes."""
        indexes = self._tables.held * TUPLE_OVERHEAD + self._tables.lone_groups() * KEY_OVERHEAD
        records = int(self._tables.core.constraints["record_count"].sum()) * layout.RECORD.itemsize
        return indexes + records + sum(p.nbytes for p in self._payload)

    # ---- state --------------------------------------------------------------------------------

    def _held_size(self) -> tuple[int, int]:
        return self._tables.held, self._bytes()

    # ---- what was shed ------------------------------------------------------------------------

    def take_shed(self) -> pa.Table:
        """Return the rows that constraints dropped since the last call; see `ShedLog`."""
        return self._shed_log.take()


def _column(batches: Sequence[pa.RecordBatch], name: str) -> NDArray[Any]:
    """Return a numeric column of several batches as one array."""
    return np.concatenate([batch.column(name).to_numpy() for batch in batches])
