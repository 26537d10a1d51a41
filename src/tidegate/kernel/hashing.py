"""Mix 64-bit words, and hash columns from their raw buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel.compiling import Array, allocating, entry_point, inlined

#: Odd factors whose products spread a word's bits: 2^64 over the golden ratio, and one more.
GOLDEN, FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


@inlined
def multiply_shift(word: Any, factor: Any) -> Any:
    """Multiply a word, and mix the upper half of the product into the lower."""
    word *= factor
    return word ^ (word >> np.uint64(32))


@inlined
def mix(word: Any) -> Any:
    """Apply a bijection of 64 bits whose output bits all depend on all input bits."""
    word ^= word >> np.uint64(32)
    return multiply_shift(multiply_shift(word, FACTOR), FACTOR)


@inlined
def splitmix64(word: Any, number: Any) -> Any:
    """Return word number `number` of the random sequence that begins at a word.

    Steele, Lea and Flood (2014), with the constants of their reference implementation. Samples that
    are held in checkpoints depend on it.
    """
    z = np.uint64(word) + np.uint64(number) * GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@entry_point
def fold(state: Array, words: Array) -> None:
    """Mix one word into each running hash."""
    for i in range(state.shape[0]):
        state[i] = mix((state[i] + GOLDEN) ^ mix(words[i] + GOLDEN))


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
                h = mix(h ^ word)
                word = np.uint64(0)
                shift = np.uint64(0)
        out[i] = mix(h ^ word) ^ h
    return out


@allocating
def hash_lists(items: Array, offsets: Array) -> Array:
    """Return a hash of each run items[offsets[i]:offsets[i + 1]] of hashes."""
    n = offsets.shape[0] - 1
    out = np.empty(n, np.uint64)
    for i in range(n):
        h = mix(np.uint64(offsets[i + 1] - offsets[i]))
        for j in range(offsets[i], offsets[i + 1]):
            h = mix(h + GOLDEN) ^ items[j]
        out[i] = mix(h)
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
