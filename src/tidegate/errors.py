"""The one kind of error that tidegate raises for bad input."""

from __future__ import annotations


class TidegateError(ValueError):
    """Bad input: the message quotes the value and says what to do instead."""
