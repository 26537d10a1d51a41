"""The best any policy could have done, on archived streams."""

from __future__ import annotations

from tidegate.optimal.call import Optimal, optimal

__all__ = ["Optimal", "optimal"]
