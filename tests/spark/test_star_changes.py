"""Compare a changing relation on Spark with Spark's own join, with restarts and bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.streams import cut_by_time

from .test_star import (
    BATCHES,
    END,
    NAMES,
    SETTINGS,
    Files,
    changes_of,
    frame,
    native,
    relation,
    streams,
)
from .workloads import bag, counters, delivered, start, total, union_of, write_files


def with_holes(table: pa.Table, at: int) -> list[pa.Table]:
    """Cut a stream by time; some keys and times are null, and some rows come a batch late."""
    late = np.arange(len(table)) % 11 == at
    late[-1] = False
    cut = {}
    for name, rows in (("late", table.filter(late)), ("in time", table.filter(~late))):
        cut[name] = cut_by_time(rows, time="t", batches=BATCHES, span=(0, END + 1))
    pieces = []
    for i in range(BATCHES):
        parts = [cut["in time"][i], *cut["late"][max(i - 1, 0) : i]]
        parts += cut["late"][i:] if i == BATCHES - 1 else []
        rows = pa.concat_tables(parts)
        number = np.arange(len(rows))
        is_last = np.asarray(rows["t"]) > END
        for column, step in ((0, 13), (1, 17)):
            holes = (number % step == 0) & ~is_last
            array = pa.array(np.asarray(rows.column(column)), mask=holes)
            rows = rows.set_column(column, rows.schema.names[column], array)
        pieces.append(rows)
    return pieces


def test_restarts_nulls_late_rows_and_a_contradiction(spark: SparkSession, tmp_path: Path) -> None:
    """The query is restarted for each batch. One batch is refused, corrected and accepted."""
    facts = relation()
    changes = changes_of(facts)
    given = {NAMES[i]: with_holes(table, i) for i, table in enumerate(streams(400))}
    plain = cut_by_time(changes, time="at", batches=BATCHES, span=(0, END + 1))
    given["changes"] = [pa.concat_tables([piece, piece.slice(0, 9)]) for piece in plain]
    files = Files(spark, tmp_path)
    settings = {**SETTINGS, "changes": ("op", "at"), "lateness": END}
    columns = ["note", "a", "b", "a_id", "b_id"]
    counts = []
    for batch in range(BATCHES):
        for name, pieces in given.items():
            piece = pieces[batch]
            if (batch, name) == (1, "changes"):
                row = next(r for r in piece.to_pylist() if r["op"] == "insert") | {"note": "other"}
                piece = pa.concat_tables([piece, pa.Table.from_pylist([row], piece.schema)])
            write_files([piece], tmp_path / name, first=batch)
        joined = tg.star_join(
            [files.stream(name) for name in NAMES], files.stream("changes"), **settings
        ).select(columns)
        if batch == 1:
            with pytest.raises(Exception, match='contradict each other: "insert" of .*"insert" of'):
                start(joined, tmp_path / "ours")
            write_files([given["changes"][1]], tmp_path / "changes", first=1)
        counts += counters(start(joined, tmp_path / "ours"))
    r, s = (files.batch(name) for name in NAMES)
    names = ["a", "t_1", "a_id", "w_1", "b", "t_2", "b_id", "w_2", "begin", "end", "note"]
    expected = bag(native(r, s, frame(spark, facts), names).select(columns).toArrow())
    assert bag(delivered(spark, tmp_path / "ours")) == expected
    assert expected.total() > 300
    archived = tg.star_join([r, s], files.batch("changes"), **settings).select(columns)
    assert bag(archived.toArrow()) == expected
    assert [count["rebuilt"] for count in counts] == [0, 1, 1]
    for name in ("null_keys", "null_times", "out_of_order", "filtered"):
        assert total(counts, name) > 20


def test_a_table_that_differs_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """Links that are gone end at the restart, and new ones begin then, in one shard and in two."""
    first = relation()
    rng = np.random.default_rng(4)
    gone, new = (pa.array(rng.random(len(first)) < share) for share in (0.3, 0.2))
    before = first.filter(pc.invert(new))
    after = first.filter(pc.invert(gone))
    pieces = {
        name: cut_by_time(table, time="t", batches=BATCHES, span=(0, END + 1))
        for name, table in zip(NAMES, streams(), strict=True)
    }
    restart = 1 + max(int(pc.max(cut[0]["t"]).as_py()) for cut in pieces.values())
    effective = first.to_pylist()
    for row, is_gone, is_new in zip(effective, gone.to_pylist(), new.to_pylist(), strict=True):
        if is_gone:
            row["end"] = restart if row["end"] is None else min(row["end"], restart)
        if is_new:
            row["begin"] = max(row["begin"], restart)
    effective = [row for row in effective if row["end"] is None or row["begin"] < row["end"]]
    files = Files(spark, tmp_path)
    settings = {**SETTINGS, "interval": ("begin", "end")}
    ways: dict[str, dict[str, Any]] = {
        "one": {"shards": 1},
        "two": {"shards": 2, "relation_changes": "apply"},
    }
    for part, facts in enumerate((before, after)):
        for name, cut in pieces.items():
            write_files(cut[1:] if part else cut[:1], tmp_path / name, first=part)
        live = [files.stream(name) for name in NAMES]
        table = frame(spark, facts)
        joins = {n: tg.star_join(live, table, **settings, **way) for n, way in ways.items()}
        if part:
            refused = tg.star_join(
                live, table, **settings, shards=1, relation_changes="refuse"
            ).withColumn("join", F.lit("one"))
            other = joins["two"].withColumn("join", F.lit("two"))
            with pytest.raises(Exception, match='differs from that of the checkpoint.*="refuse"'):
                start(refused.union(other), tmp_path / "ours")
        start(union_of(joins), tmp_path / "ours")
    found = delivered(spark, tmp_path / "ours")
    links = pa.Table.from_pylist(effective, first.schema)
    expected = bag(
        tg.star_join(list(streams()), links, **settings).table.drop_columns(["begin", "end"])
    )
    assert expected.total() > 500
    for name in ways:
        mine = found.filter(pc.equal(found["join"], name)).drop_columns(["join", "begin", "end"])
        assert bag(mine) == expected
