"""Packed rows are at most 4 MB, unless a single row is larger."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from tidegate.engine.payload import PIECE_BYTES, cut_batch
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join
from tidegate.spark.packing import Pack, decode, pack_results

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("s", pa.string())])


def _rows(sizes: list[int]) -> pa.RecordBatch:
    rows = range(len(sizes))
    return pa.record_batch([rows, rows, ["x" * size for size in sizes]], schema=SCHEMA)


def _packed(batches: Iterator[pa.RecordBatch], labels: tuple[int, ...]) -> pa.Table:
    job = WindowJob(window_join(SCHEMA, SCHEMA, on="k", time="t", within=9))
    return pa.Table.from_batches(list(Pack(job, 0, SCHEMA, labels)(batches)))


@pytest.mark.parametrize("labels", [(0,), (0, 3, 5)])
def test_input_crosses_the_shuffle_in_small_pieces(labels: tuple[int, ...]) -> None:
    sizes = [10] * 500 + [1_000_000] * 50 + [5_000_000] + [300_000] * 30
    batches = [_rows(sizes[:520]), _rows(sizes[520:])]
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
    for batches in ([], [_rows([])]):
        found = _packed(iter(batches), (0, 3, 5))
        assert found.column("shard").to_pylist() == [0, 3, 5]
        assert found.column("data").to_pylist() == [b""] * 3


@pytest.mark.parametrize("size", [10, 40_000, 2_097_152, 4_194_304])
def test_packed_results_are_small(size: int) -> None:
    batch = _rows([size] * max(20_000_000 // size, 3) if size > 10 else [size] * 400_000)
    pieces = list(cut_batch(batch))
    packed = list(pack_results(pieces, SCHEMA))
    inside = [decode(data) for data in packed]
    for data, batches in zip(packed, inside, strict=True):
        assert sum(b.num_rows for b in batches) == 1 or len(data) <= PIECE_BYTES
    keys = [b.column("k").to_numpy() for batches in inside for b in batches]
    assert (np.concatenate(keys) == np.arange(batch.num_rows)).all()


def test_small_pieces_share_a_packed_row() -> None:
    assert len(list(pack_results([_rows([10])] * 1_000, SCHEMA))) == 1
