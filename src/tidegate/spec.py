"""What a join is: settings, checked once, before any data is read."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.columns import hash_columns, whole
from tidegate.durations import nanoseconds
from tidegate.errors import TidegateError
from tidegate.policies import ByFrequency, Policy, policy_of
from tidegate.policies.base import Times, as_table
from tidegate.predicates import Predicate
from tidegate.schedules import Schedule, Step, is_schedule, steps_of
from tidegate.times import LARGEST_TIME, TimeUnit

Moment = Literal["probe-first", "evict-first", "shed-first"]
Combine = Literal["min", "max", "sum", "product"]

MOMENTS: tuple[Moment, ...] = ("probe-first", "evict-first", "shed-first")
COMBINES: tuple[Combine, ...] = ("min", "max", "sum", "product")
#: How a truncated join chooses: with one budget for two inputs, with one for each, and with one
#: for each of more than two.
OVERALL_METHODS = ("optimal", "adg")
EACH_METHODS = ("optimal", "ndg", "independent")
SEVERAL_METHODS = ("independent", "ndg")

#: What a shard needs to hold anything worth it, where memory is a size.
LEAST_BYTES = 4096

_SIZES = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}


class Frequencies(NamedTuple):
    """How often each key arrives on each stream, by key hash, sorted."""

    keys: NDArray[np.uint64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]


@dataclass(frozen=True)
class Side:
    """One of the two inputs."""

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str
    windows: Schedule
    importance: str | None

    @property
    def window(self) -> int | float | None:
        """The longest window that a tuple may have; None if it may be unbounded."""
        lengths = [step.value for step in self.windows]
        return None if None in lengths else max(lengths)


@dataclass(frozen=True)
class WindowJoin:
    """A bounded join of two streams over sliding windows, ready to run."""

    left: Side
    right: Side
    unit: TimeUnit
    lateness: int | float
    budget: Schedule
    in_bytes: bool
    split: float | None
    moment: Moment
    policy: Policy
    halflife: int | float
    combine: Combine
    seed: int
    names: tuple[str, ...]
    where: str | None = None
    params: tuple[float, ...] = ()
    curves: tuple[list[float], list[float]] = ([0.0], [0.0])
    frequencies: Frequencies | None = None

    @property
    def memory(self) -> int | None:
        """The least memory that there is at any time; None if everything is kept at all times."""
        return min((step.value for step in self.budget if step.value is not None), default=None)

    @property
    def most_shards(self) -> int | None:
        """How many shards there can be: by key, and each with memory for both sides."""
        if not self.left.keys:
            return 1
        if self.memory is None:
            return None
        if self.in_bytes:
            return max(self.memory // LEAST_BYTES, 1)
        return self.memory // (1 if self.split is None else 2)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Left, then right."""
        return self.left, self.right

    @property
    def result_schema(self) -> pa.Schema:
        """The left's columns, then the right's."""
        fields = [*self.left.schema, *self.right.schema]
        return pa.schema([f.with_name(n) for f, n in zip(fields, self.names, strict=True)])

    def settings(self) -> dict[str, Any]:
        """The settings as plain JSON values: a checkpoint depends on each."""
        return {
            "on": [list(side.keys) for side in self.sides],
            "where": self.where,
            "time": [side.time for side in self.sides],
            "within": [_as_json(side.windows) for side in self.sides],
            "lateness": self.lateness,
            "memory": _as_json(self.budget, " bytes" if self.in_bytes else ""),
            "split": "shared" if self.split is None else self.split,
            "moment": self.moment,
            "importance": [side.importance for side in self.sides],
            "combine": self.combine,
            "seed": self.seed,
            "columns": [[f"{f.name}: {f.type}" for f in side.schema] for side in self.sides],
        } | self.policy.settings()


