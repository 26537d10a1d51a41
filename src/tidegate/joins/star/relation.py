"""Read, check and index the relation of a star join.

The relation's rows are *links*. The paper, and names in the code, call them facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.engine.payload import one_batch
from tidegate.errors import TidegateError
from tidegate.joins.star import link_index as kernel
from tidegate.joins.star.link_index import Facts
from tidegate.joins.star.spec import OPERATIONS, StarJoin
from tidegate.settings.columns import equal, hash_columns
from tidegate.settings.times import LARGEST_TIME, TimeUnit, times
from tidegate.settings.values import quoted

Hashes = NDArray[np.uint64]

#: Order of operations at one time: a delete comes before an insert, so that both are an update.
_ORDER = {"delete": 0, "update": 1, "insert": 2}
DELETE, UPDATE, INSERT = _ORDER.values()
#: The words for each, in lower case: ours, Debezium's, and Delta's. Delta has a row from before and
#: one from after an update.
_CODES = {
    **_ORDER,
    **dict.fromkeys(("d", "update_preimage"), DELETE),
    "u": UPDATE,
    **dict.fromkeys(("c", "r", "update_postimage"), INSERT),
}


def for_ever(unit: TimeUnit) -> int | float:
    """Return a time after all others."""
    return np.inf if unit.kind == "real number" else LARGEST_TIME


@dataclass(frozen=True)
class Known:
    """A static relation as arrays: key hashes by stream, and active intervals."""

    rows: pa.RecordBatch
    keys: list[Hashes]
    begin: NDArray[Any]
    end: NDArray[Any]


def known(spec: StarJoin, table: pa.Table) -> Known:
    """Read and check a static relation.

    Links with a null key can never join, and links that end when they begin are never active: both
    are dropped.
    """
    names = {name for keys in spec.relation.keys for name in keys}
    good = np.ones(len(table), np.bool_)
    rows = one_batch(table)
    for name in names:
        good &= np.asarray(rows.column(name).is_valid().to_numpy(zero_copy_only=False))
    if not good.all():
        rows = rows.filter(pa.array(good))
    begin, end = _interval(spec, rows)
    ever = begin < end
    if not ever.all():
        rows, begin, end = rows.filter(pa.array(ever)), begin[ever], end[ever]
    _check_apart(spec, rows, begin, end)
    return Known(rows, key_hashes(spec, rows), begin, end)


def key_hashes(spec: StarJoin, rows: pa.RecordBatch) -> list[Hashes]:
    """Return the key hashes of links, by stream."""
    return [
        hash_columns([rows.column(name) for name in keys], rows.num_rows)
        for keys in spec.relation.keys
    ]


def _interval(spec: StarJoin, rows: pa.RecordBatch) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return when links begin and end; a null means no bound."""
    last, dtype = for_ever(spec.unit), spec.unit.dtype
    ends = [np.full(rows.num_rows, -last, dtype), np.full(rows.num_rows, last, dtype)]
    for at, name in enumerate(spec.relation.interval or ()):
        column = rows.column(name)
        given = column.is_valid().to_numpy(zero_copy_only=False)
        ends[at][given] = times(column.filter(pa.array(given)), spec.unit)
        if np.isnan(ends[at]).any():
            raise TidegateError(
                f'"{name}" of the relation has a NaN, which is no time; make it null for an '
                "interval without that bound"
            )
    wrong = np.flatnonzero(ends[0] > ends[1])
    if len(wrong):
        raise TidegateError(
            f"a fact begins after it ends: {_shown(rows, wrong[0])}; put it right, or filter it"
        )
    return ends[0], ends[1]


def _check_apart(
    spec: StarJoin, rows: pa.RecordBatch, begin: NDArray[Any], end: NDArray[Any]
) -> None:
    """Raise an error if a link is listed twice for the same time."""
    columns = [rows.column(name) for name in spec.relation.fact]
    which = hash_columns(columns, rows.num_rows)
    order = np.lexsort((end, begin, which))
    one, next_one = order[:-1], order[1:]
    twice = (which[one] == which[next_one]) & (begin[next_one] < end[one])
    at = np.flatnonzero(twice)
    for column in columns:
        same = equal(column.take(pa.array(one[at])), column.take(pa.array(next_one[at])))
        at = at[same]
    if len(at) == 0:
        return
    a, b = (_shown(rows, int(side[at[0]])) for side in (one, next_one))
    twice_for = "the relation has a fact twice"
    what = f"{a}; drop duplicates first"
    if spec.relation.interval is not None:
        twice_for += " for one time"
        what = f"{a} and {b} overlap; merge their intervals, or make one end before the other"
    elif a != b:
        what = f"{a} and {b}; drop one of them"
    listed = ", ".join(f'"{name}"' for name in spec.relation.fact)
    raise TidegateError(
        f"{twice_for}: {what} (facts are told apart by {listed}; fact= names other columns)"
    )


def _shown(rows: pa.RecordBatch, at: Any) -> str:
    return str(rows.slice(int(at), 1).to_pylist()[0])


