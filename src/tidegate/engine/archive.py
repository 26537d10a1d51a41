"""Archive the rows that joins shed, as Parquet: one file per batch and shard.

A batch that is run again writes its files again, whole and under the same names, so the archive
never contains a shed row twice. Each line names its query and the settings of that query, so that
one query's archive cannot be mistaken for another's. `tidegate.repair` reads it.

`compact` merges small files. A merged file lists the files that it replaces, so that readers skip
those until they are deleted: an interruption at any point loses nothing and doubles nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tidegate.engine.state_codec import check_version
from tidegate.errors import TidegateError, shortened
from tidegate.settings.checks import check_same
from tidegate.settings.values import quoted

#: The name under which an archive stores the settings it was written with.
MADE_BY = "made_by"
#: The version of the format of an archive; archives that carry none have version 0.
ARCHIVE_VERSION = 1
#: The metadata of a merged file with the names of the files that it replaces.
_REPLACES = b"replaces"
_FILE = re.compile(r"(\d+)-(\d+)\.parquet")
_MERGED = "merged-"
#: Errors of file systems; an address that cannot be one is a `ValueError`.
_FAILURES = (pa.ArrowException, OSError, ValueError)


def archive_label(settings: dict[str, Any], query: str | None = None) -> str:
    """Return what an archive says of its origin: the format, the settings and the query."""
    named = {} if query is None else {"query": query}
    return json.dumps({"version": ARCHIVE_VERSION, **named, "settings": settings})


def origin_of(made_by: Any, where: str = "shed") -> tuple[str | None, dict[str, Any]]:
    """Return the query and the settings that wrote an archive, whatever the archive's version."""
    try:
        made = json.loads(made_by)
        keys, version = {**made["settings"]}, made.get("version", 0)
    except (TypeError, ValueError, KeyError, RecursionError):
        raise TidegateError(
            f"{where} must say which join wrote it, and says {quoted(made_by)}: it was changed, or "
            "is not what a join with shed_to or keep_shed gave; give repair what such a join gave"
        ) from None
    check_version(version, ARCHIVE_VERSION, where, "run the join again without the archive")
    return made.get("query"), keys


def check_archive(made_by: Any, now: dict[str, Any], where: str = "shed") -> None:
    """Raise an error if an archive does not state its settings, or if they differ."""
    _, written = origin_of(made_by, where)
    check_same(written, now, "archive", "Give repair the settings of the join that wrote it.")


def one_origin(labels: Iterable[Any], folder: Any) -> None:
    """Refuse an archive with the lines of several queries.

    After an upgrade of tidegate, one query's lines carry several versions of the format.
    """
    where = quoted(str(folder))
    origins = {json.dumps(origin_of(made, where), sort_keys=True) for made in labels}
    if len(origins) > 1:
        raise TidegateError(
            f"{where} has departures of {len(origins)} queries; give each query a folder of its own"
        )


class Files(NamedTuple):
    """The files of an archive: those with its lines, and those that a merged file replaces."""

    system: fs.FileSystem
    folder: str
    current: list[fs.FileInfo]
    replaced: list[str]


@dataclass(frozen=True)
class Archive:
    """A folder, and the settings that its lines depend on."""

    folder: str
    settings: str

    def write(self, shed: pa.Table, shard: int, batch: int = 0, query: str | None = None) -> None:
        """Write the rows shed in a batch and shard. Replace the file of an earlier attempt."""
        system, folder = opened(self.folder)
        path = f"{folder}/{batch:09d}-{shard:05d}.parquet"
        with _explained(self.folder):
            exists = system.get_file_info(path).type != fs.FileType.NotFound
            if batch > 0 and len(shed) == 0:
                if exists:
                    system.delete_file(path)
                return
        made_by = archive_label(json.loads(self.settings), query)
        # The first batch always has a file: it identifies the folder as an archive, and its owner.
        if exists and batch == 0:
            self._check_owner(system, path, made_by)
        lines = shed.append_column(MADE_BY, pa.repeat(made_by, len(shed)))
        with _explained(self.folder):
            system.create_dir(folder, recursive=True)
            with _replacing(system, path, f"{folder}/_{batch}-{shard}-{os.getpid()}") as sink:
                pq.write_table(lines.replace_schema_metadata({MADE_BY: made_by}), sink)

    def _check_owner(self, system: fs.FileSystem, path: str, made_by: str) -> None:
        owner = _metadata(system, path).get(MADE_BY.encode())
        if owner is None or origin_of(owner, quoted(path)) != origin_of(made_by):
            raise TidegateError(
                f"{quoted(self.folder)} has the departures of another query already; give "
                "shed_to a folder of its own, or empty this one"
            )


