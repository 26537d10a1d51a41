"""The friendly call that finds the results a join had to do without, on Spark DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidegate.api.constrained_join import marked_inputs, result_schema
from tidegate.errors import TidegateError
from tidegate.joins.constrained.cql_plan import repaired_spec
from tidegate.joins.constrained.repair import RepairJob, archive_settings
from tidegate.joins.constrained.shed_log import MARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def repair(
    streams: Mapping[str, DataFrame], archive: str, *, shards: int | None = None, **settings: Any
) -> DataFrame:
    """Find the results that constraints have cost a join, from its streams and its archive.

    A result is missing exactly if a constraint dropped one of its rows before another came. So
    with what `tidegate.constrained_join` has delivered, this is the exact result, and nothing is
    there twice, as long as joins are many-one as declared and no rows came late.

    Parameters
    ----------
    streams
        Batch DataFrames by name, with all rows that the join has taken.
    archive
        What was `shed_to`.
    shards
        In how many parts to do it; by default as the join does.
    **settings
        The settings of the join, or those of `tidegate.cql` with the text as `query`. Constraints
        and how they were watched play no part.
    """
    from tidegate.spark import operator, packing
    from tidegate.spark.archive import departures

    if not isinstance(streams, Mapping):
        raise TidegateError(
            f"streams must be a mapping of DataFrames by name, not {type(streams).__name__}"
        )
    for name, frame in streams.items():
        if not hasattr(frame, "mapInArrow") or frame.isStreaming:
            raise TidegateError(
                f"the stream {name} must be a batch Spark DataFrame (spark.read) with all rows "
                "that were joined; tidegate.local.repair takes Arrow tables and pandas"
            )
    schemas = {name: packing.arrow_schema(frame.schema) for name, frame in streams.items()}
    names, spec = repaired_spec(schemas, settings)
    frames = [streams[name] for name in names]
    lines = departures(frames[0].sparkSession, archive, archive_settings(spec))
    inputs = [*frames, lines.select("side", MARK)]
    most = 1 if spec.shard_columns is None or _counts_rows(spec.streams) else None
    schema = result_schema(marked_inputs(frames, spec), spec)
    return operator.run(RepairJob(spec), inputs, shards=shards, most=most, schema=schema)


def _counts_rows(streams: Any) -> bool:
    """Whether a window needs all rows in one order."""
    return any(stream.rows is not None and stream.by is None for stream in streams)
