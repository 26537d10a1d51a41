"""The part of tidegate that runs joins on Spark. Nothing else imports Spark."""

from __future__ import annotations

from tidegate.errors import require

for _package in ("pyspark", "pandas", "google.protobuf"):
    require(_package, "spark", "a join on Spark")
