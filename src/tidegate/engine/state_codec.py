"""Encode state records: a JSON head and named Arrow record batches, never pickle.

Every record carries the version of its format. Records of older versions are translated when they
are read, here and nowhere else, so that engines only know the names of the present version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.settings.values import quoted

#: The version of the records that are written. Version 0 are records that carry none.
VERSION = 2
#: The part of a record that contains a record of another engine, and its column.
INNER = "inner"

Parts = dict[str, pa.RecordBatch]

#: Names in version 0, and the same in version 1.
_HEAD_0 = {
    "heard": "stream_clock",
    "order": "budget_update",
    "lots": "sampler",
    "told": "reported",
    "census": "refit",
}
_PARTS_0 = {"tickets": "inclusions", "queue0": "held0", "queue1": "held1", "rows": "held0"}
_COLUMNS_0 = {"tie": "row_hash", "lot": "random_word", "number": "seq"}
#: The values of a checkpoint's setting `moment` in version 0, and those of `shed_when` now.
_SHED_WHEN_0 = {
    "probe-first": "after-probe",
    "evict-first": "before-probe",
    "shed-first": "before-arrival",
}
#: Fields of a head in version 0 that said that a part replaces the same part of earlier records.
_REPLACED_0 = {"all_rates": "rates", "all_counts": "counts"}
#: Parts with the rates of keys, and columns that later versions have after those of version 1.
_RATES_1 = {"rates", "all_rates"}
_GAPS_1 = {"left_count": "left_gap", "right_count": "right_gap", "count": "gap"}


def to_bytes(head: Mapping[str, Any], parts: Mapping[str, pa.RecordBatch]) -> bytes:
    """Encode one record."""
    sink = pa.BufferOutputStream()
    streams = []
    for batch in parts.values():
        start = sink.tell()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        streams.append((start, sink.tell() - start))
    places = dict(zip(parts, streams, strict=True))
    text = json.dumps({"version": VERSION, "head": head, "parts": places}).encode()
    return b"".join((len(text).to_bytes(4, "little"), text, sink.getvalue()))


def from_bytes(record: bytes) -> tuple[dict[str, Any], Parts]:
    """Decode a record: return its head and parts, in the names of the present version."""
    if record[4:5] != b"{":
        return _nested_0(record)
    size = int.from_bytes(record[:4], "little")
    described = json.loads(record[4 : 4 + size])
    version = described.get("version", 0)
    check_version(version, VERSION, "the stored state", "start with a new checkpoint location")
    body = pa.py_buffer(record).slice(4 + size)
    parts = {}
    for name, (start, length) in described["parts"].items():
        with pa.ipc.open_stream(body.slice(start, length)) as reader:
            parts[name] = reader.read_next_batch()
    head = described["head"]
    if version == 0:
        head, parts = _renamed_0(head, parts)
    if version < 2:
        for name in _RATES_1 & parts.keys():
            parts[name] = _with_gaps_1(parts[name])
    return head, parts


def renamed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a checkpoint stores, in the names of the present version."""
    found = dict(settings)
    if "moment" in found:
        moment = found.pop("moment")
        found["shed_when"] = _SHED_WHEN_0.get(moment, moment)
    return found


def check_version(found: Any, known: int, what: str, instead: str) -> None:
    """Raise an error if something was stored in a format that is newer than the known one."""
    if not isinstance(found, int) or not 0 <= found <= known:
        raise TidegateError(
            f"{what} has version {quoted(found)} of its format, and this tidegate reads versions "
            f"up to {known}: a newer tidegate wrote it. Use that tidegate, or {instead}"
        )


def wrapped(record: bytes) -> pa.RecordBatch:
    """Return a record of another engine as a part."""
    return pa.record_batch([pa.array([record], pa.large_binary())], [INNER])


def unwrapped(part: pa.RecordBatch) -> bytes:
    """Return the record that `wrapped` was given."""
    record: bytes = part.column(0)[0].as_py()
    return record


def _renamed_0(head: dict[str, Any], parts: Parts) -> tuple[dict[str, Any], Parts]:
    """Translate a record of version 0."""
    replaced = {part: flag for flag, part in _REPLACED_0.items() if head.pop(flag, False)}
    head = {_HEAD_0.get(name, name): value for name, value in head.items()}
    found = {}
    for name, batch in parts.items():
        if name == "join":
            found[INNER] = batch
            continue
        columns = [_COLUMNS_0.get(column, column) for column in batch.schema.names]
        found[replaced.get(name) or _PARTS_0.get(name, name)] = batch.rename_columns(columns)
    return head, found


def _with_gaps_1(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the mean gaps between arrivals to the rates of version 1, as unknown: they are zero."""
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        columns[name] = column
        if name in _GAPS_1:
            columns[_GAPS_1[name]] = pa.array(np.zeros(batch.num_rows))
    return pa.record_batch(list(columns.values()), list(columns))


def _nested_0(record: bytes) -> tuple[dict[str, Any], Parts]:
    """Translate a record of version 0 of a queue: its own record, if any, then the join's."""
    size = int.from_bytes(record[:8], "little")
    head, parts = from_bytes(record[8 : 8 + size]) if size else ({}, {})
    return head, parts | {INNER: wrapped(record[8 + size :])}
