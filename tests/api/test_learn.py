"""`tidegate.learn` against a count of every pair, and as the model of joins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.streams import auctions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES: dict[str, Any] = {"on": "k", "time": "t"}


def slow_curve(
    waiting: list[tuple[int, int]], coming: list[tuple[int, int]], window: int, steps: int, end: int
) -> list[float]:
    """Return the mean number of results in each step, by a look at every pair."""
    steps = min(steps, window)
    mean = []
    for i in range(steps):
        first, after = i * window / steps, (i + 1) * window / steps
        lived = [(k, t) for k, t in waiting if t + after <= end]
        found = [
            1 for k, t in lived for j, u in coming if j == k and u > t and first <= u - t < after
        ]
        mean.append(len(found) / max(len(lived), 1))
    return mean


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=25)


@given(left=ROWS, right=ROWS, windows=st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_curves_are_the_means_over_every_pair(
    left: list[tuple[int, int]], right: list[tuple[int, int]], windows: tuple[int, int]
) -> None:
    left, right = [*left, (9, 0)], [*right, (9, 30)]  # they cover a time of 30
    learned = tg.learn(columns(left), columns(right), **RULES, within=windows, steps=4)
    assert learned.curve[0] == pytest.approx(slow_curve(left, right, windows[0], 4, 30))
    assert learned.curve[1] == pytest.approx(slow_curve(right, left, windows[1], 4, 30))
    assert learned.rates == pytest.approx((len(left) / 30, len(right) / 30))
    assert learned.frequencies is not None
    frequencies = {row["k"]: row for row in learned.frequencies.to_pylist()}
    for key in {k for k, _ in left + right}:
        assert frequencies[key]["left"] == pytest.approx(sum(k == key for k, _ in left) / 30)
        assert frequencies[key]["right"] == pytest.approx(sum(k == key for k, _ in right) / 30)


def columns(rows: list[tuple[int, int]]) -> pa.Table:
    return pa.table({"k": [k for k, _ in rows], "t": [t for _, t in rows]})


def test_a_condition_counts_true_pairs_only() -> None:
    left = {"x": [1.0, 5.0, 9.0], "t": [0, 1, 20]}
    right = {"x": [1.2, 7.0, 5.1], "t": [2, 3, 4]}
    learned = tg.learn(left, right, where="abs(l.x - r.x) <= 0.5", time="t", within=(5, 1))
    assert learned.curve[0] == [0, 0, 0.5, 0.5, 0]
    assert learned.frequencies is None
    with pytest.raises(tg.TidegateError, match="without on has no keys"):
        learned.prob()


@pytest.mark.proves(learn="classic batch, local")
def test_spark_learns_the_same(spark: SparkSession) -> None:
    rules: dict[str, Any] = {"on": "auction_id", "time": "ts", "within": ("2 hours", "30 minutes")}
    left, right = auctions(200, bids=2, seed=3)
    local = tg.learn(left, right, **rules)
    frames = [spark.createDataFrame(table.to_pandas()).repartition(2) for table in (left, right)]
    on_spark = tg.learn(frames[0], frames[1], **rules)
    np.testing.assert_allclose(on_spark.curve[0], local.curve[0])
    np.testing.assert_allclose(on_spark.curve[1], local.curve[1])
    assert on_spark.rates == pytest.approx(local.rates)
    assert local.frequencies is not None
    assert on_spark.frequencies is not None
    order = [("auction_id", "ascending")]
    there, here = on_spark.frequencies.sort_by(order), local.frequencies.sort_by(order)
    assert there["auction_id"].to_pylist() == here["auction_id"].to_pylist()
    for side in ("left", "right"):
        np.testing.assert_allclose(there[side], here[side])


@pytest.mark.proves(learn="classic stream refused")
def test_streaming_frames_are_refused(spark: SparkSession) -> None:
    frame = spark.readStream.format("rate").load()
    with pytest.raises(tg.TidegateError, match="read them with spark.read"):
        tg.learn(frame, frame, on="value", time="timestamp", within="1 minute")


def test_models_of_one_day_serve_the_next() -> None:
    """Bids come late in an auction, so that the curve beats a random choice."""
    rules: dict[str, Any] = {"on": "auction_id", "time": "ts", "within": ("2 hours", "1 second")}
    learned = tg.learn(*auctions(400, shape="inc", seed=1), **rules)
    today = auctions(400, shape="inc", seed=2)
    tried: dict[str, dict[str, Any]] = {
        "age": {"policy": learned.age(), "split": "predicted"},
        "prob": {"policy": learned.prob(), "split": "predicted"},
        "random": {"policy": "rand"},
    }
    found = {}
    for name, how in tried.items():
        found[name] = tg.join(today[0], today[1], memory=30, **(rules | how)).results
    assert found["age"] > 1.2 * found["random"]
    assert found["prob"] > 0


def test_the_plot_and_the_table_show_both_curves(tmp_path: Path) -> None:
    learned = tg.learn(
        *auctions(100, seed=1), on="auction_id", time="ts", within=("2 hours", "1 s")
    )
    learned.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert learned.table.column_names == ["side", "age", "results"]
    assert learned.table.num_rows == sum(map(len, learned.curve))


BAD = [
    ({"steps": 0}, "steps must be a number of steps from 1"),
    ({"within": 40}, "cover a time of 30, and the longer window is 40"),
    ({"within": None}, "windows of one length"),
    ({"within": [(0, 5), (9, 3)]}, "windows of one length"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    rows = columns([(1, 0), (1, 30)])
    with pytest.raises(tg.TidegateError, match=message):
        tg.learn(rows, rows, **RULES | {"within": 5} | settings)


def test_empty_streams_are_refused() -> None:
    rows = columns([(1, 0), (1, 30)])
    with pytest.raises(tg.TidegateError, match="the right stream has no row with a time"):
        tg.learn(rows, rows.slice(0, 0), **RULES, within=5)
