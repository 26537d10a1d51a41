"""Bands that are found in conditions, their buckets, and programs that decide as conditions do."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tidegate.kernel.compiling import Array, entry_point
from tidegate.kernel.programs import meets
from tidegate.sql.bands import band_of
from tidegate.sql.conditions import Predicate
from tidegate.sql.pair_programs import EXACT, Program, program_of, values_of

NOON = dt.datetime(2026, 1, 1, 12)
ROWS = 28
_LARGEST = 1.7976931348623157e308
_REALS = [
    *(0.0, -0.0, 1.0, 2.5, 1e300, -1e300, math.inf, -math.inf, math.nan, None, 1e-310, 1e18),
    *(1e18 + 128, 2.0**53, 2.0**53 + 2, 1e6, 1e6 + 1e-9, 1e6 + 2e-9, 1e-9, 2e-9),
    *(_LARGEST, -_LARGEST),
]
_WHOLE = [0, 1, 2, 3, -1, 5, 2**53, 2**53 + 1, 2**53 + 3, 2**60, -(2**61), 2**61 - 1, None]


def rows(seed: int) -> pa.RecordBatch:
    """Draw rows of every type that a band may have, extreme values among them."""
    rng = np.random.default_rng(seed)

    def some(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([values[i] for i in rng.integers(0, len(values), ROWS)], kind)

    times = [NOON + dt.timedelta(seconds=s) for s in (0, 1, 2.5, 5, -30, 0.5, 20, -3)]
    reals = [*_REALS, *rng.normal(0, 3, 30), *(rng.normal(size=9) * 10.0 ** rng.integers(-9, 9, 9))]
    columns = {
        "x": some(reals, pa.float64()),
        "n": some([*_WHOLE, *rng.integers(-20, 20, 25).tolist()], pa.int64()),
        "b": some(list(range(-9, 9)), pa.int8()),
        "u": some([0, 1, 2, 2**64 - 1, 2**64 - 2], pa.uint64()),
        "f": some([0.5, 1.5, 1e6, None], pa.float32()),
        "d": some([Decimal(1), Decimal("2.5"), Decimal(9), None], pa.decimal128(12, 2)),
        "ts": some([*times, None], pa.timestamp("us")),
        "ns": some([*times, None], pa.timestamp("ns")),
        "day": some([dt.date(2026, 1, d) for d in range(1, 20)], pa.date32()),
        "s": some(["a", "b", "ab", None], pa.string()),
    }
    return pa.record_batch(columns)


#: Conditions, and the bounds of the band that must be found.
BANDED = {
    "abs(l.x - r.x) <= 0.5": (-0.5, 0.5),
    "abs(l.n - r.n) <= 2": (-2, 2),
    "abs(l.b - r.b) < 3": (-3, 3),
    "3 > abs(1 + r.n - l.n)": (-2, 4),
    "abs(1 - (l.n - r.n)) <= 2.5": (-2, 4),
    "l.n BETWEEN r.n - 2 AND r.n + 3": (-2, 3),
    "l.x BETWEEN r.x - 1e-9 AND (r.x + 1e-9)": (-1e-9, 1e-9),
    "l.x = r.x": (0, 0),
    "l.n = r.n + 1": (1, 1),
    "l.x - r.x = 1e6": (1e6, 1e6),
    "abs(l.u - r.u) <= 1": (-1, 1),
    "abs(l.d - r.d) <= 1": (-1, 1),
    "abs(l.f - r.f) <= 1": (-1, 1),
    "abs(l.x - r.n) <= 2.5": (-2.5, 2.5),
    "l.x * 2 >= r.x - 1 AND l.x * 2 <= r.x + 4": (-1, 4),
    "-l.x + r.x <= 3 AND l.x - r.x - 1 <= 4": (-3, 5),
    "abs(l.x - r.x) <= 2 AND abs(l.n - r.n) <= 3 AND l.n > 0": (-2, 2),
    "abs(l.x - r.x) <= 1e300": (-1e300, 1e300),
    "l.x >= r.x - 1e18 AND l.x <= r.x - 1e18 + 300": (-1e18, -1e18 + 300),
    "abs(l.ts - r.ts) <= '5 s'": (-5e6, 5e6),
    "abs(l.ts - r.ts) <= '0 s'": (0, 0),
    "l.ts - r.ts BETWEEN '1 s' AND '20 s'": (1e6, 20e6),
    "l.ts <= r.ts AND r.ts - l.ts <= '3 s'": (-3e6, 0),
    "abs(l.ns - r.ns) <= '5 s'": (-5e9, 5e9),
    "abs(l.ts - r.ns) < '1500 ms'": (-1.5e6, 1.5e6),
    "l.day - r.day BETWEEN '0 days' AND '3 days'": (0, 3),
    "abs(l.n - r.n) <= 1 AND l.s < r.s": (-1, 1),
    "abs(l.x - r.x) <= 2 AND NOT (l.s = r.s OR l.s IS NULL)": (-2, 2),
}
#: Conditions without a band.
OTHERS = [
    "l.x > r.x OR l.s = 'a'",
    "l.x - r.x <= 3",
    "abs(l.n - r.n) <= -1",
    "abs(l.n - r.n) <= 4611686018427387904",
    "abs(l.x + r.x) <= 1",
    "l.x NOT BETWEEN r.x - 1 AND r.x + 5 AND l.n IS NOT NULL",
    "l.b IN (r.b, r.b + 1) OR l.s <> r.s",
    "l.x / (r.n - 1) > 0",
    "l.x IS NULL OR -r.x > abs(l.n)",
    "l.x * r.x > 6 AND NOT l.x + l.n = r.x",
    "l.x <> r.x AND true",
]


@entry_point
def _table(
    code: Array,
    numbers: Array,
    stack: Array,
    missing: Array,
    left: Array,
    right: Array,
    found: Array,
) -> None:
    """Run a program on every pair of rows."""
    for i in range(left.shape[0]):
        for j in range(right.shape[0]):
            found[i, j] = meets(code, numbers, stack, missing, left[i], right[j])


def _small(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the rows whose values a program compares exactly."""
    large = np.isfinite(values) & (np.abs(values) > EXACT)
    return np.asarray(~large.any(axis=1))


