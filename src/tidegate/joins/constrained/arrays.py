"""Build the arrays of a constrained join from its graph, grow them, and read them from Python."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.joins.constrained import layout as layout
from tidegate.joins.constrained.graph import Graph
from tidegate.joins.constrained.load import rehash, tidy_timer
from tidegate.joins.constrained.spec import ConstrainedJoin, Known

_FIRST_ROOM = 64
#: Distances that an observation window of RIDS must have before its largest one is adopted as k.
#: With n distances, the next one is larger with a probability of 1 / (n + 1). Other constraints
#: have a distance, mostly 0, for each row.
_ENOUGH = 100
#: Arrays with one place per slot.
_BY_SLOT = ("slots", "links", "free", "stack", "changed", "recheck", "departed")
#: The values that a record stores: their names in the record, and where they are in `Core`.
_STORED = {
    **{
        name: ("constraints", name)
        for name in ("k", "used", "seen", "since", "opened", "begun", "low")
    },
    "observed": ("constraints", "observed", "before", "in_use"),
    "losses": ("losses", "given", "kept"),
    "dropped": ("scalars", "dropped"),
    "keep": ("streams", "keep"),
    "cost": ("streams", "cost_keeping", "cost_dropping"),
    "judged": ("streams", "judged"),
    "counts": ("streams", "count"),
    "clock": ("streams", "clock"),
    "idle": ("savings", "idle"),
    "worth": ("savings", "cleared", "remembered"),
    "noted": ("savings", "added_at", "compared_at", "parents"),
}


def plan_of(spec: ConstrainedJoin) -> layout.Plan:
    """Translate the join graph for the loop."""
    graph, n = spec.graph, len(spec.streams)
    edges, constraints = graph.edges, spec.constraints
    links = [_links(graph, s, stream.by is not None) for s, stream in enumerate(spec.streams)]
    widest = max(map(len, links))
    link_edge, link_role, link_value = (np.full((n, widest), -1, np.int64) for _ in range(3))
    at = np.zeros((2, len(edges)), np.int64)
    of = {kind: _by_edge(spec, kind) for kind in ("RIDS", "CA", "OAP", "OAC")}
    for s, mine in enumerate(links):
        for j, (edge, role) in enumerate(mine):
            link_edge[s, j], link_role[s, j] = edge, role
            if role != layout.BY:
                at[role, edge] = j
                link_value[s, j] = _ordered_value(spec, s, edge, role, of)
    serving = [serves(spec, known) for known in constraints]
    timers = _Numbers()
    window_timer = np.array(
        [timers.next() if s.by is None and (s.rows or s.window) else -1 for s in spec.streams]
    )
    edge_timer = {
        kind: np.array([timers.next() if c >= 0 else -1 for c in of[kind]]) for kind in of
    }
    steps = [_steps(graph, s) for s in range(n)]
    covers = [_parent_covers(spec, s) for s in range(n)]
    chosen = graph.minimal_covers[0]
    watched = spec.watched
    return layout.Plan(
        degree=np.array(list(map(len, links))),
        link_edge=link_edge,
        link_role=link_role,
        link_value=link_value,
        parent=np.array([e.parent for e in edges]),
        child=np.array([e.child for e in edges]),
        at_parent=at[layout.PARENT],
        at_child=at[layout.CHILD],
        ups=np.array([len(graph.parents(s)) for s in range(n)]),
        up=_ragged([graph.parents(s) for s in range(n)]),
        downs=np.array([len(graph.children(s)) for s in range(n)]),
        down=_ragged([graph.children(s) for s in range(n)]),
        deep=np.array([not graph.is_tree(s) for s in range(n)]),
        walks=np.array([len(graph.walk(s)) for s in range(n)]),
        walk=_ragged([graph.walk(s) for s in range(n)]),
        covering=np.array([s in chosen or not spec.eliminate for s in range(n)]),
        single=np.array([spec.eliminate and (s,) in graph.minimal_covers for s in range(n)]),
        steps=np.array(list(map(len, steps))),
        step_up=_ragged([[int(up) for up, _ in s] for s in steps]),
        step_edge=_ragged([[edge for _, edge in s] for s in steps]),
        covers=np.array(list(map(len, covers))),
        cover=_ragged(covers),
        rows=np.array([s.rows or 0 for s in spec.streams]),
        length=np.array([s.window or 0 for s in spec.streams]),
        by=np.array(
            [
                len(mine) - 1 if s.by is not None else -1
                for s, mine in zip(spec.streams, links, strict=True)
            ]
        ),
        rids=of["RIDS"],
        ca=of["CA"],
        oap=of["OAP"],
        oac=of["OAC"],
        axis=np.array([c.stream for c in constraints], np.int64),
        timed=np.array([c.in_time for c in constraints], np.bool_),
        detected=np.array(
            [c.k is None and s for c, s in zip(constraints, serving, strict=True)], np.bool_
        ),
        ordered=np.array(
            [
                spec.streams[c.stream].ordered.index(str(c.column))
                if c.kind in ("OAP", "OAC") and served
                else -1
                for c, served in zip(constraints, serving, strict=True)
            ],
            np.int64,
        ),
        window_timer=window_timer,
        rids_timer=edge_timer["RIDS"],
        ca_timer=edge_timer["CA"],
        oap_timer=edge_timer["OAP"],
        oac_timer=edge_timer["OAC"],
        lateness=spec.lateness,
        lag=-1 if spec.lag is None else spec.lag,
        threshold=sample_threshold(spec.monitor.p) if watched else np.uint64(0),
        watch=spec.monitor.window,
        slack=float(spec.monitor.c),
        keyed=spec.shard_columns is not None,
        enough=np.array(
            [min(_ENOUGH, spec.monitor.window) if c.kind == "RIDS" else 0 for c in constraints],
            np.int64,
        ),
        suspends=spec.monitor.on_rise == "suspend",
        archived=spec.archive,
        whole=not spec.eliminate,
        choosable=np.array([spec.choose and _choosable(spec, s) for s in range(n)]),
        weighed=np.array(
            [
                spec.choose and c >= 0 and _bounded(spec, e.child)
                for c, e in zip(of["CA"], edges, strict=True)
            ]
        ),
        ordering=np.array(
            [
                spec.choose and c >= 0 and _bounded(spec, e.child)
                for c, e in zip(of["OAP"], edges, strict=True)
            ]
        ),
    )


def sample_threshold(p: float) -> np.uint64:
    """Return the threshold below which a share p of all hashes lies."""
    return np.uint64(min(int(p * 2.0**64), 2**64 - 1))


class _Numbers:
    """A counter: 0, 1, 2, ..."""

    def __init__(self) -> None:
        self._next = 0

    def next(self) -> int:
        self._next += 1
        return self._next - 1


def _links(graph: Graph, stream: int, by: bool) -> list[tuple[int, int]]:
    found = [(e, layout.PARENT) for e in graph.children(stream)]
    found += [(e, layout.CHILD) for e in graph.parents(stream)]
    return found + ([(len(graph.edges) + stream, layout.BY)] if by else [])


def _by_edge(spec: ConstrainedJoin, kind: str) -> NDArray[np.int64]:
    """Return for each join the constraint of a kind that is used; the first of several."""
    found = np.full(len(spec.graph.edges), -1, np.int64)
    for c, known in reversed(list(enumerate(spec.constraints))):
        if known.kind == kind and serves(spec, known):
            found[list(known.edges)] = c
    return found


def serves(spec: ConstrainedJoin, known: Known) -> bool:
    """Return True if a constraint can have an effect (theorem 5.1).

    CA and OAP take effect only together: on all parents of a child stream, or on all streams of a
    minimal cover.
    """
    if known.kind not in ("CA", "OAP"):
        return True
    graph, told = spec.graph, _clearing(spec)
    for e in known.edges:
        child = graph.edges[e].child
        ups = graph.parents(child)
        if all(up in told for up in ups):
            return True
        if any((cover >> ups.index(e)) & 1 for cover in _parent_covers(spec, child)):
            return True
    return False


def _clearing(spec: ConstrainedJoin) -> set[int]:
    """Return the joins that have a CA or OAP constraint."""
    return {e for c in spec.constraints if c.kind in ("CA", "OAP") for e in c.edges}


def _bounded(spec: ConstrainedJoin, stream: int) -> bool:
    """Return True if a stream's window ends for every row, with or without constraints."""
    window = spec.streams[stream]
    return window.window is not None or (window.rows is not None and window.by is None)


