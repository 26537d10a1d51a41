"""The settings of a window join in the form that the compiled loop takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.joins.window.conditions import Condition
from tidegate.joins.window.spec import PARAMS, WindowJoin
from tidegate.kernel import layout
from tidegate.learning import scores
from tidegate.policies import ByFrequency
from tidegate.policies.own_score import compiled_score

#: Bytes that a held row takes besides its payload: its slot, its places in the queue of victims and
#: in the list of rows in order of expiry, and its share of the index of keys.
TUPLE_OVERHEAD = 384
#: Bytes that a counted key takes that holds no row.
KEY_OVERHEAD = 160
#: Bytes that a counted arrival takes with its key; and that a column of a sketch takes.
ARRIVAL_OVERHEAD, SKETCH_OVERHEAD = KEY_OVERHEAD + 32, 128
#: Bytes that it takes to learn what rows are worth: by age, or by key too; see
#: `Tables.leave_ghosts`.
LEARNED = {"ages": 64 * 1024, "rates": 384 * 1024}
#: The default number of columns of a sketch.
_SKETCH = 16_384
#: Rows up to which all moving ranks are computed at each choice.
EXACT_LIMIT = 256

_KINDS = {
    "row": layout.BY_TUPLE,
    "key": layout.BY_KEY,
    "life": layout.BY_SCORE,
    "score": layout.BY_SCORE,
}
#: How learned frequencies are counted, and the bytes that each count takes.
_COUNTINGS = {
    "learned": layout.FADING,
    "window": layout.IN_WINDOW,
    "sketch": layout.SKETCHED,
}
_OVERHEADS = {
    layout.FADING: KEY_OVERHEAD,
    layout.IN_WINDOW: ARRIVAL_OVERHEAD,
    layout.SKETCHED: SKETCH_OVERHEAD,
}
#: The program of a join without a condition.
_NO_PROGRAM, _NO_NUMBERS = np.empty((0, 2), np.int64), np.empty(0)
_COUNTS = {"nothing": 0, "arrivals": layout.ARRIVALS, "results": layout.RESULTS}
_SHED_WHEN = {
    "after-probe": layout.AFTER_PROBE,
    "before-probe": layout.BEFORE_PROBE,
    "before-arrival": layout.BEFORE_ARRIVAL,
}


def rules_of(
    spec: WindowJoin,
    shards: int,
    exact_limit: int,
    shard: int | None = None,
    condition: Condition | None = None,
) -> layout.Rules:
    """Return the settings in the form that the loop takes."""
    number = spec.unit.dtype.type
    policy = spec.policy
    learned = spec.memory is not None and spec.counting in (None, *_COUNTINGS)
    learn = _COUNTS[policy.counts] if learned else 0
    counting = layout.FADING
    if spec.counting is not None and learn:
        counting = _COUNTINGS[spec.counting]
    budgets = [share_of(step.value, spec, shards, shard) for step in spec.budget]
    least = min(budgets)
    most = max(share_of(step.value or 0, spec, shards, shard) for step in spec.budget)
    cap = columns = reserved = 0
    if learn:
        each = _OVERHEADS[counting]
        keys = least // (10 * each) if spec.in_bytes else max(most, 65_536)
        wanted = policy.keys if isinstance(policy, ByFrequency) else None
        cap = max(keys, 2) if wanted is None else wanted
        reserved = cap * each
        if counting == layout.SKETCHED:
            # A sketch counts all keys, so that there are never too many.
            cap, columns = 2**62, _columns(wanted, least if spec.in_bytes else None)
            reserved = columns * each
    if policy.learns is not None:
        reserved += min(LEARNED[policy.learns], least // 10)
    if spec.in_bytes:
        budgets = [max(memory - reserved, 2) for memory in budgets]
    kind = _KINDS[policy.ranks]
    formula = scores.LIFE if policy.ranks == "life" else policy.formula
    weighed = spec.left.importance is not None and isinstance(policy, ByFrequency)
    # Counts of a window fall as well as rise, which a queue of keys cannot detect.
    falls = counting == layout.IN_WINDOW and policy.ranks == "key"
    if (weighed or falls) and policy.ranks == "key":
        kind, formula = layout.BY_SCORE, scores.RATE
    return layout.Rules(
        kind=layout.NOTHING if spec.memory is None else kind,
        shed_when=_SHED_WHEN[spec.shed_when],
        pools=1 if spec.split is None or spec.memory is None else 2,
        budgets=np.array([pools_of(memory, spec.split) for memory in budgets], np.int64),
        changes=np.array([step.start for step in spec.budget[1:]], spec.unit.dtype),
        # To the loop, a window of 0 is unbounded; see `times.SHORTEST`.
        window_left=number(spec.left.window or 0),
        window_right=number(spec.right.window or 0),
        windows=_windows(spec),
        lateness=number(spec.lateness),
        learn=learn,
        formula=formula,
        params=(*spec.params, *[0.0] * (PARAMS - len(spec.params))),
        own_score=0 if policy.score is None else compiled_score(policy.name, policy.score),
        halflife=number(spec.halflife),
        cap=cap,
        floor_weight=policy.floor_weight,
        seq_weight=policy.order_weight,
        exact_limit=exact_limit,
        counting=counting,
        span=number(max(side.window or 0 for side in spec.sides)),
        columns=columns,
        checked=condition is not None,
        certain=condition is not None and condition.certain,
        program=_NO_PROGRAM if condition is None else condition.program.code,
        numbers=_NO_NUMBERS if condition is None else condition.program.numbers,
        closed=spec.closed,
        resolution=number(0 if spec.unit.kind == "real number" else 1),
    )


def _columns(wanted: int | None, size: int | None) -> int:
    """Return the number of columns of a sketch: a power of two, as many as are wanted or fit."""
    most = _SKETCH if size is None else max(size // (10 * SKETCH_OVERHEAD), 1)
    if wanted is not None:
        return 1 << (wanted - 1).bit_length()
    return min(_SKETCH, 1 << (most.bit_length() - 1))


def share_of(memory: int | None, spec: WindowJoin, shards: int, shard: int | None = None) -> int:
    """Return one shard's share of a budget; with shard numbers, all shares add up to the budget."""
    if memory is None:
        return 2**62
    share = memory // shards + (shard is not None and shard < memory % shards)
    return max(share, 1 if spec.split is None else 2)


def pools_of(memory: int, split: float | None) -> tuple[int, int]:
    """Return what each pool may hold; the same number twice if there is one pool."""
    if split is None:
        return memory, memory
    left = min(max(math.floor(memory * split), 1), memory - 1)
    return left, memory - left


def _windows(spec: WindowJoin) -> NDArray[Any]:
    """Return a table of window changes: since when, and both windows from then on, 0 if unbounded.

    The first row holds before all changes, whatever its time.
    """
    changes = [step.start for side in spec.sides for step in side.windows[1:]]
    starts = [min(changes), *sorted(set(changes))] if changes else []
    found = np.zeros(len(starts), layout.schedule_type(spec.unit.dtype))
    found["start"] = starts
    for at, side in enumerate(spec.sides):
        found["window"][:, at] = side.windows[0].value or 0
        for step in side.windows[1:]:
            later = 1 + np.flatnonzero(found["start"][1:] >= step.start)
            found["window"][later, at] = step.value or 0
    return found
