"""The demo's streams, the streaming query that joins them, and Spark's own join for comparison."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.cli.interrupts import Interrupts
from tidegate.cli.sweep import window_rows
from tidegate.streams import auctions, cut_by_time, write_parquet_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tidegate.cli.screen import Step

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
LIFE = timedelta(hours=2)
BIDS = 8
SKEW = 1.0
SHARDS = 2

#: The settings of both joins. No bid comes before its auction opens, so bids need not be held.
JOIN: dict[str, Any] = {"on": "auction_id", "time": "ts", "within": ("2 hours", "1 us")}

#: The same join in Spark's SQL.
SQL = """\
SELECT a.auction_id AS auction_id_left, a.ts AS ts_left, a.seller, a.category, a.reserve,
       b.auction_id AS auction_id_right, b.ts AS ts_right, b.bidder, b.price
FROM auctions a JOIN bids b
  ON a.auction_id = b.auction_id
 AND b.ts > a.ts - INTERVAL 1 MICROSECOND
 AND b.ts < a.ts + INTERVAL 2 HOURS"""

_MICROSECOND = timedelta(microseconds=1)
_LOOK_EVERY = 0.05


@dataclass(frozen=True)
class Streams:
    """A day of auctions, the bids on them, and how they are cut into files."""

    auctions: pa.Table
    bids: pa.Table
    batches: int

    @property
    def span(self) -> tuple[datetime, datetime]:
        """The first and the last instant of the day."""
        return START, START + DAY - _MICROSECOND

    @property
    def window(self) -> int:
        """The number of rows that an exact join has to hold."""
        times = (_microseconds(self.auctions["ts"]), _microseconds(self.bids["ts"]))
        return window_rows(times, (LIFE // _MICROSECOND, 1))

    def hours(self) -> list[float]:
        """Return where each batch starts, and where the last one ends, in hours of the day."""
        whole = DAY / timedelta(hours=1)
        return [whole * index / self.batches for index in range(self.batches + 1)]

    def by_batch(self, results: pa.Table) -> NDArray[np.int64]:
        """Count the results that are due in each batch: those whose bid is in its file."""
        width = DAY // _MICROSECOND
        edges = [-(-width * index // self.batches) for index in range(self.batches + 1)]
        since = _microseconds(results["ts_right"]) - int(START.timestamp() * 1_000_000)
        return np.histogram(since, bins=edges)[0].astype(np.int64)


@dataclass(frozen=True)
class Batch:
    """The measurements of one batch, as the query reported them."""

    rows: int
    held: int
    results: int
    seconds: float


def make(count: int, batches: int, seed: int) -> Streams:
    """Generate auctions that open evenly over a day, some much more popular than others.

    Bids of the next day are left out. Without new auctions, memory would empty in the last two
    hours, and every policy would look too good.
    """
    left, right = auctions(
        count, life=LIFE, every=DAY / count, bids=BIDS, skew=SKEW, start=START, seed=seed
    )
    today = pc.less(right["ts"], pa.scalar(START + DAY, right["ts"].type))
    return Streams(left, right.filter(today), batches)


@contextmanager
def spark() -> Iterator[tuple[SparkSession, Interrupts]]:
    """Yield an embedded Spark session and the object that delays Ctrl-C.

    Stop Spark at the end if it was started here.
    """
    from pyspark.sql import SparkSession

    from tidegate.spark.session import session

    running = SparkSession.getActiveSession()
    with Interrupts() as interrupts:
        started = session("tidegate demo", master=f"local[{SHARDS}]")
        interrupts.hold()
        try:
            yield started, interrupts
        finally:
            if running is None:
                started.stop()


def bounded(
    spark: SparkSession,
    streams: Streams,
    work: Path,
    *,
    memory: int,
    policy: str,
    step: Step,
    interrupts: Interrupts,
) -> tuple[pa.Table, list[Batch]]:
    """Run the bounded join as a streaming query while the files arrive.

    Returns
    -------
    tuple
        The rows that the query wrote to its sink, and the measurements of every batch.
    """
    import tidegate as tg
    from tidegate.spark.compat import from_arrow

    arrivals = _Arrivals(streams, work)
    arrivals.next()
    left, right = (
        spark.readStream.schema(from_arrow(table.schema))
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder))
        for table, folder in arrivals.sides
    )
    joined = tg.join(left, right, memory=memory, policy=policy, shards=SHARDS, **JOIN)
    query = (
        joined.writeStream.format("parquet")
        .option("path", str(work / "results"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .start()
    )
    try:
        offsets = work / "checkpoint" / "offsets"
        batches = []
        for batch in _watch(query, arrivals, offsets):
            interrupts.check()
            if batch is not None:
                batches.append(batch)
                step.done(_line(batches, memory))
    except KeyboardInterrupt:
        # Do not log the interrupted batch as an error.
        spark.sparkContext.setLogLevel("OFF")
        raise
    finally:
        query.stop()
    return _in_order(spark.read.parquet(str(work / "results"))), batches


def exact(spark: SparkSession, work: Path) -> pa.Table:
    """Return Spark's own join of the files that the query read."""
    for name in ("auctions", "bids"):
        spark.read.parquet(str(work / name)).createOrReplaceTempView(name)
    try:
        return _in_order(spark.sql(SQL))
    finally:
        for name in ("auctions", "bids"):
            spark.catalog.dropTempView(name)


