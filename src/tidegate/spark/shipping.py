"""Make sure that Spark's Python processes can import tidegate, before any data is read.

Spark starts Python in two places. Workers run on the executors and can import from the files given
as `--py-files`. When a streaming query starts, a helper process runs on the driver's machine, to
ask which state the join declares. It only knows a module path, not these files.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tidegate.errors import TidegateError

#: Modules that a process must be able to import besides Spark's own.
NEEDED = ("tidegate", "numba", "numpy", "pandas", "pyarrow", "google.protobuf")

_LOOK = """
import importlib.util, sys

def missing(name):
    try:
        return importlib.util.find_spec(name) is None
    except ImportError:
        return True

print("missing", *filter(missing, sys.argv[1:]))
"""


def archive() -> Path | None:
    """Return the archive (`.zip`, `.whl`) that contains this tidegate; None if it is in files."""
    folder = Path(__file__).absolute().parents[2]
    return folder if folder.is_file() else None


def reach_workers(spark: Any, *, streaming: bool) -> None:
    """Make sure that the Python processes of a session can import tidegate.

    Raises
    ------
    TidegateError
        If Python processes on this machine cannot import it.
    """
    if not hasattr(spark, "_jsparkSession"):
        return  # With Connect, the processes run on the server.
    context = spark.sparkContext
    source = archive()
    if source is not None:
        _send(context, source)
    if streaming or context.master.startswith("local"):
        _check(context)


def _send(context: Any, source: Path) -> None:
    """Send the archive to the executors, and add it to the helper process's module path."""
    # Spark has done this for a `.zip` in `--py-files`, but workers do not look into a `.whl`.
    if source.name not in context._python_includes:
        context.addFile(str(source))
        context._python_includes.append(source.name)
    path = context.environment.get("PYTHONPATH", "").split(os.pathsep)
    if str(source) not in path:
        context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(source), *path]))


def _check(context: Any) -> None:
    """Refuse a session whose Python, as seen from this machine, lacks a module."""
    python = context.pythonExec
    given = context.environment.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, [given, inherited_path(context)]))
    missing = _missing(python, path)
    if missing is None:
        problem = "which does not start"
    elif missing:
        problem = f"which cannot import {', '.join(missing)}"
    else:
        return
    where = shutil.which(python)
    found = "" if where in (None, python) else f" ({where})"
    raise TidegateError(
        f"Spark starts Python workers as {python!r}{found}, {problem}. Before Spark starts, set "
        f"PYSPARK_PYTHON (or spark.pyspark.python) to a Python that has tidegate and what it "
        f"depends on; this program runs on {sys.executable!r}"
    )


def inherited_path(context: Any) -> str:
    """Return the module path that Spark was started with and its processes inherit."""
    return str(context._jvm.java.lang.System.getenv("PYTHONPATH") or "")


@functools.cache
def _missing(python: str, path: str) -> tuple[str, ...] | None:
    """Return the `NEEDED` modules that a Python lacks; None if it does not start."""
    command = [python, "-c", _LOOK, *NEEDED]
    environment = {**os.environ, "PYTHONPATH": path}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    except (OSError, UnicodeDecodeError, subprocess.CalledProcessError):
        return None
    # Take the last line with our mark: a `sitecustomize` module may print other lines.
    [line] = [line for line in done.stdout.splitlines() if line.startswith("missing")][-1:] or [""]
    return tuple(line.split()[1:])
