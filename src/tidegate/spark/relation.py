"""The relation of a star join on Spark: sent to all workers once, or read as a feed of changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.joins.star.change_feeds import OPERATION, TIME, Feed
from tidegate.joins.star.job import LocalRelation, RelationSource, in_order
from tidegate.spark.packing import arrow_schema, with_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Broadcasted:
    """A relation as a broadcast variable, which every worker fetches only once."""

    stream: Any
    digest: str

    def load(self) -> pa.Table:
        """Return the rows of the relation."""
        with pa.ipc.open_stream(self.stream.value) as reader:
            return reader.read_all()


def ship(frame: DataFrame) -> RelationSource:
    """Read a relation and broadcast it. Spark Connect has no broadcasts: send it with the plan."""
    schema = arrow_schema(frame.schema)
    table: pa.Table = frame.toDF(*(f"c{i}" for i in range(len(frame.columns)))).toArrow()
    batches = [with_schema(b.rename_columns(schema.names), schema) for b in table.to_batches()]
    ordered, digest = in_order(pa.Table.from_batches(batches, schema))
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        return LocalRelation(ordered, digest)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(ordered)
    context = frame.sparkSession.sparkContext
    return Broadcasted(context.broadcast(sink.getvalue().to_pybytes()), digest)


def changes_of_frame(feed: Feed, frame: DataFrame) -> DataFrame:
    """Return the changes that the rows of a feed make; see `change_feeds.changes_of`."""
    from pyspark.sql import functions as F

    def part(of: Any, names: tuple[str, ...]) -> Any:
        return [of[name].alias(name) for name in names]

    stamps = frame[feed.time[0]]
    for field in feed.time[1:]:
        stamps = stamps[field]
    if feed.per_second is not None:
        stamps = F.timestamp_micros(_micros(stamps.cast("long"), feed.per_second))
        if feed.zone is None:
            stamps = F.convert_timezone(None, F.lit("UTC"), stamps.cast("timestamp_ntz"))
    said = frame[feed.operation]
    if not feed.envelope:
        made = frame.select(
            *(frame[name] for name in feed.columns), said.alias(OPERATION), stamps.alias(TIME)
        )
        return made.where(F.col(OPERATION).isNotNull()) if feed.operation == "__op" else made

    def change(code: Any, row: Any) -> Any:
        return F.struct(code.alias(OPERATION), *part(row, feed.columns))

    before, after = frame["before"], frame["after"]
    delete, insert = change(F.lit("d"), before), change(F.lit("c"), after)
    rows = (
        F.when((said == "u") & before.isNotNull(), F.array(delete, insert))
        .when(said == "d", F.array(delete))
        .when(said.isNull() & before.isNull() & after.isNull(), F.array())
        .otherwise(F.array(change(said, after)))
    )
    each = frame.select(stamps.alias(TIME), F.explode(rows).alias("each"))
    columns = [F.col("each")[name].alias(name) for name in (*feed.columns, OPERATION)]
    return each.select(*columns, F.col(TIME))


def _micros(stamps: Any, per_second: int) -> Any:
    """Return whole microseconds; a quotient of whole numbers is exact when it is rounded."""
    from pyspark.sql import functions as F

    if per_second <= 10**6:
        return stamps * (10**6 // per_second)
    finer = per_second // 10**6
    return F.round((stamps - stamps % finer) / finer).cast("long")
