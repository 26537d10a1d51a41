"""Tests of kernel functions on their own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidegate.kernel import compiling
from tidegate.kernel.hashing import hash_bytes, sum_runs
from tidegate.kernel.order import tick_order

row = st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 2), st.integers(0, 5))


@given(st.lists(row, max_size=80), st.booleans())
def test_tick_order_is_a_sort(cells: list[tuple[int, int, int, int]], ascending: bool) -> None:
    lefts = [c for c in cells if c[1] == 0]
    rights = [c for c in cells if c[1] == 1]
    if ascending:
        lefts.sort()
        rights.sort()
    table = np.array(lefts + rights, np.int64).reshape(-1, 4)
    time, side = table[:, 0].copy(), table[:, 1].astype(np.int8)
    key, row_hash = table[:, 2].astype(np.uint64), table[:, 3].astype(np.uint64)
    order = tick_order(time, len(lefts), side, key, row_hash)
    assert [tuple(r) for r in table[order].tolist()] == sorted(cells)


def test_a_long_tick_is_sorted_too() -> None:
    rng = np.random.default_rng(0)
    n = 500
    time = np.concatenate([np.zeros(n, np.int64), np.ones(n, np.int64)])
    side = np.zeros(2 * n, np.int8)
    key = rng.integers(0, 5, 2 * n).astype(np.uint64)
    row_hash = rng.integers(0, 9, 2 * n).astype(np.uint64)
    order = tick_order(time, 2 * n, side, key, row_hash)
    sorted_rows = list(zip(time[order], key[order], row_hash[order], strict=True))
    assert sorted_rows == sorted(sorted_rows)


def test_hashes_of_bytes_depend_on_every_byte_and_the_length() -> None:
    words = [
        b"",
        b"\0",
        b"\0\0",
        b"a",
        b"b",
        b"ab",
        b"ba",
        b"12345678",
        b"123456789",
        b"12345678\0",
    ]
    data = np.frombuffer(b"".join(words), np.uint8)
    offsets = np.cumsum([0] + [len(w) for w in words])
    assert len(set(hash_bytes(data, offsets).tolist())) == len(words)


def test_runs_add_up() -> None:
    assert sum_runs(np.array([1, 2, 3, 4]), np.array([0, 0, 3, 4])).tolist() == [0, 6, 4]


def test_the_cache_on_disk_knows_all_sources() -> None:
    """A change in any kernel file invalidates the cache of compiled code."""
    from tidegate.joins.window.loop import advance

    stamp = advance._cache._cache_file._source_stamp  # type: ignore[attr-defined]
    assert stamp == compiling._SOURCES
