"""tidegate in an archive, for a Python that has its dependencies but not tidegate itself."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tidegate.errors import TidegateError
from tidegate.kernel import compiling
from tidegate.spark import interpreter, java, shipping
from tidegate.streams import cut_by_time, zipf

from .workloads import NO_CODEGEN, bag, environment, span, write_files

SOURCE = Path(str(tg.__file__)).parent
SETTINGS: dict[str, Any] = {"on": "key", "time": "time", "within": 40}

# spark-submit starts the driver, which imports tidegate from --py-files.
PROGRAM = """
import json, sys
from pathlib import Path
import tidegate as tg
from pyspark.sql import SparkSession

home, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
spark = SparkSession.builder.getOrCreate()
source = spark.readStream.schema("key long, time long, value double")
left, right = source.parquet(str(home / "left")), source.parquet(str(home / "right"))
query = (
    tg.join(left, right, **settings)
    .writeStream.format("parquet")
    .option("path", str(home / "out"))
    .option("checkpointLocation", str(home / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print("tidegate is in", tg.__file__)
spark.stop()
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with this one's packages, except for those installed as links."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, symlinks=True)
    [site] = home.glob("lib/python*/site-packages")
    packages = [entry for entry in sys.path if entry.endswith("site-packages")]
    (site / "packages.pth").write_text("\n".join(packages))
    python = home / "bin" / "python"
    look = [str(python), "-c", "import tidegate"]
    without = {**os.environ, "PYTHONPATH": ""}
    if not subprocess.run(look, capture_output=True, env=without, cwd=home).returncode:
        pytest.skip("tidegate is installed as a copy, beside the packages that it needs")
    # As the embedded session does: a busy machine might exceed Spark's limit of ten seconds.
    quick = home / "quick" / "python"
    quick.parent.mkdir()
    quick.write_text(interpreter._WRAPPER.format(python=shlex.quote(str(python))))
    quick.chmod(0o700)
    return quick


def packed(archive: Path) -> Path:
    """Write tidegate's sources to an archive with the layout of a wheel."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w") as file:
        for path in SOURCE.rglob("*"):
            if path.suffix in (".py", ".properties", ".html", ".css", ".js"):
                file.write(path, path.relative_to(SOURCE.parent))
    return archive


def outside(home: Path, python: Path) -> dict[str, str]:
    """Return the environment of a program that cannot import tidegate."""
    return environment(home / "scratch") | {
        "PYTHONPATH": "",
        "PYSPARK_PYTHON": str(python),
        "XDG_CACHE_HOME": str(home / "cache"),
        "JAVA_HOME": str(java.find()),
    }


def test_copies_of_an_archive_share_compiled_code(bare_python: Path, tmp_path: Path) -> None:
    program = """
import pyarrow as pa
from tidegate.settings.columns import hash_columns
print(hash_columns([pa.array([7])], 1))
"""
    seen = []
    for name in ("one.zip", "two/tidegate-0.2.0-py3-none-any.whl"):
        path = packed(tmp_path / name)
        done = subprocess.run(
            [bare_python, "-c", program],
            env=outside(tmp_path, bare_python) | {"PYTHONPATH": str(path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        files = (tmp_path / "cache").rglob("*")
        seen.append((done.stdout, {f: f.stat().st_mtime_ns for f in files if f.is_file()}))
    assert seen[0] == seen[1]
    assert any(path.suffix == ".nbc" for path in seen[0][1])


@pytest.mark.parametrize("name", ["tidegate.zip", "tidegate-0.2.0-py3-none-any.whl"])
def test_an_archive_in_py_files_is_all_that_a_cluster_needs(
    name: str, bare_python: Path, tmp_path: Path
) -> None:
    left, right = zipf(600, domain=60, skew=0.9, seed=8)
    for table, folder in ((left, "left"), (right, "right")):
        pieces = cut_by_time(table, time="time", batches=2, span=span(left["time"], right["time"]))
        write_files(pieces, tmp_path / folder)
    expected = tg.join(left, right, **SETTINGS).table
    assert expected.num_rows > 400
    # Reuse the code that is compiled beside the sources: it takes minutes to compile it again.
    compiled = tmp_path / "cache" / "tidegate" / f"kernel-{compiling.fingerprint()[:16]}"
    compiled.mkdir(parents=True, mode=0o700)
    compiled.parent.chmod(0o700)
    for path in SOURCE.rglob("__pycache__/*.nb?"):
        shutil.copy(path, compiled)
    (tmp_path / "app.py").write_text(PROGRAM)
    done = subprocess.run(
        [
            Path(pyspark.__file__).parent / "bin" / "spark-submit",
            *("--master", "local-cluster[1,1,1024]"),
            *("--conf", "spark.sql.shuffle.partitions=1"),
            *("--conf", "spark.ui.enabled=false"),
            *("--conf", f"spark.sql.warehouse.dir={tmp_path}"),
            *(part for setting in NO_CODEGEN.items() for part in ("--conf", "=".join(setting))),
            "--conf",
            "spark.sql.streaming.stateStore.providerClass="
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            *("--py-files", packed(tmp_path / "archive" / name)),
            tmp_path / "app.py",
            tmp_path,
            json.dumps(SETTINGS),
        ],
        cwd=tmp_path,
        env=outside(tmp_path, bare_python),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"tidegate is in {tmp_path}" in done.stdout.replace("/private", "")
    assert bag(pq.read_table(tmp_path / "out")) == bag(expected)


def test_a_python_without_tidegate_is_refused_when_the_join_is_built(
    spark: SparkSession, bare_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = (spark.createDataFrame(table) for table in zipf(10, domain=5, seed=1))
    context = spark.sparkContext
    # The tests themselves may have been started with a module path.
    monkeypatch.setattr(shipping, "inherited_path", lambda context: "")
    for python, problem in (
        (str(bare_python), "cannot import tidegate"),
        ("no-such-python", "does not start"),
    ):
        monkeypatch.setattr(context, "pythonExec", python)
        with pytest.raises(TidegateError, match=f"{python}.*{problem}.*set PYSPARK_PYTHON"):
            tg.join(left, right, **SETTINGS)
