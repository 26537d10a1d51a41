"""Ranking of held rows, and the heaps that keep the lowest rank on top.

Each slot stores its position in its heap. When a rank changes, the slot moves, so the row with the
lowest rank is always known exactly. Only `AUTO`, whose ranks also fall as time passes, keeps just
the lowest ranks in the heap, and ranks all rows again from time to time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tidegate.joins.star.layout import AUTO, DGL, DIMPPROB, HELD, MEMO, RATE, Core, Rules
from tidegate.joins.star.link_index import Facts, active
from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.heap import push_item, put, remove_item, settle_item
from tidegate.kernel.layout import FAINTEST
from tidegate.kernel.sorting import select
from tidegate.learning.rates import (
    RECENT,
    as_trend,
    doublings_of,
    lately_of,
    level_of,
    span_of,
    stage_in,
)
from tidegate.learning.scores import DIGITS, correction

#: How much a recent arrival counts as a partner, compared with a held row.
_HOPE = 0.25


@inlined
def _lower(core: Core, a: int, b: int) -> bool:
    """Return True if the rank of slot a is lower than that of slot b."""
    x, y = core.slots[a], core.slots[b]
    if x.rank != y.rank:
        return bool(x.rank < y.rank)
    if x.tie != y.tie:
        return bool(x.tie < y.tie)
    if x.tie != 0.0 and x.matches != y.matches:
        return bool(x.matches < y.matches)
    return bool(x.seq < y.seq)


@inner
def settle(core: Core, slot: int) -> None:
    """Restore the heap order after the rank of a slot has changed."""
    queue = core.slots[slot].queue
    settle_item(core.heaps[queue], core.sizes[queue], core.slots, slot, _lower, core)


@inner
def push(core: Core, queue: int, slot: int) -> None:
    """Add a slot to a heap."""
    core.slots[slot].queue = queue
    push_item(core.heaps[queue], core.sizes[queue], core.slots, slot, _lower, core)
    core.sizes[queue] += 1


@inner
def pull(core: Core, slot: int) -> None:
    """Remove a slot from its heap, if it is in one."""
    queue = core.slots[slot].queue
    if queue < 0:
        return
    core.slots[slot].queue = -1
    remove_item(core.heaps[queue], core.sizes[queue], core.slots, slot, _lower, core)
    core.sizes[queue] -= 1


@inlined
def pool_of(rules: Rules, stream: int) -> int:
    """Return the memory pool of a stream's rows."""
    return stream if rules.pools > 1 else 0


@inlined
def _balance(core: Core, rules: Rules, slot: int) -> float:
    """Return the DGL priority of a row at the current time."""
    held = core.slots[slot]
    return float(held.gain - rules.params[1] * float(core.scalars[0].clock - held.last))


@inner
def look_through(
    core: Core,
    facts: Facts,
    rules: Rules,
    stream: int,
    entry: int,
    time: Any,
    weight: float,
    when: float,
) -> tuple[float, float, float, Any, Any]:
    """Return how often results come to a row through its active links, by its partners' arrivals.

    The first number is the rate: the sum over the links of the arrivals of the other streams' keys.
    `RATE` multiplies the arrivals of all other streams. `AUTO` adds up, for each other stream, its
    arrivals times the combinations of rows of the remaining streams: an arrival completes that many
    results. For `AUTO`, the second number is the same with recent rates instead, as of the time
    `when`. The third is the first weighted by importance, assuming that each arrival of a key has
    the mean importance of the key. Last comes the interval [since, before) of times of rows for
    which all this is the same.
    """
    streams = core.groups.shape[0]
    came, lately, value = 0.0, 0.0, 0.0
    since, before = rules.never, rules.always
    fact = facts.first[stream, entry]
    while fact >= 0:
        if facts.end[fact] > core.scalars[0].clock:
            if facts.begin[fact] > time:
                before = min(before, facts.begin[fact])
            elif active(facts, fact, time):
                since = max(since, facts.begin[fact])
                if rules.kind == RATE:
                    rates = 1.0
                    for o in range(streams):
                        if o != stream:
                            rates *= core.groups[o, facts.key[fact, o]].rate
                    came += rates
                else:
                    own = 0.0
                    for o in range(streams):
                        if o == stream:
                            continue
                        ways = completions(core, facts, rules, fact, stream, o)
                        if ways > 0.0:
                            key = facts.key[fact, o]
                            own += ways * core.groups[o, key].rate
                            lately += ways * _lately(core, rules, o, key, when)
                    came += own
                    if rules.combine >= 0 and own > 0.0:
                        value += own * _importance(core, facts, rules, fact, stream, weight)
        fact = facts.next[fact, stream]
    return came, lately, value, since, before


