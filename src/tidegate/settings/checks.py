"""Checks of settings that all calls share: columns, keys, names and choices."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.errors import TidegateError, shortened
from tidegate.settings.values import is_whole, quoted


def one_of(value: Any, choices: tuple[Any, ...], name: str) -> Any:
    """Return the value, or refuse it if it is not one of the choices."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(f'"{c}"' for c in choices)
        raise TidegateError(f"{name} must be one of {listed}, not {quoted(value)}")
    return value


def nearest(name: Any, known: Iterable[str]) -> str:
    """Return a hint that names the most similar known name, or an empty string."""
    by_letters = {each.lower(): each for each in known}
    near = difflib.get_close_matches(_letters(name), by_letters, n=1)
    return f'; did you mean "{by_letters[near[0]]}"?' if near else ""


def _letters(name: Any) -> str:
    """Return a name in lower case; empty if it is no string, or too long to compare."""
    return name.lower() if isinstance(name, str) and len(name) < 1_000 else ""


def input_of(side: str) -> str:
    """Return the words for an input in messages, such as "the left input" or "the relation"."""
    return side if side.startswith("the ") else f"the {side} input"


def check_unique(schema: pa.Schema, side: str) -> None:
    """Refuse an input that has two columns of the same name."""
    seen: set[str] = set()
    for name in schema.names:
        if name in seen:
            raise TidegateError(
                f'{input_of(side)} has two columns named "{name}"; rename one before joining'
            )
        seen.add(name)


def check_carried(schema: pa.Schema, side: str) -> None:
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


def check_column(schema: pa.Schema, name: str, where: str) -> None:
    """Refuse a column name that the schema does not have."""
    if not isinstance(name, str):
        raise TidegateError(f"a column of {where} is given by its name, not {quoted(name)}")
    if name not in schema.names:
        listed = ", ".join(f'"{n}"' for n in schema.names)
        hint = nearest(name, schema.names)
        raise TidegateError(
            f'{where} has no column "{shortened(name, 200)}"; it has {listed or "no columns"}{hint}'
        )


def key_columns(on: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the key columns of the left input and of the right input."""
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
            f"one column, not {quoted(on)}"
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


def check_key(
    left: pa.Schema, right: pa.Schema, a: str, b: str, sides: tuple[str, str] = ("left", "right")
) -> None:
    """Refuse keys that cannot be compared with each other."""
    check_column(left, a, input_of(sides[0]))
    check_column(right, b, input_of(sides[1]))
    kind, other = _plain_type(left.field(a).type), _plain_type(right.field(b).type)
    if pa.types.is_map(kind) or pa.types.is_union(kind):
        raise TidegateError(
            f'key column "{a}" is a {kind}, which has no equality; join on one of its entries'
        )
    coarse = pa.types.is_decimal(kind) and kind.scale < 0
    if coarse or kind in (pa.float16(), pa.month_day_nano_interval()):
        raise TidegateError(
            f'key column "{a}" is a {kind}, which cannot be compared; cast it to a string'
        )
    if kind != other:
        raise TidegateError(
            f'key columns must have one type: {sides[0]} "{a}" is {kind}, {sides[1]} "{b}" is '
            f"{other}; cast one of them"
        )


#: Upper limit of seeds, because a seed is stored in the settings of a checkpoint.
_SEEDS = 2**1024


def seed_of(value: Any) -> int:
    """Check a seed and return it as an int."""
    if not is_whole(value) or not 0 <= value < _SEEDS:
        raise TidegateError(
            f"seed must be a whole number that is not negative, not {quoted(value)}"
        )
    return int(value)


def result_names(schemas: Sequence[pa.Schema], suffixes: Any) -> tuple[str, ...]:
    """Return the names of the result columns, with suffixes where inputs share a name."""
    if (
        not isinstance(suffixes, tuple | list)
        or len(suffixes) != len(schemas)
        or not all(isinstance(s, str) for s in suffixes)
    ):
        pair = 'a pair of strings such as ("_left", "_right")'
        wanted = pair if len(schemas) == 2 else f"{len(schemas)} strings, one for each input"
        raise TidegateError(f"suffixes must be {wanted}, not {quoted(suffixes)}")
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
                f"{quoted(suffixes)} or rename a column"
            )
    return tuple(names)


def flag(value: Any, name: str) -> bool:
    """Return the value, or refuse it if it is neither True nor False."""
    if not isinstance(value, bool):
        raise TidegateError(f"{name} must be True or False, not {quoted(value)}")
    return value


def check_same(old: Mapping[str, Any], new: Mapping[str, Any], what: str, instead: str) -> None:
    """Refuse stored data that was written with other settings, and list the differences."""
    differing = differences(old, new)
    if differing:
        lines = "\n".join(f"  {name}: {change}" for name, change in differing.items())
        raise TidegateError(
            f"this {what} was written with other settings (old -> new):\n{lines}\n{instead}"
        )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings in which two sets of them differ, each as "old -> new"."""
    return {
        name: f"{_shown(old, name)} -> {_shown(new, name)}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name) or (name in old) != (name in new)
    }


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return shortened(json.dumps(settings[name]), 200) if name in settings else "(none)"


def of_sides(value: Any) -> Any:
    """Return a mapping of "left" and "right" as a pair, and other values as they are."""
    if isinstance(value, Mapping) and set(value) == {"left", "right"}:
        return value["left"], value["right"]
    return value


def column_pair(value: Any, name: str) -> tuple[str, str]:
    """Return a column of the left and one of the right, from one name for both or a pair."""
    pair = of_sides(value)
    if isinstance(pair, str):
        pair = pair, pair
    if (
        not isinstance(pair, tuple | list)
        or len(pair) != 2
        or not all(isinstance(v, str) for v in pair)
    ):
        raise TidegateError(
            f"{name} must be one column name or a pair of them (left's, right's), not "
            f"{quoted(value)}"
        )
    return pair[0], pair[1]
