"""The settings of a constrained join: graph, windows, filters and constraints, checked once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.joins.constrained.constraints import (
    CA,
    DETECT,
    OAC,
    OAP,
    RIDS,
    Constraint,
    Constraints,
    Monitor,
)
from tidegate.joins.constrained.graph import Edge, Graph
from tidegate.settings.by_stream import for_each_stream
from tidegate.settings.checks import (
    check_carried,
    check_column,
    check_key,
    check_unique,
    flag,
    nearest,
    result_names,
)
from tidegate.settings.rows import Rows
from tidegate.settings.times import TimeUnit, duration, lateness_of, time_unit
from tidegate.settings.types import (
    Duration,
    Lateness,
    StreamColumn,
    Suffixes,
    WithinStreams,
)
from tidegate.settings.values import quoted
from tidegate.sql.conditions import Filter
from tidegate.sql.expressions import Output, Outputs

#: The most streams of a join, which bounds the time of walks through the graph.
MOST_STREAMS = 16
_NAME = r"(?:\w+|`[^`]+`)"
_ATTRIBUTE = re.compile(rf"\s*({_NAME})\s*\.\s*({_NAME})\s*")
_JOIN = re.compile(r"(.*?)(<->|->|<-|=)(.*)", re.DOTALL)


@dataclass(frozen=True)
class Stream:
    """One input stream. With neither `rows` nor `window`, its window is unbounded."""

    name: str
    schema: pa.Schema
    time: str
    rows: int | None
    by: str | None
    window: int | None
    filter: str | None
    #: The columns that results or joins need; others are not held (section 3.3.2).
    kept: tuple[str, ...] = ()
    #: The columns that ordered-arrival constraints compare.
    ordered: tuple[str, ...] = ()

    @property
    def kept_schema(self) -> pa.Schema:
        """The columns that are held of a row."""
        return pa.schema([self.schema.field(name) for name in self.kept])


@dataclass(frozen=True)
class Known:
    """A constraint resolved to a stream, a column and the joins that use it."""

    kind: str
    stream: int
    column: str | None
    edges: tuple[int, ...]
    k: int | None
    in_time: bool
    text: str


@dataclass(frozen=True)
class ConstrainedJoin:
    """The checked settings of a select-project-join over many-one joins of streams."""

    streams: tuple[Stream, ...]
    graph: Graph
    unit: TimeUnit
    lateness: int
    lag: int | None
    constraints: tuple[Known, ...]
    monitor: Monitor
    #: True if rows are sampled to estimate the results that constraints cost.
    watched: bool
    #: True if the measured cost of a constraint decides how it is used.
    choose: bool
    #: True if rows are dropped before their windows end; False is SWJ (section 1.4).
    eliminate: bool
    selected: tuple[tuple[int, str], ...]
    names: tuple[str, ...]
    #: True if rows that constraints drop are recorded for `tidegate.repair`.
    archive: bool = False
    #: Columns computed from those selected; without any, the selected columns are the result.
    outputs: tuple[Output, ...] = ()

    @property
    def result_schema(self) -> pa.Schema:
        """The columns of the result."""
        return Outputs(self.selected_schema, self.outputs).schema

    @property
    def selected_schema(self) -> pa.Schema:
        """The selected columns."""
        fields = [self.streams[s].schema.field(column) for s, column in self.selected]
        return pa.schema([f.with_name(n) for f, n in zip(fields, self.names, strict=True)])

    @property
    def result_age(self) -> int | None:
        """The most by which a result is older than the newest row; None for any age."""
        lengths = [stream.window for stream in self.streams if stream.window is not None]
        return max(lengths) if len(lengths) == len(self.streams) else None

    @property
    def shard_columns(self) -> tuple[str, ...] | None:
        """One column of each stream that all joins make equal; None if there is none."""
        for start in self.streams[0].schema.names:
            same: dict[int, str] = {0: start}
            for _ in self.streams:
                for e in self.graph.edges:
                    for a, b in zip(e.parent_keys, e.child_keys, strict=True):
                        if same.get(e.parent) == a:
                            same.setdefault(e.child, b)
                        if same.get(e.child) == b:
                            same.setdefault(e.parent, a)
            shared = len(same) == len(self.streams) and all(
                (same[e.parent], same[e.child]) in zip(e.parent_keys, e.child_keys, strict=True)
                for e in self.graph.edges
            )
            if shared:
                return tuple(same[s] for s in range(len(self.streams)))
        return None

    @property
    def one_shard(self) -> str | None:
        """The reason why only one shard is possible; None if more are."""
        if self.shard_columns is None:
            return "its joins share no key"
        for stream in self.streams:
            if stream.rows is not None and stream.by is None:
                return f"the window of {stream.name} counts rows, which needs one order"
        for known in self.constraints:
            if not known.in_time:
                return f"{known.text} counts rows, which needs one order"
        return None

    @property
    def schemas(self) -> list[pa.Schema]:
        """The schemas of the streams."""
        return [stream.schema for stream in self.streams]

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain JSON values; a checkpoint is bound to all of them."""
        return {
            "streams": [
                {
                    "name": s.name,
                    "time": s.time,
                    "rows": s.rows,
                    "by": s.by,
                    "window": s.window,
                    "filter": s.filter,
                    "columns": [f"{f.name}: {f.type}" for f in s.schema],
                }
                for s in self.streams
            ],
            "joins": [
                [
                    self.streams[e.parent].name,
                    list(e.parent_keys),
                    self.streams[e.child].name,
                    list(e.child_keys),
                ]
                for e in self.graph.edges
            ],
            "constraints": [[c.text, c.k, c.in_time] for c in self.constraints],
            "monitor": [self.monitor.c, self.monitor.p, self.monitor.window, self.watched],
            **({"on_rise": "suspend"} if self.monitor.on_rise == "suspend" else {}),
            "select": [[self.streams[s].name, column] for s, column in self.selected],
            "lateness": self.lateness,
            "lag": self.lag,
            "choose": self.choose,
            "eliminate": self.eliminate,
            **({"archive": True} if self.archive else {}),
            **({"outputs": [list(each) for each in self.outputs]} if self.outputs else {}),
        }


