"""LIFE: remaining life times the frequency of partners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.policies.base import ByFrequency, Ranks


@dataclass(frozen=True)
class Life(ByFrequency):
    """Rank a row by its remaining life times how often its key arrives on the other stream.

    A constant rate earns the same per unit of time whatever life remains, which is why LIFE
    delivers less than PROB. With an unbounded window there is no remaining life, and LIFE ranks
    as PROB.

    References
    ----------
    Das, Gehrke, Riedewald, *Semantic Approximation of Data Stream Joins*, section 4.2.2.

    Examples
    --------
    Both keys are equally frequent, so the row with the longer remaining life stays:

    >>> import tidegate as tg
    >>> left = {"key": [1, 2], "time": [1, 5]}
    >>> right = {"key": [1, 2], "time": [6, 6]}
    >>> often = {"key": [1, 2], "left": [1, 1], "right": [1, 1]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=(10, 1), memory=1, policy=tg.Life(often)
    ... )
    >>> result.table["key_left"].to_pylist()
    [2]
    """

    name: ClassVar[str] = "life"
    ranks: ClassVar[Ranks] = "life"
