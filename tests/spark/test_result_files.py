"""Results on their way to the step that unpacks them: in files, or in small packed rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidegate.engine.payload import PIECE_BYTES, cut_batch
from tidegate.spark import result_files
from tidegate.spark.result_files import SMALLEST, open_piece

from .test_packing import SCHEMA, rows_of

_tasks = itertools.count()


def pack(batches: Iterable[pa.RecordBatch], task: int | None = None) -> Iterator[bytes]:
    """Pack results, by default those of a new task."""
    return result_files.pack(batches, SCHEMA, next(_tasks) if task is None else task)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be a process of a task whose local directory this is."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},{tmp_path / 'other'}")
    return tmp_path


def opened(packed: list[bytes]) -> list[list[pa.RecordBatch]]:
    return [open_piece(pa.py_buffer(data)) for data in packed]


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("size", [10, 40_000, 2_097_152, 4_194_304])
def test_pieces_are_small_and_complete(
    size: int, local: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not local:
        monkeypatch.delenv("SPARK_LOCAL_DIRS")
    batch = rows_of([size] * max(20_000_000 // size, 3) if size > 10 else [size] * 400_000)
    packed = list(pack(cut_batch(batch)))
    written = list(folder.iterdir())
    assert len(written) == (len(packed) if local else 0)
    lengths = [p.stat().st_size for p in written] if local else [len(data) for data in packed]
    assert max(len(data) for data in packed) < 1_000 or not local
    inside = opened(packed)
    assert not list(folder.iterdir())
    counts = [sum(b.num_rows for b in batches) for batches in inside]
    assert max(lengths) <= PIECE_BYTES or max(counts) == 1
    keys = [b.column("k").to_numpy() for batches in inside for b in batches]
    assert (np.concatenate(keys) == np.arange(batch.num_rows)).all()
    texts = [b.column("s").to_pylist() for batches in inside for b in batches]
    assert {len(text) for part in texts for text in part} == {size}


def test_small_results_need_no_file(folder: Path) -> None:
    """Small record batches share a packed row."""
    [data] = pack([rows_of([10])] * 100)
    assert not list(folder.iterdir())
    assert sum(batch.num_rows for batch in open_piece(pa.py_buffer(data))) == 100
    [_] = pack([rows_of([SMALLEST])])
    assert len(list(folder.iterdir())) == 1


def test_files_take_bounded_space(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that find no room go through Java, until some files were read."""
    monkeypatch.setattr(result_files, "MOST_BYTES", 10 << 20)
    found: list[int] = []
    packed = pack(rows_of([3_000_000]) for _ in range(8))
    waiting: list[bytes] = []
    for data in packed:
        waiting.append(data)
        taken = [path.stat().st_size for path in folder.iterdir()]
        assert sum(taken) <= 10 << 20
        found.append(len(taken))
        if len(waiting) == 4:
            assert all(b.num_rows == 1 for [b] in opened(waiting))
            waiting.clear()
    # Three files fit, and one row was sent; then all were read.
    assert found == [1, 2, 3, 3, 1, 2, 3, 3]
    # A row that is larger than all files may be is sent.
    assert len(next(pack([rows_of([11 << 20])]))) > 11 << 20


def test_files_that_nobody_read_are_deleted_by_the_next_task(folder: Path) -> None:
    """Spark may stop to read, for instance at a limit. Several shards may run in one task."""
    for shard in range(3):
        list(pack([rows_of([3_000_000])], task=10_000))
        assert len(list(folder.iterdir())) == shard + 1
    list(pack([]))
    assert not list(folder.iterdir())


def test_a_full_disk_is_no_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, mode: str) -> None:
        Path(path).touch()
        raise OSError("no space left on device")

    monkeypatch.setattr(pa, "OSFile", full)
    packed = list(pack([rows_of([3_000_000])] * 2))
    assert not list(folder.iterdir())
    assert [b.num_rows for batches in opened(packed) for b in batches] == [1, 1]
