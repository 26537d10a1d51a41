"""A star join as something to send to where it runs."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.payload import one_batch
from tidegate.engine.prepare import KEY, TIME, Bounds, prepare
from tidegate.joins.star.changing_relation import prepare_changes
from tidegate.joins.star.engine import StarEngine
from tidegate.joins.star.relation import FactIndex, Known, distinct, known
from tidegate.joins.star.spec import StarJoin
from tidegate.settings.columns import hash_columns

#: Relations that a process keeps indexed.
_MOST_INDEXED = 4
#: A shard with so many times its share of the facts is too much for one.
_UNEVEN = 1.5
#: A group of facts is dealt out by itself if it has more than a shard's share over this.
_LARGE = 8


class RelationSource(Protocol):
    """A relation that does not change, on its way to where it is needed."""

    @property
    def digest(self) -> str:
        """What tells its content from that of others."""

    def load(self) -> pa.Table:
        """Its rows, in the order of `in_order`."""


@dataclass(frozen=True)
class LocalRelation:
    """A relation that is here already."""

    table: pa.Table
    digest: str

    def load(self) -> pa.Table:
        """Its rows."""
        return self.table


def in_order(table: pa.Table) -> tuple[pa.Table, str]:
    """The rows in an order that depends on their content only, and what tells it from others."""
    rows = one_batch(table)
    row_hashes = hash_columns(rows.columns, rows.num_rows, exact=True)
    order = np.argsort(row_hashes, kind="stable")
    digest = hashlib.sha256(row_hashes[order].tobytes()).hexdigest()[:16]
    return table.take(pa.array(order)), digest


def prepare_stream(
    spec: StarJoin, stream: int, batch: pa.RecordBatch
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """Hash the rows of one stream, whose importance is in (0, U] (section 2.1 of the paper)."""
    most = np.inf if spec.importance_limit is None else spec.importance_limit
    bounds = Bounds(above_0=True, most=most, stream=spec.stream_names[stream])
    return prepare(spec.streams[stream], spec.unit, batch, bounds)


@dataclass
class _Indexed:
    """A relation with its index, and the parts of it that shards have."""

    known: Known
    index: FactIndex
    shards: dict[int, NDArray[np.uint16]]
    parts: dict[tuple[int, int], tuple[FactIndex, NDArray[np.int64]]]


_indexed: OrderedDict[str, _Indexed] = OrderedDict()
_lock = threading.Lock()


class StarJob:
    """A star join as something to send to where it runs.

    `relation` is None where the relation is a stream of changes: the input after the streams.
    """

    def __init__(self, spec: StarJoin, relation: RelationSource | None) -> None:
        self.spec = spec
        self.relation = relation

    @property
    def result_schema(self) -> pa.Schema:
        """The columns of the streams, then those of the relation that are no keys."""
        return self.spec.result_schema

    def check(self) -> None:
        """Read the relation, which says what is wrong with it."""
        if self.relation is not None:
            self._indexed()

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Hash the rows of one input, and drop those that no fact is active for.

        Of these the latest is left for the engine to drop, so that the stream's clock is heard.
        """
        spec = self.spec
        if stream == len(spec.streams):
            return prepare_changes(spec, batch), {}
        prepared, dropped = prepare_stream(spec, stream, batch)
        if self.relation is None or prepared.num_rows == 0:
            return prepared, dropped
        times = prepared.column(TIME).to_numpy()
        good = self._indexed().index.matched(stream, prepared.column(KEY).to_numpy(), times)
        good[np.argmax(times)] = True
        dropped["filtered"] = int(len(good) - good.sum())
        return prepared.filter(pa.array(good)) if dropped["filtered"] else prepared, dropped

    def engine(self, shards: int, *, keep_shed: bool = False) -> StarEngine:
        """The only engine there is, or one of several for shards that nothing connects."""
        return self.engine_at(0, shards, keep_shed=keep_shed)

    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> StarEngine:
        """The engine of one shard: with its facts, and its share of the memory."""
        part, memory = None, self.spec.memory
        if self.relation is not None:
            part = self.facts_at(shard, shards)
            if memory is not None and shards > 1:
                memory = _shares(self._indexed(), shards, memory, self.spec.pools)[shard]
        return StarEngine(self.spec, part, memory=memory, keep_shed=keep_shed)

    def facts_at(self, shard: int, shards: int) -> tuple[Known, FactIndex, NDArray[np.int64]]:
        """All facts, an index of those of one shard, and their numbers among all."""
        indexed = self._indexed()
        return (indexed.known, *self._part(indexed, shard, shards))

    def route(
        self, stream: int, prepared: pa.RecordBatch, shards: int
    ) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
        """Every tuple goes to the shards of its active facts; one without any, to the first."""
        rows = np.arange(prepared.num_rows)
        if self.relation is None:
            return rows, np.zeros(len(rows), np.uint16)
        indexed = self._indexed()
        keys, times = prepared.column(KEY).to_numpy(), prepared.column(TIME).to_numpy()
        led, to = indexed.index.lead(stream, keys, times, _placed(indexed, shards))
        lost = np.setdiff1d(rows, led)
        return np.concatenate([led, lost]), np.concatenate([to, np.zeros(len(lost), np.uint16)])

    def fingerprint(self) -> dict[str, Any]:
        """The settings that a checkpoint depends on, with the content of the relation."""
        digest = None if self.relation is None else self.relation.digest
        return {**self.spec.settings(), "relation": digest}

    def _indexed(self) -> _Indexed:
        """The relation, indexed once in a process."""
        assert self.relation is not None
        spec = self.spec
        name = f"{self.relation.digest} {spec.relation} {spec.unit}"
        with _lock:
            if name not in _indexed:
                read = known(spec, self.relation.load())
                index = FactIndex(len(spec.streams), spec.unit.dtype)
                index.add(read.keys, read.begin, read.end)
                _indexed[name] = _Indexed(read, index, {}, {})
                while len(_indexed) > _MOST_INDEXED:
                    _indexed.popitem(last=False)
            _indexed.move_to_end(name)
            return _indexed[name]

    def _part(
        self, indexed: _Indexed, shard: int, shards: int
    ) -> tuple[FactIndex, NDArray[np.int64]]:
        """The facts of one shard: an index of them, and their numbers among all."""
        if shards == 1:
            return indexed.index, np.arange(indexed.index.count)
        if (shard, shards) not in indexed.parts:
            numbers = np.flatnonzero(_placed(indexed, shards) == shard)
            index = FactIndex(len(self.spec.streams), self.spec.unit.dtype)
            whole = indexed.known
            keys = [hashes[numbers] for hashes in whole.keys]
            index.add(keys, whole.begin[numbers], whole.end[numbers])
            indexed.parts[shard, shards] = index, numbers
        return indexed.parts[shard, shards]


