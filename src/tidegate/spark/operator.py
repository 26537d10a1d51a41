"""Run an engine on Spark: the one operator that carries every kind of join.

    left stream -----> pack (mapInArrow) --+
    right stream ----> pack (mapInArrow) --+--> union, shuffle by shard
    budget updates --> address to shards --+           |
                                                       v
                                      stateful operator (one group per shard):
                                      decode rows, feed the engine, save its state
                                                       |
                                                       v
                            observe counters --> unpack (mapInArrow) --> results

1. Pack (`packing.Pack`) hashes and prepares the rows of one input and groups them by shard. A few
   large binary rows cross the shuffle instead of many small ones.
2. The stateful operator (`transformWithStateInPandas`, here `_StreamingShard`) feeds one engine per
   shard, and writes to the state store what the batch changed (`state`). On batch DataFrames,
   `applyInArrow` does the same without state.
3. Unpack (`result_files.unpack`) turns packed results back into rows. `metrics` sums the counters
   that travel with them.

The operator only knows the base classes of `engine.base`: it names no policy and no window.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from tidegate.engine.base import Engine, Job
from tidegate.errors import TidegateError
from tidegate.pool.ledger import check_update
from tidegate.settings.values import quoted
from tidegate.spark import (
    compat,
    engine_processes,
    metrics,
    packing,
    result_files,
    shipping,
    state,
)
from tidegate.spark import shards as sharding
from tidegate.spark.archive import write
from tidegate.spark.heap import Heap, heap_of

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

    from tidegate.engine.archive import Archive
    from tidegate.spark.pool_controller import PoolMembership

#: After a shard's batch of more bytes than this, free memory goes back to the operating system.
LARGE_BATCH = 8 << 20

_warned: list[str] = []

PROVIDER_CONF = "spark.sql.streaming.stateStore.providerClass"
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def run(
    job: Job,
    inputs: Sequence[DataFrame],
    *,
    shards: int | None = None,
    most: int | None = None,
    name: str | Observation = "tidegate",
    schema: StructType | None = None,
    share: PoolMembership | None = None,
    archive: Archive | None = None,
) -> DataFrame:
    """Run a job over its inputs, which must be all streaming or all batch.

    Parameters
    ----------
    job
        What to run: prepares rows and makes engines.
    inputs
        One DataFrame per stream of the job.
    shards
        The number of shards; None for one per shuffle partition.
    most
        The largest number of shards, because each needs a share of the memory.
    name
        The name under which counters are observed (see `metrics`).
    schema
        The Spark schema of the result, if it says more than Arrow's (column metadata). By
        default it follows from the job's `result_schema`.
    share
        The join's membership of a pool. Budget updates of the pool are then one more input.
    archive
        Where to write the rows that the engines shed.
    """
    result_schema = schema or compat.from_arrow(job.result_schema)
    streaming = {frame.isStreaming for frame in inputs}
    if len(streaming) != 1:
        kinds = ", ".join("streaming" if frame.isStreaming else "batch" for frame in inputs)
        raise TidegateError(
            f"the inputs must be all streaming or all batch DataFrames, not {kinds}: "
            f"read every one with readStream, or every one with read"
        )
    shipping.reach_workers(inputs[0].sparkSession, streaming=streaming == {True})
    conf = inputs[0].sparkSession.conf
    partitions = int(str(conf.get("spark.sql.shuffle.partitions")))
    number = sharding.count(shards, partitions, most)
    labels = tuple(sharding.labels(number, partitions))
    updates: list[DataFrame] = []
    if share is not None:
        job, control = share.take(job, inputs[0], number)
        updates = [control.mapInArrow(packing.BudgetUpdates(labels).__call__, packing.PACKED)]
    kept = archive is not None
    packed = [_pack(job, stream, frame, labels, kept) for stream, frame in enumerate(inputs)]
    groups = reduce(lambda one, other: one.union(other), packed + updates).groupBy("shard")
    shard = _Shard(job, len(inputs), labels, archive, heap_of(conf.get))
    if streaming == {True}:
        compat.check_stateful(groups)
        _need_rocksdb(str(conf.get(PROVIDER_CONF)))
        settings = {"shards": number, "shuffle partitions": partitions}
        settings |= {"archive": True} if archive is not None else {}
        results = groups.transformWithStateInPandas(
            _StreamingShard(shard, settings_of(job, result_schema) | settings),
            packing.RESULTS,
            "append",
            "none",
        )
    else:
        results = compat.apply_in_arrow(groups, _batch_shard(shard), packing.RESULTS)
    observed = metrics.observe(results, name, job.kind)
    return observed.mapInArrow(result_files.unpack, result_schema)


def _pack(
    job: Job, stream: int, frame: DataFrame, labels: tuple[int, ...], keep_dropped: bool
) -> DataFrame:
    """Prepare one input and group its rows by shard: the stage before the shuffle."""
    pack = packing.Pack(job, stream, packing.arrow_schema(frame.schema), labels, keep_dropped)
    # Rename by position: Spark would take a dot in a name for access to a field.
    renamed = frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))
    return renamed.mapInArrow(pack.__call__, packing.PACKED)


def settings_of(job: Job, result_schema: StructType) -> dict[str, Any]:
    """Return the settings that a checkpoint depends on: the job's, and the result's columns.

    The columns are included so that a restart with other names cannot give a sink two schemas.
    """
    columns = [f"{field.name}: {field.dataType.simpleString()}" for field in result_schema]
    return {**job.fingerprint(), "result columns": columns}


def _need_rocksdb(provider: str) -> None:
    if "RocksDB" not in provider:
        raise TidegateError(
            f"a streaming join keeps its state in RocksDB, but this session uses {provider}. "
            f'Before the join: spark.conf.set("{PROVIDER_CONF}", "{PROVIDER}")'
        )


def _parse_update(text: str) -> dict[str, Any]:
    """Parse a budget update as it stands in the pool's folder. Its amount is checked later."""
    try:
        update: dict[str, Any] = json.loads(text)
        check_update(update, memory=2**63)
        update.pop("version", None)
    except (ValueError, RecursionError) as error:
        raise TidegateError(
            f"the folder of a pool has a file that is no budget update, {quoted(text)}: {error}. "
            "Give the pool a folder of its own, without the files of others, and start the query "
            "again"
        ) from None
    return update


