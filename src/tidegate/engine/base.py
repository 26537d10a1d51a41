"""Base classes of engines and jobs.

The one rule of tidegate: an engine is a state machine over Arrow record batches. It turns record
batches into results and can write its state as records. Spark only carries record batches to
engines and state away from them. So every engine runs and is tested without Spark, and the Spark
part is written once for all joins.

A kind of join is one `Job`, which has the settings, and one `Engine`, which has the state. Methods
that are not abstract have a default that suits most joins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.prepare import KEY, shard_of
from tidegate.errors import TidegateError

#: The largest time of each stream; None for a stream whose time is unknown.
Clocks = Sequence[int | float | None]


class Engine(ABC):
    """A join as a state machine over Arrow record batches."""

    #: The last budget update of a pool: its number and the memory.
    budget_update: tuple[int, int] | None = None

    @abstractmethod
    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Process one batch of every input stream and yield its results.

        `inputs[i]` holds prepared record batches of stream i (see `Job.prepare`), in any order.
        `clocks` holds the largest time of each stream over all shards. It matters where another
        shard is ahead of this one. Results are computed lazily, in record batches of bounded size:
        the new state is complete only when the iterator is exhausted.
        """

    @abstractmethod
    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the input: process the rows of the last tick and yield their results."""

    @abstractmethod
    def take_counters(self) -> dict[str, int | float]:
        """Return the counters: events since the last call, and the present state."""

    def take_shed(self) -> pa.Table | None:
        """Return the rows shed since the last call: stream, time, reason and the row.

        None if the engine does not keep shed rows.
        """
        return None

    # ---- state: `LoggedEngine` implements it --------------------------------------------------

    @abstractmethod
    def changes(self) -> bytes:
        """Return a record of all changes since the last `changes`, `snapshot` or `restore`."""

    @abstractmethod
    def snapshot(self) -> list[bytes]:
        """Return the whole state, as records of bounded size for `restore`."""

    @abstractmethod
    def restore(
        self, records: Iterable[bytes], written_with: Mapping[str, Any] | None = None
    ) -> None:
        """Load the state from a snapshot and all later `changes`, in order; for a new engine.

        `written_with` has the settings of the engine that wrote the records, if they differ (see
        `Job.changeable`). The state is then adapted, and the next record must be a snapshot.
        """

    @property
    def log_is_heavy(self) -> bool:
        """True if most of the log is outdated, so that a new snapshot pays."""
        return False

    # ---- a budget that a pool controls --------------------------------------------------------

    def resize(self, number: int, memory: int) -> None:
        """Change the budget to `memory`, by budget update `number`; shed what does not fit."""
        raise TidegateError(
            "the memory of this join cannot change while it runs, so that no pool can give it a "
            "share; give memory a number"
        )

    def apply_budget(self, number: int, shares: Sequence[int], memory: int = 0) -> None:
        """Apply a budget update, unless a later one was applied already.

        `shares` has the budget of each shard, `memory` the size of the pool when it sent the
        update.
        """
        raise TidegateError(
            f"budget update {number} of a pool reached a join that is not a member of one; start "
            "the query with the memory that it had, a share of the pool"
        )

    def report(self) -> str | None:
        """Return the report of the last batch as JSON, or None if there is none.

        A member of a pool reports to the pool. Other engines may report gauges by name.
        """
        return None


class Job(ABC):
    """The settings of a join, without data: all that a worker needs to build its engine."""

    @property
    def kind(self) -> str:
        """The kind of join, as in the table of counters: it decides which counters are reported."""
        return "window"

    @property
    @abstractmethod
    def result_schema(self) -> pa.Schema:
        """The schema of the results."""

    @abstractmethod
    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Check and hash the raw rows of one stream.

        Return the prepared record batch and the number of dropped rows by reason. A prepared
        record batch starts with three columns: `key` (uint64 hash of the join key), `time` (int64
        or float64) and `row_hash` (uint64 hash of the whole row, which orders rows of one time).
        The columns of the input follow, under names of the engine's own.
        """

    def dropped_lines(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the raw rows that `prepare` drops, as lines of an archive; None if it has none."""
        return None

    def route(
        self, stream: int, prepared: pa.RecordBatch, shards: int
    ) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
        """Return row numbers and the shard of each; a row may go to several shards.

        By default, the hash of its key decides on the shard of a row.
        """
        return np.arange(prepared.num_rows), shard_of(prepared.column(KEY).to_numpy(), shards)

    @abstractmethod
    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> Engine:
        """Return a new engine for one shard, with its share of the memory.

        With `keep_shed`, the engine keeps the rows that it sheds for `Engine.take_shed`.
        """

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return the settings that a checkpoint depends on, as plain JSON values."""

    def changeable(self, written_with: Mapping[str, Any]) -> Set[str]:
        """Return the names of settings that may differ from those that wrote a checkpoint."""
        return frozenset()
