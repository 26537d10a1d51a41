"""What every engine is: a state machine over Arrow batches.

The one rule of tidegate: an engine turns batches into results and can hand its state away;
Spark only carries batches to engines and state away from them. So every engine runs, and is
tested, without Spark, and Spark's part is written once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

#: What happened since the counters were last taken.
FLOWS = (
    "arrived",
    "out_of_order",
    "late",
    "null_keys",
    "null_times",
    "filtered",
    "copies",
    "admitted",
    "rejected",
    "shed",
    "expired",
    "results",
    "queue_shed",
    "eliminated",
    "violations",
)
#: What is true now.
GAUGES = (
    "held",
    "held_left",
    "held_right",
    "held_yes",
    "held_no",
    "held_unknown",
    "allowed",
    "waiting",
    "queued",
    "bytes",
    "facts",
)
#: The same, as real numbers.
MEASURES = ("importance", "foreseen", "missed", "monitored", "beyond")

#: How far each stream has come; None where nothing is known.
Clocks = Sequence[int | float | None]


class Engine(Protocol):
    """A join as a plain state machine."""

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Take one batch of every input stream and give the results it leads to.

        `inputs[i]` holds prepared batches of stream i (see `Job.prepare`), in any order.
        `clocks` are the largest times of each stream seen anywhere, where these are known to be
        later than the times in `inputs` (other shards may be ahead). Results come lazily, in
        batches of bounded size: the state has moved on only once the iterator is exhausted.
        """

    def finish(self) -> Iterator[pa.RecordBatch]:
        """No more input will come: give what was still waiting for it."""

    def take_counters(self) -> dict[str, int | float]:
        """Flows since the last call, and gauges as they are now."""

    def changes(self) -> bytes:
        """What has changed since the last call of `changes`, `snapshot` or `restore`."""

    def snapshot(self) -> list[bytes]:
        """The whole state, as records of bounded size that `restore` takes."""

    def restore(self, records: Iterable[bytes]) -> None:
        """Become what the records say: a snapshot's, then every later `changes`, in order."""

    @property
    def log_is_heavy(self) -> bool:
        """Whether most of what was logged is dead: time for a new snapshot."""


class Job(Protocol):
    """Everything that is needed to run an engine elsewhere: settings, not data."""

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of the batches that the engine gives."""

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Check and hash raw rows of one stream: the prepared batch, and how many were dropped.

        A prepared batch has the raw columns (under names of the engine's own) after three more:
        `key` (uint64 hash of the join key), `time` (int64 or float64) and `tie` (uint64 hash of
        the whole row, which orders rows of one time).
        """

    def engine(self, shards: int) -> Engine:
        """A new engine with its share of the memory, one of `shards` equal ones."""

    def fingerprint(self) -> dict[str, Any]:
        """The settings that a checkpoint depends on, as plain JSON values."""


@runtime_checkable
class PlacedJob(Protocol):
    """What a job has besides, if its shards differ."""

    def engine_at(self, shard: int, shards: int) -> Engine:
        """A new engine for one of the shards."""


@runtime_checkable
class RoutedJob(PlacedJob, Protocol):
    """What a job has besides, if its rows do not go where their key says."""

    def route(
        self, stream: int, prepared: pa.RecordBatch, shards: int
    ) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
        """Which rows go to which shard: row numbers, some perhaps several times, and shards."""


@runtime_checkable
class Archiving(Protocol):
    """What an engine has besides, if it can say what left early."""

    def take_shed(self) -> pa.Table:
        """Early departures since the last call: which stream, when, why, and the tuple itself."""


@runtime_checkable
class BudgetedEngine(Protocol):
    """What an engine has besides, if its memory is a share of a pool's."""

    def apply_budget(self, number: int, shares: Sequence[int], memory: int = 0) -> None:
        """Follow an order, unless a later one was followed: how much each shard may hold.

        `memory` is what the pool had when it sent the order.
        """

    def report(self) -> str:
        """What the pool needs to know, since the last report and as it is now."""
