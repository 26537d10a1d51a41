"""Plans of chains: against exhaustive search, their bounds, and their guarantees."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.joins.truncated import plan_chain, plan_each
from tidegate.joins.truncated.chain import Chain, Counts, independent, ndg
from tidegate.joins.truncated.plan import optdp, results
from tidegate.joins.truncated.plan_chain import best_chain
from tidegate.joins.truncated.plan_each import Searches


def results_of(chain: Chain, kept: Any) -> int:
    """Count the results of a chain group by group."""
    total = 0
    for path in itertools.product(*(range(len(rows)) for rows in kept)):
        meets = all(
            chain.after[i][path[i]] == chain.before[i][path[i + 1]] for i in range(len(path) - 1)
        )
        if meets:
            rows = [int(kept[i][at]) for i, at in enumerate(path)]
            total += int(np.prod(rows, dtype=object))
    return total


def exhaustive(chain: Chain, keep: tuple[int, ...]) -> int:
    """Return the most results of any choice of rows, by trying all choices."""
    ends = np.cumsum([len(rows) for rows in chain.counts])[:-1]
    best = 0
    for choice in itertools.product(
        *(range(count + 1) for rows in chain.counts for count in rows.tolist())
    ):
        kept = np.split(np.array(choice, np.int64), ends)
        used = [int(rows.sum()) for rows in kept]
        if sum(used) <= keep[0] if len(keep) == 1 else all(map(int.__le__, used, keep)):
            best = max(best, chain.results(kept))
    return best


def check(chain: Chain, kept: Any, keep: tuple[int, ...]) -> None:
    """Check that no more is kept than exists and than the budget allows."""
    for rows, mine in zip(chain.counts, kept, strict=True):
        assert (mine >= 0).all()
        assert (mine <= rows).all()
    used = [int(rows.sum()) for rows in kept]
    assert sum(used) <= keep[0] if len(keep) == 1 else all(map(int.__le__, used, keep))


@st.composite
def chains(draw: Any, most: int = 2, groups: int = 3, relations: int = 3) -> Chain:
    """Return relations with a few groups each, that join by one of three values."""
    sizes = [draw(st.integers(1, groups)) for _ in range(relations)]

    def numbers(size: int, least: int, largest: int) -> Counts:
        values = draw(st.lists(st.integers(least, largest), min_size=size, max_size=size))
        return np.array(values, np.int64)

    return Chain(
        tuple(numbers(size, 1, most) for size in sizes),
        tuple(numbers(size, 0, 2) for size in sizes[:-1]),
        tuple(numbers(size, 0, 2) for size in sizes[1:]),
    )


def star(rng: np.random.Generator, values: int, pairs: int, most: int) -> Chain:
    """Return A(J1), B(J1, J2), C(J2) with distinct groups and skewed counts."""

    def skewed(size: int) -> Counts:
        return np.floor(most ** rng.random(size)).astype(np.int64)

    both = rng.choice(values * values, size=pairs, replace=False)
    return Chain(
        (skewed(values), skewed(pairs), skewed(values)),
        (np.arange(values), both % values),
        (both // values, np.arange(values)),
    )


@given(chains(), chains(relations=4))
def test_results_degrees_and_combinations(three: Chain, four: Chain) -> None:
    for chain in (three, four):
        assert chain.results(chain.counts) == results_of(chain, chain.counts)
        degrees = chain.degrees(chain.counts)
        for i, rows in enumerate(chain.counts):
            assert float((degrees[i] * rows).sum()) == chain.results(chain.counts)
        paths = chain.paths()
        values = [rows[paths[:, i]] for i, rows in enumerate(chain.counts)]
        assert int(np.prod(values, axis=0).sum()) == chain.results(chain.counts)
        assert len(np.unique(paths, axis=0)) == len(paths)


def test_large_results_are_exact() -> None:
    counts = np.array([[3_000_001, 7], [3_000_017, 5], [3_000_029, 1]])
    chain = Chain.of_one_key(counts)
    assert chain.results(chain.counts) == 3_000_001 * 3_000_017 * 3_000_029 + 35


@given(chains(), st.integers(0, 14))
def test_one_budget_matches_exhaustive_search(chain: Chain, keep: int) -> None:
    found, _ = best_chain(chain, (keep,), 1.0)
    check(chain, found.kept, (keep,))
    assert chain.results(found.kept) == found.results == found.most == exhaustive(chain, (keep,))


@given(chains(), st.tuples(*[st.integers(0, 5)] * 3))
def test_budgets_for_each_match_exhaustive_search(chain: Chain, keep: tuple[int, ...]) -> None:
    found, _ = best_chain(chain, keep, 1.0)
    check(chain, found.kept, keep)
    best = exhaustive(chain, keep)
    assert chain.results(found.kept) == found.results == found.most == best
    must = chain.results(chain.counts) - best
    for method in (ndg, independent):
        kept = method(chain, keep)
        check(chain, kept, keep)
        assert must <= chain.results(chain.counts) - chain.results(kept) <= 3 * must


@given(chains(most=2, groups=2, relations=4), st.integers(0, 10))
def test_four_relations(chain: Chain, keep: int) -> None:
    found, _ = best_chain(chain, (keep,), 1.0)
    assert found.results == found.most == exhaustive(chain, (keep,))


@given(chains(), st.integers(0, 14), st.tuples(*[st.integers(0, 5)] * 3))
def test_greedy_plans_are_near_the_optimum(chain: Chain, one: int, each: tuple[int, ...]) -> None:
    """Without the integer program; the bound of the linear program holds."""
    for keep in ((one,), each):
        found, _ = best_chain(chain, keep, 0.0)
        check(chain, found.kept, keep)
        assert found.results == chain.results(found.kept)
        assert found.results <= exhaustive(chain, keep) <= found.most


def test_a_key_for_all_is_a_chain() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        counts = rng.integers(0, 6, (3, 5))
        keep = int(rng.integers(0, counts.sum()))
        found, _ = best_chain(Chain.of_one_key(counts), (keep,), 1.0)
        assert found.results == results(optdp(counts, keep))


@pytest.mark.parametrize("limit", ["_COMBINATIONS", "_SEARCHED"])
@pytest.mark.parametrize("keep", [(60,), (25, 25, 25)])
def test_each_limit_is_crossed(
    limit: str, keep: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = star(np.random.default_rng(3), 8, 20, 12)
    whole, _ = best_chain(chain, keep, 1.0)
    monkeypatch.setattr(plan_chain, limit, 5)
    less, _ = best_chain(chain, keep, 1.0)
    check(chain, less.kept, keep)
    assert 0.9 * whole.most <= less.results <= whole.most <= less.most


def test_a_search_that_is_given_up_warns_with_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_each, "EFFORT", 0.01)
    chain = star(np.random.default_rng(1), 30, 300, 30)
    searches = Searches()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = searches.chain(chain, (150,))
    check(chain, kept, (150,))
    with pytest.warns(UserWarning, match="the best within the budget might keep up to"):
        searches.warn()
