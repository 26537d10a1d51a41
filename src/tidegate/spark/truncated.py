"""Run truncated joins on batch DataFrames: counts go to the driver, rows stay where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.sql.window import Window

from tidegate.joins.truncated.chain import Counts
from tidegate.joins.truncated.engine import Keyed, grouped, plan, ties, value_hashes
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

    Only groups travel to the driver, with their counts: of inputs with one key, those that occur in
    all of them. The plan returns how many rows of each group to keep.
    """
    named = [_rename_columns(spec, at, frame) for at, frame in enumerate(frames)]
    counted = _count_groups(spec, named)
    table = counted.toArrow()
    keyed = [_keyed(spec, at, table) for at in range(len(named))]
    groups, numbers = grouped(keyed)
    kept = plan(spec, groups, partial(_totals, named))
    in_part = []
    for at, (each, number, quota) in enumerate(zip(keyed, numbers, kept, strict=True)):
        rows = np.zeros(len(table), np.int64)
        rows[each.rows] = np.where(number >= 0, quota[number] if len(quota) else 0, 0)
        some = rows[each.rows]
        in_part.append(bool(((some > 0) & (some != each.weight)).any()))
        table = table.set_column(table.schema.get_field_index(f"n{at}"), f"n{at}", pa.array(rows))
    wanted = reduce(np.maximum, [table.column(f"n{at}").to_numpy() for at in range(len(named))])
    table = table.filter(pa.array(wanted > 0))
    planned = frames[0].sparkSession.createDataFrame(table, counted.schema)
    if len(table) <= _BROADCAST:
        planned = F.broadcast(planned)
    parts = [
        _kept_rows(spec, at, frame, planned, ranked=in_part[at]) for at, frame in enumerate(named)
    ]
    joined = parts[0]
    for at, part in enumerate(parts[1:]):
        joined = joined.join(part, ["w", *_link_columns(spec, at)])
    columns = [
        f"c{at}_{i}"
        for at, relation in enumerate(spec.relations)
        for i in range(len(relation.schema))
    ]
    return joined.select(*columns).toDF(*spec.names)


def _link_columns(spec: TruncatedJoin, at: int) -> list[str]:
    """Return the names of the columns by which an input joins the next one."""
    link = 0 if spec.one_key else at
    return [f"k{link}_{i}" for i in range(len(spec.relations[at].after))]


def _own_columns(spec: TruncatedJoin, at: int) -> dict[str, str]:
    """Return the columns that make the groups of an input: their names, and what they are there."""
    relation = spec.relations[at]
    found: dict[str, str] = {}
    if relation.before:
        found |= dict(zip(_link_columns(spec, at - 1), relation.before, strict=True))
    if relation.after:
        found |= dict(zip(_link_columns(spec, at), relation.after, strict=True))
    return found


def _rename_columns(spec: TruncatedJoin, at: int, frame: DataFrame) -> DataFrame:
    """Rename an input's columns: window w, keys k<join>_0.., own columns c<input>_0.."""
    relation = spec.relations[at]
    window = F.lit(0).cast("long")
    if relation.time is not None and spec.unit is not None and spec.per is not None:
        window = window_number(frame[_quoted(relation.time)], spec.unit, spec.per)
    keys = [frame[_quoted(own)].alias(name) for name, own in _own_columns(spec, at).items()]
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


def _count_groups(spec: TruncatedJoin, named: Sequence[DataFrame]) -> DataFrame:
    """Count the rows of each group of each input.

    A row has the window, the values of all joins (null for those of other inputs) and the counts.
    """
    every: dict[str, Any] = {}
    for at, frame in enumerate(named):
        every |= {name: frame.schema[name].dataType for name in _own_columns(spec, at)}
    sides = []
    for at, frame in enumerate(named):
        own = _own_columns(spec, at)
        present = reduce(lambda a, b: a & b, [F.col(name).isNotNull() for name in ["w", *own]])
        columns = [
            F.col(name) if name in own else F.lit(None).cast(kind).alias(name)
            for name, kind in every.items()
        ]
        sides.append(frame.where(present).select("w", *columns, F.lit(at).alias("side")))
    counts = [F.count_if(F.col("side") == at).alias(f"n{at}") for at in range(len(sides))]
    counted = reduce(lambda a, b: a.union(b), sides).groupBy("w", *every).agg(*counts)
    if not spec.one_key:
        return counted
    return counted.where(
        reduce(lambda a, b: a & b, [F.col(f"n{i}") > 0 for i in range(len(sides))])
    )


def _keyed(spec: TruncatedJoin, at: int, table: pa.Table) -> Keyed:
    """Return the groups of one input, with their counts."""
    relation = spec.relations[at]
    weight = table.column(f"n{at}").to_numpy()
    rows = np.flatnonzero(weight > 0)
    some = table.take(pa.array(rows))
    window = some.column("w").to_numpy()
    hashes = {}
    for link, names in ((at - 1, relation.before), (at, relation.after)):
        columns = [
            whole(some.column(column).cast(relation.schema.field(name).type))
            for column, name in zip(_link_columns(spec, link) if names else (), names, strict=True)
        ]
        hashes[link] = value_hashes(window, columns) if columns else None
    return Keyed(rows, hashes[at - 1], hashes[at], window, weight[rows])


def _totals(named: Sequence[DataFrame], known: Counts) -> Counts:
    """Count the rows of each input in each known window."""
    totals: Counts = np.zeros((len(named), len(known)), np.int64)
    for i, frame in enumerate(named):
        found = frame.where("w is not null").groupBy("w").count().toArrow()
        rows = dict(zip(*(column.to_pylist() for column in found.columns), strict=True))
        totals[i] = [rows[number] for number in known.tolist()]
    return totals


def _kept_rows(
    spec: TruncatedJoin, at: int, frame: DataFrame, planned: DataFrame, *, ranked: bool
) -> DataFrame:
    """Return the rows of one input that are kept."""
    value = ["w", *_own_columns(spec, at)]
    quota = f"n{at}"
    wanted = planned.where(F.col(quota) > 0).select(*value, quota)
    found = frame.join(wanted, value)
    columns = [f"c{at}_{i}" for i in range(len(spec.relations[at].schema))]
    if ranked:
        found = found.mapInArrow(_with_ties(columns, spec.seed), _with_tie(found.schema))
        rank = F.row_number().over(Window.partitionBy(*value).orderBy("tie"))
        found = found.withColumn("rank", rank)
        found = found.where(F.col("rank") <= F.col(quota))
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
