"""How the kernel's functions are compiled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numpy.typing import NDArray

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

#: What the kernel's sources are. Numba's cache on disk watches only the file of the function that
#: Python calls, and would miss a change in one that it is made of.
_SOURCES = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()

# Without reference counts: a kernel makes no arrays, and counting the references to the many
# arrays of a `Core` at each call would cost more than the work.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
# Only compiled code calls these: they need no wrappers for Python, which take long to compile.
_INNER = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def entry_point(function: Function) -> Function:
    """Compile what Python calls, and keep the result on disk."""
    return _cached(function, _OPTIONS)


def allocating(function: Function) -> Function:
    """Compile what Python calls and what gives it new arrays."""
    return _cached(function, {"nogil": True})


def _cached(function: Function, options: dict[str, Any]) -> Function:
    compiled: Any = numba.njit(cache=True, **options)(function)
    compiled._cache._cache_file._source_stamp = _SOURCES
    return cast(Function, compiled)


def inner(function: Function) -> Function:
    """Compile what is called seldom, by compiled code."""
    return cast(Function, numba.njit(**_INNER)(function))


def inlined(function: Function) -> Function:
    """Compile what every tuple passes through, into its callers.

    A call would pass the many arrays of a `Core` one by one.
    """
    return cast(Function, numba.njit(**_INNER, forceinline=True)(function))
