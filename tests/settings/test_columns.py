"""Hashes, sizes and equality of columns of any type."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.settings.columns import equal, hash_column, row_bytes

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False, None]),
    "int8": (pa.int8(), [1, -1, 0, None]),
    "int64": (pa.int64(), [1, -1, 2**62, None]),
    "double": (pa.float64(), [1.5, -1.5, 0.0, None]),
    "string": (pa.string(), ["", "a", "b", "abcdefgh", "abcdefghi", "a\0", None]),
    "large": (pa.large_string(), ["", "a", "ab", None]),
    "view": (pa.string_view(), ["", "a", "a string that is not stored inline", None]),
    "binary": (pa.binary(), [b"", b"a", b"\0", b"\0\0", None]),
    "fixed": (pa.binary(3), [b"abc", b"abd", None]),
    "decimal": (pa.decimal128(20, 2), [Decimal("1.00"), Decimal("-1.00"), Decimal("1.01"), None]),
    "date": (pa.date32(), [dt.date(2026, 1, 1), dt.date(2026, 1, 2), None]),
    "timestamp": (pa.timestamp("us", "UTC"), [0, 1, 10**15, None]),
    "list": (pa.list_(pa.int32()), [[], [1], [1, 2], [2, 1], [None], None]),
    "fixed list": (pa.list_(pa.int32(), 2), [[1, 2], [2, 1], None]),
    "struct": (
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        [
            {"x": 1, "y": "a"},
            {"x": 1, "y": "b"},
            {"x": None, "y": "a"},
            None,
        ],
    ),
    "map": (pa.map_(pa.string(), pa.int32()), [[], [("a", 1)], [("a", 2)], [("b", 1)], None]),
    "nested": (
        pa.list_(pa.struct([("z", pa.list_(pa.string()))])),
        [
            [],
            [{"z": ["a"]}],
            [{"z": ["a", "b"]}],
            [{"z": ["a"]}, {"z": ["b"]}],
            [{"z": None}],
            None,
        ],
    ),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_different_values_have_different_hashes_in_any_slice(name: str) -> None:
    kind, values = COLUMNS[name]
    array = pa.array(values * 2, kind)
    hashes = hash_column(array)
    assert len(set(hashes[: len(values)].tolist())) == len(values)
    assert hashes[: len(values)].tolist() == hashes[len(values) :].tolist()
    # A slice has the same buffers at an offset.
    assert hash_column(array.slice(1, 3)).tolist() == hashes[1:4].tolist()
    assert (
        hash_column(array, exact=True).tolist() == hash_column(array.slice(0), exact=True).tolist()
    )


@pytest.mark.parametrize("name", COLUMNS)
def test_equality_agrees_with_python(name: str) -> None:
    kind, values = COLUMNS[name]
    pairs = [(x, y) for x in values for y in values]
    left, right = (pa.array([p[i] for p in pairs], kind) for i in range(2))
    assert equal(left, right).tolist() == [x == y for x, y in pairs]
    assert equal(left.slice(1), right.slice(1)).tolist() == [x == y for x, y in pairs[1:]]


def test_nan_equals_nan_and_minus_zero_equals_zero() -> None:
    other_nan = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]
    left = pa.array([np.nan, -0.0, np.nan])
    right = pa.array([other_nan, 0.0, 1.0])
    assert (hash_column(left) == hash_column(right)).tolist() == [True, True, False]
    assert equal(left, right).tolist() == [True, True, False]
    assert (hash_column(left, exact=True) == hash_column(right, exact=True)).tolist() == [False] * 3


def test_sizes_count_the_bytes_of_a_value() -> None:
    assert row_bytes(pa.array([1, 2], pa.int64())).tolist() == [8, 8]
    assert row_bytes(pa.array(["", "abc", None])).tolist() == [4, 7, 4]
    assert row_bytes(pa.array([[1, 2], []], pa.list_(pa.int32()))).tolist() == [12, 4]
    assert row_bytes(pa.array([{"x": 1, "y": "ab"}])).tolist() == [8 + 6]
    sliced = pa.array(["long string", "b", "cc"]).slice(1)
    assert row_bytes(sliced).tolist() == [5, 6]


@pytest.mark.parametrize("name", [n for n in COLUMNS if n not in ("dictionary", "view")])
def test_sizes_are_close_to_those_of_arrow(name: str) -> None:
    kind, values = COLUMNS[name]
    array = pa.array(values * 50, kind)
    assert abs(int(row_bytes(array).sum()) - array.nbytes) <= 0.25 * array.nbytes + 64 * 8
