"""Star joins: rows per second by the size of the relation and of the memory, alone and on Spark."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

import tidegate as tg
from benchmarks import queries
from benchmarks.report import Table
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.spec import star_join
from tidegate.spark.operator import PROVIDER

#: The smallest number of keys of a stream, so that small relations have rows to filter.
FEWEST_KEYS = 10_000
#: The window and the memory on Spark: both windows together have twice as many rows.
WITHIN, MEMORY = "10 seconds", 10_000


def relation_of(facts: int, keys: int, seed: int = 0) -> pa.Table:
    """Generate links that pair keys at random, each key in at most one link."""
    rng = np.random.default_rng(seed)
    return pa.table({key: rng.permutation(keys)[:facts] for key in ("a", "b")})


def alone(rows: int, facts: int, memory: int) -> tuple[float, float, float]:
    """Return rows and results per second of processor time, and the seconds to index the relation.

    Keys are drawn from as many values as there are links, and the window has twice as many rows as
    fit into memory.
    """
    rng = np.random.default_rng(0)
    # A new relation, because a known one would not be indexed again.
    relation = relation_of(facts, facts, seed=memory)
    streams = {
        name: pa.table({key: rng.integers(0, facts, rows), "t": np.arange(rows)})
        for name, key in (("r", "a"), ("s", "b"))
    }
    spec = star_join(
        {name: table.schema for name, table in streams.items()},
        relation.schema,
        on=["a", "b"],
        time="t",
        within=memory,
        memory=memory,
    )
    start = time.process_time()
    job = StarJob(spec, LocalRelation(*in_order(relation)))
    job.check()
    indexed = time.process_time() - start
    inputs = [
        [job.prepare(s, table.combine_chunks().to_batches()[0])[0]]
        for s, table in enumerate(streams.values())
    ]
    engine = job.engine_at(0, 1)
    start = time.process_time()
    results = sum(batch.num_rows for batch in engine.feed(inputs))
    seconds = time.process_time() - start
    return 2 * rows / seconds, results / seconds, indexed


def table_alone(rows: int, facts: tuple[int, ...], memories: tuple[int, ...]) -> Table:
    """Measure the engine without Spark."""
    alone(min(rows, 2_000), 250, 1_000)  # loads the compiled code
    cells = []
    for size in facts:
        for memory in memories:
            speed, results, indexed = alone(rows, size, memory)
            speeds = (f"{speed / 1e6:.2f} M", f"{results / 1e6:.2f} M", f"{indexed:.2f} s")
            cells.append((f"{size:,}", f"{memory:,}", *speeds))
    return Table(
        f"The engine alone, {2 * rows:,} rows, results assembled, policy Auto, in processor time",
        ("facts", "memory", "rows a second", "results a second", "indexing"),
        tuple(cells),
        "With 250 facts and much memory, a row has many results, which take most of the time.",
    )


def on_spark(rows: int, batches: int, facts: tuple[int, ...]) -> Table:
    """Measure a streaming query by the size of its relation, which is a Parquet file."""
    cells = []
    with (
        queries.spark() as spark,
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name,
    ):
        # The first query of a process also starts workers and loads compiled code.
        for turn, size in enumerate((facts[0], *facts)):
            folder = Path(name) / str(turn)
            keys = max(size, FEWEST_KEYS)
            queries.write(folder, rows, batches, keys)
            table = relation_of(size, keys)
            spark.createDataFrame(table).write.parquet(str(folder / "facts"))
            frame = spark.read.parquet(str(folder / "facts"))
            taken: list[float] = []

            def join(
                r: DataFrame,
                s: DataFrame,
                relation: DataFrame = frame,
                taken: list[float] = taken,
            ) -> DataFrame:
                start = time.perf_counter()
                joined = tg.star_join(
                    [r, s],
                    relation,
                    on=[{"key": "a"}, {"key": "b"}],
                    time="time",
                    within=WITHIN,
                    memory=MEMORY,
                )
                taken.append(time.perf_counter() - start)
                return joined

            ran = queries.run(spark, queries.Way(str(size), PROVIDER, join), folder)
            later = statistics.median(ran.seconds[1:])
            last = ran.counters[-1]
            cells.append(
                (
                    f"{size:,}",
                    f"{table.nbytes / 1e6:.1f} MB",
                    f"{taken[0]:.1f}",
                    f"{ran.seconds[0]:.1f}",
                    f"{later:.1f}",
                    f"{ran.rows[-1] / later:,.0f}",
                    f"{last['filtered'] / ran.rows[-1]:.0%}",
                    f"{sum(ran.results):,}",
                    f"{statistics.median(ran.changelogs[1:]) / 1e6:.1f} MB",
                )
            )
    return Table(
        f"On Spark, {2 * rows // batches:,} rows a batch, window {WITHIN}, memory {MEMORY:,}, "
        "seconds",
        (
            "facts",
            "shipped once",
            "the call",
            "first batch",
            "later batches",
            "rows a second",
            "filtered",
            "results",
            "state a batch",
        ),
        tuple(cells[1:]),
        "The call reads, checks and sends the relation; each worker indexes it in the first batch. "
        "The cost of later batches does not depend on its size.",
    )
