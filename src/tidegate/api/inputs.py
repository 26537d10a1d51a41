"""The inputs of a call: Spark DataFrames or local data, and the settings that only one side has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tidegate.errors import TidegateError
from tidegate.settings.checks import column_pair, flag, input_of, key_columns
from tidegate.settings.columns import as_table, decoded
from tidegate.settings.values import is_whole, quoted


def is_spark(data: Any) -> bool:
    """True for a Spark DataFrame, of Spark Connect too."""
    return hasattr(data, "mapInArrow") and not isinstance(data, type)


def all_on_spark(inputs: Mapping[str, Any]) -> bool:
    """Return True if all inputs are Spark DataFrames, False if none is; refuse a mixture."""
    found = {name: is_spark(data) for name, data in inputs.items()}
    if len(set(found.values())) < 2:
        return any(found.values())
    frame = next(name for name in found if found[name])
    local = next(name for name in found if not found[name])
    raise TidegateError(
        f"{_named(frame)} is a Spark DataFrame and {_named(local)} is not (it is a "
        f"{type(inputs[local]).__name__}): give Spark DataFrames only, with "
        "spark.createDataFrame(...), or local data only, with .toArrow()"
    )


def _named(name: str) -> str:
    return input_of(name) if name in ("left", "right") or " " in name else f"the stream {name}"


def local_table(data: Any) -> pa.Table:
    """Return local data as an Arrow table with plain columns.

    It may be a table, record batch, reader or dataset of Arrow, a pandas or Polars DataFrame,
    anything else with the Arrow C stream interface, or a mapping of columns.
    """
    if isinstance(data, ds.Dataset | ds.Scanner):
        data = data.to_table()
    return decoded(as_table(data))


def local_pair(left: Any, right: Any, on: Any, time: Any) -> list[pa.Table]:
    """Return the local data of both sides as tables whose key and time columns can be compared.

    A column without any value, such as one of an empty pandas frame, may have lost its type. It
    takes the type of the other side's column.
    """
    tables = [local_table(left), local_table(right)]
    keys = () if on is None else zip(*key_columns(on), strict=True)
    for pair in (*keys, column_pair(time, "time")):
        if any(tables[side].column_names.count(name) != 1 for side, name in enumerate(pair)):
            continue  # the check of the settings says what is wrong
        for side, name in enumerate(pair):
            column, kind = tables[side][name], tables[1 - side].schema.field(pair[1 - side]).type
            if column.type != kind and column.null_count == len(column):
                at = tables[side].schema.get_field_index(name)
                nulls = pa.chunked_array([pa.nulls(len(column), kind)])
                tables[side] = tables[side].set_column(at, name, nulls)
    return tables


def refuse_local_settings(
    batch_rows: Any, keep_shed: Any, instead: str = "the counters say how many rows were shed"
) -> None:
    """Refuse settings of local data in a call with Spark DataFrames."""
    if batch_rows is not None:
        raise TidegateError(
            f"batch_rows={quoted(batch_rows)} is for local data: with Spark DataFrames, an option "
            "of the source such as maxFilesPerTrigger limits the rows of a batch"
        )
    if flag(keep_shed, "keep_shed"):
        raise TidegateError(
            f"keep_shed=True is for local data: leave it out with Spark DataFrames; {instead}"
        )


def refuse_spark_settings(
    *, shards: Any = None, relation_changes: Any = None, memory: Any = None
) -> None:
    """Refuse settings of Spark DataFrames in a call with local data."""
    if shards is not None and not (is_whole(shards) and int(shards) == 1):
        raise TidegateError(
            f"shards={quoted(shards)} is for Spark DataFrames; leave it out with local data, which "
            "is joined in one part"
        )
    if relation_changes is not None:
        raise TidegateError(
            f"relation_changes={quoted(relation_changes)} is about restarts of a query on Spark; "
            "leave it out with local data"
        )
    if type(memory).__module__.startswith("tidegate.spark."):
        raise TidegateError(
            "a share of a MemoryPool is for Spark DataFrames; with local data give memory as a "
            "number of rows or a size"
        )


def local_settings(batch_rows: Any, keep_shed: Any, **of_spark: Any) -> tuple[int, bool]:
    """Check the settings of a call with local data, and return `batch_rows` and `keep_shed`.

    Refuse the settings `of_spark`, if they were given.
    """
    refuse_spark_settings(**of_spark)
    return rows_at_once(batch_rows), flag(keep_shed, "keep_shed")


def rows_at_once(batch_rows: Any) -> int:
    """Check `batch_rows`; None is about a million rows."""
    if batch_rows is None:
        return 1 << 20
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise TidegateError(
            f"batch_rows must be a positive number of rows, not {quoted(batch_rows)}"
        )
    return batch_rows
