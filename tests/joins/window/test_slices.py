"""The queue of victims where ranks move, above the limit of exact ranking."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
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
    HeldRow,
    IJoin,
    Life,
    Policy,
    Prob,
    SimpProb,
)
from tidegate.policies.base import Ranks
from tidegate.policies.own_score import Params
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
    """Bids come in the middle of an auction's life, so its rank rises and then falls.

    With one seed, the share of the exact results is between 0.97 and 1.04 by chance.
    """
    settings: dict[str, Any] = {
        "on": "auction_id",
        "time": "ts",
        "within": ("2 hours", "1 us"),
        "memory": memory,
        "policy": policy,
    }
    exact = found = 0
    for seed in (1, 2, 3):
        tables = auctions(5_000, every=timedelta(seconds=6), bids=0.5, shape="bell", seed=seed)
        exact += results(tables, 2**62, **settings)
        found += results(tables, EXACT_LIMIT, **settings)
    assert exact > 1_500
    assert found >= 0.98 * exact


@dataclass(frozen=True)
class UntilFound(Policy):
    """Keep rows until they have found a result."""

    name: ClassVar[str] = "until-found"
    ranks: ClassVar[Ranks] = "score"

    @staticmethod
    def score(row: HeldRow, params: Params) -> float:
        return 1.0 if row.matches == 0.0 else 0.0


@dataclass(frozen=True)
class AfterArrival(Policy):
    """Keep newcomers for a tick, and then rows of importance."""

    name: ClassVar[str] = "after-arrival"
    ranks: ClassVar[Ranks] = "score"

    @staticmethod
    def score(row: HeldRow, params: Params) -> float:
        return row.importance if row.age > 0.0 else 2.0


@pytest.mark.parametrize("policy", [UntilFound(), AfterArrival()], ids=lambda own: own.name)
@pytest.mark.parametrize("split", ["shared", "fixed"])
def test_sudden_falls_are_noticed_at_once(policy: Policy, split: str) -> None:
    """Half of the rows get a reply on either side, at any time within the window."""
    rng = np.random.default_rng(4)
    n, window = 3_000, 800
    key = np.arange(n)
    replies = rng.permutation(n)[: n // 2]
    time = np.concatenate([key, replies + rng.integers(1, window, n // 2)])
    order = np.argsort(time, kind="stable")
    tables = [
        pa.table(
            {
                "key": np.concatenate([2 * key + side, 2 * replies + 1 - side])[order],
                "time": time[order],
                "w": rng.random(len(time)),
            }
        )
        for side in range(2)
    ]
    settings: dict[str, Any] = {
        "on": "key",
        "time": "time",
        "within": window,
        "memory": 600,
        "policy": policy,
        "split": split,
        "importance": "w",
    }
    exact = results(tables, 2**62, **settings)
    assert exact > 200
    assert results(tables, 0, **settings) == exact


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
