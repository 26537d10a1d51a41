"""One Spark session for all tests of a process, and how hard hypothesis tries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Compiling and a shared machine make single examples slow, which says nothing about the code.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _patient, max_examples=40)
settings.register_profile("ci", _patient, max_examples=15, derandomize=True)
settings.register_profile("thorough", _patient, max_examples=2_000)
settings.load_profile("ci" if os.environ.get("CI") else "quick")

# Tests end before the better one of Java's two compilers pays for itself: a third less to compute.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with Spark's tests, which take longest, and of these with queries that are killed."""
    first = ["test_crash.py", "test_star.py", "test_sampled.py", "test_cluster.py", "test_join.py"]

    def place(item: pytest.Item) -> tuple[bool, int]:
        name = item.path.name
        return "spark" not in item.path.parts, first.index(name) if name in first else len(first)

    items.sort(key=place)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Embedded Spark on two cores."""
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