@inlined
def _lately(core: Core, rules: Rules, stream: int, entry: int, when: float) -> float:
    """Return the recent rate of a key at the time `when`: arrivals in a window."""
    learning = core.learning
    recent = learning.recent[stream * core.groups.shape[1] + entry]
    if recent.gap == 0.0:
        return 0.0
    return math.exp2(lately_of(recent, span_of(learning, rules.learning), when))


@inlined
def _recent(core: Core, rules: Rules, stream: int, entry: int, when: float) -> float:
    """Return the recent count of a key, faded to the time `when`."""
    learning = core.learning
    recent = learning.recent[stream * core.groups.shape[1] + entry]
    if recent.count == 0.0:
        return 0.0
    ago = max(when - float(recent.time), 0.0)
    span = RECENT * span_of(learning, rules.learning)
    return float(recent.count * math.exp2(-ago / span))


@inlined
def completions(
    core: Core, facts: Facts, rules: Rules, fact: int, stream: int, other: int
) -> float:
    """Return how many combinations of rows complete one row of each of two streams.

    Held rows count, and recent arrivals count a little, as more of them may come.
    """
    ways, now = 1.0, float(core.scalars[0].clock)
    for p in range(core.groups.shape[0]):
        if p != stream and p != other:
            key = facts.key[fact, p]
            ways *= float(core.groups[p, key].held) + _HOPE * _recent(core, rules, p, key, now)
    return ways


@inlined
def _importance(
    core: Core, facts: Facts, rules: Rules, fact: int, stream: int, weight: float
) -> float:
    """Return the importance of a result of a row through a link, at the mean importance of keys."""
    combined = weight
    for o in range(core.groups.shape[0]):
        if o == stream:
            continue
        group = core.groups[o, facts.key[fact, o]]
        mean = group.sum / group.rate if group.rate > 0.0 else 0.0
        if rules.combine == 0:
            combined = min(combined, mean)
        elif rules.combine == 1:
            combined = max(combined, mean)
        elif rules.combine == 2:
            combined += mean
        else:
            combined *= mean
    return combined


@inlined
def standing(core: Core, rules: Rules, came: float, lately: float) -> tuple[float, float, float]:
    """Return the logarithm of the results that are usual in a window, their level and the trend."""
    learning = core.learning
    _, _, levels, trends = learning.worth.shape
    count = came * learning.model[0].weight
    doublings = doublings_of(learning, rules.learning, count)
    trend = as_trend(math.log2(lately), doublings, trends) if lately > 0.0 else 0.0
    return doublings, level_of(count, doublings, levels), trend


@inner
def worth(core: Core, facts: Facts, rules: Rules, slot: int) -> float:
    """Return the rank of a row by the arrivals of its partners.

    For `RATE`, it is the rate of results, weighted by importance, which never decreases when more
    rows arrive. For `AUTO`, it is the logarithm of the best average rate of importance that the row
    can still earn. A key may have very many links and rows, so the last rates are cached.
    """
    scalars = core.scalars[0]
    held = core.slots[slot]
    spread = 97 * held.stream + int(8.0 * min(held.weight, 1e9))
    memo = core.memo[(held.entry + spread) & (MEMO - 1)]
    if not (
        memo.rated == scalars.rated
        and memo.entry == held.entry
        and memo.stream == held.stream
        and memo.weight == held.weight
        and memo.since <= held.time < memo.before
    ):
        found = look_through(
            core,
            facts,
            rules,
            held.stream,
            held.entry,
            held.time,
            held.weight,
            float(scalars.clock),
        )
        memo.came, memo.lately, memo.value, memo.since, memo.before = found
        memo.rated, memo.entry, memo.stream = scalars.rated, held.entry, held.stream
        memo.weight = held.weight
    if rules.kind == RATE:
        return float(memo.came * held.weight)
    doublings, level, trend = standing(core, rules, memo.came, memo.lately)
    age = float(scalars.clock - held.time)
    step = stage_in(rules.windows[held.stream], age)
    mean = memo.value / memo.came if memo.value > 0.0 else held.weight
    own = math.log2(max(mean, FAINTEST)) if mean != 1.0 else 0.0
    rank = own + doublings + correction(core.learning.worth[held.stream], step, level, trend)
    # Smaller differences are ties: the last digits depend on the order of sums.
    return math.floor(rank * DIGITS + 0.5) / DIGITS