def constrained_join(
    schemas: Mapping[str, pa.Schema],
    *,
    joins: str | Sequence[str],
    time: StreamColumn,
    within: WithinStreams = None,
    closed: bool = False,
    filters: Mapping[str, str] | None = None,
    select: str | Sequence[str] | None = None,
    constraints: Constraints = None,
    monitor: Monitor | None = None,
    lateness: Lateness = None,
    lag: Duration | None = None,
    choose: bool = True,
    eliminate: bool = True,
    suffixes: Suffixes | None = None,
) -> ConstrainedJoin:
    """Check the settings of a constrained join against the schemas of its streams."""
    names = list(schemas)
    if not 2 <= len(names) <= MOST_STREAMS:
        raise TidegateError(
            f"a constrained join needs from 2 to {MOST_STREAMS} streams by name, not {len(names)}"
        )
    for name, schema in schemas.items():
        check_unique(schema, name)
        check_carried(schema, name)
    times = by_stream(time, names, "time", str, "a column name")
    unit = unit_of(schemas, times)
    graph = Graph(len(names), _edges(joins, schemas, many=eliminate is False))
    if not graph.connected:
        raise TidegateError(_apart(graph, names))
    wheres = {} if filters is None else filters
    known_streams(wheres, names, "filters")
    flag(closed, "closed")
    windows = _windows(within, names)
    streams = tuple(
        _stream(name, schemas[name], times[name], windows.get(name), closed, wheres.get(name), unit)
        for name in names
    )
    if eliminate is False and constraints:
        raise TidegateError(
            "constraints are for a join that eliminates rows; leave out eliminate=False, or them"
        )
    listed = all_constraints(graph, streams) if _is_auto(constraints) else _listed(constraints)
    known = tuple(_known(c, graph, streams, unit) for c in listed)
    for i, one in enumerate(known):
        if any((o.kind, o.stream, o.column, o.edges) == _place(one) for o in known[:i]):
            raise TidegateError(f"{one.text} is given twice; leave one out")
    if monitor is not None and not isinstance(monitor, Monitor):
        raise TidegateError(
            f"monitor must be a tg.Monitor(c=1.2, p=0.0025, ...), not {quoted(monitor)}"
        )
    selected = _selected(select, streams)
    chosen = [
        pa.schema([stream.schema.field(c) for s, c in selected if s == at])
        for at, stream in enumerate(streams)
    ]
    for schema, name in zip(chosen, names, strict=True):
        check_unique(schema, f"selected {name}")
    endings = tuple(f"_{name}" for name in names) if suffixes is None else suffixes
    named = iter(result_names(chosen, endings))
    by_column = {(s, c): next(named) for s in range(len(names)) for c in chosen[s].names}
    return ConstrainedJoin(
        streams=tuple(_held(s, streams, graph, known, selected) for s in range(len(names))),
        graph=graph,
        unit=unit,
        lateness=int(lateness_of(lateness, unit, [s.schema.field(s.time) for s in streams])),
        lag=None if lag is None else int(duration(lag, unit, "lag", zero=True)),
        constraints=known,
        monitor=monitor or Monitor(),
        watched=monitor is not None or any(c.k is None for c in known),
        choose=flag(choose, "choose"),
        eliminate=flag(eliminate, "eliminate"),
        selected=selected,
        names=tuple(by_column[each] for each in selected),
    )


