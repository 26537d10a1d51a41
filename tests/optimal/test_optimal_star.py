"""The optimum of star joins against the state graph of paper 4, and against policies."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.errors import TidegateError

#: The example of section 3.1.1. The paper's `[-1, 5]` is `[-1, 5)` here.
R = pa.table({"t": range(6), "a": [1, 0, 1, 0, 2, 5], "w": [5.0, 1.0, 4.0, 8.0, 3.0, 2.0]})
S = pa.table({"t": range(6), "b": [1, 3, 3, 8, 3, 5], "w": [1.0, 5.0, 2.0, 6.0, 4.0, 3.0]})
F = pa.table(
    {
        "a": [0, 1, 0, 4, 1, 5],
        "b": [3, 5, 8, 5, 3, 8],
        "begin": [-1, -1, -1, -1, -1, 3],
        "end": pa.array([None, None, None, None, 5, None], pa.int64()),
    }
)
EXAMPLE: dict[str, Any] = {
    "on": {"r": "a", "s": "b"},
    "time": "t",
    "within": 4,
    "interval": ("begin", "end"),
}
HALVES: dict[str, Any] = {"memory": 4, "split": "fixed"}


def earned(table: pa.Table) -> tuple[float, float, float]:
    """Return what held rows of r, held rows of s, and rows of one time earn."""
    gains = [0.0, 0.0, 0.0]
    for row in table.to_pylist():
        by = 2 if row["t_r"] == row["t_s"] else int(row["t_r"] > row["t_s"])
        gains[by] += min(row["w_r"], row["w_s"])
    return gains[0], gains[1], gains[2]


@pytest.mark.proves(optimal_star="local")
def test_the_example_of_paper_4() -> None:
    streams = {"r": R, "s": S}
    exact = tg.star_join(streams, F, **EXAMPLE, importance="w")
    assert (exact.results, exact.importance) == (15, 43)
    best = tg.optimal_star(
        streams, F, **EXAMPLE, **HALVES, importance="w", shed_when="before-probe"
    )
    assert (best.results, best.importance, best.upper_bound) == (11, 38, 38)
    assert earned(best.table) == (18, 11, 9)
    largest = tg.optimal_star(streams, F, **EXAMPLE, **HALVES, shed_when="before-probe")
    assert (largest.results, largest.upper_bound) == (12, 12)
    later = tg.optimal_star(streams, F, **EXAMPLE, **HALVES, importance="w")
    assert (later.importance, later.upper_bound) == (42, 42)
    assert later.counters["filtered"] == 2


# ---- the state graph ---------------------------------------------------------------------------


def state_graph(
    mine: list[tuple[int, int, float]],
    theirs: list[tuple[int, int, float]],
    facts: list[tuple[int, int, float, float]],
    window: int,
    places: int,
    *,
    evict_first: bool,
) -> float:
    """Algorithm 3.1: return the largest weight of a path through all possible contents of memory.

    `mine` and `theirs` are (time, key, importance); facts are (my key, their key, begin, end). With
    `evict_first`, the row that is replaced does not join the newcomer, as in the paper.
    """
    best: dict[frozenset[int], float] = {frozenset(): 0.0}
    for time in sorted({t for t, _, _ in [*mine, *theirs]}):
        newcomers = [
            i
            for i, (t, k, _) in enumerate(mine)
            if t == time and any(f[0] == k and f[2] <= t < f[3] for f in facts)
        ]
        after: dict[frozenset[int], float] = defaultdict(lambda: -math.inf)
        for held, value in best.items():
            live = frozenset(i for i in held if mine[i][0] + window > time)
            kept = [live] if not evict_first else subsets(live)
            for old in kept:
                gain = value + sum(
                    min(mine[i][2], w)
                    for i in old
                    for t, k, w in theirs
                    for a, b, begin, end in facts
                    if t == time and (mine[i][1], k) == (a, b)
                    if begin <= time < end and begin <= mine[i][0] < end
                )
                for state in subsets(old | frozenset(newcomers)):
                    if evict_first and state - frozenset(newcomers) != old:
                        continue
                    if len(state) <= places:
                        after[state] = max(after[state], gain)
        best = after
    return max(best.values())


def subsets(of: frozenset[int]) -> list[frozenset[int]]:
    found = [frozenset[int]()]
    for one in of:
        found += [some | {one} for some in found]
    return found


def together(
    r: list[tuple[int, int, float]],
    s: list[tuple[int, int, float]],
    facts: list[tuple[int, int, float, float]],
) -> float:
    """Algorithm 3.2: return what rows of one time earn."""
    return sum(
        min(w, v)
        for t, k, w in r
        for u, j, v in s
        for a, b, begin, end in facts
        if t == u and (k, j) == (a, b) and begin <= t < end
    )


sides = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 2), st.sampled_from([1.0, 2.0, 3.5])), max_size=7
)
facts_of = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.integers(-1, 6), st.integers(0, 7)).filter(lambda i: i[0] <= i[1]),
    max_size=6,
)


@given(sides, sides, facts_of, st.integers(1, 5), st.integers(1, 2), st.booleans())
def test_the_flow_matches_the_state_graph(
    r: list[tuple[int, int, float]],
    s: list[tuple[int, int, float]],
    active: dict[tuple[int, int], tuple[int, int]],
    window: int,
    places: int,
    evict_first: bool,
) -> None:
    facts = [(a, b, float(x), float(y)) for (a, b), (x, y) in active.items()]
    flipped = [(b, a, x, y) for a, b, x, y in facts]
    expected = together(r, s, facts)
    for mine, theirs, known in ((r, s, facts), (s, r, flipped)):
        expected += state_graph(mine, theirs, known, window, places, evict_first=evict_first)
    schema = pa.schema([("t", pa.int64()), ("k", pa.int64()), ("w", pa.float64())])
    tables = [
        pa.Table.from_pylist([dict(zip("tkw", u, strict=True)) for u in side], schema)
        for side in (r, s)
    ]
    whole = pa.int64()
    relation = pa.table(
        {
            "a": pa.array([f[0] for f in facts], whole),
            "b": pa.array([f[1] for f in facts], whole),
            "x": pa.array([int(f[2]) for f in facts], whole),
            "y": pa.array([int(f[3]) for f in facts], whole),
        }
    )
    best = tg.optimal_star(
        tables,
        relation,
        on=[{"k": "a"}, {"k": "b"}],
        time="t",
        within=window,
        interval=("x", "y"),
        memory=2 * places,
        split="fixed",
        importance="w",
        shed_when="before-probe" if evict_first else "after-probe",
    )
    assert best.importance == best.upper_bound == expected
    assert best.results == len(best.table)


# ---- against policies ----------------------------------------------------------------------------


def paper_streams(n: int, seed: int) -> tuple[dict[str, pa.Table], pa.Table]:
    """Section 4.1: Zipf and uniform keys, rare keys more important, a uniform relation."""
    rng = np.random.default_rng(seed)
    zipf = np.minimum(rng.zipf(1.5, n), 50) - 1
    uniform = rng.integers(0, 50, n)
    streams = {}
    for name, key, values in (("r", "a", zipf), ("s", "b", uniform)):
        common = np.bincount(values, minlength=50)[values]
        weight = np.ceil(5 * (1 - common / (common.max() + 1)))
        streams[name] = pa.table({key: values, "t": np.arange(n), "w": weight})
    pairs = rng.permutation(2500)[:250]
    return streams, pa.table({"a": pairs // 50, "b": pairs % 50})


@pytest.mark.parametrize("shed_when", ["after-probe", "before-probe"])
def test_no_policy_passes_the_optimum(shed_when: str) -> None:
    streams, facts = paper_streams(600, 3)
    settings: dict[str, Any] = {
        "on": {"r": "a", "s": "b"},
        "time": "t",
        "within": 20,
        "importance": "w",
        "memory": 8,
        "split": "fixed",
        "shed_when": shed_when,
    }
    best = tg.optimal_star(streams, facts, **settings)
    assert best.importance == best.upper_bound
    exact = tg.star_join(streams, facts, **settings | {"memory": None})
    assert exact.importance == best.counters["exact_importance"]
    found = {
        policy: tg.star_join(streams, facts, **settings, policy=policy).importance
        for policy in ("auto", "prob", "simp", "simpprob", "dimpprob", "dgl", "rand")
    }
    assert max(found.values()) <= best.importance < exact.importance
    # A policy that uses the relation is better than chance.
    assert found["auto"] > found["rand"]
    assert found["auto"] > 0.6 * best.importance


def test_unsuitable_settings_are_refused() -> None:
    settings = {**EXAMPLE, **HALVES}
    with pytest.raises(TidegateError, match="takes no policy; leave it out"):
        tg.optimal_star({"r": R, "s": S}, F, **settings, policy="simp")  # type: ignore[call-arg]
    with pytest.raises(TidegateError, match="before-arrival"):
        tg.optimal_star({"r": R, "s": S}, F, **settings, shed_when="before-arrival")
    with pytest.raises(TidegateError, match="two streams"):
        tg.optimal_star({"r": R}, F, on=["a"], time="t")
