"""Python for Spark's processes on this machine, started so that they are quick to connect.

A streaming query begins with a helper process on the driver's side, and Spark waits ten seconds
for it to connect back: a number in its code, not a setting. Spark puts zips of pyspark's sources
first on the module path, and Python compiles them anew each time: 1.5 s on an idle machine,
against 0.4 s for the same modules where they are installed. On a busy machine that decides.
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
    """Give a script that runs this very Python as Spark would, without Spark's zips.

    Any other Python is given back as it is, as is this one where `SPARK_HOME` is not the installed
    pyspark, or where no script can be written.
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
        if os.access(path, os.X_OK):  # some file systems let nothing run
            return str(path)
    return python