# ---- streams ----------------------------------------------------------------------------------


def by_stream(value: Any, names: list[str], what: str, kind: type, wanted: str) -> dict[str, Any]:
    """Return a value for every stream, from one for all, a list, or a mapping by name."""
    if isinstance(value, list | tuple):
        value = dict(zip(names, for_each_stream(value, names, what, wanted), strict=True))
    if isinstance(value, Mapping):
        known_streams(value, names, what)
        missing = [name for name in names if name not in value]
        if missing:
            raise TidegateError(f"{what} has nothing for the stream {quoted(missing[0])}")
        found = dict(value)
    else:
        found = dict.fromkeys(names, value)
    for each in found.values():
        if not isinstance(each, kind):
            raise TidegateError(
                f"{what} must be {wanted}, or a mapping of one for each stream, not {quoted(each)}"
            )
    return found


def known_streams(value: Any, names: Sequence[str], what: str) -> None:
    """Refuse a mapping by stream that names unknown streams."""
    if not isinstance(value, Mapping):
        raise TidegateError(f"{what} must be a mapping by stream, not {quoted(value)}")
    for name in value:
        if name not in names:
            raise TidegateError(
                f"{what} names a stream {quoted(name)} that there is not; there are "
                f"{', '.join(names)}"
                f"{nearest(name, names)}"
            )


def unit_of(schemas: Mapping[str, pa.Schema], times: Mapping[str, str]) -> TimeUnit:
    """Return the finest unit of the time columns of all streams."""
    first, *others = schemas
    units = [
        time_unit(schemas[first], schemas[name], times[first], times[name], (first, name))
        for name in others
    ]
    unit = max(units, key=lambda u: u.per_unit)
    if unit.kind == "real number":
        raise TidegateError(
            "times of a constrained join must be timestamps, dates, whole numbers or decimals, "
            f'and "{times[first]}" is a real number; cast it to one of them'
        )
    return unit


def _stream(
    name: str,
    schema: pa.Schema,
    time: str,
    window: Any,
    closed: bool,
    where: str | None,
    unit: TimeUnit,
) -> Stream:
    rows, by, length = window_of(window, unit, schema, name, closed)
    if where is not None:
        Filter(where, schema, name)
    return Stream(name, schema, time, rows, by, length, where)


