"""Estimates of sums, counts and averages of a join from a sample, with standard errors.

Every sample of `tidegate.sample_join` is a Poisson sample of *units*. A unit is a cluster, or a
single pair where pairs are drawn one by one. Each unit is in the sample with its own probability p,
independently of all others. A total is estimated by the sum of ``total / p`` over the units, its
variance by ``sum((1 - p) * (total / p)**2)`` (Horvitz and Thompson; Cochran, *Sampling Techniques*;
section 4.3.1 of paper 2). Rows of a cluster are added up first, so the variance accounts for their
similarity. An average is a ratio of two totals; its variance is that of the residuals of the units.

Where a sample was thinned, later rows of a cluster have a smaller p. Each row counts with its own,
and the smallest p of a cluster is used for the variance, which is then slightly too large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.stats import t as student

from tidegate.errors import TidegateError
from tidegate.joins.sampled.spec import CLUSTER, PROBABILITY
from tidegate.settings.checks import check_column, check_unique
from tidegate.settings.columns import as_floats, as_table, decoded, numbered
from tidegate.settings.times import TimeUnit, duration, time_unit, times
from tidegate.settings.values import quoted

Floats = NDArray[np.float64]

#: The result column with the start of a window.
WINDOW = "window"
#: The largest number of windows that a row may be in.
_MOST_WINDOWS = 1_000
#: Sums over units: number of units and rows; rows and values divided by their probabilities;
#: their contributions to variances and the squares of these; units with a known value.
SUMS = ("clusters", "rows", "n", "s", "nn", "ns", "ss", "n4", "s4", "told")
_ESTIMATES = ("count", "sum", "avg")
_PARTS = ("", "_error", "_low", "_high")


@dataclass(frozen=True)
class Estimation:
    """The checked settings of an estimate."""

    schema: pa.Schema
    value: str | None
    time: tuple[str, ...]
    per: int | float | None
    unit: TimeUnit | None
    by: tuple[str, ...]
    confidence: float
    every: int | float | None = None
    lateness: int | float = 0
    groups: pa.Table | None = None

    @property
    def keys(self) -> pa.Schema:
        """The key columns of an estimate: the start of the window and the group."""
        fields = [self.schema.field(name) for name in self.by]
        if self.time:
            fields.insert(0, pa.field(WINDOW, self.schema.field(self.time[0]).type))
        return pa.schema(fields)

    @property
    def result_schema(self) -> pa.Schema:
        """Keys, then each estimate with its standard error and interval, then sample sizes."""
        wanted = _ESTIMATES if self.value is not None else _ESTIMATES[:1]
        numbers = [pa.field(name + part, pa.float64()) for name in wanted for part in _PARTS]
        seen = [pa.field(name, pa.int64()) for name in SUMS[:2]]
        return pa.schema([*self.keys, *numbers, *seen])


def estimation(
    schema: pa.Schema,
    *,
    value: str | None = None,
    by: str | Sequence[str] | None = None,
    time: str | Sequence[str] | None = None,
    per: Any = None,
    every: Any = None,
    confidence: float = 0.95,
    lateness: Any = 0,
    groups: Any = None,
) -> Estimation:
    """Check the settings of an estimate against the columns of a sample."""
    check_unique(schema, "sampled")
    for name in (PROBABILITY, CLUSTER):
        if name not in schema.names:
            raise TidegateError(
                f'the sample has no column "{name}": estimate takes what sample_join gives, with '
                "that column"
            )
    if not pa.types.is_floating(schema.field(PROBABILITY).type):
        raise TidegateError(
            f'column "{PROBABILITY}" must have probabilities, as sample_join gives them, not '
            f"{schema.field(PROBABILITY).type}"
        )
    if not pa.types.is_integer(schema.field(CLUSTER).type):
        raise TidegateError(
            f'column "{CLUSTER}" must have the numbers of clusters, as sample_join gives them, not '
            f"{schema.field(CLUSTER).type}"
        )
    if value is not None:
        _check_value(schema, value)
    names = _names(by, "by")
    for name in names:
        check_column(schema, name, "the sample")
    if len(set(names)) < len(names):
        raise TidegateError(f"by must name each column once, not {quoted(by)}")
    unit, length, of = None, None, _names(time, "time")
    if (per is None) != (not of):
        raise TidegateError(
            "windows need both time (a column, or the two times of a pair, of which the later "
            f"counts) and per (how long a window is), not time={quoted(time)} and per={quoted(per)}"
        )
    if of:
        if len(of) > 2:
            raise TidegateError(f"time must be one column or the two of a pair, not {quoted(time)}")
        sides = ("sampled", "sampled")
        unit = time_unit(schema, schema, of[0], of[-1], sides)
        if isinstance(per, float) and unit.kind == "whole number" and not per.is_integer():
            raise TidegateError(
                "windows of whole-number times must be whole numbers long too, not "
                f"per={quoted(per)}"
            )
        length = duration(per, unit, "per")
    taken = {WINDOW if of else "", *(n + p for n in _ESTIMATES for p in _PARTS), *SUMS[:2]}
    for name in names:
        if name in taken:
            raise TidegateError(
                f'"{name}" is a column of the estimates; rename that of the sample before'
            )
    if (
        isinstance(confidence, bool)
        or not isinstance(confidence, int | float)
        or not 0 < confidence < 1
    ):
        raise TidegateError(
            f"confidence must be between 0 and 1, such as 0.95, not {quoted(confidence)}"
        )
    if unit is None and lateness != 0:
        raise TidegateError(
            f"lateness is how long a window waits for late rows, and there is none: give time and "
            f"per, or leave lateness={quoted(lateness)} out"
        )
    late = 0 if unit is None else duration(lateness, unit, "lateness", zero=True)
    slide = _slide(schema, of, length, unit, per, every)
    found = Estimation(schema, value, of, length, unit, names, float(confidence), slide, late)
    return found if groups is None else replace(found, groups=_groups(found, groups))


def _slide(
    schema: pa.Schema, time: Sequence[str], length: Any, unit: TimeUnit | None, per: Any, every: Any
) -> int | float | None:
    """Check `every`: how far apart the windows begin."""
    if every is None:
        return None
    if unit is None:
        raise TidegateError(
            "every is how far apart windows begin, and there are none: give time and per, or leave "
            f"every={quoted(every)} out"
        )
    if isinstance(every, float) and unit.kind == "whole number" and not every.is_integer():
        raise TidegateError(
            "windows of whole-number times must begin whole numbers apart, not "
            f"every={quoted(every)}"
        )
    slide = duration(every, unit, "every")
    if not length / _MOST_WINDOWS <= slide <= length:
        raise TidegateError(
            f"every must be at most per, and at least per / {_MOST_WINDOWS:,}, because each row is "
            f"counted in per / every windows; not every={quoted(every)} with per={quoted(per)}"
        )
    kind = schema.field(time[0]).type
    try:
        begins = times(_as_times(unit, np.array([slide]), kind), unit)[0]
    except (pa.ArrowInvalid, InvalidOperation):
        begins = None
    if begins != slide:
        raise TidegateError(
            f"windows begin at multiples of every, and every={quoted(every)} is no value of column "
            f'"{time[0]}" of {kind}; give a multiple of its smallest unit, or cast the column'
        )
    return slide


def estimated(spec: Estimation, sample: pa.Table) -> pa.Table:
    """Estimate from all rows of a sample."""
    return with_unknown(spec, concluded(spec, unit_sums(spec, sample)))


def unit_sums(spec: Estimation, sample: pa.Table) -> pa.Table:
    """Return the sums named in `SUMS` over the units of each key."""
    if sample.column(CLUSTER).null_count:
        raise TidegateError(
            f'column "{CLUSTER}" must not be null, and is in {sample.column(CLUSTER).null_count:,} '
            "rows: rows of a cluster are not independent, so take them as sample_join gave them"
        )
    keys = []
    if spec.time:
        sample, start_of_window = in_windows(spec, sample)
        keys.append(start_of_window)
    keys += [_one(sample.column(name)) for name in spec.by]
    group, first = numbered(keys, len(sample))
    unit, start = numbered([pa.array(group), _one(sample.column(CLUSTER))], len(sample))
    p = as_floats(_one(sample.column(PROBABILITY)))
    if not ((p > 0.0) & (p <= 1.0)).all():
        wrong = p[~((p > 0.0) & (p <= 1.0))][0]
        raise TidegateError(
            f'column "{PROBABILITY}" must be above 0 and at most 1, as sample_join gives it, not '
            f"{wrong}"
        )
    values = np.ones(len(sample))
    if spec.value is not None:
        values = _values(_one(sample.column(spec.value)))
    known = ~np.isnan(values)
    rows, n, s = (
        np.bincount(unit, part, len(start)).astype(np.float64)
        for part in (known, known / p, np.where(known, values, 0.0) / p)
    )
    least = np.ones(len(start))
    np.minimum.at(least, unit, p)
    nn, ns, ss = ((1.0 - least) * part for part in (n * n, n * s, s * s))
    parts = (np.ones(len(start)), rows, n, s, nn, ns, ss, nn * nn, ss * ss, rows > 0)
    sums = [pa.array(np.bincount(group[start], part, len(first))) for part in parts]
    columns = [key.take(pa.array(first)) for key in keys]
    return pa.table([*columns, *sums], names=[*spec.keys.names, *SUMS])


def concluded(spec: Estimation, sums: pa.Table) -> pa.Table:
    """Compute estimates, standard errors and intervals from sums."""
    # Access columns by position, because a group may have the same name as a sum.
    own = len(spec.keys)
    clusters, rows, n, s, nn, ns, ss, n4, s4, told = (
        as_floats(_one(c)) for c in sums.columns[own:]
    )
    columns: list[Any] = list(sums.columns[:own])
    found = [(n, np.sqrt(nn), _equal_units(nn, n4))]
    if spec.value is not None:
        known = n > 0
        mean = np.divide(s, n, out=np.full(len(n), np.nan), where=known)
        with np.errstate(divide="ignore", invalid="ignore"):  # one cluster, an infinite value
            left = np.maximum(ss - 2.0 * mean * ns + mean**2 * nn, 0.0)
            error = np.sqrt(left * told / (told - 1.0)) / n
        # One unit does not show how units differ, unless it was certain to be in the sample.
        error = np.where(told > 1, error, np.where(known & (nn == 0), 0.0, np.nan))
        found += [(s, np.sqrt(ss), _equal_units(ss, s4)), (mean, error, _equal_units(nn, n4))]
    for estimate, error, units in found:
        wide = student.ppf(0.5 + spec.confidence / 2.0, np.maximum(units - 1.0, 1.0))
        with np.errstate(invalid="ignore"):
            ends = estimate - wide * error, estimate + wide * error
        columns += [pa.array(part, mask=np.isnan(part)) for part in (estimate, error, *ends)]
    columns += [pa.array(clusters.astype(np.int64)), pa.array(rows.astype(np.int64))]
    return pa.table(columns, names=spec.result_schema.names)


def _equal_units(squares: Floats, fourth: Floats) -> Floats:
    """Return the effective number of units of a variance (Satterthwaite).

    If a few large clusters make up most of the variance, a normal interval is too narrow.
    """
    units = np.full(len(squares), np.inf)
    np.divide(squares**2, fourth, out=units, where=(fourth > 0) & np.isfinite(fourth))
    return units


def with_unknown(spec: Estimation, found: pa.Table) -> pa.Table:
    """Add a row of nulls for each group (in each window) that was never sampled."""
    if spec.groups is None:
        return found
    expected = spec.groups
    if spec.time:
        windows = found.column(WINDOW).unique().sort()
        of, group = len(windows), len(expected)
        expected = expected.take(pa.array(np.tile(np.arange(group), of)))
        at = pa.array(np.repeat(np.arange(of), group))
        expected = expected.add_column(0, WINDOW, windows.take(at))
    keys = spec.keys.names
    both = pa.concat_tables([found.select(keys), expected.select(keys)])
    _, first = numbered([_one(column) for column in both.columns], len(both))
    missing = expected.take(pa.array(first[first >= len(found)] - len(found)))
    empty = {
        name: pa.nulls(len(missing), found.schema.field(name).type) for name in found.column_names
    }
    empty |= {name: missing.column(name) for name in keys}
    empty |= {name: pa.array(np.zeros(len(missing), np.int64)) for name in SUMS[:2]}
    return pa.concat_tables([found, pa.table(empty, schema=found.schema)])


def in_windows(spec: Estimation, sample: pa.Table) -> tuple[pa.Table, pa.Array]:
    """Return each row in each of its windows, and the start of that window as a time."""
    assert spec.unit is not None
    assert spec.per is not None
    for name in spec.time:
        unknown = sample.column(name).is_null(nan_is_null=True)
        if pc.any(unknown).as_py():
            raise TidegateError(
                f'column "{name}" is null or NaN in {pc.sum(unknown).as_py():,} rows, which are in '
                "no window; leave them out"
            )
    every = [times(_one(sample.column(name)), spec.unit) for name in spec.time]
    number = np.maximum(every[0], every[-1])
    slide = spec.per if spec.every is None else spec.every
    last = np.floor_divide(number, slide)
    start = last * slide
    if slide < spec.per:
        found, rows = [start], [np.arange(len(number))]
        for back in range(1, math.ceil(spec.per / slide)):
            earlier = (last - back) * slide
            there = np.flatnonzero(number - earlier < spec.per)
            found.append(earlier[there])
            rows.append(there)
        start = np.concatenate(found)
        order = np.argsort(start, kind="stable")  # windows come in order of time
        start = start[order]
        sample = sample.take(pa.array(np.concatenate(rows)[order]))
    kind = spec.keys.field(WINDOW).type
    try:
        return sample, _as_times(spec.unit, start, kind)
    except (pa.ArrowInvalid, InvalidOperation):
        raise TidegateError(
            f"windows begin at a multiple of their length, and {start.min()!s} to {start.max()!s} "
            f'is more than column "{spec.time[0]}" of {kind} can hold; cast it to a wider type'
        ) from None


def _as_times(unit: TimeUnit, start: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Convert numbers back to the type of a time column."""
    if unit.kind == "decimal":
        places = [Decimal(number).scaleb(-kind.scale) for number in start.tolist()]
        return pa.array(places, kind)
    if unit.is_time:
        per = {10**9: "s", 10**6: "ms", 10**3: "us", 1: "ns"}
        finest = per[unit.per_unit.denominator]
        if pa.types.is_date(kind):
            return pa.array(start, pa.int64()).cast(pa.timestamp("us")).cast(kind, safe=False)
        return (
            pa.array(start, pa.int64()).cast(pa.timestamp(finest, kind.tz)).cast(kind, safe=False)
        )
    return pa.array(start).cast(kind)


