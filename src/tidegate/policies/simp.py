"""SIMP: keep the most important tuples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tidegate.policies.base import Arrivals, Policy, Ranks


@dataclass(frozen=True)
class Simp(Policy):
    """Rank a tuple by its importance; of equally important ones the oldest leaves.

    References
    ----------
    Towne, Zhu, Zuzarte, Hou, *Window Query Processing for Joining Data Streams with Relations*,
    section 3.2 (SIMP).
    """

    name: ClassVar[str] = "simp"
    ranks: ClassVar[Ranks] = "tuple"

    def fixed_ranks(self, arrivals: Arrivals) -> NDArray[np.float64]:
        """The importance."""
        return arrivals.importance
