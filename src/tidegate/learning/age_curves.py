"""Age curves of captured streams: how many results a row finds at each age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.float64]


@dataclass(frozen=True)
class AgeCurve:
    """The steps in which the results of one side's rows are counted by age.

    Ages are cut into equal steps, from the arrival of a row to the end of its window. A row near
    the end of the history does not live through all of them. Each step therefore counts only the
    rows that live through it before the history ends, and only the results of these rows.
    """

    window: int | float
    steps: int
    #: When the history ends.
    end: int | float

    def rows(self, times: NDArray[Any]) -> Counts:
        """Count rows by the number of steps that they live through, from 0 to all."""
        return np.bincount(self._lived(times), minlength=self.steps + 1).astype(np.float64)

    def results(self, times: NDArray[Any], ages: NDArray[Any]) -> Counts:
        """Count results by step: from the times and ages of the rows that their partners find.

        An age of 0 does not count. The two rows of such a result arrive at the same time, so they
        join without any memory. A negative age means that the other row of the pair waited.
        """
        step = np.minimum(ages / (self.window / self.steps), self.steps - 1).astype(np.int64)
        counted = (ages > 0) & (step < self._lived(times))
        return np.bincount(step[counted], minlength=self.steps).astype(np.float64)

    def mean(self, results: Counts, rows: Counts) -> list[float]:
        """Return the mean number of results of a row in each step."""
        lived_through = np.cumsum(rows[::-1])[::-1][1:]
        mean: list[float] = (results / np.maximum(lived_through, 1)).tolist()
        return mean

    def _lived(self, times: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of steps that rows live through before the history ends."""
        steps = (self.end - times) / (self.window / self.steps)
        return np.clip(steps, 0, self.steps).astype(np.int64)