class _Arrivals:
    """The files of both streams that have not arrived yet, in step."""

    def __init__(self, streams: Streams, work: Path) -> None:
        self.sides = ((streams.auctions, work / "auctions"), (streams.bids, work / "bids"))
        self._pieces = [
            cut_by_time(table, time="ts", batches=streams.batches, span=streams.span)
            for table, _ in self.sides
        ]
        self.total = streams.batches
        self.written = 0

    def next(self) -> None:
        """Write the next file of each stream."""
        for pieces, (_, folder) in zip(self._pieces, self.sides, strict=True):
            piece, prefix = pieces[self.written], f"batch-{self.written:05d}"
            write_parquet_batches(piece, folder, time="ts", batches=1, prefix=prefix)
        self.written += 1


def _watch(query: StreamingQuery, arrivals: _Arrivals, offsets: Path) -> Iterator[Batch | None]:
    """Feed the query; yield each batch that it reports, or None after each look without one.

    The next files arrive as soon as the query's log names the files of its current batch. The
    query looks for new files only after that batch. So it never finds one stream's file without
    the other's, and the result does not depend on timing.
    """
    seen = 0
    while seen < arrivals.total:
        if arrivals.written < arrivals.total and (offsets / str(arrivals.written - 1)).exists():
            arrivals.next()
        for batch in _reported(query, seen):
            seen += 1
            yield batch
        if not query.isActive:
            query.awaitTermination()  # raises the query's error
        yield None
        time.sleep(_LOOK_EVERY)


def _line(batches: list[Batch], memory: int) -> str:
    """Return the progress line for the latest batch."""
    last, most = batches[-1], f"{memory:,}"
    return (
        f"{last.rows:>7,} rows, held {last.held:>{len(most)},}/{most}, "
        f"{sum(batch.results for batch in batches):>7,} results"
    )


def _reported(query: StreamingQuery, begin: int) -> Iterator[Batch]:
    """Yield the batches from number ``begin`` on that the query has reported, in order."""
    from tidegate.spark import metrics

    for progress in query.recentProgress:
        counters = list(metrics.observed(progress).values())
        if counters and progress["batchId"] == begin:
            begin += 1
            yield Batch(
                rows=int(progress["numInputRows"]),
                held=int(counters[0]["held"]),
                results=int(counters[0]["results"]),
                seconds=int(progress["batchDuration"]) / 1000,
            )


def _in_order(rows: DataFrame) -> pa.Table:
    table: pa.Table = rows.toArrow()
    return table.sort_by([(name, "ascending") for name in ("ts_right", "ts_left", "bidder")])


def _microseconds(column: pa.ChunkedArray) -> NDArray[np.int64]:
    values: NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return values
