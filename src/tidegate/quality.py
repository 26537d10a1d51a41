"""Measure how good an approximate result is, with the measures of papers 1 and 5.

Results are multisets. Each measure takes two of them in the same form: two Arrow tables with the
same columns, which are counted inside Arrow, or two iterables (or Counters) of hashable values. In
a table, nulls are equal to each other, NaN equals NaN, and -0.0 equals 0.0, as in Spark's grouping.

The set measures are those of paper 1 (Das, Gehrke, Riedewald), section 2.2. The intersection and
the union of multisets take the smaller and the larger count of each row. If X is a subset of Y, all
measures but the overlap grow with X, and the symmetric difference is the number of missing results.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import TidegateError
from tidegate.settings.values import quoted

Rows: TypeAlias = pa.Table | Iterable[Hashable]
Distance: TypeAlias = Callable[[Any, Any], float]

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "min": pc.min_element_wise,
    "max": pc.max_element_wise,
    "sum": pc.add,
    "product": pc.multiply,
}
_MOST_CELLS = 25_000_000


def multiset(rows: Rows) -> Counter[Hashable]:
    """Count equal rows; a row of a table becomes a Python tuple of its values.

    Only the distinct rows of a table become Python objects. Lists, maps and structs become Python
    tuples and all NaNs become one object, so that equal rows are equal keys.
    """
    if isinstance(rows, pa.Table):
        counts, first = _grouped([rows])
        columns = [
            [_frozen(value) for value in _plain(column).take(pa.array(first)).to_pylist()]
            for column in rows.columns
        ]
        keys = zip(*columns, strict=True) if columns else [()] * len(first)
        return Counter(dict(zip(keys, counts[0].tolist(), strict=True)))
    if isinstance(rows, Mapping):
        wrong = [n for n in rows.values() if isinstance(n, bool) or not isinstance(n, int) or n < 0]
        if wrong:
            raise TidegateError(
                f"counts must be whole numbers of at least 0, not {quoted(wrong[0])}"
            )
        return Counter({row: count for row, count in rows.items() if count})
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise TidegateError(
            f"rows must be a pyarrow.Table or an iterable of hashable values, "
            f"not {type(rows).__name__}"
        )
    try:
        return Counter(rows)
    except TypeError as error:
        raise TidegateError(f"rows must be hashable, such as tuples: {error}") from error


def is_submultiset(approx: Rows, exact: Rows) -> bool:
    """Return True if no row occurs more often in ``approx`` than in ``exact``.

    This is true for every equi-join that only sheds rows. If it is false, a result is wrong or
    was delivered twice.
    """
    x, y = _counts(approx, exact)
    return bool((x <= y).all())


def recall(approx: Rows, exact: Rows) -> float:
    """Return the share of the exact results that were delivered; 1 if there are none.

    Results that are not in ``exact`` do not count; see :func:`is_submultiset`.

    Examples
    --------
    >>> from tidegate import quality
    >>> quality.recall([(1, "a"), (2, "b")], [(1, "a"), (2, "b"), (3, "c"), (4, "d")])
    0.5
    """
    x, y = _counts(approx, exact)
    return _ratio(int(np.minimum(x, y).sum()), int(y.sum()), empty=1.0)


def symmetric_difference(x: Rows, y: Rows) -> int:
    """Return ``|(X - Y) | (Y - X)|``, paper 1's MAX-subset measure when X is a subset of Y."""
    a, b = _counts(x, y)
    return int(np.abs(a - b).sum())


def matching(x: Rows, y: Rows) -> int:
    """Return the matching coefficient ``|X & Y|``."""
    a, b = _counts(x, y)
    return int(np.minimum(a, b).sum())


def dice(x: Rows, y: Rows) -> float:
    """Return the Dice coefficient ``2 |X & Y| / (|X| + |Y|)``; 1 for two empty sets."""
    a, b = _counts(x, y)
    return _ratio(2 * int(np.minimum(a, b).sum()), int(a.sum() + b.sum()), empty=1.0)


def jaccard(x: Rows, y: Rows) -> float:
    """Return the Jaccard coefficient ``|X & Y| / |X | Y|``; 1 for two empty sets."""
    a, b = _counts(x, y)
    return _ratio(int(np.minimum(a, b).sum()), int(np.maximum(a, b).sum()), empty=1.0)


def cosine(x: Rows, y: Rows) -> float:
    """Return the cosine coefficient ``|X & Y| / sqrt(|X| |Y|)``.

    It is 1 for two empty sets, and 0 if only one is empty.
    """
    a, b = _counts(x, y)
    product = int(a.sum()) * int(b.sum())
    if product == 0:
        return 1.0 if a.sum() == b.sum() else 0.0
    # The root is rounded; the cap makes equal sets exactly 1.
    return min(1.0, int(np.minimum(a, b).sum()) / math.sqrt(product))


