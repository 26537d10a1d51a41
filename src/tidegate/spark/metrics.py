"""Counters that travel with the packed results and reach every progress report.

`observe` sums them per batch on the packed frame, which has few rows, so they cost almost nothing.
Spark delivers the sums in `lastProgress["observedMetrics"]` and to every listener.
"""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, LongType, StructField

from tidegate.engine.counters import FLOWS, GAUGES, MEASURES, OPERATOR, reported_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

#: Values that keep their last value while nothing happens.
_PERSISTENT = (*GAUGES, "shards", "missed_low", "missed_high")

#: The one counter that may be null: a join without a budget has none to report.
NO_BUDGET = "allowed"
#: The one measure that may be null: the sample of a constrained join may give no upper bound.
NO_BOUND = "missed_high"

FIELDS = [
    *(StructField(name, LongType(), name == NO_BUDGET) for name in (*FLOWS, *GAUGES, *OPERATOR)),
    *(StructField(name, DoubleType(), name == NO_BOUND) for name in MEASURES),
]

#: How counters travel: as one column in the order of `FIELDS`, because each column costs time.
COUNTERS = StructField("counters", ArrayType(DoubleType()), True)

_uses: dict[str, itertools.count[int]] = {}
#: The last values read of each join of a run: the batch, and its gauges.
_last: OrderedDict[tuple[str, str], tuple[int, dict[str, Any]]] = OrderedDict()
#: How many joins of runs `_last` remembers.
_MOST_REMEMBERED = 1_000


def row_of(counters: Mapping[str, int | float]) -> list[float | None]:
    """Return the counters of a shard and batch as the column `COUNTERS` has them."""
    values = (counters.get(field.name, None if field.nullable else 0) for field in FIELDS)
    return [None if value is None else float(value) for value in values]


def observe(packed: DataFrame, name: str | Observation, kind: str) -> DataFrame:
    """Make Spark sum the counters of every batch under a name, and collect the shards' reports.

    Only the counters that a kind of join reports are summed (`Job.kind`).

    One query cannot hold two observations of one name, and two joins may be part of one query. The
    second join that a program makes is therefore called `name-2`, the third `name-3`. An
    `Observation` (which Spark allows for batch queries only) is used as it is.
    """
    own = reported_by(kind)
    sums = [
        F.sum(F.get(F.col("counters"), F.lit(i))).cast(field.dataType).alias(field.name)
        for i, field in enumerate(FIELDS)
        if field.name in own
    ]
    reported = F.when(F.col("report") != "", F.col("report"))
    sums.append(F.array_join(F.collect_list(reported), "\n").alias("report"))
    if isinstance(name, str):
        use = next(_uses.setdefault(name, itertools.count(1)))
        name = name if use == 1 else f"{name}-{use}"
    return packed.observe(name, *sums)


def observed(progress: Any, name: str = "tidegate") -> dict[str, dict[str, Any]]:
    """Read the counters in a progress report (`query.lastProgress`, or an event's), by join.

    A batch without input, which only moves a watermark, reaches no shard, and Spark reports nulls.
    Flows are then 0, and gauges are those of the batch before. Gauges are None if this process did
    not read the batch before. A constrained join also has gauges by stream and constraint
    (`ConstrainedEngine.details`), over all shards. After a restart with other settings, the first
    batch also has these, each as "old -> new", under ``"changed"``.
    """
    found = {
        key: dict(_plain(row))
        for key, row in progress["observedMetrics"].items()
        if key == name or key.startswith(f"{name}-")
    }
    for key, values in found.items():
        _fill(values, (str(progress["runId"]), key), int(progress["batchId"]))
    return {
        key: {f.name: values[f.name] for f in FIELDS if f.name in values} | _named_gauges(values)
        for key, values in found.items()
    }


def _named_gauges(values: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the gauges that shards report by name: sums of rows, the largest k, the mean use."""
    found = [json.loads(text) for text in (values.get("report") or "").splitlines()]
    shards = [report["gauges"] for report in found if "gauges" in report]
    merged: dict[str, Any] = {}
    for report in found:
        if "changed" in report:
            merged["changed"] = report["changed"]
    for name in shards[0] if shards else ():
        each = [shard[name] for shard in shards]
        if name.startswith("held of "):
            merged[name] = sum(each)
        elif name.startswith("k of "):
            used = [k for k in each if k is not None]
            merged[name] = max(used) if used else None
        else:
            merged[name] = sum(each) / len(each)
    return merged


def _fill(values: dict[str, Any], join: tuple[str, str], batch: int) -> None:
    """Fill in the values of a batch that reached no shard."""
    if values["shards"] is None:
        before, gauges = _last.get(join, (None, {}))
        known = gauges if before in (batch - 1, batch) else {}
        gauges = {gauge: known.get(gauge) for gauge in _PERSISTENT if gauge in values}
        values |= dict.fromkeys(values, 0) | gauges
    _last[join] = batch, {gauge: values[gauge] for gauge in _PERSISTENT if gauge in values}
    _last.move_to_end(join)
    if len(_last) > _MOST_REMEMBERED:
        _last.popitem(last=False)


def reports(progress: Any) -> list[dict[str, Any]]:
    """Return the reports of the shards of all joins in a query."""
    rows = [
        _plain(row)
        for key, row in progress["observedMetrics"].items()
        if key.startswith("tidegate")
    ]
    texts = [text for row in rows for text in (row.get("report") or "").splitlines()]
    return [json.loads(text) for text in texts]


def _plain(row: Any) -> Mapping[str, Any]:
    values = row if isinstance(row, Mapping) else row.asDict(recursive=True)
    if "schema" in values:
        # Connect passes the row on as JSON: values beside their schema.
        names = [field["name"] for field in values["schema"]["fields"]]
        values = dict(zip(names, values["values"], strict=True))
    return dict(values)
