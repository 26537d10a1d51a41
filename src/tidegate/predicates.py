"""Conditions on pairs of rows, as in ``where="abs(l.x - r.x) <= 0.5"``.

The text is read by Python's own parser after SQL's spellings (``=``, ``<>``, ``AND``) are turned
into Python's, and only a handful of operations is let through: nothing in it is ever executed as
code. Values are Arrow's; a comparison with a null is neither true nor false, and only what is true
joins.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.columns import plain, whole
from tidegate.durations import nanoseconds
from tidegate.errors import TidegateError

_COMPARE: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
_ARITHMETIC: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: pc.add,
    ast.Sub: pc.subtract,
    ast.Mult: pc.multiply,
    ast.Div: pc.divide,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": pc.abs,
    "lower": pc.utf8_lower,
    "upper": pc.utf8_upper,
    "length": pc.utf8_length,
    "least": pc.min_element_wise,
    "greatest": pc.max_element_wise,
}
_WORDS = {"and", "or", "not", "true", "false"}
_TOKENS = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|<>|<=|>=|!=|==|=|[A-Za-z_]\w*|.", re.DOTALL)


class Predicate:
    """A condition, checked against the columns of both sides.

    Parameters
    ----------
    where
        The condition. Columns are ``l.name`` and ``r.name``; there are ``+ - * /``, comparisons,
        ``AND``, ``OR``, ``NOT`` and the functions abs, lower, upper, length, least and greatest.
        The difference of two times compares with a duration: ``abs(l.ts - r.ts) <= '5 s'``.
    left, right
        The schemas of both sides.
    """

    def __init__(self, where: str, left: pa.Schema, right: pa.Schema) -> None:
        self._where = where
        self._schemas = {"l": left, "r": right}
        if not isinstance(where, str) or not where.strip():
            raise TidegateError(
                f'where must be a condition such as "abs(l.x - r.x) <= 0.5", not {where!r}'
            )
        try:
            self._tree = ast.parse(_python(where), mode="eval").body
        except SyntaxError:
            raise self._error("cannot be read", where) from None
        self._kind(self.values(left.empty_table(), right.empty_table()))

    def mask(self, left: pa.RecordBatch, right: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which of the pairs, row i of the one and row i of the other, the condition lets pass."""
        values = self.values(left, right)
        if isinstance(values, pa.Scalar):
            return np.full(left.num_rows, bool(values.as_py()), np.bool_)
        return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)

    def values(self, left: Any, right: Any) -> Any:
        """The condition's value for each pair."""
        return self._eval(self._tree, {"l": left, "r": right})

    def _kind(self, values: Any) -> None:
        if values.type != pa.bool_():
            raise self._error(f"gives {values.type}, and must be true or false", self._where)

    def _error(self, what: str, part: str) -> TidegateError:
        return TidegateError(
            f"where={self._where!r}: {part!r} {what}. Columns are written l.name and r.name, and "
            f"there are + - * / = <> < <= > >= AND OR NOT and {', '.join(_FUNCTIONS)}"
        )

    def _eval(self, node: ast.AST, sides: Mapping[str, Any]) -> Any:
        text = ast.unparse(node)
        try:
            if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
                return pa.scalar(node.value)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                return self._column(node.value.id, node.attr, sides)
            if isinstance(node, ast.BoolOp):
                join = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
                values = [self._eval(value, sides) for value in node.values]
                result = values[0]
                for value in values[1:]:
                    result = join(result, value)
                return result
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                return pc.invert(self._eval(node.operand, sides))
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
                return pc.negate(self._eval(node.operand, sides))
            if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
                one, other = self._eval(node.left, sides), self._eval(node.right, sides)
                return _ARITHMETIC[type(node.op)](one, other)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                return self._call(node.func.id, [self._eval(a, sides) for a in node.args], text)
            if isinstance(node, ast.Compare):
                return self._compare(node, sides)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            reason = str(error).splitlines()[0]
            raise self._error(f"does not work on columns of these types ({reason})", text) from None
        raise self._error("is not known", text)

    def _column(self, side: str, name: str, sides: Mapping[str, Any]) -> Any:
        if side not in self._schemas:
            raise self._error("is neither a left (l.) nor a right (r.) column", f"{side}.{name}")
        schema = self._schemas[side]
        if name not in schema.names:
            raise self._error(f"is no column; there are {', '.join(schema.names)}", name)
        column = sides[side].column(schema.get_field_index(name))
        return plain(whole(column) if isinstance(column, pa.ChunkedArray) else column)

    def _call(self, name: str, values: list[Any], text: str) -> Any:
        if name.lower() not in _FUNCTIONS:
            raise self._error("is no known function", text)
        if name.lower() == "abs" and pa.types.is_duration(values[0].type):
            number = pc.abs(values[0].cast(pa.int64()))
            return number.cast(values[0].type)
        return _FUNCTIONS[name.lower()](*values)

    def _compare(self, node: ast.Compare, sides: Mapping[str, Any]) -> Any:
        values = [self._eval(n, sides) for n in (node.left, *node.comparators)]
        result = None
        for op, one, other in zip(node.ops, values[:-1], values[1:], strict=True):
            if type(op) not in _COMPARE:
                raise self._error("is not known", ast.unparse(node))
            pair = self._alike(one, other), self._alike(other, one)
            value = _COMPARE[type(op)](*pair)
            result = value if result is None else pc.and_kleene(result, value)
        return result

    def _alike(self, value: Any, other: Any) -> Any:
        """A text beside a difference of times, as a duration."""
        if not (pa.types.is_duration(other.type) and isinstance(value, pa.StringScalar)):
            return value
        length = nanoseconds(value.as_py())
        if length is None:
            raise self._error("is no duration such as '5 s'", value.as_py())
        return pa.scalar(int(length), pa.duration("ns"))


def _python(where: str) -> str:
    """The same condition in Python's spelling."""
    out = []
    for token in _TOKENS.findall(where.strip()):
        if token.startswith("'"):
            out.append(repr(token[1:-1].replace("''", "'")))
        elif token == "=":
            out.append("==")
        elif token == "<>":
            out.append("!=")
        elif token.lower() in _WORDS:
            word = token.lower()
            out.append(word.capitalize() if word in ("true", "false") else word)
        else:
            out.append(" " if token in "\n\t" else token)
    return "".join(out)