def _windows(within: Any, names: list[str]) -> Mapping[str, Any]:
    """Return the window of each stream; a mapping may leave out streams that have none."""
    if isinstance(within, Mapping):
        known_streams(within, names, "within")
        return within
    if isinstance(within, list | tuple):
        return dict(zip(names, for_each_stream(within, names, "within", "a window"), strict=True))
    return dict.fromkeys(names, within)


def window_of(
    window: Any, unit: TimeUnit, schema: pa.Schema, name: str, closed: bool
) -> tuple[int | None, str | None, int | None]:
    """Return a window as (rows, by column, length); all are None if it is unbounded."""
    if isinstance(window, Rows):
        if window.by is not None:
            check_column(schema, window.by, f"the {name} input")
        return window.n, window.by, None
    endless = (isinstance(window, float) and window == math.inf) or (
        isinstance(window, str) and window.strip().lower() == "unbounded"
    )
    if window is None or endless:
        return None, None, None
    return None, None, int(duration(window, unit, "within", zero=closed, closed=closed))


def _plain(name: str) -> str:
    return name[1:-1] if name.startswith("`") else name


def _held(
    at: int,
    streams: tuple[Stream, ...],
    graph: Graph,
    known: tuple[Known, ...],
    selected: tuple[tuple[int, str], ...],
) -> Stream:
    """Return the stream with the columns to hold: those selected and those joined on."""
    keys = {k for e in graph.edges for s, k in _ends(e) if s == at}
    wanted = keys | {column for s, column in selected if s == at}
    ordered = []
    for c in known:
        if c.kind in ("OAP", "OAC"):
            for i in c.edges:
                other = _other_end(graph.edges[i], c)
                ordered += [column for s, column in ((c.stream, c.column), other) if s == at]
    stream = streams[at]
    return Stream(
        stream.name,
        stream.schema,
        stream.time,
        stream.rows,
        stream.by,
        stream.window,
        stream.filter,
        tuple(name for name in stream.schema.names if name in wanted),
        tuple(dict.fromkeys(str(column) for column in ordered)),
    )


def _ends(edge: Edge) -> list[tuple[int, str]]:
    return [(edge.parent, k) for k in edge.parent_keys] + [(edge.child, k) for k in edge.child_keys]


def _other_end(edge: Edge, known: Known) -> tuple[int, str]:
    """Return the attribute that an ordered attribute is joined with."""
    pairs = list(zip(edge.parent_keys, edge.child_keys, strict=True))
    if known.kind == "OAP":
        return edge.child, next(b for a, b in pairs if a == known.column)
    return edge.parent, next(a for a, b in pairs if b == known.column)


def _texts(value: Any) -> Sequence[str]:
    """Return one or several strings as a list; empty for anything else."""
    listed = [value] if isinstance(value, str) else value
    right = isinstance(listed, Sequence) and all(isinstance(each, str) for each in listed)
    return listed if right else ()


# ---- joins ------------------------------------------------------------------------------------


def attribute(text: str, schemas: Mapping[str, pa.Schema], whole: str) -> tuple[int, str]:
    """Read "S1.a" as the number of a stream and a column; `whole` is quoted in errors."""
    match = _ATTRIBUTE.fullmatch(text)
    if match is None:
        raise TidegateError(
            f"{quoted(text.strip())} in {quoted(whole)} is no attribute: write stream.column, "
            'such as "S1.a"'
        )
    stream, column = _plain(match[1]), _plain(match[2])
    if stream not in schemas:
        raise TidegateError(
            f"{quoted(whole)} names a stream {quoted(stream)} that there is not; there are "
            f"{', '.join(schemas)}"
            f"{nearest(stream, schemas)}"
        )
    check_column(schemas[stream], column, f"the stream {stream}")
    return list(schemas).index(stream), column


