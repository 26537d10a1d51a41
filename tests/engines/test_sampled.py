"""The sampled engine: its slow twin, and whether its probabilities are what they say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import naive
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_sampled import Drawn, NaiveSample
from scipy.stats import chi2

from tidegate import TidegateError, local
from tidegate.engines.payload import sizes
from tidegate.engines.rules import TUPLE_OVERHEAD
from tidegate.engines.sampled import SampledEngine, SampledJob
from tidegate.models import sampling
from tidegate.policies import Age, Prob
from tidegate.sampled_spec import CLUSTER, METHODS, PROBABILITY, SampledJoin, sampled_join
from tidegate.streams import auctions, zipf

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
    """A sampled join, its input in feeds, and where the state is handed on."""

    spec: SampledJoin
    feeds: list[list[Cell]]
    clocks: list[tuple[Any, Any]] = field(default_factory=list)
    restarts: set[int] = field(default_factory=set)
    #: How much may be held from each feed on, as a pool orders it; None leaves it as it is.
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
            naive.Row(side, key, time, tie, uid, int(size))
            for key, time, tie, uid, size in zip(*columns, weights, strict=True)
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
    """A new engine with the state of the old one, by way of its log."""
    if not log or len(log) > 3:
        log[:] = engine.snapshot()
    else:
        log.append(engine.changes())
    new = SampledEngine(engine.sampled, keep_shed=True)
    new.restore(log)
    return new


def run_case(case: Case) -> list[Drawn]:
    """Run both and compare after every feed; gives all pairs."""
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
    gone = {"rejected": slow.rejected, "evicted": slow.evicted}
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
    """Rows in any order, or all in order of time; a side may begin long after the other."""
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
def test_it_is_its_slow_twin(case: Case) -> None:
    run_case(case)


@given(cases(), st.data())
def test_it_is_its_slow_twin_when_its_memory_changes(case: Case, data: st.DataObject) -> None:
    """As a pool orders it; with a sample that is thinned when there is less."""
    if case.spec.bounded:
        one = 1_000 if case.spec.window.in_bytes else 1
        told = st.none() | st.integers(0, 12).map(lambda n: n * one)
        run_case(replace(case, orders=[data.draw(told) for _ in case.feeds]))


@given(cases(ordered=True), st.randoms(use_true_random=False))
def test_neither_cuts_nor_the_order_of_rows_matter(case: Case, random: Any) -> None:
    rows = [cell for feed in case.feeds for cell in feed]
    shuffled = sorted(random.sample(rows, len(rows)), key=lambda cell: cell[2])
    whole = run_case(replace(case, feeds=[shuffled], restarts=set()))
    same(run_case(case), whole)


# ---- inclusion probabilities --------------------------------------------------------------------


def runs(
    tables: tuple[pa.Table, pa.Table], seeds: int, **settings: Any
) -> Iterator[tuple[pa.Table, SampledEngine]]:
    """Samples of the same streams, a seed each."""
    spec = sampled_join(tables[0].schema, tables[1].schema, on="key", time="time", **settings)
    job = SampledJob(spec)
    inputs = [
        [job.prepare(side, batch)[0] for batch in table.combine_chunks().to_batches()]
        for side, table in enumerate(tables)
    ]
    for seed in range(seeds):
        engine = SampledEngine(replace(spec, window=replace(spec.window, seed=seed)))
        found = [*engine.feed(inputs), *engine.finish()]
        yield pa.Table.from_batches(found, spec.result_schema), engine


Pair = tuple[int, int, int, int]


def pairs_of(table: pa.Table) -> list[Pair]:
    names = ("key_left", "time_left", "key_right", "time_right")
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def head_of(pair: Pair) -> tuple[str, int]:
    """The tuple that came first: of one time, the left."""
    return ("left", pair[1]) if pair[1] <= pair[3] else ("right", pair[3])


def small() -> tuple[pa.Table, pa.Table]:
    """One tuple of a side at every time, so that a side and a time name it."""
    return zipf(80, domain=6, skew=0.8, seed=2)


def exact_pairs(tables: tuple[pa.Table, pa.Table], within: Any) -> list[Pair]:
    return pairs_of(local.join(*tables, on="key", time="time", within=within).table)


SEEDS = 200


@pytest.mark.parametrize("method", ["uniform", "cluster", "pps"])
@pytest.mark.parametrize("model", ["frequency", "age"])
def test_rows_are_there_as_often_as_their_probability_says(method: str, model: str) -> None:
    """Chi-square over what is drawn: pairs, or clusters."""
    tables = small()
    settings: dict[str, Any] = {"within": 10, "fraction": 0.4, "method": method, "model": model}
    units: Counter[Any] = Counter()
    shares: dict[Any, float] = {}
    for table, _ in runs(tables, SEEDS, reach=50.0, **settings):
        found: dict[Any, float] = {}
        for pair, p in zip(pairs_of(table), table.column(PROBABILITY).to_pylist(), strict=True):
            found[pair if method == "uniform" else head_of(pair)] = p
        for unit, p in found.items():
            assert shares.setdefault(unit, p) == p  # what others drew makes no difference
        units.update(found.keys())
    every = exact_pairs(tables, 10)
    assert set(shares) == (set(every) if method == "uniform" else {head_of(p) for p in every})
    p = np.array([shares[unit] for unit in units])
    counts = np.array(list(units.values()))
    assert (counts[p == 1] == SEEDS).all()
    p, counts = p[p < 1], counts[p < 1]
    statistic = float(((counts - SEEDS * p) ** 2 / (SEEDS * p * (1 - p))).sum())
    assert 0.001 < chi2.sf(statistic, len(p)) < 0.999
    if method != "pps":
        assert set(p) == {0.4}
    elif model == "frequency":
        assert p.std() > 0.05


def test_a_uniform_sample_draws_pairs_independently() -> None:
    """Also those of one tuple: neither of two says anything about the other."""
    tables = small()
    every = exact_pairs(tables, 10)
    column = {pair: at for at, pair in enumerate(every)}
    drawn = np.zeros((SEEDS, len(every)))
    for run, (table, _) in enumerate(
        runs(tables, SEEDS, within=10, fraction=0.4, method="uniform", reach=50.0)
    ):
        drawn[run, [column[pair] for pair in pairs_of(table)]] = 1.0
        assert table.column(CLUSTER).to_pandas().is_unique
    off = (drawn - 0.4) / math.sqrt(0.4 * 0.6)
    heads: dict[Any, list[int]] = {}
    for pair, at in column.items():
        heads.setdefault(head_of(pair), []).append(at)
    products = [off[:, a] * off[:, b] for own in heads.values() for a in own for b in own if a < b]
    assert len(products) > 150
    z = np.concatenate(products).sum() / math.sqrt(len(products) * SEEDS)
    assert abs(z) < 3.5
    # Next matches of one tuple, where skips would show first.
    near = [off[:, a] * off[:, b] for own in heads.values() for a, b in pairwise(own)]
    assert abs(np.concatenate(near).sum() / math.sqrt(len(near) * SEEDS)) < 3.5
    size = drawn.sum(axis=1)
    assert size.var(ddof=1) / (len(every) * 0.24) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("method", ["uniform", "cluster", "pps"])
def test_a_thinned_sample_still_knows_its_probabilities(method: str) -> None:
    """Counts by it are right on average, and spread no more than a smaller memory makes them."""
    tables = zipf(160, domain=6, skew=0.8, seed=2)
    spec = sampled_join(
        *(t.schema for t in tables),
        on="key",
        time="time",
        within=40,
        memory=60,
        method=method,
        reach=50.0,
    )
    job = SampledJob(spec)
    halves = [
        [[job.prepare(s, b)[0] for b in t.slice(at, 80).to_batches()] for s, t in enumerate(tables)]
        for at in (0, 80)
    ]
    estimates, evicted = [], 0.0
    for seed in range(300):
        engine = SampledEngine(replace(spec, window=replace(spec.window, seed=seed)))
        found = [*engine.feed(halves[0])]
        engine.take_counters()
        engine.resize(1, 24)
        counters = engine.take_counters()
        evicted += counters["evicted"]
        assert counters["held"] <= 24
        found += [*engine.feed(halves[1]), *engine.finish()]
        assert engine.take_counters()["held"] <= 24
        shares = np.concatenate([b.column(PROBABILITY).to_numpy() for b in found])
        estimates.append(float((1.0 / shares).sum()))
    assert evicted > 300 * 5
    exact = len(exact_pairs(tables, 40))
    error = np.std(estimates, ddof=1) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - exact) < 3.5 * error
    assert error * math.sqrt(len(estimates)) < 0.5 * exact


@pytest.mark.parametrize("method", ["cluster", "pps"])
def test_clusters_are_there_as_a_whole(method: str) -> None:
    tables = small()
    clusters: dict[Any, set[Pair]] = {}
    for pair in exact_pairs(tables, 10):
        clusters.setdefault(head_of(pair), set()).add(pair)
    for settings in ({"fraction": 0.3}, {"memory": 8}):
        whole = 0
        for table, engine in runs(tables, 20, within=10, method=method, **settings):
            found: dict[int, set[Pair]] = {}
            for pair, unit in zip(pairs_of(table), table.column(CLUSTER).to_pylist(), strict=True):
                found.setdefault(unit, set()).add(pair)
            assert found
            if engine.take_counters()["evicted"] == 0:  # the memory has always been enough
                whole += 1
                for own in found.values():
                    assert own == clusters[head_of(next(iter(own)))]
        assert whole >= 15


# ---- memory -------------------------------------------------------------------------------------


def held_over_time(engine: SampledEngine, job: SampledJob, tables: Any, start: int) -> float:
    """How much is held on average, looked at every few ticks after a start."""
    held = []
    last = max(table.column("time")[-1].as_py() for table in tables)
    for at in range(0, last, 5):
        inputs = []
        for side, table in enumerate(tables):
            time = table.column("time").to_numpy()
            low, high = np.searchsorted(time, [at, at + 5])
            batches = table.slice(low, high - low).combine_chunks().to_batches()
            inputs.append([job.prepare(side, batch)[0] for batch in batches])
        for _ in engine.feed(inputs):
            pass
        counters = engine.take_counters()
        assert counters["rejected"] == 0
        if at >= start:
            held.append(counters["held"])
    return float(np.mean(held))


def even(n: int, keys: int) -> tuple[pa.Table, pa.Table]:
    """A tuple a tick on either side, keys in turn: as many ticks to a match as there are keys."""
    time = np.arange(n)
    return pa.table({"key": (time - 1) % keys, "time": time}), pa.table(
        {"key": time % keys, "time": time}
    )


@pytest.mark.parametrize("p", [0.05, 0.2, 0.6])
def test_theorem_4_2(p: float) -> None:
    """Matches as even as the theorem has them: what is held is what it says."""
    window, partners = 100, 10
    tables = even(4_000, 10)
    q = 1 - p
    expected = window * (1 - q * (1 - q**partners) / (p * partners))
    spec = sampled_join(
        tables[0].schema,
        tables[1].schema,
        on="key",
        time="time",
        within=(window, 1),
        fraction=p,
        method="uniform",
        reach=0.0,
        model=Prob({"key": range(10), "left": [0.0] * 10, "right": [0.1] * 10}),
    )
    found = held_over_time(SampledEngine(spec), SampledJob(spec), tables, 2 * window)
    assert found == pytest.approx(expected, rel=0.05)
    side = sampling.Side(np.array([float(window)]), np.array([float(partners)]))
    assert sampling.uniform_memory([side], 0.0)(p) == pytest.approx(expected)
    assert sampling.uniform_fraction([side], expected, 0.0) == pytest.approx(p)


def aging(n: int, window: int, curve: list[int]) -> tuple[pa.Table, pa.Table]:
    """A tuple at each time on the left, with as many partners at each age as a curve says."""
    step = window // len(curve)
    rows = sorted(
        (at + age * step + (i + 1) * step // found, at)
        for at in range(n)
        for age, found in enumerate(curve)
        for i in range(found)
    )
    left = pa.table({"key": range(n), "time": range(n)})
    return left, pa.table({"key": [k for _, k in rows], "time": [t - 1 for t, _ in rows]})


@pytest.mark.parametrize("p", [0.05, 0.3])
@pytest.mark.parametrize("curve", [[1, 1, 2, 4], [4, 2, 1, 1]])
def test_theorem_4_3(p: float, curve: list[int]) -> None:
    window = 80
    tables = aging(3_000, window, curve)
    step, ages = window // len(curve), []
    for at, found in enumerate(curve):
        ages += [(at + (i + 1) / found) * step for i in range(found)]
    n = len(ages)
    expected = sum(p * (1 - p) ** (n - 1 - i) * age for i, age in enumerate(ages))
    spec = sampled_join(
        tables[0].schema,
        tables[1].schema,
        on="key",
        time="time",
        within=(window, 1),
        fraction=p,
        method="uniform",
        reach=0.0,
        model=Age((curve, [0.0]), rates=(1.0, float(n))),
    )
    found_memory = held_over_time(SampledEngine(spec), SampledJob(spec), tables, 2 * window)
    assert found_memory == pytest.approx(expected, rel=0.05)
    side = sampling.Side(np.array([float(window)]), np.array([float(n)]), np.array(curve, float))
    assert sampling.uniform_memory([side], 0.0)(p) == pytest.approx(expected)


@pytest.mark.parametrize("reach", [0.0, 3.0])
@pytest.mark.parametrize("method", ["uniform", "cluster", "pps"])
def test_expected_memory_of_random_streams(method: str, reach: float) -> None:
    """Zipf keys, a model that is given: the memory that is planned for is the one that is used."""
    tables = zipf(6_000, domain=40, skew=0.6, seed=3)
    counts = [np.bincount(t.column("key").to_numpy(), minlength=40) / 6_000 for t in tables]
    given = Prob({"key": range(40), "left": counts[0], "right": counts[1]})
    spec = sampled_join(
        tables[0].schema,
        tables[1].schema,
        on="key",
        time="time",
        within=200,
        memory=180,
        margin=3.0,
        reach=reach,
        method=method,
        model=given,
    )
    engine = SampledEngine(spec)
    engine._lots.plan[4] = 0.0  # no brake: what the model says, and nothing else
    engine._lots.ints[0] = 2**62
    found = held_over_time(engine, SampledJob(spec), tables, 400)
    assert found == pytest.approx(sampling.target(180, 3.0), rel=0.05)


def counted(
    tables: tuple[pa.Table, pa.Table], seeds: int, **settings: Any
) -> tuple[list[float], Counter[str]]:
    """Counts by samples, a seed each, and their counters."""
    found, counters = [], Counter[str]()
    for table, engine in runs(tables, seeds, **settings):
        found.append(float((1.0 / table.column(PROBABILITY).to_numpy()).sum()))
        own = engine.take_counters()
        assert own["bytes" if engine.spec.in_bytes else "held"] <= int(engine._rules.budgets[0, 0])
        counters.update({name: float(number) for name, number in own.items()})
    return found, counters


def unbiased(found: list[float], truth: float) -> bool:
    error = float(np.std(found, ddof=1)) / math.sqrt(len(found))
    return abs(float(np.mean(found)) - truth) < 3.5 * error


def test_the_bound_holds_whatever_the_fraction() -> None:
    """More is asked for than there is room: less is sampled, and counts are still right."""
    tables = zipf(300, domain=10, skew=1.0, seed=1)
    truth = len(exact_pairs(tables, 100))
    for method in METHODS:
        settings: dict[str, Any] = {"within": 100, "memory": 20, "method": method, "reach": 50.0}
        found, counters = counted(tables, 40, fraction=0.5, **settings)
        assert counters["evicted"] > 40 * 5
        assert counters["rejected"] == counters["missed"] == 0
        assert unbiased(found, truth)


@pytest.mark.parametrize("model", ["frequency", "age"])
@pytest.mark.parametrize("method", ["auto", "cluster"])
def test_a_stream_that_begins_long_after_the_other(method: str, model: str) -> None:
    """Nothing is known of it at first, and more is held than was planned for."""
    rng = np.random.default_rng(4)
    left, right = (
        pa.table({"key": rng.integers(0, 5, 1_300 - at), "time": range(at, 1_300)})
        for at in (0, 1_000)
    )
    for tables in ((left, right), (right, left)):
        truth = len(exact_pairs(tables, 100))
        found, counters = counted(tables, 60, within=100, memory=30, method=method, model=model)
        assert counters["missed"] == 0
        assert counters["evicted"] > 0
        assert unbiased(found, truth)
        assert np.std(found) < 0.25 * truth


def test_large_rows_are_in_a_sample_as_often_as_small_ones() -> None:
    """A tenth of the rows takes half of the memory each."""
    rng = np.random.default_rng(5)
    tables = zipf(300, domain=6, skew=1.0, seed=1)
    large = rng.random(300) < 0.1
    text = pa.array(["x" * (2_500 if big else 50) for big in large])
    tables = tables[0].append_column("text", text), tables[1]
    exact = local.join(*tables, on="key", time="time", within=30).table
    truth = sum(len(text) > 1_000 for text in exact.column("text").to_pylist())
    found, evicted = [], 0.0
    for table, engine in runs(tables, 100, within=30, memory="16 kB", method="cluster"):
        is_large = np.array([len(text) > 1_000 for text in table.column("text").to_pylist()])
        found.append(float((is_large / table.column(PROBABILITY).to_numpy()).sum()))
        counters = engine.take_counters()
        evicted += counters["evicted"]
        assert counters["rejected"] == 0
    assert evicted > 0
    assert unbiased(found, truth)


def test_rows_larger_than_the_memory_are_told() -> None:
    """They cannot be drawn: what they would have found is missing from counts."""
    tables = zipf(400, domain=6, skew=1.0, seed=1)
    text = pa.array(["x" * (40_000 if at % 5 == 0 else 5) for at in range(400)])
    tables = tables[0].append_column("text", text), tables[1]
    found, counters = counted(tables, 40, within=30, memory="24 kB", method="cluster")
    assert counters["rejected"] > 0
    lost = 1.0 - float(np.mean(found)) / len(exact_pairs(tables, 30))
    assert counters["missed"] / counters["foreseen"] == pytest.approx(lost, abs=0.05)
    assert lost > 0.05


# ---- plans --------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(0.01, 100.0), st.floats(0.001, 50.0)), min_size=1, max_size=12),
    st.floats(0.01, 0.99),
)
def test_no_probability_passes_1_and_the_budget_is_used(
    parts: list[tuple[float, float]], share: float
) -> None:
    costs, sizes_ = (np.array(part) for part in zip(*parts, strict=True))
    budget = share * costs.sum()
    constant = sampling.pps_constant(sizes_, costs, budget)
    p = np.minimum(constant * sizes_, 1.0)
    assert (costs * p).sum() == pytest.approx(budget, rel=1e-9)


def moody(n: int, keys: int, each: int) -> tuple[pa.Table, pa.Table]:
    """Zipf keys of which others are common after every stretch of time: counts mislead."""
    rng, time = np.random.default_rng(3), np.arange(n)
    chance = np.arange(1, keys + 1) ** -1.2
    drawn = (rng.choice(keys, n, p=chance / chance.sum()) for _ in range(2))
    left, right = (
        pa.table({"key": (key + time // each * 7) % keys, "time": time, "value": rng.random(n)})
        for key in drawn
    )
    return left, right


@pytest.mark.parametrize(
    ("tables", "settings", "expected"),
    [
        (zipf(8_000, domain=2, skew=0.0, seed=2), {"value": "value_left"}, "uniform"),
        (zipf(3_000, domain=50, skew=0.0, seed=2), {"value": "value_right"}, "cluster"),
        (moody(3_000, 50, 300), {"value": None}, "cluster"),
        (zipf(3_000, domain=50, skew=1.0, correlation="opposite", seed=2), {"value": None}, "pps"),
    ],
    ids=["clusters of one value", "clusters as mixed as all", "sizes misjudged", "sizes differ"],
)
def test_auto_takes_what_has_the_smallest_error(
    tables: tuple[pa.Table, pa.Table], settings: dict[str, Any], expected: str
) -> None:
    """4.3.2: by inter-cluster variance, the accuracy of the model, and the sizes of clusters."""
    start, value = len(tables[0]) // 2, settings["value"]
    exact = local.join(*tables, on="key", time="time", within=(200, 1)).table

    def estimated(table: pa.Table, p: Any) -> float:
        """Of what comes when the model has been learned: an average, or how many."""
        weight = (table.column("time_right").to_numpy() >= start) / p
        if value is None:
            return float(weight.sum())
        return float(weight @ table.column(value).to_numpy() / weight.sum())

    truth = estimated(exact, 1.0)
    errors: dict[str, float] = {}
    for method in METHODS:
        off = []
        for table, engine in runs(
            tables, 25, within=(200, 1), memory=20, method=method, **settings
        ):
            off.append(estimated(table, table.column(PROBABILITY).to_numpy()) / truth - 1)
            assert method != "auto" or engine.method == expected
        errors[method] = float(np.sqrt(np.mean(np.square(off))))
    assert errors["auto"] < 1.25 * min(errors.values())
    assert errors[expected] < 1.1 * min(errors.values())


def test_age_curves_are_learned() -> None:
    """Those of monitored tuples, in the shape that the bids have."""
    left, right = auctions(3_000, bids=5.0, shape="inc", seed=4)
    spec = sampled_join(
        left.schema,
        right.schema,
        on="auction_id",
        time="ts",
        within=("2 hours", "1 s"),
        memory=300,
        method="uniform",
        model="age",
    )
    engine = SampledEngine(spec)
    job = SampledJob(spec)
    inputs = [
        [job.prepare(s, b)[0] for b in t.combine_chunks().to_batches()]
        for s, t in enumerate((left, right))
    ]
    for _ in engine.feed(inputs):
        pass
    curve = engine._curve(0)
    assert curve.sum() == pytest.approx(5.0, rel=0.15)
    quarters = curve.reshape(4, 8).sum(axis=1)
    assert (np.diff(quarters) > 0).all()
    counters = engine.take_counters()
    assert counters["beyond"] < 0.06 * counters["monitored"]


def test_a_wrong_model_of_uniform_is_seen() -> None:
    """It is told that keys have a third of their partners: the rest cannot be sampled."""
    tables = zipf(2_000, domain=20, skew=0.5, seed=6)
    counts = [np.bincount(t.column("key").to_numpy(), minlength=20) / 6_000 for t in tables]
    wrong = Prob({"key": range(20), "left": counts[0], "right": counts[1]})
    truth = len(exact_pairs(tables, 300))
    sums, beyond, monitored = [], 0.0, 0.0
    for table, engine in runs(
        tables, 10, within=300, fraction=0.2, method="uniform", reach=0.0, model=wrong
    ):
        sums.append((1 / table.column(PROBABILITY).to_numpy()).sum())
        counters = engine.take_counters()
        beyond, monitored = beyond + counters["beyond"], monitored + counters["monitored"]
    bias = 1 - float(np.mean(sums)) / truth
    assert bias > 0.4
    assert beyond / monitored == pytest.approx(bias, abs=0.1)


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


def test_columns_of_the_samples_own_must_be_free() -> None:
    taken = SCHEMA.append(pa.field(PROBABILITY, pa.float64()))
    with pytest.raises(TidegateError, match="rename that one"):
        sampled_join(taken, SCHEMA, on="k", time="t", within=5, fraction=0.5)


def test_narrow_whole_numbers_and_null_times() -> None:
    """Keys and times of eight bits are keys and times; a row without a time is in no window."""
    narrow = pa.schema([("k", pa.int8()), ("t", pa.int8())])
    rows = {"k": [1, 2, 1, -3], "t": [-128, 0, None, 127]}
    table = pa.table(rows, schema=narrow)
    found = local.sample_join(table, table, on="k", time="t", within=300, fraction=1.0)
    assert sorted(found.table.column("t_left").to_pylist()) == [-128, 0, 127]
    assert found.counters["null_times"] == 2
