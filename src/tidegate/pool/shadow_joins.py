"""Estimate what a join would find with other budgets, by small shadow copies of it.

Section 5 of paper 2 divides memory by recall as a function of memory. Shadow joins measure this
function for any policy while the join runs. Each copy is a real engine with its own budget, and
only counts results. One copy has no limit, so that the others' results can be compared with all
results there are.

Where the streams are too large for that, the copies see a sample, with proportionally smaller
budgets. The sample consists of some key groups (as Waldspurger et al. do for caches, FAST 2015). A
key group is a set of keys whose rows may join each other. Where few key groups have most of the
results, the sample keeps more of them but only some of their rows. A copy then still sees all rows
of its key groups, so that it learns what the join learns, but holds only some: all rows of the key
groups with the most partners, because a few of those more or less would change much, and a share of
the others.
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

#: If the unlimited copy holds more rows than HELD, a sample is taken. Of each batch at most ROWS
#: rows are used, the latest. They are fed in _PARTS parts, so that results count from the middle of
#: a batch on if the batch is longer than a window.
HELD, ROWS = 1 << 15, 1 << 15
_PARTS = 4
#: While batches are larger than ROWS, only one in _TURNS is used.
_TURNS = 4
#: A sample of key groups must contain this many important ones to represent the others.
KEYS = 300.0

#: If recall rises by more than _RISE between two sizes, the size between them is tried as well: in
#: at most _ROUNDS rounds, at most _MORE sizes in each.
_RISE, _ROUNDS, _MORE = 0.1, 2, 3

#: The part of HELD that is for rows of key groups with many partners, over all streams.
_SURE = 0.25

#: Multipliers that draw the key groups of a sample, the rows it sees, and the rows it may hold.
OF_KEY_GROUP, OF_SEEN, OF_HELD = (
    np.uint64(0xC2B2AE3D27D4EB4F),
    np.uint64(0x165667B19E3779F9),
    np.uint64(0x27D4EB2F165667C5),
)


@dataclass(frozen=True)
class Sample:
    """The sampling fractions: of key groups, of rows seen, and of rows that may be held.

    Of the key groups in `sure` (one sorted array per stream), all rows may be held. Of the others a
    share `held` may be held; each such row represents several. It takes the memory of the rows it
    represents, and its results count as often.
    """

    key_group: float = 1.0
    seen: float = 1.0
    held: float = 1.0
    sure: tuple[NDArray[np.uint64], ...] = field(default=(), compare=False)

    @property
    def memory(self) -> float:
        """The factor by which budgets are smaller than the real ones."""
        return self.key_group * self.seen

    def results(self, streams: int) -> float:
        """Return the share of results that copies find: all rows of a result must be seen."""
        return self.key_group * self.seen**streams


class ShadowableJoin(Protocol):
    """A join that can be copied: what `ShadowJoins` needs to know about it."""

    @property
    def horizon(self) -> float:
        """The longest window: rows older than this have no effect any more."""

    @property
    def streams(self) -> int:
        """The number of streams."""

    @property
    def unit(self) -> str:
        """The counter that measures memory: ``"held"`` or ``"bytes"``."""

    @property
    def sees_more(self) -> bool:
        """True if a copy can see rows that it never holds."""

    def key_group(self, stream: int, batch: pa.RecordBatch) -> NDArray[np.uint64] | None:
        """Return the key group of each row: only rows of one group may join. None if all may."""

    def copy(self, memory: int | None, sample: Sample) -> Engine:
        """Return an engine like the join's with this budget, or without a limit; it only counts."""

    def narrowed(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Select the columns of a prepared record batch that a copy needs."""

    def stands_for(self, engine: Any, counters: Mapping[str, int | float]) -> float:
        """Return how much a copy holds, in `unit`, where a row may represent several."""


@dataclass
class Found:
    """The results that the copies found in some batches, scaled up from the sample.

    Attributes
    ----------
    sizes
        The budgets of the copies.
    hits
        The importance of each copy's results (their number if there is no importance), in the
        order of `sizes`.
    total
        The importance of all results.
    need
        The most that the unlimited copy held.
    span
        The time over which these results were found.
    advance
        The time by which the clock advanced in all.
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
        """Add what was found over a further span of time."""
        self.hits = [a + b for a, b in zip(self.hits, hits, strict=True)]
        self.total += total
        self.span += span


class ShadowJoins:
    """Copies of a join with several budgets, over a sample of its streams.

    Parameters
    ----------
    job
        The join to copy.
    sizes
        The budgets, ascending.
    settle
        Whether results count only after the copies have run for the longest window.
    held, rows
        The most rows that the unlimited copy may hold, and the most rows used of a batch.
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
        #: The latest time of the streams, and the latest time fed to the copies.
        self._clock: float | None = None
        self._reached: float | None = None
        self._found = Found(self._sizes)
        self._since_restart = Found(self._sizes)
        self._rounds = 0
        self._large, self._turn = False, -1
        self._since: float | None = None
        self._rows_held, self._need = 0, 0.0
        self._copies: list[Engine] = []
        #: The inputs after the streams for a part of a batch: empty, as they were fed before.
        self._no_changes: list[Sequence[pa.RecordBatch]] = []
        self._restart(Sample())

    def feed(self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None) -> None:
        """Process a batch of the join, or the latest part of a large one.

        Changes of a relation, which are the inputs after the streams, are processed in every batch.
        """
        streams = self._job.streams
        self._feed_changes(inputs[streams:])
        inputs, clocks = inputs[:streams], None if clocks is None else clocks[:streams]
        self._advance_clock(inputs, clocks)
        self._turn += 1
        if self._large and self._turn % _TURNS:
            return
        taken = self._sample_inputs(inputs)
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
        if self._rows_held > self._held:
            self._shrink_sample(inputs, self._held / self._rows_held / 2)
        elif self._large and times[-1] - times[first] < 2 * self._job.horizon:
            span = (times[-1] - times[first]) / (2 * self._job.horizon)
            self._restart(
                replace(self.sample, seen=self.sample.seen * _power_of_two(max(span, 2**-20)))
            )

    def _feed_changes(self, changes: Sequence[Sequence[pa.RecordBatch]]) -> None:
        """Feed changes of the relation to the copies. New copies are made with them included."""
        self._no_changes = [()] * len(changes)
        if self._copies:
            if any(b.num_rows for other in changes for b in other):
                for engine in self._copies:
                    _feed_and_count(engine, [*[()] * self._job.streams, *changes], None)
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
        given = [*inputs, *self._no_changes]
        counts = [_feed_and_count(engine, given, clocks) for engine in self._copies]
        found, part = self._found, self.sample.results(self._job.streams)
        self._rows_held = int(counts[-1]["held"])
        self._need = self._job.stands_for(self._copies[-1], counts[-1]) / self.sample.memory
        found.need = max(found.need, self._need)
        if settled:
            *hits, total = (each["importance"] / part for each in counts)
            span = 0.0
            if before is not None and self._reached is not None:
                span = self._reached - before
            found.add(hits, total, span)

    def _advance_clock(
        self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None
    ) -> None:
        """Advance the clock to the latest time of the streams, whatever part of them is used."""
        latest = _latest(inputs, clocks, self._clock)
        if self._clock is None:
            firsts = [float(_times(b).min()) for stream in inputs for b in stream if b.num_rows]
            self._clock = min(firsts, default=latest)
        if self._clock is not None and latest is not None:
            self._found.advance += latest - self._clock
        self._clock = latest

    def take(self) -> Found:
        """Return what was found since the last call."""
        found, self._found = self._found, Found(self._sizes)
        self._since_restart.add(found.hits, found.total, found.span)
        if self._settle and self._since_restart.span >= self._job.horizon:
            self.refine()
        return found

    def refine(self) -> bool:
        """Add sizes where recall rises steeply, and then restart the copies.

        Some joins find almost nothing until a few rows fit, and then much. A few rounds show where
        that is.
        """
        found, sizes = self._since_restart, self._sizes
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
        """Return what the join itself found, by its counters, to compare with the prediction."""
        return float(counters["importance"])

    # ---- the sample ---------------------------------------------------------------------------

    def _restart(self, sample: Sample) -> None:
        """Restart with this sample, at the next batch."""
        self.sample = sample
        self._since, self._rows_held = None, 0
        self._since_restart = Found(self._sizes)
        self._copies = []

    def _sample_inputs(
        self, inputs: Sequence[Sequence[pa.RecordBatch]]
    ) -> list[list[pa.RecordBatch]]:
        return [
            [self._sample_batch(stream, batch) for batch in batches]
            for stream, batches in enumerate(inputs)
        ]

    def _sample_batch(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = np.ones(batch.num_rows, np.bool_)
        if self.sample.key_group < 1:
            key_group = self._job.key_group(stream, batch)
            assert key_group is not None
            kept &= random_share(key_group, OF_KEY_GROUP) < self.sample.key_group
        if self.sample.seen < 1:
            kept &= random_share(batch.column(ROW_HASH).to_numpy(), OF_SEEN) < self.sample.seen
        narrow = self._job.narrowed(stream, batch)
        return narrow if kept.all() else narrow.filter(pa.array(kept))

    def _shrink_sample(self, inputs: Sequence[Sequence[pa.RecordBatch]], share: float) -> None:
        """Restart with a sample that is smaller by this factor, or by more.

        Leave out key groups as long as enough important ones remain, and rows after that. The
        results of a key group are taken to grow with the square of its number of rows.
        """
        old, job = self.sample, self._job
        names = [[job.key_group(s, b) for b in stream] for s, stream in enumerate(inputs)]
        groups_by_stream = [
            np.concatenate([np.empty(0, np.uint64), *(own for own in each if own is not None)])
            for each in names
        ]
        all_groups, group_share = np.concatenate(groups_by_stream), 1.0
        if len(all_groups):
            _, counts = np.unique(all_groups, return_counts=True)
            squares = counts.astype(np.float64) ** 2
            # All key groups were counted, not only those of the sample.
            important = old.key_group * float(squares.sum() ** 2 / max((squares**2).sum(), 1.0))
            group_share = _power_of_two(min(max(KEYS / max(important, 1.0), share), 1.0))
        rest = min(_power_of_two(share / group_share), 1.0)
        if not job.sees_more:
            self._restart(replace(old, key_group=old.key_group * group_share, seen=old.seen * rest))
            return
        sure: tuple[NDArray[np.uint64], ...] = ()
        if len(all_groups):
            # The number of this batch's rows that may be sure, if windows are like the batch.
            room = (
                _SURE
                * self._held
                / len(inputs)
                * len(all_groups)
                / max(self._need, 1.0)
                / group_share
            )
            sure = tuple(
                _groups_with_most_partners(groups_by_stream, s, room) for s in range(len(inputs))
            )
        self._restart(
            replace(old, key_group=old.key_group * group_share, held=old.held * rest, sure=sure)
        )


def _groups_with_most_partners(
    groups_by_stream: Sequence[NDArray[np.uint64]], stream: int, room: float
) -> NDArray[np.uint64]:
    """Return the key groups most frequent in the other streams, up to `room` own rows."""
    others = np.concatenate([own for s, own in enumerate(groups_by_stream) if s != stream])
    names, partners = np.unique(others, return_counts=True)
    own = np.sort(groups_by_stream[stream])
    mine = np.searchsorted(own, names, "right") - np.searchsorted(own, names)
    order = np.argsort(-partners, kind="stable")
    # Add one: a batch may well contain no row of a group that is rare in this stream.
    taken = np.cumsum(mine[order] + 1) <= room
    return np.sort(names[order[taken & (partners[order] > 1)]])


def _times(batch: pa.RecordBatch) -> NDArray[np.float64]:
    times: NDArray[np.float64] = batch.column(TIME).to_numpy().astype(np.float64)
    return times


def _latest(
    inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None, before: float | None
) -> float | None:
    """Return the latest of all times."""
    ends = [float(_times(b).max()) for stream in inputs for b in stream if b.num_rows]
    ends += [float(clock) for clock in clocks or () if clock is not None]
    return max([*ends, *([] if before is None else [before])], default=None)


def _between(batch: pa.RecordBatch, start: float, end: float) -> pa.RecordBatch:
    """Return the rows with start <= time < end."""
    times = _times(batch)
    kept = (times >= start) & (times < end)
    return batch if kept.all() else batch.filter(pa.array(kept))


def _feed_and_count(
    engine: Engine, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None
) -> dict[str, int | float]:
    """Feed an engine and return its counters."""
    for _ in engine.feed(inputs, clocks):
        pass
    return engine.take_counters()


def random_share(hashes: NDArray[np.uint64], mix: np.uint64) -> NDArray[np.float64]:
    """Return a number from 0 to 1 for each hash, from other bits than tables and shards use."""
    # Reports in checkpoints come from these samples, so this mixer stays beside that of the
    # kernel, `kernel.hashing.mix`, which would draw others.
    mixed = hashes * mix
    mixed ^= mixed >> np.uint64(29)
    return ((mixed * mix) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _power_of_two(share: float) -> float:
    """Return the largest power of two that is not above the share."""
    return float(2.0 ** np.floor(np.log2(share)))
