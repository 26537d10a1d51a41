"""Translate a condition for the compiled loops: into a program of `tidegate.kernel.programs`.

A part of a condition that names columns of one side only is computed once for each row, as in
`conditions`. What compares both sides becomes a program that runs on a pair of rows.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.kernel import programs
from tidegate.settings.columns import as_floats, hash_column, plain
from tidegate.settings.durations import nanoseconds
from tidegate.settings.values import real
from tidegate.sql.conditions import Predicate

#: Microseconds in a unit of time; programs count all times and durations in microseconds.
_MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
#: Whole numbers up to this size, and sums of a few of them, are exact floating point numbers.
EXACT = 2.0**48
_NULL = math.copysign(math.nan, -1.0)

_ARITHMETIC: dict[type[ast.AST], int] = {
    ast.Add: programs.ADD,
    ast.Sub: programs.SUBTRACT,
    ast.Mult: programs.MULTIPLY,
    ast.Div: programs.DIVIDE,
}
#: All values are ordered, so that a value that is not less is more or equal.
_COMPARED: dict[type[ast.AST], int] = {
    ast.Eq: programs.EQUAL,
    ast.NotEq: programs.EQUAL,
    ast.Lt: programs.LESS,
    ast.GtE: programs.LESS,
    ast.Gt: programs.MORE,
    ast.LtE: programs.MORE,
}


class Unknown(Exception):
    """A part of a condition that has no program, such as a comparison of texts by their order."""


def is_text(kind: pa.DataType) -> bool:
    """Return True for a type of texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def as_numbers(values: pa.Array) -> NDArray[np.float64]:
    """Return values as a program takes them: times in microseconds, texts as hashes."""
    values = plain(values)
    kind = values.type
    if is_text(kind):
        found = (hash_column(values) >> np.uint64(11)).astype(np.float64)
    elif pa.types.is_boolean(kind):
        found = as_floats(values.cast(pa.uint8()))
    elif pa.types.is_temporal(kind):
        found = as_floats(as_whole(values)) * microseconds_in(kind)
    else:
        found = as_floats(values).astype(np.float64)
    found = np.where(np.isnan(found), np.nan, found)
    return np.where(values.is_null().to_numpy(zero_copy_only=False), _NULL, found)


def as_whole(values: pa.Array) -> pa.Array:
    """Return whole numbers, or times as whole numbers of their unit."""
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return values.cast(pa.int64())


def microseconds_in(kind: pa.DataType) -> float:
    """Return the microseconds in the unit of a type of times."""
    if pa.types.is_date32(kind):
        return 86_400e6
    return _MICROSECONDS["ms" if pa.types.is_date64(kind) else str(kind.unit)]


@dataclass(frozen=True)
class Program:
    """A condition as `tidegate.kernel.programs.meets` runs it."""

    #: Operations and their arguments.
    code: NDArray[np.int64]
    numbers: NDArray[np.float64]
    #: By side: the parts of the condition that are computed once for each row.
    columns: tuple[tuple[ast.AST, ...], tuple[ast.AST, ...]]
    #: True if the program decides as the condition does where no value is larger than `EXACT`.
    exact: bool


