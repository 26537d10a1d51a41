"""`tidegate archive compact` and `tidegate repair`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tidegate as tg
from tidegate.cli import app
from tidegate.engine.archive import archive

JOIN: dict[str, Any] = {"on": {"k": "key"}, "time": ("t", "at"), "within": (9, 14)}


def run(*args: Any) -> Any:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with two streams and the archive of their join."""
    rng = np.random.default_rng(1)
    left = pa.table({"k": rng.integers(0, 5, 60), "t": np.sort(rng.integers(0, 90, 60))})
    right = pa.table({"key": rng.integers(0, 5, 60), "at": np.sort(rng.integers(0, 90, 60))})
    pq.write_table(left, tmp_path / "left.parquet")
    pa.csv.write_csv(right, tmp_path / "right.csv")
    budget: dict[str, Any] = {"memory": 6, "shed_when": "before-arrival", "count_from": 5}
    found = tg.join(left, right, **JOIN, **budget, shed_to=str(tmp_path / "shed"))
    pq.write_table(found.table, tmp_path / "found.parquet")
    exact = tg.join(left, right, **JOIN, count_from=5).table
    pq.write_table(exact, tmp_path / "exact.parquet")
    return tmp_path


def rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def test_repair_goes_on_where_it_was_interrupted(home: Path) -> None:
    paths = (home / "shed", "--left", home / "left.parquet", "--right", home / "right.csv")
    command = ("repair", *paths, "--out", home / "out", "--slices", 4, "--json")
    first = json.loads(run(*command).stdout)
    assert (first["slices"], first["slices_kept"]) == (4, 0)
    parts = sorted((home / "out").glob("part-*.parquet"))
    assert len(parts) == 4
    online, exact = (pq.read_table(home / f"{name}.parquet") for name in ("found", "exact"))
    missing = pq.read_table([str(part) for part in parts])
    assert 0 < online.num_rows < exact.num_rows
    assert rows(pa.concat_tables([online, missing])) == rows(exact)
    parts[2].unlink()
    again = json.loads(run(*command).stdout)
    assert again == first | {"slices_kept": 3}
    assert rows(pq.read_table([str(part) for part in parts])) == rows(missing)
    other = run(*command[:-2], 5)
    assert other.exit_code == 2
    assert "has the results of another repair" in other.stderr


def test_repair_refuses_what_it_cannot_read(home: Path) -> None:
    for left, words in (
        (home / "nowhere.parquet", "cannot be read as Parquet, CSV or Arrow files"),
        (home / "found.parquet", "was written with other settings"),
    ):
        paths = ("--left", left, "--right", home / "right.csv", "--out", home / "out")
        result = run("repair", home / "shed", *paths)
        assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    assert not (home / "out").exists()


def test_a_constrained_join_is_repaired_in_python(home: Path) -> None:
    streams = {"c": {"k": [1, 2], "t": [0, 1]}, "b": {"k": [2, 9], "t": [2, 30]}}
    tg.constrained_join(
        streams,
        joins="c.k -> b.k",
        time="t",
        constraints=tg.RIDS("c -> b", within=5),
        shed_to=str(home / "many"),
    )
    paths = ("--left", home / "left.parquet", "--right", home / "right.csv")
    result = run("repair", home / "many", *paths, "--out", home / "out")
    assert (result.exit_code, "call tidegate.repair in Python" in result.stderr) == (2, True)


def test_compact(tmp_path: Path) -> None:
    to = archive(tmp_path, {})
    for batch in range(5):
        to.write(pa.table({"uid": [batch]}), 0, batch)
    done = run("archive", "compact", tmp_path, "--json")
    assert json.loads(done.stdout) == {"files_before": 5, "files_after": 3, "rows_merged": 3}
    assert "3 files, 0 lines merged" in run("archive", "compact", tmp_path).stdout
    wrong = run("archive", "compact", tmp_path / "nowhere")
    assert (wrong.exit_code, "is no archive of a join" in wrong.stderr) == (2, True)
