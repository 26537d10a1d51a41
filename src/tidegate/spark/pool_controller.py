"""Divide one memory budget between several joins of one Spark application while they run.

The controller runs on the driver. Every shard of a pooled join reports, together with its counters,
what it would find with other budgets (`pool.shadow_joins` estimates it). After every few batches
the controller divides the memory anew (`pool.division`) and sends each join a budget update: a
small file in the join's folder, which its query reads as one more input (`spark.budget_updates`).
Spark's checkpoint therefore records which update arrived with which batch, and a replay applies the
same one. `pool.ledger` makes sure that the updates under way never add up to more than the budget;
`spark.join_registry` knows which joins have a running query.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.engine.base import Job
from tidegate.errors import TidegateError
from tidegate.pool.allocation import OBJECTIVES, check_weight
from tidegate.pool.curves import Curve
from tidegate.pool.division import Claim, divide
from tidegate.pool.ledger import Acknowledged, AllocationLedger
from tidegate.pool.member import Member, PooledJob, RecallEstimator
from tidegate.pool.reports import Reports
from tidegate.settings.checks import one_of
from tidegate.settings.schedules import memory_of
from tidegate.settings.values import quoted
from tidegate.spark import budget_updates as updates
from tidegate.spark import metrics
from tidegate.spark.join_registry import JoinRegistry, State
from tidegate.spark.query_listener import listen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: How many budgets the shadow joins try, and the ratio of each to the next larger one.
_SIZES, _RATIO = 10, 2.0**-0.5


@dataclass(frozen=True)
class Share:
    """A join's share of a pool, passed to the join as its ``memory``."""

    pool: PoolController = field(repr=False)
    name: str
    weight: float


@dataclass(frozen=True)
class PoolMembership:
    """A share of a pool, and the estimator of what its join would find with other budgets."""

    share: Share
    estimator: RecallEstimator

    def take(self, job: Job, frame: DataFrame, shards: int) -> tuple[PooledJob, DataFrame]:
        """Enter the pool. Return the job that applies budget updates, and their stream."""
        if not frame.isStreaming:
            raise TidegateError(
                f'a share of a pool is for streams, and the inputs of "{self.share.name}" are '
                "batch DataFrames: read them with readStream, or give memory a number"
            )
        return self.share.pool.enter(self, job, frame, shards)


def shared(memory: Any) -> tuple[Share | None, Any]:
    """Return the pool share that was passed as ``memory``, if it is one, and the memory itself."""
    if isinstance(memory, Share):
        return memory, memory.pool.memory
    return None, memory


@dataclass(frozen=True)
class Standing:
    """A snapshot of one join in a pool.

    Attributes
    ----------
    name, weight
        The join's name, and its weight in the objective.
    state
        Whether it runs (`join_registry.State`).
    share
        The budget of each shard in the latest update that was sent.
    kept
        Memory reserved for the join while it does not run, because a replayed batch may need it.
    missing, waits_for
        How much the join's target exceeds its share, and the joins that must shrink first.
    allowed, held
        The budget that each shard last confirmed, and how much the join holds.
    measure
        The measure of quality: ``"recall"``; for samples ``"accuracy"``, which is one minus the
        relative standard error of a count over a window.
    predicted, measured
        The quality that the curve predicts for the share, and the quality of the latest batches
        under the budget in force. None while unknown; joins that do not run have no prediction.
    curve
        Quality as a function of memory; None while unknown.
    row_bytes
        Mean size of a held row in bytes.
    """

    name: str
    weight: float
    state: State
    share: tuple[int, ...]
    kept: int
    missing: int
    waits_for: tuple[str, ...]
    allowed: tuple[int, ...]
    held: int
    measure: str
    predicted: float | None
    measured: float | None
    curve: Curve | None
    row_bytes: float


