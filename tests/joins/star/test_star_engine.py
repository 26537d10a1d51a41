"""Compare the star engine with its slow twin, result by result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import star as naive_star

import tidegate as tg
from tidegate.joins.star.engine import StarEngine
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.spec import StarJoin, star_join
from tidegate.joins.window.spec import COMBINES, SHED_WHEN
from tidegate.policies import (
    DGL,
    POLICIES,
    Arrivals,
    Auto,
    DimpProb,
    Fifo,
    Policy,
    Prob,
    Rand,
    Simp,
    SimpProb,
)

KEYS = ("a", "b", "c")
Cell = tuple[int, int, Any, int]  # stream, key, time, uid
Change = tuple[str, Any, tuple[int, ...], int]  # operation, time, keys, uid
RANKERS: dict[type[Policy], str] = {
    SimpProb: "simpprob",
    DimpProb: "dimpprob",
    DGL: "dgl",
    Prob: "rate",
    Auto: "auto",
}


@dataclass
class Case:
    """A join, its relation, its input in feeds, and where the state moves to a new engine."""

    spec: StarJoin
    facts: pa.Table | None
    feeds: list[list[Cell]]
    changes: list[list[Change]] = field(default_factory=list)
    clocks: list[tuple[Any, ...]] = field(default_factory=list)
    restarts: set[int] = field(default_factory=set)
    #: The budget that a pool sets before each feed; None leaves it unchanged.
    budgets: list[int | None] = field(default_factory=list)
    #: By feed: the table that the engine has after a restart that follows it.
    tables: dict[int, pa.Table] = field(default_factory=dict)


def stream_schema(time: pa.DataType, key: str) -> pa.Schema:
    kinds = {key: pa.int64(), "t": time, "uid": pa.int64(), "w": pa.float64()}
    return pa.schema(list(kinds.items()))


def weight(uid: int) -> float:
    return float(1 + uid * 7 % 4)


def raw(spec: StarJoin, cells: Iterable[Cell], stream: int) -> pa.RecordBatch:
    mine = [c for c in cells if c[0] == stream]
    columns = [[c[1] for c in mine], [c[2] for c in mine], [c[3] for c in mine]]
    return pa.record_batch(
        [*columns, [weight(c[3]) for c in mine]], schema=spec.streams[stream].schema
    )


def change_rows(spec: StarJoin, changes: Iterable[Change]) -> pa.RecordBatch:
    rows = [
        {"op": op, "at": at, "fid": uid} | dict(zip(KEYS, keys, strict=False))
        for op, at, keys, uid in changes
    ]
    return pa.RecordBatch.from_pylist(rows, spec.relation.schema)


def job_of(case: Case) -> StarJob:
    if case.facts is None:
        return StarJob(case.spec, None)
    return StarJob(case.spec, LocalRelation(*in_order(case.facts)))


def batches(case: Case, job: StarJob, at: int) -> list[list[pa.RecordBatch]]:
    spec = case.spec
    inputs = [[job.prepare(s, raw(spec, case.feeds[at], s))[0]] for s in range(len(spec.streams))]
    if case.facts is None:
        rows = change_rows(spec, case.changes[at])
        inputs.append([job.prepare(len(spec.streams), rows)[0]])
    return inputs


def found(spec: StarJoin, results: Iterable[pa.RecordBatch]) -> Counter[tuple[int, ...]]:
    total: Counter[tuple[int, ...]] = Counter()
    for batch in results:
        names = [n for n in batch.schema.names if n.startswith("uid") or n == "fid"]
        assert len(names) == len(spec.streams) + 1
        columns = [batch.column(name).to_pylist() for name in names]
        total.update(zip(*columns, strict=True))
    return total


def twin_rows(spec: StarJoin, inputs: list[list[pa.RecordBatch]]) -> list[naive_star.Row]:
    rows = []
    for s in range(len(spec.streams)):
        for batch in inputs[s]:
            columns = (batch.column(i).to_pylist() for i in (0, 1, 2, 5, 6))
            rows += [
                naive_star.Row(s, key, time, row_hash, uid, w if spec.weighed else 1.0)
                for key, time, row_hash, uid, w in zip(*columns, strict=True)
            ]
    return rows


def key_hash(spec: StarJoin, stream: int, value: int) -> int:
    job = StarJob(spec, None)
    batch = raw(spec, [(stream, value, 0, 0)], stream)
    hashed: int = job.prepare(stream, batch)[0].column(0)[0].as_py()
    return hashed


def twin_facts(case: Case) -> list[naive_star.Fact]:
    if case.facts is None:
        return []
    return facts_of(case.spec, case.facts)


def facts_of(spec: StarJoin, table: pa.Table) -> list[naive_star.Fact]:
    facts = []
    for row in table.to_pylist():
        begin, end = row.get("begin"), row.get("end")
        if begin is not None and begin == end:
            continue  # never active, so it is not read
        keys = tuple(key_hash(spec, s, row[KEYS[s]]) for s in range(len(spec.streams)))
        begin, end = (-math.inf if begin is None else begin), (math.inf if end is None else end)
        facts.append(naive_star.Fact(keys, begin, end, row["fid"]))
    return facts


def history(case: Case, changes: Iterable[Change]) -> list[naive_star.Fact]:
    """Return the facts that changes make, whatever their order; deletes come before inserts."""
    order = {"delete": 0, "update": 1, "insert": 2}
    distinct = {
        (at, order[op], keys, op, 0 if op == "delete" else uid) for op, at, keys, uid in changes
    }
    facts: list[naive_star.Fact] = []
    for at, _, keys, op, uid in sorted(distinct):
        hashed = tuple(key_hash(case.spec, s, k) for s, k in enumerate(keys))
        if op != "insert":
            [active] = [f for f in facts if f.keys == hashed and f.end == math.inf]
            active.end = at
        if op != "delete":
            facts.append(naive_star.Fact(hashed, at, math.inf, uid))
    return facts


def twin_of(case: Case, rows: list[naive_star.Row]) -> naive_star.NaiveStar:
    spec = case.spec
    ranks = {}
    if spec.policy.ranks == "row":
        arrivals = Arrivals(
            np.array([r.time for r in rows], spec.unit.dtype),
            np.array([r.stream for r in rows], np.int8),
            np.array([r.key for r in rows], np.uint64),
            np.array([r.row_hash for r in rows], np.uint64),
            np.array([r.weight for r in rows]),
            spec.seed,
        )
        ranks = dict(zip([r.uid for r in rows], spec.policy.fixed_ranks(arrivals), strict=True))
    return naive_star.NaiveStar(
        windows=[math.inf if w is None else w for w in spec.windows],
        facts=twin_facts(case),
        ranker="fixed" if spec.memory is None else RANKERS.get(type(spec.policy), "fixed"),
        memory=spec.memory,
        fixed_split=spec.split == "fixed",
        shed_when=spec.shed_when,
        lateness=spec.lateness,
        dynamic=spec.dynamic,
        combine=spec.combine if spec.weighed else None,
        params=spec.params,
        halflife=spec.halflife,
        ranks=ranks,
        floor_weight=spec.policy.floor_weight,
        order_weight=spec.policy.order_weight,
    )


def check(case: Case) -> Counter[tuple[int, ...]]:
    """Feed engine and twin, move the state to a new engine after some feeds, and compare."""
    job = job_of(case)
    # Without a table, all rows reach the engine, as a pack task's table may be a later one.
    pack = StarJob(case.spec, None) if case.tables else job
    inputs = [batches(case, pack, at) for at in range(len(case.feeds))]
    twin = twin_of(case, [r for one in inputs for r in twin_rows(case.spec, one)])
    engine: StarEngine = job.engine_at(0, 1, keep_shed=True)
    log: list[bytes] = []
    counters: Counter[str] = Counter()
    every: Counter[tuple[int, ...]] = Counter()
    shed: list[tuple[Any, ...]] = []
    for at, one in enumerate(inputs):
        clocks = case.clocks[at] if case.clocks else None
        given_clocks = None if clocks is None else (*clocks, *([None] * case.spec.dynamic))
        budget = case.budgets[at] if case.budgets else None
        if budget is not None:
            engine.resize(at + 1, budget)
            twin.resize(budget)
        if case.facts is None:
            twin.facts = history(case, [c for one in case.changes[: at + 1] for c in one])
        mine = found(case.spec, engine.feed(one, given_clocks))
        assert mine == Counter(twin.feed(twin_rows(case.spec, one), clocks or ()))
        every += mine
        shed += departures(engine)
        counters.update({k: int(v) for k, v in engine.take_counters().items() if k != "held"})
        assert engine._tables.held == len(twin.held)
        if twin.memory is not None:
            assert len(twin.held) <= twin.memory
        if at in case.restarts:
            log = log if at % 3 else []
            if not log or engine.log_is_heavy:
                log = engine.snapshot()
            else:
                log += [engine.changes()]
            if at in case.tables:
                job = StarJob(case.spec, LocalRelation(*in_order(case.tables[at])))
                twin.replace_table(facts_of(case.spec, case.tables[at]))
            engine = job.engine_at(0, 1, keep_shed=True)
            engine.restore(log)
        elif engine.log_is_heavy:
            log = engine.snapshot() if log else []
        elif log:
            log.append(engine.changes())
    mine = found(case.spec, engine.finish())
    assert mine == Counter(twin.finish())
    shed += departures(engine)
    counters.update({k: int(v) for k, v in engine.take_counters().items() if k != "held"})
    assert sorted(shed) == sorted(twin.shed)
    assert counters["filtered"] == twin.filtered
    assert counters["expired"] == twin.expired
    assert counters["late"] == twin.late
    every += mine
    plain = case.spec.memory is None and case.facts is not None and not case.tables
    if plain and twin.late == 0:
        rows = [row for one in inputs for row in twin_rows(case.spec, one)]
        assert every == naive_star.exact(rows, twin.facts, twin.windows)
    return every


def departures(engine: StarEngine) -> list[tuple[Any, ...]]:
    return [
        (row[row["side"]]["uid"], row["shed_at"], row["why"])
        for row in engine.take_shed().to_pylist()
    ]


# ---- cases --------------------------------------------------------------------------------------

policies: st.SearchStrategy[Policy] = st.sampled_from(
    [
        Auto(),
        Auto(),
        Prob(),
        Prob(halflife=2),
        SimpProb(),
        DimpProb(),
        DGL(),
        DGL(alpha=4.0, beta=0.5),
        *(kind() for kind in POLICIES.values() if kind.ranks == "row"),
    ]
)


importances: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.fixed_dictionaries(
    {"importance": st.just("w"), "combine": st.sampled_from(COMBINES)}
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.sampled_from([1, 2, 2, 2, 3]))
    real = draw(st.booleans())
    dynamic = draw(st.booleans())
    kind = pa.float64() if real else pa.int64()
    names = KEYS[:n]
    instants: st.SearchStrategy[Any] = st.integers(0, 12)
    if real:
        instants = instants.map(lambda t: t / 2)
    columns = [(k, pa.int64()) for k in names] + [("fid", pa.int64())]
    more = [("op", pa.string()), ("at", kind)] if dynamic else [("begin", kind), ("end", kind)]
    policy = draw(policies)
    window = st.sampled_from([2, 4, 8])
    keywords: dict[str, Any] = {"within": [draw(window) for _ in names]} if n > 1 else {}
    if n > 1 and not isinstance(policy, DGL) and draw(st.integers(0, 4)) == 0:
        keywords["within"][0] = "unbounded"
    if n > 1 and draw(st.integers(0, 3)):
        keywords |= {"memory": draw(st.integers(n, 6))}
        keywords |= {"split": draw(st.sampled_from(["shared", "fixed"]))}
    spec = star_join(
        {f"s{i}": stream_schema(kind, k) for i, k in enumerate(names)},
        pa.schema([*columns, *more]),
        on=list(names),
        time="t",
        interval=None if dynamic else ("begin", "end"),
        changes=("op", "at") if dynamic else None,
        fact=None if dynamic else "fid",
        policy=policy,
        shed_when=draw(st.sampled_from(SHED_WHEN)),
        **draw(importances),
        lateness=draw(st.sampled_from([0, 0, 2])),
        suffixes=[f"_{i}" for i in range(n + 1)],
        **keywords,
    )
    cell = st.tuples(st.integers(0, n - 1), st.integers(0, 2), instants)
    size = draw(st.integers(0, 24))
    plain = draw(st.lists(cell, min_size=size, max_size=size))
    in_time = draw(st.booleans()) or dynamic
    if in_time:
        plain = sorted(plain, key=lambda c: c[2])
    cells = [(s, k, t, uid) for uid, (s, k, t) in enumerate(plain)]
    cuts = sorted(draw(st.lists(st.integers(0, len(cells)), max_size=3)))
    edges = [0, *cuts, len(cells)]
    feeds = [cells[a:b] for a, b in pairwise(edges)]
    keys = st.tuples(*[st.integers(0, 2)] * n)
    restarts = draw(st.sets(st.integers(0, len(feeds) - 1)))
    budget = st.none() | st.integers(0, 6)
    budgets = [] if spec.memory is None else [draw(budget) for _ in feeds]
    if dynamic:
        return Case(spec, None, feeds, draw(changes_of(spec, feeds, keys)), [], restarts, budgets)
    rows = draw(st.lists(st.tuples(keys, st.none() | instants, st.none() | instants), max_size=7))
    listed = [
        dict(zip(names, k, strict=True)) | {"fid": 100 + i, "begin": b, "end": e}
        for i, (k, b, e) in enumerate(rows)
        if b is None or e is None or b <= e
    ]
    facts = pa.Table.from_pylist(listed, spec.relation.schema)
    tables = {}
    for at in restarts:
        if draw(st.booleans()) and listed:
            gone = draw(st.sets(st.integers(0, len(listed) - 1)))
            kept = [row for i, row in enumerate(listed) if i not in gone]
            for row in kept:
                change = draw(st.sampled_from(["", "", "", "begin", "end"]))
                if change:
                    row[change] = None
            listed = kept + [
                row | {"fid": 200 + 10 * at + i} for i, row in enumerate(listed) if row not in kept
            ]
            tables[at] = pa.Table.from_pylist(listed, spec.relation.schema)
    clocks = []
    if not draw(st.booleans()):
        clock = st.none() | instants
        clocks = [tuple(draw(clock) for _ in names) for _ in feeds]
    return Case(spec, facts, feeds, [], clocks, restarts, budgets, tables)


@st.composite
def changes_of(
    draw: st.DrawFn, spec: StarJoin, feeds: list[list[Cell]], keys: Any
) -> list[list[Change]]:
    """Draw consistent changes, in any feed before rows of their time are joined.

    An update may come after later changes of its link. A delete and an insert may replace a link,
    in one feed or in two. Any change may come again.
    """
    # Rows up to the last tick but one of the earlier feeds have been joined.
    opened = [max((c[2] for one in feeds[:at] for c in one), default=0) for at in range(len(feeds))]
    number = float if spec.unit.dtype.kind == "f" else int
    out: list[list[Change]] = [[] for _ in feeds]
    uid = 100
    for key in draw(st.sets(keys, max_size=4)):
        time, feed, op = draw(st.integers(0, 4)), 0, "delete"
        for _ in range(draw(st.integers(0, 5))):
            if op == "delete":
                op = "insert"
            else:
                op = draw(st.sampled_from(["delete", "update", "replace"]))
                time += draw(st.integers(1, 4))
            last = sum(since <= time for since in opened) - 1
            at = draw(st.integers(feed, last))
            parts = ["insert", "delete"] if op == "replace" else [op]
            for part in parts:
                uid += 1
                change = (part, number(time), key, uid)
                for copy in (at, *draw(st.lists(st.integers(at, last), max_size=1))):
                    out[copy].append(change)
            if op in ("insert", "delete"):
                feed = at
    return out


@given(cases())
def test_the_engine_is_its_twin(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("lateness", [0, 2])
def test_rows_are_late_after_their_partners_have_expired(lateness: int) -> None:
    schemas = {f"s{i}": stream_schema(pa.int64(), k) for i, k in enumerate(KEYS)}
    relation = pa.table({**{k: [0, 1] for k in KEYS}, "fid": [100, 101]})
    spec = star_join(
        schemas,
        relation.schema,
        on=list(KEYS),
        time="t",
        within=[4, 4, 4],
        lateness=lateness,
        suffixes=[f"_{i}" for i in range(4)],
    )
    now = 9 + lateness
    feeds: list[list[Cell]] = [
        [(0, 0, 4, 1), (1, 0, 4, 2), (2, 0, 4, 3), (0, 1, now, 4), (1, 1, now, 5)],
        [(2, 1, now - 2, 6)],  # in order: the third stream is behind
        [(0, 0, 9, 7), (0, 0, 8, 8), (0, 2, 7, 9), (0, 0, 7, 10), (1, 0, 6, 11)],
        [(2, 0, 5, 12)],  # out of order; the other streams have passed its partners
    ]
    case = Case(spec, relation, feeds, [], [], {1})
    job = job_of(case)
    engine = job.engine_at(0, 1)
    late = []
    for at in range(len(feeds)):
        list(engine.feed(batches(case, job, at)))
        late.append(engine.take_counters()["late"])
    # The first stream and the second one are at 9 + lateness, and the third is 2 behind.
    assert late == [0, 0, 3, 1]
    check(case)


def crowded(
    seed: int, n: int, policy: Policy, shed_when: str, *, dynamic: bool, size: int = 70
) -> Case:
    """Return a case with many rows for little memory, in time order."""
    rng = np.random.default_rng(seed)
    names = KEYS[:n]
    columns = [(k, pa.int64()) for k in names] + [("fid", pa.int64())]
    more = [("op", pa.string()), ("at", pa.int64())] if dynamic else []
    more = more or [("begin", pa.int64()), ("end", pa.int64())]
    spec = star_join(
        {f"s{i}": stream_schema(pa.int64(), k) for i, k in enumerate(names)},
        pa.schema([*columns, *more]),
        on=list(names),
        time="t",
        within=[8, 16, 8][:n],
        interval=None if dynamic else ("begin", "end"),
        changes=("op", "at") if dynamic else None,
        memory=9,
        split=("shared", "fixed")[seed % 2],
        policy=policy,
        shed_when=shed_when,
        importance="w",
        combine=COMBINES[seed % 4],
        suffixes=[f"_{i}" for i in range(n + 1)],
        seed=seed,
    )
    times = np.sort(rng.integers(0, 40, size)).tolist()
    keys = np.minimum(rng.zipf(1.6, size) - 1, 3).tolist()
    streams = rng.integers(0, n, size).tolist()
    cells = list(zip(streams, keys, times, range(size), strict=True))
    cuts = [0, *sorted(rng.integers(0, size, 4).tolist()), size]
    feeds = [cells[a:b] for a, b in pairwise(cuts)]
    every = list(product(range(4), repeat=n))
    restarts = set(rng.integers(0, len(feeds), 3).tolist())
    if not dynamic:
        rows = []
        for uid, key in enumerate(every):
            begin, end = sorted(rng.integers(0, 45, 2).tolist())
            if rng.random() < 0.3:
                begin, end = None, None
            if rng.random() < 0.4:
                rows.append(dict(zip(names, key, strict=True)) | {"begin": begin, "end": end})
                rows[-1]["fid"] = uid
        return Case(spec, pa.Table.from_pylist(rows, spec.relation.schema), feeds, [], [], restarts)
    changes: list[list[Change]] = []
    seen = -1
    for at, feed in enumerate(feeds):
        last = max([seen, *(c[2] for c in feed)])
        mine: list[Change] = []
        for time, key in product(range(seen + 1, last + 1), every):
            if rng.random() < (0.4 if at == 0 and time == 0 else 0.03):
                op = ("insert", "delete", "update")[rng.integers(0, 3) if time else 0]
                mine.append((op, time, key, 1_000 * time + every.index(key)))
        changes.append(mine)
        seen = last
    return Case(spec, None, feeds, consistent(changes), [], restarts)


def consistent(changes: list[list[Change]]) -> list[list[Change]]:
    """Return the changes without those that contradict the links at their time."""
    active: set[tuple[int, ...]] = set()
    kept = []
    for feed in changes:
        mine = []
        for op, time, key, uid in feed:
            fits = (op == "insert") == (key not in active)
            if fits:
                active.symmetric_difference_update([] if op == "update" else [key])
                mine.append((op, time, key, uid))
        kept.append(mine)
    return kept


def test_every_policy_keeps_to_the_rules() -> None:
    """Check what `tidegate.conformance` checks in a window join."""
    rng = np.random.default_rng(4)
    n = 240
    names = ("a", "b")
    tables = [
        pa.table({k: np.minimum(rng.zipf(1.5, n), 12), "t": np.arange(n), "id": np.arange(n)})
        for k in names
    ]
    pairs = rng.permutation(169)[:40]
    begin = rng.integers(0, n, 40) * (rng.random(40) < 0.5)
    facts = pa.table(
        {"a": pairs // 13, "b": pairs % 13, "begin": begin, "end": begin + n // 2, "fid": range(40)}
    )
    settings: dict[str, Any] = {"on": names, "time": "t", "within": 20}
    settings |= {"interval": ("begin", "end")}

    def ids(given: list[pa.Table], **more: Any) -> Counter[tuple[int, ...]]:
        table = tg.star_join(given, facts, **settings, **more).table
        columns = (table[name].to_pylist() for name in ("id_s1", "id_s2", "fid"))
        return Counter(zip(*columns, strict=True))

    exact = ids(tables)
    assert exact.total() > 300
    shuffled = [table.take(pa.array(rng.permutation(n))) for table in tables]
    for policy, shed_when in product(EVERY, SHED_WHEN):
        bounded: dict[str, Any] = {
            "policy": policy,
            "shed_when": shed_when,
            "memory": 10,
            "seed": 3,
        }
        found = ids(tables, **bounded)
        assert found < exact
        assert found == ids(shuffled, **bounded, batch_rows=7)
        assert ids(tables, **bounded | {"memory": 80}) == exact


EVERY = [Auto(), Prob(halflife=4), Simp(), SimpProb(), DimpProb(), DGL(), Rand(), Fifo()]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_little_memory(policy: Policy, dynamic: bool) -> None:
    for seed, (n, shed_when) in enumerate(product((2, 3), SHED_WHEN)):
        case = crowded(seed, n, policy, shed_when, dynamic=dynamic)
        results = check(case)
        assert results
