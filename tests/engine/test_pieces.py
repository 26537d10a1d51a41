"""Results are given in pieces of at most 4 MB, cut by the bytes of their rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engine.base import Job
from tidegate.engine.payload import PIECE_BYTES, Payload, cut, cut_batch, room, widths
from tidegate.engine.state_codec import from_bytes
from tidegate.joins.constrained.engine import ConstrainedJob
from tidegate.joins.constrained.spec import constrained_join
from tidegate.joins.sampled.engine import SampledJob
from tidegate.joins.sampled.spec import sampled_join
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.spec import star_join
from tidegate.joins.truncated import engine as truncation
from tidegate.joins.truncated.chain import Chain
from tidegate.joins.truncated.spec import truncated_join
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join
from tidegate.settings.slow_cpu import SlowCPU

WIDE = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("text", pa.string())])
TINY = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("n", pa.int32())])
PAIR: dict[str, Any] = {"on": "k", "time": "t", "within": 1_000_000}
MEMORY: dict[str, Any] = {"memory": 10_000, "policy": "prob"}


def _wide(rows: int, size: int) -> pa.RecordBatch:
    return pa.record_batch([[1] * rows, range(rows), ["x" * size] * rows], schema=WIDE)


def _tiny(rows: int) -> pa.RecordBatch:
    times = range(10_000, 10_000 + rows)
    return pa.record_batch([[1] * rows, times, range(rows)], schema=TINY)


def _star(*schemas: pa.Schema) -> Job:
    facts = pa.table({f"k{i}": [1] for i in range(len(schemas))} | {"begin": [0], "end": [10**9]})
    streams = {f"s{i}": schema for i, schema in enumerate(schemas)}
    on = [{"k": f"k{i}"} for i in range(len(schemas))]
    settings: dict[str, Any] = {"on": on, "time": "t", "within": 10**6}
    spec = star_join(streams, facts.schema, **settings, interval=("begin", "end"))
    return StarJob(spec, LocalRelation(*in_order(facts)))


def _constrained(*schemas: pa.Schema) -> Job:
    streams = {f"s{i}": schema for i, schema in enumerate(schemas)}
    joins = [f"s{i}.k -> s{i + 1}.k" for i in range(len(schemas) - 1)]
    spec = constrained_join(streams, joins=joins, time="t", within=10**6, eliminate=False)
    return ConstrainedJob(spec)


JOBS: dict[str, Callable[[], Job]] = {
    "window": lambda: WindowJob(window_join(WIDE, TINY, **PAIR)),
    "within a memory": lambda: WindowJob(window_join(WIDE, TINY, **PAIR, **MEMORY)),
    "slow cpu": lambda: WindowJob(window_join(WIDE, TINY, **PAIR, cpu=SlowCPU(1, 5_000))),
    "sampled": lambda: SampledJob(sampled_join(WIDE, TINY, **PAIR, fraction=1.0)),
    "star": lambda: _star(WIDE, TINY),
    "constrained": lambda: _constrained(WIDE, TINY),
}


def _results(job: Job, *inputs: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Feed the inputs one after the other, and yield the results."""
    engine = job.engine_at(0, 1)
    for stream, batch in enumerate(inputs):
        given: list[list[pa.RecordBatch]] = [[] for _ in inputs]
        given[stream] = [job.prepare(stream, batch)[0]]
        yield from engine.feed(given)
    yield from engine.finish()


def _check(pieces: Iterator[pa.RecordBatch]) -> int:
    """Return the number of rows; check that every piece is small or a single row."""
    rows = 0
    for piece in pieces:
        assert piece.num_rows == 1 or piece.nbytes <= PIECE_BYTES
        rows += piece.num_rows
    return rows


def test_results_of_more_than_2_gb_come_in_small_pieces() -> None:
    assert _check(_results(JOBS["window"](), _wide(12, 1_000_000), _tiny(200))) == 12 * 200


@pytest.mark.parametrize("name", JOBS)
def test_results_of_every_join_come_in_small_pieces(name: str) -> None:
    assert _check(_results(JOBS[name](), _wide(12, 1_000_000), _tiny(20))) == 12 * 20


