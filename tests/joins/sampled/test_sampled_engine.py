"""The sampled engine against its slow twin, and settings that it refuses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import window as naive
from twins.sampled import Drawn, NaiveSample

import tidegate as tg
from tidegate import TidegateError
from tidegate.engine.payload import sizes
from tidegate.joins.sampled.engine import SampledEngine, SampledJob
from tidegate.joins.sampled.spec import CLUSTER, METHODS, PROBABILITY, SampledJoin, sampled_join
from tidegate.joins.window.rules import TUPLE_OVERHEAD
from tidegate.policies import Age, Prob

INTEGERS = pa.schema(
    [("k", pa.int64()), ("t", pa.int64()), ("uid", pa.int64()), ("s", pa.string())]
)
REALS = INTEGERS.set(1, pa.field("t", pa.float64()))
GIVEN: dict[str, Any] = {
    "k": [0, 1, 2, 3],
    "left": [0.5, 0.1, 0.2, 0.0],
    "right": [0.1, 0.4, 0.0, 0.3],
}

Cell = tuple[int, int, Any, int]  # side, key, time, uid


@dataclass
class Case:
    """A sampled join, its input in feeds, and the feeds after which its state moves."""

    spec: SampledJoin
    feeds: list[list[Cell]]
    clocks: list[tuple[Any, Any]] = field(default_factory=list)
    restarts: set[int] = field(default_factory=set)
    #: The memory that a pool sets before each feed; None leaves it unchanged.
    orders: list[int | None] = field(default_factory=list)


def prepared(spec: SampledJoin, cells: Iterable[Cell], side: int) -> pa.RecordBatch:
    mine = [c for c in cells if c[0] == side]
    columns = [[c[i] for c in mine] for i in (1, 2, 3)]
    strings = ["x" * (c[3] % 7) for c in mine]
    rows = pa.record_batch([*columns, strings], schema=spec.window.sides[side].schema)
    return SampledJob(spec).prepare(side, rows)[0]


def naive_rows(spec: SampledJoin, cells: list[Cell]) -> list[naive.Row]:
    rows = []
    for side in range(2):
        batch = prepared(spec, cells, side)
        payload = pa.RecordBatch.from_arrays(batch.columns[3:], names=["k", "t", "uid", "s"])
        weights = TUPLE_OVERHEAD + sizes(payload) * 5 // 4
        columns = (batch.column(i).to_pylist() for i in (0, 1, 2, 5))
        rows += [
            naive.Row(side, key, time, row_hash, uid, int(size))
            for key, time, row_hash, uid, size in zip(*columns, weights, strict=True)
        ]
    return rows


def twin(spec: SampledJoin, engine: SampledEngine) -> NaiveSample:
    window, policy = spec.window, spec.window.policy
    assert window.left.window is not None
    assert window.right.window is not None
    known: dict[str, Any] = {}
    if isinstance(policy, Age) and policy.curve is not None:
        known = {"curves": tuple(map(list, policy.both_curves)), "rates": policy.rates}
    if isinstance(policy, Prob) and not policy.learned:
        hashes = prepared(spec, [(0, k, 0, k) for k in GIVEN["k"]], 0).column(0).to_pylist()
        known = {
            "given": tuple(dict(zip(hashes, GIVEN[s], strict=True)) for s in ("left", "right"))
        }
    return NaiveSample(
        windows=(window.left.window, window.right.window),
        budget=int(engine._rules.budgets[0, 0]),
        method=spec.method,
        fraction=spec.fraction,
        margin=spec.margin,
        reach=spec.reach,
        by_age=spec.by_age,
        halflife=window.halflife,
        in_bytes=window.in_bytes,
        lateness=window.lateness,
        cap=engine._rules.cap if engine._rules.learn else 2**62,
        seed=window.seed,
        **known,
    )


def drawn_by(batches: Iterable[pa.RecordBatch]) -> list[Drawn]:
    names = ("uid_left", "uid_right", PROBABILITY, CLUSTER)
    columns = [[row for b in batches for row in b.column(name).to_pylist()] for name in names]
    return [Drawn(a, b, p, unit % 2**64) for a, b, p, unit in zip(*columns, strict=True)]


def same(found: list[Drawn], expected: list[Drawn]) -> None:
    assert Counter((a, b, unit) for a, b, _, unit in found) == Counter(
        (a, b, unit) for a, b, _, unit in expected
    )
    share = [sorted((a, b, p) for a, b, p, _ in each) for each in (found, expected)]
    assert [p for *_, p in share[0]] == pytest.approx([p for *_, p in share[1]], rel=1e-7)


def passed_on(engine: SampledEngine, log: list[bytes]) -> SampledEngine:
    """Return a new engine with the state of the old one, restored from its log."""
    if not log or len(log) > 3:
        log[:] = engine.snapshot()
    else:
        log.append(engine.changes())
    new = SampledEngine(engine.sampled, keep_shed=True)
    new.restore(log)
    return new


def run_case(case: Case) -> list[Drawn]:
    """Run engine and twin, compare them after every feed, and return all pairs."""
    engine = SampledEngine(case.spec, keep_shed=True)
    slow = twin(case.spec, engine)
    log: list[bytes] = []
    total: list[Drawn] = []
    for i, cells in enumerate(case.feeds):
        inputs = [[prepared(case.spec, cells, side)] for side in range(2)]
        clocks = case.clocks[i] if case.clocks else (None, None)
        told = case.orders[i] if case.orders else None
        if told is not None:
            engine.resize(i + 1, told)
            slow.resize(int(engine._rules.budgets[0, 0]))
            check_held(engine, slow)
        fast = drawn_by(list(engine.feed(inputs, clocks)))
        same(fast, slow.feed(naive_rows(case.spec, cells), clocks))
        total += fast
        check_held(engine, slow)
        if i in case.restarts:
            engine = passed_on(engine, log)
    last = drawn_by(list(engine.finish()))
    same(last, slow.finish())
    check_held(engine, slow)
    return total + last


def check_held(engine: SampledEngine, slow: NaiveSample) -> None:
    uids: list[int] = []
    for side in range(2):
        slots = engine._tables.slots_of(side)
        uids += engine._payload[side].take(engine._tables.core.slots["row"][slots])[2].to_pylist()
    assert sorted(uids) == sorted(held.row.uid for held in slow.held)
    assert slow.free >= 0
    shed = [(row["why"], row[row["side"]]["uid"]) for row in engine.take_shed().to_pylist()]
    gone = {"rejected": slow.rejected, "shed": slow.shed}
    assert Counter(shed) == Counter((why, uid) for why, uids in gone.items() for uid in uids)
    counters = engine.take_counters()
    assert counters["held"] == len(slow.held)
    for why, uids in gone.items():
        assert counters[why] == len(uids)
        uids.clear()
    assert counters["waiting"] == len(slow.open)


models = st.sampled_from(
    [
        Prob(),
        Prob(halflife=3),
        Prob(keys=2),
        Prob(halflife=math.inf),
        Prob(GIVEN),
        Age(),
        Age([1.0, 0.0, 2.0]),
        Age(([0.5, 1.0], [2.0, 0.0, 1.0]), rates=(0.5, 0.25)),
    ]
)


@st.composite
def cases(draw: st.DrawFn, *, ordered: bool = False) -> Case:
    """Draw rows in any order or in order of time; one side may begin long after the other."""
    real = draw(st.booleans())
    schema = REALS if real else INTEGERS
    window = st.sampled_from([1, 2, 3, 5, 9] + ([0.5, 2.25] if real else []))
    time = st.integers(-4, 24).map(lambda t: t / 4 if real else t)
    memory = draw(st.sampled_from([None, 1, 2, 3, 5, 8, 20, "1 kB", "2 kB", "5 kB"]))
    fraction = draw(st.sampled_from([0.2, 0.5, 0.9, 1.0] + ([None] * 4 if memory else [])))
    spec = sampled_join(
        schema,
        schema,
        on="k",
        time="t",
        within=(draw(window), draw(window)),
        memory=memory,
        fraction=fraction,
        method=draw(st.sampled_from(METHODS)),
        model=draw(models),
        margin=draw(st.sampled_from([0.0, 1.0, 3.0])),
        reach=draw(st.sampled_from([0.0, 1.0, 3.0])),
        lateness=draw(st.sampled_from([0, 0, 2])),
        seed=draw(st.integers(0, 2**70)),
    )
    cells = draw(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), time), min_size=1, max_size=60)
    )
    rows = [(*cell, uid % 50) for uid, cell in enumerate(cells)]  # some rows are alike
    if ordered:
        rows.sort(key=lambda cell: cell[2])
    if draw(st.booleans()):
        first, alone = draw(st.integers(0, 1)), 3 * len(rows) // 4
        rows[:alone] = [(first, *cell[1:]) for cell in rows[:alone]]
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    feeds = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    clock = st.none() | time
    clocks = [] if ordered or draw(st.booleans()) else [(draw(clock), draw(clock)) for _ in feeds]
    restarts = draw(st.sets(st.integers(0, len(feeds)), max_size=4))
    return Case(spec, feeds, clocks, restarts)


@given(cases())
def test_the_engine_matches_its_slow_twin(case: Case) -> None:
    run_case(case)


@given(cases(), st.data())
def test_the_engine_matches_its_slow_twin_when_its_memory_changes(
    case: Case, data: st.DataObject
) -> None:
    """A pool changes it; a smaller memory thins the sample."""
    if case.spec.bounded:
        one = 1_000 if case.spec.window.in_bytes else 1
        told = st.none() | st.integers(0, 12).map(lambda n: n * one)
        run_case(replace(case, orders=[data.draw(told) for _ in case.feeds]))


@given(cases(ordered=True), st.randoms(use_true_random=False))
def test_neither_batches_nor_the_order_of_rows_change_the_sample(case: Case, random: Any) -> None:
    rows = [cell for feed in case.feeds for cell in feed]
    shuffled = sorted(random.sample(rows, len(rows)), key=lambda cell: cell[2])
    whole = run_case(replace(case, feeds=[shuffled], restarts=set()))
    same(run_case(case), whole)


# ---- bad input ----------------------------------------------------------------------------------

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", pa.float64())])
TABLE = [("left", pa.float64()), ("right", pa.float64())]


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({}, ["needs memory", "or fraction"]),
        ({"fraction": 0}, ["above 0 and at most 1", "not 0"]),
        ({"fraction": 1.5}, ["above 0 and at most 1", "not 1.5"]),
        ({"fraction": math.nan}, ["above 0 and at most 1", "not nan"]),
        ({"fraction": "half"}, ["above 0 and at most 1", "not 'half'"]),
        ({"fraction": True}, ["above 0 and at most 1", "not True"]),
        ({"memory": 0}, ["memory must be a positive number", "not 0"]),
        ({"memory": [(0, 5), (3, 9)]}, ["memory of a sampled join must not change"]),
        ({"memory": 5, "within": [(0, 5), (3, 9)]}, ["within of a sampled join must not change"]),
        ({"memory": 5, "within": "unbounded"}, ["windows that end", "not 'unbounded'"]),
        ({"memory": 5, "method": "snowball"}, ['"uniform", "cluster", "pps"', "not 'snowball'"]),
        ({"memory": 5, "model": "weather"}, ['"frequency" or "age"', "not 'weather'"]),
        ({"memory": 5, "model": Prob("whole")}, ["does not count its inputs first"]),
        ({"memory": 5, "model": Prob("sketch")}, ["nor in any way but with decay", "'sketch'"]),
        ({"memory": 5, "margin": -1}, ["margin must be a number of at least 0", "not -1"]),
        ({"memory": 5, "reach": math.inf}, ["reach must be a number", "not inf"]),
        ({"memory": 5, "reach": 1e5}, ["standard deviations, of which 100", "not 100000.0"]),
        ({"memory": 5, "margin": 1e308}, ["standard deviations, of which 100", "not 1e+308"]),
        (
            {"memory": 5, "model": Prob({"k": [1, 2], "left": [0.0, 0.0], "right": [0.0, 0.0]})},
            ["2 keys, all with 0", 'model="frequency"'],
        ),
        (
            {
                "memory": 5,
                "model": Prob(pa.schema([("k", pa.int64()), *TABLE]).empty_table()),
            },
            ["no rows", 'model="frequency"'],
        ),
        ({"memory": 5, "model": Age([0.0, 0.0])}, ["results at some age", "Age(curve=[0.0, 0.0]"]),
        ({"memory": 5, "value": "y"}, ['the result has no column "y"', '"x_left"']),
        ({"memory": 5, "value": 3}, ["name of a column", "not 3"]),
        ({"memory": 5, "on": None}, ["needs on"]),
        ({"memory": 5, "seed": -1}, ["seed must be a whole number", "not -1"]),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], parts: list[str]) -> None:
    given: dict[str, Any] = {"on": "k", "time": "t", "within": 5} | settings
    with pytest.raises(TidegateError) as error:
        sampled_join(SCHEMA, SCHEMA, **given)
    for part in parts:
        assert part in str(error.value)


def test_inputs_must_not_have_the_columns_that_a_sample_adds() -> None:
    taken = SCHEMA.append(pa.field(PROBABILITY, pa.float64()))
    with pytest.raises(TidegateError, match="rename that one"):
        sampled_join(taken, SCHEMA, on="k", time="t", within=5, fraction=0.5)


def test_keys_and_times_of_eight_bits_work_and_null_times_are_dropped() -> None:
    """A row without a time is in no window."""
    narrow = pa.schema([("k", pa.int8()), ("t", pa.int8())])
    rows = {"k": [1, 2, 1, -3], "t": [-128, 0, None, 127]}
    table = pa.table(rows, schema=narrow)
    found = tg.sample_join(table, table, on="k", time="t", within=300, fraction=1.0)
    assert sorted(found.table.column("t_left").to_pylist()) == [-128, 0, 127]
    assert found.counters["null_times"] == 2
