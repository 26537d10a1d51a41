"""Joins of Arrow tables and pandas frames in this process."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join
from tidegate.streams import auctions, zipf


def rows(table: pa.Table) -> Counter[str]:
    return Counter(map(str, table.to_pylist()))


def test_every_bid_finds_its_auction() -> None:
    left, right = auctions(500, seed=4)
    found = tg.join(left, right, on="auction_id", time="ts", within="2 hours", keep_shed=True)
    assert found.results == len(right) == found.importance
    assert found.table["auction_id_left"].equals(found.table["auction_id_right"])
    assert found.table.schema.names[:5] == [
        "auction_id_left",
        "ts_left",
        "seller",
        "category",
        "reserve",
    ]
    assert len(found.shed) == 0


@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_the_answer_does_not_depend_on_the_batches(batch_rows: int) -> None:
    left, right = zipf(300, domain=10, seed=1)
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": 50, "memory": 20}
    settings["keep_shed"] = True
    whole = tg.join(left, right, **settings)
    cut = tg.join(left, right, batch_rows=batch_rows, **settings)
    assert rows(cut.table) == rows(whole.table)
    assert rows(cut.shed) == rows(whole.shed)
    for counters in (cut.counters, whole.counters):
        del counters["bytes"]  # includes dead rows that were not removed yet
    assert cut.counters == whole.counters


@pytest.mark.parametrize("policy", ["fifo", "size", "life", "heeb"])
@pytest.mark.parametrize(
    ("every", "bound"),
    [
        (2, {"memory": "2 MB"}),
        (10, {"memory": 4_000, "split": "fixed"}),
        (2, {"memory": [(0, 3_000), (8_000, 6_000)]}),
    ],
)
def test_a_memory_that_comes_to_hold_more_rows(
    policy: str, every: int, bound: dict[str, Any]
) -> None:
    """After rows were shed, rows become shorter, one side fills later, or the memory grows."""
    number = np.arange(20_000)
    columns = {
        "key": np.random.default_rng(1).integers(0, 1_000, len(number)),
        "time": number,
        "text": pa.array(["z" * (2_000 if n < 8_000 else 10) for n in number]),
    }
    table = pa.table(columns)
    left, right = table.filter(number % every != 0), table.filter(number % every == 0)
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": 100_000, "policy": policy}
    whole = tg.join(left, right, **settings, **bound)
    cut = tg.join(left, right, batch_rows=500, **settings, **bound)
    names = ["time_left", "time_right"]
    assert whole.counters["shed"] > 0
    assert rows(cut.table.select(names)) == rows(whole.table.select(names))
    assert cut.counters["held"] == whole.counters["held"]


def test_row_order_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    left, right = zipf(400, domain=10, rate=(2.0, 3.0), seed=1)
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": 30, "memory": 25}
    for policy in ("rand", "fifo", "until-expiry", "prob", "life"):
        one = tg.join(left, right, policy=policy, **settings)
        mixed = [t.take(pa.array(rng.permutation(len(t)))) for t in (left, right)]
        other = tg.join(*mixed, policy=policy, **settings)
        assert rows(one.table) == rows(other.table)


@pytest.mark.proves(join="local")
def test_pandas_and_arrow_give_the_same() -> None:
    left, right = zipf(200, domain=10, seed=1)
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": 20, "memory": 10}
    arrow = tg.join(left, right, **settings)
    frames = tg.join(left.to_pandas(), right.to_pandas(), **settings)
    assert rows(arrow.table) == rows(frames.table)
    assert isinstance(left.to_pandas(), pd.DataFrame)


def test_bytes_are_counted_and_never_passed() -> None:
    left, right = auctions(3_000, seed=1)
    found = tg.join(left, right, on="auction_id", time="ts", within="2 hours", memory="200 kB")
    assert 0 < found.counters["bytes"] <= 200_000
    assert 0 < found.results < len(right)
    less = tg.join(left, right, on="auction_id", time="ts", within="2 hours", memory="50 kB")
    assert less.results < found.results


def test_a_row_larger_than_the_memory_is_refused_alone() -> None:
    left = pa.table({"k": [1, 1], "t": [0, 1], "s": ["x" * 100_000, "x"]})
    right = pa.table({"k": [1], "t": [2]})
    found = tg.join(left, right, on="k", time="t", within=10, memory="2 kB", keep_shed=True)
    assert found.table["t_left"].to_pylist() == [1]
    assert found.shed["why"].to_pylist() == ["rejected"]


@pytest.mark.parametrize(
    ("combine", "total"), [("min", 5.0), ("max", 9.0), ("sum", 14.0), ("product", 22.0)]
)
def test_importance_of_results_adds_up(combine: Any, total: float) -> None:
    left = pa.table({"k": [1, 2], "t": [0, 0], "w": [2.0, 3.0]})
    right = pa.table({"k": [1, 2], "t": [1, 1], "v": pa.array([5, 4], pa.int32())})
    found = tg.join(left, right, on="k", time="t", within=5, importance=("w", "v"), combine=combine)
    assert found.importance == total


@pytest.mark.parametrize(
    ("times", "within"),
    [
        ([dt.date(2026, 1, d) for d in (1, 2, 3, 4)], "36 hours"),
        ([dt.datetime(2026, 1, 1, h) for h in (0, 1, 2, 3)], dt.timedelta(minutes=90)),
        ([Decimal(x) for x in ("0.0", "1.0", "2.0", "3.0")], 1.5),
        ([0.0, 1.0, 2.0, 3.0], 1.5),
        (pa.array([0, 1000, 2000, 3000], pa.timestamp("ms", "UTC")), "1500 ms"),
        (pa.array([0, 1, 2, 3], pa.uint8()), 1.5),
    ],
)
def test_all_kinds_of_time(times: Any, within: Any) -> None:
    left = pa.table({"k": [1, 1, 1, 1], "t": times})
    found = tg.join(left, left, on="k", time="t", within=within)
    # Each joins itself and its neighbours.
    assert found.results == 10


def test_nulls_are_dropped_and_counted() -> None:
    left = pa.table({"a": [1, None, 1, 1], "b": ["x", "x", None, "x"], "t": [0.0, 0.0, 0.0, None]})
    right = pa.table({"a": [1, None], "b": ["x", "x"], "t": [1.0, np.nan]})
    found = tg.join(left, right, on=["a", "b"], time="t", within=5)
    assert found.results == 1
    assert found.counters["null_keys"] == 2
    assert found.counters["null_times"] == 2
    assert found.counters["arrived"] == 2


def test_keys_of_any_type() -> None:
    key = {
        "s": ["a", "b"],
        "d": [Decimal("1.10"), Decimal("2.20")],
        "day": [dt.date(2026, 1, 1), dt.date(2026, 1, 2)],
        "l": [[1, 2], [3]],
        "st": [{"x": 1, "y": None}, {"x": 2, "y": "q"}],
    }
    left = pa.table({**key, "t": [0, 0]})
    found = tg.join(left, left, on=list(key), time="t", within=1)
    assert found.results == 2
    assert found.table["st_left"].to_pylist() == key["st"]


def test_empty_and_one_sided_streams() -> None:
    left, right = zipf(100, seed=0)
    none = right.slice(0, 0)
    for a, b in ((left, none), (none, right), (none, none)):
        found = tg.join(a, b, on="key", time="time", within=10, memory=5)
        assert found.results == 0
        assert (
            found.table.schema.names
            == tg.join(left, right, on="key", time="time", within=10).table.schema.names
        )


def test_one_hot_key_gives_results_in_pieces() -> None:
    n = 1_500
    left = pa.table({"k": np.zeros(n, np.int64), "t": np.arange(n)})
    right = pa.table({"k": np.zeros(n, np.int64), "t": np.full(n, n)})
    found = tg.join(left, right, on="k", time="t", within="unbounded")
    assert found.results == n * n
    assert len(found.table.column(0).chunks) > 3


def test_hashes_that_collide_do_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key gets the same hash, so the keys themselves are compared."""
    monkeypatch.setattr(
        "tidegate.engine.prepare.hash_columns",
        lambda arrays, n, exact=False: (
            np.arange(n, dtype=np.uint64) if exact else np.ones(n, np.uint64)
        ),
    )
    left, right = zipf(60, domain=5, seed=0)
    found = tg.join(left, right, on="key", time="time", within=20)
    wanted = sum(
        a["key"] == b["key"] and -20 < a["time"] - b["time"] < 20
        for a in left.to_pylist()
        for b in right.to_pylist()
    )
    assert found.results == wanted == len(found.table)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"on": "k", "time": "t", "within": 1, "memry": 3}, "no setting 'memry'; there are on,"),
        ({"on": "k", "within": 1}, "the setting 'time' is missing"),
    ],
)
def test_names_of_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    table = pa.table({"k": [1], "t": [1]})
    with pytest.raises(tg.TidegateError, match=words):
        tg.join(table, table, **settings)


