"""`tidegate.truncated_join`: the best join of finite inputs under a budget of input rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.api.inputs import all_on_spark, local_table, refuse_local_settings
from tidegate.api.keywords import LocalTruncatedJoin, Settings, SparkTruncatedJoin
from tidegate.api.public_call import public_call
from tidegate.api.result import Result
from tidegate.api.run_local import result_of
from tidegate.errors import TidegateError
from tidegate.joins.truncated import engine
from tidegate.joins.truncated.spec import TruncatedJoin
from tidegate.joins.truncated.spec import truncated_join as truncated_spec
from tidegate.settings.checks import flag
from tidegate.settings.types import LocalData

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@overload
def truncated_join(  # type: ignore[overload-overlap]
    left: DataFrame | Sequence[DataFrame],
    right: DataFrame | None = None,
    **settings: Unpack[SparkTruncatedJoin],
) -> DataFrame: ...
@overload
def truncated_join(
    left: LocalData | Sequence[LocalData],
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
        Batch Spark DataFrames, or local data as `tidegate.join` takes it. More than two inputs,
        joined on one key, are given as a list in place of `left`.
    on
        The key: a column name, a list of them, or (for two) a ``{left: right}`` mapping.
    keep, delete
        The budget: the number of rows to keep, or to delete; give one of the two. One number is for
        both inputs together, a list has one for each. A budget larger than the inputs keeps, or
        deletes, all rows.
    method
        ``"optimal"``, the default for two inputs. With one budget also ``"adg"``, a greedy method
        that keeps at least half of the optimum, and mostly over 99.5 %; with a budget for each
        input ``"ndg"``, a greedy method that loses at most twice as many results as necessary. With
        a budget for each of two inputs, the search for the optimum stops if it takes too long, and
        a warning gives the upper bound. For m > 2 inputs, ``"independent"``, the default, or
        ``"ndg"``: they lose at most m times as many results as necessary (``"independent"`` also
        works for two).
    time, per
        To join by tumbling windows: the time column, one name or one for each input, and the length
        of a window, such as ``"1 hour"`` (a number where times are numbers). Rows join within their
        window, and each window has the budget. Windows begin at multiples of their length, for
        timestamps counted from the start of 1970 in UTC.
    suffixes
        What is added to column names that several inputs have; ``("_left", "_right")`` for two,
        ``("_1", "_2", "_3")`` and so on for more.
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
        the join of all rows.

    Examples
    --------
    >>> import tidegate as tg
    >>> left = {"k": [1, 1, 1, 2, 2, 3]}
    >>> right = {"k": [1, 1, 2, 2, 3]}
    >>> tg.truncated_join(left, right, on="k", keep=5).results
    6

    A streaming DataFrame is joined batch by batch, inside ``foreachBatch``::

        def each(batch, number):
            batch.persist()  # it is read twice
            kept = tg.truncated_join(batch, rooms, on="room", keep=1_000)
            kept.write.mode("append").parquet("matches")
            batch.unpersist()

        readings.writeStream.foreachBatch(each).start()
    """
    inputs = _inputs(left, right)
    if all_on_spark(_by_name(inputs)):
        refuse_local_settings(None, keep_shed, "the rows that were not kept are not returned")
        return _on_spark(inputs, settings)
    kept = flag(keep_shed, "keep_shed")
    tables = [local_table(data) for data in inputs]
    spec = truncated_spec([table.schema for table in tables], **settings)
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


def _inputs(left: Any, right: Any) -> list[Any]:
    """Return the inputs: two, or a list of two and more."""
    given = left if right is None else [left, right]
    if not isinstance(given, list | tuple) or len(given) < 2:
        raise TidegateError(
            "a truncated join takes a left and a right input, or a list of two and more as its "
            f"first argument, not {'one' if right is None else 'none'}"
        )
    if right is not None and isinstance(left, list | tuple):
        raise TidegateError(
            "a truncated join takes all its inputs in one list, or a left and a right one: put the "
            "right input into the list"
        )
    return list(given)


def _by_name(inputs: list[Any]) -> dict[str, Any]:
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


def _on_spark(frames: list[Any], settings: Settings) -> DataFrame:
    from tidegate.spark import packing, truncated

    spec = truncated_spec([packing.arrow_schema(frame.schema) for frame in frames], **settings)
    for frame, relation in zip(frames, spec.relations, strict=True):
        if frame.isStreaming:
            raise TidegateError(
                f"the {relation.name} input is a streaming DataFrame, and a truncated join needs "
                "all rows at once; call it on the batches of a stream, inside foreachBatch"
            )
    return truncated.run(spec, frames)
