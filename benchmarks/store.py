"""Keep the measurements of all parts as CSV files, which figures are drawn from.

Each table of a part is one file. Three more files describe them: `runs.csv` (the command, the date
and the machine of each part), `tables.csv` (the title and the note of each table) and `goals.csv`
(figures beside the bars of the design).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.report import COLUMNS, Section

#: The folder of the results on record.
RESULTS = Path(__file__).parent / "results"
RUNS = ("part", "title", "workload", "command", "date", "machine")
TABLES = ("part", "file", "title", "note")
GOALS = COLUMNS

Row = Sequence[str]

_NUMBER = r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_UNIT = r"%|x|g| s| w| M| MB| points"
#: A number with its unit, then further numbers of the same unit, then any text.
_CELL = re.compile(
    rf"(?P<first>{_NUMBER})(?P<unit>{_UNIT})?"
    rf"(?: \((?P<low>{_NUMBER})(?:{_UNIT})? to (?P<high>{_NUMBER})(?:{_UNIT})?\)"
    rf"| \((?P<bracket>{_NUMBER})\)"
    rf"| to (?P<upto>{_NUMBER})(?:{_UNIT})?"
    rf"|(?P<others>(?: / {_NUMBER}(?:{_UNIT})?)+))?"
    r"(?P<rest>(?!\d).*)"
)
_UNITS = {"%": "%", "x": "times", "g": "GB"}


def write(
    folder: Path,
    name: str,
    section: Section,
    machine: dict[str, str],
    command: str,
    order: Sequence[str],
    *,
    date: str = "",
) -> None:
    """Replace the files of one part; other parts stay as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in read(folder / "tables.csv"):
        if row["part"] == name:
            (folder / row["file"]).unlink(missing_ok=True)
    files = file_names(name, [table.title for table in section.tables])
    for file, table in zip(files, section.tables, strict=True):
        _save(folder / file, *plain(table.columns, table.rows))
    where = ", ".join(f"{key} {value}" for key, value in machine.items())
    date = date or datetime.now(UTC).strftime("%Y-%m-%d")
    run = (name, section.title, section.workload, command, date, where)
    _replace(folder / "runs.csv", RUNS, name, [run], order)
    tables = [
        (name, file, table.title, table.note)
        for file, table in zip(files, section.tables, strict=True)
    ]
    _replace(folder / "tables.csv", TABLES, name, tables, order)
    goals = [figure.cells(name) for figure in section.figures]
    _replace(folder / "goals.csv", GOALS, name, goals, order)


def read(file: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column; none if there is no file."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def file_names(part: str, titles: Sequence[str]) -> list[str]:
    """Name a file for each table: by the part, and by the title if there are several tables."""
    if len(titles) == 1:
        return [f"{part}.csv"]
    names: list[str] = []
    for title in titles:
        words = re.findall(r"[a-z0-9]+", re.split(r"[:(]|, ", title.replace("'", ""))[0].lower())
        name = base = f"{part}-{'_'.join(words[:8])}"
        number = 1
        while f"{name}.csv" in names:
            number += 1
            name = f"{base}_{number}"
        names.append(f"{name}.csv")
    return names


def plain(columns: Row, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Turn cells made for people into plain numbers, with units in the column names.

    A cell such as "1.66 (1.28 to 6.33)" becomes three columns, one such as "20.2% / 20.6%" two.
    A text after a number goes to a column of notes. Columns of texts stay as they are.
    """
    names = _distinct(columns)
    head: list[str] = []
    body: list[list[str]] = [[] for _ in rows]
    for at, name in enumerate(names):
        new_names, cells = _column(name, [row[at] for row in rows])
        head += new_names
        for line, values in zip(body, cells, strict=True):
            line += values
    return head, body


def _distinct(columns: Row) -> list[str]:
    """Put the column that a repeated name belongs to before it."""
    names: list[str] = []
    owner = ""
    for name in columns:
        if columns.count(name) == 1:
            owner = name
        names.append(name if columns.count(name) == 1 else f"{owner}: {name}")
    return names


def _column(name: str, cells: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the columns that one column becomes, and their cells row by row."""
    found = [_CELL.fullmatch(cell) for cell in cells]
    filled = [match for match, cell in zip(found, cells, strict=True) if cell]
    numbers = [match for match in filled if match and not match["rest"]]
    units = {match["unit"] for match in filled if match}
    if None in filled or len(numbers) * 2 < max(len(filled), 1) or len(units) != 1:
        return [name], [[cell] for cell in cells]
    unit = units.pop()
    label = name if unit is None else f"{name} [{_UNITS.get(unit, unit.strip())}]"
    parts = [_parts(match) if match else {} for match in found]
    keys = sorted({key for part in parts for key in part})
    heads = [label if not key[1] else f"{label} {key[1]}" for key in keys]
    return heads, [[part.get(key, "") for key in keys] for part in parts]


def _parts(match: re.Match[str]) -> dict[tuple[int, str], str]:
    """Return the numbers of a cell, by their place and what to call them."""
    alone = not match["upto"]
    found = {
        (0, ""): match["first"] if alone else "",
        (1, "low"): match["low"] if alone else match["first"],
        (2, "high"): match["high"] if alone else match["upto"],
        (3, "in brackets"): match["bracket"],
        (9, "note"): match["rest"].strip(" ,;"),
    }
    for number, value in enumerate(re.findall(_NUMBER, match["others"] or "")):
        found[4 + number, f"no. {number + 2}"] = value
    numbers = {key: value for key, value in found.items() if value}
    return {
        key: value if key[1] == "note" else value.replace(",", "") for key, value in numbers.items()
    }


def _replace(
    file: Path, columns: Row, part: str, rows: Iterable[Row], order: Sequence[str]
) -> None:
    """Replace the rows of a part in a file, and put all rows in the order of the parts."""
    others = [tuple(row.values()) for row in read(file) if row["part"] != part]
    at = columns.index("part")
    known = {name: place for place, name in enumerate(order)}
    both = sorted([*others, *rows], key=lambda row: known.get(row[at], len(known)))
    _save(file, columns, both)


def _save(file: Path, columns: Row, rows: Iterable[Row]) -> None:
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
