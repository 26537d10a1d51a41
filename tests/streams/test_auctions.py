"""Auctions and bids: schema, age curves, popularity, equal data for a seed, bad input."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tidegate.errors import TidegateError
from tidegate.streams import auctions

LIFE = timedelta(hours=2)


def ages(left: pa.Table, right: pa.Table, life: timedelta = LIFE) -> npt.NDArray[np.float64]:
    """Return the age of the auction at each bid, as a share of its life."""
    opened = left["ts"].cast(pa.int64()).to_numpy()
    bid = right["ts"].cast(pa.int64()).to_numpy()
    age: npt.NDArray[np.int64] = bid - opened[right["auction_id"].to_numpy()]
    return age / (life // timedelta(microseconds=1))


def test_tables_have_their_schema_and_are_in_order() -> None:
    left, right = auctions(200, bids=3)
    time = pa.timestamp("us", tz="UTC")
    assert left.schema == pa.schema(
        [
            ("auction_id", pa.int64()),
            ("ts", time),
            ("seller", pa.string()),
            ("category", pa.string()),
            ("reserve", pa.float64()),
        ]
    )
    assert right.schema == pa.schema(
        [
            ("auction_id", pa.int64()),
            ("ts", time),
            ("bidder", pa.string()),
            ("price", pa.float64()),
        ]
    )
    assert left["auction_id"].to_pylist() == list(range(200))
    assert (np.diff(right["ts"].cast(pa.int64()).to_numpy()) >= 0).all()
    assert right.num_rows == 600
    assert set(right["auction_id"].to_pylist()) <= set(range(200))


def test_auctions_open_steadily() -> None:
    start = datetime(2020, 2, 28, 12, tzinfo=UTC)
    left, _ = auctions(5, every=timedelta(minutes=3), start=start)
    assert left["ts"].to_pylist() == [start + i * timedelta(minutes=3) for i in range(5)]


@pytest.mark.parametrize(
    ("shape", "cumulative"),
    [
        ("inc", lambda a: a**3),
        ("dec", lambda a: 1 - (1 - a) ** 3),
        ("bell", lambda a: 4 * a**3 if a <= 0.5 else 1 - 4 * (1 - a) ** 3),
    ],
)
def test_bids_follow_the_age_curves(shape: str, cumulative: Callable[[float], float]) -> None:
    """The share of bids up to each age is the integral of the curve of paper 2, section 6.2.2."""
    found = ages(*auctions(2_000, bids=20, shape=shape, seed=1))
    assert found.min() >= 0
    assert found.max() < 1
    for a in np.linspace(0.1, 1.0, 10):
        assert abs((found <= a).mean() - cumulative(a)) < 0.01


def test_every_bid_has_one_partner_in_a_window_of_a_life() -> None:
    life = timedelta(microseconds=2)
    for shape in ("inc", "dec", "bell"):
        left, right = auctions(50, life=life, every=timedelta(0), shape=shape)
        assert set(np.unique(ages(left, right, life))) == {0.0, 0.5}


def test_prices_rise_over_an_auction() -> None:
    left, right = auctions(20, bids=10)
    reserve = left["reserve"].to_numpy()[right["auction_id"].to_numpy()]
    assert (reserve >= 5).all()
    ratio = right["price"].to_numpy() / reserve
    assert np.abs(ratio - (0.5 + ages(left, right))).max() < 0.002
    price = right["price"].to_numpy()
    for auction in range(20):
        assert (np.diff(price[right["auction_id"].to_numpy() == auction]) >= 0).all()


def test_popular_auctions_get_more_bids() -> None:
    _, even = auctions(1_000, bids=10, seed=2)
    _, skewed = auctions(1_000, bids=10, skew=1.0, seed=2)
    counts = [
        np.bincount(side["auction_id"].to_numpy(), minlength=1_000) for side in (even, skewed)
    ]
    assert counts[0].max() < 30
    assert 1_000 < counts[1].max() < 1_700, "the first of 1,000 has a share of 1 / 7.49"
    assert np.argmax(counts[1]) != 0, "popularity does not follow the order of opening"


def test_auctions_without_bids() -> None:
    left, right = auctions(3, bids=0)
    assert left.num_rows == 3
    assert right.num_rows == 0
    assert right.schema == auctions(3)[1].schema


def test_the_same_seed_gives_the_same_tables() -> None:
    assert auctions(100, seed=1) == auctions(100, seed=1)
    assert auctions(100, seed=1) != auctions(100, seed=2)
    assert auctions(100, shape="dec")[0] == auctions(100, shape="bell")[0]


def test_values_do_not_change_between_versions() -> None:
    """Fixed values reveal a platform or library that changes them."""
    left, right = auctions(1_000)
    assert left["seller"].to_pylist()[:3] == ["seller-802", "seller-942", "seller-5"]
    assert left["reserve"].to_pylist()[:3] == [332.71, 340.21, 179.63]
    assert right["auction_id"].to_pylist()[:3] == [1, 51, 51]
    assert right["ts"].to_pylist()[0] == datetime(2026, 1, 1, 0, 22, 0, 714643, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n must be"),
        ({"life": 7200}, "life must be a timedelta .*, not 7200"),
        ({"life": timedelta(0)}, "life must be a timedelta of at least 2 microseconds"),
        ({"every": timedelta(seconds=-1)}, "every must be"),
        ({"every": timedelta(days=10**7), "n": 10**7}, "every must be shorter"),
        ({"bids": -1}, "bids must be"),
        ({"bids": float("nan")}, "bids must be"),
        ({"shape": "flat"}, '"inc", "dec", "bell", not \'flat\''),
        ({"skew": -0.1}, "skew must be"),
        ({"start": datetime(2026, 1, 1)}, "start must be a datetime with a time zone"),
        ({"start": "today"}, "start must be"),
        ({"seed": 1.5}, "seed must be"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TidegateError, match=message):
        auctions(**{"n": 10, **arguments})