def overlap(x: Rows, y: Rows) -> float:
    """Return the overlap coefficient ``|X & Y| / min(|X|, |Y|)``.

    It is 1 if one set contains the other, and so also if either is empty.
    """
    a, b = _counts(x, y)
    return _ratio(int(np.minimum(a, b).sum()), int(min(a.sum(), b.sum())), empty=1.0)


def importance(results: pa.Table, columns: str | tuple[str, str], *, combine: str = "min") -> float:
    """Return the total importance of a result (paper 5, iJoin's measure of quality).

    A null or NaN counts as 0. The importance of no rows is 0.

    Parameters
    ----------
    results
        The joined rows.
    columns
        The column with the importance of a result, or a pair of columns with the importance of
        the left and of the right row.
    combine
        How a pair becomes the importance of the result: "min" (iJoin's), "max", "sum", "product".
    """
    if combine not in COMBINE:
        listed = ", ".join(f'"{name}"' for name in COMBINE)
        raise TidegateError(f"combine must be one of {listed}, not {quoted(combine)}")
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if len(names) not in (1, 2):
        raise TidegateError(f"columns must be one name or a pair of names, not {quoted(columns)}")
    parts = [_importance_column(results, name) for name in names]
    each = parts[0] if len(parts) == 1 else COMBINE[combine](*parts)
    return float(pc.sum(each, min_count=0).as_py())


