"""Conditions on pairs of rows, as in ``where="abs(l.x - r.x) <= 0.5"``, and values of pairs.

The text is split into tokens, columns are replaced by internal names, and Python's parser reads the
rest. Only a few operations are allowed, and nothing is executed as code. Values behave as in Spark:
a comparison with a null is neither true nor false, and only true joins; NaN equals itself and is
larger than any number; ``/`` does not round. Where Spark would fail, at an overflow or a division
by zero, there is no error: a sum that overflows continues as a floating point number, and a
division by zero gives null.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.settings.columns import as_floats, plain, whole
from tidegate.settings.durations import nanoseconds
from tidegate.settings.values import quoted, real

_FUNCTIONS = ("abs", "lower", "upper", "length")
_WORDS = {
    **{word: word for word in ("and", "or", "not", "in", "is", "between")},
    "true": "True",
    "false": "False",
    "null": "None",
}
_NUMBER = r"(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)(?!\w)"
_STRING = r"""(?P<string>'(?:[^']|'')*'|"(?:[^"]|"")*")"""
_SIGN = r"(?P<sign><>|<=|>=|!=|==|[-=<>+*/(),])"
_COLUMN = r"(?:(?P<name>\w+)|`(?P<quoted>[^`]+)`)"
_OF_SIDES = re.compile(
    rf"""\s*(?:(?P<side>[lrLR])\s*\.\s*{_COLUMN}
    | {_NUMBER} | {_STRING} | (?P<word>[A-Za-z_]\w*) | {_SIGN})""",
    re.VERBOSE,
)
_OF_ONE = re.compile(
    rf"""\s*(?:{_NUMBER} | {_STRING}
    | (?P<word>(?:and|or|not|true|false|in|is|null|between)\b(?!\s*\.)|[A-Za-z_]\w*(?=\s*\())
    | (?:(?P<side>\w+|`[^`]+`)\s*\.\s*)?{_COLUMN} | {_SIGN})""",
    re.VERBOSE | re.IGNORECASE,
)
_SIGNS = {"=": "==", "<>": "!="}
#: BETWEEN and NOT BETWEEN as operators of Python; `x BETWEEN a AND b` becomes `x not in a is b`.
_WITHIN, _OUTSIDE = "not in", "is not"
_PER_UNIT = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


#: The most levels of a condition: each takes several nested calls, and Python allows 1,000.
_DEEPEST = 150


class _Column(NamedTuple):
    side: str
    name: str


class ConditionError(TidegateError):
    """An error in a condition: the reason (`why`) and the position in its text (`at`)."""

    def __init__(self, condition: str, why: str, at: int) -> None:
        super().__init__(f"{condition}: {why}")
        self.why = why
        self.at = at


class _Span(NamedTuple):
    """The position of a token in the translated text, and in the user's text."""

    start: int
    end: int
    own_start: int
    own_end: int


