"""Jobs and engines of joins whose budget a pool controls.

Budget updates arrive through the stream, so that a replay applies the same ones at the same point.
Each shard applies its part of an update before it reads the rest of the batch. It reports with its
counters which update it has applied, its budget, and what it would find with other budgets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Clocks, Engine, Job
from tidegate.pool.ledger import check_update
from tidegate.pool.shadow_joins import Found


class Watch(Protocol):
    """Estimates what an engine would find with other budgets."""

    def feed(self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None) -> None:
        """Process a batch that the engine has processed."""

    def worth(self, counters: Mapping[str, int | float]) -> float:
        """Return what the engine has found since the last `take`, by its counters."""

    def take(self) -> Found:
        """Return the estimates since the last call."""


class RecallEstimator(Protocol):
    """The settings for estimating what a join would find with other budgets."""

    @property
    def measure(self) -> str:
        """The measure of a join's quality (`pool.reports`)."""

    @property
    def unit(self) -> str:
        """The counter that measures memory: ``"held"`` or ``"bytes"``."""

    @property
    def least(self) -> int:
        """The smallest budget with which a shard can hold a row."""

    @property
    def second(self) -> float:
        """The length of a unit of time in the numbers of the kernel."""

    def watch(self, engine: Any, sizes: Sequence[int], shard: int, shards: int) -> Watch:
        """Return the estimator of one shard."""


@dataclass(frozen=True)
class Member:
    """The membership of a join in a pool.

    Attributes
    ----------
    pool, name
        The names of the pool and of the join, by which reports are found.
    sizes
        The budgets that are estimated, ascending; the last is the memory of the pool.
    second
        The length of a unit of time in the numbers of the kernel.
    """

    pool: str
    name: str
    sizes: tuple[int, ...]
    second: float


class PooledEngine(Engine):
    """An engine whose budget a pool controls, with an estimator of other budgets."""

    def __init__(
        self, engine: Engine, watch: Watch, member: Member, shard: int, shards: int
    ) -> None:
        self._engine, self._member, self._shard, self._shards = engine, member, shard, shards
        self._watch = watch
        self._counters: dict[str, int | float] = {}
        engine.resize(0, 0)

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Process a batch with the join, then with the estimator."""
        yield from self._engine.feed(inputs, clocks)
        self._watch.feed(inputs, clocks)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the input and yield the last results."""
        yield from self._engine.finish()

    def apply_budget(self, number: int, shares: Sequence[int], memory: int = 0) -> None:
        """Apply a budget update, unless a later one was applied; refuse one that is too large."""
        if number > self._update[0]:
            update = {"number": number, "shares": list(shares), "memory": memory}
            check_update(update, self._member.sizes[-1], self._shards)
            self._engine.resize(number, shares[self._shard])

    @property
    def _update(self) -> tuple[int, int]:
        assert self._engine.budget_update is not None
        return self._engine.budget_update

    def take_shed(self) -> pa.Table | None:
        """Return the rows shed since the last call."""
        return self._engine.take_shed()

    def take_counters(self) -> dict[str, int | float]:
        """Return the counters: events since the last call, and the present state."""
        self._counters = self._engine.take_counters() | {"allowed": self._update[1]}
        return self._counters

    def report(self) -> str:
        """Return the report for the pool as JSON; call `take_counters` before."""
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
        """Return a record of all changes since the last record."""
        return self._engine.changes()

    def snapshot(self) -> list[bytes]:
        """Return the whole state; the estimator has none and starts anew."""
        return self._engine.snapshot()

    def restore(
        self, records: Iterable[bytes], written_with: Mapping[str, Any] | None = None
    ) -> None:
        """Load the state from records; for a new engine."""
        self._engine.restore(records, written_with)

    @property
    def log_is_heavy(self) -> bool:
        """True if most of the log is outdated."""
        return self._engine.log_is_heavy


class PooledJob(Job):
    """A job whose engines get their budget from a pool."""

    def __init__(self, job: Job, estimator: RecallEstimator, member: Member) -> None:
        self._job, self._estimator, self._member = job, estimator, member

    @property
    def kind(self) -> str:
        """The kind of the join."""
        return self._job.kind

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of the results."""
        return self._job.result_schema

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Check and hash the raw rows of one stream."""
        return self._job.prepare(stream, batch)

    def dropped_lines(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the raw rows that `prepare` drops, as lines of an archive."""
        return self._job.dropped_lines(stream, batch)

    def route(
        self, stream: int, prepared: pa.RecordBatch, shards: int
    ) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
        """Return row numbers and the shard of each."""
        return self._job.route(stream, prepared, shards)

    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> PooledEngine:
        """Return the engine of one shard."""
        engine = self._job.engine_at(shard, shards, keep_shed=keep_shed)
        watch = self._estimator.watch(engine, self._member.sizes, shard, shards)
        return PooledEngine(engine, watch, self._member, shard, shards)

    def fingerprint(self) -> dict[str, Any]:
        """Return the settings that a checkpoint depends on, without the memory."""
        place = f"{self._member.name} of a pool"
        return {**self._job.fingerprint(), "memory": place}
