"""Divide one memory between several joins: section 5 of paper 2 (Srivastava, Widom)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.pool.curves import Curve
from tidegate.settings.checks import one_of
from tidegate.settings.values import quoted, real

Objective = Literal["min", "sum"]
OBJECTIVES: tuple[Objective, ...] = ("min", "sum")

#: How often bisection halves the range of qualities.
_HALVINGS = 100
#: The range of weights that `_HALVINGS` halvings can resolve.
_WEIGHTS = (1e-6, 1e6)


def allocate(
    curves: Sequence[Curve], weights: Sequence[float], memory: float, objective: str = "min"
) -> list[float]:
    """Divide a memory between joins.

    With ``"min"``, maximise the smallest recall / weight (ALLOC, theorem 5.1); for samples,
    minimise the largest error * weight. With ``"sum"``, optimise the weighted sum of results per
    unit of time, or of errors. Memory that no join can use is added to all shares in proportion.
    """
    one_of(objective, OBJECTIVES, "objective")
    check(curves, weights, memory)
    shares = (
        _least(curves, weights, memory) if objective == "min" else _sum(curves, weights, memory)
    )
    rest, total = memory - sum(shares), sum(shares)
    if rest <= 0:
        return shares
    return [s + rest * (s / total if total > 0 else 1 / len(shares)) for s in shares]


def proportional(curves: Sequence[Curve], memory: float) -> list[float]:
    """Divide a memory in proportion to what each join needs (PROP, section 6.2.5)."""
    total = sum(curve.need for curve in curves)
    if total == 0:
        return equal(len(curves), memory)
    return [memory * curve.need / total for curve in curves]


def equal(joins: int, memory: float) -> list[float]:
    """Give every join the same share."""
    return [memory / joins] * joins


def in_whole(shares: Sequence[float], memory: int, least: Sequence[int]) -> list[int]:
    """Round shares to whole numbers that sum to `memory`, none below its `least`.

    Shares below their least are raised. The other joins pay for it, in proportion to what they have
    above their own least.
    """
    if sum(least) > memory:
        raise TidegateError(
            f"a memory of {memory:,} is less than the {sum(least):,} that {len(least)} need at the "
            "least"
        )
    spare, given = memory - sum(least), np.array(shares, np.float64)
    scale = memory / given.sum() if given.sum() > 1e-9 else 0.0
    above = np.maximum(given * scale - np.array(least), 0.0)
    if above.sum() <= 1e-9:
        above = np.ones(len(least))
    wanted = above * (spare / above.sum())
    whole = np.floor(wanted + 1e-9).astype(np.int64)
    order = np.argsort(whole - wanted, kind="stable")
    whole[order[: spare - int(whole.sum())]] += 1
    return [int(a) + int(b) for a, b in zip(least, whole, strict=True)]


def check(curves: Sequence[Curve], weights: Sequence[float], memory: float) -> None:
    """Refuse curves, weights or a memory that cannot be used for a division."""
    if not curves or len(curves) != len(weights):
        raise TidegateError(
            f"there must be a weight for each of one or more curves, not {len(weights)} for "
            f"{len(curves)}"
        )
    for weight in weights:
        check_weight(weight)
    if not memory > 0:
        raise TidegateError(f"memory must be above 0 to be divided, not {quoted(memory)}")
    if len({curve.error for curve in curves}) > 1:
        raise TidegateError(
            "recall and errors cannot be weighed against each other: divide one memory between "
            "joins, and another between samples"
        )


def check_weight(weight: object) -> float:
    """Return a weight as a number. Refuse anything else."""
    if not _WEIGHTS[0] <= real(weight) <= _WEIGHTS[1]:
        raise TidegateError(
            "a weight must be a number above 0, of a millionth to a million, where 1 is that of "
            f"any join, not {quoted(weight)}; a join that is worth nothing should not run, or "
            "needs no pool"
        )
    return real(weight)


def _least(curves: Sequence[Curve], weights: Sequence[float], memory: float) -> list[float]:
    """ALLOC: find the largest q with sum f_i(w_i q) <= M, by bisection.

    No join gets more than it can use. For errors, all joins get the same 1/q instead, so that a
    larger weight means a smaller error.
    """

    def shares(q: float) -> list[float]:
        found = []
        for curve, weight in zip(curves, weights, strict=True):
            if not curve.error:
                found.append(curve.memory_for(min(weight * q, curve.best)))
            elif weight * q * curve.best >= 1:
                found.append(curve.need)
            else:
                found.append(curve.memory_for(1 / (weight * q)) if q > 0 else 0.0)
        return found

    pairs = list(zip(curves, weights, strict=True))
    if curves[0].error:
        low, high = 0.0, max(1 / (w * max(c.best, 1e-9)) for c, w in pairs)
    else:
        low, high = 0.0, max(curve.best / weight for curve, weight in pairs)
    if sum(shares(high)) <= memory:
        return shares(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum(shares(middle)) <= memory:
            low = middle
        else:
            high = middle
    return shares(low)


def _sum(curves: Sequence[Curve], weights: Sequence[float], memory: float) -> list[float]:
    """Fill the pieces of all concave curves, the best rate first."""
    found: NDArray[np.float64] = np.array([float(curve.memory[0]) for curve in curves])
    left = memory - float(found.sum())
    if left < 0:
        return [float(each) for each in found * (memory / found.sum())]
    pieces = [
        (-rate * weight, at, rows)
        for at, (curve, weight) in enumerate(zip(curves, weights, strict=True))
        for rows, rate in zip(curve.hull().rows, curve.hull().rates, strict=True)
    ]
    for _, at, rows in sorted(pieces):
        taken = min(rows, left)
        found[at] += taken
        left -= taken
    return [float(each) for each in found]
