"""``split="predicted"``: compute the left side's share of the memory from a policy's model."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.policies import Age, ByFrequency, Policy
from tidegate.pool.split import Earnings, best_split, by_age, by_frequency
from tidegate.settings.values import quoted


class Pace(NamedTuple):
    """The arrivals of each key per unit of time, on each stream."""

    left: NDArray[np.float64]
    right: NDArray[np.float64]


def check(policy: Policy, windows: tuple[float, float], memory: Any, in_bytes: bool) -> None:
    """Refuse a prediction that needs something unknown before the streams run."""
    if in_bytes:
        raise TidegateError(
            f'split="predicted" needs memory as a number of rows, not {quoted(memory)}: how '
            "large "
            'rows are is not known beforehand; use split="shared"'
        )
    if not np.isfinite(windows).all():
        raise TidegateError(
            'split="predicted" needs windows that end, and one is unbounded; give within a length, '
            'or use split="shared"'
        )
    if isinstance(policy, Age) and policy.curve is not None:
        if policy.rates is None:
            raise TidegateError(
                'split="predicted" needs to know how many rows arrive on each stream: give '
                "Age(curve, rates=(left's, right's)), or use split=\"shared\""
            )
    elif not isinstance(policy, ByFrequency) or policy.learned:
        raise TidegateError(
            'split="predicted" needs a model that is known beforehand: Age(curve, rates=...), or '
            'frequencies that are counted or given, such as Prob("whole"), not '
            f"{quoted(policy)}; use "
            'split="shared", which follows what is learned'
        )


def share(
    policy: Policy, windows: tuple[float, float], memory: int, pace: Pace | None = None
) -> float:
    """Return the left side's share of the memory. Windows are in units of time."""
    left, right = earnings(policy, windows, pace)
    # Add half a row, so that rounding down later gives the number itself.
    return (best_split(left, right, memory)[0] + 0.5) / memory


def earnings(
    policy: Policy, windows: tuple[float, float], pace: Pace | None
) -> tuple[Earnings, Earnings]:
    """Return what memory earns on either side, by the policy's model."""
    if isinstance(policy, Age):
        (left, right), rates = policy.both_curves, policy.both_rates
        return by_age(left, rates[0], windows[0]), by_age(right, rates[1], windows[1])
    assert pace is not None
    return (
        by_frequency(pace.left, pace.right, windows[0]),
        by_frequency(pace.right, pace.left, windows[1]),
    )