def window_join(
    left: pa.Schema,
    right: pa.Schema,
    *,
    on: str | Sequence[str] | Mapping[str, str] | None = None,
    time: str | tuple[str, str],
    within: Any,
    where: str | None = None,
    memory: Any = None,
    policy: str | Policy = "auto",
    split: str | float = "shared",
    moment: str = "probe-first",
    importance: str | tuple[str, str] | None = None,
    combine: str = "min",
    lateness: Any = 0,
    suffixes: tuple[str, str] = ("_left", "_right"),
    seed: int = 0,
) -> WindowJoin:
    """Check the settings of a join against the schemas of its inputs."""
    for schema, name in ((left, "left"), (right, "right")):
        _check_unique(schema, name)
        _check_carried(schema, name)
    if on is None and where is None:
        raise TidegateError(
            "a join needs on (columns that must be equal), where (any other condition) or both"
        )
    left_keys, right_keys = ((), ()) if on is None else _keys(on)
    if where is not None:
        Predicate(where, left, right)
    for a, b in zip(left_keys, right_keys, strict=True):
        _check_key(left, right, a, b)
    left_time, right_time = _pair(time, "time")
    unit = _time_unit(left, right, left_time, right_time)
    kind = left.field(left_time).type
    windows = [
        steps_of(w, "within", unit, kind, lambda value: _window(value, unit))
        for w in _window_pair(within)
    ]
    budget, in_bytes = _budget_steps(memory, unit, kind)
    chosen = policy_of(policy)
    if importance is None:
        imp: tuple[str | None, str | None] = (None, None)
    else:
        imp = _pair(importance, "importance")
        _check_importance(left, imp[0], "left")
        _check_importance(right, imp[1], "right")
    share = _split(split)
    sides = (
        Side(left, left_keys, left_time, windows[0], imp[0]),
        Side(right, right_keys, right_time, windows[1], imp[1]),
    )
    lengths = (sides[0].window, sides[1].window)
    spec = WindowJoin(
        left=sides[0],
        right=sides[1],
        unit=unit,
        lateness=_length(lateness, unit, "lateness", zero=True),
        budget=budget,
        in_bytes=in_bytes,
        split=share,
        moment=_choice(moment, MOMENTS, "moment"),
        policy=chosen,
        halflife=_halflife(chosen, lengths, unit),
        combine=_choice(combine, COMBINES, "combine"),
        seed=_seed(seed),
        names=_result_names((left, right), suffixes),
        where=where,
    )
    if spec.memory is None:
        return spec
    if share is not None and not in_bytes and spec.memory < 2:
        raise TidegateError(
            f"memory must be at least 2 tuples when it is split between the sides, not {memory!r}; "
            'use split="shared" or more memory'
        )
    if chosen.ranks == "life":
        _check_lives(spec)
    spec = replace(
        spec,
        params=chosen.params(_times(unit, lengths)),
        curves=chosen.curves((_or_inf(lengths[0]), _or_inf(lengths[1]))),
    )
    if isinstance(chosen, ByFrequency) and chosen.given is not None:
        return replace(spec, frequencies=_given_frequencies(spec, chosen.given))
    return spec


@dataclass(frozen=True)
class Relation:
    """One of the inputs of a truncated join; `name` is what errors and results call it."""

    name: str
    schema: pa.Schema
    keys: tuple[str, ...]
    time: str | None


