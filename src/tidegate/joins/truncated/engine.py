"""A truncated join of Arrow tables: count groups, plan how many rows to keep, choose and join."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.engine.payload import Payload, Widths, cut, room
from tidegate.errors import TidegateError
from tidegate.joins.truncated.chain import Chain, Counts, Kept, independent, ndg
from tidegate.joins.truncated.plan import adg, optdp
from tidegate.joins.truncated.plan_each import Searches
from tidegate.joins.truncated.spec import PLANNED, Relation, TruncatedJoin
from tidegate.kernel.hashing import fold
from tidegate.settings.checks import input_of
from tidegate.settings.columns import equal, hash_columns, whole
from tidegate.settings.times import TimeUnit, times

#: Result rows that are made at a time.
_ROOM = 1 << 16
#: Counts of a histogram are below this, so that their sums are exact.
_MOST = 2**40


@dataclass(frozen=True)
class Truncated:
    """The join of the kept rows, and the rows of each input that were kept or not.

    `partnerless` are rows without a partner in another input, so that no budget keeps them.
    """

    table: pa.Table
    kept: list[Counts]
    left_out: list[Counts]
    partnerless: list[Counts]
    counters: dict[str, int | float]


@dataclass(frozen=True)
class Keyed:
    """The rows of one input that have keys and a time.

    `before` and `after` are hashes of the values by which a row joins the input before it and the
    next one, with its window. `weight` is the number of rows that a row stands for.
    """

    rows: Counts
    before: NDArray[np.uint64] | None
    after: NDArray[np.uint64] | None
    window: Counts
    weight: Counts


@dataclass(frozen=True)
class Groups:
    """Rows that join, grouped by their values, in an order that depends only on content.

    `windows[i]` is the tumbling window of each group of input i, 0 without windows.
    """

    chain: Chain
    windows: list[Counts]


def plan(spec: TruncatedJoin, groups: Groups, totals: Callable[[Counts], Counts]) -> Kept:
    """Return how many rows of each group each input keeps.

    `totals` returns the number of rows of each input in each of some windows, including rows that
    cannot join: [input, window].
    """
    chain = groups.chain
    known = np.unique(np.concatenate(groups.windows))
    budgets = _to_keep(spec, totals(known) if spec.deletes else None, len(known))
    searches = Searches()
    if len(known) <= 1:
        kept = [_planned(spec, chain, budget, searches) for budget in budgets]
        searches.warn()
        return kept[0] if kept else [np.zeros_like(rows) for rows in chain.counts]
    found = [np.zeros_like(rows) for rows in chain.counts]
    order = [np.argsort(windows, kind="stable") for windows in groups.windows]
    parts = []
    for windows, sequence in zip(groups.windows, order, strict=True):
        parts.append(np.split(sequence, np.searchsorted(windows[sequence], known[1:])))
    for chosen, budget in zip(zip(*parts, strict=True), budgets, strict=True):
        kept_there = _planned(spec, chain.part(chosen), budget, searches)
        for mine, which, rows in zip(found, chosen, kept_there, strict=True):
            mine[which] = rows
    searches.warn()
    return found


def _to_keep(
    spec: TruncatedJoin, totals: Counts | None, windows: int
) -> list[int | tuple[int, ...]]:
    """Return the rows to keep in each window; deleting k rows means keeping the others."""
    if totals is None:
        return [spec.budget] * windows
    if isinstance(spec.budget, int):
        most = spec.budget
        return [max(int(total) - most, 0) for total in totals.sum(axis=0)]
    deleted = np.array(spec.budget)[:, np.newaxis]
    return [tuple(rows) for rows in np.maximum(totals - deleted, 0).T.tolist()]


def _planned(
    spec: TruncatedJoin, chain: Chain, budget: int | tuple[int, ...], searches: Searches
) -> Kept:
    if spec.method in ("ndg", "independent"):
        assert isinstance(budget, tuple)
        return {"ndg": ndg, "independent": independent}[spec.method](chain, budget)
    if not spec.one_key:
        return searches.chain(chain, (budget,) if isinstance(budget, int) else budget)
    counts = np.stack(chain.counts)
    if isinstance(budget, int):
        return list({"optimal": optdp, "adg": adg}[spec.method](counts, budget))
    if len(budget) == 2:
        return list(searches.optimal(counts, (budget[0], budget[1])))
    return searches.chain(chain, budget)


def ties(columns: Sequence[pa.Array], rows: int, seed: int) -> NDArray[np.int64]:
    """Return numbers that order the rows of one value, from their content and a seed."""
    order = np.full(rows, seed % 2**64, np.uint64)
    fold(order, hash_columns(list(columns), rows, exact=True))
    return order.view(np.int64)


def run(spec: TruncatedJoin, tables: list[pa.Table]) -> Truncated:
    """Join Arrow tables."""
    found = _Planned(spec, tables)
    chosen = [np.flatnonzero(rows) for rows in found.kept]
    sources = [each.source for each in found.inputs]
    numbers = [each.group for each in found.inputs]
    pieces = joined(spec, sources, found.groups.chain, numbers, chosen)
    table = pa.Table.from_batches(pieces, spec.result_schema)
    found.counters["results"] = len(table)
    return Truncated(
        table,
        chosen,
        [np.setdiff1d(np.flatnonzero(g >= 0), c) for g, c in zip(numbers, chosen, strict=True)],
        [each.keyed.rows[each.group[each.keyed.rows] < 0] for each in found.inputs],
        found.counters,
    )


def run_histograms(spec: TruncatedJoin, tables: list[pa.Table]) -> tuple[pa.Table, dict[str, Any]]:
    """Plan a join from histograms: add the rows to keep to each of their rows."""
    found = _Planned(spec, tables)
    name, keep = PLANNED
    planned = []
    for relation, table, rows in zip(spec.relations, tables, found.kept, strict=True):
        side = pa.array([relation.name] * len(table), pa.string())
        planned.append(table.add_column(0, name, side).append_column(keep, pa.array(rows)))
    return pa.concat_tables(planned, promote_options="default"), found.counters


@dataclass(frozen=True)
class _Input:
    """One input: its rows that have keys, their groups (-1: none), and all of its rows."""

    source: Payload
    keyed: Keyed
    group: Counts
    timed: tuple[Counts, Counts]  # the window and the weight of each row that has a time


class _Planned:
    """The plan of a join of Arrow tables: how often each row of each input is kept."""

    def __init__(self, spec: TruncatedJoin, tables: list[pa.Table]) -> None:
        self.counters: dict[str, int | float] = {
            "arrived": 0,
            "null_keys": 0,
            "null_times": 0,
            "kept": 0,
        }
        read = [self._read(spec, r, t) for r, t in zip(spec.relations, tables, strict=True)]
        self.groups, numbers = grouped([keyed for keyed, _ in read])
        self.inputs = []
        for (keyed, timed), number, table in zip(read, numbers, tables, strict=True):
            group = np.full(len(table), -1, np.int64)
            group[keyed.rows] = number
            self.inputs.append(_Input(payload(table), keyed, group, timed))
        chain = self.groups.chain
        kept = plan(spec, self.groups, self._totals)
        self.kept = [
            _rows_kept(each, counts, quota, spec.seed)
            for each, counts, quota in zip(self.inputs, chain.counts, kept, strict=True)
        ]
        for relation, rows in zip(spec.relations, kept, strict=True):
            self.counters[f"kept_{relation.name}"] = int(rows.sum())
            self.counters["kept"] += int(rows.sum())
        self.counters["results"] = chain.results(kept)
        self.counters["exact_results"] = chain.results(chain.counts)

    def _read(
        self, spec: TruncatedJoin, relation: Relation, table: pa.Table
    ) -> tuple[Keyed, tuple[Counts, Counts]]:
        weight = _weights(spec, relation, table)
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
        rows = np.flatnonzero(timed & has_key & (weight > 0))
        self.counters["arrived"] += int(weight.sum())
        self.counters["null_keys"] += int(weight[timed & ~has_key].sum())
        self.counters["null_times"] += int(weight[~timed].sum())
        hashes = [
            _hashed(table, names, rows, window) if names else None
            for names in (relation.before, relation.after)
        ]
        if relation.before == relation.after:
            hashes[1] = hashes[0]
        keyed = Keyed(rows, hashes[0], hashes[1], window[rows], weight[rows])
        return keyed, (window[timed], weight[timed])

    def _totals(self, known: Counts) -> Counts:
        """Count the rows of each input in each known window."""
        totals = []
        for each in self.inputs:
            windows, weights = each.timed
            at = np.searchsorted(known, windows)
            there = known[np.minimum(at, len(known) - 1)] == windows if len(known) else at < 0
            totals.append(np.bincount(at[there], weights[there], len(known)).astype(np.int64))
        return np.stack(totals)


def _weights(spec: TruncatedJoin, relation: Relation, table: pa.Table) -> Counts:
    """Return how many rows each row stands for: its count in a histogram, otherwise one."""
    if spec.counts is None:
        return np.ones(len(table), np.int64)
    column = table.column(spec.counts)
    low = pc.min(column).as_py()
    if column.null_count or (low is not None and low < 0):
        raise TidegateError(
            f'counts must be whole numbers of rows that are not negative, and "{spec.counts}" of '
            f"{input_of(relation.name)} has {'a null' if column.null_count else low}; leave such "
            "rows out"
        )
    if len(column) and pc.max(column).as_py() >= _MOST:
        raise TidegateError(
            f'counts must be below {_MOST:,} rows, and "{spec.counts}" of '
            f"{input_of(relation.name)} has {pc.max(column).as_py()}; count in a larger unit"
        )
    return np.asarray(whole(column).cast(pa.int64()).to_numpy())


def _hashed(
    table: pa.Table, names: tuple[str, ...], rows: Counts, window: Counts
) -> NDArray[np.uint64]:
    keys = payload(table.select(list(names)))
    hashes = [np.empty(0, np.uint64)]
    for part in keys.cut(rows):
        hashes.append(value_hashes(window[rows[part]], keys.take(rows[part]).columns))
    return np.concatenate(hashes)


def value_hashes(window: Counts, keys: list[pa.Array]) -> NDArray[np.uint64]:
    """Return a hash of each value and its window."""
    return hash_columns([pa.array(window), *keys], len(window))


def window_numbers(column: pa.Array, unit: TimeUnit, per: int | float) -> Counts:
    """Return the number of the tumbling window of each time; window 0 begins at time 0."""
    at = times(column, unit)
    if unit.kind == "real number":
        return np.clip(np.floor(at / per), -(2.0**62), 2.0**62).astype(np.int64)
    return np.asarray(at // per, np.int64)


def grouped(keyed: list[Keyed]) -> tuple[Groups, list[Counts]]:
    """Return the groups of rows that join, and the number of each row's group (-1: none)."""
    ends: list[tuple[Counts, Counts]] = []  # of each join: the value of each row on both sides
    for one, other in itertools.pairwise(keyed):
        assert one.after is not None
        assert other.before is not None
        number = np.unique(np.concatenate([one.after, other.before]), return_inverse=True)[1]
        ends.append((number[: len(one.after)], number[len(one.after) :]))
    firsts, groups, counts = [], [], []
    for i, each in enumerate(keyed):
        zero = np.zeros(len(each.rows), np.int64)
        after = ends[i][0] if i < len(ends) else zero
        value = (ends[i - 1][1] if i else zero) * (int(after.max(initial=0)) + 1) + after
        _, first, inverse = np.unique(value, return_index=True, return_inverse=True)
        firsts.append(first)
        groups.append(inverse)
        counts.append(np.bincount(inverse, each.weight, len(first)).astype(np.int64))
    every = Chain(
        tuple(counts),
        tuple(after[firsts[i]] for i, (after, _) in enumerate(ends)),
        tuple(before[firsts[i + 1]] for i, (_, before) in enumerate(ends)),
    )
    shared = [degree > 0 for degree in every.degrees([np.ones_like(rows) for rows in counts])]
    numbers = [np.where(there, np.cumsum(there) - 1, -1) for there in shared]
    windows = [
        each.window[first[there]] for each, first, there in zip(keyed, firsts, shared, strict=True)
    ]
    of_rows = [number[group] for number, group in zip(numbers, groups, strict=True)]
    return Groups(every.part(shared), windows), of_rows


