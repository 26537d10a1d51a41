"""The types of settings that users give, written once for all calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from tidegate.settings.rows import Rows


class ArrowStream(Protocol):
    """Local data: Arrow, pandas, Polars and others with the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the data as an Arrow C stream."""


#: Rows in this process: anything with the Arrow C stream interface, or a mapping of columns.
LocalData: TypeAlias = ArrowStream | Mapping[str, Any]

Number: TypeAlias = int | float | Decimal
#: A length of time: "2 hours", a timedelta, or a number where times are numbers.
Duration: TypeAlias = str | timedelta | np.timedelta64 | Number
#: A point in time, as the time column holds it.
Time: TypeAlias = str | datetime | date | np.datetime64 | Number

#: One window; "unbounded" and None have no end.
Window: TypeAlias = Duration | Rows | None
#: A window that changes with time: (from this time on, window) pairs.
WindowSchedule: TypeAlias = Sequence[tuple[Time, Window]]
#: `within` of a join of two streams: for both, (left's, right's), or {"left": ..., "right": ...}.
Within: TypeAlias = (
    Window
    | WindowSchedule
    | tuple[Window | WindowSchedule, Window | WindowSchedule]
    | Mapping[str, Window | WindowSchedule]
)
#: `within` of a join of several streams: for all, a list with one for each, or by name.
WithinStreams: TypeAlias = Window | Sequence[Window] | Mapping[str, Window]

#: A budget: rows, "300 rows" or "64 MB"; None keeps everything.
Budget: TypeAlias = int | str | None
#: A budget, or a schedule of (from this time on, budget) pairs.
Memory: TypeAlias = Budget | Sequence[tuple[Time, Budget]]
#: How much older than the newest row of its own stream a row may be; None: the watermark's delay.
Lateness: TypeAlias = Duration | None

#: The key of two inputs: a column, a list of columns, or a {left: right} mapping.
Keys: TypeAlias = str | Sequence[str] | Mapping[str, str]
#: A column for both inputs, (left's, right's), or {"left": ..., "right": ...}.
TimeColumn: TypeAlias = str | tuple[str, str] | Mapping[str, str]
#: A column for all streams, a list with one for each, or by name.
StreamColumn: TypeAlias = str | Sequence[str] | Mapping[str, str]

ShedWhen: TypeAlias = Literal["after-probe", "before-probe", "before-arrival"]
Combine: TypeAlias = Literal["min", "max", "sum", "product"]
Split: TypeAlias = Literal["shared", "fixed", "predicted"] | float
Suffixes: TypeAlias = Sequence[str]