def _edges(joins: Any, schemas: Mapping[str, pa.Schema], *, many: bool) -> tuple[Edge, ...]:
    """Read the joins as edges; `many` also allows many-many joins."""
    listed = _texts(joins)
    if not listed:
        raise TidegateError(
            'joins must be texts such as "S1.a -> S2.a", many-one from S1 to S2, not '
            f"{quoted(joins)}"
        )
    names = list(schemas)
    pairs: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for join in listed:
        parts = _JOIN.fullmatch(join)
        if parts is None:
            raise TidegateError(
                f'the join {quoted(join)} must be many-one, "S1.a -> S2.a", or one-one, "S1.a '
                '<-> S2.a"'
            )
        if parts[2] == "=" and not many:
            raise TidegateError(
                f"the join {quoted(join)} does not say which side is unique: write -> from the "
                "many to "
                "the one, or <-> where both are. A many-many join cannot shed state by "
                "constraints: tidegate.join takes it, two streams at a time, and here "
                "eliminate=False does, which holds every row for its window"
            )
        one = attribute(parts[1], schemas, join)
        other = attribute(parts[3], schemas, join)
        if one[0] == other[0]:
            raise TidegateError(
                f"the join {quoted(join)} joins a stream with itself; give the stream two names"
            )
        check_key(
            schemas[names[one[0]]],
            schemas[names[other[0]]],
            one[1],
            other[1],
            (names[one[0]], names[other[0]]),
        )
        ways = {
            "->": [(one, other)],
            "=": [(one, other)],
            "<-": [(other, one)],
            "<->": [(one, other), (other, one)],
        }
        for parent, child in ways[parts[2]]:
            found = pairs.setdefault((parent[0], child[0]), [])
            if (parent[1], child[1]) not in found:
                found.append((parent[1], child[1]))
    return tuple(
        Edge(parent, child, tuple(a for a, _ in keys), tuple(b for _, b in keys))
        for (parent, child), keys in pairs.items()
    )


def _apart(graph: Graph, names: list[str]) -> str:
    seen = {0}
    for _ in names:
        for e in graph.edges:
            if e.parent in seen or e.child in seen:
                seen |= {e.parent, e.child}
    left = next(name for at, name in enumerate(names) if at not in seen)
    return (
        f"the joins do not connect the stream {quoted(left)} with {quoted(names[0])}: every "
        "stream must be "
        "joined, directly or through others"
    )


# ---- constraints ------------------------------------------------------------------------------


def _is_auto(constraints: Any) -> bool:
    return isinstance(constraints, str) and constraints == "auto"


def all_constraints(graph: Graph, streams: tuple[Stream, ...]) -> list[Constraint]:
    """Return every constraint that the joins allow, in time, with a k that is detected.

    Of a join by several attributes, the first one stands for all: rows with equal attributes come
    together or not, whichever is named. For an order, it is the first one that has an order.
    """
    found: dict[str, Constraint] = {}
    for edge in graph.edges:
        parent, child = streams[edge.parent], streams[edge.child]
        up, down = quoted_name(parent.name), quoted_name(child.name)
        made: list[Constraint] = [
            RIDS(f"{up} -> {down}", within=DETECT),
            CA(f"{up}.{quoted_name(edge.parent_keys[0])}", within=DETECT),
        ]
        pairs = zip(edge.parent_keys, edge.child_keys, strict=True)
        ordered = [(a, b) for a, b in pairs if _has_order(parent.schema.field(a).type)]
        for a, b in ordered[:1]:
            made += [
                OAP(f"{up}.{quoted_name(a)}", within=DETECT),
                OAC(f"{down}.{quoted_name(b)}", within=DETECT),
            ]
        found |= {f"{each.kind} {each.on}": each for each in made}
    return list(found.values())


def quoted_name(name: str) -> str:
    """Return a name as joins and constraints write it: in backticks if it is not a plain word."""
    return name if re.fullmatch(r"\w+", name) else f"`{name}`"


def _listed(constraints: Any) -> Sequence[Any]:
    if constraints is None:
        return ()
    if isinstance(constraints, Constraint):
        return (constraints,)
    if not isinstance(constraints, Sequence) or isinstance(constraints, str):
        raise TidegateError(
            f'constraints must be a list such as [tg.RIDS("S1 -> S2", k=10)], one of them, "auto" '
            f"for all that the joins allow, or None for none, not {quoted(constraints)}"
        )
    return constraints


