"""Every call takes Spark DataFrames or local data of any kind, and refuses anything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import tidegate as tg


class Frame:
    """An object that calls take for a Spark DataFrame; reading from it fails the test."""

    mapInArrow = None


class Exported:
    """Data of another library, with nothing but the Arrow C stream interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


COLUMNS: dict[str, Any] = {"k": [1, 2, 1], "t": [1, 2, 3]}
TABLE = pa.table(COLUMNS)
JOIN: dict[str, Any] = {"on": "k", "time": "t", "within": 5}
LINKS = {"k": [1, 2], "j": [1, 2]}
STAR: dict[str, Any] = {"on": [{"k": "k"}, {"k": "j"}], "time": "t", "within": 5}
MANY: dict[str, Any] = {"joins": "s1.k -> s2.k", "time": "t"}
QUERY = "Select s1.t From s1, s2 Where s1.k = s2.k"

KINDS: dict[str, Any] = {
    "table": lambda: TABLE,
    "record batch": lambda: TABLE.to_batches()[0],
    "reader": lambda: TABLE.to_reader(),
    "dataset": lambda: ds.dataset(TABLE),
    "scanner": lambda: ds.dataset(TABLE).scanner(),
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "capsule": lambda: Exported(TABLE),
    "columns": lambda: COLUMNS,
    "NumPy columns": lambda: {name: np.array(values) for name, values in COLUMNS.items()},
}


@pytest.mark.parametrize("kind", KINDS)
def test_local_data_of_any_kind(kind: str) -> None:
    data = KINDS[kind]
    assert tg.join(data(), data(), **JOIN).results == 5
    assert tg.star_join([data(), data()], LINKS, **STAR).results == 5
    assert tg.truncated_join(data(), data(), on="k", keep=6).results == 5
    sample = tg.sample_join(data(), data(), **JOIN, fraction=1.0)
    assert tg.estimate(sample).table["count"].to_pylist() == [5.0]
    assert tg.optimal(data(), data(), **JOIN).results == 5
    assert tg.optimal_star([data(), data()], LINKS, **STAR).results == 5


def test_streams_are_a_list_or_a_mapping() -> None:
    one = pa.table({"k": [1, 2], "t": [2, 1]})
    for streams, a, b in (
        ([TABLE, one], "s1", "s2"),
        ((TABLE, one), "s1", "s2"),
        ({"many": TABLE, "one": one}, "many", "one"),
    ):
        given: Any = streams
        joins = f"{a}.k -> {b}.k"
        for within in (9, [9, 9], {a: 9, b: 9}, {a: 9}, None):
            for time in ("t", ["t", "t"], {a: "t", b: "t"}):
                found = tg.constrained_join(given, joins=joins, time=time, within=within)
                assert found.table.column_names == [f"k_{a}", f"t_{a}", f"k_{b}", f"t_{b}"]
                assert found.results == 3
        named = tg.constrained_join(given, joins=joins, time="t", suffixes=("_x", "_y"))
        assert named.table.column_names == ["k_x", "t_x", "k_y", "t_y"]
        text = f"Select {a}.t From {a}, {b} Where {a}.k = {b}.k"
        assert tg.cql(text, given, time=["t", "t"], unique=f"{b}.k").results == 3
        assert tg.star_join(given, LINKS, **STAR).results == 3
    with pytest.raises(tg.TidegateError, match="within must have a window for each of the 2"):
        tg.constrained_join([TABLE, one], **MANY, within=[5])
    with pytest.raises(tg.TidegateError, match="time must have a column name for each of the 2"):
        tg.constrained_join([TABLE, one], joins=MANY["joins"], time=["t"])


CALLS: dict[str, Any] = {
    "join": lambda a, b, **more: tg.join(a, b, **JOIN | more),
    "sample_join": lambda a, b, **more: tg.sample_join(a, b, **JOIN | {"fraction": 0.5} | more),
    "star_join": lambda a, b, **more: tg.star_join([a, b], b, **STAR | more),
    "constrained_join": lambda a, b, **more: tg.constrained_join([a, b], **MANY | more),
    "cql": lambda a, b, **more: tg.cql(QUERY, [a, b], time="t", unique="s2.k", **more),
    "truncated_join": lambda a, b, **more: tg.truncated_join(a, b, on="k", keep=5, **more),
    "repair": lambda a, b, **more: tg.repair([a, b], "folder", **MANY | more),
}


