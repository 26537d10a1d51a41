"""Compile the scoring function of a policy that ranks by a formula of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numba

from tidegate.errors import TidegateError
from tidegate.kernel.compiling import callback

Params = tuple[float, float, float, float, float, float]


class HeldRow(NamedTuple):
    """What is known of a held row: the input of `Policy.score`. Times are in the clock's unit."""

    #: The row's importance, or 1.
    importance: float
    #: The time since the row's own time.
    age: float
    #: The time until the row's window ends; infinite if it never ends.
    life: float
    #: The results that the row has found since it is held.
    matches: float
    #: The time since the last of these results, or since the row is held.
    idle: float
    #: How often the row's key has arrived on the other stream, if the policy counts arrivals.
    rate: float
    #: How many rows of its key the other side holds.
    partners: float


Score = Callable[[HeldRow, Params], float]
#: A row and parameters to try a function on.
_TRIAL = (HeldRow(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), (1.0,) * 6)


def compiled_score(name: str, function: Score) -> int:
    """Compile a policy's scoring function, and return its address."""
    try:
        return _compiled(_Source(function))[0]
    except Exception as error:  # numba has many kinds of errors, and the function is the user's
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise TidegateError(
            f"policy {name} has a score that cannot be compiled: {lines[0][:200]}; write score as "
            "a static method of a row and a tuple of six parameters, with arithmetic and the "
            "functions of math only, that returns a number"
        ) from error


class _Source:
    """A function that equals all functions with the same code and the same outside values.

    Spark sends a policy to its workers again and again, as a new object each time.
    """

    def __init__(self, function: Score) -> None:
        self.function = function
        self._key = _content(function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Source) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _content(value: Any) -> tuple[Any, ...]:
    """Return what a value computes: the code of a function and all that it uses, or its text."""
    if not inspect.isfunction(value):
        return (repr(value),)
    used = inspect.getclosurevars(value)
    outside = sorted({**used.nonlocals, **used.globals}.items())
    return (value.__code__, repr(value.__defaults__), *((n, _content(v)) for n, v in outside))


# Without a limit, as compiled code must stay for as long as an engine may call it.
@functools.cache
def _compiled(source: _Source) -> tuple[int, Any]:
    score: Any = numba.njit(error_model="numpy")(source.function)
    # An error that depends on values would be lost in compiled code that calls this.
    float(score(*_TRIAL))

    def entry(
        importance: float,
        age: float,
        life: float,
        matches: float,
        idle: float,
        rate: float,
        partners: float,
        p0: float,
        p1: float,
        p2: float,
        p3: float,
        p4: float,
        p5: float,
    ) -> Any:
        row = HeldRow(importance, age, life, matches, idle, rate, partners)
        return score(row, (p0, p1, p2, p3, p4, p5))

    return callback(entry)
