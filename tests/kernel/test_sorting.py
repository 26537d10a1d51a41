"""The lowest items of a list, sorted, compared with a plain sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tidegate.kernel import sorting
from tidegate.kernel.layout import ranked_type

RANKED = ranked_type(np.dtype(np.float64))
RANKS: dict[str, Callable[[np.random.Generator, int], NDArray[Any]]] = {
    "even": lambda rng, n: rng.random(n),
    "counts": lambda rng, n: rng.poisson(2, n),
    "equal": lambda rng, n: np.ones(n),
    "skewed": lambda rng, n: np.exp(40 * rng.random(n)),
    "close, one far away": lambda rng, n: np.where(np.arange(n) == 0, 1e300, rng.random(n)),
    "endless": lambda rng, n: rng.choice([-np.inf, 0.0, 1.0, np.inf], n),
    "ascending": lambda rng, n: np.arange(n),
    "descending": lambda rng, n: -np.arange(n),
}


@numba.njit
def run(items: Any, n: int, k: int, found: Any, spare: Any, ends: Any, counts: Any) -> None:
    sorting.lowest(items, n, k, found, spare, ends, counts)


def check(rank: NDArray[Any], seq: NDArray[Any], k: int, room: int | None = None) -> None:
    """Compare `lowest` with a sort; `room` is the length of the list that receives the lowest."""
    n = len(rank)
    items = np.zeros(n, RANKED)
    items["rank"], items["seq"], items["item"] = rank, seq, np.arange(n)
    items["life"] = np.arange(n) % 7
    wanted = np.sort(items, order=("rank", "seq"))
    found, spare = np.zeros(n if room is None else room, RANKED), np.zeros(n, RANKED)
    counts = np.zeros(sorting.CELLS + sorting.PARTS, np.int64)
    run(items, n, k, found, spare, np.zeros(sorting.PARTS), counts)
    assert (found[:k] == wanted[:k]).all()
    assert (np.sort(items[: n - k], order=("rank", "seq")) == wanted[k:]).all()


@given(
    st.sampled_from(list(RANKS)),
    st.sampled_from([1, 2, 16, 17, 33, 40, 300, 5_000, 20_000, 70_000]),
    st.floats(0, 1),
    st.booleans(),
    st.integers(0, 99),
)
@example("even", 70_000, 0.25, False, 0)
@example("counts", 70_000, 0.25, False, 0)
@example("skewed", 70_000, 0.5, False, 0)
@example("ascending", 70_000, 0.25, True, 0)
def test_the_least_of_a_list_in_order(
    kind: str, n: int, share: float, in_turn: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    seq = np.arange(n) if in_turn else rng.permutation(n)
    check(RANKS[kind](rng, n), seq, max(1, int(share * n)))


@pytest.mark.parametrize("strange", [-1.0, 2.0])
def test_a_sample_that_misleads(strange: float) -> None:
    """All sampled items are lower, or higher, than the others."""
    n, rng = 40 * 1024, np.random.default_rng(0)
    rank = rng.random(n)
    rank[::40] = strange + rng.random(n // 40)
    check(rank, rng.permutation(n), n // 4, room=n // 2)
