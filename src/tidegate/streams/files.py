"""Streams in Parquet files: read in bounded memory, or written for Spark to read in order."""

from __future__ import annotations

import itertools
import os
import time as clock
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.errors import TidegateError
from tidegate.settings.values import quoted
from tidegate.streams._checks import whole

_SECOND = 1_000_000_000
_MOST_FILES = 100_000


def read_parquet(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = 65_536,
) -> Iterator[pa.RecordBatch]:
    """Read a Parquet file, or the Parquet files of a folder in name order, batch by batch.

    Only one record batch is held at a time, however large the files. The call checks path and
    columns at once, before the first batch is read. Every file must have the schema of the first.
    As in Spark, names that begin with ``.`` or ``_`` are skipped.

    Parameters
    ----------
    path
        A file, or a folder with ``.parquet`` files directly in it.
    columns
        The columns to read, in this order; all by default.
    batch_rows
        The maximal number of rows in a record batch.
    """
    batch_rows = whole("batch_rows", batch_rows, least=1)
    if isinstance(columns, str):
        raise TidegateError(f'columns must be a list of names such as ["{columns}"]')
    if columns is not None and not (
        isinstance(columns, tuple | list) and all(isinstance(name, str) for name in columns)
    ):
        raise TidegateError(
            f'columns must be a list of names such as ["key", "time"], not {quoted(columns)}'
        )
    files = _parquet_files(_path(path))
    with _opened(files[0]) as first:
        schema = first.schema_arrow
    missing = [name for name in columns or () if name not in schema.names]
    if missing:
        raise TidegateError(
            f"{_quoted(missing)} not found in {_quoted([files[0]])}; "
            f"its columns are {_quoted(schema.names)}"
        )
    names = schema.names if columns is None else list(columns)
    return _batches(files, schema, names, batch_rows)


def cut_by_time(
    table: pa.Table,
    *,
    time: str,
    batches: int,
    span: tuple[Any, Any] | None = None,
) -> list[pa.Table]:
    """Cut a table into ``batches`` tables that cover equal spans of time, each in time order.

    Parameters
    ----------
    table
        The stream, in any order; rows of equal time keep their order.
    time
        Name of the time column: whole or real numbers, timestamps or dates.
    batches
        How many tables to make. Some may be empty, so that the i-th tables of several streams that
        are cut with the same ``span`` belong together.
    span
        First and last time of the whole, by default the column's own. Rows outside it go to the
        first or the last table. Rows with a NaN time go to the last table, rows without a time to
        the first.
    """
    batches = whole("batches", batches, least=1)
    if not isinstance(table, pa.Table):
        raise TidegateError(f"table must be a pyarrow.Table, not {type(table).__name__}")
    if not isinstance(time, str) or table.column_names.count(time) != 1:
        given = f'"{time}"' if isinstance(time, str) else quoted(time)
        raise TidegateError(
            f"time must name one column of the table, not {given}; "
            f"its columns are {_quoted(table.column_names)}"
        )
    kind = table.schema.field(time).type
    values = _as_numbers(time, table.column(time))
    filled = values.drop_null().to_numpy()
    low, high = _extent(filled, kind, span)

    order = np.argsort(filled, kind="stable")
    with_time = np.flatnonzero(values.is_valid().to_numpy())
    without_time = np.flatnonzero(values.is_null().to_numpy())
    rows = np.concatenate([without_time, with_time[order]])
    edges = _edges(low, high, batches)
    cuts = len(without_time) + np.searchsorted(filled[order], edges, side="left")
    bounds = [0, *cuts.tolist(), len(rows)]
    ordered = _in_order(table, rows)
    return [ordered.slice(begin, end - begin) for begin, end in itertools.pairwise(bounds)]


def write_parquet_batches(
    table: pa.Table,
    folder: str | os.PathLike[str],
    *,
    time: str,
    batches: int,
    span: tuple[Any, Any] | None = None,
    prefix: str = "part",
) -> list[Path]:
    """Write a table as files that a Spark file source reads in order of time; return their paths.

    :func:`cut_by_time` cuts the table. Spark orders files by modification time, so the files get
    modification times one second apart, later than any file already in the folder; the names sort
    in the same order. A file appears by a rename, so a running query never sees an incomplete one.

    Parameters
    ----------
    table, time, batches, span
        As for :func:`cut_by_time`. Empty spans give files without rows, so that two streams
        stay in step with ``maxFilesPerTrigger``.
    folder
        Where to write; created if it does not exist.
    prefix
        How the names begin: ``part-00000.parquet`` and so on. None of them may exist yet.
    """
    pieces = cut_by_time(table, time=time, batches=batches, span=span)
    if len(pieces) > _MOST_FILES:
        raise TidegateError(
            f"batches must be at most {_MOST_FILES:,} for files, not {quoted(batches)}"
        )
    if not prefix or prefix[0] in "._" or Path(prefix).name != prefix:
        raise TidegateError(
            f'prefix must be the beginning of a file name, without "." or "_" in front '
            f'(Spark skips such files), not "{prefix}"'
        )
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TidegateError(f'folder "{target}" cannot be made ({error.strerror})') from error
    paths = [target / f"{prefix}-{index:05d}.parquet" for index in range(len(pieces))]
    present = [path for path in paths if path.exists()]
    if present:
        raise TidegateError(
            f'"{present[0]}" exists already; choose an empty folder or another prefix'
        )
    newest = max((entry.stat().st_mtime_ns for entry in os.scandir(target)), default=0)
    stamp = max(clock.time_ns() - len(paths) * _SECOND, newest + _SECOND)
    for index, (path, piece) in enumerate(zip(paths, pieces, strict=True)):
        hidden = path.with_name(f".{path.name}.writing")
        pq.write_table(piece, hidden)
        os.utime(hidden, ns=(stamp + index * _SECOND,) * 2)
        os.replace(hidden, path)
    return paths


