"""`Auto` in star joins: what it learns, and that it learns the same however its input is cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from joins.star.test_star_engine import KEYS, Case, batches, check, found, job_of, stream_schema

import tidegate as tg
from benchmarks.star_policies import DATA, results
from tidegate.joins.star.spec import star_join


def passing(seed: int, streams: int, size: int, memory: int, **settings: Any) -> Case:
    """Return several feeds of keys that come for a limited time, with restarts between feeds."""
    rng = np.random.default_rng(seed)
    names = KEYS[:streams]
    spec = star_join(
        {f"s{i}": stream_schema(pa.int64(), key) for i, key in enumerate(names)},
        pa.schema([*((key, pa.int64()) for key in names), ("fid", pa.int64())]),
        on=list(names),
        time="t",
        within=[40, 60, 40][:streams],
        memory=memory,
        suffixes=[f"_{i}" for i in range(streams + 1)],
        **settings,
    )
    times = np.sort(rng.integers(0, size // 2, size))
    keys = (times // 8 + rng.integers(0, 3, size)).tolist()
    of = rng.integers(0, streams, size).tolist()
    cells = list(zip(of, keys, times.tolist(), range(size), strict=True))
    cuts = [0, *sorted(rng.integers(0, size, 3).tolist()), size]
    relation = pa.table({key: range(max(keys) + 1) for key in (*names, "fid")})
    return Case(spec, relation, [cells[a:b] for a, b in pairwise(cuts)], restarts={0, 2})


@pytest.mark.parametrize(
    ("streams", "size", "memory", "split"), [(2, 260, 24, "shared"), (3, 160, 20, "fixed")]
)
def test_it_is_its_twin_where_keys_pass(streams: int, size: int, memory: int, split: str) -> None:
    """There are several fits of the model, and more rows than are ranked for every victim."""
    assert check(passing(streams, streams, size, memory, split=split))


def test_ghosts_are_bounded_and_batches_and_restarts_change_nothing() -> None:
    """There are more newcomers in a window than ghosts, so that ghosts are thinned."""
    n, within = 6_000, 2_000
    rng = np.random.default_rng(1)
    cells = [(i % 2, int(k), i // 2, i) for i, k in enumerate(np.minimum(rng.zipf(1.3, n), 300))]
    case = passing(0, 2, 10, 1)
    spec = star_join(
        {side.keys[0]: side.schema for side in case.spec.streams},
        case.spec.relation.schema,
        on=list(KEYS[:2]),
        time="t",
        within=within,
        memory=100,
        suffixes=["_0", "_1", "_2"],
    )
    relation = pa.table({key: range(301) for key in ("a", "b", "fid")})
    whole = Case(spec, relation, [cells])
    job = job_of(whole)
    engine = job.engine_at(0, 1)
    expected = found(spec, [*engine.feed(batches(whole, job, 0)), *engine.finish()])
    learning = engine._tables.core.learning
    assert learning.scalars[0].thinned > 0
    assert learning.scalars[0].ghosts <= len(learning.ghosts) == 1024
    assert engine.take_counters()["bytes"] > engine._tables.nbytes > 1024 * 64

    cut = Case(spec, relation, [cells[start : start + 700] for start in range(0, n, 700)])
    engine = job.engine_at(0, 1)
    log: list[bytes] = []
    delivered: list[pa.RecordBatch] = []
    for at in range(len(cut.feeds)):
        delivered += engine.feed(batches(cut, job, at))
        log = engine.snapshot() if at == 3 else [*log, engine.changes()]
        engine = job.engine_at(0, 1)
        engine.restore(log)
    assert found(spec, [*delivered, *engine.finish()]) == expected


@pytest.mark.parametrize(
    "name", ["Zipf(1)", "sessions", "requests, replies", "sessions that start late"]
)
def test_it_is_about_as_good_as_the_best_fixed_policy(name: str) -> None:
    """`benchmarks/star_policies.py` measures more workloads, on longer streams."""
    delivered = results(DATA[name], 4_000, seed=3, share=0.1)
    auto, exact = delivered.pop("auto"), delivered.pop("exact")
    assert 0.97 * max(delivered.values()) <= auto <= exact


def test_it_learns_the_importance_of_results() -> None:
    """All keys come equally often, and results of one of ten keys are important."""
    rng = np.random.default_rng(2)
    n = 3_000
    keys = [rng.integers(0, 100, n) for _ in range(2)]
    streams = {
        name: pa.table({name: k, "t": np.arange(n), "w": np.where(k < 10, 9.0, 1.0)})
        for name, k in zip("ab", keys, strict=True)
    }
    relation = pa.table({name: np.arange(100) for name in "ab"})
    settings: dict[str, Any] = {"on": ["a", "b"], "time": "t", "within": 200, "memory": 40}
    weighed = tg.star_join(streams, relation, **settings, importance="w")
    plain = tg.star_join(streams, relation, **settings)
    important = sum(k < 10 for k in weighed.table["a"].to_pylist())
    assert important > 4 * sum(k < 10 for k in plain.table["a"].to_pylist())