@dataclass(frozen=True)
class TruncatedJoin:
    """A join of relations of which only some tuples are kept, ready to run.

    `budget` is one number for all inputs together, or one for each: of tuples to delete if
    `deletes`, and otherwise to keep. `per` is the length of a tumbling window in the numbers of
    `unit`, if there is a budget for each window.
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
        """The columns of all inputs, one after the other."""
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
        _check_unique(schema, side)
        _check_carried(schema, side)
    if count > 2 and isinstance(on, Mapping):
        raise TidegateError(
            f"on must be a column name or a list of them where there are {count} inputs, not "
            f"{on!r}; rename the key columns to be the same everywhere"
        )
    first_keys, other_keys = _keys(on)
    keys = (first_keys, *[other_keys] * (count - 1))
    for at in range(1, count):
        for a, b in zip(first_keys, other_keys, strict=True):
            _check_key(schemas[0], schemas[at], a, b, (sides[0], sides[at]))
    budget = _budget(keep, delete, count)
    times, unit = _window_times(schemas, sides, time, per)
    return TruncatedJoin(
        relations=tuple(map(Relation, sides, schemas, keys, times)),
        budget=budget,
        deletes=delete is not None,
        method=_method(method, budget),
        unit=unit,
        per=None if unit is None else _tumbling(per, unit),
        seed=_seed(seed),
        names=_result_names(schemas, _suffixes(suffixes, count)),
    )


def check_collations(frame: Any, keys: tuple[str, ...]) -> None:
    """Refuse keys of a Spark DataFrame that are compared otherwise than by their bytes."""
    for name in keys:
        collation = getattr(frame.schema[name].dataType, "collation", "UTF8_BINARY")
        if collation != "UTF8_BINARY":
            raise TidegateError(
                f'key column "{name}" has the collation {collation}, and keys are compared by '
                'their bytes; join on collate(column, "UTF8_BINARY"), or on lower(column)'
            )


def frequencies_of(
    left: tuple[NDArray[np.uint64], NDArray[np.float64]],
    right: tuple[NDArray[np.uint64], NDArray[np.float64]],
) -> Frequencies:
    """From key hashes and counts of each stream; counts of a key that stands twice add up."""
    keys, where = np.unique(np.concatenate([left[0], right[0]]), return_inverse=True)
    split = len(left[0])
    return Frequencies(
        keys,
        np.bincount(where[:split], left[1], len(keys)).astype(np.float64),
        np.bincount(where[split:], right[1], len(keys)).astype(np.float64),
    )


def _given_frequencies(spec: WindowJoin, table: Any) -> Frequencies:
    """A table that the user gave, checked."""
    try:
        arrow = as_table(table)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
        raise TidegateError(
            f"the table of frequencies must have columns, not {str(table)[:60]}"
        ) from None
    wanted = [*spec.left.keys, "left", "right"]
    for name in wanted:
        _check_column(arrow.schema, name, "the table of frequencies")
    keys = [_cast(arrow, k, spec.left.schema.field(k).type) for k in spec.left.keys]
    columns = []
    for name in ("left", "right"):
        values = np.asarray(_cast(arrow, name, pa.float64()).fill_null(0.0).to_numpy())
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise TidegateError(
                f'frequencies must be finite and not negative; column "{name}" has '
                f"{values[~(np.isfinite(values) & (values >= 0))][0]}"
            )
        columns.append(values)
    hashes = hash_columns(keys, arrow.num_rows)
    if len(np.unique(hashes)) < len(hashes):
        raise TidegateError("the table of frequencies names a key twice; add its rows up first")
    return frequencies_of((hashes, columns[0]), (hashes, columns[1]))


def _cast(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    """One column of a table of frequencies, as the type it must have."""
    try:
        column = table.column(name).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise TidegateError(
            f'column "{name}" of the table of frequencies must be {kind}, not '
            f"{table.schema.field(name).type}: cast it"
        ) from None
    return whole(column)


# ---- checks of a truncated join -----------------------------------------------------------------


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
            "a truncated join needs one of keep and delete: how many tuples to keep, or how many "
            f"to delete; not keep={keep!r} and delete={delete!r}"
        )
    name, value = ("keep", keep) if delete is None else ("delete", delete)
    numbers = list(value) if isinstance(value, tuple | list) else [value]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 0:
            raise TidegateError(
                f"{name} must be a whole number of tuples that is not negative, or one such number "
                f"for each input, not {value!r}"
            )
    if not isinstance(value, tuple | list):
        if count > 2:
            raise TidegateError(
                f"{name} must have a number for each of the {count} inputs, such as "
                f"{name}={(numbers[0] // count,) * count}, not {value!r}: dividing one budget "
                "between more than two is not offered"
            )
        return int(value)
    if len(numbers) != count:
        raise TidegateError(
            f"{name} must have a number for each of the {count} inputs, or be one number for two, "
            f"not {value!r}"
        )
    return tuple(int(number) for number in numbers)


def _method(method: Any, budget: int | tuple[int, ...]) -> str:
    overall = isinstance(budget, int)
    choices = OVERALL_METHODS if overall else EACH_METHODS
    form = "one budget for both inputs" if overall else "a budget for each input"
    if isinstance(budget, tuple) and len(budget) > 2:
        choices, form = SEVERAL_METHODS, "more than two inputs"
    if method is None:
        return choices[0]
    known = tuple(dict.fromkeys(OVERALL_METHODS + EACH_METHODS))
    if _choice(method, known, "method") not in choices:
        listed = " or ".join(f'"{choice}"' for choice in choices)
        raise TidegateError(f"method {method!r} is not for {form}, {budget!r}; use {listed}")
    return str(method)


def _window_times(
    schemas: Sequence[pa.Schema], sides: tuple[str, ...], time: Any, per: Any
) -> tuple[tuple[str | None, ...], TimeUnit | None]:
    """The time column of each input and what they are measured in; None without windows."""
    if per is None and time is None:
        return (None,) * len(schemas), None
    if time is None:
        raise TidegateError(f"per={per!r} needs time: the column that says when a tuple came")
    if per is None:
        raise TidegateError(
            f"time={time!r} needs per: how long a window is; leave time out to join without windows"
        )
    names = (time,) * len(schemas) if isinstance(time, str) else time
    if (
        not isinstance(names, tuple | list)
        or len(names) != len(schemas)
        or not all(isinstance(name, str) for name in names)
    ):
        raise TidegateError(
            f"time must be one column name or one for each of the {len(schemas)} inputs, not "
            f"{time!r}"
        )
    units = [
        _time_unit(schemas[0], schemas[at], names[0], names[at], (sides[0], sides[at]))
        for at in range(1, len(schemas))
    ]
    return tuple(names), max(units, key=lambda u: u.per_unit)


def _tumbling(per: Any, unit: TimeUnit) -> int | float:
    length = _length(per, unit, "per")
    if not unit.is_time and length != per * unit.per_unit:
        raise TidegateError(
            f"per must be a whole number of the time columns' smallest unit, not {per!r}"
        )
    return length


# ---- checks -----------------------------------------------------------------------------------


def _choice(value: Any, choices: tuple[Any, ...], name: str) -> Any:
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(f'"{c}"' for c in choices)
        raise TidegateError(f"{name} must be one of {listed}, not {value!r}")
    return value


def _pair(value: Any, name: str) -> tuple[str, str]:
    pair = (value, value) if isinstance(value, str) else value
    if (
        not isinstance(pair, tuple | list)
        or len(pair) != 2
        or not all(isinstance(v, str) for v in pair)
    ):
        raise TidegateError(
            f"{name} must be one column name or a pair of them (left's, right's), not {value!r}"
        )
    return pair[0], pair[1]


def _check_unique(schema: pa.Schema, side: str) -> None:
    seen: set[str] = set()
    for name in schema.names:
        if name in seen:
            raise TidegateError(
                f'the {side} input has two columns named "{name}"; rename one before joining'
            )
        seen.add(name)


def _check_carried(schema: pa.Schema, side: str) -> None:
    """Refuse columns whose rows cannot be hashed or gathered."""
    for field in schema:
        kind = field.type
        if (
            isinstance(kind, pa.BaseExtensionType)
            or pa.types.is_union(kind)
            or pa.types.is_list_view(kind)
            or pa.types.is_large_list_view(kind)
        ):
            raise TidegateError(
                f'{side} column "{field.name}" is a {kind}, which cannot be carried; leave it out, '
                "or cast it to a string, a number, a list or a struct"
            )


def _check_column(schema: pa.Schema, name: str, where: str) -> None:
    if name not in schema.names:
        listed = ", ".join(f'"{n}"' for n in schema.names)
        raise TidegateError(f'{where} has no column "{name}"; it has {listed or "no columns"}')


def _keys(on: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(on, str):
        pairs = [(on, on)]
    elif isinstance(on, Mapping):
        pairs = list(on.items())
    elif isinstance(on, Sequence):
        pairs = [(name, name) for name in on]
    else:
        pairs = []
    if not pairs or not all(isinstance(n, str) for pair in pairs for n in pair):
        raise TidegateError(
            "on must be a column name, a list of them, or a {left: right} mapping, with at least "
            f"one column, not {on!r}"
        )
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def _check_key(
    left: pa.Schema, right: pa.Schema, a: str, b: str, sides: tuple[str, str] = ("left", "right")
) -> None:
    _check_column(left, a, f"the {sides[0]} input")
    _check_column(right, b, f"the {sides[1]} input")
    kind, other = _plain_type(left.field(a).type), _plain_type(right.field(b).type)
    if pa.types.is_map(kind) or pa.types.is_union(kind):
        raise TidegateError(
            f'key column "{a}" is a {kind}, which has no equality; join on one of its entries'
        )
    if kind in (pa.float16(), pa.month_day_nano_interval()):
        raise TidegateError(
            f'key column "{a}" is a {kind}, which cannot be compared; cast it to a string'
        )
    if kind != other:
        raise TidegateError(
            f'key columns must have one type: {sides[0]} "{a}" is {kind}, {sides[1]} "{b}" is '
            f"{other}; cast one of them"
        )


def _check_importance(schema: pa.Schema, name: str, side: str) -> None:
    _check_column(schema, name, f"the {side} input")
    kind = schema.field(name).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise TidegateError(
            f'importance must be a column of numbers; {side} "{name}" is {kind}: cast it'
        )


def _unit_of(kind: pa.DataType) -> TimeUnit | None:
    if pa.types.is_timestamp(kind):
        per = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
        return TimeUnit("timestamp" if kind.tz else "local timestamp", Fraction(1, per))
    if pa.types.is_date(kind):
        return TimeUnit("date", Fraction(1, 1000))
    if pa.types.is_integer(kind):
        return TimeUnit("whole number", Fraction(1))
    if pa.types.is_floating(kind):
        return TimeUnit("real number", Fraction(1))
    if pa.types.is_decimal(kind) and kind.precision <= 18:
        return TimeUnit("decimal", Fraction(10**kind.scale))
    return None


def _time_unit(
    left: pa.Schema, right: pa.Schema, a: str, b: str, sides: tuple[str, str] = ("left", "right")
) -> TimeUnit:
    units = []
    for schema, name, side in ((left, a, sides[0]), (right, b, sides[1])):
        _check_column(schema, name, f"the {side} input")
        kind = schema.field(name).type
        unit = _unit_of(kind)
        if unit is None:
            raise TidegateError(
                f'time must be a column of timestamps, dates or numbers; {side} "{name}" is '
                f"{kind}: cast it"
            )
        units.append(unit)
    if units[0].kind != units[1].kind:
        raise TidegateError(
            f'time columns must be of one kind: {sides[0]} "{a}" is a {units[0].kind}, '
            f'{sides[1]} "{b}" a {units[1].kind}; cast one of them'
        )
    return max(units, key=lambda u: u.per_unit)


def _length(value: Any, unit: TimeUnit, name: str, *, zero: bool = False) -> int | float:
    """A length of time in the kernel's numbers."""
    if unit.is_time:
        if zero and isinstance(value, int | float) and value == 0:
            return 0
        if isinstance(value, timedelta):
            days = Fraction(value.days * 86_400 + value.seconds)
            exact: Fraction | None = days * 10**9 + value.microseconds * 1000
        elif isinstance(value, str):
            exact = nanoseconds(value)
        else:
            exact = None
        if exact is None:
            raise TidegateError(
                f'{name} must be a duration like "2 hours", "90 s" or a timedelta, because the '
                f"time columns are a {unit.kind}; not {value!r}"
            )
    else:
        if isinstance(value, str | bool | timedelta) or not isinstance(
            value, int | float | np.number
        ):
            raise TidegateError(
                f"{name} must be a number, because the time columns are a {unit.kind}; "
                f"not {value!r}"
            )
        if not math.isfinite(value):
            raise TidegateError(f"{name} must be finite, not {value!r}")
        exact = Fraction(value) if not isinstance(value, np.number) else Fraction(value.item())
    if exact < 0 or (exact == 0 and not zero):
        least = "must not be negative" if zero else "must be longer than zero"
        raise TidegateError(f"{name} {least}, not {value!r}")
    if unit.kind == "real number":
        return float(exact)
    # Differences of whole numbers are below a length exactly when they are below the next whole.
    length = math.ceil(exact * unit.per_unit)
    if length >= LARGEST_TIME // 4:
        instead = {"within": '; "unbounded" is for ever', "halflife": "; math.inf is for ever"}
        raise TidegateError(
            f"{name} is too long for the time columns' unit: {value!r}{instead.get(name, '')}"
        )
    return length