@pytest.mark.parametrize("name", ["window", "within a memory", "sampled", "star", "constrained"])
def test_a_large_batch_is_logged_in_pieces(name: str) -> None:
    """No batch in a record is too large for a column of strings, and all are restored."""
    job = JOBS[name]()
    engine, restored = job.engine_at(0, 1), job.engine_at(0, 1)
    for _ in engine.feed([[job.prepare(0, _wide(70, 1_000_000))[0]], []]):
        pass
    record = engine.changes()
    _, parts = from_bytes(record)
    assert all(part.nbytes <= 65 << 20 for part in parts.values())
    restored.restore([record])
    del engine, record, parts
    found = list(restored.feed([[], [job.prepare(1, _tiny(3))[0]]]))
    assert _check(iter([*found, *restored.finish()])) == 70 * 3


def test_many_rows_of_40_kb_meet_tiny_ones() -> None:
    assert _check(_results(JOBS["window"](), _wide(1_000, 40_000), _tiny(100))) == 100_000


def test_a_truncated_join_comes_in_small_pieces() -> None:
    spec = truncated_join([WIDE, TINY], on="k", keep=10_000)
    tables = [pa.Table.from_batches([batch]) for batch in (_wide(12, 1_000_000), _tiny(20))]
    rows = [np.arange(len(table)) for table in tables]
    groups = [np.zeros(len(table), np.int64) for table in tables]
    sources = [truncation.payload(table) for table in tables]
    chain = Chain.of_one_key([[12], [20]])
    assert _check(truncation.joined(spec, sources, chain, groups, rows)) == 12 * 20


def test_one_wide_key_among_tiny_ones() -> None:
    """An average would put too many of the wide rows into a piece."""
    tiny = pa.record_batch([range(50_000), range(50_000), ["y"] * 50_000], schema=WIDE)
    wide = pa.record_batch([[7] * 9, range(9), ["x" * 1_500_000] * 9], schema=WIDE)
    left = pa.concat_batches([tiny.slice(0, 25_000), wide, tiny.slice(25_000)])
    times = range(100_000, 150_000)
    right = pa.record_batch([range(50_000), times, range(50_000)], schema=TINY)
    pieces = list(_results(JOBS["window"](), left, right))
    assert _check(iter(pieces)) == 50_000 + 9
    assert max(piece.num_rows for piece in pieces) > 1_000


def test_a_row_above_4_mb_is_alone_in_its_piece() -> None:
    left = pa.record_batch([[1] * 3, range(3), ["x", "y" * 5_000_000, "z"]], schema=WIDE)
    pieces = list(_results(JOBS["window"](), left, _tiny(1)))
    assert sorted(piece.num_rows for piece in pieces) in ([1, 1, 1], [1, 2])
    assert sum(piece.num_rows for piece in pieces) == 3
    assert [p.num_rows for p in pieces if p.nbytes > PIECE_BYTES] == [1]


def test_a_piece_stays_as_it_was_while_others_come() -> None:
    """The loop reuses its arrays, so a piece must not share them."""
    job = SampledJob(sampled_join(TINY, TINY, **PAIR, fraction=1.0))
    pieces, before = [], []
    for piece in _results(job, _tiny(600), _tiny(600)):
        pieces.append(piece)
        before.append(piece.column(piece.num_columns - 1).to_pylist())
    assert sum(map(len, before)) == 600 * 600
    assert [piece.column(piece.num_columns - 1).to_pylist() for piece in pieces] == before


@pytest.mark.parametrize("make", [_star, _constrained])
def test_many_results_of_one_row_take_no_more_memory(make: Callable[..., Job]) -> None:
    job = make(TINY, TINY, TINY)
    inputs = [_tiny(700), _tiny(1), _tiny(700)]
    _check(_results(job, *(batch.slice(0, 1) for batch in inputs)))  # compiled by then
    tracemalloc.start()
    found = np.zeros((700, 700), np.int64)
    for piece in _results(job, *inputs):
        np.add.at(found, (piece.column(2).to_numpy(), piece.column(8).to_numpy()), 1)
    peak = tracemalloc.get_traced_memory()[1] - found.nbytes
    tracemalloc.stop()
    assert (found == 1).all()
    assert peak < 12 << 20


