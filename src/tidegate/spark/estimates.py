"""Run `tidegate.estimate` on Spark: sum rows by cluster, then clusters by window and group.

These are two Spark aggregations, one after the other. In append mode they also work on streams: a
window is complete when the watermark passes its end. `joins.sampled.estimates` computes the
estimates from the sums, here and on local data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from tidegate.errors import TidegateError
from tidegate.joins.sampled.estimates import SUMS, WINDOW, Estimation, concluded, in_windows
from tidegate.joins.sampled.spec import CLUSTER, PROBABILITY
from tidegate.settings.times import milliseconds
from tidegate.spark import watermarks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def run(spec: Estimation, sample: DataFrame) -> DataFrame:
    """Estimate from a sample: all of a batch, or a stream window by window."""
    if sample.isStreaming:
        _check_streaming(spec, sample)
    keys = [f"k{i}" for i in range(len(spec.keys))]
    rows = _windowed(spec, _rows(spec, sample), sample)
    has_value = F.when(F.col("v").isNotNull(), 1.0).otherwise(0.0)
    units = rows.groupBy(*keys, "unit").agg(
        F.sum(has_value).alias("rows"),
        F.sum(has_value / F.col("p")).alias("n"),
        F.coalesce(F.sum(F.col("v") / F.col("p")), F.lit(0.0)).alias("s"),
        F.min("p").alias("p"),
    )
    n, s = F.col("n"), F.col("s")
    nn, ns, ss = ((1 - F.col("p")) * part for part in (n * n, n * s, s * s))
    sampled = F.when(F.col("rows") > 0, 1.0).otherwise(0.0)
    parts = (F.lit(1.0), F.col("rows"), n, s, nn, ns, ss, nn * nn, ss * ss, sampled)
    sums = units.groupBy(*keys).agg(
        *(F.sum(part).alias(name) for part, name in zip(parts, SUMS, strict=True))
    )
    if sample.isStreaming:
        sums = sums.withColumn("k0", F.col("k0.start"))
    found = sums.mapInArrow(_conclude(spec), _schema(spec, sample))
    return found if spec.groups is None else _with_unknown(spec, found)


def _check_streaming(spec: Estimation, sample: DataFrame) -> None:
    if spec.unit is None or spec.unit.kind not in ("timestamp", "local timestamp"):
        raise TidegateError(
            "a stream is estimated window by window, and Spark knows that a window is over by a "
            "watermark on timestamps: give time (a timestamp column) and per (how long a window "
            "is), or estimate what was written as a batch"
        )
    if spec.groups is not None:
        raise TidegateError(
            "groups is for batch samples: on a stream, a group that was not sampled in a window "
            "has no row there"
        )
    if spec.lateness and None not in _delays(spec, sample):
        raise TidegateError(
            "lateness is for samples of streams without a watermark, and this sample has that of "
            "its streams: leave lateness out, and give withWatermark the longer delay"
        )


def _rows(spec: Estimation, sample: DataFrame) -> DataFrame:
    """Select the columns an estimate needs, as t0.., k0.., unit, p (probability) and v (value)."""
    value: Column = F.lit(1.0)
    if spec.value is not None:
        given = F.col(_quoted(spec.value)).cast("double")
        value = F.when(~F.isnan(given), given)
    times = [F.col(_quoted(name)).alias(f"t{i}") for i, name in enumerate(spec.time)]
    first = int(bool(spec.time))
    groups = [F.col(_quoted(name)).alias(f"k{i + first}") for i, name in enumerate(spec.by)]
    unit, p = F.col(CLUSTER).alias("unit"), F.col(PROBABILITY).alias("p")
    return sample.select(*times, *groups, unit, p, value.alias("v"))


def _windowed(spec: Estimation, rows: DataFrame, sample: DataFrame) -> DataFrame:
    """Return each row in each of its windows; the window is `k0`."""
    if not spec.time:
        return rows
    if sample.isStreaming:
        assert spec.unit is not None
        assert spec.per is not None
        micro = 1000 * spec.unit.per_unit
        timed = _with_watermark(spec, rows, sample)
        slide = spec.per if spec.every is None else spec.every
        lengths = [f"{int(length / micro)} microseconds" for length in (spec.per, slide)]
        return timed.withColumn("k0", F.window("at", *lengths))
    named = [f"t{i}" for i in range(len(spec.time))]
    rest = [name for name in rows.columns if name not in named]
    fields = [StructField("k0", rows.schema["t0"].dataType), *(rows.schema[n] for n in rest)]

    def start(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            table, begins = in_windows(spec, table.rename_columns([*spec.time, *rest]))
            columns = [begins, *(table.column(name) for name in rest)]
            yield from pa.table(columns, names=["k0", *rest]).to_batches()

    return rows.mapInArrow(start, StructType(fields))


def _delays(spec: Estimation, sample: DataFrame) -> list[int | None]:
    """Return the delays of the watermarks on the time columns of a sample."""
    return [watermarks.delay_of(sample, name) for name in spec.time]


def _with_watermark(spec: Estimation, rows: DataFrame, sample: DataFrame) -> DataFrame:
    """Add the event time `at` of each row, with a watermark on it."""
    at = F.greatest("t0", "t1") if len(spec.time) > 1 else F.col("t0")
    delays = _delays(spec, sample)
    if None not in delays:
        # The inputs have a watermark, and the join has lengthened its delay (see `watermarks`).
        return rows.select("*", at.alias("at", metadata={watermarks.DELAY: delays[0]}))
    assert spec.unit is not None
    late = milliseconds(spec.lateness, spec.unit)
    # If one stream lags behind the other, results may be out of order by the join's window.
    window = sample.schema[PROBABILITY].metadata.get(watermarks.WINDOW, 0)
    return rows.withColumn("at", at).withWatermark("at", f"{late + window} milliseconds")


def _conclude(
    spec: Estimation,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def conclude(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = [*spec.keys.names, *SUMS]
        for batch in batches:
            table = pa.Table.from_batches([batch]).rename_columns(names)
            yield from concluded(spec, table).to_batches()

    return conclude


def _schema(spec: Estimation, sample: DataFrame) -> StructType:
    keys = [sample.schema[name] for name in spec.by]
    if spec.time:
        keys.insert(0, StructField(WINDOW, sample.schema[spec.time[0]].dataType))
    numbers = [f for f in spec.result_schema if f.name not in spec.keys.names]
    kinds = {pa.float64(): DoubleType(), pa.int64(): LongType()}
    return StructType([*keys, *(StructField(f.name, kinds[f.type]) for f in numbers)])


def _with_unknown(spec: Estimation, found: DataFrame) -> DataFrame:
    """Add a row of nulls for each group (in each window) that was never sampled."""
    assert spec.groups is not None
    expected = found.sparkSession.createDataFrame(spec.groups)
    if spec.time:
        expected = found.select(WINDOW).distinct().crossJoin(expected)
    missing = expected.alias("e").join(
        found.alias("f"),
        [
            F.col(f"e.{_quoted(name)}").eqNullSafe(F.col(f"f.{_quoted(name)}"))
            for name in spec.keys.names
        ],
        "left_anti",
    )
    empty = {
        field.name: (F.lit(0) if field.name in SUMS else F.lit(None)).cast(field.dataType)
        for field in found.schema
        if field.name not in spec.keys.names
    }
    return found.unionByName(missing.withColumns(empty))


def _quoted(name: str) -> str:
    """Quote a column name for Spark, so that it may contain dots."""
    return "`" + name.replace("`", "``") + "`"