def _window_pair(within: Any) -> tuple[Any, Any]:
    """The left's window and the right's, each of which may be a schedule."""
    if is_schedule(within) or not isinstance(within, tuple | list):
        return within, within
    if len(within) != 2:
        raise TidegateError(
            "within must be one window, one schedule of (time, window) pairs, or a pair of them "
            f"(left's, right's), not {within!r}"
        )
    return within[0], within[1]


def _window(value: Any, unit: TimeUnit) -> int | float | None:
    if value is None or (isinstance(value, float) and value == math.inf):
        return None
    if isinstance(value, str) and value.strip().lower() == "unbounded":
        return None
    return _length(value, unit, "within")


def _halflife(
    policy: Policy, windows: tuple[int | float | None, int | float | None], unit: TimeUnit
) -> int | float:
    """How long until an arrival counts half; 0 if it never does."""
    if policy.counts != "arrivals":
        return 0
    if isinstance(policy, ByFrequency):
        if policy.never_forgets:
            return 0
        if policy.halflife is not None:
            return _length(policy.halflife, unit, "halflife")
    known = [w for w in windows if w is not None]
    return 32 * max(known) if known else 0


def _or_inf(window: int | float | None) -> float:
    return math.inf if window is None else float(window)


def _times(unit: TimeUnit, windows: tuple[int | float | None, int | float | None]) -> Times:
    """How a policy reads times."""

    def read(value: Any, name: str) -> float:
        return float(_length(value, unit, name, zero=True))

    second = read("1 s", "a second") if unit.is_time else 1.0
    return Times(read, second, max(map(_or_inf, windows)))


