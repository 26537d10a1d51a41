"""SIMP: keep the most important rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tidegate.policies.base import Arrivals, Policy, Ranks


@dataclass(frozen=True)
class Simp(Policy):
    """Rank a row by its importance; among equally important rows, shed the oldest first.

    References
    ----------
    Towne, Zhu, Zuzarte, Hou, *Window Query Processing for Joining Data Streams with Relations*,
    section 3.2 (SIMP).

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"key": [1, 2, 3], "time": [1, 2, 3], "weight": [5.0, 9.0, 1.0]}
    >>> right = {"key": [1, 2, 3], "time": [4, 4, 4], "weight": [1.0, 1.0, 1.0]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=(10, 1), memory=2, importance="weight",
    ...     policy=tg.Simp(),
    ... )
    >>> sorted(result.table["key_left"].to_pylist())
    [1, 2]
    """

    name: ClassVar[str] = "simp"
    ranks: ClassVar[Ranks] = "row"

    def fixed_ranks(self, arrivals: Arrivals) -> NDArray[np.float64]:
        """Return the importance."""
        return arrivals.importance
