"""Auctions and the bids on them: a join whose results depend on the age of a row.

This is the running example of paper 2 (Srivastava, Widom), sections 2.2 and 6.2.1: an auction opens
once, and most bids come shortly before it closes, so old rows are worth most.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.settings.values import quoted
from tidegate.streams._checks import choice, generators, number, whole, zipf_ranks

SHAPES = ("inc", "dec", "bell")
CATEGORIES = ("art", "books", "cameras", "coins", "music", "toys", "watches", "wine")
_SELLERS = 1_000
_BIDDERS = 10_000
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_MICROSECOND = timedelta(microseconds=1)


def auctions(
    n: int,
    *,
    life: timedelta = timedelta(hours=2),
    every: timedelta = timedelta(seconds=15),
    bids: float = 5.0,
    shape: str = "inc",
    skew: float = 0.0,
    start: datetime = datetime(2026, 1, 1, tzinfo=UTC),
    seed: int = 0,
) -> tuple[pa.Table, pa.Table]:
    """Generate ``n`` auctions that open at a steady rate, and the bids on them, in order of time.

    Auctions have the columns ``auction_id`` (int64, unique), ``ts`` (opening), ``seller``,
    ``category``, ``reserve``. Bids have ``auction_id``, ``ts``, ``bidder`` and ``price``, which
    rises with the age of the auction. Times are timestamps in microseconds, UTC. Every bid falls
    within the life of its auction, so with a window of ``life`` on the auctions each bid has
    exactly one partner.

    Parameters
    ----------
    n
        Number of auctions.
    life
        How long an auction stays open.
    every
        Time from one opening to the next.
    bids
        Mean number of bids per auction (paper 2's n_1); ``round(n * bids)`` in total. The auction
        of each bid is drawn independently, so the number varies between auctions.
    shape
        The age curve of paper 2, section 6.2.2, with continuous instead of bucketed ages. "inc":
        the density grows as the square of the age. "dec": it falls as the square of the remaining
        life. "bell": "inc" in the first half of the life and "dec" in the second.
    skew
        Zipf parameter of the popularity of auctions; 0 makes all equally popular.
    start
        When the first auction opens, with a time zone.
    seed
        The same seed gives the same tables.
    """
    n = whole("n", n, least=1)
    span = _microseconds("life", life, least=2)
    step = _microseconds("every", every, least=0)
    count = round(n * number("bids", bids, least=0.0))
    choice("shape", shape, SHAPES)
    skew = number("skew", skew, least=0.0)
    if not isinstance(start, datetime) or start.tzinfo is None:
        raise TidegateError(
            f"start must be a datetime with a time zone, such as "
            f"datetime(2026, 1, 1, tzinfo=UTC), not {quoted(start)}"
        )
    first = (start - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND
    if first + n * step + span >= 2**63:
        raise TidegateError(f"every must be shorter than {quoted(every)} for n={n} auctions")
    describing, pricing, popular, choosing, ageing, bidding = generators(seed, 6)

    opened = first + np.arange(n, dtype=np.int64) * step
    reserve = pricing.integers(500, 50_000, size=n)  # in cents: whole numbers are exact
    left = pa.table(
        {
            "auction_id": np.arange(n, dtype=np.int64),
            "ts": pa.array(opened).cast(_TIMESTAMP),
            "seller": _names("seller", describing.integers(0, _SELLERS, size=n)),
            "category": pa.array(CATEGORIES).take(
                pa.array(describing.integers(0, len(CATEGORIES), size=n))
            ),
            "reserve": reserve / 100,
        }
    )

    auction = popular.permutation(n)[zipf_ranks(choosing, count, n, skew)]
    age = draw_ages(ageing, count, span, shape)
    bid_time = opened[auction] + age
    order = np.lexsort((auction, bid_time))
    auction, age, bid_time = auction[order], age[order], bid_time[order]
    # The price rises from half the reserve price at the opening to 1.5 times it at the close.
    price = np.rint(reserve[auction] * (0.5 + age / span))
    right = pa.table(
        {
            "auction_id": auction.astype(np.int64),
            "ts": pa.array(bid_time).cast(_TIMESTAMP),
            "bidder": _names("bidder", bidding.integers(0, _BIDDERS, size=count)),
            "price": price / 100,
        }
    )
    return left, right


def draw_ages(rng: np.random.Generator, count: int, span: int, shape: str) -> npt.NDArray[np.int64]:
    """Draw ages in 0..span-1 with the density of a shape.

    The largest of three uniform numbers has a density that grows as the square. Computed with whole
    numbers and without a root, ages are the same on every platform.
    """
    ages: npt.NDArray[np.int64]
    if shape == "bell":
        ages = rng.integers(0, span // 2, size=(count, 3)).max(axis=1)
        second_half = rng.integers(0, 2, size=count) == 1
        ages[second_half] = span - 1 - ages[second_half]
    else:
        ages = rng.integers(0, span, size=(count, 3)).max(axis=1)
        if shape == "dec":
            ages = span - 1 - ages
    return ages


def _names(kind: str, numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Return strings such as ``seller-17``."""
    return pa.array([f"{kind}-{each}" for each in numbers.tolist()], type=pa.string())


def _microseconds(name: str, value: Any, *, least: int) -> int:
    """Return a timedelta in microseconds, or raise an error."""
    if not isinstance(value, timedelta) or value // _MICROSECOND < least:
        raise TidegateError(
            f"{name} must be a timedelta of at least {least} microseconds, such as "
            f"timedelta(hours=2), not {quoted(value)}"
        )
    return value // _MICROSECOND
