"""The quality measures: worked examples, the statements of paper 1, brute force on tiny sets."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import quality
from tidegate.errors import TidegateError

small = st.lists(st.integers(0, 5), max_size=8)
tiny = st.lists(st.integers(0, 9), max_size=4)
COUNTING = [
    quality.matching,
    quality.dice,
    quality.jaccard,
    quality.cosine,
    quality.symmetric_difference,
    quality.overlap,
]


def gap(a: int, b: int) -> float:
    return abs(a - b)


def table(values: list[int]) -> pa.Table:
    return pa.table(
        {"v": pa.array(values, type=pa.int64()), "w": [str(v % 3) for v in values]},
        schema=pa.schema([("v", pa.int64()), ("w", pa.string())]),
    )


def test_worked_example() -> None:
    x, y = ["a", "a", "b", "c"], ["a", "b", "b", "d", "d", "d", "d", "d", "d"]
    assert quality.matching(x, y) == 2
    assert quality.symmetric_difference(x, y) == 2 + 7
    assert quality.dice(x, y) == 4 / 13
    assert quality.jaccard(x, y) == 2 / 11
    assert quality.cosine(x, y) == 2 / 6
    assert quality.overlap(x, y) == 2 / 4
    assert quality.recall(x, y) == 2 / 9
    assert not quality.is_submultiset(x, y)
    assert quality.is_submultiset(["b", "a"], y)
    assert not quality.is_submultiset(["a", "a"], y)


def test_empty_sets() -> None:
    pairs: list[tuple[Any, Any]] = [([], Counter()), (table([]), table([]))]
    for x, y in pairs:
        for measure in (quality.dice, quality.jaccard, quality.cosine, quality.overlap):
            assert measure(x, y) == 1
        assert quality.recall(x, y) == 1
        assert quality.symmetric_difference(x, y) == 0
        assert quality.earth_movers_distance(x, y, gap) == 0
        assert quality.match_and_compare(x, y, gap) == 0
    for measure in (quality.dice, quality.jaccard, quality.cosine, quality.matching):
        assert measure([], [1]) == measure([1], []) == 0
    assert quality.overlap([], [1]) == quality.overlap([1], []) == 1
    assert quality.recall([], [1]) == 0
    assert quality.recall([1], []) == 1
    assert quality.earth_movers_distance([], [1], gap) == 0
    assert quality.match_and_compare([], [1], gap) == math.inf
    assert quality.match_and_compare([1], [], gap) == math.inf


@pytest.mark.parametrize("measure", COUNTING)
@settings(deadline=None)
@given(x=small, y=small)
def test_symmetric_bounded_and_the_same_on_tables(
    measure: Callable[..., float], x: list[int], y: list[int]
) -> None:
    value = measure(x, y)
    assert value == measure(y, x)
    assert value == measure(table(x), table(y))
    assert value == measure(Counter(x), list(reversed(y)))
    assert value >= 0
    if measure not in (quality.matching, quality.symmetric_difference):
        assert value <= 1


@settings(deadline=None)
@given(x=small, y=small)
def test_counting_measures_against_counters(x: list[int], y: list[int]) -> None:
    a, b = Counter(x), Counter(y)
    both, either = (a & b).total(), (a | b).total()
    assert quality.matching(x, y) == both
    assert quality.symmetric_difference(x, y) == (a - b).total() + (b - a).total()
    assert quality.is_submultiset(x, y) == (a <= b)
    assert quality.jaccard(x, y) == (both / either if either else 1)
    assert quality.recall(table(x), table(y)) == (both / len(y) if y else 1)


@settings(deadline=None)
@given(y=small.filter(bool), data=st.data())
def test_subsets_as_paper_1_says(y: list[int], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(y), max_size=len(y)))
    x = [value for value, keep in zip(y, kept, strict=True) if keep]
    assert quality.is_submultiset(x, y)
    assert quality.symmetric_difference(x, y) == len(y) - len(x)
    assert quality.overlap(x, y) == 1
    assert quality.earth_movers_distance(x, y, gap) == 0
    if len(x) < len(y):
        larger = [*x, *(Counter(y) - Counter(x)).elements()][: len(x) + 1]
        for measure in (
            quality.matching,
            quality.dice,
            quality.jaccard,
            quality.cosine,
            quality.recall,
        ):
            assert measure(x, y) < measure(larger, y)


def test_equal_large_sets_have_a_cosine_of_one() -> None:
    counts = {"a": 94_906_267}
    assert quality.cosine(counts, counts) == 1


def test_rows_of_a_table_compare_as_spark_groups_them() -> None:
    x = pa.table({"f": [0.0, math.nan, None], "s": ["a", None, "b"]})
    y = pa.table({"s": ["b", "a", None], "f": [None, -0.0, -math.nan]})
    assert quality.symmetric_difference(x, y) == 0
    zero = pa.table({"f": pa.array([0.0])})
    null = pa.table({"f": pa.array([None], type=pa.float64())})
    assert quality.matching(zero, null) == 0


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 1, 2], type=pa.int8()),
        pa.array([Decimal("1.0"), None, Decimal("1.0"), Decimal("2.0")]),
        pa.array([b"a", None, b"a", b"b"]),
        pa.array(["a", None, "a", "b"], type=pa.string_view()),
        pa.array([b"a", None, b"a", b"b"], type=pa.binary_view()),
        pa.array(["a", None, "a", "b"]).dictionary_encode(),
        pa.array([1.5, None, 1.5, math.nan], type=pa.float16()),
        pa.array([[1, 2], None, [1, 2], []]),
        pa.array([{"p": [math.nan]}, None, {"p": [math.nan]}, {"p": []}]),
        pa.array([[("k", 1)], None, [("k", 1)], []], type=pa.map_(pa.string(), pa.int64())),
        pa.array([1, None, 1, 2], type=pa.timestamp("us", tz="UTC")),
        pa.chunked_array([["a", None], [], ["a", "b"]]),
    ],
)
def test_any_column_type(column: pa.Array) -> None:
    values = column.to_pylist()

    def rows(*chosen: int) -> pa.Table:
        return pa.table({"c": pa.array([values[each] for each in chosen], type=column.type)})

    x = pa.table({"c": column})
    assert quality.matching(x, rows(2, 1)) == 2
    assert quality.matching(x, rows(0, 0, 0)) == 2
    assert quality.symmetric_difference(x, rows(0, 2, 0, 3)) == 2
    assert sorted(quality.multiset(x).values()) == [1, 1, 2]


def test_multiset() -> None:
    rows = pa.table({"a": [1, 1, 2], "b": ["x", "x", None]})
    assert quality.multiset(rows) == {(1, "x"): 2, (2, None): 1}
    assert quality.multiset(["a", "b", "a"]) == {"a": 2, "b": 1}
    assert quality.multiset({"a": 2, "b": 0}) == {"a": 2}
    nested = quality.multiset(pa.table({"a": [[{"p": 1}]]}))
    assert nested == {(((("p", 1),),),): 1}
    assert quality.multiset(pa.table({"a": [math.nan, math.nan]})) == {(math.nan,): 2}
    assert quality.multiset(pa.table({"a": [1, 2]}).select([])) == {(): 2}


def test_many_rows() -> None:
    keys = np.arange(300_000) % 70_000
    exact = pa.table({"k": keys, "s": pa.array(keys % 10).cast(pa.string())})
    assert quality.recall(exact.slice(0, 150_000), exact) == 0.5


def test_importance() -> None:
    rows = pa.table({"l": [1, 2, None], "r": [3.0, 1.5, 4.0], "bad": ["a", "b", "c"]})
    assert quality.importance(rows, ("l", "r")) == 1 + 1.5 + 0
    assert quality.importance(rows, ("l", "r"), combine="max") == 3 + 2 + 4
    assert quality.importance(rows, ("l", "r"), combine="sum") == 4 + 3.5 + 4
    assert quality.importance(rows, ("l", "r"), combine="product") == 3 + 3
    assert quality.importance(rows, "r") == 8.5
    assert quality.importance(rows.slice(0, 0), "r") == 0
    assert quality.importance(pa.table({"i": [math.nan, 2.0]}), "i") == 2
    assert quality.importance(pa.table({"i": [Decimal("1.25")]}), "i") == 1.25
    with pytest.raises(TidegateError, match='"min", "max", "sum", "product", not \'mean\''):
        quality.importance(rows, "r", combine="mean")
    with pytest.raises(TidegateError, match='not "z"; they have'):
        quality.importance(rows, ("l", "z"))
    with pytest.raises(TidegateError, match='column "bad" must hold numbers, not string'):
        quality.importance(rows, "bad")
    with pytest.raises(TidegateError, match="one name or a pair"):
        quality.importance(rows, ("l", "r", "r"))  # type: ignore[arg-type]


def test_importance_of_ijoins_example() -> None:
    """Paper 5's example: the exact join of its two streams has 16 results of importance 36."""
    value = dict(zip("abcd", (1, 2, 3, 4), strict=True))
    pairs = [(value[r], value[s]) for r in "abcddbac" for s in "babbccda" if r == s]
    rows = pa.table({"r": [r for r, _ in pairs], "s": [s for _, s in pairs]})
    assert rows.num_rows == 16
    assert quality.importance(rows, ("r", "s")) == 36


