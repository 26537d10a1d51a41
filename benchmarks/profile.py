"""Where the time of a steady batch goes: by step in Python, and by process on Spark."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import tidegate as tg
from benchmarks import queries, wide
from benchmarks.measure import Step
from benchmarks.report import Section, Table
from tidegate.engine.payload import Payload
from tidegate.joins.window import engine as window_engine
from tidegate.joins.window import loop
from tidegate.joins.window.arrays import Tables
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join
from tidegate.spark import operator, packing, result_files
from tidegate.spark.metrics import observed
from tidegate.spark.operator import PROVIDER, PROVIDER_CONF

SHARDS = 2
#: Spark hands rows to Python in record batches of this size.
_ARROW_ROWS = 10_000
_SIDES = ("left", "right")


@dataclass(frozen=True)
class Workload:
    """A join of two streams, `rows` a side in each of `batches` batches."""

    rows: int
    batches: int
    within: str
    wide: bool = False
    #: The memory of the way with `Auto`, in rows.
    memory: int = 10_000

    def table(self, side: int, batch: int) -> pa.Table:
        """Return the rows of one side in one batch."""
        if self.wide:
            return wide.table(wide.Case(self.rows * self.batches, self.batches), batch)
        return _narrow(self.rows * self.batches)[side].slice(batch * self.rows, self.rows)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the join."""
        return {"on": "key", "time": "time", "within": self.within}


@dataclass(frozen=True)
class Scale:
    """The workloads by name."""

    workloads: dict[str, Workload]


FULL = Scale(
    {
        "A, 100,000 narrow rows a side": Workload(100_000, 3, "20 seconds"),
        "B, 25,000 wide rows a side": Workload(25_000, 3, "1 hour", wide=True, memory=37_500),
        "C, 1,000 narrow rows a side": Workload(1_000, 16, "20 seconds"),
    }
)
QUICK = Scale(
    {
        "A, 5,000 narrow rows a side": Workload(5_000, 3, "20 seconds"),
        "B, 2,000 wide rows a side": Workload(2_000, 3, "1 hour", wide=True, memory=2_000),
    }
)


@functools.cache
def _narrow(rows: int) -> tuple[pa.Table, pa.Table]:
    return queries.events(rows, 205_000)


# ---- steps in Python ----------------------------------------------------------------------------


class Stopwatch:
    """Processor time by step; time in an inner step does not count for the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a block."""
        start = time.process_time()
        self._inner.append(0.0)
        try:
            yield
        finally:
            took = time.process_time() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inner.pop()
            if self._inner:
                self._inner[-1] += took

    def each(self, name: str, values: Iterator[Any]) -> Iterator[Any]:
        """Measure an iterator."""
        while True:
            with self.step(name):
                try:
                    value = next(values)
                except StopIteration:
                    return
            yield value

    @contextmanager
    def functions(self, steps: dict[str, list[tuple[Any, str]]]) -> Iterator[None]:
        """Measure functions, given as attributes, while the block runs."""
        before = []
        for name, places in steps.items():
            for owner, attribute in places:
                function = getattr(owner, attribute)
                before.append((owner, attribute, function))
                setattr(owner, attribute, self._timed(name, function))
        try:
            yield
        finally:
            for owner, attribute, function in before:
                setattr(owner, attribute, function)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **settings: Any) -> Any:
            with self.step(name):
                return function(*arguments, **settings)

        return timed


#: The steps of a batch in their order. Those without functions are measured around iterators.
STEPS: dict[str, list[tuple[Any, str]]] = {
    "pack: check and hash rows": [(WindowJob, "prepare")],
    "pack: divide by shard": [],
    "pack: encode": [(packing, "encode")],
    "operator: decode rows": [],
    "engine: sort": [(window_engine, "tick_order")],
    "engine: key coding": [(Tables, "intern")],
    "engine: loop": [(loop, "run")],
    "engine: payload": [(Payload, "add"), (Payload, "trim"), (Payload, "join_chunks")],
    "engine: gather results": [(WindowEngine, "_paired")],
    "engine: the rest": [],
    "operator: encode results": [],
    "operator: changes of the state": [],
    "unpack: open results": [],
}


def steps(work: Workload, **settings: Any) -> dict[str, float]:
    """Return the processor seconds of each step of a steady batch, without Spark."""
    schema = work.table(0, 0).schema
    job = WindowJob(window_join(schema, schema, **work.settings, **settings))
    labels = tuple(range(SHARDS))
    packs = [packing.Pack(job, side, schema, labels) for side in range(2)]
    engines = [job.engine_at(label, SHARDS) for label in labels]
    watch = Stopwatch()
    for batch in range(work.batches):
        tables = [work.table(side, batch) for side in range(2)]
        if batch == 1:
            watch = Stopwatch()  # the first batch is not steady
        with watch.functions(STEPS):
            _replay(watch, packs, engines, tables, job.result_schema)
    return {name: watch.seconds.get(name, 0.0) / (work.batches - 1) for name in STEPS}


def _replay(
    watch: Stopwatch, packs: list[Any], engines: list[Any], tables: list[pa.Table], schema: Any
) -> None:
    inputs = [operator._ShardInput(2) for _ in engines]
    for pack, table in zip(packs, tables, strict=True):
        given = iter(table.to_batches(max_chunksize=_ARROW_ROWS))
        for packed in watch.each("pack: divide by shard", pack(given)):
            with watch.step("operator: decode rows"):
                for row in packed.to_pylist():
                    inputs[row["shard"]].add(row["stream"], row["data"], row["note"])
    for engine, own in zip(engines, inputs, strict=True):
        results = watch.each("engine: the rest", own.feed(engine))
        binaries = result_files.pack(results, schema, None)
        for data in watch.each("operator: encode results", binaries):
            with watch.step("unpack: open results"):
                result_files.open_piece(pa.py_buffer(data))
        with watch.step("operator: changes of the state"):
            engine.changes()


