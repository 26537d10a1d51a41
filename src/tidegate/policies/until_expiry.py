"""UNTIL-EXPIRY: first come, first kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.policies.base import Policy, Ranks


@dataclass(frozen=True)
class UntilExpiry(Policy):
    """Admit a tuple only if there is room, and keep it until it expires.

    References
    ----------
    Srivastava, Widom, *Memory-Limited Execution of Windowed Stream Joins*, section 6.1.
    """

    name: ClassVar[str] = "until-expiry"
    ranks: ClassVar[Ranks] = "tuple"
    order_weight: ClassVar[float] = -1.0
