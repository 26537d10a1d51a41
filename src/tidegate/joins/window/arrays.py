"""Create, grow, fill and read the arrays of a window join."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.joins.window import held_rows
from tidegate.joins.window import keys as key_table
from tidegate.kernel import layout, sorting
from tidegate.learning import outlook, scores
from tidegate.learning.ghosts import index_ghosts
from tidegate.learning.model_records import load_model, model_parts

#: Number of ages at which a ghost notes its results so far.
_MARKS = 8
#: What is stored of a key's last arrival; see `layout.recent_type`.
_RECENT = ("time", "count", "gap")


class Tables:
    """The arrays of one join, which grow as needed."""

    def __init__(
        self,
        time: np.dtype[Any],
        rules: layout.Rules,
        curves: tuple[Sequence[float], Sequence[float]] = ((0.0,), (0.0,)),
        columns: int = 0,
    ) -> None:
        self._rules = rules
        self._columns = columns  # number of values that the condition compares
        self._sketches = bool(rules.learn) and rules.counting == layout.SKETCHED
        self._rings = bool(rules.learn) and rules.counting == layout.IN_WINDOW
        scored = rules.kind == layout.BY_SCORE
        self._meets = rules.checked and scored and rules.formula in scores.MEETING
        self._keeps = scored and rules.formula == scores.IJOIN and rules.params[5] != 0
        self._interned = 0  # number of new keys in the last batch
        self._changed = np.zeros(0, np.bool_)  # by entry: whether rates may have changed
        lowest = -np.inf if time.kind == "f" else layout.NEVER
        none, short = np.empty(0, np.int64), np.empty(0, np.int32)
        ranked, timed = layout.ranked_type(np.dtype(np.float64)), layout.ranked_type(time)
        self.core = layout.Core(
            scalars=np.zeros(1, layout.SCALARS),
            pools=np.zeros(2, layout.POOL),
            sides=np.zeros(2, layout.SIDE),
            clock=np.full(1, lowest, time),
            stream_clock=np.full(2, lowest, time),
            floor=np.zeros(2),
            slots=np.empty(0, layout.slot_type(time)),
            free=short,
            groups=np.empty(0, layout.GROUP),
            hashes=np.empty(0, np.uint64),
            table=np.zeros(2, np.uint64),
            free_entries=short,
            idle=short,
            head_end=np.zeros(2, ranked),
            sorted_head=np.empty((rules.pools, 0), ranked),
            late=np.empty((rules.pools, 0), ranked),
            unsorted_tail=np.empty((rules.pools, 0), ranked),
            nodes=np.empty((2, 0), ranked),
            slices=np.zeros((2, layout.MOST_SLICES if scored else 1), layout.slice_type(time)),
            tops=np.empty((rules.pools, 2 * layout.MOST_SLICES if scored else 0), ranked),
            noted=np.empty((rules.pools, layout.MOST_NOTED), ranked),
            bounds=np.empty(sorting.PARTS),
            tally=np.empty(sorting.CELLS + sorting.PARTS, np.int64),
            due=np.empty((2, 0), layout.DUE),
            ends=np.full(2, lowest, time),
            due_heap=np.empty((2, 128), timed),
            gone=none,
            fresh=none,
            model=np.zeros(1, layout.MODEL),
            worth=_curves(curves)[:, :, np.newaxis, np.newaxis],
            cells=np.zeros((2, 2, 1, 1, 1)),
            returns=np.zeros((2, outlook.COUNTS, 1, 1)),
            factors=np.zeros((3, 3, 1)),
            ghosts=np.empty(0, layout.ghost_type(time)),
            trails=np.empty((0, 1), layout.TRAIL),
            heads=short,
            recent=np.empty(0, layout.recent_type(time)),
            learned=none,
            is_learned=np.zeros(0, np.bool_),
            priority=np.empty(0),
            quality=np.zeros(rules.pools, layout.QUALITY),
            ring=np.empty(0, layout.ring_type(time)),
            sketch=np.zeros((2, layout.SKETCH_ROWS, rules.columns)),
            values=np.empty((0, columns)),
            start=np.empty(0, np.uint64),
            span=none,
            partners=np.empty(0, np.int64),
            ghost_values=np.empty((0, columns)),
            stack=np.empty(len(rules.program) + 1),
            missing=np.empty(len(rules.program) + 1, np.bool_),
        )
        self.core.model[0].weight = 1.0
        self.core.head_end["rank"] = -np.inf
        self.core.sides["slices"] = 1
        self._sketched = self.core.sketch.copy()  # its values at the mark
        self._grow_slots(1024)
        self._grow_entries(1024)
        self.set_budget()

    # ---- size ---------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Number of held rows."""
        return self.held_on(0) + self.held_on(1)

    def held_on(self, side: int) -> int:
        """Return the number of held rows of one side."""
        return int(self.core.sides[side].held)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.core)

    def make_room(self, newcomers: int, late: int = 0, counted: int | None = None) -> None:
        """Grow the arrays so that newcomers, `late` of them out of order, fit in one run.

        They count as arrivals `counted` times, by default once each.
        """
        rules = self._rules
        most = self.held + newcomers
        if rules.kind != layout.NOTHING:
            most = min(most, max(sum(row[: rules.pools]) for row in rules.budgets.tolist()))
        if len(self.core.slots) < most + 2:
            self._grow_slots(most + most // 8 + 2)
        if len(rules.windows):
            late = newcomers  # any row may expire before earlier ones
        late += int(self.core.sides["due_heap"].max())
        late = min(late, most + most // 4 + 128)  # dead nodes are removed when there is no room
        if self.core.due_heap.shape[1] < late:
            self.core = self.core._replace(due_heap=_wider(self.core.due_heap, 2 * late))
        if len(self.core.fresh) < newcomers:
            self.core = self.core._replace(fresh=np.empty(newcomers, np.int64))
        if self._rings:
            self._grow_ring(newcomers if counted is None else counted)

    def begin_batch(self) -> None:
        """Put the cursor at the start of a batch."""
        scalars = self.core.scalars[0]
        scalars.tick_to = scalars.stage = scalars.fresh = scalars.noted = 0

    def set_budget(self) -> None:
        """Set the budget of each pool to the one in force after the changes so far."""
        self.core.pools["budget"] = self._rules.budgets[self.core.scalars[0].change]

    def allow(self, rules: layout.Rules) -> None:
        """Switch to rules with another budget."""
        self._rules = rules
        self.set_budget()

    def _grow_slots(self, size: int) -> None:
        core = self.core
        old = len(core.slots)
        slots = _aligned(size, core.slots.dtype)
        slots[:old] = core.slots
        slots["seq"][old:] = -1
        free = np.empty(size, np.int32)
        n = core.scalars[0].free
        free[size - old : size - old + n] = core.free[:n]
        free[: size - old] = np.arange(size - 1, old - 1, -1)
        core.scalars[0].free = n + size - old
        self.core = core._replace(
            slots=slots, free=free, due=_wider(core.due, size + size // 4 + 128)
        )
        if self._rules.checked:
            # The last place is that of the newcomer.
            self.core = self.core._replace(values=_longer(core.values, size + 1))
            if self._meets:
                names = ("start", "span", "partners")
                longer = {name: _longer(getattr(core, name), size + 1) for name in names}
                self.core = self.core._replace(**longer)
        # Dead candidates take room until they are pruned.
        queue = size + size // 2 + 128
        if self._rules.kind == layout.BY_SCORE:
            learned, is_learned = np.empty(size, np.int64), np.zeros(size, np.bool_)
            learned[: len(core.learned)] = core.learned
            is_learned[: len(core.is_learned)] = core.is_learned
            nodes = _wider(core.nodes, queue)
            self.core = self.core._replace(learned=learned, is_learned=is_learned, nodes=nodes)
            if self._keeps:
                priority = np.zeros(size)
                priority[: len(core.priority)] = core.priority
                self.core = self.core._replace(priority=priority)
        elif self._rules.kind != layout.NOTHING:
            late = _wider(core.late, queue)
            for pool in range(self._rules.pools):
                # The late run is indexed from the end.
                length = core.pools[pool].run_to
                late[pool, ::-1][:length] = core.late[pool, ::-1][:length]
            self.core = self.core._replace(
                sorted_head=_wider(core.sorted_head, max(layout.SMALL_HEAP, queue >> 1)),
                late=late,
                unsorted_tail=_wider(core.unsorted_tail, queue),
            )

    def _grow_entries(self, size: int) -> None:
        core = self.core
        groups = _aligned(2 * size, core.groups.dtype)
        groups[: len(core.groups)] = core.groups
        groups["head"][len(core.groups) :] = groups["tail"][len(core.groups) :] = -1
        hashes = np.zeros(size, np.uint64)
        hashes[: len(core.hashes)] = core.hashes
        free, idle = np.empty(size, np.int32), np.empty(size, np.int32)
        free[: len(core.free_entries)] = core.free_entries
        idle[: len(core.idle)] = core.idle
        changed = np.zeros(size, np.bool_)
        changed[: len(self._changed)] = self._changed
        self._changed = changed
        self.core = core._replace(
            groups=groups,
            hashes=hashes,
            free_entries=free,
            idle=idle,
            table=np.zeros(1 << (size * 3 // 2).bit_length(), np.uint64),
        )
        if len(core.recent):
            self._grow_recent()

    # ---- keys ---------------------------------------------------------------------------------

    def intern(self, keys: NDArray[np.uint64], *, loading: bool = False) -> NDArray[np.int64]:
        """Return the entry of each key, and mark their rates as changed.

        While a state is loaded, keys may have rates before their rows are loaded.
        """
        entries = np.empty(len(keys), np.int64)
        tries = 0
        if self._unused() < min(self._interned, len(keys)):
            self._sweep(loading)  # otherwise as many new keys as last time would not fit
        before = self._unused()
        while key_table.intern(self.core, keys, entries) < len(keys):
            # This also frees the entries given to this batch so far: nothing refers to them yet.
            self._sweep(loading)
            if tries > 0 or self._crowded():
                self._grow_entries(len(self.core.hashes) * (5 + tries) // 4 + 1024)
                self._sweep(loading)
            tries += 1
            before = self._unused()
        self._interned = before - self._unused()
        if self._rules.learn:
            self._changed[entries] = True
        return entries

    def _unused(self) -> int:
        """Return how many more keys can get an entry."""
        scalars = self.core.scalars[0]
        return len(self.core.hashes) - int(scalars.entries - scalars.free_entries)

    def _crowded(self) -> bool:
        return 4 * self._unused() < len(self.core.hashes)

    def _sweep(self, loading: bool = False) -> None:
        # A sketch counts keys that hold no row.
        keep_rates = bool(self._rules.learn) and (loading or not self._sketches)
        key_table.sweep_entries(self.core, keep_rates)

    def set_rates(
        self,
        entries: NDArray[np.int64],
        wanted: NDArray[np.uint64],
        keys: NDArray[np.uint64],
        left: NDArray[np.float64],
        right: NDArray[np.float64],
    ) -> None:
        """Set the rates of entries from a table sorted by key; keys that it lacks get 0.

        `wanted` has the key of each entry.
        """
        if len(keys) == 0:
            return
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        known = keys[at] == wanted
        self.core.groups["rate"][2 * entries] = np.where(known, left[at], 0.0)
        self.core.groups["rate"][2 * entries + 1] = np.where(known, right[at], 0.0)

    def rates(self, *, changed: bool) -> pa.RecordBatch:
        """Return the rates of all counted keys, or of the changed ones; none where a ring has them.

        With a sketch, return the rates of keys that hold rows, as of their last arrival.
        """
        rate, count = self.core.groups["rate"], self.core.groups["count"]
        learn = self._rules.learn and not self._rings
        used = int(self.core.scalars[0].entries) if learn else 0
        entries = np.flatnonzero(self._changed[:used]) if changed else np.arange(used)
        entries = entries[(rate[2 * entries] > 0) | (rate[2 * entries + 1] > 0)]
        if self._sketches:
            entries = entries[(count[2 * entries] > 0) | (count[2 * entries + 1] > 0)]
        columns = {"key": self.core.hashes[entries]}
        columns |= {"left": rate[2 * entries], "right": rate[2 * entries + 1]}
        if len(self.core.recent):
            for name, groups in (("left", 2 * entries), ("right", 2 * entries + 1)):
                recent = self.core.recent[groups]
                columns |= {f"{name}_{field}": recent[field] for field in _RECENT}
        return pa.record_batch([pa.array(c) for c in columns.values()], list(columns))

    def load_rates(self, batch: pa.RecordBatch, *, replace: bool) -> None:
        """Set the rates of the given keys, and with `replace` all others to 0.

        Call this before rows are loaded.
        """
        core = self.core
        core.groups["listed"][2 * core.idle[: core.scalars[0].idle].astype(np.int64)] = 0
        if replace:
            core.groups["rate"][:] = 0.0
        keys, left, right, *recent = (c.to_numpy() for c in batch.columns)
        order = np.argsort(keys)
        entries = self.intern(keys, loading=True)
        self.set_rates(entries, keys, keys[order], left[order], right[order])
        core = self.core
        for at, values in enumerate(recent):
            field, side = _RECENT[at % len(_RECENT)], at // len(_RECENT)
            core.recent[field][2 * entries + side] = values
        self._list_counted()

    def _list_counted(self) -> None:
        """List all keys that have rates as counted ones; call before rows are loaded."""
        used = int(self.core.scalars[0].entries)
        rate = self.core.groups["rate"]
        self._list_idle(np.flatnonzero((rate[0 : 2 * used : 2] > 0) | (rate[1 : 2 * used : 2] > 0)))

    def forget(self) -> None:
        """Keep only the more frequent half of the keys that are counted and hold no row."""
        core = self.core
        highest = np.empty(int(core.scalars[0].idle))
        n = key_table.idle_rates(core, highest)
        count = n - self._rules.cap // 2
        rate = np.partition(highest[:n], count - 1)[count - 1]
        below = int((highest[:n] < rate).sum())
        ties = core.hashes[core.idle[:n][highest[:n] == rate]]
        tie = np.partition(ties, count - below - 1)[count - below - 1]
        key_table.forget(core, highest, rate, tie)

    # ---- arrivals that are counted otherwise --------------------------------------------------

    def _grow_ring(self, newcomers: int) -> None:
        """Grow the ring for newcomers, up to the number of arrivals that may count."""
        scalars, old = self.core.scalars[0], self.core.ring
        first, stop = int(scalars.ring_from), int(scalars.ring_to)
        wanted = min(stop - first + newcomers, self._rules.cap)
        if len(old) >= max(wanted, 1):
            return
        ring = np.empty(min(max(wanted, 2 * len(old), 1), self._rules.cap), old.dtype)
        numbers = np.arange(first, stop)
        if len(numbers):
            ring[numbers % len(ring)] = old[numbers % len(old)]
        self.core = self.core._replace(ring=ring)

    def arrivals(self, *, changed: bool) -> dict[str, pa.RecordBatch]:
        """Return the counted arrivals (or only new ones) in order, or the cells of a sketch."""
        core = self.core
        parts = {}
        if self._rings:
            scalars = core.scalars[0]
            first = max(scalars.ring_from, scalars.ring_mark if changed else 0)
            numbers = np.arange(first, scalars.ring_to)
            came = core.ring[numbers % max(len(core.ring), 1)]
            keys, side = core.hashes[came["group"] >> 1], (came["group"] & 1).astype(np.int8)
            columns = [pa.array(column) for column in (came["time"], keys, side)]
            parts["ring"] = pa.record_batch(columns, ["time", "key", "side"])
        if self._sketches:
            cells = core.sketch.ravel()
            before = self._sketched.ravel() if changed else 0.0
            places = np.flatnonzero(cells != before)
            columns = [pa.array(places), pa.array(cells[places])]
            parts["sketch"] = pa.record_batch(columns, ["place", "value"])
        return parts

    def load_sketch(self, batch: pa.RecordBatch) -> None:
        """Set cells of the sketch."""
        places, values = (column.to_numpy() for column in batch.columns)
        self.core.sketch.reshape(-1)[places] = values

    def load_ring(self, batches: Sequence[pa.RecordBatch], first: int, stop: int) -> None:
        """Count the last of these arrivals, numbered `first` to `stop`, before rows are loaded."""
        scalars = self.core.scalars[0]
        scalars.ring_from = scalars.ring_to = first
        self._grow_ring(stop - first)
        scalars.ring_to = stop
        table = pa.Table.from_batches(batches)
        time, key, side = (
            column.to_numpy() for column in table.slice(len(table) - (stop - first)).columns
        )
        group = 2 * self.intern(key) + side
        at = np.arange(first, stop) % max(len(self.core.ring), 1)
        self.core.ring["time"][at], self.core.ring["group"][at] = time, group
        np.add.at(self.core.groups["rate"], group, 1.0)
        self._list_counted()

    def _list_idle(self, entries: NDArray[np.int64]) -> None:
        core = self.core
        core.idle[: len(entries)] = entries
        core.groups["listed"][2 * entries] = 1
        core.scalars[0].idle = core.scalars[0].stat_only = len(entries)

    # ---- rows ---------------------------------------------------------------------------------

    def slots_of(self, side: int) -> NDArray[np.int64]:
        """Return the slots of one side's rows, ordered by payload row."""
        slots = self.core.slots
        mine = np.flatnonzero((slots["seq"] >= 0) & (slots["group"] & 1 == side))
        return mine[np.argsort(slots["row"][mine], kind="stable")]

    def fresh(self) -> NDArray[np.int64]:
        """Return the slots that were filled in the last batch, in order, some of them twice."""
        filled: NDArray[np.int64] = self.core.fresh[: self.core.scalars[0].fresh]
        return filled

    def learned(self) -> pa.RecordBatch:
        """Return what was learned since the mark about rows that were held at the mark."""
        core = self.core
        slots = core.learned[: core.scalars[0].learned]
        seq = core.slots["seq"][slots]
        slots = slots[(seq >= 0) & (seq < core.scalars[0].mark)]
        names = ["seq", "gain", "last"]
        return pa.record_batch([pa.array(core.slots[name][slots]) for name in names], names)

    def priorities(self, *, changed: bool) -> dict[str, pa.RecordBatch]:
        """Return the stored priorities of held rows, or those computed since the mark."""
        if not self._keeps:
            return {}
        core = self.core
        some = changed and not core.scalars[0].determined
        slots = np.flatnonzero(core.slots["seq"] >= (core.scalars[0].mark if some else 0))
        columns = [pa.array(core.slots["seq"][slots]), pa.array(core.priority[slots])]
        return {"priorities": pa.record_batch(columns, ["seq", "priority"])}

    def load_priorities(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Set the priorities of held rows; later batches override earlier ones."""
        slots = np.flatnonzero(self.core.slots["seq"] >= 0)
        slots = slots[np.argsort(self.core.slots["seq"][slots])]
        held = self.core.slots["seq"][slots]
        for batch in batches:
            seq, priority = (column.to_numpy() for column in batch.columns)
            at = np.searchsorted(held, seq)
            known = np.flatnonzero(at < len(held))
            known = known[held[at[known]] == seq[known]]
            self.core.priority[slots[at[known]]] = priority[known]

    def leave_ghosts(self, most: int, *, levels: int = 1, trends: int = 1) -> None:
        """Learn what rows are worth from at most this many ghosts.

        The model distinguishes ages only, or also `levels` and `trends` of keys.
        """
        steps = self.core.worth.shape[1]
        shape = (steps, levels, trends)
        self.core = self.core._replace(
            worth=np.full((2, *shape), 0.0 if levels > 1 else 1.0),
            cells=np.zeros((2, 2, *shape)),
            returns=np.zeros((2, outlook.COUNTS, _MARKS, levels)),
            factors=np.zeros((3, 3, max(shape))),
            ghosts=np.empty(most, self.core.ghosts.dtype),
            ghost_values=np.empty((most, self._columns)),
            trails=np.zeros((most if levels > 1 else 0, _MARKS), layout.TRAIL),
            heads=np.full(1 << most.bit_length(), -1, np.int32),
        )
        if levels > 1:
            self._grow_recent()

    def _grow_recent(self) -> None:
        """Grow `recent` to the number of groups."""
        old = self.core.recent
        recent = np.zeros(len(self.core.groups), old.dtype)
        recent["time"] = layout.NEVER
        recent[: len(old)] = old
        self.core = self.core._replace(recent=recent)

    def model(self) -> dict[str, pa.RecordBatch]:
        """Return the ghosts and what was learned from them."""
        core = self.core
        parts = model_parts(core, ("hash", "seq", "time", "until", "side", "found", "marks"))
        if self._columns:
            values = core.ghost_values[: core.scalars[0].ghosts].ravel()
            parts["ghost_values"] = pa.record_batch([pa.array(values)], ["value"])
        return parts

    def load_model(self, parts: dict[str, pa.RecordBatch]) -> None:
        """Load ghosts and what was learned from them."""
        core = self.core
        load_model(core, parts)
        if self._columns:
            values = parts.get("ghost_values")
            # Ghosts of an earlier version have no values, and can meet no row.
            n = core.scalars[0].ghosts = 0 if values is None else core.scalars[0].ghosts
            if values is not None:
                core.ghost_values[:n] = values.column(0).to_numpy().reshape(n, self._columns)
        index_ghosts(core)

    def every(self) -> NDArray[np.int64]:
        """Return all slots, filled or not."""
        return np.arange(len(self.core.slots))

    def unmarked(self) -> NDArray[np.int64]:
        """Return the slots that were filled after the last mark and still are."""
        return np.flatnonzero(self.core.slots["seq"] >= self.core.scalars[0].mark)

    def keep_rows(
        self, slots: NDArray[np.int64], spans: Sequence[tuple[int, int]]
    ) -> list[NDArray[np.int64]]:
        """Renumber the payload rows in each side's span that a slot holds; return the old numbers.

        A side whose span is empty keeps its numbers.
        """
        starts = np.array([start for start, _ in spans])
        words = max(-(-(stop - start) // 64) for start, stop in spans)
        due = np.array([start < stop for start, stop in spans])
        bits = np.zeros((2, words), np.uint64)
        count = held_rows.mark_rows(self.core, slots, due, starts, bits)
        ahead = np.cumsum(np.bitwise_count(bits), axis=1, dtype=np.int64)
        held_rows.number_rows(self.core, slots[:count], starts, bits, ahead)
        return [start + np.flatnonzero(_bits(own)) for start, own in zip(starts, bits, strict=True)]

    def reload(self, held: dict[str, NDArray[Any]]) -> None:
        """Hold the given rows, in order of their sequence numbers, and nothing else."""
        self.make_room(len(held["seq"]))
        if len(self.core.slots) < len(held["seq"]) + 2:  # the budget has fallen since
            self._grow_slots(len(held["seq"]) + 2)
        group = 2 * self.intern(held["key"], loading=True) + held["side"]
        names = ("time", "seq", "row", "size", "rank", "gain", "last")
        time, seq, row, size, rank, gain, last = (held[name] for name in names)
        condition = (held[name] for name in ("start", "span", "values"))
        held_rows.reload(
            self.core, self._rules, time, seq, row, size, rank, gain, last, group, *condition
        )
        slots = self.core.slots
        for side in range(2):
            mine = self.slots_of(side)
            window = windows_of(self._rules, side, slots["time"][mine])
            mine, window = mine[window != 0], window[window != 0]
            end = slots["time"][mine] + (window if len(self._rules.windows) else 0)
            order = np.lexsort((slots["seq"][mine], end))
            held_rows.reschedule(self.core, self._rules, side, mine[order])

    def start_gains(self) -> None:
        """Set the gain of each held row to that of a newcomer with the same partners."""
        core = self.core
        held = np.flatnonzero(core.slots["seq"] >= 0)
        partners = core.groups["count"][core.slots["group"][held] ^ 1].astype(np.float64)
        if len(core.partners):
            partners = core.partners[held].astype(np.float64)
        if self._rules.formula == scores.IJOIN:
            core.slots["gain"][held] = partners
        elif self._rules.formula in (scores.SIMPPROB, scores.DGL):
            core.slots["gain"][held] = core.slots["rank"][held] * (partners + scores.TRACE)

    def mark(self) -> None:
        """Set the mark: later changes are new."""
        scalars = self.core.scalars[0]
        scalars.mark = scalars.seq
        scalars.ring_mark = scalars.ring_to
        scalars.gone = scalars.rewritten = scalars.learned = scalars.determined = 0
        self._sketched[:] = self.core.sketch
        self.core.is_learned[:] = False
        self._changed[:] = False
        if len(self.core.gone) < self.held:
            self.core = self.core._replace(gone=np.empty(2 * self.held, np.int64))


def windows_of(rules: layout.Rules, side: int, times: NDArray[Any]) -> NDArray[Any]:
    """Return the window of each of a side's rows, as `kernel.windows.window_of` does."""
    if not len(rules.windows):
        return np.full(len(times), rules.window_left if side == 0 else rules.window_right)
    step = np.searchsorted(rules.windows["start"], times, "right") - 1
    lengths: NDArray[Any] = rules.windows["window"][np.maximum(step, 0), side]
    return lengths


def past(rules: layout.Rules, side: int, times: NDArray[Any], clock: Any) -> NDArray[np.bool_]:
    """Return whether each of a side's rows has left its window, as `kernel.windows.past` does."""
    window = windows_of(rules, side, times)
    if side == 0:
        end = times + window + rules.lateness
        ended = clock > end if rules.closed else clock >= end
    else:
        start = clock - window - rules.lateness
        ended = start > times if rules.closed else start >= times
    found: NDArray[np.bool_] = (window != 0) & ended
    return found


def _bits(words: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return the bits of words, the lowest first."""
    octets = words.astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(octets, bitorder="little").view(np.bool_)


def _curves(curves: tuple[Sequence[float], Sequence[float]]) -> NDArray[np.float64]:
    """Resample two curves to one common length, by interpolation."""
    steps = math.lcm(len(curves[0]), len(curves[1]))
    return np.array(
        [np.interp(np.arange(steps) * len(c) / steps, np.arange(len(c)), c) for c in curves]
    )


def _wider(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Copy an array into one with room for more columns."""
    out = np.empty((array.shape[0], size), array.dtype)
    out[:, : array.shape[1]] = array
    return out


def _longer(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Copy an array into one with room for more rows."""
    out = np.empty((size, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out


def _aligned(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return zeros that start at a cache line."""
    raw = np.zeros(size * dtype.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size * dtype.itemsize].view(dtype)
