"""A window join as something to send to where it runs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.engine.prepare import prepare
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.queue import QueueEngine
from tidegate.joins.window.spec import WindowJoin


class WindowJob:
    """A window join as something to send to where it runs."""

    def __init__(self, spec: WindowJoin) -> None:
        self.spec = spec

    @property
    def result_schema(self) -> pa.Schema:
        """The left's columns, then the right's."""
        return self.spec.result_schema

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Hash the rows of one input."""
        return prepare(self.spec.sides[stream], self.spec.unit, batch)

    def engine(self, shards: int, *, keep_shed: bool = False) -> WindowEngine | QueueEngine:
        """One of several engines that share the memory equally."""
        return self.engine_at(None, shards, keep_shed=keep_shed)

    def engine_at(
        self, shard: int | None, shards: int, *, keep_shed: bool = False
    ) -> WindowEngine | QueueEngine:
        """The engine of one shard: the shares of all add up to the memory."""
        kind = WindowEngine if self.spec.cpu is None else QueueEngine
        return kind(self.spec, shards=shards, shard=shard, keep_shed=keep_shed)

    def fingerprint(self) -> dict[str, Any]:
        """The settings that a checkpoint depends on."""
        return self.spec.settings()
