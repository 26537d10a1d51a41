"""Streams by name, and settings that are given for each stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.errors import TidegateError
from tidegate.settings.values import quoted


def named_streams(streams: Any, reserved: str = "") -> dict[str, Any]:
    """Return the streams by name; those of a list are named "s1", "s2" and so on.

    No stream may have the name `reserved`.
    """
    if isinstance(streams, Mapping):
        given = dict(streams)
    elif isinstance(streams, list | tuple):
        given = {f"s{at}": stream for at, stream in enumerate(streams, 1)}
    else:
        given = {}
    if not given or not all(isinstance(n, str) and n not in ("", reserved) for n in given):
        other = f' (other than "{reserved}")' if reserved else ""
        raise TidegateError(
            f"streams must be a list of one or more streams, or a mapping of names{other} to "
            f"streams, not {_shown(streams)}"
        )
    return given


def _shown(streams: Any) -> str:
    names = [*streams] if isinstance(streams, Mapping) else []
    wrong = [name for name in names if not isinstance(name, str)]
    return f"with the name {quoted(wrong[0])}" if wrong else quoted(streams)


def for_each_stream(value: Any, names: Sequence[str], setting: str, what: str) -> list[Any]:
    """Return a setting for each stream, from one for all, a list, or a mapping by name."""
    if isinstance(value, Mapping) and set(value) == set(names):
        return [value[name] for name in names]
    if isinstance(value, list | tuple) and len(value) == len(names):
        return list(value)
    if isinstance(value, str):
        return [value] * len(names)
    listed = ", ".join(f'"{name}"' for name in names)
    raise TidegateError(
        f"{setting} must have {what} for each of the {len(names)} streams, as a list or as a "
        f"mapping of {listed}, not {quoted(value)}"
    )
