"""GREEDY: iJoin's rival that drops the least important tuple."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.policies.simp import Simp


@dataclass(frozen=True)
class Greedy(Simp):
    """Rank a tuple by its importance: what iJoin's paper calls SIMP.

    References
    ----------
    Kulkarni, Ravishankar, *iJoin: Importance-aware Join Approximation over Data Streams* (GREEDY).
    """

    name: ClassVar[str] = "greedy"
