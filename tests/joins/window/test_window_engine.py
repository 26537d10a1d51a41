"""Compare the window engine with its slow twin, result for result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import rankers
from twins import window as naive

from tidegate.engine.payload import sizes
from tidegate.errors import TidegateError
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.queue import QueueEngine
from tidegate.joins.window.rules import EXACT_LIMIT, LEARNED, TUPLE_OVERHEAD, _length
from tidegate.joins.window.spec import SHED_WHEN, WindowJoin, window_join
from tidegate.kernel import layout
from tidegate.learning import scores
from tidegate.policies import (
    DGL,
    POLICIES,
    Age,
    Arrivals,
    ByFrequency,
    Fifo,
    GreedyDual,
    Heeb,
    IJoin,
    Life,
    Policy,
    Prob,
    Rand,
    UntilExpiry,
)
from tidegate.settings.schedules import Step

INTEGERS = pa.schema(
    [
        ("k", pa.int64()),
        ("t", pa.int64()),
        ("uid", pa.int64()),
        ("s", pa.string()),
        ("w", pa.float64()),
    ]
)
REALS = INTEGERS.set(1, pa.field("t", pa.float64()))
GIVEN = pa.table({"k": [0, 1, 2, 3], "left": [5.0, 1.0, 2.0, 2.0], "right": [1.0, 4.0, 3.0, 3.0]})

#: All times that a partner may have had, among them one between any two that rows do have.
TIMES = {"whole number": range(-20, 30), "real number": [t / 8 for t in range(-120, 160)]}

Cell = tuple[int, int, Any, int]  # side, key, time, uid


@dataclass
class Case:
    """A join, its input in feeds, and after which feeds the engine is restarted."""

    spec: WindowJoin
    feeds: list[list[Cell]]
    clocks: list[tuple[Any, Any]] = field(default_factory=list)  # one pair per feed, or none at all
    restarts: set[int] = field(default_factory=set)
    closed: bool = False  # whether windows have their end


def raw(spec: WindowJoin, cells: Iterable[Cell], side: int) -> pa.RecordBatch:
    mine = [c for c in cells if c[0] == side]
    columns = [[c[1] for c in mine], [c[2] for c in mine], [c[3] for c in mine]]
    strings = ["x" * (c[3] % 7) for c in mine]
    weights = [float(c[3] * 7 % 5) for c in mine]
    return pa.record_batch([*columns, strings, weights], schema=spec.sides[side].schema)


def prepared(spec: WindowJoin, cells: Iterable[Cell], side: int) -> pa.RecordBatch:
    return WindowJob(spec).prepare(side, raw(spec, cells, side))[0]


def naive_rows(spec: WindowJoin, cells: list[Cell]) -> list[naive.Row]:
    rows = []
    for side in range(2):
        batch = prepared(spec, cells, side)
        payload = pa.RecordBatch.from_arrays(batch.columns[3:], names=["k", "t", "uid", "s", "w"])
        weights = TUPLE_OVERHEAD + sizes(payload) * 5 // 4
        columns = (batch.column(i).to_pylist() for i in (0, 1, 2, 5, 7))
        weighed = spec.left.importance is not None
        rows += [
            naive.Row(side, key, time, row_hash, uid, int(size), importance if weighed else 1.0)
            for key, time, row_hash, uid, importance, size in zip(*columns, weights, strict=True)
        ]
    return rows


def windows_of(spec: WindowJoin) -> naive.Windows:
    left, right = (
        [(start, math.inf if value is None else value) for start, value in side.windows]
        for side in spec.sides
    )
    return left[0][1] if len(left) == 1 else left, right[0][1] if len(right) == 1 else right


def has_twin(policy: Policy) -> bool:
    """True unless the policy learns by age alone, for which there is no twin."""
    return policy.learns != "ages"


def scored(spec: WindowJoin, formula: int, **kwargs: Any) -> rankers.Scored:
    name, params = rankers.FORMULAS[formula]
    given = dict(zip(params, spec.params, strict=True))
    twin = rankers.Scored(name, windows_of(spec), given, **{"learned": False, **kwargs})
    twin.curves = spec.curves
    return twin


def counting(spec: WindowJoin, rows: list[naive.Row], rules: layout.Rules) -> dict[str, Any]:
    """Return how the twin counts arrivals by key."""
    policy = spec.policy
    kwargs: dict[str, Any] = {"halflife": spec.halflife or None, "cap": rules.cap}
    if not isinstance(policy, ByFrequency):
        return kwargs
    kwargs |= {"learned": policy.learned, "columns": rules.columns}
    if policy.counting == "window":
        kwargs |= {"span": max(s.window or 0 for s in spec.sides)}
    if not policy.learned:
        hashes = {r.key for r in rows}
        counts: tuple[dict[int, float], dict[int, float]] = ({}, {})
        keys = prepared(spec, [(0, k, 0, k) for k in range(4)], 0).column(0).to_pylist()
        for cell, key in enumerate(keys):
            if key in hashes:
                counts[0][key] = GIVEN["left"][cell].as_py()
                counts[1][key] = GIVEN["right"][cell].as_py()
        kwargs |= {"counts": counts}
    return kwargs


def ranker(spec: WindowJoin, rows: list[naive.Row], rules: layout.Rules) -> rankers.Ranker:
    """Return the twin's ranker for a policy; it follows from the policy's class attributes."""
    policy = spec.policy
    if spec.memory is None:
        return rankers.Fixed({})
    if policy.ranks == "row":
        return fixed(spec, rows)
    if policy.counts == "results":
        return rankers.Size(cap=rules.cap)
    kwargs = counting(spec, rows, rules) if policy.counts == "arrivals" else {}
    if policy.learns == "rates":
        return rankers.Auto(windows_of(spec), **kwargs)
    if policy.ranks == "score":
        return scored(spec, policy.formula, **kwargs)
    if spec.left.importance is not None and isinstance(policy, ByFrequency):
        return scored(spec, scores.LIFE if policy.ranks == "life" else scores.RATE, **kwargs)
    if policy.ranks == "life":
        return rankers.Life(windows_of(spec), **kwargs)
    return rankers.ByKey(**kwargs)


def fixed(spec: WindowJoin, rows: list[naive.Row]) -> rankers.Fixed:
    """Return the twin's ranker for a policy that fixes ranks on arrival."""
    arrivals = Arrivals(
        np.array([r.time for r in rows], spec.unit.dtype),
        np.array([r.side for r in rows], np.int8),
        np.array([r.key for r in rows], np.uint64),
        np.array([r.row_hash for r in rows], np.uint64),
        np.array([r.importance for r in rows]),
        spec.seed,
    )
    policy = spec.policy
    ranks = dict(zip([r.uid for r in rows], policy.fixed_ranks(arrivals), strict=True))
    return rankers.Fixed(ranks, policy.floor_weight, policy.order_weight)


