"""Frequencies of the keys of whole inputs, for policies that ask for them before the join."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidegate.engine.payload import one_batch
from tidegate.errors import TidegateError
from tidegate.joins.window.spec import WindowJoin, frequencies_of, with_frequencies
from tidegate.settings.columns import hash_columns, whole
from tidegate.settings.times import times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def counted_tables(spec: WindowJoin, tables: list[pa.Table]) -> WindowJoin:
    """Return the join with the frequencies of the keys of its local inputs."""
    counts = []
    for side, table in zip(spec.sides, tables, strict=True):
        keys = one_batch(table.select(list(side.keys)).drop_null())
        hashes = hash_columns(keys.columns, keys.num_rows)
        counts.append((hashes, np.ones(len(hashes))))
    span = _span(spec, tables) if spec.unsplit else 0.0
    return with_frequencies(spec, frequencies_of(counts[0], counts[1]), span)


def _span(spec: WindowJoin, tables: list[pa.Table]) -> float:
    """Return the time from the first to the last row of all tables."""
    columns = [
        one_batch(table.select([side.time]).drop_null()).column(0)
        for side, table in zip(spec.sides, tables, strict=True)
    ]
    found = np.concatenate([times(column, spec.unit) for column in columns])
    found = found[np.isfinite(found)]
    return float(np.ptp(found)) if len(found) else 0.0


def counted_frames(spec: WindowJoin, left: DataFrame, right: DataFrame) -> WindowJoin:
    """Return the join with the frequencies of the keys of its DataFrames."""
    if left.isStreaming or right.isStreaming:
        raise TidegateError(
            'frequencies="whole" needs finite inputs, and these are streaming; use "learned", or '
            "give a table of frequencies"
        )
    counts = []
    for frame, side in zip((left, right), spec.sides, strict=True):
        keys = frame.select(*(quoted_name(name) for name in side.keys))
        keys = keys.toDF(*(f"k{i}" for i in range(len(side.keys)))).dropna()
        table: pa.Table = keys.groupBy(*keys.columns).count().toArrow()
        arrays = [
            whole(column.cast(spec.left.schema.field(name).type))
            for column, name in zip(table.columns, spec.left.keys, strict=False)
        ]
        hashes = hash_columns(arrays, table.num_rows)
        counts.append((hashes, table.column("count").to_numpy().astype(np.float64)))
    span = _span_of_frames(spec, (left, right)) if spec.unsplit else 0.0
    return with_frequencies(spec, frequencies_of(counts[0], counts[1]), span)


def _span_of_frames(spec: WindowJoin, frames: tuple[DataFrame, DataFrame]) -> float:
    """Return the time from the first to the last row of both DataFrames."""
    from pyspark.sql import functions as F

    found = [np.empty(0)]
    for frame, side in zip(frames, spec.sides, strict=True):
        time = F.col(quoted_name(side.time))
        if spec.unit.kind == "real number":
            time = F.when(F.abs(time) < float("inf"), time)
        ends = frame.agg(F.min(time), F.max(time)).toArrow()
        known = pa.concat_arrays([whole(column) for column in ends.columns]).drop_null()
        found.append(times(known, spec.unit))
    every = np.concatenate(found)
    return float(np.ptp(every)) if len(every) else 0.0


def quoted_name(name: str) -> str:
    """Return a column name as Spark expects it, with dots and other signs."""
    return "`" + name.replace("`", "``") + "`"
