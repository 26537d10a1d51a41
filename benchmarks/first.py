"""The first batch of a query in a fresh process: `python -m benchmarks.first WAY FOLDER`.

It prints one line of JSON: the time Spark took to start and, for the first query and a second one,
the time of the first batch and the time from building the query to the end of that batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import queries

WAYS = {
    "tidegate": queries.tidegate("tidegate, exact", within="20 seconds"),
    "spark": queries.native("Spark's own", queries.HDFS_BACKED, "20 seconds"),
}


def main(way: str, folder: Path) -> dict[str, Any]:
    """Run two queries, one after the other."""
    start = time.perf_counter()
    with queries.spark() as spark:
        started = time.perf_counter() - start
        cold, warm = (queries.run(spark, WAYS[way], folder) for _ in range(2))
    return {
        "session": started,
        **{
            name: {"batch": ran.seconds[0], "whole": ran.until_first, "results": ran.results[0]}
            for name, ran in (("cold", cold), ("warm", warm))
        },
    }


def in_new_process(way: str, folder: Path, **environment: str) -> dict[str, Any]:
    """Run `main` in a new process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first", way, str(folder)],
        cwd=Path(__file__).parents[1],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
