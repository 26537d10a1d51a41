"""Seeded stream generators, and streams in Parquet files; nothing here needs Spark."""

from __future__ import annotations

from tidegate.streams.auctions import auctions
from tidegate.streams.bursts import bursts, echoes
from tidegate.streams.constrained import links, many_one
from tidegate.streams.files import cut_by_time, read_parquet, write_parquet_batches
from tidegate.streams.linear_road import car_reports
from tidegate.streams.zipf import uniform, zipf

__all__ = [
    "auctions",
    "bursts",
    "car_reports",
    "cut_by_time",
    "echoes",
    "links",
    "many_one",
    "read_parquet",
    "uniform",
    "write_parquet_batches",
    "zipf",
]
