"""Conditions on pairs of rows, and joins that have one."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.sql.conditions import Predicate
from tidegate.streams import uniform

NOON = dt.datetime(2026, 1, 1, 12)
LEFT = pa.record_batch(
    {
        "x": [1.0, 2.0, None, 4.0],
        "n": [1, 2, 3, 4],
        "s": ["a", "B", "c", "it's"],
        "ts": [NOON, NOON, NOON, None],
        "f": [math.nan, 1.0, math.nan, None],
    }
)
RIGHT = pa.record_batch(
    {
        "x": [1.5, 2.6, 3.0, 4.0],
        "n": [1, 1, 4, 4],
        "s": ["A", "b", "c", "d"],
        "ts": [NOON + dt.timedelta(seconds=s) for s in (-3, 6, 0, 1)],
        "f": [math.nan, 1.0, 5.0, 1.0],
        "a b": [7] * 4,
    }
)


@pytest.mark.parametrize(
    ("where", "passes"),
    [
        ("abs(l.x - r.x) <= 0.5", [1, 0, 0, 1]),
        ("NOT abs(l.x - r.x) <= 0.5", [0, 1, 0, 0]),
        ("l.n = r.n", [1, 0, 0, 1]),
        ("l.n <> r.n and l.n >= 2", [0, 1, 1, 0]),
        ("l.n * 2 - r.n > 0 OR l.x = 1", [1, 1, 1, 1]),
        ("lower(l.s) = lower(r.s)", [1, 1, 1, 0]),
        ("l.s = 'it''s'", [0, 0, 0, 1]),
        ("1 < l.n AND l.n <= +3", [0, 1, 1, 0]),
        ("L.n / 2 >= 0.75\r\n AND R.n > 0", [0, 1, 1, 1]),
        ("l.n / (r.n - 1) > 0", [0, 0, 1, 1]),
        ("l.n * 9223372036854775807 > 1e18", [1, 1, 1, 1]),
        ("l.n > 1.5", [0, 1, 1, 1]),
        ("l.n < 99999999999999999999999", [1, 1, 1, 1]),
        ("abs(l.ts - r.ts) <= '200000 days'", [1, 1, 1, 0]),
        ('l.`s` <> "b" AND r.`a b` = 7', [1, 1, 1, 1]),
        ("l.f = r.f", [1, 1, 0, 0]),
        ("l.f > r.f", [0, 0, 1, 0]),
        ("l.f <> r.f", [0, 0, 1, 0]),
        ("abs(l.ts - r.ts) <= '5 s'", [1, 0, 1, 0]),
        ("length(l.s) = 4", [0, 0, 0, 1]),
        ("l.x BETWEEN r.x - 0.5 AND r.x", [1, 0, 0, 1]),
        ("l.x NOT BETWEEN r.x - 0.5 AND (r.x + 0.5)", [0, 1, 0, 0]),
        ("l.n between 2 and (r.n - 1) and r.n > 0 or l.n = 1", [1, 0, 1, 0]),
        ("l.n + 9007199254740993 - r.x > 0", [1, 1, 1, 1]),
        ("-l.n < -2", [0, 0, 1, 1]),
        ("true", [1, 1, 1, 1]),
    ],
)
def test_conditions_select_the_expected_pairs(where: str, passes: list[int]) -> None:
    mask = Predicate(where, LEFT.schema, RIGHT.schema).mask(LEFT, RIGHT)
    assert mask.tolist() == [bool(p) for p in passes]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("", "where must be a condition"),
        (7, "where must be a condition"),
        ("l.x <", "cannot be read"),
        ("l.x BETWEEN 1", "is not known"),
        ("l.x BETWEEN 1 AND", "cannot be read"),
        ("l.x < r.x < 3", "join comparisons with AND"),
        ("l.y = r.x", "'y' is no column; there are x, n, s, ts"),
        ("q.x = r.x", "'q' is neither a column"),
        ("abs(l.s - r.s) <= 1", "'l.s - r.s' needs numbers or times, not string: cast it"),
        ("l.x - r.s <= 1", "'l.x - r.s' needs numbers or times, not string: cast it"),
        ("abs(l.s) <= 1", r"'abs\(l.s\)' needs numbers or times, not string"),
        ("abs(l.x > r.x) <= 1", "needs numbers or times, not bool"),
        ("l.s < 1", "does not work on these columns"),
        ("l.x + r.x", "gives double, and must be true or false"),
        ("sqrt(l.x) < 1", "'sqrt' is neither a column nor a known function"),
        ("__import__('os').system('x')", "is neither a column"),
        ("abs(l.ts - r.ts) < 'soon'", "'soon' is no duration"),
        ("[1 for l in r]", "cannot be read"),
        ("l.s = '", "cannot be read"),
        ("l.s = 'b' # AND false", "cannot be read"),
        ("l.s = r'b'", "neither a column"),
        ("l.s = 'b' 'c'", "two texts side by side"),
        ("l.n = r.n = 1", "join comparisons with AND"),
        ("abs()", "takes one value"),
        ("abs(l.x, r.x) < 1", "takes one value"),
        ("NOT " * 9000 + "true", "is too long|cannot be read"),
    ],
)
def test_impossible_conditions_are_refused_before_any_row(where: Any, words: str) -> None:
    with pytest.raises(tg.TidegateError, match=words):
        tg.join(LEFT.slice(0, 0), RIGHT.slice(0, 0), where=where, time="n", within=3, memory=2)


def test_a_condition_of_thousands_of_terms_is_read_in_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text of an error is built only if needed, and a column is read once."""
    texts: list[Any] = []
    monkeypatch.setattr(Predicate, "_wrong", lambda self, *about: texts.append(about))
    where = " AND ".join(f"l.x <= r.x + {i}" for i in range(10_000))
    made = Predicate(where, LEFT.schema, RIGHT.schema)
    assert not texts
    passing = made.mask(LEFT.slice(0, 2), RIGHT.slice(0, 2))
    shorter = Predicate("l.x <= r.x", LEFT.schema, RIGHT.schema)
    whole = shorter.mask(LEFT.slice(0, 2), RIGHT.slice(0, 2))
    assert passing.tolist() == whole.tolist()