# ---- on Spark -----------------------------------------------------------------------------------


class _Nothing(StatefulProcessor):
    """A stateful operator that reads its input and returns one row."""

    def init(self, handle: Any) -> None:
        """Declare no state."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Read the rows of a group."""
        import pandas as pd

        yield pd.DataFrame({"rows": [sum(len(frame) for frame in rows)]})


def empty_plan(left: DataFrame, right: DataFrame) -> DataFrame:
    """Return a plan of the shape of a join that does nothing: what Spark needs for any."""

    def one_row_a_shard(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.record_batch({"shard": range(SHARDS), "rows": [rows] * SHARDS})

    def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 0)

    packed = [f.mapInArrow(one_row_a_shard, "shard long, rows long") for f in (left, right)]
    groups = packed[0].union(packed[1]).groupBy("shard")
    done = groups.transformWithStateInPandas(_Nothing(), "rows long", "append", "none")
    return done.mapInArrow(nothing, "rows long")


@dataclass(frozen=True)
class Ran:
    """The figures of a steady batch: its median, and processor seconds by kind of process."""

    median: float
    slow: float  # the 95th percentile
    planning: float
    java: float
    python: float
    rebuilt: float  # the share of batches that rebuild an engine


def on_spark(
    spark: SparkSession, work: Workload, way: Callable[..., DataFrame], provider: str = PROVIDER
) -> Ran:
    """Run a query over all batches of a workload."""
    spark.conf.set(PROVIDER_CONF, provider)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        for side, text in enumerate(_SIDES):
            (folder / text).mkdir()
            for batch in range(work.batches):
                pq.write_table(work.table(side, batch), folder / text / f"{batch:05d}.parquet")
        frames = [wide.read(spark, folder / text, work.table(0, 0).schema) for text in _SIDES]
        query = (
            way(*frames)
            .writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        taken: dict[int, tuple[str, float]] = {}
        before: dict[int, tuple[str, float]] = {}
        while query.isActive:
            _note_processor_time(taken)
            if not before and query.recentProgress:
                before = dict(taken)  # the first batch is not steady
            time.sleep(0.1)
        query.awaitTermination()
        batches = [p for p in query.recentProgress if p["numInputRows"]][1:]
    seconds = sorted(p["durationMs"]["triggerExecution"] / 1000 for p in batches)
    plans = sorted(p["durationMs"].get("queryPlanning", 0) / 1000 for p in batches)
    counts = [c for p in batches for c in observed(p).values()]
    return Ran(
        seconds[len(seconds) // 2],
        seconds[int(0.95 * len(seconds))],
        plans[len(plans) // 2],
        (_total(taken, "java") - _total(before, "java")) / len(batches),
        (_total(taken, "python") - _total(before, "python")) / len(batches),
        sum(c["rebuilt"] > 0 for c in counts) / max(len(counts), 1),
    )


def _note_processor_time(taken: dict[int, tuple[str, float]]) -> None:
    """Note the kind and the processor time of each process; those that have ended keep theirs."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            kind = "java" if process.name() == "java" else "python"
            taken[process.pid] = kind, times.user + times.system


def _total(taken: dict[int, tuple[str, float]], kind: str) -> float:
    return sum(seconds for each, seconds in taken.values() if each == kind)


def ways(work: Workload) -> dict[str, Callable[..., DataFrame]]:
    """Return the plans to compare; the last is Spark's own join."""
    exact = functools.partial(tg.join, **work.settings, shards=SHARDS)
    return {
        "an empty plan": empty_plan,
        "tidegate, exact": exact,
        "tidegate, auto": functools.partial(exact, memory=work.memory, policy="auto"),
        "Spark's own": queries.native("", queries.HDFS_BACKED, work.within).join,
    }


def run(scale: Scale, step: Step) -> Section:
    """Measure the steps without Spark, then whole batches on Spark."""
    found: dict[str, dict[str, float]] = {}
    for name, work in scale.workloads.items():
        step(f"steps of {name}")
        found[name] = steps(work)
    rows = []
    with queries.spark() as spark:
        for name, work in scale.workloads.items():
            for way, plan in ways(work).items():
                step(f"{name}: {way}")
                own = way == "Spark's own"
                ran = on_spark(spark, work, plan, queries.HDFS_BACKED if own else PROVIDER)
                cells = (ran.median, ran.slow, ran.planning, ran.java, ran.python)
                rebuilt = f"{ran.rebuilt:.0%}" if way.startswith("tidegate") else "-"
                rows.append((name, way, *map("{:.2f}".format, cells), rebuilt))
    return Section(
        title="where the time of a steady batch goes",
        workload=(
            "Streaming joins in two shards, on two cores: narrow rows of key, time and value; wide "
            "rows of ten columns, five of them texts of 36 bytes, with four results a row; and "
            "small batches."
        ),
        figures=(),
        tables=(
            Table(
                "Processor milliseconds of Python, by step",
                ("step", *found),
                tuple(
                    (name, *(f"{1000 * each[name]:.1f}" for each in found.values()))
                    for name in STEPS
                ),
                "Both shards together, exact join, without Spark and without the way through Java.",
            ),
            Table(
                "Seconds of a steady batch on Spark",
                (
                    "rows",
                    "plan",
                    "median",
                    "95th percentile",
                    "planning",
                    "processor, Java",
                    "processor, Python",
                    "batches that rebuild an engine",
                ),
                tuple(rows),
                "An empty plan reads the same rows through the same stages, and joins nothing.",
            ),
        ),
    )
