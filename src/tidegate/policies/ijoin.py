"""iJoin: importance times recent matches, by age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.kernel import scores
from tidegate.policies.base import Policy, Ranks, Times, at_least


@dataclass(frozen=True)
class IJoin(Policy):
    """Rank a tuple by importance * matches / age.

    Matches fade by ``exp(-decay * time)`` and begin with the partners that are in memory when the
    tuple comes.

    Parameters
    ----------
    tau
        Tuples younger than this are no candidates, unless there is no other: a duration or a
        number like `within`.
    delta, penalty
        A tuple that has not matched for `delta` loses `penalty` for each second (or unit of
        time, where times are plain numbers) since its last match, or since its arrival.
    decay
        How fast matches fade, by the second; 0 counts all alike.
    p_init
        The rank of a tuple at the time of its arrival, where `tau` does not spare it.

    References
    ----------
    Kulkarni, Ravishankar, *iJoin: Importance-aware Join Approximation over Data Streams*.
    """

    name: ClassVar[str] = "ijoin"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.IJOIN

    tau: Any = 0
    delta: Any = None
    penalty: float = 0.0
    decay: float = 0.0
    p_init: float = 1.0

    def __post_init__(self) -> None:
        for name in ("penalty", "decay", "p_init"):
            at_least(getattr(self, name), 0, name)

    def params(self, times: Times) -> tuple[float, ...]:
        """Decay, maturity, unproductivity, its penalty, the first rank."""
        delta = times.window if self.delta is None else times.read(self.delta, "delta")
        tau = times.read(self.tau, "tau")
        # Matches by age are counted by the second too, so that the penalty compares with them.
        rate = self.penalty / times.unit**2
        return self.decay / times.unit, tau, delta, rate, self.p_init / times.unit