class _ShardInput:
    """The input of one shard in one batch: its rows by stream, and the notes of pack tasks."""

    def __init__(self, streams: int) -> None:
        self._notes = [packing.Note() for _ in range(streams)]
        self._streams: list[list[pa.RecordBatch]] = [[] for _ in range(streams)]
        self._updates: list[dict[str, Any]] = []
        #: Lines for the archive of rows that pack tasks dropped.
        self.dropped: list[pa.RecordBatch] = []
        self.bytes = self.largest = 0

    def add(self, stream: int, data: Any, note: str) -> None:
        if stream == packing.NO_STREAM:
            self._updates.append(_parse_update(note))
            return
        if stream == packing.DROPPED:
            self.dropped.extend(packing.decode(data))
            return
        if len(data):
            self.bytes += len(data)
            self.largest = max(self.largest, len(data))
            self._streams[stream].extend(packing.decode(data))
        self._notes[stream].load(note)

    def feed(self, engine: Engine) -> Iterator[pa.RecordBatch]:
        if self._updates:
            engine.apply_budget(**max(self._updates, key=lambda update: update["number"]))
        return engine.feed(self._streams, [note.clock for note in self._notes])

    def counters(self, engine: Engine, carrier: dict[str, int]) -> dict[str, int | float]:
        """Return the row of counters of this shard and batch."""
        row: dict[str, int | float] = {}
        dropped: list[Mapping[str, int | float]] = [note.dropped for note in self._notes]
        for counts in (engine.take_counters(), *dropped, carrier):
            for counter, value in counts.items():
                row[counter] = row.get(counter, 0) + value
        return row


