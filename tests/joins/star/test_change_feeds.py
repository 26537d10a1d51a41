"""Changes as Delta and Debezium write them are the changes that they mean."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tidegate.joins.star.change_feeds import changes_of, feed_of

LINK = pa.struct([("a", pa.int64()), ("b", pa.string()), ("note", pa.string())])
STAMP = pa.timestamp("us", "UTC")
Row = dict[str, Any]
#: What happens to links: the second, the link before it, and the link after it.
Event = tuple[int, Row | None, Row | None]


def history(seed: int) -> list[Event]:
    """Return random changes of links, in the order of time; updates may change a key."""
    rng = np.random.default_rng(seed)
    live: dict[int, Row] = {}
    events: list[Event] = []
    for second in range(0, 60, 2):
        a = int(rng.integers(0, 4))
        new = {"a": a, "b": f"b{rng.integers(0, 3)}", "note": f"n{second}"}
        old = live.pop(a, None)
        is_deleted = old is not None and rng.random() < 0.4
        if not is_deleted:
            live[a] = new
        events.append((second, old, None if is_deleted else new))
    return events


def at(second: int) -> datetime:
    return datetime.fromtimestamp(1_767_225_600 + second, UTC)


def plain(events: list[Event]) -> pa.Table:
    """Return the events as deletes and inserts."""
    rows = []
    for second, old, new in events:
        rows += [{"op": "delete", "at": at(second), **old}] if old else []
        rows += [{"op": "insert", "at": at(second), **new}] if new else []
    return pa.Table.from_pylist(rows, pa.schema([("op", pa.string()), ("at", STAMP), *LINK]))


def delta(events: list[Event]) -> pa.Table:
    rows = []
    for version, (second, old, new) in enumerate(events):
        words = ("update_preimage", "update_postimage") if old and new else ("delete", "insert")
        for word, row in zip(words, (old, new), strict=True):
            if row:
                said = {"_change_type": word, "_commit_version": version}
                rows.append({**row, **said, "_commit_timestamp": at(second)})
    own = [("_change_type", pa.string()), ("_commit_version", pa.int64())]
    return pa.Table.from_pylist(rows, pa.schema([*LINK, *own, ("_commit_timestamp", STAMP)]))


def code(old: Row | None, new: Row | None) -> str:
    return "d" if new is None else "u" if old else "c"


def envelopes(events: list[Event], unit: int = 10**3) -> pa.Table:
    """Return records with a row from before and after; each delete is followed by a tombstone."""
    rows: list[Row] = []
    for second, old, new in events:
        stamp = int(at(second).timestamp()) * unit
        source = {"table": "links", "ts_ms": stamp if unit == 10**3 else None}
        own = {"op": code(old, new), "ts_ms": stamp // unit * 1_000 + 7, "source": source}
        rows.append({"before": old, "after": new, **own})
        rows += [] if new else [dict.fromkeys(rows[-1])]
    source_type = pa.struct([("table", pa.string()), ("ts_ms", pa.int64())])
    own_fields = [("op", pa.string()), ("ts_ms", pa.int64()), ("source", source_type)]
    return pa.Table.from_pylist(rows, pa.schema([("before", LINK), ("after", LINK), *own_fields]))


def unwrapped(events: list[Event]) -> pa.Table:
    """Return records without a row from before, whose updates change no key."""
    rows = []
    for second, old, new in events:
        own = {"__op": code(old, new), "__deleted": str(new is None).lower()}
        stamp = int(at(second).timestamp()) * 10**9 + 999
        rows.append({**(new or old or {}), **own, "__source_ts_ns": stamp})
    rows[0]["__op"] = "r"  # a snapshot was read
    own_fields = [("__op", pa.string()), ("__deleted", pa.string()), ("__source_ts_ns", pa.int64())]
    return pa.Table.from_pylist(rows, pa.schema([*LINK, *own_fields]))


FORMS: dict[str, tuple[str, Callable[[list[Event]], pa.Table]]] = {
    "delta": ("delta", delta),
    "envelopes": ("debezium", envelopes),
    "unwrapped": ("debezium", unwrapped),
}


def rows_of(seed: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng(seed)
    made = {}
    for name, key in (("r", "a"), ("s", "b")):
        values = rng.integers(0, 4, 90)
        times = [at(second) for second in np.sort(rng.integers(0, 62, 90)).tolist()]
        keys = values if key == "a" else [f"b{v}" for v in values]
        made[name] = pa.table({key: keys, "t": pa.array(times, STAMP), "id": np.arange(90)})
    return made


def found(relation: pa.Table, changes: Any, streams: dict[str, pa.Table]) -> list[Row]:
    settings: dict[str, Any] = {"on": ["a", "b"], "time": "t", "within": "9 seconds", "fact": "a"}
    table = tg.star_join(streams, relation, changes=changes, **settings).table
    assert table.column_names == ["a", "t_r", "id_r", "b", "t_s", "id_s", "note"]
    return sorted(table.to_pylist(), key=str)


@pytest.mark.parametrize("form", FORMS)
def test_a_feed_means_its_changes(form: str) -> None:
    name, written = FORMS[form]
    total = 0
    for seed in range(3):
        events, streams = history(seed), rows_of(seed)
        expected = found(plain(events), ("op", "at"), streams)
        assert found(written(events), name, streams) == expected
        total += len(expected)
    assert total > 200


def test_codes_of_feeds_are_operations_in_any_pair_of_columns() -> None:
    events, streams = history(3), rows_of(3)
    table = plain(events)
    expected = found(table, ("op", "at"), streams)
    codes = {"insert": "UPDATE_POSTIMAGE", "delete": "update_preimage"}
    for words in (codes, {"insert": "c", "delete": "D"}):
        said = pa.array([words[word] for word in table["op"].to_pylist()])
        assert found(table.set_column(0, "op", said), ("op", "at"), streams) == expected


def test_times_of_debezium_may_stay_numbers() -> None:
    schema = envelopes(history(0)).schema
    feed = feed_of("debezium", schema, [pa.int64()])
    assert feed is not None
    made = changes_of(feed, envelopes([(5, None, {"a": 1, "b": "b1", "note": "n"})]))
    assert made.to_pylist() == [
        {"a": 1, "b": "b1", "note": "n", "__operation": "c", "__time": 1_767_225_605_000}
    ]


def test_feeds_on_spark_are_those_of_local_data(spark: SparkSession) -> None:
    events = history(4)
    for kind in (STAMP, pa.timestamp("us"), pa.int64()):
        for name, written in FORMS.values():
            table = written(events)
            feed = feed_of(name, table.schema, [kind])
            assert feed is not None
            if kind != STAMP and name == "delta":
                continue
            from tidegate.spark.relation import changes_of_frame

            mine = changes_of_frame(feed, spark.createDataFrame(table)).toArrow()
            expected = changes_of(feed, table).cast(mine.schema)
            assert sorted(mine.to_pylist(), key=str) == sorted(expected.to_pylist(), key=str)


ENVELOPES = envelopes(history(0))
BAD: list[tuple[str, pa.Table, str]] = [
    ("delta", ENVELOPES, "needs a column '_change_type', and there are before, .*readChangeFeed"),
    ("debezium", delta(history(0)), "needs a column '__op', and there are a, b, .*add.fields"),
    ("debezium", ENVELOPES.drop_columns(["ts_ms", "source"]), "needs a column 'ts_ms'"),
    ("debezium", ENVELOPES.drop_columns(["op"]), "needs a column 'op'"),
    (
        "debezium",
        ENVELOPES.set_column(0, "before", pa.nulls(len(ENVELOPES), pa.string())),
        "structs of the same fields in before and after, and they are string and struct",
    ),
    (
        "debezium",
        ENVELOPES.set_column(2, "op", pa.array(["t"] * len(ENVELOPES))),
        "codes? of Delta .* has 't'; a truncate names no row",
    ),
    (
        "avro",
        plain(history(0)),
        'a pair of columns like .*, or "delta" or "debezium", not \'avro\'',
    ),
]


@pytest.mark.parametrize(("changes", "table", "why"), BAD)
def test_what_is_wrong_with_a_feed_is_said(changes: str, table: pa.Table, why: str) -> None:
    with pytest.raises(tg.TidegateError, match=f"(?s){why}"):
        found(table, changes, rows_of(0))


def test_an_update_without_its_row_from_before_keeps_its_key() -> None:
    """Without REPLICA IDENTITY FULL, PostgreSQL gives no row from before."""
    events: list[Event] = [
        (0, None, {"a": 1, "b": "b1", "note": "old"}),
        (20, {"a": 1, "b": "b1", "note": "old"}, {"a": 1, "b": "b2", "note": "new"}),
    ]
    table, streams = envelopes(events), rows_of(1)
    expected = found(table, "debezium", streams)
    assert {row["note"] for row in expected} == {"old", "new"}
    nothing = pa.nulls(len(table), LINK)
    assert found(table.set_column(0, "before", nothing), "debezium", streams) == expected
