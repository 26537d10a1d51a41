"""Compile the kernels ahead: `python -m tidegate.engines.warm`.

Compiled code is kept on disk. Done once where workers run, say when a machine image is built, this
spares the first query some twenty seconds. Times that are floating point numbers have code of
their own, which is compiled when they are first met.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.constrained_spec import constrained_join
from tidegate.engines.constrained import ConstrainedJob
from tidegate.engines.job import WindowJob
from tidegate.engines.window import WindowEngine
from tidegate.spec import window_join

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
    _compile_constrained(schema)


def _compile_constrained(schema: pa.Schema) -> None:
    """The same for constrained joins, which have one loop for all settings."""
    spec = constrained_join({"A": schema, "B": schema}, joins="A.k -> B.k", time="t", windows=9)
    job = ConstrainedJob(spec)
    rows = pa.record_batch([["a", "b"], [0, 1]], schema=schema)
    inputs = [[job.prepare(stream, rows)[0]] for stream in range(2)]
    engine = job.engine(1)
    for _ in engine.feed(inputs, clocks=(2, 2)):
        pass
    restored = job.engine(1)
    restored.restore(engine.snapshot())


if __name__ == "__main__":
    compile_all()
