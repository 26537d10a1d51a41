"""The settings that `tidegate.optimal` takes and refuses, and the figures of paper 1."""

from __future__ import annotations

import datetime as dt
import math
import statistics
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

import tidegate as tg
from benchmarks import paper1
from benchmarks.recall import results
from tidegate.streams import zipf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOIN: dict[str, Any] = {"on": "k", "time": "t", "within": 3}
LEFT = pa.table({"k": [1, 1, 1, 3, 2], "t": range(5)})
RIGHT = pa.table({"k": [2, 3, 1, 1, 3], "t": range(5)})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "prob"}, "policy='prob' was given: the optimum takes no policy"),
        ({"memory": "64 MB"}, "number of rows, not for a size: '64 MB'"),
        ({"memory": [(0, 2), (3, "1 kB")]}, "rows throughout or in sizes throughout"),
        ({"memory": [(0, "1 kB")]}, "not for a size"),
        ({"memory": [(0, 2), (3, 0)]}, "not 0.* .in the schedule of memory, from 3 on."),
        ({"memory": 0}, "memory must be a positive number of rows"),
        ({"memory": [(0, 2), (0, 3)]}, "times in a schedule of memory must ascend; 0 comes before"),
        ({"memory": [(0.5, 2)]}, "the schedule of memory must have a time like .* int64, not 0.5"),
        ({"memory": [("soon", 2)]}, "the schedule of memory must have a time like .* not 'soon'"),
        ({"memory": [(0, 2), (3, "x")]}, "not 'x'.* .in the schedule of memory, from 3 on."),
        ({"memory": [(0, 2), (3, math.inf)]}, "not inf.* .in the schedule of memory, from 3 on."),
        ({"memory": [(0, 2), (3,)]}, "memory must be one value, or a schedule: a list of .*3,"),
        ({"memory": [(0, 2), 3]}, "memory must be one value, or a schedule: a list of"),
        ({"memory": []}, r"memory must be one value, or a schedule: a list of .* not \[\]"),
        ({"memory": {0: 2}}, "memory must be one value, or a schedule: a list of .* not {0: 2}"),
        (
            {"within": [(0, 3), (2, "1 hour")]},
            "must be a number.*in the schedule of within, from 2 on.",
        ),
        ({"within": [(0, -1)]}, "longer than zero, not -1 .in the schedule of within"),
        (
            {"within": [(0, math.nan)]},
            "must be finite, not nan .in the schedule of within",
        ),
        ({"within": ([(0, 3), (1,)], 5)}, "within must be one value, or a schedule: a list of"),
        ({"within": [(0, 3), 5]}, "within must be one value, or a schedule: a list of"),
        ({"within": (1, 2, 3)}, "within must be one window, one schedule"),
        ({"within": -math.inf}, "within must be finite, not -inf"),
        ({"count_from": "noon"}, "count_from must have a time like those .* not 'noon'"),
        ({"value": "l.k + r.t", "importance": "t"}, "'l.k . r.t' and importance='t' both say"),
        ({"value": 3}, 'value must be an expression such as "l.price . r.amount - 3", not 3'),
        ({"value": "l.k = r.k"}, "value='l.k = r.k': .* gives bool, and must give a number"),
        ({"value": "l.k + r.price"}, "value='l.k . r.price': 'price' is no column; there are k, t"),
        ({"value": "1 / (l.t - r.t)"}, "gives null or no number for row 2 of the left with row 2"),
        ({"gap": 0.1}, "there is no setting 'gap'; there are on, time, within, .*count_from"),
        ({"shards": 2}, "there is no setting 'shards'; there are on, time"),
        ({"split": "fixed", "memory": 1}, "at least 2 rows"),
        ({"split": "predicted"}, "the optimum has no policy: give the left's share"),
        ({"cpu": tg.SlowCPU(rate=1, queue=1)}, "there is no setting 'cpu'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(tg.TidegateError, match=message):
        tg.optimal(LEFT, RIGHT, **{**JOIN, **settings})


def test_an_importance_must_be_finite() -> None:
    weighed = LEFT.append_column("i", pa.array([1.0, float("inf"), 1.0, 1.0, 1.0]))
    with pytest.raises(
        tg.TidegateError, match='importance must be a finite number of at least 0, and column "i"'
    ):
        tg.optimal(weighed, weighed, **JOIN, importance="i")


def test_a_value_may_not_be_infinite() -> None:
    far = LEFT.append_column("x", pa.array([1e200] * 5))
    words = "gives inf for row 2 of the left with row 2 of the right, and must give a finite number"
    with pytest.raises(tg.TidegateError, match=words):
        tg.optimal(far, far, **JOIN, where="l.t = 2 AND r.t = 2", value="l.x * r.x")


def test_negative_values_of_many_pairs_need_every_newcomer_to_probe() -> None:
    left, right = zipf(60, domain=2, skew=0.0, seed=1)
    join: dict[str, Any] = {"on": "key", "time": "time", "within": 20, "memory": 5}
    join |= {"shed_when": "before-arrival"}
    with pytest.raises(
        tg.TidegateError, match=r"at most 300 pairs that join, and there are [\d,]+:"
    ):
        tg.optimal(left, right, **join, value="-1")
    assert tg.optimal(left, right, **join, value="1").importance > 0
    found = tg.optimal(left, right, **join | {"shed_when": "after-probe"}, value="-1")
    # Only rows that arrive together join.
    assert found.importance == -found.results == found.upper_bound
    assert found.keep_until.num_rows == 0


@pytest.mark.parametrize("shed_when", ["after-probe", "before-probe", "before-arrival"])
def test_a_value_that_is_an_importance_has_the_same_optimum(shed_when: Any) -> None:
    left, right = (
        table.append_column("i", pa.array([at % 5 for at in range(60)], pa.int64()))
        for table in zipf(60, domain=4, skew=0.5, seed=2)
    )
    join: dict[str, Any] = {"on": "key", "time": "time", "within": 10, "memory": 3}
    weighed = tg.optimal(
        left, right, **join, shed_when=shed_when, importance="i", combine="product"
    )
    valued = tg.optimal(left, right, **join, shed_when=shed_when, value="l.i * r.i")
    assert valued.importance == weighed.importance
    assert valued.upper_bound == weighed.upper_bound


@pytest.mark.proves(optimal="classic batch, classic stream refused")
def test_streaming_frames_are_refused_and_batch_ones_are_not(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load().withColumnRenamed("value", "k")
    with pytest.raises(tg.TidegateError, match="left input is a streaming DataFrame"):
        tg.optimal(rate, rate, on="k", time="timestamp", within="3 s")
    frames = [spark.createDataFrame(table.to_pandas()) for table in (LEFT, RIGHT)]
    found = tg.optimal(*frames, **JOIN, memory=2, split="fixed")
    assert found.results == 5
    loose = spark.sql("SELECT collate('a', 'UTF8_LCASE') AS k, 1 AS t")
    with pytest.raises(tg.TidegateError, match='key column "k" has the collation UTF8_LCASE'):
        tg.optimal(loose, loose, **JOIN)


@pytest.mark.proves(optimal="local")
def test_pandas_timestamps_and_rows_that_never_join() -> None:
    def minutes(values: list[int | None]) -> list[Any]:
        start = pd.Timestamp("2024-01-01")
        return [None if v is None else start + pd.Timedelta(minutes=v) for v in values]

    left = pd.DataFrame({"k": ["a", None, "a", "b"], "t": minutes([0, 0, 1, None])})
    right = pd.DataFrame({"k": ["a", "a"], "t": minutes([2, 3])})
    found = tg.optimal(left, right, on="k", time="t", within="3 min", memory=1)
    assert found.results == 2
    assert found.counters["null_keys"] == found.counters["null_times"] == 1
    [kept] = found.keep_until.to_pylist()
    # Row numbers are those of the input, with the rows that were dropped.
    assert (kept["side"], kept["row"]) == ("left", 2)
    assert kept["keep_until"] == dt.datetime(2024, 1, 1, 0, 3)
    late = tg.optimal(
        left, right, on="k", time="t", within="3 min", count_from="2024-01-01 00:03:00"
    )
    assert late.table.column("t_right").to_pylist() == [dt.datetime(2024, 1, 1, 0, 3)]


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        ((pa.int32(), pa.int64()), pa.int64()),
        ((pa.float32(), pa.float64()), pa.float64()),
        ((pa.decimal128(5, 0), pa.decimal128(7, 2)), pa.decimal128(38, 2)),
        ((pa.timestamp("s"), pa.timestamp("ms")), pa.timestamp("ms")),
        ((pa.date32(), pa.date32()), pa.date32()),
    ],
)
def test_times_keep_their_type(kinds: tuple[Any, Any], kept: pa.DataType) -> None:
    # The narrowest type that can be cast to all of these.
    base = pa.int8() if pa.types.is_decimal(kinds[0]) else pa.int32()
    tables = []
    for table, kind in zip((LEFT, RIGHT), kinds, strict=True):
        times = table.column("t").cast(base)
        if pa.types.is_timestamp(kind):
            times = times.cast(pa.int64()).cast(pa.timestamp("s"))
        tables.append(table.set_column(1, "t", times.cast(kind)))
    within = 3 if not pa.types.is_temporal(kinds[0]) else "3 s"
    within = "3 days" if kinds[0] == pa.date32() else within
    found = tg.optimal(*tables, on="k", time="t", within=within, memory=2, split="fixed")
    plain = tg.optimal(LEFT, RIGHT, **JOIN, memory=2, split="fixed")
    assert found.results == 5
    assert found.keep_until.schema.field("keep_until").type == kept
    assert found.keep_until.column("row").equals(plain.keep_until.column("row"))


