"""Star joins: what several shards, each with its own memory, cost in results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.report import Table
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.spec import star_join

#: The window: it has this many rows of each stream.
WITHIN = 250
MEMORIES, SHARDS = (25, 100, 250, 500, 1_000), (1, 2, 4, 8)


@dataclass(frozen=True)
class Sharded:
    """Results, and rows that went to further shards besides the first, of all that had a link."""

    results: int
    copies: int
    rows: int


def sharded(tables: dict[str, pa.Table], facts: pa.Table, shards: int, **settings: Any) -> Sharded:
    """Run a star join as Spark would, one shard after the other."""
    spec = star_join({n: t.schema for n, t in tables.items()}, facts.schema, **settings)
    job = StarJob(spec, LocalRelation(*in_order(facts)))
    streams = [
        job.prepare(s, table.combine_chunks().to_batches()[0])[0]
        for s, table in enumerate(tables.values())
    ]
    routes = [job.route(s, rows, shards) for s, rows in enumerate(streams)]
    clocks = [rows.column("time").to_numpy().max() for rows in streams]
    results = 0
    for shard in range(shards):
        engine = job.engine_at(shard, shards)
        own = [
            [rows.take(pa.array(row[to == shard]))]
            for rows, (row, to) in zip(streams, routes, strict=True)
        ]
        for found in (engine.feed(own, clocks), engine.finish()):
            results += sum(batch.num_rows for batch in found)
    rows = sum(stream.num_rows for stream in streams)
    return Sharded(results, sum(len(row) for row, _ in routes) - rows, rows)


def table(kinds: dict[str, list[tuple[dict[str, pa.Table], pa.Table]]], on: Any) -> Table:
    """Return results relative to one shard's, and copied rows, by kind of relation and memory."""
    rows = []
    for kind, runs in kinds.items():
        for memory in MEMORIES:
            found = {
                n: [sharded(*run, n, on=on, time="t", within=WITHIN, memory=memory) for run in runs]
                for n in SHARDS
            }
            total = {n: sum(one.results for one in found[n]) for n in SHARDS}
            rows.append((kind, f"{memory:,}", *(f"{total[n] / total[1]:.3f}" for n in SHARDS[1:])))
        copied = [np.mean([one.copies / one.rows for one in found[n]]) for n in SHARDS[1:]]
        rows.append((kind, "copies a row", *(f"{share:.2f}" for share in copied)))
    return Table(
        f"Shards: results over those of one shard with the same memory, m = {WITHIN}, Auto",
        ("relation", "memory", *(f"{n} shards" for n in SHARDS[1:])),
        tuple(rows),
        f"Both windows have {2 * WITHIN} rows, and one shard with as much memory holds them all. "
        "Copies need memory too, so where facts are connected, several shards need more memory "
        "for the exact result.",
    )
