"""The compiled loop of the sampled join: expire, probe, draw, admit.

Rows are taken one by one in tick order, left before right, and probe the held rows: a pair belongs
to the row that came first. Every row has a random word, a hash of its content and the seed, from
which all its random numbers derive. The `inclusions` say which matches of a held row are sampled.
Monitors observe rows, sampled or not, to learn the number of their matches.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tidegate.joins.window.held_rows import drop, evict, link, overdue, schedule, shed
from tidegate.joins.window.keys import observe
from tidegate.joins.window.ticks import next_tick
from tidegate.kernel.compiling import Array, entry_point, inlined
from tidegate.kernel.hashing import splitmix64
from tidegate.kernel.layout import (
    DONE,
    OUTPUT_FULL,
    PROBE_TOO_LARGE,
    REJECTED,
    TOO_MANY_KEYS,
    Batch,
    Core,
    Output,
    Rules,
)
from tidegate.kernel.records import record_type
from tidegate.kernel.windows import expired, joins, past, step_of
from tidegate.learning.rates import expected, rate_of, span_of, weigh

#: Reasons to stop besides those of `layout`: a new plan is due; or the sample must be thinned, as
#: one more row is held than fits.
REPLAN, OVERFULL = 4, 5

#: What is sampled: pairs, or clusters with one probability, or clusters by their size.
UNIFORM, CLUSTER, PPS = 0, 1, 2

#: Number of steps of age for monitors.
STEPS = 32

#: The numbers of a sampler, in `SamplerState.scalars`.
SCALARS = record_type(
    [
        ("replan_at", "i8"),  # the sequence number at which to plan again
        ("touched", "i8"),  # length of `SamplerState.touched`
        ("monitors", "i8"),  # length of `SamplerState.monitors`
        ("thinned", "i8"),  # one row in 2 ** thinned is monitored
        ("seen", "i8"),  # whether a tick has come
    ]
)

#: How rows are sampled, in `SamplerState.plan`.
PLAN = record_type(
    [
        ("method", "f8"),  # UNIFORM, CLUSTER or PPS
        ("share", "f8"),  # the probability of all pairs or clusters, unless by size
        ("constant", "f8"),  # of PPS: the probability of a cluster over its foreseen size
        ("reach", "f8"),  # deviations above the foreseen matches up to which UNIFORM samples
        ("reserve", "f8"),  # free memory below which probabilities fall
        ("by_age", "f8"),  # whether matches are foreseen by age, not by key
        ("mean", "f8", (2,)),  # by side: the mean number of matches
        ("floor", "f8", (2,)),  # by side: the least size that is foreseen for PPS
        ("planned", "f8"),  # when the plan was made
        ("brake", "f8"),  # factor of all probabilities, below 1 once more came than planned for
        ("again", "f8", (2,)),  # by side: the arrivals at which to plan again
    ]
)

#: What has arrived, in `SamplerState.sums`; it fades as the counts of keys do.
SUMS = record_type(
    [
        ("arrived", "f8", (2,)),  # by side: number of rows
        ("sizes", "f8", (2,)),  # by side: sizes of the rows that are not larger than the budget
    ]
)

#: What was foreseen and seen since counters were last taken, in `SamplerState.flows`.
FLOWS = record_type(
    [
        ("foreseen", "f8"),  # results foreseen for all rows
        ("missed", "f8"),  # results foreseen for rows that are larger than the budget
        ("monitored", "f8"),  # results of monitored rows
        ("beyond", "f8"),  # those among them that UNIFORM would not have foreseen
        ("variance", "f8"),  # the variance that the model foresees for a count by the sample
    ]
)

#: Sums over monitors whose window has ended, by side, in `SamplerState.tallies`.
TALLY = record_type(
    [
        ("by_step", "f8", (STEPS,)),  # results by step of age
        ("watched", "f8"),  # number of monitors
        # To judge the model by, fading faster:
        ("judged", "f8"),  # number of monitors
        ("found", "f8"),  # results
        ("over", "f8"),  # results beyond the foreseen most
        ("squares", "f8"),  # squares of the results
        ("sizes_foreseen", "f8"),  # foreseen sizes
        ("found_by_size", "f8"),  # results divided by the foreseen size
        ("squares_by_size", "f8"),  # squares of the results divided by the foreseen size
    ]
)

#: The number of the first hash that thinning uses.
THINNING = 0x2545F491

#: How a held row is sampled. With `most` above 0, pairs are drawn: `passed` matches have passed,
#: number `next` is chosen, and none after `most` is. With `most` 0 all matches are in the sample,
#: and `passed` counts how often the sample was thinned since.
INCLUSION = record_type([("random_word", "u8"), ("passed", "i8"), ("next", "i8"), ("most", "i8")])


def monitor_type(time: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a monitor, which counts the matches of a row whether it is held or not."""
    fields = [
        ("hash", "u8"),
        ("random_word", "u8"),
        ("time", time),
        ("most", "i8"),
        ("found", "i8"),
    ]
    return record_type([*fields, ("size", "f8"), ("next", "i4"), ("side", "i4")])


