"""Windows: which times join, what has left its window, how old a tuple is."""

from __future__ import annotations

from typing import Any

from tidegate.kernel.compiling import Array, inlined, inner
from tidegate.kernel.layout import Core, Rules


@inner
def _in_force(windows: Array, side: int, time: Any) -> Any:
    """What a schedule says of a time; its first step holds before, too."""
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
    """The window of a tuple, which is the one in force at its own time; 0 if it never ends."""
    if rules.windows.shape[0] > 0:
        return _in_force(rules.windows, side, time)
    return rules.window_left if side == 0 else rules.window_right


@inlined
def end_of(rules: Rules, side: int, time: Any) -> Any:
    """What says in which order tuples of a side expire: the time, unless windows change."""
    if rules.windows.shape[0] > 0:
        return time + _in_force(rules.windows, side, time)
    return time


@inlined
def joins(rules: Rules, left: Any, right: Any) -> bool:
    """Whether a left and a right tuple of these times lie in each other's window."""
    own, other = window_of(rules, 0, left), window_of(rules, 1, right)
    return bool((own == 0 or right < left + own) and (other == 0 or right > left - other))


@inlined
def past(rules: Rules, side: int, time: Any, clock: Any) -> bool:
    """Whether a tuple of this side and time has left its window by a clock."""
    window = window_of(rules, side, time)
    if side == 0:
        return bool(window != 0 and clock >= time + window + rules.lateness)
    return bool(window != 0 and clock - window - rules.lateness >= time)


@inlined
def expired(core: Core, rules: Rules, side: int, time: Any) -> bool:
    """Whether the other stream, if it is in order, has no more partners for a tuple."""
    return past(rules, side, time, core.stream_clock[1 - side])


@inlined
def life_of(core: Core, rules: Rules, group: int, time: Any) -> float:
    """How long until a tuple leaves its window; 0 where it never does."""
    window = window_of(rules, group & 1, time)
    return float(time + window - core.clock[0]) if window != 0 else 0.0


@inlined
def step_of(rules: Rules, side: int, time: Any, age: float, steps: int) -> float:
    """Where in the equal steps of its window a tuple's age is; in the first, if it has none."""
    window = window_of(rules, side, time)
    if window == 0:
        return 0.0
    return min(max(age * steps / float(window), 0.0), float(steps - 1))
