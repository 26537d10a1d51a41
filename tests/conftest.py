"""One Spark session for all tests, beside which the others run; how hard hypothesis tries."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Compiling and a shared machine make single examples slow, which says nothing about the code.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _patient, max_examples=40)
settings.register_profile("ci", _patient, max_examples=40, derandomize=True)
settings.register_profile("thorough", _patient, max_examples=2_000)
settings.load_profile("ci" if os.environ.get("CI") else "quick")


def _needs_spark(file: Path) -> bool:
    return "spark" in file.parts or "SparkSession" in file.read_text()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what needs Spark, which takes longest."""
    items.sort(key=lambda item: not _needs_spark(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have one process take all that needs Spark, and the other begin with the rest."""
    scheduler: Any = importlib.import_module("xdist.scheduler").LoadScopeScheduling(config, log)

    def scope(test: str) -> str:
        return "spark" if _needs_spark(config.rootpath / test.split("::")[0]) else test

    scheduler._split_scope = scope
    return scheduler


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
