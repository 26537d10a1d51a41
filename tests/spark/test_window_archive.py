"""`shed_to` of a streaming window join, and the results that `tg.repair` finds in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import tidegate as tg
from tidegate.engine.archive import compact, read

from .workloads import Pair, bag, counters, delivered, start, write_files

JOIN: dict[str, Any] = {"on": "k", "time": "t", "within": 20}
BATCHES = 4


def stream(seed: int) -> list[pa.Table]:
    """Return one file a batch: some rows are of the batch before, some have no key or no time."""
    rng = np.random.default_rng(seed)
    found = []
    for batch in range(BATCHES):
        t = 30 * batch + rng.integers(0, 30, 60)
        t[:12] -= 15
        row = {"k": pa.array(rng.integers(0, 8, 60)), "t": pa.array(t)}
        for name in row:
            row[name] = pc.if_else(pa.array(rng.random(60) < 0.03), None, row[name])
        found.append(pa.table(row | {"uid": pa.array(np.arange(60) + 1_000 * batch)}))
    # The last tick stays open; no results wait in it.
    last = pa.table({"k": [seed], "t": [200], "uid": [9_999]})
    return [*found[:-1], pa.concat_tables([found[-1], last])]


@pytest.mark.proves(repair="classic batch, local, classic stream refused")
def test_online_and_repaired_results_are_exact_after_a_full_disk(
    spark: SparkSession, tmp_path: Path
) -> None:
    pair = Pair(spark, tmp_path, ("t", "t"))
    pieces = {"left": stream(98), "right": stream(99)}
    tables = {name: pa.concat_tables(each) for name, each in pieces.items()}
    folder = tmp_path / "shed"
    more = JOIN | {"lateness": 10, "shed_when": "before-probe"}

    def joined(parts: range) -> DataFrame:
        for name in pieces:
            write_files([pieces[name][i] for i in parts], tmp_path / name, first=parts[0])
        left, right = pair.stream()
        budget: dict[str, Any] = {"memory": 60, "policy": "prob", "shards": 2}
        result: DataFrame = tg.join(left, right, **more, **budget, shed_to=str(folder))
        return result

    start(joined(range(2)), tmp_path)
    # The disk is full: here, a file is where the folder was.
    result = joined(range(2, BATCHES))
    folder.rename(tmp_path / "kept")
    folder.write_text("full")
    with pytest.raises(StreamingQueryException, match="Nothing is lost"):
        start(result, tmp_path)
    with pytest.raises(tg.TidegateError, match="cannot be written"):
        joined(range(2, BATCHES))
    folder.unlink()
    (tmp_path / "kept").rename(folder)
    query = start(result, tmp_path)
    shed = sum(c["shed"] + c["rejected"] for c in counters(query))
    assert shed > 0

    lines = read(str(folder))
    names = sorted(path.name for path in folder.glob("*.parquet"))
    assert {int(name[:9]) for name in names} == set(range(BATCHES))
    whys = lines["why"].to_pylist()
    assert {"shed", "late", "out of order", "null key", "null time"} <= set(whys)
    nulls = sum(tables[s][c].null_count for s in tables for c in ("k", "t"))
    both = sum(
        pc.sum(pc.and_(table["k"].is_null(), table["t"].is_null())).as_py()
        for table in tables.values()
    )
    assert whys.count("null key") + whys.count("null time") == nulls - both
    online = bag(delivered(spark, tmp_path))
    exact = bag(tg.join(tables["left"], tables["right"], **JOIN).table)
    assert 0 < online.total() < exact.total()
    assert online <= exact

    repaired = tg.repair(pair.batch(), str(folder), **more, shards=2)
    assert online + bag(repaired.toArrow()) == exact
    # Local data, and a compacted archive, give the same; slices add up.
    assert list(compact(str(folder)))[-1].files_after < len(names)
    missing = bag(tg.repair(tables, str(folder), **more).table)
    assert online + missing == exact
    cuts = [(None, 40), (40, 90), (90, None)]
    slices = [bag(tg.repair(tables, str(folder), **more, between=cut).table) for cut in cuts]
    assert sum(slices, start=bag(repaired.limit(0).toArrow())) == missing
    assert bag(tg.repair(pair.batch(), str(folder), **more, between=cuts[1]).toArrow()) == slices[1]

    with pytest.raises(tg.TidegateError, match="must be a batch Spark DataFrame"):
        tg.repair(pair.stream(), str(folder), **more)
    with pytest.raises(tg.TidegateError, match="give the folder that was shed_to"):
        tg.repair(pair.batch(), lines, **more)
    with pytest.raises(tg.TidegateError, match=r"other settings(.|\n)*shed_when"):
        tg.repair(pair.batch(), str(folder), **JOIN)
    without = tg.join(*pair.stream(), **more, memory=60, policy="prob", shards=2)
    for name in pieces:
        write_files([pieces[name][0]], tmp_path / name, first=BATCHES)
    with pytest.raises(StreamingQueryException, match="archive: true -> "):
        start(without, tmp_path)
