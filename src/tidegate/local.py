"""The same calls as on Spark, on Arrow tables and pandas, in this process."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.columns import hash_columns
from tidegate.engines.window import WindowEngine, WindowJob
from tidegate.errors import TidegateError
from tidegate.policies import ByFrequency
from tidegate.policies.base import as_table
from tidegate.spec import WindowJoin, frequencies_of, window_join


@dataclass(frozen=True)
class Result:
    """What a join gave.

    Attributes
    ----------
    table
        The result rows: the left's columns, then the right's.
    results
        How many there are.
    importance
        Their total importance; the number of rows where none was asked for.
    counters
        What happened to the tuples: arrived, admitted, evicted, expired and so on.
    shed
        The tuples that left early: ``side``, ``left_at`` (when, in the time column's numbers),
        ``why`` (``"evicted"``, or ``"rejected"`` on arrival) and the tuple.
    """

    table: pa.Table
    results: int
    importance: float
    counters: dict[str, int | float]
    shed: pa.Table


def join(left: Any, right: Any, *, batch_rows: int = 1 << 20, **settings: Any) -> Result:
    """Join two finite streams in bounded memory; see `tidegate.join` for the settings.

    Parameters
    ----------
    left, right
        Arrow tables or pandas DataFrames, in any order of rows. Columns that are encoded
        (dictionaries, runs, views) are decoded.
    batch_rows
        How many rows are taken at once. The answer does not depend on it, but for `Life` with
        more keys in memory than it ranks exactly.
    **settings
        As `tidegate.join` takes them, except `shards`: there is one.
    """
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise TidegateError(f"batch_rows must be a positive number of rows, not {batch_rows!r}")
    _check_names(settings)
    tables = [decoded(as_table(left)), decoded(as_table(right))]
    spec = window_join(tables[0].schema, tables[1].schema, **settings)
    job = WindowJob(_counted(spec, tables))
    engine = WindowEngine(job.spec, keep_shed=True)
    counters: dict[str, int | float] = {}
    found: list[pa.RecordBatch] = []
    for inputs in _in_step(job, tables, batch_rows, counters):
        found += engine.feed(inputs)
    found += engine.finish()
    for name, value in engine.take_counters().items():
        counters[name] = counters.get(name, 0) + value
    return Result(
        table=pa.Table.from_batches(found, spec.result_schema),
        results=int(counters["results"]),
        importance=float(counters["importance"]),
        counters=counters,
        shed=engine.take_shed(),
    )


def _check_names(settings: dict[str, Any]) -> None:
    """Say which setting is not one, or is missing."""
    known = {
        name: parameter
        for name, parameter in inspect.signature(window_join).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    for name in settings:
        if name not in known:
            raise TidegateError(f"there is no setting {name!r}; there are {', '.join(known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in settings:
            raise TidegateError(f"the setting {name!r} is missing: a join needs time and within")


def decoded(table: pa.Table) -> pa.Table:
    """The same values, without encodings that rows cannot be gathered from."""
    for at, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        if pa.types.is_string_view(kind):
            kind = pa.string()
        elif pa.types.is_binary_view(kind):
            kind = pa.binary()
        if kind != field.type:
            table = table.set_column(at, field.with_type(kind), table.column(at).cast(kind))
    return table


def _in_step(
    job: WindowJob, tables: list[pa.Table], batch_rows: int, counters: dict[str, int | float]
) -> Iterator[list[list[pa.RecordBatch]]]:
    """The rows of both tables in order of time, some at once."""
    prepared = []
    for stream, table in enumerate(tables):
        batch, dropped = job.prepare(stream, single(table))
        prepared.append(batch)
        for name, value in dropped.items():
            counters[name] = counters.get(name, 0) + value
    times = [b.column("time").to_numpy() for b in prepared]
    orders = [np.argsort(t, kind="stable") for t in times]
    prepared = [b.take(pa.array(o)) for b, o in zip(prepared, orders, strict=True)]
    times = [t[o] for t, o in zip(times, orders, strict=True)]
    cuts = np.sort(np.concatenate(times))[batch_rows::batch_rows]
    ends = [[*np.searchsorted(t, cuts), len(t)] for t in times]
    for i in range(len(cuts) + 1):
        starts = [e[i - 1] if i else 0 for e in ends]
        yield [
            [b.slice(start, end[i] - start)]
            for b, start, end in zip(prepared, starts, ends, strict=True)
        ]


def single(table: pa.Table) -> pa.RecordBatch:
    """A table as one batch."""
    return pa.concat_batches([pa.RecordBatch.from_pylist([], table.schema), *table.to_batches()])


def _counted(spec: WindowJoin, tables: list[pa.Table]) -> WindowJoin:
    """Count both inputs first, if the policy asks for the whole streams' frequencies."""
    policy = spec.policy
    if spec.memory is None or not isinstance(policy, ByFrequency) or not policy.whole:
        return spec
    counts = []
    for side, table in zip(spec.sides, tables, strict=True):
        keys = single(table.select(list(side.keys)).drop_null())
        hashes = hash_columns(keys.columns, keys.num_rows)
        counts.append((hashes, np.ones(len(hashes))))
    return replace(spec, frequencies=frequencies_of(counts[0], counts[1]))
