"""Structured arrays whose rows have their fields as attributes, as compiled code sees them.

Numba reads `slots[i].time`. NumPy knows only `slots[i]["time"]`, and would take `slots[i].size` for
the number of items of a scalar. With the types of this module both work, so that every loop also
runs as plain Python (`NUMBA_DISABLE_JIT=1`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tidegate.kernel.compiling import Array


class Record(np.void):  # type: ignore[misc]
    """A row of a structured array; like any scalar that NumPy gives for one, a view of it."""

    def __getattribute__(self, name: str) -> Any:
        fields = super().__getattribute__("dtype").fields
        return self[name] if name in fields else super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def record_type(fields: Sequence[Any], *, align: bool = True) -> np.dtype[Any]:
    """Return the type of a row with the given fields (name, type and, optionally, shape)."""
    return np.dtype((Record, np.dtype(list(fields), align=align)))


def plain(array: Array) -> Array:
    """Return a view of a structured array, all of whose fields have one type, as plain numbers.

    The fields are its last dimension.
    """
    return array.view(array.dtype[0].base).reshape(*array.shape, -1)
