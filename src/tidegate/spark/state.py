"""An engine's state in Spark's state store, and the live engine beside it.

What a batch writes must follow what changed, not what is held. So the state of a shard is a log
of records under increasing numbers, begun anew with a snapshot when most of it is dead, and a
small note of where the log begins and ends. The engine itself stays alive in the Python worker
between batches; the log is read only where the worker does not have the engine that wrote it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
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

from tidegate.checks import check_same
from tidegate.engines.base import Engine

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

#: The layout of what is written here.
VERSION = 1
#: A value goes through several copies and a socket in one piece, so large records are cut.
VALUE_BYTES = 4 << 20
#: An engine that its shard has not asked for in this long is elsewhere by now.
IDLE_SECONDS = 600.0

_META = StructType(
    [
        StructField("version", IntegerType(), False),
        StructField("settings", StringType(), False),
        StructField("first", LongType(), False),
        StructField("next", LongType(), False),
        StructField("token", BinaryType(), False),
    ]
)
_NUMBER = StructType([StructField("number", LongType(), False)])
_RECORD = StructType(
    [StructField("last", BooleanType(), False), StructField("data", BinaryType(), False)]
)


class LiveEngines:
    """Engines of one Python worker, each under the token of the state it equals.

    The token is random and written with the state. A task that failed after it fed its engine,
    a shard that moved away and came back, a restart from an older batch: in each case the token
    in the state is another one than the engine's, and the engine is not used.
    """

    def __init__(self) -> None:
        self._engines: dict[tuple[object, ...], tuple[bytes, float, Engine]] = {}

    def take(self, place: tuple[object, ...], token: bytes) -> Engine | None:
        """Take the engine of a place if it has this token; either way nothing is left there.

        The caller brings it back with `keep` once its new state is written. If anything goes
        wrong before that, a half-fed engine is therefore never seen again.
        """
        now = time.monotonic()
        found = self._engines.pop(place, None)
        self._engines = {
            key: entry for key, entry in self._engines.items() if now - entry[1] < IDLE_SECONDS
        }
        return found[2] if found is not None and found[0] == token else None

    def keep(self, place: tuple[object, ...], token: bytes, engine: Engine) -> None:
        """Keep an engine for the next batch."""
        self._engines[place] = (token, time.monotonic(), engine)


LIVE = LiveEngines()


class Log:
    """One shard's records in the state store."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._meta = handle.getValueState("meta", _META)
        self._records = handle.getMapState("log", _NUMBER, _RECORD)

    def open(self, settings: str, place: tuple[object, ...], new: Callable[[], Engine]) -> Opened:
        """Give the engine as the last committed batch left it."""
        meta = self._meta.get()
        if meta is None:
            LIVE.take(place, b"")
            return Opened(self, settings, place, new(), 0, 0, b"", rebuilt=False)
        version, written_with, first, after, token = meta
        check_settings(
            {"state version": version, **json.loads(written_with)},
            {"state version": VERSION, **json.loads(settings)},
        )
        token = bytes(token)
        engine = LIVE.take(place, token)
        rebuilt = engine is None
        if engine is None:
            engine = new()
            engine.restore(self._read(first, after))
        return Opened(self, settings, place, engine, first, after, token, rebuilt=rebuilt)

    def _read(self, first: int, after: int) -> Iterator[bytes]:
        parts: list[bytes] = []
        for number in range(first, after):
            # One by one: the client's own iteration would put them all into one message.
            value = self._records.getValue((number,))
            if value is None:
                raise RuntimeError(f"the state of this shard has lost its record {number}")
            last, data = value
            parts.append(bytes(data))
            if last:
                yield parts[0] if len(parts) == 1 else b"".join(parts)
                parts = []

    def append(self, number: int, record: bytes) -> int:
        """Write a record at a number, in several values if it is large; the next number."""
        view = memoryview(record)
        for start in range(0, max(len(record), 1), VALUE_BYTES):
            last = start + VALUE_BYTES >= len(record)
            value = record if last and start == 0 else bytes(view[start : start + VALUE_BYTES])
            self._records.updateValue((number,), (last, value))
            number += 1
        return number

    def remove(self, first: int, after: int) -> None:
        """Delete records that a snapshot has replaced."""
        for number in range(first, after):
            self._records.removeKey((number,))

    def close(self, settings: str, first: int, after: int, token: bytes) -> None:
        """Say where the log begins and ends, and which engine it equals."""
        self._meta.update((VERSION, settings, first, after, token))


class Opened:
    """A shard's engine and log during one batch."""

    def __init__(
        self,
        log: Log,
        settings: str,
        place: tuple[object, ...],
        engine: Engine,
        first: int,
        after: int,
        token: bytes,
        *,
        rebuilt: bool,
    ) -> None:
        self.engine = engine
        self.rebuilt = rebuilt
        self._log = log
        self._settings = settings
        self._place = place
        self._first = first
        self._after = after
        self._token = token

    def save(self) -> int:
        """Write what the batch changed and keep the engine alive; how many bytes were written.

        A batch that changed nothing writes nothing, once the shard has any state.
        """
        first, after, token = self._first, self._after, self._token
        if token and self.engine.log_is_heavy:
            records = self.engine.snapshot()
            self._log.remove(first, after)
            first = after
        else:
            changes = self.engine.changes()
            records = [changes] if changes else []
        for record in records:
            after = self._log.append(after, record)
        if records or first != self._first or not token:
            token = os.urandom(16)
            self._log.close(self._settings, first, after, token)
        LIVE.keep(self._place, token, self.engine)
        return sum(map(len, records))


def check_settings(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Refuse a checkpoint that was written with other settings, and say which."""
    instead = "Use the old settings, or start with a new checkpoint location."
    check_same(old, new, "checkpoint", instead)
