"""The compiled loop of the bounded queue before a slow join; see `joins/window/queue.py`.

`run` goes through the newcomers of a feed, tick by tick. It stops where the caller must inspect the
join's memory, where too many keys are counted, and at the end.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tidegate.kernel.compiling import Array, entry_point, inlined
from tidegate.kernel.heap import drop_top, heapify, push, put, sift_down
from tidegate.kernel.records import record_type

# States of a row.
COMING, WAITING, TAKEN, DROPPED = range(4)
# Why `run` stopped.
DONE, OVERFLOW, TOO_MANY_KEYS = range(3)
# The next stage: another tick, or a step at the end of this one.
_NEXT, _CLOSE, _SURPLUS, _FORGET, _MOVE = range(5)

#: Half-lives after which counts are rescaled, before they overflow a float.
_EPOCHS = 512


#: The numbers of a queue, in `Queue.scalars`.
SCALARS = record_type(
    [
        ("stage", "i8"),  # what comes next
        ("at", "i8"),  # the first row that belongs to no tick yet
        ("entered", "i8"),  # the first row that has not entered the queue
        ("front", "i8"),  # no row before this one waits
        ("waits", "i8"),  # number of waiting rows
        ("heap", "i8"),  # length of `Queue.heap`
        ("taken", "i8"),  # length of `Queue.taken`
        ("dropped", "i8"),  # length of `Queue.dropped`
        ("idle", "i8"),  # number of keys that are counted and have no waiting row
        ("started", "i8"),  # whether an arrival has been counted
        ("epoch", "i8"),  # the epoch whose arrivals weigh 1
        ("rescaled", "i8"),  # whether counts were rescaled
        ("ticking", "i8"),  # whether there was a tick yet
    ]
)


class Queue(NamedTuple):
    """Waiting rows, in order, followed by the newcomers of a feed in tick order."""

    scalars: Array  # [1], see `SCALARS`
    clock: Array  # [1], of the time's type, as are the next three
    target: Array  # [1]: the time to which the clock moves next
    free: Array  # [1]: when the join is done with the row it took last
    time: Array
    since: Array  # when it entered the queue
    part: Array  # [1]: parts of a unit (see `Rules.parts`) to add to `free`
    side: Array
    entry: Array  # of its key; -1 for a key that never comes
    state: Array
    heap: Array  # waiting rows by count when last looked up; some have left
    taken: Array
    dropped: Array
    when: Array  # by dropped row
    counts: Array  # by entry and side
    known: Array  # by entry: whether it is counted
    changed: Array  # by entry
    queued: Array  # by entry: how many rows wait


class Rules(NamedTuple):
    """Settings that do not change."""

    size: int
    integrated: bool
    learned: bool
    halflife: Any  # of the time's type; 0: no decay
    most: int  # most keys that are counted and have no waiting row
    step: Any  # of the time's type: whole units that the join takes for a row
    step_part: int  # parts of a unit that it takes besides
    parts: int  # parts that a unit has
    last: Any  # of the time's type: after all times


@inlined
def _promise(queue: Queue, i: int) -> float:
    """Return how often a row's key arrives on the other stream."""
    entry = queue.entry[i]
    return float(queue.counts[entry, 1 - queue.side[i]]) if entry >= 0 else 0.0