def twin(case: Case, engine: WindowEngine) -> naive.NaiveJoin:
    spec, rules = case.spec, engine._rules
    rows = naive_rows(spec, [c for feed in case.feeds for c in feed])
    budgets = [sum(row[: rules.pools]) for row in rules.budgets.tolist()]
    memory = [
        (start, None if value is None else budget)
        for (start, value), budget in zip(spec.budget, budgets, strict=True)
    ]
    return naive.NaiveJoin(
        windows=windows_of(spec),
        ranker=ranker(spec, rows, rules),
        memory=memory,
        in_bytes=spec.in_bytes,
        split=spec.split,
        shed_when=spec.shed_when,
        lateness=spec.lateness,
        closed=case.closed,
        times=TIMES[spec.unit.kind],
    )


def pairs_of(batches: Iterable[pa.RecordBatch]) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        left, right = batch.column("uid_left").to_pylist(), batch.column("uid_right").to_pylist()
        found.update(zip(left, right, strict=True))
    return found


def held_of(engine: WindowEngine) -> set[int]:
    uids: set[int] = set()
    for side in range(2):
        slots = engine._tables.slots_of(side)
        rows = engine._payload[side].take(engine._tables.core.slots["row"][slots])
        uids |= set(rows.column(2).to_pylist())
    return uids


