"""Test a join step by step: feed rows batch by batch, crash, restart, and look at the outcome.

`JoinRun` runs `tidegate.join` on lists of rows. Without a Spark session it feeds the engine in this
process, which takes milliseconds a batch. With one it runs a real streaming query, which takes
about two seconds a batch. Both deliver the same rows with ``shards=1``.

With ``pytest_plugins = ["tidegate.testing"]`` in ``conftest.py``, pytest has two fixtures:
`join_run` starts runs in a temporary folder, and `tidegate_spark` is a small Spark session for all
tests.

Examples
--------
>>> import pyarrow as pa
>>> from tidegate.testing import JoinRun
>>> orders = pa.schema([("id", pa.int64()), ("at", pa.int64())])
>>> payments = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("sum", pa.float64())])
>>> run = JoinRun(orders, payments, on="id", time="at", within=60, memory=100)
>>> run.feed(left=[{"id": 1, "at": 0}, {"id": 2, "at": 5}])
[]
>>> run.restart()
>>> run.feed(right=[{"id": 1, "at": 20, "sum": 9.5}])
[{'id_left': 1, 'at_left': 0, 'id_right': 1, 'at_right': 20, 'sum': 9.5}]
>>> run.expect([{"id_left": 1, "sum": 9.5}])
>>> run.counters["held"]
3
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.engine.base import Engine
from tidegate.engine.counters import FLOWS, MEASURES, OPERATOR
from tidegate.errors import TidegateError
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.spec import window_join
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = Mapping[str, Any]

#: Counters that are added up over batches; of the others, the last value counts.
_SUMMED = frozenset((*FLOWS, *MEASURES, *OPERATOR)) - {"shards"}


class JoinRun:
    """A join that is fed by hand.

    Parameters
    ----------
    left, right
        The schemas of the two streams.
    spark
        A classic Spark session: the join then runs as a streaming query. None runs the engine in
        this process.
    folder
        The folder for the input, the output and the checkpoint of the query; by default a temporary
        one.
    **settings
        The settings of `tidegate.join`.

    Attributes
    ----------
    results
        All results so far, as dictionaries.
    counters
        The counters of the join: events are added up over all batches, and of the present state the
        last values count.
    """

    def __init__(
        self,
        left: pa.Schema,
        right: pa.Schema,
        *,
        spark: SparkSession | None = None,
        folder: str | Path | None = None,
        **settings: Any,
    ) -> None:
        for name, schema in (("left", left), ("right", right)):
            if not isinstance(schema, pa.Schema):
                raise TidegateError(
                    f"{name} must be the schema of a stream, such as "
                    f'pyarrow.schema([("id", pyarrow.int64())]), not {quoted(schema)}'
                )
        self.results: list[dict[str, Any]] = []
        self.counters: dict[str, int | float | None] = {}
        self._schemas = (left, right)
        self._runner: _Local | _Streaming
        if spark is None:
            self._runner = _Local(left, right, settings)
        else:
            self._runner = _Streaming(left, right, settings, spark, folder)

    def feed(self, left: Sequence[Row] = (), right: Sequence[Row] = ()) -> list[dict[str, Any]]:
        """Process one batch of rows, as dictionaries, and return its results."""
        if not left and not right:
            raise TidegateError("feed needs at least one row, in left or in right")
        batches = [
            _batch(schema, rows, name)
            for schema, rows, name in zip(
                self._schemas, (left, right), ("left", "right"), strict=True
            )
        ]
        found, counters = self._runner.feed(batches)
        self._count(counters)
        self.results += found
        return found

    def finish(self) -> list[dict[str, Any]]:
        """End the input, without Spark: process the rows of the last time, and return results."""
        found, counters = self._runner.finish()
        self._count(counters)
        self.results += found
        return found

    def restart(self, *, crashed: bool = False, **settings: Any) -> None:
        """Stop the join and go on from its checkpoint, with other settings if any are given.

        With `crashed`, the last batch is processed again first, with the old settings, as after a
        crash before the end of that batch. Its results must be the same, and are not delivered
        twice.
        """
        self._runner.restart(settings, crashed=crashed)

    def expect(self, rows: Sequence[Row], *, subset: bool = False) -> None:
        """Raise an AssertionError if the results so far are not these rows, in any order.

        Only the columns of the first row are compared. With `subset`, the results may be fewer, but
        none twice.
        """
        columns = list(rows[0]) if rows else list(self.results[0] if self.results else ())
        wanted, found = (
            Counter(tuple(_plain(row[name]) for name in columns) for row in each)
            for each in (rows, self.results)
        )
        missing, extra = wanted - found, found - wanted
        if extra or (missing and not subset):
            raise AssertionError(
                f"results differ, in the columns {', '.join(columns)}:\n"
                f"  missing: {_listed(missing)}\n  not expected: {_listed(extra)}"
            )

    def _count(self, counters: Mapping[str, int | float | None]) -> None:
        for name, value in counters.items():
            before = self.counters.get(name) if name in _SUMMED else None
            self.counters[name] = value if before is None or value is None else before + value


def _batch(schema: pa.Schema, rows: Sequence[Row], name: str) -> pa.RecordBatch:
    """Return rows as a record batch, or raise an error that names the column."""
    for row in rows:
        for column in row:
            if column not in schema.names:
                raise TidegateError(
                    f'a row of the {name} has the column "{column}", and its schema has only '
                    f"{', '.join(schema.names)}"
                )
    try:
        return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TidegateError(f"a row of the {name} does not fit its schema: {error}") from None


def _plain(value: Any) -> Any:
    """Return a value that can be a key of a dictionary."""
    return repr(value) if isinstance(value, dict | list) else value


def _listed(rows: Counter[tuple[Any, ...]]) -> str:
    shown = [f"{row}" + (f" {n} times" if n > 1 else "") for row, n in rows.items()]
    return "; ".join(shown[:10]) + (f"; and {len(shown) - 10} more" if len(shown) > 10 else "")


Found = tuple[list[dict[str, Any]], dict[str, Any]]


class _Local:
    """A join in this process, with the state log that Spark's operator would keep."""

    def __init__(self, left: pa.Schema, right: pa.Schema, settings: dict[str, Any]) -> None:
        self._schemas, self._settings = (left, right), settings
        self._job = self._made()
        self._engine: Engine = self._job.engine_at(0, 1)
        self._log: list[bytes] = []
        self._before: list[bytes] = []
        self._last: list[pa.RecordBatch] = []
        self._found: list[dict[str, Any]] = []

    def _made(self) -> WindowJob:
        settings = {name: value for name, value in self._settings.items() if name != "shards"}
        return WindowJob(window_join(*self._schemas, **settings))

    def feed(self, batches: list[pa.RecordBatch]) -> Found:
        self._before, self._last = list(self._log), batches
        self._found, dropped = self._process(batches)
        if self._log and self._engine.log_is_heavy:
            self._log = self._engine.snapshot()
        else:
            self._log.append(self._engine.changes())
        return self._found, {**self._engine.take_counters(), **dropped}

    def _process(
        self, batches: list[pa.RecordBatch]
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        dropped: Counter[str] = Counter()
        inputs, clocks = [], []
        for side, batch in enumerate(batches):
            prepared, counts = self._job.prepare(side, batch)
            dropped.update(counts)
            inputs.append([prepared])
            times = prepared.column("time").to_numpy()
            clocks.append(times.max().item() if len(times) else None)
        return _rows(self._engine.feed(inputs, clocks)), dict(dropped)

    def finish(self) -> Found:
        return _rows(self._engine.finish()), dict(self._engine.take_counters())

    def restart(self, settings: dict[str, Any], *, crashed: bool) -> None:
        if crashed and self._log:
            before, self._log = self._found, self._before
            self._engine = self._restored()
            self.feed(self._last)
            _check_replay(before, self._found)
        written_with = self._job.fingerprint()
        self._settings = {**self._settings, **settings}
        self._job = self._made()
        changed = self._job.fingerprint() != written_with
        if changed:
            _check_changes(self._job, written_with)
        self._engine = self._restored(written_with if changed else None)
        if changed and self._log:
            self._log = self._engine.snapshot()

    def _restored(self, written_with: dict[str, Any] | None = None) -> Engine:
        """Return a new engine in the state of the log."""
        engine: Engine = self._job.engine_at(0, 1)
        if self._log:
            engine.restore(self._log, written_with)
        return engine


def _check_replay(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    if before != after:
        raise AssertionError(
            f"a batch gave other results when it was processed again: {before[:3]}, {after[:3]}"
        )


def _check_changes(job: WindowJob, written_with: dict[str, Any]) -> None:
    """Refuse settings that cannot change at a restart, as Spark's operator does."""
    from tidegate.spark.state import changed_settings

    changed_settings(written_with, job.fingerprint(), job.changeable(written_with))


def _rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


class _Streaming:
    """A join as a streaming query, whose input is a file for each stream and batch."""

    def __init__(
        self,
        left: pa.Schema,
        right: pa.Schema,
        settings: dict[str, Any],
        spark: SparkSession,
        folder: str | Path | None,
    ) -> None:
        self._schemas, self._settings, self._spark = (left, right), settings, spark
        self._scratch = tempfile.TemporaryDirectory() if folder is None else None
        self._home = Path(self._scratch.name if self._scratch else folder or ".").absolute()
        for name in ("left", "right"):
            (self._home / name).mkdir(parents=True, exist_ok=True)
        self._batches = 0
        self._read: set[Path] = set()

    def feed(self, batches: list[pa.RecordBatch]) -> Found:
        for name, batch in zip(("left", "right"), batches, strict=True):
            if batch.num_rows:
                hidden = self._home / name / f".{self._batches:06d}"
                pq.write_table(pa.Table.from_batches([batch]), hidden)
                hidden.rename(self._home / name / f"{self._batches:06d}.parquet")
        self._batches += 1
        return self._run(self._settings)

    def _run(self, settings: dict[str, Any]) -> Found:
        """Process the new files; return the new results, and the counters."""
        import tidegate as tg
        from tidegate.spark.compat import from_arrow
        from tidegate.spark.metrics import observed

        frames = [
            self._spark.readStream.schema(from_arrow(schema)).parquet(str(self._home / name))
            for name, schema in zip(("left", "right"), self._schemas, strict=True)
        ]
        query = (
            tg.join(*frames, **settings)
            .writeStream.format("parquet")
            .option("path", str(self._home / "results"))
            .option("checkpointLocation", str(self._home / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        new = set((self._home / "results").glob("*.parquet")) - self._read
        self._read |= new
        counters: dict[str, Any] = {}
        for progress in query.recentProgress:
            for values in observed(progress).values():
                counters = dict(values) if values["shards"] else counters or dict(values)
        return [row for file in sorted(new) for row in pq.read_table(file).to_pylist()], counters

    def finish(self) -> Found:
        raise TidegateError(
            "a stream in Spark does not end: feed rows of a later time instead of calling finish"
        )

    def restart(self, settings: dict[str, Any], *, crashed: bool) -> None:
        before, self._settings = self._settings, {**self._settings, **settings}
        if not crashed:
            return  # each batch is a query of its own, started from the checkpoint
        commits = [int(each.name) for each in (self._home / "checkpoint/commits").glob("[0-9]*")]
        if commits:
            (self._home / f"checkpoint/commits/{max(commits)}").unlink()
            (self._home / f"checkpoint/commits/.{max(commits)}.crc").unlink(missing_ok=True)
            found, _ = self._run(before)
            _check_replay([], found)


try:
    import pytest
except ImportError:  # the fixtures are for pytest only
    pass
else:

    @pytest.fixture
    def join_run(tmp_path: Path) -> Callable[..., JoinRun]:
        """Return a function that makes a `JoinRun`, with its files in the test's own folder."""

        def start(left: pa.Schema, right: pa.Schema, **settings: Any) -> JoinRun:
            folder = tmp_path / f"join-{len(list(tmp_path.iterdir()))}"
            return JoinRun(left, right, **{"folder": folder, **settings})

        return start

    @pytest.fixture(scope="session")
    def tidegate_spark() -> Iterator[SparkSession]:
        """Return an embedded Spark session with two shuffle partitions, for all tests."""
        from tidegate.spark.session import session

        spark = session("tests", master="local[2]", config={"spark.sql.shuffle.partitions": 2})
        yield spark
        spark.stop()
