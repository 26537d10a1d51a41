"""The parser of the subset of CQL that the papers use.

`Select` of columns, aggregates, expressions of these or `Istream(*)`, `From` with windows and `Join
... On`, `Where` with equijoins and filters, `Group By`, `Having`: sections 1.1 and 1.4 of Babu,
Srivastava, Widom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import pyarrow as pa

from tidegate.engine.exact_sums import sum_type
from tidegate.engine.extremes import has_order
from tidegate.errors import TidegateError
from tidegate.settings.checks import nearest
from tidegate.settings.values import quoted
from tidegate.sql.cql_query import Attribute, Condition, Item, Query, Source, Written, schema_of
from tidegate.sql.tokens import Token, refuse, tokens_of, without_comments

AGGREGATES = ("count", "sum", "avg", "min", "max")
_WORDS = ("select", "from", "where", "group", "by", "and", "or", "not", "as", "true", "false")
#: Words that are no columns, except after the name of a stream.
_RESERVED = (*_WORDS, "in", "is", "null", "join", "inner", "on", "having")
#: What ends a condition.
_AFTER = ("and", "where", "group", "having", ",", "join", "inner")
_FUNCTIONS = ("abs", "lower", "upper", "length")
_SUBSET = (
    "Select of columns, of count, sum, avg, min and max and of expressions, From streams with "
    "windows and Join ... On, Where with equijoins and conditions on single streams, Group By, and "
    "Having"
)
_JOINED = "write joins as conditions, Where S1.a = S2.a; there are no outer joins"
_PLAIN = "compare with = <> < <= > >="
#: Words of CQL and SQL that are not in the subset, and the advice for each.
_OUTSIDE = {
    "order": "sort the result",
    "limit": "take the rows you want of the result",
    "union": "run two queries, and put their results together",
    "except": "run two queries, and compare their results",
    "intersect": "run two queries, and compare their results",
    **dict.fromkeys(("left", "right", "full", "outer", "cross"), _JOINED),
    "between": "write a >= 1 and a <= 9",
    **dict.fromkeys(("like", "exists", "case"), _PLAIN),
    "slide": "windows slide with every row",
    "rstream": "select Istream(*), or columns",
    "dstream": "select Istream(*), or columns",
}


def parse(query: str, schemas: Mapping[str, pa.Schema]) -> Query:
    """Parse a query over streams with these schemas."""
    if not isinstance(query, str) or not query.strip():
        raise TidegateError(
            f'a query must be a text such as "Select ... From ...", not {quoted(query)}'
        )
    return _Parser(query, schemas).query()


class _Parser:
    def __init__(
        self, query: str, schemas: Mapping[str, pa.Schema], outer: _Parser | None = None
    ) -> None:
        self._text = query
        self._query = without_comments(query)
        self._tokens: list[Token] = tokens_of(query) if outer is None else outer._tokens
        self._at: int = 0 if outer is None else outer._at
        self._is_inside = outer is not None
        self._known = schemas
        self._joins: list[tuple[Attribute, Attribute]] = []
        self._schemas: dict[str, pa.Schema] = {}
        self._parts: list[Item] = []  # of expressions

    # ---- tokens -------------------------------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._token
        self._at += token.kind != "end"
        return token

    def _takes(self, *words: str) -> bool:
        """Consume the words if they come next; return whether they did."""
        for i, word in enumerate(words):
            at = min(self._at + i, len(self._tokens) - 1)
            if not self._tokens[at].says(word):
                return False
        self._at += len(words)
        return True

    def _refuse(self, token: Token, why: str) -> NoReturn:
        refuse(self._text, token.start, why)

    def _refuse_word(self, token: Token, otherwise: str) -> NoReturn:
        """Refuse a word, with advice if it is outside the subset of CQL."""
        instead = _OUTSIDE.get(token.text.lower())
        if instead is None:
            self._refuse(token, otherwise)
        self._refuse(
            token, f"{token.text} is outside this subset of CQL: {instead}. There are {_SUBSET}"
        )

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

    def _is_over(self) -> bool:
        """Return True at the end of the query, or of this one inside another."""
        return self._token.kind == "end" or (self._is_inside and self._token.says(")"))

    def query(self) -> Query:
        begun = self._token.start
        self._needs("select")
        start = self._at
        self._skip_to("from")
        self._needs("from", " and the streams after what is selected")
        sources = [self._source()]
        joins = self._joins
        filters: list[Condition] = []
        while True:
            if self._takes(","):
                sources.append(self._source())
            elif self._takes("join") or self._takes("inner", "join"):
                sources.append(self._source())
                self._needs("on", " and the conditions of the join")
                self._conditions(joins, filters)
            else:
                break
        if not (self._is_over() or self._token.says("where", "group", "having")):
            self._refuse_rest("Where, Group By, a comma and a stream")
        if self._takes("where"):
            self._conditions(joins, filters)
        after, self._at = self._at, start
        distinct = self._takes("distinct")
        written = self._items()
        self._needs("from")
        self._at = after
        groups: list[Attribute] = []
        grouped = self._token
        if self._takes("group"):
            self._needs("by")
            groups.append(self._group())
            while self._takes(","):
                groups.append(self._group())
        having, condition = self._token, None
        if self._takes("having"):
            condition = self._expression("")
        if not self._is_over():
            self._refuse_rest("Group By" if not groups else "a comma and a column")
        items = tuple(self._parts)
        outputs = written
        if condition is None and all(each.is_plain for each in written):
            items, outputs = tuple(replace(w.parts[0], name=w.name) for w in written), ()
        found = Query(
            tuple(sources),
            items,
            tuple(joins),
            tuple(filters),
            tuple(groups),
            self._text,
            outputs,
            condition,
            distinct,
            begun,
        )
        if condition is not None and not (found.aggregates and written):
            self._refuse(
                having,
                "Having is a condition on groups and needs an aggregate; conditions on rows go in "
                "Where",
            )
        self._check_groups(found, grouped)
        return found

    def _refuse_rest(self, wanted: str) -> NoReturn:
        found = self._token.text
        self._refuse_word(self._token, f"expected {wanted} or the end, not {quoted(found)}")

    def _skip_to(self, word: str) -> None:
        while self._token.kind != "end" and not self._token.says(word):
            if self._token.says("select"):
                self._refuse_query(self._token)
            self._at += 1

    def _refuse_query(self, token: Token) -> NoReturn:
        self._refuse(
            token,
            "a query inside a query stands in From: (Select ...) as name",
        )

    def _check_groups(self, found: Query, grouped: Token) -> None:
        plain = [item for item in found.items if item.aggregate is None]
        if found.groups and not (found.aggregates or self._is_inside):
            self._refuse(grouped, f"Group By needs an aggregate in Select: {', '.join(AGGREGATES)}")
        for item in plain if found.aggregates or found.groups else ():
            if item.attribute not in found.groups:
                found.refuse(
                    item.at, f"{quoted(item.name)} is neither in Group By nor in an aggregate"
                )

    def _group(self) -> Attribute:
        token = self._token
        attribute = self._attribute()
        kind = self._schemas[attribute.stream].field(attribute.column).type
        if pa.types.is_map(kind):
            self._refuse(
                token,
                f"{attribute.column} is {kind}, which has no equality: group by one of its entries",
            )
        return attribute

    # ---- select -------------------------------------------------------------------------------

    def _items(self) -> tuple[Written, ...]:
        if self._token.says("rstream", "dstream"):
            self._refuse_word(self._token, "")
        if not self._takes("istream"):
            return self._item_list()
        self._needs("(")
        items = self._item_list()
        for item in (part for each in items for part in each.parts):
            if item.aggregate is not None:
                refuse(
                    self._text,
                    item.at,
                    "Istream is of rows, * or columns; an aggregate is a row for each time at "
                    f"which it changes: write Select {item.aggregate}(...) without Istream",
                )
        self._needs(")")
        return items

    def _item_list(self) -> tuple[Written, ...]:
        if self._takes("*"):
            return ()
        items = [self._item()]
        while self._takes(","):
            items.append(self._item())
        return tuple(items)

    def _item(self) -> Written:
        first = self._token
        written = self._expression("from", "as", ",")
        if self._takes("as"):
            return replace(written, name=self._name("a name").plain)
        if not written.is_plain:
            self._refuse(first, "an expression needs a name: ... as name")
        return written

    def _expression(self, *enders: str) -> Written:
        """Read an expression up to one of these words, or a parenthesis that it did not open."""
        first, depth = self._token, 0
        texts: list[str] = []
        parts: list[Item] = []
        places: list[tuple[int, int]] = []
        length, name = 0, ""
        while self._token.kind != "end" and (depth or not self._token.says(*enders, ")")):
            token = self._token
            depth += token.says("(") - token.says(")")
            if token.kind == "name" and not self._is_word(token):
                part, name = self._part()
                parts.append(part)
                texts.append(f"`{part.name}`")
            else:
                self._at += 1
                text = token.text.replace(",", "") if token.kind == "number" else token.text
                texts.append(text)
            places.append((length, token.start))
            length += len(texts[-1]) + 1
        if depth:
            self._refuse(self._token, "a parenthesis is not closed")
        if not texts:
            self._refuse(self._token, "expected a column, an aggregate or an expression")
        return Written(name, first.start, " ".join(texts), tuple(parts), tuple(places))

    def _is_word(self, token: Token) -> bool:
        """Return True if a name is a word or a function of expressions."""
        called = self._tokens[min(self._at + 1, len(self._tokens) - 1)].says("(")
        return token.says("and", "or", "not", "in", "is", "null", "true", "false") or (
            called and token.text.lower() in _FUNCTIONS
        )

    def _part(self) -> tuple[Item, str]:
        """Read an attribute or an aggregate; return it, and the name that it gives a column."""
        token = self._token
        called = self._tokens[min(self._at + 1, len(self._tokens) - 1)].says("(")
        if not called:
            attribute = self._attribute()
            return self._known_part(attribute, None, token), attribute.column
        function = token.text.lower()
        if function not in AGGREGATES:
            listed, others = ", ".join(AGGREGATES), ", ".join(_FUNCTIONS)
            self._refuse_word(
                token,
                f"{quoted(token.text)} is no aggregate; there are {listed}, and the functions "
                f"{others}",
            )
        self._at += 2
        every = function == "count" and self._takes("*")
        distinct = not every and self._takes("distinct")
        of = None if every else self._attribute()
        if of is not None:
            self._check_argument(token, function, of, distinct)
        self._needs(")", ": an aggregate is of one column")
        if distinct and function not in ("min", "max"):
            function = f"{function} distinct"
        own = function if of is None else f"{function}_{of.column}"
        return self._known_part(of, function, token), own.replace(" ", "_")

    def _known_part(self, of: Attribute | None, function: str | None, token: Token) -> Item:
        """Return the part with this attribute and aggregate; the same one for every mention."""
        for part in self._parts:
            if (part.attribute, part.aggregate) == (of, function):
                return part
        column = "*" if of is None else f"{of.stream}.{of.column}"
        name = column if function is None else f"{function}({column})"
        while any(part.name == name for part in self._parts):
            name += " "  # streams and columns whose names have dots
        self._parts.append(Item(name, of, function, token.start))
        return self._parts[-1]

    def _check_argument(
        self, token: Token, function: str, attribute: Attribute, distinct: bool
    ) -> None:
        kind = self._schemas[attribute.stream].field(attribute.column).type
        needs = None
        if function in ("sum", "avg") and sum_type(kind) is None:
            needs = "numbers"
        elif function in ("min", "max") and not has_order(kind):
            needs = "numbers, times, texts or true and false"
        elif distinct and pa.types.is_map(kind):
            needs = "values with an equality"
        if needs is not None:
            why = f"{token.text} needs {needs}, and {attribute.column} is {kind}: cast it"
            refuse(self._text, attribute.at, why)

    # ---- from ---------------------------------------------------------------------------------

    def _source(self) -> Source:
        if self._token.says("("):
            return self._inside()
        token = self._name("a stream")
        stream = token.plain
        if stream not in self._known:
            listed = f"there are {', '.join(self._known)}{nearest(stream, self._known)}"
            self._refuse_word(token, f"there is no stream {quoted(stream)}; {listed}")
        rows: int | None = None
        by: str | None = None
        window: str | None = None
        window_at = self._token.start
        if self._takes("["):
            window_at = self._token.start
            rows, by, window = self._window(stream)
            self._needs("]", " after the window")
        name = self._named(token, self._known[stream])
        return Source(stream, name, rows, by, window, token.start, window_at)

    def _named(self, name: Token | None, schema: pa.Schema) -> str:
        """Read the name of a source, which may have one already."""
        if name is None or self._takes("as") or self._names_a_stream():
            self._takes("as")
            name = self._name("a name for what is in parentheses: (...) as name")
        if name.plain in self._schemas:
            self._refuse(
                name, f"{quoted(name.plain)} stands twice; give one of them another name with as"
            )
        self._schemas[name.plain] = schema
        return name.plain

    def _inside(self) -> Source:
        """Read a query inside, or a stream in parentheses."""
        self._needs("(")
        inner = _Parser(self._text, self._known, self)
        if self._token.says("select"):
            query = inner.query()
            self._at = inner._at
            self._needs(")", " after the query inside")
            schema = schema_of(query, inner._schemas)
            return Source("", self._named(None, schema), at=query.at, query=query)
        source = inner._source()
        self._at = inner._at
        self._needs(")", " after the stream")
        return replace(source, name=self._named(None, inner._schemas[source.name]))

    def _names_a_stream(self) -> bool:
        """True if an alias without As comes next."""
        token = self._token
        return token.kind == "name" and not token.says(*_RESERVED, *_OUTSIDE)

    def _window(self, stream: str) -> tuple[int | None, str | None, str | None]:
        if self._takes("unbounded") or self._takes("range", "unbounded"):
            return None, None, None
        if self._takes("range"):
            start = self._token.start
            while self._token.kind in ("number", "name"):
                if self._token.says("slide"):
                    self._refuse_word(self._token, "")
                self._at += 1
            text = self._query[start : self._tokens[self._at - 1].end]
            if self._token.start == start:
                self._refuse(self._token, 'expected a length of time such as "10 minutes"')
            return None, None, text
        if self._takes("partition"):
            self._needs("by")
            column = self._name("a column")
            if column.plain not in self._known[stream].names:
                self._refuse(column, self._no_column(stream, self._known[stream], column.plain))
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
            self._refuse(token, f"expected a positive number of rows, not {quoted(token.text)}")
        return int(text)

    # ---- where --------------------------------------------------------------------------------

    def _attribute(self) -> Attribute:
        first = self._name("a column")
        if self._takes("."):
            column = self._name("a column")
            if first.plain not in self._schemas:
                listed = f"{', '.join(self._schemas)}{nearest(first.plain, self._schemas)}"
                self._refuse(first, f"there is no stream {quoted(first.plain)} in From: {listed}")
            schema = self._schemas[first.plain]
            if column.plain not in schema.names:
                self._refuse(column, self._no_column(first.plain, schema, column.plain))
            return Attribute(first.plain, column.plain, first.start)
        owners = [s for s, schema in self._schemas.items() if first.plain in schema.names]
        if not owners:
            every = [name for schema in self._schemas.values() for name in schema.names]
            hint = nearest(first.plain, every)
            self._refuse_word(first, f"no stream has a column {quoted(first.plain)}{hint}")
        if len(owners) > 1 and not self._are_equal(first.plain, owners):
            self._refuse(
                first, f"{quoted(first.plain)} is a column of {' and '.join(owners)}: say which"
            )
        return Attribute(owners[0], first.plain, first.start)

    def _are_equal(self, column: str, owners: Sequence[str]) -> bool:
        """Return True if joins make a column of several sources equal."""
        same = {(owners[0], column)}
        for _ in self._joins:
            for pair in self._joins:
                ends = {(each.stream, each.column) for each in pair}
                same |= ends if ends & same else set()
        return all((owner, column) in same for owner in owners)

    def _no_column(self, stream: str, schema: pa.Schema, name: str) -> str:
        listed = f"{', '.join(schema.names)}{nearest(name, schema.names)}"
        return f"{stream} has no column {quoted(name)}; it has {listed}"

    def _conditions(
        self, joins: list[tuple[Attribute, Attribute]], filters: list[Condition]
    ) -> None:
        """Read conditions with And between them, and add them to the joins and filters."""
        while True:
            start, first = self._token, self._at
            parts, attributes = self._condition()
            streams = list(dict.fromkeys(a.stream for a in attributes))
            join = [part for part in parts if part not in ("(", ")")] == [
                "attribute",
                "=",
                "attribute",
            ]
            if len(streams) == 2 and join:
                joins.append((attributes[0], attributes[1]))
            elif len(streams) == 1:
                text = self._rewritten(self._tokens[first : self._at])
                filters.append(Condition(streams[0], text, start.start))
            else:
                self._refuse(
                    start,
                    "a condition must be a join, S1.a = S2.b, or be about one stream alone",
                )
            if not self._takes("and"):
                return

    def _condition(self) -> tuple[list[str], list[Attribute]]:
        """Consume one condition; return its parts and its attributes."""
        parts: list[str] = []
        attributes: list[Attribute] = []
        depth = 0
        first = self._token
        while True:
            token = self._token
            closes = self._is_inside and token.says(")")
            if depth == 0 and (token.kind == "end" or token.says(*_AFTER) or closes):
                break
            if depth == 0 and token.says("or"):
                self._refuse(
                    token,
                    "Or is in this subset only between conditions on one stream, and inside "
                    "parentheses: (S.a = 1 or S.a = 2)",
                )
            if token.kind == "end":
                self._refuse(token, "a parenthesis is not closed")
            depth += token.says("(") - token.says(")")
            if depth < 0:
                self._refuse(token, "a parenthesis is closed that was not opened")
            function = token.text.lower() in _FUNCTIONS
            if token.kind == "name" and not function and not token.says(*_RESERVED):
                if self._tokens[self._at + 1].says("("):
                    listed = ", ".join(_FUNCTIONS)
                    self._refuse_word(
                        token, f"no function {quoted(token.text)}; there are {listed}"
                    )
                attributes.append(self._attribute())
                parts.append("attribute")
            else:
                parts.append(self._next().text)
        if not parts:
            self._refuse(first, "expected a condition")
        return parts, attributes

    def _rewritten(self, condition: Sequence[Token]) -> str:
        """Return a condition as written, without commas in numbers; positions stay the same."""
        out, at, end = [], condition[0].start, condition[-1].end
        for token in condition:
            if token.kind == "number":
                number = token.text.replace(",", "").ljust(len(token.text))
                out += [self._query[at : token.start], number]
                at = token.end
        return "".join([*out, self._query[at:end]])
