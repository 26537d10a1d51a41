"""The expected error of a sampled join with other budgets, by which a pool divides its memory.

Section 5 of paper 2 (Srivastava, Widom). The error follows from the relationship between memory and
sampling fraction (theorems 4.2 and 4.3) and that between the fraction and the error of an aggregate
(section 4.3.2). The models by which a sample is planned give both, so no shadow joins are needed.

The accuracy of a budget is 1 minus the relative variance of a count. Variances of shards add up, so
each shard is weighted by the square of its results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pyarrow as pa

from tidegate.engine.base import Clocks
from tidegate.engine.prepare import TIME
from tidegate.errors import TidegateError
from tidegate.joins.sampled.engine import SampledEngine
from tidegate.joins.sampled.spec import SampledJoin
from tidegate.joins.window.spec import LEAST_BYTES
from tidegate.pool.shadow_joins import Found
from tidegate.settings.values import quoted


class Expectations:
    """Estimates the accuracy of a sampled join with other budgets."""

    measure = "accuracy"

    def __init__(self, spec: SampledJoin) -> None:
        if spec.fraction is not None:
            raise TidegateError(
                f"fraction={quoted(spec.fraction)} says how much is sampled, and so does the "
                "memory that "
                "a pool gives: leave fraction out, or give memory a number"
            )
        self.unit = "bytes" if spec.window.in_bytes else "held"
        self.least = LEAST_BYTES if spec.window.in_bytes else 1
        self.second = spec.window.second

    def watch(
        self, engine: SampledEngine, sizes: Sequence[int], shard: int, shards: int
    ) -> Expected:
        """Return the estimator of one shard."""
        return Expected(engine, sizes, self.second)


class Expected:
    """The expected accuracy of one engine with several budgets."""

    def __init__(self, engine: SampledEngine, sizes: Sequence[int], second: float = 1.0) -> None:
        self._sizes = tuple(sizes)
        self._engine, self._second = engine, second
        self._since: float | None = None
        self._clock = 0.0
        self._advance = 0.0

    def feed(self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None) -> None:
        """Note the clock of the engine after a batch."""
        clock = self._engine.clock
        if clock is None:
            return
        if self._since is None:
            times = [b.column(TIME).to_numpy() for stream in inputs for b in stream if b.num_rows]
            self._since = self._clock = min([clock, *(float(own.min()) for own in times)])
        self._advance += clock - self._clock
        self._clock = clock

    def worth(self, counters: Mapping[str, int | float]) -> float:
        """Return the accuracy of the engine itself since the last `take`, by its counters.

        Rows that did not fit are missing from counts. Call it before `take`.
        """
        foreseen, missed = counters["foreseen"], counters["missed"]
        if foreseen <= 0 or self._advance <= 0 or not self._is_known:
            return 0.0
        total, rate = self._results()
        windows = self._advance * rate / total
        error = counters["variance"] * windows / foreseen**2 + (missed / foreseen) ** 2
        return self._weight * max(1.0 - error, 0.0)

    def take(self) -> Found:
        """Return the expected accuracy by budget, for the time since the last call."""
        found, engine = Found(self._sizes), self._engine
        found.advance = self._advance
        if self._is_known:
            sides, weight = engine.sides(), self._weight
            window = sum(float(side.rows.sum()) for side in sides)
            found.hits = [
                weight * max(1.0 - engine.error(sides, size), 0.0) for size in self._sizes
            ]
            found.total, found.span = weight, self._advance
            found.need = window + engine.sampled.margin * math.sqrt(window * engine.mean_size)
        self._advance = 0.0
        return found

    @property
    def _is_known(self) -> bool:
        """True once a window has passed: models have to be learned first."""
        return self._since is not None and self._clock - self._since >= self._engine.horizon

    @property
    def _weight(self) -> float:
        """The weight of this shard: the square of its rate of results."""
        _, rate = self._results()
        return self._advance / self._second * (rate * self._second) ** 2

    def _results(self) -> tuple[float, float]:
        """Return the results of the rows in the windows, and the results per unit of time."""
        engine = self._engine
        found = [float(side.rows @ side.matches) / engine.mean_size for side in engine.sides()]
        rates = [n / window for n, window in zip(found, engine.windows, strict=True)]
        return max(sum(found), 1e-300), sum(rates)