class Predicate:
    """A condition, checked against the columns of both sides.

    Parameters
    ----------
    where
        The condition. Columns are ``l.name`` and ``r.name``, or ``l.`a name` `` where a name is not
        a word. Operators are ``+ - * /``, comparisons, ``BETWEEN``, ``AND``, ``OR``, ``NOT`` and
        the functions abs, lower, upper and length. The difference of two times is compared with a
        duration: ``abs(l.ts - r.ts) <= '5 s'``.
    left, right
        The schemas of both sides.
    """

    _tokens = _OF_SIDES
    _written = "Columns are written l.name and r.name (l.`a name` where it is no word)"
    _setting = "where"
    _example = 'a condition such as "abs(l.x - r.x) <= 0.5"'

    def __init__(self, where: str, left: pa.Schema, right: pa.Schema) -> None:
        self._where = where
        self._spans: list[_Span] = []
        self._schemas = {"l": left, "r": right}
        self._columns: list[_Column] = []
        if not isinstance(where, str) or not where.strip():
            raise TidegateError(f"{self._setting} must be {self._example}, not {quoted(where)}")
        try:
            #: The condition as Python's parser reads it; columns are names.
            self.tree = ast.parse(self._translated(), mode="eval").body
            if _depth(self.tree) > _DEEPEST:
                raise self._too_deep()
            kind = self.type_of(self.tree)
        except TidegateError:
            raise
        except SyntaxError as error:
            if "nested" in str(error.msg):
                raise self._too_deep() from None
            raise self._error("cannot be read", where, self._own(error.offset or 1)) from None
        except ValueError:
            raise self._error("cannot be read", where) from None
        except (RecursionError, MemoryError):
            raise self._too_deep() from None
        self._check_type(kind)

    def _check_type(self, kind: pa.DataType) -> None:
        """Refuse an expression that does not give what is needed."""
        if kind != pa.bool_():
            raise self._error(f"gives {kind}, and must be true or false", self._where)

    def mask(self, left: pa.RecordBatch, right: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which pairs, row i of the left with row i of the right, meet the condition."""
        values = self.evaluated(self.tree, {"l": left, "r": right})
        if isinstance(values, pa.Scalar):
            return np.full(left.num_rows, bool(values.as_py()), np.bool_)
        return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)

    def type_of(self, node: ast.AST) -> pa.DataType:
        """Return the type of a part of the condition, which follows from tables without rows."""
        empty = {side: schema.empty_table() for side, schema in self._schemas.items()}
        return self.evaluated(node, empty).type

    def sides_of(self, node: ast.AST) -> set[str]:
        """Return the sides, "l" and "r", whose columns a part of the condition names."""
        parts = (part.id for part in ast.walk(node) if isinstance(part, ast.Name))
        return {self._column_of(name).side for name in parts if name.startswith("column_")}

    def _too_deep(self) -> ConditionError:
        return ConditionError(
            self._condition,
            "it is too long in one piece: parentheses, NOT, functions or sums nest too deeply. "
            "Join simple comparisons with AND and OR, of which there may be thousands, or compute "
            "a column before the join",
            0,
        )

    @property
    def _condition(self) -> str:
        """The words for the condition in errors."""
        return f"{self._setting}={quoted(self._where[:200])}"

    def _error(self, what: str, part: str, at: int = 0) -> ConditionError:
        why = (
            f"{quoted(part)} {what}. {self._written}, and there are + - * / = <> < <= > >= AND "
            f"OR NOT BETWEEN, IN (...), IS NULL and {', '.join(_FUNCTIONS)}"
        )
        return ConditionError(self._condition, why, at)

    def _wrong(self, what: str, node: ast.AST, part: str | None = None) -> ConditionError:
        """Return an error about a part of the condition, quoted as it was written."""
        start = self._own(getattr(node, "col_offset", 0) + 1)
        return self._error(what, part or self._shown(node), start)

    def _own(self, column: int) -> int:
        """Convert a column of the translated text, counted from 1, to a position in the user's."""
        return next((s.own_start for s in self._spans if s.end >= column), len(self._where))

    def _translated(self) -> str:
        """Return the condition as a Python expression, with internal names for columns."""
        out: list[str] = []
        text, at, before, length = self._where.rstrip(), 0, "", 0
        depth, ranges = 0, []  # `ranges` has the depth of each BETWEEN that waits for its AND
        while at < len(text):
            token = self._tokens.match(text, at)
            if token is None:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                raise self._error("cannot be read", text[start : start + 40], start)
            kind = str(token.lastgroup)
            start, at = token.start() + len(token[0]) - len(token[0].lstrip()), token.end()
            if kind == "string" and before == "string":
                raise self._error("cannot be read: two texts side by side", token["string"], start)
            before = kind
            if kind in ("name", "quoted"):
                out.append(self._column(token, start))
            elif kind == "string":
                quote = token["string"][0]
                out.append(ascii(token["string"][1:-1].replace(quote * 2, quote)))
            elif kind == "word":
                out.append(self._word(token["word"], start))
                if out[-1] == "between":
                    out[-1] = _OUTSIDE if out[-2:-1] == ["not"] else _WITHIN
                    if out[-1] == _OUTSIDE:
                        out[-2] = ""
                    ranges.append(depth)
                elif out[-1] == "and" and ranges[-1:] == [depth]:
                    out[-1] = "is"
                    ranges.pop()
            else:
                out.append(_SIGNS.get(token[kind], token[kind]))
                depth += (token[kind] == "(") - (token[kind] == ")")
                self._list_of(out)
            self._spans.append(_Span(length, length + len(out[-1]), start, at))
            length += len(out[-1]) + 1
        return " ".join(out)

    @staticmethod
    def _list_of(out: list[str]) -> None:
        """Write the values after IN, up to the last parenthesis, as a list of Python."""
        if out[-2:] == ["in", "("]:
            out[-1] = "["
        elif out[-1] == ")":
            depth, at = 1, len(out) - 1
            while depth and at:
                at -= 1
                depth += (out[at] in (")", "]")) - (out[at] in ("(", "["))
            out[-1] = "]" if out[at] == "[" and not depth else ")"

    def _word(self, word: str, at: int) -> str:
        known = _WORDS.get(word.lower()) or (word.lower() if word.lower() in _FUNCTIONS else None)
        if known is None:
            raise self._error("is neither a column nor a known function", word, at)
        return known

    def _side(self, token: re.Match[str], at: int) -> str:
        """Return the side of a column."""
        return token["side"].lower()

    def _column(self, token: re.Match[str], at: int) -> str:
        side, name = self._side(token, at), token["name"] or token["quoted"]
        if name not in self._schemas[side].names:
            listed = ", ".join(self._schemas[side].names)
            raise self._error(f"is no column; there are {listed}", name, at)
        column = _Column(side, name)
        if column not in self._columns:
            self._columns.append(column)
        return f"column_{self._columns.index(column)}"

    def _column_of(self, name: str) -> _Column:
        return self._columns[int(name.removeprefix("column_"))]

    def evaluated(self, node: ast.AST, sides: Mapping[str, Any]) -> Any:
        """Evaluate a part of the condition for all rows of its sides. Each column is read once."""
        read = {}
        for column in {each for each in self._columns if each.side in sides}:
            values = sides[column.side].column(
                self._schemas[column.side].get_field_index(column.name)
            )
            read[column] = plain(whole(values) if isinstance(values, pa.ChunkedArray) else values)
        return self._eval(node, read)

    def _eval(self, node: ast.AST, read: Mapping[_Column, Any]) -> Any:
        try:
            return self._value(node, read)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            reason = str(error).splitlines()[0]
            types = re.search(r"input types \((.*)\)", reason)
            if types is not None:
                reason = f"there is none for {types[1].replace(', ', ' and ')}: cast one"
            raise self._wrong(f"does not work on these columns ({reason})", node) from None

    def _shown(self, node: ast.AST) -> str:
        """Return a part of the condition as it was written."""
        start, end = (getattr(node, name, 0) for name in ("col_offset", "end_col_offset"))
        inside = [span for span in self._spans if start <= span.start and span.end <= end]
        return self._where[inside[0].own_start : inside[-1].own_end]

    def _value(self, node: ast.AST, read: Mapping[_Column, Any]) -> Any:
        if isinstance(node, ast.Constant):
            if node.value is None:
                raise self._wrong("has no place here: compare with IS NULL or IS NOT NULL", node)
            if isinstance(node.value, int) and not -(2**63) <= node.value < 2**63:
                return pa.scalar(real(node.value))
            return pa.scalar(node.value)
        if isinstance(node, ast.Name) and node.id.startswith("column_"):
            return read[self._column_of(node.id)]
        if isinstance(node, ast.BoolOp):
            join = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
            result = self._eval(node.values[0], read)
            for value in node.values[1:]:
                result = join(result, self._eval(value, read))
            return result
        if isinstance(node, ast.UnaryOp):
            value = self._eval(node.operand, read)
            if isinstance(node.op, ast.Not):
                return pc.invert(value)
            return _checked(pc.negate_checked, value) if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            # A sum of many terms is nested as deeply as it is long, so evaluate it in a loop.
            terms = [node]
            while isinstance(terms[-1].left, ast.BinOp) and type(terms[-1].left.op) in _ARITHMETIC:
                terms.append(terms[-1].left)
            value = self._eval(terms[-1].left, read)
            for term in reversed(terms):
                other = self._eval(term.right, read)
                self._check_numbers(term, value, other)
                value = _calculated(type(term.op), value, other)
            return value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node, [self._eval(a, read) for a in node.args])
        if isinstance(node, ast.Compare) and len(node.ops) == 2:
            return self._ranged(node, read)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            if isinstance(node.ops[0], ast.In | ast.NotIn | ast.Is | ast.IsNot):
                return self._tested(node, node.ops[0], node.comparators[0], read)
            if type(node.ops[0]) not in _COMPARISONS:
                raise self._wrong("is not known", node)
            one = self._eval(node.left, read)
            return self._comparison(type(node.ops[0]), one, node.left, node.comparators[0], read)
        raise self._wrong("is not known; join comparisons with AND", node)

    def _comparison(
        self,
        op: type[ast.AST],
        one: Any,
        left: ast.AST,
        right: ast.AST,
        read: Mapping[_Column, Any],
    ) -> Any:
        other = self._eval(right, read)
        return _compared(op, self._alike(one, other, left), self._alike(other, one, right))

    def _ranged(self, node: ast.Compare, read: Mapping[_Column, Any]) -> Any:
        """Evaluate BETWEEN and its negation."""
        if not is_range(node):
            raise self._wrong("is not known; join comparisons with AND", node)
        one = self._eval(node.left, read)
        least, most = node.comparators
        above = self._comparison(ast.GtE, one, node.left, least, read)
        below = self._comparison(ast.LtE, one, node.left, most, read)
        found = pc.and_kleene(above, below)
        return found if isinstance(node.ops[0], ast.NotIn) else pc.invert(found)

    def _tested(
        self, node: ast.Compare, op: ast.AST, right: ast.AST, read: Mapping[_Column, Any]
    ) -> Any:
        """Evaluate IN and IS NULL, and their negations."""
        one = self._eval(node.left, read)
        if isinstance(op, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._wrong("is not known; write IS NULL or IS NOT NULL", node)
            found = pc.is_null(one)
        else:
            if not isinstance(right, ast.List) or not right.elts:
                raise self._wrong("is not known; write IN (1, 2)", node)
            found = pa.scalar(False)
            for each in right.elts:
                same = self._comparison(ast.Eq, one, node.left, each, read)
                found = pc.or_kleene(found, same)
        return pc.invert(found) if isinstance(op, ast.NotIn | ast.IsNot) else found

    def _call(self, node: ast.Call, values: list[Any]) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if len(values) != 1 or node.keywords or name not in _FUNCTIONS:
            raise self._wrong("takes one value", node)
        if name == "abs":
            self._check_numbers(node, values[0])
            if pa.types.is_duration(values[0].type):
                return pc.abs_checked(values[0].cast(pa.int64())).cast(values[0].type)
            return _checked(pc.abs_checked, values[0])
        return {"lower": pc.utf8_lower, "upper": pc.utf8_upper, "length": pc.utf8_length}[name](
            *values
        )

    def _check_numbers(self, node: ast.AST, *values: Any) -> None:
        """Refuse arithmetic with values that are neither numbers nor times."""
        for kind in (value.type for value in values):
            if not (
                pa.types.is_null(kind)
                or pa.types.is_temporal(kind)
                or pa.types.is_integer(kind)
                or pa.types.is_floating(kind)
                or pa.types.is_decimal(kind)
            ):
                raise self._wrong(f"needs numbers or times, not {kind}: cast it", node)

    def _alike(self, value: Any, other: Any, node: ast.AST) -> Any:
        """Convert a difference of times, or the duration compared with it, to a number."""
        if pa.types.is_duration(value.type) and isinstance(other, pa.StringScalar):
            return value.cast(pa.int64())
        if not (pa.types.is_duration(other.type) and isinstance(value, pa.StringScalar)):
            return value
        length = nanoseconds(value.as_py())
        if length is None:
            raise self._wrong("is no duration such as '5 s'", node, value.as_py())
        units = Fraction(length) / _PER_UNIT[other.type.unit]
        whole_units = units.denominator == 1 and units < 2**63
        return pa.scalar(int(units) if whole_units else float(units))


class Filter(Predicate):
    """A condition on the rows of one stream: ``column`` or ``stream.column``.

    Parameters
    ----------
    where
        The condition, ``"x < 8 and name <> 'none'"``.
    schema, stream
        The stream's schema and name.
    """

    _tokens = _OF_ONE
    _written = "Columns are written by name (`a name` where it is no word)"
    _setting = "a filter"
    _example = 'a condition such as "x < 8"'

    def __init__(self, where: str, schema: pa.Schema, stream: str) -> None:
        self._stream = stream
        super().__init__(where, schema, pa.schema([]))

    def passing(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which rows meet the condition."""
        return self.mask(rows, pa.RecordBatch.from_pylist([], pa.schema([])))

    @property
    def _condition(self) -> str:
        return f"the filter {quoted(self._where[:200])} of {self._stream}"

    def _side(self, token: re.Match[str], at: int) -> str:
        if token["side"] is not None and token["side"].strip("`") != self._stream:
            what = f"is no column of {self._stream}: a filter may name only its own stream's"
            raise self._error(what, token[0].strip(), at)
        return "l"


class PairValue(Predicate):
    """The value of a pair: an expression such as ``"l.price * r.amount - 3"`` that gives a number.

    It is written as a `Predicate` is.
    """

    _setting = "value"
    _example = 'an expression such as "l.price * r.amount - 3"'

    def _check_type(self, kind: pa.DataType) -> None:
        if not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        ):
            raise self._error(f"gives {kind}, and must give a number", self._where)

    def of(self, left: pa.RecordBatch, right: pa.RecordBatch) -> NDArray[np.float64]:
        """Return the value of each pair, row i of the left with row i of the right; NaN for null.

        A value that is too large for a number is infinite.
        """
        values = self.evaluated(self.tree, {"l": left, "r": right})
        if isinstance(values, pa.Scalar):
            return np.full(left.num_rows, real(values.as_py()), np.float64)
        return as_floats(values)

    def refused(self, value: float, left: int, right: int) -> TidegateError:
        """Return the error about a value that is no finite number, of rows given by number."""
        given = "null or no number" if np.isnan(value) else quoted(value)
        return TidegateError(
            f"{self._condition} gives {given} for row {left} of the left with row {right} of the "
            "right, and must give a finite number; leave such pairs out with where, or replace "
            "the values in the columns"
        )


_ARITHMETIC: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: pc.add_checked,
    ast.Sub: pc.subtract_checked,
    ast.Mult: pc.multiply_checked,
    ast.Div: pc.divide,
}


def _checked(operation: Callable[..., Any], *values: Any) -> Any:
    """Calculate with 64-bit integers, or with floating point numbers if these overflow."""
    if not all(pa.types.is_integer(v.type) for v in values):
        if any(pa.types.is_floating(v.type) for v in values):
            # Arrow refuses to convert whole numbers that are rounded.
            values = tuple(_as_real(v) if pa.types.is_integer(v.type) else v for v in values)
        return operation(*values)
    try:
        return operation(*(v.cast(pa.int64()) for v in values))
    except pa.ArrowInvalid:
        return operation(*(_as_real(v) for v in values))


def _as_real(value: Any) -> Any:
    return pc.cast(value, pa.float64(), safe=False)


def is_range(node: ast.Compare) -> bool:
    """Return True if a comparison is BETWEEN (``not in``, ``is``) or its negation."""
    first, second = node.ops
    return isinstance(first, ast.NotIn | ast.IsNot) and isinstance(second, ast.Is)


def _depth(tree: ast.AST) -> int:
    """Return the nesting depth of a condition; a sum of terms is one level."""
    deepest, stack = 0, [(tree, 1)]
    while stack:
        node, depth = stack.pop()
        deepest = max(deepest, depth)
        for part in ast.iter_child_nodes(node):
            chained = isinstance(node, ast.BinOp) and part is node.left
            stack.append((part, depth if chained else depth + 1))
    return deepest


def _calculated(op: type[ast.AST], one: Any, other: Any) -> Any:
    return _divided(one, other) if op is ast.Div else _checked(_ARITHMETIC[op], one, other)


def _divided(one: Any, other: Any) -> Any:
    """Divide; the result is null if the divisor is zero."""
    one, other = _as_real(one), _as_real(other)
    return pc.divide(one, pc.if_else(pc.equal(other, 0.0), pa.scalar(None, pa.float64()), other))


_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def _compared(op: type[ast.AST], one: Any, other: Any) -> Any:
    """Compare values; NaN equals itself and is larger than any number."""
    if pa.types.is_floating(one.type) != pa.types.is_floating(other.type):
        numbers = [v for v in (one, other) if not pa.types.is_floating(v.type)]
        if all(pa.types.is_integer(v.type) or pa.types.is_decimal(v.type) for v in numbers):
            one, other = _as_real(one), _as_real(other)
    if op in (ast.Eq, ast.NotEq):
        equal = pc.equal(one, other)
        if pa.types.is_floating(one.type):
            equal = pc.or_(equal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
        return equal if op is ast.Eq else pc.invert(equal)
    # All values are ordered, so a value that is not more is less or equal.
    less = _less(one, other) if op in (ast.Lt, ast.GtE) else _less(other, one)
    return pc.invert(less) if op in (ast.LtE, ast.GtE) else less


def _less(one: Any, other: Any) -> Any:
    less = pc.less(one, other)
    if pa.types.is_floating(one.type):
        less = pc.or_(less, pc.and_(pc.invert(pc.is_nan(one)), pc.is_nan(other)))
    return less