def operations(spec: StarJoin, rows: pa.RecordBatch) -> NDArray[np.int8]:
    """Return the operation of each row of a stream of changes, as its place in `_ORDER`."""
    assert spec.relation.changes is not None
    name, time = spec.relation.changes
    column = pc.utf8_lower(rows.column(name))
    codes = np.full(rows.num_rows, -1, np.int8)
    for operation, code in _CODES.items():
        said = pc.equal(column, operation).fill_null(False)
        codes[said.to_numpy(zero_copy_only=False)] = code
    wrong = np.flatnonzero(codes < 0)
    if len(wrong):
        listed = ", ".join(f'"{one}"' for one in OPERATIONS)
        word = rows.column(name)[int(wrong[0])].as_py()
        advice = "filter or map it"
        if str(word).lower() in ("t", "truncate"):
            advice = "a truncate names no row, so write a delete for each row instead"
        raise TidegateError(
            f"a change must be one of {listed}, or a code of Delta (update_preimage, "
            f'update_postimage) or Debezium (c, r, u, d), and column "{name}" has {quoted(word)}; '
            f"{advice}"
        )
    if rows.column(time).null_count:
        raise TidegateError(
            f'a change needs a time, and column "{time}" has a null; filter such rows, or give '
            "them one"
        )
    return codes


def operation_code(word: str) -> int:
    """Return the operation of a word, as its place in `_ORDER`."""
    return _CODES[word.lower()]


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sorted distinct values. For a million values, sorting beats numpy's hash table."""
    ordered = np.sort(values)
    kept: NDArray[Any] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return kept


class FactIndex:
    """Links that can be found by the key of any stream."""

    def __init__(self, streams: int, time: np.dtype[Any]) -> None:
        self.streams, self.time = streams, time
        self.count = 0
        self.used = [0] * streams
        self.arrays = self._empty(16, 16)

    def _empty(self, keys: int, facts: int) -> Facts:
        n = self.streams
        return Facts(
            table=np.zeros((n, 1 << (2 * keys).bit_length()), np.uint64),
            hashes=np.zeros((n, keys), np.uint64),
            first=np.full((n, keys), -1, np.int32),
            begin=np.empty(facts, self.time),
            end=np.empty(facts, self.time),
            key=np.empty((facts, n), np.int32),
            next=np.empty((facts, n), np.int32),
        )

    @property
    def entries(self) -> int:
        """Number of keys per stream that there is room for."""
        return int(self.arrays.hashes.shape[1])

    def add(self, keys: Sequence[Hashes], begin: NDArray[Any], end: NDArray[Any]) -> None:
        """Add links; they are numbered from `count` on."""
        more = len(begin)
        self._make_room(more, max(len(distinct(hashes)) for hashes in keys))
        facts, start = self.arrays, self.count
        facts.begin[start : start + more], facts.end[start : start + more] = begin, end
        for s, hashes in enumerate(keys):
            entries = np.empty(more, np.int64)
            self.used[s] = kernel.intern(facts, s, hashes, entries, self.used[s])
            facts.key[start : start + more, s] = entries
        kernel.chain(facts, start, start + more)
        self.count += more

    def know(self, stream: int, hashes: Hashes) -> None:
        """Create entries for keys, whether or not a link has them."""
        self._make_room(0, len(hashes))
        entries = np.empty(len(hashes), np.int64)
        self.used[stream] = kernel.intern(self.arrays, stream, hashes, entries, self.used[stream])

    def _make_room(self, more: int, keys: int) -> None:
        facts, count = self.arrays, self.count + more
        keys += max(self.used)
        if count <= len(facts.begin) and keys <= self.entries:
            return
        slack = 2 if self.count else 1
        grown = self._empty(max(slack * keys, self.entries), max(slack * count, len(facts.begin)))
        for s in range(self.streams):
            entries = np.empty(self.used[s], np.int64)
            kernel.intern(grown, s, facts.hashes[s, : self.used[s]], entries, 0)
            grown.first[s, : self.used[s]] = facts.first[s, : self.used[s]]
        for name in ("begin", "end", "key", "next"):
            getattr(grown, name)[: self.count] = getattr(facts, name)[: self.count]
        self.arrays = grown

    def keep(self, facts: NDArray[np.int64]) -> None:
        """Keep only these links, renumbered in this order; keys stay."""
        old = self.arrays
        for name in ("begin", "end", "key"):
            getattr(old, name)[: len(facts)] = getattr(old, name)[facts]
        old.first[:] = -1
        self.count = len(facts)
        kernel.chain(old, 0, self.count)

    def find(self, stream: int, hashes: Hashes) -> NDArray[np.int64]:
        """Return the entry of each key, or -1."""
        entries = np.empty(len(hashes), np.int64)
        kernel.find(self.arrays, stream, hashes, entries)
        return entries

    def matched(self, stream: int, hashes: Hashes, at: NDArray[Any]) -> NDArray[np.bool_]:
        """Return for each row, given its key and time, whether it has an active link."""
        found = np.empty(len(hashes), np.bool_)
        kernel.matched(self.arrays, stream, self.find(stream, hashes), at, found)
        return found

    def lead(
        self, stream: int, hashes: Hashes, at: NDArray[Any], shard: NDArray[np.uint16]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
        """Return the shards of each row's active links: row numbers, and the shard of each."""
        entries = self.find(stream, hashes)
        room = len(hashes)
        while True:
            rows, to = np.empty(room, np.int64), np.empty(room, np.uint16)
            n = kernel.lead(self.arrays, stream, entries, at, shard, rows, to)
            if n <= room:
                return rows[:n], to[:n]
            room = n

    def components(self) -> NDArray[np.int64]:
        """Return the connected component of each link: links that share a key are connected."""
        offset = np.concatenate([[0], np.cumsum(self.used)]).astype(np.int64)
        parent = np.arange(offset[-1])
        kernel.components(self.arrays, self.count, parent, offset)
        found: NDArray[np.int64] = parent[self.arrays.key[: self.count, 0]]
        return found
