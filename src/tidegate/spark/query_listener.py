"""What Spark says of queries, for a pool: that one starts, how far it is, and how it ended."""

from __future__ import annotations

from typing import Any, Protocol


class QueryListener(Protocol):
    """Who wants to know."""

    def start(self, run: str, query: str) -> None:
        """Hear that a query starts."""

    def on_progress(self, progress: Any) -> None:
        """Hear of a batch."""

    def end(self, run: str, *, in_flight: bool) -> None:
        """Hear that a query has ended, in the middle of a batch or not."""


def listen(spark: Any, hearer: QueryListener) -> bool:
    """Have somebody hear of all queries of a session; whether of a start before its first batch.

    Connect tells of it later, and not which batches a query had planned when it ended: they may
    always be more than it has done then.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    is_classic = hasattr(spark, "_jsparkSession")
    queries: dict[str, Any] = {}

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            if is_classic:
                # Ends are told of later than starts, and who starts now may need what they had.
                for run in [run for run, own in list(queries.items()) if not own.isActive]:
                    self._end(run)
                # `get` knows it while it runs only.
                queries[str(event.runId)] = spark.streams.get(str(event.id))
            hearer.start(str(event.runId), str(event.id))

        def onQueryProgress(self, event: Any) -> None:
            hearer.on_progress(event.progress)

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            self._end(str(event.runId))

        def _end(self, run: str) -> None:
            query = queries.pop(run, None)
            if query is None and is_classic:
                return
            for progress in [] if query is None else query.recentProgress:
                hearer.on_progress(progress)
            hearer.end(run, in_flight=query is None or _is_in_flight(query))

    spark.streams.addListener(Listener())
    return is_classic


def _is_in_flight(query: Any) -> bool:
    """Whether a query that has ended had planned a batch that is not committed."""
    from py4j.protocol import Py4JError

    try:
        execution = query._jsq.streamingQuery()
        planned, done = execution.offsetLog(), execution.commitLog()
        same: bool = planned.getLatestBatchId().equals(done.getLatestBatchId())
    except (Py4JError, OSError):
        return True
    return not same
