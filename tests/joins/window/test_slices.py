"""The queue of victims where ranks move, above the limit of exact ranking."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.rules import EXACT_LIMIT
from tidegate.joins.window.spec import window_join
from tidegate.policies import (
    DGL,
    Age,
    Auto,
    DimpProb,
    GreedyDual,
    Heeb,
    IJoin,
    Life,
    Policy,
    Prob,
    SimpProb,
)
from tidegate.streams import auctions

from .cases import INTEGERS, Case, prepared, run_case

MOVING: list[Policy] = [
    Age(([1, 4, 9, 4, 1], [1, 2, 3, 4])),
    Auto(),
    DGL(),
    DimpProb(),
    GreedyDual(),
    Heeb(),
    IJoin(tau=20, delta=60, penalty=0.01, decay=0.01),
    IJoin(recompute=7),
    Life(),
    Prob("window"),
    SimpProb(),
]


def ids(policy: Policy) -> str:
    return policy.name + ("-stored" if policy == IJoin(recompute=7) else "")


@pytest.mark.parametrize("policy", MOVING, ids=ids)
@pytest.mark.parametrize(("split", "importance"), [("shared", None), ("fixed", "w")])
def test_slices_equal_their_twin(policy: Policy, split: str, importance: str | None) -> None:
    """Slices close, are merged and become empty, in several feeds with restarts."""
    rng = np.random.default_rng(8)
    spec = window_join(
        INTEGERS,
        INTEGERS,
        on="k",
        time="t",
        within=(300, 190),
        memory=220,
        split=split,
        policy=policy,
        importance=importance,
    )
    cells = []
    for uid in range(1200):
        # For a while no row comes, so that rows expire and slices become empty.
        time = uid // 2 + (230 if uid > 900 else 0)
        cells.append((int(rng.integers(2)), int(60 * rng.random() ** 2), time, uid))
    feeds = [cells[at : at + 150] for at in range(0, len(cells), 150)]
    found = run_case(Case(spec, feeds, restarts={1, 2, 5}, exact_limit=16))
    assert sum(found.values()) > 200


def results(tables: Any, limit: int, **settings: Any) -> int:
    """Return the number of results of a window join with a limit of exact ranking."""
    job = WindowJob(window_join(*(table.schema for table in tables), **settings))
    engine = WindowEngine(job.spec, exact_limit=limit)
    inputs = [
        [job.prepare(side, batch)[0] for batch in table.combine_chunks().to_batches()]
        for side, table in enumerate(tables)
    ]
    return sum(batch.num_rows for batch in (*engine.feed(inputs), *engine.finish()))


@pytest.mark.parametrize("policy", ["age", "auto"])
@pytest.mark.parametrize("memory", [300, 840])
def test_ranks_that_rise_and_fall_are_as_good_as_exact_ones(policy: str, memory: int) -> None:
    """Bids come in the middle of an auction's life, so its rank rises and then falls."""
    tables = auctions(5_000, every=timedelta(seconds=6), bids=0.5, shape="bell", seed=1)
    settings: dict[str, Any] = {
        "on": "auction_id",
        "time": "ts",
        "within": ("2 hours", "1 us"),
        "memory": memory,
        "policy": policy,
    }
    exact = results(tables, 2**62, **settings)
    assert exact > 500
    assert results(tables, EXACT_LIMIT, **settings) >= 0.98 * exact


@pytest.mark.parametrize(("limit", "logged"), [(59, True), (60, False)])
def test_ranks_are_logged_above_the_limit_only(limit: int, logged: bool) -> None:
    """Up to the limit every choice computes all ranks, so that there is nothing to remember."""
    spec = window_join(INTEGERS, INTEGERS, on="k", time="t", within=90, memory=60, policy="heeb")
    engine = WindowEngine(spec, exact_limit=limit)
    cells = [(uid % 2, uid % 7, uid, uid) for uid in range(200)]
    for _ in engine.feed([[prepared(spec, cells, side)] for side in range(2)]):
        pass
    parts = engine._candidates.record(engine._tables.core, changed=False)
    assert set(parts) == ({"queue", "slices"} if logged else set())
