"""Streams in Parquet files: order, cuts, atomic writes, bad input."""

from __future__ import annotations

import math
import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import TidegateError
from tidegate.streams import auctions, cut_by_time, read_parquet, write_parquet_batches, zipf


def test_files_are_read_back_in_time_order(tmp_path: Path) -> None:
    left, _ = zipf(1_000)
    paths = write_parquet_batches(left, tmp_path / "new" / "left", time="time", batches=7)
    assert [path.name for path in paths] == [f"part-{i:05d}.parquet" for i in range(7)]
    assert pa.Table.from_batches(read_parquet(tmp_path / "new" / "left")) == left


def test_reads_in_name_order_and_in_small_batches(tmp_path: Path) -> None:
    for name, start in (("b", 10), ("a", 0), ("c", 20)):
        pq.write_table(pa.table({"x": range(start, start + 10)}), tmp_path / f"{name}.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".d.parquet").write_text("half a file")
    (tmp_path / "_e.parquet").write_text("not for readers")
    (tmp_path / "notes.txt").write_text("hello")
    batches = list(read_parquet(tmp_path, batch_rows=4))
    assert [value for batch in batches for value in batch["x"].to_pylist()] == list(range(30))
    assert max(batch.num_rows for batch in batches) == 4


def test_reads_one_file_and_columns_in_the_given_order(tmp_path: Path) -> None:
    file = tmp_path / "data"
    pq.write_table(pa.table({"a": [1], "b": ["x"], "c": [[1, 2]]}), file)
    (batch,) = read_parquet(str(file), columns=["c", "a"])
    assert batch.schema.names == ["c", "a"]
    assert batch.to_pylist() == [{"c": [1, 2], "a": 1}]


def test_the_reader_reports_errors_before_the_first_batch(tmp_path: Path) -> None:
    with pytest.raises(TidegateError, match='path must be a Parquet file .*nowhere" is not'):
        read_parquet(tmp_path / "nowhere")
    with pytest.raises(TidegateError, match='holds no ".parquet" file'):
        read_parquet(tmp_path)
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "1.parquet")
    with pytest.raises(TidegateError, match='"z" not found in .*; its columns are "a", "b"'):
        read_parquet(tmp_path, columns=["a", "z"])
    with pytest.raises(TidegateError, match=r'columns must be a list of names such as \["a"\]'):
        read_parquet(tmp_path, columns="a")
    with pytest.raises(TidegateError, match="batch_rows must be"):
        read_parquet(tmp_path, batch_rows=0)
    broken = tmp_path / "0.parquet"
    broken.write_text("this is not Parquet")
    with pytest.raises(TidegateError, match="cannot be read as Parquet"):
        read_parquet(tmp_path)


def test_the_reader_refuses_another_schema(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "2.parquet")
    batches = read_parquet(tmp_path)
    assert next(batches).to_pylist() == [{"a": 1}]
    with pytest.raises(TidegateError, match="2.parquet.* has other columns or types than"):
        next(batches)


def test_cut_matches_an_example_by_hand() -> None:
    table = pa.table({"t": [9, 0, 5, 4, None, 5], "row": range(6)})
    first, second = cut_by_time(table, time="t", batches=2)
    assert first["row"].to_pylist() == [4, 1, 3], "no time, then 0 and 4"
    assert second["row"].to_pylist() == [2, 5, 0], "5 twice in their order, then 9"


def test_cut_with_one_span_keeps_streams_in_step() -> None:
    left, right = auctions(200)
    span = (left["ts"][0].as_py(), right["ts"][-1].as_py())
    first, last = left["ts"][0].value, right["ts"][-1].value
    for table in (left, right):
        pieces = cut_by_time(table, time="ts", batches=10, span=span)
        assert sum(piece.num_rows for piece in pieces) == table.num_rows
        for index, piece in enumerate(pieces):
            for time in piece["ts"].cast(pa.int64()).to_pylist():
                assert (time - first) * 10 // (last - first + 1) == index


def test_cut_accepts_unsorted_views_only_in_order() -> None:
    words = pa.array(["a", "b"], type=pa.string_view())
    ordered = cut_by_time(pa.table({"t": [1, 2], "w": words}), time="t", batches=2)
    assert [piece["w"].to_pylist() for piece in ordered] == [["a"], ["b"]]
    with pytest.raises(TidegateError, match="sort it or cast the column"):
        cut_by_time(pa.table({"t": [2, 1], "w": words}), time="t", batches=2)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-128, 127, 3]),
        (pa.uint64(), [0, 7, 3]),
        (pa.int64(), [-(2**63), 2**63 - 1, 0]),
        (pa.float64(), [0.5, math.inf, 2.5]),
        (pa.float32(), [0.5, math.nan, 0.75]),
        (pa.date32(), [date(2026, 1, 1), date(2026, 3, 1), date(2026, 1, 2)]),
        (pa.date64(), [date(2026, 1, 1), date(2026, 3, 1), date(2026, 1, 2)]),
        (pa.timestamp("ns"), [0, 2**62, 1]),
        (pa.timestamp("s", tz="UTC"), [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 9, 2)]),
    ],
)
def test_cut_accepts_every_type_of_time(kind: pa.DataType, values: list[Any]) -> None:
    table = pa.table({"t": pa.array(values, type=kind), "row": range(3)})
    pieces = cut_by_time(table, time="t", batches=3)
    rows = [row for piece in pieces for row in piece["row"].to_pylist()]
    assert rows == [0, 2, 1]
    assert pieces[-1]["row"].to_pylist()[-1] == 1
    assert pieces[0]["row"].to_pylist()[0] == 0
    assert all(piece.schema == table.schema for piece in pieces)


