"""Streams with bursts of keys, and streams in which rows trigger their partners."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.streams._checks import choice, generators, number, whole, zipf_ranks
from tidegate.streams.auctions import SHAPES, draw_ages


def bursts(
    n: int, *, length: int = 200, at_once: int = 20, seed: int = 0
) -> tuple[pa.Table, pa.Table]:
    """Generate two streams with one row each per tick, whose keys come in bursts.

    Columns are those of :func:`zipf`. At every tick a few keys are busy, some more than others, and
    both rows have one of the busy keys. In the long run all keys are equally frequent: only the
    recent past of a key predicts its future.

    Parameters
    ----------
    n
        Length of the streams in ticks.
    length
        How many ticks a key stays busy.
    at_once
        How many keys are busy at the same time.
    seed
        The same seed gives the same tables.
    """
    n = whole("n", n, least=1)
    length = whole("length", length, least=1)
    at_once = whole("at_once", at_once, least=1)
    randoms = generators(seed, 4)
    time = np.arange(n, dtype=np.int64)
    sides = []
    for side in (0, 1):
        drawing, filling = randoms[2 * side : 2 * side + 2]
        # Each of the `at_once` places passes from key to key, at different ticks.
        place = zipf_ranks(drawing, n, at_once, 1.0)
        turn = (time + place * length // at_once) // length
        # A key becomes busy again after a while, in another place.
        key = (turn * at_once + (place + turn) % at_once) % (50 * at_once)
        sides.append(pa.table({"key": key, "time": time, "value": filling.random(n)}))
    return sides[0], sides[1]


def echoes(
    n: int,
    *,
    window: int = 400,
    domain: int = 200,
    skew: float = 1.0,
    replies: float = 1.0,
    shape: str = "dec",
    seed: int = 0,
) -> tuple[pa.Table, pa.Table]:
    """Generate a left stream of Zipf keys, one row per tick, and a right stream of replies to it.

    Columns are those of :func:`zipf`. Replies come at an age that follows `shape`, and they also
    join the other rows of their key: both the key and the age of a row matter.

    Parameters
    ----------
    n
        Length of the left stream in ticks; the right one ends with its last reply.
    window
        Upper bound (exclusive) of the age of replies.
    domain, skew
        Keys of the left stream, as in :func:`zipf`.
    replies
        Mean number of replies to a row.
    shape
        Density of ages, as in :func:`auctions`.
    seed
        The same seed gives the same tables.
    """
    n = whole("n", n, least=1)
    window = whole("window", window, least=2)
    domain = whole("domain", domain, least=1)
    count = round(n * number("replies", replies, least=0.0))
    choice("shape", shape, SHAPES)
    drawing, choosing, ageing, filling = generators(seed, 4)
    key = zipf_ranks(drawing, n, domain, number("skew", skew, least=0.0)).astype(np.int64)
    replied = choosing.integers(0, n, size=count)
    time = replied + draw_ages(ageing, count, window, shape)
    order = np.lexsort((replied, time))
    left = {"key": key, "time": np.arange(n, dtype=np.int64), "value": filling.random(n)}
    right = {"key": key[replied[order]], "time": time[order], "value": filling.random(count)}
    return pa.table(left), pa.table(right)
