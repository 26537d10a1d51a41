"""The joins whose state is stored in `golden/`, and their input.

The records in `golden/` were written before records carried a version. Settings and rows are plain
values here, made without a random number library, so that they never change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

#: Batches that lie behind a stored state, and batches that follow it.
BEFORE, AFTER = 5, 3
#: A class of the library by its name, with the arguments that make an instance.
Made = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A join as plain values.

    Attributes
    ----------
    name
        The stem of its files.
    kind
        `"window"`, `"sampled"`, `"star"`, `"constrained"` or `"aggregates"`.
    settings
        Settings as the spec takes them, with `Made` for instances of classes.
    rows
        The rows of each stream in a batch.
    budget
        The memory that a pool gives before the third batch.
    clocks
        True if the clocks of the streams are passed with each batch.
    """

    name: str
    kind: str
    settings: dict[str, Any]
    rows: int = 24
    budget: int | None = None
    clocks: bool = False
    changing: bool = False
    streams: tuple[str, ...] = field(default=("left", "right"))


def _window(name: str, policy: str | Made = "prob", /, **settings: Any) -> Case:
    own = {key: settings.pop(key) for key in ("budget", "clocks", "rows") if key in settings}
    given = {"on": "k", "time": "t", "within": 12, "memory": 14, "policy": policy, **settings}
    return Case(name, "window", given, **own)


def _sampled(name: str, **settings: Any) -> Case:
    own = {key: settings.pop(key) for key in ("budget", "rows") if key in settings}
    given = {"on": "k", "time": "t", "within": 12, "memory": 16, **settings}
    return Case(name, "sampled", given, **own)


def _star(name: str, *, changing: bool, **settings: Any) -> Case:
    own = {key: settings.pop(key) for key in ("budget", "clocks") if key in settings}
    relation = {"changes": ("op", "at"), "fact": "f"} if changing else {"interval": ("b", "e")}
    given = {"on": ["k", "j"], "time": "t", "within": 12, "memory": 12, **relation, **settings}
    return Case(name, "star", given, changing=changing, streams=("r", "s"), **own)


_LINKS = {"joins": ["A.x -> B.x", "B.y -> C.y"], "time": "t"}
_CONSTRAINTS = [("RIDS", {"on": "A -> B", "k": 6}), ("CA", {"on": "B.y", "k": 6})]
_FOUND = [
    ("RIDS", {"on": "A -> B"}),
    ("OAP", {"on": "A.x"}),
    ("OAC", {"on": "B.x"}),
    ("CA", {"on": "B.y"}),
]


def _constrained(name: str, **settings: Any) -> Case:
    given = {**_LINKS, "within": {"A": 20, "B": 30, "C": 40}, **settings}
    return Case(name, "constrained", given, rows=10, streams=("A", "B", "C"))


CASES = (
    _window("window-prob"),
    _window("window-prob-clocks", clocks=True, lateness=4),
    _window("window-prob-budget", budget=9),
    _window("window-prob-fixed-split", split="fixed", shed_when="before-probe"),
    _window("window-prob-importance", importance="w", combine="product"),
    _window("window-prob-sketch", ("Prob", {"frequencies": "sketch"})),
    _window("window-prob-window", ("Prob", {"frequencies": "window"})),
    _window("window-fifo", "fifo"),
    _window("window-life", "life"),
    # The records of `window-auto` are older than the mean gaps between arrivals.
    _window("window-auto", "auto", rows=40),
    _window("window-auto-gaps", "auto", rows=40),
    _window("window-age", ("Age", {}), rows=40),
    _window("window-ijoin", ("IJoin", {"tau": 2, "delta": 3, "penalty": 0.5, "recompute": 3})),
    _window("window-heeb", "heeb"),
    _window("window-exact", memory=None),
    _window("window-changing-windows", within=([(0, 12), (30, 6)], [(0, 8), (25, 14)])),
    _window("window-changing-memory", memory=[(0, 20), (20, 8), (40, 16)]),
    _window("window-bytes", "greedy-dual", memory="8 KB"),
    _window("queue-modular", cpu=("SlowCPU", {"rate": 3.0, "queue": 8})),
    _window("queue-integrated", cpu=("SlowCPU", {"rate": 3.0, "queue": 8, "mode": "integrated"})),
    _sampled("sampled-auto", rows=40),
    _sampled("sampled-uniform", method="uniform"),
    _sampled("sampled-cluster", method="cluster", fraction=0.4, memory=None),
    _sampled("sampled-pps-bytes", method="pps", memory="16 KB"),
    _sampled("sampled-age", method="uniform", model=("Age", {}), rows=40),
    _sampled("sampled-budget", budget=10),
    # The records of `star-auto` and `star-changes` have arrival counts only, as `Auto` learned
    # nothing else when they were stored. Those of `star-auto-learned` have all but the mean gaps.
    _star("star-auto", changing=False, policy="auto"),
    _star("star-auto-learned", changing=False, policy="auto"),
    _star("star-auto-gaps", changing=False, policy="auto"),
    _star("star-fifo", changing=False, policy="fifo", clocks=True),
    _star("star-importance", changing=False, policy="simpprob", importance="w", combine="sum"),
    _star("star-changes", changing=True, policy="auto"),
    _star("star-changes-budget", changing=True, policy="prob", budget=7),
    _constrained("constrained-plain"),
    _constrained("constrained-given", constraints=_CONSTRAINTS),
    _constrained(
        "constrained-found",
        constraints=_FOUND,
        monitor=("Monitor", {"window": 8, "p": 0.25, "on_rise": "suspend"}),
        lag=0,
    ),
    _constrained("constrained-archived", constraints=_CONSTRAINTS, archive=True),
    _constrained("constrained-rows", within={"A": ("Rows", {"n": 12}), "B": 30, "C": 40}),
    Case(
        "aggregates", "aggregates", {**_LINKS, "within": 20, "lag": 0}, 10, streams=("A", "B", "C")
    ),
)


