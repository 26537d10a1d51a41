"""Budgets that change between batches, and shadow joins that estimate other budgets."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.shadow import WindowCopies
from tidegate.joins.window.spec import WindowJoin, window_join
from tidegate.policies import POLICIES
from tidegate.pool.curves import of_points
from tidegate.pool.member import Member, PooledEngine, PooledJob
from tidegate.pool.shadow_joins import OF_HELD, Sample, ShadowJoins, random_share
from tidegate.streams import auctions, cut_by_time, uniform, zipf

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64()), ("value", pa.float64())])
MEMBER = Member("pool", "a", (2, 4, 8), 1.0)
Feeds = list[list[list[pa.RecordBatch]]]


def spec_of(**settings: Any) -> WindowJoin:
    return window_join(SCHEMA, SCHEMA, **({"on": "key", "time": "time"} | settings))


def feeds_of(spec: WindowJoin, tables: tuple[pa.Table, pa.Table], batches: int) -> Feeds:
    """Return both streams, cut by the same times and prepared."""
    job = WindowJob(spec)
    name = spec.left.time
    ends = (
        min(t[name][0].as_py() for t in tables if len(t)),
        max(t[name][-1].as_py() for t in tables if len(t)),
    )
    cut = [cut_by_time(t, time=name, batches=batches, span=ends) for t in tables]
    return [
        [
            [job.prepare(side, b)[0] for b in pieces[at].combine_chunks().to_batches()]
            for side, pieces in enumerate(cut)
        ]
        for at in range(batches)
    ]


def rows(batches: list[pa.RecordBatch]) -> Counter[str]:
    return Counter(str(row) for batch in batches for row in batch.to_pylist())


memories = st.lists(st.integers(0, 12), min_size=4, max_size=4)


@given(st.sampled_from(sorted(POLICIES)), memories, st.integers(0, 3), st.sampled_from([None, 0.3]))
def test_an_engine_never_exceeds_its_budget(
    policy: str, told: list[int], restart: int, split: float | None
) -> None:
    """A restart changes nothing."""
    importance = "value" if policy in ("simp", "simpprob", "greedy") else None
    spec = spec_of(
        within=30, memory=9, policy=policy, split=split or "shared", importance=importance
    )
    tables = zipf(60, domain=6, seed=3)
    found, again = [], []
    one, other = WindowEngine(spec), WindowEngine(spec)
    log = other.snapshot()
    for number, (memory, inputs) in enumerate(
        zip(told, feeds_of(spec, tables, len(told)), strict=True)
    ):
        memory = 0 if split and memory < 2 else memory
        for engine in (one, other):
            engine.resize(number + 1, memory)
        found += list(one.feed(inputs))
        again += list(other.feed(inputs))
        assert one.take_counters()["held"] <= memory
        assert one.budget_update == (number + 1, memory)
        log.append(other.changes())
        if number == restart:
            other = WindowEngine(spec)
            other.restore(log)
            assert other.budget_update == (number + 1, memory)
    assert rows(found) == rows(again)
    exact = WindowEngine(spec_of(within=30))
    assert rows(found) <= rows([b for i in feeds_of(spec, tables, 4) for b in exact.feed(i)])


@given(
    st.sampled_from(["prob", "fifo", "rand", "until-expiry"]), st.integers(1, 9), st.integers(1, 9)
)
def test_an_update_acts_like_a_scheduled_change_of_memory(
    policy: str, first: int, second: int
) -> None:
    """The update acts like a schedule, if no windows end in between (victims would differ)."""
    tables = tuple(
        t.set_column(1, "time", pa.array(t["time"].to_numpy() * 4))
        for t in zipf(40, domain=5, seed=2)
    )
    schedule = spec_of(within=1000, memory=[(0, first), (78, second)], policy=policy)
    feeds = feeds_of(schedule, (tables[0], tables[1]), 2)
    found = []
    for spec in (schedule, spec_of(within=1000, memory=first, policy=policy)):
        engine = WindowEngine(spec)
        own = list(engine.feed(feeds[0], (77, 77)))
        if spec is not schedule:
            engine.resize(1, second)
        own += engine.feed(feeds[1], (400, 400))
        found.append((rows(own), engine.take_counters()["held"]))
    assert found[0] == found[1]


def test_a_smaller_budget_sheds_at_once_and_a_larger_one_fills_later() -> None:
    spec = spec_of(within=(1000, 1), memory=8, policy="prob")
    engine = WindowEngine(spec)
    left = pa.table({"key": [1] * 4 + [2] * 4, "time": range(8), "value": [0.0] * 8}, SCHEMA)
    right = pa.table({"key": [2] * 4, "time": [10] * 4, "value": [0.0] * 4}, SCHEMA)
    job = WindowJob(spec)

    def feed(*tables: pa.Table) -> int:
        inputs = [
            [job.prepare(side, b)[0] for b in t.combine_chunks().to_batches()]
            for side, t in enumerate(tables)
        ]
        return sum(b.num_rows for b in engine.feed(inputs, (100, 100)))

    feed(left, right.slice(0, 0))
    # Key 2 comes on the right, so that left rows of key 2 are worth more.
    assert feed(left.slice(0, 0), right) == 16
    engine.resize(1, 4)
    held = engine.take_counters()
    assert (held["held"], held["held_left"]) == (4, 4)
    later = right.set_column(1, "time", pa.array([101] * 4))
    assert feed(left.slice(0, 0), later) == 16
    engine.resize(2, 8)
    engine.take_counters()
    more = left.set_column(1, "time", pa.array(range(102, 110)))
    feed(more, right.slice(0, 0))
    assert engine.take_counters()["held"] == 8


def test_an_engine_never_exceeds_a_budget_in_bytes() -> None:
    spec = spec_of(within=1000, memory="64 kB")
    engine = WindowEngine(spec)
    for inputs in feeds_of(spec, uniform(200, domain=20, seed=1), 2):
        list(engine.feed(inputs))
    before = engine.take_counters()["bytes"]
    engine.resize(1, 20_000)
    after = engine.take_counters()
    assert 0 < after["bytes"] <= 20_000 < before
    engine.resize(2, 0)
    assert engine.take_counters()["held"] == 0


DATA: dict[str, tuple[tuple[pa.Table, pa.Table], dict[str, Any], int]] = {
    "zipf": (zipf(3_000, domain=100, skew=1.0, seed=1), {"within": 200}, 400),
    "uniform": (uniform(2_000, domain=50, seed=1), {"within": (150, 60)}, 210),
    "auctions": (
        auctions(1_500, bids=3.0, seed=2),
        {"on": "auction_id", "time": "ts", "within": ("2 hours", "1 us")},
        480,
    ),
}


@pytest.mark.parametrize("policy", ["prob", "age", "fifo"])
@pytest.mark.parametrize("name", sorted(DATA))
def test_shadow_joins_predict_what_a_join_finds(name: str, policy: str) -> None:
    tables, settings, live = DATA[name]
    settings = {"on": "key", "time": "time", **settings}
    left, right = tables
    exact = tg.join(left, right, **settings).results
    spec = window_join(left.schema, right.schema, **settings, memory=live, policy=policy)
    sizes = [round(live * 2 ** (-step / 2)) for step in range(7, -1, -1)]
    small = ShadowJoins(WindowCopies(spec), sizes, settle=False)
    for inputs in feeds_of(spec, tables, 5):
        small.feed(inputs, None)
    found = small.take()
    assert small.sample == Sample()
    assert found.total == pytest.approx(exact, rel=0.01)
    curve = of_points(sizes, [hits / found.total for hits in found.hits], need=found.need)
    for share in (0.2, 0.45, 0.6):
        memory = round(share * live)
        measured = tg.join(left, right, **settings, memory=memory, policy=policy).results
        assert curve.at(memory) == pytest.approx(measured / exact, abs=0.03)


def test_large_streams_are_sampled() -> None:
    """A sample of keys if there are many similar ones; of rows if few keys have most results."""
    spec = window_join(
        *(t.schema for t in DATA["auctions"][0]), **DATA["auctions"][1], memory=100, policy="age"
    )
    small = ShadowJoins(WindowCopies(spec), [200], settle=False, held=200)
    for inputs in feeds_of(spec, auctions(6_000, bids=3.0, seed=2), 4):
        small.feed(inputs, None)
    assert small.sample.key_group < 1
    assert small.take().hits[0] > 0
    few = spec_of(within=500, memory=100, policy="prob")
    small = ShadowJoins(WindowCopies(few), [400], settle=False, held=200)
    tables = zipf(5_000, domain=8, seed=2)
    for inputs in feeds_of(few, tables, 20):
        small.feed(inputs, None)
    assert (small.sample.key_group, small.sample.seen) == (1.0, 1.0)
    assert 0.05 < small.sample.held < 0.2
    found = small.take()
    exact = tg.join(*tables, on="key", time="time", within=500).results
    assert found.total == pytest.approx(exact, rel=0.2)


@given(
    st.integers(0, 50),
    st.integers(1, 5),
    st.sampled_from([0.25, 0.5]),
    st.lists(st.frozensets(st.integers(0, 4), max_size=3), min_size=2, max_size=2),
)
def test_a_copy_counts_the_pairs_whose_earlier_row_may_be_held(
    seed: int, batches: int, share: float, always: list[frozenset[int]]
) -> None:
    """Without a limit, a pair counts if its earlier row (at equal times, the left) is sampled.

    It counts as often as that row represents others; if all rows of its key are held, once.
    """
    spec = spec_of(within=(12, 7), memory=5, policy="prob")
    tables = zipf(60, domain=5, seed=seed)
    feeds = feeds_of(spec, tables, batches)
    stands: list[dict[int, float]] = [{}, {}]
    sure: list[set[int]] = [set(), set()]
    for inputs in feeds:
        for side, batch in [(s, b) for s in range(2) for b in inputs[s]]:
            drawn = random_share(batch.column("row_hash").to_numpy(), OF_HELD) < share
            rows = zip(*(batch.column(n).to_pylist() for n in ("key", "time", "c0")), strict=True)
            for (name, time, key), kept in zip(rows, drawn, strict=True):
                stands[side][time] = 1.0 if key in always[side] else kept / share
                sure[side] |= {name} if key in always[side] else set()
    copies = WindowCopies(spec)
    names = tuple(np.array(sorted(own), np.uint64) for own in sure)
    engine = copies.copy(None, Sample(held=share, sure=names))
    counted = 0.0
    for inputs in feeds:
        narrow = [[copies.narrowed(s, b) for b in side] for s, side in enumerate(inputs)]
        for _ in engine.feed(narrow):
            pass
        counted += engine.take_counters()["importance"]
    list(engine.finish())
    last = engine.take_counters()
    pairs = tg.join(*tables, on="key", time="time", within=(12, 7)).table
    times = zip(pairs["time_left"].to_pylist(), pairs["time_right"].to_pylist(), strict=True)
    assert counted + last["importance"] == sum(
        stands[0][a] if a <= b else stands[1][b] for a, b in times
    )
    assert last["held"] <= sum(n > 0 for side in stands for n in side.values())
    assert copies.stands_for(engine, last) >= last["held"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_sample_contains_all_rare_rows_with_many_partners(seed: int) -> None:
    """Keys that are frequent on one side and rare on the other: few rows have all results."""
    tables = zipf(12_000, domain=1_000, skew=1.0, correlation="opposite", seed=seed)
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": 2_000, "policy": "prob"}
    spec = window_join(*(t.schema for t in tables), **settings, memory=2_000)
    small = ShadowJoins(WindowCopies(spec), [500, 1_000, 2_000], settle=False, held=1_600)
    for inputs in feeds_of(spec, tables, 24):
        small.feed(inputs, None)
    assert small.sample.held < 0.5
    found = small.take()
    exact = tg.join(*tables, on="key", time="time", within=2_000).results
    for memory, hits in zip(found.sizes, found.hits, strict=True):
        measured = tg.join(*tables, **settings, memory=memory).results
        assert hits / found.total == pytest.approx(measured / exact, abs=0.03)


def test_a_sample_of_rows_learns_what_the_join_learns() -> None:
    """Copies learn the frequencies of many keys from all rows, though they hold few."""
    tables = zipf(8_000, domain=1_000, skew=1.0, seed=3)
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": 1_000, "policy": "prob"}
    spec = window_join(*(t.schema for t in tables), **settings, memory=2_000)
    small = ShadowJoins(WindowCopies(spec), [500, 1_000], settle=False, held=800)
    for inputs in feeds_of(spec, tables, 16):
        small.feed(inputs, None)
    assert small.sample.held < 0.3
    found = small.take()
    exact = tg.join(*tables, on="key", time="time", within=1_000).results
    for memory, hits in zip((500, 1_000), found.hits, strict=True):
        measured = tg.join(*tables, **settings, memory=memory).results
        assert hits / found.total == pytest.approx(measured / exact, abs=0.04)


def test_fewer_rows_of_large_batches_are_seen_with_long_windows() -> None:
    spec = spec_of(within=300, memory=50, policy="prob")
    small = ShadowJoins(WindowCopies(spec), [50, 100], rows=200)
    found = 0.0
    for inputs in feeds_of(spec, zipf(8_000, domain=10, seed=2), 8):
        small.feed(inputs, None)
        found += small.take().total
    assert small.sample.seen < 0.25
    assert found > 0


def test_results_count_after_settling_and_large_batches_in_part() -> None:
    spec = spec_of(within=100, memory=50, policy="prob")
    tables = zipf(1_000, domain=10, seed=2)
    small = ShadowJoins(WindowCopies(spec), [50, 200])
    totals = []
    for inputs in feeds_of(spec, tables, 10):
        small.feed(inputs, None)
        totals.append(small.take())
    assert totals[0].total == 0 < totals[1].total < totals[2].total
    assert [each.advance for each in totals[1:]] == pytest.approx([100] * 9, abs=2)
    assert totals[2].hits[0] < totals[2].hits[1] == totals[2].total
    # The window of 200 rows passes within the latest 800 rows of a batch.
    small = ShadowJoins(WindowCopies(spec), [50, 200], rows=800)
    [inputs] = feeds_of(spec, tables, 1)
    small.feed(inputs, None)
    part = small.take()
    later = sum(each.total for each in totals[2:]) / sum(each.span for each in totals[2:])
    assert part.total / part.span == pytest.approx(later, rel=0.1)
    empty: list[list[pa.RecordBatch]] = [[], []]
    for nothing in (inputs, empty):
        small.feed(nothing, (2_000, 2_000))
        assert small.take().total == 0


def test_sizes_are_added_where_recall_rises_steeply() -> None:
    """Sizes are added in two rounds. Copies restart for each, and have to settle again."""
    spec = spec_of(within=100, memory=50, policy="prob")
    small = ShadowJoins(WindowCopies(spec), [20, 50, 200])
    seen = []
    for inputs in feeds_of(spec, zipf(1_500, domain=10, seed=2), 15):
        small.feed(inputs, None)
        seen.append(small.take())
        assert len(seen[-1].hits) == len(seen[-1].sizes)
        assert (seen[-1].total > 0) == (seen[-1].span > 0)
    sizes = [each.sizes for each in seen]
    assert sizes[0] == (20, 50, 200)
    assert {35, 125} <= set(sizes[-1])
    assert 5 < len(sizes[-1]) <= 9
    assert len(set(sizes)) == 3
    recall = [hits / seen[-1].total for hits in seen[-1].hits]
    assert recall == sorted(recall)


def test_a_pooled_engine_applies_the_latest_update_and_reports() -> None:
    spec = spec_of(within=20, memory=8)
    job = PooledJob(WindowJob(spec), WindowCopies(spec), MEMBER)
    assert job.fingerprint()["memory"] == "a of a pool"
    engine = job.engine_at(1, 2)
    feeds = feeds_of(spec, zipf(120, domain=4, seed=1), 3)
    assert list(engine.feed(feeds[0])) != []
    assert engine.take_counters()["held"] == 0
    engine.apply_budget(2, (3, 5))
    engine.apply_budget(1, (9, 9))
    list(engine.feed(feeds[1]))
    counters, report = engine.take_counters(), json.loads(engine.report())
    assert (counters["held"], counters["allowed"]) == (5, 5)
    assert {n: report[n] for n in ("pool", "join", "shard", "number", "allowed", "held")} == {
        "pool": "pool",
        "join": "a",
        "shard": 1,
        "number": 2,
        "allowed": 5,
        "held": 5,
    }
    assert len(report["hits"]) == len(MEMBER.sizes)
    assert 0 < max(report["hits"]) <= report["total"]
    again = job.engine_at(1, 2)
    assert isinstance(again, PooledEngine)
    again.restore(engine.snapshot())
    list(again.feed(feeds[2]))
    assert (again.take_counters()["allowed"], json.loads(again.report())["number"]) == (5, 2)


def test_joins_that_cannot_be_copied_are_refused() -> None:
    with pytest.raises(tg.TidegateError, match="window never ends cannot be foreseen"):
        WindowCopies(spec_of(within="unbounded", memory=5))
    with pytest.raises(tg.TidegateError, match='frequencies="sketch" takes a part of a size'):
        WindowCopies(spec_of(within=5, memory="1 MB", policy=tg.Prob("sketch")))
    with pytest.raises(tg.TidegateError, match="a slow CPU cannot share a memory"):
        WindowCopies(spec_of(within=5, memory=5, cpu=tg.SlowCPU(rate=1, queue=5)))
    with pytest.raises(tg.TidegateError, match='split="predicted" is for a memory that does not'):
        WindowCopies(spec_of(within=5, memory=5), "predicted")
    weighed = spec_of(within=5, memory=5, importance="value", where="l.value < r.value")
    assert WindowCopies(weighed).narrowed(0, feeds_of(weighed, zipf(5), 1)[0][0][0]).num_columns > 4
    assert np.isfinite(WindowCopies(weighed).horizon)
