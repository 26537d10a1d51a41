"""RAND: shed any row, each with the same probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tidegate.policies.base import Arrivals, Policy, Ranks


@dataclass(frozen=True)
class Rand(Policy):
    """Shed a row chosen uniformly from the held rows and the newcomer.

    A row's rank is an exponential random number plus the largest rank that was shed so far. The
    exponential distribution has no memory: a held row's excess over that largest rank has the same
    distribution as a newcomer's. So every candidate is the next one shed with the same probability.

    References
    ----------
    Das, Gehrke, Riedewald, *Semantic Approximation of Data Stream Joins*, section 5.2 (RAND).

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"key": list(range(100)), "time": list(range(100))}
    >>> right = {"key": list(range(100)), "time": [100] * 100}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=(200, 1), memory=30, policy=tg.Rand()
    ... )
    >>> result.results
    30
    """

    name: ClassVar[str] = "rand"
    ranks: ClassVar[Ranks] = "row"
    floor_weight: ClassVar[float] = 1.0

    def fixed_ranks(self, arrivals: Arrivals) -> NDArray[np.float64]:
        """Return an exponential random number for each row."""
        return -np.log(arrivals.uniform())
