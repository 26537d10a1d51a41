"""The settings of a truncated join, checked once before any data is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.settings.checks import (
    check_carried,
    check_column,
    check_key,
    check_unique,
    input_of,
    key_columns,
    one_of,
    result_names,
    seed_of,
)
from tidegate.settings.times import TimeUnit, duration, time_unit
from tidegate.settings.values import is_whole, quoted

#: Methods with one budget for two inputs, with one for more of them, and with one for each.
OVERALL_METHODS = ("optimal", "adg")
SEVERAL_METHODS = ("optimal",)
EACH_METHODS = ("optimal", "ndg", "independent")

#: The columns that a plan adds to histograms: the name of the input, and the rows to keep.
PLANNED = ("input", "keep")
#: The largest budget in rows.
_ALL = 2**62


@dataclass(frozen=True)
class Relation:
    """One input of a truncated join; `name` is used in errors and results.

    `before` are the columns by which it joins the input before it, `after` those for the next one.
    """

    name: str
    schema: pa.Schema
    before: tuple[str, ...]
    after: tuple[str, ...]
    time: str | None

    @property
    def keys(self) -> tuple[str, ...]:
        """All columns by which the input joins."""
        return tuple(dict.fromkeys(self.before + self.after))


@dataclass(frozen=True)
class TruncatedJoin:
    """The checked settings of a join that keeps only some rows of its inputs.

    `budget` is one number for all inputs together, or one for each: the rows to delete if
    `deletes`, and otherwise the rows to keep. `per` is the length of a tumbling window in the
    kernel's units, if each window has a budget. `counts` is the column with the number of rows that
    a row of a histogram stands for.
    """

    relations: tuple[Relation, ...]
    budget: int | tuple[int, ...]
    deletes: bool
    method: str
    unit: TimeUnit | None
    per: int | float | None
    seed: int
    names: tuple[str, ...]
    counts: str | None

    @property
    def result_schema(self) -> pa.Schema:
        """The columns of all inputs, in order of the inputs."""
        fields = [field for relation in self.relations for field in relation.schema]
        return pa.schema([f.with_name(n) for f, n in zip(fields, self.names, strict=True)])

    @property
    def one_key(self) -> bool:
        """True if all inputs join by the same values, so that each value is apart."""
        return all(each.before == each.after for each in self.relations[1:-1])


def truncated_join(
    schemas: Sequence[pa.Schema],
    given_names: Sequence[str] | None = None,
    /,
    *,
    on: str | Sequence[str] | Mapping[str, str] | Sequence[Mapping[str, str]],
    keep: int | Sequence[int] | Mapping[str, int] | None = None,
    delete: int | Sequence[int] | Mapping[str, int] | None = None,
    method: str | None = None,
    time: str | Sequence[str] | Mapping[str, str] | None = None,
    per: Any = None,
    counts: str | None = None,
    suffixes: Sequence[str] | None = None,
    seed: int = 0,
) -> TruncatedJoin:
    """Check the settings of a truncated join against the schemas of its inputs.

    `given_names` are the names of the inputs, if the user gave any.
    """
    count = len(schemas)
    sides = ("left", "right") if count == 2 else tuple(map(_ordinal, range(count)))
    if given_names is not None:
        sides = tuple(given_names)
    for schema, side in zip(schemas, sides, strict=True):
        check_unique(schema, side)
        check_carried(schema, side)
    links = _links(on, count)
    for at, (after, before) in enumerate(links):
        for a, b in zip(after, before, strict=True):
            check_key(schemas[at], schemas[at + 1], a, b, (sides[at], sides[at + 1]))
    budget = _budget(keep, delete, sides)
    times, unit = _window_times(schemas, sides, _listed(time, sides), per)
    befores = [(), *(before for _, before in links)]
    afters = [*(after for after, _ in links), ()]
    if counts is not None:
        _check_histograms(schemas, sides, counts)
    if suffixes is None and given_names is not None:
        suffixes = tuple(f"_{name}" for name in given_names)
    return TruncatedJoin(
        relations=tuple(map(Relation, sides, schemas, befores, afters, times)),
        budget=budget,
        deletes=delete is not None,
        method=_method(method, budget, count),
        unit=unit,
        per=None if unit is None else _tumbling(per, unit),
        seed=seed_of(seed),
        names=result_names(schemas, _suffixes(suffixes, count)),
        counts=counts,
    )


def _listed(value: Any, sides: Sequence[str]) -> Any:
    """Return a mapping by the names of the inputs as a list, and other values as they are."""
    if isinstance(value, Mapping) and set(value) == set(sides):
        return [value[side] for side in sides]
    return value


def _links(on: Any, count: int) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the columns by which each input joins the next one."""
    if isinstance(on, list | tuple) and any(isinstance(link, Mapping) for link in on):
        if len(on) != count - 1 or not all(isinstance(link, Mapping) for link in on):
            raise TidegateError(
                f"on must have a mapping for each of the {count - 1} joins of a chain of {count} "
                "inputs, of a column of one input to a column of the next, such as "
                f"{[{f'j{i}': f'j{i}'} for i in range(1, count)]}; not {quoted(on)}"
            )
        return [key_columns(link) for link in on]
    if count > 2 and isinstance(on, Mapping):
        raise TidegateError(
            f"on must be a column name or a list of them where {count} inputs have one key, or a "
            f"list of {count - 1} mappings, one for each join of a chain; not {quoted(on)}"
        )
    return [key_columns(on)] * (count - 1)


