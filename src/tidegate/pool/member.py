"""A join whose memory is a share of a pool's, as something to send to where it runs.

Orders come through the stream, so that a replay follows the same ones at the same point. Each
shard follows its own part of an order before it takes the rest of the batch, and tells with its
counters which order it has followed, how much it may hold, and what other memories would find.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Clocks, Engine, Job, RoutedJob
from tidegate.pool.ledger import check_update
from tidegate.pool.shadow_joins import Found


class Resizable(Engine, Protocol):
    """An engine whose memory can change between batches."""

    budget_update: tuple[int, int] | None

    def resize(self, number: int, memory: int) -> None:
        """Follow an order, with a number, to hold no more than this."""


class Watch(Protocol):
    """What is beside an engine, to say what other memories would find."""

    def feed(self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None) -> None:
        """Take a batch that the engine has taken."""

    def worth(self, counters: Mapping[str, int | float]) -> float:
        """What the engine itself has found since the last `take`, by its counters."""

    def take(self) -> Found:
        """What was foreseen since the last call."""


class RecallEstimator(Protocol):
    """How it is known what a join would find with other memories; settings, not data."""

    @property
    def measure(self) -> str:
        """What a join is measured by (`memory.reports`)."""

    @property
    def unit(self) -> str:
        """The counter that memory is measured by: ``"held"`` or ``"bytes"``."""

    @property
    def least(self) -> int:
        """The least memory with which a shard holds anything."""

    @property
    def second(self) -> float:
        """A unit of time in the kernel's numbers."""

    def watch(self, engine: Any, sizes: Sequence[int], shard: int, shards: int) -> Watch:
        """What is beside the engine of one of the shards."""


@dataclass(frozen=True)
class Member:
    """What a join knows of its place in a pool.

    Attributes
    ----------
    pool, name
        Which pool and which join it is: what a report is found by.
    sizes
        The memories that are tried out in small, ascending; the last is the pool's own.
    second
        A unit of time in the kernel's numbers.
    """

    pool: str
    name: str
    sizes: tuple[int, ...]
    second: float


class PooledEngine:
    """An engine that follows orders, and beside it what foresees others."""

    def __init__(
        self, engine: Resizable, watch: Watch, member: Member, shard: int, shards: int
    ) -> None:
        self._engine, self._member, self._shard, self._shards = engine, member, shard, shards
        self._watch = watch
        self._counters: dict[str, int | float] = {}
        engine.resize(0, 0)

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Have the join take a batch, and then what is beside it."""
        yield from self._engine.feed(inputs, clocks)
        self._watch.feed(inputs, clocks)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """No more input will come."""
        yield from self._engine.finish()

    def apply_budget(self, number: int, shares: Sequence[int], memory: int = 0) -> None:
        """Follow an order, unless a later one was followed; one of too much is refused."""
        if number > self._update[0]:
            update = {"number": number, "shares": list(shares), "memory": memory}
            check_update(update, self._member.sizes[-1], self._shards)
            self._engine.resize(number, shares[self._shard])

    @property
    def _update(self) -> tuple[int, int]:
        assert self._engine.budget_update is not None
        return self._engine.budget_update

    def take_counters(self) -> dict[str, int | float]:
        """Flows since the last call, and gauges as they are now."""
        self._counters = self._engine.take_counters() | {"allowed": self._update[1]}
        return self._counters

    def report(self) -> str:
        """What the pool needs to know, as JSON; after the counters were taken."""
        number, allowed = self._update
        worth, found = self._watch.worth(self._counters), self._watch.take()
        return json.dumps(
            {
                "pool": self._member.pool,
                "join": self._member.name,
                "shard": self._shard,
                "number": number,
                "allowed": allowed,
                "held": self._counters["held"],
                "bytes": self._counters["bytes"],
                "worth": worth,
                "sizes": found.sizes,
                "hits": found.hits,
                "total": found.total,
                "need": found.need,
                "span": found.span / self._member.second,
                "advance": found.advance / self._member.second,
            }
        )

    def changes(self) -> bytes:
        """What has changed since the last record was made."""
        return self._engine.changes()

    def snapshot(self) -> list[bytes]:
        """The whole state; of what is beside it there is none, that begins anew."""
        return self._engine.snapshot()

    def restore(self, records: Iterable[bytes]) -> None:
        """Become what the records say."""
        self._engine.restore(records)

    @property
    def log_is_heavy(self) -> bool:
        """Whether most of what was logged is dead."""
        return self._engine.log_is_heavy


class PooledJob:
    """A job with a place in a pool."""

    def __init__(self, job: Any, estimator: RecallEstimator, member: Member) -> None:
        self._job, self._estimator, self._member = job, estimator, member

    @property
    def result_schema(self) -> pa.Schema:
        """The job's own."""
        schema: pa.Schema = self._job.result_schema
        return schema

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """As the job does."""
        prepared: tuple[pa.RecordBatch, dict[str, int]] = self._job.prepare(stream, batch)
        return prepared

    def engine(self, shards: int) -> PooledEngine:
        """The only shard's engine."""
        return self.engine_at(0, shards)

    def engine_at(self, shard: int, shards: int) -> PooledEngine:
        """The engine of one shard."""
        routed = isinstance(self._job, RoutedJob)
        engine = self._job.engine_at(shard, shards) if routed else self._job.engine(shards)
        watch = self._estimator.watch(engine, self._member.sizes, shard, shards)
        return PooledEngine(engine, watch, self._member, shard, shards)

    def fingerprint(self) -> dict[str, Any]:
        """The settings that a checkpoint depends on: not how much memory there is."""
        place = f"{self._member.name} of a pool"
        return {**self._job.fingerprint(), "memory": place}


class PooledRoutedJob(PooledJob):
    """The same of a job whose rows do not go where their key says."""

    def route(
        self, stream: int, prepared: pa.RecordBatch, shards: int
    ) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
        """As the job does."""
        routed: tuple[NDArray[np.int64], NDArray[np.uint16]]
        routed = self._job.route(stream, prepared, shards)
        return routed


def pooled(job: Job, estimator: RecallEstimator, member: Member) -> PooledJob:
    """The job with a place in a pool."""
    kind = PooledRoutedJob if isinstance(job, RoutedJob) else PooledJob
    return kind(job, estimator, member)