def test_shed_says_what_was_lost() -> None:
    found = tg.optimal(LEFT, RIGHT, **JOIN, memory=2, split="fixed")
    exact = tg.join(LEFT, RIGHT, **JOIN, keep_shed=True)
    # Only a join's lines can be repaired, so only these have a mark.
    assert [*found.shed.schema.names, "mark"] == exact.shed.schema.names
    assert found.shed.num_rows == found.counters["shed"] + found.counters["rejected"] > 0
    # A pair is missing exactly if its earlier row was shed before the later one came.
    missing = exact.results - found.results
    later = 0
    for row in found.shed.to_pylist():
        own, other = (LEFT, RIGHT) if row["side"] == "left" else (RIGHT, LEFT)
        one = row["left"] or row["right"]
        assert one in own.to_pylist()
        later += sum(
            x["k"] == one["k"] and row["shed_at"] < x["t"] < one["t"] + 3 for x in other.to_pylist()
        )
    assert later == missing == 2
    assert tg.optimal(LEFT, RIGHT, **JOIN).shed.num_rows == 0


def test_empty_inputs() -> None:
    for left, right in ((LEFT.slice(0, 0), RIGHT), (LEFT.slice(0, 0), RIGHT.slice(0, 0))):
        found = tg.optimal(left, right, **JOIN, memory=2)
        assert (found.results, found.upper_bound, found.table.num_rows) == (0, 0.0, 0)
        assert found.keep_until.num_rows == found.shed.num_rows == 0


