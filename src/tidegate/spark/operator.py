"""The one operator that carries every engine on Spark.

    inputs -> pack (mapInArrow) -> shuffle by shard -> engine (one group a shard)
           -> observe counters -> unpack (mapInArrow) -> result

It knows engines only by their protocol: no policy and no window is named here.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from tidegate.engine.base import Engine, Job
from tidegate.errors import TidegateError
from tidegate.pool.ledger import check_update
from tidegate.settings.values import quoted
from tidegate.spark import compat, metrics, packing, shipping, state
from tidegate.spark import shards as sharding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

    from tidegate.spark.archive import Archive
    from tidegate.spark.pool_controller import PoolMembership

#: After a shard's batch of more bytes than this, unused memory is given back to the system.
LARGE_BATCH = 8 << 20

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
    """Run a job over its input streams: all streaming, or all batch.

    There are no more than `most` shards. `schema` is the result's Spark schema, where Arrow's
    says less than Spark's (column metadata, for one); by default it follows from the job's
    `result_schema`. Counters are observed under `name` (see `metrics`). With a `share` of a pool,
    the memory is what the pool orders through a control source, beside the inputs. With an
    `archive`, what the engines shed is written there.
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
        updates = [control.mapInArrow(packing.Orders(labels).__call__, packing.PACKED)]
    packs = [
        packing.Pack(job, stream, packing.arrow_schema(frame.schema), labels)
        for stream, frame in enumerate(inputs)
    ]
    packed = reduce(
        lambda one, other: one.union(other),
        [
            # By position: a name may have dots in it, which Spark would take for fields.
            frame.toDF(*(f"c{i}" for i in range(len(frame.columns)))).mapInArrow(
                pack.__call__, packing.PACKED
            )
            for frame, pack in zip(inputs, packs, strict=True)
        ]
        + updates,
    )
    groups = packed.groupBy("shard")
    shard = _Shard(job, len(inputs), labels, archive)
    if streaming == {True}:
        compat.check_stateful(groups)
        _need_rocksdb(str(conf.get(PROVIDER_CONF)))
        settings = {"shards": number, "shuffle partitions": partitions}
        results = groups.transformWithStateInPandas(
            _StreamingShard(shard, settings_of(job, result_schema) | settings),
            packing.RESULTS,
            "append",
            "none",
        )
    else:
        results = compat.apply_in_arrow(groups, _batch_shard(shard), packing.RESULTS)
    return metrics.observe(results, name, reports=share is not None).mapInArrow(
        packing.unpack, result_schema
    )


def settings_of(job: Job, result_schema: StructType) -> dict[str, Any]:
    """The settings that a checkpoint depends on: those of the job, and the result's columns.

    A sink must not get two schemas because a query was restarted with other names.
    """
    columns = [f"{field.name}: {field.dataType.simpleString()}" for field in result_schema]
    return {**job.fingerprint(), "result columns": columns}


def _need_rocksdb(provider: str) -> None:
    if "RocksDB" not in provider:
        raise TidegateError(
            f"a streaming join keeps its state in RocksDB, but this session uses {provider}. "
            f'Before the join: spark.conf.set("{PROVIDER_CONF}", "{PROVIDER}")'
        )


def _update(text: str) -> dict[str, Any]:
    """An order of a pool, as it stands in the pool's folder; how much it gives is checked later."""
    try:
        update: dict[str, Any] = json.loads(text)
        check_update(update, memory=2**63)
        update.pop("version", None)
    except (ValueError, RecursionError) as error:
        raise TidegateError(
            f"the folder of a pool has a file that is no order of it, {quoted(text)}: {error}. "
            "Give the pool a folder of its own, without the files of others, and start the query "
            "again"
        ) from None
    return update


class _ShardInput:
    """One shard's share of one batch: its rows by stream, and what the pack tasks noted."""

    def __init__(self, streams: int) -> None:
        self._notes = [packing.Note() for _ in range(streams)]
        self._streams: list[list[pa.RecordBatch]] = [[] for _ in range(streams)]
        self._updates: list[dict[str, Any]] = []
        self.bytes = 0

    def add(self, stream: int, data: Any, note: str) -> None:
        if stream == packing.NO_STREAM:
            self._updates.append(_update(note))
            return
        if len(data):
            self.bytes += len(data)
            self._streams[stream].extend(packing.decode(data))
        self._notes[stream].load(note)

    def feed(self, engine: Engine) -> Iterator[pa.RecordBatch]:
        if self._updates:
            engine.apply_budget(**max(self._updates, key=lambda update: update["number"]))
        return engine.feed(self._streams, [note.clock for note in self._notes])

    def counters(self, engine: Engine, carrier: dict[str, int]) -> dict[str, int | float]:
        """Make the one row of counters of this shard and batch."""
        row: dict[str, int | float] = {}
        dropped: list[Mapping[str, int | float]] = [note.dropped for note in self._notes]
        for counts in (engine.take_counters(), *dropped, carrier):
            for counter, value in counts.items():
                row[counter] = row.get(counter, 0) + value
        return row


