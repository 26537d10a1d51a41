"""The archive: whole files, one owner, failures of the file system, and compaction."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import tidegate as tg
from tidegate.engine import archive as archives
from tidegate.engine.archive import Archive, archive, compact, files_of, read


def lines(*uids: int) -> pa.Table:
    return pa.table({"uid": pa.array(uids, pa.int64())})


def on(kind: type[fs.SubTreeFileSystem], uri: str) -> tuple[fs.FileSystem, str]:
    return kind(str(Path(uri).parent), fs.LocalFileSystem()), Path(uri).name


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_archive_is_written_whole_and_belongs_to_one_query(tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "shed"
    first = archive(folder, {"windows": 5})
    assert files(folder) == []
    for each in (lines(1, 2, 3), lines(4)):
        first.write(each, shard=7)
    [file] = folder.iterdir()
    assert pq.read_table(file)["uid"].to_pylist() == [4]
    # tidegate 0.1 stated no version.
    stated = json.loads(pq.read_schema(file).metadata[b"made_by"])
    assert stated.pop("version") == 1
    pq.write_table(lines(5).replace_schema_metadata({"made_by": json.dumps(stated)}), file)
    first.write(lines(6, 7, 8), shard=7)
    assert len(pq.read_table(file)) == 3
    with pytest.raises(tg.TidegateError, match="has the departures of another query already"):
        archive(folder, {"windows": 6}).write(lines(1), shard=7)
    file.write_bytes(b"PAR1 and no more")
    with pytest.raises(
        tg.TidegateError, match=r"parquet' is no file of an archive, or was damaged"
    ):
        first.write(lines(1), shard=7)
    with pytest.raises(tg.TidegateError, match="or was damaged: .*parquet"):
        read(folder)


def test_a_later_attempt_replaces_or_removes_its_file(tmp_path: Path) -> None:
    to = archive(tmp_path.as_uri(), {})
    to.write(lines(), shard=0)
    to.write(lines(1), shard=0, batch=3)
    to.write(lines(2, 3), shard=0, batch=3)
    assert read(tmp_path)["uid"].to_pylist() == [2, 3]
    to.write(lines(), shard=0, batch=3)
    assert files(tmp_path) == ["000000000-00000.parquet"]


@pytest.mark.parametrize("wrong", [None, " ", 5, "nosuch://bucket/shed", "\0", "x" * 5_000])
def test_a_folder_that_cannot_be_written_is_refused(wrong: Any) -> None:
    with pytest.raises(tg.TidegateError, match="archive|cannot be written"):
        archive(wrong, {})


def test_a_folder_under_a_file_is_refused_before_any_row_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    rows = {"k": [1], "t": [1]}
    join: dict[str, Any] = {"on": "k", "time": "t", "within": 5}
    with pytest.raises(tg.TidegateError, match="shed_to='.*' cannot be written"):
        tg.join(rows, rows, **join, shed_to=str(tmp_path / "file" / "shed"))


class Full(fs.SubTreeFileSystem):  # type: ignore[misc]
    """A folder of a disk without room."""

    def open_output_stream(self, *_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_last_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = archive(tmp_path, {})
    to.write(lines(1), shard=0)
    monkeypatch.setattr(archives, "opened", lambda uri: on(Full, uri))
    with pytest.raises(tg.TidegateError, match=r"No space left(.|\n)*Nothing is lost"):
        to.write(lines(2), shard=0)
    with pytest.raises(tg.TidegateError, match="cannot be written"):
        archive(tmp_path, {})
    monkeypatch.undo()
    assert (files(tmp_path), read(tmp_path)["uid"].to_pylist()) == (
        ["000000000-00000.parquet"],
        [1],
    )


def test_an_archive_lives_on_any_file_system_of_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fs.FileSystem.from_uri("mock://host/shed")[0]
    monkeypatch.setattr(archives, "opened", lambda uri: (memory, "shed"))
    to = archive("mock://host/shed", {"a": 1})
    for batch in range(4):
        to.write(lines(batch), shard=0, batch=batch)
    assert [c.files_after for c in compact("mock://host/shed")] == [4, 3]
    assert sorted(read("mock://host/shed")["uid"].to_pylist()) == [0, 1, 2, 3]


def filled(folder: Path, batches: int = 6) -> Archive:
    to = archive(folder, {"windows": 5})
    for batch in range(batches):
        for shard in range(2):
            to.write(lines(2 * batch + shard), shard, batch)
    return to


def test_compaction_keeps_every_line_and_the_ends(tmp_path: Path) -> None:
    to = filled(tmp_path)
    assert list(compact(tmp_path))[-1] == (12, 5, 8)
    assert files(tmp_path) == [
        "000000000-00000.parquet",
        "000000000-00001.parquet",
        "000000005-00000.parquet",
        "000000005-00001.parquet",
        "merged-000000001-00000-to-000000004-00001.parquet",
    ]
    assert sorted(read(tmp_path)["uid"].to_pylist()) == list(range(12))
    # The last batch can still be run again, and a folder can be compacted again.
    to.write(lines(99), 0, 5)
    to.write(lines(100), 0, 6)
    assert [tuple(c) for c in compact(tmp_path)] == [(6, 6, 0), (6, 5, 2)]
    assert sorted(read(tmp_path)["uid"].to_pylist()) == [*range(10), 11, 99, 100]
    assert [tuple(c) for c in compact(tmp_path)] == [(5, 5, 0)]


def test_small_targets_give_several_files(tmp_path: Path) -> None:
    filled(tmp_path)
    size = files_of(tmp_path).current[0].size
    assert list(compact(tmp_path, most=3 * size))[-1].files_after == 7
    assert sorted(read(tmp_path)["uid"].to_pylist()) == list(range(12))


@pytest.mark.parametrize("deleted", [0, 1, 5])
def test_an_interrupted_compaction_neither_loses_nor_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    filled(tmp_path)
    left = [deleted]

    class Stopping(fs.SubTreeFileSystem):  # type: ignore[misc]
        def delete_file(self, path: str) -> None:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            super().delete_file(path)

    monkeypatch.setattr(archives, "opened", lambda uri: on(Stopping, uri))
    with pytest.raises(KeyboardInterrupt):
        list(compact(tmp_path))
    monkeypatch.undo()
    assert sorted(read(tmp_path)["uid"].to_pylist()) == list(range(12))
    assert list(compact(tmp_path))[-1].files_after == 5
    assert sorted(read(tmp_path)["uid"].to_pylist()) == list(range(12))
    assert len(files(tmp_path)) == 5