def _values(column: pa.Array) -> Floats:
    """Return numbers, with NaN for nulls, which are ignored as in SQL."""
    return as_floats(column.fill_null(math.nan) if pa.types.is_floating(column.type) else column)


def _one(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _check_value(schema: pa.Schema, value: Any) -> None:
    if not isinstance(value, str):
        raise TidegateError(
            f"value must be the name of a column of the sample, not {quoted(value)}"
        )
    check_column(schema, value, "the sample")
    kind = schema.field(value).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise TidegateError(
            f'sums and averages are of numbers, and column "{value}" is {kind}; cast it, or leave '
            "value out to count"
        )


def _names(given: Any, name: str) -> tuple[str, ...]:
    names = () if given is None else (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise TidegateError(f"{name} must be a column name or several, not {quoted(given)}")
    return tuple(names)


def _groups(spec: Estimation, groups: Any) -> pa.Table:
    """Return the distinct expected groups, cast to the types of the sample."""
    if not spec.by:
        raise TidegateError("groups says which groups there are, and there is no by to group by")
    table = decoded(as_table(groups))
    for name in spec.by:
        check_column(table.schema, name, "the table of groups")
    try:
        table = table.select(list(spec.by)).cast(pa.schema([spec.schema.field(n) for n in spec.by]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TidegateError(
            f"groups must have the types that the sample has: {error}; cast its columns"
        ) from None
    _, first = numbered([_one(column) for column in table.columns], len(table))
    return table.take(pa.array(first))
