"""Errors say what is wrong and what to do on one screen, whatever value they quote."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.joins.window.spec import window_join
from tidegate.settings.checks import check_same

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("n", pa.int64())])


def refused(**settings: Any) -> str:
    with pytest.raises(tg.TidegateError) as error:
        window_join(SCHEMA, SCHEMA, **{"on": "k", "time": "t", "within": "5 s"} | settings)
    return str(error.value)


def test_a_long_message_keeps_its_beginning_and_its_advice() -> None:
    error = tg.TidegateError("this is wrong: " + "x" * 100_000 + "; do that instead")
    assert len(str(error)) <= 1_800
    assert str(error).startswith("this is wrong: xxx")
    assert str(error).endswith("xxx; do that instead")
    assert "[... 98,232 letters ...]" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    lines = str(tg.TidegateError("first\n" + "line\n" * 1_000 + "last"))
    assert lines.count("\n") < 24
    assert (lines[:5], lines[-4:]) == ("first", "last")
    assert str(tg.TidegateError("short\nand sweet")) == "short\nand sweet"


@pytest.mark.parametrize(
    ("settings", "start", "end"),
    [
        ({"within": "9" * 10_000}, "within must be a duration", '"unbounded" is for ever'),
        ({"memory": "x" * 10_000}, "memory must be a positive", "None keeps everything"),
        ({"where": "l.n = " + "r.n + " * 5_000}, "where='l.n = r.n", "abs, lower, upper, length"),
        ({"on": ["k"] * 100_000 + [5]}, "on must be a column name", ", 5]"),
        ({"seed": -(10**10_000)}, "seed must be a whole number", "type int of 33,220 bits"),
    ],
)
def test_values_are_quoted_in_part(settings: dict[str, Any], start: str, end: str) -> None:
    message = refused(**settings)
    assert len(message) < 1_000
    assert message.startswith(start)
    assert message.endswith(end)


def test_settings_that_differ_are_shown_in_part() -> None:
    with pytest.raises(tg.TidegateError) as error:
        check_same({"a": [1.5] * 100_000, "b": 1}, {"a": [], "b": 2}, "checkpoint", "Start anew.")
    assert len(str(error.value)) < 600
    assert "b: 1 -> 2" in str(error.value)
    assert str(error.value).endswith("Start anew.")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (np.timedelta64(90, "s"), 90),
        (np.timedelta64(2, "m"), 120),
        (np.timedelta64(1, "W"), 604_800),
        (np.timedelta64(1_500, "ms"), 1.5),
        (np.timedelta64(5_000_000, "us").astype("timedelta64[25us]"), 5),
        (pd.Timedelta("90 s"), 90),
        (timedelta(seconds=90), 90),
    ],
)
def test_lengths_of_numpy_and_pandas_are_durations(given: Any, seconds: float) -> None:
    made = window_join(SCHEMA, SCHEMA, on="k", time="t", within=given, lateness=given)
    assert made.left.window == made.lateness == seconds * 1_000_000


@pytest.mark.parametrize(
    "given", [np.timedelta64(1, "Y"), np.timedelta64("NaT"), np.timedelta64(5)]
)
def test_what_has_no_length_is_refused(given: Any) -> None:
    assert "within must be a duration like" in refused(within=given)


def test_times_of_numpy_are_times() -> None:
    start = np.datetime64("2024-05-01T12:00")
    made = window_join(
        SCHEMA, SCHEMA, on="k", time="t", within=[("2024-05-01 00:00:00Z", "1 s"), (start, "2 s")]
    )
    assert made.left.windows[1].start == 1_714_564_800_000_000


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"k": [1, 2], "t": [1]}, '"k" has 2, "t" has 1'),
        ({"k": [1, "a"], "t": [1, 2]}, 'column "k" does not fit into Arrow'),
        ({"k": 5, "t": [1]}, 'column "k" does not fit into Arrow'),
        ({5: [1], "t": [1]}, "must have a text as its name, not 5"),
    ],
)
def test_columns_that_are_no_table(columns: dict[Any, Any], words: str) -> None:
    good = {"k": [1], "t": [1]}
    for pair in ((columns, good), (good, columns)):
        with pytest.raises(tg.TidegateError, match=words):
            tg.join(*pair, on="k", time="t", within=5)
