"""How the kernel's functions are compiled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba._dynfunc import make_function
from numba.core import cgutils, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic
from numpy.typing import NDArray

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

#: How many items ahead of its use a loop has memory fetched.
AHEAD = 16

#: What the kernel's sources are. Numba's cache on disk watches only the file of the function that
#: Python calls, and would miss a change in one that it is made of.
_SOURCES = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()

# Without reference counts: a kernel makes no arrays, and counting the references to the many
# arrays of a `Core` at each call would cost more than the work.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}


class _PartLibrary(JITCodeLibrary):
    """Code that is only ever linked into other code, and optimised there.

    Numba would optimise it and make machine code of it here too, at each level of calls, with all
    that is inlined into it: that takes as long as all the rest.
    """

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class _PartCompiler(Compiler):
    """Compile what only compiled code calls, as far as its callers need it."""

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing, target, _PartLibrary(target.codegen(), "part"), *rest)
        self.state.flags.no_compile = True

    def _compile_core(self) -> Any:
        done = super()._compile_core()
        # Callers know a function by what Python would call; there is nothing behind it.
        module, name = done.fndesc.lookup_module(), done.fndesc.qualname
        known_as = make_function(module, name, "", 0, done.environment, (done.library,))
        self.state.targetctx.insert_user_function(known_as, done.fndesc, [done.library])
        return done._replace(entry_point=known_as)


# Only compiled code calls these: they need no wrappers for Python, which take long to compile.
_INNER = {
    **_OPTIONS,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": _PartCompiler,
}


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


def _prefetch(typing: Any, array: Any, at: Any) -> Any:
    """Have the processor fetch an item of an array from memory, and go on without waiting."""

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
    """How many bits of a word are set."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), emit


ones = cast(Callable[[Any], int], intrinsic(_ones))
prefetch = cast(Callable[[Array, Any], None], intrinsic(_prefetch))