def payload(table: pa.Table) -> Payload:
    """Return the rows of a table as a payload, from which rows can be taken."""
    rows = Payload(table.schema)
    rows.add(table.to_batches())
    return rows


def _rows_kept(each: _Input, counts: Counts, quota: Counts, seed: int) -> Counts:
    """Return how often each row of an input is kept: 0 or 1, or a part of its count."""
    kept = np.zeros(len(each.group), np.int64)
    weight = np.zeros(len(each.group), np.int64)
    weight[each.keyed.rows] = each.keyed.weight
    group = each.group
    wanted = np.flatnonzero(group >= 0)
    wanted = wanted[quota[group[wanted]] > 0]
    in_part = quota[group[wanted]] < counts[group[wanted]]
    kept[wanted[~in_part]] = weight[wanted[~in_part]]
    some = wanted[in_part]
    order = [np.empty(0, np.int64)]
    order += [ties(piece.columns, piece.num_rows, seed) for piece in each.source.pieces(some)]
    some = some[np.lexsort((np.concatenate(order), group[some]))]
    before = np.cumsum(weight[some]) - weight[some]
    before -= before[np.searchsorted(group[some], group[some])]
    kept[some] = np.clip(quota[group[some]] - before, 0, weight[some])
    return kept


def joined(
    spec: TruncatedJoin,
    sources: list[Payload],
    chain: Chain,
    groups: list[Counts],
    chosen: list[Counts],
) -> Iterator[pa.RecordBatch]:
    """Yield all combinations of chosen rows that join, in record batches."""
    limit = room(spec.result_schema)
    for picked in _combinations(chain, groups, chosen):
        taken: Widths = 0
        for source, rows in zip(sources, picked, strict=True):
            taken = taken + source.widths_of(rows)
        for piece in cut(len(picked[0]), taken, limit):
            parts = [s.take(rows[piece]) for s, rows in zip(sources, picked, strict=True)]
            columns = [column for part in parts for column in part.columns]
            result = pa.RecordBatch.from_arrays(columns, schema=spec.result_schema)
            same = _really_equal(spec, parts)
            yield result if same.all() else result.filter(pa.array(same))


