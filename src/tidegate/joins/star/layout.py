"""Array layout of the state of a star join.

A row is stored in a *slot*. The slots of one stream and key form a linked list, a *group*. The
newcomers of a tick are linked into their groups before the loop decides whether to hold them, so
that later newcomers of the tick can find them.

The relation's rows are *links*; code and the paper call them facts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidegate.kernel.compiling import Array
from tidegate.kernel.records import record_type

#: How held rows are ranked: not at all, by a number fixed at admission, or by a formula of section
#: 3.2 of the paper. `RATE` ranks by how often partners arrive, weighted by the row's own
#: importance. `AUTO` ranks by the importance of the results that a row can still be expected to
#: have, by its age and by its partners' arrivals so far and lately.
NOTHING, FIXED, SIMPPROB, DIMPPROB, DGL, RATE, AUTO = range(7)

#: Number of entries in the cache of `worth`; a power of two.
MEMO = 256

# States of a slot. 0 means free; PENDING means linked into its group but not held.
PENDING, HELD = 1, 2
# Stages of a tick, and actions of `match.join_partners`.
BEGIN, FIRST, SECOND, END = 0, 1, 2, 3
EMIT, ADD, TAKE, COUNT = 2, 1, -1, 0


def scalar_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the single values of a join."""
    return record_type(
        [
            ("clock", time),  # the largest time seen
            ("free", "i8"),  # length of `Core.free`
            ("seq", "i8"),  # the next sequence number
            ("ending", "i8"),  # length of the heap `Core.ending`
            ("rated", "i8"),  # increases whenever a result of `worth` may change
            # Arrivals of the epoch `epoch` count 1. An epoch is one half-life.
            ("epoch", "i8"),
            ("started", "i8"),  # 1 once `epoch` is set
            # Since the mark, which is set when the state is recorded:
            ("mark", "i8"),  # the sequence number at the mark
            ("gone", "i8"),  # length of `Core.gone`
            ("rewritten", "i8"),  # 1 if all arrival counts were rescaled
            # Since the batch began:
            ("noted", "i8"),  # early departures noted in the output
            ("tick_from", "i8"),  # the first newcomer of the current tick
            ("tick_to", "i8"),  # the first newcomer after it
            ("stage", "i8"),  # the stage of the tick
            ("at", "i8"),  # the newcomer that probes
            ("first_new", "i8"),  # the sequence number of the first newcomer of the tick
            # Set if a probe stopped at a full output, and where it continues:
            ("paused", "i8"),
            ("paused_fact", "i8"),
            ("paused_slot", "i8"),
            # What `AUTO` learns, named as in `learning/`:
            ("ghosts", "i8"),  # length of `Learning.ghosts`
            ("thinned", "i8"),  # one newcomer in 2 ** thinned leaves a ghost
            ("census_seq", "i8"),  # the sequence number at the last census
            ("fit_seq", "i8"),  # the sequence number at the last fit
            # Counters:
            ("out_of_order", "i8"),
            ("late", "i8"),  # see `held_rows.is_late`
            ("admitted", "i8"),
            ("rejected", "i8"),
            ("shed", "i8"),
            ("expired", "i8"),
            ("filtered", "i8"),
        ]
    )


def stream_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the values of each stream."""
    return record_type(
        [
            ("clock", time),  # the largest time seen of the stream
            ("held", "i8"),  # number of held rows
            ("due", "i8"),  # length of the stream's heap in `Core.due`
        ]
    )


#: The values of each memory pool.
POOL = record_type(
    [
        ("used", "i8"),  # number of held rows
        ("floor", "f8"),  # the largest rank shed so far
        # For `AUTO`, whose heap has only the lowest ranks; see `ranks.victim`:
        ("edge", "f8"),  # rows with a lower rank are in the heap
        ("left", "i8"),  # victims until all rows are ranked again
    ]
)


def slot_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a slot, which stores one row.

    Nothing can join the row from the time `until` on. Rows are compared by `rank`, `tie`, `matches`
    and `seq`, in this order. `gain` is DGL's priority of the row as it was at the time `last`.
    `queue` is the heap that the row is in, or -1.
    """
    return record_type(
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
        ]
    )