def _check_histograms(schemas: Sequence[pa.Schema], sides: Sequence[str], counts: Any) -> None:
    """Refuse histograms without whole counts, or whose columns do not fit into one table."""
    seen: dict[str, tuple[str, pa.DataType]] = {}
    for schema, side in zip(schemas, sides, strict=True):
        check_column(schema, counts, input_of(side))
        kind = schema.field(counts).type
        if not pa.types.is_integer(kind):
            raise TidegateError(
                f'counts must be a column of whole numbers, and "{counts}" of {input_of(side)} is '
                f"{kind}; cast it"
            )
        for field in schema:
            if field.name in PLANNED:
                raise TidegateError(
                    f'{input_of(side)} has a column "{field.name}", as the plan has; rename it'
                )
            other, known = seen.setdefault(field.name, (side, field.type))
            if field.type != known and field.name != counts:
                raise TidegateError(
                    f'the plan has one column "{field.name}", and it is {known} in the {other} '
                    f"input and {field.type} in the {side} one; rename one of them"
                )


def _ordinal(at: int) -> str:
    names = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
    return names[at] if at < len(names) else f"{at + 1}th"


def _suffixes(suffixes: Any, count: int) -> Any:
    if suffixes is not None:
        return suffixes
    return ("_left", "_right") if count == 2 else tuple(f"_{i + 1}" for i in range(count))


def _budget(keep: Any, delete: Any, sides: Sequence[str]) -> int | tuple[int, ...]:
    if (keep is None) == (delete is None):
        raise TidegateError(
            "a truncated join needs one of keep and delete: how many rows to keep, or how many "
            f"to delete; not keep={quoted(keep)} and delete={quoted(delete)}"
        )
    name, given = ("keep", keep) if delete is None else ("delete", delete)
    value = _listed(given, sides)
    numbers = list(value) if isinstance(value, tuple | list) else [value]
    for number in numbers:
        if not is_whole(number) or number < 0:
            raise TidegateError(
                f"{name} must be a whole number of rows that is not negative, or one such number "
                f"for each input, not {quoted(given)}"
            )
    if not isinstance(value, tuple | list):
        return min(int(value), _ALL)
    if len(numbers) != len(sides):
        raise TidegateError(
            f"{name} must have a number for each of the {len(sides)} inputs, or be one number for "
            f"all, not {quoted(given)}"
        )
    return tuple(min(int(number), _ALL) for number in numbers)


def _method(method: Any, budget: int | tuple[int, ...], count: int) -> str:
    choices: tuple[str, ...] = EACH_METHODS
    form = "a budget for each input"
    if isinstance(budget, int):
        choices, form = OVERALL_METHODS, "one budget for both inputs"
        if count > 2:
            choices, form = SEVERAL_METHODS, "one budget for more than two inputs"
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
