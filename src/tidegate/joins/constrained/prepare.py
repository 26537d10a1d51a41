"""Prepare the rows of a constrained join's streams for its engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.engine.prepare import KEY, ROW_HASH, TIME
from tidegate.joins.constrained import layout as layout
from tidegate.joins.constrained.arrays import sample_threshold
from tidegate.joins.constrained.spec import ConstrainedJoin, Stream
from tidegate.settings.columns import hash_columns, plain
from tidegate.settings.times import times
from tidegate.sql.conditions import Filter

BITS = "bits"


class Side:
    """Layout of a prepared batch of one stream. The payload has the columns `more` in addition."""

    def __init__(self, spec: ConstrainedJoin, at: int, more: Sequence[pa.Field] = ()) -> None:
        self.stream = spec.streams[at]
        edges = spec.graph.edges
        self.keys = [edges[e].parent_keys for e in spec.graph.children(at)]
        self.keys += [edges[e].child_keys for e in spec.graph.parents(at)]
        if self.stream.by is not None:
            self.keys.append((self.stream.by,))
        head = [(KEY, pa.uint64()), (TIME, pa.int64()), (ROW_HASH, pa.uint64()), (BITS, pa.uint8())]
        hashes = [(f"h{j}", pa.uint64()) for j in range(len(self.keys))]
        values = [(f"v{j}", pa.int64()) for j in range(len(self.stream.ordered))]
        payload = [(f"c{i}", f.type) for i, f in enumerate(self.stream.kept_schema)]
        payload += [(f.name, f.type) for f in more]
        self.payload_at = len(head) + len(hashes) + len(values)
        self.schema = pa.schema([pa.field(n, t) for n, t in head + hashes + values + payload])
        self.payload_schema = pa.schema(list(self.schema)[self.payload_at :])

    def payload(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the payload of prepared rows."""
        return pa.RecordBatch.from_arrays(
            batch.columns[self.payload_at :], schema=self.payload_schema
        )


def prepare(
    spec: ConstrainedJoin, at: int, batch: pa.RecordBatch
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """Return the rows of one stream with their keys hashed, and how many were dropped."""
    side = Side(spec, at)
    stream = side.stream
    timed = batch.column(stream.time).is_valid()
    dropped = {"null_times": batch.num_rows - timed.true_count}
    if timed.true_count < batch.num_rows:
        batch = batch.filter(timed)
    rows = batch.num_rows
    keyed = np.ones(rows, np.bool_)
    joined = side.keys if stream.by is None else side.keys[:-1]
    for name in {name for names in joined for name in names}:
        keyed &= batch.column(name).is_valid().to_numpy(zero_copy_only=False)
    bits = np.where(keyed, layout.KEYED, 0).astype(np.uint8)
    bits[_passing(stream, batch) & keyed] |= layout.PASSES
    row_hashes = hash_columns(batch.columns, rows, exact=True)
    shards = spec.shard_columns
    key = row_hashes if shards is None else hash_columns([batch.column(shards[at])], rows)
    if spec.watched:
        # Sample by the key that all joins share, if there is one. All rows of a result are then
        # sampled together, and the result counts once, however many constraints would have lost it.
        bits[key < sample_threshold(spec.monitor.p)] |= layout.SAMPLED
    when = times(batch.column(stream.time), spec.unit)
    columns = [pa.array(key), pa.array(when), pa.array(row_hashes), pa.array(bits)]
    for names in side.keys:
        columns.append(pa.array(hash_columns([batch.column(n) for n in names], rows)))
    columns += [pa.array(order_of(batch.column(name))) for name in stream.ordered]
    columns += [batch.column(name) for name in stream.kept]
    return pa.RecordBatch.from_arrays(columns, schema=side.schema), dropped


def _passing(stream: Stream, batch: pa.RecordBatch) -> NDArray[np.bool_]:
    if stream.filter is None:
        return np.ones(batch.num_rows, np.bool_)
    return Filter(stream.filter, stream.schema, stream.name).passing(batch)


def order_of(column: pa.Array) -> NDArray[np.int64]:
    """Return integers in the order of a column's values; nulls have any place."""
    column = plain(column)
    kind = column.type
    if pa.types.is_floating(kind):
        reals = np.asarray(column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False))
        reals = np.where(np.isnan(reals), np.inf, reals + 0.0)
        bits = reals.view(np.int64)
        order: NDArray[np.int64] = np.where(bits < 0, np.int64(-(2**63)) - bits, bits) >> 1
        return order
    if pa.types.is_decimal(kind):
        shift = pa.scalar(10**kind.scale).cast(pa.decimal128(19, 0))
        column = pc.multiply(column, shift).cast(pa.int64(), safe=False)
    elif pa.types.is_uint64(kind):
        column = pc.min_element_wise(column, pa.scalar(2**62, kind), skip_nulls=False)
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    values = np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))
    # Limit values to half the range of int64, so that adding any k does not overflow. The order of
    # larger values is lost.
    clipped: NDArray[np.int64] = np.clip(values, -(2**61), 2**61).astype(np.int64)
    return clipped
