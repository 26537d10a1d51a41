"""The state log that all engines share.

The state of an engine is a log of records: a snapshot or nothing, then one record of changes after
every batch. `LoggedEngine` writes the records, counts what they contain, knows when most of the log
is outdated, and reads a log back. An engine supplies and applies only the content.

A record has a head of plain values and parts, which are record batches:

- `held0`, `held1`, ...: held rows of each stream. Changes have only the rows that are new, in
  pieces `held0/0`, `held0/1`, ... A snapshot has one record for each piece.
- `gone`: the sequence numbers of rows of earlier records that are no longer held.
- `moved`: other changes of rows of earlier records.
- `open0`, `open1`, ...: all rows of the open tick of each stream.
- `inner`: a record of the engine inside this one.
- other parts of the engine. A part `all_x` replaces every part `x` of earlier records.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Engine
from tidegate.engine.payload import Payload
from tidegate.engine.state_codec import INNER, Parts, from_bytes, to_bytes, unwrapped, wrapped
from tidegate.errors import TidegateError

#: The largest number of rows, and of their bytes, in one record of a snapshot. A log of less than
#: this beyond what is held is never heavy.
RECORD_ROWS = 1 << 16
RECORD_BYTES = 16 << 20
#: A log is heavy if it has more than this multiple of what is held.
_HEAVY = 4


class LoggedEngine(Engine):
    """An engine that writes its state to a log; subclasses supply and apply the content."""

    #: The number of streams whose rows are held.
    _streams: int
    #: The rows of the open tick of each stream.
    _open: list[pa.RecordBatch]
    #: The engine inside this one, which has a log of its own.
    _inner: Engine | None = None
    #: True if earlier records no longer fit the state, so that the next one must be a snapshot.
    _log_is_outdated = False
    _logged_rows = 0
    _logged_bytes = 0

    # ---- supplied by subclasses ---------------------------------------------------------------

    @abstractmethod
    def _head(self) -> dict[str, Any]:
        """Return the plain values of the state."""

    def _parts(self, *, changed: bool) -> Parts:
        """Return the parts besides rows: what changed since the last record, or everything."""
        return {}

    @abstractmethod
    def _held_rows(
        self, stream: int, most: tuple[int, int] | None, *, changed: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the held rows of a stream in pieces, the new ones or all.

        `most` limits the rows and the bytes of a piece, if it is given.
        """

    def _open_rows(self) -> list[pa.RecordBatch]:
        """Return the rows of the open tick of each stream."""
        return self._open

    def _load_open(self, rows: list[pa.RecordBatch]) -> None:
        """Set the rows of the open tick of each stream."""
        self._open = rows

    def _gone(self) -> NDArray[np.int64]:
        """Return the sequence numbers of logged rows that are no longer held."""
        return np.empty(0, np.int64)

    @abstractmethod
    def _held_size(self) -> tuple[int, int]:
        """Return the number of held rows, and the bytes of all that a snapshot would have."""

    def _held_by_stream(self) -> list[int]:
        """Return the number of held rows of each stream, if that is known."""
        return []

    @abstractmethod
    def _load(self, log: Replay) -> None:
        """Apply the content of a log; the open tick and the inner engine are restored already."""

    def _adapt(self, log: Replay, written_with: Mapping[str, Any]) -> None:
        """Rewrite a log of an engine with other settings as if this engine had written it."""
        raise TidegateError("this kind of join cannot go on with other settings")

    def _mark(self) -> None:
        """Note that all of the state is in the log now."""

    # ---- the log ------------------------------------------------------------------------------

    def changes(self) -> bytes:
        """Return a record of all changes since the last record."""
        gone = {"gone": batch_of({"seq": self._gone()})}
        parts = {**gone, **self._parts(changed=True), **self._opened()}
        for stream in range(self._streams):
            for number, piece in enumerate(self._held_rows(stream, None, changed=True)):
                parts[f"held{stream}/{number}"] = piece
        if self._inner is not None:
            parts[INNER] = wrapped(self._inner.changes())
        record = to_bytes(self._sized_head(), parts)
        self._logged_rows += _rows_of(parts)
        self._logged_bytes += len(record) - _inner_size(parts)
        self._mark()
        return record

    def snapshot(self) -> list[bytes]:
        """Return the whole state as records."""
        head = self._sized_head()
        records = [to_bytes(head, {**self._parts(changed=False), **self._opened()})]
        for stream in range(self._streams):
            for piece in self._held_rows(stream, (RECORD_ROWS, RECORD_BYTES), changed=False):
                records.append(to_bytes(head, {f"held{stream}": piece}))
        self._logged_rows = self._held_size()[0]
        self._logged_bytes = sum(map(len, records))
        if self._inner is not None:
            records += [to_bytes(head, {INNER: wrapped(r)}) for r in self._inner.snapshot()]
        self._log_is_outdated = False
        self._mark()
        return records

    def restore(
        self, records: Iterable[bytes], written_with: Mapping[str, Any] | None = None
    ) -> None:
        """Load the state from a snapshot and all later changes, in order; for a new engine."""
        log = Replay(records)
        if written_with is not None:
            self._adapt(log, written_with)
        opened = enumerate(self._open_rows())
        self._load_open([log.last(f"open{stream}", none) for stream, none in opened])
        if self._inner is not None:
            self._inner.restore(log.inner, written_with)
        self._load(log)
        self._logged_rows, self._logged_bytes = log.rows, log.nbytes
        self._mark()

    @property
    def log_is_heavy(self) -> bool:
        """True if more than three quarters of the log are outdated, or if it no longer fits."""
        rows, nbytes = self._held_size()
        return (
            self._log_is_outdated
            or self._logged_rows > _HEAVY * rows + RECORD_ROWS
            or self._logged_bytes > _HEAVY * nbytes + RECORD_BYTES
            or (self._inner is not None and self._inner.log_is_heavy)
        )

    def _sized_head(self) -> dict[str, Any]:
        """Return the plain values of the state, and how much is held, for `spark.checkpoint`."""
        return {**self._head(), "held": self._held_by_stream() or [self._held_size()[0]]}

    def _opened(self) -> Parts:
        return {f"open{stream}": rows for stream, rows in enumerate(self._open_rows())}


