"""The job of a window join."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Job
from tidegate.engine.prepare import payload_of, prepare, shard_of
from tidegate.joins.window.changed_settings import changeable
from tidegate.joins.window.conditions import Condition
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.queue import QueueEngine
from tidegate.joins.window.shed_log import dropped_lines
from tidegate.joins.window.spec import WindowJoin
from tidegate.settings.columns import hash_column
from tidegate.sql.conditions import Predicate


@dataclass(frozen=True)
class WindowJob(Job):
    """The settings of a window join, and its engines."""

    spec: WindowJoin

    @property
    def result_schema(self) -> pa.Schema:
        """The columns of the left, then those of the right."""
        return self.spec.result_schema

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Hash the rows of one stream; drop and count rows that can never join."""
        return prepare(self.spec.sides[stream], self.spec.unit, batch)

    def dropped_lines(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with a null time or key, as lines of an archive."""
        return dropped_lines(self.spec, stream, batch)

    @cached_property
    def _condition(self) -> Condition | None:
        """The condition, if rows are divided into shards by its band."""
        spec = self.spec
        if spec.where is None or spec.left.keys or not spec.banded:
            return None
        return Condition(Predicate(spec.where, spec.left.schema, spec.right.schema))

    def route(
        self, stream: int, prepared: pa.RecordBatch, shards: int
    ) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
        """Send rows to the shard of their key; without a key, to those of their cells in the band.

        A row of the left goes to one shard, and so each pair is found once. A row of the right near
        a border goes to both shards.
        """
        if self._condition is None:
            return super().route(stream, prepared, shards)
        first, last = self._condition.cells(stream, payload_of(prepared))
        count = last - first + 1
        rows = np.repeat(np.arange(len(first)), count)
        cells = first[rows] + np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
        places = rows * shards + shard_of(hash_column(pa.array(cells)), shards)
        places = np.unique(places)
        return places // shards, (places % shards).astype(np.uint16)

    def engine_at(
        self, shard: int, shards: int, *, keep_shed: bool = False
    ) -> WindowEngine | QueueEngine:
        """Return the engine of one shard; the shares of all shards add up to the memory."""
        kind = WindowEngine if self.spec.cpu is None else QueueEngine
        return kind(self.spec, shards=shards, shard=shard, keep_shed=keep_shed)

    def fingerprint(self) -> dict[str, Any]:
        """Return the settings that a checkpoint depends on."""
        return self.spec.settings()

    def changeable(self, written_with: Mapping[str, Any]) -> Set[str]:
        """Return the names of settings that may differ from those that wrote a checkpoint."""
        return changeable(self.spec, written_with)
