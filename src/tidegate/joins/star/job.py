"""The star join as a job: settings, preparation of rows, and division into shards.

The relation's rows are *links*. The paper, and names in the code, call them facts.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Job
from tidegate.engine.payload import one_batch
from tidegate.engine.prepare import KEY, TIME, Bounds, prepare, shard_of
from tidegate.errors import TidegateError
from tidegate.joins.star.changing_relation import prepare_changes
from tidegate.joins.star.engine import StarEngine
from tidegate.joins.star.relation import FactIndex, Known, distinct, known
from tidegate.joins.star.spec import StarJoin
from tidegate.settings.columns import hash_columns

#: Number of relations that a process keeps indexed.
_MOST_INDEXED = 4
#: The largest shard may have this many times its fair share of the links.
_UNEVEN = 1.5
#: A group of links larger than a fair share divided by this is placed on its own.
_LARGE = 8


class RelationSource(Protocol):
    """A static relation that is sent to where the join runs."""

    @property
    def digest(self) -> str:
        """Hash of its content."""

    def load(self) -> pa.Table:
        """Return its rows, in the order of `in_order`."""


@dataclass(frozen=True)
class LocalRelation:
    """A relation that is in local memory."""

    table: pa.Table
    digest: str

    def load(self) -> pa.Table:
        """Return its rows."""
        return self.table


def in_order(table: pa.Table) -> tuple[pa.Table, str]:
    """Sort rows by the hash of their content. Return them with a hash of the whole table."""
    rows = one_batch(table)
    row_hashes = hash_columns(rows.columns, rows.num_rows, exact=True)
    order = np.argsort(row_hashes, kind="stable")
    digest = hashlib.sha256(row_hashes[order].tobytes()).hexdigest()[:16]
    return table.take(pa.array(order)), digest


def prepare_stream(
    spec: StarJoin, stream: int, batch: pa.RecordBatch
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """Hash the rows of one stream; importance must be in (0, U] (section 2.1 of the paper)."""
    most = np.inf if spec.importance_limit is None else spec.importance_limit
    bounds = Bounds(above_0=True, most=most, stream=spec.stream_names[stream])
    return prepare(spec.streams[stream], spec.unit, batch, bounds)


@dataclass
class _Indexed:
    """A relation with its index, and the indexes of its shards."""

    known: Known
    index: FactIndex
    shards: dict[tuple[int, bool], NDArray[np.uint16]]
    parts: dict[tuple[int, int, bool], tuple[FactIndex, NDArray[np.int64]]]


_indexed: OrderedDict[str, _Indexed] = OrderedDict()
_lock = threading.Lock()


class StarJob(Job):
    """The settings of a star join, and its engines.

    `relation` is None if the relation is a stream of changes, which is then the input after the
    streams.
    """

    def __init__(self, spec: StarJoin, relation: RelationSource | None) -> None:
        self.spec = spec
        self.relation = relation

    @property
    def kind(self) -> str:
        """The kind of join, as in the table of counters."""
        return "star"

    @property
    def result_schema(self) -> pa.Schema:
        """The columns of the streams, then the relation's columns that are not keys."""
        return self.spec.result_schema

    def check(self) -> None:
        """Read the relation; raise an error if it is wrong."""
        if self.relation is not None:
            self._indexed()

    def prepare(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Hash the rows of one input, and drop rows without an active link.

        The latest row is always left for the engine to drop, so that the stream's clock advances.
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

    def engine_at(self, shard: int, shards: int, *, keep_shed: bool = False) -> StarEngine:
        """Return the engine of one shard, with its links and its share of the memory."""
        part, memory, digest = None, self.spec.memory, None
        if self.relation is not None:
            part = self.facts_at(shard, shards)
            if memory is not None and shards > 1:
                indexed = self._indexed()
                place = self._placed(indexed, shards)
                memory = _shares(indexed, place, shards, memory, self.spec.pools)[shard]
            if _may_differ(self.spec.relation_changes, shards):
                digest = self.relation.digest
        return StarEngine(self.spec, part, memory=memory, keep_shed=keep_shed, digest=digest)

    def facts_at(self, shard: int, shards: int) -> tuple[Known, FactIndex, NDArray[np.int64]]:
        """Return all links, an index of those of one shard, and their numbers among all."""
        indexed = self._indexed()
        return (indexed.known, *self._part(indexed, shard, shards))

    def route(
        self, stream: int, prepared: pa.RecordBatch, shards: int
    ) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
        """Send every row to the shards of its active links, or to shard 0 if it has none."""
        rows = np.arange(prepared.num_rows)
        if self.relation is None:
            return rows, np.zeros(len(rows), np.uint16)
        indexed = self._indexed()
        keys, times = prepared.column(KEY).to_numpy(), prepared.column(TIME).to_numpy()
        led, to = indexed.index.lead(stream, keys, times, self._placed(indexed, shards))
        lost = np.setdiff1d(rows, led)
        return np.concatenate([led, lost]), np.concatenate([to, np.zeros(len(lost), np.uint16)])

    def fingerprint(self) -> dict[str, Any]:
        """The settings that a checkpoint depends on, with the content hash of the relation."""
        if self.relation is None:
            return {**self.spec.settings(), "relation": None}
        chosen = self.spec.relation_changes
        own = {} if chosen is None else {"relation_changes": chosen}
        return {**self.spec.settings(), "relation": self.relation.digest, **own}

    def changeable(self, written_with: Mapping[str, Any]) -> Set[str]:
        """Return that the relation may differ, if its links are in the state and stay in place."""
        if self.relation is None:
            return frozenset()
        shards = written_with["shards"]
        mine, old = self.spec.relation_changes, written_with.get("relation_changes")
        free = {"relation"} if all(_may_differ(v, shards) for v in (mine, old)) else set()
        if "relation" not in free and written_with["relation"] != self.relation.digest:
            raise TidegateError(_refusal(mine, old, shards))
        if shards == 1 or (mine == "apply") == (old == "apply"):
            free.add("relation_changes")
        return free

    def _indexed(self) -> _Indexed:
        """Return the indexed relation; a process indexes it once."""
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
        """Return an index of the links of one shard, and their numbers among all."""
        if shards == 1:
            return indexed.index, np.arange(indexed.index.count)
        name = shard, shards, self._by_key
        if name not in indexed.parts:
            numbers = np.flatnonzero(self._placed(indexed, shards) == shard)
            index = FactIndex(len(self.spec.streams), self.spec.unit.dtype)
            whole = indexed.known
            keys = [hashes[numbers] for hashes in whole.keys]
            index.add(keys, whole.begin[numbers], whole.end[numbers])
            indexed.parts[name] = index, numbers
        return indexed.parts[name]

    @property
    def _by_key(self) -> bool:
        """True if the shard of a link must not depend on other links."""
        return self.spec.relation_changes == "apply"

    def _placed(self, indexed: _Indexed, shards: int) -> NDArray[np.uint16]:
        """Return the shard of each link: by its key of the first stream, or as is most even."""
        name = shards, self._by_key
        if name not in indexed.shards:
            first = indexed.known.keys[0]
            place = shard_of(first, shards) if self._by_key else _evenly(indexed, shards)
            indexed.shards[name] = place
        return indexed.shards[name]


def _may_differ(setting: str | None, shards: int) -> bool:
    """Return True if a table may differ after a restart, by the setting `relation_changes`."""
    return setting == "apply" or (setting is None and shards == 1)


def _refusal(mine: str | None, old: str | None, shards: int) -> str:
    """Say why another table is refused."""
    said = "the relation differs from that of the checkpoint, "
    if mine == "refuse":
        return (
            f'{said}and relation_changes="refuse"; read the relation as it was, leave '
            "relation_changes out, or start with a new checkpoint location"
        )
    if old == "refuse":
        return (
            f"{said}which was written without the relation's links; read the relation as it was "
            "once more, and change it at the restart after that, or start with a new checkpoint "
            "location"
        )
    return (
        f"{said}and its links would move between {shards} shards; read the relation as it was, or "
        'start with a new checkpoint location and with relation_changes="apply" or shards=1'
    )


def _evenly(indexed: _Indexed, shards: int) -> NDArray[np.uint16]:
    """Place links in shards of about the same size.

    Links are placed by connected component, so that every row goes to one shard. If there are too
    few components or they are too uneven, links are placed by the key of one stream if that is more
    even. Rows of the other streams are then copied to all shards of their links. Among streams that
    are even enough, the one with the fewest copied keys is chosen.
    """
    index, keys = indexed.index, indexed.known.keys
    enough = int(_UNEVEN * max(index.count, shards))

    def unevenness(place: NDArray[np.uint16]) -> int:
        return max(int(np.bincount(place).max(initial=0)) * shards, enough)

    place = _dealt(index.components(), keys[0], shards)
    if unevenness(place) > enough:
        entries = index.arrays.key[: index.count].T
        of_keys = [_dealt(e, k, shards) for e, k in zip(entries, keys, strict=True)]
        place = min((place, *of_keys), key=lambda p: (unevenness(p), _held(index, p, shards).sum()))
    return place


def _dealt(groups: NDArray[Any], keys: NDArray[np.uint64], shards: int) -> NDArray[np.uint16]:
    """Place groups of links: large groups go to the least loaded shard, small ones fill up.

    The result depends on content only: groups are ordered by their smallest key.
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
    """Return the number of keys in each shard, of all streams together."""
    total = np.zeros(shards, np.int64)
    for s in range(index.streams):
        entries = index.arrays.key[: index.count, s].astype(np.int64)
        total += np.bincount(distinct(entries * shards + place) % shards, minlength=shards)
    return total


def _shares(
    indexed: _Indexed, place: NDArray[np.uint16], shards: int, memory: int, pools: int
) -> list[int]:
    """Divide the memory among shards by their number of keys; a shard without links gets none."""
    weight = _held(indexed.index, place, shards)
    least = np.where(weight > 0, pools, 0)
    whole = np.cumsum(weight) * ((memory - least.sum()) / max(weight.sum(), 1))
    shares: list[int] = (least + np.diff(np.rint(whole).astype(np.int64), prepend=0)).tolist()
    return shares
