"""Windows that include their end, that count rows, and that are given by side; memory in rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.joins.constrained.spec import constrained_join
from tidegate.joins.sampled.spec import sampled_join
from tidegate.joins.star.spec import star_join
from tidegate.joins.window.spec import window_join
from tidegate.settings.times import SHORTEST

NUMBERS = [0, 1, 2, 3, 4, 5]
TIMES: dict[str, tuple[Any, Any]] = {
    "whole": (NUMBERS, 2),
    "decimal": ([Decimal(n) for n in NUMBERS], Decimal(2)),
    "timestamp": ([dt.datetime(2026, 1, 1, n) for n in NUMBERS], "2 hours"),
    "date": ([dt.date(2026, 1, n + 1) for n in NUMBERS], dt.timedelta(days=2)),
}


def pairs(table: pa.Table) -> set[tuple[int, int]]:
    return {(row["n_left"], row["n_right"]) for row in table.to_pylist()}


def wanted(left: int, right: int) -> set[tuple[int, int]]:
    """Return the pairs whose later row comes at most a window after the earlier one."""
    return {(a, b) for a in NUMBERS for b in NUMBERS if -right <= b - a <= left}


@pytest.mark.parametrize("kind", TIMES)
def test_closed_windows_include_their_end(kind: str) -> None:
    times, two = TIMES[kind]
    table = pa.table({"k": [7] * len(NUMBERS), "n": NUMBERS, "t": times})
    join: dict[str, Any] = {"on": "k", "time": "t"}
    given: list[tuple[Any, tuple[int, int]]] = [
        (two, (2, 2)),
        ((two, 0), (2, 0)),
        ((0, two), (0, 2)),
        (0, (0, 0)),
        ({"left": two, "right": 0}, (2, 0)),
        ({"left": 0, "right": [(times[0], two)]}, (0, 2)),
    ]
    for within, (left, right) in given:
        found = tg.join(table, table, **join, within=within, closed=True)
        assert pairs(found.table) == wanted(left, right)
        best = tg.optimal(table, table, **join, within=within, closed=True)
        assert pairs(best.table) == wanted(left, right)
        if not isinstance(within, dict) or not isinstance(within["right"], list):
            sample = tg.sample_join(table, table, **join, within=within, closed=True, fraction=1.0)
            assert pairs(sample.table) == wanted(left, right)
    open_end = tg.join(table, table, **join, within=two)
    assert pairs(open_end.table) == wanted(1, 1)


def test_closed_windows_of_several_streams_include_their_end() -> None:
    one = pa.table({"k": [1, 2], "t": [0, 10]})
    many = pa.table({"k": [1, 1, 2, 2], "t": [4, 5, 15, 16]})
    links = {"k": [1, 2], "j": [1, 2]}
    star: dict[str, Any] = {"on": [{"k": "k"}, {"k": "j"}], "time": "t", "within": 5}
    for closed, results in ((False, 1), (True, 3)):
        found = tg.star_join([one, many], links, **star, closed=closed)
        assert found.results == results
        assert tg.optimal_star([one, many], links, **star, closed=closed).results == results
        settings: dict[str, Any] = {"joins": "s2.k -> s1.k", "time": "t", "within": 5}
        assert tg.constrained_join([one, many], **settings, closed=closed).results == results
        text = "Select s2.t From s1 [Range 5], s2 [Range 5] Where s2.k = s1.k"
        query: dict[str, Any] = {"time": "t", "unique": "s1.k"}
        assert tg.cql(text, [one, many], **query, closed=closed).results == results


def test_real_times_have_closed_windows_of_their_own() -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.float64())])
    join: dict[str, Any] = {"on": "k", "time": "t"}
    spec = window_join(schema, schema, **join, within=(2.5, 0), closed=True)
    assert (spec.left.window, spec.right.window) == (2.5, SHORTEST)
    assert spec.closed
    assert spec.settings()["closed"] is True
    plain = window_join(schema, schema, **join, within=2.5)
    assert not plain.closed
    assert "closed" not in plain.settings()
    assert sampled_join(schema, schema, **join, within=2.5, closed=True, memory=5).window.closed
    with pytest.raises(tg.TidegateError, match="star join whose times are real numbers"):
        star_join({"a": schema, "b": schema}, schema, **join, within=2.5, closed=True)
    with pytest.raises(tg.TidegateError, match="the times are real numbers; cast them"):
        tg.optimal({"k": [1], "t": [0.5]}, {"k": [1], "t": [0.5]}, **join, within=1, closed=True)


def test_closed_windows_are_in_the_settings_of_a_checkpoint() -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64())])
    specs: list[Any] = [
        lambda **more: window_join(schema, schema, on="k", time="t", within=5, **more),
        lambda **more: star_join({"a": schema, "b": schema}, schema, on="k", time="t", **more),
        lambda **more: sampled_join(schema, schema, on="k", time="t", within=5, memory=9, **more),
        lambda **more: constrained_join(
            {"a": schema, "b": schema}, joins="a.k -> b.k", time="t", within=5, **more
        ),
    ]
    for at, made in enumerate(specs):
        more: dict[str, Any] = {"within": 5} if at == 1 else {}
        assert made(closed=True, **more).settings() != made(**more).settings()
    timed = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us"))])
    both = window_join(timed, timed, on="k", time="t", within="2 hours", closed=True)
    assert both.settings()["within"] == [7_200_000_001] * 2


def test_a_window_of_zero_needs_a_closed_end() -> None:
    table = {"k": [1], "t": [1]}
    with pytest.raises(tg.TidegateError, match="longer than zero, not 0; closed=True allows 0"):
        tg.join(table, table, on="k", time="t", within=(5, 0))
    with pytest.raises(tg.TidegateError, match="within must not be negative, not -1"):
        tg.join(table, table, on="k", time="t", within=-1, closed=True)
    with pytest.raises(tg.TidegateError, match="closed must be True or False, not 'yes'"):
        tg.join(table, table, on="k", time="t", within=5, closed="yes")  # type: ignore[call-overload]


def test_windows_of_rows_are_over_sequence_numbers() -> None:
    table = pa.table({"k": [7] * 6, "n": NUMBERS})
    join: dict[str, Any] = {"on": "k", "time": "n"}
    for closed in (False, True):
        found = tg.join(table, table, **join, within=tg.Rows(3), closed=closed)
        assert found.results == tg.join(table, table, **join, within=3).results
    pair = tg.join(table, table, **join, within={"left": tg.Rows(3), "right": tg.Rows(1)})
    assert pair.results == tg.join(table, table, **join, within=(3, 1)).results
    star = tg.star_join([table, table], {"k": [7]}, on="k", time="n", within=tg.Rows(3))
    assert star.results == found.results
    sample = tg.sample_join(table, table, **join, within=tg.Rows(3), fraction=1.0)
    assert sample.results == found.results
    timed = pa.table({"k": [7], "t": [dt.datetime(2026, 1, 1)]})
    with pytest.raises(tg.TidegateError, match="must be sequence numbers, and they are a local"):
        tg.join(timed, timed, on="k", time="t", within=tg.Rows(3))
    with pytest.raises(tg.TidegateError, match="constrained_join does; here, leave by out"):
        tg.join(table, table, **join, within=tg.Rows(3, by="k"))


def test_settings_can_be_given_by_side() -> None:
    left = {"k": [1, 1], "a": [0, 5], "u": [2.0, 3.0]}
    right = {"k": [1], "b": [6], "v": [1.0]}
    named = tg.join(
        left,
        right,
        on="k",
        time={"left": "a", "right": "b"},
        within={"left": 3, "right": 9},
        importance={"left": "u", "right": "v"},
    )
    assert (named.results, named.importance) == (1, 1.0)
    with pytest.raises(tg.TidegateError, match="within must be one value, or a schedule"):
        tg.join(left, right, on="k", time=("a", "b"), within={"left": 3})


@pytest.mark.parametrize("memory", ["20 rows", "20rows", " 20 Rows ", "2_0 rows", 20])
def test_memory_can_be_given_in_rows(memory: Any) -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64())])
    join: dict[str, Any] = {"on": "k", "time": "t", "within": 5}
    spec = window_join(schema, schema, **join, memory=memory)
    assert (spec.memory, spec.in_bytes) == (20, False)
    assert star_join({"a": schema, "b": schema}, schema, **join, memory=memory).memory == 20
    steps = window_join(schema, schema, **join, memory=[(0, memory), (9, 30)])
    assert [step.value for step in steps.budget] == [20, 30]
    assert sampled_join(schema, schema, **join, memory=memory).window.memory == 20
    for wrong in ("0 rows", "1.5 rows", "-3 rows", "rows", "x rows"):
        with pytest.raises(tg.TidegateError, match="a positive number of rows"):
            window_join(schema, schema, **join, memory=wrong)
        with pytest.raises(tg.TidegateError, match="a positive number of rows"):
            star_join({"a": schema, "b": schema}, schema, **join, memory=wrong)


@pytest.mark.parametrize("policy", ["auto", "ijoin", "life"])
def test_a_closed_window_of_length_zero_joins_rows_of_one_time(policy: str) -> None:
    """`Auto` divides a window into steps of age, also the shortest one."""
    n = 60
    table = pa.table({"k": [i % 3 for i in range(n)], "t": [i // 3 / 4 for i in range(n)]})
    join: dict[str, Any] = {"on": "k", "time": "t", "within": (1.0, 0), "closed": True}
    exact = tg.join(table, table, **join)
    assert exact.results == n + 4 * (n - 3) - 3 * (1 + 2 + 3)
    found = tg.join(table, table, **join, memory=5, policy=policy, batch_rows=7)
    assert n <= found.results < exact.results
    assert found.counters["held"] <= 5