@pytest.mark.parametrize("name", CALLS)
def test_inputs_are_of_one_kind(name: str) -> None:
    call = CALLS[name]
    with pytest.raises(tg.TidegateError) as caught:
        call(Frame(), TABLE)
    assert "is a Spark DataFrame and" in str(caught.value)
    assert "is not (it is a Table)" in str(caught.value)
    assert "spark.createDataFrame" in str(caught.value)
    with pytest.raises(tg.TidegateError, match="is a Spark DataFrame and"):
        call(TABLE, Frame())


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.proves(MemoryPool="local refused")
def test_settings_of_the_other_kind_are_refused(name: str) -> None:
    call = CALLS[name]
    wrong: dict[str, str] = {}
    if name not in ("truncated_join", "repair"):
        wrong = {"batch_rows": "batch_rows=5 is for local data", "keep_shed": "leave it out with"}
    if name in ("join", "constrained_join", "cql"):
        wrong["keep_shed"] = "give shed_to, a folder, instead"
    for setting, words in wrong.items():
        with pytest.raises(tg.TidegateError, match=words):
            call(Frame(), Frame(), **{setting: 5 if setting == "batch_rows" else True})
    if name != "truncated_join":
        with pytest.raises(tg.TidegateError, match="shards=3 is for Spark DataFrames"):
            call(TABLE, TABLE, shards=3)
    if name in ("join", "sample_join", "star_join"):
        share = tg.MemoryPool(memory=9).share("a")
        with pytest.raises(tg.TidegateError, match="a share of a MemoryPool is for Spark"):
            call(TABLE, TABLE, memory=share)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("data", [TABLE, Frame()], ids=["local", "Spark"])
def test_unknown_settings_are_named(name: str, data: Any) -> None:
    for wrong, meant in (("shard", "shards"), ("seeds", "seed"), ("tiem", "time")):
        with pytest.raises(tg.TidegateError, match=f"there is no setting '{wrong}'") as caught:
            CALLS[name](data, data, **{wrong: 1})
        if f", {meant}" in str(caught.value):
            assert f'did you mean "{meant}"?' in str(caught.value)


def test_missing_settings_are_named() -> None:
    call: Any
    for call, inputs, words in (
        (tg.join, (TABLE, TABLE), "'time' is missing: a join needs time and within"),
        (tg.star_join, ([TABLE, TABLE], TABLE), "'on' is missing"),
        (tg.constrained_join, ([TABLE, TABLE],), "'joins' is missing"),
        (tg.truncated_join, (TABLE, TABLE), "'on' is missing"),
    ):
        with pytest.raises(tg.TidegateError, match=words):
            call(*inputs)


def test_settings_of_repair() -> None:
    with pytest.raises(tg.TidegateError, match="'nowhere' is no archive of a join with shed_to"):
        tg.repair([TABLE, TABLE], "nowhere", **MANY)
    with pytest.raises(tg.TidegateError, match="between=.* is for window joins"):
        tg.repair([TABLE, TABLE], TABLE, **MANY, between=(1, 2))
    with pytest.raises(tg.TidegateError, match="joins=.* is for constrained joins"):
        tg.repair([TABLE, TABLE], TABLE, **JOIN, joins="s1.k -> s2.k")
    with pytest.raises(tg.TidegateError, match="streams must be the left and the right"):
        tg.repair([TABLE], TABLE, **JOIN)
    with pytest.raises(tg.TidegateError, match="with the columns side and mark, not one with"):
        tg.repair([TABLE, TABLE], TABLE, **JOIN)
    shed = tg.join(TABLE, TABLE, **JOIN, keep_shed=True)
    with pytest.raises(tg.TidegateError, match="between must end after it starts"):
        tg.repair([TABLE, TABLE], shed, **JOIN, between=(2, 2))
    with pytest.raises(tg.TidegateError, match="between must be a pair of times"):
        tg.repair([TABLE, TABLE], shed, **JOIN, between=5)  # type: ignore[call-overload]
    with pytest.raises(tg.TidegateError, match=r"other settings(.|\n)*shed_when"):
        tg.repair([TABLE, TABLE], shed, **JOIN, shed_when="before-probe")
    with pytest.raises(tg.TidegateError, match="'unique' here: only a query has it"):
        tg.repair([TABLE, TABLE], TABLE, **MANY, unique="s2.k")
    with pytest.raises(tg.TidegateError, match="'joins' is missing: a join needs joins and time"):
        tg.repair([TABLE, TABLE], TABLE, time="t")
    with pytest.raises(tg.TidegateError, match="found in this process"):
        tg.optimal_star([Frame(), Frame()], Frame(), **STAR)  # type: ignore[list-item, arg-type]


def test_columns_without_values_take_the_type_of_the_other_side() -> None:
    """A pandas frame that a filter has emptied has lost the types of its columns of objects."""
    rows = pd.DataFrame({"k": ["a", "b"], "t": [1, 2]})
    settings: dict[str, Any] = {"on": "k", "time": "t", "within": 5}
    assert tg.join(rows, rows, **settings).results == 2
    for empty in (rows[rows.t > 9], pd.DataFrame({"k": [], "t": []})):
        assert tg.join(empty, rows, **settings).results == 0
        assert tg.join(rows, empty, **settings, memory=1).counters["arrived"] == 2
        assert tg.join(empty, empty, **settings).results == 0
        assert tg.sample_join(empty, rows, **settings, memory=5).results == 0
    none = pa.table({"k": pa.nulls(2), "t": [1, 2]})
    nulls = tg.join(none, rows, **settings)
    assert (nulls.results, nulls.counters["null_keys"]) == (0, 2)
    with pytest.raises(tg.TidegateError, match="key columns must have one type"):
        tg.join(rows.assign(k=[1, 2]), rows, **settings)
