"""A relation that is a stream of changes: inserts, deletes and updates at their own times.

Each link (fact, in the paper and in the code) is stored with its active interval. Changes are
therefore applied as soon as they arrive, before the rows of their batch: a row that is older than a
change is not affected by it (section 2.2 of the paper).

A change may come in any batch, until rows of its time have been joined. Changes of one link are
sorted by time together with the known changes of this link, so the result does not depend on how
the input is cut into batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.payload import Payload
from tidegate.errors import TidegateError
from tidegate.joins.star.relation import (
    DELETE,
    INSERT,
    UPDATE,
    FactIndex,
    distinct,
    for_ever,
    key_hashes,
    operation_code,
    operations,
)
from tidegate.joins.star.spec import StarJoin
from tidegate.settings.columns import hash_columns
from tidegate.settings.times import shown, times

#: Columns of a prepared change before the input's: which link, when, content hash, operation. The
#: hashes of the keys follow these.
_HEAD = ("key", "time", "row_hash", "operation")
#: Ended links are dropped when there are more than this, and more than the others.
_FEW = 1024


def prepare_changes(spec: StarJoin, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Check and hash rows of a stream of changes."""
    assert spec.relation.changes is not None
    codes = operations(spec, batch)
    said, name = spec.relation.changes
    when = times(batch.column(name), spec.unit)
    if not np.isfinite(when).all():
        raise TidegateError(
            f'a change needs a time, and column "{name}" has {when[~np.isfinite(when)][0]}; filter '
            "such rows, or give them one"
        )
    which = hash_columns([batch.column(name) for name in spec.relation.fact], batch.num_rows)
    # Leave the operation out: it may be written in upper or lower case.
    content = [c for c, n in zip(batch.columns, batch.schema.names, strict=True) if n != said]
    row_hashes = hash_columns(content, batch.num_rows, exact=True)
    head = [which, when, row_hashes, codes, *key_hashes(spec, batch)]
    return pa.RecordBatch.from_arrays(
        [*map(pa.array, head), *batch.columns], schema=_prepared(spec)
    )


def _prepared(spec: StarJoin) -> pa.Schema:
    time = pa.from_numpy_dtype(spec.unit.dtype)
    kinds = (pa.uint64(), time, pa.uint64(), pa.int8())
    keys = [(f"k{s}", pa.uint64()) for s in range(len(spec.streams))]
    payload = [(f"c{i}", field.type) for i, field in enumerate(spec.relation.schema)]
    return pa.schema([*zip(_HEAD, kinds, strict=True), *keys, *payload])


class _Chain(NamedTuple):
    """New and known changes of some links, sorted by link and time."""

    rows: pa.Table  # prepared, not sorted
    order: NDArray[np.int64]  # the row of each change
    which: NDArray[np.uint64]
    when: NDArray[Any]
    code: NDArray[np.int8]
    # The number of the link that a change made; _NEW if it is not added yet, _NONE for a delete.
    made: NDArray[np.int64]
    had: NDArray[np.int64]  # by link: the number of its state before all these changes, or -1

    @property
    def first(self) -> NDArray[np.bool_]:
        """Mask of the first change of each link."""
        return np.append(True, self.which[1:] != self.which[:-1])


_NEW, _NONE = -1, -2


