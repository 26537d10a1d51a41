"""LIFE: weigh how often partners arrive by the life that is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.policies.base import ByFrequency, Ranks


@dataclass(frozen=True)
class Life(ByFrequency):
    """Rank a tuple by its remaining life times how often its key arrives on the other stream.

    A rate that does not change earns the same per unit of time whatever life is left, which is
    why LIFE loses to PROB. With an unbounded window there is no life to weigh by, and LIFE is
    PROB.

    References
    ----------
    Das, Gehrke, Riedewald, *Semantic Approximation of Data Stream Joins*, section 4.2.2.
    """

    name: ClassVar[str] = "life"
    ranks: ClassVar[Ranks] = "life"
