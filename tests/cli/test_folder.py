from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate.cli.folder import OutFolder
from tidegate.errors import TidegateError

NAMES = ("record.json", "a.txt", "b.txt")


def folder(path: Path) -> OutFolder:
    return OutFolder(path, NAMES, record="record.json", made_by="the test")


def content(path: Path) -> dict[str, str]:
    return {entry.name: entry.read_text() for entry in path.iterdir()}


def test_what_the_command_wrote_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    first = folder(tmp_path)
    first.write_record({"run": 1})
    first.write("a.txt", "one")
    again = folder(tmp_path)
    again.write_record({"run": 2})
    again.write("a.txt", b"two")
    again.withdraw()
    found = content(tmp_path)
    assert json.loads(found.pop("record.json")) == {"made_by": "the test", "run": 2}
    assert found == {"mine.txt": "mine", "a.txt": "two"}


@pytest.mark.parametrize("record", [None, "not JSON", "[]", '{"made_by": "another"}'])
def test_other_peoples_files_stay(tmp_path: Path, record: str | None) -> None:
    (tmp_path / "b.txt").write_text("mine")
    if record is not None:
        (tmp_path / "record.json").write_text(record)
    before = content(tmp_path)
    with pytest.raises(TidegateError, match="was not written by the test; choose another folder"):
        folder(tmp_path)
    assert content(tmp_path) == before


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail() -> None:
        with folder(tmp_path).replacing("a.txt") as draft:
            draft.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert content(tmp_path) == {}


def test_an_empty_folder_is_only_removed_if_it_is_new(tmp_path: Path) -> None:
    folder(tmp_path / "new").withdraw()
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    folder(tmp_path / "old").withdraw()
    assert (tmp_path / "old").exists()
    kept = folder(tmp_path / "kept")
    kept.write("a.txt", "one")
    kept.withdraw()
    assert content(tmp_path / "kept") == {"a.txt": "one"}


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TidegateError, match='must name a folder, and ".*file" is a file'):
        folder(tmp_path / "file")
    with pytest.raises(TidegateError, match='cannot write to ".*below"'):
        folder(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"
