"""Turn measurements into a table on the screen and into BENCHMARKS.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.table import Table as RichTable

HEAD = """\
# Benchmarks

Written by `./run bench` (`python -m benchmarks`); each part can be run alone, and the others then
stay as they are. Figures are ratios within one run on one machine, wherever they can be: seconds
differ between machines, ratios less so. A figure is the median of its repeats, with the lowest
and the highest in brackets.

## Against the bars of the design
"""
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


def section_text(name: str, section: Section, machine: dict[str, str], command: str) -> str:
    """Return one part as Markdown."""
    where = ", ".join(f"{key} {value}" for key, value in machine.items())
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    lines = [
        f"## {name}: {section.title}\n",
        section.workload + "\n",
        f"`{command}`, {date}, on: {where}.\n",
    ]
    for table in section.tables:
        lines.append(f"### {table.title}\n")
        lines += _markdown(table.columns, table.rows)
        lines.append("")
        if table.note:
            lines.append(table.note + "\n")
    return "\n".join(lines)


def merged(old: str, parts: dict[str, Section], texts: dict[str, str], order: Sequence[str]) -> str:
    """Return BENCHMARKS.md with the new parts in place; other parts keep their rows and section."""
    sections = _sections(old) | texts
    rows: list[tuple[str, ...]] = []
    for name in order:
        if name in parts:
            rows += [figure.cells(name) for figure in parts[name].figures]
        else:
            rows += [row for row in _rows(old) if row[-1] == name]
    table = "\n".join(_markdown(COLUMNS, rows))
    body = "\n".join(sections[name].rstrip() + "\n" for name in order if name in sections)
    return f"{HEAD}\n{table}\n\n{body}"


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _sections(text: str) -> dict[str, str]:
    """Return the parts of an earlier report, by name."""
    pieces = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    named = [(re.match(r"## (\w+): ", piece), piece) for piece in pieces]
    return {match[1]: piece for match, piece in named if match}


def _rows(text: str) -> list[tuple[str, ...]]:
    """Return the rows of the design's table in an earlier report."""
    head = re.split(r"^## \w+: ", text, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in head.splitlines() if line.startswith("| ")]
    return [tuple(cell.strip() for cell in line.strip("| ").split("|")) for line in lines[2:]]
