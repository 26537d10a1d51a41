"""The loop of the bounded window join: expire, probe, observe, admit, evict.

Everything that is held lives in the arrays of one `Core`. A held tuple is a *slot*; the slots of
one key and side form a *group*, a list in order of admission; groups `2 * e` and `2 * e + 1` are
the left and the right of key entry `e`. `run` takes a batch sorted by (time, side, key hash, tie)
and can stop whenever its output is full and go on later.

Victims are found through a queue in two parts, so that the cost stays flat as the memory grows:
`near` is a small heap of the lowest ranks, `far` an unsorted rest that is scanned, in sequence,
only when `near` runs dry. Ranks that can only rise are looked up again when they surface; for
ranks that move otherwise the queue is exact up to `Rules.exact_limit` candidates (by scanning
them) and at most one refill out of date above.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: What the queue ranks: nothing, a group by its key's rate, a tuple by a number fixed at
#: admission, or a group by its key's rate times the life its oldest tuple has left.
NOTHING, BY_KEY, BY_TUPLE, BY_LIFE = 0, 1, 2, 3
#: When a victim leaves (ALGORITHMS section 0): after the tick's probes, before, or before and
#: with the newcomers that were not admitted barred from probing.
PROBE_FIRST, EVICT_FIRST, SHED_FIRST = 0, 1, 2

#: Candidates that a heap sorts within the processor's cache.
SMALL_HEAP = 16384
#: The rate of a key that never came, where it weighs a life: of such tuples the older leaves.
FAINTEST = 2.0**-200

# What `run` says when it stops.
DONE, OUTPUT_FULL, PROBE_TOO_LARGE, TOO_MANY_KEYS = 0, 1, 2, 3

# Places in `Core.ints`.
FREE = 0  # free slots
ENTRIES = 1  # entries ever used
FREE_ENTRIES = 2
SEQ = 3  # next sequence number
STAT_ONLY = 4  # keys that are counted and hold no tuple
IDLE = 39  # length of `idle`
EPOCH = 5  # epoch whose arrivals weigh 1
GONE = 6  # departures noted since the mark
MARK = 7  # tuples with a smaller sequence number were held when the mark was set
SHED = 8
FRESH = 19  # admissions noted since the batch began
REWRITTEN = 38  # whether rates were forgotten or rescaled since the mark
# Counters.
LATE, ADMITTED, REJECTED, EVICTED, EXPIRED = 9, 10, 11, 12, 13
# Cursor within a batch.
TICK_FROM, TICK_TO, STAGE, AT, NEWCOMERS = 14, 15, 16, 17, 18
# One for each pool, one for each side.
USED, NEAR, FAR, HELD, DUE_FROM, DUE_TO, LATE_DUE = 20, 22, 24, 26, 28, 30, 32
STARTED, SIZE = 34, 36
TOUCHED, SEEN = 40, 41
INTS = 42


def slot_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """One held tuple, a cache line."""
    return np.dtype(
        [
            ("time", time),
            ("seq", "i8"),
            ("row", "i8"),
            ("size", "i8"),
            ("rank", "f8"),
            ("next", "i4"),
            ("prev", "i4"),
            ("group", "i4"),
            ("spare", "i8"),
        ],
        align=True,
    )


GROUP = np.dtype(
    [
        ("rate", "f8"),
        ("head", "i4"),
        ("tail", "i4"),
        ("count", "i4"),
        ("queued", "i4"),  # whether it is in the queue
        ("listed", "i8"),  # whether its entry is in `idle`; of the left group only
    ],
    align=True,
)


def ranked_type(rank: np.dtype[Any]) -> np.dtype[Any]:
    """A place in a queue or a heap: a group or a slot, what it is ranked by, which tuple it is."""
    return np.dtype([("rank", rank), ("seq", "i8"), ("item", "i4")], align=True)


class Core(NamedTuple):
    """All state of one join; see the module's text for slots, groups and the queue."""

    ints: Array
    clock: Array  # [1], of the time's type
    floor: Array  # the largest rank evicted, by pool
    slots: Array
    free: Array
    groups: Array
    hashes: Array  # by entry
    table: Array  # open addressing: (hash, entry + 1)
    free_entries: Array
    idle: Array  # entries that may be counted and hold no tuple
    edge: Array  # by pool: what is at most (rank, seq) of the edge is in `near`
    near: Array  # by pool
    far: Array  # by pool
    due: Array  # by side: slots in order of time
    late: Array  # by side: a heap of slots that were late
    gone: Array
    fresh: Array


