"""The commands `tidegate archive compact` and `tidegate repair`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import typer
from numpy.typing import NDArray

from tidegate.cli.folder import OutFolder
from tidegate.cli.screen import Screen
from tidegate.engine.archive import MADE_BY, Compacted, compact, read
from tidegate.errors import TidegateError
from tidegate.joins.window.repair import RepairJob, Slice, archived_join
from tidegate.joins.window.shed_log import MARK
from tidegate.joins.window.spec import WindowJoin
from tidegate.settings.checks import result_names
from tidegate.settings.times import times
from tidegate.settings.values import quoted

_RECORD, _MADE_BY = "repair.json", "tidegate repair"


def compacted(folder: str, most: int, *, as_json: bool) -> None:
    """Merge the small files of an archive, and say what was done."""
    screen, done = Screen(), Compacted(0, 0, 0)
    rows = 0
    for done in compact(folder, most):
        rows += done.rows
        screen.say(f"{done.files_before} files -> {done.files_after}")
    if as_json:
        outcome = {"files_before": done.files_before, "files_after": done.files_after}
        typer.echo(json.dumps(outcome | {"rows_merged": rows}))
    else:
        typer.echo(f"{done.files_after} files, {rows:,} lines merged")


@dataclass(frozen=True)
class Repair:
    """The archive to repair, and the place for the results."""

    archive: str
    left: str
    right: str
    out: Path
    slices: int
    suffixes: tuple[str, str]


def repaired(settings: Repair, *, as_json: bool) -> None:
    """Write the missing results to one file for each slice of time."""
    screen = Screen()
    with screen.waiting("reading the archive"):
        lines = read(settings.archive)
        label = (lines.schema.metadata or {})[MADE_BY.encode()]
        inputs = [_dataset(settings.left), _dataset(settings.right)]
        schemas = [each.schema for each in inputs]
        spec = archived_join(schemas[0], schemas[1], label, quoted(settings.archive))
        spec = replace(spec, names=result_names((schemas[0], schemas[1]), settings.suffixes))
        spans = list(_spans(spec, inputs, settings.slices))
    names = [f"part-{at:05d}.parquet" for at in range(len(spans))]
    out = OutFolder(settings.out, [*names, _RECORD], record=_RECORD, made_by=_MADE_BY)
    plan = {
        "archive": label.decode(),
        "lines": len(lines),
        "names": list(spec.names),
        "slices": [list(span) for span in spans],
    }
    _same_plan(settings.out, plan)
    out.write_record(plan)
    found = skipped = 0
    with screen.step("repairing", len(spans)) as step:
        for name, span in zip(names, spans, strict=True):
            path = settings.out / name
            if path.exists():
                skipped += 1
                rows = pq.read_metadata(path).num_rows
            else:
                with out.replacing(name) as draft:
                    rows = _repair(RepairJob(spec, span), inputs, lines, draft)
            found += rows
            step.done(f"{rows:,} results")
    if as_json:
        outcome = {"results": found, "slices": len(spans), "slices_kept": skipped}
        typer.echo(json.dumps(outcome | {"out": str(settings.out)}))
    else:
        typer.echo(f"{found:,} missing results in {settings.out}")


def _same_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Refuse a folder in which another repair has begun."""
    record = folder / _RECORD
    if not record.exists():
        return
    old = json.loads(record.read_text())
    differing = [name for name in plan if old.get(name) != plan[name]]
    if differing:
        raise TidegateError(
            f'"{folder}" has the results of another repair ({", ".join(differing)} differ); '
            "give --out a folder of its own, or remove this one"
        )


def _dataset(path: str) -> ds.Dataset:
    """Open files of rows; the extension says of which kind they are."""
    kinds = {".csv": "csv", ".arrow": "ipc", ".feather": "ipc"}
    try:
        first = next((f for f in sorted(Path(path).rglob("*.*")) if f.is_file()), Path(path))
        return ds.dataset(path, format=kinds.get(first.suffix, "parquet"))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TidegateError(
            f"{quoted(path)} cannot be read as Parquet, CSV or Arrow files: {error}"
        ) from None


def _spans(spec: WindowJoin, inputs: list[ds.Dataset], slices: int) -> Iterator[Slice]:
    """Cut all time into slices with about as many rows each."""
    parts: list[NDArray[Any]] = []
    for side, data in zip(spec.sides, inputs, strict=True):
        for batch in data.to_batches(columns=[side.time]):
            parts.append(times(batch.column(0).drop_null(), spec.unit))
    every = np.sort(np.concatenate([np.empty(0, spec.unit.dtype), *parts]))
    cuts = np.unique(every[len(every) * np.arange(1, slices) // slices]) if len(every) else every
    ends = [None, *cuts[cuts > every[:1].max()].tolist(), None] if len(every) else [None, None]
    for start, end in itertools.pairwise(ends):
        yield Slice(start, end)


def _repair(job: RepairJob, inputs: list[ds.Dataset], lines: pa.Table, path: Path) -> int:
    """Write the missing results of a slice; return their number."""
    engine = job.engine_at(0, 1)
    given = [
        [job.prepare(side, batch)[0] for batch in data.to_batches()]
        for side, data in enumerate(inputs)
    ]
    archive = [job.prepare(2, batch)[0] for batch in lines.select(["side", MARK]).to_batches()]
    rows = 0
    with pq.ParquetWriter(path, job.result_schema) as writer:
        list(engine.feed([*given, archive]))
        for batch in engine.finish():
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows
