"""64-bit hashes of columns, computed from their raw buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel.compiling import Array, allocating, entry_point, inlined


@inlined
def _mix(h: Any) -> Any:
    """Apply a bijection of 64 bits whose output bits all depend on all input bits."""
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    return h


@entry_point
def fold(state: Array, words: Array) -> None:
    """Mix one word into each running hash."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    for i in range(state.shape[0]):
        state[i] = _mix((state[i] + golden) ^ _mix(words[i] + golden))


@allocating
def hash_bytes(data: Array, offsets: Array) -> Array:
    """Return a hash of each byte string data[offsets[i]:offsets[i + 1]]."""
    n = offsets.shape[0] - 1
    out = np.empty(n, np.uint64)
    for i in range(n):
        start, stop = offsets[i], offsets[i + 1]
        h = np.uint64(stop - start)
        word = np.uint64(0)
        shift = np.uint64(0)
        for j in range(start, stop):
            word |= np.uint64(data[j]) << shift
            shift += np.uint64(8)
            if shift == np.uint64(64):
                h = _mix(h ^ word)
                word = np.uint64(0)
                shift = np.uint64(0)
        out[i] = _mix(h ^ word) ^ h
    return out


@allocating
def hash_lists(items: Array, offsets: Array) -> Array:
    """Return a hash of each run items[offsets[i]:offsets[i + 1]] of hashes."""
    n = offsets.shape[0] - 1
    out = np.empty(n, np.uint64)
    for i in range(n):
        h = _mix(np.uint64(offsets[i + 1] - offsets[i]))
        for j in range(offsets[i], offsets[i + 1]):
            h = _mix(h + np.uint64(0x9E3779B97F4A7C15)) ^ items[j]
        out[i] = _mix(h)
    return out


@allocating
def sum_runs(items: Array, offsets: Array) -> Array:
    """Return the sum of each run items[offsets[i]:offsets[i + 1]]."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.int64)
    for i in range(n):
        for j in range(offsets[i], offsets[i + 1]):
            out[i] += items[j]
    return out
