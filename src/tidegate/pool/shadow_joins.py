"""What a join would find with other memories: small copies of it, fed a sample of its streams.

Recall against memory for any policy, while the join runs (section 5 of paper 2 needs it to divide
memory). Each copy is a real engine with a memory of its own; one keeps everything, so that the
others' results can be compared with all there are. Where streams are too much for that, a sample
stands for them, and memories are as much smaller: some keys (as Waldspurger et al. do for caches,
FAST 2015), or where few keys have most results, some tuples of all keys. Of these a copy still sees
all, so that it learns what the join learns, and holds some: all of those that find much, as a few
of them more or less would change a lot, and a share of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engine.base import Clocks, Engine
from tidegate.engine.prepare import ROW_HASH, TIME

#: Tuples that the copy without a limit may hold, above which a sample is taken; and how many rows
#: of a batch are taken, the latest. They come in so many parts, so that results count from the
#: middle of a batch on, where it is longer than a window.
HELD, ROWS = 1 << 15, 1 << 15
_PARTS = 4
#: Of batches that are larger, all but one in so many are passed over.
_TURNS = 4
#: A sample of keys must have so many that matter: then the others are much like them.
KEYS = 300.0

#: A memory is tried out between two of which one finds so much more recall; in so many rounds, so
#: many in each.
_RISE, _ROUNDS, _MORE = 0.1, 2, 3

#: Of what copies may hold, the part that is for tuples of keys that find much, of all streams.
_SURE = 0.25

#: What draws which keys there are, which tuples are seen, and which of these may be held.
OF_KEY_GROUP, OF_SEEN, OF_HELD = (
    np.uint64(0xC2B2AE3D27D4EB4F),
    np.uint64(0x165667B19E3779F9),
    np.uint64(0x27D4EB2F165667C5),
)


@dataclass(frozen=True)
class Sample:
    """What stands for whole streams: a share of the kin, of their tuples, and of those held.

    Of the kin that are `sure`, by stream and in order, all tuples may be held. The others that may
    stand for more than themselves: they take the room of as many, and their results count as often.
    """

    key_group: float = 1.0
    seen: float = 1.0
    held: float = 1.0
    sure: tuple[NDArray[np.uint64], ...] = field(default=(), compare=False)

    @property
    def memory(self) -> float:
        """How much smaller memories are."""
        return self.key_group * self.seen

    def results(self, streams: int) -> float:
        """How many of the results there are: of a combination all are seen."""
        return self.key_group * self.seen**streams


class ShadowableJoin(Protocol):
    """A join of which there can be copies."""

    @property
    def horizon(self) -> float:
        """The longest window: after it, what came first plays no part any more."""

    @property
    def streams(self) -> int:
        """How many there are."""

    @property
    def unit(self) -> str:
        """The counter that memory is measured by: ``"held"`` or ``"bytes"``."""

    @property
    def sees_more(self) -> bool:
        """Whether a copy can see tuples that it never holds."""

    def key_group(self, stream: int, batch: pa.RecordBatch) -> NDArray[np.uint64] | None:
        """What tuples have in common that may meet; None where all may."""

    def copy(self, memory: int | None, sample: Sample) -> Engine:
        """An engine like the join's, with this memory or without a limit; it only counts."""

    def narrowed(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of a prepared batch that a copy needs."""

    def stands_for(self, engine: Any, counters: Mapping[str, int | float]) -> float:
        """How much a copy holds, in its unit, where some tuples stand for more than themselves."""


@dataclass
class Found:
    """What copies have found in some batches, scaled up from the sample.

    Attributes
    ----------
    sizes
        The memories of the copies.
    hits
        The importance of the results of each copy (their number where none is asked for), in the
        order of their memories.
    total
        That of all results.
    need
        How much the copy without a limit held at the most.
    span
        Over how much time these were found.
    advance
        By how much the clock has advanced in all.
    """

    sizes: tuple[int, ...]
    hits: list[float] = field(init=False)
    total: float = 0.0
    need: float = 0.0
    span: float = 0.0
    advance: float = 0.0

    def __post_init__(self) -> None:
        self.hits = [0.0] * len(self.sizes)

    def add(self, hits: Sequence[float], total: float, span: float) -> None:
        """Count what was found over some more time."""
        self.hits = [a + b for a, b in zip(self.hits, hits, strict=True)]
        self.total += total
        self.span += span


class ShadowJoins:
    """Copies of a join with several memories, over a sample of its streams.

    Parameters
    ----------
    job
        What is copied.
    sizes
        The memories, ascending.
    settle
        Whether results count only once copies have run for as long as the longest window.
    held, rows
        How many tuples the copy without a limit may hold, and how many rows of a batch are taken.
    """

    def __init__(
        self,
        job: ShadowableJoin,
        sizes: Sequence[int],
        *,
        settle: bool = True,
        held: int = HELD,
        rows: int = ROWS,
    ) -> None:
        self._sizes = tuple(sizes)
        self._job, self._settle = job, settle
        self._held, self._rows = held, rows
        #: How far the streams have come, and how far what was looked at.
        self._clock: float | None = None
        self._reached: float | None = None
        self._found = Found(self._sizes)
        self._so_far = Found(self._sizes)
        self._rounds = 0
        self._large, self._turn = False, -1
        self._since: float | None = None
        self._most, self._need = 0, 0.0
        self._copies: list[Engine] = []
        #: The inputs of a part of a batch beyond its streams: no changes, which were taken before.
        self._others: list[Sequence[pa.RecordBatch]] = []
        self._restart(Sample())

    def feed(self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None) -> None:
        """Take a batch as the join itself takes it, or the latest part of a large one.

        Changes of a relation, the inputs after the streams, are taken of every batch.
        """
        streams = self._job.streams
        self._know(inputs[streams:])
        inputs, clocks = inputs[:streams], None if clocks is None else clocks[:streams]
        self._hear(inputs, clocks)
        self._turn += 1
        if self._large and self._turn % _TURNS:
            return
        taken = self._sampled(inputs)
        parts = [_times(b) for stream in taken for b in stream]
        times = np.sort(np.concatenate([np.empty(0), *parts]))
        first = len(times) - self._rows
        self._large = first > 0
        if self._large:
            self._since = float(times[first])
        taken_rows = times[max(first, 0) :]
        starts = np.unique(taken_rows[:: max(len(taken_rows) // _PARTS, 1)]).tolist()
        for start, end in itertools.pairwise([*starts, np.inf]):
            part = [[_between(b, start, end) for b in stream] for stream in taken]
            self._feed_part(part, clocks if end == np.inf else None, start)
        if not starts:
            self._feed_part(taken, clocks, self._reached)
        if self._most > self._held:
            self._thin(inputs, self._held / self._most / 2)
        elif self._large and times[-1] - times[first] < 2 * self._job.horizon:
            span = (times[-1] - times[first]) / (2 * self._job.horizon)
            self._restart(replace(self.sample, seen=self.sample.seen * _power(max(span, 2**-20))))

    def _know(self, changes: Sequence[Sequence[pa.RecordBatch]]) -> None:
        """Have copies that know what the join knows: those that are new do already."""
        self._others = [()] * len(changes)
        if self._copies:
            if any(b.num_rows for other in changes for b in other):
                for engine in self._copies:
                    _fed(engine, [*[()] * self._job.streams, *changes], None)
            return
        sample = self.sample
        memories = [max(round(size * sample.memory), 1) for size in self._sizes]
        self._copies = [self._job.copy(memory, sample) for memory in (*memories, None)]

    def _feed_part(
        self,
        inputs: Sequence[Sequence[pa.RecordBatch]],
        clocks: Clocks | None,
        start: float | None,
    ) -> None:
        before = start if self._reached is None else self._reached
        self._reached = _latest(inputs, clocks, before)
        if self._since is None:
            self._since = start
        settled = not self._settle
        if before is not None and self._since is not None:
            settled |= before - self._since >= self._job.horizon
        given = [*inputs, *self._others]
        counts = [_fed(engine, given, clocks) for engine in self._copies]
        found, part = self._found, self.sample.results(self._job.streams)
        self._most = int(counts[-1]["held"])
        self._need = self._job.stands_for(self._copies[-1], counts[-1]) / self.sample.memory
        found.need = max(found.need, self._need)
        if settled:
            *hits, total = (each["importance"] / part for each in counts)
            span = 0.0
            if before is not None and self._reached is not None:
                span = self._reached - before
            found.add(hits, total, span)

    def _hear(self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None) -> None:
        """Take note of how far the streams have come, whatever is looked at."""
        latest = _latest(inputs, clocks, self._clock)
        if self._clock is None:
            firsts = [float(_times(b).min()) for stream in inputs for b in stream if b.num_rows]
            self._clock = min(firsts, default=latest)
        if self._clock is not None and latest is not None:
            self._found.advance += latest - self._clock
        self._clock = latest

    def take(self) -> Found:
        """What was found since the last call."""
        found, self._found = self._found, Found(self._sizes)
        self._so_far.add(found.hits, found.total, found.span)
        if self._settle and self._so_far.span >= self._job.horizon:
            self.refine()
        return found

    def refine(self) -> bool:
        """Also try out memories between two of which one finds much more, and then begin anew.

        Some joins find next to nothing until they have room for a few tuples, and then a lot: where
        that is shows in a few rounds.
        """
        found, sizes = self._so_far, self._sizes
        if self._rounds == _ROUNDS or found.total <= 0:
            return False
        recall = [hits / found.total for hits in found.hits]
        rises = [b - a for a, b in itertools.pairwise(recall)]
        steepest = sorted(range(len(rises)), key=lambda at: -rises[at])[:_MORE]
        middles = {(sizes[at] + sizes[at + 1]) // 2 for at in steepest if rises[at] > _RISE}
        self._rounds += 1
        if middles <= set(sizes):
            return False
        self._sizes = tuple(sorted(middles | set(sizes)))
        self._found = Found(self._sizes)
        self._restart(self.sample)
        return True

    def worth(self, counters: Mapping[str, int | float]) -> float:
        """What the join itself has found, by its counters, to compare with what was foreseen."""
        return float(counters["importance"])

    # ---- the sample ---------------------------------------------------------------------------

    def _restart(self, sample: Sample) -> None:
        """Begin anew with this sample, at the next batch."""
        self.sample = sample
        self._since, self._most = None, 0
        self._so_far = Found(self._sizes)
        self._copies = []

    def _sampled(self, inputs: Sequence[Sequence[pa.RecordBatch]]) -> list[list[pa.RecordBatch]]:
        return [
            [self._some(stream, batch) for batch in batches]
            for stream, batches in enumerate(inputs)
        ]

    def _some(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = np.ones(batch.num_rows, np.bool_)
        if self.sample.key_group < 1:
            key_group = self._job.key_group(stream, batch)
            assert key_group is not None
            kept &= random_share(key_group, OF_KEY_GROUP) < self.sample.key_group
        if self.sample.seen < 1:
            kept &= random_share(batch.column(ROW_HASH).to_numpy(), OF_SEEN) < self.sample.seen
        narrow = self._job.narrowed(stream, batch)
        return narrow if kept.all() else narrow.filter(pa.array(kept))

    def _thin(self, inputs: Sequence[Sequence[pa.RecordBatch]], share: float) -> None:
        """Begin anew with a sample that is smaller by this share, or by more.

        Keys are left out as long as there remain enough of those that matter; by how many tuples
        a key has, its results go with their square.
        """
        old, job = self.sample, self._job
        names = [[job.key_group(s, b) for b in stream] for s, stream in enumerate(inputs)]
        of_streams = [
            np.concatenate([np.empty(0, np.uint64), *(own for own in each if own is not None)])
            for each in names
        ]
        every, of_kin = np.concatenate(of_streams), 1.0
        if len(every):
            _, counts = np.unique(every, return_counts=True)
            squares = counts.astype(np.float64) ** 2
            # All kin were counted, and not only those of the sample.
            matter = old.key_group * float(squares.sum() ** 2 / max((squares**2).sum(), 1.0))
            of_kin = _power(min(max(KEYS / max(matter, 1.0), share), 1.0))
        rest = min(_power(share / of_kin), 1.0)
        if not job.sees_more:
            self._restart(replace(old, key_group=old.key_group * of_kin, seen=old.seen * rest))
            return
        sure: tuple[NDArray[np.uint64], ...] = ()
        if len(every):
            # How many tuples of the batch may be sure, if windows have so many of its kind.
            room = _SURE * self._held / len(inputs) * len(every) / max(self._need, 1.0) / of_kin
            sure = tuple(_finding_much(of_streams, s, room) for s in range(len(inputs)))
        self._restart(
            replace(old, key_group=old.key_group * of_kin, held=old.held * rest, sure=sure)
        )


def _finding_much(
    of_streams: Sequence[NDArray[np.uint64]], stream: int, room: float
) -> NDArray[np.uint64]:
    """The kin that are most frequent in the other streams, of which this one has so many tuples."""
    others = np.concatenate([own for s, own in enumerate(of_streams) if s != stream])
    names, partners = np.unique(others, return_counts=True)
    own = np.sort(of_streams[stream])
    mine = np.searchsorted(own, names, "right") - np.searchsorted(own, names)
    update = np.argsort(-partners, kind="stable")
    # Of a kin that is rare here, a batch may well have none.
    taken = np.cumsum(mine[update] + 1) <= room
    return np.sort(names[update[taken & (partners[update] > 1)]])


def _times(batch: pa.RecordBatch) -> NDArray[np.float64]:
    times: NDArray[np.float64] = batch.column(TIME).to_numpy().astype(np.float64)
    return times


def _latest(
    inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None, before: float | None
) -> float | None:
    """The latest of all times."""
    ends = [float(_times(b).max()) for stream in inputs for b in stream if b.num_rows]
    ends += [float(clock) for clock in clocks or () if clock is not None]
    return max([*ends, *([] if before is None else [before])], default=None)


def _between(batch: pa.RecordBatch, start: float, end: float) -> pa.RecordBatch:
    """The rows from one time until before another."""
    times = _times(batch)
    kept = (times >= start) & (times < end)
    return batch if kept.all() else batch.filter(pa.array(kept))


def _fed(
    engine: Engine, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None
) -> dict[str, int | float]:
    """What an engine counts of a batch."""
    for _ in engine.feed(inputs, clocks):
        pass
    return engine.take_counters()


def random_share(hashes: NDArray[np.uint64], mix: np.uint64) -> NDArray[np.float64]:
    """A number from 0 to 1 for each hash, from other bits than tables and shards use."""
    mixed = hashes * mix
    mixed ^= mixed >> np.uint64(29)
    return ((mixed * mix) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _power(share: float) -> float:
    """The next power of two that is no more."""
    return float(2.0 ** np.floor(np.log2(share)))
