"""`tidegate.optimal`: the best result that any policy could have reached."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.api.inputs import all_on_spark, is_spark, local_table
from tidegate.api.public_call import public_call
from tidegate.engine.payload import one_batch
from tidegate.errors import TidegateError
from tidegate.joins.window.spec import check_collations, window_join
from tidegate.optimal import admission, shedding
from tidegate.optimal.delivered import Delivered
from tidegate.optimal.groups import pools
from tidegate.optimal.plan import best_plan
from tidegate.optimal.sides import Sides, Whole, read
from tidegate.settings.columns import decoded
from tidegate.settings.types import (
    Combine,
    Keys,
    Lateness,
    LocalData,
    Memory,
    ShedWhen,
    Split,
    Suffixes,
    Time,
    TimeColumn,
    Within,
)
from tidegate.settings.values import quoted
from tidegate.sql.conditions import PairValue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Optimal:
    """The best result that any policy could have reached; `tidegate.optimal` returns it.

    Attributes
    ----------
    results
        The number of results.
    importance
        Their total importance or value; their number if neither was given.
    counters
        What happened to the rows: ``admitted`` are those worth keeping; ``shed`` and ``rejected``
        are those that left, later or on arrival, before all their results.
    keep_until
        For every row that is kept: its ``side``, its ``row`` number in the input, and
        ``keep_until``, the last time at which it must be held to be probed. Rows of a Spark
        DataFrame have no fixed order: to find them again, give what ``toArrow()`` returns.
    upper_bound
        No policy has a higher importance. Equal to `importance` if that is optimal.

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"key": [1, 1, 1, 3, 2], "time": [0, 1, 2, 3, 4]}
    >>> right = {"key": [2, 3, 1, 1, 3], "time": [0, 1, 2, 3, 4]}
    >>> best = tg.optimal(left, right, on="key", time="time", within=3, memory=2, split="fixed")
    >>> best.keep_until.num_rows
    4
    >>> best.upper_bound
    5.0
    """

    results: int
    importance: float
    counters: dict[str, int | float]
    keep_until: pa.Table
    upper_bound: float
    _delivered: Delivered = field(repr=False, compare=False)

    @cached_property
    def table(self) -> pa.Table:
        """The result rows: the left's columns, then the right's; made on first use."""
        return self._delivered.table()

    @cached_property
    def shed(self) -> pa.Table:
        """The rows that left before all their results, in the form of `tidegate.Result.shed`."""
        return self._delivered.shed()


@public_call(policy="the optimum takes no policy; leave it out, and compare it with tidegate.join")
def optimal(
    left: DataFrame | LocalData,
    right: DataFrame | LocalData,
    *,
    on: Keys | None = None,
    time: TimeColumn,
    within: Within,
    closed: bool = False,
    where: str | None = None,
    memory: Memory = None,
    split: Split = "shared",
    shed_when: ShedWhen = "after-probe",
    importance: TimeColumn | None = None,
    combine: Combine | None = None,
    value: str | None = None,
    lateness: Lateness = None,
    suffixes: Suffixes = ("_left", "_right"),
    seed: int = 0,
    count_from: Time | None = None,
) -> Optimal:
    """Find the best result that any policy could have reached, knowing all rows beforehand.

    It is the reference for the result of a policy: `OPT-offline` of Das, Gehrke and Riedewald
    (*Semantic Approximation of Data Stream Joins*, sections 4.1 and 6.1), solved as a flow. With an
    `importance` or a `value`, the total of it is maximised, otherwise the number of results.

    With ``shed_when="before-arrival"`` a result needs memory for two rows, which is not a flow.
    Small cases (a few hundred pairs) are mostly solved exactly. Larger ones get a plan and a
    certified `upper_bound`. These are mostly within one percent of each other up to three million
    pairs, further apart where memory holds fewer rows than arrive at one time. Beyond three million
    pairs, the bound is that of ``"before-probe"``.

    Parameters
    ----------
    left, right
        Local data as `tidegate.join` takes it, or batch Spark DataFrames, which are collected.
    on, time, within, closed, where, shed_when, importance, combine, suffixes
        As in `tidegate.join`.
    memory
        The most rows that are held, or a schedule of it, as in `tidegate.join`.
    split
        As in `tidegate.join`, except ``"predicted"``.
    value
        What a result is worth, in place of an importance: an expression over both rows such as
        ``"l.price * r.amount - 3"``, written as the condition of `where` is. Values may be
        negative. A pair joins whenever its rows meet in memory, so the plan cannot leave out a pair
        of negative value while it keeps the row for a later one; but it may drop a row while there
        is room. With ``shed_when="before-arrival"``, negative values are possible for at most 300
        pairs.
    lateness, seed
        Accepted, so that the settings of a join can be given as they are; not used.
    count_from
        Results before this time are left out: a warm-up. As in `tidegate.join`.

    Returns
    -------
    Optimal
        Like `tidegate.Result`, with `keep_until` and `upper_bound`.

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"key": [1, 1, 1, 3, 2], "time": [0, 1, 2, 3, 4]}
    >>> right = {"key": [2, 3, 1, 1, 3], "time": [0, 1, 2, 3, 4]}
    >>> join = dict(on="key", time="time", within=3)
    >>> tg.join(left, right, **join).results
    7
    >>> tg.optimal(left, right, **join, memory=2, split="fixed").results
    5

    With values, the most valuable results count:

    >>> tg.optimal(left, right, **join, memory=2, value="l.time - r.time").importance
    2.0
    """
    all_on_spark({"left": left, "right": right})
    if isinstance(split, str) and split == "predicted":
        raise TidegateError(
            'split="predicted" goes by what a policy expects, and the optimum has no policy: give '
            "the left's share as a number, or leave split out for one memory"
        )
    left_schema, left_table = _opened(left, "left")
    right_schema, right_table = _opened(right, "right")
    spec = window_join(
        left_schema,
        right_schema,
        on=on,
        time=time,
        within=within,
        closed=closed,
        where=where,
        memory=memory,
        split=split,
        shed_when=shed_when,
        importance=importance,
        combine=combine,
        lateness=lateness,
        suffixes=suffixes,
        seed=seed,
        count_from=count_from,
    )
    if value is not None:
        if importance is not None:
            raise TidegateError(
                f"value={quoted(value)} and importance={quoted(importance)} both say what a "
                "result is worth: leave one of them out"
            )
        PairValue(value, spec.left.schema, spec.right.schema)
    if spec.closed:
        raise TidegateError(
            "closed=True is not possible here, because the times are real numbers; cast them to "
            "whole numbers, decimals or timestamps"
        )
    if spec.in_bytes:
        raise TidegateError(
            f"the optimum is found for a number of rows, not for a size: {quoted(memory)}; give "
            "memory in rows"
        )
    for data, keys in ((left, spec.left.keys), (right, spec.right.keys)):
        if is_spark(data):
            check_collations(data, keys)
    sides = read(
        spec,
        [one_batch(left_table()), one_batch(right_table())],
        np.array([step.start for step in spec.budget[1:]], spec.unit.dtype),
        value,
    )
    return _solved(sides, _places(sides))


def _solved(sides: Sides, memory: list[Whole]) -> Optimal:
    """Find the best plan and return its result."""
    if sides.spec.shed_when == "before-arrival" and shedding.some_are_negative(sides):
        return _solved_as_programme(sides, memory)
    late = 0 if sides.spec.shed_when == "after-probe" else 1
    until = [np.full(len(s), -1, np.int64) for s in sides.streams]
    above = 0.0
    for pool in pools(sides, memory, late):
        plan = best_plan(pool.chains)
        above += (plan.bound - plan.value) / pool.unit
        for s in range(2):
            mine = (pool.side == s) & (plan.until >= 0)
            until[s][pool.rows[mine]] = pool.chains.at[plan.until[mine]]
    delivered = Delivered(sides, until)
    _, importance = delivered.totals()
    upper = importance + above
    if sides.spec.shed_when == "before-arrival":
        return _shed_first(sides, memory, until, upper)
    return _result(delivered, upper)


def _solved_as_programme(sides: Sides, memory: list[Whole]) -> Optimal:
    """Find the best plan for "before-arrival" with negative values, which bound nothing by a flow.

    A rejected newcomer avoids pairs of negative value. So a plan can be better than all plans in
    which every newcomer probes.
    """
    pairs = None
    if shedding.count_pairs(sides) <= admission.MOST_PAIRS:
        pairs = admission.all_pairs(sides)
    if pairs is None or len(pairs.now) > shedding.MOST_PAIRS:
        raise TidegateError(
            f'with shed_when="before-arrival" and negative values, the optimum is found for at '
            f"most {shedding.MOST_PAIRS} pairs that join, and there are "
            f"{'too many' if pairs is None else f'{len(pairs.now):,}'}: use "
            'shed_when="before-probe", values that are not negative, or a part of the streams'
        )
    nothing = Delivered(sides, [np.full(len(s), -1, np.int64) for s in sides.streams], True)
    plan, upper = shedding.exact(sides, memory, pairs)
    best = nothing if plan is None else Delivered(sides, plan, admitted=True)
    return _result(max(nothing, best, key=lambda one: one.totals()[1]), upper)


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
    shed = sum(int((m & k).sum()) for m, k in zip(missed, kept, strict=True))
    admitted = sum(int(k.sum()) for k in kept)
    counters: dict[str, int | float] = {
        "arrived": sum(len(stream) for stream in sides.streams),
        **sides.dropped,
        "admitted": admitted,
        "rejected": sum(int((m & ~k).sum()) for m, k in zip(missed, kept, strict=True)),
        "shed": shed,
        "expired": admitted - shed,
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
    if is_spark(data):
        if data.isStreaming:
            raise TidegateError(
                f"the {side} input is a streaming DataFrame, and the optimum needs to know all "
                "rows beforehand; read the archived stream with spark.read"
            )
        return decoded(data.limit(0).toArrow()).schema, lambda: decoded(data.toArrow())
    table = local_table(data)
    return table.schema, lambda: table
