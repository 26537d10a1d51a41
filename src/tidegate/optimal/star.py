"""OSSJ: the best result that any policy can reach in a star join of two streams.

The paper's state graph (section 3.1) has a node for every set of rows that may be in memory, which
is exponential. But the results of a held row do not depend on the other held rows: whenever a row
of the other stream arrives, each link that is active at both times gives a result. The best plan is
therefore a flow, with a chain for each row over the times at which it gives results, as for a
window join (see `plan`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.payload import one_batch
from tidegate.engine.prepare import KEY, PREPARED, TIME
from tidegate.errors import TidegateError
from tidegate.joins.star.job import prepare_stream
from tidegate.joins.star.relation import Known, known
from tidegate.joins.star.spec import StarJoin
from tidegate.joins.window.spec import COMBINE
from tidegate.optimal.chains import Chains
from tidegate.optimal.groups import unit_of
from tidegate.optimal.plan import Whole, best_plan
from tidegate.settings.columns import as_floats, equal


@dataclass(frozen=True)
class OSSJ:
    """The best result of a star join; `tidegate.optimal_star` returns it.

    The name is the paper's.

    Attributes
    ----------
    table
        The results, as `tidegate.star_join` has them.
    results, importance
        Their number and their total importance; the number if no importance was given.
    keep_until
        For every row that is kept: its ``side``, its ``row`` number in the input, and
        ``keep_until``, the last time at which it must be held to be probed, in the numbers of the
        time column.
    upper_bound
        No policy has a higher importance. Equal to `importance` if that is optimal.
    counters
        How many rows ``arrived``, were ``filtered`` because they have no active link, and were kept
        (``admitted``); and the number and importance of all exact results.

    Examples
    --------
    >>> import tidegate as tg
    >>> calls = {"cell": [1, 2, 2], "ts": [0, 1, 2]}
    >>> cars = {"road": ["A", "B", "B"], "ts": [3, 4, 5]}
    >>> near = {"cell": [1, 2], "road": ["A", "B"]}
    >>> join = dict(on=["cell", "road"], time="ts", within=10)
    >>> best = tg.optimal_star([calls, cars], near, **join, memory=1)
    >>> best.results, best.upper_bound
    (2, 2.0)
    >>> best.keep_until.to_pylist()
    [{'side': 's1', 'row': 2, 'keep_until': 5}]
    """

    table: pa.Table
    results: int
    importance: float
    keep_until: pa.Table
    upper_bound: float
    counters: dict[str, int | float]


def best_star(spec: StarJoin, tables: Sequence[pa.Table], links: pa.Table) -> OSSJ:
    """Return the best result of a star join of two streams."""
    if len(spec.streams) != 2:
        raise TidegateError(
            "the optimum is known for two streams, because a result of more needs several rows "
            f"in memory at once; there are {len(spec.streams)}"
        )
    if spec.shed_when == "before-arrival":
        raise TidegateError(
            'the optimum of a star join is known for shed_when="after-probe" and "before-probe", '
            'not "before-arrival"'
        )
    sides = [_Stream(spec, s, table) for s, table in enumerate(tables)]
    return _solved(spec, sides, _Pairs(spec, sides, known(spec, links)))


class _Stream:
    """The rows of one stream, with their row numbers in the input."""

    def __init__(self, spec: StarJoin, at: int, table: pa.Table) -> None:
        side = spec.streams[at]
        whole = one_batch(table)
        numbered = whole.append_column("row", pa.array(np.arange(whole.num_rows)))
        batch, _ = prepare_stream(spec, at, numbered)
        self.rows = pa.RecordBatch.from_arrays(batch.columns[PREPARED:-1], schema=side.schema)
        self.number: Whole = batch.columns[-1].to_numpy()
        self.key: NDArray[np.uint64] = batch.column(KEY).to_numpy()
        self.time: NDArray[Any] = batch.column(TIME).to_numpy()
        self.weight = np.ones(len(self.time))
        if side.importance is not None:
            self.weight = as_floats(self.rows.column(side.importance))


class _Pairs:
    """All results of the exact join: a row of each stream, a link, and the importance."""

    def __init__(self, spec: StarJoin, sides: list[_Stream], relation: Known) -> None:
        # Find the links of each row, then join the streams by link.
        (left, by_left), (right, by_right) = (
            _facts_of(side, relation, s) for s, side in enumerate(sides)
        )
        self.filtered = sum(
            len(side.time) - len(np.unique(own))
            for side, own in zip(sides, (left, right), strict=True)
        )
        order = np.argsort(by_right, kind="stable")
        low = np.searchsorted(by_right[order], by_left, "left")
        sizes = np.searchsorted(by_right[order], by_left, "right") - low
        ends = np.cumsum(sizes)
        at = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - sizes, sizes)
        a = np.repeat(left, sizes)
        b = right[order[np.repeat(low, sizes) + at]]
        fact = np.repeat(by_left, sizes)
        x, y = sides[0].time[a], sides[1].time[b]
        windows = [math.inf if w is None else w for w in spec.windows]
        near = (y < x + windows[0]) & (x < y + windows[1])
        for s, (one, rows) in enumerate(((a, sides[0].rows), (b, sides[1].rows))):
            for mine, theirs in zip(spec.streams[s].keys, spec.relation.keys[s], strict=True):
                near &= equal(
                    rows.column(mine).take(pa.array(one)),
                    relation.rows.column(theirs).take(pa.array(fact)),
                )
        self.rows = [a[near], b[near]]
        self.fact = fact[near]
        self.relation = relation
        self.worth: NDArray[np.float64] = COMBINE[spec.combine](
            sides[0].weight[self.rows[0]], sides[1].weight[self.rows[1]]
        )
        if not spec.weighed:
            self.worth = np.ones(len(self.fact))


def _facts_of(side: _Stream, relation: Known, stream: int) -> tuple[Whole, Whole]:
    """Return pairs of rows and links that are active at the time of the row."""
    order = np.argsort(relation.keys[stream], kind="stable")
    keys = relation.keys[stream][order]
    low = np.searchsorted(keys, side.key, "left")
    sizes = np.searchsorted(keys, side.key, "right") - low
    ends = np.cumsum(sizes)
    own = np.repeat(np.arange(len(side.key)), sizes)
    at = np.arange(len(own)) - np.repeat(ends - sizes, sizes)
    facts = order[np.repeat(low, sizes) + at]
    time = side.time[own]
    active = (relation.begin[facts] <= time) & (time < relation.end[facts])
    return own[active], facts[active]


def _solved(spec: StarJoin, sides: list[_Stream], pairs: _Pairs) -> OSSJ:
    ticks = np.unique(np.concatenate([side.time for side in sides]))
    tick = [np.searchsorted(ticks, side.time) for side in sides]
    late = 0 if spec.shed_when == "after-probe" else 1
    until = [np.full(len(side.time), -1, np.int64) for side in sides]
    now = [tick[s][pairs.rows[s]] for s in range(2)]
    unit = unit_of(pairs.worth, 1)
    above = 0.0
    for mine, places in _pools(spec, [len(side.time) for side in sides]):
        chains = _chains(pairs, tick, now, mine, np.full(len(ticks), places, np.int64), late, unit)
        plan = best_plan(chains)
        above += (plan.bound - plan.value) / unit
        start = 0
        for s in mine:
            stays = plan.until[start : start + len(tick[s])]
            until[s][stays >= 0] = chains.at[stays[stays >= 0]]
            start += len(tick[s])
    # A pair is found if both arrive at one time, or if the later row finds the earlier one held.
    found = now[0] == now[1]
    for s in range(2):
        found |= (now[s] < now[1 - s]) & (until[s][pairs.rows[s]] >= now[1 - s])
    importance = float(pairs.worth[found].sum())
    upper = importance + above
    if math.isclose(upper, importance, rel_tol=1e-9, abs_tol=1e-9):
        upper = importance
    counters: dict[str, int | float] = {
        "arrived": sum(len(side.time) for side in sides),
        "filtered": pairs.filtered,
        "admitted": sum(int((u >= 0).sum()) for u in until),
        "exact_results": len(found),
        "exact_importance": float(pairs.worth.sum()),
    }
    return OSSJ(
        table=_table(spec, sides, pairs, found),
        results=int(found.sum()),
        importance=importance,
        keep_until=_kept(spec, sides, until, ticks),
        upper_bound=upper,
        counters=counters,
    )


def _pools(spec: StarJoin, sizes: list[int]) -> list[tuple[list[int], int]]:
    """Return the streams that share each part of the memory, and its size in rows."""
    if spec.memory is None:
        return [([0, 1], sum(sizes))]
    if spec.split == "shared":
        return [([0, 1], spec.memory)]
    return [([0], spec.memory - spec.memory // 2), ([1], spec.memory // 2)]


def _chains(
    pairs: _Pairs,
    tick: list[Whole],
    now: list[Whole],
    mine: list[int],
    memory: Whole,
    late: int,
    unit: float,
) -> Chains:
    """Return a chain for each row: its results, by time, while it is held."""
    ticks = len(memory) + 1
    first, places, worths = 0, [], []
    for s in mine:
        later = now[1 - s] > now[s]
        places.append((first + pairs.rows[s][later]) * ticks + now[1 - s][later])
        worths.append(pairs.worth[later])
        first += len(tick[s])
    place, where = np.unique(np.concatenate(places), return_inverse=True)
    worth = np.bincount(where, np.concatenate(worths), len(place))
    counts = np.bincount(place // ticks, minlength=first)
    return Chains(
        members=np.arange(first + 1),
        arrive=np.concatenate([tick[s] for s in mine]),
        expire=np.full(first, len(memory), np.int64),
        gains=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        at=place % ticks,
        worth=np.rint(worth * unit).astype(np.int64),
        memory=memory,
        late=late,
    )


def _table(
    spec: StarJoin, sides: list[_Stream], pairs: _Pairs, found: NDArray[np.bool_]
) -> pa.Table:
    columns = []
    for s, side in enumerate(sides):
        at = pa.array(pairs.rows[s][found])
        columns += [column.take(at) for column in side.rows.columns]
    facts = pa.array(pairs.fact[found])
    columns += [pairs.relation.rows.column(n).take(facts) for n in spec.relation.carried]
    return pa.Table.from_arrays(columns, schema=spec.result_schema)


def _kept(
    spec: StarJoin, sides: list[_Stream], until: list[Whole], ticks: NDArray[Any]
) -> pa.Table:
    parts = []
    for name, side, one in zip(spec.stream_names, sides, until, strict=True):
        kept = np.flatnonzero(one >= 0)
        kept = kept[np.argsort(side.number[kept])]
        names = pa.array([name] * len(kept), pa.string())
        row, last = side.number[kept], ticks[one[kept]]
        parts.append(pa.table({"side": names, "row": row, "keep_until": last}))
    return pa.concat_tables(parts)
