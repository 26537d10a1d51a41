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
from tidegate.kernel.records import record_type

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

#: Rows of `Core.savings`: by clustered arrival, and by ordered arrival of parents.
BY_CA, BY_OAP = range(2)

#: The single values of a join.
SCALARS = record_type(
    [
        ("at", "i8"),  # the next row of the batch
        ("seq", "i8"),  # the number of the last row or group
        ("slots", "i8"),  # number of slots ever used
        ("groups", "i8"),  # number of groups ever used
        ("held_rows", "i8"),  # number of held rows with a payload
        ("found", "i8"),  # 1 if a constraint has come into use, so that rows in No may be dropped
        ("paused", "i8"),  # 1 if the results of the topmost row stopped at a full output
        # Lengths of arrays of `Core`:
        ("free", "i8"),
        ("free_groups", "i8"),
        ("stack", "i8"),
        ("changed", "i8"),
        ("recheck", "i8"),
        ("noted", "i8"),  # length of `Core.shed`
        # Since the mark, which is set when the state is recorded:
        ("mark", "i8"),  # the number of the last row or group at the mark
        ("departed", "i8"),  # length of `Core.departed`
        ("departed_groups", "i8"),  # length of `Core.departed_groups`
        # Counters:
        ("out_of_order", "i8"),
        ("late", "i8"),  # see `loop._is_late`
        ("null_keys", "i8"),
        ("expired", "i8"),
        ("eliminated", "i8"),
        ("violations", "i8"),
        ("kept_results", "i8"),  # results found only because their rows are sampled
        ("dropped", "i8"),  # rows and keys that a constraint has dropped since the start
    ]
)
#: The values of each stream. Some keys are on trial: one part of them always keeps No, and another
#: part always drops it (see `monitor.judge`).
STREAM = record_type(
    [
        ("count", "i8"),  # number of rows so far
        ("clock", "i8"),  # the largest time so far
        ("horizon", "i8"),  # no future row is earlier
        ("keep", "i8"),  # 1 if its No is kept although that is optional
        ("judged", "i8"),  # the number of rows when `keep` was last decided
        ("trial_keeping", "i8"),  # held rows of the keys on trial that keep No
        ("trial_dropping", "i8"),  # held rows of the keys on trial that drop No
        ("cost_keeping", "i8"),  # sum of `trial_keeping` over arrivals
        ("cost_dropping", "i8"),  # sum of `trial_dropping` over arrivals
    ]
)
#: The values of each constraint.
CONSTRAINT = record_type(
    [
        ("k", "i8"),  # the k that is applied; NEVER if the constraint is not used
        ("used", "i8"),  # k_u: the k that was given or observed, without slack
        ("low", "i8"),  # no future value is smaller
        ("seen", "i8"),  # the largest distance in this observation window
        ("since", "i8"),  # the number of rows when the observation window began
        ("opened", "i8"),  # the same in the constraint's own measure, rows or time
        ("begun", "i8"),  # since when no row is dropped that would show its k
        ("observed", "i8"),  # number of distances in this observation window
        ("before", "i8"),  # the largest distance of the observation window before
        ("in_use", "i8"),  # number of rows of its stream that came while it was used
        ("record_start", "i8"),  # where its part of `Core.records` begins
        ("record_first", "i8"),  # the first record in use, relative to `record_start`
        ("record_count", "i8"),  # number of records in use
    ]
)
#: Whether CA or OAP saves memory on one join.
SAVING = record_type(
    [
        ("idle", "i8"),  # above 0: not used because it needs more memory than it frees
        ("cleared", "f8"),  # memory freed, times how long it would have been in use
        ("remembered", "f8"),  # memory needed, times how long
        ("added_at", "i8"),  # when `remembered` was last increased
        ("compared_at", "i8"),  # when the two were last compared
        ("parents", "i8"),  # number of rows of the parent stream at that time
    ]
)
#: Results by part of the keys since the start: all, and those found only because their rows are
#: sampled.
LOSS = record_type([("given", "i8"), ("kept", "i8")])
#: Number of parts of the keys in `Core.losses`.
LOSS_PARTS = 16
#: The part of `Core.timers` that is the heap of one timer.
HEAP = record_type([("start", "i8"), ("room", "i8"), ("length", "i8")])

SLOT = record_type(
    [
        ("seq", "i8"),  # unique over all rows and groups
        ("row", "i8"),  # place in the payload, -1 if it has none
        ("num", "i8"),  # its number among the rows of its stream
        ("time", "i8"),
        ("end", "i8"),  # when its window ends
        ("stream", "i2"),
        ("status", "i1"),
        ("pending", "i1"),  # on the stack or in `changed`
        ("listed", "i1"),  # in `recheck`
        ("sampled", "i1"),
        ("kept", "i1"),  # held only because it is sampled
        ("dirty", "i1"),  # its status changed since the mark
    ]
)
LINK = record_type(
    [
        ("base", "i8"),  # RIDS: the count or time of its arrival; BY: how many came later
        ("value", "i8"),  # the attribute whose order matters
        ("next", "i4"),
        ("prev", "i4"),
        ("group", "i4"),
    ]
)
GROUP = record_type(
    [
        ("hash", "u8"),
        ("stamp", "i8"),
        ("ca", "i8"),  # C_v of section 5.2, or the time of its first row
        ("edge", "i4"),
        ("child", "i4"),
        ("parents", "i4"),
        ("unknowns", "i4"),  # number of Unknown parents
        ("clustered", "i1"),  # `ca` is set
        ("closed", "i1"),  # no future parent has this key (condition C3 of theorem 5.1)
        ("dirty", "i1"),
        ("kept", "i1"),  # not closed only because it is sampled
        ("sampled", "i1"),  # its rows are sampled by the key that all joins share
    ]
)
#: A row that a constraint dropped.
SHED_ROW = record_type(
    [
        ("row", "i8"),
        ("time", "i8"),
        ("at", "i8"),  # how many newcomers of the batch had been processed
        ("stream", "i2"),
        ("why", "i2"),  # the constraint, or CLEARED
    ]
)
DEPARTED_GROUP = record_type([("edge", "u8"), ("hash", "u8")])
#: A heap node. `rank` is the value to pass; `item` is a slot or a group, and `seq` its number.
TIMER = ranked_type(np.dtype(np.int64))
#: A running maximum: when it was reached, in rows or time, and its value.
RECORD = record_type([("at", "i8"), ("value", "i8")])