@inlined
def _see(queue: Queue, rules: Rules, i: int) -> None:
    """Count an arrival; one that comes a half-life later weighs twice as much."""
    scalars, entry = queue.scalars[0], queue.entry[i]
    epoch = np.int64(0)
    if rules.halflife > 0:
        epoch = np.int64(queue.clock[0] // rules.halflife)
    if scalars.started == 0:
        scalars.started, scalars.epoch = 1, epoch
    age = epoch - scalars.epoch
    if age > _EPOCHS:
        shrink = math.ldexp(1.0, -int(min(age, 2000)))
        for at in range(queue.counts.shape[0]):
            queue.counts[at, 0] *= shrink
            queue.counts[at, 1] *= shrink
        scalars.epoch, scalars.rescaled = epoch, 1
        age = np.int64(0)
    queue.counts[entry, queue.side[i]] += math.ldexp(1.0, int(age))
    queue.changed[entry] = True
    if not queue.known[entry]:
        queue.known[entry] = True
        if queue.queued[entry] == 0:
            scalars.idle += 1


@inlined
def _enter(queue: Queue, rules: Rules, i: int) -> None:
    """Add a row to the queue."""
    scalars, entry = queue.scalars[0], queue.entry[i]
    queue.since[i], queue.state[i] = queue.clock[0], WAITING
    scalars.waits += 1
    if entry >= 0:
        if queue.queued[entry] == 0 and queue.known[entry]:
            scalars.idle -= 1
        queue.queued[entry] += 1
    if not rules.integrated:
        push(queue.heap, scalars.heap, _promise(queue, i), i, i)
        scalars.heap += 1


@inlined
def _leave(queue: Queue, i: int, state: int) -> None:
    """Remove a row from the queue."""
    scalars, entry = queue.scalars[0], queue.entry[i]
    queue.state[i] = state
    scalars.waits -= 1
    if entry >= 0:
        queue.queued[entry] -= 1
        if queue.queued[entry] == 0 and queue.known[entry]:
            scalars.idle += 1


@inlined
def _drop(queue: Queue, i: int) -> None:
    at = queue.scalars[0].dropped
    queue.dropped[at], queue.when[at] = i, queue.clock[0]
    queue.scalars[0].dropped = at + 1
    _leave(queue, i, DROPPED)


@inlined
def _look_up(queue: Queue, rules: Rules) -> None:
    """Rebuild the heap with current counts."""
    n = 0
    if not rules.integrated:
        for i in range(queue.scalars[0].front, queue.scalars[0].entered):
            if queue.state[i] == WAITING:
                put(queue.heap, n, _promise(queue, i), i, i)
                n += 1
        heapify(queue.heap, n)
    queue.scalars[0].heap = n


@inlined
def _take_until(queue: Queue, rules: Rules, end: Any, inclusive: bool) -> None:
    """Take the rows that the join has time for before a time (or, if inclusive, at it).

    Parts of a unit are counted separately, so that nothing is ever rounded.
    """
    scalars = queue.scalars[0]
    while scalars.waits > 0:
        i = scalars.front
        while queue.state[i] != WAITING:
            i += 1
        scalars.front = i
        start, part = queue.since[i], np.int64(0)
        if queue.free[0] > start or (queue.free[0] == start and queue.part[0] > 0):
            start, part = queue.free[0], queue.part[0]
        if start > end or (start == end and (part > 0 or not inclusive)):
            return
        part += rules.step_part
        over = part >= rules.parts
        queue.part[0] = part - rules.parts if over else part
        if start > rules.last - rules.step - over:
            queue.free[0] = rules.last
        else:
            queue.free[0] = start + rules.step + over
        queue.taken[scalars.taken] = i
        scalars.taken += 1
        _leave(queue, i, TAKEN)


@inlined
def _drop_least(queue: Queue, count: int) -> None:
    """Drop the rows whose keys have the lowest counts; of equal ones, those that came first.

    Counts only rise, so the lowest node whose count is current is the lowest of all.
    """
    heap, scalars = queue.heap, queue.scalars[0]
    while count > 0:
        i = heap[0].item
        if queue.state[i] == WAITING:
            now = _promise(queue, i)
            if now > heap[0].rank:
                put(heap, 0, now, i, i)
                sift_down(heap, 0, scalars.heap)
                continue
            _drop(queue, i)
            count -= 1
        drop_top(heap, scalars.heap)
        scalars.heap -= 1


@entry_point
def begin(queue: Queue, rules: Rules, waiting: int) -> None:
    """Start with the first rows as those that are waiting."""
    for i in range(waiting):
        queue.state[i] = WAITING
        if queue.entry[i] >= 0:
            queue.queued[queue.entry[i]] += 1
    for entry in range(queue.known.shape[0]):
        if queue.known[entry] and queue.queued[entry] == 0:
            queue.scalars[0].idle += 1
    scalars = queue.scalars[0]
    scalars.at = scalars.entered = scalars.waits = waiting
    _look_up(queue, rules)


@entry_point
def drop(queue: Queue, rows: Array) -> None:
    """Drop the given rows."""
    for i in range(rows.shape[0]):
        _drop(queue, rows[i])


@entry_point
def run(queue: Queue, rules: Rules, told: Any, tells: bool, close: bool) -> int:
    """Process all newcomers, and go on to the time `told` if there is one (`tells`).

    The last tick is left open unless `close` is set or `told` is later.
    """
    scalars, clock = queue.scalars[0], queue.clock
    while True:
        if scalars.stage == _NEXT:
            more = scalars.at < queue.time.shape[0]
            time = queue.time[scalars.at] if more else told
            if more and scalars.ticking and time <= clock[0]:
                scalars.at += 1
                continue
            closes = close and scalars.entered < scalars.at
            goes_on = tells and (scalars.ticking == 0 or time > clock[0])
            if not (more or closes or goes_on):
                return DONE
            queue.target[0] = time if more or tells else clock[0]
            scalars.stage = _CLOSE
        if scalars.stage == _CLOSE:
            scalars.stage = _MOVE
            if scalars.entered < scalars.at:
                smaller = scalars.rescaled
                scalars.rescaled = 0
                if rules.learned:
                    for i in range(scalars.entered, scalars.at):
                        _see(queue, rules, i)
                for i in range(scalars.entered, scalars.at):
                    _enter(queue, rules, i)
                scalars.entered = scalars.at
                if scalars.rescaled or scalars.heap > 2 * scalars.waits + 64:
                    _look_up(queue, rules)
                scalars.rescaled |= smaller
                _take_until(queue, rules, clock[0], True)
                scalars.stage = _SURPLUS
        if scalars.stage == _SURPLUS:
            scalars.stage = _FORGET
            if scalars.waits > rules.size:
                if rules.integrated:
                    return OVERFLOW
                _drop_least(queue, scalars.waits - rules.size)
        if scalars.stage == _FORGET:
            scalars.stage = _MOVE
            if rules.learned and scalars.idle > rules.most:
                return TOO_MANY_KEYS
        if scalars.stage == _MOVE:
            scalars.stage = _NEXT
            if scalars.ticking == 0 or queue.target[0] > clock[0]:
                clock[0], scalars.ticking = queue.target[0], 1
                _take_until(queue, rules, clock[0], False)
