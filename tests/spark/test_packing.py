"""Packed rows are at most 4 MB, unless a single row is larger."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tidegate.engine.payload import PIECE_BYTES
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join
from tidegate.spark.packing import Pack, decode

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("s", pa.string())])


def rows_of(sizes: list[int]) -> pa.RecordBatch:
    rows = range(len(sizes))
    return pa.record_batch([rows, rows, ["x" * size for size in sizes]], schema=SCHEMA)


def _packed(batches: Iterator[pa.RecordBatch], labels: tuple[int, ...]) -> pa.Table:
    job = WindowJob(window_join(SCHEMA, SCHEMA, on="k", time="t", within=9))
    return pa.Table.from_batches(list(Pack(job, 0, SCHEMA, labels)(batches)))


@pytest.mark.parametrize("labels", [(0,), (0, 3, 5)])
def test_input_crosses_the_shuffle_in_small_pieces(labels: tuple[int, ...]) -> None:
    sizes = [10] * 500 + [1_000_000] * 50 + [5_000_000] + [300_000] * 30
    batches = [rows_of(sizes[:520]), rows_of(sizes[520:])]
    found = _packed(iter(batches), labels)
    rows: list[int] = []
    for data in found.column("data").to_pylist():
        inside = decode(data) if data else []
        count = sum(batch.num_rows for batch in inside)
        assert count == 1 or len(data) <= PIECE_BYTES
        rows += [len(s) for batch in inside for s in batch.column("c2").to_pylist()]
    assert sorted(rows) == sorted(sizes)
    assert set(found.column("shard").to_pylist()) == set(labels)


def test_every_shard_gets_one_packed_row_without_rows() -> None:
    for batches in ([], [rows_of([])]):
        found = _packed(iter(batches), (0, 3, 5))
        assert found.column("shard").to_pylist() == [0, 3, 5]
        assert found.column("data").to_pylist() == [b""] * 3
