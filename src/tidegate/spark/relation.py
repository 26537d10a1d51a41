"""Send a relation that does not change to all workers once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

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
