"""Hide the differences between the Spark versions that tidegate supports, 4.0 to 4.3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.errors import TidegateError

#: The installed version, such as `(4, 3)`.
VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# Before 4.2, timestamps are always in UTC.
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if VERSION >= (4, 2) else {}


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema for a Spark schema, with timestamps in UTC."""
    return to_arrow_schema(schema, **_IN_UTC)


def from_arrow(schema: pa.Schema) -> StructType:
    """Return the Spark schema for an Arrow schema. Timestamps without a zone stay without one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def apply_in_arrow(groups: Any, function: BatchFunction, schema: StructType) -> Any:
    """Call a function on the record batches of each group. Return a DataFrame of its results.

    Before 4.1, Spark passes and expects a group as one table.
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
