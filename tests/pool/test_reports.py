"""Reports of shards become one curve for their join."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tidegate.pool.reports import ACCURACY, RECALL, Reports

SIZES = (10, 20, 40)


def report(hits: list[float], total: float, **more: Any) -> dict[str, Any]:
    given = {"held": 5, "bytes": 500, "need": 80.0, "span": 1.0, "worth": hits[1], "advance": 1.0}
    given["allowed"] = 20
    return {"sizes": SIZES, "hits": hits, "total": total, **given, **more}


def test_the_curve_is_unknown_until_all_shards_have_reported() -> None:
    reports = Reports(2)
    reports.add(0, report([1.0, 2.0, 3.0], 4.0), 0.5)
    reports.add(1, report([0.0, 0.0, 0.0], 0.0, span=0.0), 0.5)
    assert reports.curves is None
    assert (reports.curve, reports.predicted((1, 1)), reports.measured) == (None, None, None)
    assert (reports.held, reports.row_bytes) == (10, 100.0)


def test_quality_is_not_measured_before_the_first_memory() -> None:
    reports = Reports(1)
    reports.add(0, report([1.0, 2.0, 3.0], 4.0, allowed=0, worth=0.0), 0.5)
    assert reports.predicted((20,)) == pytest.approx(0.5)
    assert reports.measured is None
    reports.add(0, report([1.0, 2.0, 3.0], 4.0), 0.5)
    assert reports.measured == pytest.approx(0.5)
    # A shard that later gets no memory finds less.
    reports.add(0, report([1.0, 2.0, 3.0], 4.0, allowed=0, worth=0.0), 0.5)
    assert reports.measured == pytest.approx(0.5 / 3)


def test_recall_is_what_shards_find_together() -> None:
    reports = Reports(2, RECALL)
    reports.add(0, report([3.0, 6.0, 9.0], 12.0), 0.5)
    reports.add(1, report([1.0, 2.0, 3.0], 4.0), 0.5)
    assert reports.predicted((20, 20)) == pytest.approx(0.5)
    assert reports.predicted((40, 10)) == pytest.approx((9 + 1) / 16)
    assert reports.measured == pytest.approx(0.5)
    assert reports.curve is not None
    # The best division serves the first shard first.
    assert reports.curve.at(60) > 0.55
    assert reports.curve.results == pytest.approx(16)


def test_batches_without_progress_are_ignored() -> None:
    reports = Reports(1)
    reports.add(0, report([1.0, 2.0, 3.0], 4.0), 0.5)
    before = [reports.predicted((size,)) for size in range(0, 90, 10)]
    for _ in range(5):
        reports.add(0, report([0.0, 0.0, 0.0], 0.0, span=0.0, need=0.0), 0.5)
    assert [reports.predicted((size,)) for size in range(0, 90, 10)] == before


def test_older_reports_fade_and_other_memories_replace_them() -> None:
    reports = Reports(1)
    reports.add(0, report([1.0, 2.0, 3.0], 4.0), 0.5)
    reports.add(0, report([4.0, 4.0, 4.0], 4.0), 0.5)
    assert reports.predicted((20,)) == pytest.approx((1 + 4) / 6)
    finer = report([1.0, 2.0], 4.0, sizes=(10, 30))
    reports.add(0, finer, 0.5)
    assert reports.predicted((30,)) == pytest.approx(0.5)


def test_errors_of_shards_add_up_as_variances_do() -> None:
    """Two equal shards, each with an error of e, together have an error of e / sqrt(2)."""
    alone, both = Reports(1, ACCURACY), Reports(2, ACCURACY)
    error = 0.4
    hits = [9 * (1 - (2 * error) ** 2), 9 * (1 - error**2), 9.0]
    alone.add(0, report(hits, 9.0), 0.5)
    for shard in range(2):
        both.add(shard, report(hits, 9.0), 0.5)
    assert alone.predicted((20,)) == pytest.approx(1 - error)
    assert both.predicted((20, 20)) == pytest.approx(1 - error / math.sqrt(2))
    assert both.measured == pytest.approx(1 - error / math.sqrt(2))
    assert alone.curve is not None
    assert both.curve is not None
    assert alone.curve.at(20) == pytest.approx(1 - error)
    assert both.curve.at(40) == pytest.approx(1 - error / math.sqrt(2), abs=0.05)
    # The results per unit of time; the reports contain their squares.
    assert (alone.curve.results, both.curve.results) == pytest.approx((3.0, 6.0))
