"""Compare the queue before a slow join with its slow twin, and test which rows it keeps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import rankers
from twins import window as naive

import tidegate as tg
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.queue import QueueEngine
from tidegate.joins.window.spec import window_join
from tidegate.settings.schedules import Step
from tidegate.settings.slow_cpu import MODES, SlowCPU
from tidegate.streams import zipf

from .cases import (
    INTEGERS,
    Case,
    Cell,
    cases,
    held_of,
    naive_rows,
    pairs_of,
    prepared,
    shed_of,
    twin,
)

cpus = st.builds(
    SlowCPU,
    st.sampled_from([0.1, 0.5, 1, 1.5, 3, 7, 1000]),
    st.sampled_from([1, 2, 3, 5, 9, 28]),
    st.sampled_from(MODES),
)


def slow_twin(case: Case, engine: QueueEngine, keys: int) -> naive.NaiveQueue:
    spec = case.spec
    assert spec.cpu is not None
    step: Any = Fraction(1) / Fraction(str(spec.cpu.rate))
    if spec.unit.kind == "real number":
        step = float(step)
    counts = rankers.ByKey(halflife=spec.cpu_halflife or None, cap=keys)
    if spec.frequencies is not None:
        known = spec.frequencies.keys.tolist()
        left, right = (
            dict(zip(known, c.tolist(), strict=True)) for c in list(spec.frequencies)[1:]
        )
        counts = rankers.ByKey((left, right), learned=False)
    return naive.NaiveQueue(
        twin(case, engine._join),
        step=step,
        size=spec.cpu.queue,
        integrated=spec.cpu.mode == "integrated",
        counts=counts,
    )


def waiting_of(engine: QueueEngine) -> list[int]:
    """Return the uids of waiting rows, in order."""
    items = [engine._queue[at : at + 1] for at in range(len(engine._queue))]
    rows = [engine._rows_of(int(item["side"][0]), item) for item in items]
    return [row.column("c2")[0].as_py() for row in rows]


def run_case(case: Case, keys: int) -> None:
    """Run queue and twin, and compare them after every feed."""
    engine = QueueEngine(case.spec, keep_shed=True, keys=keys)
    slow = slow_twin(case, engine, keys)
    log: list[bytes] = []
    for i, cells in enumerate(case.feeds):
        inputs = [[prepared(case.spec, cells, side)] for side in range(2)]
        clocks = case.clocks[i] if case.clocks else (None, None)
        assert pairs_of(engine.feed(inputs, clocks)) == Counter(
            slow.feed(naive_rows(case.spec, cells), clocks)
        )
        assert waiting_of(engine) == [row.uid for _, row in slow.waiting]
        assert held_of(engine._join) == {h.row.uid for h in slow.join.held}
        assert shed_of(engine) == Counter(slow.shed + slow.join.shed)
        counters = engine.take_counters()
        assert counters["arrived"] == len(cells)
        assert counters["queued"] == len(slow.waiting) <= slow.size
        assert counters["queue_shed"] == len(slow.shed)
        assert counters["waiting"] == len(slow.open) + len(slow.join.open)
        slow.shed.clear()
        slow.join.shed.clear()
        if i in case.restarts:
            engine = passed_on(engine, log, keys)
    assert pairs_of(engine.finish()) == Counter(slow.finish())
    assert held_of(engine._join) == {h.row.uid for h in slow.join.held}


def passed_on(engine: QueueEngine, log: list[bytes], keys: int) -> QueueEngine:
    """Return a new engine with the state of the old one, restored from its log."""
    if not log or len(log) > 3:
        log[:] = engine.snapshot()
    else:
        log.append(engine.changes())
    new = QueueEngine(engine.spec, keep_shed=True, keys=keys)
    new.restore(log)
    return new


@given(cases(), cpus, st.sampled_from([1, 2, 65_536]))
def test_queue_equals_twin(case: Case, cpu: SlowCPU, keys: int) -> None:
    run_case(replace(case, spec=replace(case.spec, cpu=cpu)), keys)


def answer(
    case: Case, engine: QueueEngine | WindowEngine, *, cut: bool
) -> tuple[Counter[tuple[int, int]], Counter[naive.Shed]]:
    """Return all pairs and all shed rows."""
    feeds = case.feeds if cut else [[cell for feed in case.feeds for cell in feed]]
    found: Counter[tuple[int, int]] = Counter()
    shed: Counter[naive.Shed] = Counter()
    log: list[bytes] = []
    for i, cells in enumerate(feeds):
        found += pairs_of(engine.feed([[prepared(case.spec, cells, s)] for s in range(2)]))
        shed += shed_of(engine)
        if cut and i in case.restarts and isinstance(engine, QueueEngine):
            engine = passed_on(engine, log, 2)
    found += pairs_of(engine.finish())
    return found, shed + shed_of(engine)


@given(cases(order="whole"), cpus)
def test_cuts_and_restarts_change_nothing(case: Case, cpu: SlowCPU) -> None:
    spec = replace(case.spec, cpu=cpu)
    engines = [QueueEngine(spec, keep_shed=True, keys=2) for _ in range(2)]
    assert answer(case, engines[0], cut=True) == answer(case, engines[1], cut=False)


@given(cases(order="whole"), st.sampled_from(MODES))
def test_a_join_that_keeps_up_is_the_plain_one(case: Case, mode: Any) -> None:
    spec = replace(case.spec, cpu=SlowCPU(1_000, 28, mode))
    queued = answer(case, QueueEngine(spec, keep_shed=True), cut=True)
    assert queued == answer(case, WindowEngine(case.spec, keep_shed=True), cut=True)


@given(cases(order="each"), st.sampled_from(MODES))
def test_a_stream_may_lag_behind(case: Case, mode: Any) -> None:
    always = (Step(0, None),)
    spec = replace(case.spec, budget=always, frequencies=None, cpu=SlowCPU(1_000, 28, mode))
    found, _ = answer(case, QueueEngine(spec, keep_shed=True), cut=True)
    plain = replace(spec, cpu=None)
    assert found == answer(case, WindowEngine(plain, keep_shed=True), cut=True)[0]


def test_an_example_by_hand() -> None:
    """The join takes one row in two units, and the queue holds one: the third is dropped."""
    left = pa.table({"k": [1, 2, 3], "t": [0, 0, 0]})
    right = pa.table({"k": [1, 2, 3], "t": [9, 9, 15]})
    frequencies = {"k": [1, 2, 3], "left": [1, 1, 1], "right": [3, 1, 2]}
    found = tg.join(
        left,
        right,
        on="k",
        time="t",
        within=20,
        memory=10,
        policy=tg.Prob(frequencies),
        cpu=tg.SlowCPU(rate=0.5, queue=1),
        keep_shed=True,
    )
    # At 0 the first row by hash is taken. Of the other two, the one with the higher count waits.
    [dropped] = found.shed.to_pylist()
    assert (dropped["side"], dropped["shed_at"], dropped["why"]) == ("left", 0, "queue full")
    assert found.results == 2
    assert found.counters["queue_shed"] == 1
    assert found.counters["arrived"] == 6


@pytest.mark.parametrize("mode", MODES)
def test_what_promises_more_is_kept(mode: Any) -> None:
    """Half of the rows are dropped, but far fewer than half of the results are lost."""
    left, right = zipf(600, domain=50, skew=1.0, seed=1)
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": 100}
    exact = tg.join(left, right, **settings).results
    cpu = tg.SlowCPU(rate=1.0, queue=20, mode=mode)
    found = tg.join(left, right, **settings, cpu=cpu)
    assert found.counters["queue_shed"] == pytest.approx(600, abs=25)
    # If rows were dropped at random, a quarter of all pairs would remain.
    assert found.results > 0.5 * exact


GIVEN = {"key": range(50), "left": [*range(50)], "right": [*range(50)]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", [tg.Prob, tg.Life])
@pytest.mark.parametrize("frequencies", ["learned", "window", "sketch", "whole", GIVEN])
def test_a_queue_knows_frequencies_however_much_is_kept(
    frequencies: Any, policy: type[tg.Prob | tg.Life], mode: Any
) -> None:
    """A budget that is never reached gives the same results as no budget."""
    left, right = zipf(600, domain=50, skew=1.0, seed=5)
    settings: dict[str, Any] = {
        "on": "key",
        "time": "time",
        "within": 100,
        "policy": policy(frequencies),
        "cpu": tg.SlowCPU(rate=0.7, queue=15, mode=mode),
    }
    found = [tg.join(left, right, memory=m, **settings) for m in (None, 10**6)]
    assert found[0].counters["queue_shed"] > 300
    assert found[0].table.equals(found[1].table)
    if mode == "modular" and frequencies not in ("whole", GIVEN):
        known = settings | {"policy": policy("whole")}
        assert not found[0].table.equals(tg.join(left, right, **known).table)


def test_an_integrated_queue_knows_who_is_there() -> None:
    """Right rows of keys 0 to 9 come at once, and the memory holds one of them."""
    keys = list(range(10))
    for there in keys:
        left = pa.table({"k": [there], "t": [0]})
        right = pa.table({"k": keys, "t": [10] * 10})
        cpu = tg.SlowCPU(rate=1.0, queue=1, mode="integrated")
        found = tg.join(left, right, on="k", time="t", within=20, memory=1, cpu=cpu)
        assert found.counters["queue_shed"] == 8
        assert found.results == 1


def test_time_is_counted_in_seconds_where_it_is_time() -> None:
    left, right = zipf(400, domain=20, seed=4)
    as_times = [
        t.set_column(1, "time", pa.array(t["time"].to_numpy() * 1_000_000).cast(pa.timestamp("us")))
        for t in (left, right)
    ]
    cpu = tg.SlowCPU(rate=1.3, queue=7)
    numbers = tg.join(left, right, on="key", time="time", within=40, memory=20, cpu=cpu)
    times = tg.join(*as_times, on="key", time="time", within="40 s", memory=20, cpu=cpu)
    assert times.counters["queue_shed"] == numbers.counters["queue_shed"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_counts_never_outgrow_a_float(mode: Any) -> None:
    """Counts are rescaled: once, with the order of the twin's counts, and then many times."""
    spec = window_join(
        INTEGERS, INTEGERS, on="k", time="t", within=1, memory=3, cpu=SlowCPU(1, 3, mode)
    )
    assert spec.cpu_halflife == 32

    def cells(gap: int) -> list[list[Cell]]:
        times = [gap * (at // 20) + at // 6 for at in range(60)]
        rows = [(at % 2, at * at % 7, time, at) for at, time in enumerate(times)]
        return [rows[:25], rows[25:]]

    run_case(Case(spec, cells(32 * 400), restarts={0}), 65_536)
    engine = QueueEngine(spec)
    for feed in cells(32 * 5_000):
        for _ in engine.feed([[prepared(spec, feed, side)] for side in range(2)]):
            pass
    counts = engine._statistics.counts
    assert np.isfinite(counts).all()
    assert 0 < counts.max() < 60


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((0, 5), "rate must be a number of rows above 0.*not 0"),
        ((float("inf"), 5), "not inf"),
        (("fast", 5), "not 'fast'"),
        ((1, 0), "queue must be a positive number of rows, not 0"),
        ((1, 2.5), "not 2.5"),
        ((1, 5, "both"), '"modular".*"integrated".*not \'both\''),
    ],
)
def test_bad_settings_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(tg.TidegateError, match=said):
        SlowCPU(*settings)


def test_a_cpu_that_is_none_is_refused() -> None:
    table = pa.table({"k": [1], "t": [1]})
    with pytest.raises(tg.TidegateError, match="cpu must be None or a slow one.*not 5"):
        tg.join(table, table, on="k", time="t", within=1, cpu=5)  # type: ignore[call-overload]
