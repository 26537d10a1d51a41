"""Expressions over the columns of a table, as in ``Select sum(C.size) / count(*) as mean``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.settings.columns import whole
from tidegate.sql.conditions import Filter


class Output(NamedTuple):
    """A column to compute: its name, and an expression or the column that it is.

    Columns of the expression are written in backticks.
    """

    name: str
    column: str
    expression: str | None = None


class Expression(Filter):
    """An expression over the columns of a table; it may give any type."""

    _setting = "an expression"
    _example = "an expression such as x + 1"

    def __init__(self, text: str, schema: pa.Schema) -> None:
        super().__init__(text, schema, "")

    @property
    def _condition(self) -> str:
        return "an expression"

    def _check_type(self, kind: pa.DataType) -> None:
        self.type = kind

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the value for each row."""
        values: Any = self.evaluated(self.tree, {"l": rows})
        if isinstance(values, pa.Scalar):
            return pa.repeat(values, rows.num_rows)
        return whole(values) if isinstance(values, pa.ChunkedArray) else values


class Condition(Expression):
    """An expression that is true or false."""

    def _check_type(self, kind: pa.DataType) -> None:
        Filter._check_type(self, kind)
        self.type = kind


class Outputs:
    """Columns computed from a table, of the rows that meet a condition.

    Parameters
    ----------
    schema
        The columns of the table.
    outputs
        The columns to compute; none for those of the table.
    having
        The condition, or None.
    """

    def __init__(
        self, schema: pa.Schema, outputs: Sequence[Output], having: str | None = None
    ) -> None:
        self._having = None if having is None else Condition(having, schema)
        self._outputs = [
            (o, None if o.expression is None else Expression(o.expression, schema)) for o in outputs
        ]
        fields = [
            schema.field(o.column).with_name(o.name) if e is None else pa.field(o.name, e.type)
            for o, e in self._outputs
        ]
        #: The columns that are computed.
        self.schema = pa.schema(fields) if outputs else schema

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns for the rows that meet the condition."""
        met = self.met(rows)
        return self.computed(rows if met is None else rows.filter(pa.array(met)))

    def met(self, rows: pa.RecordBatch) -> NDArray[np.bool_] | None:
        """Return which rows meet the condition; None if there is none."""
        return None if self._having is None else self._having.passing(rows)

    def computed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns for all rows."""
        if not self._outputs:
            return rows
        columns = [rows.column(o.column) if e is None else e.of(rows) for o, e in self._outputs]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