def test_memory_that_falls_sheds_rows() -> None:
    left = pa.table({"k": [1, 2, 3], "t": [0, 0, 0]})
    right = pa.table({"k": [1, 2, 3, 1, 2, 3], "t": [2, 2, 2, 4, 4, 4]})

    def best(memory: Any) -> int:
        return tg.optimal(left, right, on="k", time="t", within=9, memory=memory).results

    assert best(3) == 6
    # At time 2 all three are still probed, then two are shed.
    assert best([(0, 3), (2, 1)]) == 4
    assert best([(0, 3), (1, 1)]) == 2
    assert best([(-5, 1), (1, 3)]) == 2
    assert best([(0, 3), (3, 2)]) == 5


def test_windows_that_change() -> None:
    left = pa.table({"k": [1, 1], "t": [0, 5]})
    right = pa.table({"k": [1, 1], "t": [4, 9]})

    def best(within: Any) -> int:
        return tg.optimal(left, right, on="k", time="t", within=within).results

    assert best(5) == 3  # (0, 4), (5, 9) and, with the right's window, (4, 5)
    assert best([(0, 5), (5, 4)]) == 2
    assert best(([(0, 4), (5, 5)], 1)) == 1
    assert best(([(0, "unbounded")], [(0, 1), (4, 2)])) == 4
    # As in `tidegate.join`, infinity also means unbounded.
    assert best(([(0, math.inf)], [(0, 1), (4, 2)])) == best((math.inf, [(0, 1), (4, 2)])) == 4
    assert best(math.inf) == best("unbounded") == 4
    real = [t.set_column(1, "t", t.column("t").cast(pa.float64())) for t in (left, right)]
    with pytest.raises(tg.TidegateError, match="schedule of within must have a time .* not inf"):
        tg.optimal(*real, on="k", time="t", within=[(math.inf, 3)])


