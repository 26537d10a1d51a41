"""Decorators that compile the kernel's functions with numba, and the cache of compiled code.

With `NUMBA_DISABLE_JIT=1` in the environment nothing is compiled: every loop runs as plain Python,
for a debugger or a measure of line coverage.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba._dynfunc import make_function
from numba.core import cgutils, config, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic
from numpy.typing import NDArray

from tidegate.kernel.user_folders import cache_folders, make_private

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

#: Whether functions are compiled at all.
_COMPILES = not config.DISABLE_JIT  # type: ignore[attr-defined]
#: How many items ahead of their use a loop prefetches memory.
AHEAD = 16


def _compiled_sources(folder: Traversable, package: str) -> Iterator[tuple[str, bytes]]:
    """Yield the module name and text of each source below a folder that imports this module."""
    for file in folder.iterdir():
        if file.is_dir():
            yield from _compiled_sources(file, f"{package}.{file.name}")
        elif file.name.endswith(".py"):
            text = file.read_bytes()
            if b"tidegate.kernel.compiling" in text:
                yield f"{package}.{file.name.removesuffix('.py')}", text


_SOURCES = dict(_compiled_sources(resources.files("tidegate"), "tidegate"))
_IMPORT = re.compile(rb"^\s*from (tidegate[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)


def _imported(module: str) -> Iterator[str]:
    """Yield the sources of compiled code that a source imports."""
    for package, names in _IMPORT.findall(_SOURCES[module]):
        for name in (package, *(package + b"." + word for word in re.findall(rb"\w+", names))):
            if name.decode() in _SOURCES:
                yield name.decode()


@functools.cache
def fingerprint(module: str | None = None) -> str:
    """Hash the sources that the compiled code of a module depends on; by default, all sources.

    Numba's cache on disk watches only the file of the function that Python calls. It would miss a
    change in a function that is inlined from another file.
    """
    needed = {module} if module in _SOURCES else set(_SOURCES)
    waiting = list(needed)
    while waiting:
        new = set(_imported(waiting.pop())) - needed
        needed |= new
        waiting += new
    digest = hashlib.sha256()
    for name in sorted(needed):
        digest.update(name.encode() + b"\0" + _SOURCES[name])
    return digest.hexdigest()


# Without reference counts: a kernel creates no arrays, and counting the references to the many
# arrays of a `Core` at each call would cost more than the work.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}


class _ArchiveLocator(_CacheLocator):
    """Place of the compile cache when tidegate is imported from an archive.

    Spark copies archives to a new folder for each executor. All copies of the same sources share
    one folder of the user, so that each machine compiles once.
    """

    def __init__(self, folder: Path, py_func: Any, py_file: str) -> None:
        self._folder = folder
        self._line = py_func.__code__.co_firstlineno
        self._py_file = py_file

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _ArchiveLocator | None:
        if os.path.exists(py_file):
            return None
        given: str = config.CACHE_DIR  # type: ignore[attr-defined]
        for base in (*([Path(given) / "tidegate"] if given else []), *cache_folders()):
            try:
                return cls(make_private(base, f"kernel-{fingerprint()[:16]}"), py_func, py_file)
            except OSError:
                continue
        return None

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return fingerprint()

    def get_disambiguator(self) -> str:
        return str(self._line)


class _CacheFiles(CompileResultCacheImpl):
    # Numba's own locator for archives depends on their path, and accepts a `.zip` only.
    _locator_classes: ClassVar[list[Any]] = [  # type: ignore[misc]
        _ArchiveLocator,
        *(kind for kind in CompileResultCacheImpl._locator_classes if "Zip" not in kind.__name__),
    ]


class _DiskCache(FunctionCache):
    _impl_class = _CacheFiles

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = fingerprint(function.__module__)


class _PartLibrary(JITCodeLibrary):
    """Code that is only ever linked into other code, and optimised there.

    Numba would optimise it and generate machine code for it here too, at each level of calls, with
    everything that is inlined into it. That takes as long as all the rest.
    """

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class _PartCompiler(Compiler):
    """Compile a function that only compiled code calls, as far as its callers need it."""

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing, target, _PartLibrary(target.codegen(), "part"), *rest)
        self.state.flags.no_compile = True

    def _compile_core(self) -> Any:
        done = super()._compile_core()
        # Callers look a function up by its Python object, which needs no body here.
        module, name = done.fndesc.lookup_module(), done.fndesc.qualname
        known_as = make_function(module, name, "", 0, done.environment, (done.library,))
        self.state.targetctx.insert_user_function(known_as, done.fndesc, [done.library])
        return done._replace(entry_point=known_as)


# Only compiled code calls these. They need no wrappers for Python, which take long to compile.
_INNER = {
    **_OPTIONS,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": _PartCompiler,
}


def entry_point(function: Function) -> Function:
    """Compile a function that Python calls, and cache the result on disk."""
    return _cached(function, _OPTIONS)


def allocating(function: Function) -> Function:
    """Compile a function that Python calls and that returns new arrays."""
    return _cached(function, {"nogil": True})


def _cached(function: Function, options: dict[str, Any]) -> Function:
    if not _COMPILES:
        return _with_wrapping_integers(function)
    compiled: Any = numba.njit(**options)(function)
    # Where no folder is writable, every process compiles for itself.
    with suppress(RuntimeError):
        compiled._cache = _DiskCache(function)
    return cast(Function, compiled)


def _with_wrapping_integers(function: Function) -> Function:
    """Let integers overflow silently in a function that is not compiled, as in compiled code."""

    @functools.wraps(function)
    def wrapped(*arguments: Any) -> Any:
        with np.errstate(over="ignore"):
            return function(*arguments)

    return cast(Function, wrapped)


def inner(function: Function) -> Function:
    """Compile a function that compiled code calls rarely."""
    return cast(Function, numba.njit(**_INNER)(function))


def inlined(function: Function) -> Function:
    """Compile a function that every row passes through, inlined into its callers.

    A call would pass the many arrays of a `Core` one by one.
    """
    return cast(Function, numba.njit(**_INNER, forceinline=True)(function))


def _prefetch(typing: Any, array: Any, at: Any) -> Any:
    """Prefetch an item of an array into the processor's cache, without waiting for it."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        long, word = ir.IntType(64), ir.IntType(32)
        index = context.cast(builder, arguments[1], signature.args[1], types.int64)
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        address = builder.add(builder.ptrtoint(data, long), builder.mul(index, long(size)))
        place = builder.inttoptr(address, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, word, word, word])
        declare: Any = cgutils.get_or_insert_function
        fetch = declare(builder.module, kind, "llvm.prefetch.p0")
        builder.call(fetch, [place, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, at), emit


def _ones(typing: Any, word: Any) -> Any:
    """Return the number of set bits of a word."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), emit


#: The numbers that a policy's own scoring function takes, and the C type of such a function.
_NUMBERS = 13
_C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_double] * _NUMBERS)


def callback(function: Callable[..., float]) -> tuple[int, Any]:
    """Compile a function of 13 numbers, which `call_back` calls without compiling its caller again.

    Return its address, and what must be kept for as long as the address is used.
    """
    if not _COMPILES:
        kept = _C_FUNCTION(function)
        return cast(int, ctypes.cast(kept, ctypes.c_void_p).value), kept
    number = types.float64
    compiled = numba.cfunc(number(*[number] * _NUMBERS), error_model="numpy")(function)
    return cast(int, compiled.address), compiled


def _call_back(typing: Any, address: Any, numbers: Any) -> Any:
    """Call the function at an address with 13 numbers."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        real = ir.DoubleType()
        kind = ir.FunctionType(real, [real] * _NUMBERS)
        place = builder.inttoptr(arguments[0], kind.as_pointer())
        return builder.call(place, cgutils.unpack_tuple(builder, arguments[1], _NUMBERS))

    return types.float64(types.int64, types.UniTuple(types.float64, _NUMBERS)), emit


def _plain_call_back(address: int, numbers: tuple[float, ...]) -> float:
    """Call the function at an address, where code is not compiled."""
    return float(_C_FUNCTION(address)(*numbers))


def _plain_prefetch(array: Array, at: Any) -> None:
    """Do nothing, where code is not compiled."""


def _plain_ones(word: Any) -> int:
    """Return the number of set bits of a word, where code is not compiled."""
    return int(word).bit_count()


call_back = cast(
    Callable[[int, Any], float], intrinsic(_call_back) if _COMPILES else _plain_call_back
)
ones = cast(Callable[[Any], int], intrinsic(_ones) if _COMPILES else _plain_ones)
prefetch = cast(
    Callable[[Array, Any], None], intrinsic(_prefetch) if _COMPILES else _plain_prefetch
)
