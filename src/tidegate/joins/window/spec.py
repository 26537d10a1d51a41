"""The settings of a window join, checked once before any data is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.policies import ByFrequency, Policy, Prob, policy_of
from tidegate.policies.base import Times
from tidegate.pool import predicted_split as predicted
from tidegate.settings.checks import (
    check_carried,
    check_column,
    check_key,
    check_unique,
    column_pair,
    flag,
    input_of,
    key_columns,
    one_of,
    result_names,
    seed_of,
)
from tidegate.settings.columns import as_table, hash_columns, whole
from tidegate.settings.schedules import (
    Schedule,
    Side,
    budget_steps,
    steps_of,
    time_of,
    window_length,
    window_pair,
)
from tidegate.settings.slow_cpu import SlowCPU
from tidegate.settings.times import TimeUnit, duration, lateness_of, time_unit
from tidegate.settings.types import Combine, Keys, ShedWhen, Suffixes, TimeColumn
from tidegate.settings.values import quoted, real
from tidegate.sql.bands import band_of
from tidegate.sql.conditions import Predicate

#: The largest number of parameters of a formula.
PARAMS = 6
SHED_WHEN: tuple[ShedWhen, ...] = ("after-probe", "before-probe", "before-arrival")
COMBINE: dict[str, Any] = {
    "min": np.minimum,
    "max": np.maximum,
    "sum": np.add,
    "product": np.multiply,
}
COMBINES = tuple(COMBINE)
#: The least memory of a shard, if memory is given in bytes.
LEAST_BYTES = 4096


class Frequencies(NamedTuple):
    """Arrivals of each key on each stream, sorted by key hash."""

    keys: NDArray[np.uint64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]


@dataclass(frozen=True)
class WindowJoin:
    """The checked settings of a bounded window join of two streams."""

    left: Side
    right: Side
    unit: TimeUnit
    lateness: int | float
    budget: Schedule
    in_bytes: bool
    split: float | None
    shed_when: ShedWhen
    policy: Policy
    halflife: int | float
    combine: Combine
    seed: int
    names: tuple[str, ...]
    where: str | None = None
    params: tuple[float, ...] = ()
    curves: tuple[list[float], list[float]] = ([0.0], [0.0])
    frequencies: Frequencies | None = None
    #: True if the split will be predicted once frequencies are known.
    unsplit: bool = False
    cpu: SlowCPU | None = None
    #: True if rows exactly a window apart join. Only for times that are real numbers; closed
    #: windows of other times are one unit longer instead.
    closed: bool = False
    #: Results before this time, in the kernel's units, are left out.
    count_from: int | float | None = None

    @property
    def second(self) -> float:
        """A second in the kernel's units; 1 where times are plain numbers."""
        return times_of(self.unit, (self.left.window, self.right.window)).unit

    @property
    def cpu_halflife(self) -> int | float:
        """The half-life of arrival counts in the queue of a slow CPU."""
        return halflife_of(Prob(), (self.left.window, self.right.window), self.unit)

    @property
    def memory(self) -> int | None:
        """The smallest budget at any time; None if everything is always kept."""
        return min((step.value for step in self.budget if step.value is not None), default=None)

    @property
    def result_age(self) -> int | float | None:
        """The most by which a result is older than the newest row; None for any age."""
        left, right = self.left.window, self.right.window
        if left is None or right is None:
            return None
        # A shard's queue is its share rounded up, so rows wait at most twice as long in it.
        queued = 0 if self.cpu is None else 2 * self.cpu.queue * self.cpu.step(self.second)
        return max(left, right) + math.ceil(queued)

    @property
    def sheds(self) -> bool:
        """True if rows can be dropped, from memory or from the queue of a slow CPU."""
        return self.memory is not None or self.cpu is not None

    @property
    def counts_first(self) -> bool:
        """True if the keys of both inputs must be counted before the join starts."""
        return self.sheds and self.counting == "whole"

    @property
    def counting(self) -> str | None:
        """The source of the policy's frequencies, `ByFrequency.counting`; None if it has none."""
        return self.policy.counting if isinstance(self.policy, ByFrequency) else None

    @property
    def banded(self) -> bool:
        """True if the condition has a band, by which partners are found; see `sql/bands.py`."""
        if self.where is None:
            return False
        return band_of(Predicate(self.where, self.left.schema, self.right.schema)) is not None

    @property
    def most_shards(self) -> int | None:
        """The most shards, so that each has memory for both sides; 1 without a key or a band."""
        if not self.left.keys and not self.banded:
            return 1
        most = [] if self.cpu is None else [self.cpu.queue]
        if self.memory is not None and self.in_bytes:
            most.append(max(self.memory // LEAST_BYTES, 1))
        elif self.memory is not None:
            most.append(self.memory // (1 if self.split is None else 2))
        return min(most, default=None)

    @property
    def sides(self) -> tuple[Side, Side]:
        """The left side, then the right side."""
        return self.left, self.right

    @property
    def result_schema(self) -> pa.Schema:
        """The left's columns, then the right's."""
        fields = [*self.left.schema, *self.right.schema]
        return pa.schema([f.with_name(n) for f, n in zip(fields, self.names, strict=True)])

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain JSON values; a checkpoint is bound to all of them."""
        cpu = {} if self.cpu is None else {"cpu": self.cpu.settings()}
        return (
            cpu
            | ({"closed": True} if self.closed else {})
            | ({} if self.count_from is None else {"count_from": self.count_from})
            | {
                "on": [list(side.keys) for side in self.sides],
                "where": self.where,
                "time": [side.time for side in self.sides],
                "within": [_as_json(side.windows) for side in self.sides],
                "lateness": self.lateness,
                "memory": _as_json(self.budget, " bytes" if self.in_bytes else ""),
                "split": "shared" if self.split is None else self.split,
                "shed_when": self.shed_when,
                "importance": [side.importance for side in self.sides],
                "combine": self.combine,
                "seed": self.seed,
                "columns": [[f"{f.name}: {f.type}" for f in side.schema] for side in self.sides],
            }
            | settings_of_policy(self.policy)
        )


def settings_of_policy(policy: Policy) -> dict[str, Any]:
    """Return a policy's settings under names that differ from those of the join."""
    given = policy.settings()
    return {n if n == "policy" else f"policy's {n}": value for n, value in given.items()}


def window_join(
    left: pa.Schema,
    right: pa.Schema,
    *,
    on: Keys | None = None,
    time: TimeColumn,
    within: Any,
    closed: bool = False,
    where: str | None = None,
    memory: Any = None,
    policy: str | Policy = "auto",
    split: str | float = "shared",
    shed_when: ShedWhen = "after-probe",
    importance: TimeColumn | None = None,
    combine: str | None = None,
    lateness: Any = None,
    cpu: SlowCPU | None = None,
    suffixes: Suffixes = ("_left", "_right"),
    seed: int = 0,
    count_from: Any = None,
) -> WindowJoin:
    """Check the settings of a join against the schemas of its inputs."""
    for schema, name in ((left, "left"), (right, "right")):
        check_unique(schema, name)
        check_carried(schema, name)
    if on is None and where is None:
        raise TidegateError(
            "a join needs on (columns that must be equal), where (any other condition) or both"
        )
    left_keys, right_keys = ((), ()) if on is None else key_columns(on)
    if where is not None:
        Predicate(where, left, right)
    for a, b in zip(left_keys, right_keys, strict=True):
        check_key(left, right, a, b)
    flag(closed, "closed")
    one_of(shed_when, SHED_WHEN, "shed_when")
    seed = seed_of(seed)
    names = result_names((left, right), suffixes)
    left_time, right_time = column_pair(time, "time")
    weights: tuple[str | None, str | None] = (None, None)
    if importance is not None:
        weights = column_pair(importance, "importance")
        check_weights(left, weights[0], "left")
        check_weights(right, weights[1], "right")
    unit = time_unit(left, right, left_time, right_time)
    late = lateness_of(lateness, unit, (left.field(left_time), right.field(right_time)))
    kind = left.field(left_time).type
    length = partial(window_length, unit=unit, closed=closed)
    windows = [steps_of(each, "within", unit, kind, length) for each in window_pair(within)]
    budget, in_bytes = budget_steps(memory, unit, kind)
    left_side = Side(left, left_keys, left_time, windows[0], weights[0])
    right_side = Side(right, right_keys, right_time, windows[1], weights[1])
    lengths = (left_side.window, right_side.window)
    chosen = policy_of(policy)
    spec = WindowJoin(
        left=left_side,
        right=right_side,
        unit=unit,
        lateness=late,
        budget=budget,
        in_bytes=in_bytes,
        split=_split(split),
        shed_when=shed_when,
        policy=chosen,
        halflife=halflife_of(chosen, lengths, unit),
        combine=combine_of(combine, importance),
        seed=seed,
        names=names,
        where=where,
        cpu=_cpu(cpu),
        closed=closed and unit.kind == "real number",
        count_from=None if count_from is None else time_of(count_from, "count_from", unit, kind),
    )
    if spec.memory is not None:
        spec = _ranked(spec, split, memory)
    if spec.sheds and spec.counting == "given":
        return with_frequencies(spec, _given_frequencies(spec), spec.second)
    return spec


def _ranked(spec: WindowJoin, split: Any, memory: Any) -> WindowJoin:
    """Return the join with the parameters of its policy, after checking that they fit."""
    assert spec.memory is not None
    chosen, lengths = spec.policy, (spec.left.window, spec.right.window)
    if spec.split is not None and not spec.in_bytes and spec.memory < 2:
        raise TidegateError(
            "memory must be at least 2 rows when it is split between the sides, not "
            f"{quoted(memory)}; "
            'use split="shared" or more memory'
        )
    if chosen.ranks == "life":
        _check_lives(spec)
    if spec.counting == "window" and None in lengths:
        raise TidegateError(
            'frequencies="window" counts the arrivals of a window, and one is unbounded; give '
            'within a length, or use frequencies="learned"'
        )
    params = chosen.params(times_of(spec.unit, lengths))
    if len(params) > PARAMS:
        raise TidegateError(
            f"policy {chosen.name} has {len(params)} params; a formula takes {PARAMS} at most"
        )
    for value in params:
        if math.isnan(real(value)):
            raise TidegateError(
                f"params of policy {chosen.name} must be numbers, not {quoted(value)}"
            )
    spec = replace(
        spec,
        params=tuple(float(value) for value in params),
        curves=chosen.curves(_windows(spec)),
    )
    return _to_be_split(spec, memory) if split == "predicted" else spec


def with_frequencies(spec: WindowJoin, frequencies: Frequencies, span: float) -> WindowJoin:
    """Return the join with known frequencies, counted over a time of `span`."""
    known = replace(spec, frequencies=frequencies, unsplit=False)
    if not spec.unsplit or span <= 0 or spec.memory is None:
        return known
    pace = predicted.Pace(frequencies.left / span, frequencies.right / span)
    share = predicted.share(spec.policy, _windows(spec), spec.memory, pace)
    return replace(known, split=share)


def _to_be_split(spec: WindowJoin, memory: Any) -> WindowJoin:
    """Return the join with its split predicted, now or once frequencies are known."""
    assert spec.memory is not None
    if any(len(each) > 1 for each in (spec.budget, spec.left.windows, spec.right.windows)):
        raise TidegateError(
            'split="predicted" is for a memory and windows that do not change; with a schedule, '
            'use split="shared"'
        )
    predicted.check(spec.policy, _windows(spec), memory, spec.in_bytes)
    if isinstance(spec.policy, ByFrequency):
        return replace(spec, unsplit=True)
    left, right = (window / spec.second for window in _windows(spec))
    return replace(spec, split=predicted.share(spec.policy, (left, right), spec.memory))


def _windows(spec: WindowJoin) -> tuple[float, float]:
    return _or_inf(spec.left.window), _or_inf(spec.right.window)


def check_collations(frame: Any, keys: tuple[str, ...]) -> None:
    """Refuse keys of a Spark DataFrame that are not compared by their bytes."""
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
    """Merge key hashes and counts of both streams; counts of the same key are added."""
    keys, where = np.unique(np.concatenate([left[0], right[0]]), return_inverse=True)
    split = len(left[0])
    return Frequencies(
        keys,
        np.bincount(where[:split], left[1], len(keys)).astype(np.float64),
        np.bincount(where[split:], right[1], len(keys)).astype(np.float64),
    )


def _given_frequencies(spec: WindowJoin) -> Frequencies:
    """Check the table of frequencies that the policy was given."""
    assert isinstance(spec.policy, ByFrequency)
    table = spec.policy.frequencies
    try:
        arrow = as_table(table)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
        raise TidegateError(
            f"the table of frequencies must have columns, not {str(table)[:60]}"
        ) from None
    wanted = [*spec.left.keys, "left", "right"]
    for name in wanted:
        check_column(arrow.schema, name, "the table of frequencies")
    keys = [_cast(arrow, k, spec.left.schema.field(k).type) for k in spec.left.keys]
    for name, column in zip(spec.left.keys, keys, strict=True):
        if column.null_count:
            raise TidegateError(
                f'the key column "{name}" of the table of frequencies has a null, which joins '
                "nothing: leave such rows out"
            )
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
    """Return one column of a table of frequencies, cast to its type."""
    try:
        column = table.column(name).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise TidegateError(
            f'column "{name}" of the table of frequencies must be {kind}, not '
            f"{table.schema.field(name).type}: cast it"
        ) from None
    return whole(column)


# ---- checks -----------------------------------------------------------------------------------


def check_weights(schema: pa.Schema, name: str, side: str) -> None:
    """Refuse an importance column that does not hold numbers."""
    check_column(schema, name, input_of(side))
    kind = schema.field(name).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise TidegateError(
            f'importance must be a column of numbers; {side} "{name}" is {kind}: cast it'
        )


def halflife_of(
    policy: Policy, windows: Sequence[int | float | None], unit: TimeUnit
) -> int | float:
    """Return the half-life of arrival counts; 0 if they do not decay."""
    if policy.counts != "arrivals":
        return 0
    if isinstance(policy, ByFrequency):
        if policy.never_forgets or policy.counting == "window":
            return 0
        if policy.halflife is not None:
            return duration(policy.halflife, unit, "halflife")
    known = [w for w in windows if w is not None]
    return 32 * max(known) if known else 0


def _or_inf(window: int | float | None) -> float:
    return math.inf if window is None else float(window)


def times_of(unit: TimeUnit, windows: Sequence[int | float | None]) -> Times:
    """Return the converter and units that a policy uses to read times."""

    def read(value: Any, name: str) -> float:
        return float(duration(value, unit, name, zero=True))

    second = read("1 s", "a second") if unit.is_time else 1.0
    return Times(read, second, max(map(_or_inf, windows)))


def _check_lives(spec: WindowJoin) -> None:
    """Refuse schedules that mix bounded and unbounded windows for policies that rank by life."""
    for side, name in zip(spec.sides, ("left", "right"), strict=True):
        lengths = {step.value for step in side.windows}
        if None in lengths and len(lengths) > 1:
            raise TidegateError(
                f"policy {spec.policy.name} ranks by the life that is left, and the {name}'s "
                "schedule has windows that end and windows that do not; give all of them a "
                "length, or use Prob"
            )


def _as_json(schedule: Schedule, unit: str = "") -> Any:
    """Return a schedule as JSON; a single step as its value."""
    values = [
        f"{step.value}{unit}" if unit and step.value is not None else step.value
        for step in schedule
    ]
    if len(values) == 1:
        return values[0]
    return [[step.start, value] for step, value in zip(schedule, values, strict=True)]


def combine_of(combine: Any, importance: Any) -> Combine:
    """Check `combine`, which needs `importance`."""
    if combine is not None and importance is None:
        raise TidegateError(
            f"combine={quoted(combine)} says what importance a result has, and none is given: give "
            "importance, or leave combine out"
        )
    chosen: Combine = one_of("min" if combine is None else combine, COMBINES, "combine")
    return chosen


def _split(value: Any) -> float | None:
    if isinstance(value, str) and value in ("shared", "fixed", "predicted"):
        return None if value == "shared" else 0.5
    if isinstance(value, int | float | np.floating) and 0 < value < 1:
        return float(value)
    raise TidegateError(
        'split must be "shared", "fixed", "predicted" or the left\'s share between 0 and 1, not '
        f"{quoted(value)}"
    )


def _cpu(value: Any) -> SlowCPU | None:
    if value is None or isinstance(value, SlowCPU):
        return value
    raise TidegateError(
        "cpu must be None or a slow one such as tg.SlowCPU(rate=1_000, queue=500), not "
        f"{quoted(value)}"
    )
