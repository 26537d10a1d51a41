"""Repair of a window join: the part of `tidegate.repair` for two streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidegate.api import run_local
from tidegate.api.inputs import all_on_spark, local_pair, refuse_spark_settings
from tidegate.api.keywords import Settings
from tidegate.api.result import Result
from tidegate.engine.archive import MADE_BY, check_archive, origin_of, read
from tidegate.errors import TidegateError
from tidegate.joins.window.repair import RepairJob, Slice, archive_settings
from tidegate.joins.window.shed_log import MARK, mark_type
from tidegate.joins.window.spec import WindowJoin, check_collations, window_join
from tidegate.settings.columns import as_table
from tidegate.settings.schedules import time_of
from tidegate.settings.values import quoted


def repair_window(
    streams: Any, shed: Any, settings: Settings, lateness: Any, between: Any, shards: int | None
) -> Any:
    """Find the results that a window join has missed."""
    left, right = _pair(streams)
    if all_on_spark({"left": left, "right": right}):
        return _on_spark(left, right, shed, settings, lateness, between, shards)
    refuse_spark_settings(shards=shards)
    tables = local_pair(left, right, settings["on"], settings["time"])
    lines, made_by = local_lines(shed)
    if MARK not in lines.column_names or "side" not in lines.column_names:
        raise TidegateError(
            "shed must be what tidegate.join gave with keep_shed=True or shed_to, with the columns "
            f"side and {MARK}, not one with {', '.join(lines.column_names) or 'none'}"
        )
    spec = _spec(tables[0].schema, tables[1].schema, settings, lateness, made_by, "shed")
    job = RepairJob(spec, _slice(spec, between))
    return run_local.run_repair(job, [*tables, _with_marks(lines, spec)])


def local_lines(shed: Any) -> tuple[pa.Table, bytes | None]:
    """Return the lines of an archive, given as a folder, a result or a table, and its label."""
    if isinstance(shed, str):
        lines = read(shed)
    else:
        lines = shed.shed if isinstance(shed, Result) else as_table(shed)
    return lines, (lines.schema.metadata or {}).get(MADE_BY.encode())


def check_frames(streams: Mapping[str, Any], shed: Any) -> None:
    """Refuse streaming DataFrames, and an archive that is no folder."""
    for name, frame in streams.items():
        if frame.isStreaming:
            raise TidegateError(
                f"the stream {name} must be a batch Spark DataFrame (spark.read) with all rows "
                "that were joined"
            )
    if not isinstance(shed, str):
        raise TidegateError(
            "the streams are Spark DataFrames: give the folder that was shed_to, not "
            f"{quoted(shed)}"
        )


def _pair(streams: Any) -> tuple[Any, Any]:
    if isinstance(streams, Mapping) and set(streams) == {"left", "right"}:
        return streams["left"], streams["right"]
    if isinstance(streams, list | tuple) and len(streams) == 2:
        return streams[0], streams[1]
    raise TidegateError(
        "streams must be the left and the right of the join, as a pair or as a mapping of "
        f'"left" and "right", not {quoted(streams)}'
    )


def _spec(
    left: pa.Schema,
    right: pa.Schema,
    settings: Settings,
    lateness: Any,
    made_by: Any,
    where: str,
) -> WindowJoin:
    """Return the join to repair, if it is the one that wrote the archive."""
    spec = window_join(left, right, lateness=lateness, policy="fifo", **settings)
    if made_by is None:
        return spec
    written = origin_of(made_by, where)[1].get("lateness", spec.lateness)
    if lateness is None and isinstance(written, int | float):
        # By default it is that of watermarks, which only streams have.
        spec = replace(spec, lateness=written)
    check_archive(made_by, archive_settings(spec), where)
    return spec


def _slice(spec: WindowJoin, between: Any) -> Slice:
    """Read `between`."""
    if between is None:
        return Slice()
    if not isinstance(between, list | tuple) or len(between) != 2:
        raise TidegateError(
            f"between must be a pair of times, each of which may be None, not {quoted(between)}"
        )
    kind = spec.left.schema.field(spec.left.time).type
    start, end = (
        None if each is None else time_of(each, "between", spec.unit, kind) for each in between
    )
    if start is not None and end is not None and end <= start:
        raise TidegateError(
            f"between must end after it starts, and is {quoted(between)}: exchange the two"
        )
    return Slice(start, end)


def _with_marks(lines: pa.Table, spec: WindowJoin) -> pa.Table:
    """Return the columns of an archive that a repair needs."""
    try:
        mark = lines.column(MARK).cast(mark_type(spec.unit.dtype))
        side = lines.column("side").cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise TidegateError(
            f'the column "{MARK}" of shed must be {mark_type(spec.unit.dtype)}, as the join gave '
            f"it, not {lines.schema.field(MARK).type}: give repair what the join gave"
        ) from None
    return pa.table({"side": side, MARK: mark})


def _on_spark(
    left: Any,
    right: Any,
    shed: Any,
    settings: Settings,
    lateness: Any,
    between: Any,
    shards: int | None,
) -> Any:
    from tidegate.spark import operator, packing
    from tidegate.spark.archive import departures

    check_frames({"left": left, "right": right}, shed)
    schemas = [packing.arrow_schema(frame.schema) for frame in (left, right)]
    lines, made_by = departures(left.sparkSession, shed)
    spec = _spec(schemas[0], schemas[1], settings, lateness, made_by, quoted(shed))
    for frame, side in ((left, spec.left), (right, spec.right)):
        check_collations(frame, side.keys)
    job = RepairJob(spec, _slice(spec, between))
    inputs = [left, right, lines.select("side", MARK)]
    return operator.run(job, inputs, shards=shards, most=None if spec.left.keys else 1)
