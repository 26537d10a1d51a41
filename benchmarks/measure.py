"""Measurements: repeats, the loop alone, and a description of the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.joins.window import loop as window
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.rules import EXACT_LIMIT
from tidegate.joins.window.spec import window_join

#: A callback that shows what is being measured.
Step = Callable[[str], None]
#: One prepared batch: the left rows, then the right rows.
Inputs = tuple[list[pa.RecordBatch], list[pa.RecordBatch]]


@dataclass(frozen=True)
class Samples:
    """Repeats of one measurement."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """The largest less the smallest value, as a share of the median."""
        return (max(self.values) - min(self.values)) / self.median

    def over(self, other: Samples) -> Samples:
        """Return the ratio of each repeat to the other's of the same round."""
        return Samples(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))

    def show(self, form: str = "{:.2f}") -> str:
        """Return the median as text, with the smallest and largest value if there are repeats."""
        middle = form.format(self.median)
        if len(self.values) == 1:
            return middle
        low, high = form.format(min(self.values)), form.format(max(self.values))
        return f"{middle} ({low} to {high})"


def samples(values: Sequence[float]) -> Samples:
    """Collect repeats, in the order of their rounds."""
    return Samples(tuple(values))


@dataclass(frozen=True)
class Fed:
    """The time of one batch, in total and in the compiled loop, and its results."""

    seconds: float
    loop: float
    results: int


class Feeder:
    """An engine outside Spark that is fed prepared batches."""

    def __init__(
        self, schema: pa.Schema, *, exact_limit: int = EXACT_LIMIT, **settings: Any
    ) -> None:
        spec = window_join(schema, schema, on="key", time="time", **settings)
        self.job = WindowJob(spec)
        self.engine = WindowEngine(spec, exact_limit=exact_limit)

    def prepare(self, tables: Sequence[pa.Table], start: int, ticks: int) -> Inputs:
        """Prepare rows of both streams for the engine; this is not measured."""
        left, right = (
            [
                self.job.prepare(side, batch)[0]
                for batch in table.slice(start, ticks).combine_chunks().to_batches()
            ]
            for side, table in enumerate(tables)
        )
        return left, right

    def feed(self, inputs: Inputs) -> Fed:
        """Feed one batch, and discard its results."""
        with loop_seconds() as loop:
            start = time.perf_counter()
            results = sum(batch.num_rows for batch in self.engine.feed(inputs))
            seconds = time.perf_counter() - start
        return Fed(seconds, sum(loop), results)


@contextmanager
def loop_seconds(
    kernel: Any = window, clock: Callable[[], float] = time.perf_counter
) -> Iterator[list[float]]:
    """Record the duration of each call of the compiled loop within the context."""
    run: Any = kernel.run
    taken: list[float] = []

    def timed(*arguments: Any) -> Any:
        start = clock()
        done = run(*arguments)
        taken.append(clock() - start)
        return done

    setattr(kernel, "run", timed)  # noqa: B010 (a compiled function has no type to assign)
    try:
        yield taken
    finally:
        setattr(kernel, "run", run)  # noqa: B010


def machine() -> dict[str, str]:
    """Describe the machine, without anything that identifies it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ("pyspark", "numba", "numpy", "pyarrow", "pandas")
    return {
        "cores": str(cores),
        "memory": f"{memory:.0f} GiB",
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