def _check_lives(spec: WindowJoin) -> None:
    """Refuse to compare lives with lives that never end."""
    for side, name in zip(spec.sides, ("left", "right"), strict=True):
        lengths = {step.value for step in side.windows}
        if None in lengths and len(lengths) > 1:
            raise TidegateError(
                f"policy {spec.policy.name} ranks by the life that is left, and the {name}'s "
                "schedule has windows that end and windows that do not; give all of them a "
                "length, or use Prob"
            )


def _as_json(schedule: Schedule, unit: str = "") -> Any:
    """A schedule as a setting; a value that does not change as itself."""
    values = [
        f"{step.value}{unit}" if unit and step.value is not None else step.value
        for step in schedule
    ]
    if len(values) == 1:
        return values[0]
    return [[step.start, value] for step, value in zip(schedule, values, strict=True)]


def _budget_steps(memory: Any, unit: TimeUnit, kind: pa.DataType) -> tuple[Schedule, bool]:
    """The memory by time, and whether it is a size."""
    found = steps_of(memory, "memory", unit, kind, _memory)
    units = {step.value[1] for step in found if step.value[0] is not None}
    if len(units) > 1:
        raise TidegateError(
            "a schedule of memory must be in tuples throughout or in sizes throughout, not "
            f"{memory!r}"
        )
    return tuple(Step(step.start, step.value[0]) for step in found), True in units


