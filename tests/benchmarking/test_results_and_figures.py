"""From a run to CSV files, and from these to figures; and the files that are on record."""

from __future__ import annotations

import csv
import importlib
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import figures, picture, store
from benchmarks.report import Figure, Section, Table


def cells(column: str, *values: str) -> list[list[str]]:
    head, rows = store.plain((column,), [(value,) for value in values])
    return [head, *rows]


def test_cells_become_plain_numbers_with_units_in_the_name() -> None:
    assert cells("rows", "1,234,567", "", "-0.5") == [["rows"], ["1234567"], [""], ["-0.5"]]
    assert cells("share", "12.5%", "3%") == [["share [%]"], ["12.5"], ["3"]]
    assert cells("cost", "1.5x") == [["cost [times]"], ["1.5"]]
    assert cells("time", "0.5 s") == [["time [s]"], ["0.5"]]


def test_one_cell_may_become_several_columns() -> None:
    assert cells("ns", "1,403 (1,374 to 1,471)") == [
        ["ns", "ns low", "ns high"],
        ["1403", "1374", "1471"],
    ]
    assert cells("all", "97.2% to 98.8%") == [["all [%] low", "all [%] high"], ["97.2", "98.8"]]
    assert cells("5%", "20.2% / 20.6%") == [["5% [%]", "5% [%] no. 2"], ["20.2", "20.6"]]
    assert cells("M", "2,254 (1,414)") == [["M", "M in brackets"], ["2254", "1414"]]
    assert cells("s", "15.6", "248, scaled up") == [
        ["s", "s note"],
        ["15.6", ""],
        ["248", "scaled up"],
    ]


def test_texts_and_mixed_units_stay_as_they_are() -> None:
    for values in (("250 facts", "90 facts"), ("5%", "5"), ("yes", "no"), ("11 of 24", "13 of 24")):
        assert cells("what", *values) == [["what"], *([value] for value in values)]


def test_a_repeated_column_is_named_after_the_one_it_belongs_to() -> None:
    head, _ = store.plain(("k", "held", "SWJ", "ratio", "us", "SWJ", "ratio"), [])
    assert head == ["k", "held", "held: SWJ", "held: ratio", "us", "us: SWJ", "us: ratio"]


def test_files_are_named_by_part_and_title() -> None:
    assert store.file_names("kernel", ["Rows a second"]) == ["kernel.csv"]
    titles = ["A budget of 2,500 for each: NDG", "Drift, windows of 800", "Drift, windows of 100"]
    assert store.file_names("static", titles) == [
        "static-a_budget_of_2_500_for_each.csv",
        "static-drift.csv",
        "static-drift_2.csv",
    ]


def section(title: str, measured: str, *tables: str) -> Section:
    figure = Figure(f"{title}, fast", measured, 5, 4, 8, "{}x")
    raw = tuple(Table(name, ("a",), (("1,000",),), "a note") for name in tables)
    return Section(title, "A workload.", (figure,), raw)


def test_a_part_replaces_its_own_files_only(tmp_path: Path) -> None:
    def write(name: str, part: Section) -> None:
        store.write(tmp_path, name, part, {"cores": "2"}, "python -m benchmarks", ["one", "two"])

    write("two", section("Two", "5x", "First", "Second"))
    write("one", section("One", "5x", "Only"))
    assert {file.name for file in tmp_path.iterdir()} == {
        *("runs.csv", "tables.csv", "goals.csv"),
        *("one.csv", "two-first.csv", "two-second.csv"),
    }
    assert [row["part"] for row in store.read(tmp_path / "runs.csv")] == ["one", "two"]
    write("two", section("Two", "6x", "Second"))
    assert not (tmp_path / "two-first.csv").exists()
    assert store.read(tmp_path / "two.csv") == [{"a": "1000"}]
    assert store.read(tmp_path / "one.csv") == [{"a": "1000"}]
    goals = {row["part"]: row["measured"] for row in store.read(tmp_path / "goals.csv")}
    assert goals == {"one": "5x", "two": "6x"}
    assert [row["file"] for row in store.read(tmp_path / "tables.csv")] == ["one.csv", "two.csv"]
    [run] = [row for row in store.read(tmp_path / "runs.csv") if row["part"] == "two"]
    assert run["command"] == "python -m benchmarks"
    assert run["machine"] == "cores 2"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"])


def test_no_file_has_no_rows(tmp_path: Path) -> None:
    assert store.read(tmp_path / "absent.csv") == []


def test_the_picture_compares_all_with_the_exact_join() -> None:
    found = picture.recall(picture.Scale(ticks=800), "Zipf(1)", 0.25, 1)
    assert list(found) == [*picture.POLICIES, "optimum"]
    assert max(found.values()) == found["optimum"] <= 1
    assert found["prob"] > found["rand"] > 0


def test_the_results_on_record_are_whole() -> None:
    runs = store.read(store.RESULTS / "runs.csv")
    parts = importlib.import_module("benchmarks.__main__").PARTS
    assert [row["part"] for row in runs] == list(parts)
    assert all(row["command"].startswith("python -m benchmarks") for row in runs)
    tables = {row["file"] for row in store.read(store.RESULTS / "tables.csv")}
    others = {"runs.csv", "tables.csv", "goals.csv"}
    assert {file.name for file in store.RESULTS.glob("*.csv")} == tables | others
    for file in tables:
        with (store.RESULTS / file).open(newline="") as lines:
            head, *rows = csv.reader(lines)
        assert rows
        assert len(set(head)) == len(head), file
        assert all(len(row) == len(head) for row in rows), file


@pytest.mark.parametrize("name", figures.DRAWINGS)
def test_figures_are_drawn_from_the_files_alone(name: str, tmp_path: Path) -> None:
    [file] = figures.draw([name], folder=tmp_path)
    assert file.read_text().count("<path") > 10
    # Without a background, a figure suits light and dark pages.
    assert "fill: #ffffff" not in file.read_text()
    assert (figures.FIGURES / file.name).exists()


def test_the_page_shows_every_figure_with_the_command_of_its_part() -> None:
    page = (figures.FIGURES.parent / "benchmarks.md").read_text()
    shown = re.findall(r"!\[[^]]+\]\(figures/(\w+)\.svg\)\n\n`python -m benchmarks (\w+)`", page)
    assert shown == [(name, part) for name, (part, _) in figures.DRAWINGS.items()]
    assert len(shown) <= 10


def test_only_the_figures_of_the_parts_that_ran_are_drawn(tmp_path: Path) -> None:
    assert figures.draw(of_parts=["picture"], folder=tmp_path) == [
        tmp_path / "recall_against_memory.svg"
    ]
    assert figures.draw(of_parts=[], folder=tmp_path) == []


def test_an_unknown_figure_is_refused() -> None:
    app = typer.Typer()
    app.command()(figures.main)
    refused = CliRunner().invoke(app, ["nothing"])
    assert refused.exit_code == 2
    assert "nothing" in refused.output
