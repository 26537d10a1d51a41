"""The model of a join that is slower than its streams (paper 1, section 2.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from tidegate.errors import TidegateError
from tidegate.settings.values import is_whole, quoted, real

MODES = ("modular", "integrated")


@dataclass(frozen=True)
class SlowCPU:
    """A bounded queue in front of the join, which takes rows from it at a steady rate.

    Parameters
    ----------
    rate
        How many rows the join takes in a unit of event time (a second, where times are
        timestamps), over both streams and all shards.
    queue
        The capacity of the queue in rows. When it is full, the least promising rows are dropped
        and never reach the join.
    mode
        ``"modular"``: the queue only has statistics, and drops the rows whose keys arrive least
        often on the other stream. ``"integrated"``: it also sees the held rows, and first drops
        the rows with the fewest partners among them.

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"key": [1, 1, 2, 2], "ts": [0, 0, 0, 0]}
    >>> right = {"key": [1, 2], "ts": [5, 6]}
    >>> slow = tg.SlowCPU(rate=1, queue=2)
    >>> found = tg.join(left, right, on="key", time="ts", within=10, cpu=slow)
    >>> found.counters["queue_shed"], found.results
    (1, 3)

    References
    ----------
    Das, Gehrke, Riedewald, *Semantic Approximation of Data Stream Joins*, section 2.3.
    """

    rate: float
    queue: int
    mode: Literal["modular", "integrated"] = "modular"

    def __post_init__(self) -> None:
        rate: Any = self.rate
        queue: Any = self.queue
        if not 0 < real(rate) < math.inf:
            raise TidegateError(
                f"rate must be a number of rows above 0 in a unit of time, not {quoted(rate)}"
            )
        if not is_whole(queue) or not 0 < queue < 2**62:
            raise TidegateError(f"queue must be a positive number of rows, not {quoted(queue)}")
        if not isinstance(self.mode, str) or self.mode not in MODES:
            raise TidegateError(
                f'mode must be "modular" (statistics only) or "integrated" (sees the memory), not '
                f"{quoted(self.mode)}"
            )

    def step(self, unit: float) -> Fraction:
        """Return the time that the join takes for a row, in the units of which `unit` are 1."""
        return Fraction(unit) / Fraction(str(self.rate))

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return {"rate": float(self.rate), "queue": int(self.queue), "mode": self.mode}