class _Writer:
    """Writes the program of a condition."""

    def __init__(self, predicate: Predicate) -> None:
        self._predicate = predicate
        self.code: list[tuple[int, int]] = []
        self.numbers: list[float] = []
        self.columns: tuple[list[ast.AST], list[ast.AST]] = ([], [])
        self.exact = True

    def write(self, node: ast.AST) -> None:
        """Write the instructions that leave the value of a part of the condition."""
        sides = self._predicate.sides_of(node)
        if len(sides) < 2:
            self._leaf(node, sides)
        elif isinstance(node, ast.BoolOp):
            both = programs.AND if isinstance(node.op, ast.And) else programs.OR
            self._chain(node.values, both)
        elif isinstance(node, ast.UnaryOp):
            self.write(node.operand)
            if isinstance(node.op, ast.Not):
                self._do(programs.NOT)
            elif isinstance(node.op, ast.USub):
                self._do(programs.NEGATE)
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            self.exact &= not isinstance(node.op, ast.Mult)
            self.write(node.left)
            self.write(node.right)
            self._do(_ARITHMETIC[type(node.op)])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and is_abs(node):
            self.write(node.args[0])
            self._do(programs.ABSOLUTE)
        elif isinstance(node, ast.Compare) and len(node.ops) == 2:
            least, most = node.comparators
            self._compare(node.left, ast.GtE, least)
            self._compare(node.left, ast.LtE, most)
            self._do(programs.AND)
            if isinstance(node.ops[0], ast.IsNot):
                self._do(programs.NOT)
        elif isinstance(node, ast.Compare):
            self._tested(node.left, node.ops[0], node.comparators[0])
        else:
            raise Unknown

    def _tested(self, one: ast.AST, op: ast.cmpop, other: ast.AST) -> None:
        if isinstance(op, ast.Is | ast.IsNot):
            self.write(one)
            self._do(programs.IS_NULL)
        elif isinstance(op, ast.In | ast.NotIn):
            assert isinstance(other, ast.List)
            self._compare(one, ast.Eq, other.elts[0])
            for each in other.elts[1:]:
                self._compare(one, ast.Eq, each)
                self._do(programs.OR)
        else:
            self._compare(one, type(op), other)
        if isinstance(op, ast.IsNot | ast.NotIn):
            self._do(programs.NOT)

    def _compare(self, one: ast.AST, op: type[ast.AST], other: ast.AST) -> None:
        kinds = [self._predicate.type_of(node) for node in (one, other)]
        if any(is_text(kind) for kind in kinds):
            timed = [pa.types.is_duration(kind) for kind in kinds]
            if not any(timed) and op not in (ast.Eq, ast.NotEq):
                raise Unknown
            self.exact &= any(timed)
        for node, beside in ((one, kinds[1]), (other, kinds[0])):
            if pa.types.is_duration(beside) and isinstance(node, ast.Constant):
                self._number(constant(self._predicate, node, timed=True))
            else:
                self.write(node)
        self._do(_COMPARED[op])
        if op in (ast.GtE, ast.LtE, ast.NotEq):
            self._do(programs.NOT)

    def _chain(self, nodes: Sequence[ast.AST], operation: int) -> None:
        self.write(nodes[0])
        for node in nodes[1:]:
            self.write(node)
            self._do(operation)

    def _leaf(self, node: ast.AST, sides: set[str]) -> None:
        if not sides:
            self._number(constant(self._predicate, node))
            return
        kind = self._predicate.type_of(node)
        if not (_is_number(kind) or pa.types.is_decimal(kind) or is_text(kind)):
            raise Unknown
        self.exact &= kind != pa.float32() and not pa.types.is_decimal(kind)
        own = 0 if sides == {"l"} else 1
        self._do(programs.LEFT if own == 0 else programs.RIGHT, len(self.columns[own]))
        self.columns[own].append(node)

    def _number(self, value: float) -> None:
        self._do(programs.NUMBER, len(self.numbers))
        self.numbers.append(value)

    def _do(self, operation: int, argument: int = 0) -> None:
        self.code.append((operation, argument))


def is_abs(node: ast.Call) -> bool:
    """Return True if a call is one of abs."""
    return isinstance(node.func, ast.Name) and node.func.id == "abs"


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_temporal(kind)
    )


def constant(predicate: Predicate, node: ast.AST, *, timed: bool = False) -> float:
    """Return the value of a part that names no column; a duration in microseconds if `timed`."""
    value = predicate.evaluated(node, {}).as_py()
    if timed and isinstance(value, str):
        length = nanoseconds(value)
        if length is None:
            raise Unknown
        return length / 1e3
    if value is None:
        return _NULL
    if isinstance(value, str):
        return float(as_numbers(pa.array([value]))[0])
    return float(value) if isinstance(value, bool) else real(value)


def conjuncts(tree: ast.AST) -> list[ast.AST]:
    """Return the parts that all must be true."""
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        return [part for value in tree.values for part in conjuncts(value)]
    return [tree]


def program_of(predicate: Predicate) -> Program:
    """Return the program of a condition; what has none counts as true and makes it inexact."""
    writer = _Writer(predicate)
    written = False
    for part in conjuncts(predicate.tree):
        before = len(writer.code)
        try:
            writer.write(part)
        except (Unknown, RecursionError):
            del writer.code[before:]
            writer.exact = False
            continue
        if written:
            writer._do(programs.AND)
        written = True
    return Program(
        code=np.array(writer.code, np.int64).reshape(-1, 2),
        numbers=np.array(writer.numbers, np.float64),
        columns=(tuple(writer.columns[0]), tuple(writer.columns[1])),
        exact=writer.exact,
    )


def values_of(
    predicate: Predicate, nodes: Sequence[ast.AST], side: str, rows: pa.RecordBatch
) -> NDArray[np.float64]:
    """Return the values of rows that a program needs, by row and column."""
    found = np.empty((rows.num_rows, len(nodes)))
    for at, node in enumerate(nodes):
        found[:, at] = as_numbers(predicate.evaluated(node, {side: rows}))
    return found