def test_an_importance_that_is_the_same_for_all_changes_nothing() -> None:
    streams = zipf(600, domain=3, skew=1.0, seed=5)
    join: dict[str, Any] = {"on": "key", "time": "time", "within": 200, "memory": 60}
    plain = tg.optimal(*streams, **join)
    for one in (1e-9 / 3, 1 / 3, 1e12 / 3):
        weighed = [t.append_column("i", pa.array([one] * len(t))) for t in streams]
        found = tg.optimal(*weighed, **join, importance="i", combine="max")
        assert found.results == plain.results
        assert found.upper_bound == found.importance == pytest.approx(plain.results * one)


def test_paper_1_figures() -> None:
    """Zipf(1), domain 50, w = M = 400, fixed, counted from 2w, whole-stream frequencies.

    What PROB reaches depends on how the two streams' permutations of the keys happen to fall, and
    in the mean over seeds it is 93.5 %, less than the 96 to 97 % that were expected.
    """
    found = paper1.over_seeds(paper1.Setting(), 400, range(10))
    assert max(found["PROB/OPT"]) <= 1
    assert 0.91 < statistics.mean(found["PROB/OPT"]) < 0.98
    assert statistics.mean(found["RAND/OPT"]) == pytest.approx(0.54, abs=0.02)


def test_paper_1_figures_where_keys_meet() -> None:
    """On streams that have equal keys more often than most, the expected figures do hold.

    PROB 96 to 97 % of OPT at M = w and at M = 0.1w, RAND about 53 %, LIFE about 91 %: each within a
    point, on the ten of sixty streams on which two rows have the same key most often. The rule
    was found on other seeds.
    """
    setting = paper1.Setting()
    seeds = paper1.meeting_most(setting, range(60, 120), 10)
    mean = {
        memory: {
            name: statistics.mean(values)
            for name, values in paper1.over_seeds(setting, memory, seeds).items()
        }
        for memory in (40, 400)
    }
    assert 0.95 <= mean[400]["PROB/OPT"] <= 0.98
    assert 0.95 <= mean[40]["PROB/OPT"] <= 0.98
    assert mean[400]["RAND/OPT"] == pytest.approx(0.53, abs=0.01)
    assert mean[400]["LIFE/OPT"] == pytest.approx(0.91, abs=0.01)


def test_paper_1_figure_19() -> None:
    """Domain 200 at M = w: the optimum is nearly all of the exact result."""
    shares = []
    for seed in range(10):
        streams = zipf(5_600, domain=200, skew=1.0, seed=seed)
        best = tg.optimal(
            *streams,
            on="key",
            time="time",
            within=400,
            memory=400,
            split="fixed",
            count_from=800,
        )
        shares.append(best.results / results(streams, 400, None, "prob")[1])
    assert statistics.mean(shares) == pytest.approx(0.997, abs=0.005)


@pytest.mark.parametrize("shed_when", ["after-probe", "before-probe", "before-arrival"])
@pytest.mark.parametrize("unit", [1e-280, 1e-30, 1e30, 1e300])
def test_the_size_of_importance_plays_no_part(shed_when: Any, unit: float) -> None:
    def found(importance: float) -> tg.Optimal:
        left = pa.table({"k": [1, 1, 2, 1], "t": [0, 1, 2, 3], "i": [importance] * 4})
        right = pa.table({"k": [1, 2, 1, 1], "t": [0, 2, 3, 4], "i": [importance] * 4})
        return tg.optimal(
            left, right, on="k", time="t", within=5, memory=2, shed_when=shed_when, importance="i"
        )

    one, scaled = found(1.0), found(unit)
    assert scaled.results == one.results > 0
    assert scaled.importance == pytest.approx(one.importance * unit)
    assert scaled.importance <= scaled.upper_bound == pytest.approx(one.upper_bound * unit)
    with pytest.raises(tg.TidegateError, match="divide the column by a constant"):
        found(1e308)
    with pytest.raises(tg.TidegateError, match="multiply the column by a constant"):
        found(1e-305)


def test_large_whole_importance_is_rounded() -> None:
    weighed = LEFT.append_column("i", pa.array([2**53 + 1] * len(LEFT)))
    best = tg.optimal(weighed, weighed, **JOIN, importance="i")
    assert best.importance == best.results * 2.0**53


def test_memory_beyond_the_window_changes_nothing() -> None:
    left, right = zipf(300, domain=9, skew=1.0, seed=1)
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": 20}
    for shed_when in ("after-probe", "before-probe"):
        exact = tg.join(left, right, **settings, shed_when=shed_when).results
        for memory in (40, 10**9, None, [(0, 40), (100, None)]):
            best = tg.optimal(left, right, **settings, shed_when=shed_when, memory=memory)
            assert best.results == best.upper_bound == exact
