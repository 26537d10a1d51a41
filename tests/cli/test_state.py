"""`tidegate state`, where it ends before Spark starts; tests/spark shows what it prints."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from tidegate.cli import app


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    for arguments, words in (
        ([str(tmp_path)], "has no folder named state"),
        ([str(tmp_path / "none")], "give the checkpointLocation"),
        ([str(tmp_path), "--rows", "rows.csv"], '".parquet" file, not "rows.csv"'),
    ):
        shown = CliRunner().invoke(app, ["state", *arguments])
        assert shown.exit_code == 2
        assert words in " ".join(shown.output.split())
