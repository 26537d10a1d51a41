"""PROB: keep the tuples whose partners arrive most often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.policies.base import ByFrequency, Ranks


@dataclass(frozen=True)
class Prob(ByFrequency):
    """Rank a tuple by how often its key arrives on the other stream.

    Frequencies are counted per time, not per tuple, so that tuples of both sides can be compared
    when they share one memory and the streams have different rates.

    References
    ----------
    Das, Gehrke, Riedewald, *Semantic Approximation of Data Stream Joins*, section 4.2.1.
    """

    name: ClassVar[str] = "prob"
    ranks: ClassVar[Ranks] = "key"