@settings(max_examples=100, deadline=None)
@given(
    times=st.lists(st.none() | st.integers(-1000, 1000)),
    batches=st.integers(1, 9),
    span=st.none() | st.tuples(st.integers(-50, 0), st.integers(0, 50)),
)
def test_cut_keeps_every_row_and_never_divides_a_tick(
    times: list[int | None], batches: int, span: tuple[int, int] | None
) -> None:
    table = pa.table({"t": pa.array(times, type=pa.int64()), "row": range(len(times))})
    pieces = cut_by_time(table, time="t", batches=batches, span=span)
    assert len(pieces) == batches
    found = [row for piece in pieces for row in piece["row"].to_pylist()]
    assert found == sorted(
        range(len(times)), key=lambda row: (times[row] is not None, times[row] or 0)
    )
    ticks = [set(piece["t"].to_pylist()) for piece in pieces]
    assert sum(map(len, ticks)) == len(set(times))


def test_files_are_in_order_for_spark(tmp_path: Path) -> None:
    table = pa.table({"t": [0, 1, 100]})
    first = write_parquet_batches(table, tmp_path, time="t", batches=4, prefix="z")
    second = write_parquet_batches(table, tmp_path, time="t", batches=4, prefix="a")
    seconds = [int(path.stat().st_mtime) for path in first + second]
    assert seconds == sorted(set(seconds)), "ascending in whole seconds, across calls too"
    assert [pq.read_metadata(path).num_rows for path in first] == [2, 0, 0, 1]
    assert sorted(os.listdir(tmp_path)) == sorted(path.name for path in first + second)


def test_a_table_without_rows_or_times_is_written(tmp_path: Path) -> None:
    empty = pa.table({"t": pa.array([], type=pa.int64())})
    paths = write_parquet_batches(empty, tmp_path, time="t", batches=2)
    assert [pq.read_table(path).schema for path in paths] == [empty.schema] * 2
    nulls = pa.table({"t": pa.array([None, None], type=pa.timestamp("us"))})
    assert [piece.num_rows for piece in cut_by_time(nulls, time="t", batches=2)] == [2, 0]


def test_existing_files_are_not_replaced(tmp_path: Path) -> None:
    table = pa.table({"t": [0, 1]})
    write_parquet_batches(table, tmp_path, time="t", batches=1)
    with pytest.raises(TidegateError, match="exists already; choose an empty folder"):
        write_parquet_batches(table, tmp_path, time="t", batches=2)
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time": "when"}, 'time must name one column of the table, not "when".*"t", "s"'),
        ({"time": "s"}, 'time column "s" must hold numbers, timestamps or dates, not string'),
        ({"batches": 0}, "batches must be a whole number"),
        ({"batches": 100_001}, "batches must be at most 100,000"),
        ({"span": (5, 1)}, r"span must be a finite pair \(first, last\)"),
        ({"span": ("a", "b")}, "span must be a pair of times of type int64"),
        ({"span": (1, None)}, "span must be a pair of times"),
        ({"span": 5}, "span must be a pair of times"),
        ({"span": (1, 2, 3)}, "span must be a pair of times"),
        ({"prefix": "_x"}, 'prefix must be .*not "_x"'),
        ({"prefix": "a/b"}, "prefix must be"),
        ({"prefix": ""}, "prefix must be"),
        ({"table": {"t": [1]}}, "table must be a pyarrow.Table, not dict"),
    ],
)
def test_bad_input_leaves_no_file(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    given_arguments = {"table": pa.table({"t": [0, 1], "s": ["a", "b"]}), "time": "t", "batches": 2}
    with pytest.raises(TidegateError, match=message):
        write_parquet_batches(folder=tmp_path / "out", **{**given_arguments, **arguments})
    assert not (tmp_path / "out").exists()


def test_too_large_times_and_a_file_as_folder_are_refused(tmp_path: Path) -> None:
    huge = pa.table({"t": pa.array([2**64 - 1], type=pa.uint64())})
    with pytest.raises(TidegateError, match="does not fit into int64"):
        cut_by_time(huge, time="t", batches=1)
    (tmp_path / "file").touch()
    with pytest.raises(TidegateError, match="cannot be made"):
        write_parquet_batches(pa.table({"t": [1]}), tmp_path / "file", time="t", batches=1)
