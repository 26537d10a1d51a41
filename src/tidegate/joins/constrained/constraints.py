"""k-constraints, windows of rows and how constraints are watched: what a user writes.

Names follow Babu, Srivastava, Widom, *Exploiting k-Constraints to Reduce Memory Overhead in
Continuous Queries over Data Streams*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tidegate.errors import TidegateError
from tidegate.settings.values import is_whole, quoted, real

#: More tuples than any stream has.
MOST = 2**60
#: For a k that is found by watching the streams.
DETECT = "detect"


@dataclass(frozen=True)
class Constraint:
    """What is known of how streams arrive, to within an adherence parameter.

    Parameters
    ----------
    on
        A join such as ``"S1 -> S2"`` or a join attribute such as ``"S1.a"``.
    k
        The adherence in tuples: 0 holds strictly. ``"detect"``, the default, has it watched.
    within
        The same as a length of time, instead of `k`: a duration, a number where times are numbers,
        or ``"detect"``. Only constraints in time can be used in several shards.
    """

    on: str
    k: Any = None
    within: Any = None

    def __post_init__(self) -> None:
        """Refuse what no stream can keep to."""
        if not isinstance(self.on, str):
            raise TidegateError(
                f"{self.kind} needs a join or an attribute as text, such as "
                f"{self.example}, not {quoted(self.on)}"
            )
        if self.k is not None and self.within is not None:
            raise TidegateError(
                f"{self.kind}({quoted(self.on)}) needs one of k (tuples) and within (time), not "
                f"k={quoted(self.k)} and within={quoted(self.within)}"
            )
        k = self.k
        counted = is_whole(k) and 0 <= k <= MOST
        if counted:
            object.__setattr__(self, "k", int(k))
        elif not (k is None or (isinstance(k, str) and k == DETECT)):
            raise TidegateError(
                f"k of {self.kind}({quoted(self.on)}) must be a whole number of tuples up to "
                "2**60, not "
                f'negative, or "detect", not {quoted(k)}; a length of time is given as within='
            )

    @property
    def kind(self) -> str:
        """The name that the paper has for it."""
        return type(self).__name__

    @property
    def example(self) -> str:
        """How it is written."""
        return f'{self.kind}("S1.a", k=10)'


class RIDS(Constraint):
    """Referential integrity over data streams on a join ``"S1 -> S2"`` (section 4).

    When a tuple of S1 arrives, the S2 tuple that it joins has arrived, or will within k tuples of
    S2 (or a time of `within`).
    """

    @property
    def example(self) -> str:
        """How it is written."""
        return 'RIDS("S1 -> S2", k=10)'


class CA(Constraint):
    """Clustered arrival on a join attribute ``"S1.a"`` of a parent (section 5).

    Between any two tuples of one value come at most k tuples of other values (or: they are no more
    than `within` apart).
    """


class OAP(Constraint):
    """Ordered arrival on a join attribute ``"S1.a"`` of a parent (section 6).

    Tuples that come out of order, ascending, are within k tuples (or a time) of each other.
    """


class OAC(Constraint):
    """Ordered arrival on a join attribute ``"S2.a"`` of a child (section 6, appendix F)."""


@dataclass(frozen=True)
class Rows:
    """A window of the last `n` tuples; with `by`, of the last `n` of each value of a column."""

    n: int
    by: str | None = None

    def __post_init__(self) -> None:
        """Refuse a window that nothing fits into."""
        if not is_whole(self.n) or not 1 <= self.n <= MOST:
            raise TidegateError(
                f"a window of rows needs a positive whole number up to 2**60, not {quoted(self.n)}"
            )
        if self.by is not None and not isinstance(self.by, str):
            raise TidegateError(f"a window of rows is by one column name, not {quoted(self.by)}")


@dataclass(frozen=True)
class Monitor:
    """How constraints are watched whose k is to be detected (sections 4.3, 5.3, 6.3).

    Parameters
    ----------
    c
        State is kept as if k were `c` times what was seen, so that a rise within it costs nothing.
    p
        The share of values whose tuples are kept to the end of their window whatever k is: they
        show a rise beyond that, and how many results were missed. Where joins share no key, results
        that several constraints cost are hardly seen, and ``missed`` is too low by these.
    window
        A smaller k is adopted after so many tuples of a stream. A larger one is never: the
        constraint is left unused until the next such window ends.
    """

    c: float = 1.2
    p: float = 0.01
    window: int = 1000

    def __post_init__(self) -> None:
        """Refuse what cannot be watched with."""
        for name, least, most in (("c", 1.0, math.inf), ("p", 0.0, 1.0)):
            value = getattr(self, name)
            if not least <= real(value) <= most or math.isinf(real(value)):
                between = "at least 1" if name == "c" else "between 0 and 1"
                raise TidegateError(f"{name} of a monitor must be {between}, not {quoted(value)}")
        window = self.window
        if not is_whole(window) or not 1 <= window <= MOST:
            raise TidegateError(
                f"window of a monitor must be a positive number of tuples, not {quoted(window)}"
            )
