"""Set up all tests: one Spark session per process, hypothesis profiles, the order of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tidegate.policies.base import Policy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadlines: compiling and a busy machine make single examples slow.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _patient, max_examples=40)
settings.register_profile("ci", _patient, max_examples=15, derandomize=True)
settings.register_profile("thorough", _patient, max_examples=2_000)
settings.load_profile("ci" if os.environ.get("CI") else "quick")

# Use Java's quick compiler only. Tests end before the other pays off; this saves a third of CPU.
# Do not verify the classes of Spark's jars, and start processes without a helper process.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    "-Djdk.lang.Process.launchMechanism=VFORK",
)


#: The test files that take longest, in order. Two workers (`-n 2 --dist loadfile`) share the work
#: evenly only if these start first.
_FIRST = (
    "test_crash.py",
    "test_connect.py",
    "test_join_exact.py",
    "test_pages.py",
    "test_operator.py",
    "test_join_bounded.py",
    "test_window_engine.py",
    "test_watermarks.py",
    "test_cluster.py",
    "test_shipping.py",
    "test_conformance.py",
    "test_demo.py",
    "test_sampled_memory.py",
    "test_window_restarts.py",
    "test_window_learning.py",
    "test_star_engine.py",
    "test_slices.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Keep xdist from sorting files by their number of tests, which would undo our order."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest files first, then Spark's other tests."""

    def rank(item: pytest.Item) -> tuple[int, bool]:
        name = item.path.name
        return _FIRST.index(name) if name in _FIRST else len(_FIRST), "spark" not in item.path.parts

    items.sort(key=rank)


@pytest.fixture(autouse=True)
def _own_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the policies that a test defines, so that their names are free for other tests."""
    monkeypatch.setattr(Policy, "registered", dict(Policy.registered))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return an embedded Spark session on two cores, shared by all tests of a process."""
    from spark.workloads import NO_CODEGEN

    from tidegate.spark import compat
    from tidegate.spark.session import session

    # Spark's default way to write a checkpoint file starts several processes for each file, as
    # there is no native library of Hadoop. This one saves a fifth of the CPU of a small query.
    # Tests that crash Spark or start a cluster have sessions of their own, with the default.
    package = "streaming.checkpointing" if compat.VERSION >= (4, 1) else "streaming"
    running = session(
        "tests",
        master="local[2]",
        config={
            "spark.sql.shuffle.partitions": 2,
            "spark.default.parallelism": 2,
            "spark.sql.warehouse.dir": tmp_path_factory.mktemp("warehouse"),
            "spark.sql.streaming.checkpointFileManagerClass": (
                f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
            ),
            "spark.sql.streaming.checkpoint.fileChecksum.enabled": False,
            **NO_CODEGEN,
        },
    )
    # Hadoop starts a process to set the mode of each file, and of the file with its checksum.
    jvm: Any = running.sparkContext._jvm
    files = jvm.org.apache.hadoop.fs.FileSystem.getLocal(
        running.sparkContext._jsc.hadoopConfiguration()
    )
    files.setWriteChecksum(False)
    yield running
    running.stop()
