"""The classes that users write: k-constraints and `Monitor`.

Names follow Babu, Srivastava, Widom, *Exploiting k-Constraints to Reduce Memory Overhead in
Continuous Queries over Data Streams*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tidegate.errors import TidegateError
from tidegate.settings.rows import MOST
from tidegate.settings.values import is_whole, quoted, real

#: The value of k for constraints whose k is measured while running.
DETECT = "detect"


@dataclass(frozen=True)
class Constraint:
    """A property of the arrival order of streams, with an adherence parameter k.

    Parameters
    ----------
    on
        A join such as ``"S1 -> S2"`` or a join attribute such as ``"S1.a"``.
    k
        The adherence in rows; 0 means that the property holds strictly. With ``"detect"``, the
        default, k is measured while running.
    within
        The adherence as a length of time, instead of `k`: a duration, a number where times are
        numbers, or ``"detect"``. Only constraints in time can be used with several shards.
    """

    on: str
    k: Any = None
    within: Any = None

    def __post_init__(self) -> None:
        """Check the parameters."""
        if not isinstance(self.on, str):
            raise TidegateError(
                f"{self.kind} needs a join or an attribute as text, such as "
                f"{self.example}, not {quoted(self.on)}"
            )
        if self.k is not None and self.within is not None:
            raise TidegateError(
                f"{self.kind}({quoted(self.on)}) needs one of k (rows) and within (time), not "
                f"k={quoted(self.k)} and within={quoted(self.within)}"
            )
        k = self.k
        counted = is_whole(k) and 0 <= k <= MOST
        if counted:
            object.__setattr__(self, "k", int(k))
        elif not (k is None or (isinstance(k, str) and k == DETECT)):
            raise TidegateError(
                f"k of {self.kind}({quoted(self.on)}) must be a whole number of rows up to "
                "2**60, not "
                f'negative, or "detect", not {quoted(k)}; a length of time is given as within='
            )

    @property
    def kind(self) -> str:
        """The name of the constraint in the paper."""
        return type(self).__name__

    @property
    def example(self) -> str:
        """An example for error messages."""
        return f'{self.kind}("S1.a", k=10)'


class RIDS(Constraint):
    """Referential integrity over data streams on a join ``"S1 -> S2"`` (section 4).

    When a row of S1 arrives, its partner in S2 has already arrived, or will be among the next k
    rows of S2 (or arrives within the time `within`).

    Examples
    --------
    Each payment comes with its order, or at most one order before it:

    >>> import tidegate as tg
    >>> payments = {"order": [7, 8, 9], "ts": [1, 2, 3]}
    >>> orders = {"id": [7, 9, 8], "ts": [0, 4, 5]}
    >>> found = tg.constrained_join(
    ...     {"payments": payments, "orders": orders},
    ...     joins="payments.order -> orders.id",
    ...     time="ts",
    ...     constraints=tg.RIDS("payments -> orders", k=2),
    ... )
    >>> found.results
    3
    """

    @property
    def example(self) -> str:
        """An example for error messages."""
        return 'RIDS("S1 -> S2", k=10)'


class CA(Constraint):
    """Clustered arrival on a join attribute ``"S1.a"`` of a parent (section 5).

    At most k rows with other values arrive between two rows of one value (or: rows of one value
    are at most `within` apart).

    Examples
    --------
    Rows of a session come together, so a session can be dropped when the next one begins:

    >>> import tidegate as tg
    >>> clicks = {"session": [1, 1, 2, 2, 2], "ts": [1, 2, 3, 4, 5]}
    >>> sessions = {"session": [1, 2], "ts": [0, 0]}
    >>> found = tg.constrained_join(
    ...     {"clicks": clicks, "sessions": sessions},
    ...     joins="clicks.session -> sessions.session",
    ...     time="ts",
    ...     constraints=tg.CA("clicks.session", k=0),
    ... )
    >>> found.results
    5
    """


class OAP(Constraint):
    """Ordered arrival on a join attribute ``"S1.a"`` of a parent (section 6).

    Values arrive in ascending order, except that two rows in the wrong order are at most k rows
    (or a time of `within`) apart.

    Examples
    --------
    >>> import tidegate as tg
    >>> readings = {"minute": [1, 1, 2, 3], "ts": [1, 2, 3, 4]}
    >>> minutes = {"minute": [1, 2, 3], "ts": [0, 1, 2]}
    >>> found = tg.constrained_join(
    ...     {"readings": readings, "minutes": minutes},
    ...     joins="readings.minute -> minutes.minute",
    ...     time="ts",
    ...     constraints=tg.OAP("readings.minute", k=0),
    ... )
    >>> found.results
    4
    """


class OAC(Constraint):
    """Ordered arrival on a join attribute ``"S2.a"`` of a child (section 6, appendix F).

    Like `OAP`, for the stream on the one side of a many-one join.

    Examples
    --------
    >>> import tidegate as tg
    >>> readings = {"minute": [1, 1, 2, 3], "ts": [1, 2, 3, 4]}
    >>> minutes = {"minute": [1, 2, 3], "ts": [0, 1, 2]}
    >>> found = tg.constrained_join(
    ...     {"readings": readings, "minutes": minutes},
    ...     joins="readings.minute -> minutes.minute",
    ...     time="ts",
    ...     constraints=tg.OAC("minutes.minute", k=0),
    ... )
    >>> found.results
    4
    """


#: What `constraints` takes: one, several, "auto" for all that the joins allow, or None.
Constraints: TypeAlias = Constraint | Sequence[Constraint] | Literal["auto"] | None


@dataclass(frozen=True)
class Monitor:
    """Settings for constraints whose k is measured while running (sections 4.3, 5.3, 6.3).

    Parameters
    ----------
    c
        State is kept as if k were `c` times the measured k, so that a rise within that factor
        loses no results.
    p
        The share of values whose rows are always kept to the end of their window. They reveal a
        larger rise of k, and how many results were missed. A larger share finds a rise sooner and
        estimates ``missed`` better, and holds more rows.
    window
        A smaller k is adopted after this many rows of a stream, and for RIDS also 100 distances
        (or `window`, if that is smaller). k is the largest distance of the last two such windows.
    on_rise
        What a distance above the measured k does. ``"raise"``: up to `c` times k it raises k at
        once; beyond that, the constraint is not used until the next window ends. ``"suspend"`` is
        the paper's rule: any distance above k stops the use of the constraint, and k is the
        largest distance of the last window alone, even if that has none.

    Examples
    --------
    >>> import tidegate as tg
    >>> payments = {"order": list(range(100)), "ts": list(range(100))}
    >>> orders = {"id": list(range(100)), "ts": list(range(100))}
    >>> found = tg.constrained_join(
    ...     {"payments": payments, "orders": orders},
    ...     joins="payments.order -> orders.id",
    ...     time="ts",
    ...     constraints=tg.RIDS("payments -> orders"),
    ...     monitor=tg.Monitor(window=20),
    ... )
    >>> found.results
    100
    """

    c: float = 1.2
    p: float = 0.0025
    window: int = 1000
    on_rise: Literal["raise", "suspend"] = "raise"

    def __post_init__(self) -> None:
        """Check the parameters."""
        for name, least, most in (("c", 1.0, math.inf), ("p", 0.0, 1.0)):
            value = getattr(self, name)
            if not least <= real(value) <= most or math.isinf(real(value)):
                between = "at least 1" if name == "c" else "between 0 and 1"
                raise TidegateError(f"{name} of a monitor must be {between}, not {quoted(value)}")
        window = self.window
        if not is_whole(window) or not 1 <= window <= MOST:
            raise TidegateError(
                f"window of a monitor must be a positive number of rows, not {quoted(window)}"
            )
        rules = ("raise", "suspend")
        if not isinstance(self.on_rise, str) or self.on_rise not in rules:
            raise TidegateError(
                'on_rise of a monitor must be "raise" (follow k up to c times, then suspend) or '
                f'"suspend" (the paper\'s rule), not {quoted(self.on_rise)}'
            )
