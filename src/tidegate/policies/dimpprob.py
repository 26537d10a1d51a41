"""DIMPPROB: importance times the partners that are there now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.learning import scores
from tidegate.policies.base import Policy, Ranks


@dataclass(frozen=True)
class DimpProb(Policy):
    """Rank a tuple by its importance times how many partners are in memory now.

    Of equal ranks the less important leaves, then the older. A newcomer is ranked in
    the same way, by the partners that are there when it comes.

    References
    ----------
    Towne, Zhu, Zuzarte, Hou, *Window Query Processing for Joining Data Streams with Relations*,
    section 3.2 (DIMPPROB); with a relation in `tidegate.star_join`.
    """

    name: ClassVar[str] = "dimpprob"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.DIMPPROB
