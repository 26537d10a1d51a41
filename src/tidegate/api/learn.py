"""`tidegate.learn`: age curves, rates and frequencies from captured streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Unpack, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.api import run_local
from tidegate.api.count_keys import quoted_name
from tidegate.api.inputs import all_on_spark, local_pair, rows_at_once
from tidegate.api.join import join
from tidegate.api.keywords import Learn
from tidegate.api.public_call import public_call
from tidegate.errors import TidegateError
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import WindowJoin, window_join
from tidegate.learning.age_curves import AgeCurve
from tidegate.policies import Age, Prob
from tidegate.report import plots
from tidegate.settings.times import TimeUnit, times
from tidegate.settings.types import Keys, LocalData, TimeColumn, Within
from tidegate.settings.values import is_whole, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The number of steps of an age curve unless the user says otherwise.
STEPS = 64
#: The most steps of an age curve.
_MOST_STEPS = 4_096
_COLUMNS = ("left", "right")


@dataclass(frozen=True)
class Learned:
    """Age curves, rates and frequencies of a join, learned from captured streams.

    Attributes
    ----------
    curve
        The mean number of results that a row of the left, and one of the right, finds in each step
        of its window. It is the `curve` of `tidegate.Age`.
    rates
        How many rows arrive on the left and on the right in a unit of time. The unit is a second,
        or 1 where times are plain numbers.
    frequencies
        The key columns (with the left's names), and how often each key arrives on the ``left`` and
        on the ``right`` in a unit of time. It is the `frequencies` of `tidegate.Prob` and others.
        None for a join without `on`.
    windows
        The windows of both sides, in units of time.

    Examples
    --------
    >>> import tidegate as tg
    >>> orders = {"id": [1, 2, 1, 3], "minute": [0, 1, 2, 3]}
    >>> payments = {"id": [1, 2, 1, 3], "minute": [2, 3, 4, 5]}
    >>> learned = tg.learn(orders, payments, on="id", time="minute", within=3)
    >>> learned.curve[0]  # of an order 0, 1 and 2 minutes old
    [0.0, 0.0, 1.0]
    >>> learned.age().name, learned.prob().name
    ('age', 'prob')
    """

    curve: tuple[list[float], list[float]]
    rates: tuple[float, float]
    frequencies: pa.Table | None = field(repr=False)
    windows: tuple[float, float]

    def age(self) -> Age:
        """Return the policy that ranks by these age curves; it works with a predicted split."""
        return Age(self.curve, rates=self.rates)

    def prob(self) -> Prob:
        """Return the policy that ranks by these frequencies; it works with a predicted split."""
        if self.frequencies is None:
            raise TidegateError(
                "a join without on has no keys, so no frequencies were learned; use age()"
            )
        return Prob(self.frequencies)

    @property
    def table(self) -> pa.Table:
        """The age curves as a table: ``side``, ``age`` (the start of a step) and ``results``."""
        sides = zip(_COLUMNS, self.curve, self.windows, strict=True)
        rows = [
            {"side": side, "age": i * window / len(curve), "results": results}
            for side, curve, window in sides
            for i, results in enumerate(curve)
        ]
        return pa.Table.from_pylist(rows)

    def plot(self, path: str | Path) -> None:
        """Draw both age curves, as results in a unit of time, into a PNG file."""
        lines = {}
        for side, curve, window in zip(_COLUMNS, self.curve, self.windows, strict=True):
            step = window / len(curve)
            lines[side] = [(i * step, results / step) for i, results in enumerate(curve)]
        Path(path).write_bytes(plots.results_by_age(lines, title="Results of a row by its age"))


@overload
def learn(left: DataFrame, right: DataFrame, **settings: Unpack[Learn]) -> Learned: ...
@overload
def learn(left: LocalData, right: LocalData, **settings: Unpack[Learn]) -> Learned: ...
@public_call()
def learn(
    left: Any,
    right: Any,
    *,
    on: Keys | None = None,
    time: TimeColumn,
    within: Within,
    closed: bool = False,
    where: str | None = None,
    steps: int = STEPS,
) -> Learned:
    """Learn age curves, rates and frequencies from captured streams.

    By default, `Age` and `Prob` learn these while a join runs. Learn them beforehand if a join must
    be good from its first row, or for ``split="predicted"``, which needs a model before the join
    starts.

    Parameters
    ----------
    left, right
        The captured streams: local data, or batch DataFrames of Spark. They must cover more time
        than the longer window.
    on, time, within, closed, where
        As in `tidegate.join`. Windows must have a length that does not change.
    steps
        The number of steps of an age curve. A window with fewer units of time has one step for
        each unit.

    Returns
    -------
    Learned
        The curves, rates and frequencies, with methods that return the policies.

    References
    ----------
    Srivastava, Widom, *Memory-Limited Execution of Windowed Stream Joins*, sections 2 and 3.2.

    Examples
    --------
    >>> import tidegate as tg
    >>> from tidegate.streams import auctions
    >>> opened, bids = auctions(500, seed=1)
    >>> rules = dict(on="auction_id", time="ts", within=("2 hours", "1 second"))
    >>> yesterday = tg.learn(opened, bids, **rules)
    >>> today = auctions(500, seed=2)
    >>> found = tg.join(*today, **rules, memory=20, policy=yesterday.age(), split="predicted")
    >>> found.results > 0
    True
    """
    count = _steps(steps)
    settings: dict[str, Any] = {
        "on": on,
        "time": time,
        "within": within,
        "closed": closed,
        "where": where,
    }
    if all_on_spark({"left": left, "right": right}):
        return _SparkHistory(left, right, settings).learned(count)
    tables = local_pair(left, right, on, time)
    return _LocalHistory(tables[0], tables[1], settings).learned(count)


def _steps(steps: Any) -> int:
    if not (is_whole(steps) and 1 <= steps <= _MOST_STEPS):
        raise TidegateError(
            f"steps must be a number of steps from 1 to {_MOST_STEPS:,}, not {quoted(steps)}"
        )
    return int(steps)


Batches = Iterable[pa.RecordBatch]


class _Count(Protocol):
    """A function that reduces record batches to an array of numbers."""

    @property
    def kind(self) -> str:
        """The Spark type of the numbers."""

    def __call__(self, batches: Batches) -> NDArray[Any]: ...


@dataclass(frozen=True)
class _Seen:
    """Count the rows of one stream that have a time, and find the first and the last time."""

    unit: TimeUnit
    time: str

    @property
    def kind(self) -> str:
        return "double" if self.unit.kind == "real number" else "bigint"

    def __call__(self, batches: Batches) -> NDArray[Any]:
        found = [_known(batch.column(self.time), self.unit) for batch in batches]
        every = np.concatenate([np.empty(0, self.unit.dtype), *found])
        ends = [every.min(), every.max()] if len(every) else []
        return np.array([len(every), *ends], self.unit.dtype)


@dataclass(frozen=True)
class _Rows:
    """Count the rows of one stream for its age curve."""

    curve: AgeCurve
    unit: TimeUnit
    time: str
    kind: ClassVar[str] = "double"

    def __call__(self, batches: Batches) -> NDArray[Any]:
        total = np.zeros(self.curve.steps + 1)
        for batch in batches:
            total += self.curve.rows(_known(batch.column(self.time), self.unit))
        return total


@dataclass(frozen=True)
class _Results:
    """Count results for both age curves, those of the left first."""

    curves: tuple[AgeCurve, AgeCurve]
    unit: TimeUnit
    #: The places of the two time columns in the results.
    places: tuple[int, int]
    kind: ClassVar[str] = "double"

    def __call__(self, batches: Batches) -> NDArray[Any]:
        total = np.zeros(self.curves[0].steps + self.curves[1].steps)
        for batch in batches:
            left, right = (times(batch.column(place), self.unit) for place in self.places)
            total += np.concatenate(
                [
                    self.curves[0].results(left, right - left),
                    self.curves[1].results(right, left - right),
                ]
            )
        return total


def _known(column: pa.Array, unit: TimeUnit) -> NDArray[Any]:
    """Return the finite times of a column."""
    found = times(column.drop_null(), unit)
    known: NDArray[Any] = found[np.isfinite(found)]
    return known


class _History(ABC):
    """Captured streams of a join. Subclasses count, locally or on Spark."""

    def __init__(self, spec: WindowJoin) -> None:
        self._spec = spec

    @abstractmethod
    def _count_rows(self, side: int, count: _Count) -> list[NDArray[Any]]:
        """Count the rows of one stream, in one or several parts."""

    @abstractmethod
    def _count_results(self, count: _Count) -> list[NDArray[Any]]:
        """Count the results of the exact join, in one or several parts."""

    @abstractmethod
    def _count_keys(self, side: int) -> pa.Table:
        """Return the key columns of one stream, without nulls, and the ``count`` of each key."""

    def learned(self, steps: int) -> Learned:
        spec = self._spec
        seen = [
            [part for part in self._count_rows(i, _Seen(spec.unit, side.time)) if part[0]]
            for i, side in enumerate(spec.sides)
        ]
        for parts, name in zip(seen, _COLUMNS, strict=True):
            if not parts:
                raise TidegateError(
                    f"the {name} stream has no row with a time, so there is nothing to learn from; "
                    "give streams that cover more than a window"
                )
        first = min(part[1] for parts in seen for part in parts)
        last = max(part[2] for parts in seen for part in parts)
        lengths = [_length(side.window, len(side.windows)) for side in spec.sides]
        if not last - first >= max(lengths):
            raise TidegateError(
                f"the streams cover a time of {(last - first) / spec.second:g}, and the longer "
                f"window is {max(lengths) / spec.second:g}; give streams that cover more than a "
                "window"
            )
        curves = [AgeCurve(length, _fitting(steps, length, spec), last) for length in lengths]
        results = _Results((curves[0], curves[1]), spec.unit, self._time_places())
        found = np.sum(self._count_results(results), axis=0)
        rows = [
            np.sum(self._count_rows(i, _Rows(curve, spec.unit, spec.sides[i].time)), axis=0)
            for i, curve in enumerate(curves)
        ]
        span = float(last - first) / spec.second
        left = curves[0].mean(found[: curves[0].steps], rows[0])
        right = curves[1].mean(found[curves[0].steps :], rows[1])
        totals = [sum(int(part[0]) for part in parts) for parts in seen]
        return Learned(
            curve=(left, right),
            rates=(totals[0] / span, totals[1] / span),
            frequencies=self._frequencies(span) if spec.left.keys else None,
            windows=(lengths[0] / spec.second, lengths[1] / spec.second),
        )

    def _time_places(self) -> tuple[int, int]:
        left, right = self._spec.sides
        place = right.schema.get_field_index(right.time)
        return left.schema.get_field_index(left.time), len(left.schema) + place

    def _frequencies(self, span: float) -> pa.Table:
        """Return the arrivals of each key in a unit of time, on both streams."""
        keys = list(self._spec.left.keys)
        kinds = [self._spec.left.schema.field(name).type for name in keys]
        parts = []
        for i, column in enumerate(_COLUMNS):
            counted = self._count_keys(i)
            arrays = [counted.column(at).cast(kind) for at, kind in enumerate(kinds)]
            rates = pc.divide(counted.column("count").cast(pa.float64()), span)
            zero = pa.chunked_array([np.zeros(counted.num_rows)])
            both = {column: rates, _COLUMNS[1 - i]: zero}
            parts.append(pa.table([*arrays, both["left"], both["right"]], [*keys, *_COLUMNS]))
        summed = pa.concat_tables(parts).group_by(keys).aggregate([(c, "sum") for c in _COLUMNS])
        return summed.rename_columns({f"{column}_sum": column for column in _COLUMNS})


def _length(window: int | float | None, windows: int) -> int | float:
    if window is None or windows > 1:
        raise TidegateError(
            "an age curve ends with the window, so learn needs windows of one length; give within "
            "a duration or a number, without a schedule"
        )
    return window


def _fitting(steps: int, window: int | float, spec: WindowJoin) -> int:
    """Return the number of steps, at most one for each unit of whole-number times."""
    return steps if spec.unit.kind == "real number" else min(steps, int(window))


class _LocalHistory(_History):
    def __init__(self, left: pa.Table, right: pa.Table, settings: dict[str, Any]) -> None:
        spec = window_join(left.schema, right.schema, **settings)
        if settings["where"] is None:  # only keys and times affect what is learned
            left, right = (
                table.select([*dict.fromkeys([*side.keys, side.time])])
                for table, side in zip((left, right), spec.sides, strict=True)
            )
            spec = window_join(left.schema, right.schema, **settings)
        super().__init__(spec)
        self._tables = [left, right]

    def _count_rows(self, side: int, count: _Count) -> list[NDArray[Any]]:
        return [count(self._tables[side].to_batches())]

    def _count_results(self, count: _Count) -> list[NDArray[Any]]:
        job = WindowJob(self._spec)
        return [count(run_local.results(job, self._tables, rows_at_once(None)))]

    def _count_keys(self, side: int) -> pa.Table:
        keys = list(self._spec.sides[side].keys)
        counted = self._tables[side].select(keys).drop_null().group_by(keys)
        return counted.aggregate([([], "count_all")]).rename_columns({"count_all": "count"})


class _SparkHistory(_History):
    def __init__(self, left: DataFrame, right: DataFrame, settings: dict[str, Any]) -> None:
        from tidegate.spark import packing

        if left.isStreaming or right.isStreaming:
            raise TidegateError(
                "learn reads captured streams to their end, and these are streaming; read them "
                "with spark.read, or let the join learn while it runs (the default)"
            )
        schemas = [packing.arrow_schema(frame.schema) for frame in (left, right)]
        super().__init__(window_join(schemas[0], schemas[1], **settings))
        self._frames = [left, right]
        self._settings = settings

    def _count_rows(self, side: int, count: _Count) -> list[NDArray[Any]]:
        time = self._spec.sides[side].time
        return _parts(self._frames[side].select(quoted_name(time)), count)

    def _count_results(self, count: _Count) -> list[NDArray[Any]]:
        return _parts(join(*self._frames, **self._settings), count)

    def _count_keys(self, side: int) -> pa.Table:
        keys = self._spec.sides[side].keys
        frame = self._frames[side].select(*map(quoted_name, keys))
        frame = frame.toDF(*(f"k{i}" for i in range(len(keys)))).dropna()
        counted: pa.Table = frame.groupBy(*frame.columns).count().toArrow()
        return counted


def _parts(frame: DataFrame, count: _Count) -> list[NDArray[Any]]:
    """Count the rows of a DataFrame in Spark's workers, one part for each task."""

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"counts": [count(batches)]})

    rows = frame.mapInArrow(counted, f"counts array<{count.kind}>").collect()
    return [np.array(row.counts) for row in rows]
