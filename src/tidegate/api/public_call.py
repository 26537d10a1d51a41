"""Check the names of the settings that a public call was given, before anything else."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from tidegate.errors import TidegateError
from tidegate.settings.checks import nearest
from tidegate.settings.values import quoted

P = ParamSpec("P")
R = TypeVar("R")


def public_call(
    *, checked_by: Callable[..., Any] | None = None, **refused: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse unknown settings of a public call, and name the missing ones.

    Settings are the keyword-only parameters of the call and of `checked_by`, the function to which
    the call passes its other keywords. So each setting and its default is written in one signature
    only. The call gets all settings of `checked_by`, with defaults filled in. `refused` has
    settings that other calls have and this one refuses, each with the reason.
    """

    def decorated(call: Callable[P, R]) -> Callable[P, R]:
        every = inspect.signature(call).parameters.values()
        inputs = [p for p in every if p.kind is p.POSITIONAL_OR_KEYWORD]
        names = [p.name for p in inputs]
        own = {p.name: p for p in every if p.kind is p.KEYWORD_ONLY}
        others = {} if checked_by is None else inspect.signature(checked_by).parameters
        handed = {p.name: p for p in others.values() if p.kind is p.KEYWORD_ONLY}
        settings = handed | own
        defaults = {p.name: p.default for p in handed.values() if p.default is not p.empty}
        defaults = {name: value for name, value in defaults.items() if name not in own}
        needed = [p.name for p in settings.values() if p.default is p.empty]

        @functools.wraps(call)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, why in refused.items():
                if name in kwargs:
                    raise TidegateError(
                        f"there is no setting {name} here, and {name}={quoted(kwargs[name])} was "
                        f"given: {why}"
                    )
            _check_names([name for name in kwargs if name not in names], [*settings], needed)
            kwargs.update({name: kwargs.get(name, value) for name, value in defaults.items()})
            return call(*args, **kwargs)

        signature = inspect.Signature([*inputs, *settings.values()])
        checked.__signature__ = signature  # type: ignore[attr-defined]
        return checked

    return decorated


def _check_names(names: Sequence[str], known: Sequence[str], needed: Sequence[str]) -> None:
    """Refuse settings that are not known, and name the needed ones that are missing."""
    for name in names:
        if name not in known:
            listed = ", ".join(known)
            hint = nearest(name, known)
            raise TidegateError(f"there is no setting {quoted(name)}; there are {listed}{hint}")
    for name in needed:
        if name not in names:
            raise TidegateError(
                f"the setting {quoted(name)} is missing: a join needs {' and '.join(needed)}"
            )
