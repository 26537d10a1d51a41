"""Check the names of the settings that a public call was given, before anything else."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tidegate.errors import TidegateError
from tidegate.settings.checks import check_names
from tidegate.settings.values import quoted

P = ParamSpec("P")
R = TypeVar("R")


def public_call(call: Callable[P, R]) -> Callable[P, R]:
    """Let a call refuse unknown settings, and name missing ones, in the same words as all others.

    Settings are its keyword-only parameters.
    """
    return public_call_without()(call)


def public_call_without(**refused: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return `public_call` for a call that refuses some settings of others for a given reason."""

    def decorated(call: Callable[P, R]) -> Callable[P, R]:
        every = inspect.signature(call).parameters.values()
        inputs = [p.name for p in every if p.kind is p.POSITIONAL_OR_KEYWORD]
        settings = [p for p in every if p.kind is p.KEYWORD_ONLY]
        known = [p.name for p in settings]
        needed = [p.name for p in settings if p.default is p.empty]

        @functools.wraps(call)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, why in refused.items():
                if name in kwargs:
                    raise TidegateError(
                        f"there is no setting {name} here, and {name}={quoted(kwargs[name])} was "
                        f"given: {why}"
                    )
            check_names([name for name in kwargs if name not in inputs], known, needed)
            return call(*args, **kwargs)

        return checked

    return decorated
