"""Start Python workers that have the heavy libraries loaded already.

Spark forks every Python worker from a daemon process, which imports next to nothing, because a
process must not fork once it has threads: so each new worker spends its first second importing
NumPy, pandas, Arrow and numba, at the same time as the other workers. Those libraries start
threads only for their own convenience (OpenBLAS's pool, jemalloc's background thread). With these
turned off, the daemon has one thread, loads everything once, and may fork as before.

It makes sure of that: where a second thread runs after all, threads cannot be counted, or a library
is missing, it becomes Spark's own daemon, which has loaded nothing.

Spark also lets workers import pyspark from a zip of sources, which Python compiles anew each
time. Where the same pyspark is installed beside it, that one is taken.

Spark starts this module by the setting `spark.python.daemon.module`; `SINGLE_THREADED` belongs into
the workers' environment then (`spark.executorEnv.*`).
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from pathlib import Path

#: What workers would import before or during their first batch.
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

#: What keeps the libraries from starting threads. They read it when they load, so it must be in
#: the environment that the daemon is started with.
SINGLE_THREADED = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

_THREADS = Path("/proc/self/task")


def preload() -> bool:
    """Load the libraries; True if all went well and a single thread runs, so that it may fork."""
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
    """Call something compiled: only then does numba load what its compiled code may need."""
    import pyarrow as pa

    from tidegate.settings.columns import hash_columns

    hash_columns([pa.array([0]), pa.array([""])], 1)


def without_zips(path: list[str], spark_home: str | None) -> list[str]:
    """Leave Spark's zips of sources out of a module path that has the same packages installed.

    Where `SPARK_HOME` is the installed package itself, as it is after `pip install pyspark`, both
    are the same version for certain.
    """
    if spark_home is None:
        return path
    home = Path(spark_home)
    site = home.parent
    if str(site) not in path or not (home / "worker.py").exists() or not (site / "py4j").exists():
        return path
    return [entry for entry in path if home / "python" / "lib" not in Path(entry).parents]


def main() -> None:
    """Be Spark's daemon, with the libraries loaded if that is safe."""
    if not preload():
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    from pyspark.daemon import manager

    # Workers collect garbage after every task. What is loaded here is none: leaving it out makes
    # that quick, and keeps its memory shared.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
