"""The friendly call for the best join of a batch under an input budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.api import local
from tidegate.errors import TidegateError
from tidegate.joins.truncated.spec import truncated_join as checked


def truncated_join(
    left: Any,
    right: Any = None,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    keep: int | Sequence[int] | None = None,
    delete: int | Sequence[int] | None = None,
    method: str | None = None,
    time: str | Sequence[str] | None = None,
    per: Any = None,
    suffixes: Sequence[str] | None = None,
    seed: int = 0,
    keep_shed: bool = False,
) -> Any:
    """Join as much of two or more relations as a budget of input rows allows.

    Which rows are kept is chosen so that the join of them is as large as it can be (section 3 of
    Das, Gehrke, Riedewald, *Semantic Approximation of Data Stream Joins*).

    Parameters
    ----------
    left, right
        Batch Spark DataFrames, Arrow tables or pandas DataFrames. More than two relations, joined
        on one key, are given as a list in place of `left`.
    on
        The key: a column name, a list of them, or (for two) a ``{left: right}`` mapping.
    keep, delete
        The budget: how many rows to keep, or how many to delete. One number for both inputs
        together, or one for each; give one of the two settings. A budget that is larger than the
        inputs keeps, or deletes, all there is.
    method
        ``"optimal"``, the default for two inputs; with one budget also ``"adg"``, a greedy way
        that keeps at least half of the optimum, and mostly over 99.5 %; with a budget for each
        ``"ndg"``, a greedy way that loses at most twice what must be lost. With a budget for each
        of two, the search for the optimum is given up if it takes too long, and a warning says how
        far from it the join may be. For m inputs, m more than two, ``"independent"``, the default,
        or ``"ndg"``: they lose at most m times the results that must be lost (``"independent"``
        may be asked for two as well).
    time, per
        To join by tumbling windows: the time column, one name or one for each input, and how long
        a window is, such as ``"1 hour"`` (a number where times are numbers). Rows join within
        their window, and the budget is each window's. Windows are counted from time 0, for
        timestamps the start of 1970 in UTC.
    suffixes
        What is added to column names that several inputs have; ``("_left", "_right")`` for two,
        ``("_1", "_2", "_3")`` and so on for more.
    seed
        Of the rows of one key that is kept in part, which ones: drawn by their content and this.
    keep_shed
        With tables, whether the `Result` has ``shed``, the rows that were not kept.

    Returns
    -------
    DataFrame or Result
        From DataFrames a DataFrame, otherwise a `Result`: the columns of all inputs, one after the
        other. The inputs are read twice, first to count: they must be the same each time.

    Examples
    --------
    >>> import pyarrow as pa
    >>> left = pa.table({"k": [1, 1, 1, 2, 2, 3]})
    >>> right = pa.table({"k": [1, 1, 2, 2, 3]})
    >>> truncated_join(left, right, on="k", keep=5).results
    6

    A streaming DataFrame is joined batch by batch, inside ``foreachBatch``::

        def each(batch, number):
            batch.persist()  # it is read twice
            kept = tg.truncated_join(batch, rooms, on="room", keep=1_000)
            kept.write.mode("append").parquet("matches")
            batch.unpersist()

        readings.writeStream.foreachBatch(each).start()
    """
    settings: dict[str, Any] = {
        "on": on,
        "keep": keep,
        "delete": delete,
        "method": method,
        "time": time,
        "per": per,
        "suffixes": suffixes,
        "seed": seed,
    }
    inputs = local.relations(left, right)
    on_spark = [hasattr(data, "mapInArrow") for data in inputs]
    if not any(on_spark):
        return local.truncated_join(inputs, keep_shed=keep_shed, **settings)
    if not all(on_spark):
        kinds = ", ".join(type(data).__name__ for data in inputs)
        raise TidegateError(
            f"the inputs must be all Spark DataFrames or none, not {kinds}; "
            "spark.createDataFrame makes one of a table"
        )
    if keep_shed:
        raise TidegateError("keep_shed is for tables: leave it out with Spark DataFrames")
    from tidegate.spark import packing
    from tidegate.spark import truncated as on_frames

    spec = checked([packing.arrow_schema(frame.schema) for frame in inputs], **settings)
    for frame, relation in zip(inputs, spec.relations, strict=True):
        if frame.isStreaming:
            raise TidegateError(
                f"the {relation.name} input is a streaming DataFrame, and a truncated join needs "
                "all rows at once; call it on the batches of a stream, inside foreachBatch"
            )
    return on_frames.run(spec, inputs)