#: The rows of one stream and key. `rate` counts the arrivals of the key, `sum` adds up their
#: importance. `held` is the number of held rows, `ghost` is the first ghost of the key.
GROUP = record_type(
    [
        ("rate", "f8"),
        ("sum", "f8"),
        ("head", "i4"),
        ("count", "i4"),
        ("touched", "i4"),
        ("held", "i4"),
        ("ghost", "i4"),
    ]
)


def ghost_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a ghost: as `kernel.layout.ghost_type`, of the stream `side`.

    `entry` is its key's. `found` need not be whole: see `ghosts.credit_ghosts`.
    """
    fields = [("hash", "u8"), ("seq", "i8"), ("time", time), ("until", time), ("found", "f8")]
    return record_type([*fields, ("next", "i4"), ("entry", "i4"), ("side", "i2"), ("marks", "i2")])


#: A ghost at a mark of its age.
TRAIL = record_type([("level", "i8"), ("found", "f8")])


def memo_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a cache entry: what arrives for a row with this key, weight and time.

    `came`, `lately` and `value` are explained in `ranks.look_through`. The entry is valid for rows
    whose time lies in [since, before).
    """
    return record_type(
        [
            ("since", time),
            ("before", time),
            ("rated", "i8"),
            ("weight", "f8"),
            ("came", "f8"),
            ("lately", "f8"),
            ("value", "f8"),
            ("stream", "i4"),
            ("entry", "i4"),
        ]
    )


class Learning(NamedTuple):
    """What `AUTO` has learned, with the names and shapes that the functions of `learning/` take.

    Streams take the place of sides. A group is numbered by its place in `groups`.
    """

    scalars: Array  # [1]: those of `Core`
    clock: Array  # [1]: a view of the join's clock
    groups: Array  # [n * entries]: a flat view of `Core.groups`
    recent: Array  # [n * entries]: see `kernel.layout.recent_type`
    model: Array  # [1]: see `kernel.layout.MODEL`
    worth: Array  # by stream, age, level and trend
    cells: Array  # by stream, what, age, level and trend
    returns: Array  # by stream, count, mark and level
    factors: Array  # scratch
    ghosts: Array
    trails: Array  # by ghost and mark


class LearningRules(NamedTuple):
    """The settings that the functions of `learning/` take."""

    window_left: Any  # the longest window of all streams, 0 if all are unbounded
    window_right: Any  # the same
    halflife: Any


class Core(NamedTuple):
    """All state of one join except the relation, for n streams and p memory pools."""

    scalars: Array  # [1]
    streams: Array  # [n]
    pools: Array  # [p]
    slots: Array
    free: Array  # unused slots
    groups: Array  # [n, entries]
    heaps: Array  # [2 p, slots]; the second p heaps hold the rows whose DGL priority is zero
    order: Array  # [slots]: scratch, to find the lowest ranks
    sizes: Array  # [2 p]: sizes of the heaps
    due: Array  # [n, .]: heaps of rows by the time they expire
    ending: Array  # a heap of links by the time they end
    cursor: Array  # [n]: the slots of the combination that a probe is at
    gone: Array  # sequence numbers of rows that left since the mark
    memo: Array  # [MEMO]
    learning: Any  # a `Learning`, which `learning/` takes for a core


class Rules(NamedTuple):
    """Settings that do not change while a batch runs."""

    kind: int
    shed_when: int
    defer: bool  # a tick is probed only after it is complete
    pools: int
    budgets: Array
    windows: Array  # [n]; 0 means unbounded
    lateness: Any
    expires: Array  # [n]: rows of the stream can expire: its window or its links end
    changing: bool  # the relation changes, and links that ended may be forgotten
    halflife: Any  # 0 means no decay
    combine: int  # how importance is combined: 0 min, 1 max, 2 sum, 3 product; -1: there is none
    params: Any
    floor_weight: float
    seq_weight: float
    never: Any  # a time before all others; `always` is a time after all others
    always: Any
    learning: Any  # `LearningRules`


class Batch(NamedTuple):
    """Newcomers, sorted by (time, stream, key hash, row hash)."""

    time: Array
    stream: Array
    entry: Array
    hash: Array
    row: Array
    weight: Array
    rank: Array
    probed: Array  # rows of the open tick that probed in an earlier batch
    slot: Array  # the slot of each newcomer; -1 if it has none


class Output(NamedTuple):
    """Results as the row numbers of each stream and a link; optionally the rows that were shed."""

    rows: Array  # [n + 1, room]
    shed_row: Array
    shed_stream: Array
    shed_time: Array
    shed_held: Array
