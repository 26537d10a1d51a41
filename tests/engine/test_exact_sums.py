"""Compare exact sums of values that are added and removed with Python's own."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engine.exact_sums import Changes, reals, sum_type, sums

reals_of_any_size = st.floats() | st.floats(-1, 1) | st.sampled_from([math.inf, -math.inf, 5e-324])


def events(values: list[Any], draws: list[int], kind: pa.DataType) -> tuple[pa.Array, Changes, Any]:
    """Draw values that are added and removed, as columns, and those present after each event."""
    live: list[int] = []
    rows, signs, there = [], [], []
    for at, draw in enumerate(draws):
        if live and draw % 2:
            rows.append(live.pop(draw % len(live)))
            signs.append(-1)
        else:
            rows.append(at % len(values))
            live.append(rows[-1])
            signs.append(1)
        there.append([values[i] for i in live])
    count = len(rows)
    changes = Changes(np.array(signs), np.zeros(count, np.int64), np.arange(count))
    return pa.array([values[i] for i in rows], kind), changes, there


draws = st.lists(st.integers(0, 99), min_size=1, max_size=30)


@given(st.lists(reals_of_any_size, min_size=1, max_size=8), draws)
def test_reals_are_rounded_once(values: list[float], taken: list[int]) -> None:
    column, changes, there = events(values, taken, pa.float64())
    for found, live in zip(reals(column, changes).tolist(), there, strict=True):
        odd = Counter(value for value in live if not math.isfinite(value))
        if odd:
            expected = sum(odd)
        else:
            try:
                expected = math.fsum(live)
            except OverflowError:
                expected = math.copysign(math.inf, sum(value / 2**60 for value in live))
        assert found == expected or (math.isnan(found) and math.isnan(expected))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8), draws)
def test_whole_numbers_fit_or_are_refused(values: list[int], taken: list[int]) -> None:
    column, changes, there = events(values, taken, pa.int64())
    expected = [sum(live) for live in there]
    fits = all(-(2**63) <= total < 2**63 for total in expected)
    found = sums(column, changes)
    assert (found is not None) == fits
    assert found is None or found.to_pylist() == expected
    assert reals(column, changes).tolist() == [float(total) for total in expected]


@given(st.lists(st.decimals(-(10**30), 10**30, places=3), min_size=1, max_size=8), draws)
def test_decimals(values: list[Decimal], taken: list[int]) -> None:
    column, changes, there = events(values, taken, pa.decimal128(34, 3))
    found = sums(column, changes)
    assert found is not None
    assert found.type == sum_type(column.type) == pa.decimal128(38, 3)
    with localcontext(prec=50):
        assert found.to_pylist() == [sum(live, Decimal(0)) for live in there]


def test_ends_of_types_and_groups() -> None:
    both = Changes(np.ones(2, np.int64), np.zeros(1, np.int64), np.array([1]))
    most = Decimal(10**38 - 1)
    assert sums(pa.array([most, Decimal(1)], pa.decimal128(38, 0)), both) is None
    largest = sums(pa.array([most, Decimal(0)], pa.decimal128(38, 0)), both)
    assert largest is not None
    assert largest.to_pylist() == [most]
    assert sums(pa.array([2**64 - 1, 0], pa.uint64()), both) is None
    assert reals(pa.array([2**64 - 1, 2**64 - 1], pa.uint64()), both).tolist() == [2.0**65]
    assert reals(pa.array([1e308, 1e308]), both).tolist() == [math.inf]
    apart = Changes(np.ones(2, np.int64), np.array([0, 1]), np.array([0, 1]))
    assert reals(pa.array([1e300, 1e-300]), apart).tolist() == [1e300, 1e-300]


@pytest.mark.parametrize("kind", [pa.string(), pa.bool_(), pa.date32(), pa.decimal128(5, -2)])
def test_what_cannot_be_added_up(kind: pa.DataType) -> None:
    assert sum_type(kind) is None
