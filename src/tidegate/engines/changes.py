"""A relation that is a stream of changes: inserts, deletes and updates at their own times.

A fact is found by its interval, so that changes can be taken in as they come, before the tuples
of their batch: one that came before a change is not affected by it (section 2.2 of the paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.columns import hash_columns
from tidegate.engines.facts import (
    DELETE,
    INSERT,
    FactIndex,
    for_ever,
    key_hashes,
    operations,
)
from tidegate.engines.payload import Payload
from tidegate.errors import TidegateError
from tidegate.star_spec import StarJoin
from tidegate.times import times

#: Columns of a prepared change before those of the input: which fact, when, content, what, keys.
_HEAD = ("key", "time", "tie", "operation")
#: Facts that may have ended before they are dropped.
_FEW = 1024


def prepare_changes(spec: StarJoin, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Check and hash rows of a stream of changes."""
    assert spec.relation.changes is not None
    codes = operations(spec, batch)
    name = spec.relation.changes[1]
    when = times(batch.column(name), spec.unit)
    if np.isnan(when).any():
        raise TidegateError(
            f'a change needs a time, and column "{name}" has a NaN; filter such rows, or give them '
            "one"
        )
    which = hash_columns([batch.column(name) for name in spec.relation.fact], batch.num_rows)
    ties = hash_columns(batch.columns, batch.num_rows, exact=True)
    head = [which, when, ties, codes, *key_hashes(spec, batch)]
    return pa.RecordBatch.from_arrays(
        [*map(pa.array, head), *batch.columns], schema=_prepared(spec)
    )


def _prepared(spec: StarJoin) -> pa.Schema:
    time = pa.from_numpy_dtype(spec.unit.dtype)
    kinds = (pa.uint64(), time, pa.uint64(), pa.int8())
    keys = [(f"k{s}", pa.uint64()) for s in range(len(spec.streams))]
    payload = [(f"c{i}", field.type) for i, field in enumerate(spec.relation.schema)]
    return pa.schema([*zip(_HEAD, kinds, strict=True), *keys, *payload])