class Rules(NamedTuple):
    """What does not change while a batch runs."""

    kind: int
    moment: int
    budget_left: int
    budget_right: int
    pools: int
    window_left: Any  # of the time's type
    window_right: Any
    bounded_left: bool
    bounded_right: bool
    lateness: Any
    learn: bool
    halflife: Any  # 0: no decay
    cap: int
    floor_weight: float
    seq_weight: float
    exact_limit: int


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


#: For what Python calls.
entry_point = numba.njit(cache=True, nogil=True, _nrt=False)
#: For what only compiled code calls, and seldom: without wrappers for Python, slow to compile.
jit = numba.njit(_nrt=False, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
#: For the path of every tuple: a call would pass the many arrays of a `Core` one by one.
inlined = numba.njit(
    _nrt=False, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True
)


# ---- heaps of (rank, seq, item) ---------------------------------------------------------------


@inlined
def _before(r1: Any, s1: int, r2: Any, s2: int) -> bool:
    return r1 < r2 or (r1 == r2 and s1 < s2)


@inlined
def _put(heap: Array, at: int, rank: Any, seq: int, item: int) -> None:
    heap[at].rank = rank
    heap[at].seq = seq
    heap[at].item = item


@inlined
def _sift_up(heap: Array, at: int) -> None:
    rank, seq, item = heap[at].rank, heap[at].seq, heap[at].item
    while at > 0:
        up = (at - 1) >> 2
        if not _before(rank, seq, heap[up].rank, heap[up].seq):
            break
        heap[at] = heap[up]
        at = up
    _put(heap, at, rank, seq, item)


@inlined
def _sift_down(heap: Array, at: int, n: int) -> None:
    rank, seq, item = heap[at].rank, heap[at].seq, heap[at].item
    while True:
        first = 4 * at + 1
        if first >= n:
            break
        least = first
        for child in range(first + 1, min(first + 4, n)):
            if _before(heap[child].rank, heap[child].seq, heap[least].rank, heap[least].seq):
                least = child
        if not _before(heap[least].rank, heap[least].seq, rank, seq):
            break
        heap[at] = heap[least]
        at = least
    _put(heap, at, rank, seq, item)


@inlined
def _drop_top(heap: Array, n: int) -> None:
    """Remove the top of a heap of n; it has n - 1 after."""
    heap[0] = heap[n - 1]
    _sift_down(heap, 0, n - 1)


@jit
def _select(items: Array, n: int, k: int) -> None:
    """Move the k least (rank, seq) of n to the front."""
    low, high = 0, n - 1
    while low < high:
        middle = (low + high) >> 1
        rank, seq = items[middle].rank, items[middle].seq
        i, j = low, high
        while i <= j:
            while _before(items[i].rank, items[i].seq, rank, seq):
                i += 1
            while _before(rank, seq, items[j].rank, items[j].seq):
                j -= 1
            if i <= j:
                r, s, e = items[i].rank, items[i].seq, items[i].item
                items[i] = items[j]
                _put(items, j, r, s, e)
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break


# ---- the queue of victims ---------------------------------------------------------------------


@inlined
def _worth(core: Core, rules: Rules, group: int, time: Any) -> float:
    """What a tuple of a group is worth now, for the kinds that rank groups."""
    rate = core.groups[group ^ 1].rate
    if rules.kind == BY_LIFE:
        left = group & 1 == 0
        if rules.bounded_left if left else rules.bounded_right:
            window = rules.window_left if left else rules.window_right
            return float(time + window - core.clock[0]) * max(rate, FAINTEST)
    return float(rate)


@inlined
def _rank(core: Core, rules: Rules, item: int) -> tuple[float, int]:
    """The rank of a candidate now and the sequence number of the tuple that it stands for."""
    if rules.kind == BY_TUPLE:
        return core.slots[item].rank, core.slots[item].seq
    held = core.slots[core.groups[item].head]
    return _worth(core, rules, item, held.time), held.seq


@inlined
def _alive(core: Core, rules: Rules, item: int, seq: int) -> bool:
    if rules.kind == BY_TUPLE:
        return bool(core.slots[item].seq == seq)
    return bool(core.groups[item].count > 0)


@jit
def _spread(core: Core, pool: int) -> None:
    """Move all of `near` to `far`."""
    ints = core.ints
    far = ints[FAR + pool]
    for i in range(ints[NEAR + pool]):
        core.far[pool, far + i] = core.near[pool, i]
    ints[FAR + pool] = far + ints[NEAR + pool]
    ints[NEAR + pool] = 0


@jit
def _prune(core: Core, rules: Rules, pool: int) -> None:
    """Drop the dead from `far`."""
    n = 0
    far = core.far[pool]
    for i in range(core.ints[FAR + pool]):
        if _alive(core, rules, far[i].item, far[i].seq):
            far[n] = far[i]
            n += 1
        elif rules.kind != BY_TUPLE:
            core.groups[far[i].item].queued = 0
    core.ints[FAR + pool] = n


@jit
def _refill(core: Core, rules: Rules, pool: int) -> None:
    """Rank all of `far` and move its lowest part to `near`."""
    _prune(core, rules, pool)
    ints = core.ints
    near, far = core.near[pool], core.far[pool]
    n = ints[FAR + pool]
    for i in range(n):
        far[i].rank, far[i].seq = _rank(core, rules, far[i].item)
    k = min(n, max(SMALL_HEAP, n >> 3))
    if k < n:
        _select(far, n, k)
    core.edge[pool].rank = np.inf
    for i in range(k):
        near[i] = far[i]
    if k < n:
        top = 0
        for i in range(1, k):
            if _before(near[top].rank, near[top].seq, near[i].rank, near[i].seq):
                top = i
        core.edge[pool] = near[top]
    for i in range((k - 2) >> 2, -1, -1):
        _sift_down(near, i, k)
    for i in range(k, n):
        far[i - k] = far[i]
    ints[NEAR + pool] = k
    ints[FAR + pool] = n - k


@inlined
def _enqueue(core: Core, rules: Rules, pool: int, item: int) -> None:
    """Make a candidate known to the queue."""
    ints = core.ints
    near, far = ints[NEAR + pool], ints[FAR + pool]
    if near + far + 1 >= core.far.shape[1] or near > max(2 * SMALL_HEAP, far):
        _spread(core, pool)
        if near + far + 1 >= core.far.shape[1]:
            _prune(core, rules, pool)
        near, far = 0, ints[FAR + pool]
    rank, seq = _rank(core, rules, item)
    if near > 0 and not _before(core.edge[pool].rank, core.edge[pool].seq, rank, seq):
        _put(core.near[pool], near, rank, seq, item)
        _sift_up(core.near[pool], near)
        ints[NEAR + pool] = near + 1
    else:
        _put(core.far[pool], far, rank, seq, item)
        ints[FAR + pool] = far + 1


@jit
def _scan(core: Core, rules: Rules, pool: int) -> int:
    """The lowest candidate of a small queue whose ranks all move."""
    _spread(core, pool)
    _prune(core, rules, pool)
    best, best_rank, best_seq = -1, np.inf, 0
    for i in range(core.ints[FAR + pool]):
        item = core.far[pool, i].item
        rank, seq = _rank(core, rules, item)
        if best < 0 or _before(rank, seq, best_rank, best_seq):
            best, best_rank, best_seq = item, rank, seq
    return best


@inlined
def _victim(core: Core, rules: Rules, pool: int) -> int:
    """The slot with the lowest (rank, sequence number) in a pool that holds something."""
    ints = core.ints
    near = core.near[pool]
    if rules.kind == BY_LIFE and ints[NEAR + pool] + ints[FAR + pool] <= rules.exact_limit:
        return int(core.groups[_scan(core, rules, pool)].head)
    while True:
        n = ints[NEAR + pool]
        if n == 0:
            _refill(core, rules, pool)
            continue
        top = near[0].item
        drop = not _alive(core, rules, top, near[0].seq)
        if drop:
            if rules.kind != BY_TUPLE:
                core.groups[top].queued = 0
        elif rules.kind == BY_TUPLE:
            return int(top)
        else:
            rank, seq = _rank(core, rules, top)
            if seq == near[0].seq and (rank == near[0].rank or rules.kind == BY_LIFE):
                return int(core.groups[top].head)
            drop = _before(core.edge[pool].rank, core.edge[pool].seq, rank, seq)
            if drop:
                _put(core.far[pool], ints[FAR + pool], rank, seq, top)
                ints[FAR + pool] += 1
            else:
                _put(near, 0, rank, seq, top)
                _sift_down(near, 0, n)
        if drop:
            _drop_top(near, n)
            ints[NEAR + pool] = n - 1


@entry_point
def requeue(core: Core, rules: Rules) -> None:
    """Forget the order of a queue of groups, and those that hold nothing any more.

    Needed whenever ranks may have fallen.
    """
    if rules.kind == BY_KEY or rules.kind == BY_LIFE:
        for pool in range(rules.pools):
            _spread(core, pool)
            _prune(core, rules, pool)


# ---- key entries ------------------------------------------------------------------------------


@entry_point
def intern(core: Core, hashes: Array, entries: Array) -> int:
    """Find or make the entry of each hash; stops, and says where, when there is no room."""
    ints = core.ints
    table = core.table
    mask = np.uint64(table.shape[0] - 1)
    limit = min(table.shape[0] >> 1, core.hashes.shape[0])
    one = np.uint64(1)
    for i in range(hashes.shape[0]):
        h = hashes[i]
        at = h & mask
        while True:
            e = table[at, 1]
            if e == 0 or table[at, 0] == h:
                break
            at = (at + one) & mask
        if e == 0:
            if ints[FREE_ENTRIES] > 0:
                ints[FREE_ENTRIES] -= 1
                e = np.uint64(core.free_entries[ints[FREE_ENTRIES]] + 1)
            elif ints[ENTRIES] < limit:
                ints[ENTRIES] += 1
                e = np.uint64(ints[ENTRIES])
            else:
                return i
            table[at, 0], table[at, 1] = h, e
            entry = np.int64(e) - 1
            core.hashes[entry] = h
            for group in (2 * entry, 2 * entry + 1):
                core.groups[group].rate = 0.0
                core.groups[group].head = -1
                core.groups[group].tail = -1
                core.groups[group].count = 0
                core.groups[group].queued = 0
        entries[i] = np.int64(e) - 1
    return int(hashes.shape[0])


@inlined
def _only_counted(core: Core, entry: int) -> bool:
    """Whether a key has been counted and holds no tuple."""
    left, right = core.groups[2 * entry], core.groups[2 * entry + 1]
    return bool(left.count == 0 and right.count == 0 and (left.rate > 0.0 or right.rate > 0.0))


@inlined
def _list_idle(core: Core, entry: int) -> None:
    """Note that a key has become one that is only counted."""
    core.ints[STAT_ONLY] += 1
    if core.groups[2 * entry].listed == 0:
        core.groups[2 * entry].listed = 1
        core.idle[core.ints[IDLE]] = entry
        core.ints[IDLE] += 1


@entry_point
def sweep_entries(core: Core, keep_rates: bool) -> None:
    """Free the entries of keys that hold nothing (and are not counted), and index the rest."""
    ints = core.ints
    table = core.table
    table[:] = 0
    mask = np.uint64(table.shape[0] - 1)
    free = 0
    for entry in range(ints[ENTRIES]):
        empty = core.groups[2 * entry].count == 0 and core.groups[2 * entry + 1].count == 0
        if empty and not (keep_rates and _only_counted(core, entry)):
            core.free_entries[free] = entry
            free += 1
            continue
        at = core.hashes[entry] & mask
        while table[at, 1] != 0:
            at = (at + np.uint64(1)) & mask
        table[at, 0] = core.hashes[entry]
        table[at, 1] = np.uint64(entry + 1)
    ints[FREE_ENTRIES] = free


@inlined
def _observe(core: Core, rules: Rules, batch: Batch, start: int, stop: int) -> None:
    """Count the arrivals of a tick; an arrival one half-life later weighs twice as much.

    Weights grow instead of counts shrinking, so that ranks only rise between rescalings, which
    is what the queue relies on.
    """
    ints = core.ints
    weight = 1.0
    if rules.halflife > 0:
        epoch = np.int64(core.clock[0] // rules.halflife)
        if ints[STARTED] == 0:
            ints[STARTED] = 1
            ints[EPOCH] = epoch
        age = epoch - ints[EPOCH]
        if age > 512:
            shrink = math.ldexp(1.0, -min(age, 2000))
            ints[STAT_ONLY] = 0
            for entry in range(ints[ENTRIES]):
                core.groups[2 * entry].rate *= shrink
                core.groups[2 * entry + 1].rate *= shrink
                if _only_counted(core, entry):
                    ints[STAT_ONLY] += 1
            ints[EPOCH] = epoch
            ints[REWRITTEN] = 1
            age = 0
            requeue(core, rules)
        weight = math.ldexp(1.0, age)
    for i in range(start, stop):
        entry = batch.entry[i]
        before = _only_counted(core, entry)
        core.groups[2 * entry + batch.side[i]].rate += weight
        if not before and _only_counted(core, entry):
            _list_idle(core, entry)


# ---- tuples -----------------------------------------------------------------------------------


@inlined
def _unlink(core: Core, rules: Rules, slot: int) -> None:
    """Take a tuple out of memory."""
    ints = core.ints
    held = core.slots[slot]
    group = held.group
    side = group & 1
    before, after = held.prev, held.next
    if before >= 0:
        core.slots[before].next = after
    else:
        core.groups[group].head = after
    if after >= 0:
        core.slots[after].prev = before
    else:
        core.groups[group].tail = before
    core.groups[group].count -= 1
    if rules.learn and _only_counted(core, group >> 1):
        _list_idle(core, group >> 1)
    ints[USED + (side if rules.pools == 2 else 0)] -= held.size
    ints[HELD + side] -= 1
    ints[SIZE] -= held.size
    core.slots[slot].seq = -1
    core.free[ints[FREE]] = slot
    ints[FREE] += 1


@inlined
def _expired(core: Core, rules: Rules, side: int, time: Any) -> bool:
    if side == 0:
        return bool(core.clock[0] >= time + rules.window_left + rules.lateness)
    return bool(core.clock[0] - rules.window_right - rules.lateness >= time)


@inlined
def _expire(core: Core, rules: Rules) -> None:
    ints = core.ints
    for side in range(2):
        if not (rules.bounded_left if side == 0 else rules.bounded_right):
            continue
        due, late = core.due[side], core.late[side]
        at = ints[DUE_FROM + side]
        while at < ints[DUE_TO + side]:
            slot = due[at].item
            if core.slots[slot].seq == due[at].seq:
                if not _expired(core, rules, side, core.slots[slot].time):
                    break
                _unlink(core, rules, slot)
                ints[EXPIRED] += 1
            at += 1
        ints[DUE_FROM + side] = at
        while ints[LATE_DUE + side] > 0:
            slot = late[0].item
            if core.slots[slot].seq == late[0].seq:
                if not _expired(core, rules, side, core.slots[slot].time):
                    break
                _unlink(core, rules, slot)
                ints[EXPIRED] += 1
            _drop_top(late, ints[LATE_DUE + side])
            ints[LATE_DUE + side] -= 1


@inlined
def _schedule(core: Core, side: int, slot: int) -> None:
    """Remember when a tuple expires: in order of time, with a heap for those that were late."""
    ints = core.ints
    seq, time = core.slots[slot].seq, core.slots[slot].time
    due, late = core.due[side], core.late[side]
    if time >= core.clock[0]:
        stop = ints[DUE_TO + side]
        if stop == due.shape[0]:
            stop = 0
            for i in range(ints[DUE_FROM + side], due.shape[0]):
                if core.slots[due[i].item].seq == due[i].seq:
                    due[stop] = due[i]
                    stop += 1
            ints[DUE_FROM + side] = 0
        _put(due, stop, time, seq, slot)
        ints[DUE_TO + side] = stop + 1
        return
    n = ints[LATE_DUE + side]
    if n == late.shape[0]:
        n = 0
        for i in range(late.shape[0]):
            if core.slots[late[i].item].seq == late[i].seq:
                late[n] = late[i]
                _sift_up(late, n)
                n += 1
    _put(late, n, time, seq, slot)
    _sift_up(late, n)
    ints[LATE_DUE + side] = n + 1


@inlined
def _link(core: Core, rules: Rules, slot: int, pool: int) -> None:
    """Put a filled slot at the end of its group and into the queue.

    Where the life left counts, a group's list is in order of time instead, so that its head is
    still the lowest: a late tuple goes before those that are later.
    """
    ints = core.ints
    group = core.slots[slot].group
    before, after = core.groups[group].tail, -1
    if rules.kind == BY_LIFE:
        while before >= 0 and core.slots[before].time > core.slots[slot].time:
            before, after = core.slots[before].prev, before
    core.slots[slot].prev = before
    core.slots[slot].next = after
    if before >= 0:
        core.slots[before].next = slot
    else:
        core.groups[group].head = slot
    if after >= 0:
        core.slots[after].prev = slot
    else:
        core.groups[group].tail = slot
    if rules.learn and _only_counted(core, group >> 1):
        ints[STAT_ONLY] -= 1
    core.groups[group].count += 1
    ints[USED + pool] += core.slots[slot].size
    ints[HELD + (group & 1)] += 1
    ints[SIZE] += core.slots[slot].size
    if rules.kind == BY_TUPLE:
        _enqueue(core, rules, pool, slot)
    elif rules.kind != NOTHING and core.groups[group].queued == 0:
        core.groups[group].queued = 1
        _enqueue(core, rules, pool, group)


@inlined
def _shed(core: Core, out: Output, row: int, side: int, held: bool) -> None:
    """Note an early departure, if the caller wants to know."""
    n = core.ints[SHED]
    if n < out.shed_row.shape[0]:
        out.shed_row[n], out.shed_side[n] = row, side
        out.shed_time[n], out.shed_held[n] = core.clock[0], held
        core.ints[SHED] = n + 1


@inlined
def _evict(core: Core, rules: Rules, out: Output, slot: int) -> None:
    """Drop a held tuple before its time."""
    ints = core.ints
    held = core.slots[slot]
    ints[EVICTED] += 1
    if held.seq < ints[MARK]:
        core.gone[ints[GONE]] = held.seq
        ints[GONE] += 1
    _shed(core, out, held.row, held.group & 1, True)
    _unlink(core, rules, slot)


@inlined
def _make_room(
    core: Core, rules: Rules, out: Output, pool: int, size: int, time: Any, group: int, rank: float
) -> bool:
    """Evict the lowest until a newcomer fits; false if the newcomer itself is the lowest.

    Of equal ranks the earlier arrival leaves, so the newcomer loses to higher ranks only.
    """
    ints = core.ints
    budget = rules.budget_right if pool == 1 else rules.budget_left
    while ints[USED + pool] + size > budget:
        slot = _victim(core, rules, pool)
        if rules.kind == BY_TUPLE:
            lowest = core.slots[slot].rank
            core.floor[pool] = max(core.floor[pool], min(lowest, rank))
        else:
            lowest = _rank(core, rules, core.slots[slot].group)[0]
            rank = _worth(core, rules, group, time)
        if rank < lowest:
            return False
        _evict(core, rules, out, slot)
    return True


@inlined
def _admit(core: Core, rules: Rules, batch: Batch, out: Output, i: int) -> None:
    ints = core.ints
    side = batch.side[i]
    seq = ints[SEQ]
    ints[SEQ] = seq + 1
    time, size = batch.time[i], batch.size[i]
    bounded = rules.bounded_left if side == 0 else rules.bounded_right
    if bounded and _expired(core, rules, side, time):
        return
    pool = side if rules.pools == 2 else 0
    group = 2 * batch.entry[i] + side
    rank = batch.rank[i] + rules.floor_weight * core.floor[pool] + rules.seq_weight * float(seq)
    if size > (rules.budget_right if pool == 1 else rules.budget_left) or not _make_room(
        core, rules, out, pool, size, time, group, rank
    ):
        ints[REJECTED] += 1
        _shed(core, out, batch.row[i], side, False)
        return
    ints[FREE] -= 1
    slot = core.free[ints[FREE]]
    held = core.slots[slot]
    held.time, held.seq, held.row, held.size = time, seq, batch.row[i], size
    held.group, held.rank = group, rank
    _link(core, rules, slot, pool)
    ints[ADMITTED] += 1
    core.fresh[ints[FRESH]] = slot
    ints[FRESH] += 1
    if bounded:
        _schedule(core, side, slot)


# ---- probing ----------------------------------------------------------------------------------


@inlined
def _joins(rules: Rules, left: Any, right: Any) -> bool:
    return bool(
        (not rules.bounded_left or right < left + rules.window_left)
        and (not rules.bounded_right or right > left - rules.window_right)
    )


@inlined
def _probe(core: Core, rules: Rules, batch: Batch, out: Output, i: int, n: int, limit: int) -> int:
    """Pairs of newcomer i with held tuples older than `limit`; gives the new length of `out`."""
    time, row, side = batch.time[i], batch.row[i], batch.side[i]
    slot = core.groups[2 * batch.entry[i] + 1 - side].head
    while slot >= 0:
        held = core.slots[slot]
        if held.seq < limit:
            if side == 0:
                if _joins(rules, time, held.time):
                    out.left[n], out.right[n] = row, held.row
                    n += 1
            elif _joins(rules, held.time, time):
                out.left[n], out.right[n] = held.row, row
                n += 1
        slot = held.next
    return n


@inlined
def _block(batch: Batch, i: int, start: int, stop: int) -> tuple[int, int]:
    """The newcomers in a tick's [start, stop) that have the other side and the key of i."""
    side, h = 1 - batch.side[i], batch.hash[i]
    low, high = start, stop
    while low < high:
        middle = (low + high) >> 1
        other = batch.side[middle]
        if other < side or (other == side and batch.hash[middle] < h):
            low = middle + 1
        else:
            high = middle
    end = low
    while end < stop and batch.side[end] == side and batch.hash[end] == h:
        end += 1
    return low, end


@inlined
def _held_newcomer(core: Core, batch: Batch, i: int, base: int, start: int) -> bool:
    """Whether newcomer i of the tick that began at `start` is in memory."""
    seq = base + (i - start)
    slot = core.groups[2 * batch.entry[i] + batch.side[i]].tail
    while slot >= 0 and core.slots[slot].time > batch.time[i]:
        slot = core.slots[slot].prev
    while slot >= 0 and core.slots[slot].seq >= base:
        if core.slots[slot].seq == seq:
            return True
        slot = core.slots[slot].prev
    return False


@inlined
def _probe_tick(
    core: Core, rules: Rules, batch: Batch, out: Output, n: int, opened: int, open_end: int
) -> tuple[int, int]:
    """Probe with every newcomer of the current tick, from the cursor on."""
    ints = core.ints
    start, stop = ints[TICK_FROM], ints[TICK_TO]
    room = out.left.shape[0]
    base = ints[NEWCOMERS]
    for i in range(ints[AT], stop):
        ints[AT] = i
        if rules.moment == PROBE_FIRST and batch.probed[i]:
            continue
        side = batch.side[i]
        most = np.int64(core.groups[2 * batch.entry[i] + 1 - side].count)
        low, high = _block(batch, i, start, stop) if stop - start > 1 else (0, 0)
        most += high - low
        open_low, open_high = 0, 0
        if start < opened and rules.moment == PROBE_FIRST:
            open_low, open_high = _block(batch, i, opened, open_end)
            most += open_high - open_low
        if n + most > room:
            return n, OUTPUT_FULL if n > 0 else PROBE_TOO_LARGE
        if rules.moment == SHED_FIRST and not _held_newcomer(core, batch, i, base, start):
            continue
        n = _probe(core, rules, batch, out, i, n, base)
        for j in range(low, high):
            # Each pair of newcomers is found from its left one, unless that one probed before.
            if rules.moment == PROBE_FIRST:
                if side == 1 and not batch.probed[j]:
                    continue
            elif side == 1 or (
                rules.moment == SHED_FIRST and not _held_newcomer(core, batch, j, base, start)
            ):
                continue
            if side == 0:
                out.left[n], out.right[n] = batch.row[i], batch.row[j]
            else:
                out.left[n], out.right[n] = batch.row[j], batch.row[i]
            n += 1
        for j in range(open_low, open_high):
            if not batch.probed[j]:
                continue
            if side == 0:
                if _joins(rules, batch.time[i], batch.time[j]):
                    out.left[n], out.right[n] = batch.row[i], batch.row[j]
                    n += 1
            elif _joins(rules, batch.time[j], batch.time[i]):
                out.left[n], out.right[n] = batch.row[j], batch.row[i]
                n += 1
    return n, DONE


# ---- the loop ---------------------------------------------------------------------------------

#: Newcomers whose groups are fetched from memory together.
AHEAD = 32


@inlined
def _touch(core: Core, batch: Batch, start: int) -> None:
    """Load what the next newcomers, and the next to expire, will need.

    One after the other, each would wait for main memory; loads that do not depend on each other
    wait together.
    """
    ints = core.ints
    seen = 0
    for i in range(start, min(start + AHEAD, batch.entry.shape[0])):
        seen += core.groups[2 * batch.entry[i] + 1 - batch.side[i]].head
    for side in range(2):
        at = ints[DUE_FROM + side]
        for i in range(at, min(at + AHEAD, ints[DUE_TO + side])):
            seen += core.groups[core.slots[core.due[side, i].item].group].head
    ints[TOUCHED] = start + AHEAD
    ints[SEEN] = seen


# Stages of a tick.
BEGIN, FIRST, SECOND, END = 0, 1, 2, 3


@inlined
def _admit_tick(core: Core, rules: Rules, batch: Batch, out: Output) -> None:
    start, stop = core.ints[TICK_FROM], core.ints[TICK_TO]
    if rules.learn:
        _observe(core, rules, batch, start, stop)
    for i in range(start, stop):
        _admit(core, rules, batch, out, i)


@entry_point
def run(
    core: Core,
    rules: Rules,
    batch: Batch,
    out: Output,
    n: int,
    opened: int,
    open_end: int,
    close: bool,
) -> tuple[int, int]:
    """Take the batch from the cursor on: how many pairs there are in `out`, and why it stopped.

    `out` has `n` pairs already.

    `opened` and `open_end` say where in the batch the tick stands that was open before (both
    `len(batch)` if there was none). The last tick is left open unless `close`.
    """
    ints = core.ints
    total = batch.time.shape[0]
    while True:
        stage = ints[STAGE]
        if stage == BEGIN:
            start = ints[TICK_TO]
            if start >= total:
                return n, DONE
            if start >= ints[TOUCHED] or start == 0:
                _touch(core, batch, start)
            time = batch.time[start]
            stop = start + 1
            while stop < total and batch.time[stop] == time:
                stop += 1
            ints[TICK_FROM], ints[TICK_TO], ints[AT] = start, stop, start
            if time >= core.clock[0]:
                core.clock[0] = time
                _expire(core, rules)
            else:
                ints[LATE] += stop - start
            ints[NEWCOMERS] = ints[SEQ]
            ints[STAGE] = FIRST
        waits = ints[TICK_TO] == total and not close and batch.time[total - 1] >= core.clock[0]
        if stage == FIRST or stage == SECOND:
            if (stage == FIRST) == (rules.moment == PROBE_FIRST):
                n, why = _probe_tick(core, rules, batch, out, n, opened, open_end)
                if why != DONE:
                    return n, why
            elif not waits:
                _admit_tick(core, rules, batch, out)
            ints[STAGE] = END if waits or stage == SECOND else SECOND
        if stage == END:
            ints[STAGE] = BEGIN
            if rules.learn and not waits and ints[STAT_ONLY] > rules.cap:
                return n, TOO_MANY_KEYS


@entry_point
def advance(core: Core, rules: Rules, clock: Any) -> None:
    """Move the clock on and drop what has expired."""
    if clock > core.clock[0]:
        core.clock[0] = clock
        _expire(core, rules)


# ---- state ------------------------------------------------------------------------------------


@entry_point
def reload(
    core: Core,
    rules: Rules,
    time: Array,
    seq: Array,
    row: Array,
    size: Array,
    rank: Array,
    group: Array,
) -> None:
    """Hold tuples given in order of their sequence numbers, on top of what is held."""
    ints = core.ints
    for i in range(time.shape[0]):
        ints[FREE] -= 1
        slot = core.free[ints[FREE]]
        held = core.slots[slot]
        held.time, held.seq, held.row, held.size = time[i], seq[i], row[i], size[i]
        held.rank, held.group = rank[i], group[i]
        side = group[i] & 1
        _link(core, rules, slot, side if rules.pools == 2 else 0)


@entry_point
def reschedule(core: Core, side: int, slots: Array) -> None:
    """Take held tuples of one side, in order of time, as the ones that are to expire."""
    core.ints[LATE_DUE + side] = 0
    core.ints[DUE_FROM + side] = 0
    core.ints[DUE_TO + side] = slots.shape[0]
    for i in range(slots.shape[0]):
        held = core.slots[slots[i]]
        _put(core.due[side], i, held.time, held.seq, slots[i])
