"""`tidegate.MemoryPool`: one memory for several joins, and what it says of them."""

from __future__ import annotations

from tidegate.spark.pool import Governor


class MemoryPool(Governor):
    """One memory for several joins."""