class SamplerState(NamedTuple):
    """State of a sampled join in addition to `Core`."""

    scalars: Array  # [1], see `SCALARS`
    plan: Array  # [1], see `PLAN`
    sums: Array  # [1], see `SUMS`
    flows: Array  # [1], see `FLOWS`
    inclusions: Array  # by slot
    touched: Array  # slots whose inclusion has changed since the mark
    is_touched: Array  # by slot: whether it is in `touched`
    monitors: Array
    ages: Array  # by monitor: its results by age
    heads: Array  # by hash: the first monitor of a chain
    tallies: Array  # by side, see `TALLY`


class Sample(NamedTuple):
    """Pairs, each with its inclusion probability and its sampling unit (pair or cluster)."""

    pairs: Output
    share: Array
    unit: Array


@inlined
def drawn(random_word: Any, number: Any) -> float:
    """Return random number `number` in (0, 1) of a random word."""
    return (float(splitmix64(random_word, number) >> np.uint64(12)) + 0.5) * 2.0**-52


@inlined
def _skip(u: float, p: float, left: int) -> int:
    """Return which of the next matches a coin of bias p chooses first; more than `left` if none."""
    if p >= 1.0:
        return 1
    x = math.log(u) / math.log1p(-p)
    return left + 1 if x >= left else 1 + int(x)


@inlined
def _foreseen(core: Core, rules: Rules, sampler: SamplerState, group: int) -> float:
    """Return how many partners a row will find, by the model."""
    if sampler.plan[0].by_age != 0.0:
        return float(sampler.plan[0].mean[(group & 1)])
    window = float(rules.window_left if group & 1 == 0 else rules.window_right)
    if rules.learn:
        return expected(core, rules, rate_of(core, group)) * window / span_of(core, rules)
    return float(core.groups[group ^ 1].rate * window)


# ---- monitors -----------------------------------------------------------------------------------


@inlined
def _is_watched(sampler: SamplerState, random_word: Any) -> bool:
    """Choose monitored rows by a hash that is independent of the one that samples rows."""
    thinned = sampler.scalars[0].thinned
    return bool(
        thinned == 0
        or splitmix64(random_word, 0x5DEECE66D) >> np.uint64(64 - min(thinned, 63)) == np.uint64(0)
    )


@inlined
def _sum_up(sampler: SamplerState, at: int) -> None:
    """Add a monitor whose window has ended to the tallies."""
    seen = sampler.monitors[at]
    tally = sampler.tallies[seen.side]
    for step in range(STEPS):
        tally.by_step[step] += sampler.ages[at, step]
    beyond = float(max(seen.found - seen.most, 0))
    tally.watched += 1.0
    tally.judged += 1.0
    tally.found += float(seen.found)
    tally.over += beyond
    square = float(seen.found) ** 2
    tally.squares += square
    tally.sizes_foreseen += seen.size
    tally.found_by_size += float(seen.found) / seen.size
    tally.squares_by_size += square / seen.size
    sampler.flows[0].monitored += float(seen.found)
    sampler.flows[0].beyond += beyond


@inlined
def _index(sampler: SamplerState, at: int) -> None:
    place = np.int64(sampler.monitors[at].hash & np.uint64(sampler.heads.shape[0] - 1))
    sampler.monitors[at].next = sampler.heads[place]
    sampler.heads[place] = at


@entry_point
def index_monitors(sampler: SamplerState) -> None:
    """Build the index of all monitors."""
    sampler.heads[:] = -1
    for i in range(sampler.scalars[0].monitors):
        _index(sampler, i)


