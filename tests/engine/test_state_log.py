"""Test the state log with an engine that only holds numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tidegate as tg
from tidegate.engine import state_codec
from tidegate.engine.base import Clocks
from tidegate.engine.payload import Payload
from tidegate.engine.state_codec import VERSION, from_bytes, to_bytes, wrapped
from tidegate.engine.state_log import (
    RECORD_BYTES,
    RECORD_ROWS,
    LoggedEngine,
    Replay,
    batch_of,
    update_rows,
)

SCHEMA = pa.schema([("c0", pa.string())])


class Numbers(LoggedEngine):
    """An engine that holds the last `most` rows and counts arrivals."""

    _streams = 1

    def __init__(self, most: int, inner: LoggedEngine | None = None) -> None:
        self.most, self._inner = most, inner
        self.held: dict[int, str] = {}
        self.counts: dict[int, int] = {}
        self._changed: set[int] = set()
        self._left: list[int] = []
        self._next = self._marked = 0
        self._open = [pa.RecordBatch.from_pylist([], SCHEMA)]

    def feed(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None = None
    ) -> Iterator[pa.RecordBatch]:
        for batch in inputs[0]:
            for text in batch.column(0).to_pylist():
                self.held[self._next] = text
                self.counts[len(text)] = self.counts.get(len(text), 0) + 1
                self._changed.add(len(text))
                self._next += 1
        while len(self.held) > self.most:
            seq = min(self.held)
            del self.held[seq]
            if seq < self._marked:
                self._left.append(seq)
        if isinstance(self._inner, Numbers):
            list(self._inner.feed(inputs))
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def take_counters(self) -> dict[str, int | float]:
        return {"held": len(self.held)}

    def open(self, text: str) -> None:
        self._open = [pa.record_batch([[text]], schema=SCHEMA)]

    def forget(self, length: int) -> None:
        del self.counts[length]
        self._changed = {-1}

    def _head(self) -> dict[str, Any]:
        return {"next": self._next}

    def _parts(self, *, changed: bool) -> dict[str, pa.RecordBatch]:
        some = changed and -1 not in self._changed
        kept = sorted(self._changed) if some else sorted(self.counts)
        counts = [np.array(kept, np.int64), np.array([self.counts[k] for k in kept], np.int64)]
        name = "counts" if some else "all_counts"
        return {name: batch_of(dict(zip(("length", "count"), counts, strict=True)))}

    def _held_rows(
        self, stream: int, most: tuple[int, int] | None, *, changed: bool
    ) -> Iterator[pa.RecordBatch]:
        seqs = [seq for seq in self.held if seq >= self._marked or not changed]
        step = most[0] if most else max(len(seqs), 1)
        for at in range(0, len(seqs), step):
            own = seqs[at : at + step]
            rows = pa.record_batch([[self.held[seq] for seq in own]], schema=SCHEMA)
            yield batch_of({"seq": np.array(own, np.int64)}, rows)

    def _gone(self) -> NDArray[np.int64]:
        return np.array(self._left, np.int64)

    def _held_size(self) -> tuple[int, int]:
        return len(self.held), sum(map(len, self.held.values()))

    def _mark(self) -> None:
        self._marked, self._left, self._changed = self._next, [], set()

    def _load(self, log: Replay) -> None:
        self._next = log.head["next"]
        for batch in log.all("counts"):
            self.counts |= dict(zip(*(c.to_pylist() for c in batch.columns), strict=True))
        rows = Payload(SCHEMA)
        seqs = log.held(0, {"seq": np.dtype(np.int64)}, rows)["seq"]
        kept = np.flatnonzero(log.survivors(seqs))
        texts = rows.take(kept).column(0).to_pylist()
        self.held = dict(zip(seqs[kept].tolist(), texts, strict=True))


def fed(engine: Numbers, *texts: str) -> None:
    list(engine.feed([[pa.record_batch([list(texts)], schema=SCHEMA)]]))


def state(engine: Numbers) -> Any:
    inner = engine._inner
    held = {seq: engine.held[seq] for seq in sorted(engine.held)}
    opened = engine._open[0].to_pylist()
    return held, engine.counts, opened, state(inner) if isinstance(inner, Numbers) else None


@pytest.mark.parametrize("begin", ["changes", "snapshot"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_log_is_replayed(begin: str, nested: bool) -> None:
    def new() -> Numbers:
        return Numbers(4, Numbers(2) if nested else None)

    engine, log = new(), list[bytes]()
    for number in range(6):
        fed(engine, *("ab" * (number + i) for i in range(3)))
        engine.open(f"open {number}")
        if number == 3:
            engine.forget(2)
        log = engine.snapshot() if begin == "snapshot" and number == 0 else [*log, engine.changes()]
        moved = new()
        moved.restore(log)
        assert state(moved) == state(engine)
        assert moved._logged_rows == engine._logged_rows
        again = new()
        again.restore(moved.snapshot())
        assert state(again) == state(engine)


def test_a_snapshot_is_cut_into_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.engine.state_log.RECORD_ROWS", 2)
    engine = Numbers(5)
    fed(engine, *"abcde")
    records = engine.snapshot()
    assert [[*from_bytes(r)[1]] for r in records] == [
        ["all_counts", "open0"],
        *[["held0"]] * 3,
    ]
    moved = Numbers(5)
    moved.restore(records)
    assert state(moved) == state(engine)


def heavy(engine: LoggedEngine, rows: int = 0, nbytes: int = 0) -> bool:
    engine._logged_rows, engine._logged_bytes = rows, nbytes
    return engine.log_is_heavy


def test_a_log_is_heavy_if_most_of_it_is_outdated() -> None:
    engine, none = Numbers(3), Numbers(3)
    fed(engine, *"abc")
    assert not heavy(engine, rows=4 * 3 + RECORD_ROWS)
    assert heavy(engine, rows=4 * 3 + RECORD_ROWS + 1)
    assert heavy(none, nbytes=RECORD_BYTES + 1)
    assert heavy(Numbers(3, none))
    none.snapshot()
    assert not heavy(Numbers(3, none))


def test_records_carry_their_version() -> None:
    record = Numbers(1).changes()
    size = int.from_bytes(record[:4], "little")
    assert json.loads(record[4 : 4 + size])["version"] == VERSION


def test_a_newer_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_codec, "VERSION", 7)
    record = Numbers(1).changes()
    monkeypatch.undo()
    said = rf"has version 7 of its format.*up to {VERSION}.*newer tidegate.*new checkpoint location"
    with pytest.raises(tg.TidegateError, match=said):
        Numbers(1).restore([record])


def test_a_record_without_parts_and_one_inside() -> None:
    inner = to_bytes({"a": 1}, {})
    assert from_bytes(inner) == ({"a": 1}, {})
    log = Replay([to_bytes({"b": 2}, {"inner": wrapped(inner)})])
    assert (log.head, log.inner, log.records) == ({"b": 2}, [inner], [{}])


def test_later_values_go_over_earlier_ones() -> None:
    held = {"seq": np.array([1, 3, 5]), "gain": np.zeros(3)}
    learned = [
        batch_of({"seq": np.array(seq, np.int64), "gain": np.array(gain, np.float64)})
        for seq, gain in (([3, 4], [1.0, 2.0]), ([0, 9], [3.0, 4.0]), ([3, 5], [5.0, 6.0]))
    ]
    update_rows(held, learned, ["gain"])
    assert held["gain"].tolist() == [0.0, 5.0, 6.0]
