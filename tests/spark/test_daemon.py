from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tidegate.spark import daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

linux = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are not listed")


@linux
@pytest.mark.parametrize("single", [True, False])
def test_it_forks_only_with_a_single_thread(single: bool) -> None:
    program = """
import os, sys
import tidegate.spark.daemon as daemon
may_fork = daemon.preload()
print(may_fork, len(os.listdir("/proc/self/task")) == 1, "numba" in sys.modules)
"""
    environment = {k: v for k, v in os.environ.items() if k not in daemon.SINGLE_THREADED}
    if single:
        environment |= daemon.SINGLE_THREADED
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == [str(single), str(single), "True"]


def test_zips_give_way_only_to_the_same_pyspark(tmp_path: Path) -> None:
    site, home = tmp_path, tmp_path / "pyspark"
    zips = [str(home / "python" / "lib" / "pyspark.zip"), str(home / "python" / "lib" / "py4j.zip")]
    path = ["", *zips, str(site), "elsewhere"]
    assert daemon.without_zips(path, str(home)) == path
    (home / "python" / "lib").mkdir(parents=True)
    (home / "worker.py").touch()
    (site / "py4j").mkdir()
    assert daemon.without_zips(path, str(home)) == ["", str(site), "elsewhere"]
    assert daemon.without_zips([*zips, "elsewhere"], str(home)) == [*zips, "elsewhere"]
    assert daemon.without_zips(path, None) == path


@linux
def test_workers_start_with_the_libraries_loaded(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loaded = "numba" in sys.modules and "pandas" in sys.modules
        for batch in batches:
            yield pa.record_batch({"loaded": pa.array([loaded] * len(batch))})

    rows = spark.range(2).mapInArrow(look, "loaded boolean").collect()
    assert [row.loaded for row in rows] == [True, True]
