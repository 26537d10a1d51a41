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
#: admission, or a row by a formula (see `learning/scores.py`).
NOTHING, BY_KEY, BY_TUPLE, BY_SCORE = 0, 1, 2, 3
#: What is counted by key: nothing (0), arrivals by side, or results.
ARRIVALS, RESULTS = 1, 2
#: When a victim leaves: after the tick's probes; before them; or before them, with rejected
#: newcomers barred from probing (`shed_when`).
AFTER_PROBE, BEFORE_PROBE, BEFORE_ARRIVAL = 0, 1, 2

#: Number of candidates that a heap sorts within the processor's cache.
SMALL_HEAP = 2048
#: The largest number of slices of a side; see `slices.py`.
MOST_SLICES = 256
#: The largest number of rows that found a result and are looked at in the next choice.
MOST_NOTED = 8
#: A sequence number after all others.
LAST = 2**62
#: A time before all others.
NEVER = -(2**62) - 1
#: The rate of a key that never came, where it is multiplied by a life: among such rows the older
#: one leaves.
FAINTEST = 2.0**-200

#: Stages of a tick.
BEGIN, FIRST, SECOND, END = 0, 1, 2, 3

#: Why a row left before its window ended: it was never admitted, it was shed, or only a lagging
#: stream could still have joined it.
REJECTED, SHED, OVERDUE = 0, 1, 2

# Why `run` stopped.
DONE, OUTPUT_FULL, PROBE_TOO_LARGE, TOO_MANY_KEYS = 0, 1, 2, 3

#: How arrivals are counted: a fading count for each key, the arrivals of the last window, or a
#: sketch.
FADING, IN_WINDOW, SKETCHED = 0, 1, 2
#: Rows of a sketch.
SKETCH_ROWS = 4

#: The numbers of a join that there are one of, in `Core.scalars`.
SCALARS = record_type(
    [
        ("free", "i8"),  # number of free slots
        ("entries", "i8"),  # number of entries ever used
        ("free_entries", "i8"),  # length of `Core.free_entries`
        ("idle", "i8"),  # length of `Core.idle`
        ("stat_only", "i8"),  # number of keys that are counted and hold no row
        ("seq", "i8"),  # the next sequence number
        ("started", "i8"),  # whether an arrival has been counted
        ("epoch", "i8"),  # the epoch whose arrivals weigh 1
        # Since the mark, at which the last log record was made:
        ("mark", "i8"),  # rows with a smaller sequence number were held at the mark
        ("gone", "i8"),  # length of `Core.gone`
        ("rewritten", "i8"),  # whether rates were forgotten or rescaled
        ("learned", "i8"),  # length of `Core.learned`
        ("determined", "i8"),  # whether priorities were recomputed
        ("ring_mark", "i8"),  # number of the first arrival since the mark
        # Since the batch began:
        ("fresh", "i8"),  # length of `Core.fresh`
        ("noted", "i8"),  # number of rows in `Output.shed_row`
        # Counters:
        ("out_of_order", "i8"),  # rows older than the newest row of their stream
        ("late", "i8"),  # those that came after partners may have expired; see `windows.is_late`
        ("admitted", "i8"),
        ("rejected", "i8"),
        ("shed", "i8"),
        ("expired", "i8"),
        # Where in a batch the loop is:
        ("tick_from", "i8"),  # the current tick begins here
        ("tick_to", "i8"),  # and ends before here
        ("stage", "i8"),  # the next stage of the tick; see the loop
        ("at", "i8"),  # the next newcomer
        ("newcomers", "i8"),  # the sequence number of the tick's first newcomer
        # What is learned:
        ("ghosts", "i8"),  # length of `Core.ghosts`
        ("thinned", "i8"),  # one newcomer in 2 ** thinned leaves a ghost
        ("census_seq", "i8"),  # the sequence number at the last census
        ("fit_seq", "i8"),  # the sequence number at the last fit
        ("change", "i8"),  # number of changes of the budget that have come
        ("ring_from", "i8"),  # number of the first arrival in `Core.ring` that counts
        ("ring_to", "i8"),  # number of the next arrival
    ]
)

#: The numbers of a pool, a part of the budget. `victims.py` and `slices.py` explain the queues.
POOL = record_type(
    [
        ("budget", "i8"),  # what the pool may hold now
        ("used", "i8"),  # what it holds, in the budget's unit
        ("head_from", "i8"),  # candidates in `Core.sorted_head` begin here
        ("head_to", "i8"),  # and end before here
        ("run_from", "i8"),  # candidates in the run of `Core.late` begin here, from its end
        ("run_to", "i8"),  # and end before here
        ("late_heap", "i8"),  # length of the heap in `Core.late`
        ("tail", "i8"),  # length of `Core.unsorted_tail`
        ("uses", "i8"),  # late candidates since the head was filled; or choices, see `slices.py`
        ("sliced", "i8"),  # whether the pool has slices
        ("at", "i8"),  # the closed slice whose turn is next
        ("tops", "i8"),  # length of the heap in `Core.tops`
        ("noted", "i8"),  # length of `Core.noted`
    ]
)

#: The numbers of a side.
SIDE = record_type(
    [
        ("held", "i8"),  # number of held rows
        ("due_from", "i8"),  # rows in `Core.due` begin here
        ("due_to", "i8"),  # and end before here
        ("due_heap", "i8"),  # length of the heap `Core.due_heap`
        ("slices", "i8"),  # number of slices; the last two are not closed
        ("pushed", "i8"),  # number of rows that came since a slice was closed
    ]
)