def archive(folder: Any, settings: dict[str, Any], schemas: Iterable[pa.Schema] = ()) -> Archive:
    """Return an archive to write rows of these schemas to, or refuse what cannot be written."""
    uri = uri_of(folder)
    for field in (field for schema in schemas for field in schema):
        try:
            pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
        except _FAILURES as error:
            raise TidegateError(
                f'shed_to stores rows as Parquet, which cannot hold the column "{field.name}" of '
                f"type {field.type} ({_said(error)}): cast the column, or leave it out"
            ) from None
    try:
        system, path = opened(uri)
        probe = f"{path}/_{os.getpid()}-can-be-written"
        system.create_dir(path, recursive=True)
        with system.open_output_stream(probe) as sink:
            sink.write(b"x")
        system.delete_file(probe)
    except _FAILURES as error:
        raise TidegateError(
            f"shed_to={quoted(uri)} cannot be written ({_said(error)}); give a folder that this "
            "process and the workers can write"
        ) from None
    return Archive(uri, json.dumps(settings, sort_keys=True))


def _said(error: BaseException) -> str:
    return shortened(str(error), 300)


@contextmanager
def _explained(folder: str) -> Iterator[None]:
    """Turn errors of a file system into ones that say what to do."""
    try:
        yield
    except _FAILURES as error:
        raise TidegateError(
            f"the archive {quoted(folder)} cannot be written ({_said(error)}). Nothing is lost: "
            "the batch was not committed. Make room or restore access, and start the query again "
            "from its checkpoint"
        ) from error


@contextmanager
def _replacing(system: fs.FileSystem, path: str, draft: str) -> Iterator[pa.NativeFile]:
    """Yield a stream to a draft, which becomes the file if no error occurs."""
    try:
        with system.open_output_stream(draft) as sink:
            yield sink
        system.move(draft, path)
    except BaseException:
        with suppress(*_FAILURES):
            system.delete_file(draft)
        raise


def _metadata(system: fs.FileSystem, path: str) -> dict[bytes, bytes]:
    try:
        with system.open_input_file(path) as file:
            return dict(pq.read_schema(file).metadata or {})
    except _FAILURES as error:
        raise TidegateError(
            f"{quoted(path)} is no file of an archive, or was damaged ({_said(error)}); give "
            "shed_to a folder of its own, or remove the file"
        ) from None


def files_of(folder: Any) -> Files:
    """List the files of an archive."""
    uri = uri_of(folder)
    try:
        system, path = opened(uri)
        found = system.get_file_info(fs.FileSelector(path, allow_not_found=False))
    except _FAILURES as error:
        raise TidegateError(
            f"{quoted(folder)} is no archive of a join with shed_to ({_said(error)})"
        ) from None
    found = [info for info in found if info.type == fs.FileType.File]
    found = [f for f in found if f.extension == "parquet" and f.base_name[0] not in "._"]
    if not found:
        raise TidegateError(
            f"{quoted(folder)} is no archive of a join with shed_to: it has no files"
        )
    merged = [info for info in found if info.base_name.startswith(_MERGED)]
    replaced: set[str] = set()
    for info in merged:
        replaced |= set(json.loads(_metadata(system, info.path).get(_REPLACES, b"[]")))
    current = [info for info in found if info.base_name not in replaced]
    gone = [info.path for info in found if info.base_name in replaced]
    return Files(system, path, sorted(current, key=lambda info: info.base_name), gone)


