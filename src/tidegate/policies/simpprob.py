"""SIMPPROB: importance times the number of partners held on arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.learning import scores
from tidegate.policies.base import Policy, Ranks


@dataclass(frozen=True)
class SimpProb(Policy):
    """Rank a row by its importance times the number of partners that were held when it arrived.

    Among equal ranks, the join sheds the less important row first, then the older one.

    References
    ----------
    Towne, Zhu, Zuzarte, Hou, *Window Query Processing for Joining Data Streams with Relations*,
    section 3.2 (SIMPPROB). `tidegate.star_join` uses it with a relation.

    Examples
    --------
    The left row of key 1 found a held partner when it arrived, so the row of key 2 is rejected:

    >>> import tidegate as tg
    >>> left = {"key": [1, 2], "time": [2, 3]}
    >>> right = {"key": [1, 1], "time": [1, 4]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=10, memory=2, policy=tg.SimpProb()
    ... )
    >>> result.results
    2
    """

    name: ClassVar[str] = "simpprob"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.SIMPPROB
    for_star_joins: ClassVar[bool] = True
