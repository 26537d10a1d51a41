"""The slow twin of constrained joins: the paper's definitions, with no code of the engine.

`sliding_window_join` is SWJ (section 1.4): every row is kept for its window, and every arrival is
joined by nested loops. `Synopses` maintains Yes, No and Unknown (section 3) by examining everything
after every arrival. `rids`, `clustering` and `scrambling` compute the k that streams adhere to.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tup:
    """A row: stream, time, join attributes by name, and whether it passes its filter."""

    stream: str
    time: int
    uid: int
    values: tuple[tuple[str, int], ...]
    passes: bool = True

    def __getitem__(self, name: str) -> int:
        return dict(self.values)[name]


@dataclass(frozen=True)
class Join:
    """A many-one join of `parent` to `child`, by pairs of attributes."""

    parent: str
    child: str
    on: tuple[tuple[str, str], ...]

    def holds(self, parent: Tup, child: Tup) -> bool:
        return all(parent[a] == child[b] for a, b in self.on)


@dataclass(frozen=True)
class Window:
    """The last `rows` rows (of one value of `by`), or those of the last `length` of time."""

    rows: int | None = None
    by: str | None = None
    length: int | None = None


Windows = dict[str, Window]


def _in_window(tup: Tup, so_far: list[Tup], window: Window | None) -> bool:
    """Return True if a row is in its window when the last of `so_far` has come."""
    if window is None:
        return True
    if window.length is not None:
        return so_far[-1].time - tup.time < window.length
    if window.rows is None:
        return True
    later = [t for t in so_far[so_far.index(tup) + 1 :] if t.stream == tup.stream]
    if window.by is not None:
        later = [t for t in later if t[window.by] == tup[window.by]]
    return len(later) < window.rows


def sliding_window_join(
    arrivals: Iterable[Tup], names: list[str], joins: list[Join], windows: Windows
) -> Iterator[tuple[int, ...]]:
    """Return all results, each as the numbers of its rows."""
    so_far: list[Tup] = []
    for new in arrivals:
        so_far.append(new)
        live = {
            name: [
                t
                for t in so_far
                if t.stream == name and t.passes and _in_window(t, so_far, windows.get(name))
            ]
            for name in names
        }
        live[new.stream] = [t for t in live[new.stream] if t is new]
        for chosen in itertools.product(*live.values()):
            found = dict(zip(names, chosen, strict=True))
            if all(j.holds(found[j.parent], found[j.child]) for j in joins):
                yield tuple(t.uid for t in chosen)


def violations(arrivals: Iterable[Tup], joins: list[Join], windows: Windows) -> int:
    """Count rows whose key, unique in a join, equals that of a row still in its window."""
    so_far: list[Tup] = []
    count = 0
    for new in arrivals:
        so_far.append(new)
        for join in joins:
            count += join.child == new.stream and any(
                t.stream == new.stream
                and all(t[b] == new[b] for _, b in join.on)
                and _in_window(t, so_far, windows.get(t.stream))
                for t in so_far[:-1]
            )
    return count


def many_one(arrivals: list[Tup], joins: list[Join], windows: Windows) -> bool:
    """Return True if each row can be in results with at most one child of each of its joins."""
    met: list[tuple[Join, Tup]] = []
    for i, new in enumerate(arrivals):
        so_far = arrivals[: i + 1]
        for old in so_far[:-1]:
            if _in_window(old, so_far, windows.get(old.stream)):
                for join in joins:
                    for parent, child in ((old, new), (new, old)):
                        ends = (parent.stream, child.stream) == (join.parent, join.child)
                        if ends and join.holds(parent, child):
                            met.append((join, parent))
    return len(met) == len(set(met))


def late(
    feeds: Iterable[list[Tup]],
    names: list[str],
    windows: Windows,
    timed: set[str],
    lateness: int,
    lag: int | None,
) -> int:
    """Count rows that come after rows in time for them may have been dropped.

    Rows of the latest time wait for the next feed. A constraint is measured in the time of each
    stream of `timed`.
    """
    clock: dict[str, float] = dict.fromkeys(names, -math.inf)
    waiting: list[Tup] = []
    count = 0
    for feed in (*feeds, None):
        rows = sorted([*waiting, *(feed or [])], key=lambda row: row.time)
        waiting = []
        if rows and feed is not None and rows[-1].time >= max(clock.values()):
            waiting = [row for row in rows if row.time == rows[-1].time]
        for row in rows[: len(rows) - len(waiting)]:
            clock[row.stream] = max(clock[row.stream], row.time)
            ahead = -math.inf if lag is None else max(clock.values()) - lag
            passed = {s for s in names if row.time < max(clock[s], ahead) - lateness}
            ending = {s for s, w in windows.items() if w.length is not None} - {row.stream}
            dropped = any(passed >= {*names} - {s} for s in ending)
            constrained = row.stream in timed and row.stream in passed
            count += row.passes and (dropped or constrained)
    return count


# ---- adherence --------------------------------------------------------------------------------


def rids(arrivals: list[Tup], join: Join) -> int:
    """Return the largest join distance (section 3.5)."""
    distances = [0]
    for i, parent in enumerate(arrivals):
        for j in range(i + 1, len(arrivals)):
            child = arrivals[j]
            if (parent.stream, child.stream) == (join.parent, join.child) and join.holds(
                parent, child
            ):
                distances.append(sum(t.stream == join.child for t in arrivals[i + 1 : j + 1]))
    return max(distances)


def rids_time(arrivals: list[Tup], join: Join) -> int:
    """Return the largest join distance in time."""
    return max(
        [0]
        + [
            child.time - parent.time
            for parent in arrivals
            for child in arrivals
            if (parent.stream, child.stream) == (join.parent, join.child)
            and join.holds(parent, child)
        ]
    )


def _own(arrivals: list[Tup], stream: str) -> list[Tup]:
    return [t for t in arrivals if t.stream == stream]


def clustering(arrivals: list[Tup], stream: str, name: str, *, timed: bool = False) -> int:
    """Return the largest clustering distance."""
    own, distances = _own(arrivals, stream), [0]
    for i, first in enumerate(own):
        for j in range(i + 1, len(own)):
            if own[j][name] == first[name]:
                others = sum(t[name] != first[name] for t in own[i + 1 : j])
                distances.append(own[j].time - first.time if timed else others)
    return max(distances)


def scrambling(arrivals: list[Tup], stream: str, name: str, *, timed: bool = False) -> int:
    """Return the largest scrambling distance."""
    own, distances = _own(arrivals, stream), [0]
    for i, first in enumerate(own):
        for j in range(i + 1, len(own)):
            if own[j][name] < first[name]:
                distances.append(own[j].time - first.time if timed else j - i)
    return max(distances)


@dataclass
class Monitored:
    """The k that a monitor uses, from the rows of the constraint's stream and their distances.

    `used` is k_u, infinite while the constraint is not used. Call `row` for each row of the stream,
    and `distance` for each distance, also for those above k_e.
    """

    c: float
    window: int
    enough: int
    suspends: bool
    used: float = math.inf
    rows: int = 0
    #: Row numbers: when this observation window began, and since when no row was dropped.
    opened: int = 1
    begun: int = 1
    distances: list[int] = field(default_factory=list)
    before: int = 0

    def row(self) -> None:
        """Count a row; at the end of an observation window, adopt a smaller k."""
        self.rows += 1
        if self.rows == 1 or self.rows - self.opened < self.window:
            return
        if not self.suspends and len(self.distances) < self.enough:
            return
        seen = max(self.distances, default=0)
        largest = seen if self.suspends else max(seen, self.before)
        visible = (self.opened - self.begun) if self.suspends else (self.rows - self.begun) // 2
        if largest < self.used and (self.used < math.inf or largest <= visible):
            self.used = largest
        self.before = seen
        self._open()

    def distance(self, length: int) -> None:
        """Record a distance."""
        self.distances.append(length)
        if length <= self.used:
            return
        if length <= math.ceil(self.used * self.c) and not self.suspends:
            self.used = length
            return
        self.used = math.inf
        self._open()
        self.begun = self.opened
        self.before = length

    def _open(self) -> None:
        self.opened = self.rows
        self.distances = []


# ---- synopses ---------------------------------------------------------------------------------


@dataclass
class Synopses:
    """Yes, No and Unknown, with constraints in row counts.

    `rids` is by (parent, child), `oac` by (child, attribute), `ca` and `oap` by (parent,
    attribute).
    """

    names: list[str]
    joins: list[Join]
    windows: Windows = field(default_factory=dict)
    rids: dict[tuple[str, str], int] = field(default_factory=dict)
    oac: dict[tuple[str, str], int] = field(default_factory=dict)
    ca: dict[tuple[str, str], int] = field(default_factory=dict)
    oap: dict[tuple[str, str], int] = field(default_factory=dict)
    so_far: list[Tup] = field(default_factory=list)
    status: dict[Tup, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        covers = [
            set(c)
            for size in range(1, len(self.names) + 1)
            for c in itertools.combinations(self.names, size)
            if set().union(*(self._reach(s) for s in c)) == set(self.names)
        ]
        self.covers = [c for c in covers if not any(other < c for other in covers)]

    def _reach(self, start: str) -> set[str]:
        seen = {start}
        for _ in self.names:
            seen |= {j.child for j in self.joins if j.parent in seen}
        return seen

    def _below(self, stream: str) -> list[Join]:
        return [j for j in self.joins if j.parent == stream]

    def _above(self, stream: str) -> list[Join]:
        return [j for j in self.joins if j.child == stream]

    def _held(self, stream: str) -> list[Tup]:
        return [t for t in self.status if t.stream == stream]

    def _child(self, tup: Tup, join: Join) -> Tup | None:
        return next((c for c in self._held(join.child) if join.holds(tup, c)), None)

    def _verdict(self, tup: Tup) -> str:
        """Apply definition 3.1 to the held rows."""
        known, todo, missing = {tup.stream: tup}, [tup], False
        while todo:
            at = todo.pop()
            for join in self._below(at.stream):
                child = self._child(at, join)
                if join.child in known:
                    if not join.holds(at, known[join.child]):
                        return "no"
                elif child is None:
                    if self.status[at] == "yes":
                        return "no"
                    missing = True
                elif self.status[child] == "no":
                    return "no"
                else:
                    known[join.child] = child
                    todo.append(child)
        return "unknown" if missing else "yes"

    def is_tree(self, stream: str) -> bool:
        reach = self._reach(stream)
        return sum(j.parent in reach for j in self.joins) == len(reach) - 1

    def _tree_verdict(self, tup: Tup) -> str:
        """Apply theorems 3.1 and 3.2."""
        states = [
            "unknown" if child is None else self.status[child]
            for child in (self._child(tup, join) for join in self._below(tup.stream))
        ]
        return next((s for s in ("no", "unknown") if s in states), "yes")

    def _count(self, stream: str, after: Tup) -> int:
        return sum(t.stream == stream for t in self.so_far[self.so_far.index(after) + 1 :])

    def _low(self, stream: str, name: str, k: int) -> int | None:
        seen = _own(self.so_far, stream)
        settled = seen[: len(seen) - k]
        return max((t[name] for t in settled), default=None)

    def _never(self, tup: Tup, join: Join) -> bool:
        """Return True if by the constraints the child row cannot come any more."""
        k = self.rids.get((join.parent, join.child))
        if k is not None and self._count(join.child, tup) >= k:
            return True
        for a, b in join.on:
            bound = self.oac.get((join.child, b))
            low = None if bound is None else self._low(join.child, b, bound)
            if low is not None and tup[a] < low:
                return True
        return False

    def _closed(self, tup: Tup, join: Join) -> bool:
        """Return True if by the constraints no other parent of a row can come."""
        for a, b in join.on:
            bound = self.oap.get((join.parent, a))
            low = None if bound is None else self._low(join.parent, a, bound)
            if low is not None and tup[b] < low:
                return True
            k = self.ca.get((join.parent, a))
            own = _own(self.so_far, join.parent)
            first = next((i for i, t in enumerate(own) if t[a] == tup[b]), len(own))
            if k is not None and sum(t[a] != tup[b] for t in own[first:]) > k:
                return True
        return False

    def arrive(self, new: Tup) -> None:
        """Process a row and all its effects."""
        self.so_far.append(new)
        for tup in list(self.status):
            if not _in_window(tup, self.so_far, self.windows.get(tup.stream)):
                self._drop_out(tup)
        self.status[new] = "unknown" if new.passes else "no"
        self._work()

    def _drop_out(self, tup: Tup) -> None:
        del self.status[tup]
        for join in self._above(tup.stream):
            for above in self._held(join.parent):
                if self.status.get(above) == "unknown" and join.holds(above, tup):
                    self.status[above] = "no"

    def _work(self) -> None:
        changed = True
        while changed:
            changed = self._classify()
            if not changed:
                self._forget_decided()
                changed = self._give_up() or self._eliminate()

    def _classify(self) -> bool:
        for tup, state in list(self.status.items()):
            if state == "unknown":
                tree = self.is_tree(tup.stream)
                verdict = self._tree_verdict(tup) if tree else self._verdict(tup)
                if verdict != "unknown":
                    self.status[tup] = verdict
                    return True
        return False

    def _keeps_no(self, stream: str) -> bool:
        return any(
            (j.parent, j.child) not in self.rids
            and not any((j.child, b) in self.oac for _, b in j.on)
            for j in self._above(stream)
        )

    def _forget_decided(self) -> None:
        single = {next(iter(c)) for c in self.covers if len(c) == 1}
        for tup, state in list(self.status.items()):
            spent = state == "yes" and tup.stream in single
            if state == "no" or spent:
                if self._keeps_no(tup.stream):
                    self.status[tup] = "no"
                else:
                    del self.status[tup]

    def _give_up(self) -> bool:
        found = False
        for tup, state in list(self.status.items()):
            if state == "unknown":
                for join in self._below(tup.stream):
                    if self._child(tup, join) is None and self._never(tup, join):
                        self.status[tup] = "no"
                        found = True
        return found

    def _eliminate(self) -> bool:
        for tup, state in list(self.status.items()):
            above = self._above(tup.stream)
            closed = {j.parent for j in above if self._closed(tup, j)}
            if state == "no":
                if above and len(closed) == len(above):
                    del self.status[tup]
                    return True
                continue
            settled = {
                j.parent
                for j in above
                if j.parent in closed
                and not any(
                    self.status[p] == "unknown" and j.holds(p, tup) for p in self._held(j.parent)
                )
            }
            if any(cover <= settled for cover in self.covers):
                self._forget_with_ancestors(tup)
                return True
        return False

    def _forget_with_ancestors(self, tup: Tup) -> None:
        self.status.pop(tup, None)
        for join in self._above(tup.stream):
            for above in self._held(join.parent):
                if self.status.get(above, "no") != "no" and join.holds(above, tup):
                    self._forget_with_ancestors(above)

    def components(self) -> dict[str, dict[str, int]]:
        """Return the number of rows of each stream in Yes, No and Unknown."""
        return {
            name: {
                state: sum(self.status[t] == state for t in self._held(name))
                for state in ("yes", "no", "unknown")
            }
            for name in self.names
        }
