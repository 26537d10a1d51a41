"""Count the results of the exact join without finding them, to know the recall of a bounded one.

With equal keys, the partners of a row are the rows of its key in a range of times, so sorting is
enough. A further condition is tried on a random sample of these pairs; the count then has a
confidence interval of 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.payload import Payload
from tidegate.engine.prepare import KEY, PREPARED, TIME, prepared_schema
from tidegate.joins.window.arrays import windows_of
from tidegate.joins.window.rules import EXACT_LIMIT, rules_of
from tidegate.joins.window.spec import WindowJoin
from tidegate.kernel import layout
from tidegate.sql.conditions import Predicate

#: The pairs on which a condition is tried. If there are no more, the count is exact.
SAMPLE = 20_000
#: The normal quantile of a two-sided interval of 95 %.
_Z = 1.959964

Array = NDArray[np.int64]


class Count(NamedTuple):
    """The number of results of the exact join, and its interval."""

    results: float
    low: float
    high: float


def exact_count(
    spec: WindowJoin, left: Sequence[pa.RecordBatch], right: Sequence[pa.RecordBatch]
) -> Count:
    """Count the results of the exact join of prepared rows."""
    ranges = list(_ranges(spec, left, right))
    total = sum(int(each.number.sum()) for each in ranges)
    if spec.where is None or total == 0:
        return Count(total, total, total)
    numbers = np.arange(total)
    if total > SAMPLE:
        numbers = np.sort(np.random.default_rng(spec.seed).integers(0, total, SAMPLE))
    found = _passing(spec, left, right, ranges, numbers)
    if total <= SAMPLE:
        return Count(found, found, found)
    return Count(*(total * share for share in wilson(found, len(numbers))))


def wilson(found: int, tried: int) -> tuple[float, float, float]:
    """Return a share, and its interval by Wilson's formula."""
    share, z2 = found / tried, _Z * _Z
    middle = (share + z2 / (2 * tried)) / (1 + z2 / tried)
    spread = math.sqrt(share * (1 - share) / tried + z2 / (4 * tried * tried))
    spread *= _Z / (1 + z2 / tried)
    return share, middle - spread, middle + spread


class _Range(NamedTuple):
    """The partners of left rows: for row `left[i]`, `right[start[i] : start[i] + number[i]]`."""

    left: Array
    start: Array
    number: Array
    right: Array


def _ranges(
    spec: WindowJoin, left: Sequence[pa.RecordBatch], right: Sequence[pa.RecordBatch]
) -> Iterator[_Range]:
    """Yield the partners of left rows, for each window that right rows have."""
    rules = rules_of(spec, 1, EXACT_LIMIT)
    (keys, times), (others, other_times) = (_columns(spec, each) for each in (left, right))
    own, other_windows = windows_of(rules, 0, times), windows_of(rules, 1, other_times)
    since = spec.count_from
    for window in np.unique(other_windows):
        mine = np.flatnonzero(other_windows == window)
        order = mine[np.lexsort((other_times[mine], others[mine]))]
        of_key, of_time = others[order], other_times[order]
        ends = np.where(own == 0, _most(times.dtype), times + own)
        starts = times - window if window else np.full(len(times), _least(times.dtype))
        stop = _before(of_key, of_time, keys, ends, (own == 0) | spec.closed)
        start = _before(of_key, of_time, keys, starts, np.full(len(keys), not spec.closed))
        if not window:
            start = _before(of_key, of_time, keys, starts, np.zeros(len(keys), np.bool_))
        if since is not None:
            # The later row of a result has at least this time.
            first = np.where(times < since, since, _least(times.dtype))
            after = _before(of_key, of_time, keys, first, np.zeros(len(keys), np.bool_))
            start = np.maximum(start, after)
        yield _Range(np.arange(len(keys)), start, np.maximum(stop - start, 0), order)


def _columns(
    spec: WindowJoin, batches: Sequence[pa.RecordBatch]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the key hashes and the times of prepared rows."""
    none = [np.empty(0, np.uint64)], [np.empty(0, spec.unit.dtype)]
    found = (
        np.concatenate([*empty, *(batch.column(name).to_numpy() for batch in batches)])
        for empty, name in zip(none, (KEY, TIME), strict=True)
    )
    keys, times = found
    return keys, times


def _most(dtype: np.dtype[np.int64]) -> float | int:
    return math.inf if dtype.kind == "f" else -layout.NEVER


def _least(dtype: np.dtype[np.int64]) -> float | int:
    return -math.inf if dtype.kind == "f" else layout.NEVER


def _before(
    keys: NDArray[np.uint64],
    times: Array,
    wanted: NDArray[np.uint64],
    bounds: Array,
    inclusive: NDArray[np.bool_],
) -> Array:
    """Return how many rows, sorted by key and time, come before each key and bound.

    A row at the bound itself counts if it is inclusive.
    """
    n = len(keys)
    side = np.concatenate([np.ones(n, np.int8), np.where(inclusive, 2, 0).astype(np.int8)])
    every = np.concatenate([keys, wanted]), np.concatenate([times, bounds])
    order = np.lexsort((side, every[1], every[0]))
    before = np.cumsum(order < n)
    found = np.empty(len(order), np.int64)
    found[order] = before
    return found[n:]


def _passing(
    spec: WindowJoin,
    left: Sequence[pa.RecordBatch],
    right: Sequence[pa.RecordBatch],
    ranges: list[_Range],
    numbers: Array,
) -> int:
    """Count the pairs with the given numbers, in order of the ranges, that meet the condition."""
    assert spec.where is not None
    condition = Predicate(spec.where, spec.left.schema, spec.right.schema)
    sources = []
    for side, batches in zip(spec.sides, (left, right), strict=True):
        sources.append(Payload(pa.schema(list(prepared_schema(side.schema, spec.unit))[PREPARED:])))
        sources[-1].add(batches)
    found = first = 0
    for each in ranges:
        ends = np.cumsum(each.number)
        size = int(ends[-1]) if len(ends) else 0
        mine = numbers[(numbers >= first) & (numbers < first + size)] - first
        first += size
        at = np.searchsorted(ends, mine, "right")
        partner = each.right[each.start[at] + mine - (ends[at] - each.number[at])]
        rows = sources[0].take(each.left[at]), sources[1].take(partner)
        found += int(condition.mask(*rows).sum())
    return found
