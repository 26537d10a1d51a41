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
from tidegate.kernel.layout import (
    ADMITTED,
    AT,
    BUDGET,
    DONE,
    EXPIRED,
    FREE,
    FRESH,
    MARK,
    OUTPUT_FULL,
    PROBE_TOO_LARGE,
    REJECTED,
    SEQ,
    STAGE,
    STAT_ONLY,
    TICK_FROM,
    TICK_TO,
    TOO_MANY_KEYS,
    USED,
    Batch,
    Core,
    Output,
    Rules,
)
from tidegate.kernel.records import record_type
from tidegate.kernel.windows import expired, joins, past, step_of
from tidegate.learning.rates import ELAPSED, LAST, expected, rate_of, span_of, weigh

#: Reasons to stop besides those of `layout`: a new plan is due; or the sample must be thinned, as
#: one more row is held than fits.
REPLAN, OVERFULL = 4, 5

#: What is sampled: pairs, or clusters with one probability, or clusters by their size.
UNIFORM, CLUSTER, PPS = 0, 1, 2

# Places in `SamplerState.plan`.
METHOD, SHARE, CONSTANT, REACH, RESERVE, BY_AGE = 0, 1, 2, 3, 4, 5
MEAN, FLOOR = 6, 8  # by side
PLANNED = 10  # when the plan was made
BRAKE = 11  # factor of all probabilities, below 1 once more came than was planned for
AGAIN = 12  # by side: the arrivals at which to plan again
PLAN = 14

# Places in `SamplerState.sums`, by side, fading as counts of keys do: arrivals, and the sizes of
# those that are not larger than the budget.
ARRIVED, SIZES = 0, 2
SUMS = 4

# Places in `SamplerState.ints`: the sequence number at which to plan, how many inclusions changed,
# how many monitors there are, how far they are thinned, whether a tick has come.
REPLAN_AT, TOUCHED, MONITORS, THINNED, SEEN = 0, 1, 2, 3, 4
OWN_INTS = 5

# Places in `SamplerState.flows`: results foreseen for all rows, and for rows larger than the
# budget; results of monitored rows, and those among them that UNIFORM would not have foreseen; the
# variance that the model foresees for a count by the sample.
FORESEEN, MISSED, MONITORED, BEYOND, VARIANCE = 0, 1, 2, 3, 4
FLOWS = 5

#: Number of steps of age for monitors. Places in a tally of monitors whose window has ended:
#: results by step, and the number of monitors. The rest judges the model: the number of monitors,
#: their results, results beyond the foreseen most, squares of the results, foreseen sizes, and the
#: results and their squares divided by these.
STEPS = 32
WATCHED, JUDGED, FOUND, OVER = STEPS, STEPS + 1, STEPS + 2, STEPS + 3
SQUARES, SIZES_FORESEEN, FOUND_BY_SIZE, SQUARES_BY_SIZE = range(STEPS + 4, STEPS + 8)
TALLIES = STEPS + 8

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

    ints: Array
    plan: Array
    sums: Array
    flows: Array
    inclusions: Array  # by slot
    touched: Array  # slots whose inclusion has changed since the mark
    is_touched: Array  # by slot: whether it is in `touched`
    monitors: Array
    ages: Array  # by monitor: its results by age
    heads: Array  # by hash: the first monitor of a chain
    tallies: Array  # by side


class Sample(NamedTuple):
    """Pairs, each with its inclusion probability and its sampling unit (pair or cluster)."""

    pairs: Output
    share: Array
    unit: Array


@inlined
def mixed(random_word: Any, number: Any) -> Any:
    """Return hash `number` of a random word (SplitMix64)."""
    z = np.uint64(random_word) + np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def drawn(random_word: Any, number: Any) -> float:
    """Return random number `number` in (0, 1) of a random word."""
    return (float(mixed(random_word, number) >> np.uint64(12)) + 0.5) * 2.0**-52


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
    if sampler.plan[BY_AGE] != 0.0:
        return float(sampler.plan[MEAN + (group & 1)])
    window = float(rules.window_left if group & 1 == 0 else rules.window_right)
    if rules.learn:
        return expected(core, rules, rate_of(core, group)) * window / span_of(core, rules)
    return float(core.groups[group ^ 1].rate * window)


# ---- monitors -----------------------------------------------------------------------------------


@inlined
def _is_watched(sampler: SamplerState, random_word: Any) -> bool:
    """Choose monitored rows by a hash that is independent of the one that samples rows."""
    thinned = sampler.ints[THINNED]
    return bool(
        thinned == 0
        or mixed(random_word, 0x5DEECE66D) >> np.uint64(64 - min(thinned, 63)) == np.uint64(0)
    )


