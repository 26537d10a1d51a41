"""Array layout of the state of a constrained join.

A held row is stored in a *slot*. A *group* is one key of one join: a list of the child rows with
this key (at most one, if the join is many-one as declared), and a list of the parent rows. Each
slot has a *link* for each join of its stream: its place in one of these lists. *Timers* are heaps
of slots and groups that are to be checked when a count, a time or an attribute passes a value. An
entry whose row or group is gone is recognised by its sequence number. *Records* are the running
maxima of ordered attributes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidegate.kernel.compiling import Array
from tidegate.kernel.layout import ranked_type

#: Where in `Core.ints` what is found.
(
    AT,  # the next row of the batch
    STACK,
    CHANGED,
    RECHECK,
    SLOTS,  # how many slots were ever in use
    FREE,
    GROUPS,
    FREE_GROUPS,
    SEQ,  # the number of the last tuple or group
    MARK,  # what has a number up to this was in the last record
    DEPARTED,
    DEPARTED_GROUPS,
    HELD_ROWS,  # tuples with a payload
    OUT_OF_ORDER,
    EXPIRED,
    ELIMINATED,
    VIOLATIONS,
    NULL_KEYS,
    KEPT_RESULTS,  # results that only sampling has saved
    SHED,  # tuples noted in `Core.shed`
    PAUSED,  # whether the results of the topmost tuple stopped at a full output
    INTS,
) = range(22)

#: Status of a slot. RISING means Yes, but its results have not been given yet. GONE means that its
#: window has ended, and that it is removed as soon as its parents know.
EMPTY, UNKNOWN, YES, NO, RISING, GONE = range(6)
#: Role of a link: its row is the parent or the child of a join, or a member of a window by value.
PARENT, CHILD, BY = range(3)
#: A k that is not used, and an end that is never reached.
NEVER = 2**62

#: Reason for which a row is dropped, if it is not one constraint: CA or OAP on all its parents.
CLEARED = -1

#: Bits of a newcomer: it passes its filter; no join attribute is null; it is sampled.
PASSES, KEYED, SAMPLED = 1, 2, 4

SLOT = np.dtype(
    [
        ("seq", "i8"),
        ("row", "i8"),
        ("num", "i8"),  # its number in its stream
        ("time", "i8"),
        ("end", "i8"),  # when its window ends
        ("stream", "i2"),
        ("status", "i1"),
        ("pending", "i1"),  # on the stack or among `changed`
        ("listed", "i1"),  # among `recheck`
        ("sampled", "i1"),
        ("kept", "i1"),  # only because it is sampled
        ("dirty", "i1"),  # its status changed since the mark
    ],
    align=True,
)
LINK = np.dtype(
    [
        ("base", "i8"),  # what RIDS counts from; for BY: how many came later
        ("value", "i8"),  # the attribute whose order matters
        ("next", "i4"),
        ("prev", "i4"),
        ("group", "i4"),
    ],
    align=True,
)
GROUP = np.dtype(
    [
        ("hash", "u8"),
        ("stamp", "i8"),
        ("ca", "i8"),  # C_v of section 5.2, or the time of the first
        ("edge", "i4"),
        ("child", "i4"),
        ("parents", "i4"),
        ("unknowns", "i4"),  # how many of the parents are Unknown
        ("clustered", "i1"),  # whether `ca` says something
        ("closed", "i1"),  # no future parent has this key (condition C3 of theorem 5.1)
        ("dirty", "i1"),
        ("kept", "i1"),  # not closed only because it is sampled
    ],
    align=True,
)
SHED_TUPLE = np.dtype(
    [
        ("row", "i8"),
        ("time", "i8"),
        ("at", "i8"),  # how many newcomers of the batch had been taken
        ("stream", "i2"),
        ("why", "i2"),  # the constraint, or CLEARED
    ],
    align=True,
)
TIMER = ranked_type(np.dtype(np.int64))
RECORD = np.dtype([("at", "i8"), ("value", "i8")])


class Plan(NamedTuple):
    """The join graph and what follows from it. It does not change."""

    degree: Array  # by stream: how many links a tuple has
    link_edge: Array  # by stream and link
    link_role: Array
    link_value: Array  # which ordered attribute goes with a link; -1: none
    parent: Array  # by edge: the streams
    child: Array
    at_parent: Array  # by edge: the place of its link in a parent tuple
    at_child: Array
    ups: Array  # by stream: how many edges lead to parents, and which
    up: Array
    downs: Array
    down: Array
    deep: Array  # by stream: whether what is below is no tree
    walks: Array  # by stream: how many edges are below, and which, in order
    walk: Array
    covering: Array  # by stream: whether it is in the cover that gives results
    single: Array  # by stream: whether it alone is a minimal cover
    steps: Array  # by stream: how results are put together; up (1) or down, and the edge
    step_up: Array
    step_edge: Array
    covers: Array  # by stream: how many covers there are among its parents, each as bits of `up`
    cover: Array
    rows: Array  # by stream: the window in rows, 0 if there is none
    length: Array  # by stream: the window in time, 0 if there is none
    by: Array  # by stream: the link of a window by value, -1 if there is none
    rids: Array  # by edge: which constraint, -1 if there is none
    ca: Array
    oap: Array
    oac: Array
    axis: Array  # by constraint: the stream whose count or time it is measured in
    timed: Array  # by constraint: whether it is in time
    detected: Array  # by constraint: whether its k is found by watching
    ordered: Array  # by constraint: its ordered attribute; -1 if it is about another thing
    window_timer: Array  # by stream: which timer, -1 if there is none
    rids_timer: Array  # by edge
    ca_timer: Array
    oap_timer: Array
    oac_timer: Array
    lateness: int
    lag: int  # -1: any
    threshold: np.uint64  # keys whose hash is below are sampled
    watch: int  # tuples after which a smaller k is adopted
    slack: float  # k_e over k_u
    archived: bool  # what constraints drop is noted in `Core.shed`
    whole: bool  # every tuple is held for its window: SWJ
    choosable: Array  # by stream: whether to keep its No is decided by what it costs
    weighed: Array  # by edge: whether to use CA is decided by what it clears
    ordering: Array  # by edge: the same of OAP


class Core(NamedTuple):
    """All state of one join."""

    ints: Array
    counts: Array  # by stream: tuples so far
    clock: Array  # by stream: the largest time so far
    horizon: Array  # by stream: no tuple to come is earlier
    held: Array  # by stream and status
    slots: Array
    links: Array  # by slot and link
    groups: Array
    table: Array  # open addressing: group + 1
    free: Array
    free_groups: Array
    stack: Array
    changed: Array
    recheck: Array
    departed: Array  # since the mark: numbers of tuples that were in the last record
    departed_groups: Array  # (edge, hash)
    shed: Array  # what constraints dropped, if that is noted
    timers: Array  # all heaps in one
    timer_at: Array  # by timer: where its heap begins, how long it may be, and is
    timer_room: Array
    timer_size: Array
    records: Array  # all ordered attributes in one
    record_at: Array  # by constraint: where its records begin, which is the first, how many
    record_first: Array
    record_size: Array
    low: Array  # by constraint: no value to come is smaller
    k: Array  # by constraint: what is reckoned with; NEVER if it is not used
    used: Array  # by constraint: k_u
    seen: Array  # by constraint: the largest distance in this window of watching
    since: Array  # by constraint: the tuple with which that began
    opened: Array  # by constraint: the same in its own measure, tuples or time
    begun: Array  # by constraint: since when everything is kept that shows its k
    keep: Array  # by stream: whether its No is kept though it need not be
    trial: Array  # by stream: tuples of the keys on trial, that keep No and that do not
    cost: Array  # by stream: the same, added up over arrivals
    judged: Array  # by stream: when these were last compared
    entries: Array  # by edge (and window by value): values on trial that CA has in mind
    # By edge for CA, and then by edge for OAP:
    idle: Array  # whether it is not used, because it costs more than it clears
    worth: Array  # what was cleared and what was kept in mind, both over time
    noted: Array  # when that was last added up, when compared, and the parents so far
    assign: Array  # by stream, for walks
    cursor: Array


class Batch(NamedTuple):
    """Newcomers in arrival order."""

    stream: Array
    time: Array
    end: Array
    row: Array
    bits: Array
    hashes: Array  # by link
    values: Array  # by ordered attribute