def fairness(times: Iterable[float]) -> float:
    """Return Jain's index ``(sum L)^2 / (n sum L^2)`` of the times that rows were held (paper 5).

    It lies between 1/n (one row had all the time) and 1 (all rows had the same time). If there
    were no rows, or no row was held at all, all were treated equally: 1.
    """
    listed = times if isinstance(times, (np.ndarray, pa.Array, pa.ChunkedArray)) else list(times)
    try:
        stay = np.asarray(listed, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TidegateError(f"times must be numbers: {error}") from error
    wrong = stay[~(np.isfinite(stay) & (stay >= 0))]
    if len(wrong):
        raise TidegateError(f"times must be finite and not negative, not {quoted(float(wrong[0]))}")
    longest = stay.max(initial=0.0)
    if longest == 0:
        return 1.0
    # The index has no unit. Scaling by a power of two avoids overflow and loses no digits.
    share = np.ldexp(stay, -math.frexp(longest)[1])
    return min(1.0, float(share.sum() ** 2 / (len(share) * (share**2).sum())))


def earth_movers_distance(x: Rows, y: Rows, distance: Distance) -> float:
    """Return the minimal work of turning the smaller multiset into a part of the larger one.

    Paper 1, section 2.2, after Rubner, Tomasi and Guibas (1998): each row of the smaller set moves
    to a different row of the larger set. Moving r to s costs ``distance(r, s)``, and the result is
    the least total cost. The remaining rows of the larger set cost nothing, so the result is 0 if
    one set is a subset of the other. Rubner's normalised form divides by the smaller size. The
    result is 0 if either set is empty.

    Parameters
    ----------
    x, y
        The two multisets; ``distance`` gets the rows of tables as Python tuples.
    distance
        The distance of a row of x and a row of y: finite, not negative. It is called once for each
        pair of distinct rows; the assignment takes memory in proportion to ``|X| |Y|``.
    """
    from scipy.optimize import linear_sum_assignment  # slow to import, and rarely needed

    _, _, cost = _cost_matrix(x, y, distance)
    if cost.size == 0:
        return 0.0
    return math.fsum(cost[linear_sum_assignment(cost)])


def match_and_compare(
    x: Rows, y: Rows, distance: Distance, *, power: float = 1.0, degree: float = 1.0
) -> float:
    """Return the Match-And-Compare distance (Ioannidis and Poosala 1999; paper 1, section 2.2).

    Match: consider the complete bipartite graph over the rows of x and of y, with ``distance`` as
    the weight of an edge. Take a set of edges of least total weight that touches every row, without
    unnecessary edges; this cover consists of stars. Compare: sum ``weight**power * ends**degree``
    over its edges, where ``ends`` is the larger of the numbers of edges at the two ends. With
    ``degree=0`` and ``power=1`` the result is the weight of the cover.

    Paper 1 says only that the distance is "a function of the weights of the edges in the cover and
    the number of edges incident to each node". The function above is this library's choice: a row
    that stands for many others counts more. If several covers have the least weight, the order of
    the rows' text decides. So the value does not depend on the order of rows, nor on which set
    comes first if the distance is symmetric. With ``degree=0`` and ``power=1`` all of these covers
    give the same value.

    The result is 0 for two empty sets. It is infinite if only one is empty, because no cover
    exists. A missing row costs nothing if an equal row is present: its edge has weight 0.

    Parameters
    ----------
    x, y, distance
        As for :func:`earth_movers_distance`.
    power, degree
        The exponents, not negative.
    """
    for name, value in (("power", power), ("degree", degree)):
        if not (math.isfinite(value) and value >= 0):
            raise TidegateError(
                f"{name} must be a finite number of at least 0, not {quoted(value)}"
            )
    left, right, cost = _cost_matrix(x, y, distance)
    if cost.size == 0:
        return 0.0 if len(left) == len(right) else math.inf
    if (len(right), right) < (len(left), left):
        cost = cost.T
    edges = _edge_cover(cost)
    weights = cost[edges[:, 0], edges[:, 1]]
    ends = np.maximum(
        np.bincount(edges[:, 0], minlength=cost.shape[0])[edges[:, 0]],
        np.bincount(edges[:, 1], minlength=cost.shape[1])[edges[:, 1]],
    )
    # An edge of weight 0 costs nothing, even if power is 0.
    terms = np.where(weights > 0, weights**power * ends**degree, 0.0)
    return math.fsum(terms)


def _edge_cover(cost: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the edges of a minimum-weight cover of a complete bipartite graph.

    If every row takes its cheapest edge, an edge between two rows can replace both of their
    cheapest edges, and saves the difference. So the best cover is the matching with the largest
    total saving, plus the cheapest edge of every row that is not matched. Unnecessary edges are
    removed at the end.
    """
    from scipy.optimize import linear_sum_assignment  # slow to import, and rarely needed

    cheapest_of_row = cost.argmin(axis=1)
    cheapest_of_column = cost.argmin(axis=0)
    saving = cost.min(axis=1)[:, None] + cost.min(axis=0)[None, :] - cost
    rows, columns = linear_sum_assignment(np.maximum(saving, 0.0), maximize=True)
    useful = saving[rows, columns] > 0
    edges = set(zip(rows[useful].tolist(), columns[useful].tolist(), strict=True))
    unmatched_rows = np.setdiff1d(np.arange(cost.shape[0]), rows[useful])
    unmatched_columns = np.setdiff1d(np.arange(cost.shape[1]), columns[useful])
    edges.update((int(row), int(cheapest_of_row[row])) for row in unmatched_rows)
    edges.update((int(cheapest_of_column[column]), int(column)) for column in unmatched_columns)

    of_row = Counter(row for row, _ in edges)
    of_column = Counter(column for _, column in edges)
    for row, column in sorted(edges, key=lambda edge: (-cost[edge], edge)):
        if of_row[row] > 1 and of_column[column] > 1:
            edges.remove((row, column))
            of_row[row] -= 1
            of_column[column] -= 1
    return np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)


def _cost_matrix(
    x: Rows, y: Rows, distance: Distance
) -> tuple[list[str], list[str], npt.NDArray[np.float64]]:
    """Return the text of every row of x and of y, sorted, and the matrix of their distances."""
    if isinstance(x, pa.Table) and isinstance(y, pa.Table):
        y = _same_columns(x, y)
    left = sorted(multiset(x).items(), key=_text)
    right = sorted(multiset(y).items(), key=_text)
    left_counts = [count for _, count in left]
    right_counts = [count for _, count in right]
    cells = sum(left_counts) * sum(right_counts)
    if cells > _MOST_CELLS:
        raise TidegateError(
            f"the two sets have {sum(left_counts):,} and {sum(right_counts):,} rows, too many to "
            f"compare every pair (at most {_MOST_CELLS:,} pairs); compare samples of them"
        )
    small = np.array(
        [[_checked(distance, a, b) for b, _ in right] for a, _ in left], dtype=np.float64
    ).reshape(len(left), len(right))
    cost = np.repeat(np.repeat(small, left_counts, axis=0), right_counts, axis=1)
    return (
        [repr(row) for row, count in left for _ in range(count)],
        [repr(row) for row, count in right for _ in range(count)],
        cost,
    )


def _text(item: tuple[Hashable, int]) -> str:
    return repr(item[0])


def _checked(distance: Distance, a: Any, b: Any) -> float:
    value = float(distance(a, b))
    if not (math.isfinite(value) and value >= 0):
        raise TidegateError(
            f"distance must be finite and not negative, but is {quoted(value)} for {quoted(a)} "
            f"and {quoted(b)}"
        )
    return value


def _counts(x: Rows, y: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return how often each row of x or y occurs in x, and how often in y."""
    if isinstance(x, pa.Table) != isinstance(y, pa.Table):
        raise TidegateError(
            f"compare two tables or two iterables, "
            f"not a {type(x).__name__} with a {type(y).__name__}"
        )
    if isinstance(x, pa.Table):
        counts, _ = _grouped([x, _same_columns(x, y)])
        return counts[0], counts[1]
    a, b = multiset(x), multiset(y)
    rows = list(a | b)
    return (
        np.array([a[row] for row in rows], dtype=np.int64),
        np.array([b[row] for row in rows], dtype=np.int64),
    )


def _same_columns(x: pa.Table, y: pa.Table) -> pa.Table:
    """Return y with its columns in the order of x, or raise an error if the columns differ."""
    if sorted(x.column_names) != sorted(y.column_names):
        raise TidegateError(
            f"both tables must have the same columns, not {x.column_names} and {y.column_names}"
        )
    if x.column_names != y.column_names:
        if len(set(x.column_names)) < x.num_columns:
            raise TidegateError(f"column names must differ from each other: {x.column_names}")
        y = y.select(x.column_names)
    for ours, theirs in zip(x.schema, y.schema, strict=True):
        if ours.type != theirs.type:
            raise TidegateError(
                f'column "{ours.name}" is {ours.type} in one table and {theirs.type} in the '
                f"other; cast one of them"
            )
    return y


def _grouped(
    tables: list[pa.Table],
) -> tuple[list[npt.NDArray[np.int64]], npt.NDArray[np.int64]]:
    """Group equal rows of all tables; return counts per table and each group's first row."""
    total = sum(table.num_rows for table in tables)
    codes = {
        f"c{index}": _codes([table.column(index) for table in tables])
        for index in range(tables[0].num_columns)
    }
    origin = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    data = {f"n{index}": (origin == index).astype(np.int64) for index in range(len(tables))}
    data["first"] = np.arange(total, dtype=np.int64)
    # All rows of a table without columns are equal.
    data.update(codes or {"c0": np.zeros(total, dtype=np.int64)})
    keys = list(codes) or ["c0"]
    sums = [(f"n{index}", "sum") for index in range(len(tables))]
    grouped = pa.table(data).group_by(keys).aggregate([*sums, ("first", "min")])
    counts = [grouped[f"n{index}_sum"].to_numpy().astype(np.int64) for index in range(len(tables))]
    return counts, grouped["first_min"].to_numpy().astype(np.int64)


def _codes(columns: list[pa.ChunkedArray]) -> npt.NDArray[np.int64]:
    """Return a number for each value of a column, the same for equal values and for nulls."""
    kind = columns[0].type
    values = pa.chunked_array([chunk for column in columns for chunk in column.chunks], type=kind)
    if pa.types.is_dictionary(kind):
        values, kind = values.cast(kind.value_type), kind.value_type
    if pa.types.is_floating(kind):
        values = values.cast(pa.float64())
        # Adding 0.0 turns -0.0 into 0.0; all NaNs become the same NaN.
        values = pc.if_else(pc.is_nan(values), math.nan, pc.add(values, 0.0))
    if pa.types.is_nested(kind):
        seen: dict[Hashable, int] = {}
        listed = [seen.setdefault(_frozen(value), len(seen)) for value in values.to_pylist()]
        return np.array(listed, dtype=np.int64)
    encoded = values.dictionary_encode(null_encoding="encode")
    numbers = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
    return np.concatenate([np.empty(0, dtype=np.int64), *numbers]).astype(np.int64, copy=False)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a view column as strings or bytes: Arrow cannot take rows from views."""
    if pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    if pa.types.is_binary_view(column.type):
        return column.cast(pa.large_binary())
    return column


def _frozen(value: Any) -> Hashable:
    """Return a hashable form of an Arrow value; equal values have equal forms."""
    if isinstance(value, float):
        return math.nan if value != value else value + 0.0
    if isinstance(value, dict):
        return tuple((name, _frozen(part)) for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(part) for part in value)
    frozen: Hashable = value
    return frozen


def _importance_column(results: pa.Table, name: str) -> pa.ChunkedArray:
    if results.column_names.count(name) != 1:
        raise TidegateError(
            f'columns must name columns of the results, not "{name}"; '
            f"they have {results.column_names}"
        )
    column = results.column(name)
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise TidegateError(f'importance column "{name}" must hold numbers, not {kind}')
    numbers = column.cast(pa.float64()).fill_null(0.0)
    return pc.if_else(pc.is_nan(numbers), 0.0, numbers)


def _ratio(part: int, whole: int, *, empty: float) -> float:
    return part / whole if whole else empty