def test_fairness() -> None:
    assert quality.fairness([5, 5, 5]) == 1
    assert quality.fairness([0, 0, 7, 0]) == 1 / 4
    assert quality.fairness([1, 3]) == 16 / 20
    assert quality.fairness([]) == quality.fairness([0, 0]) == 1
    assert quality.fairness(pa.chunked_array([[1], [3]])) == 0.8
    assert quality.fairness(iter(np.array([1.0, 3.0]))) == 0.8
    assert quality.fairness([1e300, 3e300]) == pytest.approx(0.8, rel=1e-12)
    assert quality.fairness([1e-300, 3e-300]) == pytest.approx(0.8, rel=1e-12)
    for wrong in ([-1.0], [math.nan], [math.inf], ["long"], pa.array([1, None])):
        with pytest.raises(TidegateError, match="times must be"):
            quality.fairness(wrong)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_fairness_is_bounded(times: list[float]) -> None:
    assert 1 / len(times) - 1e-9 <= quality.fairness(times) <= 1


def test_earth_movers_distance_by_hand() -> None:
    assert quality.earth_movers_distance([0, 10], [1, 8, 100], gap) == 1 + 2
    assert quality.earth_movers_distance([1, 8, 100], [0, 10], gap) == 1 + 2
    assert quality.earth_movers_distance([0, 0], [0, 5], gap) == 5
    x, y = pa.table({"p": [0, 3], "q": [0, 4]}), pa.table({"q": [4], "p": [0]})
    assert quality.earth_movers_distance(x, y, math.dist) == 3


