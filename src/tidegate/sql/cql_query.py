"""A parsed query of CQL: what its text says, and the columns that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import pyarrow as pa

from tidegate.engine.exact_sums import sum_type
from tidegate.settings.values import quoted
from tidegate.sql.expressions import Output, Outputs
from tidegate.sql.tokens import refuse


@dataclass(frozen=True)
class Attribute:
    """A column of a stream, and its position in the text."""

    stream: str
    column: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Item:
    """A selected attribute, or an aggregate of one (of all rows, without an attribute)."""

    name: str
    attribute: Attribute | None
    aggregate: str | None
    at: int


@dataclass(frozen=True)
class Written:
    """An expression of `Select` or `Having`.

    Attributes
    ----------
    name
        The name of the column that it gives.
    at
        Its position in the query.
    text
        The expression; each of its parts stands in backticks, by name.
    parts
        Attributes and aggregates.
    places
        Positions of tokens in the text, and in the query.
    """

    name: str
    at: int
    text: str
    parts: tuple[Item, ...]
    places: tuple[tuple[int, int], ...]

    @property
    def is_plain(self) -> bool:
        """True if it is one attribute or aggregate."""
        return len(self.places) == 1 and len(self.parts) == 1

    def place(self, at: int) -> int:
        """Return the position in the query of a position in the text."""
        start, own = max(place for place in self.places if place[0] <= at or place[0] == 0)
        return own if start == at else own + min(at - start, 1)


@dataclass(frozen=True)
class Condition:
    """A condition on one stream, as written."""

    stream: str
    text: str
    at: int


@dataclass(frozen=True)
class Source:
    """A stream of `From`, its alias and its window; or a query inside, whose stream is ""."""

    stream: str
    name: str
    rows: int | None = None
    by: str | None = None
    window: str | None = None
    at: int = 0
    window_at: int = 0
    query: Query | None = None


@dataclass(frozen=True)
class Query:
    """A parsed query. `items` is empty if all columns are selected.

    If there are expressions or `Having`, `outputs` are the selected columns, and `items` are what
    they are made of.
    """

    sources: tuple[Source, ...]
    items: tuple[Item, ...]
    joins: tuple[tuple[Attribute, Attribute], ...]
    filters: tuple[Condition, ...]
    groups: tuple[Attribute, ...]
    text: str
    outputs: tuple[Written, ...] = ()
    having: Written | None = None
    distinct: bool = False
    at: int = 0

    @property
    def is_nested(self) -> bool:
        """True if there are queries inside, or only distinct rows are selected."""
        return self.distinct or any(source.query is not None for source in self.sources)

    @property
    def aggregates(self) -> bool:
        """True if the query has aggregates."""
        return any(item.aggregate for item in self.items)

    @property
    def leaves(self) -> list[Source]:
        """The streams of this query and of those inside."""
        inside = [[s] if s.query is None else s.query.leaves for s in self.sources]
        return [leaf for leaves in inside for leaf in leaves]

    def refuse(self, at: int, why: str) -> NoReturn:
        """Raise an error that points at a position of the text."""
        refuse(self.text, at, why)


def aggregate_type(function: str, kind: pa.DataType) -> pa.DataType:
    """Return the type of an aggregate of a column."""
    word = function.partition(" ")[0]
    if word in ("min", "max"):
        return kind
    return {"count": pa.int64(), "sum": sum_type(kind), "avg": pa.float64()}[word]


def item_schema(query: Query, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the columns of a query's items; `schemas` are those of its sources."""
    fields = []
    for item in query.items:
        kind = pa.int64()
        if item.attribute is not None:
            kind = schemas[item.attribute.stream].field(item.attribute.column).type
        if item.aggregate is not None and item.attribute is not None:
            kind = aggregate_type(item.aggregate, kind)
        fields.append(pa.field(item.name, kind))
    return pa.schema(fields)


def schema_of(query: Query, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the columns of a query's result; `schemas` are those of its sources."""
    if not query.items:
        every = pa.schema([field for schema in schemas.values() for field in schema])
    else:
        every = Outputs(item_schema(query, schemas), outputs_of(query)).schema
    for name in every.names:
        if every.names.count(name) > 1:
            query.refuse(query.at, f"this query has two columns named {quoted(name)}: select one")
    return every


def outputs_of(query: Query) -> list[Output]:
    """Return how a query's columns are computed from its items, and check it."""
    return [
        Output(w.name, w.parts[0].name) if w.is_plain else Output(w.name, "", w.text)
        for w in query.outputs
    ]
