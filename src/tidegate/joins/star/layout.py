"""How everything that a star join holds lies in arrays.

A held tuple is a *slot*; the slots of one stream and key form a *group*, a list. Newcomers of a
tick are linked into their groups too, before they are held or not, so that whoever comes after
finds them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidegate.kernel.compiling import Array

#: What ranks: nothing, a number fixed at admission, or one of the formulas of section 3.2; `RATE`
#: is how often partners come, weighed by the tuple's own importance or (`AUTO`) by the results'.
NOTHING, FIXED, SIMPPROB, DIMPPROB, DGL, RATE, AUTO = range(7)

# Places in `Core.ints`.
FREE, SEQ, MARK, GONE, SHED = 0, 1, 2, 3, 4
OUT_OF_ORDER, ADMITTED, REJECTED, EVICTED, EXPIRED, FILTERED = 5, 6, 7, 8, 9, 10
# Where in a batch the loop is: the tick, its stage, the newcomer, the first sequence number.
TICK_FROM, TICK_TO, STAGE, AT, BASE = 11, 12, 13, 14, 15
EPOCH, STARTED, REWRITTEN = 16, 17, 18
ENDING = 19  # length of `Core.ending`
RATED = 20  # changes with all that `worth` depends on
# Whether a probe stopped at a full output, and at which fact and slot it continues.
PAUSED, PAUSED_FACT, PAUSED_SLOT = 21, 22, 23
INTS = 24
#: How many tuples' worth is remembered; a power of two.
MEMO = 256

# What a slot is: free, linked but not in memory, or in memory.
PENDING, HELD = 1, 2
# Stages of a tick, and what `meet` does with what it finds.
BEGIN, FIRST, SECOND, END = 0, 1, 2, 3
EMIT, ADD, TAKE, COUNT = 2, 1, -1, 0


def slot_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """One tuple.

    `until` is when nothing can join it any more, `rank`, `tie`, `matches` and `seq` are what it is
    compared by; `gain` is what DGL has of it, since `last`.
    """
    return np.dtype(
        [
            ("time", time),
            ("until", time),
            ("last", time),
            ("seq", "i8"),
            ("row", "i8"),
            ("weight", "f8"),
            ("rank", "f8"),
            ("gain", "f8"),
            ("tie", "f8"),
            ("matches", "i8"),
            ("next", "i4"),
            ("prev", "i4"),
            ("stream", "i4"),
            ("entry", "i4"),
            ("queue", "i4"),
            ("place", "i4"),
            ("origin", "i4"),
            ("state", "i2"),
            ("seen", "i1"),
            ("learned", "i1"),
        ],
        align=True,
    )


#: The tuples of a stream and key, and how often the key came, as a count and as importance.
GROUP = np.dtype(
    [("rate", "f8"), ("sum", "f8"), ("head", "i4"), ("count", "i4"), ("touched", "i4")], align=True
)


def memo_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """What tuples of one key and weight are worth, if their times lie in [since, before)."""
    return np.dtype(
        [
            ("since", time),
            ("before", time),
            ("rated", "i8"),
            ("weight", "f8"),
            ("worth", "f8"),
            ("stream", "i4"),
            ("entry", "i4"),
        ],
        align=True,
    )


class Core(NamedTuple):
    """All state of one join but the relation; n streams, p pools."""

    ints: Array
    clock: Array  # [1]: the largest time seen
    stream_clock: Array  # [n]: the same of each stream
    slots: Array
    free: Array
    groups: Array  # [n, entries]
    heaps: Array  # [2 p, slots]; the second p are those that DGL has nothing to say for
    sizes: Array  # [2 p]: of the heaps
    used: Array  # [p]
    held: Array  # [n]
    due: Array  # [n, .]: heaps of what expires
    dues: Array  # [n]: their sizes
    ending: Array  # a heap of facts that end
    floor: Array  # [p]: the largest rank evicted so far
    cursor: Array  # [n]: the slots of a combination
    gone: Array  # sequence numbers of what has left since the mark
    memo: Array  # [MEMO]


class Rules(NamedTuple):
    """What does not change while a batch runs."""

    kind: int
    shed_when: int
    defer: bool  # whether a tick waits for its end before it probes
    pools: int
    budgets: Array
    windows: Array  # [n]; 0: unbounded
    lateness: Any
    halflife: Any  # 0: no decay
    combine: int  # of importance: 0 min, 1 max, 2 sum, 3 product; -1: there is none
    params: Any
    floor_weight: float
    seq_weight: float
    never: Any  # a time before all others, and one after
    always: Any


class Batch(NamedTuple):
    """Newcomers, sorted by (time, stream, key hash, tie)."""

    time: Array
    stream: Array
    entry: Array
    row: Array
    weight: Array
    rank: Array
    probed: Array  # those of the open tick that have probed in an earlier batch
    slot: Array  # where each is linked, -1 if nowhere


class Output(NamedTuple):
    """Results as rows of each stream and a fact, and (where asked for) what was shed."""

    rows: Array  # [n + 1, room]
    shed_row: Array
    shed_stream: Array
    shed_time: Array
    shed_held: Array