@inlined
def _sum_up(sampler: SamplerState, at: int) -> None:
    """Add a monitor whose window has ended to the tallies."""
    seen = sampler.monitors[at]
    tally = sampler.tallies[seen.side]
    for step in range(STEPS):
        tally[step] += sampler.ages[at, step]
    beyond = float(max(seen.found - seen.most, 0))
    tally[WATCHED] += 1.0
    tally[JUDGED] += 1.0
    tally[FOUND] += float(seen.found)
    tally[OVER] += beyond
    square = float(seen.found) ** 2
    tally[SQUARES] += square
    tally[SIZES_FORESEEN] += seen.size
    tally[FOUND_BY_SIZE] += float(seen.found) / seen.size
    tally[SQUARES_BY_SIZE] += square / seen.size
    sampler.flows[MONITORED] += float(seen.found)
    sampler.flows[BEYOND] += beyond


@inlined
def _index(sampler: SamplerState, at: int) -> None:
    place = np.int64(sampler.monitors[at].hash & np.uint64(sampler.heads.shape[0] - 1))
    sampler.monitors[at].next = sampler.heads[place]
    sampler.heads[place] = at


@entry_point
def index_monitors(sampler: SamplerState) -> None:
    """Build the index of all monitors."""
    sampler.heads[:] = -1
    for i in range(sampler.ints[MONITORS]):
        _index(sampler, i)


@entry_point
def tidy(core: Core, rules: Rules, sampler: SamplerState) -> None:
    """Remove monitors whose window has ended or that the thinning drops, and index the rest."""
    sampler.heads[:] = -1
    n = 0
    for i in range(sampler.ints[MONITORS]):
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
    sampler.ints[MONITORS] = n


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
    ints = sampler.ints
    while ints[MONITORS] == sampler.monitors.shape[0]:
        tidy(core, rules, sampler)
        if 4 * ints[MONITORS] > 3 * sampler.monitors.shape[0]:
            ints[THINNED] += 1
            tidy(core, rules, sampler)
    if not _is_watched(sampler, random_word):
        return
    n = ints[MONITORS]
    seen = sampler.monitors[n]
    seen.hash, seen.random_word, seen.time, seen.side = (
        batch.hash[i],
        random_word,
        batch.time[i],
        batch.side[i],
    )
    seen.most, seen.found = most, 0
    seen.size = max(foreseen, sampler.plan[FLOOR + batch.side[i]], 1e-12)
    for step in range(STEPS):
        sampler.ages[n, step] = 0
    _index(sampler, n)
    ints[MONITORS] = n + 1


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
    if core.slots[slot].seq < core.ints[MARK] and not sampler.is_touched[slot]:
        sampler.is_touched[slot] = True
        sampler.touched[sampler.ints[TOUCHED]] = slot
        sampler.ints[TOUCHED] += 1


@inlined
def _fate(ticket: Any) -> Any:
    """Return the random word by which a held row stays in a thinning, a new one each time."""
    times = ticket.passed if ticket.most == 0 else 0
    return mixed(ticket.random_word, THINNING + times)


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
            ticket.random_word = mixed(random_word, 2)
        _touch(core, sampler, slot)