def _placed(indexed: _Indexed, shards: int) -> NDArray[np.uint16]:
    """The shard of each fact.

    By the connected component of the relation that it is in, so that every tuple goes to one shard.
    Where components are too few or too uneven, by the key of one stream, if that is more even:
    tuples of the others are then copied to all shards that their facts are in. Of streams that are
    even enough, that is taken for which fewest keys are copied.
    """
    if shards not in indexed.shards:
        index, keys = indexed.index, indexed.known.keys
        enough = int(_UNEVEN * max(index.count, shards))

        def unevenness(place: NDArray[np.uint16]) -> int:
            return max(int(np.bincount(place).max(initial=0)) * shards, enough)

        place = _dealt(index.components(), keys[0], shards)
        if unevenness(place) > enough:
            entries = index.arrays.key[: index.count].T
            of_keys = [_dealt(e, k, shards) for e, k in zip(entries, keys, strict=True)]
            place = min(
                (place, *of_keys), key=lambda p: (unevenness(p), _held(index, p, shards).sum())
            )
        indexed.shards[shards] = place
    return indexed.shards[shards]


def _dealt(groups: NDArray[Any], keys: NDArray[np.uint64], shards: int) -> NDArray[np.uint16]:
    """Groups of facts dealt out to shards: the large ones to who has least, the others fill up.

    What comes out depends on content only: groups are named by the smallest of their keys.
    """
    size = np.bincount(groups)
    name = np.full(len(size), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(name, groups, keys)
    to = np.zeros(len(size), np.uint16)
    is_large = size * (_LARGE * shards) > len(groups)
    large, small = np.flatnonzero(is_large), np.flatnonzero(~is_large & (size > 0))
    load = np.zeros(shards, np.int64)
    for group in large[np.lexsort((name[large], -size[large]))]:
        to[group] = load.argmin()
        load[to[group]] += size[group]
    small = small[np.argsort(name[small])]
    filled = np.cumsum(size[small])
    lowest = np.sort(load)
    level = np.min((filled[-1:].sum() + np.cumsum(lowest)) / np.arange(1, shards + 1))
    edges = np.cumsum(np.maximum(level - load, 0))
    to[small] = np.minimum(np.searchsorted(edges, filled - size[small] / 2), shards - 1)
    placed: NDArray[np.uint16] = to[groups]
    return placed


def _held(index: FactIndex, place: NDArray[np.uint16], shards: int) -> NDArray[np.int64]:
    """How many keys are in each shard, of all streams together."""
    total = np.zeros(shards, np.int64)
    for s in range(index.streams):
        entries = index.arrays.key[: index.count, s].astype(np.int64)
        total += np.bincount(distinct(entries * shards + place) % shards, minlength=shards)
    return total


def _shares(indexed: _Indexed, shards: int, memory: int, pools: int) -> list[int]:
    """The memory of each shard, by how many keys it has: a shard without facts holds nothing."""
    weight = _held(indexed.index, _placed(indexed, shards), shards)
    least = np.where(weight > 0, pools, 0)
    whole = np.cumsum(weight) * ((memory - least.sum()) / max(weight.sum(), 1))
    shares: list[int] = (least + np.diff(np.rint(whole).astype(np.int64), prepend=0)).tolist()
    return shares
