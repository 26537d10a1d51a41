"""`tidegate.profile`: which joins of archived streams are many-one, and which constraints hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.api import run_local
from tidegate.api.inputs import all_on_spark, local_table, rows_at_once
from tidegate.api.keywords import Settings
from tidegate.api.public_call import public_call
from tidegate.errors import TidegateError
from tidegate.joins.constrained.constraints import CA, OAC, OAP, RIDS, Constraint, Monitor
from tidegate.joins.constrained.engine import ConstrainedEngine, ConstrainedJob
from tidegate.joins.constrained.explain import length_text
from tidegate.joins.constrained.graph import Edge
from tidegate.joins.constrained.spec import (
    ConstrainedJoin,
    Stream,
    all_constraints,
    constrained_join,
    quoted_name,
)
from tidegate.settings.by_stream import named_streams
from tidegate.settings.columns import hash_columns
from tidegate.settings.rows import MOST
from tidegate.settings.times import TimeUnit, times
from tidegate.settings.types import LocalData, StreamColumn, WithinStreams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: A constraint is recommended if the state is larger by this share at least without it.
_WORTHWHILE = 0.01
#: The state is measured this often over the streams, unless `batch_rows` says otherwise.
_SAMPLES = 50
_KINDS: dict[str, type[Constraint]] = {kind.__name__: kind for kind in (RIDS, CA, OAP, OAC)}
#: How a join is written, by whether the keys of its first and its second stream are unique.
_ARROWS = {
    (False, False): ("=", "many-many"),
    (False, True): ("->", "many-one"),
    (True, False): ("<-", "one-many"),
    (True, True): ("<->", "one-one"),
}


@dataclass(frozen=True)
class Profile:
    """What `tidegate.profile` found: printed as text, and as Arrow tables.

    Attributes
    ----------
    joins
        The joins as `tidegate.constrained_join` takes them: ``->`` or ``<->`` where keys are
        unique. Joins by several attributes are one text for each pair of attributes.
    constraints
        The constraints that make the state smaller, with the k that holds on these streams.
    table
        A row for each constraint: its ``k_rows`` and ``k_time`` (seconds, or the numbers of the
        time column), the number of ``distances`` that it rests on, ``held_without``, the rows held
        on average without it, and ``saved``, the share of them that it saves. Constraints work
        together, so each is left out of those that remain, the one with the largest k first.
    join_table
        A row for each join: ``kind``, and how many rows of either stream have the key of a row that
        was still in its window.
    held
        Rows held on average: by the ``sliding window join``, with ``many-one joins`` alone, and
        with ``these constraints``, those of `constraints`.
    """

    joins: tuple[str, ...]
    constraints: tuple[Constraint, ...]
    table: pa.Table
    join_table: pa.Table
    held: dict[str, float]
    _lines: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        """Return the report as text."""
        return "\n".join(self._lines)


class _Join(NamedTuple):
    """A join without a direction: two streams, their keys, and how often a key is repeated."""

    one: int
    other: int
    keys: tuple[tuple[str, str], ...]
    repeated: tuple[int, int]

    @property
    def unique(self) -> tuple[bool, bool]:
        return self.repeated[0] == 0, self.repeated[1] == 0


@public_call()
def profile(
    streams: Sequence[DataFrame | LocalData] | Mapping[str, DataFrame | LocalData],
    *,
    joins: str | Sequence[str],
    time: StreamColumn,
    within: WithinStreams = None,
    closed: bool = False,
    filters: Mapping[str, str] | None = None,
    batch_rows: int | None = None,
) -> Profile:
    """Find out from archived streams which joins are many-one, and which constraints hold.

    Every constraint that the joins allow is measured in rows and in time. The join is then run
    without constraints, with all of them, and with each of them left out: a constraint is
    recommended if the state is larger without it.

    Parameters
    ----------
    streams
        Local data, or Spark batch DataFrames, which are collected: a mapping by name, or a list,
        whose streams are named "s1", "s2" and so on.
    joins
        ``"S1.a = S2.a"`` where it is not known on which side keys are unique. ``->``, ``<-`` and
        ``<->`` are allowed too, and are checked like ``=``.
    time, within, closed, filters
        As in `tidegate.constrained_join`.
    batch_rows
        How often the state is measured: after every so many rows. By default, 50 times.

    Returns
    -------
    Profile
        `print` shows it; ``joins`` and ``constraints`` are what `tidegate.constrained_join` takes.
        The k of each constraint is the largest distance in these streams. If later streams may be
        less orderly, give the constraints without k, or ``constraints="auto"``.

    Examples
    --------
    >>> import tidegate as tg
    >>> orders = {"id": list(range(100)), "ts": list(range(0, 1000, 10))}
    >>> payments = {"order": list(range(100)), "ts": list(range(3, 1003, 10))}
    >>> found = tg.profile(
    ...     {"payments": payments, "orders": orders},
    ...     joins="payments.order = orders.id",
    ...     time="ts",
    ...     within=500,
    ... )
    >>> found.joins
    ('payments.order <-> orders.id',)
    >>> found.held["these constraints"] < found.held["many-one joins"]
    True
    """
    given = named_streams(streams)
    if all_on_spark(given):
        given = _collected(given)
    every = rows_at_once(batch_rows) if batch_rows is not None else None
    tables = {name: local_table(data) for name, data in given.items()}
    schemas = {name: table.schema for name, table in tables.items()}
    common: Settings = {
        "time": time,
        "within": within,
        "closed": closed,
        "filters": filters,
        "lag": 0,
    }
    plain = constrained_join(schemas, joins=joins, eliminate=False, **common)
    found = [_examined(each, plain, tables) for each in _undirected(plain.graph.edges)]
    directed = tuple(text for each in found for text in _texts(each, plain))
    rows = every or max(sum(table.num_rows for table in tables.values()) // _SAMPLES, 1)
    measure = _Measure(schemas, list(tables.values()), rows, {"joins": directed, **common})
    return measure.report(plain, found)


def _collected(frames: Mapping[str, Any]) -> dict[str, Any]:
    streaming = [name for name, frame in frames.items() if frame.isStreaming]
    if streaming:
        raise TidegateError(
            f"the stream {streaming[0]} is a streaming DataFrame, and a profile needs all rows of "
            'the past: read them with spark.read, or let constraints="auto" measure while running'
        )
    return {name: frame.toArrow() for name, frame in frames.items()}


# ---- joins ------------------------------------------------------------------------------------


def _undirected(edges: Sequence[Edge]) -> list[_Join]:
    """Return each pair of joined streams once, with all pairs of attributes."""
    pairs: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for edge in edges:
        keys = list(zip(edge.parent_keys, edge.child_keys, strict=True))
        ends = (edge.parent, edge.child)
        if (edge.child, edge.parent) in pairs:
            ends, keys = (edge.child, edge.parent), [(b, a) for a, b in keys]
        known = pairs.setdefault(ends, [])
        known += [pair for pair in keys if pair not in known]
    return [_Join(one, other, tuple(keys), (0, 0)) for (one, other), keys in pairs.items()]


def _examined(join: _Join, spec: ConstrainedJoin, tables: Mapping[str, pa.Table]) -> _Join:
    """Return a join with the number of repeated keys on both sides."""
    ends = ((join.one, [a for a, _ in join.keys]), (join.other, [b for _, b in join.keys]))
    one, other = (
        _repeated(tables[spec.streams[s].name], spec.streams[s], keys, spec.unit)
        for s, keys in ends
    )
    return join._replace(repeated=(one, other))


def _repeated(table: pa.Table, stream: Stream, keys: Sequence[str], unit: TimeUnit) -> int:
    """Count the rows whose key is that of an earlier row that is still in its window."""
    there = np.ones(table.num_rows, np.bool_)
    for name in (stream.time, *keys):
        there &= table.column(name).is_valid().to_numpy()
    when = np.zeros(table.num_rows, np.int64)
    when[there] = times(_column(table.filter(pa.array(there)), stream.time), unit)
    order = np.argsort(when, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    key = hash_columns([_column(table, name) for name in keys], table.num_rows)
    at = np.flatnonzero(there)
    at = at[np.lexsort((place[at], key[at]))]
    again = key[at][1:] == key[at][:-1]
    if stream.window is not None:
        again &= when[at][1:] - when[at][:-1] < stream.window
    elif stream.rows is not None and stream.by is None:
        again &= place[at][1:] - place[at][:-1] < stream.rows
    elif stream.rows == 1 and [stream.by] == list(keys):
        return 0
    return int(again.sum())


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name).combine_chunks()
    return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)


def _texts(join: _Join, spec: ConstrainedJoin) -> list[str]:
    """Return a join as text, one for each pair of attributes."""
    arrow, _ = _ARROWS[join.unique]
    one, other = (quoted_name(spec.streams[s].name) for s in (join.one, join.other))
    return [f"{one}.{quoted_name(a)} {arrow} {other}.{quoted_name(b)}" for a, b in join.keys]


# ---- constraints ------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A constraint, its largest distances in rows and in time, and how many there were."""

    made: Constraint
    rows: int | None
    time: int
    distances: int
    text: str


