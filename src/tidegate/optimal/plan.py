"""Find the best use of a memory: given chains of rows, how long to keep each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.optimal import chains as kernel
from tidegate.optimal import flow
from tidegate.optimal.chains import Chains

Whole = NDArray[np.int64]

#: No sum of costs may exceed this.
_LARGEST = 2**60
#: How much finer prices are than gains, where the range of integers allows it. Finer prices start
#: nearer to the optimal ones, but fewer paths then have equal cost.
_FINEST = 8
#: Arcs have 32-bit numbers, two each.
_MOST_ARCS = 2**30
#: How often bisection halves the range of the first price.
_HALVINGS = 24


@dataclass(frozen=True)
class Plan:
    """A plan: the members that are kept, and until when.

    Attributes
    ----------
    until
        For each member, the last gain for which it is kept, or -1.
    value
        What the plan earns.
    bound
        An upper bound on what any plan earns.
    """

    until: Whole
    value: int
    bound: int


def best_plan(chains: Chains) -> Plan:
    """Return the plan that earns the most, by minimum-cost flow (Das et al., section 4.1).

    The paper's graph has a node for every row and every time at which it may be in memory. Here a
    group has a node for every time at which it earns. Its older members can be swapped for newer
    ones, so only the number of kept members matters.
    """
    until = np.full(len(chains.arrive), -1, np.int64)
    if len(chains.at) == 0:
        return Plan(until, 0, 0)
    chains = chains._replace(memory=np.minimum(chains.memory, _most_alive(chains)))
    most = int(np.abs(chains.worth).sum()) * int(np.diff(chains.members).max())
    finer = max(1, min(_FINEST, _LARGEST // max(most, 1)))
    fine = chains._replace(worth=chains.worth * finer)
    arcs, excess = _network(fine)
    arcs.price[: len(chains.memory) + 1] = -_even_prices(fine)
    kernel.price_gains(fine, arcs)
    flow.saturate(arcs, excess)
    _repair(arcs, excess)
    kernel.stays(chains, arcs.room, np.empty(len(until), np.int64), until)
    # Any prices give a valid bound.
    paid = arcs.price[0] - arcs.price[: len(chains.memory) + 1]
    return Plan(until, _earned(chains, until), upper_bound(fine, paid) // finer)


def _most_alive(chains: Chains) -> int:
    """Return the largest number of members with gains to come: more memory would stay empty."""
    some = np.diff(chains.gains) > 0
    last = np.where(some, np.append(chains.at, -1)[chains.gains[1:] - 1], -1)
    last = np.repeat(last, np.diff(chains.members))
    waiting = last > chains.arrive
    arrive = chains.arrive[waiting]
    gone = np.minimum(chains.expire, last + 1)[waiting] + 1  # memory is free a tick later
    ends = np.bincount(np.maximum(gone, arrive))
    change = np.bincount(arrive, minlength=len(ends)) - ends
    return int(np.cumsum(change).max(initial=0))


def _earned(chains: Chains, until: Whole) -> int:
    """Return what a plan earns."""
    total = np.concatenate([[0], np.cumsum(chains.worth)])
    kept = np.flatnonzero(until >= 0)
    return int((total[until[kept] + 1] - total[_first_gains(chains)[kept]]).sum())


def _first_gains(chains: Chains) -> Whole:
    """Return, for each member, the first gain of its group after its arrival."""
    group = np.repeat(np.arange(len(chains.members) - 1), np.diff(chains.members))
    place = np.repeat(np.arange(len(chains.gains) - 1), np.diff(chains.gains))
    ticks = len(chains.memory) + 1
    return np.searchsorted(place * ticks + chains.at, group * ticks + chains.arrive, "right")


def upper_bound(chains: Chains, paid: Whole) -> int:
    """Return a bound on what any plan earns, from a price of memory.

    `paid[i]` is the price of memory for one row from the start to tick i; it never falls. If
    memory had to be bought, every member would stay as long as it profits, whatever the others do.
    These profits plus the price of all memory are at least what any plan earns.
    """
    return _surplus(chains, paid)[0] + int(_places(chains) @ np.diff(paid))


def _surplus(chains: Chains, paid: Whole) -> tuple[int, Whole]:
    """Return the members' profits after paying, and until which gain each would stay, or -1."""
    stay = np.empty(len(chains.arrive), np.int64)
    queue = np.empty((int(np.diff(chains.gains).max(initial=0)) + 1, 2), np.int64)
    return int(kernel.surplus(chains, paid, stay, queue)), stay


def _places(chains: Chains) -> Whole:
    """Return the memory at each tick, limited to the number of members."""
    return np.minimum(chains.memory, len(chains.arrive))


def _even_prices(chains: Chains) -> Whole:
    """Return prices that grow evenly, at the rate at which the members that stay fill memory."""
    passed = np.arange(len(chains.memory) + 1)
    most = max(1.0, min(float(chains.worth.max()), _LARGEST / len(passed)))
    room = int(_places(chains).sum())
    low, high = -float(_HALVINGS), 0.0  # as powers of two, below the most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        _, stay = _surplus(chains, (passed * (most * 2.0**middle)).astype(np.int64))
        kept = np.flatnonzero(stay >= 0)
        load = int((chains.at[stay[kept]] + chains.late - chains.arrive[kept]).sum())
        low, high = (middle, high) if load > room else (low, middle)
    even: Whole = (passed * (most * 2.0**low)).astype(np.int64)
    return even


def _network(chains: Chains) -> tuple[flow.Network, NDArray[Any]]:
    """Return the network, and the excess of each node."""
    arcs = 2 * len(chains.at) + len(chains.arrive) + len(chains.memory)
    nodes = len(chains.memory) + 1 + len(chains.at)
    if arcs >= _MOST_ARCS:
        raise TidegateError(
            f"rows find each other {len(chains.at):,} times, too often for a plan by row; take "
            "a part of the streams, a shorter window, or no importance and no where"
        )
    laid = flow.Network(
        tail=np.empty(arcs, np.int32),
        head=np.empty(arcs, np.int32),
        cost=np.empty(arcs, np.int64),
        room=np.zeros(2 * arcs, np.int32),
        price=np.zeros(nodes, np.int64),
    )
    excess = np.zeros(nodes, np.int64)
    kernel.lay_arcs(chains, laid, excess)
    return laid, excess


def _repair(network: flow.Network, excess: NDArray[Any]) -> None:
    """Balance the flow, and keep it optimal for its prices."""
    nodes, arcs = len(network.price), len(network.tail)
    start, half = np.zeros(nodes + 1, np.int64), np.empty(2 * arcs, np.int32)
    listed = flow.list_halves(network, start, half)
    search = flow.Search(
        start=start,
        half=half,
        distance=np.full(nodes, -1, np.int64),
        via=np.empty(nodes, np.int32),
        settled=np.empty(nodes, np.int32),
        stack=np.empty(nodes, np.int32),
        heap_key=np.empty(listed + 1, np.int64),
        heap_node=np.empty(listed + 1, np.int32),
    )
    # In random order: otherwise the excess would push a front of high prices ahead of itself.
    order = np.random.default_rng(0).permutation(np.flatnonzero(excess > 0))
    if not flow.repair(network, search, excess, order):
        raise AssertionError("places in memory always find a way along the timeline")
