"""Encode state records: a JSON head and named Arrow record batches, never pickle."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

#: Columns of records that were stored under other names, and their names now.
_RENAMED = {"tie": "row_hash", "lot": "random_word"}


def to_bytes(head: dict[str, Any], parts: dict[str, pa.RecordBatch]) -> bytes:
    """Encode one record."""
    sink = pa.BufferOutputStream()
    streams = []
    for batch in parts.values():
        start = sink.tell()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        streams.append((start, sink.tell() - start))
    text = json.dumps({"head": head, "parts": dict(zip(parts, streams, strict=True))}).encode()
    return b"".join((len(text).to_bytes(4, "little"), text, sink.getvalue()))


def in_pieces(name: str, batches: Iterable[pa.RecordBatch]) -> dict[str, pa.RecordBatch]:
    """Name the record batches of a part that may be too large for one."""
    return {f"{name}/{i}": batch for i, batch in enumerate(batches)}


def pieces_of(parts: dict[str, pa.RecordBatch], name: str) -> list[pa.RecordBatch]:
    """Return the record batches of one part, in order."""
    return [batch for key, batch in parts.items() if key.partition("/")[0] == name]


def from_bytes(record: bytes) -> tuple[dict[str, Any], dict[str, pa.RecordBatch]]:
    """Decode a record: return the head and the parts that `to_bytes` was given."""
    size = int.from_bytes(record[:4], "little")
    described = json.loads(record[4 : 4 + size])
    body = pa.py_buffer(record).slice(4 + size)
    parts = {}
    for name, (start, length) in described["parts"].items():
        with pa.ipc.open_stream(body.slice(start, length)) as reader:
            batch = reader.read_next_batch()
        parts[name] = batch.rename_columns(
            [_RENAMED.get(each, each) for each in batch.schema.names]
        )
    return described["head"], parts
