"""When iJoin computes priorities, and what each scheme costs (Kulkarni, Ravishankar)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join


def run(left: pa.Table, right: pa.Table, policy: tg.IJoin, **settings: Any) -> tuple[float, int]:
    """Return the importance of all results, and how often priorities were computed."""
    spec = window_join(
        left.schema, right.schema, on="k", time="t", policy=policy, importance="w", **settings
    )
    job, engine = WindowJob(spec), WindowEngine(spec)
    inputs = [[job.prepare(s, b)[0] for b in t.to_batches()] for s, t in enumerate((left, right))]
    for _ in engine.feed(inputs):
        pass
    times = engine._tables.core.quality["times"].sum()
    return float(engine.take_counters()["importance"]), int(times)


def slides(seed: int, n: int = 1_500) -> tuple[pa.Table, pa.Table]:
    """Generate streams as in the slides: 100 values, each with an importance up to 100."""
    rng = np.random.default_rng(seed)
    importance = rng.integers(1, 101, 101).astype(np.float64)
    keys = [np.minimum(rng.zipf(1.3, n), 100) for _ in range(2)]
    left, right = (pa.table({"k": k, "t": np.arange(n), "w": importance[k]}) for k in keys)
    return left, right


def test_the_schemes_compare_as_on_the_slides() -> None:
    """Importance and overhead: most for successive, then adaptive, least for k-successive."""
    found = {}
    for when in ("successive", "adaptive", 10):
        policy = tg.IJoin(tau=2, delta=3, penalty=0.1, recompute=when)
        runs = [run(*slides(seed), policy, within=25, memory=10) for seed in range(3)]
        found[when] = [sum(column) for column in zip(*runs, strict=True)]
    assert found["successive"][0] > found["adaptive"][0] > found[10][0] > 0.8 * found["adaptive"][0]
    drops = run(*slides(0), tg.IJoin(2, 3, 0.1, recompute=1), within=25, memory=10)[1]
    assert 2 * found[10][1] < found["adaptive"][1] < 3 * 0.5 * drops


def test_every_single_drop_is_successive() -> None:
    streams = slides(7)
    successive, one = (
        tg.join(
            *streams,
            on="k",
            time="t",
            within=25,
            memory=10,
            importance="w",
            policy=tg.IJoin(tau=2, delta=3, penalty=0.1, decay=0.2, recompute=when),
        )
        for when in ("successive", 1)
    )
    assert successive.table == one.table


def test_a_priority_is_kept_until_the_next_time() -> None:
    """Worked by hand: a, b and c are held, and have 1, 2 and 3 matches when d arrives at 4.

    When d arrives, every scheme computes priorities: a has 1/4, b 2/4, c 3/4, and d arrives with
    10, so a is shed. Until e arrives at 8, b finds three more partners and d four. With the old
    priorities, b is shed (2/4 against c's 3/4). With new ones, b has 5/8, c 3/8 and d 4/4.
    """
    left = pa.table({"k": list("abcde"), "t": [0, 0, 0, 4, 8], "w": [1.0] * 5})
    times = [1, 1, 2, 1, 2, 3, 5, 6, 7, 5, 5, 6, 7]
    right = pa.table({"k": list("abbcccbbbdddd"), "t": times, "w": [1.0] * 13})
    cases: list[tuple[Any, str]] = [("successive", "ac"), (1, "ac"), (2, "ab"), ("adaptive", "ab")]
    for when, lost in cases:
        shed = tg.join(
            left,
            right,
            on="k",
            time="t",
            within=(100, 1),
            memory=4,
            split=0.75,
            importance="w",
            policy=tg.IJoin(p_init=10.0, recompute=when),
            keep_shed=True,
        ).shed
        gone = [row["left"]["k"] for row in shed.to_pylist() if row["side"] == "left"]
        assert "".join(gone) == lost


def test_where_the_memory_is_large_too() -> None:
    """Above the limit of the exact scan, the queue keeps priorities; the budget still holds."""
    streams = slides(3, n=4_000)
    found = {}
    for when in ("successive", 50, "adaptive"):
        policy = tg.IJoin(recompute=when)
        importance, times = run(*streams, policy, within=2_000, memory=600)
        found[when] = importance
        assert (times == 0) == (when == "successive")
    assert min(found.values()) > 0.5 * max(found.values())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recompute": 0}, '"successive", "adaptive" or a number of drops of at least 1, not 0'),
        ({"recompute": -3}, "not -3"),
        ({"recompute": True}, "not True"),
        ({"recompute": 2.5}, "not 2.5"),
        ({"recompute": "often"}, "not 'often'"),
        ({"recompute": "adaptive", "fall": 0}, "fall must be a number above 0, not 0"),
        ({"recompute": "adaptive", "fall": 1.5}, "fall must be a share below 1, not 1.5"),
    ],
)
def test_bad_schemes_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(tg.TidegateError, match=said):
        tg.IJoin(**settings)