def tables(
    predicate: Predicate, program: Program, left: pa.RecordBatch, right: pa.RecordBatch
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return for every pair what the condition says, what the program says, and if it must know."""
    n = np.arange(ROWS)
    mask = predicate.mask(
        left.take(pa.array(np.repeat(n, ROWS))), right.take(pa.array(np.tile(n, ROWS)))
    )
    one = values_of(predicate, program.columns[0], "l", left)
    other = values_of(predicate, program.columns[1], "r", right)
    found = np.zeros((ROWS, ROWS), np.bool_)
    scratch = np.empty(len(program.code) + 1), np.empty(len(program.code) + 1, np.bool_)
    with np.errstate(invalid="ignore"):  # where nothing is compiled
        _table(program.code, program.numbers, *scratch, one, other, found)
    return mask.reshape(ROWS, ROWS), found, np.logical_and.outer(_small(one), _small(other))


@pytest.mark.parametrize("where", [*BANDED, *OTHERS])
def test_programs_decide_as_conditions_do(where: str) -> None:
    for seed in range(4):
        left, right = rows(seed), rows(seed + 100)
        predicate = Predicate(where, left.schema, right.schema)
        program = program_of(predicate)
        wanted, found, known = tables(predicate, program, left, right)
        if program.exact:
            assert (found == wanted)[known].all()
        else:
            assert "s" in where or "f" in where or "d" in where or "*" in where


@pytest.mark.parametrize("where", BANDED)
def test_partners_are_in_the_buckets_of_a_band(where: str) -> None:
    """Each row finds all its partners in a few buckets, and they are in one shard."""
    low, high = BANDED[where]
    for seed in range(4):
        both = rows(seed), rows(seed + 100)
        predicate = Predicate(where, both[0].schema, both[1].schema)
        band = band_of(predicate)
        assert band is not None
        assert (band.low, band.high) == pytest.approx((low, high))
        wanted, _, _ = tables(predicate, program_of(predicate), *both)
        for side, pairs in enumerate((wanted, wanted.T)):
            values, known = band.values(side, both[side])
            others, others_known = band.values(1 - side, both[1 - side])
            first, last = band.reach(side, values)
            at = band.buckets(others)
            near = (first[:, np.newaxis] <= at) & (at <= last[:, np.newaxis])
            assert not (pairs & ~near).any()
            assert not pairs[~known].any()
            assert not pairs[:, ~others_known].any()
            assert (last - first).max() <= 7
        start, _ = band.starts(0, band.values(0, both[0])[0])
        least, most = band.starts(1, band.values(1, both[1])[0])
        near = (least <= start[:, np.newaxis]) & (start[:, np.newaxis] <= most)
        assert not (wanted & ~near).any()
        assert (most - least).max() <= 7


@pytest.mark.parametrize("where", OTHERS)
def test_other_conditions_have_no_band(where: str) -> None:
    left = rows(0)
    assert band_of(Predicate(where, left.schema, left.schema)) is None


def test_a_condition_of_thousands_of_terms_is_read() -> None:
    left = rows(0)
    where = " + ".join(["l.n", *["r.n"] * 2000]) + " <= 3 AND abs(l.b - r.b) <= 1"
    predicate = Predicate(where, left.schema, left.schema)
    band, program = band_of(predicate), program_of(predicate)
    assert band is not None
    assert band.high == 1
    assert not program.exact
    assert len(program.code) < 20
