"""SIZE: keep the keys that have produced most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tidegate.policies.base import Policy, Ranks


@dataclass(frozen=True)
class Size(Policy):
    """Rank a tuple by how many results its key has produced so far.

    References
    ----------
    Kulkarni, Ravishankar, *iJoin: Importance-aware Join Approximation over Data Streams* (SIZE).
    """

    name: ClassVar[str] = "size"
    ranks: ClassVar[Ranks] = "key"
    counts: ClassVar[Literal["nothing", "arrivals", "results"]] = "results"
