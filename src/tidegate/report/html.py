"""Build a self-contained HTML page: no script, and no style sheet or image from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as escape_markup
from typing import TypeAlias

from tidegate.report.tables import Table


@dataclass(frozen=True)
class Heading:
    """The heading of a section."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph; a `lead` paragraph stands out and holds the main message."""

    text: str
    lead: bool = False


@dataclass(frozen=True)
class Code:
    """Lines of code."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A PNG with a text description; optionally a second PNG for dark screens."""

    png: bytes
    description: str
    dark: bytes | None = None


@dataclass(frozen=True)
class Folded:
    """A table that stays hidden until the reader opens it."""

    table: Table


Part: TypeAlias = Heading | Text | Code | Picture | Table | Folded

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4;
  --paper: #ffffff; --card: #f5f7f9; --lead: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa5b1; --line: #363d46;
  --paper: #14181d; --card: #1d232a; --lead: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 52rem; padding: 1.25rem 1rem 3rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
p { margin: .75rem 0; }
p.lead { border-left: .25rem solid var(--lead); padding: .1rem 0 .1rem .9rem; font-size: 1.1rem; }
img { display: block; width: 100%; max-width: 42rem; height: auto; margin: 1rem 0; }
pre { overflow-x: auto; background: var(--card); padding: .75rem 1rem; border-radius: .4rem;
  font-size: .85rem; line-height: 1.45; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .92rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
@media (max-width: 32rem) { table { font-size: .72rem; } th, td { padding: .3rem .16rem; }
  pre { font-size: .72rem; } }
p.note { color: var(--soft); font-size: .9rem; margin-top: -.4rem; }
summary { cursor: pointer; color: var(--soft); }
"""


def escape(text: str) -> str:
    """Escape text for a page; no line will begin with a percent sign."""
    return escape_markup(text).replace(" %", "&nbsp;%")


def page(title: str, parts: Sequence[Part]) -> str:
    """Return the page as HTML text; everything given is escaped."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # The browser then fetches nothing from elsewhere, even if the page has a mistake.
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">",
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            f"<h1>{escape(title)}</h1>",
            *map(_part, parts),
            "</body>",
            "</html>",
            "",
        ]
    )


def _part(part: Part) -> str:
    match part:
        case Heading(text):
            return f"<h2>{escape(text)}</h2>"
        case Text(text, lead):
            return f'<p class="lead">{escape(text)}</p>' if lead else f"<p>{escape(text)}</p>"
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case Picture():
            return _picture(part)
        case Folded(table):
            summary = f"<summary>{escape(table.title)}</summary>"
            return f"<details>{summary}{_table(table, caption=False)}</details>"
        case Table():
            return _table(part, caption=True)


def _picture(picture: Picture) -> str:
    image = f'<img src="{_data(picture.png)}" alt="{escape(picture.description)}">'
    if picture.dark is None:
        return image
    source = f'<source media="(prefers-color-scheme: dark)" srcset="{_data(picture.dark)}">'
    return f"<picture>{source}{image}</picture>"


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _table(table: Table, *, caption: bool) -> str:
    kinds = [' class="number"' if column.number else "" for column in table.columns]
    titles = [column.title for column in table.columns]
    heads = [f"<th{kind}>{escape(t)}</th>" for kind, t in zip(kinds, titles, strict=True)]
    rows = [
        "".join(f"<td{kind}>{escape(text)}</td>" for kind, text in zip(kinds, cells, strict=True))
        for cells in table.cells()
    ]
    title = f"<caption>{escape(table.title)}</caption>" if caption and table.title else ""
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    note = f'\n<p class="note">{escape(table.caption)}</p>' if table.caption else ""
    return (
        f'<div class="scroll"><table>{title}<thead><tr>{"".join(heads)}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>{note}"
    )
