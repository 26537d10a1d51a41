"""Prepare raw rows for an engine: convert times to numbers, hash keys and rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.settings.columns import as_floats, hash_columns
from tidegate.settings.schedules import Side
from tidegate.settings.times import TimeUnit, times
from tidegate.settings.values import quoted

#: The columns of a prepared record batch before those of the input, and their number.
KEY, TIME, ROW_HASH = "key", "time", "row_hash"
PREPARED = 3


class Bounds(NamedTuple):
    """The allowed values of an importance, and the stream to name in an error."""

    above_0: bool = False
    most: float = np.inf
    stream: str = ""


ANY_IMPORTANCE = Bounds()


def prepared_schema(schema: pa.Schema, unit: TimeUnit) -> pa.Schema:
    """Return the schema of a prepared record batch: key, time, row hash, then c0, c1, ..."""
    head = [(KEY, pa.uint64()), (TIME, pa.from_numpy_dtype(unit.dtype)), (ROW_HASH, pa.uint64())]
    payload = [(f"c{i}", field.type) for i, field in enumerate(schema)]
    return pa.schema([pa.field(n, t) for n, t in head + payload])


def prepare(
    side: Side, unit: TimeUnit, batch: pa.RecordBatch, bounds: Bounds = ANY_IMPORTANCE
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """Hash the rows of one input; drop and count rows that can never join.

    Importance must be within the bounds.
    """
    timed, keyed = usable(side, unit, batch)
    good = pc.and_(timed, keyed)
    dropped = {"null_times": batch.num_rows - timed.true_count}
    dropped["null_keys"] = timed.true_count - good.true_count
    if good.true_count < batch.num_rows:
        batch = batch.filter(good)
    if side.importance is not None:
        check_importance(side.importance, batch.column(side.importance), bounds)
    keys = hash_columns([batch.column(n) for n in side.keys], batch.num_rows)
    row_hashes = hash_columns(batch.columns, batch.num_rows, exact=True)
    head = [pa.array(keys), pa.array(times(batch.column(side.time), unit)), pa.array(row_hashes)]
    return (
        pa.RecordBatch.from_arrays(
            [*head, *batch.columns], schema=prepared_schema(batch.schema, unit)
        ),
        dropped,
    )


def usable(
    side: Side, unit: TimeUnit, batch: pa.RecordBatch
) -> tuple[pa.BooleanArray, pa.BooleanArray]:
    """Return which rows have a time, and which have a whole key."""
    timed = batch.column(side.time).is_valid()
    if unit.kind == "real number":
        timed = pc.and_(timed, pc.is_finite(batch.column(side.time)).fill_null(False))
    keyed = pa.array(np.ones(batch.num_rows, np.bool_))
    for name in side.keys:
        keyed = pc.and_(keyed, batch.column(name).is_valid())
    return timed, keyed


def check_importance(name: str, column: pa.Array, bounds: Bounds = ANY_IMPORTANCE) -> None:
    """Raise an error if an importance is outside of its bounds."""
    values = as_floats(column)
    good = np.isfinite(values) & (values <= bounds.most)
    good &= values > 0 if bounds.above_0 else values >= 0
    if not good.all():
        least = "above 0" if bounds.above_0 else "of at least 0"
        most = "" if bounds.most == np.inf else f" and at most {bounds.most:g} (importance_limit)"
        whose = f' of "{bounds.stream}"' if bounds.stream else ""
        raise TidegateError(
            f'importance must be a finite number {least}{most}, and column "{name}"{whose} has '
            f"{quoted(column[int(np.argmin(good))].as_py())}; filter such rows, or replace it with "
            "coalesce, greatest or least"
        )


def shard_of(keys: NDArray[np.uint64], shards: int) -> NDArray[np.uint16]:
    """Return the shard (0 to shards-1) of each key hash."""
    # The product spreads every bit of a key hash upwards, so that the shard comes from other bits
    # than the low ones that hash tables use.
    from tidegate.kernel.hashing import GOLDEN  # on use, as in `settings.columns`

    high = (keys * GOLDEN) >> np.uint64(32)
    return ((high * np.uint64(shards)) >> np.uint64(32)).astype(np.uint16)


def payload_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of the input from a prepared record batch."""
    return pa.RecordBatch.from_arrays(
        batch.columns[PREPARED:], schema=pa.schema(list(batch.schema)[PREPARED:])
    )
