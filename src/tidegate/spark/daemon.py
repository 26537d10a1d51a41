"""Start Python workers with the heavy libraries already imported.

Spark forks every Python worker from a daemon process. Spark's own daemon imports almost nothing,
because a process must not fork once it has threads. So each new worker spends its first second
importing NumPy, pandas, Arrow and numba, at the same time as the other workers. These libraries
only start optional threads (OpenBLAS's pool, jemalloc's background thread). With those turned off,
this daemon stays single-threaded, imports everything once, and can fork safely.

The daemon verifies this. If a second thread runs, if threads cannot be counted, or if a library is
missing, it replaces itself with Spark's own daemon.

Spark also puts a zip of pyspark's sources on the workers' module path, and Python compiles it anew
each time. Where the same pyspark is installed, the daemon uses the installed one.

The daemon also starts the broker of engine processes (`engine_processes.py`).

Spark starts this module through the setting `spark.python.daemon.module`. The environment in
`SINGLE_THREADED` must then be set for the workers (`spark.executorEnv.*`).
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from pathlib import Path

#: Modules that workers would import before or during their first batch.
PRELOAD = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pandas",
    "numba",
    "google.protobuf",
    "pyspark.worker",
    "pyspark.sql.streaming.proto.StateMessage_pb2",
    "tidegate.joins.window.engine",
)

#: Environment variables that keep the libraries from starting threads. The libraries read them on
#: import, so the daemon must be started with them.
SINGLE_THREADED = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

_THREADS = Path("/proc/self/task")


def preload() -> bool:
    """Import the libraries. Return True if all were found and only one thread runs."""
    if not _THREADS.is_dir():
        return False
    sys.path[:] = without_zips(sys.path, os.environ.get("SPARK_HOME"))
    try:
        for name in PRELOAD:
            importlib.import_module(name)
    except ImportError:
        return False
    _load_the_rest_of_numba()
    return len(list(_THREADS.iterdir())) == 1


def _load_the_rest_of_numba() -> None:
    """Call a compiled function: numba loads parts of itself only then."""
    import pyarrow as pa

    from tidegate.settings.columns import hash_columns

    hash_columns([pa.array([0]), pa.array([""])], 1)


def without_zips(path: list[str], spark_home: str | None) -> list[str]:
    """Remove Spark's zips of sources from a module path that has the same packages installed.

    The versions are certainly equal where `SPARK_HOME` is the installed package itself, as after
    `pip install pyspark`.
    """
    if spark_home is None:
        return path
    home = Path(spark_home)
    site = home.parent
    if str(site) not in path or not (home / "worker.py").exists() or not (site / "py4j").exists():
        return path
    return [entry for entry in path if home / "python" / "lib" not in Path(entry).parents]


def main() -> None:
    """Run as Spark's daemon, with the libraries imported if that is safe."""
    if not preload():
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    from pyspark.daemon import manager

    from tidegate.spark import engine_processes

    # Workers collect garbage after every task. Freezing excludes the imported modules from that:
    # collection stays fast, and their memory stays shared between the processes.
    gc.collect()
    gc.freeze()
    engine_processes.start()
    manager()


if __name__ == "__main__":
    main()
