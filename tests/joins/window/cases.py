"""Cases of the window join: run the engine and its slow twin side by side, and draw cases."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from numpy.typing import NDArray
from twins import learned, rankers, slices
from twins import window as naive

from tidegate.engine.payload import sizes
from tidegate.errors import TidegateError
from tidegate.joins.window.conditions import Condition, bucket_hashes
from tidegate.joins.window.engine import WindowEngine
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.queue import QueueEngine
from tidegate.joins.window.rules import EXACT_LIMIT, TUPLE_OVERHEAD
from tidegate.joins.window.shed_log import CAME
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
    HeldRow,
    IJoin,
    Life,
    Policy,
    Prob,
    UntilExpiry,
)
from tidegate.policies.base import Ranks, Times
from tidegate.policies.own_score import Params
from tidegate.sql.conditions import Predicate

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
    """A join, its input in feeds, and the feeds after which the engine is restarted."""

    spec: WindowJoin
    feeds: list[list[Cell]]
    clocks: list[tuple[Any, Any]] = field(default_factory=list)  # one pair per feed, or none at all
    restarts: set[int] = field(default_factory=set)
    closed: bool = False  # whether windows have their end
    exact_limit: int = EXACT_LIMIT  # the number of rows up to which moving ranks are exact


def raw(spec: WindowJoin, cells: Iterable[Cell], side: int) -> pa.RecordBatch:
    mine = [c for c in cells if c[0] == side]
    columns = [[c[1] for c in mine], [c[2] for c in mine], [c[3] for c in mine]]
    strings = ["x" * (c[3] % 7) for c in mine]
    weights = [float(c[3] * 7 % 5) for c in mine]
    return pa.record_batch([*columns, strings, weights], schema=spec.sides[side].schema)


@dataclass(frozen=True)
class Where:
    """A condition in both forms: as users write it, and on the rows' numbers in Python."""

    text: str
    meets: Callable[[int, int], bool]
    banded: bool = True


def _weight(uid: int) -> int:
    return uid * 7 % 5


#: Conditions with a band of whole numbers, with one of real numbers, with a band and more, and
#: without a band. `_weight` is column w; column s has as many letters as `uid` modulo 7.
WHERES = [
    Where("abs(l.uid - r.uid) <= 5", lambda x, y: abs(x - y) <= 5),
    Where("l.w BETWEEN r.w - 1 AND r.w + 2.5", lambda x, y: -1 <= _weight(x) - _weight(y) <= 2.5),
    Where(
        "l.uid - r.uid < 9 AND r.uid <= l.uid + 3 AND l.s <> r.s AND NOT l.w * r.w = 6",
        lambda x, y: -3 <= x - y < 9 and x % 7 != y % 7 and _weight(x) * _weight(y) != 6,
    ),
    Where(
        "l.w < r.w OR length(l.s) / 2 > r.uid - 7",
        lambda x, y: _weight(x) < _weight(y) or x % 7 / 2 > y - 7,
        banded=False,
    ),
]


def meets_of(spec: WindowJoin) -> naive.Meets:
    """Return which rows join by key and condition, as the twin asks for it."""
    known = [where for where in WHERES if where.text == spec.where]
    if not known:
        return naive.same_key
    return lambda left, right: left.on == right.on and known[0].meets(left.uid, right.uid)


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
        places: list[tuple[int, tuple[int, ...] | None, int]]
        places = [(key, None, key) for key in batch.column(0).to_pylist()]
        if spec.where is not None:
            places = list(_places(spec, side, batch.column(0).to_numpy(), payload))
        rows += [
            naive.Row(side, own, time, row_hash, uid, int(size), w if weighed else 1.0, near, key)
            for (own, near, key), _, time, row_hash, uid, w, size in zip(
                places, *columns, weights, strict=True
            )
        ]
    return rows


def _places(
    spec: WindowJoin, side: int, keys: NDArray[np.uint64], payload: pa.RecordBatch
) -> Iterator[tuple[int, tuple[int, ...] | None, int]]:
    """Yield of each row the hash of its bucket, those of its partners' buckets, and of its key."""
    assert spec.where is not None
    condition = Condition(Predicate(spec.where, spec.left.schema, spec.right.schema))
    own, start, span = condition.places(side, keys, payload)
    most = bucket_hashes(start, int(span.max(initial=0)))
    for i in range(len(own)):
        yield int(own[i]), tuple(most[i, : span[i]].tolist()), int(keys[i])


def windows_of(spec: WindowJoin) -> naive.Windows:
    left, right = (
        [(start, math.inf if value is None else value) for start, value in side.windows]
        for side in spec.sides
    )
    return left[0][1] if len(left) == 1 else left, right[0][1] if len(right) == 1 else right


def scored(spec: WindowJoin, formula: int, **kwargs: Any) -> rankers.Scored:
    name, params = rankers.FORMULAS[formula]
    given = dict(zip(params, spec.params, strict=False))
    twin = rankers.Scored(name, windows_of(spec), given, **{"learned": False, **kwargs})
    twin.curves, twin.own = spec.curves, spec.policy.score
    return twin


