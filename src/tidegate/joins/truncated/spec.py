"""The settings of a truncated join, checked once before any data is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.settings.checks import (
    check_carried,
    check_key,
    check_unique,
    key_columns,
    one_of,
    result_names,
    seed_of,
)
from tidegate.settings.times import TimeUnit, duration, time_unit
from tidegate.settings.values import is_whole, quoted

#: Methods with one budget for two inputs, with one for each of two, and with one for each of more.
OVERALL_METHODS = ("optimal", "adg")
EACH_METHODS = ("optimal", "ndg", "independent")
SEVERAL_METHODS = ("independent", "ndg")


#: The largest budget in rows.
_ALL = 2**62


@dataclass(frozen=True)
class Relation:
    """One input of a truncated join; `name` is used in errors and results."""

    name: str
    schema: pa.Schema
    keys: tuple[str, ...]
    time: str | None


@dataclass(frozen=True)
class TruncatedJoin:
    """The checked settings of a join that keeps only some rows of its inputs.

    `budget` is one number for all inputs together, or one for each: the rows to delete if
    `deletes`, and otherwise the rows to keep. `per` is the length of a tumbling window in the
    kernel's units, if each window has a budget.
    """

    relations: tuple[Relation, ...]
    budget: int | tuple[int, ...]
    deletes: bool
    method: str
    unit: TimeUnit | None
    per: int | float | None
    seed: int
    names: tuple[str, ...]

    @property
    def result_schema(self) -> pa.Schema:
        """The columns of all inputs, in order of the inputs."""
        fields = [field for relation in self.relations for field in relation.schema]
        return pa.schema([f.with_name(n) for f, n in zip(fields, self.names, strict=True)])


def truncated_join(
    schemas: Sequence[pa.Schema],
    *,
    on: str | Sequence[str] | Mapping[str, str],
    keep: int | Sequence[int] | None = None,
    delete: int | Sequence[int] | None = None,
    method: str | None = None,
    time: str | Sequence[str] | None = None,
    per: Any = None,
    suffixes: Sequence[str] | None = None,
    seed: int = 0,
) -> TruncatedJoin:
    """Check the settings of a truncated join against the schemas of its inputs."""
    count = len(schemas)
    sides = ("left", "right") if count == 2 else tuple(map(_ordinal, range(count)))
    for schema, side in zip(schemas, sides, strict=True):
        check_unique(schema, side)
        check_carried(schema, side)
    if count > 2 and isinstance(on, Mapping):
        raise TidegateError(
            f"on must be a column name or a list of them where there are {count} inputs, not "
            f"{quoted(on)}; rename the key columns to be the same everywhere"
        )
    first_keys, other_keys = key_columns(on)
    keys = (first_keys, *[other_keys] * (count - 1))
    for at in range(1, count):
        for a, b in zip(first_keys, other_keys, strict=True):
            check_key(schemas[0], schemas[at], a, b, (sides[0], sides[at]))
    budget = _budget(keep, delete, count)
    times, unit = _window_times(schemas, sides, time, per)
    return TruncatedJoin(
        relations=tuple(map(Relation, sides, schemas, keys, times)),
        budget=budget,
        deletes=delete is not None,
        method=_method(method, budget),
        unit=unit,
        per=None if unit is None else _tumbling(per, unit),
        seed=seed_of(seed),
        names=result_names(schemas, _suffixes(suffixes, count)),
    )


def _ordinal(at: int) -> str:
    names = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
    return names[at] if at < len(names) else f"{at + 1}th"


def _suffixes(suffixes: Any, count: int) -> Any:
    if suffixes is not None:
        return suffixes
    return ("_left", "_right") if count == 2 else tuple(f"_{i + 1}" for i in range(count))


def _budget(keep: Any, delete: Any, count: int) -> int | tuple[int, ...]:
    if (keep is None) == (delete is None):
        raise TidegateError(
            "a truncated join needs one of keep and delete: how many rows to keep, or how many "
            f"to delete; not keep={quoted(keep)} and delete={quoted(delete)}"
        )
    name, value = ("keep", keep) if delete is None else ("delete", delete)
    numbers = list(value) if isinstance(value, tuple | list) else [value]
    for number in numbers:
        if not is_whole(number) or number < 0:
            raise TidegateError(
                f"{name} must be a whole number of rows that is not negative, or one such number "
                f"for each input, not {quoted(value)}"
            )
    if not isinstance(value, tuple | list):
        if count > 2:
            raise TidegateError(
                f"{name} must have a number for each of the {count} inputs, such as "
                f"{name}={(numbers[0] // count,) * count}, not {quoted(value)}: dividing one "
                "budget "
                "between more than two is not offered"
            )
        return min(int(value), _ALL)
    if len(numbers) != count:
        raise TidegateError(
            f"{name} must have a number for each of the {count} inputs, or be one number for two, "
            f"not {quoted(value)}"
        )
    return tuple(min(int(number), _ALL) for number in numbers)


def _method(method: Any, budget: int | tuple[int, ...]) -> str:
    overall = isinstance(budget, int)
    choices = OVERALL_METHODS if overall else EACH_METHODS
    form = "one budget for both inputs" if overall else "a budget for each input"
    if isinstance(budget, tuple) and len(budget) > 2:
        choices, form = SEVERAL_METHODS, "more than two inputs"
    if method is None:
        return choices[0]
    known = tuple(dict.fromkeys(OVERALL_METHODS + EACH_METHODS))
    if one_of(method, known, "method") not in choices:
        listed = " or ".join(f'"{choice}"' for choice in choices)
        raise TidegateError(
            f"method {quoted(method)} is not for {form}, {quoted(budget)}; use {listed}"
        )
    return str(method)


def _window_times(
    schemas: Sequence[pa.Schema], sides: tuple[str, ...], time: Any, per: Any
) -> tuple[tuple[str | None, ...], TimeUnit | None]:
    """Return the time column of each input and their unit; None without windows."""
    if per is None and time is None:
        return (None,) * len(schemas), None
    if time is None:
        raise TidegateError(f"per={quoted(per)} needs time: the column that says when a row came")
    if per is None:
        raise TidegateError(
            f"time={quoted(time)} needs per: how long a window is; leave time out to join "
            "without windows"
        )
    names = (time,) * len(schemas) if isinstance(time, str) else time
    if (
        not isinstance(names, tuple | list)
        or len(names) != len(schemas)
        or not all(isinstance(name, str) for name in names)
    ):
        raise TidegateError(
            f"time must be one column name or one for each of the {len(schemas)} inputs, not "
            f"{quoted(time)}"
        )
    units = [
        time_unit(schemas[0], schemas[at], names[0], names[at], (sides[0], sides[at]))
        for at in range(1, len(schemas))
    ]
    return tuple(names), max(units, key=lambda u: u.per_unit)


def _tumbling(per: Any, unit: TimeUnit) -> int | float:
    length = duration(per, unit, "per")
    if not unit.is_time and length != per * unit.per_unit:
        raise TidegateError(
            f"per must be a whole number of the time columns' smallest unit, not {quoted(per)}"
        )
    return length
