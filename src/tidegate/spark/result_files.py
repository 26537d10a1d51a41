"""Carry results past Java, in files of Spark's local directory.

The stateful operator and the step that unpacks its results run in the same task, so on one machine,
and nobody else reads what the operator returns. Results that go through Java are copied many times
on the way, and fill its heap. So the operator writes large pieces to files and returns their names.
The unpacking step deletes a file when it opens it.

The files of a task take a bounded space. Results beyond it, small ones, and those of a machine that
has no room go through Java.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from tidegate.engine.payload import PIECE_BYTES
from tidegate.spark.packing import decode, encode

#: Smaller pieces are not worth a file.
SMALLEST = 64 << 10
#: The files of one task that were not yet read take at most this much.
MOST_BYTES = 128 << 20

#: What a reference begins with. An Arrow IPC stream begins with other bytes.
_MARK = b"file:"
_LOCAL_DIRS = "SPARK_LOCAL_DIRS"


def pack(batches: Iterable[pa.RecordBatch], schema: pa.Schema, task: int | None) -> Iterator[bytes]:
    """Pack results of a task into binaries: streams of at most 4 MB, or references to files."""
    _files.begin(task)
    for piece, size in _pieces(batches, schema):
        reference = _files.write(piece, schema, size) if size >= SMALLEST else None
        if reference is not None:
            yield reference
            continue
        sink = pa.BufferOutputStream()
        encode(piece, schema, sink)
        yield sink.getvalue().to_pybytes()


def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn packed results back into rows: the `mapInArrow` function after the operator."""
    for batch in batches:
        for data in batch.column("data"):
            if len(data.as_buffer()):
                yield from open_piece(data.as_buffer())


def open_piece(data: pa.Buffer) -> list[pa.RecordBatch]:
    """Return the record batches of one binary, without copying their data."""
    if data[: len(_MARK)].to_pybytes() != _MARK:
        return decode(data)
    path = data[len(_MARK) :].to_pybytes().decode()
    with pa.memory_map(path) as file:
        os.unlink(path)
        return decode(file)


def _pieces(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> Iterator[tuple[list[pa.RecordBatch], int]]:
    """Group record batches into streams of at most 4 MB, each with its size."""
    sink = pa.BufferOutputStream()
    encode([], schema, sink)
    empty = len(sink.getvalue())
    held: list[pa.RecordBatch] = []
    size = empty
    for batch in batches:
        if batch.num_rows == 0:
            continue
        more = pa.ipc.get_record_batch_size(batch)
        if held and size + more > PIECE_BYTES:
            yield held, size
            held, size = [], empty
        held.append(batch)
        size += more
    if held:
        yield held, size


class _Files:
    """The files that the present task of this process has written."""

    def __init__(self) -> None:
        self._task: int | None = None
        self._folder: Path | None = None
        #: Files that were not known to be read, oldest first, and their sizes.
        self._unread: deque[tuple[Path, int]] = deque()
        self._taken = 0

    def begin(self, task: int | None) -> None:
        """Begin a task, unless it is the present one. Nobody wants files of an earlier task."""
        if task == self._task:
            return
        for path, _ in self._unread:
            path.unlink(missing_ok=True)
        self._unread.clear()
        self._taken = 0
        self._task = task
        folder = os.environ.get(_LOCAL_DIRS, "").split(",")[0]
        self._folder = Path(folder) if folder and Path(folder).is_dir() else None

    def write(self, batches: list[pa.RecordBatch], schema: pa.Schema, size: int) -> bytes | None:
        """Write a file; return the reference to it, or None if there is no room."""
        if self._folder is None or not self._has_room(size):
            return None
        path = self._folder / f"tidegate-{uuid.uuid4().hex}"
        try:
            with pa.OSFile(str(path), "wb") as file:
                encode(batches, schema, file)
        except OSError:
            self._folder = None
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        self._unread.append((path, size))
        self._taken += size
        return _MARK + str(path).encode()

    def _has_room(self, size: int) -> bool:
        while self._unread and self._taken + size > MOST_BYTES:
            path, freed = self._unread[0]
            if path.exists():
                return False
            self._unread.popleft()
            self._taken -= freed
        return self._taken + size <= MOST_BYTES


_files = _Files()
