"""Keep an engine's state in Spark's state store, and the engine itself alive between batches.

The amount a batch writes must depend on what changed, not on what is held. So the state of a shard
is a log of numbered records, plus a small header that says where the log begins and ends. When most
of the log is outdated, a snapshot replaces it. The engine stays alive in its process between
batches (see `engine_processes`). The log is only read in a process that does not have the engine.

Lost or damaged state must not be mistaken for a new shard. Every pack task sends a row to every
shard, so either all shards of a query have a header or none has. A shard without one has lost its
state if an earlier batch wrote another shard's header into the same store. Each value has a
checksum.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tidegate.engine.base import Engine
from tidegate.engine.state_codec import renamed_settings
from tidegate.errors import TidegateError
from tidegate.settings.checks import check_same, differences

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

#: The version of the layout written here.
VERSION = 2
#: Spark copies a value several times and sends it in one piece, so larger records are cut.
VALUE_BYTES = 4 << 20
#: An engine that its shard has not used for this long has probably moved to another worker.
IDLE_SECONDS = 600.0

_META = StructType(
    [
        StructField("version", IntegerType(), False),
        StructField("settings", StringType(), False),
        StructField("first", LongType(), False),
        StructField("next", LongType(), False),
        StructField("token", BinaryType(), False),
        StructField("since", LongType(), False),
    ]
)
_NUMBER = StructType([StructField("number", LongType(), False)])
_RECORD = StructType(
    [
        StructField("last", BooleanType(), False),
        StructField("data", BinaryType(), False),
        StructField("checksum", LongType(), False),
    ]
)


class EngineCache:
    """The live engines of one process, each with the token of the state it equals.

    The token is random and stored with the state. If a task fails after it fed its engine, if a
    shard moves away and comes back, or if a query restarts from an older batch, the token in the
    state differs from the engine's, and the engine is not used.
    """

    def __init__(self) -> None:
        self._engines: dict[tuple[object, ...], tuple[bytes, float, Engine]] = {}

    def take(self, cache_key: tuple[object, ...], token: bytes) -> Engine | None:
        """Remove and return the engine of a key if it has this token. Remove it in any case.

        The caller puts it back with `keep` once the new state is written. If anything fails before
        that, nobody sees the partly fed engine again.
        """
        now = time.monotonic()
        found = self._engines.pop(cache_key, None)
        self._engines = {
            key: entry for key, entry in self._engines.items() if now - entry[1] < IDLE_SECONDS
        }
        return found[2] if found is not None and found[0] == token else None

    def keep(self, cache_key: tuple[object, ...], token: bytes, engine: Engine) -> None:
        """Store an engine for the next batch."""
        self._engines[cache_key] = (token, time.monotonic(), engine)


LIVE = EngineCache()


@dataclass(frozen=True)
class Shard:
    """Identifies the shard, query and batch that a log belongs to.

    Attributes
    ----------
    label, labels
        The group key of this shard, and those of all shards.
    partition
        Its partition in Spark's state store.
    batch
        The number of the current batch.
    cache_key
        The key of its live engine: one shard of one operator of one query.
    """

    label: int
    labels: Sequence[int]
    partition: int
    batch: int
    cache_key: tuple[object, ...]

    @property
    def named(self) -> str:
        """The shard's name in messages."""
        number = self.labels.index(self.label) + 1
        return (
            f"shard {number} of {len(self.labels)} (group {self.label}, in the folder "
            f"state/<operator>/{self.partition} of the checkpoint)"
        )

    def damaged(self, what: str) -> TidegateError:
        """Return an error that says what is wrong with the state, and what to do."""
        return TidegateError(
            f"the state of {self.named} {what}. To go on without it would leave out results. "
            "Restore the whole checkpoint folder as it was, or from a copy of one time, or start "
            "with a new checkpoint location."
        )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise errors of Spark while reading as errors that name the shard."""
        try:
            yield
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise self.damaged(f"cannot be read ({type(error).__name__}: {reason})") from error


class Log:
    """The logs of the shards in one partition of the state store."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._meta = handle.getValueState("meta", _META)
        self._records = handle.getMapState("log", _NUMBER, _RECORD)
        # The attribute's name differs between versions of Spark.
        clients = (each for each in vars(handle).values() if hasattr(each, "set_implicit_key"))
        self._client = next(clients, None)

    def open(
        self,
        settings: str,
        shard: Shard,
        make_engine: Callable[[], Engine],
        changeable: Callable[[Mapping[str, Any]], Set[str]],
    ) -> EngineSession:
        """Return the engine as the last committed batch left it.

        `changeable` names the settings in which the state may differ (see `Job.changeable`).
        """
        with shard.reading():
            meta = self._meta.get()
        if meta is None:
            self._check_new(shard)
            LIVE.take(shard.cache_key, b"")
            return EngineSession(
                self, settings, shard, make_engine(), 0, 0, b"", shard.batch, rebuilt=False
            )
        version, written_with, first, after, token, since = meta
        old = renamed_settings(json.loads(written_with))
        changed = changed_settings(
            {"state version": version, **old},
            {"state version": VERSION, **json.loads(settings)},
            changeable(old),
        )
        token = bytes(token)
        engine = LIVE.take(shard.cache_key, token) if not changed else None
        rebuilt = engine is None
        if engine is None:
            engine = make_engine()
            engine.restore(self._read(shard, first, after), old if changed else None)
        return EngineSession(
            self,
            settings,
            shard,
            engine,
            first,
            after,
            token,
            since,
            rebuilt=rebuilt,
            changed=changed,
        )

    def _check_new(self, shard: Shard) -> None:
        """Refuse to start with empty state if another shard's header is older than this batch.

        A header of this batch proves nothing: all shards of a partition may start in one batch.
        """
        if shard.batch == 0 or self._client is None:
            return
        for label in shard.labels:
            self._client.set_implicit_key((label,))
            with shard.reading():
                other = self._meta.get()
            if other is not None and other[-1] < shard.batch:
                raise shard.damaged(
                    f"is missing in batch {shard.batch}, but that of the group {label} is there "
                    f"since batch {other[-1]}: a folder of the state was replaced by another, or "
                    "restored from another time"
                )
        self._client.set_implicit_key((shard.label,))

    def _read(self, shard: Shard, first: int, after: int) -> Iterator[bytes]:
        parts: list[bytes] = []
        for number in range(first, after):
            # Read values one by one: the client's own iteration would put all into one message.
            with shard.reading():
                value = self._records.getValue((number,))
            if value is None:
                raise shard.damaged(f"has lost its record {number}")
            last, data, checksum = value
            data = bytes(data)
            if checksum != _checksum(shard.label, number, data):
                raise shard.damaged(f"has a record {number} that is damaged or of another shard")
            parts.append(data)
            if last:
                yield parts[0] if len(parts) == 1 else b"".join(parts)
                parts = []

    def append(self, shard: Shard, number: int, record: bytes) -> int:
        """Write a record, in several values if it is large. Return the next free number."""
        view = memoryview(record)
        for start in range(0, max(len(record), 1), VALUE_BYTES):
            last = start + VALUE_BYTES >= len(record)
            value = record if last and start == 0 else bytes(view[start : start + VALUE_BYTES])
            checksum = _checksum(shard.label, number, value)
            self._records.updateValue((number,), (last, value, checksum))
            number += 1
        return number

    def remove(self, first: int, after: int) -> None:
        """Delete records that a snapshot has replaced."""
        for number in range(first, after):
            self._records.removeKey((number,))

    def close(self, settings: str, first: int, after: int, token: bytes, since: int) -> None:
        """Write the header: where the log begins and ends, its engine's token, its first batch."""
        self._meta.update((VERSION, settings, first, after, token, since))


