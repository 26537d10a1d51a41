"""PROB: keep the rows whose partners arrive most often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.policies.base import ByFrequency, Ranks


@dataclass(frozen=True)
class Prob(ByFrequency):
    """Rank a row by how often its key arrives on the other stream.

    Frequencies are per unit of time, not per row. So the join can compare rows of both sides if
    they share one memory and the streams have different rates.

    References
    ----------
    Das, Gehrke, Riedewald, *Semantic Approximation of Data Stream Joins*, section 4.2.1.

    Examples
    --------
    Key 1 arrives more often on the right, so its left row is kept:

    >>> import tidegate as tg
    >>> left = {"key": [1, 2], "time": [1, 2]}
    >>> right = {"key": [1, 1, 2], "time": [3, 4, 5]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=(10, 1), memory=1,
    ...     policy=tg.Prob("whole"),
    ... )
    >>> result.results
    2
    """

    name: ClassVar[str] = "prob"
    ranks: ClassVar[Ranks] = "key"
    for_star_joins: ClassVar[bool] = True
