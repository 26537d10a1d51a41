"""tidegate joins data streams on Apache Spark within a fixed memory budget.

Names are imported on first use, because Spark starts worker processes that need none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.api.constrained_join import constrained_join
    from tidegate.api.cql import cql
    from tidegate.api.estimate import estimate
    from tidegate.api.join import join
    from tidegate.api.memory_pool import MemoryPool
    from tidegate.api.optimal import Optimal, optimal
    from tidegate.api.optimal_star import optimal_star
    from tidegate.api.repair import repair
    from tidegate.api.result import Result
    from tidegate.api.sample_join import sample_join
    from tidegate.api.star_join import star_join
    from tidegate.api.truncated_join import truncated_join
    from tidegate.errors import TidegateError
    from tidegate.joins.constrained.constraints import CA, OAC, OAP, RIDS, Monitor
    from tidegate.optimal.star import OSSJ
    from tidegate.policies import (
        DGL,
        Age,
        Auto,
        DimpProb,
        Fifo,
        Greedy,
        GreedyDual,
        Heeb,
        IJoin,
        Life,
        Policy,
        Prob,
        Rand,
        Simp,
        SimpProb,
        Size,
        UntilExpiry,
    )
    from tidegate.settings.rows import Rows
    from tidegate.settings.slow_cpu import SlowCPU

__version__ = "0.1.0"

__all__ = [
    "CA",
    "DGL",
    "OAC",
    "OAP",
    "OSSJ",
    "RIDS",
    "Age",
    "Auto",
    "DimpProb",
    "Fifo",
    "Greedy",
    "GreedyDual",
    "Heeb",
    "IJoin",
    "Life",
    "MemoryPool",
    "Monitor",
    "Optimal",
    "Policy",
    "Prob",
    "Rand",
    "Result",
    "Rows",
    "Simp",
    "SimpProb",
    "Size",
    "SlowCPU",
    "TidegateError",
    "UntilExpiry",
    "constrained_join",
    "cql",
    "estimate",
    "join",
    "optimal",
    "optimal_star",
    "repair",
    "sample_join",
    "star_join",
    "truncated_join",
]

#: The modules of public names; names that are not here are in `policies`.
_HOMES = {
    "CA": "joins.constrained.constraints",
    "MemoryPool": "api.memory_pool",
    "Monitor": "joins.constrained.constraints",
    "OAC": "joins.constrained.constraints",
    "OAP": "joins.constrained.constraints",
    "OSSJ": "optimal.star",
    "Optimal": "api.optimal",
    "RIDS": "joins.constrained.constraints",
    "Result": "api.result",
    "Rows": "settings.rows",
    "SlowCPU": "settings.slow_cpu",
    "TidegateError": "errors",
    "constrained_join": "api.constrained_join",
    "cql": "api.cql",
    "estimate": "api.estimate",
    "join": "api.join",
    "optimal": "api.optimal",
    "optimal_star": "api.optimal_star",
    "repair": "api.repair",
    "sample_join": "api.sample_join",
    "star_join": "api.star_join",
    "truncated_join": "api.truncated_join",
}


if not TYPE_CHECKING:  # type checkers know the names above, and no others

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(f"tidegate.{_HOMES.get(name, 'policies')}")
        globals()[name] = getattr(home, name)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Import the package now, because a later import would replace the function of the same name.
for _name in ("optimal",):
    importlib.import_module(f"tidegate.{_name}")
    del globals()[_name]
