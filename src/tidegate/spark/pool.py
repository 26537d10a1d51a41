"""One memory for several joins of one Spark application: the part that runs with the queries.

Joins report with their counters what other memories would find; every so many batches the memory
is divided anew, and orders go out through the stream: a folder of small files for each join, which
its query reads beside its inputs. So Spark's checkpoint knows which order came with which batch,
and a replay follows the same. What is sent is only what is safe at any moment (`memory.books`).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.checks import one_of
from tidegate.engines.base import Job
from tidegate.engines.miniature import Copied
from tidegate.engines.pooled import Member, PooledJob, pooled
from tidegate.errors import TidegateError
from tidegate.memory.alloc import OBJECTIVES, allocate, check_weight, in_whole
from tidegate.memory.books import Books, Shares
from tidegate.memory.curves import Curve, of_earnings, of_points
from tidegate.memory.split import together
from tidegate.spark import metrics
from tidegate.spec import memory_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Memories that are tried out, each so much less than the one above: half of it in two.
_SIZES, _STEP = 10, 2.0**-0.5
#: New shares must promise so much more recall, or as large a part of all results more.
_WORTHWHILE = 0.005


@dataclass(frozen=True)
class Share:
    """A join's share of a pool, to be given to the join as its memory."""

    pool: Governor = field(repr=False)
    name: str
    weight: float


@dataclass(frozen=True)
class Place:
    """A share of a pool, and how the join that has it can be copied."""

    share: Share
    copies: Copied

    def take(self, job: Job, frame: DataFrame, shards: int) -> tuple[PooledJob, DataFrame]:
        """Enter the pool: the job that follows its orders, and the stream of these."""
        if not frame.isStreaming:
            raise TidegateError(
                f'a share of a pool is for streams, and the inputs of "{self.share.name}" are '
                "batch DataFrames: read them with readStream, or give memory a number"
            )
        return self.share.pool.enter(self, job, frame, shards)


def shared(memory: Any) -> tuple[Share | None, Any]:
    """What a join was given as its memory: a share of a pool, if it is one, and how much."""
    if isinstance(memory, Share):
        return memory, memory.pool.memory
    return None, memory


@dataclass
class _Seen:
    """What a shard's reports have said lately; older ones fade."""

    hits: list[float] = field(default_factory=list)
    total: float = 0.0
    span: float = 0.0
    worth: float = 0.0
    advance: float = 0.0
    need: float = 0.0
    held: int = 0
    bytes: int = 0

    def add(self, report: Mapping[str, Any], fade: float) -> None:
        self.held, self.bytes = report["held"], report["bytes"]
        self.need = max(report["need"], fade * self.need)
        if report["span"] <= 0:
            return
        old = self.hits or [0.0] * len(report["hits"])
        self.hits = [fade * a + b for a, b in zip(old, report["hits"], strict=True)]
        for name in ("total", "span", "worth", "advance"):
            setattr(self, name, fade * getattr(self, name) + report[name])

    def curve(self, sizes: Sequence[int]) -> Curve | None:
        """Recall against memory, once it is known."""
        if self.span <= 0:
            return None
        if self.total <= 0:
            return of_points([], [], 0.0, need=1.0)
        recall = [hits / self.total for hits in self.hits]
        return of_points(sizes, recall, self.total / self.span, max(self.need, 1.0))


@dataclass(frozen=True)
class Standing:
    """How a join stands in its pool.

    Attributes
    ----------
    name, weight
        Which join, and how much it counts.
    share
        What its shards were last told that they may hold.
    allowed, held
        What they last said that they may hold, and do.
    predicted, measured
        Recall by the curve with that share, and as it was in the last batches; None while unknown.
    curve
        Recall against memory; None while unknown.
    tuple_bytes
        What a held tuple takes.
    """

    name: str
    weight: float
    share: tuple[int, ...]
    allowed: tuple[int, ...]
    held: int
    predicted: float | None
    measured: float | None
    curve: Curve | None
    tuple_bytes: float


