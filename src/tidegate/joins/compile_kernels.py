"""Compile the kernels ahead of time: `python -m tidegate.joins.compile_kernels`.

Compiled code is cached on disk. Run this once where workers run, for example when a machine image
is built: it saves the first query up to a minute. Floating point times use other compiled code,
which is compiled when the first such join runs, or here with `--real-times`.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pyarrow as pa

from tidegate.engine.base import Engine, Job
from tidegate.joins.constrained.engine import ConstrainedJob
from tidegate.joins.constrained.spec import constrained_join
from tidegate.joins.sampled.engine import SampledJob
from tidegate.joins.sampled.spec import sampled_join
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.spec import star_join
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join

#: One policy for each kind of rank, as each kind has a compiled loop of its own.
_POLICIES = ("prob", "fifo", "heeb")

_SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64())])
_REAL_TIMES = pa.schema([("k", pa.string()), ("t", pa.float64())])


def window(schema: pa.Schema = _SCHEMA) -> None:
    """Compile the window join, which has a loop for each kind of rank."""
    settings: list[dict[str, Any]] = [{"memory": 2, "policy": policy} for policy in _POLICIES]
    for more in ({"memory": None}, *settings):
        job = WindowJob(window_join(schema, schema, on="k", time="t", within=5, **more))
        _try_out(job, (job.engine_at(0, 1), job.engine_at(0, 1)), schema)


def others(schema: pa.Schema = _SCHEMA) -> None:
    """Compile the star join, the sampled join, and the constrained join if its times are whole."""
    if schema == _SCHEMA:
        links = {"a": schema, "b": schema}
        linked = ConstrainedJob(constrained_join(links, joins="a.k -> b.k", time="t", within=9))
        _try_out(linked, (linked.engine_at(0, 1), linked.engine_at(0, 1)))
    time = schema.field("t").type
    begin, end = pa.array([0, 0], time), pa.array([1, 5], time)
    facts = pa.table({"k": ["a", "b"], "begin": begin, "end": end})
    streams = {"r": schema, "s": schema}
    settings: dict[str, Any] = {"on": ["k", "k"], "time": "t", "within": 5, "memory": 2}
    spec = star_join(streams, facts.schema, **settings, interval=("begin", "end"))
    star = StarJob(spec, LocalRelation(*in_order(facts)))
    inputs = _try_out(star, (star.engine_at(0, 2), star.engine_at(0, 2)), schema)
    star.route(0, inputs[0][0], 2)
    sampled = SampledJob(sampled_join(schema, schema, on="k", time="t", within=5, memory=2))
    _try_out(sampled, (sampled.engine_at(0, 1), sampled.engine_at(0, 1)), schema)


def _try_out(
    job: Job, engines: Sequence[Engine], schema: pa.Schema = _SCHEMA
) -> list[list[pa.RecordBatch]]:
    """Run a few rows through all methods of an engine."""
    rows = pa.record_batch([["a", "b", "a"], [0, 0, 1]], schema=schema)
    inputs = [[job.prepare(stream, rows)[0]] for stream in range(2)]
    engine, restored = engines
    for _ in engine.feed(inputs, clocks=(2, 2)):
        pass
    restored.restore(engine.snapshot())
    for _ in restored.finish():
        pass
    return inputs


def main() -> None:
    """Compile all joins in two processes."""
    schemas = [_SCHEMA, _REAL_TIMES] if "--real-times" in sys.argv[1:] else [_SCHEMA]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(part, schema) for schema in schemas for part in (window, others)]
        for compiled in tasks:
            compiled.result()


if __name__ == "__main__":
    main()
