"""One Spark session for all tests of a process, and Hypothesis profiles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Compiling and a busy machine can make single examples slow; that is no defect of the code.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _patient, max_examples=40)
settings.register_profile("ci", _patient, max_examples=15, derandomize=True)
settings.register_profile("thorough", _patient, max_examples=2_000)
settings.load_profile("ci" if os.environ.get("CI") else "quick")

# Tests are too short for Java's optimising compiler to pay off: without it they need a third less.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run Spark's tests first, because they take longest, and of those the killed queries first."""
    first = ["test_crash.py", "test_star.py", "test_sampled.py", "test_cluster.py", "test_join.py"]

    def place(item: pytest.Item) -> tuple[bool, int]:
        name = item.path.name
        return "spark" not in item.path.parts, first.index(name) if name in first else len(first)

    items.sort(key=place)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield embedded Spark on two cores."""
    from tidegate.spark.session import session

    running = session(
        "tests",
        master="local[2]",
        config={
            "spark.sql.shuffle.partitions": 2,
            "spark.default.parallelism": 2,
            "spark.sql.warehouse.dir": tmp_path_factory.mktemp("warehouse"),
        },
    )
    yield running
    running.stop()
