"""The memory of a sampled join: planned and used."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import exact_pairs, runs

import tidegate as tg
from tidegate.joins.sampled.engine import SampledEngine, SampledJob
from tidegate.joins.sampled.spec import METHODS, PROBABILITY, sampled_join
from tidegate.policies import Age, Prob
from tidegate.pool import sampling
from tidegate.streams import auctions, zipf

# ---- memory -------------------------------------------------------------------------------------


def held_over_time(engine: SampledEngine, job: SampledJob, tables: Any, start: int) -> float:
    """Return the average number of held rows, measured every few ticks after a start."""
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
    """Return one row a tick on either side, with keys in turn, so that matches are even."""
    time = np.arange(n)
    return pa.table({"key": (time - 1) % keys, "time": time}), pa.table(
        {"key": time % keys, "time": time}
    )


@pytest.mark.parametrize("p", [0.05, 0.2, 0.6])
def test_memory_is_as_theorem_4_2_says(p: float) -> None:
    """Matches are even, as the theorem assumes."""
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


def test_a_row_without_partners_takes_no_memory() -> None:
    """Figure 4: the first skip is at least 1, so a row with n = 0 is discarded on arrival.

    Windows have a length of 1, and matches are as random as arrivals. By the model, 1.3 rows are
    in the windows on average, 1.1 of them with partners. With this fraction, drawn as in figure 4,
    the join must hold one row on average, for which there is memory.
    """
    left, right = np.array([0.5, 0.1, 0.2, 0.0]), np.array([0.1, 0.4, 0.0, 0.3])
    spec = sampled_join(
        *[pa.schema([("key", pa.int64()), ("time", pa.float64())])] * 2,
        on="key",
        time="time",
        within=1,
        memory=1,
        method="uniform",
        margin=0.0,
        reach=0.0,
        model=Prob({"key": range(4), "left": left, "right": right}),
    )
    p = SampledEngine(spec)._sampler.plan[0].share
    assert p == pytest.approx(0.967, abs=0.001)
    rng = np.random.default_rng(1)
    held = 0.0
    for own, other in ((left, right), (right, left)):
        for arrivals, partners in zip(own, other, strict=True):
            # Rows have fewer than one partner on average, so that at most one coin is flipped.
            chosen = rng.random(100_000) < (p if partners > 0 else 0.0)
            first = rng.exponential(1 / partners, 100_000) if partners > 0 else np.zeros(100_000)
            held += arrivals * float((chosen * np.minimum(first, 1.0)).mean())
    assert held == pytest.approx(1.0, rel=0.02)


def aging(n: int, window: int, curve: list[int]) -> tuple[pa.Table, pa.Table]:
    """Return a left row at each time, whose partners at each age follow a curve."""
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
def test_memory_is_as_theorem_4_3_says(p: float, curve: list[int]) -> None:
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
def test_planned_memory_is_used_on_random_streams(method: str, reach: float) -> None:
    """Keys are Zipf, and the model is given."""
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
    engine._sampler.plan[0].reserve = 0.0  # no correction: the model alone decides
    engine._sampler.scalars[0].replan_at = 2**62
    found = held_over_time(engine, SampledJob(spec), tables, 400)
    assert found == pytest.approx(sampling.target(180, 3.0), rel=0.05)


def counted(
    tables: tuple[pa.Table, pa.Table], seeds: int, **settings: Any
) -> tuple[list[float], Counter[str]]:
    """Return the counts that samples of several seeds give, and their counters."""
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


def test_the_budget_holds_whatever_the_fraction() -> None:
    """If the fraction needs more than the memory, less is sampled, and counts stay right."""
    tables = zipf(300, domain=10, skew=1.0, seed=1)
    truth = len(exact_pairs(tables, 100))
    for method in METHODS:
        settings: dict[str, Any] = {"within": 100, "memory": 20, "method": method, "reach": 50.0}
        found, counters = counted(tables, 40, fraction=0.5, **settings)
        assert counters["shed"] > 40 * 5
        assert counters["rejected"] == counters["missed"] == 0
        assert unbiased(found, truth)


@pytest.mark.parametrize("model", ["frequency", "age"])
@pytest.mark.parametrize("method", ["auto", "cluster"])
def test_the_budget_holds_when_a_stream_begins_late(method: str, model: str) -> None:
    """Nothing is known of it at first, so more is held than planned."""
    rng = np.random.default_rng(4)
    left, right = (
        pa.table({"key": rng.integers(0, 5, 1_300 - at), "time": range(at, 1_300)})
        for at in (0, 1_000)
    )
    for tables in ((left, right), (right, left)):
        truth = len(exact_pairs(tables, 100))
        found, counters = counted(tables, 60, within=100, memory=30, method=method, model=model)
        assert counters["missed"] == 0
        assert counters["shed"] > 0
        assert unbiased(found, truth)
        assert np.std(found) < 0.25 * truth


def test_large_rows_are_in_a_sample_as_often_as_small_ones() -> None:
    """Each row of one tenth takes half of the memory."""
    rng = np.random.default_rng(5)
    tables = zipf(300, domain=6, skew=1.0, seed=1)
    large = rng.random(300) < 0.1
    text = pa.array(["x" * (2_500 if big else 50) for big in large])
    tables = tables[0].append_column("text", text), tables[1]
    exact = tg.join(*tables, on="key", time="time", within=30).table
    truth = sum(len(text) > 1_000 for text in exact.column("text").to_pylist())
    found, shed = [], 0.0
    for table, engine in runs(tables, 100, within=30, memory="16 kB", method="cluster"):
        is_large = np.array([len(text) > 1_000 for text in table.column("text").to_pylist()])
        found.append(float((is_large / table.column(PROBABILITY).to_numpy()).sum()))
        counters = engine.take_counters()
        shed += counters["shed"]
        assert counters["rejected"] == 0
    assert shed > 0
    assert unbiased(found, truth)


def test_rows_larger_than_the_memory_are_reported() -> None:
    """They cannot be drawn, so their results are missing from counts."""
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
def test_probabilities_are_at_most_1_and_the_budget_is_used(
    parts: list[tuple[float, float]], share: float
) -> None:
    costs, sizes_ = (np.array(part) for part in zip(*parts, strict=True))
    budget = share * costs.sum()
    constant = sampling.pps_constant(sizes_, costs, budget)
    p = np.minimum(constant * sizes_, 1.0)
    assert (costs * p).sum() == pytest.approx(budget, rel=1e-9)


def moody(n: int, keys: int, each: int) -> tuple[pa.Table, pa.Table]:
    """Return Zipf keys whose frequencies change from time to time, so that counts mislead."""
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
def test_auto_chooses_the_method_with_the_smallest_error(
    tables: tuple[pa.Table, pa.Table], settings: dict[str, Any], expected: str
) -> None:
    """Section 4.3.2: it depends on the variance between clusters, on the model, and on sizes."""
    start, value = len(tables[0]) // 2, settings["value"]
    exact = tg.join(*tables, on="key", time="time", within=(200, 1)).table

    def estimated(table: pa.Table, p: Any) -> float:
        """Return an average or a count over rows that come after the model was learned."""
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
    """Monitored rows show the shape of the curve of the bids."""
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


def test_a_wrong_model_of_uniform_is_detected() -> None:
    """The model says a third of the real partners, so the others cannot be sampled."""
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
