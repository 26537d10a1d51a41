"""The queue of victims in the state log, where ranks move.

The next victim depends on when ranks were last computed. These ranks and the slices (see
`slices.py`) are part of the state, so that neither the division into batches nor a restart changes
the result. There is nothing to log while the rank of every row is computed for each choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.kernel import layout

#: Fields of a slice that are logged, besides its side.
_SLICE = ("first", "top", "rank", "base")


class Candidates:
    """The logged part of a queue with slices; empty for other queues."""

    def __init__(self, rules: layout.Rules) -> None:
        self._pools = rules.pools
        #: By slot: the logged sequence number and rank.
        self._seq = np.empty(0, np.int64)
        self._rank = np.empty(0)

    def head(self, core: layout.Core) -> dict[str, Any]:
        """Return the numbers of each pool and side; nothing if no pool has slices."""
        if not core.pools["sliced"].any():
            return {}
        pools = {name: core.pools[name].tolist() for name in ("sliced", "uses", "at")}
        noted = [
            core.noted[pool, : core.pools[pool].noted][["seq", "rank"]].tolist()
            for pool in range(self._pools)
        ]
        return {"queue": pools | {"pushed": core.sides["pushed"].tolist(), "noted": noted}}

    def record(self, core: layout.Core, *, changed: bool) -> dict[str, pa.RecordBatch]:
        """Return the slices, and the rank of each row, or of those whose rank has changed."""
        if not core.pools["sliced"].any():
            return {}
        live = np.concatenate([self._living(core, side) for side in range(2)])
        more = len(core.slots) - len(self._seq)
        self._seq = np.append(self._seq, np.full(more, -1))
        self._rank = np.append(self._rank, np.zeros(more))
        slot = live["item"]
        if changed:
            new = (self._seq[slot] != live["seq"]) | (self._rank[slot] != live["rank"])
            live, slot = live[new], slot[new]
        self._seq[slot], self._rank[slot] = live["seq"], live["rank"]
        ranks = {"seq": live["seq"].copy(), "rank": live["rank"].copy()}
        own = [core.slices[side, : core.sides[side].slices] for side in range(2)]
        slices = {"side": np.repeat(np.arange(2, dtype=np.int8), [len(part) for part in own])}
        slices |= {name: np.concatenate([part[name] for part in own]) for name in _SLICE}
        return {
            "queue": pa.RecordBatch.from_pydict(ranks),
            "slices": pa.RecordBatch.from_pydict(slices),
        }

    def load(
        self,
        core: layout.Core,
        ranks: Sequence[pa.RecordBatch],
        slices: pa.RecordBatch | None,
        head: dict[str, Any],
    ) -> None:
        """Put all rows, which must be in order of arrival, into the slices in which they were."""
        queue = head.get("queue")
        if queue is None or slices is None or "noted" not in queue:
            return  # no pool had slices, or other ones than now: rows are divided again
        for side in range(2):
            nodes = self._living(core, side).copy()
            for batch in ranks:
                seq, rank = (column.to_numpy() for column in batch.columns)
                at = np.searchsorted(nodes["seq"], seq)
                known = np.flatnonzero(at < len(nodes))
                known = known[nodes["seq"][at[known]] == seq[known]]
                nodes["rank"][at[known]] = rank[known]
            mine = slices.column("side").to_numpy() == side
            own = core.slices[side, : mine.sum()]
            for name in _SLICE:
                own[name] = slices.column(name).to_numpy()[mine]
            place = np.searchsorted(own["first"], nodes["seq"], "right") - 1
            own["length"] = np.bincount(place, minlength=len(own))
            own["start"] = np.cumsum(own["length"]) - own["length"]
            # A sorted list is a heap.
            order = np.lexsort((nodes["seq"], nodes["rank"], place))
            core.nodes[side, : len(nodes)] = nodes[order]
            core.sides[side].slices = len(own)
        core.sides["pushed"] = queue["pushed"]
        for name in ("sliced", "uses", "at"):
            core.pools[name] = queue[name]
        for pool, noted in enumerate(queue["noted"]):
            self._gather(core, pool)
            slots = {int(core.slots[i].seq): i for i in np.flatnonzero(core.slots["seq"] >= 0)}
            live = [(rank, seq, slots[seq], 0) for seq, rank in noted if seq in slots]
            core.noted[pool, : len(live)] = live
            core.pools[pool].noted = len(live)
        self.record(core, changed=False)

    def _gather(self, core: layout.Core, pool: int) -> None:
        """Make the heap of the closed slices of a pool."""
        n = 0
        for side in (pool,) if self._pools == 2 else (0, 1):
            for at, own in enumerate(core.slices[side, : core.sides[side].slices - 2]):
                item = side * layout.MOST_SLICES + at
                core.tops[pool, n] = (own["rank"], own["top"], item, 0)
                n += 1
        core.tops[pool, :n] = np.sort(core.tops[pool, :n], order=("rank", "seq"))
        core.pools[pool].tops = n

    def _living(self, core: layout.Core, side: int) -> NDArray[np.void]:
        """Return the nodes of one side's held rows."""
        own = core.slices[side, : core.sides[side].slices]
        parts = [core.nodes[side, each["start"] : each["start"] + each["length"]] for each in own]
        nodes: NDArray[np.void] = np.concatenate(parts)
        alive: NDArray[np.void] = nodes[core.slots["seq"][nodes["item"]] == nodes["seq"]]
        return alive
