"""Allocate, grow, fill and read the arrays of a star join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.joins.star import layout as star_layout
from tidegate.joins.star import loop as star
from tidegate.joins.star.relation import FactIndex, for_ever
from tidegate.joins.star.spec import StarJoin
from tidegate.joins.window.spec import COMBINES, SHED_WHEN
from tidegate.kernel import layout
from tidegate.learning import scores
from tidegate.policies import Policy

_FORMULAS = {
    scores.SIMPPROB: star_layout.SIMPPROB,
    scores.DIMPPROB: star_layout.DIMPPROB,
    scores.DGL: star_layout.DGL,
    scores.AUTO: star_layout.AUTO,
}


class StarTables:
    """The arrays of one join."""

    def __init__(self, spec: StarJoin, index: FactIndex, memory: int | None) -> None:
        end = index.arrays.end[: index.count]
        ends = spec.dynamic or bool((end < for_ever(spec.unit)).any())
        self.rules = _rules(spec, memory, links_end=ends)
        n, pools, time = len(spec.streams), self.rules.pools, spec.unit.dtype
        never, ranked = self.rules.never, layout.ranked_type(time)
        self.core = star_layout.Core(
            scalars=np.zeros(1, star_layout.scalar_type(time)),
            streams=np.zeros(n, star_layout.stream_type(time)),
            pools=np.zeros(pools, star_layout.POOL),
            slots=np.zeros(0, star_layout.slot_type(time)),
            free=np.empty(0, np.int32),
            groups=np.zeros((n, 0), star_layout.GROUP),
            heaps=np.empty((2 * pools, 0), np.int32),
            sizes=np.zeros(2 * pools, np.int64),
            due=np.empty((n, 0), ranked),
            ending=np.empty(0, ranked),
            cursor=np.zeros(n, np.int64),
            gone=np.empty(0, np.int64),
            memo=np.zeros(star_layout.MEMO, star_layout.memo_type(time)),
        )
        self.core.scalars["clock"] = self.core.streams["clock"] = never
        self._index = index
        self.fit()
        self.note_ends(self._to_end())

    @property
    def held(self) -> int:
        """Number of held rows."""
        return int(self.core.streams["held"].sum())

    def make_room(self, newcomers: int, at_once: int) -> None:
        """Grow the slots so that the newcomers fit.

        `at_once` is the largest number of newcomers that are linked at the same time.
        """
        most = self.held + newcomers
        if self.rules.kind != star_layout.NOTHING:
            most = min(most, max(int(self.rules.budgets.sum()), self.held) + at_once)
        old, core = len(self.core.slots), self.core
        if old >= most + 2:
            return
        size = most + most // 4 + 64
        slots = np.zeros(size, core.slots.dtype)
        slots[:old] = core.slots
        slots["seq"][old:] = -1
        n = int(core.scalars["free"][0])
        free = np.empty(size, np.int32)
        free[size - old : size - old + n] = core.free[:n]
        free[: size - old] = np.arange(size - 1, old - 1, -1)
        core.scalars["free"] = n + size - old
        gone = np.empty(size, np.int64)
        gone[: len(core.gone)] = core.gone
        self.core = core._replace(
            slots=slots,
            free=free,
            gone=gone,
            heaps=_wider(core.heaps, size),
            due=_wider(core.due, 2 * size),
        )

    def allow(self, memory: int) -> None:
        """Set another memory budget."""
        self.rules = self.rules._replace(budgets=_budgets(memory, self.rules.pools))

    def fit(self) -> None:
        """Make a group for each key of the relation."""
        entries = self._index.entries
        if self.core.groups.shape[1] < entries:
            groups = np.zeros((len(self.core.groups), entries), star_layout.GROUP)
            groups["head"] = -1
            groups[:, : self.core.groups.shape[1]] = self.core.groups
            self.core = self.core._replace(groups=groups)

    # ---- links that end -----------------------------------------------------------------------

    def _to_end(self) -> NDArray[np.int64]:
        """Return the links that end after the clock."""
        end = self._index.arrays.end[: self._index.count]
        return np.flatnonzero((end > self.core.scalars["clock"]) & (end < self.rules.always))

    def note_ends(self, facts: NDArray[np.int64]) -> None:
        """Schedule the ends of these links, if the ranking depends on them."""
        if self.rules.kind < star_layout.DIMPPROB or len(facts) == 0:
            return
        ending = self.core.ending
        n = int(self.core.scalars["ending"][0])
        if len(ending) < n + len(facts):
            grown = np.empty(2 * (n + len(facts)), ending.dtype)
            grown[:n] = ending[:n]
            self.core = self.core._replace(ending=grown)
        star.note_ends(self.core, self._index.arrays, facts)

    def renumber(self) -> None:
        """Schedule all ends again after links were renumbered."""
        self.core.scalars["ending"] = 0
        self.note_ends(self._to_end())

    # ---- rows and records ---------------------------------------------------------------------

    def slots_of(self, stream: int) -> NDArray[np.int64]:
        """Return the slots of the held rows of one stream, ordered by row number."""
        slots = self.core.slots
        mine = np.flatnonzero((slots["state"] == star_layout.HELD) & (slots["stream"] == stream))
        return mine[np.argsort(slots["row"][mine], kind="stable")]

    def keep_rows(self, stream: int, first: int, stop: int) -> NDArray[np.int64]:
        """Renumber the held rows in [first, stop) from `first` on, and return their old numbers."""
        slots = self.slots_of(stream)
        rows = self.core.slots["row"][slots]
        mine = (rows >= first) & (rows < stop)
        self.core.slots["row"][slots[mine]] = first + np.arange(int(mine.sum()))
        return rows[mine].copy()

    def unmarked(self) -> NDArray[np.int64]:
        """Return the slots of rows that were admitted after the last mark and are held."""
        slots = self.core.slots
        return np.flatnonzero(
            (slots["state"] == star_layout.HELD) & (slots["seq"] >= self.core.scalars["mark"])
        )

    def learned(self) -> pa.RecordBatch:
        """Return the DGL state that changed since the mark, of rows that were held at the mark."""
        slots = self.core.slots
        old = (slots["seq"] >= 0) & (slots["seq"] < self.core.scalars["mark"])
        at = np.flatnonzero((slots["state"] == star_layout.HELD) & (slots["learned"] == 1) & old)
        names = ["seq", "gain", "last"]
        return pa.record_batch([pa.array(slots[name][at]) for name in names], names)

    def mark(self) -> None:
        """Set the mark: everything held now has been recorded."""
        core = self.core
        core.scalars["mark"] = core.scalars["seq"]
        core.scalars["gone"] = core.scalars["rewritten"] = 0
        core.slots["learned"] = 0
        core.groups["touched"] = 0

    def rates(self, *, changed: bool) -> pa.RecordBatch:
        """Return the arrival counts of all keys, or of those that arrived since the mark."""
        columns: dict[str, list[NDArray[Any]]] = {n: [] for n in ("stream", "key", "rate", "sum")}
        for s, used in enumerate(self._index.used):
            groups = self.core.groups[s, :used]
            at = np.flatnonzero(groups["touched"] if changed else groups["rate"] > 0)
            columns["stream"].append(np.full(len(at), s, np.int64))
            columns["key"].append(self._index.arrays.hashes[s, at])
            columns["rate"].append(groups["rate"][at])
            columns["sum"].append(groups["sum"][at])
        return pa.record_batch(
            [pa.array(np.concatenate(parts)) for parts in columns.values()], list(columns)
        )

    def load_rates(self, batch: pa.RecordBatch) -> None:
        """Set the arrival counts of keys, including keys that no link has now."""
        stream, key, rate, total = (column.to_numpy() for column in batch.columns)
        for s in range(len(self.core.groups)):
            mine = stream == s
            self._index.know(s, key[mine])
            self.fit()
            at = self._index.find(s, key[mine])
            self.core.groups["rate"][s, at] = rate[mine]
            self.core.groups["sum"][s, at] = total[mine]


def _wider(array: NDArray[Any], width: int) -> NDArray[Any]:
    wide = np.empty((len(array), width), array.dtype)
    wide[:, : array.shape[1]] = array
    return wide


def _rules(spec: StarJoin, memory: int | None, *, links_end: bool) -> star_layout.Rules:
    """Translate the settings of a join for the loop."""
    number, last = spec.unit.dtype.type, for_ever(spec.unit)
    n = len(spec.streams)
    first = spec.shed_when == "after-probe"
    return star_layout.Rules(
        kind=star_layout.NOTHING if memory is None else kind_of(spec.policy),
        shed_when=SHED_WHEN.index(spec.shed_when),
        defer=spec.dynamic or not first,
        pools=spec.pools,
        budgets=_budgets(2**62 if memory is None else memory, spec.pools),
        windows=np.array([window or 0 for window in spec.windows], spec.unit.dtype),
        lateness=number(spec.lateness),
        expires=np.array([window is not None or links_end for window in spec.windows], np.bool_),
        changing=spec.dynamic,
        halflife=number(spec.halflife),
        combine=COMBINES.index(spec.combine) if spec.weighed and n > 1 else -1,
        params=(*spec.params, 0.0, 0.0, 0.0)[:3],
        floor_weight=spec.policy.floor_weight,
        seq_weight=spec.policy.order_weight,
        never=number(-np.inf if spec.unit.kind == "real number" else layout.NEVER),
        always=number(last),
    )


def _budgets(memory: int, pools: int) -> NDArray[np.int64]:
    share, rest = divmod(memory, pools)
    return np.array([share + (pool < rest) for pool in range(pools)], np.int64)


def kind_of(policy: Policy) -> int:
    """Return the kind of ranking that a policy needs."""
    if policy.ranks == "row":
        return star_layout.FIXED
    return star_layout.RATE if policy.ranks == "key" else _FORMULAS[policy.formula]
