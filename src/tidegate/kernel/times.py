"""Windows: which times join, what has left its window, how old a tuple is."""

from __future__ import annotations

from typing import Any

from tidegate.kernel.compiling import inlined
from tidegate.kernel.layout import Core, Rules


@inlined
def joins(rules: Rules, left: Any, right: Any) -> bool:
    """Whether a left and a right tuple of these times lie in each other's window."""
    return bool(
        (not rules.bounded_left or right < left + rules.window_left)
        and (not rules.bounded_right or right > left - rules.window_right)
    )


@inlined
def past(rules: Rules, side: int, time: Any, clock: Any) -> bool:
    """Whether a tuple of this side and time has left its window by a clock."""
    if side == 0:
        return bool(rules.bounded_left and clock >= time + rules.window_left + rules.lateness)
    return bool(rules.bounded_right and clock - rules.window_right - rules.lateness >= time)


@inlined
def expired(core: Core, rules: Rules, side: int, time: Any) -> bool:
    """Whether the other stream, if it is in order, has no more partners for a tuple."""
    return past(rules, side, time, core.heard[1 - side])


@inlined
def life_of(core: Core, rules: Rules, group: int, time: Any) -> float:
    """How long until a tuple leaves its window; 0 where it never does."""
    if group & 1 == 0:
        return float(time + rules.window_left - core.clock[0]) if rules.bounded_left else 0.0
    return float(time + rules.window_right - core.clock[0]) if rules.bounded_right else 0.0


@inlined
def step_of(rules: Rules, side: int, age: float, steps: int) -> float:
    """Where in the equal steps of its window a tuple's age is; in the first, if it has none."""
    if not (rules.bounded_left if side == 0 else rules.bounded_right):
        return 0.0
    window = float(rules.window_left if side == 0 else rules.window_right)
    return min(max(age * steps / window, 0.0), float(steps - 1))