def _known(given: Any, graph: Graph, streams: tuple[Stream, ...], unit: TimeUnit) -> Known:
    if not isinstance(given, RIDS | CA | OAP | OAC):
        raise TidegateError(
            'a constraint must be one of RIDS("S1 -> S2", k=10), CA("S1.a", k=10), '
            f'OAP("S1.a", ...) and OAC("S2.a", ...), not {quoted(given)}'
        )
    schemas = {s.name: s.schema for s in streams}
    text = f'{given.kind}("{given.on}")'
    if isinstance(given, RIDS):
        stream, column, edges = _rids(given, graph, streams)
    else:
        stream, column = attribute(given.on, schemas, text)
        child = isinstance(given, OAC)
        edges = tuple(
            i
            for i in (graph.parents(stream) if child else graph.children(stream))
            if column in (graph.edges[i].child_keys if child else graph.edges[i].parent_keys)
        )
        if not edges:
            role = "one" if child else "many"
            raise TidegateError(
                f"{text} needs an attribute by which a stream is joined as the {role} of a "
                f"many-one join, and {streams[stream].name}.{column} is none"
            )
    in_time = given.within is not None
    k = None
    if in_time and given.within != DETECT:
        k = int(duration(given.within, unit, f"within of {text}", zero=True))
    elif not in_time and given.k not in (None, DETECT):
        k = int(given.k)
    if isinstance(given, CA) and not in_time:
        for i in edges:
            if len(graph.edges[i].parent_keys) > 1:
                raise TidegateError(
                    f"{text} counts rows, and the join with "
                    f"{streams[graph.edges[i].child].name} is by several attributes; give it in "
                    "time, with within="
                )
    if isinstance(given, OAP | OAC):
        _check_order(streams[stream].schema.field(str(column)), text)
    return Known(given.kind, stream, column, edges, k, in_time, text)


def _place(known: Known) -> tuple[Any, ...]:
    return known.kind, known.stream, known.column, known.edges


def _rids(
    given: RIDS, graph: Graph, streams: tuple[Stream, ...]
) -> tuple[int, str | None, tuple[int, ...]]:
    names = [s.name for s in streams]
    parts = [_plain(part.strip()) for part in given.on.split("->")]
    if len(parts) != 2 or any(part not in names for part in parts):
        raise TidegateError(
            f'RIDS needs a join such as "S1 -> S2" between the streams {", ".join(names)}, not '
            f"{quoted(given.on)}"
        )
    parent, child = (names.index(part) for part in parts)
    edges = [i for i, e in enumerate(graph.edges) if (e.parent, e.child) == (parent, child)]
    if not edges:
        raise TidegateError(
            f'RIDS("{given.on}") is on a join that there is not: {parts[0]} is not joined '
            f"many-one with {parts[1]}"
        )
    return child, None, tuple(edges)


def _check_order(column: pa.Field, text: str) -> None:
    if not _has_order(column.type):
        raise TidegateError(
            f"{text} needs an attribute of numbers or times, whose order is that of its values, "
            f"and {quoted(column.name)} is {column.type}; cast it"
        )


def _has_order(kind: pa.DataType) -> bool:
    """Return True if values of a type are numbers or times that can be compared as integers."""
    if pa.types.is_interval(kind):
        return False
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_temporal(kind)
        or (pa.types.is_decimal(kind) and kind.precision <= 18 and kind.scale >= 0)
    )


def _selected(select: Any, streams: tuple[Stream, ...]) -> tuple[tuple[int, str], ...]:
    if select is None:
        return tuple((at, name) for at, s in enumerate(streams) for name in s.schema.names)
    listed = _texts(select)
    if not listed:
        raise TidegateError(
            f'select must list result columns such as "S1.a", at least one, not {quoted(select)}'
        )
    schemas = {s.name: s.schema for s in streams}
    return tuple(attribute(each, schemas, f"select={each}") for each in listed)