class ChangingRelation:
    """The links that a stream of changes makes, and their active intervals."""

    def __init__(self, spec: StarJoin) -> None:
        self._spec = spec
        self._streams = len(spec.streams)
        self._always = for_ever(spec.unit)
        self._schema = pa.schema([(f"c{i}", f.type) for i, f in enumerate(spec.relation.schema)])
        self.index = FactIndex(self._streams, spec.unit.dtype)
        self.rows = Payload(self._schema)
        self._which = np.empty(0, np.uint64)  # by link: hash of its identifying columns
        self._ids = np.empty(0, np.int64)  # by link: how many were added before it
        self._next_id = self._mark = 0
        self._ended: list[tuple[int, int | float]] = []  # since the mark: ids and ends

    @property
    def nbytes(self) -> int:
        """Bytes that the links take."""
        return self.rows.nbytes + self.index.count * 16

    def apply(self, batches: Sequence[pa.RecordBatch], done: Any) -> NDArray[np.int64]:
        """Apply changes after the time `done`; return the links whose end is now known or earlier.

        If one change is wrong, none is applied.
        """
        batches = [b for b in batches if b.num_rows]
        if not batches:
            return np.empty(0, np.int64)
        new = pa.Table.from_batches(batches)
        when = new.column("time").to_numpy()
        if when.min() <= done:
            self._refuse(
                self._said(new, int(when.argmin())),
                f"comes after rows of the time {shown(done, self._spec.unit)} have been joined, "
                "which it would change: have changes arrive before the rows they are for",
            )
        chain = self._chained(new, done)
        self._check(chain)
        return self._take(chain)

    def _chained(self, new: pa.Table, done: Any) -> _Chain:
        """Merge new changes with the known changes of the same links; drop duplicates."""
        affected = distinct(new.column("key").to_numpy())
        known, made, had = self._known(affected, done)
        rows = pa.concat_tables([new, known])
        makes = new.column("operation").to_numpy() != DELETE
        made = np.concatenate([np.where(makes, _NEW, _NONE), made])
        which, when, row_hash, code = (rows.column(name).to_numpy() for name in _HEAD)
        # All deletes of a link at one time are one change, whatever other columns contain.
        same = np.where(code == DELETE, np.uint64(0), row_hash)
        order = np.lexsort((-made, same, code, when, which))
        which, when, code, same, made = (a[order] for a in (which, when, code, same, made))
        moment = np.append(True, (which[1:] != which[:-1]) | (when[1:] != when[:-1]))
        keep = np.append(True, moment[1:] | (code[1:] != code[:-1]) | (same[1:] != same[:-1]))
        # A link that ends with a known update was not deleted.
        tick = np.cumsum(moment) - 1
        updated = np.bincount(tick[(code == UPDATE) & (made >= 0)], minlength=len(tick)) > 0
        keep &= ~((order >= len(new)) & (code == DELETE) & updated[tick])
        order, which, when, code, made = (a[keep] for a in (order, which, when, code, made))
        return _Chain(rows, order, which, when, code, made, had)

    def _known(
        self, affected: NDArray[np.uint64], done: Any
    ) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.int64]]:
        """Return the changes of some links after a time, what each made, and the links before.

        Changes need not be stored: a link tells when and by which row it was made, and when it
        ended.
        """
        facts, count = self.index.arrays, self.index.count
        begin, end = facts.begin[:count], facts.end[:count]
        live = np.flatnonzero(end > done)
        live = live[_among(self._which[live], affected)]
        # Links without a key never begin, so their rows have to be checked, too.
        is_told = (begin[live] > done) | (end[live] < self._always)
        told = live[is_told]
        rows = prepare_changes(self._spec, self._raw(self.rows.take(told)))
        recent = rows.column("time").to_numpy() > done
        gone = end[told] < self._always
        before = np.concatenate([live[~is_told], told[~recent]])
        had = np.full(len(affected), -1, np.int64)
        had[np.searchsorted(affected, self._which[before])] = before
        inserts = pa.Table.from_batches([rows.filter(pa.array(recent))])
        deletes = _deletes(rows.filter(pa.array(gone)), end[told[gone]])
        made = np.concatenate([told[recent], np.full(len(deletes), _NONE)])
        return pa.concat_tables([inserts, deletes]), made, had

    def _check(self, chain: _Chain) -> None:
        """Raise an error if changes contradict each other or the links before them."""
        which, when, code = chain.which, chain.when, chain.code
        one, other = code[:-1], code[1:]
        at_once = (which[1:] == which[:-1]) & (when[1:] == when[:-1])
        clash = at_once & ~((one == DELETE) & (other == INSERT))
        if clash.any():
            at = int(np.argmax(clash))
            a, b = (self._said(chain.rows, int(chain.order[i])) for i in (at, at + 1))
            raise TidegateError(
                f"two changes of one fact at the time {shown(when[at], self._spec.unit)} "
                f"contradict each other: {a} and {b}; a fact may have one change at a time, or a "
                "delete and an insert, which replace it: leave one out, or give it another time"
                + self._advice()
            )
        before = np.append(False, code[:-1] != DELETE)
        before[chain.first] = chain.had >= 0
        for wrong, why in (
            ((code == INSERT) & before, "inserts a fact that is there: delete or update it"),
            ((code != INSERT) & ~before, "is of a fact that is not there: insert it first"),
        ):
            if wrong.any():
                at = int(np.argmax(wrong))
                order = ""
                if at + 1 < len(code) and at_once[at]:
                    order = ", at an earlier time (of one time, a delete comes before an insert)"
                advice = self._advice() if code[at] == INSERT else order
                self._refuse(self._said(chain.rows, int(chain.order[at])), why + advice)

    def _take(self, chain: _Chain) -> NDArray[np.int64]:
        """Add the links that changes make, and set the ends of those they replace or delete."""
        first = chain.first
        end = np.append(chain.when[1:], 0).astype(chain.when.dtype)
        end[np.append(first[1:], True)] = self._always
        old = np.concatenate([chain.had[chain.had >= 0], chain.made[chain.made >= 0]])
        ends = np.concatenate([chain.when[first][chain.had >= 0], end[chain.made >= 0]])
        earlier = ends < self.index.arrays.end[old]
        old, ends = old[earlier], ends[earlier]
        self._end(old, ends)
        self._ended += zip(self._ids[old].tolist(), ends.tolist(), strict=True)
        made = np.flatnonzero(chain.made == _NEW)
        made = made[np.lexsort((chain.which[made], chain.when[made]))]
        number = self.index.count + np.arange(len(made))
        rows = chain.rows.take(pa.array(chain.order[made]))
        self._add(
            chain.which[made],
            self._next_id + np.arange(len(made)),
            [rows.column(f"k{s}").to_numpy() for s in range(self._streams)],
            np.where(self._joinable(rows), chain.when[made], self._always).astype(end.dtype),
            end[made],
            self._payload(rows),
        )
        self._next_id += len(made)
        return np.concatenate([old, number[end[made] < self._always]])

    def _payload(self, prepared: pa.Table) -> pa.Table:
        """Return the input columns of prepared changes."""
        return prepared.select(self._schema.names)

    def _raw(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.rename_columns(self._spec.relation.schema.names)

    def _joinable(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return for each link whether it has all keys; a link with a null key never begins."""
        schema = self._spec.relation.schema
        good = np.ones(len(rows), np.bool_)
        for name in {name for keys in self._spec.relation.keys for name in keys}:
            good &= rows.column(f"c{schema.get_field_index(name)}").is_valid().to_numpy()
        return good

    def _said(self, rows: pa.Table, at: int) -> str:
        """Describe a change: its operation and its link."""
        relation = self._spec.relation
        assert relation.changes is not None
        one = rows.slice(at, 1)
        row = self._payload(one).rename_columns(relation.schema.names).to_pylist()[0]
        code = one.column("operation")[0].as_py()
        operation, word = ("delete", "update", "insert")[code], row.pop(relation.changes[0])
        if operation_code(word) == code:
            operation = word.lower()
        if code == DELETE:
            row = {name: row[name] for name in relation.fact}
        row[relation.changes[1]] = shown(one.column("time")[0].as_py(), self._spec.unit)
        return f'"{operation}" of {row}'

    def _refuse(self, said: str, why: str) -> NoReturn:
        raise TidegateError(f"a change of the relation {why}; it is {said}")

    def _advice(self) -> str:
        """Hint for links that differ but have the same identifying columns."""
        listed = ", ".join(f'"{name}"' for name in self._spec.relation.fact)
        return f" (facts are told apart by {listed}; fact= names other columns)"

    def _add(
        self,
        which: NDArray[np.uint64],
        ids: NDArray[np.int64],
        keys: list[NDArray[np.uint64]],
        begin: NDArray[Any],
        end: NDArray[Any],
        rows: pa.Table,
    ) -> None:
        self._which = np.concatenate([self._which, which])
        self._ids = np.concatenate([self._ids, ids])
        self.rows.add(rows.to_batches())
        self.rows.join_chunks()
        self.index.add(keys, begin, end)

    def _end(self, facts: NDArray[np.int64], ends: NDArray[Any]) -> None:
        self.index.arrays.end[facts] = ends

    def forget(self, before: Any) -> bool:
        """Drop the links that ended by a time if they are many. Return True if links were dropped.

        All links have new numbers then.
        """
        keep = np.flatnonzero(self.index.arrays.end[: self.index.count] > before)
        if 2 * len(keep) + _FEW > self.index.count:
            return False
        self.index.keep(keep)
        self.rows.trim(0, keep)
        self._which, self._ids = self._which[keep], self._ids[keep]
        return True

    # ---- state --------------------------------------------------------------------------------

    def log(self) -> dict[str, pa.RecordBatch]:
        """Return what has changed since the last record."""
        parts = self._parts(np.flatnonzero(self._ids >= self._mark), self._ended)
        self._mark, self._ended = self._next_id, []
        return parts

    def _parts(
        self, facts: NDArray[np.int64], ended: list[tuple[int, int | float]]
    ) -> dict[str, pa.RecordBatch]:
        kind = pa.from_numpy_dtype(self._spec.unit.dtype)
        ends = [pa.array([i for i, _ in ended], pa.int64()), pa.array([e for _, e in ended], kind)]
        return {
            "facts": self._records(facts),
            "ended": pa.record_batch(ends, ["id", "end"]),
        }

    def whole(self) -> dict[str, pa.RecordBatch]:
        """Return all links."""
        self._mark, self._ended = 0, []
        return self.log()

    def learn(self, other: ChangingRelation) -> None:
        """Copy the links of another relation into this empty one."""
        self.load(other._parts(np.arange(other.index.count), []))

    def _records(self, facts: NDArray[np.int64]) -> pa.RecordBatch:
        arrays = self.index.arrays
        own = {"which": self._which[facts], "id": self._ids[facts]}
        own |= {"begin": arrays.begin[facts], "end": arrays.end[facts]}
        own |= {f"k{s}": arrays.hashes[s, arrays.key[facts, s]] for s in range(self._streams)}
        rows = self.rows.take(facts)
        names = [*own, *rows.schema.names]
        return pa.RecordBatch.from_arrays([*map(pa.array, own.values()), *rows.columns], names)

    def load(self, parts: dict[str, pa.RecordBatch]) -> None:
        """Apply a record; those of a snapshot come first."""
        facts = parts["facts"]
        table = pa.Table.from_batches([facts])
        which, ids, begin, end = (table.column(i).to_numpy() for i in range(4))
        keys = [table.column(f"k{s}").to_numpy() for s in range(self._streams)]
        rows = table.select(list(range(4 + self._streams, table.num_columns)))
        if len(ids):
            self._add(which, ids, keys, begin, end, rows)
            self._next_id = max(self._next_id, int(ids.max()) + 1)
        ended, ends = (column.to_numpy() for column in parts["ended"].columns)
        # A link that began, ended and was dropped between two records is in neither.
        known = np.isin(ended, self._ids)
        self._end(np.searchsorted(self._ids, ended[known]), ends[known])
        self._mark = self._next_id


def _among(values: NDArray[np.uint64], some: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return for each value whether it is in `some`, which is sorted and short."""
    at = np.minimum(np.searchsorted(some, values), len(some) - 1)
    found: NDArray[np.bool_] = some[at] == values
    return found


def _deletes(facts: pa.RecordBatch, ends: NDArray[Any]) -> pa.Table:
    """Return the deletes of links. `facts` are the changes that made them, `ends` their ends."""
    columns = dict(zip(facts.schema.names, facts.columns, strict=True))
    columns |= {"time": pa.array(ends), "operation": pa.array(np.full(len(ends), DELETE, np.int8))}
    return pa.table(columns, schema=facts.schema)