class _Measure:
    """Run the join over the streams, with and without constraints."""

    def __init__(
        self,
        schemas: Mapping[str, pa.Schema],
        tables: list[pa.Table],
        batch_rows: int,
        settings: Settings,
    ) -> None:
        self._schemas = schemas
        self._tables = tables
        self._batch_rows = batch_rows
        self._settings = settings

    def report(self, plain: ConstrainedJoin, joins: list[_Join]) -> Profile:
        """Return the report on the streams."""
        held = {"sliding window join": self._held(eliminate=False)}
        many = any(not any(join.unique) for join in joins)
        found = [] if many else self._found()
        without: dict[str, tuple[float, float]] = {}
        useful = [each.made for each in found]
        if not many:
            held["many-one joins"] = self._held()
            least = self._held(constraints=useful)
            for each in sorted(found, key=lambda each: -each.time):
                others = [made for made in useful if made is not each.made]
                rest = self._held(constraints=others)
                without[each.text] = rest, 1 - least / rest if rest else 0.0
                if rest * (1 - _WORTHWHILE) <= least:
                    useful, least = others, rest
            held["these constraints"] = least
        join_table = _join_table(joins, plain)
        table = _table(found, without, plain)
        lines = _lines(join_table, table, found, held, plain)
        texts = tuple(text for join in joins for text in _texts(join, plain))
        return Profile(texts, tuple(useful), table, join_table, held, tuple(lines))

    def _run(self, **more: Any) -> tuple[ConstrainedEngine, list[int], ConstrainedJoin]:
        spec = constrained_join(self._schemas, **self._settings, **more)
        job = ConstrainedJob(spec)
        engine = job.engine_at(0, 1)
        held = []
        for inputs in run_local.in_order_of_time(job, self._tables, self._batch_rows, {}):
            for _ in engine.feed(inputs):
                pass
            held.append(engine.held)
        for _ in engine.finish():
            pass
        return engine, held, spec

    def _held(self, **more: Any) -> float:
        """Return the number of rows held on average after each batch."""
        return float(np.mean(self._run(choose=False, **more)[1]))

    def _found(self) -> list[_Found]:
        """Measure every constraint that the joins allow, while no row is dropped by any."""
        spec = constrained_join(self._schemas, **self._settings)
        every = all_constraints(spec.graph, spec.streams)
        monitor = Monitor(c=1.0, p=1.0, window=MOST)
        single = {"RIDS", "OAP", "OAC"}
        if all(len(edge.parent_keys) == 1 for edge in spec.graph.edges):
            single.add("CA")
        counted = [_KINDS[c.kind](c.on) for c in every if c.kind in single]
        in_rows = self._distances(counted, monitor)
        found = []
        for text, (largest, distances, made) in self._distances(every, monitor).items():
            if distances or made.kind != "RIDS":
                k = _as_setting(largest, spec.unit)
                rows = in_rows[text][0] if text in in_rows else None
                found.append(
                    _Found(_KINDS[made.kind](made.on, within=k), rows, largest, distances, text)
                )
        return found

    def _distances(
        self, constraints: list[Constraint], monitor: Monitor
    ) -> dict[str, tuple[int, int, Constraint]]:
        """Return the largest distance of each constraint that can have an effect, and how many."""
        engine, _, spec = self._run(constraints=constraints, monitor=monitor, choose=False)
        core, plan = engine.monitored
        return {
            known.text: (int(seen), int(number), made)
            for known, made, seen, number, watched in zip(
                spec.constraints,
                constraints,
                core["seen"],
                core["observed"],
                plan.detected,
                strict=True,
            )
            if watched
        }


