"""The queue of victims in the state log: the rank that each candidate was last given.

Where ranks move, the next victim depends on when ranks were last updated. These ranks are part of
the state, so that neither the division into batches nor a restart changes the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.kernel import layout


class Candidates:
    """The logged part of a queue whose ranks move; empty for other queues."""

    def __init__(self, rules: layout.Rules) -> None:
        self._pools = rules.pools
        self._moves = rules.kind in (layout.BY_LIFE, layout.BY_SCORE)
        self._of_tuples = rules.kind == layout.BY_SCORE
        #: By slot or group: the logged sequence number and rank.
        self._seq = np.empty(0, np.int64)
        self._rank = np.empty(0)

    def head(self, core: layout.Core) -> dict[str, Any]:
        """Return up to which rank candidates are near, and how often the queue was used since."""
        if not self._moves:
            return {}
        edges = [[float(edge["rank"]), int(edge["seq"])] for edge in core.edge]
        return {"edge": edges, "uses": core.pools["uses"].tolist()}

    def record(self, core: layout.Core, *, changed: bool) -> dict[str, pa.RecordBatch]:
        """Return the rank of each candidate, or of those whose rank differs from the logged one."""
        if not self._moves:
            return {}
        live = self._living(core)
        more = len(core.slots if self._of_tuples else core.groups) - len(self._seq)
        self._seq = np.append(self._seq, np.full(more, -1))
        self._rank = np.append(self._rank, np.zeros(more))
        item = live["item"]
        if changed:
            new = (self._seq[item] != live["seq"]) | (self._rank[item] != live["rank"])
            live, item = live[new], item[new]
        self._seq[item], self._rank[item] = live["seq"], live["rank"]
        columns = {"seq": live["seq"].copy(), "rank": live["rank"].copy()}
        if not self._of_tuples:
            columns |= {"key": core.hashes[item >> 1], "side": (item & 1).astype(np.int8)}
        return {"queue": pa.RecordBatch.from_pydict(columns)}

    def load(
        self, core: layout.Core, batches: Sequence[pa.RecordBatch], head: dict[str, Any]
    ) -> None:
        """Put candidates back into the part of the queue where they were, as logged."""
        if not self._moves:
            return
        live = self._living(core)
        for side in range(2):
            own = np.flatnonzero(self._sides(core, live) == side)
            item = live["item"][own]
            known = core.slots["seq"][item] if self._of_tuples else core.hashes[item >> 1]
            order = np.argsort(known)
            own, known = own[order], known[order]
            for batch in batches if len(own) else ():
                wanted = batch.column("seq" if self._of_tuples else "key").to_numpy()
                at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
                rows = known[at] == wanted
                if not self._of_tuples:
                    rows &= batch.column("side").to_numpy() == side
                for name in ("seq", "rank"):
                    live[name][own[at[rows]]] = batch.column(name).to_numpy()[rows]
        pool = self._sides(core, live) if self._pools == 2 else np.zeros(len(live), np.int64)
        for p in range(self._pools):
            self._fill(core, p, live[pool == p], *head["edge"][p])
        core.pools["uses"] = head["uses"]
        self.record(core, changed=False)

    def _fill(
        self, core: layout.Core, pool: int, live: NDArray[np.void], rank: float, seq: int
    ) -> None:
        """Put candidates up to the edge into the line of joiners, and the others into `far`."""
        near = (live["rank"] < rank) | ((live["rank"] == rank) & (live["seq"] <= seq))
        close, rest = np.sort(live[near], order=("rank", "seq")), live[~near]
        core.joiners[pool, ::-1][: len(close)] = close
        core.far[pool, : len(rest)] = rest
        own = core.pools[pool]
        own.near_from = own.near_to = own.joiners = own.line_from = 0
        own.line_to, own.far = len(close), len(rest)
        core.edge[pool]["rank"], core.edge[pool]["seq"] = rank, seq

    def _sides(self, core: layout.Core, live: NDArray[np.void]) -> NDArray[np.int64]:
        item = live["item"]
        group = core.slots["group"][item] if self._of_tuples else item
        return group & 1

    def _living(self, core: layout.Core) -> NDArray[np.void]:
        """Return all candidates that are still alive."""
        parts = []
        for pool in range(self._pools):
            own = core.pools[pool]
            parts.append(core.near[pool, own.near_from : own.near_to])
            parts.append(core.joiners[pool, : own.joiners])
            parts.append(core.joiners[pool, ::-1][own.line_from : own.line_to])
            parts.append(core.far[pool, : own.far])
        queued: NDArray[np.void] = np.concatenate(parts)
        if self._of_tuples:
            alive = core.slots["seq"][queued["item"]] == queued["seq"]
        else:
            group = core.groups[queued["item"]]
            alive = (group["count"] > 0) & (group["life"] == queued["life"])
        found: NDArray[np.void] = queued[alive]
        return found