@entry_point
def tidy(core: Core, rules: Rules, sampler: SamplerState) -> None:
    """Remove monitors whose window has ended or that the thinning drops, and index the rest."""
    sampler.heads[:] = -1
    n = 0
    for i in range(sampler.scalars[0].monitors):
        seen = sampler.monitors[i]
        if past(rules, seen.side, seen.time, core.clock[0]):
            _sum_up(sampler, i)
            continue
        if not _is_watched(sampler, seen.random_word):
            continue
        sampler.monitors[n] = seen
        for step in range(STEPS):
            sampler.ages[n, step] = sampler.ages[i, step]
        _index(sampler, n)
        n += 1
    sampler.scalars[0].monitors = n


@inlined
def _watch(
    core: Core,
    rules: Rules,
    sampler: SamplerState,
    batch: Batch,
    i: int,
    random_word: Any,
    most: int,
    foreseen: float,
) -> None:
    """Monitor a newcomer, unless the thinning drops it."""
    scalars = sampler.scalars[0]
    while scalars.monitors == sampler.monitors.shape[0]:
        tidy(core, rules, sampler)
        if 4 * scalars.monitors > 3 * sampler.monitors.shape[0]:
            scalars.thinned += 1
            tidy(core, rules, sampler)
    if not _is_watched(sampler, random_word):
        return
    n = scalars.monitors
    seen = sampler.monitors[n]
    seen.hash, seen.random_word, seen.time, seen.side = (
        batch.hash[i],
        random_word,
        batch.time[i],
        batch.side[i],
    )
    seen.most, seen.found = most, 0
    seen.size = max(foreseen, sampler.plan[0].floor[batch.side[i]], 1e-12)
    for step in range(STEPS):
        sampler.ages[n, step] = 0
    _index(sampler, n)
    scalars.monitors = n + 1


@inlined
def _meet(core: Core, rules: Rules, sampler: SamplerState, batch: Batch, i: int) -> None:
    """Count a result for each monitored row that newcomer i joins."""
    h, side, time = batch.hash[i], batch.side[i], batch.time[i]
    at = sampler.heads[np.int64(np.uint64(h) & np.uint64(sampler.heads.shape[0] - 1))]
    while at >= 0:
        seen = sampler.monitors[at]
        if seen.hash == h and seen.side != side:
            left, right = (time, seen.time) if side == 0 else (seen.time, time)
            if joins(rules, left, right):
                age = float(core.clock[0] - seen.time)
                sampler.ages[at, int(step_of(rules, seen.side, seen.time, age, STEPS))] += 1
                seen.found += 1
        at = seen.next


# ---- rows ---------------------------------------------------------------------------------------


@inlined
def _decide(sampler: SamplerState, slot: int, p: float) -> bool:
    """Find the next match to sample; return False if none of those foreseen is (figure 4)."""
    ticket = sampler.inclusions[slot]
    left = ticket.most - ticket.passed
    ticket.next = ticket.passed + _skip(drawn(ticket.random_word, ticket.passed), p, left)
    return bool(ticket.next <= ticket.most)


@inlined
def _touch(core: Core, sampler: SamplerState, slot: int) -> None:
    """Note that the inclusion of a logged row has changed."""
    if core.slots[slot].seq < core.scalars[0].mark and not sampler.is_touched[slot]:
        sampler.is_touched[slot] = True
        sampler.touched[sampler.scalars[0].touched] = slot
        sampler.scalars[0].touched += 1


@inlined
def _fate(ticket: Any) -> Any:
    """Return the random word by which a held row stays in a thinning, a new one each time."""
    times = ticket.passed if ticket.most == 0 else 0
    return splitmix64(ticket.random_word, THINNING + times)


@entry_point
def thresholds(core: Core, sampler: SamplerState, slots: Array, found: Array) -> None:
    """Compute for held rows the share up to which each stays when the sample is thinned to it.

    A cluster stays if its new random number is below the share. Where pairs are drawn, the next
    chosen match stays chosen if the number is below the share. If not, coins of a lower bias are
    flipped for the matches after it.
    """
    for i in range(slots.shape[0]):
        ticket = sampler.inclusions[slots[i]]
        random_word = _fate(ticket)
        found[i] = drawn(random_word, 0)
        if ticket.most > ticket.next:
            none = drawn(random_word, 1) ** (1.0 / float(ticket.most - ticket.next))
            found[i] = min(found[i], (1.0 - none) / core.slots[slots[i]].rank)


