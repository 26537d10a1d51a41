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

from tidegate.columns import as_floats, hash_columns
from tidegate.engines.changes import prepare_changes
from tidegate.engines.facts import FactIndex, Known, distinct, known
from tidegate.engines.payload import one_batch
from tidegate.engines.prepare import KEY, TIME, prepare
from tidegate.engines.star import StarEngine
from tidegate.errors import TidegateError
from tidegate.star_spec import StarJoin

#: Relations that a process keeps indexed.
_MOST_INDEXED = 4
#: A shard with so many times its share of the facts is too much for one.
_UNEVEN = 2.0
# An odd constant that spreads a key's bits upwards, as the shards of a window join have it.
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Shipped(Protocol):
    """A relation that does not change, on its way to where it is needed."""

    @property
    def digest(self) -> str:
        """What tells its content from that of others."""

    def load(self) -> pa.Table:
        """Its rows, in the order of `in_order`."""


@dataclass(frozen=True)
class InHand:
    """A relation that is here already."""

    table: pa.Table
    digest: str

    def load(self) -> pa.Table:
        """Its rows."""
        return self.table


def in_order(table: pa.Table) -> tuple[pa.Table, str]:
    """The rows in an order that depends on their content only, and what tells it from others."""
    rows = one_batch(table)
    ties = hash_columns(rows.columns, rows.num_rows, exact=True)
    order = np.argsort(ties, kind="stable")
    digest = hashlib.sha256(ties[order].tobytes()).hexdigest()[:16]
    return table.take(pa.array(order)), digest


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

    def __init__(self, spec: StarJoin, relation: Shipped | None) -> None:
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
        prepared, dropped = prepare(spec.streams[stream], spec.unit, batch)
        self._check_importance(stream, prepared)
        if self.relation is None or prepared.num_rows == 0:
            return prepared, dropped
        times = prepared.column(TIME).to_numpy()
        good = self._indexed().index.matched(stream, prepared.column(KEY).to_numpy(), times)
        good[np.argmax(times)] = True
        dropped["filtered"] = int(len(good) - good.sum())
        return prepared.filter(pa.array(good)) if dropped["filtered"] else prepared, dropped

    def _check_importance(self, stream: int, prepared: pa.RecordBatch) -> None:
        side, limit = self.spec.streams[stream], self.spec.importance_limit
        if side.importance is None:
            return
        column = prepared.column(f"c{side.schema.get_field_index(side.importance)}")
        values = as_floats(column)
        good = values > 0
        if limit is not None:
            good &= values <= limit
        if not good.all():
            most = "" if limit is None else f" and at most {limit:g} (importance_limit)"
            raise TidegateError(
                f"importance must be above 0{most}, and column "
                f'"{side.importance}" of "{self.spec.stream_names[stream]}" has '
                f"{column[int(np.argmin(good))].as_py()!r}; filter such rows, or scale them"
            )

    def engine(self, shards: int, *, keep_shed: bool = False) -> StarEngine:
        """The only engine there is, or one of several for shards that nothing connects."""
        return self.engine_at(0, shards, keep_shed=keep_shed)

    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> StarEngine:
        """The engine of one shard: with its facts, and its share of the memory."""
        part = None if self.relation is None else self.facts_at(shard, shards)
        return StarEngine(self.spec, part, shards=shards, keep_shed=keep_shed)

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
    Where components are too few or too uneven, by the key of one stream: tuples of the others are
    then copied to all shards that their facts are in. That stream is taken for which fewest keys
    are copied.
    """
    if shards not in indexed.shards:
        index, read = indexed.index, indexed.known
        roots = index.components()
        names = np.full(int(roots.max(initial=0)) + 1, np.iinfo(np.uint64).max, np.uint64)
        np.minimum.at(names, roots, read.keys[0])
        place = _shard_of(names[roots], shards)
        most = np.bincount(place, minlength=shards).max(initial=0)
        if most * shards > _UNEVEN * max(len(roots), shards):
            place = min(
                (_shard_of(keys, shards) for keys in read.keys),
                key=lambda one: _copies(index, one, shards),
            )
        indexed.shards[shards] = place
    return indexed.shards[shards]


def _copies(index: FactIndex, place: NDArray[np.uint16], shards: int) -> int:
    """In how many shards keys are, all keys together."""
    keys = index.arrays.key[: index.count].astype(np.int64)
    return sum(distinct(keys[:, s] * shards + place) for s in range(index.streams))


def _shard_of(keys: NDArray[np.uint64], shards: int) -> NDArray[np.uint16]:
    high = (keys * _MIX) >> np.uint64(32)
    return ((high * np.uint64(shards)) >> np.uint64(32)).astype(np.uint16)
