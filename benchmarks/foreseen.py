"""Compare predicted and measured recall: by samples of the streams, for star joins, for samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate as tg
from tidegate.joins.sampled.engine import SampledEngine, SampledJob
from tidegate.joins.sampled.spec import PROBABILITY, sampled_join
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.shadow import ShardCopies
from tidegate.joins.star.spec import star_join
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.shadow import WindowCopies
from tidegate.joins.window.spec import window_join
from tidegate.pool.curves import Curve, of_points
from tidegate.pool.shadow_joins import ShadowableJoin, ShadowJoins
from tidegate.streams import cut_by_time, zipf

SHARES = (0.05, 0.10, 0.25, 0.50)
METHODS = ("uniform", "cluster", "pps")
WINDOW, DOMAIN, TIES = 400, 60, 3
#: Streams with large windows: the skew of their keys, and how the two sides correlate.
KINDS = {
    "Zipf(0.5)": (0.5, "none"),
    "Zipf(1)": (1.0, "none"),
    "Zipf(1), opposite": (1.0, "opposite"),
}
Pairs = list[tuple[float, float]]


def sizes_for(live: float) -> list[int]:
    """Return the memories that a pool of this size tries."""
    return sorted({max(round(live * 2 ** (-step / 2)), 2) for step in range(10)})


def in_batches(
    job: Any, tables: Sequence[pa.Table], names: Sequence[str], batches: int = 8
) -> list[list[list[pa.RecordBatch]]]:
    """Cut streams into batches in step, prepared for the engine."""
    ends = [[t[n][0].as_py(), t[n][-1].as_py()] for t, n in zip(tables, names, strict=True)]
    span = (min(first for first, _ in ends), max(last for _, last in ends))
    cut = [
        cut_by_time(t, time=n, batches=batches, span=span)
        for t, n in zip(tables, names, strict=True)
    ]
    return [
        [
            [job.prepare(side, b)[0] for b in pieces[at].combine_chunks().to_batches()]
            for side, pieces in enumerate(cut)
        ]
        for at in range(batches)
    ]


def of_joins(spec: Any, tables: Sequence[pa.Table], batches: int) -> list[list[list[Any]]]:
    """Cut both streams of a window join into batches in step, prepared for the engine."""
    return in_batches(WindowJob(spec), tables, [side.time for side in spec.sides], batches)


def by_copies(copies: ShadowableJoin, sizes: Sequence[int], feeds: list[list[list[Any]]]) -> Curve:
    """Return recall against memory as predicted by shadow joins, over whole streams."""
    small = ShadowJoins(copies, sizes, settle=False)
    while True:
        for inputs in feeds:
            small.feed(inputs, None)
        found = small.take()
        # Where recall rises steeply, `refine` adds copies, which need the streams again.
        if not small.refine():
            break
    recall = [hits / found.total for hits in found.hits]
    return of_points(found.sizes, recall, need=found.need)


def by_a_sample(kind: str, policy: str, window: int) -> Pairs:
    """Compare recall where windows hold more rows than the shadow joins do."""
    skew, correlation = KINDS[kind]
    tables = zipf(4 * window, domain=window // 2, skew=skew, correlation=correlation, seed=1)
    settings: dict[str, Any] = {"on": "key", "time": "time", "within": window}
    live = 2 * window
    spec = window_join(*(t.schema for t in tables), **settings, memory=live, policy=policy)
    feeds = of_joins(spec, tables, 16)
    curve = by_copies(WindowCopies(spec), sizes_for(live), feeds)
    exact = tg.join(*tables, **settings).results
    found = []
    for share in SHARES:
        memory = round(share * live)
        measured = tg.join(*tables, **settings, memory=memory, policy=policy).results / exact
        found.append((curve.at(memory), measured))
    return found


def star(ticks: int, policy: str) -> Pairs:
    """Compare recall for streams that links connect in threes, a third of them half of the time."""
    left, right = zipf(ticks, domain=DOMAIN, skew=1.0, correlation="same", seed=1)
    streams = [left.rename_columns({"key": "a"}), right.rename_columns({"key": "b"})]
    pairs = [(a, a - a % TIES + at) for a in range(DOMAIN) for at in range(TIES)]
    facts = pa.table(
        {
            "a": [a for a, _ in pairs],
            "b": [b for _, b in pairs],
            "begin": [0] * len(pairs),
            "end": [None if at % 3 else ticks // 2 for at in range(len(pairs))],
        }
    )
    settings: dict[str, Any] = {"on": ["a", "b"], "time": "time", "within": WINDOW}
    settings |= {"interval": ("begin", "end"), "policy": policy}
    live = 2 * WINDOW
    spec = star_join(
        {"s1": streams[0].schema, "s2": streams[1].schema}, facts.schema, **settings, memory=live
    )
    job = StarJob(spec, LocalRelation(*in_order(facts)))
    feeds = in_batches(job, streams, ["time", "time"])
    curve = by_copies(ShardCopies(job, 0, 1), sizes_for(live), feeds)
    exact = tg.star_join(streams, facts, **settings).results
    found = []
    for share in SHARES:
        memory = round(share * live)
        measured = tg.star_join(streams, facts, **settings, memory=memory).results / exact
        found.append((curve.at(memory), measured))
    return found


def samples(ticks: int, method: str, seeds: int) -> Pairs:
    """Compare the expected error of a count over a window with the spread over all windows."""
    tables = zipf(ticks, domain=DOMAIN, skew=1.0, seed=1)
    exact = tg.join(*tables, on="key", time="time", within=WINDOW).results
    found = []
    for share in SHARES:
        counts, expected = [], 0.0
        for seed in range(seeds):
            spec = sampled_join(
                *(t.schema for t in tables),
                on="key",
                time="time",
                within=WINDOW,
                memory=round(share * 2 * WINDOW),
                method=method,
                seed=seed,
            )
            engine = SampledEngine(spec)
            [inputs] = in_batches(SampledJob(spec), tables, ["time", "time"], 1)
            rows = list(engine.feed(inputs))
            shares = np.concatenate([b.column(PROBABILITY).to_numpy() for b in rows])
            counts.append(float((1.0 / shares).sum()) / exact)
            expected += engine.error(engine.sides(), round(share * 2 * WINDOW)) / seeds
        found.append((math.sqrt(expected), float(np.std(counts)) * math.sqrt(ticks / WINDOW)))
    return found