def _memory(value: Any) -> tuple[int | None, bool]:
    if value is None:
        return None, False
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and value > 0:
        return _not_too_large(int(value), value), False
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*", value)
        if match and match[2].lower() in _SIZES:
            size = int(Fraction(match[1]) * _SIZES[match[2].lower()])
            if size > 0:
                return _not_too_large(size, value), True
    raise TidegateError(
        'memory must be a positive number of tuples or a size like "64 MB" '
        f"(or None to keep everything), not {value!r}"
    )


def _not_too_large(memory: int, value: Any) -> int:
    if memory >= LARGEST_TIME:
        raise TidegateError(
            f"memory is larger than any machine's: {value!r}; None keeps everything"
        )
    return memory


def _split(value: Any) -> float | None:
    if isinstance(value, str) and value in ("shared", "fixed"):
        return None if value == "shared" else 0.5
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1:
        return float(value)
    raise TidegateError(
        f'split must be "shared", "fixed" or the left\'s share between 0 and 1, not {value!r}'
    )


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise TidegateError(f"seed must be a whole number that is not negative, not {value!r}")
    return int(value)


def _result_names(schemas: Sequence[pa.Schema], suffixes: Any) -> tuple[str, ...]:
    if (
        not isinstance(suffixes, tuple | list)
        or len(suffixes) != len(schemas)
        or not all(isinstance(s, str) for s in suffixes)
    ):
        pair = 'a pair of strings such as ("_left", "_right")'
        wanted = pair if len(schemas) == 2 else f"{len(schemas)} strings, one for each input"
        raise TidegateError(f"suffixes must be {wanted}, not {suffixes!r}")
    given = Counter(name for schema in schemas for name in schema.names)
    names = [
        name + suffix if given[name] > 1 else name
        for schema, suffix in zip(schemas, suffixes, strict=True)
        for name in schema.names
    ]
    for name, times in Counter(names).items():
        if times > 1:
            raise TidegateError(
                f'two result columns would be named "{name}"; choose other suffixes than '
                f"{suffixes!r} or rename a column"
            )
    return tuple(names)
