"""tidegate joins data streams on Apache Spark within a fixed memory budget.

Names are imported on first use, because Spark starts worker processes that need none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.api.constrained_join import constrained_join as constrained_join
    from tidegate.api.cql import cql as cql
    from tidegate.api.estimate import estimate as estimate
    from tidegate.api.join import join as join
    from tidegate.api.learn import Learned as Learned
    from tidegate.api.learn import learn as learn
    from tidegate.api.memory_pool import MemoryPool as MemoryPool
    from tidegate.api.optimal import Optimal as Optimal
    from tidegate.api.optimal import optimal as optimal
    from tidegate.api.optimal_star import optimal_star as optimal_star
    from tidegate.api.profile import profile as profile
    from tidegate.api.repair import repair as repair
    from tidegate.api.result import Result as Result
    from tidegate.api.sample_join import sample_join as sample_join
    from tidegate.api.star_join import star_join as star_join
    from tidegate.api.truncated_join import truncated_join as truncated_join
    from tidegate.errors import TidegateError as TidegateError
    from tidegate.joins.constrained.constraints import CA as CA
    from tidegate.joins.constrained.constraints import OAC as OAC
    from tidegate.joins.constrained.constraints import OAP as OAP
    from tidegate.joins.constrained.constraints import RIDS as RIDS
    from tidegate.joins.constrained.constraints import Monitor as Monitor
    from tidegate.optimal.star import OSSJ as OSSJ
    from tidegate.policies import Policy as Policy
    from tidegate.policies.exports import *  # noqa: F403
    from tidegate.settings.rows import Rows as Rows
    from tidegate.settings.slow_cpu import SlowCPU as SlowCPU

__version__ = "0.2.0"

#: The modules of the public names. Policies are not listed: `tidegate.policies` finds them.
_HOMES = {
    "CA": "joins.constrained.constraints",
    "Learned": "api.learn",
    "MemoryPool": "api.memory_pool",
    "Monitor": "joins.constrained.constraints",
    "OAC": "joins.constrained.constraints",
    "OAP": "joins.constrained.constraints",
    "OSSJ": "optimal.star",
    "Optimal": "api.optimal",
    "Policy": "policies.base",
    "RIDS": "joins.constrained.constraints",
    "Result": "api.result",
    "Rows": "settings.rows",
    "SlowCPU": "settings.slow_cpu",
    "TidegateError": "errors",
    "constrained_join": "api.constrained_join",
    "cql": "api.cql",
    "estimate": "api.estimate",
    "join": "api.join",
    "learn": "api.learn",
    "optimal": "api.optimal",
    "optimal_star": "api.optimal_star",
    "profile": "api.profile",
    "repair": "api.repair",
    "sample_join": "api.sample_join",
    "star_join": "api.star_join",
    "truncated_join": "api.truncated_join",
}


def _policies() -> dict[str, Any]:
    """Return the classes of tidegate's policies by their names in Python."""
    from tidegate.policies import POLICIES

    return {kind.__name__: kind for kind in POLICIES.values()}


def _public_names() -> list[str]:
    return [*_HOMES, *_policies()]


if not TYPE_CHECKING:  # type checkers know the names above, and no others

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return _public_names()
        if name in _HOMES:
            found = getattr(importlib.import_module(f"tidegate.{_HOMES[name]}"), name)
        # Classes are capitalised. Other names must not load the policies, which takes a second.
        elif name[:1].isupper() and name in _policies():
            found = _policies()[name]
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_public_names()})


# Import the package now, because a later import would replace the function of the same name.
importlib.import_module("tidegate.optimal")
del globals()["optimal"]
