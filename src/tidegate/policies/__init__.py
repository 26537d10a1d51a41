"""The policies: one file each, exported here and known by name."""

from __future__ import annotations

import difflib

from tidegate.errors import TidegateError
from tidegate.policies.base import Arrivals, ByFrequency, Policy
from tidegate.policies.fifo import Fifo
from tidegate.policies.life import Life
from tidegate.policies.prob import Prob
from tidegate.policies.rand import Rand
from tidegate.policies.until_expiry import UntilExpiry

__all__ = [
    "POLICIES",
    "Arrivals",
    "ByFrequency",
    "Fifo",
    "Life",
    "Policy",
    "Prob",
    "Rand",
    "UntilExpiry",
    "policy_of",
]

POLICIES: dict[str, type[Policy]] = {p.name: p for p in (Rand, Fifo, UntilExpiry, Prob, Life)}


def policy_of(choice: object) -> Policy:
    """The policy of a name, or the policy itself."""
    if isinstance(choice, Policy):
        return choice
    names = ", ".join(f'"{name}"' for name in POLICIES)
    if isinstance(choice, type) and issubclass(choice, Policy):
        raise TidegateError(f"policy must be an instance: write {choice.__name__}()")
    if not isinstance(choice, str):
        raise TidegateError(
            f"policy must be one of {names} or a policy such as tg.Prob(), not {choice!r}"
        )
    if choice not in POLICIES:
        near = difflib.get_close_matches(choice.lower(), POLICIES, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise TidegateError(f"policy must be one of {names}, not {choice!r}{hint}")
    return POLICIES[choice]()
