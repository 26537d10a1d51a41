"""Joins with a condition: the engine against its twin, and what policies learn from pairs."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from twins import window as naive

from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import SHED_WHEN, window_join
from tidegate.policies import Policy

from .cases import (
    EVERY,
    INTEGERS,
    WHERES,
    Case,
    Where,
    cases,
    meets_of,
    naive_rows,
    run_case,
    windows_of,
)


@given(cases(checked=True))
@settings(max_examples=400)
def test_engine_equals_twin(case: Case) -> None:
    run_case(case)


@given(cases(order="whole", checked=True))
@settings(max_examples=150)
def test_cuts_and_restarts_change_nothing(case: Case) -> None:
    cells = [c for feed in case.feeds for c in feed]
    found = run_case(case)
    assert found == run_case(Case(case.spec, [cells]))
    rows = naive_rows(case.spec, cells)
    wanted = naive.exact(rows, windows_of(case.spec), meets=meets_of(case.spec))
    assert found <= wanted
    if case.spec.memory is None:
        assert found == wanted


@given(cases(closed=True, checked=True))
@settings(max_examples=50)
def test_closed_windows_have_their_end(case: Case) -> None:
    run_case(case)


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
@pytest.mark.parametrize("where", WHERES, ids=lambda where: where.text)
def test_every_policy_equals_its_twin(policy: Policy, where: Where) -> None:
    rng = np.random.default_rng(3)
    cells = [(int(rng.integers(2)), int(rng.integers(3)), t // 2, t) for t in range(100)]
    feeds = [cells[start : start + 25] for start in range(0, len(cells), 25)]
    for on, split, importance, when in zip(
        ("k", None), ("shared", "fixed"), (None, "w"), SHED_WHEN, strict=False
    ):
        spec = window_join(
            INTEGERS,
            INTEGERS,
            on=on,
            where=where.text,
            time="t",
            within=(20, 12),
            memory=9,
            split=split,
            policy=policy,
            importance=importance,
            shed_when=when,
        )
        run_case(Case(spec, feeds, restarts={1}))


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_by_band_find_each_pair_once(shards: int) -> None:
    schema = pa.schema([("x", pa.float64()), ("t", pa.int64()), ("uid", pa.int64())])
    rng = np.random.default_rng(7)
    spec = window_join(
        schema, schema, where="l.x BETWEEN r.x - 1 AND r.x + 2.5", time="t", within=(200, 90)
    )
    job = WindowJob(spec)
    tables, engines = [], [job.engine_at(shard, shards) for shard in range(shards)]
    for _side in range(2):
        x = [None, np.nan, np.inf, *np.round(rng.normal(0, 300, 997), 1)]
        tables.append(pa.record_batch([x, np.arange(1000), np.arange(1000)], schema=schema))
    prepared = [job.prepare(side, table)[0] for side, table in enumerate(tables)]
    routes = [job.route(side, batch, shards) for side, batch in enumerate(prepared)]
    assert len(routes[0][0]) == 1000 < len(routes[1][0]) < 1100
    assert all(np.bincount(shard, minlength=shards).max() < 800 for _, shard in routes)
    found: Counter[tuple[int, int]] = Counter()
    for number, engine in enumerate(engines):
        own = [
            [batch.take(pa.array(rows[shard == number]))]
            for batch, (rows, shard) in zip(prepared, routes, strict=True)
        ]
        for batch in [*engine.feed(own), *engine.finish()]:
            uids = (batch.column(name).to_pylist() for name in ("uid_left", "uid_right"))
            found.update(zip(*uids, strict=True))
    left, right = (table.column("x").to_pylist() for table in tables)
    wanted = {
        (i, j)
        for (i, a), (j, b) in product(enumerate(left), enumerate(right))
        if a is not None and b is not None and -90 < j - i < 200
        if -1 <= a - b <= 2.5 or a == b or (a != a and b != b)
    }
    assert set(found) == wanted
    assert set(found.values()) == {1}
