"""`tidegate.estimate`: aggregates of a join from a sample of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, overload

from tidegate.api.inputs import is_spark, local_table
from tidegate.api.keywords import Estimate
from tidegate.api.public_call import public_call
from tidegate.api.result import Result
from tidegate.api.run_local import result_of
from tidegate.joins.sampled.estimates import estimated, estimation
from tidegate.settings.types import LocalData

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@overload
def estimate(  # type: ignore[overload-overlap]
    sample: DataFrame, **settings: Unpack[Estimate]
) -> DataFrame: ...
@overload
def estimate(sample: Result | LocalData, **settings: Unpack[Estimate]) -> Result: ...
@public_call(checked_by=estimation)
def estimate(
    sample: Any,
    *,
    groups: Any = None,
    **settings: Any,
) -> Any:
    """Estimate counts, sums and averages of a join from a sample of it, with their errors.

    Parameters
    ----------
    sample
        What `tidegate.sample_join` returned: a DataFrame, streaming or batch, a `Result`, or its
        table. Columns may have been added, and rows filtered by a condition of their own.
    value
        The column to add up and average; None only counts.
    by
        The column or columns to group by.
    time, per
        To aggregate by tumbling windows: the time column, or both of a pair, of which the later
        counts; and the length of a window, such as ``"5 minutes"`` (a number where times are
        numbers). Streams need both, on timestamps.
    every
        How far apart windows begin, for sliding windows: with ``per="1 hour"`` and
        ``every="5 minutes"`` each row counts in twelve windows. At most `per`, and at least a
        thousandth of it. None is `per`: each row counts in one window.
    confidence
        The probability that an interval contains the true value.
    lateness
        On a stream, how much older than the newest row a row may be and still count in its window.
        Where the joined streams had watermarks, these are used, and `lateness` must be left out.
    groups
        A table of the expected groups: those that were never sampled are then in the result, as
        unknown (null). Not for streams.

    Returns
    -------
    DataFrame or Result
        A DataFrame from a DataFrame, otherwise a `Result`. It has a row for each window and group:
        ``window`` (its start) and the group; ``count``, ``sum`` and ``avg``, each with its standard
        error (``count_error``) and interval (``count_low``, ``count_high``); and the number of
        ``clusters`` and ``rows`` of the sample that it is based on. A group that was not sampled
        has no row, or one of nulls if `groups` names it. The error of an average that is based on
        one cluster is unknown.

    Examples
    --------
    >>> import tidegate as tg
    >>> clicks = {"user": [1, 2, 1, 3], "ts": [0, 1, 2, 3]}
    >>> buys = {"user": [1, 1, 3], "ts": [3, 4, 5], "price": [10, 20, 5]}
    >>> sample = tg.sample_join(clicks, buys, on="user", time="ts", within=5, fraction=1.0)
    >>> tg.estimate(sample, value="price").table.select(["count", "sum", "sum_error"]).to_pylist()
    [{'count': 5.0, 'sum': 65.0, 'sum_error': 0.0}]

    References
    ----------
    Cochran, *Sampling Techniques*; Srivastava, Widom, *Memory-Limited Execution of Windowed Stream
    Joins*, section 4.3.
    """
    settings["groups"] = groups.toArrow() if is_spark(groups) else groups
    if is_spark(sample):
        from tidegate.spark import estimates, packing

        return estimates.run(estimation(packing.arrow_schema(sample.schema), **settings), sample)
    table = local_table(sample.table if isinstance(sample, Result) else sample)
    found = estimated(estimation(table.schema, **settings), table)
    return result_of(found, {"sampled": table.num_rows, "results": found.num_rows})
