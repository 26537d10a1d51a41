"""A streaming window join that is restarted with other settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

import tidegate as tg
from tidegate.cli import app
from tidegate.spark.checkpoint import read_checkpoint, rows_table
from tidegate.spark.metrics import observed
from tidegate.streams import cut_by_time, zipf

from .workloads import span, start, write_files


def test_five_restarts_with_other_settings(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget holds, nothing comes twice, and each change is reported in one batch."""
    tables = zipf(1_200, domain=40, seed=4)
    pieces = [
        cut_by_time(table, time="time", batches=6, span=span(tables[0]["time"])) for table in tables
    ]
    exact = tg.join(*tables, on="key", time="time", within=60).table

    runs: list[dict[str, Any]] = [
        {"memory": 30},
        {"memory": 60},
        {"memory": 10, "policy": "prob"},
        {"memory": 24, "policy": "prob", "within": (60, 40)},
        {"memory": "40 kB", "lateness": 5},
        {"memory": None, "note": True},
    ]
    for number, settings in enumerate(runs):
        frames = []
        for name, files in zip(("left", "right"), pieces, strict=True):
            write_files([files[number]], tmp_path / name, first=number)
            schema = spark.read.parquet(str(tmp_path / name)).schema
            frames.append(spark.readStream.schema(schema).parquet(str(tmp_path / name)))
        left, right = frames
        if settings.pop("note", False):
            left = left.withColumn("note", F.lit("new"))
        joined = tg.join(
            left, right, **{"on": "key", "time": "time", "within": 60, "shards": 2, **settings}
        )
        query = start(joined, tmp_path)
        [progress] = [p for p in query.recentProgress if p["numInputRows"]]
        [count] = observed(progress).values()
        assert count["settings_changed"] == (2 if number else 0)
        assert ("memory" in count.get("changed", {})) == bool(number)
        if isinstance(settings["memory"], int):
            assert 0.7 * settings["memory"] < count["held"] <= settings["memory"]
    checkpoint = str(tmp_path / "checkpoint")
    stored = read_checkpoint(spark, checkpoint)
    assert sum(rows.num_rows for each in stored for rows in each.held()) == count["held"]
    assert rows_table(stored).column_names[:3] == ["operator", "shard", "stream"]
    assert {"note", "key", "value"} <= set(rows_table(stored).column_names)
    summary = [stream for each in stored for stream in each.streams()]
    assert sum(stream["rows"] for stream in summary) == count["held"]
    assert max(stream["newest"] for stream in summary) >= 1_190
    assert count["changed"]["columns"].endswith('"value: double"]]')
    written = (tmp_path / "out").glob("*.parquet")
    merged = pa.concat_tables(map(pq.read_table, written), promote_options="default")
    found = merged.to_pandas()
    keys = ["key_left", "time_left", "value_left", "time_right", "value_right"]
    assert not found.duplicated(keys).any()
    wanted = exact.to_pandas()[keys].assign(wanted=True)
    assert found.merge(wanted, on=keys, how="left")["wanted"].notna().all()
    assert 0.1 * len(wanted) < len(found) < len(wanted)
    # In the last run, rows of earlier ones have no value in the new column.
    assert found[found["time_left"] >= 1_000]["note"].eq("new").all()
    last = found[found["time_right"] >= 1_000]
    assert last[last["time_left"] < 1_000]["note"].isna().any()

    # Nothing of a setting that cannot change is taken up, and the old ones still work.
    write_files([pieces[0][0]], tmp_path / "left", first=len(runs))
    common: dict[str, Any] = {"on": "key", "time": "time", "within": 60, "shards": 2}
    other = tg.join(left, right, **common, shed_when="before-probe")
    words = r"shed_when: .after-probe. -> .before-probe(.|\n)*What may change: .*memory"
    with pytest.raises(Exception, match=words):
        start(other, tmp_path)
    # A session of the command's own would change settings of the one that tests share.
    monkeypatch.setattr("tidegate.cli.state.session", lambda *args, **kwargs: spark)
    shown = CliRunner().invoke(app, ["state", checkpoint, "--json"])
    assert shown.exit_code == 0
    [join] = json.loads(shown.stdout[shown.stdout.index("{") :])["joins"]
    assert [each["records"] for each in join["shards"]] == [len(each.records) for each in stored]
    assert join["streams"] == summary
    assert join["settings"]["shed_when"] == "after-probe"
    shown = CliRunner().invoke(app, ["state", checkpoint, "--rows", str(tmp_path / "held.parquet")])
    assert "shed_when" in shown.stdout
    assert pq.read_table(tmp_path / "held.parquet").num_rows == count["held"]
    start(tg.join(left, right, **common), tmp_path)
