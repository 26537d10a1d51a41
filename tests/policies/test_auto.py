"""AUTO learns which properties of rows matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join
from tidegate.streams import auctions, bursts, uniform, zipf

Tables = tuple[pa.Table, pa.Table]
KEYS: dict[str, Any] = {"on": "key", "time": "time", "within": 400}
AUCTIONS: dict[str, Any] = {"on": "auction_id", "time": "ts", "within": ("2 hours", "1 us")}
RIVALS = ("prob", "age", "fifo", "until-expiry", "greedy-dual")

#: The property that matters, streams, the memory, and AUTO's minimal share of the best result.
CASES: dict[str, tuple[Tables, dict[str, Any], int, float]] = {
    "keys": (zipf(8_000, domain=200, skew=1.0, seed=1), KEYS, 80, 0.97),
    "late ages": (auctions(8_000, bids=4, shape="inc", seed=1), AUCTIONS, 120, 0.95),
    "early ages": (auctions(8_000, bids=4, shape="dec", seed=1), AUCTIONS, 120, 0.95),
    "ages in between": (auctions(8_000, bids=4, shape="bell", seed=1), AUCTIONS, 120, 0.95),
    "which keys, all of them new": (
        auctions(20_000, bids=4, shape="inc", skew=1.0, seed=0),
        AUCTIONS,
        120,
        0.97,
    ),
    "recent activity": (bursts(8_000, seed=1), KEYS, 80, 0.95),
    "nothing": (uniform(8_000, domain=200, seed=1), KEYS, 80, 0.95),
}


@pytest.mark.parametrize("name", CASES)
def test_auto_comes_close_to_whichever_policy_is_best(name: str) -> None:
    tables, settings, memory, least = CASES[name]
    found = {
        policy: tg.join(*tables, **settings, memory=memory, policy=policy).results
        for policy in (*RIVALS, "auto")
    }
    assert found["auto"] >= least * max(found[rival] for rival in RIVALS)


@pytest.mark.parametrize(
    ("delay", "within", "least"),
    [((0, 6), 100_000, 0.97), ((0, 6), 4_000, 0.97), ((100, 200), 5_000, 1)],
)
def test_auto_knows_when_partners_come_in_windows_that_are_far_longer(
    delay: tuple[int, int], within: int, least: float
) -> None:
    """Some streams end before a sixteenth of their window has passed."""
    time = np.arange(6_000)
    came = time + np.random.default_rng(1).integers(*delay, len(time))
    left = pa.table({"key": time // 4, "time": time})
    right = pa.table({"key": time // 4, "time": came}).sort_by("time")
    found = {
        policy: tg.join(
            left, right, on="key", time="time", within=within, memory=50, policy=policy
        ).results
        for policy in (*RIVALS, "auto")
    }
    assert found["auto"] >= least * max(found[rival] for rival in RIVALS)


@pytest.mark.parametrize("skew", [0.5, 1.0])
def test_auto_is_back_two_windows_after_all_keys_changed_places(skew: float) -> None:
    """Counts alone would need their half-life."""
    tables = zipf(24_000, domain=200, skew=skew, shuffles=1, seed=4)
    share = {}
    exact = tg.join(*tables, **KEYS)
    for policy in ("auto", "prob"):
        found = tg.join(*tables, **KEYS, memory=200, policy=policy)
        after, before = (slice(12_800, 16_000), slice(8_800, 12_000))
        share[policy] = [_within(found, part) / _within(exact, part) for part in (after, before)]
    assert share["auto"][0] > 0.95 * share["auto"][1]
    assert share["prob"][0] < 0.9 * share["prob"][1]


@pytest.mark.parametrize("name", CASES)
def test_auto_forgets_nothing_where_nothing_changes(name: str) -> None:
    """One stream ends before the other does, as when no more auctions open."""
    (opened, came), settings, memory, _ = CASES[name]
    came = came.filter(pc.less_equal(came[settings["time"]], opened[settings["time"]][-1]))
    spec = window_join(opened.schema, came.schema, **settings, memory=memory, policy="auto")
    job, engine = WindowJob(spec), WindowEngine(spec)
    (left,), (right,) = (table.combine_chunks().to_batches() for table in (opened, came))
    assert list(engine.feed([[job.prepare(0, left)[0]], [job.prepare(1, right)[0]]]))
    assert engine._tables.core.model[0].censuses == 64.0


def _within(result: tg.Result, part: slice) -> int:
    """Count the results whose later row is in a range of ticks."""
    times = np.maximum(*(result.table[name].to_numpy() for name in ("time_left", "time_right")))
    return int(((times >= part.start) & (times < part.stop)).sum())
