"""Ways to learn how often keys come: with decay, over the last window, in a sketch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join
from tidegate.streams import zipf


def fed(left: pa.Table, right: pa.Table, policy: tg.Policy, **settings: Any) -> WindowEngine:
    """Return an engine that has taken both streams."""
    spec = window_join(left.schema, right.schema, on="key", time="time", policy=policy, **settings)
    job = WindowJob(spec)
    engine = WindowEngine(spec)
    inputs = [[job.prepare(s, b)[0] for b in t.to_batches()] for s, t in enumerate((left, right))]
    for _ in engine.feed(inputs, (10**9, None)):
        pass
    return engine


def counts(engine: WindowEngine, table: pa.Table) -> dict[int, tuple[float, float]]:
    """Return the engine's counts of each key of a table."""
    keys = table["key"].to_numpy()
    batch = WindowJob(engine.spec).prepare(0, table.to_batches()[0])[0]
    entries = engine._tables.intern(batch.column(0).to_numpy())
    rate = engine._tables.core.groups["rate"]
    return {
        int(k): (float(rate[2 * e]), float(rate[2 * e + 1]))
        for k, e in zip(keys, entries, strict=True)
    }


def test_a_window_counts_its_own_arrivals_and_no_others() -> None:
    left, right = zipf(3_000, domain=40, seed=2)
    engine = fed(left, right, tg.Prob("window"), within=(300, 200), memory=50)
    found = counts(engine, pa.table({"key": np.arange(41), "time": np.zeros(41, np.int64)}))
    recent = [table["key"].to_numpy()[-300:] for table in (left, right)]
    for key, both in found.items():
        assert both == tuple(float((side == key).sum()) for side in recent)


def test_a_bounded_window_counts_the_last_arrivals() -> None:
    """Both streams' arrivals in one order, left before right: 50 ticks' worth of two each."""
    left, right = zipf(3_000, domain=40, seed=2)
    engine = fed(left, right, tg.Prob("window", keys=100), within=300, memory=50)
    found = counts(engine, pa.table({"key": np.arange(41), "time": np.zeros(41, np.int64)}))
    recent = [table["key"].to_numpy()[-50:] for table in (left, right)]
    for key, both in found.items():
        assert both == tuple(float((side == key).sum()) for side in recent)
    assert len(engine._tables.core.ring) == 100


def test_a_window_follows_a_change_sooner() -> None:
    """Compare results between two and five windows after all keys have changed places."""
    left, right = zipf(16_000, domain=60, skew=1.2, shuffles=1, seed=3)

    def after(policy: tg.Policy) -> int:
        found = tg.join(
            left, right, on="key", time="time", within=400, memory=80, policy=policy
        ).table
        later = np.maximum(found["time_left"].to_numpy(), found["time_right"].to_numpy())
        return int(((later >= 8_400) & (later < 9_600)).sum())

    assert after(tg.Prob("window")) > 1.1 * after(tg.Prob())


def test_a_sketch_never_counts_too_few() -> None:
    left, right = zipf(6_000, domain=3_000, skew=0.8, seed=4)
    engine = fed(
        left, right, tg.Prob("sketch", halflife=math.inf, keys=512), within=500, memory=100
    )
    true = [np.bincount(t["key"].to_numpy(), minlength=3_001) for t in (left, right)]
    sketch = engine._tables.core.sketch
    assert sketch.shape == (2, 4, 512)
    table = pa.table({"key": np.arange(3_001), "time": np.zeros(3_001, np.int64)})
    hashes = WindowJob(engine.spec).prepare(0, table.to_batches()[0])[0].column(0).to_numpy()
    rows = np.arange(4, dtype=np.uint64)[:, np.newaxis]
    places = (hashes + rows * ((hashes >> np.uint64(32)) | np.uint64(1))) % np.uint64(512)
    for side in range(2):
        least = np.min([sketch[side, row, places[row]] for row in range(4)], axis=0)
        assert (least >= true[side]).all()
        # A count exceeds the true one by about the load of its cells, which conservative updates
        # share.
        assert np.median(least - true[side]) < 6_000 / 512


def test_a_sketch_is_as_good_as_counts_of_all_keys() -> None:
    left, right = zipf(20_000, domain=5_000, skew=1.0, seed=1)
    found = {
        keys: tg.join(
            left, right, on="key", time="time", within=400, memory=200, policy=policy
        ).results
        for keys, policy in {
            None: tg.Prob(),
            16_384: tg.Prob("sketch"),
            1_024: tg.Prob("sketch", keys=1_024),
        }.items()
    }
    assert found[16_384] >= 0.99 * found[None]
    assert found[1_024] >= 0.97 * found[None]


def test_a_sketch_does_not_grow_with_the_keys() -> None:
    """With 500,000 keys that come once each, only the held rows and the sketch take memory."""
    n = 250_000
    left = pa.table({"key": np.arange(n), "time": np.arange(n)})
    right = pa.table({"key": np.arange(n, 2 * n), "time": np.arange(n)})
    spec = window_join(
        left.schema,
        right.schema,
        on="key",
        time="time",
        within=10**6,
        memory=100,
        policy=tg.Prob("sketch", keys=1_024),
    )
    job, engine = WindowJob(spec), WindowEngine(spec)
    for start in range(0, n, 1_000):
        inputs = [
            [job.prepare(s, b)[0] for b in t.slice(start, 1_000).to_batches()]
            for s, t in enumerate((left, right))
        ]
        for _ in engine.feed(inputs):
            pass
    assert engine._tables.nbytes < 1_500_000
    assert sum(map(len, engine.snapshot())) < 250_000


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tg.Prob("window", halflife=5), "halflife has nothing to do; leave 5 out"),
        (lambda: tg.Heeb("widow"), '"learned", "window", "sketch", "whole" or a table'),
        (
            lambda: _try(tg.Prob("window"), within="unbounded"),
            'frequencies="window" counts the arrivals of a window, and one is unbounded',
        ),
        (
            lambda: _try(tg.Life("window"), within=(5, "unbounded")),
            'give within a length, or use frequencies="learned"',
        ),
        (lambda: _try(tg.Prob("sketch"), split="predicted", within=5), "known beforehand"),
    ],
)
def test_what_cannot_be_counted_is_refused(call: Any, said: str) -> None:
    with pytest.raises(tg.TidegateError, match=said):
        call()


def _try(policy: tg.Policy, **settings: Any) -> None:
    table = pa.table({"k": [1], "t": [1]})
    tg.join(table, table, on="k", time="t", memory=5, policy=policy, **settings)
