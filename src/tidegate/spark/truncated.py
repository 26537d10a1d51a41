"""Run truncated joins on batch DataFrames: counts go to the driver, rows stay where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.sql.window import Window

from tidegate.joins.truncated.engine import Values, plan, ties, value_hashes
from tidegate.joins.truncated.plan import Counts
from tidegate.joins.truncated.spec import TruncatedJoin
from tidegate.settings.columns import whole
from tidegate.settings.times import TimeUnit
from tidegate.spark.compat import BatchFunction

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: A plan with at most this many values is broadcast, so that no row has to move for it.
_BROADCAST = 200_000


def run(spec: TruncatedJoin, frames: Sequence[DataFrame]) -> DataFrame:
    """Join the rows that the plan keeps of each input, by Spark's own join.

    Only values that occur in all inputs travel to the driver, with their counts. The plan returns
    how many rows of each value to keep.
    """
    named = [_rename_columns(spec, at, frame) for at, frame in enumerate(frames)]
    counted = _count_values(spec, named)
    values, table = _values(spec, named, counted)
    kept = plan(spec, values)
    kept_at_all = np.flatnonzero(kept.min(axis=0) > 0)
    quotas = [pa.array(quota[kept_at_all]) for quota in kept]
    rows = table.take(pa.array(kept_at_all))
    for at, quota in enumerate(quotas):
        rows = rows.set_column(rows.schema.get_field_index(f"n{at}"), f"n{at}", quota)
    planned = frames[0].sparkSession.createDataFrame(rows, counted.schema)
    if len(rows) <= _BROADCAST:
        planned = F.broadcast(planned)
    in_part = (kept != values.counts)[:, kept_at_all].any(axis=1)
    parts = [
        _kept_rows(spec, at, frame, planned, ranked=bool(in_part[at]))
        for at, frame in enumerate(named)
    ]
    joined = reduce(lambda one, other: one.join(other, _value_columns(spec)), parts)
    columns = [
        f"c{at}_{i}"
        for at, relation in enumerate(spec.relations)
        for i in range(len(relation.schema))
    ]
    return joined.select(*columns).toDF(*spec.names)


def _value_columns(spec: TruncatedJoin) -> list[str]:
    return ["w", *(f"k{i}" for i in range(len(spec.relations[0].keys)))]


def _rename_columns(spec: TruncatedJoin, at: int, frame: DataFrame) -> DataFrame:
    """Rename an input's columns: window w, keys k0.. as in all inputs, own columns c<input>_0.."""
    relation = spec.relations[at]
    window = F.lit(0).cast("long")
    if relation.time is not None and spec.unit is not None and spec.per is not None:
        window = window_number(frame[_quoted(relation.time)], spec.unit, spec.per)
    keys = [frame[_quoted(name)].alias(f"k{i}") for i, name in enumerate(relation.keys)]
    columns = [
        frame[_quoted(name)].alias(f"c{at}_{i}") for i, name in enumerate(relation.schema.names)
    ]
    return frame.select(window.alias("w"), *keys, *columns)


def window_number(time: Column, unit: TimeUnit, per: int | float) -> Column:
    """Return the tumbling window of a time, as `joins.truncated.engine.window_numbers` does."""
    if unit.kind == "real number":
        time = time.cast("double")
        finite = F.abs(time) < F.lit(float("inf"))
        return F.when(finite, F.floor(time / F.lit(float(per))))
    if unit.kind == "timestamp":
        number = F.unix_micros(time)
    elif unit.kind == "local timestamp":
        # An interval is exact, and independent of time zones.
        since = time - F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'")
        number = (since.cast("decimal(24,6)") * 1_000_000).cast("long")
    elif unit.kind == "date":
        number = F.unix_date(time).cast("long") * 86_400_000_000
    elif unit.kind == "decimal":
        number = (time * F.lit(unit.per_unit.numerator)).cast("long")
    else:
        number = time.cast("long")
    length = F.lit(per).cast("long")
    return F.call_function("div", number - F.pmod(number, length), length)


def _count_values(spec: TruncatedJoin, named: Sequence[DataFrame]) -> DataFrame:
    """Count each value in each input, for values that occur in all of them."""
    value = _value_columns(spec)
    present = reduce(lambda a, b: a & b, [F.col(name).isNotNull() for name in value])
    sides = [
        frame.where(present).select(*value, F.lit(at).alias("side"))
        for at, frame in enumerate(named)
    ]
    counts = [F.count_if(F.col("side") == at).alias(f"n{at}") for at in range(len(sides))]
    counted = reduce(lambda a, b: a.union(b), sides).groupBy(*value).agg(*counts)
    return counted.where(
        reduce(lambda a, b: a & b, [F.col(f"n{i}") > 0 for i in range(len(sides))])
    )


def _values(
    spec: TruncatedJoin, named: Sequence[DataFrame], counted: DataFrame
) -> tuple[Values, pa.Table]:
    """Return the counts in the order in which the plan needs them, and their values."""
    table = counted.toArrow()
    window = table.column("w").to_numpy()
    first = spec.relations[0]
    keys = [
        whole(table.column(f"k{i}").cast(first.schema.field(name).type))
        for i, name in enumerate(first.keys)
    ]
    order = np.argsort(value_hashes(window, keys), kind="stable")
    table = table.take(pa.array(order))
    counts = np.stack([table.column(f"n{i}").to_numpy() for i in range(len(named))])
    known, at = np.unique(window[order], return_inverse=True)
    totals: Counts = np.zeros((len(named), len(known)), np.int64)
    if spec.deletes:
        for i, frame in enumerate(named):
            found = frame.where("w is not null").groupBy("w").count().toArrow()
            rows = dict(zip(*(column.to_pylist() for column in found.columns), strict=True))
            totals[i] = [rows[number] for number in known.tolist()]
    return Values(counts, at, totals), table


def _kept_rows(
    spec: TruncatedJoin, at: int, frame: DataFrame, planned: DataFrame, *, ranked: bool
) -> DataFrame:
    """Return the rows of one input that are kept."""
    value = _value_columns(spec)
    found = frame.join(planned.select(*value, f"n{at}"), value)
    columns = [f"c{at}_{i}" for i in range(len(spec.relations[at].schema))]
    if ranked:
        found = found.mapInArrow(_with_ties(columns, spec.seed), _with_tie(found.schema))
        rank = F.row_number().over(Window.partitionBy(*value).orderBy("tie"))
        found = found.withColumn("rank", rank)
        found = found.where(F.col("rank") <= F.col(f"n{at}"))
    return found.select(*value, *columns)


def _with_tie(schema: StructType) -> StructType:
    return StructType([*schema.fields, StructField("tie", LongType())])


def _with_ties(columns: Sequence[str], seed: int) -> BatchFunction:
    """Return a function that appends the `joins.truncated.engine.ties` of these columns."""

    def append(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            hashed = [batch.column(name) for name in columns]
            yield batch.append_column("tie", pa.array(ties(hashed, len(batch), seed)))

    return append


def _quoted(name: str) -> str:
    """Quote a column name for Spark, so that it may contain dots."""
    return "`" + name.replace("`", "``") + "`"
