"""GREEDY: shed the least important row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.policies.simp import Simp


@dataclass(frozen=True)
class Greedy(Simp):
    """Rank a row by its importance; the same ranking as `Simp`, under the name in iJoin's paper.

    References
    ----------
    Kulkarni, Ravishankar, *iJoin: Importance-aware Join Approximation over Data Streams* (GREEDY).

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"key": [1, 2, 3], "time": [1, 2, 3], "weight": [5.0, 9.0, 1.0]}
    >>> right = {"key": [1, 2, 3], "time": [4, 4, 4], "weight": [1.0, 1.0, 1.0]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=(10, 1), memory=2, importance="weight",
    ...     policy=tg.Greedy(),
    ... )
    >>> sorted(result.table["key_left"].to_pylist())
    [1, 2]
    """

    name: ClassVar[str] = "greedy"