def _checksum(label: int, number: int, data: bytes) -> int:
    """Return a checksum of a value that also depends on where it is stored."""
    return zlib.crc32(data, zlib.crc32(f"{label} {number}".encode()))


class EngineSession:
    """A shard's engine and log during one batch."""

    def __init__(
        self,
        log: Log,
        settings: str,
        shard: Shard,
        engine: Engine,
        first: int,
        after: int,
        token: bytes,
        since: int,
        *,
        rebuilt: bool,
        changed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.engine = engine
        self.rebuilt = rebuilt
        #: The settings that have changed since the last batch, each as "old -> new".
        self.changed = changed
        self._log = log
        self._settings = settings
        self._shard = shard
        self._first = first
        self._after = after
        self._token = token
        self._since = since

    def save(self) -> int:
        """Write what the batch changed and keep the engine alive. Return the bytes written.

        A batch that changed nothing writes nothing, unless the shard has no state yet.
        """
        first, after, token = self._first, self._after, self._token
        if token and (self.changed or self.engine.log_is_heavy):
            records = self.engine.snapshot()
            self._log.remove(first, after)
            first = after
        else:
            changes = self.engine.changes()
            records = [changes] if changes else []
        for record in records:
            after = self._log.append(self._shard, after, record)
        if records or first != self._first or not token:
            token = os.urandom(16)
            self._log.close(self._settings, first, after, token, self._since)
        LIVE.keep(self._shard.cache_key, token, self.engine)
        return sum(map(len, records))


def changed_settings(
    old: dict[str, Any], new: dict[str, Any], changeable: Set[str]
) -> dict[str, str]:
    """Return the settings that have changed, each as "old -> new".

    Refuse a checkpoint if any other setting differs, and name these.
    """
    before, now = (
        {name: value for name, value in each.items() if name not in changeable}
        for each in (old, new)
    )
    may = ", ".join(sorted(changeable)) or "no setting of this join"
    check_same(
        before,
        now,
        "checkpoint",
        f"Use the old settings, or start with a new checkpoint location. What may change: {may}.",
    )
    return differences(old, new)