@inlined
def _probe(
    core: Core, rules: Rules, sampler: SamplerState, batch: Batch, out: Sample, i: int, n: int
) -> int:
    """Write the sampled pairs of newcomer i with held rows; return the new length of `out`."""
    ints, pairs = core.ints, out.pairs
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
                unit = mixed(ticket.random_word, -ticket.passed)
                _touch(core, sampler, slot)
            if chosen:
                pairs.left[n], pairs.right[n] = (row, held.row) if side == 0 else (held.row, row)
                out.share[n], out.unit[n] = held.rank, unit
                n += 1
                if ticket.most > 0 and not _decide(sampler, slot, held.rank):
                    drop(core, rules, slot)
                    ints[EXPIRED] += 1
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
    ints, plan = core.ints, sampler.plan
    side = batch.side[i]
    seq = ints[SEQ]
    ints[SEQ] = seq + 1
    time, size = batch.time[i], batch.size[i]
    sampler.sums[ARRIVED + side] += 1.0
    could_fit = size <= ints[BUDGET]
    if could_fit:
        sampler.sums[SIZES + side] += float(size)
    if expired(core, rules, side, time):
        return False
    group = 2 * batch.entry[i] + side
    foreseen = _foreseen(core, rules, sampler, group)
    sampler.flows[FORESEEN] += foreseen
    most = int(min(math.ceil(foreseen + plan[REACH] * math.sqrt(foreseen)), 2.0**40))
    _watch(core, rules, sampler, batch, i, random_word, most, foreseen)
    p = plan[SHARE]
    if plan[METHOD] == PPS:
        all_fit = math.isinf(plan[CONSTANT])
        p = 1.0 if all_fit else min(plan[CONSTANT] * max(foreseen, plan[FLOOR + side]), 1.0)
    p *= plan[BRAKE]
    while size > ints[BUDGET] - ints[USED]:
        slot = overdue(core, rules, 0)
        if slot < 0:
            break
        drop(core, rules, slot)
        ints[EXPIRED] += 1
    free = ints[BUDGET] - ints[USED]
    fits = size <= free
    if not could_fit:
        sampler.flows[MISSED] += foreseen
    elif fits and float(free) < plan[RESERVE]:
        p *= float(free) / plan[RESERVE]
    if could_fit and foreseen > 0.0:
        alike = 0.0 if plan[METHOD] == UNIFORM else foreseen
        sampler.flows[VARIANCE] += (1.0 / p - 1.0) * foreseen * (1.0 + alike)
    u = drawn(random_word, 0)
    is_kept = u < p
    if plan[METHOD] == UNIFORM:
        is_kept = _skip(u, p, most) <= most
    if not is_kept:
        return False
    if not could_fit:
        ints[REJECTED] += 1
        shed(core, out.pairs, batch.row[i], side, False)
        return False
    ints[FREE] -= 1
    slot = core.free[ints[FREE]]
    held, ticket = core.slots[slot], sampler.inclusions[slot]
    held.time, held.seq, held.row, held.size = time, seq, batch.row[i], size
    held.group, held.rank, held.gain, held.last = group, p, 0.0, core.clock[0]
    ticket.random_word, ticket.passed, ticket.next, ticket.most = random_word, 0, 0, 0
    if plan[METHOD] == UNIFORM:
        ticket.most = most
        ticket.next = _skip(u, p, most)
    sampler.is_touched[slot] = False
    link(core, rules, slot, 0)
    ints[ADMITTED] += 1
    core.fresh[ints[FRESH]] = slot
    ints[FRESH] += 1
    schedule(core, rules, side, slot)
    return not fits


@inlined
def _pass_time(core: Core, rules: Rules, sampler: SamplerState) -> None:
    """Count the time over which arrivals are counted; both fade with every half-life."""
    now, before = float(core.clock[0]), core.model[LAST]
    if sampler.ints[SEEN] != 0 and now > before:
        if rules.halflife > 0:
            halved = int(now // float(rules.halflife)) - int(before // float(rules.halflife))
            if halved > 0:
                factor = math.ldexp(1.0, -min(halved, 2000))
                core.model[ELAPSED] *= factor
                for at in range(sampler.sums.shape[0]):
                    sampler.sums[at] *= factor
        core.model[ELAPSED] += now - before
    if sampler.ints[SEEN] == 0 or now > before:
        sampler.ints[SEEN] = 1
        core.model[LAST] = now


@inlined
def _is_due(core: Core, sampler: SamplerState) -> bool:
    """Return True if a new plan is due: after many arrivals, or after one side's have doubled.

    A stream that begins long after the other, or comes back, is then planned with soon.
    """
    for side in range(2):
        if sampler.sums[ARRIVED + side] >= sampler.plan[AGAIN + side]:
            return True
    return bool(core.ints[SEQ] >= sampler.ints[REPLAN_AT])


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
    ints = core.ints
    room = out.share.shape[0]
    while True:
        if ints[STAGE] == BEGIN:
            if not next_tick(core, rules, batch, total):
                return n, DONE
            weigh(core, rules)
            _pass_time(core, rules, sampler)
            ints[STAGE] = COUNT
            if _is_due(core, sampler):
                return n, REPLAN
        if ints[STAGE] == COUNT:
            if rules.learn:
                observe(core, rules, batch, ints[TICK_FROM], ints[TICK_TO])
            ints[STAGE] = TAKE
        for i in range(ints[AT], ints[TICK_TO]):
            ints[AT] = i
            most = np.int64(core.groups[2 * batch.entry[i] + 1 - batch.side[i]].count)
            if n + most > room:
                return n, OUTPUT_FULL if n > 0 else PROBE_TOO_LARGE
            n = _probe(core, rules, sampler, batch, out, i, n)
            _meet(core, rules, sampler, batch, i)
            if _admit(core, rules, sampler, batch, out, i, random_word[i]):
                ints[AT] = i + 1
                return n, OVERFULL
        ints[AT] = ints[TICK_TO]
        ints[STAGE] = BEGIN
        if rules.learn and ints[STAT_ONLY] > rules.cap:
            return n, TOO_MANY_KEYS