def _as_setting(k: int, unit: TimeUnit) -> Any:
    """Return a length of time in kernel units as `within` takes it."""
    if unit.is_time:
        return f"{int(k / unit.per_unit)} ns"
    exact = k / unit.per_unit
    return int(exact) if exact.denominator == 1 else float(exact)


# ---- tables -----------------------------------------------------------------------------------


def _join_table(joins: list[_Join], spec: ConstrainedJoin) -> pa.Table:
    rows = [
        {
            "join": " and ".join(_texts(join, spec)),
            "kind": _ARROWS[join.unique][1],
            "repeated_one": join.repeated[0],
            "repeated_other": join.repeated[1],
        }
        for join in joins
    ]
    kinds = [("join", pa.string()), ("kind", pa.string())]
    counts = [("repeated_one", pa.int64()), ("repeated_other", pa.int64())]
    return pa.Table.from_pylist(rows, pa.schema(kinds + counts))


def _table(
    found: list[_Found], without: dict[str, tuple[float, float]], spec: ConstrainedJoin
) -> pa.Table:
    scale = float(spec.unit.per_unit) * (1e9 if spec.unit.is_time else 1.0)
    rows = [
        {
            "constraint": each.text,
            "k_rows": each.rows,
            "k_time": each.time / scale,
            "distances": each.distances,
            "held_without": without[each.text][0],
            "saved": without[each.text][1],
        }
        for each in found
    ]
    real = [(name, pa.float64()) for name in ("held_without", "saved")]
    kinds = [("constraint", pa.string()), ("k_rows", pa.int64()), ("k_time", pa.float64())]
    return pa.Table.from_pylist(rows, pa.schema([*kinds, ("distances", pa.int64()), *real]))


