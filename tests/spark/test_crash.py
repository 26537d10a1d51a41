"""Streaming queries that are killed twice deliver what undisturbed ones deliver.

The first kill comes while the queries process a new file, the second while they recover from it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tidegate as tg
from tidegate.spark import metrics
from tidegate.spark.session import session
from tidegate.streams import cut_by_time, zipf

from . import pooling
from . import test_constrained as links
from . import test_sampled as samples
from . import test_star as facts
from .workloads import (
    NO_CODEGEN,
    bag,
    begin,
    by_join,
    delivered,
    ends_processes,
    environment,
    kill,
    marked,
    processes_of,
    union_of,
    write_files,
)

#: A pool needs more: its shares change some batches after the first reports.
BATCHES = {"windows": 4, "star": 4, "sample": 4, "links": 4, "pool": 7}
#: The last files come one at a time. After each but the last there is a kill.
KILLS = 2
SHARDS = 2
JOINS: dict[str, dict[str, Any]] = {
    "auto": {"memory": 60},
    "apart": {"memory": None},
}
STAR: dict[str, Any] = {
    **facts.SETTINGS,
    "changes": ("op", "t"),
    "memory": 40,
    "importance": "w",
}
SAMPLE: dict[str, Any] = samples.JOIN | {"memory": 40, "method": "uniform"}

#: The files that a batch writes, in order: its plan, a shard's state, results, the sink's log, the
#: commit. A kill soon after one of them leaves a batch half done in a different way.
STEPS = (
    "checkpoint/offsets/[0-9]*",
    "checkpoint/state/*/*/**/*.changelog",
    "out/*.parquet",
    "out/_spark_metadata/[0-9]*",
    "checkpoint/commits/[0-9]*",
)


# ---- the queries --------------------------------------------------------------------------------


def files(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    """Return a stream of the files in a folder, one per batch.

    After a crash Spark's file source may read two files at once, and one source may then be ahead
    of another. This changes what a bounded join holds, but not what an exact one delivers. So the
    streams of a bounded join come from one source: its rows always come in the same order, and how
    they are cut into batches makes no difference.
    """
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def window_joins(spark: SparkSession, folder: Path) -> DataFrame:
    """Return two joins of the same streams in one query, the exact one with two sources."""
    schema = "key long, time long, value double, side string"
    both, other = (files(spark, folder, schema) for _ in range(2))
    return each_joined({name: (both, other if name == "apart" else both) for name in JOINS})


def each_joined(sources: dict[str, tuple[DataFrame, DataFrame]]) -> DataFrame:
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": 40, "shards": SHARDS}
    joins = {}
    for name, rows in sources.items():
        left, right = (
            source.where(source.side == side).drop("side")
            for source, side in zip(rows, ("left", "right"), strict=True)
        )
        joins[name] = tg.join(left, right, **settings, **JOINS[name])
    return union_of(joins)


def star_join(spark: SparkSession, folder: Path) -> DataFrame:
    """Return a bounded join with a changing relation."""
    schema = "kind string, a long, b long, t long, id long, w double, op string"
    rows = files(spark, folder, schema)
    r, s, f = (rows.where(rows.kind == kind) for kind in ("r", "s", "f"))
    streams = [r.select("a", "t", "id", "w"), s.select("b", "t", "id", "w")]
    found: DataFrame = tg.star_join(streams, f.select("a", "b", "t", "op"), **STAR)
    return found


def estimates(spark: SparkSession, folder: Path) -> DataFrame:
    """Return estimates by window and key from a sample."""
    rows = files(spark, folder, "key long, ts timestamp, value double, side string")
    sides = [rows.where(rows.side == side).drop("side") for side in ("left", "right")]
    sample = tg.sample_join(*sides, **SAMPLE, shards=1)
    found: DataFrame = tg.estimate(sample, value="value_right", by="key_left", **samples.WINDOWS)
    return found


def constrained_join(spark: SparkSession, folder: Path) -> DataFrame:
    """Return a join of three streams with known constraints."""
    rows = files(spark, folder, "pid long, ts long, size long, link string")
    streams = {name: rows.where(rows.link == name).drop("link") for name in links.NAMES}
    found: DataFrame = tg.constrained_join(streams, **links.settings())
    return found


def pool(spark: SparkSession, folder: Path) -> DataFrame:
    """Return three joins of one pool, whose budget updates are kept beside the input."""
    rows = files(spark, folder, "key long, time long, value double, side string")
    memory = tg.MemoryPool(memory=pooling.MEMORY, folder=folder.parent / "updates", every=1)
    return pooling.joined(spark, rows, memory)


QUERIES: dict[str, Callable[[SparkSession, Path], DataFrame]] = {
    "windows": window_joins,
    "star": star_join,
    "sample": estimates,
    "links": constrained_join,
    "pool": pool,
}


def main(home: str) -> None:
    """Run all queries, and print a line when they have processed all files.

    When the standard input ends, stop them and print how many engines each batch rebuilt.
    """
    # By default, idle queries look for files every 10 ms, which slows down the others.
    config = {"spark.sql.shuffle.partitions": 2, "spark.sql.streaming.pollingDelay": "500ms"}
    spark = session("crashing", master="local[2]", config=config | NO_CODEGEN)
    # All at once: starting a query is mostly waiting.
    with ThreadPoolExecutor(len(QUERIES)) as starters:
        begins = {name: starters.submit(begun, spark, name, Path(home, name)) for name in QUERIES}
    queries = {name: begin.result() for name, begin in begins.items()}
    print(flush=True)
    sys.stdin.read()
    rebuilt = {}
    for name, query in queries.items():
        query.processAllAvailable()
        query.stop()
        query.awaitTermination()
        counts = [metrics.observed(p) for p in query.recentProgress if p["numInputRows"]]
        rebuilt[name] = [sum(c["rebuilt"] for c in joins.values()) for joins in counts]
    print(json.dumps(rebuilt))


def begun(spark: SparkSession, name: str, home: Path) -> StreamingQuery:
    """Start a query and wait until it has processed all files.

    Spark gives its helper process ten seconds to connect. If the machine is too busy for that, the
    query fails, and a user has to start it again. So does this function.
    """
    while True:
        query = begin(QUERIES[name](spark, home / "in"), home)
        try:
            query.processAllAvailable()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return query


# ---- their inputs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """The tables that the queries read."""

    left: pa.Table
    right: pa.Table
    star: pa.Table
    sample: tuple[pa.Table, pa.Table]
    links: dict[str, pa.Table]

    def cut(self) -> dict[str, list[pa.Table]]:
        """Return the content of each file, by query."""
        tables = {
            "windows": marked({"left": self.left, "right": self.right}, "side"),
            "pool": marked({"left": self.left, "right": self.right}, "side"),
            "sample": marked({"left": self.sample[0], "right": self.sample[1]}, "side"),
            "star": self.star,
            "links": marked(self.links, "link"),
        }
        times = {"windows": "time", "pool": "time", "sample": "ts", "star": "t", "links": "ts"}
        return {
            name: cut_by_time(
                table,
                time=times[name],
                batches=BATCHES[name],
                span=(0, links.LAST // 2) if name == "links" else None,
            )
            for name, table in tables.items()
        }


def star_input() -> pa.Table:
    """Return two streams and the changes of a relation, in one table."""
    r, s = facts.streams()
    f = facts.changes_of(facts.relation())
    f = f.filter(pc.less_equal(f["at"], facts.END)).drop_columns("note")
    tables = {
        "r": r.rename_columns({"a_id": "id"}),
        "s": s.rename_columns({"b_id": "id"}),
        "f": f.rename_columns({"at": "t"}),
    }
    columns = ["kind", "a", "b", "t", "id", "w", "op"]
    return marked(tables, "kind").select(columns)


# ---- the kills ----------------------------------------------------------------------------------


class Run:
    """A process that runs all queries."""

    def __init__(self, home: Path, log: IO[bytes]) -> None:
        self._home = home
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.test_crash", home],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(home / "scratch"),
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )

    def taken(self) -> None:
        """Wait until the queries have processed all files that were there when they began."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"\n"

    def die(self, step: str, before: int, after: float) -> int:
        """Kill the program, its JVM and its Python workers soon after a query took a step.

        A step is seen by the number of its files, which was `before`. Return the number of
        processes killed.
        """
        while sum(1 for _ in self._home.glob(step)) == before:
            assert not self._ends_within(0.01), "the program has ended by itself"
        self._ends_within(after)
        victims = processes_of(self._process.pid)
        kill(victims)
        self._process.communicate()
        return len(victims)

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def rebuilt(self) -> dict[str, list[int]]:
        """Let the program end. Return how many engines each batch of each query rebuilt."""
        output, _ = self._process.communicate()
        assert self._process.returncode == 0
        counts: dict[str, list[int]] = json.loads(output)
        return counts