class ChangingRelation:
    """The facts of a stream of changes, and which of them are active."""

    def __init__(self, spec: StarJoin) -> None:
        self._spec = spec
        self._streams = len(spec.streams)
        self._always = for_ever(spec.unit)
        self._schema = pa.schema([(f"c{i}", f.type) for i, f in enumerate(spec.relation.schema)])
        self.index = FactIndex(self._streams, spec.unit.dtype)
        self.rows = Payload(self._schema)
        self._which = np.empty(0, np.uint64)  # by fact: what tells it from others
        self._ids = np.empty(0, np.int64)  # by fact: how many came before it
        self._next_id = self._mark = 0
        self._active: dict[int, int] = {}  # the number of the fact without an end, by what it is
        self._ended: list[tuple[int, int | float]] = []  # since the mark: ids and ends

    @property
    def nbytes(self) -> int:
        """What the facts take."""
        return self.rows.nbytes + self.index.count * 16

    def apply(self, batches: Sequence[pa.RecordBatch], done: Any) -> NDArray[np.int64]:
        """Take in changes after the time `done`: the facts whose end is known now.

        Nothing is taken in if one of them is wrong.
        """
        batches = [b for b in batches if b.num_rows]
        if not batches:
            return np.empty(0, np.int64)
        table = pa.Table.from_batches(batches)
        which, when, tie, code = (table.column(name).to_numpy() for name in _HEAD)
        if when.min() <= done:
            self._refuse(
                table,
                int(when.argmin()),
                f"comes after tuples of the time {done} have been joined, which it would change: "
                "have changes arrive before the tuples they are for",
            )
        order = np.lexsort((tie, code, when, which))
        which, when, code = which[order], when[order], code[order]
        new = np.append(True, which[1:] != which[:-1])  # the first change of a fact
        last = np.append(new[1:], True)
        had = np.array([self._active.get(w, -1) for w in which[new].tolist()], np.int64)
        before = np.append(False, code[:-1] != DELETE)
        before[new] = had >= 0
        for wrong, what in (
            ((code == INSERT) & before, "inserts a fact that is there: delete or update it"),
            ((code != INSERT) & ~before, "is of a fact that is not there: insert it first"),
        ):
            if wrong.any():
                self._refuse(table, int(order[np.argmax(wrong)]), what)
        ended, ends = had[had >= 0], when[new][had >= 0]
        made = np.flatnonzero(code != DELETE)
        end = np.where(last, self._always, np.append(when[1:], 0)).astype(when.dtype)
        # In order of time, whatever batches they came in.
        made = made[np.lexsort((which[made], when[made]))]
        first = self.index.count
        rows = table.select(list(range(len(_HEAD) + self._streams, table.num_columns)))
        rows = rows.take(pa.array(order[made]))
        self._add(
            which[made],
            self._next_id + np.arange(len(made)),
            [table.column(f"k{s}").to_numpy()[order[made]] for s in range(self._streams)],
            np.where(self._joinable(rows), when[made], self._always).astype(when.dtype),
            end[made],
            rows,
        )
        self._next_id += len(made)
        self._end(ended, ends)
        self._ended += zip(self._ids[ended].tolist(), ends.tolist(), strict=True)
        for w in which[last & (code == DELETE)].tolist():
            self._active.pop(w, None)
        number = np.full(len(which), -1, np.int64)
        number[made] = first + np.arange(len(made))
        alive = last & (code != DELETE)
        self._active |= zip(which[alive].tolist(), number[alive].tolist(), strict=True)
        finite = number[made[end[made] < self._always]]
        return np.concatenate([ended, finite])

    def _joinable(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Whether facts have all their keys; those that have a null there never begin."""
        schema = self._spec.relation.schema
        good = np.ones(len(rows), np.bool_)
        for name in {name for keys in self._spec.relation.keys for name in keys}:
            good &= rows.column(schema.get_field_index(name)).is_valid().to_numpy()
        return good

    def _refuse(self, table: pa.Table, at: int, why: str) -> None:
        rows = table.slice(at, 1).select(list(range(len(_HEAD) + self._streams, table.num_columns)))
        shown = rows.rename_columns(self._spec.relation.schema.names).to_pylist()[0]
        raise TidegateError(f"a change of the relation {why}; it is {shown}")

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
        """Drop the facts that ended by a time, if they are many; whether they were.

        Then all facts have new numbers.
        """
        keep = np.flatnonzero(self.index.arrays.end[: self.index.count] > before)
        if 2 * len(keep) + _FEW > self.index.count:
            return False
        self.index.keep(keep)
        self.rows.rewrite(keep)
        self._which, self._ids = self._which[keep], self._ids[keep]
        self._list_active()
        return True

    def _list_active(self) -> None:
        open_ended = np.flatnonzero(self.index.arrays.end[: self.index.count] == self._always)
        self._active = dict(zip(self._which[open_ended].tolist(), open_ended.tolist(), strict=True))

    # ---- state --------------------------------------------------------------------------------

    def log(self) -> dict[str, pa.RecordBatch]:
        """What has changed since the last record."""
        ended = self._ended
        parts = {
            "facts": self._records(np.flatnonzero(self._ids >= self._mark)),
            "ended": pa.record_batch(
                [
                    pa.array([i for i, _ in ended], pa.int64()),
                    pa.array([e for _, e in ended], pa.from_numpy_dtype(self._spec.unit.dtype)),
                ],
                ["id", "end"],
            ),
        }
        self._mark, self._ended = self._next_id, []
        return parts

    def whole(self) -> dict[str, pa.RecordBatch]:
        """All facts."""
        self._mark, self._ended = 0, []
        return self.log()

    def _records(self, facts: NDArray[np.int64]) -> pa.RecordBatch:
        arrays = self.index.arrays
        own = {"which": self._which[facts], "id": self._ids[facts]}
        own |= {"begin": arrays.begin[facts], "end": arrays.end[facts]}
        own |= {f"k{s}": arrays.hashes[s, arrays.key[facts, s]] for s in range(self._streams)}
        rows = self.rows.take(facts)
        names = [*own, *rows.schema.names]
        return pa.RecordBatch.from_arrays([*map(pa.array, own.values()), *rows.columns], names)

    def load(self, parts: dict[str, pa.RecordBatch]) -> None:
        """Take in a record; the records of a snapshot come first."""
        facts = parts["facts"]
        table = pa.Table.from_batches([facts])
        which, ids, begin, end = (table.column(i).to_numpy() for i in range(4))
        keys = [table.column(f"k{s}").to_numpy() for s in range(self._streams)]
        rows = table.select(list(range(4 + self._streams, table.num_columns)))
        if len(ids):
            self._add(which, ids, keys, begin, end, rows)
            self._next_id = max(self._next_id, int(ids.max()) + 1)
        ended, ends = (column.to_numpy() for column in parts["ended"].columns)
        # One that began, ended and was dropped between two records is in none.
        known = np.isin(ended, self._ids)
        self._end(np.searchsorted(self._ids, ended[known]), ends[known])
        self._list_active()
        self._mark = self._next_id
