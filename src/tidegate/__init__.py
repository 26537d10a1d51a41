"""tidegate joins data streams on Apache Spark in a fixed amount of memory.

Names are loaded when they are first asked for: Spark starts processes that need none of them, and
would wait for all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate import local
    from tidegate.constrained import constrained_join
    from tidegate.constraints import CA, OAC, OAP, RIDS, Monitor, Rows
    from tidegate.cql.call import cql
    from tidegate.errors import TidegateError
    from tidegate.joins import join
    from tidegate.local import Result
    from tidegate.optimal.call import Optimal, optimal
    from tidegate.optimal.star import OSSJ, ossj
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
    from tidegate.pool import MemoryPool
    from tidegate.repairs import repair
    from tidegate.sampled import estimate, sample_join
    from tidegate.slow_cpu import SlowCPU
    from tidegate.star import star_join
    from tidegate.truncated import truncated_join

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
    "local",
    "optimal",
    "ossj",
    "repair",
    "sample_join",
    "star_join",
    "truncated_join",
]

#: Where they are: policies in `policies`, and the others here.
_HOMES = {
    "CA": "constraints",
    "MemoryPool": "pool",
    "Monitor": "constraints",
    "OAC": "constraints",
    "OAP": "constraints",
    "OSSJ": "optimal.star",
    "Optimal": "optimal.call",
    "RIDS": "constraints",
    "Result": "local",
    "Rows": "constraints",
    "SlowCPU": "slow_cpu",
    "TidegateError": "errors",
    "constrained_join": "constrained",
    "cql": "cql.call",
    "estimate": "sampled",
    "join": "joins",
    "optimal": "optimal.call",
    "ossj": "optimal.star",
    "repair": "repairs",
    "sample_join": "sampled",
    "star_join": "star",
    "truncated_join": "truncated",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "local":
        return importlib.import_module("tidegate.local")
    home = importlib.import_module(f"tidegate.{_HOMES.get(name, 'policies')}")
    globals()[name] = getattr(home, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Loaded later, a package would take the place of the function of the same name.
for _name in ("cql", "optimal"):
    importlib.import_module(f"tidegate.{_name}")
    del globals()[_name]
