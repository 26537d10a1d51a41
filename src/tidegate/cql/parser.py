"""The subset of CQL that the papers use, as a tree.

`Select` of columns, aggregates or `Istream(*)`, `From` with windows, `Where` with equijoins and
filters, `Group By`: sections 1.1 and 1.4 of Babu, Srivastava, Widom.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa

from tidegate.cql.tokens import Token, refuse, tokens_of, without_comments
from tidegate.errors import TidegateError

AGGREGATES = ("count", "sum", "avg")
_WORDS = ("select", "from", "where", "group", "by", "and", "or", "not", "as", "true", "false")
_FUNCTIONS = ("abs", "lower", "upper", "length")


@dataclass(frozen=True)
class Attribute:
    """A column of a stream."""

    stream: str
    column: str


@dataclass(frozen=True)
class Item:
    """What is selected: an attribute, or an aggregate of one (of all rows, if it has none)."""

    name: str
    attribute: Attribute | None
    aggregate: str | None


@dataclass(frozen=True)
class Source:
    """A stream of `From`: under which name, over which window."""

    stream: str
    name: str
    rows: int | None = None
    by: str | None = None
    window: str | None = None


@dataclass(frozen=True)
class Query:
    """A query that could be read. `items` is empty for all columns."""

    sources: tuple[Source, ...]
    items: tuple[Item, ...]
    joins: tuple[tuple[Attribute, Attribute], ...]
    filters: tuple[tuple[str, str], ...]
    groups: tuple[Attribute, ...]

    @property
    def aggregates(self) -> bool:
        """Whether results are put together."""
        return any(item.aggregate for item in self.items)


def parse(query: str, schemas: Mapping[str, pa.Schema]) -> Query:
    """Read a query over streams of these schemas."""
    if not isinstance(query, str) or not query.strip():
        raise TidegateError(f'a query must be a text such as "Select ... From ...", not {query!r}')
    return _Parser(without_comments(query), schemas).query()


class _Parser:
    def __init__(self, query: str, schemas: Mapping[str, pa.Schema]) -> None:
        self._query = query
        self._tokens = tokens_of(query)
        self._at = 0
        self._known = schemas
        self._schemas: dict[str, pa.Schema] = {}

    # ---- tokens -------------------------------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._token
        self._at += token.kind != "end"
        return token

    def _takes(self, *words: str) -> bool:
        """Go past the words, if they come now."""
        for i, word in enumerate(words):
            at = min(self._at + i, len(self._tokens) - 1)
            if not self._tokens[at].says(word):
                return False
        self._at += len(words)
        return True

    def _refuse(self, token: Token, why: str) -> NoReturn:
        refuse(self._query, token.start, why)

    def _needs(self, word: str, where: str = "") -> None:
        if not self._takes(word):
            found = repr(self._token.text) if self._token.text else "the end"
            self._refuse(self._token, f"expected {word.upper()}{where}, not {found}")

    def _name(self, what: str) -> Token:
        token = self._next()
        if token.kind != "name" or token.text.lower() in _WORDS:
            found = repr(token.text) if token.text else "the end"
            self._refuse(token, f"expected {what}, not {found}")
        return token

    # ---- the query ----------------------------------------------------------------------------

    def query(self) -> Query:
        self._needs("select")
        start = self._at
        self._skip_to("from")
        self._needs("from", " and the streams after what is selected")
        sources = [self._source()]
        while self._takes(","):
            sources.append(self._source())
        after, self._at = self._at, start
        items = self._items()
        self._needs("from")
        self._at = after
        joins, filters = self._where() if self._takes("where") else ((), ())
        groups: list[Attribute] = []
        if self._takes("group"):
            self._needs("by")
            groups.append(self._attribute())
            while self._takes(","):
                groups.append(self._attribute())
        if self._token.kind != "end":
            self._refuse(
                self._token,
                f"{self._token.text!r} is not in this subset: Select, From, Where and Group By",
            )
        found = Query(tuple(sources), items, joins, filters, tuple(groups))
        self._check_groups(found)
        return found

    def _skip_to(self, word: str) -> None:
        while self._token.kind != "end" and not self._token.says(word):
            if self._token.says("select") and self._at > 0:
                self._refuse(self._token, "a query inside a query is not in this subset")
            self._at += 1

    def _check_groups(self, found: Query) -> None:
        plain = [item for item in found.items if item.aggregate is None]
        if found.groups and not found.aggregates:
            self._refuse(self._tokens[0], "Group By needs an aggregate: count, sum or avg")
        for item in plain if found.aggregates else ():
            if item.attribute not in found.groups:
                self._refuse(
                    self._tokens[0],
                    f"{item.name!r} is neither in Group By nor inside an aggregate",
                )

    # ---- select -------------------------------------------------------------------------------

    def _items(self) -> tuple[Item, ...]:
        if self._takes("distinct"):
            self._refuse(self._tokens[self._at - 1], "Distinct is not in this subset")
        if self._takes("istream"):
            self._needs("(")
            items = self._item_list()
            self._needs(")")
            return items
        return self._item_list()

    def _item_list(self) -> tuple[Item, ...]:
        if self._takes("*"):
            return ()
        items = [self._item()]
        while self._takes(","):
            items.append(self._item())
        return tuple(items)

    def _item(self) -> Item:
        token = self._token
        called = self._tokens[min(self._at + 1, len(self._tokens) - 1)].says("(")
        if token.kind == "name" and called:
            function = token.text.lower()
            if function not in AGGREGATES:
                self._refuse(token, f"{token.text!r} is no aggregate: {', '.join(AGGREGATES)}")
            self._at += 2
            every = function == "count" and self._takes("*")
            attribute = None if every else self._attribute()
            if attribute is not None and function != "count":
                self._check_number(token, attribute)
            self._needs(")")
            own = function if attribute is None else f"{function}_{attribute.column}"
            return Item(self._alias(own), attribute, function)
        attribute = self._attribute()
        return Item(self._alias(attribute.column), attribute, None)

    def _alias(self, name: str) -> str:
        return self._name("a name").plain if self._takes("as") else name

    def _check_number(self, token: Token, attribute: Attribute) -> None:
        kind = self._schemas[attribute.stream].field(attribute.column).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            self._refuse(token, f"{token.text} needs numbers, and {attribute.column} is {kind}")

    # ---- from ---------------------------------------------------------------------------------

    def _source(self) -> Source:
        token = self._name("a stream")
        stream = token.plain
        if stream not in self._known:
            self._refuse(
                token, f"there is no stream {stream!r}; there are {', '.join(self._known)}"
            )
        rows: int | None = None
        by: str | None = None
        window: str | None = None
        if self._takes("["):
            rows, by, window = self._window(stream)
            self._needs("]", " after the window")
        name = token
        follows = self._token.kind == "name" and not self._token.says(*_WORDS)
        if self._takes("as") or follows:
            name = self._name("a name")
        if name.plain in self._schemas:
            self._refuse(
                name, f"{name.plain!r} stands twice; give one of them another name with as"
            )
        self._schemas[name.plain] = self._known[stream]
        return Source(stream, name.plain, rows, by, window)

    def _window(self, stream: str) -> tuple[int | None, str | None, str | None]:
        if self._takes("unbounded") or self._takes("range", "unbounded"):
            return None, None, None
        if self._takes("range"):
            start = self._token.start
            while self._token.kind in ("number", "name"):
                self._at += 1
            text = self._query[start : self._tokens[self._at - 1].end]
            if self._token.start == start:
                self._refuse(self._token, 'expected a length of time such as "10 minutes"')
            return None, None, text
        if self._takes("partition"):
            self._needs("by")
            column = self._name("a column")
            if column.plain not in self._known[stream].names:
                self._refuse(column, f"{stream} has no column {column.plain!r}")
            self._needs("rows")
            return self._rows(), column.plain, None
        if not self._takes("rows"):
            self._refuse(
                self._token,
                "expected a window: Range 10 minutes, Rows 9, Partition By c Rows 9 or Unbounded",
            )
        return self._rows(), None, None

    def _rows(self) -> int:
        token = self._next()
        text = token.text.replace(",", "")
        if not text.isdigit() or int(text) < 1:
            self._refuse(token, f"expected a positive number of rows, not {token.text!r}")
        return int(text)

    # ---- where --------------------------------------------------------------------------------

    def _attribute(self) -> Attribute:
        first = self._name("a column")
        if self._takes("."):
            column = self._name("a column")
            if first.plain not in self._schemas:
                listed = ", ".join(self._schemas)
                self._refuse(first, f"there is no stream {first.plain!r} in From: {listed}")
            if column.plain not in self._schemas[first.plain].names:
                names = ", ".join(self._schemas[first.plain].names)
                self._refuse(
                    column, f"{first.plain} has no column {column.plain!r}; it has {names}"
                )
            return Attribute(first.plain, column.plain)
        owners = [s for s, schema in self._schemas.items() if first.plain in schema.names]
        if not owners:
            self._refuse(first, f"no stream has a column {first.plain!r}")
        if len(owners) > 1:
            self._refuse(first, f"{first.plain!r} is a column of {' and '.join(owners)}: say which")
        return Attribute(owners[0], first.plain)

    def _where(
        self,
    ) -> tuple[tuple[tuple[Attribute, Attribute], ...], tuple[tuple[str, str], ...]]:
        joins: list[tuple[Attribute, Attribute]] = []
        filters: dict[str, str] = {}
        while True:
            start = self._token
            parts, attributes = self._condition()
            streams = list(dict.fromkeys(a.stream for a in attributes))
            if len(streams) == 2 and parts == ["attribute", "=", "attribute"]:
                joins.append((attributes[0], attributes[1]))
            elif len(streams) == 1:
                text = self._rewritten(start.start, self._tokens[self._at - 1].end)
                old = filters.get(streams[0])
                filters[streams[0]] = text if old is None else f"{old} and {text}"
            else:
                self._refuse(
                    start,
                    "a condition must be a join, S1.a = S2.b, or be about one stream alone",
                )
            if not self._takes("and"):
                return tuple(joins), tuple(filters.items())

    def _condition(self) -> tuple[list[str], list[Attribute]]:
        """Go past one condition: what it is made of, and the attributes in it."""
        parts: list[str] = []
        attributes: list[Attribute] = []
        depth = 0
        first = self._token
        while True:
            token = self._token
            if depth == 0 and (token.kind == "end" or token.says("and", "group", ",")):
                break
            if depth == 0 and token.says("or"):
                self._refuse(token, "put conditions with Or into parentheses")
            if token.kind == "end":
                self._refuse(token, "a parenthesis is not closed")
            depth += token.says("(") - token.says(")")
            if depth < 0:
                self._refuse(token, "a parenthesis is closed that was not opened")
            function = token.text.lower() in _FUNCTIONS
            if token.kind == "name" and not function and not token.says(*_WORDS):
                attributes.append(self._attribute())
                parts.append("attribute")
            else:
                parts.append(self._next().text)
        if not parts:
            self._refuse(first, "expected a condition")
        return parts, attributes

    def _rewritten(self, start: int, end: int) -> str:
        """A condition as it was written, with numbers without commas."""
        out, at = [], start
        for token in self._tokens:
            if start <= token.start and token.end <= end and token.kind == "number":
                out += [self._query[at : token.start], token.text.replace(",", "")]
                at = token.end
        return "".join([*out, self._query[at:end]])
