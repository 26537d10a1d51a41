"""Compile the kernels ahead: `python -m tidegate.engines.warm`.

Compiled code is kept on disk. Done once where workers run, say when a machine image is built, this
spares the first query some twenty seconds. Times that are floating point numbers have code of
their own, which is compiled when they are first met.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.engines.job import WindowJob
from tidegate.engines.sampled import SampledEngine
from tidegate.engines.star_job import InHand, StarJob, in_order
from tidegate.engines.window import WindowEngine
from tidegate.sampled_spec import sampled_join
from tidegate.spec import window_join
from tidegate.star_spec import star_join

#: One of each kind of rank, each of which has a loop of its own; without memory, none is needed.
_POLICIES = ("prob", "fifo", "life", "heeb")


def compile_all() -> None:
    """Take a few rows through everything an engine does."""
    schema = pa.schema([("k", pa.string()), ("t", pa.int64())])
    settings: list[dict[str, Any]] = [{"memory": 2, "policy": policy} for policy in _POLICIES]
    for more in ({"memory": None}, *settings):
        spec = window_join(schema, schema, on="k", time="t", within=5, **more)
        rows = pa.record_batch([["a", "b", "a"], [0, 0, 1]], schema=schema)
        inputs = [[WindowJob(spec).prepare(side, rows)[0]] for side in range(2)]
        engine = WindowEngine(spec)
        for _ in engine.feed(inputs, clocks=(2, 2)):
            pass
        restored = WindowEngine(spec)
        restored.restore(engine.snapshot())
        for _ in restored.finish():
            pass
    sampled = SampledEngine(sampled_join(schema, schema, on="k", time="t", within=5, memory=2))
    for _ in sampled.feed(inputs, clocks=(2, 2)):
        pass
    _compile_star(schema)


def _compile_star(schema: pa.Schema) -> None:
    """The same for joins through a relation."""
    rows = pa.record_batch([["a", "b", "a"], [0, 0, 1]], schema=schema)
    facts = pa.table({"k": ["a", "b"], "begin": [0, 0], "end": [1, 5]})
    streams = {"r": schema, "s": schema}
    settings: dict[str, Any] = {"on": ["k", "k"], "time": "t", "within": 5, "memory": 2}
    spec = star_join(streams, facts.schema, **settings, interval=("begin", "end"))
    job = StarJob(spec, InHand(*in_order(facts)))
    engine, restored = job.engine_at(0, 2), job.engine_at(0, 2)
    inputs = [[job.prepare(stream, rows)[0]] for stream in range(2)]
    job.route(0, inputs[0][0], 2)
    for _ in engine.feed(inputs, clocks=(2, 2)):
        pass
    restored.restore(engine.snapshot())
    for _ in restored.finish():
        pass


if __name__ == "__main__":
    compile_all()
