"""Copies of a star join that only count results: what `pool.shadow_joins` runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.prepare import KEY, PREPARED
from tidegate.errors import TidegateError
from tidegate.joins.star.engine import StarEngine
from tidegate.joins.star.job import StarJob
from tidegate.joins.star.relation import FactIndex, Known
from tidegate.joins.star.spec import StarJoin
from tidegate.joins.window.spec import COMBINE
from tidegate.pool.shadow_joins import OF_KEY_GROUP, Sample, ShadowJoins, random_share
from tidegate.settings.columns import as_floats


class StarCopies:
    """Makes copies of a star join, each with the facts of its shard."""

    measure, unit = "recall", "held"

    def __init__(self, job: StarJob) -> None:
        spec = job.spec
        if None in spec.windows:
            raise TidegateError(
                "a join whose window never ends cannot be foreseen, nor share a memory with "
                "others; give within a length"
            )
        self.least, self.second = spec.pools, spec.second
        self.job = job

    def watch(
        self, engine: StarEngine, sizes: Sequence[int], shard: int, shards: int
    ) -> ShadowJoins:
        """Return shadow joins for the engine of a shard."""
        if self.job.spec.dynamic:
            return ShadowJoins(ChangingCopies(self.job.spec, engine), sizes)
        return ShadowJoins(ShardCopies(self.job, shard, shards), sizes)


class _Copies:
    """Base class of the two kinds of copies."""

    unit, sees_more = "held", False

    def __init__(self, spec: StarJoin) -> None:
        self.horizon = max(float(window) for window in spec.windows if window is not None)
        self.streams = len(spec.streams)
        self._sides = spec.streams
        self._least = spec.pools
        self._carried = [side.importance or side.time for side in spec.streams]
        self._spec = self._narrow(spec)

    def _narrow(self, spec: StarJoin) -> StarJoin:
        streams = tuple(
            replace(side, schema=pa.schema([side.schema.field(name)]))
            for side, name in zip(spec.streams, self._carried, strict=True)
        )
        relation = replace(spec.relation, carried=())
        return replace(spec, streams=streams, relation=relation, names=spec.stream_names)

    def _with(self, memory: int | None) -> StarJoin:
        return replace(self._spec, memory=None if memory is None else max(memory, self._least))

    def narrowed(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Select the hashes, the time and the importance."""
        at = PREPARED + self._sides[stream].schema.get_field_index(self._carried[stream])
        columns = [*batch.columns[:PREPARED], batch.column(at)]
        return pa.RecordBatch.from_arrays(columns, [*batch.schema.names[:PREPARED], "c0"])

    def stands_for(self, engine: StarEngine, counters: Mapping[str, int | float]) -> float:
        """Return how many rows a copy holds: each represents only itself."""
        return float(counters["held"])


class ChangingCopies(_Copies):
    """Makes copies of a star join with a changing relation. They start with the engine's facts.

    Components change with the relation, so they cannot be sampled.
    """

    def __init__(self, spec: StarJoin, engine: StarEngine) -> None:
        super().__init__(spec)
        self._engine = engine

    def key_group(self, stream: int, batch: pa.RecordBatch) -> NDArray[np.uint64] | None:
        """Return None: a later fact may join any rows."""
        return None

    def copy(self, memory: int | None, sample: Sample) -> StarEngine:
        """Return an engine with this budget, or without a limit."""
        engine = CountingStar(self._with(memory), None)
        engine.learn_facts(self._engine)
        return engine


class ShardCopies(_Copies):
    """Makes copies of one shard of a star join.

    Facts that share a key are connected. Rows of unconnected facts never join, so a sample consists
    of some connected components of the relation.
    """

    def __init__(self, job: StarJob, shard: int, shards: int) -> None:
        super().__init__(job.spec)
        self._known, self._index, self._numbers = job.facts_at(shard, shards)
        self._names = component_names(self._index)
        self._sampled: tuple[float, FactIndex, NDArray[np.int64]] | None = None

    def key_group(self, stream: int, batch: pa.RecordBatch) -> NDArray[np.uint64] | None:
        """Return the component of each row's key; 0 for a key without facts."""
        entries = self._index.find(stream, batch.column(KEY).to_numpy())
        names = np.append(self._names[stream], np.uint64(0))
        found: NDArray[np.uint64] = names[entries]
        return found

    def copy(self, memory: int | None, sample: Sample) -> StarEngine:
        """Return an engine with this budget, or without a limit, and the facts of the sample."""
        return CountingStar(self._with(memory), (self._known, *self._facts(sample.key_group)))

    def _facts(self, share: float) -> tuple[FactIndex, NDArray[np.int64]]:
        """Return an index of the facts of a share of the components, and their numbers."""
        if share >= 1:
            return self._index, self._numbers
        if self._sampled is None or self._sampled[0] != share:
            arrays, count = self._index.arrays, self._index.count
            mine = random_share(self._names[0][arrays.key[:count, 0]], OF_KEY_GROUP) < share
            numbers = self._numbers[mine]
            index = FactIndex(self.streams, arrays.begin.dtype)
            keys = [hashes[numbers] for hashes in self._known.keys]
            index.add(keys, self._known.begin[numbers], self._known.end[numbers])
            self._sampled = share, index, numbers
        return self._sampled[1:]


class CountingStar(StarEngine):
    """A star join that counts its results and does not build them."""

    def __init__(
        self, spec: StarJoin, relation: tuple[Known, FactIndex, NDArray[np.int64]] | None
    ) -> None:
        super().__init__(spec, relation, memory=spec.memory)

    def _results(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        self._flows["results"] += rows.shape[1]
        self._importance += rows.shape[1]
        if self.spec.weighed:
            weights = [as_floats(p.take(r)[0]) for p, r in zip(self._payload, rows, strict=False)]
            worth = reduce(COMBINE[self.spec.combine], weights)
            self._importance += float(worth.sum()) - rows.shape[1]
        return pa.RecordBatch.from_pylist([], self.spec.result_schema)


def component_names(index: FactIndex) -> list[NDArray[np.uint64]]:
    """Return, for each stream and key, a name of the connected component that contains it.

    The name is the smallest key of the first stream in the component, so all shards agree on it.
    """
    facts, roots = index.arrays, index.components()
    keys = facts.key[: index.count]
    names = np.full(int(roots.max(initial=0)) + 1, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(names, roots, facts.hashes[0, keys[:, 0]])
    found = []
    for stream in range(index.streams):
        own = np.zeros(index.entries, np.uint64)
        own[keys[:, stream]] = names[roots]
        found.append(own)
    return found
