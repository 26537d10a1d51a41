"""`tidegate.truncated_join`: the best join of finite inputs under a budget of input rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray

from tidegate.api.inputs import all_on_spark, is_spark, local_table, refuse_local_settings
from tidegate.api.keywords import LocalTruncatedJoin, Settings, SparkTruncatedJoin
from tidegate.api.public_call import public_call
from tidegate.api.result import Result
from tidegate.api.run_local import result_of
from tidegate.errors import TidegateError
from tidegate.joins.truncated import engine
from tidegate.joins.truncated.spec import TruncatedJoin
from tidegate.joins.truncated.spec import truncated_join as truncated_spec
from tidegate.settings.checks import flag
from tidegate.settings.columns import is_table
from tidegate.settings.types import LocalData
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@overload
def truncated_join(  # type: ignore[overload-overlap]
    left: DataFrame | Sequence[DataFrame] | Mapping[str, DataFrame],
    right: DataFrame | None = None,
    **settings: Unpack[SparkTruncatedJoin],
) -> DataFrame: ...
@overload
def truncated_join(
    left: LocalData | Sequence[LocalData] | Mapping[str, LocalData],
    right: LocalData | None = None,
    **settings: Unpack[LocalTruncatedJoin],
) -> Result: ...
@public_call(checked_by=truncated_spec)
def truncated_join(
    left: Any,
    right: Any = None,
    *,
    keep_shed: bool = False,
    **settings: Any,
) -> Any:
    """Join as much of two or more finite inputs as a budget of input rows allows.

    Rows to keep are chosen so that their join is as large as possible (section 3 of Das, Gehrke,
    Riedewald, *Semantic Approximation of Data Stream Joins*).

    Parameters
    ----------
    left, right
        Batch Spark DataFrames, or local data as `tidegate.join` takes it. More than two inputs are
        given as a list, or as a mapping of names to inputs, in place of `left`.
    on
        The key: a column name, a list of them, or (for two) a ``{left: right}`` mapping. A chain
        such as A(J1), B(J1, J2), C(J2) has a list of mappings, one for each input and the next one:
        ``[{"j1": "j1"}, {"j2": "j2"}]``.
    keep, delete
        The budget: the number of rows to keep, or to delete; give one of the two. One number is for
        all inputs together; a list, or a mapping by name, has one for each. A budget larger than
        the inputs keeps, or deletes, all rows.
    method
        ``"optimal"``, the default: the most results. Joins on one key with one budget are solved
        exactly. For two inputs with a budget for each, for more of them, and for chains, the search
        for the optimum stops if it takes too long, and a warning gives the upper bound. With one
        budget for two inputs also ``"adg"``, a greedy method that keeps at least half of the
        optimum, and mostly over 99.5 %. With a budget for each of m inputs also ``"ndg"`` and
        ``"independent"``, greedy methods that lose at most m times as many results as necessary.
    time, per
        To join by tumbling windows: the time column, one name or one for each input, and the length
        of a window, such as ``"1 hour"`` (a number where times are numbers). Rows join within their
        window, and each window has the budget. Windows begin at multiples of their length, for
        timestamps counted from the start of 1970 in UTC.
    counts
        If the inputs are histograms: the column with the number of rows that a row stands for. Only
        the plan is made, which says how many of these rows to keep. Only with local data.
    suffixes
        What is added to column names that several inputs have; ``("_left", "_right")`` for two,
        ``("_1", "_2", "_3")`` and so on for more, or the names of the inputs.
    seed
        The seed of the choice between rows of one key, if only some of them are kept.
    keep_shed
        True keeps the rows that were not kept in ``shed`` of the result: ``why`` is ``"truncated"``
        or ``"no partner"``, and ``shed_at`` is null. Only with local data.

    Returns
    -------
    DataFrame or Result
        A DataFrame from DataFrames, a `Result` from local data: the columns of all inputs, in
        order. DataFrames are read twice, first to count: they must be the same each time. Counters
        of a `Result` are the rows ``kept``, also of each input, and ``exact_results``, the size of
        the join of all rows. With `counts`, the table has the rows of all histograms, ``input``,
        the name of the input, and ``keep``, the rows to keep; ``results`` is the size of their
        join.

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"k": [1, 1, 1, 2, 2, 3]}
    >>> right = {"k": [1, 1, 2, 2, 3]}
    >>> tg.truncated_join(left, right, on="k", keep=5).results
    6

    Sensors send histograms first, and then only the rows that the plan asks them for:

    >>> left = {"k": [1, 2, 3], "rows": [3, 2, 1]}
    >>> right = {"k": [1, 2, 3], "rows": [2, 2, 1]}
    >>> plan = tg.truncated_join(left, right, on="k", keep=5, counts="rows")
    >>> plan.table.select(["input", "k", "keep"]).to_pylist()[0]
    {'input': 'left', 'k': 1, 'keep': 3}
    >>> plan.results
    6

    A streaming DataFrame is joined batch by batch, inside ``foreachBatch``::

        def each(batch, number):
            batch.persist()  # it is read twice
            kept = tg.truncated_join(batch, rooms, on="room", keep=1_000)
            kept.write.mode("append").parquet("matches")
            batch.unpersist()

        readings.writeStream.foreachBatch(each).start()
    """
    names, inputs = _inputs(left, right)
    if all_on_spark(_by_name(names, inputs)):
        refuse_local_settings(None, keep_shed, "the rows that were not kept are not returned")
        return _on_spark(inputs, names, settings)
    kept = flag(keep_shed, "keep_shed")
    tables = [local_table(data) for data in inputs]
    spec = truncated_spec([table.schema for table in tables], names, **settings)
    if spec.counts is not None:
        if kept:
            raise TidegateError(
                "keep_shed=True is for rows, and counts="
                f"{quoted(spec.counts)} makes a plan from histograms: leave one of them out"
            )
        planned, counters = engine.run_histograms(spec, tables)
        return Result(planned, counters["results"], float(counters["results"]), counters)
    done = engine.run(spec, tables)
    if not kept:
        return result_of(done.table, done.counters)
    shed = [
        _not_kept(spec, at, table, rows, why)
        for at, table in enumerate(tables)
        for why, rows in (
            ("truncated", done.left_out[at]),
            ("no partner", done.partnerless[at]),
        )
    ]
    return result_of(done.table, done.counters, pa.concat_tables(shed))


def _inputs(left: Any, right: Any) -> tuple[list[str] | None, list[Any]]:
    """Return the inputs and, if they were given as a mapping, their names."""
    names = None
    given = left if right is None else [left, right]
    if right is None and isinstance(left, Mapping) and all(map(_is_input, left.values())):
        names, given = list(left), list(left.values())
        wrong = [name for name in names if not isinstance(name, str) or not name]
        if wrong:
            raise TidegateError(f"an input must have a text as its name, not {quoted(wrong[0])}")
    if not isinstance(given, list | tuple) or len(given) < 2:
        raise TidegateError(
            "a truncated join takes a left and a right input, or a list or mapping of two and more "
            f"as its first argument, not {'one' if right is None else 'none'}"
        )
    if right is not None and isinstance(left, list | tuple):
        raise TidegateError(
            "a truncated join takes all its inputs in one list, or a left and a right one: put the "
            "right input into the list"
        )
    return names, list(given)


def _is_input(data: Any) -> bool:
    """True if a value of a mapping is an input, and not the values of a column."""
    return is_spark(data) or isinstance(data, ds.Dataset | ds.Scanner) or is_table(data)


def _by_name(names: list[str] | None, inputs: list[Any]) -> dict[str, Any]:
    if names is not None:
        return {f"the {name} input": data for name, data in zip(names, inputs, strict=True)}
    if len(inputs) == 2:
        return {"left": inputs[0], "right": inputs[1]}
    return {f"the input {at}": data for at, data in enumerate(inputs, 1)}


def _not_kept(
    spec: TruncatedJoin, at: int, table: pa.Table, rows: NDArray[np.int64], why: str
) -> pa.Table:
    """Return rows that were not kept in the form of `Result.shed`."""
    count = len(rows)
    columns = {
        "side": pa.array([spec.relations[at].name] * count, pa.string()),
        "shed_at": pa.nulls(count, pa.int64()),
        "why": pa.array([why] * count, pa.string()),
    }
    for i, relation in enumerate(spec.relations):
        kind = pa.struct(list(relation.schema))
        taken = table.take(pa.array(rows)).to_struct_array() if i == at else pa.nulls(count, kind)
        columns[relation.name] = taken
    return pa.table(columns)


def _on_spark(frames: list[Any], names: list[str] | None, settings: Settings) -> DataFrame:
    from tidegate.spark import packing, truncated

    if settings["counts"] is not None:
        raise TidegateError(
            f"counts={quoted(settings['counts'])} is for local data: histograms are small, so give "
            "them with .toArrow()"
        )
    schemas = [packing.arrow_schema(frame.schema) for frame in frames]
    spec = truncated_spec(schemas, names, **settings)
    for frame, relation in zip(frames, spec.relations, strict=True):
        if frame.isStreaming:
            raise TidegateError(
                f"the {relation.name} input is a streaming DataFrame, and a truncated join needs "
                "all rows at once; call it on the batches of a stream, inside foreachBatch"
            )
    return truncated.run(spec, frames)
