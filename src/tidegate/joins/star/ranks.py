"""Ranking of held rows, and the heaps that keep the lowest rank on top.

Each slot stores its position in its heap. When a rank changes, the slot moves, so the row with the
lowest rank is always known exactly.
"""

from __future__ import annotations

from tidegate.joins.star.layout import DGL, DIMPPROB, MEMO, RATE, Core, Rules
from tidegate.joins.star.link_index import Facts, active
from tidegate.kernel.compiling import inlined, inner
from tidegate.kernel.heap import push_item, remove_item, settle_item


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
    """Remove a slot from its heap."""
    queue = core.slots[slot].queue
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
def worth(core: Core, facts: Facts, rules: Rules, slot: int) -> float:
    """Return the expected rate of results of a row.

    It is the sum, over the active links of the row, of the product of the arrival rates of the
    other streams. With importance it is the rate of the results' importance, assuming that each
    arrival of a key has the mean importance of the key. The formula never decreases when more rows
    arrive.

    A key may have very many links and rows, so the last values are cached.
    """
    scalars = core.scalars[0]
    held = core.slots[slot]
    spread = 97 * held.stream + int(8.0 * min(held.weight, 1e9))
    memo = core.memo[(held.entry + spread) & (MEMO - 1)]
    if (
        memo.rated == scalars.rated
        and memo.entry == held.entry
        and memo.stream == held.stream
        and memo.weight == held.weight
        and memo.since <= held.time < memo.before
    ):
        return float(memo.worth)
    streams = rules.windows.shape[0]
    total = 0.0
    since, before = rules.never, rules.always
    fact = facts.first[held.stream, held.entry]
    while fact >= 0:
        if facts.end[fact] > scalars.clock and facts.begin[fact] > held.time:
            before = min(before, facts.begin[fact])
        if active(facts, fact, held.time) and facts.end[fact] > scalars.clock:
            since = max(since, facts.begin[fact])
            rates, sums = 1.0, 1.0
            for o in range(streams):
                if o != held.stream:
                    rates *= core.groups[o, facts.key[fact, o]].rate
                    sums *= core.groups[o, facts.key[fact, o]].sum
            if rules.kind == RATE or rules.combine < 0:
                total += rates
            elif rules.combine == 3:
                total += held.weight * sums
            elif rates > 0.0:
                combined = held.weight * rates
                for o in range(streams):
                    if o == held.stream:
                        continue
                    one = core.groups[o, facts.key[fact, o]].sum
                    for p in range(streams):
                        if p != o and p != held.stream:
                            one *= core.groups[p, facts.key[fact, p]].rate
                    if rules.combine == 0:
                        combined = min(combined, one)
                    elif rules.combine == 1:
                        combined = max(combined, one)
                    else:
                        combined += one
                total += combined
        fact = facts.next[fact, held.stream]
    if rules.kind == RATE:
        total *= held.weight
    memo.rated, memo.entry, memo.stream = scalars.rated, held.entry, held.stream
    memo.weight, memo.since, memo.before, memo.worth = held.weight, since, before, total
    return float(total)


@inlined
def victim(core: Core, facts: Facts, rules: Rules, pool: int) -> int:
    """Return the slot with the lowest rank of a pool."""
    heap = core.heaps[pool]
    if rules.kind == DGL:
        while core.sizes[pool] > 0 and _balance(core, rules, heap[0]) <= 0.0:
            slot = heap[0]
            pull(core, slot)
            core.slots[slot].rank = 0.0
            push(core, rules.pools + pool, slot)
        if core.sizes[rules.pools + pool] > 0:
            return int(core.heaps[rules.pools + pool, 0])
    if rules.kind >= RATE:
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
