"""CQL as tokens, each of which knows where in the text it stands."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from tidegate.errors import TidegateError

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<name>[A-Za-z_]\w*|`[^`]+`)
    | (?P<number>\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)
    | (?P<text>'(?:[^']|'')*')
    | (?P<sign><>|<=|>=|!=|[-=<>+*/(),.\[\]])
    )""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A part of the text; `kind` is name, number, text, sign or end."""

    kind: str
    text: str
    start: int
    end: int

    def says(self, *words: str) -> bool:
        """Whether it is one of these words or signs, in any case."""
        return self.kind in ("name", "sign") and self.text.lower() in words

    @property
    def plain(self) -> str:
        """A name without its quotes."""
        return self.text.strip("`")


def refuse(query: str, at: int, why: str) -> NoReturn:
    """Say what is wrong with a query, and where."""
    start = query.rfind("\n", 0, at) + 1
    end = query.find("\n", at)
    line = query[start : end if end >= 0 else len(query)]
    row, column = query.count("\n", 0, at) + 1, at - start + 1
    raise TidegateError(
        f"the query cannot be read at line {row}, column {column}: {why}\n"
        f"  {line}\n  {' ' * (column - 1)}^"
    )


def tokens_of(query: str) -> list[Token]:
    """The tokens of a query, and one for its end."""
    found, at = [], 0
    stop = len(query.rstrip())
    while at < stop:
        match = _TOKEN.match(query, at)
        if match is None:
            at += len(query[at:]) - len(query[at:].lstrip())
            refuse(query, at, f"{query[at]!r} is not known")
        kind = str(match.lastgroup)
        found.append(Token(kind, match[kind], match.start(kind), match.end()))
        at = match.end()
    return [*found, Token("end", "", stop, stop)]
