"""Turn streams into chains: group interchangeable rows, and find when each group earns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.joins.window.spec import COMBINES
from tidegate.optimal import chains as kernel
from tidegate.optimal.chains import Chains
from tidegate.optimal.sides import Sides, Whole
from tidegate.settings.values import quoted

#: Importance is rounded to integers; the sum over all results stays below this.
_LARGEST = 2**58
#: If the importance of all results is below this, it cannot be scaled to such integers.
_SMALLEST = 2.0**-960


@dataclass(frozen=True)
class Grouped:
    """One side's rows as chains. `rows` says which row each member is."""

    rows: Whole
    members: Whole
    expire: Whole
    gains: Whole
    at: Whole
    worth: NDArray[np.float64]


@dataclass(frozen=True)
class Pool:
    """Chains that share one memory.

    Attributes
    ----------
    chains
        The chains.
    side, rows
        The side of each member, and its row there.
    unit
        The integer that stands for an importance of one.
    """

    chains: Chains
    side: Whole
    rows: Whole
    unit: float


def pools(sides: Sides, memory: Sequence[Whole], late: int) -> list[Pool]:
    """Return the chains of each memory: one for both sides, or one per side."""
    by_pair = sides.where is not None or sides.value is not None
    grouped = [(_by_row if by_pair else _by_group)(sides, side, late) for side in range(2)]
    unit = unit_of(
        np.concatenate([g.worth for g in grouped]),
        max(int(np.diff(g.members).max(initial=1)) for g in grouped),
    )
    shares = [[0, 1]] if len(memory) == 1 else [[0], [1]]
    return [
        Pool(
            chains=_merged(sides, [grouped[s] for s in mine], mine, places, late, unit),
            side=np.concatenate([np.full(len(grouped[s].rows), s) for s in mine]),
            rows=np.concatenate([grouped[s].rows for s in mine]),
            unit=unit,
        )
        for mine, places in zip(shares, memory, strict=True)
    ]


def _merged(
    sides: Sides, grouped: list[Grouped], mine: list[int], places: Whole, late: int, unit: float
) -> Chains:
    def offsets(parts: list[Whole]) -> Whole:
        sizes: Whole = np.concatenate([np.diff(part) for part in parts])
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    worth = np.concatenate([g.worth for g in grouped])
    return Chains(
        members=offsets([g.members for g in grouped]),
        arrive=np.concatenate(
            [sides.streams[s].tick[g.rows] for s, g in zip(mine, grouped, strict=True)]
        ),
        expire=np.concatenate([g.expire for g in grouped]),
        gains=offsets([g.gains for g in grouped]),
        at=np.concatenate([g.at for g in grouped]),
        worth=np.rint(worth * unit).astype(np.int64),
        memory=places,
        late=late,
    )


def unit_of(worth: NDArray[np.float64], most: int) -> float:
    """Return the integer that stands for one: a power of ten that is exact, or a large number.

    At most `most` members have the same gain.
    """
    with np.errstate(over="ignore"):
        total = float(np.abs(worth).sum()) * most
    if not math.isfinite(total):
        raise TidegateError(
            f"the importance of all results together is too large for a number, with one of "
            f"{quoted(float(np.abs(worth).max()))}; divide the column by a constant, or "
            "the expression of value"
        )
    if total == 0.0:
        return 1.0
    if total < _SMALLEST:
        raise TidegateError(
            f"the importance of all results together is too small for a number, with none above "
            f"{quoted(float(np.abs(worth).max()))}; multiply the column by a constant, or "
            "the expression of value"
        )
    for digits in range(7):
        if total * 10.0**digits >= _LARGEST:
            break
        finer = worth * 10.0**digits
        near = np.abs(finer - np.rint(finer)) <= 1e-9 * np.abs(finer)
        if near.all():
            return 10.0**digits
    return float(2.0 ** np.floor(np.log2(_LARGEST) - np.log2(total)))


def _by_group(sides: Sides, side: int, late: int) -> Grouped:
    """Make one chain per key and importance, as long as later rows do not expire earlier."""
    stream, other = sides.streams[side], sides.streams[1 - side]
    rows = np.arange(len(stream))
    weight = np.zeros(len(stream)) if stream.weight is None else stream.weight
    if stream.weight is not None:
        rows = np.lexsort((stream.tick, weight, stream.key))
    key, tick, weight = stream.key[rows], stream.tick[rows], weight[rows]
    none = np.zeros(len(rows), np.int64)
    # A window matters only up to the last partner: rows that reach it expire together.
    last = sides.find(1 - side, key, none + len(sides.ticks), "right") - 1
    last_tick = np.append(other.tick, -1)[last]
    meets = (last >= 0) & (np.append(other.key, -1)[last] == key)
    expire = np.where(meets, np.minimum(stream.expire[rows], last_tick + 1), 0)
    expire = np.maximum(expire, tick)
    new = np.ones(len(rows), np.bool_)
    new[1:] = (np.diff(key) != 0) | (np.diff(weight) != 0) | (np.diff(expire) < 0)
    if late:
        # A row that stays for a partner cannot make room for a newcomer of the same tick. So rows
        # are only interchangeable if they expire together, as those that reach the last partner do.
        low = sides.find(1 - side, key, tick, "left")
        high = sides.find(1 - side, key, tick, "right")
        apart = (high > low) | (expire == last_tick + 1)
        new[1:] |= apart[1:] & (np.diff(expire) > 0)
    first = np.flatnonzero(new)
    end = np.append(first, len(rows))[1:]
    start = np.maximum(tick[first] + 1, sides.counted)
    low = sides.find(1 - side, key[first], start, "left")
    high = np.maximum(sides.find(1 - side, key[first], expire[end - 1], "left"), low)
    counts = np.empty(len(first), np.int64)
    kernel.count_gains(low, high, other.tick, counts)
    at, worth = np.empty(counts.sum(), np.int64), np.empty(counts.sum())
    how = COMBINES.index(sides.spec.combine) if sides.weighted else -1
    partners = np.zeros(0) if other.weight is None else other.weight
    kernel.fill_gains(low, high, other.tick, weight[first], partners, how, at, worth)
    return Grouped(rows, np.append(first, len(rows)), expire, _offsets(counts), at, worth)


def _by_row(sides: Sides, side: int, late: int) -> Grouped:
    """Make one chain per row, over the partners that the predicate gives it.

    A row that stays for a partner joins all partners before it. So pairs of negative value cannot
    be left out, and a gain can be negative.
    """
    stream, other = sides.streams[side], sides.streams[1 - side]
    rows = np.arange(len(stream))
    ticks = len(sides.ticks) + 1
    places, worths = [np.empty(0, np.int64)], [np.empty(0)]
    for pair in sides.pairs(sides.later(side, rows, stream.expire - 1)):
        own, partner = pair[side], pair[1 - side]
        places.append(own * ticks + other.tick[partner])
        worths.append(sides.worth(*pair))
    place, where = np.unique(np.concatenate(places), return_inverse=True)
    worth = np.bincount(where, np.concatenate(worths), len(place)).astype(np.float64)
    counts: Whole = np.bincount(place // ticks, minlength=len(rows))
    members: Any = np.arange(len(rows) + 1)
    return Grouped(rows, members, stream.expire, _offsets(counts), place % ticks, worth)


def _offsets(counts: Whole) -> Whole:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
