"""Bad input of constrained joins is refused before any data is read, in words that help."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.joins.constrained.spec import constrained_join

I = pa.int64()  # noqa: E741
SCHEMAS = {
    "S1": pa.schema([("t", I), ("a", I), ("b", I), ("x", pa.float64()), ("s", pa.string())]),
    "S2": pa.schema([("t", I), ("a", I), ("s", pa.string())]),
    "S3": pa.schema([("t", I), ("b", I), ("m", pa.map_(I, I))]),
}
GOOD: dict[str, Any] = {"joins": ["S1.a -> S2.a", "S1.b -> S3.b"], "time": "t"}

BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"joins": ["S1.a -> S9.a"]}, ["'S9'", "there are S1, S2, S3"]),
    ({"joins": ["S1.z -> S2.a"]}, ['stream S1 has no column "z"']),
    ({"joins": ["S1.a -> S2.a"]}, ["do not connect the stream 'S3'", "every stream"]),
    ({"joins": ["S1.a = S2.a", "S1.b -> S3.b"]}, ["many-many", "tidegate.join"]),
    ({"joins": ["S1.a > S2.a"]}, ['many-one, "S1.a -> S2.a", or one-one']),
    ({"joins": ["a -> S2.a"]}, ["'a'", "write stream.column"]),
    ({"joins": ["S1.a -> S1.b", *GOOD["joins"]]}, ["joins a stream with itself"]),
    ({"joins": ["S1.s -> S2.a", "S1.b -> S3.b"]}, ["must have one type", "cast one"]),
    ({"joins": ["S1.a -> S2.a", "S1.b -> S3.m"]}, ["must have one type"]),
    ({"joins": []}, ["joins must be texts"]),
    ({"joins": 7}, ["joins must be texts"]),
    ({"time": "when"}, ['no column "when"']),
    ({"time": {"S1": "t"}}, ["time has nothing for the stream 'S2'"]),
    ({"time": {"S1": "t", "S2": "t", "S3": "t", "S4": "t"}}, ["stream 'S4' that there is not"]),
    ({"time": 5}, ["time must be a column name"]),
    ({"within": -5}, ["within must be longer than zero", "-5"]),
    ({"within": {"S9": 5}}, ["within names a stream 'S9'"]),
    ({"within": {"S1": tg.Rows(5, "zz")}}, ['no column "zz"']),
    ({"filters": {"S9": "a < 1"}}, ["filters names a stream 'S9'"]),
    ({"filters": {"S1": "S2.a < 1"}}, ["only its own stream's", "'S2.a'"]),
    ({"filters": {"S1": "q < 1"}}, ["the filter 'q < 1' of S1: 'q' is no column"]),
    ({"filters": {"S1": "S1.s + 1.5 < 1"}}, ["'S1.s + 1.5' needs numbers", "of S1:"]),
    ({"filters": {"S1": "sqrt(a) < 1"}}, ["'sqrt' is neither", "Columns are written by name"]),
    ({"filters": {"S1": 5}}, ['a condition such as "x < 8"', "not 5"]),
    ({"filters": {"S1": "a +"}}, ["cannot be read"]),
    ({"filters": {"S1": ""}}, ['a condition such as "x < 8"']),
    ({"filters": ["a"]}, ["a mapping by stream"]),
    ({"select": ["S1.q"]}, ['no column "q"']),
    ({"select": []}, ["at least one"]),
    ({"constraints": 5}, ["constraints must be a list", "not 5"]),
    ({"constraints": "RIDS"}, ["constraints must be a list", "not 'RIDS'"]),
    ({"constraints": [5]}, ["a constraint must be one of", "not 5"]),
    ({"constraints": tg.RIDS("S2 -> S1", k=1)}, ["a join that there is not"]),
    ({"constraints": tg.RIDS("S1.a", k=1)}, ['a join such as "S1 -> S2"']),
    ({"constraints": tg.CA("S2.a", k=1)}, ["as the many", "S2.a is none"]),
    ({"constraints": tg.OAC("S1.a", k=1)}, ["as the one", "S1.a is none"]),
    ({"constraints": tg.OAP("S1.z", k=1)}, ['no column "z"']),
    ({"constraints": tg.RIDS("S1 -> S2", within="5 s")}, ["must be a number", "'5 s'"]),
    ({"constraints": tg.RIDS("S1 -> S2", within=-1)}, ["must not be negative", "-1"]),
    ({"constraints": [tg.CA("S1.a", k=1), tg.CA("S1.a", k=2)]}, ["given twice"]),
    ({"constraints": "automatic"}, ['"auto" for all that the joins allow', "'automatic'"]),
    ({"eliminate": False, "constraints": "auto"}, ["leave out eliminate=False"]),
    ({"monitor": 5}, ["tg.Monitor(", "not 5"]),
    ({"choose": "yes"}, ["choose must be True or False"]),
    ({"eliminate": False, "constraints": tg.CA("S1.a", k=1)}, ["leave out eliminate=False"]),
    ({"lateness": -1}, ["lateness must not be negative"]),
    ({"lag": "1 s"}, ["lag must be a number"]),
]


@pytest.mark.parametrize(("wrong", "words"), BAD)
def test_bad_settings(wrong: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(tg.TidegateError) as caught:
        constrained_join(SCHEMAS, **{**GOOD, **wrong})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tg.RIDS("S1 -> S2", k=-1), "not negative, or"),
        (lambda: tg.CA("S1.a", k=1.5), "a whole number of rows"),
        (lambda: tg.CA("S1.a", k=True), "a whole number of rows"),
        (lambda: tg.OAP("S1.a", k=1, within=2), "one of k"),
        (lambda: tg.OAC(cast(Any, 7)), "as text"),
        (lambda: tg.CA("S1.a", k=10**30), r"up to 2\*\*60"),
        (lambda: tg.Rows(0), "a positive whole number"),
        (lambda: tg.Rows(10**30), r"up to 2\*\*60"),
        (lambda: tg.Rows(5, by=cast(Any, 7)), "one column name"),
        (lambda: tg.Monitor(c=0.5), "at least 1"),
        (lambda: tg.Monitor(p=2), "between 0 and 1"),
        (lambda: tg.Monitor(window=0), "a positive number of rows"),
        (lambda: tg.Monitor(on_rise=cast(Any, "fall")), '"raise" .* or "suspend" .*\'fall\''),
    ],
)
def test_bad_constraints(make: Any, words: str) -> None:
    with pytest.raises(tg.TidegateError, match=words):
        make()


def test_other_bad_input() -> None:
    table = pa.table({"t": [1.5], "a": [1]})
    with pytest.raises(tg.TidegateError, match="is a real number; cast it"):
        tg.constrained_join({"A": table, "B": table}, joins="A.a -> B.a", time="t")
    with pytest.raises(tg.TidegateError, match="from 2 to 16 streams"):
        tg.constrained_join({"A": table}, joins="A.a -> B.a", time="a")
    streams: Any = {"A": table, "B": table}
    good: dict[str, Any] = {"streams": streams, "joins": "A.a -> B.a", "time": "a"}
    with pytest.raises(tg.TidegateError, match="no setting 'on'"):
        tg.constrained_join(**good | {"on": "a"})
    several: list[Any] = [table, 7, {7: table, "B": table}, []]
    for wrong in several:
        with pytest.raises(tg.TidegateError, match="streams must be a list of one or more"):
            tg.constrained_join(wrong, joins="A.a -> B.a", time="a")
        with pytest.raises(tg.TidegateError, match="streams must be a list of one or more"):
            tg.repair(wrong, table, joins="A.a -> B.a", time="a")
    with pytest.raises(tg.TidegateError, match="keep_shed must be True or False, not 'yes'"):
        tg.constrained_join(**good | {"keep_shed": "yes"})
    with pytest.raises(tg.TidegateError, match="shed must be what .* gave"):
        tg.repair(streams, table, joins="A.a -> B.a", time="a")
    words = pa.table({"t": [1], "a": ["x"]})
    with pytest.raises(tg.TidegateError, match="numbers or times"):
        tg.constrained_join(
            {"A": words, "B": words}, joins="A.a -> B.a", time="t", constraints=tg.OAC("B.a", k=1)
        )


def test_no_constraints() -> None:
    spec = constrained_join(SCHEMAS, **GOOD, constraints=None)
    assert spec.settings() == constrained_join(SCHEMAS, **GOOD, constraints=[]).settings()


def test_nulls_and_other_types() -> None:
    """Rows with null keys take a place in windows but join nothing; null times are dropped."""
    a = pa.table({"t": [1, 2, None, 4], "k": ["x", None, "x", "y"]})
    b = pa.table({"t": [3, 5, 6], "k": ["x", "y", None]})
    rows: dict[str, Any] = {"within": {"A": tg.Rows(1)}, "joins": "A.k -> B.k", "time": "t"}
    found = tg.constrained_join({"A": a, "B": b}, **rows)
    assert found.table.to_pylist() == [{"t_A": 4, "k_A": "y", "t_B": 5, "k_B": "y"}]
    assert found.counters["null_keys"] == 2
    assert found.counters["null_times"] == 1
    assert tg.constrained_join({"A": a, "B": b}, **{**rows, "within": None}).results == 2


@pytest.mark.parametrize(
    "kind",
    [pa.float64(), pa.float32(), pa.decimal128(12, 2), pa.timestamp("ms"), pa.date32(), pa.int8()],
)
def test_attributes_of_any_order(kind: pa.DataType) -> None:
    whole = pa.int64() if pa.types.is_timestamp(kind) else pa.int32()
    keys = pa.array([1, 2, 3, 4, 5, 6], whole).cast(kind)
    child = pa.table({"t": [1, 3, 5, 7, 9, 11], "k": keys})
    parent = pa.table({"t": [2, 4, 6, 8, 10, 12], "k": keys.take(pa.array([0, 0, 1, 5, 3, 0]))})
    streams = {"A": parent, "B": child}
    settings: dict[str, Any] = {"joins": "A.k -> B.k", "time": "t"}
    exact = tg.constrained_join(streams, **settings)
    known = tg.constrained_join(streams, constraints=tg.OAC("B.k", k=0), **settings)
    assert known.results == exact.results == 6
    strict = tg.constrained_join(
        streams, constraints=[tg.OAC("B.k", k=0), tg.OAP("A.k", k=0)], **settings
    )
    assert strict.results <= exact.results