class Governor:
    """Divides a memory between joins while they run; `tidegate.MemoryPool` is one."""

    def __init__(
        self,
        *,
        memory: Any,
        folder: str | os.PathLike[str] | None = None,
        objective: str = "min",
        every: int = 4,
    ) -> None:
        size, in_bytes = memory_of(memory)
        if size is None:
            raise TidegateError(
                'a pool needs memory, a positive number of tuples or a size like "64 MB", not None'
            )
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise TidegateError(
                f"every must be a positive number of batches after which memory is divided anew, "
                f"not {every!r}"
            )
        self.memory, self.in_bytes = memory, in_bytes
        self.size = size
        self.objective = one_of(objective, OBJECTIVES, "objective")
        self.every = every
        self.sizes = tuple(sorted({max(round(size * _STEP**step), 1) for step in range(_SIZES)}))
        if folder is None:
            self._passing = tempfile.TemporaryDirectory(prefix="tidegate-pool-")
            folder = self._passing.name
        self._folder = Path(folder).resolve()
        self._books = Books(size)
        self._seen: dict[str, list[_Seen]] = {}
        self._targets: dict[str, list[int]] = {}
        self._runs: dict[str, str] = {}
        self._ended: set[str] = set()
        self._heard: set[tuple[str, int]] = set()
        self._batches = 0
        self._id = uuid.uuid4().hex
        self._sessions: list[Any] = []
        self._lock = threading.RLock()

    # ---- joins come and go --------------------------------------------------------------------

    def share(self, name: str, weight: float = 1.0) -> Share:
        """Give a join a share of the memory: ``tg.join(..., memory=pool.share("bids"))``.

        Parameters
        ----------
        name
            The join's name in the pool, by which its shares are found again after a restart.
        weight
            How much it counts: with twice the weight of another it has twice its recall, as long
            as there is that much to have; or of the sum, each of its results counts twice.
        """
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise TidegateError(
                "the name of a join in a pool must be of letters, digits, dots, dashes and "
                f"underscores, and begin with a letter or a digit, not {name!r}"
            )
        return Share(self, name, check_weight(weight))

    def enter(
        self, place: Place, job: Job, frame: DataFrame, shards: int
    ) -> tuple[PooledJob, DataFrame]:
        """Let a join in, when its query is built."""
        spark = frame.sparkSession
        member, folder = self.admit(place, shards)
        self._listen(spark)
        return pooled(job, place.copies, member), spark.readStream.text(f"file://{folder}")

    def admit(self, place: Place, shards: int) -> tuple[Member, Path]:
        """Let a join in: what it must know, and the folder in which its orders will be."""
        name, copies = place.share.name, place.copies
        if self.in_bytes != (copies.unit == "bytes"):
            raise TidegateError(
                f'join "{name}" holds a number of tuples, and the pool has "{self.memory}": give '
                "the pool a number of tuples"
            )
        folder = self._folder / name
        with self._lock:
            if self._runs.get(name) in self._ended and name in self._books.names:
                self._books.leave(name)
                self._books.close(name)
            folder.mkdir(parents=True, exist_ok=True)
            self._books.open(name, shards, place.share.weight, copies.least, _read(folder))
            self._seen[name] = [_Seen() for _ in range(shards)]
        return Member(self._id, name, self.sizes, copies.second), folder

    def remove(self, name: str) -> None:
        """Take a join out of the pool.

        Its memory goes to the others once it has given it back, or its query has ended. A query
        that goes on finds next to nothing from then on.
        """
        with self._lock:
            self._books.leave(name)
            self._targets.pop(name, None)
            if self._runs.get(name) in self._ended:
                self._send()
                self._books.close(name)
            self.rebalance()

    @property
    def joins(self) -> list[str]:
        """The names of the joins in the pool."""
        return self._books.names

    @property
    def granted(self) -> int:
        """The most that all joins together may hold at this moment, never above the memory."""
        return self._books.granted

    # ---- reports in, orders out ---------------------------------------------------------------

    def hear(self, progress: Any) -> None:
        """Take in a query's progress (`query.lastProgress`, an event's), once.

        The pool does so by itself as queries run; this is for those who want it done by now.
        """
        said = [each for each in metrics.reports(progress) if each["pool"] == self._id]
        at = (str(progress["runId"]), int(progress["batchId"]))
        with self._lock:
            if not said or at in self._heard:
                return
            self._heard.add(at)
            for report in said:
                name, shard = report["join"], report["shard"]
                self._runs[name] = at[0]
                self._books.confirm(name, shard, report["number"], report["allowed"])
                if name in self._books.names:
                    self._seen[name][shard].add(report, 0.5 ** (1 / self.every))
            self._batches += 1
            if self._batches >= self.every * len(self._books.names) or not self._targets:
                self.rebalance()
            else:
                self._send()

    def rebalance(self) -> None:
        """Divide the memory anew, by all that is known now."""
        with self._lock:
            self._batches = 0
            if self._books.names:
                self._targets = self._divided()
            self._send()

    def _send(self) -> None:
        for name, (number, shares) in self._books.orders(self._targets).items():
            _write(self._folder / name, number, shares)

    def _listen(self, spark: Any) -> None:
        """Hear of every query of a session, from now on."""
        if any(spark is known for known in self._sessions):
            return
        self._sessions.append(spark)
        from pyspark.sql.streaming.listener import StreamingQueryListener

        governor = self

        class Listener(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None:
                """Have first shares there before the first batch."""
                governor.rebalance()

            def onQueryProgress(self, event: Any) -> None:
                governor.hear(event.progress)

            def onQueryIdle(self, event: Any) -> None:
                pass

            def onQueryTerminated(self, event: Any) -> None:
                governor.end(str(event.runId))

        spark.streams.addListener(Listener())

    def end(self, run: str) -> None:
        """Hear that a query has ended: what leaves is gone."""
        with self._lock:
            self._ended.add(run)
            for name in [name for name, own in self._runs.items() if own == run]:
                if name not in self._books.names:
                    self._books.close(name)
            self.rebalance()

    # ---- the division -------------------------------------------------------------------------

    def _divided(self) -> dict[str, list[int]]:
        """How much each shard should hold.

        Until the curve of a join is known it has a part of the memory by its weight, or what it
        had when it last ran; what is left is divided between the others.
        """
        books, names = self._books, self._books.names
        curves = {name: self.curve(name) for name in names}
        unknown = [name for name in names if curves[name] is None]
        wanted: dict[str, float] = {}
        if unknown and all(any(books.ordered(name)) for name in names):
            wanted = {name: float(sum(books.ordered(name))) for name in unknown}
        elif unknown:
            weights = sum(books.weight(name) for name in names)
            wanted = {name: self.size * books.weight(name) / weights for name in unknown}
        known = {name: curve for name, curve in curves.items() if curve is not None}
        rest = self.size - sum(wanted.values())
        if known and rest > 0:
            weighed = [books.weight(name) for name in known]
            shares = allocate(list(known.values()), weighed, rest, self.objective)
            wanted |= dict(zip(known, shares, strict=True))
        least = [sum(books.least(name)) for name in names]
        whole = in_whole([wanted.get(name, 0.0) for name in names], self.size, least)
        found = {name: self._in_shards(name, n) for name, n in zip(names, whole, strict=True)}
        if not unknown and not self._is_worthwhile(found):
            return {name: list(books.ordered(name)) for name in names}
        return found

    def _in_shards(self, name: str, memory: int) -> list[int]:
        """Divide a join's memory between its shards, for the most results."""
        least = self._books.least(name)
        curves = self._shard_curves(name)
        shares = [memory / len(least)] * len(least)
        if curves is not None and len(curves) > 1:
            shares = allocate(curves, [1.0] * len(curves), memory, "sum")
            # One with nothing worth holding holds nothing; its copies say when there is.
            least = [0 if each == 1 else each for each in least]
        elif sum(self._books.ordered(name)) == memory:
            return list(self._books.ordered(name))
        return in_whole(shares, memory, least)

    def _is_worthwhile(self, shares: Mapping[str, Sequence[int]]) -> bool:
        """Whether new shares promise enough more than those that were ordered last."""
        old = {name: self._books.ordered(name) for name in shares}
        if any(sum(each) == 0 for each in old.values()):
            return True
        before, after = self._promise(old), self._promise(shares)
        margin = _WORTHWHILE if self.objective == "min" else _WORTHWHILE * before
        # What is left over when a join has gone is to be had by the others in any case.
        return after > before + margin or sum(map(sum, old.values())) < self.size

    def _promise(self, shares: Mapping[str, Sequence[int]]) -> float:
        """What the objective is with these shares, by the curves."""
        found = []
        for name, own in shares.items():
            curves = self._shard_curves(name)
            assert curves is not None
            results = sum(c.results for c in curves)
            kept = sum(c.at(s) * c.results for c, s in zip(curves, own, strict=True))
            weight = self._books.weight(name)
            recall = kept / results if results else 1.0
            found.append(recall / weight if self.objective == "min" else kept * weight)
        return min(found) if self.objective == "min" else sum(found)

    def _shard_curves(self, name: str) -> list[Curve] | None:
        curves = [seen.curve(self.sizes) for seen in self._seen[name]]
        known = [curve for curve in curves if curve is not None]
        return known if len(known) == len(curves) else None

    def curve(self, name: str) -> Curve | None:
        """A join's recall against its memory, divided between its shards in the best way."""
        self._books.check(name)
        curves = self._shard_curves(name)
        if curves is None or len(curves) == 1:
            return None if curves is None else curves[0]
        return of_earnings(together([curve.hull() for curve in curves]))

    def standing(self, name: str) -> Standing:
        """How a join stands."""
        with self._lock:
            curve, books, seen = self.curve(name), self._books, self._seen[name]
            share = books.ordered(name)
            predicted = measured = None
            curves = self._shard_curves(name)
            if curve is not None and curves is not None:
                results = sum(c.results for c in curves)
                kept = sum(c.at(s) * c.results for c, s in zip(curves, share, strict=True))
                predicted = kept / results if results else 1.0
                found = sum(s.worth / s.advance for s in seen if s.advance > 0)
                measured = min(found / results, 1.0) if results else 1.0
            held = sum(s.held for s in seen)
            return Standing(
                name=name,
                weight=books.weight(name),
                share=share,
                allowed=tuple(books.allowed(name)),
                held=held,
                predicted=predicted,
                measured=measured,
                curve=curve,
                tuple_bytes=sum(s.bytes for s in seen) / held if held else 0.0,
            )


def latest(folder: Path) -> tuple[int, Shares] | None:
    """The last order that was sent, and its number."""
    orders = _read(folder)
    return (max(orders), orders[max(orders)]) if orders else None


def _write(folder: Path, number: int, shares: Shares) -> None:
    """Send an order: whole, or not at all."""
    hidden, name = folder / f".{number:08d}", folder / f"{number:08d}.json"
    hidden.write_text(json.dumps({"number": number, "shares": shares}) + "\n")
    os.replace(hidden, name)


def _read(folder: Path) -> dict[int, Shares]:
    """The orders that were ever sent."""
    orders = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]
    return {order["number"]: tuple(order["shares"]) for order in orders}
