"""The job of a window join."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.engine.base import Job
from tidegate.engine.prepare import prepare
from tidegate.joins.window.changed_settings import changeable
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.queue import QueueEngine
from tidegate.joins.window.shed_log import dropped_lines
from tidegate.joins.window.spec import WindowJoin


@dataclass(frozen=True)
class WindowJob(Job):
    """The settings of a window join, and its engines."""

    spec: WindowJoin

    @property
    def kind(self) -> str:
        """The kind of join, as in the table of counters."""
        return "window" if self.spec.cpu is None else "window with `cpu=`"

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
