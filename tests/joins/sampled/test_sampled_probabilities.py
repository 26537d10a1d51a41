"""Rows are in a sample as often as their probabilities say."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from samples import Pair, exact_pairs, head_of, pairs_of, runs
from scipy.stats import chi2

from tidegate.joins.sampled.engine import SampledEngine, SampledJob
from tidegate.joins.sampled.spec import CLUSTER, PROBABILITY, sampled_join
from tidegate.streams import zipf

SEEDS = 200


def small() -> tuple[pa.Table, pa.Table]:
    """Return one row of each side at every time, so that side and time identify it."""
    return zipf(80, domain=6, skew=0.8, seed=2)


@pytest.mark.parametrize("method", ["uniform", "cluster", "pps"])
@pytest.mark.parametrize("model", ["frequency", "age"])
def test_rows_are_sampled_as_often_as_their_probability_says(method: str, model: str) -> None:
    """A chi-square test over the drawn pairs or clusters."""
    tables = small()
    settings: dict[str, Any] = {"within": 10, "fraction": 0.4, "method": method, "model": model}
    units: Counter[Any] = Counter()
    shares: dict[Any, float] = {}
    for table, _ in runs(tables, SEEDS, reach=50.0, **settings):
        found: dict[Any, float] = {}
        for pair, p in zip(pairs_of(table), table.column(PROBABILITY).to_pylist(), strict=True):
            found[pair if method == "uniform" else head_of(pair)] = p
        for unit, p in found.items():
            assert shares.setdefault(unit, p) == p  # independent of other draws
        units.update(found.keys())
    every = exact_pairs(tables, 10)
    assert set(shares) == (set(every) if method == "uniform" else {head_of(p) for p in every})
    p = np.array([shares[unit] for unit in units])
    counts = np.array(list(units.values()))
    assert (counts[p == 1] == SEEDS).all()
    p, counts = p[p < 1], counts[p < 1]
    statistic = float(((counts - SEEDS * p) ** 2 / (SEEDS * p * (1 - p))).sum())
    assert 0.001 < chi2.sf(statistic, len(p)) < 0.999
    if method != "pps":
        assert set(p) == {0.4}
    elif model == "frequency":
        assert p.std() > 0.05


def test_a_uniform_sample_draws_pairs_independently() -> None:
    """Two pairs of the same row are independent, too."""
    tables = small()
    every = exact_pairs(tables, 10)
    column = {pair: at for at, pair in enumerate(every)}
    drawn = np.zeros((SEEDS, len(every)))
    for run, (table, _) in enumerate(
        runs(tables, SEEDS, within=10, fraction=0.4, method="uniform", reach=50.0)
    ):
        drawn[run, [column[pair] for pair in pairs_of(table)]] = 1.0
        assert table.column(CLUSTER).to_pandas().is_unique
    off = (drawn - 0.4) / math.sqrt(0.4 * 0.6)
    heads: dict[Any, list[int]] = {}
    for pair, at in column.items():
        heads.setdefault(head_of(pair), []).append(at)
    products = [off[:, a] * off[:, b] for own in heads.values() for a in own for b in own if a < b]
    assert len(products) > 150
    z = np.concatenate(products).sum() / math.sqrt(len(products) * SEEDS)
    assert abs(z) < 3.5
    # Next matches of one row, where skips would show first.
    near = [off[:, a] * off[:, b] for own in heads.values() for a, b in pairwise(own)]
    assert abs(np.concatenate(near).sum() / math.sqrt(len(near) * SEEDS)) < 3.5
    size = drawn.sum(axis=1)
    assert size.var(ddof=1) / (len(every) * 0.24) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("method", ["uniform", "cluster", "pps"])
def test_a_thinned_sample_has_the_right_probabilities(method: str) -> None:
    """Counts are right on average, and vary no more than with a smaller memory."""
    tables = zipf(160, domain=6, skew=0.8, seed=2)
    spec = sampled_join(
        *(t.schema for t in tables),
        on="key",
        time="time",
        within=40,
        memory=60,
        method=method,
        reach=50.0,
    )
    job = SampledJob(spec)
    halves = [
        [[job.prepare(s, b)[0] for b in t.slice(at, 80).to_batches()] for s, t in enumerate(tables)]
        for at in (0, 80)
    ]
    estimates, shed = [], 0.0
    for seed in range(300):
        engine = SampledEngine(replace(spec, window=replace(spec.window, seed=seed)))
        found = [*engine.feed(halves[0])]
        engine.take_counters()
        engine.resize(1, 24)
        counters = engine.take_counters()
        shed += counters["shed"]
        assert counters["held"] <= 24
        found += [*engine.feed(halves[1]), *engine.finish()]
        assert engine.take_counters()["held"] <= 24
        shares = np.concatenate([b.column(PROBABILITY).to_numpy() for b in found])
        estimates.append(float((1.0 / shares).sum()))
    assert shed > 300 * 5
    exact = len(exact_pairs(tables, 40))
    error = np.std(estimates, ddof=1) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - exact) < 3.5 * error
    assert error * math.sqrt(len(estimates)) < 0.5 * exact


@pytest.mark.parametrize("method", ["cluster", "pps"])
def test_clusters_are_sampled_as_a_whole(method: str) -> None:
    tables = small()
    clusters: dict[Any, set[Pair]] = {}
    for pair in exact_pairs(tables, 10):
        clusters.setdefault(head_of(pair), set()).add(pair)
    for settings in ({"fraction": 0.3}, {"memory": 8}):
        whole = 0
        for table, engine in runs(tables, 20, within=10, method=method, **settings):
            found: dict[int, set[Pair]] = {}
            for pair, unit in zip(pairs_of(table), table.column(CLUSTER).to_pylist(), strict=True):
                found.setdefault(unit, set()).add(pair)
            assert found
            if engine.take_counters()["shed"] == 0:  # the memory has always been enough
                whole += 1
                for own in found.values():
                    assert own == clusters[head_of(next(iter(own)))]
        assert whole >= 15
