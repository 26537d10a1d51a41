"""iJoin: importance times recent matches, divided by age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tidegate.errors import TidegateError
from tidegate.learning import scores
from tidegate.policies.base import Policy, Ranks, Times, at_least, check_length
from tidegate.settings.values import is_whole, quoted


@dataclass(frozen=True)
class IJoin(Policy):
    """Rank a row by importance * matches / age.

    Matches fade by ``exp(-decay * time)``. They start with the number of partners that are held
    when the row arrives.

    Parameters
    ----------
    tau
        Rows younger than this are not candidates for shedding, unless there is no other row: a
        duration or a number like `within`.
    delta, penalty
        A row that has not matched for `delta` loses `penalty` for each second (or unit of time,
        if times are plain numbers) since its last match, or since its arrival if it never matched.
    decay
        How fast matches fade, per second; 0 counts all matches equally.
    p_init
        The rank of a row at the time of its arrival, if `tau` does not protect it.
    recompute
        When to compute ranks again: ``"successive"``, each time a row is shed; a number k, every
        k-th time; ``"adaptive"``, when the join's quality has fallen by `fall` since the last
        computation. In between, a row keeps its last rank, or the rank it arrived with. Whether a
        row is older than `tau` is checked each time.
    fall
        The share by which quality must fall for ``"adaptive"``. Quality is the importance that
        held rows earn between two shed rows, as a moving mean with weight 1/16.

    Notes
    -----
    ``"successive"`` works like the other policies with moving ranks: with up to 256 held rows it
    ranks all of them; with more, it ranks the lowest row of each slice of rows that arrived one
    after the other. The other two schemes rank all held rows when they compute, and never in
    between. They cost less if the memory is small or k is large. If the memory is large,
    ``"successive"`` costs less.

    References
    ----------
    Kulkarni, Ravishankar, *iJoin: Importance-aware Join Approximation over Data Streams*
    ("When to re-compute tuple-priority?").

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"key": [1, 2], "time": [2, 3], "weight": [5.0, 1.0]}
    >>> right = {"key": [1, 1], "time": [1, 4], "weight": [5.0, 5.0]}
    >>> result = tg.join(
    ...     left, right, on="key", time="time", within=10, memory=2, importance="weight",
    ...     policy=tg.IJoin(tau=1),
    ... )
    >>> result.importance
    10.0
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
        """Return decay, tau, delta, penalty, p_init and when to recompute, in the join's unit.

        The last number is 0 for each time, k for every k-th time, or ``-fall`` for adaptive.
        """
        delta = times.window if self.delta is None else times.read(self.delta, "delta")
        tau = times.read(self.tau, "tau")
        # A rank is matches per second, and the penalty grows per second: convert the unit twice.
        rate = self.penalty / times.unit**2
        every = float(self.recompute) if isinstance(self.recompute, int) else 0.0
        if self.recompute == "adaptive":
            every = -self.fall
        return self.decay / times.unit, tau, delta, rate, self.p_init / times.unit, every
