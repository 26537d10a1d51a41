"""Star joins: every policy on streams whose keys last, come and go, or drift.

All streams have one row at each time. `Auto` is compared with the best fixed policy of each
workload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import tidegate as tg
from benchmarks.measure import Step
from benchmarks.report import Table

POLICIES = (
    "auto",
    "prob",
    "dgl",
    "dimpprob",
    "simpprob",
    "simp",
    "fifo",
    "rand",
)
#: Memory as a share of the rows in all windows.
SHARES = (0.05, 0.10, 0.25)
WITHIN = 400
KEYS = ("a", "b", "c")

Keys = NDArray[np.int64]
Made = tuple[list[Keys], pa.Table]


@dataclass(frozen=True)
class Workload:
    """The keys of each stream at each time and the relation, and other settings of the join."""

    make: Callable[[int, np.random.Generator], Made]
    settings: dict[str, Any] = field(default_factory=dict)

    def inputs(self, length: int, seed: int) -> tuple[dict[str, pa.Table], pa.Table]:
        """Return the streams and the relation."""
        keys, relation = self.make(length, np.random.default_rng([seed, length]))
        streams = {}
        for key, values in zip(KEYS, keys, strict=False):
            count = np.bincount(values)
            rarer = np.argsort(np.argsort(-count, kind="stable"), kind="stable")[values]
            weight = 1.0 + rarer * 5 // len(count)
            streams[f"of_{key}"] = pa.table({key: values, "t": np.arange(length), "w": weight})
        return streams, relation


def _paired(keys: int, streams: int, rng: np.random.Generator) -> pa.Table:
    """Return a relation in which each key of a stream has one link, with a random partner."""
    first: list[Keys] = [np.arange(keys)]
    return pa.table(
        dict(zip(KEYS, first + [rng.permutation(keys) for _ in range(streams - 1)], strict=False))
    )


def _linked(relation: pa.Table, stream: int, of: Keys) -> Keys:
    """Return the keys of a stream whose links have the given keys of the first stream."""
    linked: Keys = relation.column(stream).to_numpy()[of]
    return linked


def _zipf(n: int, domain: int, rng: np.random.Generator, skew: float = 1.0) -> Keys:
    chance = np.arange(1, domain + 1) ** -skew
    return rng.choice(domain, n, p=chance / chance.sum())


def _paper(n: int, rng: np.random.Generator) -> Made:
    """Return the streams of section 4.1 of the paper: 90 keys, 250 links."""
    pairs = rng.permutation(90 * 90)[:250]
    relation = pa.table({"a": pairs // 90, "b": pairs % 90})
    return [_zipf(n, 90, rng), rng.integers(0, 90, n)], relation


def _steady(skew: float) -> Callable[[int, np.random.Generator], Made]:
    """Return keys whose frequency does not change; partners are equally frequent."""

    def make(n: int, rng: np.random.Generator) -> Made:
        relation = _paired(200, 2, rng)
        keys = [_linked(relation, s, _zipf(n, 200, rng, skew)) for s in range(2)]
        return keys, relation

    return make


def _drifting(steps: int) -> Callable[[int, np.random.Generator], Made]:
    """Return Zipf keys; in each step the frequencies of a small part of them are swapped."""

    def make(n: int, rng: np.random.Generator) -> Made:
        relation = _paired(200, 2, rng)
        names, part = rng.permutation(200), max(400 // steps, 2)
        of = np.empty((2, n), np.int64)
        for rows in np.array_split(np.arange(n), steps):
            swapped = rng.permutation(200)[:part]
            names[swapped] = names[rng.permutation(swapped)]
            of[:, rows] = names[_zipf(2 * len(rows), 200, rng)].reshape(2, -1)
        return [_linked(relation, s, of[s]) for s in range(2)], relation

    return make


def _lives(
    life: Callable[[int, np.random.Generator], NDArray[np.float64]],
    rows: float,
    lag: int = 0,
    streams: int = 2,
) -> Callable[[int, np.random.Generator], Made]:
    """Return keys that come for a limited time.

    Each key is born at a random time and has about `rows` rows on each stream, spread evenly over
    its life. The lives on each stream start `lag` after those on the stream before.
    """

    def make(n: int, rng: np.random.Generator) -> Made:
        total = max(int(n / rows), 1)
        relation = _paired(total, streams, rng)
        born, lives = rng.random(total) * n, life(total, rng)
        keys = []
        for s in range(streams):
            of = rng.integers(0, total, n)
            when = born[of] + lives[of] * rng.random(n)
            came = np.roll(of[np.argsort(when, kind="stable")], lag * s)
            keys.append(_linked(relation, s, came))
        return keys, relation

    return make


def _fixed(length: float) -> Callable[[int, np.random.Generator], NDArray[np.float64]]:
    return lambda n, rng: np.full(n, length)


def _exponential(mean: float) -> Callable[[int, np.random.Generator], NDArray[np.float64]]:
    return lambda n, rng: rng.exponential(mean, n)


def _pareto(least: float) -> Callable[[int, np.random.Generator], NDArray[np.float64]]:
    return lambda n, rng: least * (1.0 + rng.pareto(1.0, n))


def _orders(n: int, rng: np.random.Generator) -> Made:
    """Return orders, each once, with up to two shipments, soon or, for some orders, late."""
    relation = _paired(n, 2, rng)
    of = np.repeat(np.arange(n), rng.permutation(np.arange(n) % 3))
    late = rng.random(len(of)) < 0.2
    when = of + np.where(late, 200.0, 20.0) * rng.exponential(1.0, len(of))
    shipped = np.resize(of[np.argsort(when, kind="stable")], n)
    return [_linked(relation, 0, np.arange(n)), _linked(relation, 1, shipped)], relation


def _replies(n: int, rng: np.random.Generator) -> Made:
    """Return requests, each once, and one reply to each about a third of a window later."""
    relation = _paired(n, 2, rng)
    replied = np.argsort(np.arange(n) + rng.normal(WITHIN / 3, WITHIN / 20, n), kind="stable")
    return [_linked(relation, 0, np.arange(n)), _linked(relation, 1, replied)], relation


def _mixed(n: int, rng: np.random.Generator) -> Made:
    """Return rows, half of them with lasting keys, half with keys that come for a limited time."""
    total = n // 4
    relation = _paired(200 + total, 2, rng)
    born = rng.random(total) * n
    keys = []
    for s in range(2):
        lasts = rng.random(n) < 0.5
        of = rng.integers(0, total, n)
        when = born[of] + 40 * rng.random(n)
        passing = 200 + of[np.argsort(when, kind="stable")]
        keys.append(_linked(relation, s, np.where(lasts, _zipf(n, 200, rng), passing)))
    return keys, relation


def _campaigns(n: int, rng: np.random.Generator) -> Made:
    """Return lasting keys, and links that are active for about half a window each."""
    begin = np.sort(rng.integers(-WITHIN, n, n // 2))
    ends = begin + rng.exponential(WITHIN / 2, len(begin)).astype(np.int64) + 1
    a, b = _zipf(len(begin), 200, rng), rng.integers(0, 200, len(begin))
    relation = pa.table({"a": a, "b": b, "begin": begin, "end": ends, "id": np.arange(len(a))})
    return [_zipf(n, 200, rng), rng.integers(0, 200, n)], relation


DATA: dict[str, Workload] = {
    "the paper's": Workload(_paper),
    "the paper's, importance": Workload(_paper, {"importance": "w"}),
    "uniform": Workload(_steady(0.0)),
    "Zipf(1)": Workload(_steady(1.0)),
    "slow drift": Workload(_drifting(200)),
    "sudden drift": Workload(_drifting(2)),
    "campaigns": Workload(_campaigns, {"interval": ("begin", "end"), "fact": "id"}),
    "orders, shipments": Workload(_orders),
    "requests, replies": Workload(_replies),
    "sessions": Workload(_lives(_exponential(40.0), 4)),
    "sessions, importance": Workload(_lives(_exponential(40.0), 4), {"importance": "w"}),
    "long sessions": Workload(_lives(_fixed(800.0), 12)),
    "heavy-tailed sessions": Workload(_lives(_pareto(10.0), 6)),
    "sessions that start late": Workload(_lives(_exponential(40.0), 4, lag=100)),
    "lasting and passing keys": Workload(_mixed),
    "three streams, sessions": Workload(_lives(_exponential(60.0), 4, streams=3)),
    "three streams, lasting": Workload(_lives(_fixed(1e9), 40, streams=3)),
}


def results(workload: Workload, length: int, seed: int, share: float) -> dict[str, float]:
    """Return the results of each policy, or their importance, and those of the exact join."""
    streams, relation = workload.inputs(length, seed)
    on = dict(zip(streams, KEYS, strict=False))
    bounded: dict[str, Any] = {"on": on, "time": "t", "within": WITHIN, **workload.settings}
    memory = round(share * WITHIN * len(streams))

    def run(**more: Any) -> float:
        found = tg.star_join(streams, relation, **bounded, **more)
        return found.importance if "importance" in bounded else float(found.results)

    return {policy: run(policy=policy, memory=memory, seed=seed) for policy in POLICIES} | {
        "exact": run()
    }


def measure(
    length: int, seeds: int, step: Step, names: Sequence[str] = tuple(DATA)
) -> dict[tuple[str, float], dict[str, float]]:
    """Return the mean recall of each policy by workload and memory."""
    found = {}
    for name in names:
        for share in SHARES:
            step(f"star joins, {name}, {share:.0%}")
            runs = [results(DATA[name], length, seed, share) for seed in range(seeds)]
            exact = sum(one["exact"] for one in runs)
            found[name, share] = {p: sum(one[p] for one in runs) / exact for p in POLICIES}
    return found


def table(found: dict[tuple[str, float], dict[str, float]]) -> Table:
    """Return recall by workload, memory and policy, and `Auto`'s over the best fixed policy's."""
    rows = []
    for (name, share), recall in found.items():
        best = max(POLICIES[1:], key=lambda policy: recall[policy])
        ratio = recall["auto"] / recall[best]
        shown = (f"{recall[policy]:.3f}" for policy in POLICIES)
        rows.append((name, f"{share:.0%}", *shown, best, f"{ratio:.1%}"))
    return Table(
        "Recall of every policy, and Auto's over that of the best fixed policy",
        ("workload", "memory", *POLICIES, "best fixed", "auto over it"),
        tuple(rows),
        f"Windows of {WITHIN} rows a stream. Memory is a share of the rows in all windows.",
    )