@inner
def _rank_all(core: Core, facts: Facts, rules: Rules, pool: int) -> None:
    """Rank all rows of a pool, and put the lowest eighth into its heap."""
    n = 0
    for slot in range(core.slots.shape[0]):
        held = core.slots[slot]
        if held.state == HELD and pool_of(rules, held.stream) == pool:
            held.rank, held.queue = worth(core, facts, rules, slot), -1
            put(core.order, n, held.rank, held.seq, slot)
            n += 1
    few = max(n >> 3, 1)
    select(core.order, n, few)
    core.sizes[pool] = 0
    edge = -np.inf
    for i in range(few):
        edge = max(edge, core.order[i].rank)
        push(core, pool, core.order[i].item)
    core.pools[pool].edge = edge
    core.pools[pool].left = few


@inlined
def add(core: Core, facts: Facts, rules: Rules, pool: int, slot: int) -> None:
    """Rank a newcomer, and put it into the heap if it belongs there."""
    held = core.slots[slot]
    held.rank = worth(core, facts, rules, slot)
    if rules.kind != AUTO or held.rank < core.pools[pool].edge:
        push(core, pool, slot)


@inlined
def _learned_victim(core: Core, facts: Facts, rules: Rules, pool: int) -> int:
    """Return a row with one of the lowest of `AUTO`'s ranks, which rise and fall.

    The heap has the rows that were the lowest eighth when all were ranked, which is done again
    after as many victims, and newcomers that rank as low. Rows that have risen since leave it. Rows
    that have fallen are noticed when all are ranked, so with less than 16 rows this is exact.
    """
    own, heap = core.pools[pool], core.heaps[pool]
    if own.left == 0:
        _rank_all(core, facts, rules, pool)
    own.left -= 1
    while True:
        if core.sizes[pool] == 0:
            _rank_all(core, facts, rules, pool)
        slot = heap[0]
        rank = worth(core, facts, rules, slot)
        risen = rank > core.slots[slot].rank
        core.slots[slot].rank = rank
        if not risen:
            return int(slot)
        if rank > own.edge:
            pull(core, slot)
        else:
            settle(core, slot)


@inlined
def victim(core: Core, facts: Facts, rules: Rules, pool: int) -> int:
    """Return the slot with the lowest rank of a pool."""
    heap = core.heaps[pool]
    if rules.kind == AUTO:
        return _learned_victim(core, facts, rules, pool)
    if rules.kind == DGL:
        while core.sizes[pool] > 0 and _balance(core, rules, heap[0]) <= 0.0:
            slot = heap[0]
            pull(core, slot)
            core.slots[slot].rank = 0.0
            push(core, rules.pools + pool, slot)
        if core.sizes[rules.pools + pool] > 0:
            return int(core.heaps[rules.pools + pool, 0])
    if rules.kind == RATE:
        # Stored ranks may be outdated, but true ranks only rise.
        while True:
            slot = heap[0]
            rank = worth(core, facts, rules, slot)
            if rank == core.slots[slot].rank:
                break
            core.slots[slot].rank = rank
            settle(core, slot)
    return int(heap[0])


@inner
def learn(core: Core, rules: Rules, slot: int) -> None:
    """DGL: credit a held row with a result. Its current matches count once per instant."""
    scalars = core.scalars[0]
    held = core.slots[slot]
    since = float(scalars.clock - held.last)
    share = held.weight * max(float(held.time + rules.windows[held.stream] - scalars.clock), 0.0)
    share /= rules.params[0]
    if since > 0.0:
        # Only instants without a result, after the last result and before this one, cost priority.
        idle = max(since - rules.params[2], 0.0)
        held.gain = max(held.gain - rules.params[1] * idle, 0.0) + share * float(held.matches)
        held.last = scalars.clock
    held.gain += share
    held.learned = 1
    _regain(core, rules, slot)


@inlined
def _regain(core: Core, rules: Rules, slot: int) -> None:
    """Rank a row by its gain plus what has decayed until `last`: all priorities decay alike."""
    held = core.slots[slot]
    pool = pool_of(rules, held.stream)
    if held.queue != pool:
        pull(core, slot)
        held.rank = held.gain + rules.params[1] * float(held.last)
        push(core, pool, slot)
    else:
        held.rank = held.gain + rules.params[1] * float(held.last)
        settle(core, slot)


@inlined
def rematch(core: Core, rules: Rules, slot: int, change: int) -> None:
    """Update the number of matches of a held row."""
    core.slots[slot].matches += change
    if rules.kind == DIMPPROB:
        core.slots[slot].rank = core.slots[slot].weight * float(core.slots[slot].matches)
    settle(core, slot)
