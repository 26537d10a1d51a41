"""Counters over time in `Result.series`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.api import series
from tidegate.engine.counters import FLOWS
from tidegate.streams import zipf

TABLES = zipf(300, domain=20, skew=0.8, seed=5)
JOIN: dict[str, Any] = {"on": "key", "time": "time", "within": 40}
BOUNDED: dict[str, Any] = JOIN | {"memory": 20, "policy": "prob"}


@pytest.mark.parametrize("batch_rows", [1, 50, 599, None])
def test_a_series_has_a_point_for_each_batch(batch_rows: int | None) -> None:
    done = tg.join(*TABLES, **BOUNDED, batch_rows=batch_rows)
    points = done.series
    whole = tg.join(*TABLES, **BOUNDED)
    assert done.counters == whole.counters | {"bytes": done.counters["bytes"]}
    if batch_rows is not None and batch_rows > 1:
        assert len(points) == -(-600 // batch_rows)
    if batch_rows is None:
        assert len(points) == 1
    for name in FLOWS:
        if name in points.column_names:
            assert sum(points[name].to_pylist()) == done.counters[name]
    for name in ("held", "held_left", "held_right"):
        assert points[name].to_pylist()[-1] == done.counters[name]
    assert max(points["held"].to_pylist()) <= 20
    assert points["time"].to_pylist() == sorted(points["time"].to_pylist())
    assert points["time"][-1].as_py() == 299


def test_points_say_what_happened_until_then() -> None:
    """Rows of the last tick of a batch meet each other when the next tick comes."""
    done = tg.join(*TABLES, **BOUNDED, batch_rows=100)
    points = done.series.to_pylist()
    late = [max(row["time_left"], row["time_right"]) for row in done.table.to_pylist()]
    found = 0
    for point in points[:-1]:
        found += point["results"]
        assert sum(time < point["time"] for time in late) <= found
        assert found <= sum(time <= point["time"] for time in late)
    assert found + points[-1]["results"] == done.results
    assert [point["arrived"] for point in points] == [100] * 6
    assert len({point["held_left"] for point in points}) > 1


@pytest.mark.parametrize("most", [2, 4, 8, 4_096])
def test_neighbours_are_put_together(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    every = tg.join(*TABLES, **BOUNDED, batch_rows=20).series
    monkeypatch.setattr(series, "POINTS", most)
    fewer = tg.join(*TABLES, **BOUNDED, batch_rows=20).series
    assert len(every) == 30
    assert most // 2 <= len(fewer) <= most or len(fewer) == 30
    assert sum(fewer["results"].to_pylist()) == sum(every["results"].to_pylist())
    # The points that are left are points of the whole series.
    held = dict(zip(every["time"].to_pylist(), every["held"].to_pylist(), strict=True))
    for point in fewer.to_pylist():
        assert held[point["time"]] == point["held"]


def test_samples_stars_and_empty_inputs_have_a_series() -> None:
    sample = tg.sample_join(*TABLES, **JOIN, memory=20, batch_rows=100)
    assert sum(sample.series["results"].to_pylist()) == sample.results
    links = {"key_1": [1, 2, 3], "key_2": [2, 1, 3]}
    relation = pa.table({"a": links["key_1"], "b": links["key_2"]})
    streams = {"a": TABLES[0], "b": TABLES[1]}
    star = tg.star_join(
        streams,
        relation,
        on={"a": {"key": "a"}, "b": {"key": "b"}},
        time="time",
        within=40,
        memory=5,
        batch_rows=100,
    )
    assert sum(star.series["results"].to_pylist()) == star.results > 0
    none = [table.slice(0, 0) for table in TABLES]
    empty = tg.join(*none, **BOUNDED).series
    assert empty.select(["time", "results", "held"]).to_pylist() == [
        {"time": None, "results": 0, "held": 0}
    ]


def test_other_results_have_no_series() -> None:
    done = tg.truncated_join(*TABLES, on="key", keep=5)
    with pytest.raises(tg.TidegateError, match="only the result of tidegate.join"):
        _ = done.series