@pytest.mark.parametrize("kind", [pa.float16(), pa.month_day_nano_interval()])
def test_keys_that_cannot_be_compared_are_refused(kind: pa.DataType) -> None:
    table = pa.table({"k": pa.array([None], kind), "t": [1]})
    with pytest.raises(tg.TidegateError, match="cannot be compared; cast it"):
        tg.join(table, table, on="k", time="t", within=1)


@pytest.mark.parametrize("values", [["a", None], [1, 2]])
def test_runs_are_decoded(values: list[Any]) -> None:
    keys = pa.RunEndEncodedArray.from_arrays([2, 4], values)
    table = pa.table({"k": keys, "t": [1, 2, 3, 4]})
    found = tg.join(table, table, on="k", time="t", within=10)
    assert found.results == 4 * (len(values) - values.count(None))


def test_pandas_columns_that_arrow_has_not() -> None:
    good = pa.table({"k": [1], "t": [1]})
    for column in ([1j], pd.arrays.SparseArray([0])):
        odd = pd.DataFrame({"k": [1], "t": [1], "odd": column})
        with pytest.raises(tg.TidegateError, match="does not fit into Arrow"):
            tg.join(odd, good, on="k", time="t", within=10)


def test_a_total_beyond_all_numbers_is_infinite() -> None:
    table = pa.table({"k": [1, 1], "t": [1, 2], "w": [1e308, 1e308]})
    found = tg.join(table, table, on="k", time="t", within=5, memory=4, importance="w")
    assert (found.results, found.importance) == (4, math.inf)