class Replay:
    """The content of a log, with later records over earlier ones.

    Attributes
    ----------
    head
        The plain values of the last record.
    records
        The parts of each record, in order.
    inner
        The records of the inner engine.
    rows, nbytes
        The size of the log, without the inner engine.
    """

    def __init__(self, records: Iterable[bytes]) -> None:
        self.head: dict[str, Any] = {}
        self.records: list[Parts] = []
        self.inner: list[bytes] = []
        self.nbytes = 0
        for record in records:
            head, parts = from_bytes(record)
            self.head = head or self.head
            self.nbytes += len(record) - _inner_size(parts)
            if INNER in parts:
                self.inner.append(unwrapped(parts.pop(INNER)))
            self.records.append(parts)
        self.gone = _column(self.all("gone"), "seq", np.dtype(np.int64))
        self.rows = sum(map(_rows_of, self.records))

    def all(self, name: str) -> list[pa.RecordBatch]:
        """Return every version of a part, in order, from the last one that replaces all before."""
        found: list[pa.RecordBatch] = []
        for parts in self.records:
            if f"all_{name}" in parts:
                found = [parts[f"all_{name}"]]
            found += [batch for key, batch in parts.items() if key.partition("/")[0] == name]
        return found

    def last(self, name: str, default: Any = None) -> Any:
        """Return the last version of a part, or the default if no record has it."""
        return next((parts[name] for parts in reversed(self.records) if name in parts), default)

    def held(
        self, stream: int, types: Mapping[str, np.dtype[Any]], payload: Payload
    ) -> dict[str, NDArray[Any]]:
        """Return columns of all logged rows of a stream, and add the rows to a payload.

        Use `survivors` to leave out rows that are no longer held.
        """
        batches = self.all(f"held{stream}")
        payload.add(batches)
        return {name: _column(batches, name, dtype) for name, dtype in types.items()}

    def survivors(self, seq: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return True for the sequence numbers of rows that no later record removes."""
        kept: NDArray[np.bool_] = ~np.isin(seq, self.gone)
        return kept


def update_rows(held: Any, learned: Sequence[pa.RecordBatch], names: Sequence[str]) -> None:
    """Apply later values of columns to held rows, which are ordered by sequence number."""
    known = held["seq"]
    for batch in learned:
        seq = batch.column("seq").to_numpy()
        at = np.searchsorted(known, seq)
        there = at < len(known)
        there[there] = known[at[there]] == seq[there]
        for name in names:
            held[name][at[there]] = batch.column(name).to_numpy(zero_copy_only=False)[there]


def batch_of(
    columns: Mapping[str, NDArray[Any]], rows: pa.RecordBatch | None = None
) -> pa.RecordBatch:
    """Return columns of numbers as a record batch, followed by the payload of rows."""
    arrays = [pa.array(np.ascontiguousarray(column)) for column in columns.values()]
    if rows is None:
        return pa.RecordBatch.from_arrays(arrays, list(columns))
    return pa.RecordBatch.from_arrays([*arrays, *rows.columns], [*columns, *rows.schema.names])


def _column(batches: Iterable[pa.RecordBatch], name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return one column of several record batches."""
    parts = [batch.column(name).to_numpy(zero_copy_only=False) for batch in batches]
    return np.concatenate([np.empty(0, dtype), *parts])


def _rows_of(parts: Mapping[str, pa.RecordBatch]) -> int:
    """Count the rows that a record adds, changes or removes."""
    counted = ("held", "gone", "moved")
    return sum(batch.num_rows for name, batch in parts.items() if name.startswith(counted))


def _inner_size(parts: Mapping[str, pa.RecordBatch]) -> int:
    return parts[INNER].nbytes if INNER in parts else 0
