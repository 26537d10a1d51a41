"""The payload of held rows, and how rows get new numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engine import payload as module
from tidegate.engine.payload import Payload
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
STREAM = pa.schema([("k", pa.int64()), ("t", pa.int64())])


def batch(first: int, rows: int) -> pa.RecordBatch:
    numbers = range(first, first + rows)
    return pa.record_batch([list(numbers), ["x" * (n % 5) + str(n) for n in numbers]], SCHEMA)


def contents(payload: Payload) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = payload.take(np.arange(payload.rows)).to_pylist()
    return rows


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=4),
    st.data(),
)
def test_what_is_kept_is_what_was_asked_for(
    lengths: list[int], patterns: list[list[bool]], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_ROWS", 32)
        payload = Payload(SCHEMA)
        starts = []
        for length in lengths:
            starts.append(payload.add([batch(payload.rows, length)]))
        first = data.draw(st.sampled_from(starts))
        for pattern in patterns:
            before = contents(payload)
            rows = np.array(
                [n for n in range(first, payload.rows) if pattern[n % len(pattern)]], np.int64
            )
            payload.trim(first, rows)
            assert contents(payload) == before[:first] + [before[n] for n in rows]
            first = 0


def test_chunks_stay_few_and_none_is_made_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_ROWS", 64)
    payload = Payload(SCHEMA)
    for at in range(300):
        payload.add([batch(payload.rows, (1, 60, 40, 30)[at % 4])])
        payload.join_chunks()
        assert max(chunk.rows.num_rows for chunk in payload._chunks) <= 64
        assert len(payload._chunks) <= 8 + 4 * payload.rows / 64
    payload.trim(0, np.arange(0, payload.rows, 40))
    assert max(chunk.rows.num_rows for chunk in payload._chunks) <= 64
    assert len(payload._chunks) <= 8 + 4 * payload.rows / 64


def test_small_chunks_before_a_long_one_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_ROWS", 64)
    payload = Payload(SCHEMA)
    payload.add([*(batch(n, 1) for n in range(30)), batch(30, 60)])
    payload.join_chunks()
    assert len(payload._chunks) < 6
    assert contents(payload) == batch(0, 90).to_pylist()


def test_rows_that_all_stay_are_not_copied() -> None:
    payload = Payload(SCHEMA)
    payload.add([batch(0, 10)])
    payload.add([batch(10, 200_000)])
    kept = payload._chunks[1]
    payload.trim(0, np.arange(5, payload.rows))
    assert payload._chunks[1] is kept


@pytest.mark.parametrize("policy", ["fifo", "rand", "prob"])
def test_no_more_than_half_of_the_rows_are_dead(policy: str) -> None:
    spec = window_join(STREAM, STREAM, on="k", time="t", within=500, memory=200, policy=policy)
    engine, job = WindowEngine(spec), WindowJob(spec)
    rng = np.random.default_rng(0)
    for start in range(0, 3000, 30):
        rows = [
            pa.record_batch([rng.integers(50, size=30), np.arange(start, start + 30)], STREAM)
            for _ in range(2)
        ]
        for _ in engine.feed([[job.prepare(s, rows[s])[0]] for s in range(2)]):
            pass
        for side, payload in enumerate(engine._payload):
            held = engine._tables.held_on(side)
            assert held <= payload.rows <= 2 * held + 64


@given(
    st.integers(0, 2**32 - 1),
    st.tuples(st.integers(0, 300), st.integers(0, 300)),
    st.tuples(st.integers(0, 900), st.integers(0, 900)),
)
def test_rows_are_numbered_in_their_order(
    seed: int, starts: tuple[int, int], lengths: tuple[int, int]
) -> None:
    rng = np.random.default_rng(seed)
    tables = WindowEngine(window_join(STREAM, STREAM, on="k", time="t", within=9))._tables
    slots = tables.core.slots
    held = rng.permutation(len(slots))[: rng.integers(len(slots))]
    sides = rng.integers(2, size=len(held))
    rows = np.empty(len(held), np.int64)
    for side in range(2):
        own = np.flatnonzero(sides == side)[: lengths[side]]
        rows[own] = starts[side] + rng.permutation(lengths[side])[: len(own)]
        rest = np.flatnonzero(sides == side)[lengths[side] :]
        sides[rest] = -1
    held, sides, rows = held[sides >= 0], sides[sides >= 0], rows[sides >= 0]
    slots["seq"] = -1
    slots["seq"][held], slots["group"][held], slots["row"][held] = 0, sides, rows
    given_slots = rng.permutation(np.concatenate([tables.every(), rng.choice(len(slots), 50)]))
    spans = [(s, s + n) for s, n in zip(starts, lengths, strict=True)]
    kept = tables.keep_rows(given_slots, spans)
    for side in range(2):
        expected = np.sort(rows[sides == side])
        assert kept[side].tolist() == expected.tolist()
        numbers = starts[side] + np.searchsorted(expected, rows[sides == side])
        assert slots["row"][held[sides == side]].tolist() == numbers.tolist()


@given(
    st.lists(
        st.lists(st.tuples(*[st.sampled_from([0, 1, 2**15])] * 3), max_size=40),
        min_size=1,
        max_size=5,
    )
)
def test_keys_are_told_apart_though_most_of_their_bits_are_equal(
    batches: list[list[tuple[int, int, int]]],
) -> None:
    """A place in the table has the upper half of a hash, and is found by the lowest bits."""
    tables = WindowEngine(window_join(STREAM, STREAM, on="k", time="t", within=9))._tables
    known: dict[int, int] = {}
    for parts in batches:
        hashes = [(upper << 48) + (middle << 16) + lower for upper, middle, lower in parts]
        entries = tables.intern(np.array(hashes, np.uint64)).tolist()
        for hash_, entry in zip(hashes, entries, strict=True):
            assert known.setdefault(hash_, entry) == entry
        assert len(set(known.values())) == len(known)
        held = [entry for hash_, entry in known.items() if hash_ % 3 == 0]
        tables.core.groups["count"][:] = 0
        tables.core.groups["count"][[2 * entry for entry in held]] = 1
        tables._sweep()
        known = {hash_: entry for hash_, entry in known.items() if entry in held}
        free = int(tables.core.scalars[0].entries) - len(held)
        assert tables.core.scalars[0].free_entries == free