def test_shed_is_there_only_if_asked_for() -> None:
    """Otherwise no join collects the rows that it sheds."""
    left, right = zipf(300, domain=10, seed=1)
    two: dict[str, Any] = {"on": "key", "time": "time", "within": 50, "memory": 20}
    facts = pa.table({"a": range(10), "b": range(10)})
    star = {**two, "on": {"s1": {"key": "a"}, "s2": {"key": "b"}}, "policy": "rand"}
    many: dict[str, Any] = {
        "joins": "A.time -> B.time",
        "time": "time",
        "constraints": tg.RIDS("A -> B", k=0),
    }
    calls: list[Any] = [
        lambda **more: tg.join(left, right, **two, **more),
        lambda **more: tg.sample_join(left, right, **two, **more),
        lambda **more: tg.star_join([left, right], facts, **star, **more),
        lambda **more: tg.truncated_join(left, right, on="key", keep=20, **more),
        lambda **more: tg.truncated_join(left, right, on="key", keep=20, **more),
        lambda **more: tg.constrained_join({"A": left, "B": right}, **many, **more),
    ]
    assert len(calls[0](keep_shed=True).shed) > 0
    for call in calls:
        found = call()
        with pytest.raises(tg.TidegateError, match="keep_shed=True"):
            found.shed  # noqa: B018
        kept = call(keep_shed=True)
        assert {"side", "why"} <= set(kept.shed.schema.names)
        assert rows(kept.table) == rows(found.table)
        with pytest.raises(tg.TidegateError, match="keep_shed must be True or False, not 'yes'"):
            call(keep_shed="yes")


def test_allowed_is_the_budget() -> None:
    left, right = zipf(300, domain=10, seed=1)
    join: dict[str, Any] = {"on": "key", "time": "time", "within": 50}
    for memory, allowed in (
        (20, 20),
        ("20 kB", 20_000),
        ([(0, 20), (100, 30)], 30),
        ([(0, 20), (100, 30), (10**6, 5)], 30),
        (None, None),
        ([(0, 20), (100, None)], None),
    ):
        counters = tg.join(left, right, **join, memory=memory).counters
        assert counters.get("allowed") == allowed
    sample = tg.sample_join(left, right, **join, memory=25)
    assert sample.counters["allowed"] == 25
    assert "allowed" not in tg.sample_join(left, right, **join, fraction=0.5).counters


@pytest.mark.parametrize("split", ["shared", "fixed", 0.3])
def test_shares_of_shards_add_up_to_the_budget(split: Any) -> None:
    left, right = zipf(10, domain=10, seed=1)
    for memory, total in ((103, 103), ("50 kB", 50_000)):
        spec = window_join(
            left.schema, right.schema, on="key", time="time", within=5, memory=memory, split=split
        )
        engines = [WindowJob(spec).engine_at(shard, 7) for shard in range(7)]
        assert sum(engine.take_counters()["allowed"] for engine in engines) == total
