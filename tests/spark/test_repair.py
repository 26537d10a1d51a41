"""`shed_to` and `tg.repair`: the archive yields the results that constraints cost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tidegate.spark.archive import checked_departures

from .test_constrained import JOINS, native, packets, settings, streams, written
from .workloads import bag, counters, delivered, start

#: Packets take up to 30 time units from link to link.
TOO_SMALL = [tg.RIDS("C -> B", within=8), tg.RIDS("B -> O", within=12)]


def shed(tmp_path: Path) -> pa.Table:
    return pq.read_table(tmp_path / "shed")


@pytest.mark.proves(repair="classic batch, local, classic stream refused")
def test_delivered_plus_repaired_results_are_the_exact_result(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = packets()
    expected = bag(native(spark, tables).toArrow())
    folder = str(tmp_path / "shed")
    more: dict[str, Any] = settings(constraints=TOO_SMALL)
    written(tables, tmp_path, 4, slice(0, 2))
    start(tg.constrained_join(streams(spark, tmp_path), **more, shed_to=folder), tmp_path)
    files = sorted(path.name for path in (tmp_path / "shed").glob("*.parquet"))
    assert [name[:9] for name in files] == ["000000000"] * 2 + ["000000001"] * 2
    # A failed attempt of the next batch left files behind, with other rows than the retry writes.
    for name in files[:2]:
        shutil.copy(tmp_path / "shed" / name, tmp_path / "shed" / f"000000002{name[9:]}")
    written(tables, tmp_path, 4, slice(2, 4))
    result = tg.constrained_join(streams(spark, tmp_path), **more, shed_to=folder)
    assert counters(start(result, tmp_path))[0]["rebuilt"] == 2
    online = bag(delivered(spark, tmp_path))
    assert 0 < online.total() < expected.total()

    frames = {name: spark.createDataFrame(table) for name, table in tables.items()}
    missing = bag(tg.repair(frames, folder, **more).toArrow())
    assert online + missing == expected
    # Locally and in one shard the result is the same; constraints no longer matter.
    lines = shed(tmp_path).drop_columns(["made_by"])
    assert bag(tg.repair(tables, lines, **settings(constraints=())).table) == missing
    assert set(lines["why"].to_pylist()) <= {'RIDS("C -> B")', 'RIDS("B -> O")'}

    with pytest.raises(tg.TidegateError, match=r"other settings(.|\n)*window of .*: 200 -> 100"):
        tg.repair(frames, folder, **{**more, "within": 100})
    with pytest.raises(tg.TidegateError, match="is no archive of a join with shed_to"):
        tg.repair(frames, str(tmp_path / "nowhere"), **more)
    with pytest.raises(tg.TidegateError, match="must be a batch Spark DataFrame"):
        tg.repair(streams(spark, tmp_path), folder, **more)
    with pytest.raises(tg.TidegateError, match=r"archived rows of the stream 'C' are not among"):
        tg.repair({**tables, "C": tables["C"].slice(0, 3)}, lines, **more)
    with pytest.raises(tg.TidegateError, match=r"shed must be what .* gave"):
        tg.repair(tables, lines.drop_columns(["mark"]), **more)
    with pytest.raises(tg.TidegateError, match="nothing is shed with eliminate=False"):
        tg.constrained_join(frames, joins=JOINS, time="ts", eliminate=False, shed_to="x")


@pytest.mark.proves(cql="classic batch")
def test_a_query_as_text_is_repaired_by_its_text(spark: SparkSession, tmp_path: Path) -> None:
    tables = packets()
    frames = {name: spark.createDataFrame(table) for name, table in tables.items()}
    text = (
        "Select C.pid, O.ts From C [Range 200], B [Range 200], O [Range 200] "
        "Where C.pid = B.pid and B.pid = O.pid"
    )
    given: dict[str, Any] = {"time": "ts", "unique": ["C.pid", "B.pid", "O.pid"], "shards": 2}
    exact = bag(tg.cql(text, frames, **given).toArrow())
    folder = str(tmp_path / "shed")
    hasty = tg.cql(text, frames, **given, constraints=TOO_SMALL, lag=0, shed_to=folder)
    online = bag(hasty.toArrow())
    assert 0 < online.total() < exact.total()
    assert online + bag(tg.repair(frames, folder, query=text, **given).toArrow()) == exact
    with pytest.raises(tg.TidegateError, match=r"window of C: 200 -> 100"):
        tg.repair(frames, folder, query=text.replace("200", "100", 1), **given)
    with pytest.raises(tg.TidegateError, match="give shed_to, a folder, instead"):
        tg.cql(text, frames, **given, keep_shed=True)
    with pytest.raises(tg.TidegateError, match="an aggregate has no shed_to"):
        tg.cql(text.replace("C.pid, O.ts", "count(*)"), frames, **given, shed_to=folder)


@pytest.mark.parametrize("made_by", ["", "5", "[]", "{}", '{"settings": 5}', "{" * 50, "null"])
def test_an_archive_that_was_changed_is_refused(
    spark: SparkSession, tmp_path: Path, made_by: str
) -> None:
    pq.write_table(pa.table({"side": ["A"], "made_by": [made_by]}), tmp_path / "0.parquet")
    with pytest.raises(tg.TidegateError, match="must say which join wrote it, and says"):
        checked_departures(spark, tmp_path, {"windows": 5})


def test_an_archive_with_a_damaged_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"side": ["A"], "made_by": ["{}"]}), tmp_path / "0.parquet")
    whole = (tmp_path / "0.parquet").read_bytes()
    (tmp_path / "1.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(tg.TidegateError, match=r"damaged: (.|\n)*parquet(.|\n)*remove it"):
        checked_departures(spark, tmp_path, {"windows": 5})
