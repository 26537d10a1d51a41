"""Estimates: by hand on small samples; unbiased, and intervals that cover, over many seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.joins.sampled.engine import SampledEngine, SampledJob
from tidegate.joins.sampled.spec import CLUSTER, PROBABILITY, sampled_join
from tidegate.streams import zipf


def sample(**columns: Any) -> pa.Table:
    """Return a sample of three clusters."""
    rows = {"v": [1.0, 3.0, 10.0, 4.0], CLUSTER: [7, 7, 8, 9], PROBABILITY: [0.5, 0.5, 0.25, 1.0]}
    return pa.table(rows | columns)


def test_estimates_match_a_calculation_by_hand() -> None:
    [found] = tg.estimate(sample(), value="v").table.to_pylist()
    # Clusters have 2, 1 and 1 rows and totals of 4, 10 and 4, with weights 2, 4 and 1.
    assert found["count"] == 2 * 2 + 4 + 1
    assert found["sum"] == 4 * 2 + 10 * 4 + 4
    assert found["avg"] == pytest.approx(52 / 9)
    assert found["count_error"] == pytest.approx(math.sqrt(2 * 2**2 + 12 * 1**2))
    assert found["sum_error"] == pytest.approx(math.sqrt(2 * 4**2 + 12 * 10**2))
    left = 2 * (4 - 2 * 52 / 9) ** 2 + 12 * (10 - 52 / 9) ** 2
    assert found["avg_error"] == pytest.approx(math.sqrt(left * 3 / 2) / 9)
    assert (found["clusters"], found["rows"]) == (3, 4)
    wide = found["sum_high"] - found["sum"]
    assert wide == pytest.approx(found["sum"] - found["sum_low"])
    # Student's: the variances of clusters are uncertain as those of 1 or so equal ones.
    units = (2 * 4**2 + 12 * 10**2) ** 2 / ((2 * 4**2) ** 2 + (12 * 10**2) ** 2)
    assert 1 < units < 2
    assert wide == pytest.approx(12.706205 * found["sum_error"])
    [narrow] = tg.estimate(sample(), value="v", confidence=0.5).table.to_pylist()
    assert narrow["sum_high"] - narrow["sum"] == pytest.approx(found["sum_error"])


def test_rows_of_one_cluster_are_not_independent() -> None:
    """The same rows have a smaller error if they are drawn one by one."""
    together = tg.estimate(sample(), value="v").table["sum_error"][0].as_py()
    apart = tg.estimate(sample(**{CLUSTER: [1, 2, 3, 4]}), value="v").table["sum_error"][0].as_py()
    assert apart < together


def test_estimates_by_group_and_window() -> None:
    table = sample(g=["a", "b", "a", None], t=[3, 12, 5, 14], u=[4, 9, 11, 2])
    found = tg.estimate(table, value="v", by="g", time=("t", "u"), per=10).table
    assert [(r["window"], r["g"], r["count"], r["sum"]) for r in found.to_pylist()] == [
        (0, "a", 2.0, 2.0),
        (10, "b", 2.0, 6.0),
        (10, "a", 4.0, 40.0),
        (10, None, 1.0, 4.0),
    ]
    [certain] = [row for row in found.to_pylist() if row["g"] is None]
    assert certain["avg_error"] == certain["sum_error"] == 0.0  # its probability was 1
    one = found.to_pylist()[0]
    assert one["avg"] == 1.0
    assert one["avg_error"] is one["avg_low"] is one["avg_high"] is None  # of one cluster


@pytest.mark.parametrize(
    ("times", "per", "starts"),
    [
        (
            pa.array([datetime(2024, 5, 1, 12, m, tzinfo=UTC) for m in (1, 4, 5, 59)]),
            "5 minutes",
            [datetime(2024, 5, 1, 12, m, tzinfo=UTC) for m in (0, 5, 55)],
        ),
        (pa.array([date(1970, 1, d) for d in (1, 2, 3, 7)]), "2 days", None),
        (pa.array([-0.5, 0.25, 0.75, 1.5]), 0.5, [-0.5, 0.0, 0.5, 1.5]),
        (
            pa.array([Decimal("-0.10"), Decimal("0.05"), Decimal("0.30"), Decimal("0.31")]),
            0.25,
            None,
        ),
        (pa.array([-3, -1, 0, 9], pa.int16()), 4, [-4, 0, 8]),
    ],
    ids=["timestamps", "dates", "reals", "decimals", "numbers"],
)
def test_windows_work_for_every_type_of_time(
    times: pa.Array, per: Any, starts: list[Any] | None
) -> None:
    found = tg.estimate(sample(t=times), time="t", per=per).table
    expected = starts or {
        "date32[day]": [date(1970, 1, d) for d in (1, 3, 7)],
    }.get(str(times.type), [Decimal("-0.25"), Decimal("0.00"), Decimal("0.25")])
    assert found.column("window").to_pylist() == expected
    assert found.schema.field("window").type == times.type
    assert sum(found.column("count").to_pylist()) == 9.0


def slow_windows(times: list[Any], per: Any, every: Any, low: int, high: int) -> dict[Any, int]:
    """Count the rows of each sliding window, window by window."""
    begins = [every * number for number in range(low, high)]
    counts = {start: sum(start <= time < start + per for time in times) for start in begins}
    return {start: count for start, count in counts.items() if count}


@pytest.mark.parametrize(("per", "every"), [(10, 3), (10, 5), (12, 12), (1_000, 1), (7, 4)])
@pytest.mark.parametrize("kind", ["numbers", "reals", "decimals", "timestamps"])
def test_sliding_windows_are_those_of_a_slow_count(per: int, every: int, kind: str) -> None:
    rng = np.random.default_rng(per)
    numbers = [int(i) for i in rng.integers(-30, 40, 25)]
    times: Any = pa.array(numbers)
    lengths: tuple[Any, Any] = (per, every)
    if kind == "reals":
        times, lengths = pa.array([i / 4 for i in numbers]), (per / 4, every / 4)
    if kind == "decimals":
        times = pa.array([Decimal(i) / 10 for i in numbers], pa.decimal128(9, 1))
        lengths = (Decimal(per) / 10, Decimal(every) / 10)
    if kind == "timestamps":
        times = pa.array(numbers, pa.int64()).cast(pa.timestamp("s"))
        lengths = (f"{per} s", f"{every} s")
    size = len(numbers)
    rows = pa.table({"t": times, CLUSTER: range(size), PROBABILITY: [0.5] * size})
    found = tg.estimate(rows, time="t", per=lengths[0], every=lengths[1]).table
    starts = found["window"]
    if kind == "timestamps":
        starts = starts.cast(pa.int64())
    scale = {"reals": 4, "decimals": 10}.get(kind, 1)
    got = {
        round(start * scale): rows
        for start, rows in zip(starts.to_pylist(), found["rows"].to_pylist(), strict=True)
    }
    assert got == slow_windows(numbers, per, every, -1_100, 60)
    assert found["count"].to_pylist() == [2.0 * rows for rows in found["rows"].to_pylist()]


def test_a_cluster_counts_once_in_each_sliding_window() -> None:
    """Windows of 10 that begin every 5: the two rows of cluster 7 are together in one of them."""
    table = sample(t=[3, 8, 12, 14])
    found = {
        row["window"]: row
        for row in tg.estimate(table, value="v", time="t", per=10, every=5).table.to_pylist()
    }
    assert {start: (row["clusters"], row["rows"]) for start, row in found.items()} == {
        -5: (1, 1),
        0: (1, 2),
        5: (3, 3),
        10: (2, 2),
    }
    assert found[0]["sum"] == 4 * 2
    assert found[0]["sum_error"] == pytest.approx(math.sqrt(2 * 4**2))
    assert found[5]["sum"] == 3 * 2 + 10 * 4 + 4
    tumbling = tg.estimate(table, value="v", time="t", per=10).table.to_pylist()
    assert [found[row["window"]] for row in tumbling] == tumbling


def test_a_group_that_was_never_sampled_is_unknown() -> None:
    table = sample(g=["a", "b", "a", "b"], t=[3, 12, 5, 14])
    groups = {"g": ["a", "b", "c", "c"]}
    found = {
        r["g"]: r for r in tg.estimate(table, value="v", by="g", groups=groups).table.to_pylist()
    }
    assert list(found) == ["a", "b", "c"]
    assert found["c"]["count"] is found["c"]["sum"] is found["c"]["avg_high"] is None
    assert found["c"]["clusters"] == found["c"]["rows"] == 0
    windows = tg.estimate(table, by="g", time="t", per=10, groups=groups).table.to_pylist()
    assert sorted((r["window"], r["g"]) for r in windows if r["count"] is None) == [
        (0, "b"),
        (0, "c"),
        (10, "a"),
        (10, "c"),
    ]


def test_a_group_column_may_have_any_name() -> None:
    """It may have the name of a sum from which estimates are computed, too."""
    for name in ("n", "ss", "unit", "p", "k0"):
        found = tg.estimate(sample(**{name: list("abab")}), value="v", by=name).table.to_pylist()
        assert [(row[name], row["count"]) for row in found] == [("a", 6.0), ("b", 3.0)]


def test_probabilities_must_be_between_0_and_1() -> None:
    for p in (0.0, 1.5, -1.0, math.nan, None):
        table = sample(**{PROBABILITY: pa.array([p, 0.5, 0.25, 1.0], pa.float64())})
        with pytest.raises(tg.TidegateError, match="above 0 and at most 1"):
            tg.estimate(table)
    with pytest.raises(tg.TidegateError, match="must have probabilities.*not string"):
        tg.estimate(sample(**{PROBABILITY: list("abcd")}))


def test_an_infinite_value_has_no_interval() -> None:
    [found] = tg.estimate(sample(v=[1.0, math.inf, 2.0, 3.0]), value="v").table.to_pylist()
    assert found["sum"] == math.inf
    assert found["sum_low"] is found["avg_error"] is None
    assert found["count_low"] < found["count"] == 9.0


def test_nulls_are_ignored_and_an_empty_sample_has_no_estimates() -> None:
    for gap in (None, math.nan):
        table = sample(v=pa.array([1.0, gap, 10.0, gap], pa.float64()))
        [found] = tg.estimate(table, value="v").table.to_pylist()
        assert (found["count"], found["sum"]) == (6.0, 42.0)
    whole = sample(v=pa.array([1, None, 10, None], pa.int64()))
    assert tg.estimate(whole, value="v").table["sum"].to_pylist() == [42.0]
    none = sample().slice(0, 0)
    assert len(tg.estimate(none, value="v").table) == 0
    [unknown] = tg.estimate(
        none.append_column("g", pa.array([], pa.string())), by="g", groups={"g": ["a"]}
    ).table.to_pylist()
    assert unknown["count"] is None


def test_a_sample_of_everything_is_exact() -> None:
    left, right = zipf(300, domain=10, seed=1)
    exact = tg.join(left, right, on="key", time="time", within=20).table
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": 20}
    for method in ("uniform", "cluster", "pps"):
        found = tg.sample_join(left, right, **settings, fraction=1.0, method=method, reach=50.0)
        assert found.results == len(exact)
        [row] = tg.estimate(found, value="value_left").table.to_pylist()
        assert row["sum"] == pytest.approx(np.sum(exact["value_left"].to_numpy()))
        assert row["count_error"] == row["avg_error"] == 0.0


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"value": "s"}, ['column "s" is string', "leave value out to count"]),
        ({"value": "b"}, ["sums and averages are of numbers", 'column "b" is bool']),
        ({"value": "w"}, ['the sample has no column "w"']),
        ({"value": 3}, ["name of a column", "not 3"]),
        ({"by": "w"}, ['the sample has no column "w"']),
        ({"by": [1]}, ["by must be a column name", "not [1]"]),
        ({"by": ["s", "s"]}, ["each column once", "not ['s', 's']"]),
        ({"time": "t"}, ["both time", "per=None"]),
        ({"per": 5}, ["both time", "per=5"]),
        ({"time": "s", "per": 5}, ["timestamps, dates or numbers"]),
        ({"time": "t", "per": 0}, ["per must be longer than zero", "not 0"]),
        ({"time": ["t", "t", "t"], "per": 1}, ["one column or the two of a pair"]),
        ({"confidence": 1.0}, ["between 0 and 1", "not 1.0"]),
        ({"confidence": "sure"}, ["between 0 and 1", "not 'sure'"]),
        ({"groups": {"s": ["a"]}}, ["no by to group by"]),
        ({"by": "s", "groups": {"t": [1]}}, ['the table of groups has no column "s"']),
        ({"by": "t", "groups": {"t": ["x"]}}, ["the types that the sample has"]),
        ({"speed": 9}, ["no setting 'speed'", "confidence"]),
        ({"lateness": 5}, ["give time and per", "lateness=5"]),
        ({"every": 5}, ["give time and per", "every=5"]),
        ({"time": "t", "per": 5, "every": 6}, ["at most per", "every=6 with per=5"]),
        ({"time": "t", "per": 5_001, "every": 5}, ["at least per / 1,000", "not every=5"]),
        ({"time": "t", "per": 5, "every": 0}, ["every must be longer than zero", "not 0"]),
        ({"time": "t", "per": 5, "every": 2.5}, ["whole numbers apart", "every=2.5"]),
        (
            {"time": "day", "per": "2 days", "every": "12 hours"},
            ["'12 hours' is no value", '"day"'],
        ),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], parts: list[str]) -> None:
    table = sample(s=list("abcd"), b=[True] * 4, t=[1, 2, 3, 4], day=[date(2024, 5, 1)] * 4)
    with pytest.raises(tg.TidegateError) as error:
        tg.estimate(table, **settings)
    for part in parts:
        assert part in str(error.value)
    with pytest.raises(tg.TidegateError, match="what sample_join gives"):
        tg.estimate(table.drop_columns([CLUSTER]))


# ---- over many seeds ----------------------------------------------------------------------------


def by_age(n: int, window: int) -> tuple[pa.Table, pa.Table]:
    """Return rows with distinct keys, and on average five partners late in the window."""
    rng = np.random.default_rng(8)
    head = rng.integers(0, n, 5 * n)
    time = head + rng.integers(0, window, (5 * n, 3)).max(axis=1)
    order = np.argsort(time, kind="stable")
    left = {"key": np.arange(n), "time": np.arange(n), "value": rng.random(n)}
    right = {"key": head[order], "time": time[order], "value": rng.random(5 * n)}
    return pa.table(left), pa.table(right)


def estimates(
    tables: tuple[pa.Table, pa.Table], seeds: int, **settings: Any
) -> Iterator[dict[str, Any]]:
    spec = sampled_join(tables[0].schema, tables[1].schema, on="key", time="time", **settings)
    job = SampledJob(spec)
    inputs = [
        [job.prepare(side, batch)[0] for batch in table.combine_chunks().to_batches()]
        for side, table in enumerate(tables)
    ]
    for seed in range(seeds):
        engine = SampledEngine(replace(spec, window=replace(spec.window, seed=seed)))
        found = pa.Table.from_batches([*engine.feed(inputs), *engine.finish()], spec.result_schema)
        yield tg.estimate(found, value="value_left").table.to_pylist()[0]


STREAMS: dict[str, Any] = {
    **{
        f"{correlation} {skew}": (
            zipf(1_500, domain=50, skew=skew, correlation=correlation, seed=4),
            100,
        )
        for correlation in ("same", "opposite", "none")
        for skew in (0.5, 1.0, 1.5)
    },
    "age": (by_age(600, 100), (100, 1)),
}
RUNS = 40


@pytest.mark.parametrize("method", ["uniform", "cluster", "pps"])
def test_estimates_are_unbiased_and_intervals_cover(method: str) -> None:
    """Memory holds 30 % of the window, and models are learned; keys are Zipf or by age."""
    covered: dict[str, list[bool]] = {"count": [], "sum": [], "avg": []}
    off: dict[str, list[float]] = {"count": [], "sum": [], "avg": []}
    for name, (tables, within) in STREAMS.items():
        exact = tg.join(*tables, on="key", time="time", within=within).table
        values = exact.column("value_left").to_numpy()
        truth = {"count": len(values), "sum": values.sum(), "avg": values.mean()}
        model = "age" if name == "age" else "frequency"
        memory = 60 if name != "age" else 30
        for found in estimates(
            tables, RUNS, within=within, memory=memory, method=method, model=model
        ):
            for what, true in truth.items():
                covered[what].append(found[f"{what}_low"] <= true <= found[f"{what}_high"])
                off[what].append(found[what] / true - 1)
    for what in covered:
        assert 0.93 <= np.mean(covered[what]) <= 0.97
        error = np.std(off[what]) / math.sqrt(len(off[what]))
        # UNIFORM cannot sample what lies beyond its reach: at most a hundredth or two.
        allowed = 0.015 if method == "uniform" else 0.0
        assert abs(np.mean(off[what])) < 3.5 * error + allowed


def test_intervals_of_sliding_windows_cover() -> None:
    """Each window's intervals hold, whatever the other windows that share its rows say."""
    tables = zipf(1_500, domain=50, skew=1.0, seed=4)
    exact = tg.join(*tables, on="key", time="time", within=100).table
    late = np.maximum(exact["time_left"].to_numpy(), exact["time_right"].to_numpy())
    values = exact.column("value_left").to_numpy()
    windows: dict[str, Any] = {"time": ("time_left", "time_right"), "per": 300, "every": 100}
    truth = {}
    for start in range(100, 1_200, 100):  # windows that are full
        here = values[(late >= start) & (late < start + 300)]
        truth[start] = {"count": len(here), "sum": here.sum(), "avg": here.mean()}
    covered: dict[str, list[bool]] = {"count": [], "sum": [], "avg": []}
    for seed in range(RUNS):
        settings: dict[str, Any] = {"method": ("uniform", "cluster", "pps")[seed % 3], "seed": seed}
        settings |= {"on": "key", "time": "time", "within": 100, "memory": 60}
        found = tg.sample_join(*tables, **settings)
        for row in tg.estimate(found, value="value_left", **windows).table.to_pylist():
            for what, true in truth.get(row["window"], {}).items():
                covered[what].append(row[f"{what}_low"] <= true <= row[f"{what}_high"])
    for inside in covered.values():
        assert len(inside) == RUNS * len(truth)
        assert 0.92 <= np.mean(inside) <= 0.98


