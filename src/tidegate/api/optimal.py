"""`tidegate.optimal`: check, put the problem, and say what the best plan delivers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.engine.payload import one_batch
from tidegate.errors import TidegateError
from tidegate.joins.window.spec import check_collations, window_join
from tidegate.optimal import admission, shedding
from tidegate.optimal.delivered import Delivered
from tidegate.optimal.groups import pools
from tidegate.optimal.plan import best_plan
from tidegate.optimal.sides import Sides, Whole, read
from tidegate.policies.base import as_table
from tidegate.settings.checks import check_names
from tidegate.settings.columns import decoded
from tidegate.settings.schedules import time_of
from tidegate.settings.values import quoted


@dataclass(frozen=True)
class Optimal:
    """The best that any policy could have done.

    Attributes
    ----------
    results
        How many results it delivers.
    importance
        Their total importance; the number of results where none was asked for.
    counters
        What became of the rows: ``admitted`` are those worth keeping, ``evicted`` and
        ``rejected`` those that left, at once or later, with results still to come.
    keep_until
        For every row that is kept at all: its ``side``, its ``row`` number in the input, and
        ``keep_until``, the last time at which it must be in memory to be probed. Rows of a Spark
        DataFrame have no fixed order: to find the rows again, give what ``toArrow()`` gives.
    upper_bound
        No policy has a higher importance. Equal to `importance` where that is optimal.
    """

    results: int
    importance: float
    counters: dict[str, int | float]
    keep_until: pa.Table
    upper_bound: float
    _delivered: Delivered = field(repr=False, compare=False)

    @cached_property
    def table(self) -> pa.Table:
        """The result rows: the left's columns, then the right's; made when first asked for."""
        return self._delivered.table()

    @cached_property
    def shed(self) -> pa.Table:
        """The rows that left with results still to come, as `tidegate.Result` has them."""
        return self._delivered.shed()


def optimal(
    left: Any,
    right: Any,
    *,
    memory: Any = None,
    within: Any = None,
    count_from: Any = None,
    **settings: Any,
) -> Optimal:
    """Find the best result that any policy could have had, all rows being known beforehand.

    It is what a policy's result is to be compared with: `OPT-offline` of Das, Gehrke and Riedewald
    (*Semantic Approximation of Data Stream Joins*, sections 4.1 and 6.1), solved as a flow. Where
    there is an `importance`, the total importance is maximised, and otherwise the number of
    results.

    With ``shed_when="before-arrival"`` a result needs memory for two rows, which is not a flow.
    Small cases (a few hundred pairs) are mostly solved exactly. Larger ones get a plan and a
    certified `upper_bound`. These are mostly within one percent of each other up to three million
    pairs, further apart where memory holds fewer rows than arrive at one time. Beyond three million
    pairs, the bound is that of ``"before-probe"``.

    Parameters
    ----------
    left, right
        Arrow tables, pandas or Spark DataFrames (batch, not streaming), in any order of rows.
    memory
        How many rows are held at the most, or a schedule of it, as `tidegate.join` takes it.
    within
        As `tidegate.join` takes it.
    count_from
        Results before this time do not count and are left out: a warm-up.
    **settings
        As `tidegate.join` takes them, except `policy`, `cpu` and `shards`, and ``"predicted"`` as
        a split. `lateness` and `seed` play no part.

    Returns
    -------
    Optimal
        Like `tidegate.Result`, with `keep_until` and `upper_bound`.
    """
    if "policy" in settings:
        raise TidegateError(
            f"the optimum takes no policy, and policy={quoted(settings['policy'])} was given: "
            "leave it "
            "out, and compare it with tidegate.local.join"
        )
    check_names(settings, window_join, own=optimal, without=("policy", "cpu"))
    if isinstance(split := settings.get("split"), str) and split == "predicted":
        raise TidegateError(
            'split="predicted" goes by what a policy expects, and the optimum has no policy: give '
            "the left's share as a number, or leave split out for one memory"
        )
    left_schema, left_table = _opened(left, "left")
    right_schema, right_table = _opened(right, "right")
    if within is None:
        raise TidegateError("the setting 'within' is missing: a join needs time and within")
    spec = window_join(left_schema, right_schema, memory=memory, within=within, **settings)
    if spec.in_bytes:
        raise TidegateError(
            f"the optimum is found for a number of rows, not for a size: {quoted(memory)}; give "
            "memory in rows"
        )
    for data, keys in ((left, spec.left.keys), (right, spec.right.keys)):
        if type(data).__module__.startswith("pyspark."):
            check_collations(data, keys)
    kind = spec.left.schema.field(spec.left.time).type
    start = None if count_from is None else time_of(count_from, "count_from", spec.unit, kind)
    sides = read(
        spec,
        [one_batch(left_table()), one_batch(right_table())],
        np.array([step.start for step in spec.budget[1:]], spec.unit.dtype),
        start,
    )
    return _solved(sides, _places(sides))


def _solved(sides: Sides, memory: list[Whole]) -> Optimal:
    """Find the best plan and return its result."""
    late = 0 if sides.spec.shed_when == "after-probe" else 1
    until = [np.full(len(s), -1, np.int64) for s in sides.streams]
    above = 0.0
    for pool in pools(sides, memory, late):
        plan = best_plan(pool.chains)
        above += (plan.bound - plan.value) / pool.unit
        for s in range(2):
            mine = (pool.side == s) & (plan.until >= 0)
            until[s][pool.tuples[mine]] = pool.chains.at[plan.until[mine]]
    delivered = Delivered(sides, until)
    _, importance = delivered.totals()
    upper = importance + above
    if sides.spec.shed_when == "before-arrival":
        return _shed_first(sides, memory, until, upper)
    return _result(delivered, upper)


def _shed_first(sides: Sides, memory: list[Whole], until: list[Whole], upper: float) -> Optimal:
    """Improve a plan for "before-arrival", where only admitted newcomers probe.

    `until` and `upper` are the optimum of the easier problem, in which all newcomers probe.
    """
    spans = sides.together()
    if int((spans.high - spans.low).sum()) <= admission.MOST_PAIRS:
        together = admission.pairs_of(sides, [spans])
        lost = float(together.worth.sum()) - admission.most_at_ticks(sides, memory, together)
        upper -= max(lost, 0.0)
    best = Delivered(sides, shedding.fill(sides, memory, until), admitted=True)
    if shedding.count_pairs(sides) > admission.MOST_PAIRS:
        return _result(best, upper)
    pairs = admission.all_pairs(sides)
    upper = min(upper, admission.most_at_ticks(sides, memory, pairs))

    def tried(plan: list[Whole]) -> Delivered:
        one = Delivered(sides, plan, admitted=True)
        return one if one.totals()[1] > best.totals()[1] else best

    if len(pairs.now) <= shedding.MOST_PAIRS and best.totals()[1] < upper:
        solved, bound = shedding.exact(sides, memory, pairs)
        upper = min(upper, bound)
        best = best if solved is None else tried(solved)
    if best.totals()[1] < upper:
        plan, bound = admission.relaxed(sides, memory, pairs)
        upper = min(upper, bound)
        best = tried(plan)
        for start in (plan, until):
            best = tried(admission.peeled(sides, memory, start, pairs))
    return _result(best, upper)


def _result(delivered: Delivered, upper: float) -> Optimal:
    sides = delivered.sides
    results, importance = delivered.totals()
    kept = [until >= 0 for until in delivered.until]
    missed = delivered.missed()
    evicted = sum(int((m & k).sum()) for m, k in zip(missed, kept, strict=True))
    admitted = sum(int(k.sum()) for k in kept)
    counters: dict[str, int | float] = {
        "arrived": sum(len(stream) for stream in sides.streams),
        **sides.dropped,
        "admitted": admitted,
        "rejected": sum(int((m & ~k).sum()) for m, k in zip(missed, kept, strict=True)),
        "shed": evicted,
        "expired": admitted - evicted,
        "results": results,
        "importance": importance,
    }
    # Values are rounded for the solver, which must not separate a value from an equal bound.
    if math.isclose(upper, importance, rel_tol=1e-9, abs_tol=1e-9):
        upper = importance
    return Optimal(results, importance, counters, delivered.keep_until(), upper, delivered)


def _places(sides: Sides) -> list[Whole]:
    """Return the memory in rows after each tick, as one pool or one for each side."""
    everyone = len(sides.streams[0]) + len(sides.streams[1])
    share = sides.spec.split
    places = np.zeros((1 if share is None else 2, len(sides.ticks)), np.int64)
    for at, step in enumerate(sides.spec.budget):
        now = slice(None) if at == 0 else sides.ticks >= step.start
        if step.value is None:
            places[:, now] = everyone
        elif share is None:
            places[0, now] = step.value
        else:
            # Split the memory as the engine does.
            left = min(max(math.floor(step.value * share), 1), step.value - 1)
            places[0, now], places[1, now] = left, step.value - left
    return list(places)


def _opened(data: Any, side: str) -> tuple[pa.Schema, Callable[[], pa.Table]]:
    """Return the schema of an input, and a function that reads it once all is checked."""
    if type(data).__module__.startswith("pyspark."):
        if data.isStreaming:
            raise TidegateError(
                f"the {side} input is a streaming DataFrame, and the optimum needs to know all "
                "rows beforehand; read the archived stream with spark.read"
            )
        return decoded(data.limit(0).toArrow()).schema, lambda: decoded(data.toArrow())
    table = decoded(as_table(data))
    return table.schema, lambda: table
