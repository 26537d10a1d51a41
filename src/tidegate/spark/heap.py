"""Warn where Java's heap is too small for the rows that arrive."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

#: How often Java holds a packed row at the same time: in the shuffle, in the sort by shard, and in
#: the buffers between it and Python.
COPIES = 8

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)([kmgt]?)b?", re.IGNORECASE)
_LOCAL = re.compile(r"local(?:\[(\*|\d+)[^]]*\])?")


@dataclass(frozen=True)
class Heap:
    """The part of Java's heap that each of the tasks has that run at the same time.

    Attributes
    ----------
    size
        Its bytes.
    setting
        The setting of Spark that says how large the whole heap is.
    """

    size: int
    setting: str

    def warning(self, row: int, batch: int) -> str | None:
        """Return a warning if the largest packed row or the batch of a shard is too large."""
        if COPIES * row > self.size:
            what = f"a row of {_mb(row)} arrived, which Java copies up to {COPIES} times"
        elif batch > self.size:
            what = f"a batch brought rows of {_mb(batch)} to one shard"
        else:
            return None
        return (
            f"tidegate: {what}, and Java has {_mb(self.size)} of memory for each task. Raise "
            f"{self.setting}, or bring fewer rows in a batch (maxFilesPerTrigger or "
            "maxOffsetsPerTrigger of the source)."
        )


def heap_of(get: Callable[[str, str], str | None]) -> Heap | None:
    """Return the heap of each task, by the settings of a session.

    None if they do not say it, as on a standalone cluster without `spark.executor.cores`.
    """
    local = _LOCAL.fullmatch(str(get("spark.master", "")))
    setting = "spark.driver.memory" if local else "spark.executor.memory"
    size = _SIZE.fullmatch(str(get(setting, "1g")).strip())
    if local:
        cores = str(os.cpu_count()) if local[1] == "*" else local[1] or "1"
    else:
        cores = str(get("spark.executor.cores", ""))
    if size is None or not cores.isdigit() or int(cores) == 0:
        return None
    # Spark takes a number without a unit as MB.
    return Heap(int(size[1]) * _UNITS[size[2].lower() or "m"] // int(cores), setting)


def _mb(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MB"