@dataclass(frozen=True)
class _Shard:
    """The settings that every shard gets. They travel to the workers with the plan."""

    job: Job
    streams: int
    labels: tuple[int, ...]
    archive: Archive | None = None
    heap: Heap | None = None

    def archive_shed(self, engine: Engine, dropped: list[pa.RecordBatch], label: int) -> None:
        """Archive what left early in this batch, and the rows that pack tasks dropped."""
        shed = engine.take_shed() if self.archive is not None else None
        if self.archive is not None and shed is not None:
            lines = [shed, *(pa.Table.from_batches([batch]) for batch in dropped)]
            write(self.archive, pa.concat_tables(lines), label)

    def changeable(self, written_with: Mapping[str, Any]) -> Set[str]:
        """Return the names of settings that may change at a restart; not those of an archive."""
        fixed = {} if self.archive is None else json.loads(self.archive.settings)
        return self.job.changeable(written_with) - set(fixed)

    def engine(self, label: int) -> Engine:
        number = self.labels.index(label)
        keep_shed = self.archive is not None
        return self.job.engine_at(number, len(self.labels), keep_shed=keep_shed)

    def packed(self, results: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        context = TaskContext.get()
        task = context.taskAttemptId() if context is not None else None
        return result_files.pack(results, self.job.result_schema, task)


class _LazyPickle:
    """A shard that travels as bytes and is unpickled on first use.

    Spark's driver starts a process to ask a stateful operator which state it declares. Without
    this class, that process would import the engine and all compiled code.
    """

    def __init__(self, shard: _Shard) -> None:
        self._shard: _Shard | bytes = shard

    def __getstate__(self) -> bytes:
        pickle: Any = cloudpickle
        return bytes(pickle.dumps(self.open()))

    def __setstate__(self, state: bytes) -> None:
        self._shard = state

    def open(self) -> _Shard:
        if isinstance(self._shard, bytes):
            self._shard = cloudpickle.loads(self._shard)
        assert isinstance(self._shard, _Shard)
        return self._shard


class _StreamingShard(StatefulProcessor):
    """The stateful operator. Spark calls it once per shard and batch."""

    def __init__(self, shard: _Shard, settings: dict[str, Any]) -> None:
        self._pickled = _LazyPickle(shard)
        self._operator = uuid.uuid4().hex
        self._settings = json.dumps(settings, sort_keys=True)
        self._partitions: int = settings["shuffle partitions"]
        used = (sharding.spark_hash(label) % self._partitions for label in shard.labels)
        self._mark = engine_processes.mark(used)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._log = state.Log(handle)

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: TimerValues,
    ) -> Iterator[pd.DataFrame]:
        """Feed the shard's engine, yield its results, and save what changed."""
        shard = self._pickled.open()
        shard_input = _ShardInput(shard.streams)
        for frame in rows:
            for row in frame[["stream", "data", "note"]].itertuples(index=False, name=None):
                shard_input.add(*row)
        label = int(key[0])
        identity = _shard_identity(self._operator, label, shard.labels, self._partitions)
        session = self._log.open(
            self._settings, identity, lambda: shard.engine(label), shard.changeable
        )
        last = b""
        for data in shard.packed(shard_input.feed(session.engine)):
            if last:
                yield _frame(last)
            last = data
        shard.archive_shed(session.engine, shard_input.dropped, label)
        carrier = {"state_bytes": session.save(), "rebuilt": int(session.rebuilt), "shards": 1}
        carrier["settings_changed"] = int(bool(session.changed))
        counters = shard_input.counters(session.engine, carrier)
        told = [json.dumps({"changed": session.changed})] if session.changed else []
        yield _frame(last, counters, "\n".join([session.engine.report() or "", *told]).strip())
        if shard.heap is not None:
            _warn_once(shard.heap.warning(shard_input.largest, shard_input.bytes))
        large = shard_input.bytes > LARGE_BATCH
        del shard_input
        if large:
            _release_unused()


def _warn_once(text: str | None) -> None:
    """Write the first warning of this process to the log of Spark's executor."""
    if text is not None and not _warned:
        _warned.append(text)
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _release_unused() -> None:
    """Return free memory of the allocators to the system, so that workers do not keep growing."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def _batch_shard(
    shard: _Shard,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that runs a shard of a batch DataFrame: all rows at once, no state.

    It is a closure, because Spark counts the parameters of a function and would count `self`.
    """

    def run_shard(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shard_input = _ShardInput(shard.streams)
        label = 0
        for batch in rows:
            label = batch.column("shard")[0].as_py() if batch.num_rows else label
            streams, notes = batch.column("stream").to_pylist(), batch.column("note").to_pylist()
            for stream, data, note in zip(streams, batch.column("data"), notes, strict=True):
                shard_input.add(stream, data.as_buffer(), note)
        engine = shard.engine(label)
        for data in shard.packed(itertools.chain(shard_input.feed(engine), engine.finish())):
            yield _batch(data)
        shard.archive_shed(engine, shard_input.dropped, label)
        yield _batch(b"", shard_input.counters(engine, {"shards": 1}))

    return run_shard


def _batch(data: bytes, counters: dict[str, int | float] | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pandas(_frame(data, counters), schema=packing.RESULTS_ARROW)


def _shard_identity(
    operator: str, label: int, labels: Sequence[int], partitions: int
) -> state.Shard:
    """Identify the shard, the query and the batch that this task runs."""
    context = TaskContext.get()
    property_of = context.getLocalProperty if context is not None else lambda name: None
    return state.Shard(
        label,
        labels,
        sharding.spark_hash(label) % partitions,
        int(property_of("streaming.sql.batchId") or 0),
        (property_of("sql.streaming.queryId"), operator, label),
    )


def _frame(
    data: bytes, counters: dict[str, int | float] | None = None, report: str = ""
) -> pd.DataFrame:
    import pandas as pd  # not at the top: the process that reads the declared state needs none

    row = None if counters is None else metrics.row_of(counters)
    return pd.DataFrame({"data": [data], "counters": [row], "report": [report]})
