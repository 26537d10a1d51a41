"""A table that can be shown on a terminal, in a page, or as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table as RichTable


def percent(share: float) -> str:
    """Format a share as a percentage; "100.0 %" and "0.0 %" only for exact values."""
    shown = f"{100 * share:.1f}"
    if shown == "100.0" and share < 1:
        return ">99.9 %"
    if shown == "0.0" and share > 0:
        return "<0.1 %"
    return f"{shown} %"


def about(share: float) -> str:
    """Format a round share as a percentage, without needless decimals."""
    return f"{100 * share:.3g} %"


def whole(number: float) -> str:
    """Format a whole number with thousands separators."""
    return f"{number:,.0f}"


def seconds(duration: float) -> str:
    """Format a duration in seconds, to a tenth."""
    return f"{duration:.1f} s"


@dataclass(frozen=True)
class Column:
    """A column of a table: the key of its values in a row, and how to format them."""

    key: str
    title: str
    form: Callable[[Any], str] = str
    #: Numbers are aligned to the right.
    number: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of plain values, and how to show them."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    caption: str = ""

    def cells(self) -> list[list[str]]:
        """Return the text of every cell, row by row."""
        return [[column.form(row[column.key]) for column in self.columns] for row in self.rows]


def pivot(
    rows: Sequence[Mapping[str, Any]], *, index: str, across: str, value: str
) -> list[dict[str, Any]]:
    """Return one row per value of `index`, with `value` in a column per value of `across`.

    Rows and columns come in the order of first appearance. Column names are text.
    """
    wide: dict[Any, dict[str, Any]] = {}
    for row in rows:
        wide.setdefault(row[index], {index: row[index]})[str(row[across])] = row[value]
    return list(wide.values())


def as_rich(table: Table) -> RichTable:
    """Return the table for a terminal."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table as RichTable

    shown = RichTable(
        title=escape(table.title),
        caption=escape(table.caption) or None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        header_style="bold",
    )
    for column in table.columns:
        shown.add_column(escape(column.title), justify="right" if column.number else "left")
    for row in table.cells():
        shown.add_row(*map(escape, row))
    return shown