class PoolController:
    """Divide a memory budget between joins while they run. `tidegate.MemoryPool` is one."""

    def __init__(
        self,
        *,
        memory: Any,
        folder: str | os.PathLike[str] | None = None,
        objective: str = "min",
        every: int = 4,
    ) -> None:
        size, in_bytes = memory_of(memory, none="")
        if size is None:
            raise TidegateError(
                'a pool needs memory, a positive number of rows or a size like "64 MB", not None'
            )
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise TidegateError(
                f"every must be a positive number of batches after which memory is divided anew, "
                f"not {quoted(every)}"
            )
        self.memory, self.in_bytes = memory, in_bytes
        self.size = size
        self.objective = one_of(objective, OBJECTIVES, "objective")
        self.every = every
        self.sizes = tuple(sorted({max(round(size * _RATIO**step), 1) for step in range(_SIZES)}))
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tidegate-pool-")
            folder = self._temporary.name
        self._folder = updates.prepare_folder(folder)
        self._ledger = AllocationLedger(size)
        self._registry = JoinRegistry()
        self._reports: dict[str, Reports] = {}
        self._targets: dict[str, list[int]] = {}
        self._saved: dict[str, Acknowledged] = {}
        self._processed: set[tuple[str, int]] = set()
        self._batches = 0
        self._id = uuid.uuid4().hex
        self._sessions: list[Any] = []
        self._lock = threading.RLock()
        updates.take_ownership(self._folder, self._id)
        self._reserve_for_earlier_joins()

    def _reserve_for_earlier_joins(self) -> None:
        """Reserve what joins of an earlier run had, until they are built again."""
        for name, known in updates.joins(self._folder, self.size).items():
            last = known[max(known)]
            if any(last):
                confirmed = updates.load_confirmed(self._folder / name)
                self._ledger.open(name, len(last), 1.0, 0, known, confirmed)
                self._registry.expect(name)
                self._reports[name] = Reports(len(last))

    # ---- joins come and go --------------------------------------------------------------------

    def share(self, name: str, weight: float = 1.0) -> Share:
        """Give a join a share of the memory: ``tg.join(..., memory=pool.share("bids"))``.

        Parameters
        ----------
        name
            The join's name in the pool. A restarted join finds its shares by this name.
        weight
            The join's weight in the objective. With ``objective="min"``, a join of weight 2 gets
            twice the recall of a join of weight 1 if that recall can be reached. With ``"sum"``,
            each of its results counts twice.
        """
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{,99}", name):
            raise TidegateError(
                "the name of a join in a pool must be of up to 100 letters, digits, dots, dashes "
                f"and underscores, and begin with a letter or a digit, not {quoted(name)}"
            )
        return Share(self, name, check_weight(weight))

    def enter(
        self, membership: PoolMembership, job: Job, frame: DataFrame, shards: int
    ) -> tuple[PooledJob, DataFrame]:
        """Add a join when its query is built. Return its job and the stream of its updates."""
        spark = frame.sparkSession
        member, folder = self.admit(membership, shards)
        self._listen(spark)
        return PooledJob(job, membership.estimator, member), spark.readStream.text(
            f"file://{folder}"
        )

    def admit(self, membership: PoolMembership, shards: int) -> tuple[Member, Path]:
        """Add a join. Return what its shards must know, and the folder of its budget updates."""
        name, estimator = membership.share.name, membership.estimator
        if self.in_bytes != (estimator.unit == "bytes"):
            raise TidegateError(
                f'join "{name}" holds a number of rows, and the pool has "{self.memory}": give '
                "the pool a number of rows"
            )
        folder = self._folder / name
        weight, least = membership.share.weight, estimator.least
        with self._lock:
            self._check_owner()
            if self._registry.still_runs(name):
                raise TidegateError(
                    f'join "{name}" was removed, and its query still runs, which would apply the '
                    "budget updates of the new one: stop it first, or use another name"
                )
            if name in self._ledger.names and not self._registry.claims(name):
                self._ledger.renew(name, shards, weight, least)
                self._registry.build(name, replays=False)
            else:
                known, confirmed = updates.read(folder, self.size), updates.load_confirmed(folder)
                self._ledger.open(name, shards, weight, least, known, confirmed)
                self._check_replay(name)
                self._registry.build(name, replays=self._ledger.most(name) > 0)
                folder.mkdir(parents=True, exist_ok=True)
                # Send an update even if nothing changed: every first batch then has one, and all
                # joins of the query report.
                updates.write(folder, *self._ledger.repeat_latest(name), self.size)
            self._reports[name] = Reports(shards, estimator.measure)
        return Member(self._id, name, self.sizes, estimator.second), folder

    def _check_owner(self) -> None:
        if updates.owner(self._folder) != self._id:
            raise TidegateError(
                f"another pool was opened in the folder {quoted(str(self._folder))} after this "
                "one, and "
                "has its joins now; use that one, or a folder for each"
            )

    def _check_replay(self, name: str) -> None:
        """Refuse a join that was removed if a replay may need memory that others have now."""
        most = self._ledger.most(name)
        if self._ledger.granted > self.size and most > 0:
            self._ledger.leave(name)
            self._ledger.close(name)
            raise TidegateError(
                f'join "{name}" was removed from the pool after it ended in the middle of a batch, '
                f"for which its checkpoint needs {most:,} again, and others have that now; use "
                "another name for it, and a new checkpoint"
            )

    def remove(self, name: str) -> None:
        """Remove a join from the pool.

        The other joins get its memory once it has given it back, or once its query has ended. If
        the query keeps running, it finds almost nothing from then on.
        """
        with self._lock:
            self._check_owner()
            self._ledger.leave(name)
            self.rebalance()

    @property
    def joins(self) -> list[str]:
        """The names of the joins in the pool."""
        return self._ledger.names

    @property
    def granted(self) -> int:
        """The most that all joins together may hold now; never more than the pool's memory."""
        return self._ledger.granted

    # ---- reports in, budget updates out -------------------------------------------------------

    def on_progress(self, progress: Any) -> None:
        """Process one progress report (`query.lastProgress`, or that of an event), once.

        The pool's listener calls this as queries run. Call it yourself to have a report processed
        at once.
        """
        reports = [each for each in metrics.reports(progress) if each.get("pool") == self._id]
        run, batch = str(progress["runId"]), int(progress["batchId"])
        with self._lock:
            if not reports or (run, batch) in self._processed:
                return
            self._processed.add((run, batch))
            reporting = self._registry.on_progress(
                run, str(progress["id"]), {each["join"] for each in reports}
            )
            for report in reports:
                name, shard = report["join"], report["shard"]
                if name in reporting:
                    final = self._ledger.confirm(name, shard, report["number"], report["allowed"])
                    if final and updates.owner(self._folder) == self._id:
                        updates.save_confirmed(self._folder / name, final)
                # A report counts for the run that made it, even if it arrives after the run's end.
                if name in self._registry and self._registry[name].run == run:
                    self._reports[name].add(shard, report, 0.5 ** (1 / self.every))
            # Count joins, not queries: a query may contain several joins.
            self._batches += len(reporting)
            claiming = sum(self._registry.claims(name) for name in self._ledger.names)
            if self._batches >= self.every * claiming or not reporting or not self._targets:
                self.rebalance()
            else:
                self._send_updates()

    def rebalance(self) -> None:
        """Divide the memory anew, by everything reported so far."""
        with self._lock:
            self._batches, self._targets = 0, {}
            names = [name for name in self._ledger.names if self._registry.claims(name)]
            if names:
                claims = {name: self._claim(name) for name in names}
                reserved = sum(
                    self._ledger.most(name)
                    for name in self._ledger.names
                    if self._registry.reserves_memory(name)
                )
                least = sum(sum(claim.least) for claim in claims.values())
                self._targets = divide(claims, max(self.size - reserved, least), self.objective)
            self._send_updates()

    def _claim(self, name: str) -> Claim:
        ledger = self._ledger
        own = self._reports[name]
        return Claim(ledger.weight(name), ledger.least(name), ledger.latest_shares(name), own)

    def _send_updates(self) -> None:
        """Send the updates that are safe now: first those that shrink, then those that grow.

        Send nothing if another pool has taken over the folder.
        """
        if updates.owner(self._folder) != self._id:
            return
        idle = {
            name: [0] * len(self._ledger.latest_shares(name))
            for name in self._ledger.names
            if not self._registry.claims(name) and self._registry.is_safely_stopped(name)
        }
        for _ in range(2):
            for name, update in self._ledger.updates(self._targets | idle).items():
                updates.write(self._folder / name, *update, self.size)
            for name in filter(self._registry.is_safely_stopped, self._all_names):
                self._ledger.assume_latest(name)
            self._forget_removed()
        for name in self._all_names:
            confirmed = self._ledger.confirmed(name)
            if self._saved.get(name) != confirmed:
                self._saved[name] = confirmed
                updates.save_confirmed(self._folder / name, confirmed)

    @property
    def _all_names(self) -> list[str]:
        return [*self._ledger.names, *self._ledger.leaving]

    def _forget_removed(self) -> None:
        """Forget removed joins that have given back everything or no longer run."""
        for name in self._ledger.leaving:
            if not self._registry.may_run(name):
                self._ledger.close(name)
        for name in [name for name in self._reports if name not in self._all_names]:
            self._registry.remove(name)
            self._reports.pop(name)
            self._saved.pop(name, None)

    def _listen(self, spark: Any) -> None:
        """Listen to all queries of a session from now on."""
        if any(spark is known for known in self._sessions):
            return
        self._sessions.append(spark)
        self._registry.starts_precede_batches &= listen(spark, self)

    def start(self, run: str, query: str) -> None:
        """Register a query that starts, and send shares before its first batch."""
        with self._lock:
            self._registry.start(run, query)
            self.rebalance()

    def end(self, run: str, *, in_flight: bool = False) -> None:
        """Register the end of a query's run. `in_flight`: a planned batch was not committed.

        A removed join is forgotten. A join that had committed its last batch holds nothing until it
        starts again. A join with a batch in flight keeps its share, because it will replay it.
        """
        with self._lock:
            self._registry.end(run, in_flight=in_flight)
            self.rebalance()

    def standing(self, name: str) -> Standing:
        """Return a snapshot of one join's state, shares and quality."""
        with self._lock:
            ledger = self._ledger
            ledger.check(name)
            share, reports = ledger.latest_shares(name), self._reports[name]
            missing = max(self._wanted(name) - sum(share), 0)
            others = [other for other in self._all_names if other != name]
            waits_for = [other for other in others if ledger.most(other) > self._wanted(other)]
            return Standing(
                name=name,
                weight=ledger.weight(name),
                state=self._registry[name].state,
                share=share,
                kept=ledger.most(name) if self._registry.reserves_memory(name) else 0,
                missing=missing,
                waits_for=tuple(waits_for) if missing else (),
                allowed=tuple(ledger.allowed(name)),
                held=reports.held if self._registry.may_run(name) else 0,
                measure=reports.measure,
                predicted=reports.predicted(share) if self._registry.claims(name) else None,
                measured=reports.measured,
                curve=reports.curve,
                row_bytes=reports.row_bytes,
            )

    def _wanted(self, name: str) -> int:
        """Return the join's target: how much it should get. 0 if it does not run."""
        return sum(self._targets.get(name, ()))

    @property
    def leaving(self) -> dict[str, int]:
        """The joins that were removed, and how much they may still hold."""
        with self._lock:
            return {name: self._ledger.most(name) for name in self._ledger.leaving}