def _ordered_value(
    spec: ConstrainedJoin, stream: int, edge: int, role: int, of: dict[str, NDArray[np.int64]]
) -> int:
    """Return which ordered attribute of a stream is compared with the order of the other side."""
    used = of["OAC" if role == layout.PARENT else "OAP"][edge]
    if used < 0:
        return -1
    joined = spec.graph.edges[edge]
    pairs = dict(zip(joined.child_keys, joined.parent_keys, strict=True))
    if role == layout.CHILD:
        pairs = dict(zip(joined.parent_keys, joined.child_keys, strict=True))
    return spec.streams[stream].ordered.index(pairs[str(spec.constraints[used].column)])


def _steps(graph: Graph, start: int) -> list[tuple[bool, int]]:
    """Return the order of joins that completes a result from one row: downwards, then upwards."""
    assigned, left, steps = {start}, list(range(len(graph.edges))), []
    while left:
        down = [i for i in left if graph.edges[i].parent in assigned]
        i = down[0] if down else next(j for j in left if graph.edges[j].child in assigned)
        assigned |= {graph.edges[i].parent, graph.edges[i].child}
        steps.append((not down, i))
        left.remove(i)
    return steps


def _parent_covers(spec: ConstrainedJoin, stream: int) -> list[int]:
    """Return the minimal covers among a stream's parents that CA and OAP hold on, as bits."""
    graph = spec.graph
    served = _clearing(spec)
    ups = graph.parents(stream)
    at = {graph.edges[e].parent: i for i, e in enumerate(ups) if e in served}
    return [
        sum(1 << at[s] for s in cover)
        for cover in graph.minimal_covers
        if all(s in at for s in cover)
    ]


