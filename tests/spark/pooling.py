"""A window join, a star join and a sample in one pool, and a replay of their budget updates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.joins.sampled.engine import SampledJob
from tidegate.joins.sampled.spec import sampled_join
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.spec import star_join
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join

from .workloads import Bag, bag

MEMORY = 90
KEYS = 60
NAMES = ("join", "star", "sample")
SETTINGS: dict[str, Any] = {"time": "time", "within": 40}
#: The star join has longer windows, so it needs more memory than the others.
THROUGH: dict[str, Any] = {
    "on": [{"key": "a"}, {"key": "b"}],
    "time": "time",
    "within": 120,
}
SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64()), ("value", pa.float64())])


def facts() -> pa.Table:
    """Return a relation that links each key of one stream to one key of the other."""
    return pa.table({"a": range(KEYS), "b": [7 * a % KEYS for a in range(KEYS)]})


def joined(spark: SparkSession, rows: DataFrame, pool: tg.MemoryPool) -> DataFrame:
    """Return all three joins of the same streams in one query."""
    left, right = (rows.where(rows.side == side).drop("side") for side in ("left", "right"))
    relation = spark.range(KEYS).selectExpr("id as a", f"7 * id % {KEYS} as b")
    share = {name: pool.share(name) for name in NAMES}
    found = {
        "join": tg.join(left, right, on="key", **SETTINGS, memory=share["join"], shards=1),
        "star": tg.star_join([left, right], relation, **THROUGH, memory=share["star"], shards=1),
        "sample": tg.sample_join(
            left, right, on="key", **SETTINGS, memory=share["sample"], shards=1
        ),
    }
    parts = []
    for name, frame in found.items():
        first, second = ("_s1", "_s2") if name == "star" else ("_left", "_right")
        chance = F.col("sample_probability") if name == "sample" else F.lit(1.0)
        times = [F.col(f"time{end}").alias(f"time{at}") for at, end in enumerate((first, second))]
        keys = [F.col(f"key{end}").alias(f"key{at}") for at, end in enumerate((first, second))]
        parts.append(frame.select(F.lit(name).alias("join"), *keys, *times, chance.alias("chance")))
    return reduce(DataFrame.union, parts)


@dataclass(frozen=True)
class Batch:
    """What a batch read, according to the checkpoint."""

    rows: list[Path]
    updates: dict[str, tuple[int, int]]


def batches(home: Path) -> list[Batch]:
    """Return the batches of an ended query, from the offsets that Spark wrote before each.

    A plan has one line for each use of a source. For each join these are both sides, which belong
    to the first source, and its budget updates.
    """
    read: dict[int, int] = {}
    found = []
    plans = (home / "checkpoint" / "offsets").glob("[0-9]*")
    for plan in sorted(plans, key=lambda path: int(path.name)):
        batch = Batch([], {})
        lines = plan.read_text().splitlines()[2:]
        ends = {1 + at // 3 if at % 3 == 2 else 0: line for at, line in enumerate(lines)}
        for source, line in ends.items():
            if line == "-":
                continue
            end = json.loads(line)["logOffset"]
            for at in range(read.get(source, -1) + 1, end + 1):
                _note(batch, home / "checkpoint" / "sources" / str(source), at)
            read[source] = end
        found.append(batch)
    return found


def _note(batch: Batch, log: Path, at: int) -> None:
    """Add the files that an offset of a source stands for."""
    written = log / str(at) if (log / str(at)).exists() else log / f"{at}.compact"
    for line in written.read_text().splitlines()[1:]:
        entry = json.loads(line)
        if entry["batchId"] != at:
            continue
        path = Path(entry["path"].removeprefix("file:").replace("///", "/"))
        if path.suffix == ".parquet":
            batch.rows.append(path)
            continue
        update = json.loads(path.read_text())
        latest = batch.updates.get(path.parent.name, (0, 0))
        batch.updates[path.parent.name] = max(latest, (update["number"], update["shares"][0]))


def replayed(home: Path) -> dict[str, Bag]:
    """Return the results of engines that get the same updates and rows. Check their budgets."""
    jobs = _jobs()
    engines = {name: job.engine_at(0, 1) for name, job in jobs.items()}
    for engine in engines.values():
        engine.resize(0, 0)
    found: dict[str, list[pa.RecordBatch]] = {name: [] for name in jobs}
    for batch in batches(home):
        for name, update in batch.updates.items():
            engines[name].resize(*update)
        read = [pq.read_table(path) for path in sorted(set(batch.rows))]
        rows = pa.concat_tables(read) if read else None
        for name, engine in engines.items():
            inputs: list[list[pa.RecordBatch]] = [[], []]
            clocks: list[int | None] = [None, None]
            for side, label in enumerate(("left", "right")):
                own = None if rows is None else rows.filter(pc.equal(rows["side"], label))
                if own is not None and len(own):
                    table = own.select(SCHEMA.names).combine_chunks()
                    inputs[side] = [jobs[name].prepare(side, b)[0] for b in table.to_batches()]
                    clocks[side] = pc.max(table["time"]).as_py()
            found[name] += list(engine.feed(inputs, clocks))
        held = {name: engine.take_counters()["held"] for name, engine in engines.items()}
        allowed = {name: engine.budget_update[1] for name, engine in engines.items()}
        assert all(held[name] <= allowed[name] for name in NAMES)
        assert sum(allowed.values()) <= MEMORY
    return {name: bag(_rows(name, parts)) for name, parts in found.items()}


def _jobs() -> dict[str, Any]:
    window = window_join(SCHEMA, SCHEMA, on="key", **SETTINGS, memory=MEMORY)
    star = star_join({"s1": SCHEMA, "s2": SCHEMA}, facts().schema, **THROUGH, memory=MEMORY)
    sample = sampled_join(SCHEMA, SCHEMA, on="key", **SETTINGS, memory=MEMORY)
    return {
        "join": WindowJob(window),
        "star": StarJob(star, LocalRelation(*in_order(facts()))),
        "sample": SampledJob(sample),
    }


def _rows(name: str, parts: list[pa.RecordBatch]) -> pa.Table:
    """Return the columns of `joined`, without the name of the join."""
    table = pa.Table.from_batches(parts)
    first, second = ("_s1", "_s2") if name == "star" else ("_left", "_right")
    one = pa.array([1.0] * len(table))
    return pa.table(
        {
            "key0": table[f"key{first}"],
            "key1": table[f"key{second}"],
            "time0": table[f"time{first}"],
            "time1": table[f"time{second}"],
            "chance": table["sample_probability"] if name == "sample" else one,
        }
    )


def by_join(table: pa.Table) -> dict[str, Bag]:
    """Return the delivered rows of each join."""
    return {
        name: bag(table.filter(pc.equal(table["join"], name)).drop_columns("join"))
        for name in NAMES
    }
