"""The functions of `spark.compat` behave the same on every version of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from tidegate.errors import TidegateError
from tidegate.spark import compat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_timestamps_keep_their_kind() -> None:
    schema = StructType().add("at", TimestampType()).add("local", TimestampNTZType())
    arrow = compat.to_arrow(schema)
    assert arrow.types == [pa.timestamp("us", tz="UTC"), pa.timestamp("us")]
    assert compat.from_arrow(arrow) == schema


@pytest.mark.parametrize("version", [(4, 0), compat.VERSION])
def test_groups_are_given_in_batches(
    version: tuple[int, int], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "VERSION", version)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        for part in (rows, -rows):
            yield pa.record_batch({"rows": pa.array([part], pa.int64())})

    groups = spark.range(7).selectExpr("id", "id % 2 as odd").groupBy("odd")
    found = compat.apply_in_arrow(groups, count, StructType().add("rows", "long"))
    assert sorted(row.rows for row in found.collect()) == [-4, -3, 3, 4]


def test_a_connection_without_the_stateful_operator_is_refused() -> None:
    with pytest.raises(TidegateError, match="cannot run a streaming join.*Use Spark 4.1 or newer"):
        compat.check_stateful(object())
