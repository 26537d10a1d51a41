"""Repair: the results of a constrained join that its constraints lost, from streams and archive.

Every row that a constraint drops is archived with the last row of each stream that had come by then
(`shed_log`). A result is missing exactly if one of its rows was archived before another of its rows
came: it could no longer be given, and rows that were dropped with the archived row had no results
without it. The repair therefore joins everything that joins archived rows, as the sliding window
join (SWJ) does, and gives the results that were missing. No result is given twice. Together with
the delivered results this is the exact join, as long as joins are many-one as declared and no rows
were out of order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Clocks, Engine
from tidegate.engine.counters import FLOWS
from tidegate.engine.payload import one_batch
from tidegate.engine.prepare import KEY, ROW_HASH, TIME
from tidegate.errors import TidegateError
from tidegate.joins.constrained import layout as layout
from tidegate.joins.constrained.engine import ConstrainedEngine, JoinFrame
from tidegate.joins.constrained.prepare import BITS, Side
from tidegate.joins.constrained.shed_log import MARK, MARK_TYPE, Places, contents, places
from tidegate.joins.constrained.spec import ConstrainedJoin
from tidegate.settings.values import quoted

#: Additional columns of a row during a repair: its place in its stream's order, and its line in the
#: archive (-1: none).
_MORE = pa.schema(
    [("when", pa.int64()), ("order", pa.uint64()), ("number", pa.int64()), ("left", pa.int64())]
)
_ARCHIVED = pa.schema(
    [
        (KEY, pa.uint64()),
        (TIME, pa.int64()),
        (ROW_HASH, pa.uint64()),
        ("side", pa.string()),
        ("content", pa.int64()),
        ("seen_time", pa.list_(pa.int64())),
        ("seen_tie", pa.list_(pa.int64())),
        ("seen_number", pa.list_(pa.int64())),
    ]
)
_SEEN = ("seen_time", "seen_tie", "seen_number")


class RepairJob(JoinFrame):
    """The settings of a repair. Its inputs are the join's streams, and then the archive."""

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Prepare rows as the join does; of the archive, take the columns `side` and `mark`."""
        if stream < len(self.spec.streams):
            return super().prepare(stream, batch)
        names = [field.name for field in MARK_TYPE]
        mark = dict(zip(names, batch.column(MARK).flatten(), strict=True))
        key = pa.array(mark["key"].to_numpy(zero_copy_only=False).view(np.uint64))
        row_hash = pa.array(np.zeros(batch.num_rows, np.uint64))
        columns = [key, mark["time"], row_hash, batch.column("side")]
        columns += [mark[name] for name in ("content", *_SEEN)]
        return pa.RecordBatch.from_arrays(columns, schema=_ARCHIVED), {}

    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> RepairEngine:
        """Return the engine of one shard."""
        return RepairEngine(self.spec)

    def fingerprint(self) -> dict[str, Any]:
        """The settings that an archive depends on."""
        return archive_settings(self.spec)


def archive_settings(spec: ConstrainedJoin) -> dict[str, Any]:
    """Return the settings that an archive depends on, as plain JSON values."""
    every = spec.settings()
    streams = {
        f"{setting} of {stream['name']}": value
        for stream in every["streams"]
        for setting, value in stream.items()
        if setting != "name"
    }
    names = [stream["name"] for stream in every["streams"]]
    return {"streams": names, "joins": every["joins"], "select": every["select"], **streams}


class _Missing(ConstrainedEngine):
    """The sliding window join, restricted to results that were not delivered."""

    def __init__(self, spec: ConstrainedJoin, seen: Places) -> None:
        super().__init__(spec, _MORE)
        self._seen = seen

    def _results(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        parts = [p.take(np.ascontiguousarray(rows[:, s])) for s, p in enumerate(self._payload)]
        *place, left = (
            np.stack([part.column(name).to_numpy() for part in parts]) for name in _MORE.names
        )
        came = Places(*place)
        missing = np.zeros(len(rows), np.bool_)
        for line in left:
            seen = self._seen.at(np.s_[:, np.maximum(line, 0)])
            missing |= (line >= 0) & came.after(seen).any(axis=0)
        return super()._results(rows[missing])


class RepairEngine(Engine):
    """Finds what is missing when all rows are there."""

    def __init__(self, spec: ConstrainedJoin) -> None:
        self.spec = spec
        self._sides = [Side(spec, at) for at in range(len(spec.streams))]
        self._given: list[list[pa.RecordBatch]] = [[] for _ in range(len(spec.streams) + 1)]
        self._counters: dict[str, int | float] = dict.fromkeys((*FLOWS, "importance"), 0)

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Collect prepared batches of every stream and of the archive."""
        for mine, batches in zip(self._given, inputs, strict=True):
            mine += batches
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Give the missing results."""
        *streams, archive = self._given
        given = [
            one_batch(pa.Table.from_batches(batches, side.schema))
            for batches, side in zip(streams, self._sides, strict=True)
        ]
        shed = one_batch(pa.Table.from_batches(archive, _ARCHIVED))
        time, row_hash, number = (
            shed.column(name).flatten().to_numpy().reshape(-1, len(given)).T for name in _SEEN
        )
        seen = Places(time, row_hash.view(np.uint64), number)
        left = [self._lines(s, batch, shed, seen) for s, batch in enumerate(given)]
        if len(shed) == 0:
            return
        near = self._near(given, [line >= 0 for line in left])
        exact = replace(
            self.spec,
            eliminate=False,
            archive=False,
            constraints=(),
            watched=False,
            lag=0,
            lateness=0,
        )
        engine = _Missing(exact, seen)
        inputs = [
            [_marked(batch, line, mask)]
            for batch, line, mask in zip(given, left, near, strict=True)
        ]
        yield from engine.feed(inputs)
        yield from engine.finish()
        self._counters = engine.take_counters()

    def _lines(
        self,
        stream: int,
        batch: pa.RecordBatch,
        shed: pa.RecordBatch,
        seen: Places,
    ) -> NDArray[np.int64]:
        """Return the line of each row in the archive, or -1.

        Rows that are equal in all held columns have the same results, so the first of them in
        stream order are matched with the first archived.
        """
        name = self.spec.streams[stream].name
        side = np.asarray(shed.column("side").to_numpy(zero_copy_only=False))
        lines = np.flatnonzero(side == name)
        lines = lines[np.lexsort([row for each in seen[::-1] for row in each[:, lines]])]
        passing = np.flatnonzero(batch.column(BITS).to_numpy() & layout.PASSES)
        row_hash = batch.column(ROW_HASH).to_numpy()[passing]
        passing = passing[np.argsort(row_hash, kind="stable")]
        content = contents(self._sides[stream].payload(batch))[passing]
        at, which = _matches(
            (batch.column(TIME).to_numpy()[passing], content),
            (shed.column(TIME).to_numpy()[lines], shed.column("content").to_numpy()[lines]),
        )
        found: NDArray[np.int64] = np.full(batch.num_rows, -1, np.int64)
        if len(which) < len(lines):
            raise TidegateError(
                f"{len(lines) - len(which):,} of {len(lines):,} archived rows of the stream "
                f"{quoted(name)} are not among its rows; repair needs all rows that were joined"
            )
        found[passing[at]] = lines[which]
        return found

    def _near(
        self, given: list[pa.RecordBatch], archived: list[NDArray[np.bool_]]
    ) -> list[NDArray[np.bool_]]:
        """Return which rows may be in a result with an archived row, by following keys."""
        edges = self.spec.graph.edges
        near = [mask.copy() for mask in archived]
        for start, mask in enumerate(archived):
            reached = {start: mask}
            for _ in given:
                for e, edge in enumerate(edges):
                    for one, other in ((edge.parent, edge.child), (edge.child, edge.parent)):
                        if one in reached and other not in reached:
                            keys = self._hashes(given, one, e)[reached[one]]
                            reached[other] = np.isin(self._hashes(given, other, e), keys)
            for s, found in reached.items():
                near[s] |= found
        return near

    def _hashes(self, given: list[pa.RecordBatch], stream: int, edge: int) -> NDArray[np.uint64]:
        """Return the key hashes of a stream's rows in one join."""
        graph = self.spec.graph
        links = [*graph.children(stream), *graph.parents(stream)]
        found: NDArray[np.uint64] = given[stream].column(f"h{links.index(edge)}").to_numpy()
        return found

    def take_counters(self) -> dict[str, int | float]:
        """Return the counters of the repair."""
        return self._counters

    def changes(self) -> bytes:
        """Return nothing: a repair is one batch."""
        return b""

    def snapshot(self) -> list[bytes]:
        """Return nothing."""
        return []

    def restore(
        self, records: Iterable[bytes], written_with: Mapping[str, Any] | None = None
    ) -> None:
        """Do nothing."""


