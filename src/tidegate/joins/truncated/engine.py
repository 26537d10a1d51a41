"""A truncated join of Arrow tables: count values, plan how many rows to keep, choose and join."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.engine.payload import Payload, Widths, cut, room
from tidegate.joins.truncated import plan as static
from tidegate.joins.truncated.plan import Counts
from tidegate.joins.truncated.plan_each import Searches
from tidegate.joins.truncated.spec import Relation, TruncatedJoin
from tidegate.kernel.hashing import fold
from tidegate.settings.columns import equal, hash_columns, whole
from tidegate.settings.times import TimeUnit, times

#: Result rows that are made at a time.
_ROOM = 1 << 16


@dataclass(frozen=True)
class Values:
    """The join values that all inputs have, in an order that depends only on content.

    `counts[i, v]` is the number of rows with value v in input i. `windows[v]` is the tumbling
    window of v, 0 without windows. `totals[i, w]` is the number of rows of input i in window w,
    including rows that cannot join.
    """

    counts: Counts
    windows: Counts
    totals: Counts


@dataclass(frozen=True)
class Truncated:
    """The join of the kept rows, and the rows of each input that were kept or not.

    `partnerless` are rows whose value is missing in another input, so that no budget keeps them.
    """

    table: pa.Table
    kept: list[Counts]
    left_out: list[Counts]
    partnerless: list[Counts]
    counters: dict[str, int | float]


def plan(spec: TruncatedJoin, values: Values) -> Counts:
    """Return how many rows of each value each input keeps: [input, value]."""
    kept = np.zeros_like(values.counts)
    order = np.argsort(values.windows, kind="stable")
    windows, starts = np.unique(values.windows[order], return_index=True)
    searches = Searches()
    for window, those in zip(windows, np.split(order, starts[1:]), strict=False):
        budget = _to_keep(spec, values.totals[:, window])
        kept[:, those] = _planned(spec.method, values.counts[:, those], budget, searches)
    searches.warn()
    return kept


def _to_keep(spec: TruncatedJoin, totals: Counts) -> int | tuple[int, ...]:
    """Return the rows to keep; deleting k rows means keeping the others."""
    if not spec.deletes:
        return spec.budget
    if isinstance(spec.budget, int):
        return max(int(totals.sum()) - spec.budget, 0)
    return tuple(
        max(int(total) - number, 0) for total, number in zip(totals, spec.budget, strict=True)
    )


def _planned(
    method: str, counts: Counts, budget: int | tuple[int, ...], searches: Searches
) -> Counts:
    if isinstance(budget, int):
        return {"optimal": static.optdp, "adg": static.adg}[method](counts, budget)
    if method == "optimal":
        return searches.optimal(counts, (budget[0], budget[1]))
    return {"ndg": static.ndg, "independent": static.independent}[method](counts, budget)


def ties(columns: Sequence[pa.Array], rows: int, seed: int) -> NDArray[np.int64]:
    """Return numbers that order the rows of one value, from their content and a seed."""
    order = np.full(rows, seed % 2**64, np.uint64)
    fold(order, hash_columns(list(columns), rows, exact=True))
    return order.view(np.int64)


def run(spec: TruncatedJoin, tables: list[pa.Table]) -> Truncated:
    """Join Arrow tables."""
    keyed = [_keyed(spec, r, t) for r, t in zip(spec.relations, tables, strict=True)]
    values, groups = _grouped(keyed)
    kept = plan(spec, values)
    rows = [payload(table) for table in tables]
    chosen = [
        _chosen(source, group, counts, quota, spec.seed)
        for source, group, counts, quota in zip(rows, groups, values.counts, kept, strict=True)
    ]
    table = pa.Table.from_batches(joined(spec, rows, groups, chosen), spec.result_schema)
    counters: dict[str, int | float] = {"arrived": sum(len(t) for t in tables)}
    for name in ("null_keys", "null_times"):
        counters[name] = sum(getattr(each, name) for each in keyed)
    counters["kept"] = sum(map(len, chosen))
    for relation, mine in zip(spec.relations, chosen, strict=True):
        counters[f"kept_{relation.name}"] = len(mine)
    counters |= {"results": len(table), "exact_results": static.results(values.counts)}
    return Truncated(
        table,
        chosen,
        [np.setdiff1d(np.flatnonzero(g >= 0), c) for g, c in zip(groups, chosen, strict=True)],
        [each.rows[g[each.rows] < 0] for each, g in zip(keyed, groups, strict=True)],
        counters,
    )


@dataclass(frozen=True)
class _Keyed:
    """The rows of one input that have a key and a time, with their key hashes and windows."""

    rows: Counts
    key: NDArray[np.uint64]
    window: Counts
    length: int
    in_windows: Counts  # windows of all rows that have a time
    null_keys: int
    null_times: int


def _keyed(spec: TruncatedJoin, relation: Relation, table: pa.Table) -> _Keyed:
    timed = np.ones(len(table), np.bool_)
    if relation.time is not None:
        time: Any = table.column(relation.time)
        valid = pc.is_finite(time) if pa.types.is_floating(time.type) else pc.is_valid(time)
        timed = valid.fill_null(False).to_numpy()
    has_key = np.ones(len(table), np.bool_)
    for name in relation.keys:
        has_key &= table.column(name).is_valid().to_numpy()
    window = np.zeros(len(table), np.int64)
    if relation.time is not None and spec.unit is not None and spec.per is not None:
        column = whole(table.column(relation.time).filter(pa.array(timed)))
        window[timed] = window_numbers(column, spec.unit, spec.per)
    rows = np.flatnonzero(timed & has_key)
    keys = payload(table.select(list(relation.keys)))
    hashes = [np.empty(0, np.uint64)]
    for part in keys.cut(rows):
        hashes.append(value_hashes(window[rows[part]], keys.take(rows[part]).columns))
    return _Keyed(
        rows,
        np.concatenate(hashes),
        window[rows],
        len(table),
        window[timed],
        int((timed & ~has_key).sum()),
        int((~timed).sum()),
    )


def value_hashes(window: Counts, keys: list[pa.Array]) -> NDArray[np.uint64]:
    """Return a hash of each value and its window."""
    return hash_columns([pa.array(window), *keys], len(window))


def window_numbers(column: pa.Array, unit: TimeUnit, per: int | float) -> Counts:
    """Return the number of the tumbling window of each time; window 0 begins at time 0."""
    at = times(column, unit)
    if unit.kind == "real number":
        return np.clip(np.floor(at / per), -(2.0**62), 2.0**62).astype(np.int64)
    return np.asarray(at // per, np.int64)


def _grouped(keyed: list[_Keyed]) -> tuple[Values, list[Counts]]:
    """Return the values that all inputs have, and the number of each row's value (-1: none)."""
    every = np.concatenate([each.key for each in keyed])
    hashes, first, inverse = np.unique(every, return_index=True, return_inverse=True)
    ends = np.cumsum([len(each.key) for each in keyed])
    parts = np.split(inverse, ends[:-1])
    counts = np.stack([np.bincount(part, minlength=len(hashes)) for part in parts])
    shared = counts.min(axis=0) > 0
    number = np.where(shared, np.cumsum(shared) - 1, -1)
    groups = []
    for each, part in zip(keyed, parts, strict=True):
        group = np.full(each.length, -1, np.int64)
        group[each.rows] = number[part]
        groups.append(group)
    windows = np.concatenate([each.window for each in keyed])[first[shared]]
    known, at = np.unique(windows, return_inverse=True)
    totals = [_count(each.in_windows, known) for each in keyed]
    return Values(counts[:, shared], at, np.stack(totals)), groups