def _path(given: Any) -> Path:
    """Return a path, or raise an error if the value cannot be one."""
    try:
        path = Path(given)
        path.exists()
    except (TypeError, ValueError, OSError) as error:
        raise TidegateError(
            f"path must be that of a file or a folder, not {quoted(given)} ({error})"
        ) from None
    return path


def _parquet_files(path: Path) -> list[Path]:
    """Return the files to read, in name order."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise TidegateError(f'path must be a Parquet file or a folder of them; "{path}" is not')
    found = sorted(
        entry
        for entry in path.iterdir()
        if entry.suffix == ".parquet" and entry.name[0] not in "._" and entry.is_file()
    )
    if not found:
        raise TidegateError(
            f'folder "{path}" holds no ".parquet" file directly; name the folder that does'
        )
    return found


def _opened(path: Path) -> pq.ParquetFile:
    """Open a file, or raise an error if it is not Parquet."""
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise TidegateError(f'"{path}" cannot be read as Parquet: {error}') from error


def _batches(
    files: list[Path], schema: pa.Schema, names: list[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of the files one after the other."""
    for path in files:
        with _opened(path) as file:
            if not file.schema_arrow.equals(schema):
                raise TidegateError(
                    f'"{path}" has other columns or types than "{files[0]}"; '
                    f"read files of one schema at a time"
                )
            for batch in file.iter_batches(batch_size=batch_rows, columns=names):
                yield batch.select(names)


def _as_numbers(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a time column as int64 or float64."""
    kind = column.type
    if pa.types.is_uint64(kind):
        column = _checked_cast(name, column, pa.int64())
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date64(kind):
        return column.cast(pa.int64())
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()).cast(pa.int64())
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    raise TidegateError(
        f'time column "{name}" must hold numbers, timestamps or dates, not {kind}; cast it first'
    )


def _checked_cast(name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a column, or raise an error if a value is too large."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise TidegateError(f'time column "{name}" does not fit into {kind}: {error}') from error


def _in_order(table: pa.Table, rows: np.ndarray[Any, Any]) -> pa.Table:
    """Return the table's rows in the given order, without a copy if they are already in it."""
    if (np.diff(rows) > 0).all():
        return table
    try:
        return table.take(pa.array(rows))
    except pa.ArrowNotImplementedError as error:
        raise TidegateError(
            f"the table cannot be put in order of time, sort it or cast the column: {error}"
        ) from error


def _extent(
    values: np.ndarray[Any, Any], kind: pa.DataType, span: tuple[Any, Any] | None
) -> tuple[Any, Any]:
    """Return the first and the last time as plain numbers, or None for both if there are none."""
    if span is None:
        finite = values[np.isfinite(values)]
        return (finite.min().item(), finite.max().item()) if len(finite) else (None, None)
    try:
        first, last = (pa.chunked_array([pa.array([each], type=kind)]) for each in span)
        if first.null_count or last.null_count:
            raise TypeError("null")
    except Exception as error:  # a value may be of any class, and may fail in any way
        raise TidegateError(
            f"span must be a pair of times of type {kind}, not {quoted(span)}"
        ) from error
    low, high = _as_numbers("span", first)[0].as_py(), _as_numbers("span", last)[0].as_py()
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise TidegateError(f"span must be a finite pair (first, last), not {quoted(span)}")
    return low, high


def _edges(low: Any, high: Any, batches: int) -> list[Any]:
    """Return the times at which the second and every later span begins."""
    if low is None:
        return [np.inf] * (batches - 1)
    if isinstance(low, int):
        width = high - low + 1
        return [low + -(-width * index // batches) for index in range(1, batches)]
    return [low + (high - low) * (index / batches) for index in range(1, batches)]


def _quoted(names: Sequence[Any]) -> str:
    return ", ".join(f'"{name}"' for name in names)
