"""Test star joins whose relation changes.

The cases are contradictions, odd batches, out-of-order rows and restarts.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.joins.star.job import StarJob
from tidegate.joins.star.spec import star_join

NAMES = ("a", "b", "c")
Feed = dict[str, list[tuple[Any, ...]]]
#: A change: operation, time, name of the link, its keys a and b, and its other column.
Change = tuple[str, int | None, int, int | None, int | None, str]
FACTS = pa.schema(
    [
        *(("op", pa.string()), ("at", pa.int64()), ("id", pa.int64())),
        *((name, pa.int64()) for name in NAMES),
        ("note", pa.string()),
    ]
)


class Fed:
    """A star join that is fed by hand, and may be moved to another engine after each batch."""

    def __init__(self, n: int = 2, **settings: Any) -> None:
        schemas = {
            f"s{i}": pa.schema([(name, pa.int64()), ("t", pa.int64()), (f"{name}_id", pa.int64())])
            for i, name in enumerate(NAMES[:n])
        }
        self.names = [f"{name}_id" for name in NAMES[:n]]
        given: dict[str, Any] = {"on": list(NAMES[:n]), "time": "t", "changes": ("op", "at")}
        given |= {"fact": "id", **({"within": 10} if n > 1 else {}), **settings}
        self.job = StarJob(star_join(schemas, FACTS, **given), None)
        self.engine = self.job.engine_at(0, 1)
        self.found: Counter[tuple[Any, ...]] = Counter()
        self.counters: Counter[str] = Counter()

    def feed(self, given: Feed) -> None:
        spec = self.job.spec
        schemas = [*(side.schema for side in spec.streams), FACTS]
        inputs = []
        for at, (name, schema) in enumerate(
            zip([*NAMES[: len(schemas) - 1], "F"], schemas, strict=True)
        ):
            rows = given.get(name, [])
            if name == "F":
                rows = [(*row[:5], row[4], row[5]) for row in rows]
            columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
            prepared, dropped = self.job.prepare(
                at, pa.RecordBatch.from_arrays(columns, schema=schema)
            )
            inputs.append([prepared])
            self.counters.update(dropped)
        self._take(self.engine.feed(inputs))

    def finish(self) -> Counter[tuple[Any, ...]]:
        self._take(self.engine.finish())
        return self.found

    def _take(self, results: Any) -> None:
        for batch in results:
            columns = [batch.column(name).to_pylist() for name in (*self.names, "note")]
            self.found.update(zip(*columns, strict=True))
        self.counters.update({k: int(v) for k, v in self.engine.take_counters().items()})


def run(feeds: list[Feed], *, restarts: str = "", **settings: Any) -> Counter[tuple[Any, ...]]:
    """Return all results; with restarts, every batch is processed by a new engine."""
    fed = Fed(**settings)
    log: list[bytes] = []
    for given in feeds:
        fed.feed(given)
        if restarts:
            log = [*log, fed.engine.changes()] if log and restarts == "log" else []
            log = log or fed.engine.snapshot()
            fed.engine = fed.job.engine_at(0, 1)
            fed.engine.restore(log)
    return fed.finish()


#: A row of each stream at 1, 6 and 12; each joins all others that are near enough.
TUPLES: Feed = {
    "a": [(1, 1, 10), (1, 6, 11), (1, 12, 12)],
    "b": [(2, 1, 20), (2, 6, 21), (2, 12, 22)],
}
OLD: Change = ("insert", 0, 7, 1, 2, "old")
NEW: Change = ("update", 5, 7, 1, 2, "new")
GONE: Change = ("delete", 5, 7, 1, 2, "")
AGAIN: Change = ("insert", 5, 7, 1, 2, "again")


#: Changes that come together, and what joins from 6 on.
GOOD: list[tuple[list[Change], str]] = [
    ([OLD, NEW], "new"),
    ([OLD, NEW, ("UPDATE", *NEW[1:]), NEW], "new"),
    ([OLD, OLD, NEW], "new"),
    ([OLD, GONE], ""),
    ([OLD, GONE, ("delete", 5, 7, None, None, "other")], ""),
    ([OLD, GONE, AGAIN], "again"),
    ([OLD, GONE, AGAIN, GONE, AGAIN], "again"),
    ([OLD, NEW, ("update", 8, 7, 9, 9, "keys")], "new"),
]


@pytest.mark.parametrize(("changes", "note"), GOOD)
def test_changes_of_one_time(changes: list[Change], note: str) -> None:
    found = run([{**TUPLES, "F": changes}])
    assert found[10, 20, "old"] == 1
    later = {note: found[11, 21, note] for *_, note in found}
    assert later == ({"old": 0} | ({note: 1} if note else {}))
    backwards = [*changes[:0:-1], changes[0]]
    assert run([{**TUPLES, "F": backwards}]) == found
    # The changes come one after the other, the last ones after rows that they do not affect.
    for at in range(1, len(changes)):
        assert run([{"F": changes[:at]}, {"F": changes[at:]}, TUPLES]) == found
    early, late = (
        {n: [r for r in TUPLES[n] if (r[1] > 5) == (i > 0)] for n in "ab"} for i in (0, 1)
    )
    for restarts in ("", "log", "snapshot"):
        cut = [early | {"F": changes[:1]}, {"F": changes[1:]}, late]
        assert run(cut, restarts=restarts) == found


#: Changes that contradict each other, in two batches, and the two that the error names.
BAD: list[tuple[list[Change], list[Change], str]] = [
    ([NEW], [("update", 5, 7, 1, 2, "other")], '"update" of .*"update" of '),
    ([NEW], [GONE], '"delete" of .*"update" of '),
    ([GONE], [NEW], '"delete" of .*"update" of '),
    ([NEW], [AGAIN], '"update" of .*"insert" of '),
    ([NEW], [GONE, AGAIN], '"delete" of .*"update" of '),
    ([GONE, AGAIN], [("insert", 5, 7, 1, 2, "other")], '"insert" of .*"insert" of '),
    ([GONE, AGAIN], [NEW], '"delete" of .*"update" of '),
]


@pytest.mark.parametrize(("first", "second", "words"), BAD)
def test_changes_that_contradict_each_other(
    first: list[Change], second: list[Change], words: str
) -> None:
    """A batch with a contradiction is refused whole, and a corrected one is accepted."""
    said = f"at the time 5 contradict each other: {words}.*'id': 7.*leave one out.*by \"id\"; fact="
    for known, given in (([], first + second), (first, second)):
        fed = Fed()
        fed.feed({"F": [OLD, *known]})
        before = fed.engine.snapshot()
        with pytest.raises(tg.TidegateError, match=f"(?s){said}"):
            fed.feed({**TUPLES, "F": given})
        assert fed.engine.snapshot() == before
        fed.feed({**TUPLES, "F": given[:0]})
        assert fed.finish()[10, 20, "old"] == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([OLD, ("delete", 0, 7, 1, 2, "")], "earlier time .of one time, a delete comes before"),
        ([OLD, ("insert", 3, 7, 1, 2, "x")], "inserts a fact that is there: delete or update it"),
        ([OLD, GONE, ("update", 9, 7, 1, 2, "x")], "of a fact that is not there: insert it first"),
        ([GONE], 'not there: insert it first; it is "delete" of'),
        # A later change is known already, and the change before it contradicts it.
        ([OLD, ("delete", 9, 7, 1, 2, ""), GONE], "of a fact that is not there"),
        ([AGAIN, OLD], "inserts a fact that is there"),
    ],
)
def test_changes_that_do_not_fit(changes: list[Change], words: str) -> None:
    with pytest.raises(tg.TidegateError, match=words):
        run([{"F": changes}])
    with pytest.raises(tg.TidegateError, match=words):
        run([{"F": [change]} for change in changes])


@pytest.mark.parametrize("policy", ["dimpprob", "dgl", "auto", "simpprob"])
def test_a_change_between_known_ones(policy: str) -> None:
    """A link that was to end at 18 ends earlier; its matches are subtracted once, not twice."""
    rng = np.random.default_rng(1)
    tuples: Feed = {
        name: [(int(rng.integers(1, 4)), t, 100 * i + t) for t in range(40)]
        for i, name in enumerate(NAMES[:2])
    }
    first: list[Change] = [("insert", 0, 10 * a + b, a, b, "x") for a in (1, 2) for b in (1, 2)]
    later: list[Change] = [("update", 18, 11, 1, 1, "y")]
    between: list[Change] = [("update", 9, 11, 1, 1, "z")]
    settings: dict[str, Any] = {"memory": 9, "policy": policy, "within": 40}
    half = [{n: [r for r in tuples[n] if (r[1] > 8) == (i > 0)] for n in "ab"} for i in (0, 1)]
    whole = run([half[0] | {"F": first + later + between}, half[1]], **settings)
    assert len({note for *_, note in whole}) == 3
    cut = [half[0] | {"F": first + later}, half[1] | {"F": between}]
    for restarts in ("", "log", "snapshot"):
        assert run(cut, restarts=restarts, **settings) == whole
    assert run([{"F": first + later}, half[0], half[1] | {"F": between}], **settings) == whole


def test_a_change_after_the_rows_it_is_for() -> None:
    """A change at an open time is accepted; a later one is refused, also after a restart."""
    fed = Fed()
    fed.feed({**TUPLES, "F": [OLD]})
    log = fed.engine.snapshot()
    late = {"F": [("update", 6, 7, 1, 2, "late")]}
    for _ in range(2):
        with pytest.raises(tg.TidegateError, match="comes after rows of the time 6 have been"):
            fed.feed(late)
        fed.engine = fed.job.engine_at(0, 1)
        fed.engine.restore(log)
    fed.feed({"F": [("update", 12, 7, 1, 2, "new")]})
    assert fed.finish()[12, 22, "new"] == 1


def test_a_late_row_finds_the_links_of_its_own_time() -> None:
    feeds: list[Feed] = [
        {"a": [(1, 1, 10)], "b": [(2, 1, 20)], "F": [OLD, NEW, ("delete", 9, 7, 1, 2, "")]},
        {"a": [(1, 14, 11)], "b": [(2, 14, 21)]},
        {"a": [(1, 2, 12), (1, 7, 13), (1, 9, 14)], "b": [(2, 3, 22), (2, 8, 23)]},
    ]
    expected = [(10, 20, "old"), (10, 22, "old"), (12, 20, "old"), (12, 22, "old"), (13, 23, "new")]
    for restarts in ("", "log", "snapshot"):
        found = run(feeds, restarts=restarts, within=30, lateness=30)
        assert sorted(found.elements()) == expected


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_links_and_no_rows(n: int) -> None:
    fed = Fed(n)
    for given in ({}, {"a": [(1, 1, 10)]}, {}, {"a": [(1, 5, 11)], "b": [(2, 5, 21)]}):
        fed.feed(given)
    assert fed.finish() == Counter()
    assert fed.counters["filtered"] == 2 + (n > 1)
    empty = Fed(n)
    empty.feed({"F": [OLD]})
    empty.feed({"F": [NEW], **({"b": [(2, 7, 20)]} if n > 1 else {})})
    assert empty.finish() == Counter()


def test_one_stream_sees_changes_in_time_and_holds_nothing() -> None:
    feeds: list[Feed] = [
        {"a": [(1, 0, 10), (1, 4, 11), (1, 5, 12)], "F": [OLD, NEW]},
        {"a": [(1, 8, 13), (None, 8, 14), (1, 9, 15)], "F": [("delete", 9, 7, 1, 2, "")]},
    ]
    for restarts in ("", "log"):
        found = run(feeds, n=1, restarts=restarts)
        assert sorted(found.elements()) == [(10, "old"), (11, "old"), (12, "new"), (13, "new")]


@pytest.mark.parametrize("settings", [{}, {"memory": 12}, {"memory": 12, "policy": "dgl"}])
@pytest.mark.parametrize("n", [2, 3])
def test_restarts_at_every_batch(n: int, settings: dict[str, Any]) -> None:
    """Keys and times are null in places, rows are out of order, and links change all the time."""
    rng = np.random.default_rng(n)
    feeds: list[Feed] = []
    alive: set[int] = set()
    uid = 0
    for at in range(8):
        span = range(5 * at, 5 * at + 5)
        given: Feed = {"F": []}
        for name in NAMES[:n]:
            rows: list[tuple[Any, ...]] = []
            for t in span:
                uid += 1
                key = None if uid % 17 == 0 else int(rng.integers(1, 4))
                time = None if uid % 19 == 0 else t - 9 * (uid % 7 == 0 and t > 9)
                rows.append((key, time, uid))
            given[name] = [rows[i] for i in rng.permutation(len(rows))]
        for t in span:
            fact = int(rng.integers(0, 9))
            op = ("update" if rng.random() < 0.5 else "delete") if fact in alive else "insert"
            alive.symmetric_difference_update([] if op == "update" else [fact])
            given["F"].append((op, t, fact, 1 + fact % 3, 1 + fact // 3, f"{fact} at {t}"))
        feeds.append(given)
    settings = {"n": n, "lateness": 4, **settings}
    whole = run(feeds, **settings)
    assert whole.total() > 20
    assert max(whole.values()) == 1
    for restarts in ("log", "snapshot"):
        assert run(feeds, restarts=restarts, **settings) == whole
