"""Translation of a CQL query to a constrained join, with errors that point at the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.joins.constrained.aggregates import AT, AggregatedJob, Aggregates
from tidegate.joins.constrained.engine import ConstrainedJob
from tidegate.joins.constrained.relation_query import CHANGE, RelationJob
from tidegate.joins.constrained.relations import Block, Window
from tidegate.joins.constrained.shed_log import archived
from tidegate.joins.constrained.spec import (
    MOST_STREAMS,
    ConstrainedJoin,
    attribute,
    by_stream,
    constrained_join,
    known_streams,
    unit_of,
    window_of,
)
from tidegate.settings.by_stream import for_each_stream
from tidegate.settings.checks import check_column, check_key, flag
from tidegate.settings.rows import Rows
from tidegate.settings.schedules import Side, Step
from tidegate.settings.times import TimeUnit, duration, lateness_of
from tidegate.settings.types import StreamColumn
from tidegate.settings.values import quoted
from tidegate.sql.conditions import ConditionError, Filter
from tidegate.sql.cql_parser import parse
from tidegate.sql.cql_query import (
    Attribute,
    Query,
    Source,
    Written,
    item_schema,
    outputs_of,
    schema_of,
)
from tidegate.sql.expressions import Output, Outputs
from tidegate.sql.tokens import tokens_of

#: The settings of a constrained join that the text of a query gives.
SAID = ("joins", "within", "filters", "select", "suffixes")
_NOT_IN_QUOTES = re.compile(r",(?=(?:[^`]*`[^`]*`)*[^`]*$)")


class Plan(NamedTuple):
    """A query that can run: its input streams, its join and its aggregates."""

    inputs: tuple[str, ...]
    spec: ConstrainedJoin
    aggregates: Aggregates | None

    def job(self) -> ConstrainedJob | AggregatedJob:
        """Return the job that runs the query."""
        if self.aggregates is None:
            return ConstrainedJob(self.spec)
        return AggregatedJob(self.spec, self.aggregates)


class RelationPlan(NamedTuple):
    """A query with queries inside that can run: its input streams and its job."""

    inputs: tuple[str, ...]
    relation: RelationJob


def planned(
    query: str,
    schemas: Mapping[str, pa.Schema],
    *,
    time: StreamColumn,
    unique: str | Sequence[str],
    closed: bool = False,
    changes: Mapping[str, str] | None = None,
    **settings: Any,
) -> Plan | RelationPlan:
    """Parse a query over streams with these schemas, and check it."""
    operations = _operations(changes, schemas)
    visible = {
        name: schema.remove(schema.get_field_index(operations[name]))
        if name in operations
        else schema
        for name, schema in schemas.items()
    }
    read = parse(query, visible)
    if read.is_nested or operations:
        return _relation_plan(read, schemas, time, closed, operations, **settings)
    own = {source.name: schemas[source.stream] for source in read.sources}
    _check_sources(read)
    times = _times(time, read, schemas)
    unit = unit_of(own, times)
    flag(closed, "closed")
    windows = {source.name: _window(read, source, own, unit, closed) for source in read.sources}
    filters = _filters(read, own)
    _check_names(read)
    selected = _selected(read, times)
    spec = constrained_join(
        own,
        joins=_joins(read, _unique(unique, own, schemas), own),
        time=times,
        within=windows,
        closed=closed,
        filters=filters,
        select=None if selected is None else [_quoted(each) for each in dict.fromkeys(selected)],
        **settings,
    )
    aggregates = None
    if read.aggregates:
        aggregates = _aggregates(read, spec)
    elif selected is not None:
        streams = list(own)
        each = tuple((streams.index(a.stream), a.column) for a in selected)
        spec = replace(spec, selected=each, names=tuple(item.name for item in read.items))
        outputs = _outputs(read, spec.selected_schema)
        spec = replace(spec, outputs=outputs)
    return Plan(tuple(source.stream for source in read.sources), spec, aggregates)


def repaired_spec(
    schemas: Mapping[str, pa.Schema], settings: Mapping[str, Any]
) -> tuple[tuple[str, ...], ConstrainedJoin]:
    """Return the input streams and the join to repair, given as settings or as a query.

    `settings` are those that were given; a query has `query` and `unique` instead of `SAID`.
    """
    given = dict(settings)
    query = given.pop("query", None)
    if query is None:
        _refuse(given, ("unique",), "only a query has it: give query as well, or leave it out")
        _require(given, ("time", "joins"), "a join needs joins and time")
        return tuple(schemas), archived(constrained_join(schemas, **given))
    _refuse(given, SAID, "the text of the query says it; leave it out")
    _require(given, ("time", "unique"), "a query needs time and unique")
    plan = planned(query, schemas, **given)
    if isinstance(plan, RelationPlan):
        raise TidegateError("a query with queries inside has no archive to repair it from")
    if plan.aggregates is not None:
        raise TidegateError("a query with aggregates has no archive to repair it from")
    return plan.inputs, archived(plan.spec)


def _refuse(given: Mapping[str, Any], names: Sequence[str], why: str) -> None:
    for name in names:
        if name in given:
            raise TidegateError(f"there is no setting {quoted(name)} here: {why}")


def _require(given: Mapping[str, Any], names: Sequence[str], why: str) -> None:
    for name in names:
        if name not in given:
            raise TidegateError(f"the setting {quoted(name)} is missing: {why}")


@contextmanager
def _at(read: Query, at: int) -> Iterator[None]:
    """Make errors point at a position in the text of the query."""
    try:
        yield
    except ConditionError as error:
        read.refuse(at + error.at, error.why)
    except TidegateError as error:
        read.refuse(at, str(error))


def _quoted(each: Attribute) -> str:
    return f"`{each.stream}`.`{each.column}`"


# ---- streams ----------------------------------------------------------------------------------


def _check_sources(read: Query) -> None:
    sources = read.sources
    if len(sources) == 1:
        read.refuse(sources[0].at, "a query joins two streams or more, and here is one")
    if len(sources) > MOST_STREAMS:
        read.refuse(sources[MOST_STREAMS].at, f"a query joins up to {MOST_STREAMS} streams")
    if not read.joins:
        read.refuse(
            sources[1].at, "a query needs joins that connect its streams: Where S1.a = S2.a"
        )
    seen = {sources[0].name}
    for _ in sources:
        for one, other in read.joins:
            if one.stream in seen or other.stream in seen:
                seen |= {one.stream, other.stream}
    for source in sources:
        if source.name not in seen:
            read.refuse(
                source.at,
                f"no join connects {source.name} with {sources[0].name}, nor do others in between",
            )


def _times(time: Any, read: Query, schemas: Mapping[str, pa.Schema]) -> dict[str, str]:
    """Return the time column of each stream of From."""
    used = list(dict.fromkeys(source.stream for source in read.sources))
    if isinstance(time, list | tuple):
        given = for_each_stream(time, list(schemas), "time", "a column name")
        time = dict(zip(schemas, given, strict=True))
    if isinstance(time, Mapping):
        known_streams(time, list(schemas), "time")
        time = {name: time[name] for name in used if name in time}
    found = by_stream(time, used, "time", str, "a column name")
    return {source.name: found[source.stream] for source in read.sources}


def _window(
    read: Query, source: Source, own: Mapping[str, pa.Schema], unit: TimeUnit, closed: bool
) -> Any:
    with _at(read, source.window_at):
        window: Any = source.window
        if source.rows is not None:
            if read.aggregates:
                raise TidegateError(
                    "aggregates need windows in time, because they change when a row drops out, "
                    f"and {source.name} has a window of rows; use Range, or select Istream(*)"
                )
            window = Rows(source.rows, source.by)
        elif window is not None:
            window = _number(window)
        window_of(window, unit, own[source.name], source.name, closed)
    return window


def _number(text: str) -> str | int | float:
    """Return a length as a number if it is one, and otherwise as text."""
    digits = text.replace(",", "")
    if digits.isdigit():
        return int(digits)
    try:
        return float(digits) if digits[0] in ".0123456789" else text
    except ValueError:
        return text


def _filters(read: Query, own: Mapping[str, pa.Schema]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for each in read.filters:
        with _at(read, each.at):
            Filter(each.text, own[each.stream], each.stream)
        found.setdefault(each.stream, []).append(each.text)
    return {stream: " and ".join(texts) for stream, texts in found.items()}


# ---- queries inside queries --------------------------------------------------------------------


def _relation_plan(
    read: Query,
    schemas: Mapping[str, pa.Schema],
    time: Any,
    closed: Any,
    operations: Mapping[str, str],
    *,
    constraints: Any = None,
    monitor: Any = None,
    lateness: Any = None,
    lag: Any = None,
    choose: Any = True,
    eliminate: Any = True,
) -> RelationPlan:
    """Check a query with queries inside."""
    if constraints is not None or monitor is not None:
        raise TidegateError(
            "a query with queries inside, with Select distinct or with changes uses no "
            "constraints; leave constraints and monitor out, or run the queries inside by "
            "themselves and give their results as streams"
        )
    flag(choose, "choose")
    flag(eliminate, "eliminate")
    leaves = read.leaves
    named = [replace(leaf, name=f"{at}") for at, leaf in enumerate(leaves)]
    found = _times(time, replace(read, sources=tuple(named)), schemas)
    times = {leaf.stream: found[f"{at}"] for at, leaf in enumerate(leaves)}
    own = {name: schemas[name] for name in times}
    twice = {**own, "": own[leaves[0].stream]}
    unit = unit_of(twice, {**times, "": times[leaves[0].stream]})
    _check_unit(unit)
    streams = tuple(Side(own[name], (), times[name], (Step(0, None),), None) for name in own)
    fields = [own[name].field(times[name]) for name in own]
    for leaf in leaves:
        if leaf.stream in operations and (leaf.window, leaf.rows) != (None, None):
            read.refuse(
                leaf.window_at,
                f"rows of {leaf.stream} stay until they are deleted, as changes says: leave the "
                "window out, or write [Unbounded]",
            )
        if times[leaf.stream] == operations.get(leaf.stream):
            raise TidegateError(f"changes names the time column of {leaf.stream}: name another")
    visible = {
        name: schema.remove(schema.get_field_index(operations[name]))
        if name in operations
        else schema
        for name, schema in own.items()
    }
    block = _block(read, visible, list(own), unit, flag(closed, "closed"))
    for name in (AT, CHANGE):
        if name in block.schema.names:
            read.refuse(
                read.at,
                f"{quoted(name)} is a column that says how the result changes; name this one with "
                "as",
            )
    job = RelationJob(
        " ".join(token.text for token in tokens_of(read.text)),
        block,
        streams,
        unit,
        int(lateness_of(lateness, unit, fields)),
        None if lag is None else int(duration(lag, unit, "lag", zero=True)),
        tuple(operations.get(name) for name in own),
    )
    return RelationPlan(tuple(own), job)


def _operations(changes: Any, schemas: Mapping[str, pa.Schema]) -> dict[str, str]:
    """Return the column with the operation for the streams that have one."""
    if changes is None:
        return {}
    if not isinstance(changes, Mapping):
        raise TidegateError(
            'changes must name the column with the operation of a stream, {"S": "op"}, not '
            f"{quoted(changes)}"
        )
    known_streams(changes, list(schemas), "changes")
    for name, column in changes.items():
        check_column(schemas[name], column, name)
        kind = schemas[name].field(column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise TidegateError(
                f'the operation must be a column of strings such as "insert"; "{column}" of {name} '
                f"is {kind}: cast it"
            )
    return dict(changes)


def _block(
    read: Query,
    streams: Mapping[str, pa.Schema],
    names: list[str],
    unit: TimeUnit,
    closed: bool,
) -> Block:
    """Return a query as relations over streams, and check it."""
    own: dict[str, pa.Schema] = {}
    sources: list[Window | Block] = []
    for source in read.sources:
        if source.query is not None:
            inside = _block(source.query, streams, names, unit, closed)
            sources.append(inside)
            own[source.name] = inside.schema
            continue
        own[source.name] = streams[source.stream]
        with _at(read, source.window_at):
            window: Any = None if source.window is None else _number(source.window)
            if source.rows is not None:
                window = Rows(source.rows, source.by)
            count, by, length = window_of(window, unit, own[source.name], source.name, closed)
        sources.append(Window(names.index(source.stream), length, count, by))
    filters = _filters(read, own)
    if read.aggregates and not read.groups:
        read.refuse(
            next(item.at for item in read.items if item.aggregate),
            "an aggregate in a query with queries inside needs Group By",
        )
    order = list(own)

    def column(of: Attribute) -> str:
        return f"{order.index(of.stream)}.{of.column}"

    if read.items:
        items = tuple(
            (i.name, i.aggregate, None if i.attribute is None else column(i.attribute))
            for i in read.items
        )
    else:
        items = tuple(
            (field.name, None, f"{at}.{field.name}")
            for at, schema in enumerate(own.values())
            for field in schema
        )
    outputs = _outputs(read, item_schema(read, own)) if read.items else ()
    return Block(
        sources=tuple((s, n, filters.get(n)) for s, n in zip(sources, own, strict=True)),
        joins=_in_turn(read, own, column),
        items=items,
        groups=tuple(column(group) for group in read.groups) if read.groups else None,
        outputs=outputs,
        having=None if read.having is None else read.having.text,
        distinct=read.distinct,
        schema=schema_of(read, own),
    )


def _in_turn(
    read: Query, own: Mapping[str, pa.Schema], column: Callable[[Attribute], str]
) -> tuple[tuple[int, tuple[tuple[str, str], ...]], ...]:
    """Return the sources after the first, each with its joins to those before it."""
    order = list(own)
    for one, other in read.joins:
        with _at(read, one.at):
            sides = (one.stream, other.stream)
            check_key(own[sides[0]], own[sides[1]], one.column, other.column, sides)
    seen, turns = {order[0]}, []
    while len(seen) < len(order):
        for name in order:
            pairs = [
                pair if pair[0].stream == name else pair[::-1]
                for pair in read.joins
                if name not in seen and name in (pair[0].stream, pair[1].stream)
            ]
            pairs = [pair for pair in pairs if pair[1].stream in seen]
            if pairs:
                seen.add(name)
                turns.append((order.index(name), tuple((column(a), column(b)) for a, b in pairs)))
                break
        else:
            left = next(source for source in read.sources if source.name not in seen)
            read.refuse(
                left.at,
                f"no join connects {left.name} with {order[0]}, nor do others in between",
            )
    return tuple(turns)


# ---- joins ------------------------------------------------------------------------------------


def _joins(
    read: Query, keys: Sequence[tuple[str, set[str]]], own: Mapping[str, pa.Schema]
) -> list[str]:
    """Return the joins with arrows from the many side to the one side."""
    between: dict[frozenset[str], list[tuple[Attribute, Attribute]]] = {}
    for one, other in read.joins:
        with _at(read, one.at):
            sides = (one.stream, other.stream)
            check_key(own[sides[0]], own[sides[1]], one.column, other.column, sides)
        between.setdefault(frozenset(sides), []).append((one, other))
    joins = []
    for pairs in between.values():
        first = pairs[0][0].stream
        one_first, one_second = (
            _is_one(stream, pairs, read, keys) for stream in (first, pairs[0][1].stream)
        )
        arrows = {(False, True): "->", (True, False): "<-", (True, True): "<->"}
        arrow = arrows.get((one_first, one_second))
        if arrow is None:
            shown = " and ".join(f"{a.stream}.{a.column} = {b.stream}.{b.column}" for a, b in pairs)
            read.refuse(
                pairs[0][0].at,
                f"the join {shown} is many-many, because neither side is in unique; if one is, "
                f'give unique=["{pairs[0][1].stream}.{pairs[0][1].column}"]. tidegate.join takes '
                "many-many joins of two streams",
            )
        for pair in pairs:
            a, b = pair if pair[0].stream == first else pair[::-1]
            joins.append(f"{_quoted(a)} {arrow} {_quoted(b)}")
    return joins


def _is_one(
    stream: str,
    pairs: Sequence[tuple[Attribute, Attribute]],
    read: Query,
    keys: Sequence[tuple[str, set[str]]],
) -> bool:
    """True if the join columns of a stream are unique in it."""
    mine = {a.column for pair in pairs for a in pair if a.stream == stream}
    names = {source.stream for source in read.sources if source.name == stream} | {stream}
    return any(name in names and columns <= mine for name, columns in keys)


def _unique(
    unique: Any, own: Mapping[str, pa.Schema], schemas: Mapping[str, pa.Schema]
) -> list[tuple[str, set[str]]]:
    """Return streams, by either of their names, with columns that are unique together."""
    listed = [unique] if isinstance(unique, str) else unique
    if not isinstance(listed, Sequence) or not all(isinstance(each, str) for each in listed):
        raise TidegateError(f'unique must list attributes such as "S2.a", not {quoted(unique)}')
    known = {**schemas, **own}
    found = []
    for text in listed:
        parts = [attribute(part, known, f"unique={text}") for part in _NOT_IN_QUOTES.split(text)]
        if len({stream for stream, _ in parts}) > 1:
            raise TidegateError(
                'unique must list attributes of one stream together, "S2.a, S2.b", not '
                f"{quoted(text)}"
            )
        found.append((list(known)[parts[0][0]], {column for _, column in parts}))
    return found


# ---- selected columns -------------------------------------------------------------------------


def _selected(read: Query, times: Mapping[str, str]) -> list[Attribute] | None:
    if not read.items:
        return None
    wanted = [item.attribute for item in read.items if item.attribute is not None]
    if read.aggregates:
        wanted += [
            *read.groups,
            *(Attribute(source.name, times[source.name]) for source in read.sources),
        ]
    return wanted


def _check_names(read: Query) -> None:
    """Refuse two columns of one name."""
    seen = {AT} if read.aggregates else set[str]()
    for item in read.outputs or read.items:
        if item.name in seen:
            why = f"two selected columns are named {quoted(item.name)}"
            if item.name == AT:
                why = f"{quoted(AT)} is the column that says when an aggregate changes"
            read.refuse(item.at, f"{why}; name this one with as")
        seen.add(item.name)


def _outputs(read: Query, schema: pa.Schema) -> tuple[Output, ...]:
    """Return how the result is computed from items with this schema, and check it."""
    made = outputs_of(read)
    for each, output in zip(read.outputs, made, strict=True):
        with _in(read, each):
            Outputs(schema, [output])
    if read.having is not None:
        with _in(read, read.having):
            Outputs(schema, [], read.having.text)
    return tuple(made)


@contextmanager
def _in(read: Query, each: Written) -> Iterator[None]:
    """Make errors point at a position in an expression of the query."""
    try:
        yield
    except ConditionError as error:
        read.refuse(each.place(error.at), error.why)


def _check_unit(unit: TimeUnit) -> None:
    if unit.kind in ("date", "decimal"):
        raise TidegateError(
            f"aggregates need times that are timestamps or whole numbers, not a {unit.kind}; "
            "cast the time columns"
        )


def _aggregates(read: Query, spec: ConstrainedJoin) -> Aggregates:
    _check_unit(spec.unit)
    at = {Attribute(spec.streams[s].name, column): i for i, (s, column) in enumerate(spec.selected)}
    asked = Aggregates(
        groups=tuple(at[group] for group in read.groups),
        items=tuple(
            (item.name, item.aggregate, None if item.attribute is None else at[item.attribute])
            for item in read.items
        ),
        times=tuple(at[Attribute(stream.name, stream.time)] for stream in spec.streams),
    )
    outputs = _outputs(read, AggregatedJob(spec, asked).item_schema)
    if not outputs:
        return asked
    having = None if read.having is None else read.having.text
    return replace(asked, outputs=(Output(AT, AT), *outputs), having=having)
