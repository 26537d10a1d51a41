"""iJoin: importance times recent matches, by age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tidegate.errors import TidegateError
from tidegate.learning import scores
from tidegate.policies.base import Policy, Ranks, Times, at_least, check_length
from tidegate.settings.values import is_whole, quoted


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
    recompute
        When priorities are determined: ``"successive"``, at every drop; a number k, at every kth;
        ``"adaptive"``, when the join's quality has fallen by `fall` since the last time. In
        between, a tuple has the priority that it was last given, or that it came with; whether it
        is mature is seen at every drop.
    fall
        That share. Quality is what held tuples earn by their importance from drop to drop, as a
        mean in which a drop weighs 1/16.

    Notes
    -----
    At every drop, ranks are looked up as those of other policies that move: all of them where up to
    256 tuples are candidates, and above that those at the head of a queue in which others may be
    one refill old. The other schemes go through all of the memory when they determine, and never
    in between. So they cost less where the memory is small or k is large, and more where the memory
    is large: successive ranks are then the cheaper ones.

    References
    ----------
    Kulkarni, Ravishankar, *iJoin: Importance-aware Join Approximation over Data Streams*
    ("When to re-compute tuple-priority?").
    """

    name: ClassVar[str] = "ijoin"
    ranks: ClassVar[Ranks] = "score"
    formula: ClassVar[int] = scores.IJOIN

    tau: Any = 0
    delta: Any = None
    penalty: float = 0.0
    decay: float = 0.0
    p_init: float = 1.0
    recompute: Literal["successive", "adaptive"] | int = "successive"
    fall: float = 0.1

    def __post_init__(self) -> None:
        for name in ("penalty", "decay", "p_init"):
            at_least(getattr(self, name), 0, name)
        for name in ("tau", "delta"):
            check_length(getattr(self, name), name)
        given: Any = self.recompute
        if is_whole(given) and 0 < given < 2**62:
            object.__setattr__(self, "recompute", int(given))
        elif not (isinstance(given, str) and given in ("successive", "adaptive")):
            raise TidegateError(
                'recompute must be "successive", "adaptive" or a number of drops of at least 1, '
                f"not {quoted(given)}"
            )
        at_least(self.fall, 0, "fall", above=True)
        if self.fall >= 1:
            raise TidegateError(f"fall must be a share below 1, not {quoted(self.fall)}")

    def params(self, times: Times) -> tuple[float, ...]:
        """Decay, maturity, unproductivity, its penalty, the first rank, when to determine ranks.

        That is 0 for every drop, a number of drops, or the share that quality falls by, negative.
        """
        delta = times.window if self.delta is None else times.read(self.delta, "delta")
        tau = times.read(self.tau, "tau")
        # Matches by age are counted by the second too, so that the penalty compares with them.
        rate = self.penalty / times.unit**2
        every = float(self.recompute) if isinstance(self.recompute, int) else 0.0
        if self.recompute == "adaptive":
            every = -self.fall
        return self.decay / times.unit, tau, delta, rate, self.p_init / times.unit, every
