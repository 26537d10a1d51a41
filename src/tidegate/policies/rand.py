"""RAND: drop any tuple, all with the same chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tidegate.policies.base import Arrivals, Policy, Ranks


@dataclass(frozen=True)
class Rand(Policy):
    """Evict a tuple chosen uniformly from the memory and the newcomer.

    An exponential life on top of the largest rank evicted so far makes a fixed rank do this
    exactly: having outlived the floor says nothing about the life that is left, so every
    candidate is the next victim with the same chance.

    References
    ----------
    Das, Gehrke, Riedewald, *Semantic Approximation of Data Stream Joins*, section 5.2 (RAND).
    """

    name: ClassVar[str] = "rand"
    ranks: ClassVar[Ranks] = "tuple"
    floor_weight: ClassVar[float] = 1.0

    def fixed_ranks(self, arrivals: Arrivals) -> NDArray[np.float64]:
        """An exponential variate."""
        return -np.log(arrivals.uniform())