#: What all rows have taught, in `Core.model`. All times are in the clock's unit.
MODEL = record_type(
    [
        ("stay", "f8"),  # mean time for which shed rows were held
        ("last", "f8"),  # time of the last census
        ("elapsed", "f8"),  # time for which arrivals were counted, which fades as they do
        ("weight", "f8"),  # what one count weighs now
        ("fitted", "f8"),  # time of the last fit
        # For `learning/drift.py`:
        ("gained", "f8"),  # bits gained since the last census
        ("noted", "f8"),  # weight of the arrivals that gained them
        ("censuses", "f8"),  # number of censuses, up to a limit
        ("mean", "f8"),  # the usual gain
        ("variance", "f8"),  # and its variance
        ("excess", "f8"),  # sum of recent gains above the usual one, in deviations
    ]
)

#: When to recompute the stored priorities of a pool; see `priorities.py`.
QUALITY = record_type(
    [
        ("drops", "f8"),  # drops since priorities were computed
        ("earned", "f8"),  # importance of the results of held rows since the last drop
        ("mean", "f8"),  # its mean over recent drops
        ("peak", "f8"),  # the highest mean since priorities were computed
        ("times", "f8"),  # how often they were computed
    ]
)

#: A ghost at a mark of its age.
TRAIL = record_type([("level", "i8"), ("found", "i8")])


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


def slice_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a slice: rows of one side that arrived one after the other.

    Its heap of rows begins at `start` of `Core.nodes` and has `length` nodes, some of them dead. It
    is ordered by the ranks at the time `base`. `rank` and `top` are the rank and sequence number of
    its lowest row, as of when that was last looked up. Rows from the sequence number `first` on
    belong to it.
    """
    whole = [(name, "i8") for name in ("start", "length", "first", "top")]
    return record_type([*whole, ("rank", "f8"), ("base", time)])


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
    """Return the type of a key's last arrival: its time, and what was known as of then.

    `count` is the fast-fading count of arrivals, and `gap` the mean of the last gaps between
    arrivals, or 0 if the key never came.
    """
    return record_type([("time", time), ("count", "f8"), ("gap", "f8")])


def schedule_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a change of windows: its start, and both windows from then on."""
    return record_type([("start", time), ("window", time, (2,))])


def ring_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a counted arrival: the clock when it came, and its group."""
    return record_type([("time", time), ("group", "i4")])


class Core(NamedTuple):
    """All state of one join; the module's docstring explains slots and groups."""

    scalars: Array  # [1], see `SCALARS`
    pools: Array  # [2], see `POOL`; the second is unused where both sides share one pool
    sides: Array  # [2], see `SIDE`
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
    head_end: Array  # by pool: candidates after this (rank, seq) are in the tail
    sorted_head: Array  # by pool: the lowest candidates, sorted
    late: Array  # by pool: a heap of later candidates before `head_end`; from its end, a sorted run
    unsorted_tail: Array  # by pool: the other candidates
    nodes: Array  # by side: the rows of each slice; see `slices.py`
    slices: Array  # by side, in order of arrival
    tops: Array  # by pool: a heap of closed slices, by their first rows
    noted: Array  # by pool: rows that found a result, in order of arrival; see `slices.py`
    bounds: Array  # scratch: upper bounds of parts while candidates are sorted
    tally: Array  # scratch: counts of each part or cell; see `kernel/sorting.py`
    due: Array  # by side: slots in order of expiry
    ends: Array  # by side: `end_of` (see `kernel/windows.py`) of the last slot in `due`
    due_heap: Array  # by side: a heap of slots that would be out of order in `due`
    gone: Array
    fresh: Array
    model: Array  # [1], see `MODEL`
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
    quality: Array  # by pool, see `QUALITY`
    values: Array  # by slot: what the condition compares, if there is one
    start: Array  # by slot, and of the newcomer: see `Batch`; only if partners are counted so
    span: Array
    partners: Array  # by slot, and of the newcomer: held rows of the other side that it joins
    ghost_values: Array  # by ghost: what the condition compares
    stack: Array  # scratch: values while a condition runs
    missing: Array  # scratch: whether they are null
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
    windows: Array  # the changes of windows, see `schedule_type`; empty where there are none
    lateness: Any
    learn: int
    formula: int
    params: Any  # of the formula
    own_score: int  # the address of a policy's own scoring function, or 0
    halflife: Any  # 0: no decay
    cap: int
    floor_weight: float
    seq_weight: float
    exact_limit: int
    counting: int  # how arrivals are counted
    span: Any  # of the time's type: for how long an arrival counts, if for a window
    columns: int  # of a sketch
    checked: bool  # whether a condition besides the key decides which rows join
    certain: bool  # whether its program decides as the condition does
    program: Array  # see `kernel/programs.py`
    numbers: Array
    closed: bool  # whether rows exactly a window apart join; only for times that are real numbers
    resolution: Any  # of the time's type: the smallest difference of times; 0 for real numbers


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
    # If a condition decides: where partners can be, in `span` buckets from `start` on, and the
    # entries of these buckets (-1: none); see `kernel/partners.py`.
    near: Array
    start: Array
    span: Array
    values: Array  # what the condition compares


class Output(NamedTuple):
    """Pairs of rows and, if the caller asked for them, the rows that left early."""

    left: Array
    right: Array
    shed_row: Array
    shed_side: Array
    shed_time: Array
    shed_why: Array  # `REJECTED`, `SHED` or `OVERDUE`
    shed_tick: Array  # where the tick begins in whose admission it left; -1 less that: just before
    shed_own: Array  # whether that tick is the row's own
