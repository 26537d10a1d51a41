"""The results of the exact join, counted without finding them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from twins import window as naive

import tidegate as tg
from tidegate.joins.window import exact_count as counts
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join

from .cases import Case, cases, naive_rows, prepared, windows_of


def check(case: Case) -> None:
    spec = replace(case.spec, closed=case.closed)
    cells = [cell for feed in case.feeds for cell in feed]
    every = naive.exact(naive_rows(spec, cells), windows_of(spec), case.closed).total()
    found = counts.exact_count(spec, *([prepared(spec, cells, side)] for side in range(2)))
    assert found == (every, every, every)


@given(cases())
def test_the_count_is_exact(case: Case) -> None:
    check(case)


@given(cases(closed=True))
def test_the_count_is_exact_with_closed_windows(case: Case) -> None:
    check(case)


def streams(rows: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {"k": rng.integers(0, 9, rows), "t": np.arange(rows), "x": rng.integers(0, 100, rows)}
        for _ in range(2)
    ]


JOIN: dict[str, Any] = {"on": "k", "time": "t", "within": 40}


@pytest.mark.parametrize("count_from", [None, 60])
def test_results_of_local_data_have_their_recall(count_from: int | None) -> None:
    left, right = streams(150, 1)
    for where in (None, "l.x < r.x"):
        more = JOIN | {"where": where, "count_from": count_from}
        exact = tg.join(left, right, **more)
        found = tg.join(left, right, **more, memory=12, policy="fifo")
        assert exact.recall == exact.recall_low == exact.recall_high == 1.0
        assert found.recall == found.recall_low == found.recall_high
        assert 0 < found.recall == found.results / exact.results < 1
    with pytest.raises(tg.TidegateError, match="only the result of tidegate.join has a recall"):
        _ = tg.truncated_join(left, right, on="k", keep=5).recall


def test_an_estimate_is_within_its_interval_as_often_as_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left, right = (pa.table(each) for each in streams(150, 2))
    where = "l.x + r.x < 60"
    spec = window_join(left.schema, right.schema, **JOIN, where=where)
    job = WindowJob(spec)
    batches = [[job.prepare(s, t.to_batches()[0])[0]] for s, t in enumerate((left, right))]
    truth = counts.exact_count(spec, *batches)
    assert truth.low == truth.high == truth.results
    monkeypatch.setattr(counts, "SAMPLE", 400)
    within = 0
    for seed in range(400):
        found = counts.exact_count(replace(spec, seed=seed), *batches)
        assert found.low < found.results < found.high
        within += found.low <= truth.results <= found.high
    # 380 are expected; fewer than 368 have a probability below 0.2 %.
    assert within >= 368
