"""Start Python quickly for Spark's processes on this machine.

When a streaming query starts, Spark starts a helper process on the driver and waits ten seconds for
it to connect; the limit is fixed in Spark's code. Spark puts zips of pyspark's sources first on the
module path, and Python compiles them anew each time. That takes 1.5 s on an idle machine, against
0.4 s for the installed modules, and on a busy machine it can exceed the limit.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from pathlib import Path

import pyspark

from tidegate.kernel.user_folders import cache_folders, write_private
from tidegate.spark.daemon import without_zips as path_without_zips

_WRAPPER = """\
#!/bin/sh
# Python for Spark, without Spark's zips of packages that are installed beside it.
set -f
kept=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
    "$SPARK_HOME"/python/lib/*.zip) ;;
    *) kept=$kept${{kept:+:}}$entry ;;
    esac
done
PYTHONPATH=$kept
export PYTHONPATH
exec {python} "$@"
"""


def without_zips(python: str) -> str:
    """Return a script that runs this Python as Spark would, but without Spark's zips.

    Return the argument unchanged if it is another Python, if `SPARK_HOME` is not the installed
    pyspark, or if no script can be written.
    """
    home = Path(str(pyspark.__file__)).parent
    zips = [str(path) for path in (home / "python" / "lib").glob("*.zip")]
    spark_home = os.environ.get("SPARK_HOME", str(home))
    if (
        python != sys.executable
        or path_without_zips([*zips, *sys.path], spark_home)[:1] == zips[:1]
    ):
        return python
    script = _WRAPPER.format(python=shlex.quote(python))
    name = f"python-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    for folder in cache_folders():
        path = folder / name / "bin" / "python"
        try:
            write_private(folder, path, script.encode(), 0o700)
        except OSError:
            continue
        if os.access(path, os.X_OK):  # some file systems forbid execution
            return str(path)
    return python