def _matches(
    one: tuple[NDArray[np.int64], NDArray[np.int64]],
    other: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Match rows with equal time and content: the n-th of one with the n-th of the other."""
    time, content = (np.concatenate(pair) for pair in zip(one, other, strict=True))
    number = np.concatenate([_numbers(t, c.view(np.uint64)) for t, c in (one, other)])
    first = len(one[0])
    order = np.lexsort((np.arange(len(time)) >= first, number, content, time))
    keys = [each[order] for each in (time, content, number)]
    same = np.logical_and.reduce([key[1:] == key[:-1] for key in keys])
    at = np.flatnonzero(same)
    return order[at], order[at + 1] - first


def _numbers(time: NDArray[np.int64], row_hash: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return, for each row, how many rows of the same time and content come before it."""
    order = np.lexsort((row_hash, time))
    number = np.empty(len(order), np.int64)
    number[order] = places(time[order], row_hash[order]).number
    return number


def _marked(
    batch: pa.RecordBatch, left: NDArray[np.int64], near: NDArray[np.bool_]
) -> pa.RecordBatch:
    """Add places and archive lines to prepared rows. Rows not near only count in windows."""
    bits = batch.column(BITS).to_numpy()
    bits = np.where(near, bits, bits & ~np.uint8(layout.PASSES)).astype(np.uint8)
    at = batch.schema.get_field_index(BITS)
    columns = [*batch.columns[:at], pa.array(bits), *batch.columns[at + 1 :]]
    time, row_hash = batch.column(TIME).to_numpy(), batch.column(ROW_HASH).to_numpy()
    columns += [pa.array(each) for each in (time, row_hash, _numbers(time, row_hash), left)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*batch.schema, *_MORE]))
