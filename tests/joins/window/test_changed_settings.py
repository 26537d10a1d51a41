"""A restart of the window join with other settings."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.engine.base import Engine
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join
from tidegate.policies import POLICIES

ROWS = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("uid", pa.int64()), ("w", pa.float64())])
WIDER = ROWS.insert(1, pa.field("note", pa.string()))
JOIN: dict[str, Any] = {"on": "k", "time": "t", "within": 12}

Row = tuple[int, int, int]  # side, key, time


def job(left: pa.Schema = ROWS, right: pa.Schema = ROWS, **settings: Any) -> WindowJob:
    return WindowJob(window_join(left, right, **{**JOIN, **settings}))


def inputs(one: WindowJob, rows: list[Row], first: int = 0) -> list[list[pa.RecordBatch]]:
    """Return rows, which are numbered from `first` on, as prepared input; texts are "new"."""
    found = []
    for side in range(2):
        mine = [(k, t, first + i) for i, (s, k, t) in enumerate(rows) if s == side]
        values = [
            {"k": k, "t": t, "uid": uid, "w": 1.0 + uid % 3, "note": "new"} for k, t, uid in mine
        ]
        batch = pa.RecordBatch.from_pylist(values, one.spec.sides[side].schema)
        found.append([one.prepare(side, batch)[0]])
    return found


def settings_of(one: WindowJob) -> dict[str, Any]:
    return dict(json.loads(json.dumps(one.fingerprint())))


def restarted(old: WindowJob, engine: Engine, new: WindowJob, *, snapshot: bool) -> Engine:
    """Go on with another job, from a snapshot or from the changes since the start."""
    records = engine.snapshot() if snapshot else [engine.changes()]
    after = new.engine_at(0, 1, keep_shed=True)
    after.restore(records, settings_of(old))
    return after


def pairs(found: list[pa.RecordBatch]) -> Counter[tuple[int, int]]:
    return Counter(
        (row["uid_left"], row["uid_right"]) for batch in found for row in batch.to_pylist()
    )


def exact(rows: list[Row], window: int) -> Counter[tuple[int, int]]:
    """Join all rows by comparing each with each."""
    return Counter(
        (i, j)
        for i, (side, key, time) in enumerate(rows)
        for j, (other, k, t) in enumerate(rows)
        if side == 0 and other == 1 and key == k and abs(time - t) < window
    )


streams = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 40)), min_size=4, max_size=60
).map(lambda rows: sorted(rows, key=lambda row: row[2]))
cpus = st.sampled_from([None, tg.SlowCPU(rate=1, queue=5), tg.SlowCPU(rate=2, queue=9)])
settings = st.fixed_dictionaries(
    {
        "memory": st.sampled_from([None, 3, 8, 20, "6 kB", [(0, 6), (20, 3)]]),
        "policy": st.sampled_from(sorted(set(POLICIES) - {"life"})),
        "within": st.sampled_from([5, 12, (12, 7), 20]),
        "lateness": st.sampled_from([0, 4]),
        "cpu": cpus,
    }
)


@given(streams, settings, settings, st.data())
def test_a_restart_with_any_other_settings_gives_a_subset(
    rows: list[Row], before: dict[str, Any], after: dict[str, Any], data: st.DataObject
) -> None:
    cut, snapshot = data.draw(st.integers(0, len(rows))), data.draw(st.booleans())
    old, new = job(**before), job(WIDER, ROWS, **after)
    engine: Engine = old.engine_at(0, 1)
    found = list(engine.feed(inputs(old, rows[:cut])))
    engine = restarted(old, engine, new, snapshot=snapshot)
    counted = engine.take_counters()
    if "allowed" in counted and not new.spec.in_bytes:
        assert counted["held"] <= counted["allowed"]
    found += engine.feed(inputs(new, rows[cut:], cut))
    again = new.engine_at(0, 1)
    again.restore(engine.snapshot())
    last = list(again.finish())
    assert pairs(last) == pairs(list(engine.finish()))
    joined = pairs(found + last)
    assert set(joined.values()) <= {1}
    assert not joined - exact(rows, 20)


@given(streams, st.integers(1, 9), st.integers(1, 9), st.data())
@pytest.mark.parametrize("policy", ["fifo", "prob", "auto", "ijoin"])
def test_another_memory_is_as_a_memory_that_changes(
    policy: str, rows: list[Row], before: int, after: int, data: st.DataObject
) -> None:
    """The same join with a schedule, whose change comes where the other restarts, is the twin."""
    start = data.draw(st.integers(1, 40))
    # Rows that come at the time of a scheduled change join before it.
    rows = [row for row in rows if row[2] != start]
    early = [row for row in rows if row[2] < start]
    planned = job(memory=[(0, before), (start, after)], policy=policy, importance="w")
    old = job(memory=before, policy=policy, importance="w")
    new = job(memory=after, policy=policy, importance="w")
    twin = planned.engine_at(0, 1)
    expected = list(twin.feed(inputs(planned, early), (start, start)))
    expected += twin.feed(inputs(planned, rows[len(early) :], len(early)), (99, 99))
    engine: Engine = old.engine_at(0, 1)
    found = list(engine.feed(inputs(old, early), (start, start)))
    engine = restarted(old, engine, new, snapshot=data.draw(st.booleans()))
    found += engine.feed(inputs(new, rows[len(early) :], len(early)), (99, 99))
    assert pairs(found) == pairs(expected)


@given(streams, st.integers(0, 60))
def test_without_a_budget_other_settings_lose_nothing(rows: list[Row], cut: int) -> None:
    old, new = job(policy="prob", lateness=3), job(WIDER, WIDER, policy="auto", memory=1_000)
    engine: Engine = old.engine_at(0, 1)
    found = list(engine.feed(inputs(old, rows[:cut])))
    engine = restarted(old, engine, new, snapshot=False)
    found += engine.feed(inputs(new, rows[cut:], cut))
    found += engine.finish()
    assert pairs(found) == exact(rows, 12)


@given(streams, st.integers(0, 60), st.sampled_from(["modular", "integrated"]))
def test_rows_in_the_queue_of_a_slow_cpu_are_joined_without_it(
    rows: list[Row], cut: int, mode: Any
) -> None:
    old, new = job(cpu=tg.SlowCPU(rate=100, queue=100, mode=mode)), job(lateness=60)
    engine: Engine = old.engine_at(0, 1)
    found = list(engine.feed(inputs(old, rows[:cut])))
    engine = restarted(old, engine, new, snapshot=True)
    found += engine.feed(inputs(new, rows[cut:], cut))
    found += engine.finish()
    assert pairs(found) == exact(rows, 12)


def test_added_columns_are_null_in_rows_that_were_held() -> None:
    old, new = job(), job(WIDER, ROWS)
    engine: Engine = old.engine_at(0, 1)
    assert not list(engine.feed(inputs(old, [(0, 1, 0), (0, 2, 1)]), (2, 2)))
    engine = restarted(old, engine, new, snapshot=False)
    found = list(engine.feed(inputs(new, [(0, 1, 3), (1, 1, 4)], 2), (9, 9)))
    rows = [row for batch in found for row in batch.to_pylist()]
    assert [(row["uid_left"], row["note"]) for row in rows] == [(0, None), (2, "new")]


def test_a_shorter_window_ends_sooner_and_a_longer_one_keeps_what_is_left() -> None:
    for window, expected in ((5, []), (30, [0])):
        old, new = job(), job(within=window)
        engine: Engine = old.engine_at(0, 1)
        assert not list(engine.feed(inputs(old, [(0, 1, 0)]), (1, 1)))
        engine = restarted(old, engine, new, snapshot=True)
        found = list(engine.feed(inputs(new, [(1, 1, 14 if window == 30 else 6)], 1), (99, 99)))
        assert [row["uid_left"] for batch in found for row in batch.to_pylist()] == expected


def test_what_a_policy_learned_stays_if_only_the_memory_changes() -> None:
    rows = [(i % 2, i // 2 % 3, i) for i in range(200)]
    for after, kept in (
        ({"memory": 9}, True),
        ({"within": 13}, False),
        ({"policy": "prob"}, False),
    ):
        old, new = job(memory=6), job(**{"memory": 6, **after})
        engine: Engine = old.engine_at(0, 1)
        list(engine.feed(inputs(old, rows)))
        learned: Any = restarted(old, engine, new, snapshot=True)
        core = learned._tables.core
        assert bool(core.scalars[0].census_seq > 0 or core.cells.any()) == kept


def test_changes_that_are_refused() -> None:
    one = job(memory=6)
    others = [
        job(on="uid", memory=6),
        job(memory=6, shed_when="before-probe"),
        job(memory=6, seed=3),
    ]
    for name, other in zip(("on", "shed_when", "seed"), others, strict=True):
        assert name not in one.changeable(settings_of(other))
    fewer = job(WIDER, ROWS, memory=6)
    assert "columns" not in one.changeable(settings_of(fewer))
    assert "columns" in fewer.changeable(settings_of(one))
