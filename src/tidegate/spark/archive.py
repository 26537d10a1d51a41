"""Write and read archives on Spark; see `engine.archive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import AnalysisException

from tidegate.engine.archive import MADE_BY, Archive, check_archive, files_of, one_origin, uri_of
from tidegate.errors import TidegateError, shortened
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write(archive: Archive, shed: pa.Table, shard: int) -> None:
    """Write the rows shed in the batch and shard that this task runs."""
    context = TaskContext.get()
    property_of = context.getLocalProperty if context is not None else lambda name: None
    batch = int(property_of("streaming.sql.batchId") or 0)
    archive.write(shed, shard, batch, property_of("sql.streaming.queryId") or "batch")


def departures(spark: SparkSession, folder: Any) -> tuple[DataFrame, str | None]:
    """Read an archive; return its lines, and its label. Refuse lines of several queries."""
    uri = uri_of(folder).partition("?")[0].rstrip("/")
    # A plain path is on the local file system, whatever Spark's default file system is.
    start = f"file://{uri}" if uri.startswith("/") else uri
    try:
        lines = spark.read.parquet(*(f"{start}/{f.base_name}" for f in files_of(folder).current))
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
    one_origin(made_by, folder)
    return lines, next(iter(made_by), None)


def checked_departures(spark: SparkSession, folder: Any, settings: dict[str, Any]) -> DataFrame:
    """Read an archive. Refuse it unless all its lines are of one query with these settings."""
    lines, made_by = departures(spark, folder)
    if made_by is not None:
        check_archive(made_by, settings, quoted(str(folder)))
    return lines
