"""Which joins of a pool have a query, and what is sure of those that have none.

A query is known by its start, its reports and its end. What a join without one may hold when it is
started again depends on how it ended: a batch that was planned and not committed is done again with
the orders that it had, any other with the last order there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How far a join of a pool is."""

    BUILT = "no query yet"
    RUNNING = "running"
    ENDED = "ended"
    #: It ran when the pool was last open, and is not built again yet.
    ABSENT = "not built again"


@dataclass
class Seat:
    """Where a join is.

    Attributes
    ----------
    run, query
        The last run of its query, and the query that it was of: one checkpoint.
    replays
        Whether a batch may be done again that it was ordered more memory for.
    """

    state: State
    run: str | None = None
    query: str | None = None
    replays: bool = False


class JoinRegistry:
    """The joins of a pool, by name."""

    def __init__(self) -> None:
        #: Whether starts of queries are heard of before they have begun.
        self.prompt = True
        self._registry: dict[str, Seat] = {}
        #: Runs that have not said yet which joins they have, and which they may have.
        self._starting: dict[str, set[str]] = {}
        self._ended: set[str] = set()
        #: Those that have ended before: which joins they may have had, and whether in a batch.
        self._silent: dict[str, tuple[set[str], bool]] = {}
        #: Joins that are gone, whose queries go on.
        self._left: dict[str, str] = {}

    def __getitem__(self, name: str) -> Seat:
        return self._registry[name]

    def __contains__(self, name: object) -> bool:
        return name in self._registry

    def build(self, name: str, *, replays: bool) -> None:
        """Have a join that is built, for the first time or again."""
        old = self._registry.get(name)
        self._registry[name] = Seat(
            State.BUILT,
            query=None if old is None else old.query,
            replays=replays or (old is not None and old.replays),
        )

    def await_(self, name: str) -> None:
        """Have a join that ran when the pool was last open."""
        self._registry[name] = Seat(State.ABSENT, replays=True)

    def leave(self, name: str) -> None:
        """Forget a join; if it runs, not yet that it does."""
        seat = self._registry.pop(name)
        if seat.run is not None and seat.run not in self._ended:
            self._left[name] = seat.run

    def still_runs(self, name: str) -> bool:
        """Whether a join of this name is gone, and its query is not."""
        return name in self._left

    def start(self, run: str, query: str) -> None:
        """A query starts: one that is known, or else it may be that of any that was built."""
        mine = [seat for seat in self._registry.values() if seat.query == query]
        for seat in mine:
            if seat.state in (State.BUILT, State.ENDED):
                seat.state, seat.run = State.RUNNING, run
        if not mine:
            built = {name for name, seat in self._registry.items() if seat.state == State.BUILT}
            self._starting[run] = built

    def on_progress(self, run: str, query: str, names: set[str]) -> set[str]:
        """A run says which joins it has: those that it speaks for, unless it has ended."""
        self._starting.pop(run, None)
        if run in self._ended:
            built, in_flight = self._silent.pop(run, (set(), False))
            for name in names & built & set(self._registry):
                if self._registry[name].state == State.BUILT:
                    self._registry[name] = Seat(State.ENDED, run, query, in_flight)
            return set()
        mine = {name for name in names & set(self._registry) if self._left.get(name) != run}
        for name in mine:
            self._registry[name] = Seat(State.RUNNING, run, query)
        return mine

    def end(self, run: str, *, in_flight: bool) -> None:
        """A run has ended, in the middle of a batch or not."""
        self._ended.add(run)
        self._left = {name: own for name, own in self._left.items() if own != run}
        for seat in self._registry.values():
            if seat.run == run and seat.state == State.RUNNING:
                seat.state, seat.replays = State.ENDED, in_flight
        built = self._starting.pop(run, set())
        if built:
            self._silent[run] = built, in_flight
        for name in built:
            if name in self._registry and self._registry[name].state == State.BUILT:
                self._registry[name].replays |= in_flight

    def may_run(self, name: str) -> bool:
        """Whether a join runs, or may have begun to."""
        starting = any(name in names for names in self._starting.values())
        return self._registry[name].state == State.RUNNING or starting

    def is_safely_stopped(self, name: str) -> bool:
        """Whether it is sure that a join follows its last order before it takes anything."""
        seat = self._registry[name]
        known = self.prompt or seat.state != State.BUILT
        return known and not self.may_run(name) and not seat.replays

    def claims(self, name: str) -> bool:
        """Whether a join has a part in the division of the memory."""
        return self._registry[name].state in (State.BUILT, State.RUNNING)

    def reserves_memory(self, name: str) -> bool:
        """Whether what a join had is kept for it: it is not there, and may need all of it."""
        return not self.claims(name) and not self.is_safely_stopped(name)
