"""Spark's helper process must connect within ten seconds: it compiles nothing before that."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
import pytest

from tidegate.spark import interpreter

HOME = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path


def imports_before_connecting(python: str) -> str:
    """Start the helper process as Spark does. Return its list of imports until it connects."""
    zips = [str(path) for path in (HOME / "python" / "lib").glob("*.zip")]
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.TemporaryFile("w+") as said:
        server.settimeout(120)  # only if it ends without connecting
        process = subprocess.Popen(
            [python, "-m", "pyspark.sql.streaming.transform_with_state_driver_worker"],
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={
                **os.environ,
                "SPARK_HOME": str(HOME),
                "PYTHONPATH": os.pathsep.join([*zips, "/a folder", *sys.path[-1:]]),
                "PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]),
                "PYTHON_WORKER_FACTORY_SECRET": "secret",
                "PYTHONVERBOSE": "1",
            },
        )
        # The process ends if its secret is not answered.
        server.accept()[0].close()
        process.wait()
        said.seek(0)
        return said.read()


def test_the_helper_process_compiles_nothing_before_it_connects() -> None:
    python = interpreter.without_zips(sys.executable)
    assert python != sys.executable
    zipped = re.compile(r"# loaded from Zip|import 'pyspark.*zipimporter")
    # Started as Spark would, it compiles every module of pyspark from a zip.
    assert len(zipped.findall(imports_before_connecting(sys.executable))) > 50
    said = imports_before_connecting(python)
    assert "import 'pyspark.sql.streaming.stateful_processor_api_client'" in said
    assert not zipped.search(said)
    assert "import 'numba'" not in said
    assert "import 'tidegate" not in said


def test_the_helper_process_needs_neither_compiler_nor_pandas() -> None:
    """It unpickles the operator to ask which state it declares; every query waits for that."""
    program = "import sys, tidegate.spark.operator; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"pyarrow", "tidegate.engine.prepare", "tidegate.spark.state"} < loaded
    assert not loaded & {"numba", "pandas", "scipy"}


def test_another_python_or_another_spark_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interpreter.without_zips("python3") == "python3"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert interpreter.without_zips(sys.executable) == sys.executable


def test_the_rest_of_the_module_path_stays() -> None:
    python = interpreter.without_zips(sys.executable)
    given = [f"{HOME}/python/lib/pyspark.zip", "/a b", "/*", f"{HOME}/python/lib/py4j-1-src.zip"]
    program = "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')"
    done = subprocess.run(
        [python, "-c", program, "x y", ""],
        env={"PYTHONPATH": ":".join(given), "SPARK_HOME": str(HOME)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "/a b:/*|x y|\n"
