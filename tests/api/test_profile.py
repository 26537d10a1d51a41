"""`tg.profile`: which joins are many-one, which constraints hold, and what they save."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.streams import links, many_one


def _orders(late: int = 3, n: int = 200) -> dict[str, pa.Table]:
    """Return payments that come a few rows after their order; every fifth order is paid twice."""
    rng = np.random.default_rng(5)
    order = np.sort(np.concatenate([np.arange(n), np.arange(0, n, 5)]))
    paid = 10 * order + rng.integers(0, 10 * late, len(order))
    payments = pa.table({"order": order, "ts": paid}).sort_by("ts")
    return {"payments": payments, "orders": pa.table({"id": np.arange(n), "ts": 10 * np.arange(n)})}


@pytest.mark.proves(profile="local")
def test_it_finds_which_side_of_a_join_is_unique() -> None:
    settings: dict[str, Any] = {"time": "ts", "within": 1_000}
    found = tg.profile(_orders(), joins="payments.order = orders.id", **settings)
    assert found.joins == ("payments.order -> orders.id",)
    [row] = found.join_table.to_pylist()
    assert (row["kind"], row["repeated_one"], row["repeated_other"]) == ("many-one", 40, 0)
    other_way = tg.profile(_orders(), joins="orders.id = payments.order", **settings)
    assert other_way.joins == ("orders.id <- payments.order",)
    assert other_way.constraints == found.constraints
    exact = tg.constrained_join(_orders(), joins=found.joins, **settings)
    assert exact.counters["violations"] == 0


def test_a_key_may_come_again_after_its_window() -> None:
    twice = {"k": [1, 2, 1], "t": [0, 5, 10]}
    once = {"k": [1, 2], "t": [0, 5]}
    kinds = {
        within: tg.profile([twice, once], joins="s1.k = s2.k", time="t", within=within).joins
        for within in (10, 11)
    }
    assert kinds == {10: ("s1.k <-> s2.k",), 11: ("s1.k -> s2.k",)}
    rows = {
        n: tg.profile([twice, once], joins="s1.k = s2.k", time="t", within=tg.Rows(n)).joins
        for n in (2, 3)
    }
    assert rows == {2: ("s1.k <-> s2.k",), 3: ("s1.k -> s2.k",)}


def test_many_many_joins_are_named_and_have_no_constraints() -> None:
    both = {"k": [1, 1, 2], "t": [0, 1, 2]}
    found = tg.profile([both, both], joins="s1.k -> s2.k", time="t")
    assert found.joins == ("s1.k = s2.k",)
    assert found.constraints == ()
    assert found.table.num_rows == 0
    assert "many-many" in str(found)
    assert "1 and 1 rows have the key" in str(found)


@pytest.mark.parametrize("kind", ["rids", "ca", "oap", "oac"])
def test_the_k_of_each_constraint_is_that_of_the_streams(kind: str) -> None:
    """With this k no result is lost, and with half of it some are."""
    streams = many_one(400, kind=kind, k=15, seed=3)
    joins = {
        "rids": ["S1.A = S2.A", "S1.B = S3.B"],
        "oac": ["S1.A = S2.A"],
    }.get(kind, ["S1.A = S3.A", "S2.A = S3.A"])
    settings: dict[str, Any] = {"time": "t", "within": 5_000}
    found = tg.profile(streams, joins=joins, **settings)
    own = [row for row in found.table.to_pylist() if row["constraint"].startswith(kind.upper())]
    assert own
    assert all(7 <= row["k_rows"] <= 16 for row in own)
    exact = tg.constrained_join(streams, joins=found.joins, **settings)
    assert found.constraints
    kept = tg.constrained_join(
        streams, joins=found.joins, constraints=found.constraints, **settings
    )
    assert kept.results == exact.results > 500
    assert kept.counters["peak_held"] <= exact.counters["peak_held"]
    if kind == "rids":
        short = tg.RIDS("S1 -> S2", within=int(own[0]["k_time"]) // 2)
        assert (
            tg.constrained_join(streams, joins=found.joins, constraints=short, **settings).results
            < exact.results
        )


def test_it_says_what_constraints_save_on_the_motivating_query() -> None:
    streams = links(300, rate=4, delay=1.0, seed=1)
    joins = ["C.pid = B.pid", "B.pid = O.pid"]
    found = tg.profile(streams, joins=joins, time="ts", within=100_000)
    assert found.joins == ("C.pid <-> B.pid", "B.pid <-> O.pid")
    assert found.held["these constraints"] < 0.05 * found.held["many-one joins"]
    assert found.held["many-one joins"] <= found.held["sliding window join"]
    by_text = {row["constraint"]: row for row in found.table.to_pylist()}
    assert by_text['RIDS("O -> B")']["k_time"] == 0
    assert 900 <= by_text['RIDS("C -> B")']["k_time"] <= 1_000
    printed = str(found)
    for text in ("C.pid <-> B.pid: one-one", "k in rows", 'RIDS("C -> B")', "these constraints"):
        assert text in printed


def test_times_are_durations() -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    tables = {}
    for name, table in _orders().items():
        when = [start + timedelta(milliseconds=ms) for ms in table.column("ts").to_pylist()]
        tables[name] = table.set_column(1, "ts", pa.array(when))
    settings: dict[str, Any] = {"time": "ts", "within": "1 second"}
    found = tg.profile(tables, joins="orders.id = payments.order", **settings)
    plain = tg.profile(_orders(), joins="orders.id = payments.order", time="ts", within=1_000)
    assert np.allclose(
        found.table.column("k_time").to_numpy(), plain.table.column("k_time").to_numpy() / 1_000
    )
    kept = tg.constrained_join(tables, joins=found.joins, constraints=found.constraints, **settings)
    exact = tg.constrained_join(tables, joins=found.joins, **settings)
    assert kept.results == exact.results == 240
    assert " s " in str(found)


def test_empty_streams_have_no_distances() -> None:
    empty = pa.table({"k": pa.array([], pa.int64()), "t": pa.array([], pa.int64())})
    found = tg.profile([empty, empty], joins="s1.k = s2.k", time="t")
    assert found.joins == ("s1.k <-> s2.k",)
    assert found.constraints == ()
    assert not math.isnan(found.held["many-one joins"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"joins": "s1.k > s2.k"}, ["'s1.k > s2.k'", "many-one"]),
        ({"joins": "s1.k = s2.z"}, ['no column "z"']),
        ({"time": "when"}, ['no column "when"']),
        ({"batch_rows": 0}, ["batch_rows must be a positive number", "0"]),
        ({"constraints": "auto"}, ["constraints"]),
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, Any], words: list[str]) -> None:
    rows = {"k": [1], "t": [1]}
    good: dict[str, Any] = {"joins": "s1.k = s2.k", "time": "t"}
    with pytest.raises(tg.TidegateError) as caught:
        tg.profile([rows, rows], **good | wrong)
    for word in words:
        assert word in str(caught.value)