def _count(windows: Counts, known: Counts) -> Counts:
    """Count the rows of each known window."""
    at = np.searchsorted(known, windows)
    there = known[np.minimum(at, len(known) - 1)] == windows if len(known) else at < 0
    return np.bincount(at[there], minlength=len(known))


def payload(table: pa.Table) -> Payload:
    """Return the rows of a table as a payload, from which rows can be taken."""
    rows = Payload(table.schema)
    rows.add(table.to_batches())
    return rows


def _chosen(source: Payload, group: Counts, counts: Counts, quota: Counts, seed: int) -> Counts:
    """Return the positions of the kept rows of one input, ascending."""
    wanted = np.flatnonzero(group >= 0)
    wanted = wanted[quota[group[wanted]] > 0]
    in_part = quota[group[wanted]] < counts[group[wanted]]
    some = wanted[in_part]
    order = [np.empty(0, np.int64)]
    order += [ties(piece.columns, piece.num_rows, seed) for piece in source.pieces(some)]
    some = some[np.lexsort((np.concatenate(order), group[some]))]
    rank = np.arange(len(some)) - np.searchsorted(group[some], group[some])
    return np.sort(np.concatenate([wanted[~in_part], some[rank < quota[group[some]]]]))


def joined(
    spec: TruncatedJoin, sources: list[Payload], groups: list[Counts], chosen: list[Counts]
) -> Iterator[pa.RecordBatch]:
    """Yield all combinations of chosen rows with the same value, in record batches."""
    limit = room(spec.result_schema)
    for picked in _combinations(groups, chosen):
        taken: Widths = 0
        for source, rows in zip(sources, picked, strict=True):
            taken = taken + source.widths_of(rows)
        for piece in cut(len(picked[0]), taken, limit):
            parts = [s.take(rows[piece]) for s, rows in zip(sources, picked, strict=True)]
            columns = [column for part in parts for column in part.columns]
            result = pa.RecordBatch.from_arrays(columns, schema=spec.result_schema)
            same = _really_equal(spec, parts)
            yield result if same.all() else result.filter(pa.array(same))


def _combinations(groups: list[Counts], chosen: list[Counts]) -> Iterator[list[Counts]]:
    """Yield the rows of all combinations, input by input, some combinations at a time.

    Combinations are numbered. The row of the first input is the most significant part; the rows
    of the other inputs are the digits.
    """
    value = groups[0][chosen[0]]
    others = []
    each = np.ones(len(value), np.int64)
    for group, rows in zip(groups[1:], chosen[1:], strict=True):
        rows = rows[np.argsort(group[rows], kind="stable")]
        start, stop = (np.searchsorted(group[rows], value, side) for side in ("left", "right"))
        others.append((rows, start, stop - start))
        each *= stop - start
    ends = np.cumsum(each)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, _ROOM):
        number = np.arange(begin, min(begin + _ROOM, total))
        at = np.searchsorted(ends, number, "right")
        number -= (ends - each)[at]
        picked = []
        for rows, start, count in reversed(others):
            number, digit = np.divmod(number, count[at])
            picked.append(rows[start[at] + digit])
        yield [chosen[0][at], *reversed(picked)]


def _really_equal(spec: TruncatedJoin, parts: list[pa.RecordBatch]) -> NDArray[np.bool_]:
    """Compare the keys themselves, because only their hashes were equal so far."""
    same = np.ones(parts[0].num_rows, np.bool_)
    keys = [
        [part.column(relation.schema.get_field_index(name)) for name in relation.keys]
        for part, relation in zip(parts, spec.relations, strict=True)
    ]
    for others in keys[1:]:
        for a, b in zip(keys[0], others, strict=True):
            same &= equal(a, b)
    return same