def brute_emd(x: list[int], y: list[int]) -> float:
    x, y = sorted((x, y), key=len)
    return min(sum(map(gap, x, chosen)) for chosen in itertools.permutations(y, len(x)))


@settings(deadline=None)
@given(x=tiny, y=tiny)
def test_earth_movers_distance_against_brute_force(x: list[int], y: list[int]) -> None:
    value = quality.earth_movers_distance(x, y, gap)
    assert value == brute_emd(x, y)
    assert value == quality.earth_movers_distance(y, x, gap)


def test_match_and_compare_by_hand() -> None:
    assert quality.match_and_compare([1, 2], [2, 1], gap) == 0
    assert quality.match_and_compare([0], [1], gap) == 1
    # One star: 5 stands for three rows, at distances 0, 2 and 4.
    assert quality.match_and_compare([5], [5, 7, 9], gap, degree=0) == 0 + 2 + 4
    assert quality.match_and_compare([5], [5, 7, 9], gap) == 3 * (0 + 2 + 4)
    assert quality.match_and_compare([5], [5, 7, 9], gap, power=2, degree=2) == 9 * (4 + 16)
    # Two stars: 0 with 1; 10 with 10 and 13.
    assert quality.match_and_compare([0, 10], [1, 10, 13], gap) == 1 + 2 * 3
    assert quality.match_and_compare([4], [4, 4], gap) == 0