@entry_point
def thin(
    core: Core,
    rules: Rules,
    sampler: SamplerState,
    out: Output,
    slots: Array,
    stays_above: Array,
    share: float,
) -> None:
    """Keep a share of the sample, and multiply the inclusion probability of what is kept by it.

    A cluster keeps its number: its rows from before and after belong together.
    """
    for i in range(slots.shape[0]):
        slot = slots[i]
        if stays_above[i] >= share:
            evict(core, rules, out, slot)
            continue
        held, ticket = core.slots[slot], sampler.inclusions[slot]
        random_word = _fate(ticket)
        held.rank *= share
        if ticket.most == 0:
            ticket.passed += 1
        else:
            if drawn(random_word, 0) >= share:
                ticket.next += _skip(drawn(random_word, 1), held.rank, ticket.most - ticket.next)
            ticket.random_word = splitmix64(random_word, 2)
        _touch(core, sampler, slot)


@inlined
def _probe(
    core: Core, rules: Rules, sampler: SamplerState, batch: Batch, out: Sample, i: int, n: int
) -> int:
    """Write the sampled pairs of newcomer i with held rows; return the new length of `out`."""
    scalars, pairs = core.scalars[0], out.pairs
    time, row, side = batch.time[i], batch.row[i], batch.side[i]
    slot = core.groups[2 * batch.entry[i] + 1 - side].head
    while slot >= 0:
        held = core.slots[slot]
        after = held.next
        left, right = (time, held.time) if side == 0 else (held.time, time)
        if joins(rules, left, right):
            ticket = sampler.inclusions[slot]
            chosen, unit = True, ticket.random_word
            if ticket.most > 0:
                ticket.passed += 1
                chosen = ticket.passed == ticket.next
                unit = splitmix64(ticket.random_word, -ticket.passed)
                _touch(core, sampler, slot)
            if chosen:
                pairs.left[n], pairs.right[n] = (row, held.row) if side == 0 else (held.row, row)
                out.share[n], out.unit[n] = held.rank, unit
                n += 1
                if ticket.most > 0 and not _decide(sampler, slot, held.rank):
                    drop(core, rules, slot)
                    scalars.expired += 1
        slot = after
    return n


@inlined
def _admit(
    core: Core,
    rules: Rules,
    sampler: SamplerState,
    batch: Batch,
    out: Sample,
    i: int,
    random_word: Any,
) -> bool:
    """Sample newcomer i, and hold it if it is chosen; return True if that exceeds the budget.

    The caller then thins all held rows at random. If the newcomer always left, the sample would
    lack rows of busy times, and large rows.
    """
    scalars, plan = core.scalars[0], sampler.plan[0]
    side = batch.side[i]
    seq = scalars.seq
    scalars.seq = seq + 1
    time, size = batch.time[i], batch.size[i]
    sampler.sums[0].arrived[side] += 1.0
    could_fit = size <= core.pools[0].budget
    if could_fit:
        sampler.sums[0].sizes[side] += float(size)
    if expired(core, rules, side, time):
        return False
    group = 2 * batch.entry[i] + side
    foreseen = _foreseen(core, rules, sampler, group)
    sampler.flows[0].foreseen += foreseen
    most = int(min(math.ceil(foreseen + plan.reach * math.sqrt(foreseen)), 2.0**40))
    _watch(core, rules, sampler, batch, i, random_word, most, foreseen)
    p = plan.share
    if plan.method == PPS:
        all_fit = math.isinf(plan.constant)
        p = 1.0 if all_fit else min(plan.constant * max(foreseen, plan.floor[side]), 1.0)
    p *= plan.brake
    while size > core.pools[0].budget - core.pools[0].used:
        slot = overdue(core, rules, 0)
        if slot < 0:
            break
        drop(core, rules, slot)
        scalars.expired += 1
    free = core.pools[0].budget - core.pools[0].used
    fits = size <= free
    if not could_fit:
        sampler.flows[0].missed += foreseen
    elif fits and float(free) < plan.reserve:
        p *= float(free) / plan.reserve
    if could_fit and foreseen > 0.0:
        alike = 0.0 if plan.method == UNIFORM else foreseen
        sampler.flows[0].variance += (1.0 / p - 1.0) * foreseen * (1.0 + alike)
    u = drawn(random_word, 0)
    is_kept = u < p
    if plan.method == UNIFORM:
        is_kept = _skip(u, p, most) <= most
    if not is_kept:
        return False
    if not could_fit:
        scalars.rejected += 1
        shed(core, out.pairs, batch.row[i], side, seq, REJECTED)
        return False
    scalars.free -= 1
    slot = core.free[scalars.free]
    held, ticket = core.slots[slot], sampler.inclusions[slot]
    held.time, held.seq, held.row, held.size = time, seq, batch.row[i], size
    held.group, held.rank, held.gain, held.last = group, p, 0.0, core.clock[0]
    ticket.random_word, ticket.passed, ticket.next, ticket.most = random_word, 0, 0, 0
    if plan.method == UNIFORM:
        ticket.most = most
        ticket.next = _skip(u, p, most)
    sampler.is_touched[slot] = False
    link(core, rules, slot, 0)
    scalars.admitted += 1
    core.fresh[scalars.fresh] = slot
    scalars.fresh += 1
    schedule(core, rules, side, slot)
    return not fits


