"""Stored state of earlier versions is read, and the join continues as it did then."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from engine import golden_cases as golden
from engine.golden_cases import AFTER, BEFORE, CASES, Case

import tidegate as tg
from tidegate.joins.constrained import constraints
from tidegate.joins.constrained.aggregates import AggregatedJob, Aggregates
from tidegate.joins.constrained.engine import ConstrainedJob
from tidegate.joins.constrained.shed_log import archived
from tidegate.joins.constrained.spec import constrained_join
from tidegate.joins.sampled.engine import SampledJob
from tidegate.joins.sampled.spec import sampled_join
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.spec import star_join
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join

FOLDER = Path(__file__).parent / "golden"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text())
#: Groups by A.x; counts rows, adds up B.id and averages C.x.
ASKED = Aggregates(
    (2,), (("x", None, 2), ("n", "count", None), ("s", "sum", 5), ("m", "avg", 9)), (0, 4, 8)
)


def made(value: Any) -> Any:
    """Return a setting with instances of classes."""
    if isinstance(value, list):
        return [made(each) for each in value]
    if isinstance(value, dict):
        return {name: made(each) for name, each in value.items()}
    match value:
        case (str(name), dict(arguments)):
            kind = getattr(constraints, name, None) or getattr(tg, name)
            return kind(**arguments)
    return value


def job_of(case: Case) -> Any:
    settings = made(case.settings)
    archive = settings.pop("archive", False)
    schemas = [golden.schema_of(case, stream) for stream in range(len(case.streams))]
    named = dict(zip(case.streams, schemas, strict=True))
    if case.kind == "window":
        return WindowJob(window_join(*schemas, **settings))
    if case.kind == "sampled":
        return SampledJob(sampled_join(*schemas, **settings))
    if case.kind == "star":
        if case.changing:
            return StarJob(star_join(named, golden.CHANGES, **settings), None)
        relation = LocalRelation(*in_order(golden.facts()))
        return StarJob(star_join(named, golden.FACTS, **settings), relation)
    spec = constrained_join(named, **settings)
    if case.kind == "aggregates":
        return AggregatedJob(spec, ASKED)
    return ConstrainedJob(archived(spec) if archive else spec)


def stored(case: Case, kind: str) -> list[bytes]:
    """Return the records of a log, without a snapshot or from a snapshot on."""
    with pa.ipc.open_file(FOLDER / f"{case.name}.arrow") as file:
        rows = file.read_all().to_pylist()
    return [row["record"] for row in rows if row["kind"] == kind]


def rest(case: Case, job: Any, engine: Any) -> dict[str, Any]:
    """Return the results of an engine for the rest of the input."""
    engine.take_counters()
    found = []
    for number, given in list(enumerate(golden.batches(case)))[BEFORE:]:
        found.append(golden.fed(job, engine, case, number, given))
    found.append(golden.rows_of(engine.finish()))
    counters = {
        name: round(value, 6) if isinstance(value, float) else int(value)
        for name, value in engine.take_counters().items()
        if name in EXPECTED[case.name]["counters"]
    }
    results = [len(rows) for rows in found]
    gave = {"results": results, "digest": golden.digest(found), "counters": counters}
    if "shed" in EXPECTED[case.name]:
        shed = golden.rows_of(_as_stored(engine.take_shed()).to_batches())
        gave["shed"] = [len(shed), golden.digest(shed)]
    return gave


def _as_stored(shed: pa.Table) -> pa.Table:
    """Return the lines that the archive of a window join had when the cases were stored.

    It has told of rows that came out of order or were overdue, and of places, only since.
    """
    if shed.schema.names[-2:] != ["right", "mark"]:
        return shed
    reasons = pa.array(["shed", "rejected", "queue full"])
    return shed.filter(pc.is_in(shed["why"], reasons)).drop_columns(["mark"])


@pytest.mark.parametrize("kind", ["log", "snapshot"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_stored_records_are_read(case: Case, kind: str) -> None:
    if case.name == "window-auto":
        kind = "snapshot"  # its records are large, so every record is a snapshot
    job = job_of(case)
    engine = job.engine_at(0, 1, keep_shed=True)
    engine.restore(stored(case, kind))
    assert rest(case, job, engine) == EXPECTED[case.name]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_moved_state_gives_the_same(case: Case) -> None:
    """The stored state is written again as records of today, and read."""
    job = job_of(case)
    moved = job.engine_at(0, 1, keep_shed=True)
    moved.restore(stored(case, "snapshot"))
    engine = job.engine_at(0, 1, keep_shed=True)
    engine.restore(moved.snapshot())
    assert rest(case, job, engine) == EXPECTED[case.name]


def test_the_cases_go_on_for_a_while() -> None:
    assert {case.name for case in CASES} == set(EXPECTED)
    assert all(len(golden.batches(case)) == BEFORE + AFTER for case in CASES[:1])
    assert all(sum(EXPECTED[case.name]["results"]) > 5 for case in CASES)


def store(case: Case) -> None:
    """Store the state of a new case, and its results, as the engine of today gives them."""
    job = job_of(case)
    records: dict[str, list[bytes]] = {"log": [], "snapshot": []}
    for kind, found in records.items():
        engine = job.engine_at(0, 1, keep_shed=True)
        for number, given in enumerate(golden.batches(case)[:BEFORE]):
            golden.fed(job, engine, case, number, given)
            whole = kind == "snapshot" and number == BEFORE - 3
            found[:] = engine.snapshot() if whole else [*found, engine.changes()]
    engine = job.engine_at(0, 1, keep_shed=True)
    engine.restore(records["log"])
    names = dict.fromkeys(set(engine.take_counters()) - {"bytes"})
    EXPECTED[case.name] = {"counters": names} | ({} if engine.take_shed() is None else {"shed": []})
    EXPECTED[case.name] = rest(case, job, engine)
    rows = [(kind, record) for kind, found in records.items() for record in found]
    kinds, binary = (list(column) for column in zip(*rows, strict=True))
    table = pa.table({"kind": kinds, "record": pa.array(binary, pa.large_binary())})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(FOLDER / f"{case.name}.arrow", table.schema, options=options) as file:
        file.write_table(table)
    (FOLDER / "expected.json").write_text(json.dumps(EXPECTED, indent=1, sort_keys=True))


if __name__ == "__main__":  # PYTHONPATH=tests python tests/engine/test_golden.py NAME...
    for chosen in CASES:
        if chosen.name in sys.argv[1:] and chosen.name not in EXPECTED:
            store(chosen)