def covers(x: list[int], y: list[int]) -> list[list[tuple[int, int]]]:
    """Yield every set of edges that touches all rows."""
    edges = list(itertools.product(range(len(x)), range(len(y))))
    return [
        list(chosen)
        for size in range(1, len(edges) + 1)
        for chosen in itertools.combinations(edges, size)
        if {i for i, _ in chosen} == set(range(len(x)))
        and {j for _, j in chosen} == set(range(len(y)))
    ]


def star_value(x: list[int], y: list[int], cover: list[tuple[int, int]]) -> float:
    of_x, of_y = Counter(i for i, _ in cover), Counter(j for _, j in cover)
    return sum(gap(x[i], y[j]) * max(of_x[i], of_y[j]) for i, j in cover)


@settings(deadline=None, max_examples=60)
@given(
    x=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    y=st.lists(st.integers(0, 9), min_size=1, max_size=3),
)
def test_match_and_compare_against_brute_force(x: list[int], y: list[int]) -> None:
    possible = covers(x, y)
    weights = [sum(gap(x[i], y[j]) for i, j in cover) for cover in possible]
    least = min(weights)
    assert quality.match_and_compare(x, y, gap, degree=0) == least
    best = [cover for cover, weight in zip(possible, weights, strict=True) if weight == least]
    value = quality.match_and_compare(x, y, gap)
    assert value in {star_value(x, y, cover) for cover in best}


@settings(deadline=None)
@given(x=small.filter(bool), y=small.filter(bool), data=st.data())
def test_match_and_compare_ignores_order(x: list[int], y: list[int], data: st.DataObject) -> None:
    value = quality.match_and_compare(x, y, gap)
    shuffled = data.draw(st.permutations(x))
    assert quality.match_and_compare(shuffled, y[::-1], gap) == value
    assert quality.match_and_compare(y, x, gap) == value
    assert (value == 0) == (set(x) == set(y))


@settings(deadline=None)
@given(y=small.filter(bool), size=st.integers(1, 8))
def test_match_and_compare_of_a_subset_is_the_way_to_the_nearest(y: list[int], size: int) -> None:
    x = y[:size]
    nearest = sum(
        min(gap(each, kept) for kept in x) for each in (Counter(y) - Counter(x)).elements()
    )
    assert quality.match_and_compare(x, y, gap, degree=0) == nearest


def test_bad_input() -> None:
    ints, strings = pa.table({"a": [1]}), pa.table({"a": ["1"]})
    with pytest.raises(TidegateError, match='"a" is int64 in one table and string in the other'):
        quality.recall(ints, strings)
    with pytest.raises(TidegateError, match=r"same columns, not \['a'\] and \['b'\]"):
        quality.dice(ints, pa.table({"b": [1]}))
    with pytest.raises(TidegateError, match="not a Table with a list"):
        quality.jaccard(ints, [1])
    with pytest.raises(TidegateError, match="not str"):
        quality.matching("abc", "abd")
    with pytest.raises(TidegateError, match="not int"):
        quality.multiset(5)
    with pytest.raises(TidegateError, match="rows must be hashable"):
        quality.overlap([[1]], [[1]])
    with pytest.raises(TidegateError, match="counts must be whole numbers of at least 0, not -1"):
        quality.cosine({"a": -1}, {"a": 1})
    twice = pa.Table.from_arrays(
        [pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"]
    )
    assert quality.matching(twice, twice) == 1
    with pytest.raises(TidegateError, match="column names must differ"):
        quality.matching(twice, twice.select([2, 0, 1]))
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(TidegateError, match="distance must be finite .* for 1 and 2"):
            quality.earth_movers_distance([1], [2], lambda *_: wrong)  # noqa: B023
    with pytest.raises(TidegateError, match="too many to compare every pair"):
        quality.earth_movers_distance({1: 10_000}, {1: 10_000}, gap)
    with pytest.raises(TidegateError, match="power must be"):
        quality.match_and_compare([1], [1], gap, power=-1)
    with pytest.raises(TidegateError, match="degree must be"):
        quality.match_and_compare([1], [1], gap, degree=math.nan)
