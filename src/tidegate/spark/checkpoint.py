"""Read what the checkpoint of a query holds: settings, and the rows that each shard keeps.

Spark's own reader of state gives the log of each shard as the last finished batch left it. The
query must not run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.engine.state_log import Replay
from tidegate.errors import TidegateError
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class StoredShard:
    """The state of one shard of one join.

    Attributes
    ----------
    operator, shard
        The number of the stateful operator in the query, and the group of the shard.
    version, settings
        The version of the layout, and the settings of the join that wrote the state.
    since
        The batch that wrote the shard's first state.
    records
        The log of its engine.
    """

    operator: int
    shard: int
    version: int
    settings: dict[str, Any]
    since: int
    records: list[bytes]

    @cached_property
    def _log(self) -> Replay:
        log = Replay(self.records)
        return Replay(log.inner) if log.inner else log  # an inner engine holds the join's rows

    @property
    def stored_bytes(self) -> int:
        """The bytes of the log."""
        return sum(map(len, self.records))

    @property
    def held_bytes(self) -> int:
        """The bytes of the held rows, without indexes."""
        return sum(rows.nbytes for rows in self.held())

    def streams(self) -> list[dict[str, Any]]:
        """Return a summary of the held rows of each stream: rows, ages and ranks."""
        return [
            {
                "operator": self.operator,
                "shard": self.shard,
                "stream": stream,
                "rows": rows.num_rows,
                **_ends(rows, "time", ("oldest", "newest")),
                **_ends(rows, "rank", ("lowest rank", "highest rank")),
            }
            for stream, rows in enumerate(self.held())
        ]

    def held(self) -> list[pa.Table]:
        """Return the held rows of each stream, in order of arrival.

        Columns of the input follow those of the engine, such as ``time``, ``seq`` and ``rank``.
        Rows that expired are still in the log. They are the oldest ones, and left out where the
        log says how many rows are held.
        """
        counts = self._log.head.get("held", [])
        names = self.settings.get("columns")
        found = []
        stream = 0
        while batches := self._log.all(f"held{stream}"):
            table = pa.concat_tables(
                (pa.Table.from_batches([batch]) for batch in batches), promote_options="default"
            )
            table = table.filter(pa.array(self._log.survivors(table["seq"].to_numpy())))
            if stream < len(counts) > 1 and "time" in table.column_names:
                order = pc.sort_indices(table, [("time", "descending"), ("seq", "descending")])
                table = table.take(order[: counts[stream]]).sort_by("seq")
            if isinstance(names, list) and len(names) > stream:
                table = _named(table, names[stream])
            found.append(table)
            stream += 1
        return found


def _ends(rows: pa.Table, column: str, names: tuple[str, str]) -> dict[str, Any]:
    """Return the lowest and the highest value of a column; None if there is none."""
    if column not in rows.column_names or rows.num_rows == 0:
        return dict.fromkeys(names)
    ends = pc.min_max(rows[column]).as_py()
    return dict(zip(names, (ends["min"], ends["max"]), strict=True))


def _named(table: pa.Table, columns: list[str]) -> pa.Table:
    """Give the columns of the input their own names; `columns` has them as "name: type"."""
    own = len(table.column_names) - len(columns)
    names = [text.rpartition(": ")[0] for text in columns]
    taken = [f"{name} (held)" if name in names else name for name in table.column_names[:own]]
    return table.rename_columns([*taken, *names])


def read_checkpoint(spark: SparkSession, path: str) -> list[StoredShard]:
    """Return the state of all shards of the joins of a query, from its checkpoint folder."""
    check_folder(path)
    found = [
        shard for operator in _operators(spark, path) for shard in _shards(spark, path, operator)
    ]
    if not found:
        raise TidegateError(
            f"the checkpoint {quoted(path)} has no state of a join of tidegate; give the "
            "checkpointLocation of a query with a streaming join that has finished a batch"
        )
    return found


def check_folder(path: str) -> None:
    """Refuse a local folder that is no checkpoint of a stateful query."""
    if "://" not in path and not (Path(path) / "state").is_dir():
        raise TidegateError(
            f"{quoted(path)} has no folder named state, so it is no checkpoint of a stateful "
            "query; give the checkpointLocation of a query with a streaming join that ran"
        )


def _operators(spark: SparkSession, path: str) -> list[int]:
    """Return the numbers of the stateful operators that may be joins of tidegate."""
    rows = spark.read.format("state-metadata").load(path).select("operatorId", "operatorName")
    names = {row["operatorId"]: row["operatorName"] for row in rows.distinct().collect()}
    return sorted(number for number, name in names.items() if "transformWithStateIn" in name)


def _shards(spark: SparkSession, path: str, operator: int) -> Iterator[StoredShard]:
    def read(variable: str) -> DataFrame:
        options: dict[str, Any] = {"operatorId": operator, "stateVarName": variable}
        return spark.read.format("statestore").options(**options).load(path)

    headers = {row["key"][0]: row["value"] for row in read("meta").collect()}
    log = read("log").select("key", "user_map_key.number", "user_map_value.*")
    values = log.orderBy("key", "number").toLocalIterator()
    records: dict[int, list[bytes]] = {shard: [] for shard in headers}
    for shard, rows in groupby(values, key=lambda row: row["key"][0]):
        first, after = headers[shard]["first"], headers[shard]["next"]
        parts: list[bytes] = []
        for row in rows:
            if first <= row["number"] < after:
                parts.append(bytes(row["data"]))
                if row["last"]:
                    records[shard].append(b"".join(parts))
                    parts = []
    for shard, header in sorted(headers.items()):
        settings = json.loads(header["settings"])
        yield StoredShard(
            operator, shard, header["version"], settings, header["since"], records[shard]
        )


def rows_table(shards: list[StoredShard]) -> pa.Table:
    """Return the held rows of all shards and streams as one table."""
    tables = []
    for shard in shards:
        for stream, rows in enumerate(shard.held()):
            where = {"operator": shard.operator, "shard": shard.shard, "stream": stream}
            for at, (name, value) in enumerate(where.items()):
                rows = rows.add_column(at, name, pa.array(np.full(rows.num_rows, value)))
            tables.append(rows)
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
