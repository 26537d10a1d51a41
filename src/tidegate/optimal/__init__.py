"""The best any policy could have done, on archived streams."""

from __future__ import annotations

from tidegate.optimal.call import Optimal, optimal
from tidegate.optimal.star import OSSJ, ossj

__all__ = ["OSSJ", "Optimal", "optimal", "ossj"]