@dataclass(frozen=True)
class Killed:
    """Queries that came to their end after all kills."""

    home: Path
    input: Input
    rebuilt: dict[str, list[int]]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    home = tmp_path_factory.mktemp("killed")
    # The last row of each stream closes all ticks before it.
    left, right = (
        pa.concat_tables([t, pa.table([[key], [1300], [0.0]], schema=t.schema)])
        for key, t in enumerate(zipf(1200, domain=60, skew=0.9, seed=21), start=-2)
    )
    read = Input(left, right, star_input(), samples.streams(), links.packets())
    pieces = read.cut()

    early = {name: number - KILLS - 1 for name, number in BATCHES.items()}
    for name, first in early.items():
        write_files(pieces[name][:first], home / name / "in")

    def come(number: int) -> None:
        for name, first in early.items():
            at = first + number
            write_files(pieces[name][at : at + 1], home / name / "in", first=at)

    rng = np.random.default_rng(2026)
    with open(home / "log", "wb") as log:
        for number in range(KILLS):
            run = Run(home, log)
            if number == 0:
                run.taken()
            step = f"{rng.choice(list(QUERIES))}/{rng.choice(STEPS)}"
            before = len(list(home.glob(step)))
            come(number)
            # At least the program and its JVM; also Python workers, if it has any.
            assert run.die(step, before, float(rng.random() * 0.3)) >= 2
        come(KILLS)
        return Killed(home, read, Run(home, log).rebuilt())