def _choosable(spec: ConstrainedJoin, stream: int) -> bool:
    """Return True if keeping No is optional for a stream, and one key decides for which rows."""
    ups = spec.graph.parents(stream)
    told = {e for c in spec.constraints if c.kind in ("RIDS", "OAC") for e in c.edges}
    return len(ups) == 1 and ups[0] in told


def _ragged(rows: Any) -> NDArray[np.int64]:
    table = np.zeros((len(rows), max(1, *(len(row) for row in rows))), np.int64)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table


class Tables:
    """The state of a constrained join."""

    def __init__(self, spec: ConstrainedJoin) -> None:
        self.plan = plan_of(spec)
        plan, n = self.plan, len(spec.streams)
        self._of_groups = {int(t) for t in plan.ca_timer if t >= 0}
        every = (plan.window_timer, plan.rids_timer, plan.ca_timer, plan.oap_timer, plan.oac_timer)
        timers = sum(int((each >= 0).sum()) for each in every)
        known = [
            c.k if c.k is not None and serves(spec, c) else layout.NEVER for c in spec.constraints
        ]
        edges = len(spec.graph.edges)
        self.core = layout.Core(
            scalars=np.zeros(1, layout.SCALARS),
            streams=np.zeros(n, layout.STREAM),
            constraints=np.zeros(len(known), layout.CONSTRAINT),
            savings=np.zeros((2, edges), layout.SAVING),
            held=np.zeros((n, 6), np.int64),
            slots=np.zeros(0, layout.SLOT),
            links=np.zeros((0, plan.link_edge.shape[1]), layout.LINK),
            groups=np.zeros(0, layout.GROUP),
            table=np.zeros(2, np.uint64),
            free=np.zeros(0, np.int32),
            free_groups=np.zeros(0, np.int32),
            stack=np.zeros(0, np.int32),
            changed=np.zeros(0, np.int32),
            recheck=np.zeros(0, np.int32),
            departed=np.zeros(0, np.int64),
            departed_groups=np.zeros(0, layout.DEPARTED_GROUP),
            shed=np.zeros(0, layout.SHED_ROW),
            timers=np.zeros(0, layout.TIMER),
            heaps=np.zeros(timers, layout.HEAP),
            records=np.zeros(0, layout.RECORD),
            losses=np.zeros(layout.LOSS_PARTS, layout.LOSS),
            entries=np.zeros(edges + n, np.int64),
            assign=np.zeros(n, np.int32),
            cursor=np.zeros(max(1, edges), np.int8),
        )
        core = self.core
        core.streams["clock"] = core.streams["horizon"] = -layout.NEVER
        core.constraints["low"] = -layout.NEVER
        core.constraints["k"] = core.constraints["used"] = known
        for name in ("added_at", "compared_at", "parents"):
            core.savings[name] = -layout.NEVER

    @property
    def held(self) -> int:
        """Number of held rows, in all components."""
        return int(self.core.held.sum())

    def used_slots(self) -> NDArray[np.int64]:
        """Return the slots that contain rows."""
        slots = self.core.slots[: self.core.scalars["slots"][0]]
        found: NDArray[np.int64] = np.flatnonzero(slots["status"] != layout.EMPTY)
        return found

    def lone_groups(self) -> int:
        """Return the number of keys that CA remembers and of which no row is held."""
        groups = self.core.groups[: self.core.scalars["groups"][0]]
        lone = (groups["child"] == -1) & (groups["parents"] == -1) & (groups["stamp"] >= 0)
        return int(np.count_nonzero(lone))

    # ---- room ---------------------------------------------------------------------------------

    def make_room(self, rows: int) -> None:
        """Make room for this many newcomers."""
        core, scalars = self.core, self.core.scalars[0]
        lacking = rows - int(scalars["free"]) - (len(core.slots) - int(scalars["slots"]))
        if lacking > 0:
            self._grow_slots(_power(len(core.slots) + lacking))
        wanted = rows * core.links.shape[1]
        free = int(scalars["free_groups"]) + len(core.groups) - int(scalars["groups"])
        if wanted > free:
            self._grow_groups(_power(len(core.groups) + wanted - free))
        self._room_for_timers(rows)
        self._room_for_records(rows)

    def _grow_slots(self, size: int) -> None:
        core = self.core
        # All rows can leave at once, newcomers included.
        more = ("shed",) if self.plan.archived else ()
        self.core = core._replace(
            **{name: _grown(getattr(core, name), size) for name in (*_BY_SLOT, *more)}
        )

    def _grow_groups(self, size: int) -> None:
        core = self.core
        self.core = core._replace(
            groups=_grown(core.groups, size),
            free_groups=_grown(core.free_groups, size),
            departed_groups=_grown(core.departed_groups, size),
            table=np.zeros(2 * size, np.uint64),
        )
        rehash(self.core)

    def _room_for_timers(self, rows: int) -> None:
        core = self.core
        short = np.flatnonzero(core.heaps["length"] + rows > core.heaps["room"])
        if len(short) == 0:
            return
        for each in short.tolist():
            tidy_timer(core, self.plan, each, each in self._of_groups)
        room = core.heaps["room"].copy()
        for short_one in short:
            size = int(core.heaps["length"][short_one])
            room[short_one] = _power(max(2 * size, size + rows))
        starts = np.concatenate([[0], np.cumsum(room)])
        timers = np.zeros(int(starts[-1]), layout.TIMER)
        for new, own in zip(starts, core.heaps, strict=False):
            old, length = own["start"], own["length"]
            timers[new : new + length] = core.timers[old : old + length]
        core.heaps["start"], core.heaps["room"] = starts[:-1], room
        self.core = core._replace(timers=timers)

    def _room_for_records(self, rows: int) -> None:
        core = self.core
        known = core.constraints
        if len(known) == 0:
            return
        ends = np.append(known["record_start"][1:], len(core.records))
        first = known["record_start"] + known["record_first"]
        if (first + known["record_count"] + rows <= ends).all():
            return
        room = [_power(int(count) + 2 * rows) for count in known["record_count"]]
        starts = np.concatenate([[0], np.cumsum(room)]).astype(np.int64)
        records = np.zeros(int(starts[-1]), layout.RECORD)
        for new, old, count in zip(starts, first, known["record_count"], strict=False):
            records[new : new + count] = core.records[old : old + count]
        known["record_start"], known["record_first"] = starts[:-1], 0
        self.core = core._replace(records=records)

    def take_shed(self) -> NDArray[Any]:
        """Return the rows noted as shed since the last call."""
        noted: NDArray[Any] = self.core.shed[: self.core.scalars["noted"][0]].copy()
        self.core.scalars["noted"] = 0
        return noted

    # ---- what has changed ---------------------------------------------------------------------

    def mark(self) -> None:
        """Set the mark: changes are recorded relative to it."""
        core = self.core
        core.scalars["mark"] = core.scalars["seq"]
        core.scalars["departed"] = core.scalars["departed_groups"] = 0
        core.slots["dirty"] = 0
        core.groups["dirty"] = 0

    def values(self) -> dict[str, Any]:
        """Return the values by stream, constraint and edge that a record stores."""
        found = {}
        for name, (table, *fields) in _STORED.items():
            columns = [getattr(self.core, table)[field].reshape(-1) for field in fields]
            found[name] = (np.stack(columns, axis=1) if len(fields) > 1 else columns[0]).tolist()
        return found

    def load_values(self, values: dict[str, Any]) -> None:
        """Set the values that a record stores; records of earlier versions have fewer."""
        for name, (table, *fields) in _STORED.items():
            if name not in values:
                continue
            given = np.array(values[name]).reshape(-1, len(fields))
            for i, field in enumerate(fields):
                column = getattr(self.core, table)[field]
                column[...] = given[:, i].reshape(column.shape)

    def groups_to_log(self, changed: bool) -> NDArray[Any]:
        """Return the groups with CA state; others follow from the held rows."""
        groups = self.core.groups[: self.core.scalars["groups"][0]]
        told = (groups["stamp"] >= 0) & ((groups["clustered"] == 1) | (groups["closed"] == 1))
        if changed:
            told &= (groups["dirty"] == 1) | (groups["stamp"] > self.core.scalars["mark"])
        found: NDArray[Any] = groups[told]
        return found

    def records_of(self, c: int) -> NDArray[Any]:
        """Return the running maxima of an ordered attribute."""
        own = self.core.constraints[c]
        first = own["record_start"] + own["record_first"]
        found: NDArray[Any] = self.core.records[first : first + own["record_count"]]
        return found

    def load_records(self, c: int, records: NDArray[Any]) -> None:
        """Set the running maxima of an ordered attribute."""
        self._room_for_records(len(records))
        at = self.core.constraints["record_start"][c]
        self.core.records[at : at + len(records)] = records
        self.core.constraints["record_count"][c] = len(records)


def _power(size: int) -> int:
    return max(_FIRST_ROOM, 1 << (size - 1).bit_length())


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    grown = np.zeros((size, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
