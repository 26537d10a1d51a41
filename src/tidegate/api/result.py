"""The result of a call on local data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.errors import TidegateError


@dataclass(frozen=True)
class Result:
    """The result of a call on local data.

    Attributes
    ----------
    table
        The result rows: the left's columns, then the right's.
    results
        The number of result rows.
    importance
        The total importance of the results; their number if no importance was given.
    counters
        What happened to the rows: how many ``arrived``, were ``admitted``, ``rejected``, ``shed``,
        ``expired``, came ``out_of_order`` and so on.

    Examples
    --------
    >>> import tidegate as tg
    >>> clicks = {"user": [1, 2, 1], "ts": [0, 1, 2]}
    >>> buys = {"user": [1, 1], "ts": [3, 9]}
    >>> found = tg.join(clicks, buys, on="user", time="ts", within=5, memory=1, policy="fifo")
    >>> found.results
    1
    >>> found.table.column("ts_left").to_pylist()
    [2]
    >>> found.counters["arrived"]
    5
    >>> found.recall
    0.5
    """

    table: pa.Table
    results: int
    importance: float
    counters: dict[str, int | float]
    _shed: pa.Table | None = field(default=None, repr=False)
    _explanation: str | None = field(default=None, repr=False)
    _exact: Callable[[], tuple[float, float, float]] | None = field(default=None, repr=False)
    _series: pa.Table | None = field(default=None, repr=False)

    @property
    def shed(self) -> pa.Table:
        """The rows that were dropped early, if the call was made with ``keep_shed=True``.

        Columns are ``side``, ``shed_at`` (in the numbers of the time column), ``why``
        (``"shed"``, ``"rejected"`` on arrival, ``"queue full"``, ``"null key"`` and so on, or the
        constraint that dropped the row), and the row itself as a struct in the column of its side;
        the others are null. By the column ``mark``, `tidegate.repair` recognizes the row.
        """
        if self._shed is None:
            raise TidegateError(
                "shed was not kept, because it can take more memory than the join itself: give "
                "the call keep_shed=True"
            )
        return self._shed

    @property
    def recall(self) -> float:
        """The share of the exact join's results that were found; only of `tidegate.join`.

        The exact results are counted when this is first asked for, without finding them.
        """
        return self._recall(0)

    @property
    def recall_low(self) -> float:
        """The lower end of the interval (95 %) of `recall`; the same if `recall` is exact.

        Only a condition (`where`) on more than 20,000 pairs makes `recall` an estimate.
        """
        return self._recall(2)

    @property
    def recall_high(self) -> float:
        """The upper end of the interval (95 %) of `recall`; the same if `recall` is exact."""
        return self._recall(1)

    def _recall(self, which: int) -> float:
        if self._exact is None:
            raise TidegateError(
                "only the result of tidegate.join has a recall; measure others with "
                "tidegate.quality.recall"
            )
        exact = self._exact()[which]
        return 1.0 if exact <= self.results else self.results / exact

    @property
    def series(self) -> pa.Table:
        """The counters over time: a row for each batch of ``batch_rows`` rows.

        ``time`` is the newest time of the batch (in the numbers of the time column). Counters of
        events, such as ``results``, ``shed`` and ``expired``, are of that batch alone; ``held`` and
        others that describe the state are those at its end. Of more than 4,096 batches, neighbours
        are put together. Without ``batch_rows``, a batch has about a million rows. Only
        `tidegate.join`, `tidegate.sample_join` and `tidegate.star_join` have a series.
        """
        if self._series is None:
            raise TidegateError(
                "only the result of tidegate.join, tidegate.sample_join or tidegate.star_join has "
                "a series; what happened in total is in counters"
            )
        return self._series

    def explain(self) -> str:
        """Return what a constrained join held at the end, and what kept it from dropping more."""
        if self._explanation is None:
            raise TidegateError(
                "only the result of tidegate.constrained_join or tidegate.cql has an explanation; "
                "what happened to rows elsewhere is in counters"
            )
        return self._explanation
