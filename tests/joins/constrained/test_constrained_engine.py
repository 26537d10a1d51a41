"""Constrained joins against their slow twins, and the paper's examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from twins import constrained as naive
from twins.constrained import Join, Tup, Window

import tidegate as tg
from tidegate.joins.constrained.constraints import (
    CA,
    OAC,
    OAP,
    RIDS,
    Constraint,
    Constraints,
    Monitor,
)
from tidegate.joins.constrained.engine import ConstrainedEngine, ConstrainedJob
from tidegate.joins.constrained.spec import ConstrainedJoin, constrained_join
from tidegate.settings.rows import Rows


@dataclass(frozen=True)
class Case:
    """Streams, their joins, and their rows in arrival order."""

    columns: dict[str, list[str]]
    joins: list[Join]
    arrivals: list[Tup]
    windows: dict[str, Window] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    def spec(self, constraints: Constraints = (), **settings: Any) -> ConstrainedJoin:
        schemas = {
            name: pa.schema(
                [(column, pa.int64()) for column in ("t", "uid", *columns)] + [("ok", pa.bool_())]
            )
            for name, columns in self.columns.items()
        }
        joins = [f"{j.parent}.{a} -> {j.child}.{b}" for j in self.joins for a, b in j.on]
        windows = {
            name: Rows(w.rows, w.by) if w.rows is not None else w.length
            for name, w in self.windows.items()
        }
        return constrained_join(
            schemas,
            joins=joins,
            time="t",
            within=windows,
            filters=dict.fromkeys(self.columns, "ok"),
            select=[f"{name}.uid" for name in self.columns],
            constraints=constraints,
            **settings,
        )

    def batches(self, job: ConstrainedJob, arrivals: Sequence[Tup]) -> list[list[pa.RecordBatch]]:
        found = []
        for s, stream in enumerate(job.spec.streams):
            rows = [
                {"t": t.time, "uid": t.uid, "ok": t.passes} | dict(t.values)
                for t in arrivals
                if t.stream == stream.name
            ]
            found.append([job.prepare(s, pa.RecordBatch.from_pylist(rows, stream.schema))[0]])
        return found

    def exact(self) -> Counter[tuple[int, ...]]:
        found = naive.sliding_window_join(self.arrivals, self.names, self.joins, self.windows)
        return Counter(found)


Results = Counter[tuple[int, ...]]


def results_of(batches: Any) -> Results:
    return Counter(tuple(row.values()) for b in batches for row in b.to_pylist())


def run(case: Case, spec: ConstrainedJoin, cut: int = 1_000) -> tuple[Results, ConstrainedEngine]:
    """Feed all rows, `cut` at a time."""
    job = ConstrainedJob(spec)
    engine = job.engine_at(0, 1)
    found: Results = Counter()
    for at in range(0, len(case.arrivals), cut):
        found += results_of(engine.feed(case.batches(job, case.arrivals[at : at + cut])))
    return found + results_of(engine.finish()), engine


# ---- random joins -----------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn, windows: bool = True, most: int = 4) -> Case:
    """A random connected join graph (trees, DAGs and cycles), and rows with unique child keys."""
    n = draw(st.integers(2, most))
    names = [f"S{i}" for i in range(n)]
    pairs: set[tuple[int, int]] = set()
    for i in range(1, n):
        other = draw(st.integers(0, i - 1))
        pairs.add((other, i) if draw(st.booleans()) else (i, other))
    every = [(a, b) for a in range(n) for b in range(n) if a != b]
    pairs |= set(draw(st.lists(st.sampled_from(every), max_size=2)))
    joins = [
        Join(names[a], names[b], ((f"p{i}", f"c{i}"),)) for i, (a, b) in enumerate(sorted(pairs))
    ]
    columns: dict[str, list[str]] = {name: ["g"] for name in names}
    for join in joins:
        for a, b in join.on:
            columns[join.parent].append(a)
            columns[join.child].append(b)
    order = draw(st.lists(st.sampled_from(names), min_size=2, max_size=24))
    arrivals, time, seen = [], 0, Counter[str]()
    keys = {name: draw(st.permutations(range(24))) for name in names}
    for uid, name in enumerate(order):
        time += draw(st.integers(1, 3))
        at = seen[name]
        seen[name] += 1
        own = keys[name][at] if draw(st.booleans()) else at
        values = {}
        for column in columns[name]:
            if column == "g":
                values[column] = draw(st.integers(0, 1))
            elif column.startswith("c"):
                values[column] = keys[name][at]
            else:
                values[column] = draw(st.sampled_from([own, at, max(at - 1, 0)]))
        passes = draw(st.integers(0, 3)) > 0
        arrivals.append(Tup(name, time, uid, tuple(values.items()), passes))
    chosen: dict[str, Window] = {}
    for name in names:
        kind = draw(st.sampled_from(("none", "rows", "time", "by"))) if windows else "none"
        if kind == "rows":
            chosen[name] = Window(rows=draw(st.integers(1, 5)))
        elif kind == "by":
            chosen[name] = Window(rows=draw(st.integers(1, 3)), by="g")
        elif kind == "time":
            chosen[name] = Window(length=draw(st.integers(1, 20)))
    return Case(columns, joins, arrivals, chosen)


@given(cases(), st.integers(1, 25), st.sampled_from([None, 0]))
def test_without_constraints_it_is_the_sliding_window_join(
    case: Case, cut: int, lag: int | None
) -> None:
    found, engine = run(case, case.spec(lag=lag), cut)
    assert found == case.exact()
    assert engine.take_counters()["violations"] == 0


@given(
    cases(most=3),
    st.lists(st.integers(0, 12), min_size=24, max_size=24),
    st.integers(1, 8),
    st.sampled_from([0, 2, 6]),
    st.sampled_from([None, 0, 4]),
    st.booleans(),
)
def test_late_rows_are_counted_and_without_any_nothing_is_missing(
    case: Case, delays: list[int], cut: int, lateness: int, lag: int | None, constrain: bool
) -> None:
    delayed = sorted(zip(case.arrivals, delays, strict=False), key=lambda p: p[0].time + p[1])
    moved = replace(case, arrivals=[row for row, _ in delayed])
    join = case.joins[0]
    constraints = [RIDS(f"{join.parent} -> {join.child}", within=3)] if constrain else []
    spec = moved.spec(constraints, lag=lag, lateness=lateness, choose=False)
    found, engine = run(moved, spec, cut)
    feeds = [moved.arrivals[at : at + cut] for at in range(0, len(moved.arrivals), cut)]
    timed = {spec.streams[c.stream].name for c in spec.constraints}
    late = naive.late(feeds, case.names, case.windows, timed, lateness, lag)
    assert engine.take_counters()["late"] == late
    if late == 0 and not constrain and all(w.rows is None for w in case.windows.values()):
        assert found == case.exact()


def folded(case: Case, fold: int) -> Case:
    """The same case with fewer values: joins are many-many."""
    arrivals = [
        Tup(t.stream, t.time, t.uid, tuple((n, v // fold) for n, v in t.values), t.passes)
        for t in case.arrivals
    ]
    return Case(case.columns, case.joins, arrivals, case.windows)


@given(cases(), st.integers(1, 25), st.integers(2, 4), st.sampled_from([None, 0]))
def test_without_constraints_every_violation_is_counted(
    case: Case, cut: int, fold: int, lag: int | None
) -> None:
    case = folded(case, fold)
    found, engine = run(case, case.spec(lag=lag), cut)
    assert not found - case.exact()
    expected = naive.violations(case.arrivals, case.joins, case.windows)
    assert engine.take_counters()["violations"] == expected


@given(cases(most=3), st.integers(1, 25), st.integers(2, 12), st.sampled_from([None, 0]))
def test_keys_may_come_again_when_windows_have_ended(
    case: Case, cut: int, fold: int, lag: int | None
) -> None:
    case = folded(case, fold)
    assume(naive.many_one(case.arrivals, case.joins, case.windows))
    assert run(case, case.spec(lag=lag), cut)[0] == case.exact()


@given(cases(), st.integers(1, 25), st.integers(1, 3))
def test_with_nothing_eliminated_joins_may_be_many_many(case: Case, cut: int, fold: int) -> None:
    case = folded(case, fold)
    found, engine = run(case, case.spec(eliminate=False), cut)
    assert found == case.exact()
    held = engine.components()
    assert all(c["no"] == c["unknown"] == 0 for c in held.values())


@given(cases(windows=False))
def test_components_are_those_of_the_definition(case: Case) -> None:
    twin = naive.Synopses(case.names, case.joins)
    for tup in case.arrivals:
        twin.arrive(tup)
    assert_same(run(case, case.spec())[1], twin)


def assert_same(engine: ConstrainedEngine, twin: naive.Synopses, *, lazy: bool = False) -> None:
    """Assert that both hold the same rows.

    If several paths lead to a stream, the engine re-examines a row only when one of its children is
    decided, as the paper does. The twin sees at once where the paths part.
    """
    found, expected = engine.components(), twin.components()
    if not lazy and all(twin.is_tree(name) for name in twin.names):
        assert found == expected
    assert engine.held >= len(twin.status)
    if not lazy:
        assert {n: c["yes"] for n, c in found.items()} == {n: c["yes"] for n, c in expected.items()}


@st.composite
def constrained(draw: st.DrawFn) -> tuple[Case, list[Constraint], list[int], list[bool]]:
    """A case, constraints of any kinds that hold on it, and the least k of each."""
    case = draw(cases())
    constraints: list[Constraint] = []
    least: list[int] = []
    timed: list[bool] = []
    for join in case.joins:
        [(a, b)] = join.on
        up, down = f"{join.parent}.{a}", f"{join.child}.{b}"
        arrivals = case.arrivals
        for kind in draw(st.sets(st.sampled_from(("RIDS", "CA", "OAP", "OAC")))):
            in_time = draw(st.booleans())
            if kind == "RIDS":
                k = naive.rids_time(arrivals, join) if in_time else naive.rids(arrivals, join)
                made: type[Constraint] = RIDS
                on = f"{join.parent} -> {join.child}"
            else:
                stream, name = (join.child, b) if kind == "OAC" else (join.parent, a)
                measure = naive.clustering if kind == "CA" else naive.scrambling
                k = measure(arrivals, stream, name, timed=in_time)
                made = {"CA": CA, "OAP": OAP, "OAC": OAC}[kind]
                on = down if kind == "OAC" else up
            constraints.append(made(on, within=k) if in_time else made(on, k=k))
            least.append(k)
            timed.append(in_time)
    return case, constraints, least, timed


@given(constrained(), st.integers(1, 25), st.sampled_from([None, 0]), st.booleans())
def test_with_true_k_nothing_is_missing(
    drawn: tuple[Case, list[Constraint], list[int], list[bool]],
    cut: int,
    lag: int | None,
    choose: bool,
) -> None:
    case, constraints, _, _ = drawn
    monitor = Monitor(window=2, p=0.5)
    spec = case.spec(constraints, lag=lag, choose=choose, monitor=monitor if choose else None)
    assert run(case, spec, cut)[0] == case.exact()


@given(constrained(), st.data())
def test_with_too_small_a_k_the_result_is_a_subset(
    drawn: tuple[Case, list[Constraint], list[int], list[bool]], data: st.DataObject
) -> None:
    case, constraints, least, timed = drawn
    smaller = [
        type(c)(c.on, **{"within" if t else "k": data.draw(st.integers(0, k))})
        for c, k, t in zip(constraints, least, timed, strict=True)
    ]
    spec = case.spec(smaller)
    found, engine = run(case, spec)
    assert not found - case.exact()
    for cut in (1, 7):
        again, other = run(case, spec, cut)
        assert again == found
        assert other.components() == engine.components()


@given(constrained(), st.data())
def test_state_that_is_moved_goes_on_as_it_was(
    drawn: tuple[Case, list[Constraint], list[int], list[bool]], data: st.DataObject
) -> None:
    case, constraints, least, timed = drawn
    smaller = [
        type(c)(c.on, **{"within" if t else "k": data.draw(st.integers(0, k))})
        for c, k, t in zip(constraints, least, timed, strict=True)
    ]
    job = ConstrainedJob(case.spec(smaller))
    stays, moves, records = job.engine_at(0, 1), job.engine_at(0, 1), list[bytes]()
    found, also = Counter[Any](), Counter[Any]()
    for at in range(0, len(case.arrivals), 4):
        inputs = case.batches(job, case.arrivals[at : at + 4])
        found += results_of(stays.feed(inputs))
        also += results_of(moves.feed(inputs))
        kind = data.draw(st.sampled_from(("stay", "log", "snapshot")))
        if kind != "stay":
            records = moves.snapshot() if kind == "snapshot" else [*records, moves.changes()]
            moves = job.engine_at(0, 1)
            moves.restore(records)
        else:
            records.append(moves.changes())
        assert moves.components() == stays.components()
    assert found + results_of(stays.finish()) == also + results_of(moves.finish())


@given(constrained())
def test_synopses_hold_no_more_than_the_twins(
    drawn: tuple[Case, list[Constraint], list[int], list[bool]],
) -> None:
    """Constraints in counts; with CA the engine forgets a value without rows."""
    case, constraints, least, timed = drawn
    twin = naive.Synopses(case.names, case.joins, case.windows)
    used = []
    clustered = False
    for c, k, t in zip(constraints, least, timed, strict=True):
        if t:
            continue
        used.append(c)
        if isinstance(c, RIDS):
            parent, child = c.on.split(" -> ")
            twin.rids[parent, child] = k
        else:
            stream, name = c.on.split(".")
            kinds: dict[type[Constraint], Any] = {CA: twin.ca, OAP: twin.oap, OAC: twin.oac}
            kinds[type(c)][stream, name] = k
            clustered |= isinstance(c, CA)
    for tup in case.arrivals:
        twin.arrive(tup)
    engine = run(case, case.spec(used, lag=0, choose=False))[1]
    assert_same(engine, twin, lazy=clustered)


def test_rows_of_a_batch_come_in_any_order() -> None:
    case = Case(
        {"A": ["x"], "B": ["x"]},
        [Join("A", "B", (("x", "x"),))],
        [Tup(name, i // 3, i, (("x", i // 4),)) for i, name in enumerate("ABABABAABBAB")],
        {"A": Window(rows=2), "B": Window(rows=3)},
    )
    spec = case.spec([RIDS("A -> B", k=1)])
    backwards = Case(case.columns, case.joins, case.arrivals[::-1], case.windows)
    assert run(case, spec)[0] == run(backwards, spec)[0]


@pytest.mark.parametrize(
    ("constraints", "passes", "rows", "seen"),
    [
        ([], True, None, 1),
        ([], False, None, 1),  # in No
        ([RIDS("A -> B", k=9)], True, None, 1),
        ([RIDS("A -> B", k=9)], False, None, 0),  # No is not kept
        ([CA("A.x", k=1)], True, None, 1),
        ([CA("A.x", k=0)], True, None, 0),  # all its parents have come
        ([], True, 2, 0),  # out of its window
    ],
)
def test_a_violated_many_one_join_is_counted_while_the_first_is_held(
    constraints: list[Constraint], passes: bool, rows: int | None, seen: int
) -> None:
    arrivals = [
        Tup("B", 1, 0, (("x", 1),), passes),
        Tup("A", 2, 1, (("x", 1),)),
        Tup("A", 3, 2, (("x", 2),)),
        Tup("B", 4, 3, (("x", 3),)),
        Tup("B", 5, 4, (("x", 1),)),  # again
        Tup("A", 6, 5, (("x", 1),)),
    ]
    windows = {"B": Window(rows=rows)}
    case = Case({"A": ["x"], "B": ["x"]}, [Join("A", "B", (("x", "x"),))], arrivals, windows)
    found, engine = run(case, case.spec(constraints, lag=0, choose=False))
    assert not found - case.exact()
    assert engine.take_counters()["violations"] == seen


# ---- the paper's examples ---------------------------------------------------------------------

FIGURE_2A = {"S1": ["A", "B"], "S2": ["A", "C"], "S3": ["B", "D"]}


class Example:
    """A join that is fed row by row, like the paper's examples."""

    def __init__(
        self,
        columns: dict[str, list[str]],
        joins: list[str],
        filters: dict[str, str] | None = None,
        constraints: Sequence[Constraint] = (),
    ) -> None:
        schemas = {
            name: pa.schema([(c, pa.int64()) for c in (*attributes, "t")])
            for name, attributes in columns.items()
        }
        every = {a: f"{name}.{a}" for name, own in [*columns.items()][::-1] for a in own}
        select = [every[a] for a in dict.fromkeys(a for own in columns.values() for a in own)]
        self.spec = constrained_join(
            schemas,
            joins=joins,
            time="t",
            filters=filters,
            select=select,
            constraints=constraints,
            lag=0,
            choose=False,
        )
        self.job = ConstrainedJob(self.spec)
        self.engine = self.job.engine_at(0, 1)
        self.time = 0

    def arrive(self, name: str, *tuples: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Feed rows one after the other; return their results."""
        found = []
        for values in tuples:
            self.time += 1
            inputs: list[list[pa.RecordBatch]] = [[] for _ in self.spec.streams]
            at = [s.name for s in self.spec.streams].index(name)
            schema = self.spec.streams[at].schema
            row = dict(zip(schema.names, (*values, self.time), strict=True))
            inputs[at].append(self.job.prepare(at, pa.RecordBatch.from_pylist([row], schema))[0])
            told = [self.time + 1] * len(inputs)
            for batch in self.engine.feed(inputs, told):
                found += [tuple(r.values()) for r in batch.to_pylist()]
        return found

    def component(self, name: str, component: str) -> int:
        return self.engine.components()[name][component]


def figure_2a(*constraints: Constraint) -> Example:
    """The join graph and synopses of figure 2(a); S3's rows in the order of example F.1."""
    example = Example(FIGURE_2A, ["S1.A -> S2.A", "S1.B -> S3.B"], {"S3": "D < 8"}, constraints)
    example.arrive("S2", (6, 20), (4, 15))
    example.arrive("S3", (7, 9), (5, 3), (10, 12))
    return example


def test_example_3_1() -> None:
    example = figure_2a()
    state = {
        "S1": {"yes": 0, "no": 0, "unknown": 0},
        "S2": {"yes": 2, "no": 0, "unknown": 0},
        "S3": {"yes": 1, "no": 2, "unknown": 0},
    }
    assert example.engine.components() == state
    assert example.arrive("S1", (6, 5)) == [(6, 5, 20, 3)]
    assert example.arrive("S1", (8, 10)) == []
    # Yes and No of the only root are not stored (section 3.3.1).
    assert example.engine.components() == state


def test_example_3_2() -> None:
    example = Example(
        {"S1": ["A", "B"], "S2": ["B", "C"], "S3": ["C", "D"]},
        ["S1.B -> S2.B", "S2.C -> S3.C"],
        {"S3": "D > 10"},
    )
    assert example.arrive("S2", (2, 4)) == []
    assert example.arrive("S1", (1, 2)) == []
    assert example.component("S2", "unknown") == example.component("S1", "unknown") == 1
    assert example.arrive("S3", (4, 12)) == [(1, 2, 4, 12)]
    assert example.component("S2", "yes") == example.component("S3", "yes") == 1
    assert example.component("S1", "unknown") == 0


def test_example_4_1() -> None:
    example = figure_2a(RIDS("S1 -> S3", k=1))
    assert example.component("S3", "no") == 0
    example.arrive("S1", (4, 10))
    assert example.component("S1", "unknown") == 1
    example.arrive("S3", (11, 4))
    assert example.component("S1", "unknown") == 0


def test_example_5_1() -> None:
    example = figure_2a(CA("S1.B", k=1))
    found = example.arrive("S1", (6, 5), (8, 8), (4, 5))
    assert found == [(6, 5, 20, 3), (4, 5, 15, 3)]
    assert example.component("S3", "yes") == 1
    assert example.arrive("S1", (11, 10)) == []
    assert example.component("S1", "unknown") == 1
    assert example.component("S3", "yes") == 0


@pytest.mark.parametrize(
    ("constraints", "unknown", "in_s2"),
    [
        ([CA("S1.A", k=0)], 1, 1),
        ([OAC("S3.B", k=0)], 0, 2),
        ([CA("S1.A", k=0), OAC("S3.B", k=0)], 0, 0),
    ],
)
def test_example_8_1(constraints: list[Constraint], unknown: int, in_s2: int) -> None:
    # OAC(0) on S3.B needs its rows in order.
    example = Example(FIGURE_2A, ["S1.A -> S2.A", "S1.B -> S3.B"], {"S3": "D < 8"}, constraints)
    example.arrive("S2", (6, 20), (4, 15))
    example.arrive("S3", (5, 3), (7, 9), (10, 12))
    assert example.arrive("S1", (4, 5), (6, 8)) == [(4, 5, 15, 3)]
    assert example.component("S1", "unknown") == unknown
    example.arrive("S1", (3, 13))
    # (3, 13) waits for its child rows in any case.
    assert example.component("S1", "unknown") == unknown + 1
    assert example.component("S2", "yes") == in_s2


@pytest.mark.parametrize(
    ("constraints", "in_s3", "unknown"),
    [([CA("S1.B", k=0)], 1, 0), ([CA("S1.B", k=0), RIDS("S1 -> S3", k=3)], 0, 2)],
)
def test_example_8_2(constraints: list[Constraint], in_s3: int, unknown: int) -> None:
    example = figure_2a(*constraints)
    example.arrive("S1", (6, 10), (4, 10))
    assert example.component("S1", "unknown") == unknown
    example.arrive("S1", (8, 8))
    # With CA alone (10, 12) is gone, and of S3's No only (7, 9) is left.
    assert example.component("S3", "no") == in_s3
    if unknown:
        example.arrive("S3", (20, 1), (21, 1))
        assert example.component("S1", "unknown") == 3
        example.arrive("S3", (22, 1))
        assert example.component("S1", "unknown") == 0


def test_example_c_1() -> None:
    # S1 -> S2 -> S4 and S1 -> S3 -> S4: both paths must lead to the same row of S4.
    example = Example(
        {"S1": ["A", "B"], "S2": ["A", "C"], "S3": ["B", "C"], "S4": ["C", "D"]},
        ["S1.A -> S2.A", "S1.B -> S3.B", "S2.C -> S4.C", "S3.C -> S4.C"],
    )
    example.arrive("S4", (5, 1), (6, 2))
    example.arrive("S2", (3, 5), (7, 5))
    example.arrive("S3", (4, 6), (8, 5))
    assert example.component("S2", "yes") == example.component("S3", "yes") == 2
    assert example.arrive("S1", (3, 4)) == []
    assert example.component("S1", "unknown") == 0
    assert example.arrive("S1", (7, 8)) == [(7, 8, 5, 1)]


def test_example_d_1() -> None:
    example = Example(
        {"S1": ["A", "B"], "S2": ["B", "C"], "S3": ["C", "A"]},
        ["S1.B -> S2.B", "S2.C -> S3.C", "S3.A -> S1.A"],
    )
    assert example.spec.graph.minimal_covers == ((0,), (1,), (2,))
    example.arrive("S3", (3, 1))
    example.arrive("S2", (2, 3))
    assert example.component("S2", "unknown") == example.component("S3", "unknown") == 1
    assert example.arrive("S1", (1, 2)) == [(1, 2, 3)]
    assert sum(s["unknown"] for s in example.engine.components().values()) == 0
    # (4, 2) joins (2, 3), but that leads back to (1, 2).
    assert example.arrive("S1", (4, 2)) == []
    assert sum(s["unknown"] for s in example.engine.components().values()) == 0


def test_example_f_1() -> None:
    example = figure_2a(OAC("S3.B", k=2))
    assert example.component("S3", "no") == 0
    example.arrive("S1", (6, 7))
    assert example.component("S1", "unknown") == 1  # OAC does not exclude that 7 comes again.
    example.arrive("S1", (6, 4))
    assert example.component("S1", "unknown") == 1


@pytest.mark.parametrize("names", list(permutations(("S0", "S1", "S2", "S3"))))
def test_a_cycle_above_a_shared_child_gives_each_result_once(names: tuple[str, ...]) -> None:
    streams = {
        "S0": pa.table({"a": [1], "t": [1]}),
        "S1": pa.table({"a": [1], "b": [1], "t": [2]}),
        "S2": pa.table({"b": [1], "t": [3]}),
        "S3": pa.table({"b": [1], "t": [0]}),
    }
    joins = ["S1.a <-> S0.a", "S1.b -> S2.b", "S3.b -> S2.b"]
    ordered = {name: streams[name] for name in names}
    assert tg.constrained_join(ordered, joins=joins, time="t").results == 1


@pytest.mark.parametrize("constraint", [tg.OAP("P.k", k=0), tg.OAC("Q.k", k=0)])
def test_attributes_beyond_signed_numbers(constraint: Constraint) -> None:
    keys = pa.array([1, 2**63, 2**64 - 1], pa.uint64())
    streams = {
        "P": pa.table({"k": keys, "t": [0, 2, 4]}),
        "Q": pa.table({"k": keys, "t": [1, 3, 5]}),
    }
    found = tg.constrained_join(streams, joins="P.k -> Q.k", time="t", constraints=[constraint])
    assert found.results == 3


@pytest.mark.parametrize("kind", [tg.OAP, tg.OAC])
def test_two_orders_on_one_join_by_two_attributes(kind: type[tg.OAP]) -> None:
    """Each order holds, and neither is mistaken for the other, whichever is named first."""
    one = pa.table({"a": [3, 1], "b": [4, 4], "ts": [30, 40]})
    other = pa.table({"a": [1], "b": [4], "ts": [35]})
    parent, child = (one, other) if kind is tg.OAP else (other, one)
    stream = "P" if kind is tg.OAP else "K"
    constraints = [kind(f"{stream}.a", within=10), kind(f"{stream}.b", within=0)]
    for listed in (constraints, constraints[::-1]):
        found = tg.constrained_join(
            {"P": parent, "K": child},
            joins=["P.a -> K.a", "P.b -> K.b"],
            time="ts",
            within=1000,
            constraints=listed,
            choose=False,
        )
        assert found.results == 1