class Plan(NamedTuple):
    """The join graph and what follows from it. It does not change.

    An edge is a join of a parent stream to a child stream. Arrays are by stream, by edge or by
    constraint.
    """

    degree: Array  # by stream: number of links of a row
    link_edge: Array  # by stream and link: the edge, or (for BY) the number of edges + the stream
    link_role: Array  # by stream and link
    link_value: Array  # by stream and link: the ordered attribute stored with it, or -1
    parent: Array  # by edge: the parent stream
    child: Array  # by edge: the child stream
    at_parent: Array  # by edge: the place of its link in a parent row
    at_child: Array  # by edge: the place of its link in a child row
    ups: Array  # by stream: number of edges to parents
    up: Array  # by stream: these edges
    downs: Array  # by stream: number of edges to children
    down: Array  # by stream: these edges
    deep: Array  # by stream: several paths lead to a stream below
    walks: Array  # by stream: number of edges below
    walk: Array  # by stream: these edges, parents first
    covering: Array  # by stream: it is in the cover that gives results
    single: Array  # by stream: it alone is a minimal cover
    steps: Array  # by stream: number of steps that complete a result
    step_up: Array  # by stream and step: 1 if it leads to the parent of the edge
    step_edge: Array  # by stream and step: the edge
    covers: Array  # by stream: number of minimal covers among its parents
    cover: Array  # by stream and cover: the parents, as bits by their place in `up`
    rows: Array  # by stream: the window in rows, 0 if there is none
    length: Array  # by stream: the window in time, 0 if there is none
    by: Array  # by stream: the link of a window by value, -1 if there is none
    rids: Array  # by edge: the constraint, -1 if there is none
    ca: Array
    oap: Array
    oac: Array
    axis: Array  # by constraint: the stream in whose rows or time it is measured
    timed: Array  # by constraint: it is measured in time
    detected: Array  # by constraint: its k is found by monitoring
    ordered: Array  # by constraint: its ordered attribute, -1 if it has none
    window_timer: Array  # by stream: the timer of its window, -1 if there is none
    rids_timer: Array  # by edge
    ca_timer: Array
    oap_timer: Array
    oac_timer: Array
    lateness: int
    lag: int  # -1: unlimited
    threshold: np.uint64  # keys with a smaller hash are sampled
    watch: int  # rows in an observation window
    slack: float  # k_e over k_u
    keyed: bool  # all joins share a key, and rows are sampled by it
    enough: Array  # by constraint: distances that an observation window must have
    suspends: bool  # any distance above k_u stops the use of a constraint, as in the paper
    archived: bool  # rows that constraints drop are noted in `Core.shed`
    whole: bool  # every row is held for its window: SWJ
    choosable: Array  # by stream: the memory it takes decides whether its No is kept
    weighed: Array  # by edge: the memory it saves decides whether CA is used
    ordering: Array  # by edge: the memory it saves decides whether OAP is used


class Core(NamedTuple):
    """All state of one join."""

    scalars: Array  # [1]
    streams: Array  # by stream
    constraints: Array  # by constraint
    savings: Array  # by BY_CA or BY_OAP, and edge
    held: Array  # by stream and status: number of rows
    slots: Array
    links: Array  # by slot and link
    groups: Array
    table: Array  # hash table of the groups (see `kernel/hash_table.py`)
    free: Array  # unused slots
    free_groups: Array  # unused groups
    stack: Array  # slots whose new status is to be propagated
    changed: Array  # slots to settle after that
    recheck: Array  # slots that may have become useless
    departed: Array  # since the mark: numbers of rows that were in the last record
    departed_groups: Array  # since the mark: groups that were in the last record
    shed: Array  # rows that constraints dropped, if these are noted
    timers: Array  # the heaps of all timers
    heaps: Array  # by timer: its part of `timers`
    records: Array  # the running maxima of all ordered attributes
    losses: Array  # by part of the keys
    entries: Array  # by edge or window by value: keys of the measured part that CA remembers
    assign: Array  # by stream: the slot of a result that is being completed
    cursor: Array  # by step: 1 if the step has chosen a child


class Batch(NamedTuple):
    """Newcomers in arrival order."""

    stream: Array
    time: Array
    end: Array  # when the window ends
    row: Array
    bits: Array
    hashes: Array  # by link
    values: Array  # by ordered attribute
