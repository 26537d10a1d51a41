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
        if windows[middle, 0] <= time:
            low = middle
        else:
            high = middle
    return windows[low, 1 + side]


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
    return bool((own == 0 or right < left + own) and (other == 0 or right > left - other))


@inlined
def past(rules: Rules, side: int, time: Any, clock: Any) -> bool:
    """Return True if a row of this side and time has left its window by a clock."""
    window = window_of(rules, side, time)
    if side == 0:
        return bool(window != 0 and clock >= time + window + rules.lateness)
    return bool(window != 0 and clock - window - rules.lateness >= time)


@inlined
def expired(core: Core, rules: Rules, side: int, time: Any) -> bool:
    """Return True if the other stream, if it is in order, has no more partners for a row."""
    return past(rules, side, time, core.stream_clock[1 - side])


@inlined
def life_of(core: Core, rules: Rules, group: int, time: Any) -> float:
    """Return the time until a row leaves its window; 0 if it never does."""
    window = window_of(rules, group & 1, time)
    return float(time + window - core.clock[0]) if window != 0 else 0.0


@inlined
def step_of(rules: Rules, side: int, time: Any, age: float, steps: int) -> float:
    """Return the equal step of its window that a row's age is in; 0 if its window never ends."""
    window = window_of(rules, side, time)
    if window == 0:
        return 0.0
    return min(max(age * steps / float(window), 0.0), float(steps - 1))