@pytest.mark.parametrize(
    "where",
    [
        "(" * 5_000 + "l.x = r.x" + ")" * 5_000,
        "NOT " * 5_000 + "l.x = r.x",
        "-" * 5_000 + "l.x = r.x",
        "abs(" * 190 + "l.x" + ")" * 190 + " < 1",
        "l.x = 1 OR (" * 190 + "l.x = 2" + ")" * 190,
        " + ".join(["l.x"] * 50_000) + " < r.x",
    ],
    ids=["brackets", "not", "minus", "abs", "or", "sum"],
)
def test_too_deep_nesting_is_refused_with_advice(where: str) -> None:
    with pytest.raises(tg.TidegateError, match=r"nest too deeply.*comparisons with AND") as error:
        Predicate(where, LEFT.schema, RIGHT.schema)
    assert len(str(error.value)) < 600


def test_a_sum_may_have_many_terms_and_a_condition_some_levels() -> None:
    for where in (
        " + ".join(["l.x"] * 1_500) + " < r.x",
        "(" * 100 + "l.x = r.x" + ")" * 100,
        "NOT " * 100 + "l.x = r.x",
        "l.x < " + "1" * 400,
    ):
        Predicate(where, LEFT.schema, RIGHT.schema)


def test_a_join_needs_a_condition() -> None:
    with pytest.raises(tg.TidegateError, match="needs on .* where .* or both"):
        tg.join(LEFT, RIGHT, time="n", within=3)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 20)), max_size=60),
    st.sampled_from([None, 4, 10]),
)
def test_a_band_join_matches_two_loops(
    rows: list[tuple[int, int, int]], memory: int | None
) -> None:
    sides = [
        pa.table(
            {
                "x": pa.array([x for s, x, _ in rows if s == side], pa.int64()),
                "t": pa.array(sorted(t for s, _, t in rows if s == side), pa.int64()),
            }
        )
        for side in range(2)
    ]
    found = tg.join(
        *sides, where="abs(l.x - r.x) <= 1", time="t", within=5, memory=memory, policy="fifo"
    )
    one, other = (table.to_pylist() for table in sides)
    wanted = [
        (a["x"], a["t"], b["x"], b["t"])
        for a in one
        for b in other
        if abs(a["x"] - b["x"]) <= 1 and abs(a["t"] - b["t"]) < 5
    ]
    pairs = [tuple(row.values()) for row in found.table.to_pylist()]
    if memory is None:
        assert sorted(pairs) == sorted(wanted)
    else:
        for pair in pairs:
            wanted.remove(pair)


def test_where_only_filters_results() -> None:
    """The rows that a policy without statistics holds do not depend on it."""
    left, right = uniform(3000, domain=30, seed=2)
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": 200, "memory": 60}
    settings["policy"] = "until-expiry"
    plain = tg.join(left, right, **settings)
    found = tg.join(left, right, **settings, where="l.value < r.value")
    less = plain.table.filter(
        pa.array(
            plain.table["value_left"].to_numpy() < plain.table["value_right"].to_numpy(), pa.bool_()
        )
    )
    assert 0 < found.results < plain.results
    assert found.table.equals(less.select(found.table.column_names))
    assert np.isclose(found.importance, found.results)