def passed_on(engine: WindowEngine, log: list[bytes]) -> WindowEngine:
    """Return a new engine with the state of the old one, restored from its log."""
    if engine.log_is_heavy or not log or len(log) > 3:
        log[:] = engine.snapshot()
    else:
        log.append(engine.changes())
    new = engine_of(engine.spec, engine._rules.closed)
    new.restore(log)
    return new


def engine_of(spec: WindowJoin, closed: bool) -> WindowEngine:
    engine = WindowEngine(spec, keep_shed=True)
    engine._rules = engine._rules._replace(closed=closed)
    engine._tables.allow(engine._rules)
    return engine


def run_case(case: Case) -> Counter[tuple[int, int]]:
    """Run engine and twin, compare them after every feed, and return all pairs."""
    engine = engine_of(case.spec, case.closed)
    slow = twin(case, engine)
    log: list[bytes] = []
    total: Counter[tuple[int, int]] = Counter()
    for i, cells in enumerate(case.feeds):
        inputs = [[prepared(case.spec, cells, side)] for side in range(2)]
        clocks = case.clocks[i] if case.clocks else (None, None)
        fast_pairs = pairs_of(engine.feed(inputs, clocks))
        slow_pairs = Counter(slow.feed(naive_rows(case.spec, cells), clocks))
        assert fast_pairs == slow_pairs
        total += fast_pairs
        assert held_of(engine) == {h.row.uid for h in slow.held}
        naive.check_bound(slow)
        assert shed_of(engine) == Counter(slow.shed)
        slow.shed.clear()
        counters = engine.take_counters()
        assert counters["results"] == sum(fast_pairs.values())
        assert counters["held"] == len(slow.held)
        assert counters["waiting"] == len(slow.open)
        assert slow.missed <= counters["late"] == slow.late
        assert counters["late"] <= counters["out_of_order"]
        slow.late = slow.missed = 0
        if i in case.restarts:
            engine = passed_on(engine, log)
    last = pairs_of(engine.finish())
    assert last == Counter(slow.finish())
    assert held_of(engine) == {h.row.uid for h in slow.held}
    return total + last


def shed_of(engine: WindowEngine | QueueEngine) -> Counter[naive.Shed]:
    table = engine.take_shed()
    found = []
    for row in table.to_pylist():
        found.append(naive.Shed(row[row["side"]]["uid"], row["shed_at"], row["why"]))
    return Counter(found)


def takes_unbounded_windows(policy: Policy) -> bool:
    try:
        window_join(INTEGERS, INTEGERS, on="k", time="t", within=None, memory=4, policy=policy)
    except TidegateError:
        return False
    return True


#: Every policy with its default settings; a new policy is found by itself.
EVERY = [policy for policy in (kind() for kind in POLICIES.values()) if has_twin(policy)]
#: These, and some with other settings.
policies = st.one_of(
    st.sampled_from([policy for policy in EVERY if takes_unbounded_windows(policy)]),
    st.builds(
        lambda kind, how, half, keys: kind(how, half, keys),
        st.sampled_from([Prob, Life]),
        st.sampled_from(["learned", "sketch"]),
        st.sampled_from([None, 3, 1000, math.inf]),
        st.sampled_from([None, 1, 2, 3]),
    ),
    st.sampled_from([Heeb("sketch", 3, 2), GreedyDual("sketch", keys=1)]),
    st.sampled_from([Prob(GIVEN), Life(GIVEN), Heeb(GIVEN)]),
    st.sampled_from([Heeb(alpha=3), Heeb(halflife=3), GreedyDual(halflife=3, keys=2)]),
    st.just(IJoin(tau=2, delta=3, penalty=0.25, decay=0.5, p_init=3.0)),
    st.builds(
        lambda tau, when, fall: IJoin(tau, 3, 0.25, 0.5, 3.0, when, fall),
        st.sampled_from([0, 2]),
        st.sampled_from([1, 2, 5, 100, "adaptive"]),
        st.sampled_from([0.01, 0.3]),
    ),
)
#: Only for windows that end.
ending = st.sampled_from(
    [policy for policy in EVERY if not takes_unbounded_windows(policy)]
    + [DGL(2.0, 0.25), Age([1, 1, 2, 1]), Age(([3, 0, 2], [0.5, 1.5, 1, 4]))]
) | st.builds(
    lambda kind, keys: kind("window", keys=keys),
    st.sampled_from([Prob, Life, Heeb, GreedyDual]),
    st.sampled_from([None, 1, 2, 5, 9]),
)


