"""The settings of a star join, checked once before any data is read.

Streams R_1..R_n are joined through a relation F. Its rows, the *links* (the paper says facts), are
active in an interval of time (Towne, Zhu, Zuzarte, Hou, section 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.joins.window.spec import (
    SHED_WHEN,
    check_weights,
    combine_of,
    halflife_of,
    settings_of_policy,
    times_of,
)
from tidegate.policies import POLICIES, Policy, Prob, policy_of
from tidegate.settings.by_stream import for_each_stream
from tidegate.settings.checks import (
    check_carried,
    check_column,
    check_key,
    check_unique,
    flag,
    key_columns,
    one_of,
    result_names,
    seed_of,
)
from tidegate.settings.schedules import (
    Side,
    Step,
    is_schedule,
    not_too_large,
    rows_of,
    window_length,
)
from tidegate.settings.times import TimeUnit, lateness_of, time_unit
from tidegate.settings.types import Combine, ShedWhen
from tidegate.settings.values import quoted, real

#: The operations in a stream of changes.
OPERATIONS = ("insert", "delete", "update")
#: The name of the relation in column suffixes and in messages.
FACT, RELATION = "fact", "the relation"
#: The policies that a star join can use.
_STAR_POLICIES = {n: p for n, p in POLICIES.items() if p.ranks == "row" or p.for_star_joins}


@dataclass(frozen=True)
class Relation:
    """The relation that streams are joined through: the paper's F.

    Attributes
    ----------
    schema
        Its columns.
    keys
        For each stream, the columns that its keys are compared with.
    interval
        The columns with the begin and the end of a link's active interval, if it has one.
    changes
        The columns with the operation and its time, where the relation is a stream of changes.
    fact
        The columns that identify a link.
    carried
        The columns that are in results: all except keys, the operation and its time.
    """

    schema: pa.Schema
    keys: tuple[tuple[str, ...], ...]
    interval: tuple[str, str] | None
    changes: tuple[str, str] | None
    fact: tuple[str, ...]
    carried: tuple[str, ...]


@dataclass(frozen=True)
class StarJoin:
    """The checked settings of a star join."""

    streams: tuple[Side, ...]
    stream_names: tuple[str, ...]
    relation: Relation
    unit: TimeUnit
    lateness: int | float
    memory: int | None
    split: Literal["shared", "fixed"]
    shed_when: ShedWhen
    policy: Policy
    params: tuple[float, ...]
    halflife: int | float
    combine: Combine
    importance_limit: float | None
    seed: int
    relation_changes: Literal["apply", "refuse"] | None
    names: tuple[str, ...]

    @property
    def windows(self) -> tuple[int | float | None, ...]:
        """The window of each stream; None if it is unbounded."""
        return tuple(side.window for side in self.streams)

    @property
    def result_age(self) -> int | float | None:
        """The most by which a result is older than the newest row; None for any age."""
        if len(self.streams) == 1:
            return 0
        lengths = [window for window in self.windows if window is not None]
        return max(lengths) if len(lengths) == len(self.windows) else None

    @property
    def second(self) -> float:
        """A second in the kernel's units; 1 where times are plain numbers."""
        return times_of(self.unit, self.windows).unit

    @property
    def weighed(self) -> bool:
        """True if rows have an importance."""
        return self.streams[0].importance is not None

    @property
    def dynamic(self) -> bool:
        """True if the relation is a stream of changes."""
        return self.relation.changes is not None

    @property
    def pools(self) -> int:
        """The number of parts of the memory."""
        return len(self.streams) if self.split == "fixed" else 1

    @property
    def most_shards(self) -> int | None:
        """The most shards: one for a changing relation; otherwise each needs memory for a row."""
        if self.dynamic:
            return 1
        return None if self.memory is None else self.memory // self.pools

    @property
    def result_schema(self) -> pa.Schema:
        """The columns of the streams, then those of the relation that are not keys."""
        fields = [field for side in self.streams for field in side.schema]
        fields += [self.relation.schema.field(name) for name in self.relation.carried]
        return pa.schema([f.with_name(n) for f, n in zip(fields, self.names, strict=True)])

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain JSON values; a checkpoint is bound to all of them."""
        relation = self.relation
        return {
            "on": [
                [list(side.keys), list(keys)]
                for side, keys in zip(self.streams, relation.keys, strict=True)
            ],
            "time": [side.time for side in self.streams],
            "within": list(self.windows),
            "lateness": self.lateness,
            "memory": self.memory,
            "split": self.split,
            "shed_when": self.shed_when,
            "importance": [side.importance for side in self.streams],
            "importance_limit": self.importance_limit,
            "combine": self.combine,
            "seed": self.seed,
            "interval": relation.interval,
            "changes": relation.changes,
            "fact": list(relation.fact),
            "columns": [
                [f"{f.name}: {f.type}" for f in schema]
                for schema in (*(side.schema for side in self.streams), relation.schema)
            ],
        } | settings_of_policy(self.policy)


def star_join(
    streams: Mapping[str, pa.Schema],
    relation: pa.Schema,
    *,
    on: Any,
    time: Any,
    within: Any = None,
    closed: bool = False,
    interval: tuple[str, str] | None = None,
    changes: tuple[str, str] | None = None,
    fact: str | Sequence[str] | None = None,
    memory: Any = None,
    split: str = "shared",
    policy: str | Policy = "auto",
    shed_when: str = "after-probe",
    importance: Any = None,
    importance_limit: float | None = None,
    combine: str | None = None,
    lateness: Any = None,
    suffixes: Sequence[str] | None = None,
    seed: int = 0,
    relation_changes: str | None = None,
) -> StarJoin:
    """Check the settings of a star join against the schemas of its inputs."""
    names = tuple(streams)
    schemas = list(streams.values())
    for schema, name in zip((*schemas, relation), (*names, RELATION), strict=True):
        check_unique(schema, name)
        check_carried(schema, name)
    pairs = [key_columns(one) for one in _keys(on, names)]
    for name, schema, pair in zip(names, schemas, pairs, strict=True):
        for a, b in zip(*pair, strict=True):
            check_key(schema, relation, a, b, (name, RELATION))
    times = [_column(t, "time") for t in for_each_stream(time, names, "time", "a column")]
    found = _relation(relation, tuple(pair[1] for pair in pairs), interval, changes, fact)
    unit = _unit(dict(zip(names, zip(schemas, times, strict=True), strict=True)), found)
    if flag(closed, "closed") and unit.kind == "real number":
        raise TidegateError(
            "closed=True is not possible in a star join whose times are real numbers; cast them to "
            "whole numbers, decimals or timestamps"
        )
    windows = _windows(within, names, unit, closed)
    weights: list[str | None] = [None] * len(names)
    if importance is not None:
        weights = [
            _column(w, "importance")
            for w in for_each_stream(importance, names, "importance", "one")
        ]
        for name, schema, weight in zip(names, schemas, weights, strict=True):
            check_weights(schema, str(weight), name)
    chosen = _policy(policy)
    when = one_of(shed_when, SHED_WHEN, "shed_when")
    held = _memory(memory, names, one_of(split, ("shared", "fixed"), "split"))
    return StarJoin(
        streams=tuple(
            Side(schema, pair[0], column, (Step(0, window),), weight)
            for schema, pair, column, window, weight in zip(
                schemas, pairs, times, windows, weights, strict=True
            )
        ),
        stream_names=names,
        relation=found,
        unit=unit,
        lateness=lateness_of(
            lateness, unit, [s.field(t) for s, t in zip(schemas, times, strict=True)]
        ),
        memory=held,
        split=split,  # type: ignore[arg-type]
        shed_when="after-probe" if len(names) == 1 else when,
        policy=chosen,
        params=() if held is None else chosen.params(times_of(unit, windows)),
        halflife=halflife_of(chosen, windows, unit),
        combine=combine_of(combine, importance),
        importance_limit=_limit(importance_limit, importance),
        seed=seed_of(seed),
        relation_changes=_relation_changes(relation_changes, changes),
        names=result_names(
            [*schemas, pa.schema([relation.field(n) for n in found.carried])],
            [f"_{name}" for name in (*names, FACT)] if suffixes is None else suffixes,
        ),
    )


def _keys(on: Any, names: tuple[str, ...]) -> list[Any]:
    """Return the keys of each stream; a mapping of columns applies to all streams."""
    if isinstance(on, Mapping) and on and not set(on) & set(names):
        return [on] * len(names)
    return for_each_stream(on, names, "on", "columns")


def _column(value: Any, setting: str) -> str:
    if not isinstance(value, str):
        raise TidegateError(f"{setting} must be a column name for each stream, not {quoted(value)}")
    return value


def _windows(
    within: Any, names: tuple[str, ...], unit: TimeUnit, closed: bool
) -> tuple[int | float | None, ...]:
    if len(names) == 1:
        if within is not None:
            raise TidegateError(
                "one stream joins the relation without a window, because none of its rows is "
                f"held; leave within out, not {quoted(within)}"
            )
        return (None,)
    if within is None:
        raise TidegateError(
            "within is missing: how long do rows of a stream wait for others? Give a window, one "
            'for each stream, or "unbounded"'
        )
    is_one = not isinstance(within, list | tuple | Mapping)
    given = (
        [within] * len(names) if is_one else for_each_stream(within, names, "within", "a window")
    )
    for window in (within, *given):
        _refuse_schedule(window, "within")
    return tuple(window_length(window, unit, closed) for window in given)


def _refuse_schedule(value: Any, setting: str) -> None:
    if is_schedule(value):
        raise TidegateError(
            f"{setting} of a star join does not change with time; give it one value, not the "
            f"schedule {quoted(value)} (tidegate.join takes schedules)"
        )


def _relation(
    schema: pa.Schema,
    keys: tuple[tuple[str, ...], ...],
    interval: Any,
    changes: Any,
    fact: Any,
) -> Relation:
    for value, name, example, others in (
        (interval, "interval", '("begin", "end")', ""),
        (changes, "changes", '("operation", "time")', ', or "delta" or "debezium"'),
    ):
        if value is None:
            continue
        if not (isinstance(value, tuple | list) and len(value) == 2):
            raise TidegateError(
                f"{name} must be a pair of columns like {example}{others}, not {quoted(value)}"
            )
        for column in value:
            check_column(schema, column, RELATION)
        if value[0] == value[1]:
            raise TidegateError(f"{name} must be two columns like {example}, not {quoted(value)}")
    if interval is not None and changes is not None:
        raise TidegateError(
            f"a relation has an interval ({quoted(interval)}) or is a stream of changes "
            f"({quoted(changes)}), "
            "not both: in a stream of changes, inserts begin and deletes end an interval"
        )
    if changes is not None and not _is_text(schema.field(changes[0]).type):
        raise TidegateError(
            f'the operation must be a column of strings such as "insert"; "{changes[0]}" is '
            f"{schema.field(changes[0]).type}: cast it"
        )
    every_key = {name for one in keys for name in one}
    named_by = [fact] if isinstance(fact, str) else fact
    if named_by is not None:
        if not isinstance(named_by, list | tuple) or not named_by:
            raise TidegateError(f"fact must be a column name or a list of them, not {quoted(fact)}")
        for column in named_by:
            check_column(schema, column, RELATION)
            if column in (changes or ()):
                raise TidegateError(
                    f'fact names what stays the same when a fact changes, and "{column}" is of '
                    "the change: leave it out of fact"
                )
    elif changes is not None:
        named_by = [name for name in schema.names if name in every_key]
    else:
        named_by = [name for name in schema.names if name not in (interval or ())]
    return Relation(
        schema=schema,
        keys=keys,
        interval=None if interval is None else (interval[0], interval[1]),
        changes=None if changes is None else (changes[0], changes[1]),
        fact=tuple(named_by),
        carried=tuple(n for n in schema.names if n not in every_key and n not in (changes or ())),
    )


def _relation_changes(value: Any, changes: Any) -> Literal["apply", "refuse"] | None:
    if value is None:
        return None
    if changes is not None:
        raise TidegateError(
            f"relation_changes={quoted(value)} is about a table that differs after a restart, and "
            "with changes= the relation is a stream of changes: leave one of them out"
        )
    chosen: Literal["apply", "refuse"] = one_of(value, ("apply", "refuse"), "relation_changes")
    return chosen


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _unit(streams: Mapping[str, tuple[pa.Schema, str]], relation: Relation) -> TimeUnit:
    """Return the finest unit of all time columns."""
    columns = [(name, *stream) for name, stream in streams.items()]
    if relation.interval is not None:
        columns += [(RELATION, relation.schema, name) for name in relation.interval]
    if relation.changes is not None:
        columns.append((RELATION, relation.schema, relation.changes[1]))
    first, schema, column = columns[0]
    units = [
        time_unit(schema, other, column, name, (first, which)) for which, other, name in columns
    ]
    return max(units, key=lambda unit: unit.per_unit)


def _policy(policy: Any) -> Policy:
    is_known = isinstance(policy, str) and policy in POLICIES
    chosen = policy_of(policy, POLICIES if is_known else _STAR_POLICIES)
    if isinstance(chosen, Prob) and not (chosen.counting == "learned" and chosen.keys is None):
        raise TidegateError(
            "a star join learns how often the keys of its relation come, all of them; leave "
            "frequencies and keys of Prob out"
        )
    if chosen.ranks != "row" and not chosen.for_star_joins:
        listed = ", ".join(f'"{name}"' for name in _STAR_POLICIES)
        raise TidegateError(
            f'policy "{chosen.name}" does not know of a relation; use one of {listed}, or one of '
            "your own that ranks rows"
        )
    return chosen


def _memory(memory: Any, names: tuple[str, ...], split: str) -> int | None:
    if memory is None:
        return None
    _refuse_schedule(memory, "memory")
    rows = rows_of(memory)
    if rows is None:
        size = ", and a star join takes no sizes" if isinstance(memory, str) else ""
        raise TidegateError(
            "memory must be a positive number of rows (or None to keep everything), not "
            f"{quoted(memory)}{size}"
        )
    held = not_too_large(rows, memory)
    if len(names) == 1:
        raise TidegateError(
            f"one stream holds nothing, so memory plays no part; leave memory={quoted(memory)} out"
        )
    if split == "fixed" and held < len(names):
        raise TidegateError(
            f"memory must be at least {len(names)} rows when it is split between the streams, "
            f'not {quoted(memory)}; use split="shared" or more memory'
        )
    return held


def _limit(limit: Any, importance: Any) -> float | None:
    if limit is None:
        return None
    if importance is None:
        raise TidegateError(
            f"importance_limit={quoted(limit)} bounds an importance, and none is given: give "
            "importance"
        )
    if not 0 < real(limit) < math.inf:
        raise TidegateError(f"importance_limit must be a number above 0, not {quoted(limit)}")
    return float(limit)
