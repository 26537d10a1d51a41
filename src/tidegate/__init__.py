"""tidegate joins data streams on Apache Spark in a fixed amount of memory."""

from __future__ import annotations

from tidegate import local
from tidegate.constrained import constrained_join
from tidegate.constraints import CA, OAC, OAP, RIDS, Monitor, Rows
from tidegate.cql import cql
from tidegate.errors import TidegateError
from tidegate.joins import join
from tidegate.local import Result
from tidegate.optimal import Optimal, optimal
from tidegate.policies import (
    DGL,
    Age,
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
from tidegate.slow_cpu import SlowCPU
from tidegate.truncated import truncated_join

__version__ = "0.1.0"

__all__ = [
    "CA",
    "DGL",
    "OAC",
    "OAP",
    "RIDS",
    "Age",
    "DimpProb",
    "Fifo",
    "Greedy",
    "GreedyDual",
    "Heeb",
    "IJoin",
    "Life",
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
    "join",
    "local",
    "optimal",
    "truncated_join",
]
