"""Set the watermarks on a join's inputs so that later operators wait for all its results.

A result may be as old as the oldest row that a newcomer can still join. Spark's own join therefore
holds the watermark back by its window. The stateful operator that runs tidegate's engines passes
the watermark on unchanged, so operators after it would drop results as late. This module lengthens
the delay of every input's watermark instead. Spark has one watermark for the whole query, so
operators after the join then wait as long as they would after Spark's own join.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.types import StructField, StructType

from tidegate.errors import TidegateError
from tidegate.settings.times import TimeUnit, milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Column metadata by which Spark marks a watermark: its delay.
DELAY = "spark.watermarkDelayMs"
#: Metadata of a result's time column: how far out of order it may be, in milliseconds.
LATENESS = "tidegate.latenessMs"
#: Metadata of a sample's `sample_probability`: the join's window in milliseconds.
WINDOW = "tidegate.windowMs"


@dataclass(frozen=True)
class Marked:
    """The inputs of a join, with watermarks that suit operators after the join.

    Parameters
    ----------
    inputs
        One DataFrame per input.
    times
        The time column of each input.
    delay
        The watermark's delay in milliseconds on the result's time columns. None if the result has
        no watermark; Spark then refuses later operators that need one.
    lateness
        How far out of order, in milliseconds, the result's times may be.
    """

    inputs: list[DataFrame]
    times: tuple[str, ...]
    delay: int | None = None
    lateness: int = 0

    @property
    def columns(self) -> list[tuple[int, StructField]]:
        """All columns of all inputs, each with the index of its input."""
        return [(at, field) for at, frame in enumerate(self.inputs) for field in frame.schema]

    def schema(
        self, names: Sequence[str], columns: Sequence[tuple[int | None, StructField]]
    ) -> StructType:
        """Return the result's Spark schema, which contains more than Arrow's.

        `columns` are the result's columns, each with the index of its input (None for a table).
        Only time columns get a watermark: how old other columns may be is not known. All columns
        are nullable: if one is added at a restart, rows held from before have no value in it.
        """
        fields = []
        for name, (at, field) in zip(names, columns, strict=True):
            known = field.metadata.items()
            metadata = {key: value for key, value in known if key not in (DELAY, LATENESS)}
            if self.delay is not None and at is not None and field.name == self.times[at]:
                metadata |= {DELAY: self.delay, LATENESS: self.lateness}
            fields.append(StructField(name, field.dataType, True, metadata))
        return StructType(fields)


class Timed(Protocol):
    """The settings of a join that determine how old its results may be."""

    @property
    def unit(self) -> TimeUnit:
        """The unit of its lengths of time."""

    @property
    def lateness(self) -> int | float:
        """The time by which a row may be late."""

    @property
    def result_age(self) -> int | float | None:
        """The most by which a result is older than the newest row; None for any age."""


def hold_back(inputs: Sequence[DataFrame], times: Sequence[str], join: Timed) -> Marked:
    """Make operators after a join wait for its oldest results, if inputs have a watermark."""
    unmarked = Marked(list(inputs), tuple(times))
    found = [delay_of(frame, time) for frame, time in zip(inputs, times, strict=True)]
    delays = [delay for delay in found if delay is not None]
    elsewhere = any(
        delay is None and _has_watermark(frame) for delay, frame in zip(found, inputs, strict=True)
    )
    streaming = all(frame.isStreaming for frame in inputs)
    if not delays or elsewhere or not streaming or join.result_age is None:
        return unmarked
    window = milliseconds(join.result_age, join.unit)
    lateness = milliseconds(join.lateness, join.unit)
    fields = [frame.schema[time] for frame, time in zip(inputs, times, strict=True)]
    # If rows may be later than the watermarks allow for, all delays grow by the difference.
    more = max(lateness - max(map(lateness_of, fields)), 0)
    delay = max(delays) + more + window
    try:
        frames = [
            # Spark uses the smallest watermark of all inputs, so every input needs one.
            frame.withWatermark(time, f"{delay} milliseconds")
            if own is None
            else _lengthened(frame, delay - own, time)
            for frame, time, own in zip(inputs, times, found, strict=True)
        ]
    except _NotHeldBack:
        return unmarked
    # If one stream lags behind the other, the newest result is one window ahead of the lagging
    # stream, and the oldest one window behind it.
    return Marked(frames, tuple(times), delay, max(*delays, lateness) + 2 * window)


def window_note(join: Timed) -> dict[str, int]:
    """Return the metadata that tells `tidegate.estimate` how far out of order results may be."""
    if join.result_age is None or not join.unit.is_time:
        return {}
    return {WINDOW: milliseconds(join.result_age, join.unit)}


def delay_of(frame: DataFrame, time: str) -> int | None:
    """Return the delay of the watermark on a column in milliseconds; None if it has none."""
    return frame.schema[time].metadata.get(DELAY) if frame.isStreaming else None


def lateness_of(field: StructField) -> int:
    """Return how late rows may be by a time column's watermark, in milliseconds."""
    found: int = field.metadata.get(LATENESS, field.metadata.get(DELAY, 0))
    return found


