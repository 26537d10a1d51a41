"""Schedules: reading them, and their effect on a join."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.joins.window.spec import window_join
from tidegate.settings.schedules import Step, is_schedule
from tidegate.streams import zipf

UTC = dt.UTC


@pytest.mark.parametrize(
    ("kind", "times", "numbers"),
    [
        (pa.int32(), [3, 7], [3, 7]),
        (pa.float64(), [0.5, 7], [0.5, 7.0]),
        (pa.decimal128(9, 2), ["1.25", "2"], [125, 200]),
        (pa.decimal128(9, 2), [1.25, Decimal(2)], [125, 200]),
        (pa.date32(), ["1970-01-02", dt.date(1970, 1, 3)], [86_400_000_000, 172_800_000_000]),
        (pa.timestamp("ms"), ["1970-01-01 00:00:01", dt.datetime(1970, 1, 2)], [1000, 86_400_000]),
        (
            pa.timestamp("us", "UTC"),
            ["1970-01-01 01:00:00+01:00", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)],
            [0, 1_000_000],
        ),
    ],
)
def test_times_are_read_as_those_of_the_time_column(
    kind: pa.DataType, times: list[Any], numbers: list[Any]
) -> None:
    schema = pa.schema([("k", pa.int64()), ("t", kind)])
    length: Any = "1 h" if pa.types.is_temporal(kind) else Decimal(1)
    spec = window_join(
        schema,
        schema,
        on="k",
        time="t",
        within=(length, [(t, length) for t in times]),
        memory=[(t, 5 + i) for i, t in enumerate(times)],
    )
    assert spec.budget == (Step(numbers[0], 5), Step(numbers[1], 6))
    assert [step.start for step in spec.right.windows] == numbers
    assert len(spec.left.windows) == 1


def test_a_pair_of_windows_is_not_a_schedule() -> None:
    assert all(map(is_schedule, ([(0, 5), (7, 3)], (("noon", "1 h"),))))
    assert not any(map(is_schedule, [5, (5, 3), ("1 h", "2 h"), [], ([(0, 5)], [(0, 4)]), "ab"]))


def test_a_checkpoint_depends_on_schedules() -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64())])
    join: dict[str, Any] = {"on": "k", "time": "t"}
    spec = window_join(
        schema, schema, **join, within=[(0, 5), (9, None)], memory=[(0, "1 MB"), (5, None)]
    )
    stored = json.loads(json.dumps(spec.settings()))
    assert stored["within"] == [[[0, 5], [9, None]]] * 2
    assert stored["memory"] == [[0, "1000000 bytes"], [5, None]]
    plain = window_join(schema, schema, **join, within=5, memory=7)
    once = window_join(schema, schema, **join, within=[(0, 5)], memory=[(3, 7)])
    assert plain.settings() == once.settings()


def rows_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.parametrize("batch_rows", [7, 1 << 20])
@pytest.mark.parametrize("split", ["shared", "fixed"])
def test_exact_results_match_the_definition(batch_rows: int, split: Any) -> None:
    left, right = zipf(300, domain=20, seed=4)
    steps = ([(0, 30), (100, 5), (180, 60)], [(0, 8), (150, 40)])
    found = tg.join(
        left, right, on="key", time="time", within=steps, split=split, batch_rows=batch_rows
    )

    def window(side: int, time: int) -> int:
        return [length for start, length in steps[side] if start <= max(time, 0)][-1]

    wanted = Counter(
        (*a.values(), *b.values())
        for a in left.to_pylist()
        for b in right.to_pylist()
        if a["key"] == b["key"]
        if b["time"] < a["time"] + window(0, a["time"])
        if a["time"] < b["time"] + window(1, b["time"])
    )
    assert wanted.total() > 500
    assert rows_of(found.table) == wanted
    enough = [(0, 400), (120, 500), (200, 400)]
    held = tg.join(left, right, on="key", time="time", within=steps, split=split, memory=enough)
    assert rows_of(held.table) == wanted


def test_memory_follows_its_schedule() -> None:
    """Each value applies in turn; rows that do not fit are shed, the least valuable first."""
    left, right = zipf(1_000, domain=50, seed=2)
    join: dict[str, Any] = {"on": "key", "time": "time", "within": 200, "policy": "prob"}
    least = tg.join(left, right, **join, memory=20)
    most = tg.join(left, right, **join, memory=200)
    found = tg.join(left, right, **join, memory=[(0, 200), (500, 20)], keep_shed=True)
    assert least.results < found.results < most.results
    at_once = found.shed.filter(pa.compute.equal(found.shed["shed_at"], 500)).to_pylist()
    assert sum(row["why"] == "shed" for row in at_once) >= 180
    grown = tg.join(left, right, **join, memory=[(0, 20), (500, 200)])
    assert least.results < grown.results < most.results
    assert rows_of(tg.join(left, right, **join, memory=[(0, 20), (1_001, 9)]).table) == (
        rows_of(least.table)
    )
