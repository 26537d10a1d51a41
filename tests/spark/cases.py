"""Cases for `tg.join`: pairs of streams, the join's settings, and the same join in Spark's SQL."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from tidegate.streams import auctions, zipf

from .workloads import Pair


@dataclass(frozen=True)
class Case:
    """Two streams, tidegate's settings for their join, and the windows in SQL."""

    left: pa.Table
    right: pa.Table
    on: Any
    time: tuple[str, str]
    within: Any
    sql: tuple[str | None, str | None]
    least: int = 500
    where: str | None = None
    shards: int | None = None

    @property
    def keys(self) -> list[tuple[str, str]]:
        if self.on is None:
            return []
        if isinstance(self.on, dict):
            return list(self.on.items())
        return [(name, name) for name in ([self.on] if isinstance(self.on, str) else self.on)]

    @property
    def settings(self) -> dict[str, Any]:
        return {"on": self.on, "time": self.time, "within": self.within, "where": self.where}


def numbers(n: int = 1200, seed: int = 3) -> Case:
    left, right = zipf(n, domain=40, skew=(1.0, 0.8), rate=(1.0, 1.5), seed=seed)
    return Case(left, right, "key", ("time", "time"), 30, ("30", "30"))


def band() -> Case:
    """A condition without a key, whose band divides the rows into shards."""
    left, right = zipf(400, domain=40, seed=8)
    where = "l.value BETWEEN r.value - 0.001 AND r.value + 0.0015 AND l.key <> r.key"
    windows = ("300", "300")
    return Case(left, right, None, ("time", "time"), 300, windows, 100, where, shards=3)


def bids() -> Case:
    left, right = auctions(300, bids=4.0, skew=0.5, seed=5)
    windows = ("interval 2 hours", "interval 90 seconds")
    right = right.rename_columns(["item", "at", "bidder", "price"])
    return Case(left, right, {"auction_id": "item"}, ("ts", "at"), ("2 hours", "90 s"), windows)


def tangle() -> Case:
    """Duplicate rows, equal times, null keys and times, strings as keys, nested payload."""
    rng = np.random.default_rng(7)

    def side(rows: int) -> pa.Table:
        keys = [None if i % 11 == 0 else f"k{i % 9}" * (i % 9) for i in rng.integers(0, 99, rows)]
        times = [None if i == 0 else int(i) // 4 for i in rng.integers(0, 400, rows)]
        lists = [
            [{"x": int(i), "y": None}] * (i % 3) if i else None for i in rng.integers(0, 4, rows)
        ]
        maps = [[("a", float(i)), ("b", None)] if i else [] for i in rng.integers(0, 3, rows)]
        table = pa.table(
            {
                "name": pa.array(keys, pa.string()),
                "at": pa.array(times, pa.int32()),
                "tags": pa.array(
                    lists, pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())]))
                ),
                "by": pa.array(maps, pa.map_(pa.string(), pa.float64())),
                "raw": pa.array([b"\x00" * int(i) for i in rng.integers(0, 3, rows)], pa.binary()),
            }
        )
        return pa.concat_tables([table, table.slice(0, rows // 3), table.slice(0, 5)])

    return Case(side(300), side(260), "name", ("at", "at"), (7, 3), ("7", "3"))


def composite() -> Case:
    """A decimal, a date and a string together, on timestamps without a time zone."""
    rng = np.random.default_rng(11)
    first = datetime(1969, 12, 31, 23)

    def side(rows: int, time: str) -> pa.Table:
        cents = [None if i == 5 else Decimal(int(i)).scaleb(-2) for i in rng.integers(-3, 6, rows)]
        days = [date(1969, 12, 30) + timedelta(days=int(i)) for i in rng.integers(0, 3, rows)]
        words = ["", "a", "ä\x00b", None]
        times = [first + timedelta(milliseconds=int(i) * 7) for i in rng.integers(0, 2000, rows)]
        return pa.table(
            {
                "cents": pa.array(cents, pa.decimal128(9, 2)),
                "day": pa.array(days, pa.date32()),
                "word": pa.array([words[i] for i in rng.integers(0, 4, rows)], pa.string()),
                time: pa.array(times, pa.timestamp("us")),
                "n": pa.array(np.arange(rows)),
            }
        )

    windows = ("interval 1.5 seconds", "interval 4 seconds")
    return Case(
        side(900, "t"),
        side(700, "u"),
        ["cents", "day", "word"],
        ("t", "u"),
        (timedelta(seconds=1.5), "4 s"),
        windows,
    )


def structs() -> Case:
    """A struct with a null inside as the key, dates as time, one window without an end."""
    rng = np.random.default_rng(13)
    kind = pa.struct([("a", pa.int16()), ("b", pa.list_(pa.string()))])

    def side(rows: int) -> pa.Table:
        keys = [
            None if i == 0 else {"a": int(i) // 3, "b": [["x"], [], None][int(i) % 3]}
            for i in rng.integers(0, 12, rows)
        ]
        days = [date(2026, 2, 20) + timedelta(days=int(i)) for i in rng.integers(0, 40, rows)]
        return pa.table({"key": pa.array(keys, kind), "day": pa.array(days, pa.date32())})

    windows = (None, "interval 36 hours")
    return Case(side(200), side(150), "key", ("day", "day"), ("unbounded", "36 hours"), windows)


def reals() -> Case:
    """Keys that are NaN, -0.0 and 0.0; times that are real numbers, a few of them NaN or null."""
    rng = np.random.default_rng(17)
    choices = [math.nan, -0.0, 0.0, 1.5, -math.inf, None]

    def side(rows: int) -> pa.Table:
        times: list[float | None] = list(rng.random(rows) * 100)
        times[3], times[8] = math.nan, None
        return pa.table(
            {
                "x": pa.array([choices[i] for i in rng.integers(0, 6, rows)], pa.float64()),
                "t": pa.array(times, pa.float64()),
            }
        )

    return Case(side(300), side(300), "x", ("t", "t"), (2.5, 0.75), ("2.5D", "0.75D"))


CASES: list[Callable[[], Case]] = [numbers, band, bids, tangle, composite, structs, reals]


def prepared(spark: SparkSession, home: Path, case: Case, batches: int, seed: int = 0) -> Pair:
    pair = Pair(spark, home, case.time)
    pair.write(case.left, case.right, batches, seed)
    return pair


def closed(case: Case) -> Case:
    """Add a last row to each side that joins nothing, so that all ticks before it are closed."""
    tables = []
    for key, table in ((-1, case.left), (-2, case.right)):
        last = {"key": [key], "time": [1_300], "value": [0.0]}
        tables.append(pa.concat_tables([table, pa.table(last, table.schema)]))
    return replace(case, left=tables[0], right=tables[1])
