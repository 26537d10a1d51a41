"""FIFO: keep the most recent tuples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tidegate.policies.base import Arrivals, Policy, Ranks


@dataclass(frozen=True)
class Fifo(Policy):
    """Evict the tuple with the earliest time: what an engine does that drops by age.

    References
    ----------
    Srivastava, Widom, *Memory-Limited Execution of Windowed Stream Joins*, section 6.1, where it
    is called RECENT; Kulkarni, Ravishankar, *iJoin*, where it is called FIFO.
    """

    name: ClassVar[str] = "fifo"
    ranks: ClassVar[Ranks] = "tuple"

    def fixed_ranks(self, arrivals: Arrivals) -> NDArray[np.float64]:
        """The time itself."""
        return arrivals.time.astype(np.float64)
