"""The helpers for users' tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidegate.errors import TidegateError
from tidegate.streams import zipf
from tidegate.testing import JoinRun

pytest_plugins = ["tidegate.testing"]

Start = Callable[..., JoinRun]
ROWS = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("tags", pa.list_(pa.string()))])
JOIN: dict[str, Any] = {"on": "k", "time": "t", "within": 10}


def test_rows_are_fed_batch_by_batch(join_run: Start) -> None:
    run = join_run(ROWS, ROWS, **JOIN, memory=2)
    assert run.feed(left=[{"k": 1, "t": 0, "tags": ["a"]}, {"k": 2, "t": 1}]) == []
    [found] = run.feed(right=[{"k": 1, "t": 5}], left=[{"k": None, "t": 5}])
    assert (found["k_left"], found["t_right"], found["tags_left"]) == (1, 5, ["a"])
    assert run.counters["null_keys"] == 1
    run.feed(left=[{"k": 1, "t": 8}])
    assert run.counters["results"] == len(run.results) == 2
    assert run.counters["held"] == 2
    run.expect([{"k_left": 1, "t_left": 0}, {"k_left": 1, "t_left": 8}])
    run.expect([{"t_left": t} for t in (0, 8, 9)], subset=True)
    with pytest.raises(AssertionError, match=r"missing: \(9,\)\n  not expected: \(0,\); \(8,\)"):
        run.expect([{"t_left": 9}])
    assert run.finish() == []


@pytest.mark.parametrize("policy", ["auto", "ijoin", "fifo"])
def test_crashes_and_restarts_change_nothing(join_run: Start, policy: str) -> None:
    sides = [table.to_pylist() for table in zipf(300, domain=9, seed=2)]
    schemas = [table.schema for table in zipf(1)]
    settings = {"on": "key", "time": "time", "within": 40, "memory": 12, "policy": policy}
    runs = [join_run(*schemas, **settings) for _ in range(2)]
    for start in range(0, 300, 60):
        for run in runs:
            batch = [[row for row in side if start <= row["time"] < start + 60] for side in sides]
            run.feed(*batch)
        runs[1].restart(crashed=start % 120 == 0)
    assert runs[0].results
    assert runs[1].results == runs[0].results
    names = ("results", "shed", "rejected", "held")
    assert [runs[1].counters[n] for n in names] == [runs[0].counters[n] for n in names]


def test_settings_change_at_a_restart(join_run: Start) -> None:
    run = join_run(ROWS, ROWS, **JOIN, memory=5)
    run.feed(left=[{"k": i, "t": i} for i in range(5)])
    run.restart(memory=2, policy="fifo")
    run.feed(right=[{"k": i, "t": 6} for i in range(5)])
    run.expect([{"k_left": 3}, {"k_left": 4}])
    with pytest.raises(TidegateError, match="shed_when"):
        run.restart(shed_when="before-probe")


def test_bad_rows_are_refused(join_run: Start) -> None:
    run = join_run(ROWS, ROWS, **JOIN)
    with pytest.raises(TidegateError, match=r'left has the column "x".*only k, t, tags'):
        run.feed(left=[{"x": 1}])
    with pytest.raises(TidegateError, match="right does not fit its schema"):
        run.feed(right=[{"k": "one", "t": 1}])
    with pytest.raises(TidegateError, match="at least one row"):
        run.feed()
    none: Any = {"k": 1}
    with pytest.raises(TidegateError, match="schema of a stream"):
        JoinRun(none, ROWS, **JOIN)
    assert run.counters == {}


def test_a_query_gives_the_same(join_run: Start, spark: SparkSession, tmp_path: Path) -> None:
    left = [{"k": i % 4, "t": i, "tags": ["x"] * (i % 3)} for i in range(24)]
    right = [{"k": i % 3, "t": i} for i in range(24)]
    local, run = (
        join_run(ROWS, ROWS, **JOIN, memory=6, policy="prob", shards=1, spark=each)
        for each in (None, spark)
    )
    for each in (local, run):
        each.feed(left[:12], right[:12])
        each.restart(crashed=True, memory=4)
        each.feed(left[12:], right[12:])
    run.expect(local.results)
    assert run.counters["shed"] == local.counters["shed"]
    assert run.counters["held"] == local.counters["held"]
    with pytest.raises(TidegateError, match="does not end"):
        run.finish()
