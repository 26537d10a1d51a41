"""Differences between the versions of Spark that tidegate runs on, 4.0 to 4.3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.errors import TidegateError

#: The version that runs here, such as `(4, 3)`.
VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# Before 4.2, timestamps are always in UTC.
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if VERSION >= (4, 2) else {}


def to_arrow(schema: StructType) -> pa.Schema:
    """Give the Arrow schema of Spark's rows, with timestamps in UTC."""
    return to_arrow_schema(schema, **_IN_UTC)


def from_arrow(schema: pa.Schema) -> StructType:
    """Give the Spark schema of Arrow's rows. Timestamps without a time zone stay without one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def apply_in_arrow(groups: Any, function: BatchFunction, schema: StructType) -> Any:
    """Call a function on the record batches of each group; give the DataFrame of its results.

    Before 4.1, a function gets and returns a group in one piece.
    """
    if VERSION >= (4, 1):
        return groups.applyInArrow(function, schema)
    results = to_arrow(schema)

    def whole(group: pa.Table) -> pa.Table:
        return pa.Table.from_batches(function(iter(group.to_batches())), results)

    return groups.applyInArrow(whole, schema)


def check_stateful(groups: Any) -> None:
    """Refuse a streaming join on a connection that cannot run Python code with state."""
    if not hasattr(groups, "transformWithStateInPandas"):
        raise TidegateError(
            f"Spark Connect {pyspark.__version__} cannot run a streaming join: it has no stateful "
            f"operator for Python before 4.1. Use Spark 4.1 or newer, or a classic session"
        )
