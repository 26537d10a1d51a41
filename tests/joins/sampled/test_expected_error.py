"""The expected errors of samples, compared with their real errors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.joins.sampled.engine import SampledEngine, SampledJob
from tidegate.joins.sampled.expected_error import Expectations, Expected
from tidegate.joins.sampled.spec import PROBABILITY, SampledJoin, sampled_join
from tidegate.streams import zipf

WINDOW, TICKS = 100, 1_000
TABLES = zipf(TICKS, domain=20, skew=0.7, seed=5)


def spec_of(**settings: Any) -> SampledJoin:
    given: dict[str, Any] = {"on": "key", "time": "time", "within": WINDOW, "memory": 60}
    return sampled_join(*(t.schema for t in TABLES), **(given | settings))


def inputs_of(spec: SampledJoin) -> list[list[pa.RecordBatch]]:
    job = SampledJob(spec)
    return [
        [job.prepare(side, b)[0] for b in t.combine_chunks().to_batches()]
        for side, t in enumerate(TABLES)
    ]


@pytest.mark.parametrize("method", ["uniform", "cluster", "pps"])
@pytest.mark.parametrize("memory", [30, 80])
def test_errors_of_samples_are_as_large_as_expected(method: str, memory: int) -> None:
    """Over ten windows the variance of a count is a tenth of that over one."""
    spec = spec_of(memory=memory, method=method, reach=20.0)
    inputs = inputs_of(spec)
    exact = tg.join(*TABLES, on="key", time="time", within=WINDOW).results
    counts, foreseen, seen = [], 0.0, 0.0
    for seed in range(60):
        engine = SampledEngine(replace(spec, window=replace(spec.window, seed=seed)))
        expected = Expected(engine, [memory])
        found = list(engine.feed(inputs))
        expected.feed(inputs, None)
        counters = engine.take_counters()
        seen = expected.worth(counters)
        foreseen = engine.error(engine.sides(), memory)
        assert expected.take().hits[0] == pytest.approx(seen, rel=0.2)
        shares = np.concatenate([b.column(PROBABILITY).to_numpy() for b in found])
        counts.append(float((1.0 / shares).sum()) / exact)
    assert math.sqrt(foreseen / (TICKS / WINDOW)) == pytest.approx(np.std(counts), rel=0.35)


def test_the_error_falls_with_memory_and_is_unknown_at_first() -> None:
    spec = spec_of()
    engine = SampledEngine(spec)
    sizes = [10, 20, 40, 80, 160, 260]
    expected = Expectations(spec).watch(engine, sizes, 0, 1)
    expected.feed([], None)
    assert expected.take().span == 0
    for at in range(0, TICKS, 50):
        cut = [[b.slice(at, 50) for b in side] for side in inputs_of(spec)]
        list(engine.feed(cut))
        expected.feed(cut, None)
        found = expected.take()
        assert found.advance == pytest.approx(50, abs=2)
        assert (found.span > 0) == (at >= WINDOW)
    assert found.hits == sorted(found.hits)
    assert 0 < found.hits[0] < 0.99 * found.hits[-1]
    assert found.hits[-1] == found.total
    assert 2 * WINDOW < found.need < 260


def test_a_fraction_with_a_share_of_a_pool_is_refused() -> None:
    with pytest.raises(tg.TidegateError, match="fraction=0.1 says how much is sampled"):
        Expectations(spec_of(fraction=0.1))