def _lines(
    join_table: pa.Table,
    table: pa.Table,
    found: list[_Found],
    held: dict[str, float],
    spec: ConstrainedJoin,
) -> list[str]:
    """Return the report as lines of text."""
    lines = []
    for row in join_table.to_pylist():
        lines.append(f"{row['join']}: {row['kind']}")
        if row["kind"] == "many-many":
            lines.append(
                f"  {row['repeated_one']:,} and {row['repeated_other']:,} rows have the key of a "
                "row that is still in its window, so that no constraint can be used"
            )
    lines.append("")
    lines += [f"{way}: {rows:,.0f} rows held" for way, rows in held.items()]
    if found:
        head = ("constraint", "k in rows", "k in time", "distances", "held without it", "saved")
        cells = [head]
        for each, row in zip(found, table.to_pylist(), strict=True):
            in_time = length_text(each.time, spec.unit)
            in_rows = "" if each.rows is None else f"{each.rows:,}"
            without = f"{row['held_without']:,.0f}"
            numbers = (f"{row['distances']:,}", without, f"{max(row['saved'], 0):.0%}")
            cells.append((each.text, in_rows, in_time, *numbers))
        widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
        lines.append("")
        for cell in cells:
            rest = "  ".join(text.rjust(w) for text, w in zip(cell[1:], widths[1:], strict=True))
            lines.append(f"{cell[0].ljust(widths[0])}  {rest}")
    return lines
