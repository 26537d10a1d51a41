"""Results before `count_from` are left out, and nothing else changes."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg
from tidegate.joins.window.spec import window_join
from tidegate.streams import zipf

JOIN: dict[str, Any] = {"on": "key", "time": "time", "within": 20, "memory": 8}


def weighed(table: pa.Table) -> pa.Table:
    return table.append_column("i", pc.add(table.column("key"), 1))


@pytest.mark.parametrize("batch_rows", [1, 7, 1_000])
@pytest.mark.parametrize(
    "more",
    [
        {"policy": "auto"},
        {"policy": "prob", "importance": "i", "combine": "sum"},
        {"policy": "fifo", "where": "l.key < 5"},
        {"policy": "fifo", "cpu": tg.SlowCPU(rate=1, queue=4)},
    ],
    ids=["auto", "importance", "where", "cpu"],
)
def test_a_warm_up_is_a_filter_of_the_results(more: dict[str, Any], batch_rows: int) -> None:
    left, right = map(weighed, zipf(120, domain=6, skew=0.5, seed=3))
    whole = tg.join(left, right, **JOIN, **more)
    counted = tg.join(left, right, **JOIN, **more, count_from=60, batch_rows=batch_rows)
    later = pc.max_element_wise(whole.table["time_left"], whole.table["time_right"])
    wanted = whole.table.filter(pc.greater_equal(later, 60))
    assert 0 < wanted.num_rows < whole.results

    def ordered(table: pa.Table) -> list[Any]:
        return sorted(tuple(row.values()) for row in table.to_pylist())

    assert ordered(counted.table) == ordered(wanted)
    assert counted.results == counted.counters["results"] == wanted.num_rows
    importance = float(wanted.num_rows)
    if "importance" in more:
        importance = pc.sum(pc.add(wanted["i_left"], wanted["i_right"])).as_py()
    assert counted.importance == counted.counters["importance"] == importance
    for name in ("arrived", "admitted", "shed", "rejected", "expired", "late"):
        assert counted.counters[name] == whole.counters[name]


@pytest.mark.parametrize("policy", ["auto", "prob", "fifo"])
def test_no_policy_beats_the_optimum_after_a_warm_up(policy: str) -> None:
    streams = zipf(150, domain=10, skew=1.0, seed=4)
    online = tg.join(*streams, **JOIN, count_from=50, policy=policy)
    best = tg.optimal(*streams, **JOIN, count_from=50)
    exact = tg.join(*streams, **JOIN | {"memory": None}, count_from=50)
    assert online.results <= best.results <= exact.results
    unlimited = tg.optimal(*streams, **JOIN | {"memory": None}, count_from=50)
    assert unlimited.results == exact.results


def test_times_are_given_as_the_columns_hold_them() -> None:
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    rows = pa.table({"k": [1] * 4, "t": [start + dt.timedelta(hours=h) for h in range(4)]})
    join: dict[str, Any] = {"on": "k", "time": "t", "within": "1 hour"}
    assert tg.join(rows, rows, **join).results == 4
    found = tg.join(rows, rows, **join, count_from="2024-01-01 02:00:00Z")
    assert found.table["t_left"].to_pylist() == rows["t"].to_pylist()[2:]
    assert tg.join(rows, rows, **join, count_from=start + dt.timedelta(days=1)).results == 0
    with pytest.raises(tg.TidegateError, match="count_from must have a time like .* not 'noon'"):
        tg.join(rows, rows, **join, count_from="noon")


def test_only_a_join_with_a_warm_up_has_it_in_its_settings() -> None:
    """Checkpoints of joins without it stay valid."""
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64())])
    join: dict[str, Any] = {"on": "k", "time": "t", "within": 5}
    assert "count_from" not in window_join(schema, schema, **join).settings()
    assert window_join(schema, schema, **join, count_from=7).settings()["count_from"] == 7