def _combinations(
    chain: Chain, groups: list[Counts], chosen: list[Counts]
) -> Iterator[list[Counts]]:
    """Yield the rows of all combinations, input by input, some combinations at a time.

    Combinations are numbered in order of the first input's rows, then the second's and so on. For
    each row it is known how many combinations begin with it.
    """
    last = len(chosen) - 1
    lines: list[tuple[Counts, Counts, Counts]] = []  # rows, combinations so far, those of a row
    starts: list[Counts] = []  # of each join: combinations before the first row of a value
    many = np.ones(len(chosen[last]), np.int64)
    for i in range(last, 0, -1):
        value = chain.before[i - 1][groups[i][chosen[i]]]
        order = np.argsort(value, kind="stable")
        ends = np.cumsum(many[order])
        lines.append((chosen[i][order], ends, many[order]))
        wanted = chain.after[i - 1][groups[i - 1][chosen[i - 1]]]
        sums = np.concatenate([np.zeros(1, np.int64), ends])
        values = 1 + max(int(wanted.max(initial=-1)), int(value.max(initial=-1)))
        first = np.searchsorted(value[order], np.arange(values + 1))
        starts.append(sums[first[:-1]])
        many = (sums[first[1:]] - sums[first[:-1]])[wanted]
    lines.append((chosen[0], np.cumsum(many), many))
    lines.reverse()
    starts.reverse()
    total = int(lines[0][1][-1]) if len(chosen[0]) else 0
    for begin in range(0, total, _ROOM):
        number = np.arange(begin, min(begin + _ROOM, total))
        picked: list[Counts] = []
        for i, (rows, ends, each) in enumerate(lines):
            at = np.searchsorted(ends, number, "right")
            picked.append(rows[at])
            if i < last:
                number = number - (ends - each)[at]
                number = number + starts[i][chain.after[i][groups[i][picked[-1]]]]
        yield picked


def _really_equal(spec: TruncatedJoin, parts: list[pa.RecordBatch]) -> NDArray[np.bool_]:
    """Compare the keys themselves, because only their hashes were equal so far."""
    same = np.ones(parts[0].num_rows, np.bool_)
    for one, other in itertools.pairwise(zip(parts, spec.relations, strict=True)):
        for a, b in zip(one[1].after, other[1].before, strict=True):
            same &= equal(_column(one, a), _column(other, b))
    return same


def _column(one: tuple[pa.RecordBatch, Relation], name: str) -> pa.Array:
    return one[0].column(one[1].schema.get_field_index(name))
