from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tidegate as tg
from tidegate import quality
from tidegate.cli import app, demo_stream
from tidegate.cli.screen import Screen
from tidegate.policies import POLICIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = ["--auctions", "300", "--batches", "3", "--seed", "5"]


class Run(NamedTuple):
    folder: Path
    #: The output of the first run, with --json.
    figures: dict[str, Any]
    progress: str
    #: The output of the second run, into the same folder, with tables.
    again: dict[str, Any]
    shown: str

    def table(self, name: str) -> pa.Table:
        return pq.read_table(self.folder / f"{name}.parquet")


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("demo") / "out"
    first = CliRunner().invoke(app, ["demo", "--out", str(folder), *SIZE, "--json"])
    assert first.exit_code == 0, first.output
    recorded = json.loads((folder / "demo.json").read_text())
    assert recorded.pop("made_by") == "tidegate demo"
    assert json.loads(first.stdout) == recorded
    second = CliRunner().invoke(app, ["demo", "--out", str(folder), *SIZE])
    assert second.exit_code == 0, second.output
    again = json.loads((folder / "demo.json").read_text())
    return Run(folder, recorded, first.stderr, again, second.stdout)


def test_the_exact_result_is_that_of_an_unbounded_join(run: Run) -> None:
    ours = tg.join(run.table("auctions"), run.table("bids"), **demo_stream.JOIN).table
    assert len(ours) == run.figures["settings"]["bids"] == len(run.table("bids"))
    assert quality.symmetric_difference(ours, run.table("exact")) == 0


def test_the_querys_recall_is_that_of_the_rows_it_wrote(run: Run) -> None:
    query, results, exact = run.figures["query"], run.table("results"), run.table("exact")
    assert query["recall"] == quality.recall(results, exact)
    assert 0 < query["recall"] < 1
    assert query["results"] == len(results)
    assert query["exact_results"] == len(exact)
    assert query["wrong"] == 0
    assert quality.is_submultiset(results, exact)


def test_every_batch_is_reported_and_keeps_within_memory(run: Run) -> None:
    query = run.figures["query"]
    batches = query["batches"]
    assert [batch["batch"] for batch in batches] == [0, 1, 2]
    rows = run.figures["settings"]["auctions"] + run.figures["settings"]["bids"]
    assert sum(batch["rows"] for batch in batches) == rows
    assert sum(batch["results"] for batch in batches) == query["results"]
    assert sum(batch["exact_results"] for batch in batches) == query["exact_results"]
    assert 0 < query["most_held"] == max(batch["held"] for batch in batches) <= query["memory"]
    for batch in batches:
        # A result belongs to the batch in which its bid came.
        assert batch["recall"] == batch["results"] / batch["exact_results"]


def test_sweeps_cover_every_policy_and_memory(run: Run) -> None:
    for name, exact_results in (("auctions", len(run.table("exact"))), ("zipf", None)):
        sweep = run.figures["sweeps"][name]
        assert exact_results in (sweep["exact_results"], None)
        points = sweep["points"]
        assert {point["policy"] for point in points} == set(POLICIES)
        assert len(points) == 6 * len(POLICIES)
        for point in points:
            assert 0 <= point["recall"] <= 1
            assert point["recall"] == point["results"] / sweep["exact_results"]
            if point["memory_share"] == 1:
                assert point["recall"] == 1


def test_a_swept_point_can_be_had_again_from_the_written_streams(run: Run) -> None:
    point = next(
        point
        for point in run.figures["sweeps"]["auctions"]["points"]
        if (point["policy"], point["memory_share"]) == ("prob", 0.25)
    )
    result = tg.join(
        run.table("auctions"),
        run.table("bids"),
        memory=point["memory"],
        policy="prob",
        **demo_stream.JOIN,
    )
    assert point["recall"] == quality.recall(result.table, run.table("exact"))


def test_the_same_seed_gives_the_same_answer(run: Run) -> None:
    def without_times(figures: dict[str, Any]) -> dict[str, Any]:
        batches = [
            {key: value for key, value in batch.items() if key != "seconds"}
            for batch in figures["query"]["batches"]
        ]
        kept = {key: value for key, value in figures.items() if key not in ("seconds", "made_by")}
        return kept | {"query": figures["query"] | {"batches": batches}}

    assert without_times(run.again) == without_times(run.figures)


def test_without_a_terminal_there_are_plain_lines(run: Run) -> None:
    for text in (run.progress, run.shown):
        assert re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text) is None
    assert re.findall(r"^batch (\d)/3 ", run.progress, re.MULTILINE) == ["1", "2", "3"]


def test_the_tables_show_what_was_found(run: Run) -> None:
    query = run.figures["query"]
    assert f"{100 * query['recall']:.1f} % of the answer" in run.shown.replace("\n", " ")
    for policy in POLICIES:
        assert len(re.findall(rf"^ *{policy} .* 100\.0 %", run.shown, re.MULTILINE)) == 2
    assert str(run.folder / "report.html") in run.shown.replace("\n", "")


def test_the_page_and_the_plots_are_written(run: Run) -> None:
    from matplotlib.image import imread

    page = (run.folder / "report.html").read_text()
    assert page.count("<img ") == 3
    assert re.findall(r"""(?:src|srcset|href)=["'](?!data:image/png;base64,)""", page) == []
    assert "http" not in page.replace("http-equiv", "")
    for name in ("recall.png", "query.png", "recall-zipf.png"):
        png = (run.folder / name).read_bytes()
        assert imread(io.BytesIO(png), format="png").shape[1] >= 1000
    expected = {"demo.json", "report.html", "recall.png", "query.png", "recall-zipf.png"}
    expected |= {f"{name}.parquet" for name in ("auctions", "bids", "results", "exact")}
    assert {path.name for path in run.folder.iterdir()} == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--auctions", "3"], "--auctions must be a number from 100 to 1,000,000, not 3"),
        (["--batches", "0"], "--batches must be a number from 1 to 1,000, not 0"),
        (["--seed", "-1"], "--seed must be a number from 0 to 4,294,967,295, not -1"),
    ],
)
def test_bad_numbers_are_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "out"), *arguments])
    assert done.exit_code == 2
    assert done.stderr == f"tidegate: {message}\n"
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_other_peoples_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "bids.parquet").write_text("mine")
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "bids.parquet" in done.stderr
    assert "choose another folder with --out" in done.stderr
    assert (tmp_path / "bids.parquet").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["bids.parquet"]


def test_version_and_help_need_neither_spark_nor_plots() -> None:
    program = (
        "import sys\n"
        "from tidegate.cli import app\n"
        "try:\n    app(['{}'])\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "print(*sys.modules)\n"
    )
    for option, expected in (("--version", f"tidegate {tg.__version__}\n"), ("--help", "demo")):
        done = subprocess.run(
            [sys.executable, "-c", program.format(option)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert expected in done.stdout
        loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
        assert "tidegate" in loaded
        assert not loaded & {"pyspark", "py4j", "matplotlib"}


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.say("[bold]as it is[/bold]")
    with screen.step("part", 2) as step:
        step.done("one")
        step.done("two", line=False)
    with screen.waiting("a while"):
        pass
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err == "[bold]as it is[/bold]\npart 1/2  one\na while\n"
