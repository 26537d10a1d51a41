"""`tidegate state`: show what the checkpoint of a query holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from tidegate.cli.screen import Screen
from tidegate.errors import TidegateError
from tidegate.spark.checkpoint import StoredShard, check_folder, read_checkpoint, rows_table
from tidegate.spark.session import session


def main(checkpoint: str, rows: Path | None, *, as_json: bool) -> None:
    """Print the settings and the state of a checkpoint; write the held rows to a file if asked."""
    if rows is not None and rows.suffix != ".parquet":
        raise TidegateError(f'--rows takes the name of a ".parquet" file, not "{rows}"')
    check_folder(checkpoint)
    with Screen().waiting("Reading the state"):
        shards = read_checkpoint(session("tidegate state", master="local[1]"), checkpoint)
    if rows is not None:
        pq.write_table(rows_table(shards), rows)
    (_print_json if as_json else _print_tables)(shards)


def _print_json(shards: list[StoredShard]) -> None:
    joins = [
        {
            "operator": number,
            "settings": own[0].settings,
            "version": own[0].version,
            "shards": [_totals(shard) for shard in own],
            "streams": [stream for shard in own for stream in shard.streams()],
        }
        for number, own in _by_join(shards).items()
    ]
    print(json.dumps({"joins": joins}, indent=2))


def _print_tables(shards: list[StoredShard]) -> None:
    console = Console()
    for number, own in _by_join(shards).items():
        settings = {"state version": own[0].version, **own[0].settings}
        _show(
            console,
            f"Settings of join {number}",
            [{"setting": n, "value": json.dumps(v)} for n, v in settings.items()],
        )
        _show(console, "Shards", [_totals(shard) for shard in own])
        _show(console, "Held rows", [stream for shard in own for stream in shard.streams()])


def _by_join(shards: list[StoredShard]) -> dict[int, list[StoredShard]]:
    found: dict[int, list[StoredShard]] = {}
    for shard in shards:
        found.setdefault(shard.operator, []).append(shard)
    return found


def _totals(shard: StoredShard) -> dict[str, Any]:
    return {
        "shard": shard.shard,
        "rows": sum(stream["rows"] for stream in shard.streams()),
        "bytes of rows": shard.held_bytes,
        "bytes stored": shard.stored_bytes,
        "records": len(shard.records),
        "since batch": shard.since,
    }


def _show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    console.print(table)
