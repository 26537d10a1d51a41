"""Streams of changes as other systems write them: Delta's change feed, and Debezium's records.

A feed is turned into rows with an operation, a time and the columns of a link. An update becomes a
delete of the row before and an insert of the row after, so that it may change any column.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import TidegateError
from tidegate.settings.values import quoted

#: The names of feeds that `changes=` takes.
FEEDS = ("delta", "debezium")
#: Columns of the rows made from a feed.
OPERATION, TIME = "__operation", "__time"
#: The units of Debezium's times, which are numbers since 1970, as parts of a second.
_UNITS = {"ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True)
class Feed:
    """Where a feed has its operation, its time and the columns of a link.

    Attributes
    ----------
    operation
        The column with the operation.
    time
        The column with the time, or a field of a struct: ``("source", "ts_ms")``.
    per_second
        The units of the time in a second, where it is a number to be read as a timestamp.
    zone
        The time zone of such timestamps.
    columns
        The columns of a link.
    envelope
        True if these are fields of the structs `before` and `after`.
    """

    operation: str
    time: tuple[str, ...]
    per_second: int | None
    zone: str | None
    columns: tuple[str, ...]
    envelope: bool

    @property
    def changes(self) -> tuple[str, str]:
        """The columns of the operation and its time in the rows that are made."""
        return OPERATION, TIME


def feed_of(changes: Any, schema: pa.Schema, times: Iterable[pa.DataType]) -> Feed | None:
    """Return the feed that `changes` names, or None if it names columns.

    `times` are the types of the streams' time columns.
    """
    if not isinstance(changes, str) or changes not in FEEDS:
        return None
    if changes == "delta":
        return _delta(schema)
    stamps = [kind for kind in times if pa.types.is_timestamp(kind)]
    zone = next((kind.tz for kind in stamps), None)
    return _debezium(schema, is_time=bool(stamps), zone=zone)


def _delta(schema: pa.Schema) -> Feed:
    own = ("_change_type", "_commit_version", "_commit_timestamp")
    _need(schema, (own[0], own[2]), "delta", "read the table with the option readChangeFeed")
    columns = tuple(name for name in schema.names if name not in own)
    return Feed(own[0], (own[2],), None, None, columns, envelope=False)


def _debezium(schema: pa.Schema, *, is_time: bool, zone: str | None) -> Feed:
    names = set(schema.names)
    envelope = {"before", "after"} <= names
    operation = "op" if envelope else "__op"
    advice = (
        "give records with before, after and op as columns, or unwrapped ones with __op and "
        "__source_ts_ms (add.fields=op,source.ts_ms)"
    )
    _need(schema, (operation,), "debezium", advice)
    found: list[tuple[str, ...]] = []
    for unit in _UNITS:
        if envelope and "source" in names and _has_field(schema.field("source").type, f"ts_{unit}"):
            found.append(("source", f"ts_{unit}"))
    prefixes = ("ts_",) if envelope else ("__source_ts_", "__ts_")
    found += [(p + unit,) for p in prefixes for unit in _UNITS if p + unit in names]
    if not found:
        _need(schema, ("ts_ms" if envelope else "__source_ts_ms",), "debezium", advice)
    columns = tuple(name for name in schema.names if not name.startswith("__"))
    if envelope:
        before, after = (schema.field(name).type for name in ("before", "after"))
        if not pa.types.is_struct(after) or before != after:
            raise TidegateError(
                'changes="debezium" needs structs of the same fields in before and after, and they '
                f"are {before} and {after}: parse both with the schema of the table"
            )
        columns = tuple(field.name for field in after)
    per_second = _UNITS[found[0][-1].rpartition("_")[2]] if is_time else None
    return Feed(operation, found[0], per_second, zone, columns, envelope=envelope)


def _has_field(kind: pa.DataType, name: str) -> bool:
    return bool(pa.types.is_struct(kind)) and kind.get_field_index(name) >= 0


def _need(schema: pa.Schema, columns: Iterable[str], feed: str, advice: str) -> None:
    for name in columns:
        if name not in schema.names:
            raise TidegateError(
                f'changes="{feed}" needs a column {quoted(name)}, and there are '
                f"{', '.join(schema.names)}: {advice}"
            )


def changes_of(feed: Feed, table: pa.Table) -> pa.Table:
    """Return the changes that the rows of a feed make."""
    stamps = table.column(feed.time[0])
    for field in feed.time[1:]:
        stamps = pc.struct_field(stamps, field)
    if feed.per_second is not None:
        unit = {per_second: name for name, per_second in _UNITS.items()}[feed.per_second]
        stamps = stamps.cast(pa.int64()).cast(pa.timestamp(unit))
        stamps = stamps.cast(pa.timestamp("us"), safe=False)
        if feed.zone is not None:
            stamps = stamps.cast(pa.timestamp("us", feed.zone))
    said = table.column(feed.operation)
    if not feed.envelope:
        made = table.select(list(feed.columns))
        made = made.append_column(OPERATION, said).append_column(TIME, stamps)
        return made if feed.operation != "__op" else made.filter(pc.is_valid(said))
    before, after = table.column("before"), table.column("after")
    known = pc.is_valid(before).to_numpy()
    code = np.array(said.to_pylist(), object)
    # A tombstone, after a delete, says nothing.
    empty = (code == None) & ~known & ~pc.is_valid(after).to_numpy()  # noqa: E711
    replaced = (code == "u") & known
    from_before = np.flatnonzero((code == "d") | replaced)
    from_after = np.flatnonzero((code != "d") & ~empty)
    rows = np.concatenate([from_before, from_after])
    words = np.where(replaced, "c", code)
    operations = pa.array(["d"] * len(from_before) + words[from_after].tolist(), pa.string())
    links = [
        pa.chunked_array(
            [
                pc.struct_field(part, name).combine_chunks().take(pa.array(at))
                for part, at in ((before, from_before), (after, from_after))
            ]
        )
        for name in feed.columns
    ]
    return pa.table(
        [*links, operations, stamps.take(pa.array(rows))], [*feed.columns, OPERATION, TIME]
    )
