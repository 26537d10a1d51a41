"""The tokenizer of CQL; tokens have their position in the text."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple, NoReturn

from tidegate.errors import TidegateError
from tidegate.settings.values import quoted

_TOKEN = re.compile(
    r"""(?:
      (?P<name>[A-Za-z_]\w*|`[^`]+`)
    | (?P<number>(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?)
    | (?P<text>'(?:[^']|'')*')
    | (?P<sign><>|<=|>=|!=|[-=<>+*/(),.\[\]])
    )""",
    re.VERBOSE,
)


#: Comments up to the end of a line; quoted texts and names, which contain no comments.
_COMMENT = re.compile(r"'(?:[^']|'')*'|`[^`]+`|(?P<comment>--[^\n]*)")


#: The most characters of a line that an error shows.
_SHOWN = 160


class Token(NamedTuple):
    """A token; `kind` is name, number, text, sign or end."""

    kind: str
    text: str
    start: int
    end: int

    def says(self, *words: str) -> bool:
        """True if the token is one of these words or signs, in any case."""
        return self.kind in ("name", "sign") and self.text.lower() in words

    @property
    def plain(self) -> str:
        """The name without backticks."""
        return self.text.strip("`")


def refuse(query: str, at: int, why: str) -> NoReturn:
    """Raise an error that points at a position of a query."""
    start = query.rfind("\n", 0, at) + 1
    end = query.find("\n", at)
    line = query[start : end if end >= 0 else len(query)].rstrip("\r")
    row, column = query.count("\n", 0, at) + 1, at - start + 1
    if len(line) > _SHOWN:
        # Show only the part of a long line that is around the error.
        start = max(start, at - _SHOWN // 2)
        line = query[start : start + _SHOWN].split("\n")[0]
    below = "".join(map(_blank, query[start:at]))
    raise TidegateError(
        f"the query cannot be read at line {row}, column {column}: {why}\n  {line}\n  {below}^"
    )


def _blank(letter: str) -> str:
    """Return blanks as wide as a character."""
    if letter == "\t":
        return letter
    if unicodedata.combining(letter):
        return ""
    return "  " if unicodedata.east_asian_width(letter) in ("W", "F") else " "


def without_comments(query: str) -> str:
    """Replace comments by spaces, so that positions stay the same."""
    return _COMMENT.sub(lambda m: " " * len(m[0]) if m["comment"] else m[0], query)


_NOT_CLOSED = {
    "'": "a text is opened here and not closed: write 'text', and two quotes for one inside",
    "`": "a name is opened here and not closed: write `a name`",
    '"': "texts are written 'text', and names that are no words `a name`",
}


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a query and an end token; a final semicolon is allowed."""
    query = without_comments(text)
    found: list[Token] = []
    at = _skip(query, 0)
    while at < len(query):
        match = _TOKEN.match(query, at, _listed_until(query, at, found))
        if match is None:
            if query[at] == ";" and _skip(query, at + 1) == len(query):
                break
            refuse(
                text,
                at,
                _NOT_CLOSED.get(
                    query[at],
                    f"{quoted(query[at])} is not known: a name that is no word goes in `backticks`",
                ),
            )
        kind = str(match.lastgroup)
        found.append(Token(kind, match[kind], match.start(kind), match.end()))
        at = _skip(query, match.end())
    stop = found[-1].end if found else 0
    return [*found, Token("end", "", stop, stop)]


def _listed_until(query: str, at: int, found: list[Token]) -> int:
    """Return where a number ends at the latest: in a list after In, commas separate numbers."""
    depth = 1
    for i in range(len(found) - 1, 0, -1):
        if not query[at].isdigit():
            break
        depth += found[i].says(")") - found[i].says("(")
        if depth == 0:
            comma = query.find(",", at)
            return comma if found[i - 1].says("in") and comma >= 0 else len(query)
    return len(query)


def _skip(query: str, at: int) -> int:
    while at < len(query) and query[at].isspace():
        at += 1
    return at
