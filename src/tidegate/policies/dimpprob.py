"""DIMPPROB: importance times the number of partners held now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.learning import scores
from tidegate.policies.base import Policy, Ranks


@dataclass(frozen=True)
class DimpProb(Policy):
    """Rank a row by its importance times the number of its partners that are held now.

    Among equal ranks, the join sheds the less important row first, then the older one. A newcomer
    is ranked the same way, by the partners that are held when it arrives.

    References
    ----------
    Towne, Zhu, Zuzarte, Hou, *Window Query Processing for Joining Data Streams with Relations*,
    section 3.2 (DIMPPROB). `tidegate.star_join` uses it with a relation.

    Examples
    --------
    The left row of key 1 has a held partner, so the row of key 2 is rejected:

    >>> import tidegate as tg
    >>> left = {"key": [1, 2], "time": [2, 3]}
    >>> right = {"key": [1, 1], "time": [1, 4]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=10, memory=2, policy=tg.DimpProb()
    ... )
    >>> result.results
    2
    """

    name: ClassVar[str] = "dimpprob"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.DIMPPROB
    for_star_joins: ClassVar[bool] = True