TYPES = {
    "n": pa.int8(),
    "b": pa.bool_(),
    "s": pa.string(),
    "S": pa.large_string(),
    "d": pa.decimal128(10, 2),
    "l": pa.list_(pa.int8()),
    "L": pa.large_list(pa.string()),
    "f": pa.list_(pa.int16(), 3),
    "r": pa.struct([("x", pa.int8()), ("y", pa.binary())]),
    "m": pa.map_(pa.string(), pa.list_(pa.bool_())),
    "D": pa.dictionary(pa.int8(), pa.string()),
    "u": pa.uuid(),
    "0": pa.null(),
}


def _values(kind: str, rng: np.random.Generator, rows: int) -> pa.Array:
    """Return values of one type, a third of them null."""
    length = rng.integers(0, 40, rows).tolist()
    made: dict[str, Callable[[int], Any]] = {
        "n": lambda n: n,
        "b": lambda n: n % 2 == 0,
        "d": lambda n: n,
        "l": lambda n: [1, None] * n,
        "L": lambda n: ["z" * n, None, ""],
        "f": lambda n: [n, None, 2],
        "r": lambda n: {"x": n, "y": b"w" * n},
        "m": lambda n: [("q" * n, [True] * n)],
        "u": lambda n: bytes([n] * 16),
    }
    made |= dict.fromkeys("sSD", lambda n: "x" * n)
    values = [None if n % 3 == 0 or kind == "0" else made[kind](n) for n in length]
    return pa.array(values, TYPES[kind])


@given(
    st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(0, 400),
    st.integers(100, 3_000),
    st.integers(0, 2**32),
)
def test_pieces_are_what_was_asked_for_and_small(
    kinds: list[str], chunks: list[int], rows: int, limit: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    schema = pa.schema([(f"c{i}", TYPES[kind]) for i, kind in enumerate(kinds)])
    payload = Payload(schema)
    batches = [
        pa.record_batch([_values(kind, rng, size) for kind in kinds], schema=schema)
        for size in chunks
    ]
    payload.add([batch.slice(0, batch.num_rows) for batch in batches])
    wanted = rng.integers(0, payload.rows, rows)
    pieces = [(p, payload.take(wanted[p])) for p in cut(rows, payload.widths_of(wanted), limit)]
    every = pa.Table.from_batches(batches).to_pylist()
    assert [row for _, piece in pieces for row in piece.to_pylist()] == [every[i] for i in wanted]
    shared = "D" in kinds  # a dictionary is shared by all pieces
    for place, piece in pieces:
        assert place.stop - place.start == piece.num_rows > 0
        if not shared:
            assert piece.num_rows == 1 or piece.nbytes <= limit + 32 * len(kinds)


@given(st.integers(0, 300), st.integers(0, 60), st.integers(1, 100))
def test_equal_widths_are_cut_like_others(rows: int, width: int, limit: int) -> None:
    one = list(cut(rows, width, limit))
    other = list(cut(rows, np.full(rows, width), limit))
    assert one == other or width == 0
    assert sum(piece.stop - piece.start for piece in one) == rows


@pytest.mark.parametrize("over", [0, 1])
def test_a_piece_holds_as_much_as_fits(over: int) -> None:
    schema = pa.schema([("s", pa.string())])
    half = (room(schema) - 2 * int(widths(_texts(1, 0))[0])) // 2 + over  # type: ignore[index]
    pieces = list(cut_batch(_texts(2, half)))
    assert [piece.num_rows for piece in pieces] == ([1, 1] if over else [2])


def _texts(rows: int, size: int) -> pa.RecordBatch:
    return pa.record_batch({"s": ["x" * size] * rows})


def test_a_payload_may_exceed_what_one_column_of_strings_can_hold() -> None:
    chunk = _texts(100, 1_000_000)
    payload = Payload(chunk.schema)
    payload.add([chunk] * 23)  # the same 100 MB each time
    payload.join_chunks()
    taken = payload.take(np.array([2_299, 0, 1_500]))
    assert [len(text) for text in taken.column(0).to_pylist()] == [1_000_000] * 3
    payload.trim(0, np.arange(1, 2_300, 1_000))
    assert payload.rows == 3
    assert payload.nbytes < 4_000_000
