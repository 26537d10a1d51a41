"""Pass Spark's events about streaming queries on to a pool: start, progress and end."""

from __future__ import annotations

from typing import Any, Protocol


class QueryListener(Protocol):
    """Receives the start, the progress and the end of queries."""

    def start(self, run: str, query: str) -> None:
        """Handle the start of a run."""

    def on_progress(self, progress: Any) -> None:
        """Handle the progress report of a batch."""

    def end(self, run: str, *, in_flight: bool) -> None:
        """Handle the end of a run. `in_flight`: a planned batch was not committed."""


def listen(spark: Any, listener: QueryListener) -> bool:
    """Register a query listener. Return True if start events precede the first batch.

    Spark Connect sends start events later. It also does not say which batches were planned when a
    query ended, so a batch must be assumed to be in flight.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    is_classic = hasattr(spark, "_jsparkSession")
    queries: dict[str, Any] = {}

    class SparkListener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            if is_classic:
                # Spark delivers end events late, and a query that starts now may need the memory
                # of one that has ended.
                for run in [run for run, own in list(queries.items()) if not own.isActive]:
                    self._end(run)
                # Fetch it now: `get` only finds running queries.
                queries[str(event.runId)] = spark.streams.get(str(event.id))
            listener.start(str(event.runId), str(event.id))

        def onQueryProgress(self, event: Any) -> None:
            listener.on_progress(event.progress)

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            self._end(str(event.runId))

        def _end(self, run: str) -> None:
            query = queries.pop(run, None)
            if query is None and is_classic:
                return
            for progress in [] if query is None else query.recentProgress:
                listener.on_progress(progress)
            listener.end(run, in_flight=query is None or _is_in_flight(query))

    spark.streams.addListener(SparkListener())
    return is_classic


def _is_in_flight(query: Any) -> bool:
    """Return True if an ended query had planned a batch that it did not commit."""
    from py4j.protocol import Py4JError

    try:
        execution = query._jsq.streamingQuery()
        planned, done = execution.offsetLog(), execution.commitLog()
        same: bool = planned.getLatestBatchId().equals(done.getLatestBatchId())
    except (Py4JError, OSError):
        return True
    return not same
