"""Counters that ride on the packed results and reach every progress report.

`observe` sums them per batch on the packed frame, a few rows, so they cost nothing, and Spark
delivers them in `lastProgress["observedMetrics"]` and to every listener.
"""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StructField

from tidegate.engine.base import FLOWS, GAUGES, MEASURES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

#: What the operator itself adds: bytes of state written, engines rebuilt from the state, shards.
CARRIER = ("state_bytes", "rebuilt", "shards")
COUNTERS = (*FLOWS, *GAUGES, *CARRIER)
#: What stays as it is while nothing happens.
_STANDING = (*GAUGES, "shards")

#: A join without a budget has none to report.
NO_BUDGET = "allowed"

FIELDS = [
    *(StructField(name, LongType(), name == NO_BUDGET) for name in COUNTERS),
    *(StructField(name, DoubleType(), False) for name in MEASURES),
]

_uses: dict[str, itertools.count[int]] = {}
#: What was last read of each join of a run: in which batch, and its gauges.
_last: OrderedDict[tuple[str, str], tuple[int, dict[str, Any]]] = OrderedDict()
#: So many joins of runs are remembered.
_MOST_READ = 1_000


def observe(packed: DataFrame, name: str | Observation, *, reports: bool = False) -> DataFrame:
    """Have Spark sum the counters of every batch under a name, and gather `reports` of shards.

    One query cannot hold two observations of one name, and two joins may meet in one query, so
    the second join that a program makes is `name-2`, the third `name-3`. An `Observation` (batch
    only: Spark's own rule) is used as it is.
    """
    sums = [F.sum(field.name).cast(field.dataType).alias(field.name) for field in FIELDS]
    if reports:
        said = F.when(F.col("report") != "", F.col("report"))
        sums.append(F.array_join(F.collect_list(said), "\n").alias("report"))
    if isinstance(name, str):
        use = next(_uses.setdefault(name, itertools.count(1)))
        name = name if use == 1 else f"{name}-{use}"
    return packed.observe(name, *sums)


def observed(progress: Any, name: str = "tidegate") -> dict[str, dict[str, Any]]:
    """Read the counters in a progress report (`query.lastProgress`, an event's), by join.

    A batch without input, which only moves a watermark, reaches no shard, and Spark reports nulls.
    Nothing has happened in it, so that flows are 0 here, and gauges are those of the batch before.
    They are None if that one was not read in this process.
    """
    found = {
        key: dict(_plain(row))
        for key, row in progress["observedMetrics"].items()
        if key == name or key.startswith(f"{name}-")
    }
    for key, values in found.items():
        _fill(values, (str(progress["runId"]), key), int(progress["batchId"]))
    return {key: {f.name: values[f.name] for f in FIELDS} for key, values in found.items()}


def _fill(values: dict[str, Any], join: tuple[str, str], batch: int) -> None:
    """Put in what is known of a batch that reached no shard."""
    if values["shards"] is None:
        before, gauges = _last.get(join, (None, {}))
        known = gauges if before in (batch - 1, batch) else {}
        values |= dict.fromkeys(values, 0) | {gauge: known.get(gauge) for gauge in _STANDING}
    _last[join] = batch, {gauge: values[gauge] for gauge in _STANDING}
    _last.move_to_end(join)
    if len(_last) > _MOST_READ:
        _last.popitem(last=False)


def reports(progress: Any) -> list[dict[str, Any]]:
    """Read what shards of joins in a pool have reported, of all joins in a query."""
    rows = [
        _plain(row)
        for key, row in progress["observedMetrics"].items()
        if key.startswith("tidegate")
    ]
    said = [text for row in rows for text in (row.get("report") or "").splitlines()]
    return [json.loads(text) for text in said]


def _plain(row: Any) -> Mapping[str, Any]:
    values = row if isinstance(row, Mapping) else row.asDict(recursive=True)
    if "schema" in values:
        # Connect leaves the row as JSON has it: values beside their schema.
        names = [field["name"] for field in values["schema"]["fields"]]
        values = dict(zip(names, values["values"], strict=True))
    return dict(values)
