"""The Spark operator, with a small exact engine in plain Python."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructField, StructType

from tidegate.engine.base import Clocks, Engine, Job
from tidegate.engine.prepare import shard_of
from tidegate.errors import TidegateError
from tidegate.spark import compat, metrics, packing
from tidegate.spark.operator import PROVIDER, PROVIDER_CONF, run
from tidegate.spark.shards import labels, spark_hash
from tidegate.spark.state import VALUE_BYTES, EngineCache

# Workers cannot import this file, so its classes are pickled by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

SCHEMA = "k string, t long, v long"
SMALL = pa.schema([("key", pa.uint64())])


class DictEngine(Engine):
    """An exact window join over lists of rows. Its state is exactly what the log contains."""

    def __init__(self, within: int, schemas: Sequence[pa.Schema], result: pa.Schema) -> None:
        self.within = within
        self.result = result
        self.rows = [schema.empty_table() for schema in schemas]
        self.fresh = [schema.empty_table() for schema in schemas]
        self.logged = 0
        self.clock: int | None = None
        self.flows = Counter[str]()

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        new = [
            pa.Table.from_batches(batches, held.schema)
            for batches, held in zip(inputs, self.rows, strict=True)
        ]
        for clock in clocks or ():
            if clock is not None:
                self.clock = int(max(clock, self.clock or clock))
        yield from self._pairs(new[0], self.rows[1])
        self.rows[0] = pa.concat_tables([self.rows[0], new[0]])
        yield from self._pairs(self.rows[0], new[1])
        self.rows[1] = pa.concat_tables([self.rows[1], new[1]])
        self.fresh = [pa.concat_tables(pair) for pair in zip(self.fresh, new, strict=True)]
        self.flows["arrived"] += sum(table.num_rows for table in new)
        if self.clock is not None:
            alive = pc.field("time") > self.clock - 2 * self.within
            self.rows = [table.filter(alive) for table in self.rows]

    def _pairs(self, left: pa.Table, right: pa.Table) -> Iterator[pa.RecordBatch]:
        by_key: dict[int, list[int]] = {}
        for place, key in enumerate(right["key"].to_pylist()):
            by_key.setdefault(key, []).append(place)
        times = right["time"].to_pylist()
        pairs = [
            (one, other)
            for one, (key, time) in enumerate(
                zip(left["key"].to_pylist(), left["time"].to_pylist(), strict=True)
            )
            for other in by_key.get(key, [])
            if abs(times[other] - time) < self.within
        ]
        self.flows["results"] += len(pairs)
        ones = left.take(pa.array([one for one, _ in pairs], pa.int64()))
        others = right.take(pa.array([other for _, other in pairs], pa.int64()))
        columns = [*ones.columns[3:], *others.columns[3:]]
        yield from pa.Table.from_arrays(columns, schema=self.result).to_batches(max_chunksize=50)

    def finish(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def take_counters(self) -> dict[str, int | float]:
        held = sum(table.num_rows for table in self.rows)
        counters = {**self.flows, "held": held, "importance": self.flows["results"] * 0.5}
        self.flows.clear()
        return counters

    def _record(self, tables: Sequence[pa.Table]) -> bytes:
        parts = [json.dumps(self.clock).encode()]
        for table in tables:
            sink = pa.BufferOutputStream()
            packing.encode(table.to_batches(), table.schema, sink)
            parts.append(sink.getvalue().to_pybytes())
        return b"".join(len(part).to_bytes(8, "little") + part for part in parts)

    def changes(self) -> bytes:
        fresh = self.fresh
        self.fresh = [table.slice(0, 0) for table in fresh]
        self.logged += sum(table.num_rows for table in fresh)
        return self._record(fresh)

    def snapshot(self) -> list[bytes]:
        self.fresh = [table.slice(0, 0) for table in self.fresh]
        self.logged = sum(table.num_rows for table in self.rows)
        empty = [table.slice(0, 0) for table in self.rows]
        return [
            self._record([self.rows[0], empty[1]]),
            self._record([empty[0], self.rows[1]]),
        ]

    def restore(
        self, records: Iterable[bytes], written_with: Mapping[str, Any] | None = None
    ) -> None:
        for record in records:
            parts = []
            while record:
                size = int.from_bytes(record[:8], "little")
                parts.append(record[8 : 8 + size])
                record = record[8 + size :]
            self.clock = json.loads(parts[0])
            for side, part in enumerate(parts[1:]):
                table = pa.Table.from_batches(packing.decode(part), self.rows[side].schema)
                self.rows[side] = pa.concat_tables([self.rows[side], table])
                self.logged += table.num_rows

    @property
    def log_is_heavy(self) -> bool:
        held = sum(int(table.num_rows) for table in self.rows)
        return self.logged > 2 * held + 20


@dataclass(frozen=True)
class DictJob(Job):
    """Joins rows with equal `k` less than `within` apart in `t`."""

    inputs: tuple[pa.Schema, pa.Schema]
    within: int = 10
    note: str = ""

    @property
    def prepared(self) -> list[pa.Schema]:
        first = [
            pa.field("key", pa.uint64()),
            pa.field("time", pa.int64()),
            pa.field("row_hash", pa.uint64()),
        ]
        return [pa.schema([*first, *schema]) for schema in self.inputs]

    @property
    def result_schema(self) -> pa.Schema:
        return pa.schema(
            [
                column.with_name(f"{side}_{column.name}")
                for side, schema in zip("lr", self.inputs, strict=True)
                for column in schema
            ]
        )

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        kept = batch.filter(pc.is_valid(batch.column("k")))
        keys = kept.column("k").to_pandas()
        hashes = pa.array(pd.util.hash_pandas_object(keys, index=False).to_numpy())
        times = kept.column("t").cast(pa.int64())
        prepared = pa.RecordBatch.from_arrays(
            [hashes, times, hashes, *kept.columns], schema=self.prepared[stream]
        )
        return prepared, {"null_keys": batch.num_rows - kept.num_rows}

    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> DictEngine:
        return DictEngine(self.within, self.prepared, self.result_schema)

    def fingerprint(self) -> dict[str, Any]:
        return {"within": self.within, "note": self.note}


def job_for(left: DataFrame, right: DataFrame, **settings: Any) -> DictJob:
    schemas = packing.arrow_schema(left.schema), packing.arrow_schema(right.schema)
    return DictJob(schemas, **settings)


def joined(left: DataFrame, right: DataFrame, **options: Any) -> DataFrame:
    keywords = {key: options.pop(key) for key in ("shards", "name") if key in options}
    return run(job_for(left, right, **options), [left, right], **keywords)


def native(left: DataFrame, right: DataFrame, within: int = 10) -> list[tuple[Any, ...]]:
    one, other = left.alias("l"), right.alias("r")
    near = F.abs(F.col("l.t") - F.col("r.t")) < within
    return rows_of(one.join(other, (F.col("l.k") == F.col("r.k")) & near))


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def make(spark: SparkSession, start: int, rows: int, step: int, keys: int) -> DataFrame:
    """Return rows with times from `start` on and shuffled keys; every seventh key is null."""
    return spark.range(start, start + rows, numPartitions=2).selectExpr(
        f"if(id % 7 = 0, null, concat('k', cast(id * {step} % {keys} as string))) as k",
        "id as t",
        f"id * {step} as v",
    )


@dataclass
class Streams:
    """Two streams of files, and a query over them that can be stopped and started again."""

    spark: SparkSession
    home: Path
    options: dict[str, Any] = field(default_factory=dict)

    def source(self, side: str) -> DataFrame:
        self.home.joinpath(side).mkdir(exist_ok=True)
        return self.spark.readStream.schema(SCHEMA).parquet(str(self.home / side))

    def add(self, side: str, frame: DataFrame) -> None:
        frame.write.mode("append").parquet(str(self.home / side))

    def all(self, side: str) -> DataFrame:
        return self.spark.read.schema(SCHEMA).parquet(str(self.home / side))

    def advance(self, **changed: Any) -> StreamingQuery:
        """Start the query on its checkpoint, process all files, and stop."""
        result = joined(self.source("left"), self.source("right"), **{**self.options, **changed})
        query = (
            result.writeStream.format("parquet")
            .option("path", str(self.home / "out"))
            .option("checkpointLocation", str(self.home / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    def results(self) -> list[tuple[Any, ...]]:
        return rows_of(self.spark.read.parquet(str(self.home / "out")))


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Streams:
    return Streams(spark, tmp_path)


def counters(query: StreamingQuery) -> dict[str, int | float]:
    """Return the counters of the last batch that has any."""
    found = [
        counts
        for progress in query.recentProgress
        for counts in metrics.observed(progress).values()
        if counts["shards"]
    ]
    return found[-1]


def test_batch_gives_what_sparks_own_join_gives(spark: SparkSession) -> None:
    left, right = make(spark, 0, 300, 3, 20), make(spark, 5, 250, 5, 20)
    expected = native(left, right)
    assert len(expected) > 100
    for shards in (1, 2, 5):
        assert rows_of(joined(left, right, shards=shards)) == expected


def test_streams_with_restarts_give_what_sparks_own_join_gives(streams: Streams) -> None:
    spark = streams.spark
    for batch in range(4):
        streams.add("left", make(spark, batch * 60, 60, 3, 12))
        streams.add("right", make(spark, batch * 60 - 5, 60, 5, 12))
        query = streams.advance(shards=3)
        counts = counters(query)
        assert counts["shards"] == 3
        # No engine survives a restart, so all are rebuilt from the state.
        assert counts["rebuilt"] == (0 if batch == 0 else 3)
        assert counts["state_bytes"] > 0
    expected = native(streams.all("left"), streams.all("right"))
    assert len(expected) > 50
    assert streams.results() == expected
    # Old rows have expired, so a snapshot has replaced the log at least once.
    assert counts["held"] < 240


def test_one_query_over_many_batches(spark: SparkSession, tmp_path: Path) -> None:
    sides = {}
    for side, step in (("left", 3), ("right", 5)):
        for batch in range(5):
            frame = make(spark, batch * 30, 30, step, 8).coalesce(1)
            frame.write.mode("append").parquet(str(tmp_path / side))
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        sides[side] = source.parquet(str(tmp_path / side))
    query = (
        joined(sides["left"], sides["right"], shards=2)
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [p for p in query.recentProgress if p["numInputRows"]]
    assert len(batches) == 5
    counts = [next(iter(metrics.observed(progress).values())) for progress in batches]
    expected = native(
        spark.read.parquet(str(tmp_path / "left")), spark.read.parquet(str(tmp_path / "right"))
    )
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == expected
    assert sum(count["results"] for count in counts) == len(expected) > 0
    assert sum(count["importance"] for count in counts) == len(expected) / 2
    dropped = sum(count["null_keys"] for count in counts)
    assert dropped == 2 * len([t for t in range(150) if t % 7 == 0])
    assert sum(count["arrived"] for count in counts) == 300 - dropped
    if compat.VERSION >= (4, 3):
        # Each engine stays in one process, whichever worker gets its tasks.
        assert [count["rebuilt"] for count in counts] == [0] * 5


def test_a_checkpoint_of_other_settings_is_refused(streams: Streams) -> None:
    streams.add("left", make(streams.spark, 0, 40, 3, 8))
    streams.add("right", make(streams.spark, 0, 40, 5, 8))
    streams.advance(within=10, shards=2)
    before = streams.results()
    streams.add("left", make(streams.spark, 40, 40, 3, 8))
    with pytest.raises(Exception, match="within: 10 -> 20") as caught:
        streams.advance(within=20, shards=2)
    assert "TidegateError" in str(caught.value)
    assert "new checkpoint location" in str(caught.value)
    with pytest.raises(Exception, match="shards: 2 -> 3"):
        streams.advance(within=10, shards=3)
    assert streams.results() == before
    streams.advance(within=10, shards=2)
    assert streams.results() == native(streams.all("left"), streams.all("right"))


@dataclass(frozen=True)
class FailingJob(DictJob):
    """A job whose engine breaks after its first results, until a file appears."""

    flag: str = ""

    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> DictEngine:
        return FailingEngine(self.within, self.prepared, self.result_schema, self.flag)


class FailingEngine(DictEngine):
    def __init__(self, within: int, schemas: Any, result: pa.Schema, flag: str) -> None:
        super().__init__(within, schemas, result)
        self.flag = Path(flag)

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        for batch in super().feed(inputs, clocks):
            yield batch
            if (self.clock or 0) > 50 and not self.flag.exists():
                raise RuntimeError("broken on purpose")


def test_a_feed_that_breaks_midway_leaves_no_trace(streams: Streams) -> None:
    flag = streams.home / "mended"
    left, right = streams.source("left"), streams.source("right")
    schemas = packing.arrow_schema(left.schema), packing.arrow_schema(right.schema)
    result = run(FailingJob(schemas, flag=str(flag)), [left, right], shards=2)

    def advance() -> None:
        (
            result.writeStream.format("parquet")
            .option("path", str(streams.home / "out"))
            .option("checkpointLocation", str(streams.home / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    for start in (0, 40):
        streams.add("left", make(streams.spark, start, 40, 3, 8))
        streams.add("right", make(streams.spark, start, 40, 5, 8))
        if start:
            with pytest.raises(Exception, match="broken on purpose"):
                advance()
            flag.touch()
        advance()
    expected = native(streams.all("left"), streams.all("right"))
    assert streams.results() == expected


def test_one_sided_and_empty_streams(streams: Streams) -> None:
    streams.add("left", make(streams.spark, 0, 30, 3, 8))
    streams.source("right")
    query = streams.advance(shards=2)
    assert streams.results() == []
    assert counters(query)["held"] > 0
    # A batch without any row, then one side alone.
    streams.add("left", make(streams.spark, 0, 30, 3, 8).limit(0))
    streams.add("right", make(streams.spark, 0, 30, 5, 8))
    streams.advance(shards=2)
    expected = native(streams.all("left"), streams.all("right"))
    assert len(expected) > 0
    assert streams.results() == expected


def test_empty_batch_frames(spark: SparkSession) -> None:
    empty = spark.createDataFrame([], SCHEMA)
    full = make(spark, 0, 10, 3, 8)
    assert rows_of(joined(empty, full)) == []
    assert rows_of(joined(empty, empty)) == []


PAYLOADS = {
    "flag": "id % 2 = 0",
    "tiny": "cast(id as tinyint)",
    "small": "cast(id as smallint)",
    "whole": "cast(id as int)",
    "single": "cast(id as float) / 3",
    "real": "cast(id as double) / 3",
    "money": "cast(id as decimal(12, 2))",
    "wide": "cast(id as decimal(38, 18))",
    "text": "cast(id as string)",
    "folded": "cast(id as string) collate UTF8_LCASE",
    "raw": "cast(cast(id as string) as binary)",
    "day": "date_add(date'1969-12-31', cast(id as int))",
    "instant": "timestamp_micros(id - 1)",
    "local": "cast(timestamp_micros(id * 1000001) as timestamp_ntz)",
    "hours": "make_dt_interval(0, cast(id as int))",
    "span": "cast(make_dt_interval(0, cast(id as int)) as interval hour)",
    "list": "array(id, null, id + 1)",
    "full": "array(id)",
    "dict": "map(cast(id as string), array(named_struct('x', id)))",
    "nested": "named_struct('a', id, 'b', named_struct('at', timestamp_micros(id), 'c', null))",
    "open": "parse_json(concat('{\"a\": ', cast(id as string), '}'))",
}


def test_every_payload_type_comes_through_untouched(spark: SparkSession, tmp_path: Path) -> None:
    sparse = [f"if(id % 3 = 0, null, {code}) as {name}_or_null" for name, code in PAYLOADS.items()]
    dense = [f"{code} as {name}" for name, code in PAYLOADS.items()]
    left = spark.range(20).selectExpr("cast(id as string) as k", "id as t", *dense, *sparse)
    right = spark.range(20).selectExpr("cast(id as string) as k", "id as t")
    schema = StructType(
        [
            StructField(f"{side}_{column.name}", column.dataType, column.nullable)
            for side, frame in (("l", left), ("r", right))
            for column in frame.schema
        ]
    )
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/Lima")
    try:
        result = run(job_for(left, right), [left, right], shards=3, schema=schema)
        assert result.schema == schema
        got = result.select([F.col(f"l_{name}").alias(name) for name in left.columns])
        assert readable(got) == readable(left)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def readable(frame: DataFrame) -> list[str]:
    """Return rows as JSON, including variants."""
    return sorted(frame.select(F.to_json(F.struct("*"))).toPandas().iloc[:, 0])


def test_large_values_are_cut_and_put_together(streams: Streams) -> None:
    big = streams.spark.range(4).selectExpr(
        "repeat(cast(id as string), 3000000) as k", "id as t", "id as v"
    )
    streams.add("left", big)
    streams.advance(shards=1)
    streams.add("right", big)
    query = streams.advance(shards=1)
    assert counters(query)["rebuilt"] == 1
    assert counters(query)["state_bytes"] > 2 * VALUE_BYTES
    assert [row[1:3] for row in streams.results()] == [(i, i) for i in range(4)]


def test_counters_of_a_batch_frame(spark: SparkSession) -> None:
    left, right = make(spark, 0, 30, 3, 8), make(spark, 0, 30, 5, 8)
    observation = Observation("counts")
    result = rows_of(joined(left, right, name=observation, shards=2))
    assert observation.get["results"] == len(result)
    assert observation.get["shards"] == 2


def test_two_joins_meet_in_one_query(spark: SparkSession) -> None:
    left, right = make(spark, 0, 30, 3, 8), make(spark, 0, 30, 5, 8)
    both = joined(left, right).union(joined(right, left))
    assert both.count() == 2 * len(native(left, right))


def test_state_that_is_swapped_or_gone_is_an_error(streams: Streams) -> None:
    for start in (0, 40):
        streams.add("left", make(streams.spark, start, 40, 3, 8))
        streams.add("right", make(streams.spark, start, 40, 5, 8))
        streams.advance(shards=2)
    before = streams.results()
    streams.add("left", make(streams.spark, 80, 40, 3, 8))
    checkpoint, whole = streams.home / "checkpoint", streams.home / "whole"
    shutil.copytree(checkpoint, whole)
    state = checkpoint / "state" / "0"

    def swap() -> None:
        (state / "0").rename(state / "swapped")
        (state / "1").rename(state / "0")
        (state / "swapped").rename(state / "1")

    def garble() -> None:
        for path in (state / "1").glob("[0-9]*.*"):
            content = bytearray(path.read_bytes())
            content[len(content) // 2 :] = b"\xff" * (len(content) - len(content) // 2)
            path.write_bytes(content)

    # Spark itself detects a missing or broken file, before any of our code runs.
    for damage, words in (
        (swap, r"TidegateError: the state of shard \d of 2 .* is missing in batch 2"),
        (lambda: shutil.rmtree(state / "1"), r"LOAD_STATE_STORE(.|\n)*/state/0/1/"),
        (garble, "LOAD_STATE_STORE"),
        # The first name is of Spark 4.3, the second of 4.1.
        (lambda: shutil.rmtree(state.parent), "STATE_DIRECTORY|READ_OPERATOR_METADATA"),
    ):
        damage()
        with pytest.raises(Exception, match=words):
            streams.advance(shards=2)
        assert streams.results() == before
        shutil.rmtree(checkpoint)
        shutil.copytree(whole, checkpoint)
    streams.advance(shards=2)
    assert streams.results() == native(streams.all("left"), streams.all("right"))


def test_gauges_stay_in_a_batch_without_input(streams: Streams) -> None:
    """An aggregation after the join makes Spark run a batch that only moves the watermark."""
    streams.add("left", make(streams.spark, 0, 40, 3, 8))
    streams.add("right", make(streams.spark, 0, 40, 5, 8))
    result = joined(streams.source("left"), streams.source("right"), shards=2)
    timed = result.select(F.timestamp_seconds("l_t").alias("at")).withWatermark("at", "1 second")
    query = (
        timed.groupBy(F.window("at", "10 seconds"))
        .count()
        .writeStream.format("noop")
        .option("checkpointLocation", str(streams.home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    first, idle = query.recentProgress
    assert (first["numInputRows"], idle["numInputRows"]) == (80, 0)
    [filled] = metrics.observed(first).values()
    assert (filled["shards"], filled["held"] > 0, filled["arrived"] > 0) == (2, True, True)
    # Spark has nothing to sum, and reports nulls.
    [raw] = idle["observedMetrics"].values()
    assert {raw["held"], raw["arrived"], raw["shards"]} == {None}
    [counts] = metrics.observed(idle).values()
    assert [counts[name] for name in ("shards", "held", "bytes")] == [
        filled[name] for name in ("shards", "held", "bytes")
    ]
    assert (counts["arrived"], counts["results"], counts["importance"]) == (0, 0, 0)
    # Gauges are unknown for a run of which the batch before was not read.
    [unknown] = metrics.observed({**idle, "runId": "another"}).values()
    assert (unknown["held"], unknown["shards"], unknown["arrived"]) == (None, None, 0)


def test_labels_spread_over_partitions(spark: SparkSession) -> None:
    for number, partitions in ((1, 1), (3, 3), (8, 8), (5, 200), (64, 200), (7, 3), (12, 5)):
        chosen = labels(number, partitions)
        assert chosen[0] == 0
        assert len(set(chosen)) == number
        frame = spark.createDataFrame([(label,) for label in chosen], "label int")
        places = frame.select(F.pmod(F.hash("label"), F.lit(partitions)).alias("place"))
        loads = Counter(row["place"] for row in places.collect())
        assert max(loads.values()) == -(-number // partitions)
        if number >= partitions:
            assert min(loads.values()) == number // partitions


@given(st.integers(-(2**31), 2**31 - 1))
def test_spark_hash_is_a_32_bit_number(value: int) -> None:
    assert -(2**31) <= spark_hash(value) < 2**31


@given(st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_rows_spread_over_shards(shards: int, seed: int) -> None:
    # Hashes that only differ in their low bits, or only in their high bits, spread as well.
    for keys in (np.arange(20_000) + seed, (np.arange(20_000) + seed) << 32):
        loads = np.bincount(shard_of(keys.astype(np.uint64), shards), minlength=shards)
        assert len(loads) == shards
        assert loads.max() < 20_000 / shards * 1.5 + 10


def test_a_live_engine_is_used_only_for_the_state_it_wrote() -> None:
    live = EngineCache()
    engine = DictEngine(1, [SMALL, SMALL], SMALL)
    live.keep(("query", "operator", 0), b"one", engine)
    assert live.take(("query", "operator", 1), b"one") is None
    assert live.take(("query", "operator", 0), b"two") is None
    # Taken or refused, the engine is gone: only a successful batch stores it again.
    assert live.take(("query", "operator", 0), b"one") is None
    live.keep(("query", "operator", 0), b"two", engine)
    assert live.take(("query", "operator", 0), b"two") is engine
    assert live.take(("query", "operator", 0), b"two") is None


def test_errors_say_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    batch = make(spark, 0, 10, 3, 8)
    stream = Streams(spark, tmp_path).source("left")
    with pytest.raises(TidegateError, match="not streaming, batch"):
        joined(stream, batch)
    for shards in (0, -1, 1.5, "two", True):
        with pytest.raises(TidegateError, match="shards must be a whole number"):
            joined(batch, batch, shards=shards)
    months = batch.withColumn("age", F.expr("make_ym_interval(1, 2)"))
    with pytest.raises(TidegateError, match="column 'age' is of type interval year to month"):
        joined(months, batch)
    spark.conf.set(PROVIDER_CONF, "org.example.OtherProvider")
    try:
        with pytest.raises(TidegateError, match="RocksDBStateStoreProvider"):
            joined(stream, stream)
    finally:
        spark.conf.set(PROVIDER_CONF, PROVIDER)
