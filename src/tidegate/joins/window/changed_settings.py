"""Go on from a checkpoint with other settings: which may change, and how the state is adapted.

The state of a window join is mostly the held rows themselves, so most settings can change at a
restart. Held rows are ranked anew where their rank depends on the change, and what the policy
learned is dropped unless it still applies. The engine then sheds what no longer fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.engine.payload import sizes
from tidegate.engine.prepare import PREPARED, prepare, prepared_schema
from tidegate.engine.state_log import Replay, batch_of
from tidegate.joins.window.rules import TUPLE_OVERHEAD
from tidegate.joins.window.spec import WindowJoin
from tidegate.policies import Arrivals, ranks_of
from tidegate.settings.columns import as_floats
from tidegate.settings.schedules import Side

#: Settings that may change at a restart. Columns may be added, but not removed or changed.
CHANGEABLE = frozenset({"memory", "policy", "lateness", "within", "split", "cpu"})
#: Changes after which a policy learns anew.
_RESETTING = frozenset({"policy", "within", "split"})


def changeable(spec: WindowJoin, written_with: Mapping[str, Any]) -> Set[str]:
    """Return the names of settings in which a checkpoint may differ from a join."""
    now = spec.settings()
    names = CHANGEABLE | {n for n in {*now, *written_with} if n.startswith("policy's ")}
    sides = zip(written_with["columns"], now["columns"], strict=True)
    if all(set(before) <= set(columns) for before, columns in sides):
        names |= {"columns", "result columns"}
    return names


def keeps_learned(spec: WindowJoin, written_with: Mapping[str, Any]) -> bool:
    """Return True if what the policy learned before still applies."""
    now = spec.settings()
    changed = {n for n in {*now, *written_with} if now.get(n) != written_with.get(n)}
    if any(name in _RESETTING or name.startswith("policy's ") for name in changed):
        return False
    # A join without a budget learns nothing, and a sketch has a size that depends on the memory.
    without = now["memory"] is None or written_with["memory"] is None
    return not without and not (spec.counting == "sketch" and "memory" in changed)


def with_new_columns(log: Replay, spec: WindowJoin, written_with: Mapping[str, Any]) -> None:
    """Give the logged rows the columns of the join, with nulls in those that were added."""
    for at, side in enumerate(spec.sides):
        before = list(written_with["columns"][at])
        now = [f"{field.name}: {field.type}" for field in side.schema]
        if before == now:
            continue
        places = [before.index(text) if text in before else None for text in now]
        for parts in log.records:
            for name in [n for n in parts if n.partition("/")[0] in (f"held{at}", f"open{at}")]:
                parts[name] = _with_columns(parts[name], len(before), places, side.schema)


def _with_columns(
    batch: pa.RecordBatch, old: int, places: list[int | None], schema: pa.Schema
) -> pa.RecordBatch:
    """Replace the last `old` columns by those at the given places, or by nulls."""
    head = batch.num_columns - old
    columns, names = list(batch.columns[:head]), batch.schema.names[:head]
    for number, (place, field) in enumerate(zip(places, schema, strict=True)):
        nulls = place is None
        columns.append(
            pa.nulls(batch.num_rows, field.type) if nulls else batch.column(head + place)
        )
        names.append(f"c{number}")
    return pa.RecordBatch.from_arrays(columns, names)


def without_learned(log: Replay, head: dict[str, Any]) -> None:
    """Keep the rows of a log and its clocks only; take other values from the head of a new one."""
    kept = ("clock", "stream_clock", "seq", "budget_update", "place")
    log.head = {**head, **{name: log.head[name] for name in kept if name in log.head}}
    wanted = ("held0", "held1", "open0", "open1", "gone")
    log.records = [
        {name: batch for name, batch in parts.items() if name.partition("/")[0] in wanted}
        for parts in log.records
    ]


def with_own_columns(
    log: Replay, spec: WindowJoin, wanted: list[str], *, ranked_anew: bool
) -> None:
    """Compute the columns of held rows that the join logs and the earlier one did not.

    With `ranked_anew`, ranks are computed in any case.
    """
    for parts in log.records:
        for name in [n for n in parts if n.startswith("held")]:
            at = int(name[4])
            parts[name] = _completed(parts[name], spec, at, wanted, ranked_anew)


def _completed(
    batch: pa.RecordBatch, spec: WindowJoin, at: int, wanted: list[str], ranked_anew: bool
) -> pa.RecordBatch:
    side = spec.sides[at]
    width = len(side.schema)
    payload = pa.RecordBatch.from_arrays(batch.columns[-width:], schema=side.schema)
    known = {name: batch.column(name) for name in batch.schema.names[:-width]}
    given = {name: known[name].to_numpy() for name in ("key", "time", "seq")}
    for name in wanted:
        if name in known and not (ranked_anew and name in ("rank", "gain", "last")):
            given[name] = known[name].to_numpy()
        elif name == "size":
            given[name] = sizes_of(payload)
        elif name == "rank":
            given[name] = _ranks(spec, at, side, payload)
        elif name == "gain":
            given[name] = np.zeros(batch.num_rows)
        elif name == "last":
            given[name] = given["time"]
    own = pa.schema([(f"c{i}", field.type) for i, field in enumerate(side.schema)])
    rows = pa.RecordBatch.from_arrays(payload.columns, schema=own)
    return batch_of({name: given[name] for name in ("key", *wanted)}, rows)


def sizes_of(payload: pa.RecordBatch) -> Any:
    """Return the bytes that rows count for against a budget in bytes."""
    counted = TUPLE_OVERHEAD + sizes(payload) * 5 // 4
    return np.minimum(counted, np.iinfo(np.int32).max)


def _ranks(spec: WindowJoin, at: int, side: Side, payload: pa.RecordBatch) -> Any:
    """Return the ranks of held rows as if they had just arrived."""
    rows, _ = prepare(side, spec.unit, payload)
    weights = np.ones(rows.num_rows)
    if side.importance is not None:
        place = PREPARED + side.schema.get_field_index(side.importance)
        weights = as_floats(rows.column(place))
    if spec.policy.ranks != "row":
        return weights
    key, time, row_hash = (rows.column(i).to_numpy() for i in range(PREPARED))
    sides = np.full(rows.num_rows, at, np.int8)
    return ranks_of(spec.policy, Arrivals(time, sides, key, row_hash, weights, spec.seed))


def queued_rows(log: Replay, spec: WindowJoin) -> list[list[pa.RecordBatch]]:
    """Return the rows, by side, that wait in the queue of a slow CPU."""
    found: list[list[pa.RecordBatch]] = []
    for at, side in enumerate(spec.sides):
        schema = prepared_schema(side.schema, spec.unit)
        width = len(schema)
        waiting = []
        for batch in log.all(f"held{at}"):
            live = log.survivors(batch.column("seq").to_numpy())
            waiting.append(batch.filter(pa.array(live)))
        waiting.append(log.last(f"open{at}"))
        found.append(
            [pa.RecordBatch.from_arrays(b.columns[-width:], schema=schema) for b in waiting]
        )
    return found
