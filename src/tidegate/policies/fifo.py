"""FIFO: keep the most recent rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tidegate.policies.base import Arrivals, Policy, Ranks


@dataclass(frozen=True)
class Fifo(Policy):
    """Shed the row with the earliest time, as engines do that drop rows by age.

    References
    ----------
    Srivastava, Widom, *Memory-Limited Execution of Windowed Stream Joins*, section 6.1, where it
    is called RECENT; Kulkarni, Ravishankar, *iJoin*, where it is called FIFO.

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"key": [1, 2, 3], "time": [1, 2, 3]}
    >>> right = {"key": [1, 2, 3], "time": [4, 4, 4]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=(10, 1), memory=2, policy=tg.Fifo()
    ... )
    >>> sorted(result.table["key_left"].to_pylist())
    [2, 3]
    """

    name: ClassVar[str] = "fifo"
    ranks: ClassVar[Ranks] = "row"

    def fixed_ranks(self, arrivals: Arrivals) -> NDArray[np.float64]:
        """Return the times."""
        return arrivals.time.astype(np.float64)
