"""The exception that tidegate raises for bad input and for packages that are not installed."""

from __future__ import annotations

import importlib.util

#: Limits of a message, so that it fits on one screen.
_LETTERS, _LINES = 1_800, 22


class TidegateError(ValueError):
    """Bad input: the message quotes the value and says what to do instead.

    A message longer than a screen loses its middle, because the problem is stated first and the
    advice last.

    Examples
    --------
    >>> import tidegate as tg
    >>> try:
    ...     tg.join({"k": [1], "t": [1]}, {"k": [1], "t": [1]}, on="k", time="t", within=-5)
    ... except tg.TidegateError as error:
    ...     print(error)
    within must be longer than zero, not -5
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(_few_lines(str(message)), _LETTERS))


def shortened(text: str, most: int) -> str:
    """Return the text, cut in the middle if it has more than `most` characters."""
    if len(text) <= most:
        return text
    note = f" [... {len(text) - most:,} letters ...] "
    start = most * 3 // 5
    return text[:start] + note + text[len(text) - (most - start - len(note)) :]


def _few_lines(text: str) -> str:
    lines = text.split("\n")
    if len(lines) <= _LINES:
        return text
    half = _LINES // 2
    note = f"[... {len(lines) - 2 * half + 1:,} lines ...]"
    return "\n".join([*lines[:half], note, *lines[len(lines) - half + 1 :]])


def installed(package: str) -> bool:
    """Return True if a package can be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # its parent is missing, or something else has its name
        return False


def require(package: str, extra: str, use: str) -> None:
    """Raise an error that names the extra to install, if a package that is needed is missing."""
    if not installed(package):
        raise TidegateError(
            f"{use} needs the package {package}, which is not installed: "
            f"pip install 'tidegate[{extra}]'"
        )
