"""Archive the rows that joins shed, as Parquet: one file per batch and shard.

A batch that is run again writes its files again, whole and under the same names, so the archive
never contains a shed row twice. Each line names its query and the settings of that query, so that
one query's archive cannot be mistaken for another's. `tidegate.repair` reads it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark import TaskContext
from pyspark.errors import AnalysisException

from tidegate.errors import TidegateError, shortened
from tidegate.joins.constrained.repair import MADE_BY, archive_label, check_archive, origin_of
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Archive:
    """A folder, and the settings that its lines depend on."""

    folder: str
    settings: str

    def write(self, shed: pa.Table, shard: int) -> None:
        """Write the rows shed in this batch and shard. Replace the file of an earlier attempt."""
        context = TaskContext.get()
        property_of = context.getLocalProperty if context is not None else lambda name: None
        batch = int(property_of("streaming.sql.batchId") or 0)
        query = property_of("sql.streaming.queryId") or "batch"
        system, folder = fs.FileSystem.from_uri(self.folder)
        path = f"{folder}/{batch:09d}-{shard:05d}.parquet"
        exists = system.get_file_info(path).type != fs.FileType.NotFound
        if batch > 0 and len(shed) == 0:
            if exists:
                system.delete_file(path)
            return
        made_by = archive_label(json.loads(self.settings), query)
        # The first batch always has a file: it identifies the folder as an archive, and its owner.
        if exists and batch == 0:
            self._check_owner(system, path, made_by)
        system.create_dir(folder, recursive=True)
        lines = shed.append_column(MADE_BY, pa.repeat(made_by, len(shed)))
        hidden = f"{folder}/_{batch}-{shard}-{os.getpid()}"
        with system.open_output_stream(hidden) as sink:
            pq.write_table(lines.replace_schema_metadata({MADE_BY: made_by}), sink)
        system.move(hidden, path)

    def _check_owner(self, system: fs.FileSystem, path: str, made_by: str) -> None:
        try:
            with system.open_input_file(path) as file:
                owner = (pq.read_schema(file).metadata or {}).get(MADE_BY.encode())
        except (pa.ArrowException, OSError) as error:
            raise TidegateError(
                f"{quoted(path)} is no file of an archive, or was damaged ({error}); give shed_to "
                "a folder of its own, or remove the file"
            ) from None
        if owner is None or origin_of(owner, quoted(path)) != origin_of(made_by):
            raise TidegateError(
                f"{quoted(self.folder)} has the departures of another query already; give "
                "shed_to a folder of its own, or empty this one"
            )


def archive(folder: Any, settings: dict[str, Any]) -> Archive:
    """Return an archive to write to. Refuse a folder that cannot be written."""
    return Archive(_uri(folder), json.dumps(settings, sort_keys=True))


def departures(spark: SparkSession, folder: Any, settings: dict[str, Any]) -> DataFrame:
    """Read an archive. Refuse it unless all its lines are of one query with these settings."""
    uri = _uri(folder)
    try:
        # A plain path is on the local file system, whatever Spark's default file system is.
        lines = spark.read.parquet(f"file://{uri}" if uri.startswith("/") else uri)
        made_by = [row[0] for row in lines.select(MADE_BY).distinct().collect()]
    except AnalysisException as error:
        raise TidegateError(
            f"{quoted(str(folder))} is no archive of a join with shed_to ({error.getCondition()})"
        ) from None
    except Exception as error:
        # This is an error of Spark's Java process, or of the server: only its text can be read.
        if "READ_FILE" not in str(error):
            raise
        reason = next((line for line in str(error).splitlines() if ".parquet" in line), str(error))
        raise TidegateError(
            f"{quoted(str(folder))} has a file that is no part of an archive, or was damaged: "
            f"{shortened(reason, 500)}; remove it, and repair finds what the others have"
        ) from None
    where = quoted(str(folder))
    # After an upgrade of tidegate, one query's lines carry several versions of the format.
    origins = {json.dumps(origin_of(made, where), sort_keys=True) for made in made_by}
    if len(origins) > 1:
        raise TidegateError(
            f"{where} has departures of {len(origins)} queries; give each query a folder of its own"
        )
    for made in made_by:
        check_archive(made, settings, where)
    return lines


def _uri(folder: Any) -> str:
    if not isinstance(folder, str | os.PathLike) or not str(folder).strip():
        raise TidegateError(f"an archive must be a folder's path or address, not {quoted(folder)}")
    text = os.fspath(folder)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if "://" not in text:
        return os.path.abspath(text)
    try:
        fs.FileSystem.from_uri(text)
    except (pa.ArrowInvalid, OSError) as error:
        raise TidegateError(
            f"{quoted(text)} is not where an archive can be: Arrow cannot write there ({error})"
        ) from None
    return text
