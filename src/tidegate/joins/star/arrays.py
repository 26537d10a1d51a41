"""Allocate, grow, fill and read the arrays of a star join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.joins.star import layout as star_layout
from tidegate.joins.star import loop as star
from tidegate.joins.star.ghosts import index_ghosts
from tidegate.joins.star.relation import FactIndex, for_ever
from tidegate.joins.star.spec import StarJoin
from tidegate.joins.window.spec import COMBINES, SHED_WHEN
from tidegate.kernel import layout
from tidegate.learning import outlook, rates, scores
from tidegate.learning.model_records import load_model, model_parts
from tidegate.policies import Policy

_FORMULAS = {
    scores.SIMPPROB: star_layout.SIMPPROB,
    scores.DIMPPROB: star_layout.DIMPPROB,
    scores.DGL: star_layout.DGL,
    scores.AUTO: star_layout.AUTO,
}
#: The largest number of ghosts, and the number of marks of their age, of levels and of trends.
_GHOSTS, _MARKS, _LEVELS, _TRENDS = 1024, 8, 12, 10
#: What is stored of a key's last arrival; see `kernel.layout.recent_type`.
_RECENT = ("time", "count", "gap")


class StarTables:
    """The arrays of one join."""

    def __init__(self, spec: StarJoin, index: FactIndex, memory: int | None) -> None:
        end = index.arrays.end[: index.count]
        ends = spec.dynamic or bool((end < for_ever(spec.unit)).any())
        self.rules = _rules(spec, memory, links_end=ends)
        n, pools, time = len(spec.streams), self.rules.pools, spec.unit.dtype
        never, ranked = self.rules.never, layout.ranked_type(time)
        scalars = np.zeros(1, star_layout.scalar_type(time))
        self.core = star_layout.Core(
            scalars=scalars,
            streams=np.zeros(n, star_layout.stream_type(time)),
            pools=np.zeros(pools, star_layout.POOL),
            slots=np.zeros(0, star_layout.slot_type(time)),
            free=np.empty(0, np.int32),
            groups=np.zeros((n, 0), star_layout.GROUP),
            heaps=np.empty((2 * pools, 0), np.int32),
            order=np.empty(0, layout.ranked_type(np.dtype(np.float64))),
            sizes=np.zeros(2 * pools, np.int64),
            due=np.empty((n, 0), ranked),
            ending=np.empty(0, ranked),
            cursor=np.zeros(n, np.int64),
            gone=np.empty(0, np.int64),
            memo=np.zeros(star_layout.MEMO, star_layout.memo_type(time)),
            learning=_learning(n, scalars, time, _GHOSTS if self.learns else 0),
        )
        self.core.pools["edge"] = -np.inf
        self.core.scalars["clock"] = self.core.streams["clock"] = never
        self._index = index
        self.fit()
        self.note_ends(self._to_end())

    @property
    def held(self) -> int:
        """Number of held rows."""
        return int(self.core.streams["held"].sum())

    @property
    def learns(self) -> bool:
        """True if ranks are learned from ghosts."""
        return bool(self.rules.kind == star_layout.AUTO)

    @property
    def nbytes(self) -> int:
        """Bytes of what is learned from ghosts and counted for it."""
        learning = self.core.learning
        names = ("recent", "worth", "cells", "returns", "factors", "ghosts", "trails")
        return sum(getattr(learning, name).nbytes for name in names) if self.learns else 0

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
            order=np.empty(size if self.learns else 0, core.order.dtype),
            due=_wider(core.due, 2 * size),
        )

    def allow(self, memory: int) -> None:
        """Set another memory budget."""
        self.rules = self.rules._replace(budgets=_budgets(memory, self.rules.pools))

    def fit(self) -> None:
        """Make a group for each key of the relation."""
        entries = self._index.entries
        if self.core.groups.shape[1] < entries:
            streams, old = self.core.groups.shape
            groups = np.zeros((streams, entries), star_layout.GROUP)
            groups["head"] = groups["ghost"] = -1
            groups[:, :old] = self.core.groups
            learning = self.core.learning._replace(groups=groups.reshape(-1))
            if self.learns:
                recent = np.zeros((streams, entries), learning.recent.dtype)
                recent["time"] = self.rules.never
                recent[:, :old] = learning.recent.reshape(streams, old)
                learning = learning._replace(recent=recent.reshape(-1))
            self.core = self.core._replace(groups=groups, learning=learning)

    # ---- links that end -----------------------------------------------------------------------

    def _to_end(self) -> NDArray[np.int64]:
        """Return the links that end after the clock."""
        end = self._index.arrays.end[: self._index.count]
        return np.flatnonzero((end > self.core.scalars["clock"]) & (end < self.rules.always))

    def note_ends(self, facts: NDArray[np.int64]) -> None:
        """Schedule the ends of these links, if the ranking depends on them."""
        if self.rules.kind < star_layout.DIMPPROB or self.learns or len(facts) == 0:
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
        names = ["stream", "key", "rate", "sum", *(_RECENT if self.learns else ())]
        columns: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
        for s, used in enumerate(self._index.used):
            groups = self.core.groups[s, :used]
            at = np.flatnonzero(groups["touched"] if changed else groups["rate"] > 0)
            columns["stream"].append(np.full(len(at), s, np.int64))
            columns["key"].append(self._index.arrays.hashes[s, at])
            columns["rate"].append(groups["rate"][at])
            columns["sum"].append(groups["sum"][at])
            for name in names[4:]:
                recent = self.core.learning.recent[name]
                columns[name].append(recent[s * self.core.groups.shape[1] + at])
        return pa.record_batch(
            [pa.array(np.concatenate(parts)) for parts in columns.values()], names
        )

    def load_rates(self, batch: pa.RecordBatch) -> None:
        """Set the arrival counts of keys, including keys that no link has now.

        The first records of `Auto` had no recent counts.
        """
        stream, key, rate, total, *recent = (column.to_numpy() for column in batch.columns)
        for s in range(len(self.core.groups)):
            mine = stream == s
            self._index.know(s, key[mine])
            self.fit()
            at = self._index.find(s, key[mine])
            self.core.groups["rate"][s, at] = rate[mine]
            self.core.groups["sum"][s, at] = total[mine]
            for name, values in zip(_RECENT, recent, strict=False):
                own = self.core.learning.recent[name]
                own[s * self.core.groups.shape[1] + at] = values[mine]

    # ---- what `Auto` has learned --------------------------------------------------------------

    def model(self) -> dict[str, pa.RecordBatch]:
        """Return what was learned from ghosts, and the heaps of the lowest ranks."""
        if not self.learns:
            return {}
        slots = self.core.slots
        lowest = np.flatnonzero((slots["state"] == star_layout.HELD) & (slots["queue"] >= 0))
        columns = {name: slots[name][lowest] for name in ("seq", "rank")}
        fields = ("hash", "seq", "time", "until", "side", "found", "marks")
        parts = model_parts(self.core.learning, fields)
        return parts | {"lowest": pa.record_batch(list(columns.values()), list(columns))}

    def load_model(self, parts: dict[str, pa.RecordBatch]) -> None:
        """Load what was learned from ghosts, after rates and rows were loaded."""
        core, learning = self.core, self.core.learning
        load_model(learning, parts)
        ghosts = learning.ghosts[: core.scalars["ghosts"][0]]
        for s in range(len(core.groups)):
            mine = ghosts["side"] == s
            ghosts["entry"][mine] = self._index.find(s, ghosts["hash"][mine])
        index_ghosts(core)
        seq, rank = (column.to_numpy() for column in parts["lowest"].columns)
        held = np.flatnonzero(core.slots["state"] == star_layout.HELD)
        held = held[np.argsort(core.slots["seq"][held])]
        there = np.isin(seq, core.slots["seq"][held])  # rows whose links are gone are not held
        seq, rank = seq[there], rank[there]
        slots = held[np.searchsorted(core.slots["seq"][held], seq)]
        core.slots["rank"][slots] = rank
        star.refill(core, self.rules, slots)

    def relearn(self) -> None:
        """Begin to learn, with counts from a record that has nothing else that was learned."""
        core, model = self.core, self.core.learning.model
        halflife = float(self.rules.halflife)
        model["last"] = clock = float(core.scalars["clock"][0])
        if halflife > 0 and core.scalars["started"][0]:
            # Arrivals have been counted since the first epoch, and fade.
            model["elapsed"] = min(clock - halflife * core.scalars["epoch"][0], 2.0 * halflife)


def _wider(array: NDArray[Any], width: int) -> NDArray[Any]:
    wide = np.empty((len(array), width), array.dtype)
    wide[:, : array.shape[1]] = array
    return wide


def _learning(
    streams: int, scalars: NDArray[Any], time: np.dtype[Any], ghosts: int
) -> star_layout.Learning:
    """Return the arrays of what is learned, from at most this many ghosts."""
    shape = (rates.STEPS, _LEVELS, _TRENDS) if ghosts else (1, 1, 1)
    learning = star_layout.Learning(
        scalars=scalars,
        clock=scalars["clock"],
        groups=np.zeros(0, star_layout.GROUP),
        recent=np.zeros(0, layout.recent_type(time)),
        model=np.zeros(1, layout.MODEL),
        worth=np.zeros((streams, *shape)),
        cells=np.zeros((streams, 2, *shape)),
        returns=np.zeros((streams, outlook.COUNTS, _MARKS, shape[1])),
        factors=np.zeros((3, 3, max(shape))),
        ghosts=np.empty(ghosts, star_layout.ghost_type(time)),
        trails=np.zeros((ghosts, _MARKS), star_layout.TRAIL),
    )
    learning.model["weight"] = 1.0
    return learning


def _rules(spec: StarJoin, memory: int | None, *, links_end: bool) -> star_layout.Rules:
    """Translate the settings of a join for the loop."""
    number, last = spec.unit.dtype.type, for_ever(spec.unit)
    n = len(spec.streams)
    first = spec.shed_when == "after-probe"
    lengths = [window or 0 for window in spec.windows]
    return star_layout.Rules(
        kind=star_layout.NOTHING if memory is None else kind_of(spec.policy),
        shed_when=SHED_WHEN.index(spec.shed_when),
        defer=spec.dynamic or not first,
        pools=spec.pools,
        budgets=_budgets(2**62 if memory is None else memory, spec.pools),
        windows=np.array(lengths, spec.unit.dtype),
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
        learning=star_layout.LearningRules(
            window_left=number(max(lengths)),
            window_right=number(max(lengths)),
            halflife=number(spec.halflife),
        ),
    )


def _budgets(memory: int, pools: int) -> NDArray[np.int64]:
    share, rest = divmod(memory, pools)
    return np.array([share + (pool < rest) for pool in range(pools)], np.int64)


def kind_of(policy: Policy) -> int:
    """Return the kind of ranking that a policy needs."""
    if policy.ranks == "row":
        return star_layout.FIXED
    return star_layout.RATE if policy.ranks == "key" else _FORMULAS[policy.formula]