def test_a_cluster_of_nulls_does_not_make_an_error_known() -> None:
    """A single cluster with values has no known error, whatever other clusters there are."""
    sample = pa.table(
        {"v": [3.0, None], "sample_probability": [0.1, 0.1], "sample_cluster": [1, 2]}
    )
    (found,) = tg.estimate(sample, value="v").table.to_pylist()
    assert found["avg"] == 3.0
    assert found["avg_error"] is None
    (unknown,) = tg.estimate(sample.slice(1), value="v").table.to_pylist()
    assert unknown["avg"] is None
    assert unknown["avg_error"] is None


def test_windows_that_do_not_fit_the_times_are_refused() -> None:
    sample = pa.table({"t": [1], "sample_probability": [0.1], "sample_cluster": [1]})
    with pytest.raises(tg.TidegateError, match=r"not per=1\.5"):
        tg.estimate(sample, time="t", per=1.5)
    with pytest.raises(tg.TidegateError, match="by must be a column name or several, not 5"):
        tg.estimate(sample, by=5)  # type: ignore[call-overload]


def test_clusters_must_be_numbers() -> None:
    with pytest.raises(tg.TidegateError, match="numbers of clusters.*not string"):
        tg.estimate(sample(**{CLUSTER: list("abcd")}))
    with pytest.raises(tg.TidegateError, match="must not be null, and is in 2 rows"):
        tg.estimate(sample(**{CLUSTER: [7, None, 8, None]}))


def test_times_that_are_in_no_window_are_refused() -> None:
    for times in ([1, None, 3, 4], [1.0, math.nan, 3.0, 4.0]):
        with pytest.raises(tg.TidegateError, match='"t" is null or NaN in 1 rows'):
            tg.estimate(sample(t=times), time="t", per=10)
    narrow = pa.array([-5, 1, 2, 3], pa.int8())
    with pytest.raises(tg.TidegateError, match="-1000 to 0 is more than .* of int8 can hold"):
        tg.estimate(sample(t=narrow), time="t", per=1_000)


def test_each_row_of_a_thinned_cluster_counts_with_its_own_probability() -> None:
    """Later rows of the cluster have a smaller probability."""
    table = sample(**{CLUSTER: [7, 7, 8, 9], PROBABILITY: [0.5, 0.25, 0.25, 1.0]})
    [found] = tg.estimate(table, value="v").table.to_pylist()
    assert found["count"] == 2 + 4 + 4 + 1
    assert found["sum"] == 1 * 2 + 3 * 4 + 10 * 4 + 4
    assert found["count_error"] == pytest.approx(math.sqrt(0.75 * (2 + 4) ** 2 + 0.75 * 4**2))
    assert found["clusters"] == 3