def _numbers(name: str) -> Iterator[int]:
    """Return pseudo-random numbers that depend on the name only."""
    state = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 33


PAIR = pa.schema(
    [
        ("k", pa.int64()),
        ("t", pa.int64()),
        ("id", pa.int64()),
        ("s", pa.string()),
        ("w", pa.float64()),
    ]
)
LINKED = pa.schema([("t", pa.int64()), ("id", pa.int64()), ("x", pa.int64()), ("y", pa.int64())])
FACTS = pa.schema([("k", pa.int64()), ("j", pa.int64()), ("b", pa.int64()), ("e", pa.int64())])
CHANGES = pa.schema(
    [
        ("op", pa.string()),
        ("at", pa.int64()),
        ("f", pa.int64()),
        ("k", pa.int64()),
        ("j", pa.int64()),
    ]
)


def schema_of(case: Case, stream: int) -> pa.Schema:
    """Return the columns of one stream."""
    if case.kind in ("constrained", "aggregates"):
        return LINKED
    if case.kind == "star" and stream == 1:
        return PAIR.set(0, pa.field("j", pa.int64()))
    return PAIR


def facts() -> pa.Table:
    """Return the relation of a star join that does not change."""
    draw = _numbers("facts")
    rows = []
    for number in range(0, 49, 2):
        begin = next(draw) % 50
        rows.append((number % 7, number // 7, begin, begin + 5 + next(draw) % 40))
    return pa.Table.from_arrays(
        [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)], schema=FACTS
    )


def batches(case: Case) -> list[list[pa.RecordBatch]]:
    """Return by batch the rows of each stream, and the changes of a changing relation."""
    draw = _numbers(case.name)
    found, start, number = [], 0, 0
    for batch in range(BEFORE + AFTER):
        given = []
        for stream in range(len(case.streams)):
            rows: list[tuple[Any, ...]] = []
            for row in range(case.rows):
                number += 1
                # Some rows are out of order, and many share a time: ticks stay open.
                time = start + next(draw) % 10 - (2 if next(draw) % 11 == 0 else 0)
                if case.kind in ("constrained", "aggregates"):
                    # The keys of children are unique, and parents refer to recent ones.
                    own = batch * case.rows + row
                    other = max(own - next(draw) % 6, 0)
                    rows.append(
                        (time, number, own if stream else other, own if stream > 1 else other)
                    )
                else:
                    key = min(next(draw) % 12, next(draw) % 12)
                    rows.append((key, time, number, "x" * (number % 9), float(1 + number % 4)))
            schema = schema_of(case, stream)
            columns = list(zip(*rows, strict=True))
            given.append(
                pa.record_batch(
                    [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)],
                    schema=schema,
                )
            )
        if case.changing:
            given.append(_changes(draw, start))
        found.append(given)
        start += 8
    return found


def _changes(draw: Iterator[int], start: int) -> pa.RecordBatch:
    """Return links that begin; some of them end later."""
    rows = []
    for i in range(10):
        fact = start * 10 + i
        begin = start + 2 + next(draw) % 4
        keys = (next(draw) % 7, next(draw) % 7)
        rows.append(("insert", begin, fact, *keys))
        if next(draw) % 2:
            rows.append(("delete", begin + 3 + next(draw) % 9, fact, *keys))
    columns = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, CHANGES, strict=True)], schema=CHANGES
    )


def fed(
    job: Any, engine: Any, case: Case, number: int, given: Sequence[pa.RecordBatch]
) -> list[Any]:
    """Feed one batch to an engine; return the results, as sorted lists of values."""
    inputs = [[job.prepare(stream, rows)[0]] for stream, rows in enumerate(given)]
    if case.budget is not None and number == 2:
        engine.resize(1, case.budget)
    clocks = [8 * number + 10] * len(inputs) if case.clocks else None
    return rows_of(engine.feed(inputs, clocks))


def rows_of(results: Iterable[pa.RecordBatch]) -> list[Any]:
    """Return rows as sorted lists of values."""
    found = [list(map(_plain, row.values())) for batch in results for row in batch.to_pylist()]
    return sorted(found, key=json.dumps)


def _plain(value: Any) -> Any:
    """Return a value without the last digits of a floating point number."""
    if isinstance(value, dict):
        return [_plain(each) for each in value.values()]
    if isinstance(value, bytes):
        return value.hex()
    return float(f"{value:.8g}") if isinstance(value, float) else value


def digest(rows: list[Any]) -> str:
    """Return a hash of rows."""
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
