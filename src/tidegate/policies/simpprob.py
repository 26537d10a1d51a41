"""SIMPPROB: importance times the partners that were there on arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.learning import scores
from tidegate.policies.base import Policy, Ranks


@dataclass(frozen=True)
class SimpProb(Policy):
    """Rank a tuple by its importance times how many partners were in memory when it came.

    Of equal ranks the less important leaves, then the older.

    References
    ----------
    Towne, Zhu, Zuzarte, Hou, *Window Query Processing for Joining Data Streams with Relations*,
    section 3.2 (SIMPPROB); with a relation in `tidegate.star_join`.
    """

    name: ClassVar[str] = "simpprob"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.SIMPPROB
