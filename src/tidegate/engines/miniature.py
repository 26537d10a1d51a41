"""What a join would find with other memories: small copies of it, fed a sample of its streams.

Recall against memory for any policy, while the join runs (section 5 of paper 2 needs it to divide
memory). Each copy is a real engine with a memory of its own; one keeps everything, so that the
others' results can be compared with all there are. Where streams are too much for that, they see a
sample: some keys (as Waldspurger et al. do for caches, FAST 2015), or where few keys have most
results some tuples of all keys, or both; and their memories are as much smaller.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.engines.base import Clocks, Engine
from tidegate.engines.prepare import KEY, TIE, TIME

#: Tuples that the copy without a limit may hold, above which a sample is taken; and how many rows
#: of a batch are taken, the latest. They come in so many parts, so that results count from the
#: middle of a batch on, where it is longer than a window.
HELD, ROWS = 1 << 13, 1 << 15
_PARTS = 4
#: Of batches that are larger, all but one in so many are passed over.
_TURNS = 4
#: A sample of keys must have so many that matter: then the others are much like them.
KEYS = 300.0

_MIX = (np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))


class Copied(Protocol):
    """A job of which there can be copies."""

    @property
    def horizon(self) -> float:
        """The longest window: after it, what came first plays no part any more."""

    @property
    def by_key(self) -> bool:
        """Whether tuples of different keys never meet."""

    @property
    def unit(self) -> str:
        """The counter that memory is measured by: ``"held"`` or ``"bytes"``."""

    @property
    def least(self) -> int:
        """The least memory with which a shard holds anything."""

    @property
    def second(self) -> float:
        """A unit of time in the kernel's numbers."""

    def copy(self, memory: int | None) -> Engine:
        """An engine that is as the job's, with this memory or without a limit; it only counts."""

    def narrowed(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of a prepared batch that a copy needs."""


@dataclass
class Found:
    """What copies have found in some batches, scaled up from the sample.

    Attributes
    ----------
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

    hits: list[float]
    total: float = 0.0
    need: float = 0.0
    span: float = 0.0
    advance: float = 0.0


class Miniature:
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
        job: Copied,
        sizes: Sequence[int],
        *,
        settle: bool = True,
        held: int = HELD,
        rows: int = ROWS,
    ) -> None:
        self.sizes = tuple(sizes)
        self._job, self._settle = job, settle
        self._held, self._rows = held, rows
        #: How far the streams have come, and how far what was looked at.
        self._clock: float | None = None
        self._reached: float | None = None
        self._found = Found([0.0] * len(self.sizes))
        self._large, self._turn = False, -1
        self._since: float | None = None
        self._most = 0
        self._copies: list[Engine] = []
        self._exact: Engine = job.copy(None)
        self._restart(1.0, 1.0)

    @property
    def sample(self) -> tuple[float, float]:
        """The share of keys, and of their tuples, that is looked at."""
        return self._keys, self._tuples

    def feed(self, inputs: Sequence[Sequence[pa.RecordBatch]], clocks: Clocks | None) -> None:
        """Take a batch as the join itself takes it, or the latest part of a large one."""
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
            self._thin(taken, self._held / self._most / 2)

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
        counts = [_fed(engine, inputs, clocks) for engine in (*self._copies, self._exact)]
        scale, found = self._keys * self._tuples, self._found
        self._most = int(counts[-1]["held"])
        found.need = max(found.need, counts[-1][self._job.unit] / scale)
        if settled:
            worth = [each["importance"] / (scale * self._tuples) for each in counts]
            found.hits = [a + b for a, b in zip(found.hits, worth[:-1], strict=True)]
            found.total += worth[-1]
            if before is not None and self._reached is not None:
                found.span += self._reached - before

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
        found, self._found = self._found, Found([0.0] * len(self.sizes))
        return found

    # ---- the sample ---------------------------------------------------------------------------

    def _restart(self, keys: float, tuples: float) -> None:
        """Begin anew with these shares of keys and of their tuples."""
        self._keys, self._tuples = keys, tuples
        self._since, self._most = None, 0
        scale = keys * tuples
        self._copies = [self._job.copy(max(round(size * scale), 1)) for size in self.sizes]
        self._exact = self._job.copy(None)

    def _sampled(self, inputs: Sequence[Sequence[pa.RecordBatch]]) -> list[list[pa.RecordBatch]]:
        return [
            [self._some(self._job.narrowed(stream, batch)) for batch in batches]
            for stream, batches in enumerate(inputs)
        ]

    def _some(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = np.ones(batch.num_rows, np.bool_)
        for name, share, mix in zip((KEY, TIE), self.sample, _MIX, strict=True):
            if share < 1:
                kept &= _lot(batch.column(name).to_numpy(), mix) < share
        return batch if kept.all() else batch.filter(pa.array(kept))

    def _thin(self, taken: Sequence[Sequence[pa.RecordBatch]], share: float) -> None:
        """Begin anew with a sample that is smaller by this share, or by more.

        Keys are left out as long as there remain enough of those that matter; by how many tuples
        a key has, its results go with their square.
        """
        keys = [b.column(KEY).to_numpy() for stream in taken for b in stream]
        _, counts = np.unique(np.concatenate(keys), return_counts=True)
        squares = counts.astype(np.float64) ** 2
        matter = float(squares.sum() ** 2 / (squares**2).sum()) if len(counts) else 1.0
        most = min(max(KEYS / matter, share), 1.0) if self._job.by_key else 1.0
        of_keys = _power(most)
        of_tuples = min(_power(share / of_keys), 1.0)
        self._restart(self._keys * of_keys, self._tuples * of_tuples)


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


def _lot(hashes: NDArray[np.uint64], mix: np.uint64) -> NDArray[np.float64]:
    """A number from 0 to 1 for each hash, from other bits than tables and shards use."""
    mixed = hashes * mix
    mixed ^= mixed >> np.uint64(29)
    return ((mixed * mix) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _power(share: float) -> float:
    """The next power of two that is no more."""
    return float(2.0 ** np.floor(np.log2(share)))
