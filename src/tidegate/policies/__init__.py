"""Policies: each ranks rows in its own way. One file per policy."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.errors import TidegateError
from tidegate.policies.age import Age
from tidegate.policies.auto import Auto
from tidegate.policies.base import Arrivals, ByFrequency, Policy, ranking, ranks_of
from tidegate.policies.dgl import DGL
from tidegate.policies.dimpprob import DimpProb
from tidegate.policies.fifo import Fifo
from tidegate.policies.greedy import Greedy
from tidegate.policies.greedy_dual import GreedyDual
from tidegate.policies.heeb import Heeb
from tidegate.policies.ijoin import IJoin
from tidegate.policies.life import Life
from tidegate.policies.prob import Prob
from tidegate.policies.rand import Rand
from tidegate.policies.simp import Simp
from tidegate.policies.simpprob import SimpProb
from tidegate.policies.size import Size
from tidegate.policies.until_expiry import UntilExpiry
from tidegate.settings.checks import nearest
from tidegate.settings.values import quoted

__all__ = [
    "DGL",
    "POLICIES",
    "Age",
    "Arrivals",
    "Auto",
    "ByFrequency",
    "DimpProb",
    "Fifo",
    "Greedy",
    "GreedyDual",
    "Heeb",
    "IJoin",
    "Life",
    "Policy",
    "Prob",
    "Rand",
    "Simp",
    "SimpProb",
    "Size",
    "UntilExpiry",
    "policy_of",
    "ranks_of",
]

_ALL: tuple[type[Policy], ...] = (
    Auto,
    Rand,
    Fifo,
    UntilExpiry,
    Prob,
    Life,
    Heeb,
    GreedyDual,
    Age,
    Size,
    Simp,
    Greedy,
    SimpProb,
    DimpProb,
    DGL,
    IJoin,
)
POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _ALL}


def policy_of(choice: object, known: Mapping[str, type[Policy]] = POLICIES) -> Policy:
    """Return the policy for a name, or the policy itself if an instance was given.

    Parameters
    ----------
    choice
        A policy's name such as ``"prob"``, or an instance such as ``Prob()``.
    known
        The policies that may be named.

    Raises
    ------
    TidegateError
        If the name is unknown, or if the policy does not say what it ranks by.
    """
    if isinstance(choice, Policy):
        return ranking(choice)
    names = ", ".join(f'"{name}"' for name in known)
    if isinstance(choice, type) and issubclass(choice, Policy):
        raise TidegateError(f"policy must be an instance: write {choice.__name__}()")
    if not isinstance(choice, str):
        raise TidegateError(
            f"policy must be one of {names} or a policy such as tg.Prob(), not {quoted(choice)}"
        )
    if choice not in known:
        hint = nearest(choice, known)
        raise TidegateError(f"policy must be one of {names}, not {quoted(choice)}{hint}")
    return known[choice]()
