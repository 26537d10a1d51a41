"""The flow without a join: random chains, against another solver with another graph."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ortools.graph.python import min_cost_flow

from tidegate.optimal.chains import Chains
from tidegate.optimal.plan import best_plan, upper_bound


def random_chains(seed: int, ticks: int, groups: int) -> Chains:
    """Draw groups with arbitrary members and gains; some gains are negative."""
    draw = np.random.default_rng(seed)
    late = int(draw.integers(2))
    members, gains = [0], [0]
    arrive: list[int] = []
    expire: list[int] = []
    at: list[int] = []
    for _ in range(groups):
        # With `late`, a member that arrives with a gain forms a group of its own.
        came = np.sort(draw.integers(0, ticks, 1 if late else int(draw.integers(1, 6))))
        gone = np.sort(came + draw.integers(1, ticks, len(came)))
        earns = np.flatnonzero(draw.random(ticks) < 0.3)
        arrive += came.tolist()
        expire += np.minimum(gone, ticks).tolist()
        at += earns.tolist()
        members.append(len(arrive))
        gains.append(len(at))
    return Chains(
        members=np.array(members),
        arrive=np.array(arrive),
        expire=np.array(expire),
        gains=np.array(gains),
        at=np.array(at, np.int64),
        worth=draw.integers(-2, 9, len(at)),
        memory=draw.integers(0, 6, ticks),
        late=late,
    )


def by_row(chains: Chains) -> int:
    """Return the optimum by OR-tools, with one chain for every single member over all ticks."""
    solver = min_cost_flow.SimpleMinCostFlow()
    ticks = len(chains.memory)
    nodes = ticks + 1
    supply: dict[int, int] = defaultdict(int)
    for i, places in enumerate(chains.memory.tolist()):
        solver.add_arc_with_capacity_and_unit_cost(i, i + 1, 1_000, 0)
        supply[i] += places
        supply[i + 1] -= places
    for group in range(len(chains.members) - 1):
        earns = range(chains.gains[group], chains.gains[group + 1])
        worth = {int(chains.at[g]): int(chains.worth[g]) for g in earns}
        for u in range(chains.members[group], chains.members[group + 1]):
            before = int(chains.arrive[u])
            for tick in range(before + 1, int(chains.expire[u])):
                cost = -worth.get(tick, 0)
                solver.add_arc_with_capacity_and_unit_cost(before, nodes, 1, cost)
                solver.add_arc_with_capacity_and_unit_cost(nodes, tick + chains.late, 1, 0)
                before = nodes
                nodes += 1
    for node, amount in supply.items():
        solver.set_node_supply(node, amount)
    assert solver.solve() == solver.OPTIMAL
    return -int(solver.optimal_cost())


def check_places(chains: Chains, until: NDArray[np.int64]) -> int:
    """Return what a plan earns, counted member by member. Check that it obeys the rules."""
    held = np.zeros(len(chains.memory) + 1, np.int64)
    value = 0
    for group in range(len(chains.members) - 1):
        for u in range(chains.members[group], chains.members[group + 1]):
            if until[u] >= 0:
                last = chains.at[until[u]]
                assert chains.arrive[u] < last < chains.expire[u]
                held[chains.arrive[u] : last + chains.late] += 1
                for g in range(chains.gains[group], until[u] + 1):
                    value += int(chains.worth[g]) if chains.at[g] > chains.arrive[u] else 0
    assert (held[:-1] <= chains.memory).all()
    return value


@pytest.mark.parametrize(("ticks", "groups"), [(6, 3), (12, 8), (30, 20)])
def test_another_solver_finds_the_same_optimum(ticks: int, groups: int) -> None:
    for seed in range(100):
        chains = random_chains(seed, ticks, groups)
        plan = best_plan(chains)
        assert plan.value == plan.bound == by_row(chains)
        assert plan.value == check_places(chains, plan.until)


@given(seed=st.integers(0, 10**6), prices=st.lists(st.integers(0, 9), min_size=12, max_size=12))
def test_any_prices_give_a_bound(seed: int, prices: list[int]) -> None:
    chains = random_chains(seed, 12, 8)
    paid = np.concatenate([[0], np.cumsum(prices)])
    assert upper_bound(chains, paid) >= best_plan(chains).value
