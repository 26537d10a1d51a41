"""Wide rows on Spark: whether a small Java heap is enough, and how large Python workers become.

`python -m benchmarks.wide CASE FOLDER` runs one case in a new process, because a Java heap keeps
its size until its process ends, and prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

import tidegate as tg
from benchmarks.measure import Step
from benchmarks.report import Section, Table
from tidegate.spark.session import session

_START = 1_700_000_000_000_000
_SIDES = ("left", "right")
_WORDS = 5


@dataclass(frozen=True)
class Case:
    """A streaming join, one file per side in each batch.

    A row has a text of `text` bytes, or ten columns if that is 0. Every key has `alike` rows on
    each side.
    """

    rows: int
    batches: int
    text: int = 0
    alike: int = 4
    memory: str | None = None
    heap: str = "1g"


@dataclass(frozen=True)
class Scale:
    """The cases by name."""

    cases: dict[str, Case]


FULL = Scale(
    {
        "2 x 1,000,000 rows of ten columns": Case(1_000_000, 8),
        "the same, memory 64 MB": Case(1_000_000, 8, memory="64 MB", heap="512m"),
        "the same, exact": Case(1_000_000, 8, heap="512m"),
        "1 MB texts, memory 16 MB": Case(600, 24, 1_000_000, 2, "16 MB"),
        "1 MB texts, memory 64 MB": Case(1_200, 24, 1_000_000, 2, "64 MB"),
    }
)
QUICK = Scale(
    {
        "2 x 20,000 rows of ten columns": Case(20_000, 2),
        "1 MB texts, memory 16 MB": Case(40, 4, 1_000_000, 2, "16 MB"),
    }
)


def table(case: Case, batch: int) -> pa.Table:
    """Generate the rows of one side in one batch; rows of a key come close together."""
    rows = case.rows // case.batches
    number = np.arange(batch * rows, (batch + 1) * rows)
    key = number // case.alike if case.text else number % (case.rows // case.alike)
    columns = {"key": key, "time": pa.array(_START + 1000 * number, pa.timestamp("us", "UTC"))}
    if case.text:
        whole = np.random.default_rng(batch).bytes(case.text // 2).hex()
        texts = [f"{i:08d}{whole[8:]}" for i in number]
        return pa.table(columns | {"text": pa.array(texts, pa.string())})
    rng = np.random.default_rng(batch)
    for i in range(8 - _WORDS):
        columns[f"number{i}"] = rng.random(rows)
    for i in range(_WORDS):
        words = rng.integers(0, 10**12, rows)
        columns[f"word{i}"] = pa.array([f"word {i} of this row is {word:012d}" for word in words])
    return pa.table(columns)


def run_case(case: Case, folder: Path) -> dict[str, Any]:
    """Run one query, and record the memory of its processes after each batch."""
    for side in _SIDES:
        (folder / side).mkdir()
        for batch in range(case.batches):
            pq.write_table(table(case, batch), folder / side / f"{batch:05d}.parquet")
    spark = session(
        "wide",
        master="local[2]",
        config={"spark.driver.memory": case.heap, "spark.sql.shuffle.partitions": 2},
    )
    inputs = [read(spark, folder / side, table(case, 0).schema) for side in _SIDES]
    settings: dict[str, Any] = {"memory": case.memory} if case.memory else {}
    joined = tg.join(*inputs, on="key", time="time", within="1 hour", **settings)
    results, taken = [], []

    def each(frame: DataFrame, number: int) -> None:
        counted = Observation()
        observed = frame.observe(counted, F.count(F.lit(1)).alias("results"))
        observed.write.format("noop").mode("append").save()
        results.append(counted.get["results"])
        taken.append(_taken())

    query = (
        joined.writeStream.foreachBatch(each)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    return {"results": sum(results), "taken": taken}


def read(spark: Any, folder: Path, schema: pa.Schema) -> DataFrame:
    """Return a stream of the files of a folder, one per batch."""
    types = {"int64": "long", "double": "double", "string": "string"}
    fields = [f"{f.name} {types.get(str(f.type), 'timestamp')}" for f in schema]
    reader = spark.readStream.schema(", ".join(fields)).option("maxFilesPerTrigger", 1)
    found: DataFrame = reader.parquet(str(folder))
    return found


def _taken() -> dict[str, float]:
    """Return in MB: all Python workers now, the largest worker at its peak, and Java now."""
    family = psutil.Process().children(recursive=True)
    java = [p for p in family if p.name() == "java"]
    workers = [p for j in java for p in j.children(recursive=True)]
    return {
        "workers": sum(p.memory_full_info().pss for p in workers) / 1e6,
        "peak": max((_peak(p.pid) for p in workers), default=0.0),
        "java": sum(p.memory_info().rss for p in java) / 1e6,
    }


def _peak(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


def in_new_process(case: Case) -> dict[str, Any]:
    """Run `run_case` in a new process; return no results if it fails."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.wide", json.dumps(asdict(case)), folder],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode:
        return {"results": None, "taken": []}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _row(name: str, case: Case, found: dict[str, Any]) -> tuple[str, ...]:
    taken = found["taken"]
    if not taken:
        return (name, str(case.batches), case.heap, "no", *["-"] * 6)
    quarter, half = taken[len(taken) // 4], taken[len(taken) // 2]
    last = taken[-1]
    show: Callable[[float], str] = "{:,.0f}".format
    return (
        name,
        str(case.batches),
        case.heap,
        "yes",
        f"{found['results']:,}",
        *(show(at["workers"]) for at in (quarter, half, last)),
        show(last["peak"]),
        show(last["java"]),
    )


def run(scale: Scale, step: Step) -> Section:
    """Run all cases, one after the other."""
    rows = []
    for name, case in scale.cases.items():
        step(name)
        rows.append(_row(name, case, in_new_process(case)))
    return Section(
        title="wide rows, in a small Java heap",
        workload=(
            "A streaming join on two cores, a file a side in each batch. Rows of ten columns, five "
            "of them texts of 36 bytes, joined exactly, four results a row; and rows with a text "
            "of 1 MB, two results a row, within a memory in bytes."
        ),
        figures=(),
        tables=(
            Table(
                "Memory of the processes, in MB",
                (
                    "rows",
                    "batches",
                    "Java heap",
                    "finishes",
                    "results",
                    "workers after a quarter",
                    "after half",
                    "after all batches",
                    "largest worker ever",
                    "Java",
                ),
                tuple(rows),
                "Workers: what all Python workers take together after a batch, shared pages "
                "divided among them (PSS). Largest worker and Java: resident memory, with shared "
                "pages. The exact join holds every row, so its workers grow.",
            ),
        ),
    )


if __name__ == "__main__":
    chosen = Case(**json.loads(sys.argv[1]))
    print(json.dumps(run_case(chosen, Path(sys.argv[2]))))