@st.composite
def changing(draw: st.DrawFn, values: st.SearchStrategy[Any], times: st.SearchStrategy[Any]) -> Any:
    """Draw one value, or a schedule of several."""
    if draw(st.integers(0, 2)):
        return draw(values)
    return [(start, draw(values)) for start in sorted(draw(st.sets(times, min_size=1, max_size=4)))]


def values_of(setting: Any) -> list[Any]:
    """Return all values that a setting has over time."""
    return [value for _, value in setting] if isinstance(setting, list) else [setting]


@st.composite
def cases(draw: st.DrawFn, *, order: str = "any", closed: bool = False) -> Case:
    """Draw a case: rows in any order, all in order of time, or each stream in order."""
    real = closed or draw(st.booleans())
    schema = REALS if real else INTEGERS
    window = st.sampled_from([1, 2, 3, 5, 9, None] + ([0.5, 2.25] if real else []))
    time = st.integers(-4, 12).map(lambda t: t / 4 if real else t)
    tuples = st.sampled_from([None, 1, 2, 3, 4, 6])
    sizes = st.sampled_from([None, "1 kB", "2 kB", "5 kB"])
    memory = draw(changing(tuples, time) | changing(sizes, time))
    windows = draw(changing(window, time)), draw(changing(window, time))
    lengths = [values_of(w) for w in windows]
    policy = policies if None in lengths[0] + lengths[1] else policies | ending
    if closed:
        policy = st.sampled_from([Fifo(), UntilExpiry(), Prob(), Life(), Heeb(), IJoin(tau=2)])
    if any(None in each and len(set(each)) > 1 for each in lengths):
        policy = policy.filter(lambda p: p.ranks != "life")
    splits: list[str | float] = ["shared", "fixed", 0.3]
    split = draw(st.sampled_from(splits))
    if 1 in values_of(memory):
        split = "shared"
    spec = window_join(
        schema,
        schema,
        on="k",
        time="t",
        within=windows,
        memory=memory,
        policy=draw(policy),
        importance=draw(st.sampled_from([None, "w"])),
        split=split,
        shed_when=draw(st.sampled_from(SHED_WHEN)),
        lateness=draw(st.sampled_from([0, 0, 2])),
        seed=draw(st.integers(0, 3)),
    )
    size = draw(st.integers(0, 28))
    cells = [
        (draw(st.integers(0, 1)), draw(st.integers(0, 3)), draw(time), uid) for uid in range(size)
    ]
    if order == "whole":
        cells.sort(key=lambda c: c[2])
    elif order == "each":
        times = [iter(sorted(c[2] for c in cells if c[0] == side)) for side in range(2)]
        cells = [(side, key, next(times[side]), uid) for side, key, _, uid in cells]
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=5)))
    feeds = [cells[a:b] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    clocks = []
    if order == "any" and draw(st.booleans()):
        clocks = [draw(st.tuples(st.none() | time, st.none() | time)) for _ in feeds]
    restarts = draw(st.sets(st.integers(0, len(feeds) - 1)))
    return Case(spec, feeds, clocks, restarts, closed)


@given(cases())
@settings(max_examples=400)
def test_engine_equals_twin(case: Case) -> None:
    run_case(case)


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
@pytest.mark.parametrize("importance", [None, "w"])
def test_every_policy_equals_its_twin(policy: Policy, importance: str | None) -> None:
    """A new policy needs no entry here: the twin follows from its class attributes."""
    rng = np.random.default_rng(3)
    cells = [(int(rng.integers(2)), int(rng.zipf(1.5)) % 8, t // 2, t) for t in range(200)]
    feeds = [cells[start : start + 50] for start in range(0, len(cells), 50)]
    for memory, split in ((6, "shared"), (9, "fixed")):
        spec = window_join(
            INTEGERS,
            INTEGERS,
            on="k",
            time="t",
            within=(20, 12),
            memory=memory,
            split=split,
            policy=policy,
            importance=importance,
        )
        assert run_case(Case(spec, feeds, restarts={1}))


@given(cases(closed=True))
@settings(max_examples=100)
def test_closed_windows_have_their_end(case: Case) -> None:
    run_case(case)


def test_a_row_exactly_a_closed_window_away_joins() -> None:
    spec = window_join(REALS, REALS, on="k", time="t", within=(1.5, 0.5))
    cells = [(0, 1, 1.0, 0), (1, 1, 2.5, 1), (1, 1, 2.75, 2), (1, 1, 0.5, 3), (1, 1, 0.25, 4)]
    assert run_case(Case(spec, [cells])) == Counter()
    assert run_case(Case(spec, [cells], closed=True)) == Counter([(0, 1), (0, 3)])


def test_a_closed_window_of_length_zero_is_not_endless() -> None:
    assert _length(None, closed=True) == 0
    assert 0 < _length(0.0, closed=True) < 1e-90
    assert _length(2.0, closed=True) == 2.0


def test_a_row_is_late_if_its_partners_may_have_expired() -> None:
    """A new policy needs no entry here: the twin follows from its class attributes."""
    spec = window_join(INTEGERS, INTEGERS, on="k", time="t", within=(5, None), lateness=3)
    for time, out_of_order, late in ((20, 0, 0), (19, 1, 0), (17, 1, 0), (16, 1, 1)):
        engine = WindowEngine(spec)
        for feed in ([(1, 1, 20, 0)], [(1, 1, time, 1)]):
            list(engine.feed([[prepared(spec, feed, side)] for side in range(2)]))
        counters = engine.take_counters()
        assert (counters["out_of_order"], counters["late"]) == (out_of_order, late)


@given(cases(order="whole"))
@settings(max_examples=150)
def test_cuts_and_restarts_change_nothing(case: Case) -> None:
    whole = Case(case.spec, [[c for feed in case.feeds for c in feed]])
    assert run_case(case) == run_case(whole)


@given(cases(order="each"))
@settings(max_examples=150)
def test_streams_need_not_keep_in_step_to_be_exact(case: Case) -> None:
    exact = replace(case.spec, budget=(Step(0, None),))
    cells = [c for feed in case.feeds for c in feed]
    wanted = naive.exact(naive_rows(exact, cells), windows_of(exact))
    assert run_case(replace(case, spec=exact)) == wanted
    assert run_case(case) <= wanted


@given(cases(order="whole"))
@settings(max_examples=150)
def test_results_are_exact_ones_and_all_of_them_with_memory(case: Case) -> None:
    cells = [c for feed in case.feeds for c in feed]
    wanted = naive.exact(naive_rows(case.spec, cells), windows_of(case.spec))
    found = run_case(case)
    assert found <= wanted
    if case.spec.memory is None or (not case.spec.in_bytes and case.spec.memory >= 4 * len(cells)):
        assert found == wanted


@pytest.mark.parametrize(
    "policy",
    [*EVERY, Prob(GIVEN), Age([1, 2])],
    ids=lambda policy: policy.name,
)
@pytest.mark.parametrize("shed_when", SHED_WHEN)
def test_memory_of_the_whole_window_is_exact(policy: Policy, shed_when: str) -> None:
    rng = np.random.default_rng(5)
    cells = [(int(rng.integers(2)), int(rng.integers(4)), t // 3, t) for t in range(300)]
    settings_of: dict[str, Any] = {
        "on": "k",
        "time": "t",
        "within": (7, 11),
        "policy": policy,
        "shed_when": shed_when,
    }
    wanted = run_case(Case(window_join(INTEGERS, INTEGERS, **settings_of), [cells]))
    enough = run_case(Case(window_join(INTEGERS, INTEGERS, memory=60, **settings_of), [cells]))
    assert sum(wanted.values()) > 100
    assert enough == wanted


@pytest.mark.parametrize("policy", [Rand(), Prob(), Prob("window"), Prob("sketch")])
def test_bytes_are_those_really_held(policy: Policy) -> None:
    """All arrays and all payload fit in the memory, except those of the current batch."""
    budget, batch = 4_000_000, 500
    spec = window_join(
        INTEGERS, INTEGERS, on="k", time="t", within=10**9, memory="4 MB", policy=policy
    )
    rng = np.random.default_rng(0)
    engine = WindowEngine(spec)
    for start in range(0, 40_000, batch):
        cells = [
            (side, int(rng.integers(10**6)), start + i, start + i)
            for i in range(batch)
            for side in range(2)
        ]
        for _ in engine.feed([[prepared(spec, cells, side)] for side in range(2)]):
            pass
    in_use = engine._tables.nbytes + sum(p.nbytes for p in engine._payload)
    assert engine.take_counters()["bytes"] <= budget
    assert 0.6 * budget < in_use < budget + 2 * batch * 500


@pytest.mark.parametrize(
    "policy",
    [kind() for kind in POLICIES.values()]
    + [Prob("window"), Life("window", keys=70), Heeb("window"), Prob("sketch", keys=16)]
    + [Heeb("sketch", keys=16), IJoin(2, 9, 0.1, 0.01, recompute=7)]
    + [IJoin(2, 9, 0.1, 0.01, recompute="adaptive")],
    ids=lambda policy: "-".join(str(value) for value in policy.settings().values()),
)
def test_what_was_learned_survives_restarts(policy: Policy) -> None:
    """A new engine after each batch gives the same results as one engine."""
    rng = np.random.default_rng(11)
    spec = window_join(
        INTEGERS, INTEGERS, on="k", time="t", within=90, memory=48, policy=policy, importance="w"
    )
    cells = [(int(rng.integers(2)), int(rng.zipf(1.5)) % 40, t // 2, t) for t in range(1500)]
    found = []
    for restarts in (False, True):
        engine = WindowEngine(spec, keep_shed=True)
        log: list[bytes] = []
        pairs: Counter[tuple[int, int]] = Counter()
        for start in range(0, len(cells), 60):
            feed = cells[start : start + 60]
            inputs = [[prepared(spec, feed, side)] for side in range(2)]
            pairs += pairs_of(engine.feed(inputs))
            if restarts:
                engine = passed_on(engine, log)
        found.append(pairs + pairs_of(engine.finish()))
    assert found[0] == found[1]
    assert sum(found[0].values()) > 200


@pytest.mark.parametrize(
    "policy",
    [*POLICIES, Prob("window"), Prob("sketch"), Life("sketch"), Heeb("sketch")],
    ids=lambda policy: policy if isinstance(policy, str) else f"{policy.name}-{policy.frequencies}",
)
def test_cuts_and_restarts_change_nothing_in_a_large_memory(policy: Any) -> None:
    """Above the limit of exact ranking, and with keys that come and go."""
    rng = np.random.default_rng(12)
    spec = window_join(
        INTEGERS,
        INTEGERS,
        on="k",
        time="t",
        within=4000,
        memory=1500,
        policy=policy,
        importance="w",
    )
    assert spec.memory is not None
    assert spec.memory > EXACT_LIMIT
    sides, keys = rng.integers(2, size=40_000), (5000 * rng.random(40_000) ** 2).astype(int)
    cells = [(side, key, t // 2, t) for t, (side, key) in enumerate(zip(sides, keys, strict=True))]

    def joined(size: int, *, restarts: bool) -> Counter[tuple[int, int]]:
        engine, log = WindowEngine(spec), list[bytes]()
        found: Counter[tuple[int, int]] = Counter()
        for start in range(0, len(cells), size):
            inputs = [[prepared(spec, cells[start : start + size], side)] for side in range(2)]
            found += pairs_of(engine.feed(inputs))
            if restarts:
                engine = passed_on(engine, log)
        return found + pairs_of(engine.finish())

    whole = joined(len(cells), restarts=False)
    assert sum(whole.values()) > 1000
    assert joined(7001, restarts=False) == whole
    assert joined(8000, restarts=True) == whole


@pytest.mark.parametrize("name", POLICIES)
def test_many_rows_of_few_keys_survive_a_restart(name: str) -> None:
    """There are more rows than the initial tables have room for, and few keys."""
    spec = window_join(INTEGERS, INTEGERS, on="k", time="t", within=5000, memory=3000, policy=name)
    first = [(0, t % 10, t, t) for t in range(4000)]
    last = [(1, t % 10, t, t) for t in range(4000, 4020)]
    found = []
    for restarts in (False, True):
        engine = WindowEngine(spec)
        assert not pairs_of(engine.feed([[prepared(spec, first, side)] for side in range(2)]))
        if restarts:
            engine = passed_on(engine, [])
        assert len(held_of(engine)) == 3000
        pairs = pairs_of(engine.feed([[prepared(spec, last, side)] for side in range(2)]))
        found.append(pairs + pairs_of(engine.finish()))
    assert found[0] == found[1]
    assert sum(found[0].values()) > 1000


@pytest.mark.parametrize("within", [(60, 60), (90, 30), (70, None), (None, None)])
@pytest.mark.parametrize("schema", [INTEGERS, REALS])
def test_auto_learns_as_its_twin_does(schema: pa.Schema, within: tuple[Any, Any]) -> None:
    """Long enough for several fits; keys change their worth; several feeds and restarts."""
    rng = np.random.default_rng(5)
    spec = window_join(schema, schema, on="k", time="t", within=within, memory=20, policy="auto")
    cells = []
    for uid in range(420):
        hot = int(rng.zipf(1.6)) % 15 + (5 if uid > 200 else 0)
        cells.append((int(rng.integers(2)), hot, uid // 2, uid))
    feeds = [cells[at : at + 70] for at in range(0, len(cells), 70)]
    learned = run_case(Case(spec, feeds, restarts={1, 3, 4}))
    assert sum(learned.values()) > 100


@pytest.mark.parametrize(("name", "learns"), [("auto", "rates"), ("age", "ages")])
def test_what_is_learned_is_part_of_a_memory_in_bytes(name: str, learns: str) -> None:
    spec = window_join(INTEGERS, INTEGERS, on="k", time="t", within=60, memory="8 MB", policy=name)
    engine = WindowEngine(spec)
    core = engine._tables.core
    taken = (core.worth, core.cells, core.returns, core.factors, core.ghosts, core.trails)
    assert 0.8 * LEARNED[learns] < sum(part.nbytes for part in taken) + core.heads.nbytes
    assert sum(part.nbytes for part in taken) + core.heads.nbytes <= LEARNED[learns]
    assert spec.memory is not None
    assert engine._rules.budgets[0, 0] <= spec.memory - LEARNED[learns]


def test_auto_forgets_as_its_twin_does() -> None:
    """All keys change places, after enough refits to know what is usual."""
    rng = np.random.default_rng(7)
    spec = window_join(INTEGERS, INTEGERS, on="k", time="t", within=60, memory=40, policy="auto")
    cells = []
    for uid in range(3800):
        key = int(100 * rng.random() ** 3)
        place = key if uid < 3000 else 99 - key
        cells.append((int(rng.integers(2)), place, uid // 4, uid))
    whole = run_case(Case(spec, [cells[:3100], cells[3100:]], restarts={0}))
    assert sum(whole.values()) > 1000
    engine = WindowEngine(spec)
    found = pairs_of(engine.feed([[prepared(spec, cells, side)] for side in range(2)]))
    assert found + pairs_of(engine.finish()) == whole
    assert engine._tables.core.scalars[0].epoch < 0


def test_an_age_curve_is_learned() -> None:
    """Partners come at two ages only; the join learns what rows in between are worth."""
    units, window = 3000, 100
    left = [(0, key, 10 * key, key) for key in range(units)]
    right = [
        (1, key, 10 * key + age, 10**6 + 9 * key + age) for key in range(units) for age in (5, 75)
    ]
    cells = sorted(left + right, key=lambda cell: cell[2])
    recall = {}
    for policy in (Age(), Age([1, 0, 0, 0, 0, 0, 0, 1, 0, 0]), Fifo(), Rand()):
        spec = window_join(
            INTEGERS,
            INTEGERS,
            on="k",
            time="t",
            within=(window, 1),
            memory=5,
            split=0.8,
            policy=policy,
        )
        engine = WindowEngine(spec)
        pairs = pairs_of(engine.feed([[prepared(spec, cells, side)] for side in range(2)]))
        recall[policy.name + ("" if policy != Age() else " learned")] = sum(pairs.values()) / (
            2 * units
        )
    assert recall["age learned"] > 0.9 * recall["age"]
    assert recall["age"] > 1.2 * max(recall["fifo"], recall["rand"])


def test_a_long_window_before_short_ones() -> None:
    """Many rows expire before earlier ones; held rows and their heap stay few."""
    spec = window_join(
        INTEGERS, INTEGERS, on="k", time="t", within=[(0, 10**6), (5, 10)], memory=64
    )
    engine = WindowEngine(spec)
    for start in range(0, 20_000, 100):
        cells = [(side, t, t, 2 * t + side) for t in range(start, start + 100) for side in range(2)]
        for _ in engine.feed([[prepared(spec, cells, side)] for side in range(2)]):
            pass
    counters = engine.take_counters()
    # Per side: five rows of the long window, nine of the short one; the last tick is still open.
    assert counters["held"] == 2 * (5 + 9)
    assert counters["shed"] == 0
    assert engine._tables.core.due_heap.shape[1] < 1000


def test_a_quiet_shard_keeps_to_a_smaller_memory() -> None:
    """Other shards' clocks tell it that a smaller memory is in force."""
    spec = window_join(
        INTEGERS, INTEGERS, on="k", time="t", within=100, memory=[(0, 8), (20, 2)], policy="fifo"
    )
    engine = WindowEngine(spec, keep_shed=True)
    cells: list[Cell] = [(0, t, t, t) for t in range(6)]
    inputs = [[prepared(spec, cells, side)] for side in range(2)]
    for clock, held in ((20, 6), (21, 2)):
        for _ in engine.feed(inputs if clock == 20 else [[], []], (clock, clock)):
            pass
        assert engine.take_counters()["held"] == held
    assert shed_of(engine) == Counter(naive.Shed(uid, 21, "shed") for uid in range(4))
    new = passed_on(engine, [])
    assert held_of(new) == {4, 5}


@pytest.mark.parametrize("name", POLICIES)
def test_schedules_survive_restarts(name: str) -> None:
    """For every policy, a new engine after each batch gives the same results as one engine."""
    rng = np.random.default_rng(7)
    spec = window_join(
        INTEGERS,
        INTEGERS,
        on="k",
        time="t",
        within=([(0, 60), (150, 20), (400, 90)], [(0, 30), (300, 75)]),
        memory=[(0, 40), (200, 12), (350, 60), (351, 30), (500, 48)],
        policy=name,
    )
    cells = [(int(rng.integers(2)), int(rng.zipf(1.5)) % 40, t // 2, t) for t in range(1200)]
    found = []
    for restarts in (False, True):
        engine = WindowEngine(spec, keep_shed=True)
        log: list[bytes] = []
        pairs: Counter[tuple[int, int]] = Counter()
        most = 0.0
        for start in range(0, len(cells), 50):
            feed = cells[start : start + 50]
            pairs += pairs_of(engine.feed([[prepared(spec, feed, side)] for side in range(2)]))
            held = engine.take_counters()["held"]
            most = max(most, held)
            if 200 < feed[-1][2] < 350:
                assert held <= 12
            if restarts:
                engine = passed_on(engine, log)
        assert 12 < most <= 60
        found.append(pairs + pairs_of(engine.finish()))
    assert found[0] == found[1]
    assert sum(found[0].values()) > 200
