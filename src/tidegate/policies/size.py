"""SIZE: keep the keys that have produced the most results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tidegate.policies.base import Policy, Ranks


@dataclass(frozen=True)
class Size(Policy):
    """Rank a row by the number of results that its key has produced so far.

    References
    ----------
    Kulkarni, Ravishankar, *iJoin: Importance-aware Join Approximation over Data Streams* (SIZE).

    Examples
    --------
    Key 1 has produced a result, so its left row is kept:

    >>> import tidegate as tg
    >>> left = {"key": [1, 2, 3], "time": [1, 3, 3]}
    >>> right = {"key": [1, 1], "time": [2, 4]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=(10, 1), memory=2, policy=tg.Size()
    ... )
    >>> result.results
    2
    """

    name: ClassVar[str] = "size"
    ranks: ClassVar[Ranks] = "key"
    counts: ClassVar[Literal["nothing", "arrivals", "results"]] = "results"