@ends_processes
def test_killed_joins_lose_nothing_and_repeat_nothing(spark: SparkSession, killed: Killed) -> None:
    rows = spark.read.parquet(str(killed.home / "windows" / "in"))
    expected = by_join(each_joined(dict.fromkeys(JOINS, (rows, rows))).toArrow())
    found = by_join(delivered(spark, killed.home / "windows"))
    for name in JOINS:
        assert expected[name].total() > 1000
        assert found[name] == expected[name]
    assert found["auto"] < found["apart"]
    read = killed.input
    exact = tg.join(read.left, read.right, on="key", time="time", within=40)
    assert found["apart"] == bag(exact.table)


@ends_processes
def test_killed_joins_of_a_pool_replay_the_same_budget_updates(
    spark: SparkSession, killed: Killed
) -> None:
    """The results are those of engines that apply the updates at the offsets in the checkpoint."""
    home = killed.home / "pool"
    found = pooling.by_join(delivered(spark, home))
    # Shares also changed after the first batch.
    assert any(batch.updates for batch in pooling.batches(home)[1:])
    expected = pooling.replayed(home)
    for name in pooling.NAMES:
        # How many there are depends on how soon budget updates arrive.
        assert expected[name].total() > 50
        assert found[name] == expected[name]


@ends_processes
def test_a_killed_star_join_restores_its_relation(spark: SparkSession, killed: Killed) -> None:
    table = killed.input.star
    r, s, f = (table.filter(pc.equal(table["kind"], kind)) for kind in ("r", "s", "f"))
    calm = tg.star_join(
        [r.select(["a", "t", "id", "w"]), s.select(["b", "t", "id", "w"])],
        f.select(["a", "b", "t", "op"]),
        **STAR,
    )
    assert calm.results > 300
    assert bag(delivered(spark, killed.home / "star")) == bag(calm.table)


@ends_processes
@pytest.mark.proves(estimate="classic stream")
def test_estimates_of_a_killed_sample_are_those_of_an_undisturbed_one(
    spark: SparkSession, killed: Killed
) -> None:
    found = samples.rounded(delivered(spark, killed.home / "sample"))
    whole = tg.sample_join(*killed.input.sample, **SAMPLE)
    expected = samples.rounded(
        tg.estimate(whole, value="value_right", by="key_left", **samples.WINDOWS).table
    )
    # Windows that the watermark has not passed are still open.
    last = max(row["window"] for row in found)
    assert len({row["window"] for row in found}) >= 4
    assert len(found) > 50
    assert found == [row for row in expected if row["window"] <= last]


@ends_processes
def test_a_killed_constrained_join_gives_what_sparks_own_gives(
    spark: SparkSession, killed: Killed
) -> None:
    expected = bag(links.native(spark, killed.input.links).toArrow())
    assert expected.total() > 50
    assert bag(delivered(spark, killed.home / "links")) == expected


@ends_processes
def test_a_new_process_rebuilds_every_engine_from_the_state(killed: Killed) -> None:
    """The first batch rebuilds all engines; later ones only those that had to wait too long."""
    engines = {"windows": 2 * SHARDS, "links": SHARDS, "star": 1, "sample": 1, "pool": 3}
    for name, number in engines.items():
        assert killed.rebuilt[name][0] == number


if __name__ == "__main__":
    main(*sys.argv[1:])