@inlined
def _pass_time(core: Core, rules: Rules, sampler: SamplerState) -> None:
    """Count the time over which arrivals are counted; both fade with every half-life."""
    now, before = float(core.clock[0]), core.model[0].last
    if sampler.scalars[0].seen != 0 and now > before:
        if rules.halflife > 0:
            halved = int(now // float(rules.halflife)) - int(before // float(rules.halflife))
            if halved > 0:
                factor = math.ldexp(1.0, -min(halved, 2000))
                core.model[0].elapsed *= factor
                for side in range(2):
                    sampler.sums[0].arrived[side] *= factor
                    sampler.sums[0].sizes[side] *= factor
        core.model[0].elapsed += now - before
    if sampler.scalars[0].seen == 0 or now > before:
        sampler.scalars[0].seen = 1
        core.model[0].last = now


@inlined
def _is_due(core: Core, sampler: SamplerState) -> bool:
    """Return True if a new plan is due: after many arrivals, or after one side's have doubled.

    A stream that begins long after the other, or comes back, is then planned with soon.
    """
    for side in range(2):
        if sampler.sums[0].arrived[side] >= sampler.plan[0].again[side]:
            return True
    return bool(core.scalars[0].seq >= sampler.scalars[0].replan_at)


# Stages of a tick.
BEGIN, COUNT, TAKE = 0, 1, 2


@entry_point
def run(
    core: Core,
    rules: Rules,
    sampler: SamplerState,
    batch: Batch,
    random_word: Array,
    out: Sample,
    n: int,
    total: int,
) -> tuple[int, int]:
    """Take the batch from the cursor to `total`; return the number of pairs and why it stopped.

    `out` has `n` pairs already. All ticks before `total` are complete.
    """
    scalars = core.scalars[0]
    room = out.share.shape[0]
    while True:
        if scalars.stage == BEGIN:
            if not next_tick(core, rules, batch, total):
                return n, DONE
            weigh(core, rules)
            _pass_time(core, rules, sampler)
            scalars.stage = COUNT
            if _is_due(core, sampler):
                return n, REPLAN
        if scalars.stage == COUNT:
            if rules.learn:
                observe(core, rules, batch, scalars.tick_from, scalars.tick_to)
            scalars.stage = TAKE
        for i in range(scalars.at, scalars.tick_to):
            scalars.at = i
            most = np.int64(core.groups[2 * batch.entry[i] + 1 - batch.side[i]].count)
            if n + most > room:
                return n, OUTPUT_FULL if n > 0 else PROBE_TOO_LARGE
            n = _probe(core, rules, sampler, batch, out, i, n)
            _meet(core, rules, sampler, batch, i)
            if _admit(core, rules, sampler, batch, out, i, random_word[i]):
                scalars.at = i + 1
                return n, OVERFULL
        scalars.at = scalars.tick_to
        scalars.stage = BEGIN
        if rules.learn and scalars.stat_only > rules.cap:
            return n, TOO_MANY_KEYS
