"""The friendly call for queries as text: read, check, and run as a constrained join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidegate import local
from tidegate.checks import check_names
from tidegate.columns import decoded
from tidegate.constrained import on_frames
from tidegate.constrained_spec import ConstrainedJoin, constrained_join
from tidegate.constraints import Rows
from tidegate.cql.parser import Attribute, Query, Source, parse
from tidegate.engines.aggregated import AT, AggregatedJob, Aggregates
from tidegate.engines.constrained import ConstrainedJob
from tidegate.errors import TidegateError
from tidegate.policies.base import as_table


def cql(
    query: str,
    streams: Mapping[str, Any],
    *,
    time: str | Mapping[str, str],
    unique: str | Sequence[str],
    shards: int | None = None,
    **settings: Any,
) -> Any:
    """Run a continuous query, written in a subset of CQL.

    Parameters
    ----------
    query
        ``Select`` columns, aggregates (count, sum, avg), ``*`` or ``Istream(*)``; ``From`` streams
        with windows, ``[Range 10 minutes]``, ``[Rows 100]``, ``[Partition By c Rows 100]`` or
        ``[Unbounded]``; ``Where`` equijoins and conditions on single streams, with And between
        them; ``Group By``.
    streams
        Spark DataFrames by name, or Arrow tables and pandas DataFrames.
    time
        The time column, one name or one by stream.
    unique
        Attributes that no two tuples of a stream share, ``["S2.a"]``; ``"S2.a, S2.b"`` where only
        both together are. They say which joins are many-one: each needs one such side.
    shards, **settings
        As `tidegate.constrained_join` takes them: constraints, monitor, lateness, lag, choose.

    Returns
    -------
    DataFrame or Result
        From DataFrames a DataFrame, otherwise a `Result`. Aggregates are those of what is in the
        windows: a row, with a column ``at``, for each time at which one may have changed.

    Examples
    --------
    >>> import pyarrow as pa
    >>> c = pa.table({"pid": [1, 2], "ts": [0, 5], "size": [10, 20]})
    >>> b = pa.table({"pid": [1, 2], "ts": [1, 6]})
    >>> text = "Select sum(C.size) From C [Range 9], B [Range 9] Where C.pid = B.pid"
    >>> cql(text, {"C": c, "B": b}, time="ts", unique=["C.pid", "B.pid"]).table.to_pylist()
    [{'at': 1, 'sum_size': 10}, {'at': 6, 'sum_size': 30}]
    """
    check_names(
        settings, constrained_join, own=cql, without=("joins", "windows", "filters", "select")
    )
    local.check_streams(streams)
    on_spark = {hasattr(data, "mapInArrow") for data in streams.values()}
    if on_spark == {True, False}:
        kinds = ", ".join(type(data).__name__ for data in streams.values())
        raise TidegateError(f"the streams must be all Spark DataFrames or none, not {kinds}")
    inputs = dict(streams)
    if on_spark == {True}:
        from tidegate.spark import packing

        schemas = {name: packing.arrow_schema(frame.schema) for name, frame in streams.items()}
    else:
        inputs = {name: decoded(as_table(data)) for name, data in streams.items()}
        schemas = {name: table.schema for name, table in inputs.items()}
        settings = {"lag": 0, **settings}
    read = parse(query, schemas)
    if isinstance(time, Mapping):
        times = {source.name: time.get(source.stream, "") for source in read.sources}
    else:
        times = dict.fromkeys((source.name for source in read.sources), time)
    spec = constrained_join(
        {source.name: schemas[source.stream] for source in read.sources},
        joins=_joins(read, unique),
        time=times,
        windows={source.name: _window(source) for source in read.sources},
        filters=dict(read.filters),
        select=_selected(read, times),
        **settings,
    )
    if read.items and not read.aggregates:
        spec = replace(spec, names=_names(read))
    job = _aggregated(read, spec) if read.aggregates else ConstrainedJob(spec)
    given = [inputs[source.stream] for source in read.sources]
    if on_spark == {True}:
        return on_frames(job, spec, given, shards)
    if shards not in (None, 1):
        raise TidegateError(f"shards={shards!r} is for Spark DataFrames; leave it out")
    return local.run_streams(job, given)


def _quoted(attribute: Attribute) -> str:
    return f"`{attribute.stream}`.`{attribute.column}`"


def _window(source: Source) -> Any:
    if source.rows is not None:
        return Rows(source.rows, source.by)
    text = source.window
    return int(text.replace(",", "")) if text and text.replace(",", "").isdigit() else text


def _joins(read: Query, unique: Any) -> list[str]:
    """The joins with their directions: from the many to the one."""
    keys = _unique(unique)
    between: dict[frozenset[str], list[tuple[Attribute, Attribute]]] = {}
    for one, other in read.joins:
        between.setdefault(frozenset((one.stream, other.stream)), []).append((one, other))
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
            raise TidegateError(
                f"the join {shown} is many-many, because neither side is in unique; if one is, "
                f'give unique=["{pairs[0][1].stream}.{pairs[0][1].column}"]. tidegate.join takes '
                "many-many joins of two streams"
            )
        for pair in pairs:
            a, b = pair if pair[0].stream == first else pair[::-1]
            joins.append(f"{_quoted(a)} {arrow} {_quoted(b)}")
    if not joins:
        raise TidegateError("a query needs joins that connect its streams: Where S1.a = S2.a")
    return joins


def _is_one(
    stream: str,
    pairs: Sequence[tuple[Attribute, Attribute]],
    read: Query,
    keys: Sequence[tuple[str, set[str]]],
) -> bool:
    """Whether what a stream is joined by is unique in it."""
    mine = {a.column for pair in pairs for a in pair if a.stream == stream}
    names = {source.stream for source in read.sources if source.name == stream} | {stream}
    return any(name in names and columns <= mine for name, columns in keys)


def _unique(unique: Any) -> list[tuple[str, set[str]]]:
    listed = [unique] if isinstance(unique, str) else unique
    if not isinstance(listed, Sequence):
        raise TidegateError(f'unique must list attributes such as "S2.a", not {unique!r}')
    found = []
    for text in listed:
        parts = [part.strip().split(".") for part in str(text).split(",")]
        if any(len(part) != 2 for part in parts) or len({part[0] for part in parts}) != 1:
            raise TidegateError(
                f'unique must list attributes such as "S2.a" (or "S2.a, S2.b"), not {text!r}'
            )
        found.append((parts[0][0], {part[1] for part in parts}))
    return found


def _selected(read: Query, times: Mapping[str, str]) -> list[str] | None:
    if not read.items:
        return None
    wanted = [item.attribute for item in read.items if item.attribute is not None]
    if read.aggregates:
        wanted += [
            *read.groups,
            *(Attribute(source.name, times[source.name]) for source in read.sources),
        ]
        wanted = list(dict.fromkeys(wanted))
    return [_quoted(attribute) for attribute in wanted]


def _names(read: Query) -> tuple[str, ...]:
    names = tuple(item.name for item in read.items)
    for name in names:
        if names.count(name) > 1:
            raise TidegateError(f'two selected columns are named "{name}"; name one with as')
    return names


def _aggregated(read: Query, spec: ConstrainedJoin) -> AggregatedJob:
    for stream in spec.streams:
        if stream.rows is not None:
            raise TidegateError(
                f"aggregates need windows in time, because they change when a tuple drops out, and "
                f"{stream.name} has a window of rows; use Range, or select Istream(*)"
            )
    if spec.unit.kind in ("date", "decimal"):
        raise TidegateError(
            f"aggregates need times that are timestamps or whole numbers, not a {spec.unit.kind}; "
            "cast the time columns"
        )
    at = {Attribute(spec.streams[s].name, column): i for i, (s, column) in enumerate(spec.selected)}
    names = [AT, *_names(read)]
    if len(set(names)) < len(names):
        raise TidegateError(f'"{AT}" is the column that says when; name the other with as')
    return AggregatedJob(
        spec,
        Aggregates(
            groups=tuple(at[group] for group in read.groups),
            items=tuple(
                (item.name, item.aggregate, None if item.attribute is None else at[item.attribute])
                for item in read.items
            ),
            times=tuple(at[Attribute(stream.name, stream.time)] for stream in spec.streams),
        ),
    )
