"""Tests of kernel functions on their own."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.kernel import compiling, hashing
from tidegate.kernel.hashing import fold, hash_bytes, sum_runs
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


@pytest.mark.skipif(not compiling._COMPILES, reason="nothing is compiled")
def test_the_cache_on_disk_knows_the_sources_of_a_loop() -> None:
    from tidegate.joins.window.loop import advance

    stamp = advance._cache._cache_file._source_stamp  # type: ignore[attr-defined]
    assert stamp == compiling.fingerprint("tidegate.joins.window.loop")


def test_a_change_invalidates_the_compiled_code_that_depends_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dependencies are taken from what is imported at run time, not from the text of sources."""
    modules = sorted(compiling._SOURCES)
    for name in modules:
        importlib.import_module(name)
    used = {name: _used_modules(name, set(modules)) for name in modules}
    uncached = compiling.fingerprint.__wrapped__
    before = {name: uncached(name) for name in modules}
    for changed in modules:
        source = compiling._SOURCES[changed]
        monkeypatch.setitem(compiling._SOURCES, changed, source + b"# changed")
        stale = {name for name in modules if uncached(name) != before[name]}
        monkeypatch.setitem(compiling._SOURCES, changed, source)
        assert stale >= {name for name in modules if changed in used[name]}, changed
    assert before["tidegate.joins.window.loop"] != before["tidegate.joins.star.loop"]


def _used_modules(name: str, among: set[str]) -> set[str]:
    """Return the modules of compiled code that a module reaches through its global names."""
    found, waiting = {name}, [name]
    while waiting:
        for value in vars(sys.modules[waiting.pop()]).values():
            home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "")
            if home in among - found:
                found.add(home)
                waiting.append(home)
    return found


PINNED = [
    ["0000000000000000", "0000000000000000", "e220a8397b1dcdaf", "6061eff69a95c91c"],
    ["4179b061e0c0e0d0", "9e3779b9e17d05ac", "910a2dec89025cc1", "b363156e3b9e69a5"],
    ["3efdea49c590f4ec", "0c93a7b7967e0f2c", "157a3807a48faa9d", "1a6768e4472e7e18"],
]
PINNED_FOLDS = ["463c261c6e34b3aa", "d1158931b57d7afb"]


@numba.njit
def mixed(words: Any, out: Any) -> None:
    for i in range(words.shape[0]):
        out[i, 0] = hashing.mix(words[i])
        out[i, 1] = hashing.multiply_shift(words[i], hashing.GOLDEN)
        out[i, 2] = hashing.splitmix64(words[i], 1)
        out[i, 3] = hashing.splitmix64(words[i], np.int64(-3))


def test_mixers_are_what_checkpoints_were_written_with() -> None:
    words = np.array([0, 1, 0x0123456789ABCDEF], np.uint64)
    out = np.zeros((3, 4), np.uint64)
    with np.errstate(over="ignore"):
        mixed(words, out)
    state = np.array([0, 1], np.uint64)
    fold(state, np.array([5, 2**64 - 1], np.uint64))
    assert [[f"{word:016x}" for word in row] for row in out.tolist()] == PINNED
    assert [f"{word:016x}" for word in state.tolist()] == PINNED_FOLDS
