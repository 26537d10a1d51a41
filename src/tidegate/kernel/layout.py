"""The arrays in which a bounded window join keeps its state.

A held row occupies a *slot*. The slots of one key and side form a *group*, a linked list in order
of admission. Groups `2 * e` and `2 * e + 1` are the left and the right group of key entry `e`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidegate.kernel.compiling import Array
from tidegate.kernel.records import record_type

#: What the queue of victims ranks: nothing, a group by its key's rate, a row by a number fixed at
#: admission, a group by its key's rate times the remaining life of its oldest row, or a row by a
#: formula (see `learning/scores.py`).
NOTHING, BY_KEY, BY_TUPLE, BY_LIFE, BY_SCORE = 0, 1, 2, 3, 4
#: What is counted by key: nothing (0), arrivals by side, or results.
ARRIVALS, RESULTS = 1, 2
#: When a victim leaves: after the tick's probes; before them; or before them, with rejected
#: newcomers barred from probing (`shed_when`).
AFTER_PROBE, BEFORE_PROBE, BEFORE_ARRIVAL = 0, 1, 2

#: Number of candidates that a heap sorts within the processor's cache.
SMALL_HEAP = 2048
#: A time before all others.
NEVER = -(2**62) - 1
#: The rate of a key that never came, where it is multiplied by a life: among such rows the older
#: one leaves.
FAINTEST = 2.0**-200

# Why `run` stopped.
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

#: How arrivals are counted: a fading count for each key, the arrivals of the last window, or a
#: sketch.
FADING, IN_WINDOW, SKETCHED = 0, 1, 2
#: Rows of a sketch.
SKETCH_ROWS = 4

# Places in `Core.quality`: drops since priorities were determined, what held tuples have earned
# since the last drop, its mean over some drops, the highest since then, and how often they were.
DROPS, EARNED, MEAN, PEAK, TIMES = range(5)


def slot_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of one held row: 64 bytes, a cache line.

    `rank` is fixed at admission: the rank itself, or the row's importance where a formula ranks.
    `gain` is what the formula has learned of the row, and `last` is when it learned it.
    """
    return record_type(
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
        ]
    )


GROUP = record_type(
    [
        ("rate", "f8"),
        ("first", "i8"),  # the sequence number of its head
        ("head", "i4"),
        ("tail", "i4"),
        ("count", "i4"),
        ("life", "u2"),  # how many times it went from empty to holding rows, modulo 2^16
        ("listed", "i2"),  # whether its entry is in `idle`; used in the left group only
    ]
)


def ranked_type(rank: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a node in a queue or a heap of slots or groups.

    `rank` and `seq` order the nodes. `item` is the slot or the group. `life` says of a group which
    of its lives the node belongs to (see `GROUP`).
    """
    return record_type([("rank", rank), ("seq", "i8"), ("item", "i4"), ("life", "u2")])


#: A place in the list of rows in order of expiry.
DUE = record_type([("seq", "i8"), ("item", "i4")], align=False)


def ghost_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a ghost: the record of a row from which the join learns.

    `next` is the next ghost in the same place of `heads`. `found` counts its results. Expected
    results were counted up to the time `until`. `marks` is how many marks of age it has passed (see
    `Core.trails`).
    """
    fields = [("hash", "u8"), ("seq", "i8"), ("time", time), ("until", time), ("found", "i8")]
    return record_type([*fields, ("next", "i4"), ("side", "i2"), ("marks", "i2")])


def recent_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a key's last arrival: its time, and the fast-fading count as of then."""
    return record_type([("time", time), ("count", "f8")])


def ring_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a counted arrival: the clock when it came, and its group."""
    return record_type([("time", time), ("group", "i4")])


class Core(NamedTuple):
    """All state of one join; the module's docstring explains slots and groups."""

    ints: Array
    clock: Array  # [1], of the time's type: the largest time seen
    stream_clock: Array  # by side: the largest time seen of that stream
    floor: Array  # by pool: the largest rank shed
    slots: Array
    free: Array
    groups: Array
    hashes: Array  # by entry
    table: Array  # open addressing: the upper half of a hash, and its entry + 1
    free_entries: Array
    idle: Array  # entries that may be counted and hold no row
    edge: Array  # by pool: candidates up to this (rank, seq) are near
    near: Array  # by pool: the lowest candidates, sorted
    joiners: Array  # by pool: a heap of later near candidates; from its end, a sorted run
    far: Array  # by pool: the other candidates, unsorted
    bounds: Array  # scratch: upper bounds of parts while candidates are sorted
    tally: Array  # scratch: counts of each part or cell; see `kernel/sorting.py`
    due: Array  # by side: slots in order of expiry
    ends: Array  # by side: `end_of` (see `kernel/windows.py`) of the last slot in `due`
    late: Array  # by side: a heap of slots that would be out of order in `due`
    gone: Array
    fresh: Array
    model: Array  # what a formula has learned of all rows; see `learning/rates.py`
    worth: Array  # by side, age, level and trend: what a row is worth
    cells: Array  # by side, what, age, level and trend: expected and found results
    returns: Array  # by side, count, mark and level: results of ghosts; see `outlook.py`
    factors: Array  # scratch: factors that are fitted to the cells
    ghosts: Array  # see `learning/ghosts.py`
    trails: Array  # by ghost and mark of age: the level of its key, and its results
    heads: Array  # by hash: the first ghost of a chain
    recent: Array  # by group: last arrival and recent count of its key, if a policy needs them
    learned: Array  # slots whose `gain` has changed since the mark
    is_learned: Array  # by slot: whether it is in `learned`
    priority: Array  # by slot: its priority as last computed, if priorities are stored
    quality: Array  # by pool: when to recompute priorities; see `priorities.py`
    ring: Array  # the arrivals of the last window, if these are counted; see `keys.py`
    sketch: Array  # by side and row: a sketch, if one counts; see `kernel/sketch.py`


class Rules(NamedTuple):
    """Settings that do not change while a batch runs."""

    kind: int
    shed_when: int
    pools: int
    budgets: Array  # by change of the budget, and first before any: what each pool may hold
    changes: Array  # when each change comes
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
    span: Any  # of the time's type: for how long an arrival counts, if for a window
    columns: int  # of a sketch


class Batch(NamedTuple):
    """Newcomers, sorted by (time, side, key hash, row hash)."""

    time: Array
    side: Array
    hash: Array
    entry: Array
    row: Array
    size: Array
    rank: Array
    probed: Array  # rows of the open tick that have probed in an earlier batch


class Output(NamedTuple):
    """Pairs of rows and, if the caller asked for them, the rows that were shed or rejected."""

    left: Array
    right: Array
    shed_row: Array
    shed_side: Array
    shed_time: Array
    shed_held: Array
