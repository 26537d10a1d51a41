"""Describe measurements, and show them on the screen. `benchmarks.store` keeps them as CSV."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table as RichTable

COLUMNS = ("what", "measured", "bar", "aim", "met", "part")


@dataclass(frozen=True)
class Figure:
    """A row of the design's table "Performance to reach"."""

    what: str
    measured: str
    value: float
    bar: float
    aim: float
    form: str
    higher: bool = True

    @property
    def met(self) -> str:
        """Return which goal the figure reaches: the aim, the bar, or neither."""
        if self._reaches(self.aim):
            return "aim"
        return "bar" if self._reaches(self.bar) else "no"

    def _reaches(self, goal: float) -> bool:
        return self.value >= goal if self.higher else self.value <= goal

    def cells(self, part: str) -> tuple[str, ...]:
        """Return the figure as a row of text."""
        bar, aim = (self.form.format(goal) for goal in (self.bar, self.aim))
        return self.what, self.measured, bar, aim, self.met, part


@dataclass(frozen=True)
class Table:
    """Raw figures, from which the rows above follow."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """The results of one part."""

    title: str
    workload: str
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]


def on_screen(parts: dict[str, Section]) -> RichTable:
    """Return the design's table, for the parts that ran."""
    table = RichTable(*COLUMNS, title="Performance to reach")
    for name, section in parts.items():
        for figure in section.figures:
            colour = {"no": "red", "bar": "yellow", "aim": "green"}[figure.met]
            *cells, met, part = figure.cells(name)
            table.add_row(*cells, f"[{colour}]{met}[/]", part)
    return table


def tables_on_screen(section: Section) -> list[RichTable]:
    """Return the raw figures of a part."""
    shown = []
    for table in section.tables:
        rich = RichTable(*table.columns, title=table.title, caption=table.note or None)
        for row in table.rows:
            rich.add_row(*row)
        shown.append(rich)
    return shown
