"""Samples of the same streams with different seeds, and the pairs they are drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

import tidegate as tg
from tidegate.joins.sampled.engine import SampledEngine, SampledJob
from tidegate.joins.sampled.spec import sampled_join


def runs(
    tables: tuple[pa.Table, pa.Table], seeds: int, **settings: Any
) -> Iterator[tuple[pa.Table, SampledEngine]]:
    """Yield samples of the same streams, one per seed."""
    spec = sampled_join(tables[0].schema, tables[1].schema, on="key", time="time", **settings)
    job = SampledJob(spec)
    inputs = [
        [job.prepare(side, batch)[0] for batch in table.combine_chunks().to_batches()]
        for side, table in enumerate(tables)
    ]
    for seed in range(seeds):
        engine = SampledEngine(replace(spec, window=replace(spec.window, seed=seed)))
        found = [*engine.feed(inputs), *engine.finish()]
        yield pa.Table.from_batches(found, spec.result_schema), engine


Pair = tuple[int, int, int, int]


def pairs_of(table: pa.Table) -> list[Pair]:
    names = ("key_left", "time_left", "key_right", "time_right")
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def head_of(pair: Pair) -> tuple[str, int]:
    """Return the row that arrived first; at equal times, the left one."""
    return ("left", pair[1]) if pair[1] <= pair[3] else ("right", pair[3])


def exact_pairs(tables: tuple[pa.Table, pa.Table], within: Any) -> list[Pair]:
    return pairs_of(tg.join(*tables, on="key", time="time", within=within).table)
