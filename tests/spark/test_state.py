"""The state of a shard: lost or damaged state is never mistaken for a new shard."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tidegate.errors import TidegateError
from tidegate.spark.state import Log, Shard

LABELS = (0, 3, 5)


class Store:
    """One partition of a state store in memory, with the interface of Spark's handle."""

    def __init__(self) -> None:
        self.values: dict[tuple[Any, ...], Any] = {}
        self.client = self
        self._key: tuple[Any, ...] = ()

    def set_implicit_key(self, key: tuple[Any, ...]) -> None:
        self._key = key

    def getValueState(self, name: str, schema: Any) -> Value:
        return Value(self, name)

    def getMapState(self, name: str, key: Any, schema: Any) -> Values:
        return Values(self, name)

    def at(self, *place: Any) -> tuple[Any, ...]:
        return (*self._key, *place)


class Value:
    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name

    def get(self) -> Any:
        return self.store.values.get(self.store.at(self.name))

    def update(self, value: Any) -> None:
        self.store.values[self.store.at(self.name)] = value


class Values(Value):
    def getValue(self, key: Any) -> Any:
        return self.store.values.get(self.store.at(self.name, *key))

    def updateValue(self, key: Any, value: Any) -> None:
        self.store.values[self.store.at(self.name, *key)] = value


class Lines:
    """An engine that holds lines of bytes; each batch adds one."""

    log_is_heavy = False

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def changes(self) -> bytes:
        self.lines.append(b"line %d" % len(self.lines))
        return self.lines[-1]

    def restore(self, records: Iterable[bytes], written_with: Any = None) -> None:
        self.lines += records


def take(store: Store, label: int, batch: int, settings: str = "{}") -> list[bytes]:
    """Run one batch of one shard in a worker without live engines. Return what it held before."""
    store.set_implicit_key((label,))
    shard = Shard(label, LABELS, 1, batch, (object(), label))
    new: Any = Lines
    handle: Any = store
    opened = Log(handle).open(settings, shard, new, lambda old: frozenset())
    engine: Any = opened.engine
    held = list(engine.lines)
    opened.save()
    return held


def test_shards_resume_from_their_state() -> None:
    store = Store()
    for batch in range(3):
        for label in (0, 3):
            assert take(store, label, batch) == [b"line %d" % i for i in range(batch)]


def test_shards_may_begin_in_any_batch_but_all_in_one() -> None:
    """Earlier batches had no input, so no shard was called."""
    store = Store()
    for label in (0, 3):
        assert take(store, label, 7) == []
    for label in (0, 3):
        assert take(store, label, 8) == [b"line 0"]


def test_a_first_batch_that_is_tried_again_is_no_loss() -> None:
    store = Store()
    take(store, 0, 0)
    assert take(store, 3, 0) == []


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("probe-first", "after-probe"),
        ("evict-first", "before-probe"),
        ("shed-first", "before-arrival"),
    ],
)
def test_settings_of_earlier_versions_are_read(former: str, now: str) -> None:
    """In tidegate 0.1, `shed_when` was `moment` and had other values."""
    store = Store()
    take(store, 0, 0, json.dumps({"memory": 5, "moment": former}))
    same = {"memory": 5, "shed_when": now}
    assert take(store, 0, 1, json.dumps(same)) == [b"line 0"]
    assert take(store, 0, 2, json.dumps(same)) == [b"line 0", b"line 1"]
    take(store, 3, 0, json.dumps({"memory": 5, "moment": former}))
    words = rf'memory: 5 -> 6\n  shed_when: "{now}" -> "other"\n'
    with pytest.raises(TidegateError, match=words):
        take(store, 3, 1, json.dumps({"memory": 6, "shed_when": "other"}))


def test_a_missing_header_is_an_error() -> None:
    store = Store()
    for label in (0, 3):
        take(store, label, 0)
    words = r"shard 3 of 3 \(group 5, .*state/<operator>/1 .*missing in batch 4.*group 0 .*batch 0"
    with pytest.raises(TidegateError, match=words) as caught:
        take(store, 5, 4)
    assert "new checkpoint location" in str(caught.value)
    del store.values[3, "meta"]
    with pytest.raises(TidegateError, match="shard 2 of 3"):
        take(store, 3, 1)


@pytest.mark.parametrize("damage", ["flipped", "cut", "of another shard", "of another number"])
def test_a_damaged_record_is_an_error(damage: str) -> None:
    store = Store()
    for batch in range(2):
        for label in (0, 3):
            take(store, label, batch)
    last, data, checksum = store.values[3, "log", 1]
    changed = {
        "flipped": (last, bytes([data[0] ^ 1]) + data[1:], checksum),
        "cut": (last, data[:-1], checksum),
        "of another shard": store.values[0, "log", 1],
        "of another number": store.values[3, "log", 0],
    }
    store.values[3, "log", 1] = changed[damage]
    with pytest.raises(TidegateError, match=r"shard 2 of 3 .*record 1 that is damaged or of"):
        take(store, 3, 2)
    assert take(store, 0, 2) == [b"line 0", b"line 1"]


def test_a_lost_record_is_an_error() -> None:
    store = Store()
    take(store, 3, 0)
    del store.values[3, "log", 0]
    with pytest.raises(TidegateError, match=r"shard 2 of 3 .*has lost its record 0"):
        take(store, 3, 1)


def test_a_store_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    take(store, 3, 0)

    def broken(self: Value) -> Any:
        raise OSError("block checksum mismatch\nat line 1")

    monkeypatch.setattr(Value, "get", broken)
    words = r"shard 2 of 3 .*cannot be read \(OSError: block checksum mismatch\)"
    with pytest.raises(TidegateError, match=words):
        take(store, 3, 1)
