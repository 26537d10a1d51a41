"""How everything that a bounded window join holds lies in arrays.

A held tuple is a *slot*; the slots of one key and side form a *group*, a list in order of
admission; groups `2 * e` and `2 * e + 1` are the left and the right of key entry `e`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidegate.kernel.compiling import Array

#: What the queue ranks: nothing, a group by its key's rate, a tuple by a number fixed at
#: admission, a group by its key's rate times the life its oldest tuple has left, or a tuple by a
#: formula of what is known of it (see `scores`).
NOTHING, BY_KEY, BY_TUPLE, BY_LIFE, BY_SCORE = 0, 1, 2, 3, 4
#: What is counted by key: nothing, arrivals by side, or results.
ARRIVALS, RESULTS = 1, 2
#: When a victim leaves (ALGORITHMS section 0): after the tick's probes, before, or before and
#: with the newcomers that were not admitted barred from probing.
AFTER_PROBE, BEFORE_PROBE, BEFORE_ARRIVAL = 0, 1, 2

#: Candidates that a heap sorts within the processor's cache.
SMALL_HEAP = 2048
#: A time before all others.
NEVER = -(2**62) - 1
#: The rate of a key that never came, where it weighs a life: of such tuples the older leaves.
FAINTEST = 2.0**-200

# What `run` says when it stops.
DONE, OUTPUT_FULL, PROBE_TOO_LARGE, TOO_MANY_KEYS = 0, 1, 2, 3

# Places in `Core.ints`.
FREE = 0  # free slots
ENTRIES = 1  # entries ever used
FREE_ENTRIES = 2
IDLE = 3  # length of `Core.idle`
STAT_ONLY = 4  # keys that are counted and hold no tuple
SEQ = 5  # next sequence number
STARTED = 6  # whether an arrival has been counted
EPOCH = 7  # epoch whose arrivals weigh 1
# Since the mark: tuples with a smaller sequence number were held when it was set.
MARK = 8
GONE = 9  # length of `Core.gone`
REWRITTEN = 10  # whether rates were forgotten or rescaled
# Since the batch began.
FRESH = 11  # length of `Core.fresh`
SHED = 12  # early departures noted in the output
# Counters.
OUT_OF_ORDER, ADMITTED, REJECTED, EVICTED, EXPIRED = 13, 14, 15, 16, 17
# Where in a batch the loop is: the tick, its stage, the newcomer, the first sequence number.
TICK_FROM, TICK_TO, STAGE, AT, NEWCOMERS = 18, 19, 20, 21, 22
LEARNED = 23  # length of `Core.learned`
GHOSTS = 24  # length of `Core.ghosts`
THINNED = 25  # one newcomer in two to the power of this leaves a ghost
CENSUS_SEQ, REDRAWN = 26, 27  # the sequence numbers at the last census, and at the last fit
CHANGE = 28  # how many changes of the memory have come
# One for each pool, or for each side; `BUDGET` is what a pool may hold now.
USED, FAR, HELD, DUE_FROM, DUE_TO, LATE_DUE, BUDGET = 29, 31, 33, 35, 37, 39, 41
NEAR_FROM, NEAR_TO = 43, 45  # where in `Core.near` candidates are
# Length of that heap; how many have come since `near` was filled or, where ranks move, were sought.
JOINERS, USES = 47, 49
# Where in `Core.ring` arrivals are that count, by their number, and the first since the mark.
RING_FROM, RING_TO, RING_MARK = 51, 52, 53
DETERMINED = 54  # whether priorities were determined anew since the mark
LINE_FROM, LINE_TO = 55, 57  # by pool: where in the line of joiners candidates are
INTS = 59

#: How arrivals are counted: a count for each key that fades, those of the last window, or a sketch.
FADING, IN_WINDOW, SKETCHED = 0, 1, 2
#: Rows of a sketch.
SKETCH_ROWS = 4

# Places in `Core.quality`: drops since priorities were determined, what held tuples have earned
# since the last drop, its mean over some drops, the highest since then, and how often they were.
DROPS, EARNED, MEAN, PEAK, TIMES = range(5)


def slot_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """One held tuple, a cache line.

    `rank` is fixed at admission: the rank itself, or the importance where a formula ranks. What
    the formula has learned of the tuple is in `gain`, and since when in `last`.
    """
    return np.dtype(
        [
            ("time", time),
            ("seq", "i8"),
            ("row", "i8"),
            ("rank", "f8"),
            ("gain", "f8"),
            ("last", time),
            ("next", "i4"),
            ("prev", "i4"),
            ("group", "i4"),
            ("size", "i4"),
        ],
        align=True,
    )


GROUP = np.dtype(
    [
        ("rate", "f8"),
        ("first", "i8"),  # the sequence number of its head
        ("head", "i4"),
        ("tail", "i4"),
        ("count", "i4"),
        ("life", "u2"),  # how often it has come to hold something, modulo 2^16
        ("listed", "i2"),  # whether its entry is in `idle`; of the left group only
    ],
    align=True,
)


def ranked_type(rank: np.dtype[Any]) -> np.dtype[Any]:
    """A place in a queue or a heap: a group or a slot, what it is ranked by, which tuple it is.

    Of a group also which of its lives was meant.
    """
    return np.dtype([("rank", rank), ("seq", "i8"), ("item", "i4"), ("life", "u2")], align=True)


#: A place in the list of what expires.
DUE = np.dtype([("seq", "i8"), ("item", "i4")])


def ghost_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """What is left of a tuple to learn from.

    `next` is another with the same place in `heads`; `found` are its results, `until` is up to when
    it was counted what was expected of it, `marks` how many marks of age it has come by (see
    `Core.trails`).
    """
    fields = [("hash", "u8"), ("seq", "i8"), ("time", time), ("until", time), ("found", "i8")]
    return np.dtype([*fields, ("next", "i4"), ("side", "i2"), ("marks", "i2")], align=True)


def recent_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """When a key came last, and a count of its arrivals that fades fast, as it was then."""
    return np.dtype([("time", time), ("count", "f8")])


def ring_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """An arrival that counts: by which clock it came, and its group."""
    return np.dtype([("time", time), ("group", "i4")], align=True)


class Core(NamedTuple):
    """All state of one join; see the module's text for slots, groups and the queue."""

    ints: Array
    clock: Array  # [1], of the time's type: the largest time seen
    stream_clock: Array  # the same of each side alone
    floor: Array  # the largest rank evicted, by pool
    slots: Array
    free: Array
    groups: Array
    hashes: Array  # by entry
    table: Array  # open addressing: the upper half of a hash, and its entry + 1
    free_entries: Array
    idle: Array  # entries that may be counted and hold no tuple
    edge: Array  # by pool: what is at most (rank, seq) of the edge is near
    near: Array  # by pool: candidates in order
    joiners: Array  # by pool: a heap of those that are near too, from its end a line of such
    far: Array  # by pool: the others
    bounds: Array  # of parts, while candidates are sorted, and
    tally: Array  # how many are in each part or cell; see `sorting`
    due: Array  # by side: slots in the order in which they expire
    ends: Array  # by side: what the last of these was put in order by, see `times.end_of`
    late: Array  # by side: a heap of slots that would be out of order there
    gone: Array
    fresh: Array
    model: Array  # what a formula has learned of all tuples; see `rates`
    worth: Array  # by side, age, level and trend: what a tuple is worth
    cells: Array  # by side, and by age, level and trend: results expected and found
    returns: Array  # by side, and by mark and level: how those did that came by; see `outlook`
    factors: Array  # where products are fitted to the cells
    ghosts: Array  # see `ghosts`
    trails: Array  # by ghost: at every mark of its age, the level of its key and its results
    heads: Array  # by key: the first of its ghosts
    recent: Array  # by group: when its key came last and how often lately, if that matters
    learned: Array  # slots whose `gain` has changed since the mark, and
    is_learned: Array  # whether a slot is among them
    priority: Array  # by slot, if not looked up at every drop: as last determined
    quality: Array  # by pool: what says when to determine priorities anew; see `priorities`
    ring: Array  # the arrivals of the last window, if these are counted; see `keys`
    sketch: Array  # by side and row, if arrivals are counted in one; see `sketch`


class Rules(NamedTuple):
    """What does not change while a batch runs."""

    kind: int
    shed_when: int
    pools: int
    budgets: Array  # by change of the memory, and first before any: what each pool may hold
    changes: Array  # when each comes
    window_left: Any  # of the time's type, the longest; 0: unbounded
    window_right: Any
    windows: Array  # where windows change: since when, the left's, the right's; otherwise empty
    lateness: Any
    learn: int
    formula: int
    params: Any  # of the formula
    halflife: Any  # 0: no decay
    cap: int
    floor_weight: float
    seq_weight: float
    exact_limit: int
    counting: int  # how arrivals are counted
    span: Any  # of the time's type: for how long one counts, if for a window
    columns: int  # of a sketch


class Batch(NamedTuple):
    """Newcomers, sorted by (time, side, key hash, tie)."""

    time: Array
    side: Array
    hash: Array
    entry: Array
    row: Array
    size: Array
    rank: Array
    probed: Array  # those of the open tick that have probed in an earlier batch


class Output(NamedTuple):
    """Pairs of rows, and (where asked for) what was shed: row, side, why (1: was held)."""

    left: Array
    right: Array
    shed_row: Array
    shed_side: Array
    shed_time: Array
    shed_held: Array
