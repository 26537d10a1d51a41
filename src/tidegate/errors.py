"""The one kind of error that tidegate raises for bad input."""

from __future__ import annotations

#: A message has no more letters and lines than a screen shows.
_LETTERS, _LINES = 1_800, 22


class TidegateError(ValueError):
    """Bad input: the message quotes the value and says what to do instead.

    A message that is longer than a screen loses its middle: what is wrong comes first, and what to
    do about it last.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(_few_lines(str(message)), _LETTERS))


def shortened(text: str, most: int) -> str:
    """A text of at most so many letters: where it has more, its middle is left out."""
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
