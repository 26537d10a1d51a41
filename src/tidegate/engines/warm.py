"""Compile the kernels ahead: `python -m tidegate.engines.warm`.

Compiled code is kept on disk. Done once where workers run, say when a machine image is built, this
spares the first query some twenty seconds.
"""

from __future__ import annotations

import pyarrow as pa

from tidegate.engines.window import WindowEngine, WindowJob
from tidegate.spec import window_join


def compile_all() -> None:
    """Take a few rows through everything an engine does, for whole and for real times."""
    for kind in (pa.int64(), pa.float64()):
        schema = pa.schema([("k", pa.string()), ("t", kind)])
        spec = window_join(schema, schema, on="k", time="t", within=5, memory=2)
        rows = pa.record_batch([["a", "b", "a"], [0, 0, 1]], schema=schema)
        inputs = [[WindowJob(spec).prepare(side, rows)[0]] for side in range(2)]
        engine = WindowEngine(spec)
        for _ in engine.feed(inputs, clocks=(2, 2)):
            pass
        restored = WindowEngine(spec)
        restored.restore(engine.snapshot())
        for _ in restored.finish():
            pass


if __name__ == "__main__":
    compile_all()
