"""Windows: which times join, which rows have expired, how old a row is."""

from __future__ import annotations

from typing import Any

from tidegate.kernel.compiling import Array, inlined, inner
from tidegate.kernel.layout import Core, Rules


@inner
def _in_force(windows: Array, side: int, time: Any) -> Any:
    """Return the window that a schedule has at a time; its first step also holds before it."""
    low, high = 0, windows.shape[0]
    while high - low > 1:
        middle = (low + high) >> 1
        if windows[middle].start <= time:
            low = middle
        else:
            high = middle
    return windows[low].window[side]


@inlined
def window_of(rules: Rules, side: int, time: Any) -> Any:
    """Return the window of a row, which is the one in force at its own time; 0 if it never ends."""
    if rules.windows.shape[0] > 0:
        return _in_force(rules.windows, side, time)
    return rules.window_left if side == 0 else rules.window_right


@inlined
def end_of(rules: Rules, side: int, time: Any) -> Any:
    """Return a number that orders the rows of a side by expiry: the time, unless windows change."""
    if rules.windows.shape[0] > 0:
        return time + _in_force(rules.windows, side, time)
    return time


@inlined
def joins(rules: Rules, left: Any, right: Any) -> bool:
    """Return True if a left and a right row of these times lie in each other's window."""
    own, other = window_of(rules, 0, left), window_of(rules, 1, right)
    return bool(
        (own == 0 or right < left + own or (rules.closed and right == left + own))
        and (other == 0 or right > left - other or (rules.closed and right == left - other))
    )


@inlined
def past(rules: Rules, side: int, time: Any, clock: Any) -> bool:
    """Return True if a row of this side and time has left its window by a clock."""
    window = window_of(rules, side, time)
    if window == 0:
        return False
    if side == 0:
        end = time + window + rules.lateness
        return bool(clock > end or (clock == end and not rules.closed))
    start = clock - window - rules.lateness
    return bool(start > time or (start == time and not rules.closed))


@inlined
def is_late(rules: Rules, side: int, time: Any, clock: Any) -> bool:
    """Return True if a row of this side and time may have missed partners that expired.

    `clock` is that of the row's own stream, by which the rows of the other side expire.
    """
    # A row of time u on the other side, with the window W(u), joins one of time t only if
    # t < u + W(u). It has expired if u + W(u) + lateness <= clock. Both can be true only if
    # t + lateness < clock. Where windows do not change, that is also enough: the first u after
    # t - W is such a time. (Closed windows swap < and <=, with the same result.)
    if not time + rules.lateness < clock:
        return False
    if rules.windows.shape[0] > 0:
        return _may_miss(rules, side, time, clock)
    return bool((rules.window_right if side == 0 else rules.window_left) != 0)


@inner
def _may_miss(rules: Rules, side: int, time: Any, clock: Any) -> bool:
    """Return True if a partner of a row can have expired, where windows change.

    The other side's first time after t - W in each step of the schedule, where W is the window of
    that step, is the one that expires first among those that join.
    """
    steps = rules.windows.shape[0]
    for i in range(steps):
        window = rules.windows[i].window[1 - side]
        if window == 0:
            continue
        start, reach = rules.windows[i].start, time - window
        if i > 0 and start > reach:
            left, right = (time, start) if side == 0 else (start, time)
            if joins(rules, left, right) and past(rules, 1 - side, start, clock):
                return True
        elif i + 1 == steps or reach + rules.resolution < rules.windows[i + 1].start:
            return True
    return False


@inlined
def expired(core: Core, rules: Rules, side: int, time: Any) -> bool:
    """Return True if the other stream, if it is in order, has no more partners for a row."""
    return past(rules, side, time, core.stream_clock[1 - side])


@inlined
def life_of(rules: Rules, now: Any, group: int, time: Any) -> float:
    """Return the time until a row leaves its window; 0 if it never does."""
    window = window_of(rules, group & 1, time)
    return float(time + window - now) if window != 0 else 0.0


@inlined
def step_of(rules: Rules, side: int, time: Any, age: float, steps: int) -> float:
    """Return the equal step of its window that a row's age is in; 0 if its window never ends."""
    window = window_of(rules, side, time)
    if window == 0:
        return 0.0
    return min(max(age * steps / float(window), 0.0), float(steps - 1))