def read(folder: Any) -> pa.Table:
    """Read an archive whole; its metadata has a label. Refuse it if several queries wrote it."""
    files = files_of(folder)
    parts, labels = [], set()
    for info in files.current:
        try:
            with files.system.open_input_file(info.path) as file:
                part = pq.read_table(file)
        except _FAILURES as error:
            raise TidegateError(
                f"{quoted(folder)} has a file that is no part of an archive, or was damaged: "
                f"{info.path} ({_said(error)}); remove it, and repair finds what the others have"
            ) from None
        labels.add((part.schema.metadata or {}).get(MADE_BY.encode(), b""))
        parts.append(part)
    one_origin(labels, folder)
    lines = pa.concat_tables(parts)
    if MADE_BY in lines.column_names:
        lines = lines.drop_columns([MADE_BY])
    return lines.replace_schema_metadata({MADE_BY: labels.pop()})


class Compacted(NamedTuple):
    """The outcome of a compaction."""

    files_before: int
    files_after: int
    rows: int


def compact(folder: Any, most: int = 128 << 20) -> Iterator[Compacted]:
    """Merge the small files of an archive into files of at most about `most` bytes.

    Yield the state after each merged file. The files of the first batch, which name the owner,
    and of the last batch, which may be run again, stay as they are.
    """
    files = files_of(folder)
    before = after = len(files.current)
    for path in files.replaced:
        files.system.delete_file(path)
    numbered = [(_FILE.fullmatch(info.base_name), info) for info in files.current]
    small = [(int(match[1]), info) for match, info in numbered if match and info.size < most]
    last = max((batch for batch, _ in small), default=0)
    groups: list[list[fs.FileInfo]] = [[]]
    for batch, info in small:
        if 0 < batch < last:
            if sum(each.size for each in groups[-1]) + info.size > most:
                groups.append([])
            groups[-1].append(info)
    yield Compacted(before, after, 0)
    for group in groups:
        if len(group) > 1:
            rows = _merge(files, group, folder)
            after -= len(group) - 1
            yield Compacted(before, after, rows)


def _merge(files: Files, group: list[fs.FileInfo], folder: Any) -> int:
    """Merge some files into one, and delete them; return the number of lines."""
    system = files.system
    labels = {_metadata(system, info.path).get(MADE_BY.encode(), b"") for info in group}
    one_origin(labels, folder)
    names = [info.base_name for info in group]
    first, last = (name.removesuffix(".parquet") for name in (names[0], names[-1]))
    schema = pq.read_schema(system.open_input_file(group[0].path))
    schema = schema.with_metadata({MADE_BY: labels.pop(), _REPLACES: json.dumps(names)})
    rows = 0
    with (
        _explained(files.folder),
        _replacing(
            system,
            f"{files.folder}/{_MERGED}{first}-to-{last}.parquet",
            f"{files.folder}/_{_MERGED}{first}-{os.getpid()}",
        ) as sink,
        pq.ParquetWriter(sink, schema) as writer,
    ):
        for info in group:
            with system.open_input_file(info.path) as file:
                part = pq.read_table(file)
            writer.write_table(part.replace_schema_metadata(schema.metadata))
            rows += len(part)
    for info in group:
        system.delete_file(info.path)
    return rows


def opened(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a folder's address, and its path there."""
    system, path = fs.FileSystem.from_uri(uri)
    return system, path


def uri_of(folder: Any) -> str:
    """Return the address of a folder; an absolute path if it is a local one."""
    if not isinstance(folder, str | os.PathLike) or not str(folder).strip():
        raise TidegateError(f"an archive must be a folder's path or address, not {quoted(folder)}")
    text = os.fspath(folder)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if "://" not in text:
        return os.path.abspath(text)
    try:
        opened(text)
    except _FAILURES as error:
        raise TidegateError(
            f"{quoted(text)} is not where an archive can be: Arrow cannot write there "
            f"({_said(error)})"
        ) from None
    return text
