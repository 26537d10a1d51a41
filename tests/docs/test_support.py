"""The table of what runs where is that of the tests that prove it.

A test says what it shows with a marker: `@pytest.mark.proves(join="classic stream, local")`. With
`refused` after a place, it shows the error instead. `python tests/docs/test_support.py` writes the
table anew.
"""

from __future__ import annotations

import ast
import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidegate as tg

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "reference" / "support.csv"
PLACES = ("classic stream", "classic batch", "Connect stream", "Connect batch", "local")
CALLS = (
    "join",
    "star_join",
    "constrained_join",
    "cql",
    "repair",
    "sample_join",
    "estimate",
    "truncated_join",
    "optimal",
    "optimal_star",
    "MemoryPool",
    "learn",
    "profile",
)


def proofs() -> Iterator[tuple[str, str, str, str]]:
    """Yield call, place, answer and test of every marker, in the order of files."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test in ast.parse(path.read_text()).body:
            if not isinstance(test, ast.FunctionDef):
                continue
            for mark in test.decorator_list:
                if not (isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith(".proves")):
                    continue
                where = f"{path.relative_to(ROOT)}::{test.name}"
                for shown in mark.keywords:
                    for text in ast.literal_eval(shown.value).split(", "):
                        place = text.removesuffix(" refused")
                        answer = "yes" if place == text else "refused"
                        assert shown.arg in CALLS, f"{where}: there is no call {shown.arg}"
                        assert place in PLACES, f"{where}: {place} is none of {PLACES}"
                        yield shown.arg, place, answer, where


def table() -> str:
    """Return the table as CSV, one row for each call and place."""
    found = {(call, place): (answer, test) for call, place, answer, test in proofs()}
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["call", "place", "answer", "test"])
    for call in CALLS:
        for place in PLACES:
            writer.writerow([call, place, *found.get((call, place), ("untested", ""))])
    return lines.getvalue()


def test_the_table_is_that_of_the_tests() -> None:
    assert TABLE.read_text() == table(), "run python tests/docs/test_support.py"


def test_every_call_is_in_the_table() -> None:
    calls = {name for name, home in tg._HOMES.items() if home.startswith("api.")}
    assert calls - {"Result", "Optimal", "Learned", "Profile"} == set(CALLS)


def test_no_two_tests_disagree() -> None:
    answers: dict[tuple[str, str], set[str]] = {}
    for call, place, answer, _ in proofs():
        answers.setdefault((call, place), set()).add(answer)
    assert [cell for cell, given in answers.items() if len(given) > 1] == []


@pytest.mark.proves(
    optimal_star="classic stream refused, classic batch refused",
    truncated_join="classic stream refused",
)
def test_what_spark_frames_are_refused(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    batch = spark.range(3).withColumnRenamed("id", "value")
    for frame in (stream, batch):
        with pytest.raises(tg.TidegateError, match="is found in this process"):
            tg.optimal_star([frame, frame], frame, on="value", time="value", within=5)
    with pytest.raises(tg.TidegateError, match="call it on the batches of a stream"):
        tg.truncated_join(stream, stream, on="value", keep=5)


if __name__ == "__main__":
    TABLE.write_text(table())
    sys.stdout.write(f"{TABLE} is written\n")