def counting(spec: WindowJoin, rows: list[naive.Row], rules: layout.Rules) -> dict[str, Any]:
    """Return how the twin counts arrivals by key."""
    policy = spec.policy
    kwargs: dict[str, Any] = {
        "learned": True,
        "halflife": spec.halflife or None,
        "cap": rules.cap,
    }
    if not isinstance(policy, ByFrequency):
        return kwargs
    kwargs |= {"learned": policy.learned, "columns": rules.columns}
    if policy.counting == "window":
        kwargs |= {"span": max(s.window or 0 for s in spec.sides)}
    if not policy.learned:
        counts: tuple[dict[int, float], dict[int, float]] = ({}, {})
        keys = prepared(spec, [(0, k, 0, k) for k in range(4)], 0).column(0).to_pylist()
        for row in rows:
            cell = keys.index(row.on)
            counts[0][row.key] = GIVEN["left"][cell].as_py()
            counts[1][row.key] = GIVEN["right"][cell].as_py()
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
        return learned.Auto(windows_of(spec), **kwargs)
    if policy.learns == "ages":
        return learned.LearnedAge(windows_of(spec))
    if policy.ranks == "score":
        return scored(spec, policy.formula, **kwargs)
    if policy.ranks == "life":
        return scored(spec, scores.LIFE, **kwargs)
    if spec.left.importance is not None and isinstance(policy, ByFrequency):
        return scored(spec, scores.RATE, **kwargs)
    return rankers.ByKey(**kwargs)


def fixed(spec: WindowJoin, rows: list[naive.Row]) -> rankers.Fixed:
    """Return the twin's ranker for a policy that fixes ranks on arrival."""
    arrivals = Arrivals(
        np.array([r.time for r in rows], spec.unit.dtype),
        np.array([r.side for r in rows], np.int8),
        np.array([r.on for r in rows], np.uint64),
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
    join = naive.NaiveJoin(
        windows=windows_of(spec),
        ranker=ranker(spec, rows, rules),
        memory=memory,
        in_bytes=spec.in_bytes,
        split=spec.split,
        shed_when=spec.shed_when,
        lateness=spec.lateness,
        closed=case.closed,
        times=TIMES[spec.unit.kind],
        meets=meets_of(spec),
    )
    if rules.kind == layout.BY_SCORE:
        join.queue = slices.Slices(join, rules.exact_limit)
    return join


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
    new = engine_of(engine.spec, engine._rules.closed, engine._rules.exact_limit)
    new.restore(log)
    return new


def engine_of(spec: WindowJoin, closed: bool, exact_limit: int) -> WindowEngine:
    engine = WindowEngine(spec, keep_shed=True, exact_limit=exact_limit)
    engine._rules = engine._rules._replace(closed=closed)
    engine._tables.allow(engine._rules)
    return engine


def run_case(case: Case) -> Counter[tuple[int, int]]:
    """Run engine and twin, compare them after every feed, and return all pairs."""
    engine = engine_of(case.spec, case.closed, case.exact_limit)
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
        if row["mark"]["kind"] == CAME:
            continue
        found.append(naive.Shed(row[row["side"]]["uid"], row["shed_at"], row["why"]))
    return Counter(found)


def takes_unbounded_windows(policy: Policy) -> bool:
    try:
        window_join(INTEGERS, INTEGERS, on="k", time="t", within=None, memory=4, policy=policy)
    except TidegateError:
        return False
    return True


@dataclass(frozen=True)
class Aging(Policy):
    """Least frequently used with aging: a formula of a policy's own, over all it can know."""

    name: ClassVar[str] = "aging"
    ranks: ClassVar[Ranks] = "score"
    counts: ClassVar[Literal["nothing", "arrivals", "results"]] = "arrivals"

    power: float = 1.5

    def params(self, times: Times) -> tuple[float, ...]:
        return self.power, times.unit

    @staticmethod
    def score(row: HeldRow, params: Params) -> float:
        power, unit = params[0], params[1]
        used = row.importance * (row.matches + 0.25 * row.rate + 0.125 * row.partners)
        left = row.life if row.life < 1e9 else 1.0
        return float((used + 0.01 * left) / (1.0 + row.age + 0.5 * row.idle / unit) ** power)


@dataclass(frozen=True)
class Broken(Policy):
    """Its ranks are not finite numbers for most rows; these rank lowest."""

    name: ClassVar[str] = "broken"
    ranks: ClassVar[Ranks] = "score"

    @staticmethod
    def score(row: HeldRow, params: Params) -> float:
        return math.inf if row.age > 2 else row.age


#: Every policy with its default settings; a new policy is found by itself.
EVERY = [kind() for kind in POLICIES.values()]
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
    st.sampled_from([Aging(), Aging(0.5), Broken()]),
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
def cases(
    draw: st.DrawFn, *, order: str = "any", closed: bool = False, checked: bool = False
) -> Case:
    """Draw a case: rows in any order, all in order of time, or each stream in order.

    With `checked`, a condition may decide which rows join, with a key or without.
    """
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
    where = draw(st.sampled_from([None, *WHERES])) if checked else None
    if any(None in each and len(set(each)) > 1 for each in lengths):
        policy = policy.filter(lambda p: p.ranks != "life")
    splits: list[str | float] = ["shared", "fixed", 0.3]
    split = draw(st.sampled_from(splits))
    if 1 in values_of(memory):
        split = "shared"
    chosen = draw(policy)
    keyed = where is None or draw(st.booleans())
    keyed |= isinstance(chosen, ByFrequency) and chosen.counting == "given"
    spec = window_join(
        schema,
        schema,
        on="k" if keyed else None,
        where=None if where is None else where.text,
        time="t",
        within=windows,
        memory=memory,
        policy=chosen,
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
