"""The Zipf streams: distribution, correlation, rates, equal data for a seed, bad input."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import TidegateError
from tidegate.streams import uniform, zipf


def frequencies(table: pa.Table, domain: int) -> npt.NDArray[np.float64]:
    counts = np.bincount(table["key"].to_numpy(), minlength=domain)
    return counts / float(table.num_rows)


def test_columns_and_one_row_per_tick() -> None:
    for side in zipf(100):
        assert side.schema == pa.schema(
            [("key", pa.int64()), ("time", pa.int64()), ("value", pa.float64())]
        )
        assert side["time"].to_pylist() == list(range(100))
        value = side["value"].to_numpy()
        assert value.min() >= 0
        assert value.max() < 1


@pytest.mark.parametrize("skew", [0.0, 0.25, 1.0, 2.0])
def test_frequencies_follow_zipfs_law(skew: float) -> None:
    expected = np.arange(1, 51) ** -skew
    expected /= expected.sum()
    for side in zipf(100_000, skew=skew, seed=3):
        found = np.sort(frequencies(side, 50))[::-1]
        assert np.abs(found - expected).max() < 0.006
        assert len(set(side["key"].to_pylist())) == 50 or skew == 2.0


def test_draws_are_independent_of_each_other() -> None:
    left, right = zipf(100_000, domain=5, skew=1.0, correlation="same", seed=1)
    a, b = left["key"].to_numpy(), right["key"].to_numpy()
    assert abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 0.02
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
    assert not np.array_equal(left["value"].to_numpy(), right["value"].to_numpy())


def test_correlation_relates_the_frequencies_of_both_sides() -> None:
    domain = 50
    found = {}
    for correlation in ("none", "same", "opposite"):
        left, right = zipf(50_000, domain=domain, correlation=correlation, seed=4)
        p, q = frequencies(left, domain), frequencies(right, domain)
        found[correlation] = (p * q).sum()
        if correlation == "same":
            assert np.abs(p - q).max() < 0.01
        if correlation == "opposite":
            assert np.abs(p - q[::-1]).max() < 0.01
    assert found["opposite"] < found["none"] < found["same"]
    orders = {
        tuple(np.argsort(-frequencies(side, domain))[:3])
        for seed in range(5)
        for side in zipf(20_000, domain=domain, seed=seed)
    }
    assert len(orders) == 10, "every stream and seed has its own permutation"


def test_each_side_may_have_its_own_skew() -> None:
    left, right = zipf(50_000, domain=10, skew=(2.0, 0.0), seed=2)
    assert frequencies(left, 10).max() > 0.6
    assert np.abs(frequencies(right, 10) - 0.1).max() < 0.01


def test_a_huge_skew_leaves_one_key() -> None:
    left, _ = zipf(100, skew=5000.0, correlation="same")
    assert set(left["key"].to_pylist()) == {0}


def test_rates_match_an_example_by_hand() -> None:
    left, right = zipf(5, rate=(2, 0.5))
    assert left["time"].to_pylist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert right["time"].to_pylist() == [0, 2, 4]
    left, right = zipf(7, rate=(1.5, 1 / 3))
    assert left["time"].to_pylist() == [0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 6]
    assert right["time"].to_pylist() == [0, 3, 6]
    assert zipf(3, rate=2)[1].num_rows == 6


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 300), rate=st.floats(0.01, 20))
def test_rates_are_even(n: int, rate: float) -> None:
    left, _ = zipf(n, rate=rate)
    times = left["time"].to_numpy()
    assert left["time"].type == pa.int64()
    assert abs(len(times) - n * rate) <= 1.01
    assert times[0] == 0
    assert times[-1] < n
    assert (np.diff(times) >= 0).all()
    a_tick = np.bincount(times, minlength=n)
    assert a_tick.max() - a_tick.min() <= 1


def test_the_same_seed_gives_the_same_tables() -> None:
    assert zipf(500, seed=7) == zipf(500, seed=7)
    assert zipf(500, seed=7) != zipf(500, seed=8)


def test_values_do_not_change_between_versions() -> None:
    """Fixed values reveal a platform or library that changes them."""
    left, right = zipf(10)
    assert left["key"].to_pylist() == [10, 21, 16, 15, 3, 14, 5, 10, 15, 38]
    assert right["key"].to_pylist() == [30, 18, 4, 13, 4, 19, 37, 18, 19, 34]


def test_sides_are_independent_and_longer_streams_extend_shorter_ones() -> None:
    left, right = zipf(200, seed=5)
    assert zipf(200, seed=5, skew=(1.0, 0.0), rate=(1, 3))[0] == left
    longer = zipf(300, seed=5)
    assert longer[0].slice(0, 200) == left
    assert longer[1].slice(0, 200) == right


def test_uniform_keys_are_equally_frequent() -> None:
    for side in uniform(50_000, domain=20, seed=1):
        assert np.abs(frequencies(side, 20) - 0.05).max() < 0.01
    left, right = uniform(10, domain=1, rate=(1, 2))
    assert Counter(left["key"].to_pylist()) == {0: 10}
    assert right.num_rows == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n must be a whole number of at least 1, not 0"),
        ({"n": 1.5}, "n must be a whole number"),
        ({"n": True}, "n must be a whole number"),
        ({"domain": 0}, "domain must be"),
        ({"skew": -1}, "skew must be a finite number of at least 0, not -1"),
        ({"skew": float("nan")}, "skew must be"),
        ({"skew": (1, 2, 3)}, r"skew must be one number or a pair \(left, right\)"),
        ({"skew": "steep"}, "skew must be a finite number of at least 0, not 'steep'"),
        ({"rate": 0}, "rate must be"),
        ({"rate": (1, float("inf"))}, "rate must be"),
        ({"correlation": "some"}, '"none", "same", "opposite", not \'some\''),
        ({"correlation": None}, "correlation must be one of"),
        ({"seed": -1}, "seed must be"),
        ({"seed": "x"}, "seed must be"),
        ({"n": 2**62, "rate": 1000.5}, "n must give fewer rows"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TidegateError, match=message):
        zipf(**{"n": 10, **arguments})
