"""Streams whose results depend on age alone."""

from __future__ import annotations

import pyarrow as pa


def aging(curve: list[int], units: int) -> tuple[pa.Table, pa.Table]:
    """Generate a row with its own key per unit of time, and partners as the curve says."""
    left = pa.table({"k": range(units), "t": [10 * i for i in range(units)]})
    partners = [
        (key, 10 * key + 10 * age + 5)
        for key in range(units)
        for age, count in enumerate(curve)
        for _ in range(count)
    ]
    return left, pa.table({"k": [k for k, _ in partners], "t": [t for _, t in partners]})