def _has_watermark(frame: DataFrame) -> bool:
    return any(DELAY in field.metadata for field in frame.schema.fields)


class _NotHeldBack(Exception):
    """Raised if a longer delay on an input would not make operators after the join wait longer.

    An operator that emits rows when the watermark passes them would also emit them later. And if
    the watermarks of one input differ, or if the input comes from another join, it is not known how
    late its rows may be.
    """


def _lengthened(frame: DataFrame, more: int, time: str) -> DataFrame:
    """Return the same DataFrame with `more` milliseconds added to each of its watermarks."""
    if hasattr(frame, "_jdf"):
        changed = _lengthened_in_jvm(frame, more)
    else:
        changed = _lengthened_in_client(frame, more)
    if changed is None:
        have = delay_of(frame, time) or 0
        raise TidegateError(
            f'the watermark on "{time}" is {have} milliseconds, and the join needs '
            f"{have + more}, so that operators after it do not drop its results; it cannot be "
            "changed from here, as it is not part of this program. Where it is defined, write "
            f'.withWatermark("{time}", "{have + more} milliseconds")'
        )
    return changed


def _waits(operator: str, time_mode: Callable[[], str]) -> bool:
    """Return True if an operator may emit rows when the watermark passes them."""
    if operator.startswith("TransformWithState"):
        return time_mode().lower() not in ("none", "notime")
    return operator == "Aggregate" or "WithState" in operator


def _lengthened_in_jvm(frame: DataFrame, more: int) -> DataFrame | None:
    from pyspark.sql import SparkSession
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    session = frame.sparkSession
    assert isinstance(session, SparkSession)
    jvm: Any = session._jvm

    node = jvm.org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark
    delays = set()

    def rebuilt(plan: Any) -> Any:
        children = plan.children()
        old = [children.apply(i) for i in range(children.size())]
        new = [rebuilt(child) for child in old]
        if any(a is not b for a, b in zip(old, new, strict=True)):
            if _waits(plan.nodeName(), lambda: plan.timeMode().toString()) or (
                plan.nodeName() == "Join" and all(child.isStreaming() for child in old)
            ):
                raise _NotHeldBack
            plan = plan.withNewChildren(jvm.PythonUtils.toSeq(new))
        if plan.nodeName() != "EventTimeWatermark":
            return plan
        delay = node.getDelayMs(plan.delay())
        delays.add(delay)
        longer = jvm.org.apache.spark.unsafe.types.CalendarInterval(0, 0, 1000 * (delay + more))
        return plan.copy(jvm.java.util.UUID.randomUUID(), plan.eventTime(), longer, plan.child())

    plan = frame._jdf.queryExecution().analyzed()
    changed = rebuilt(plan)
    if changed is plan:
        return None
    if len(delays) > 1:
        raise _NotHeldBack
    rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, changed)
    return ClassicDataFrame(rows, session)


def _lengthened_in_client(frame: DataFrame, more: int) -> DataFrame | None:
    from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame
    from pyspark.sql.connect.plan import Join, LogicalPlan, WithWatermark

    delays = set()

    def streams(plan: Any) -> bool:
        below = [value for value in vars(plan).values() if isinstance(value, LogicalPlan)]
        return bool(vars(plan).get("_is_streaming")) or any(map(streams, below))

    def rebuilt(plan: LogicalPlan) -> LogicalPlan:
        children = {
            name: rebuilt(value)
            for name, value in vars(plan).items()
            if isinstance(value, LogicalPlan)
        }
        same = all(getattr(plan, name) is child for name, child in children.items())
        if same and not isinstance(plan, WithWatermark):
            return plan
        if not same and (
            _waits(type(plan).__name__, lambda: str(vars(plan).get("_time_mode")))
            or (isinstance(plan, Join) and all(map(streams, (plan.left, plan.right))))
        ):
            raise _NotHeldBack
        if isinstance(plan, WithWatermark):
            delays.add(plan._delay_threshold)
        plan = copy.copy(plan)
        vars(plan).update(children)
        if isinstance(plan, WithWatermark):
            plan._delay_threshold += f" {more} milliseconds"
        return plan

    client: Any = frame
    changed = rebuilt(client._plan)
    if len(delays) > 1:
        raise _NotHeldBack
    return None if changed is client._plan else ConnectDataFrame(changed, client._session)