@dataclass(frozen=True)
class _Shard:
    """What every shard is told: plain settings, sent to the workers with the plan."""

    job: Job
    streams: int
    labels: tuple[int, ...]
    archive: Archive | None = None

    def archive_shed(self, engine: Engine, label: int) -> None:
        """Archive what an engine shed in this batch."""
        shed = engine.take_shed() if self.archive is not None else None
        if self.archive is not None and shed is not None:
            self.archive.write(shed, label)

    def engine(self, label: int) -> Engine:
        return self.job.engine_at(self.labels.index(label), len(self.labels))

    def packed(self, results: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        return packing.pack_results(results, self.job.result_schema)


class _LazyPickle:
    """A shard that is sent as bytes and read when it is needed.

    Spark's driver starts a process to look at the state that a stateful operator declares, which
    would otherwise load an engine and all that is compiled.
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
    """The stateful operator: one call a shard and batch."""

    def __init__(self, shard: _Shard, settings: dict[str, Any]) -> None:
        self._sealed = _LazyPickle(shard)
        self._operator = uuid.uuid4().hex
        self._settings = json.dumps(settings, sort_keys=True)
        self._partitions: int = settings["shuffle partitions"]

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._log = state.Log(handle)

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: TimerValues,
    ) -> Iterator[pd.DataFrame]:
        """Feed the shard's engine and write down what changed."""
        shard = self._sealed.open()
        inbox = _ShardInput(shard.streams)
        for frame in rows:
            for row in frame[["stream", "data", "note"]].itertuples(index=False, name=None):
                inbox.add(*row)
        label = int(key[0])
        where = _where(self._operator, label, shard.labels, self._partitions)
        opened = self._log.open(self._settings, where, lambda: shard.engine(label))
        for data in shard.packed(inbox.feed(opened.engine)):
            yield _frame(data, {})
        shard.archive_shed(opened.engine, label)
        carrier = {"state_bytes": opened.save(), "rebuilt": int(opened.rebuilt), "shards": 1}
        counters = inbox.counters(opened.engine, carrier)
        yield _frame(b"", counters, opened.engine.report() or "")
        large = inbox.bytes > LARGE_BATCH
        del inbox
        if large:
            _release_unused()


def _release_unused() -> None:
    """Give memory back that allocators keep for later: workers would grow from batch to batch."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def _batch_shard(
    shard: _Shard,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Do the same on batch DataFrames: all rows at once, then the end, and no state.

    A closure and not a method, as Spark counts a function's arguments, `self` included.
    """

    def run_shard(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        inbox = _ShardInput(shard.streams)
        label = 0
        for batch in rows:
            label = batch.column("shard")[0].as_py() if batch.num_rows else label
            streams, notes = batch.column("stream").to_pylist(), batch.column("note").to_pylist()
            for stream, data, note in zip(streams, batch.column("data"), notes, strict=True):
                inbox.add(stream, data.as_buffer(), note)
        engine = shard.engine(label)
        for data in shard.packed(itertools.chain(inbox.feed(engine), engine.finish())):
            yield _batch(data, {})
        shard.archive_shed(engine, label)
        yield _batch(b"", inbox.counters(engine, {"shards": 1}))

    return run_shard


def _batch(data: bytes, counters: dict[str, int | float]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pandas(_frame(data, counters), schema=packing.RESULTS_ARROW)


def _where(operator: str, label: int, labels: Sequence[int], partitions: int) -> state.Shard:
    """Say which shard of which query this is."""
    context = TaskContext.get()
    told = context.getLocalProperty if context is not None else lambda name: None
    return state.Shard(
        label,
        labels,
        sharding.spark_hash(label) % partitions,
        int(told("streaming.sql.batchId") or 0),
        (told("sql.streaming.queryId"), operator, label),
    )


def _frame(data: bytes, counters: dict[str, int | float], report: str = "") -> pd.DataFrame:
    columns: dict[str, list[Any]] = {"data": [data]}
    for field in metrics.FIELDS:
        columns[field.name] = [counters.get(field.name, None if field.nullable else 0)]
    columns["report"] = [report]
    return pd.DataFrame(columns)
