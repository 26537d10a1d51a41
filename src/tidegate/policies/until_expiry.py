"""UNTIL-EXPIRY: admit a row only if there is room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.policies.base import Policy, Ranks


@dataclass(frozen=True)
class UntilExpiry(Policy):
    """Admit a row only if there is room, and hold it until it expires.

    References
    ----------
    Srivastava, Widom, *Memory-Limited Execution of Windowed Stream Joins*, section 6.1.

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"key": [1, 2, 3], "time": [1, 2, 3]}
    >>> right = {"key": [1, 2, 3], "time": [4, 4, 4]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=(10, 1), memory=2, policy=tg.UntilExpiry()
    ... )
    >>> sorted(result.table["key_left"].to_pylist())
    [1, 2]
    """

    name: ClassVar[str] = "until-expiry"
    ranks: ClassVar[Ranks] = "row"
    order_weight: ClassVar[float] = -1.0
