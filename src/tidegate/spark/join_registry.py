"""Track which joins of a pool have a running query, and what is certain about the others.

Spark announces a query's start and end, and its progress reports say which joins it contains. The
budget with which a stopped join resumes depends on how its query ended. A batch that was planned
but not committed is replayed with the budget updates it had; otherwise the join starts with the
latest update. `pool_controller` asks this registry before it gives a join's memory to others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Whether a join of a pool has a query, and whether it runs."""

    BUILT = "no query yet"
    RUNNING = "running"
    ENDED = "ended"
    #: It ran when the pool was last open, and has not been built again.
    ABSENT = "not built again"


@dataclass
class Seat:
    """The state of one join.

    Attributes
    ----------
    run, query
        The ids of its query's latest run, and of the query itself (one id per checkpoint).
    replays
        Whether the join may replay a batch that had a larger budget than its latest update.
    """

    state: State
    run: str | None = None
    query: str | None = None
    replays: bool = False


class JoinRegistry:
    """The joins of a pool by name, each with the state of its query."""

    def __init__(self) -> None:
        #: Whether Spark announces a query's start before its first batch.
        self.prompt = True
        self._registry: dict[str, Seat] = {}
        #: Runs that have not reported which joins they contain, with the joins they may contain.
        self._starting: dict[str, set[str]] = {}
        self._ended: set[str] = set()
        #: Runs that ended before their first report: the joins they may contain, and whether a
        #: batch was in flight.
        self._silent: dict[str, tuple[set[str], bool]] = {}
        #: Removed joins whose queries still run, with the id of that run.
        self._left: dict[str, str] = {}

    def __getitem__(self, name: str) -> Seat:
        return self._registry[name]

    def __contains__(self, name: object) -> bool:
        return name in self._registry

    def build(self, name: str, *, replays: bool) -> None:
        """Register a join whose query is built, for the first time or again."""
        old = self._registry.get(name)
        self._registry[name] = Seat(
            State.BUILT,
            query=None if old is None else old.query,
            replays=replays or (old is not None and old.replays),
        )

    def await_(self, name: str) -> None:
        """Register a join that ran when the pool was last open."""
        self._registry[name] = Seat(State.ABSENT, replays=True)

    def leave(self, name: str) -> None:
        """Remove a join. While its run goes on, `still_runs` remembers that."""
        seat = self._registry.pop(name)
        if seat.run is not None and seat.run not in self._ended:
            self._left[name] = seat.run

    def still_runs(self, name: str) -> bool:
        """Return True if a join of this name was removed while its query still runs."""
        return name in self._left

    def start(self, run: str, query: str) -> None:
        """Register the start of a run. If its query is unknown, it may contain any built join."""
        mine = [seat for seat in self._registry.values() if seat.query == query]
        for seat in mine:
            if seat.state in (State.BUILT, State.ENDED):
                seat.state, seat.run = State.RUNNING, run
        if not mine:
            built = {name for name, seat in self._registry.items() if seat.state == State.BUILT}
            self._starting[run] = built

    def on_progress(self, run: str, query: str, names: set[str]) -> set[str]:
        """Register which joins a run contains. Return those it reports for; none if it ended."""
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
        """Register the end of a run. `in_flight`: a planned batch was not committed."""
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
        """Return True if a join runs, or may have started to."""
        starting = any(name in names for names in self._starting.values())
        return self._registry[name].state == State.RUNNING or starting

    def is_safely_stopped(self, name: str) -> bool:
        """Return True if a restart is sure to apply the latest budget before it reads rows."""
        seat = self._registry[name]
        known = self.prompt or seat.state != State.BUILT
        return known and not self.may_run(name) and not seat.replays

    def claims(self, name: str) -> bool:
        """Return True if the join takes part in the division of the memory."""
        return self._registry[name].state in (State.BUILT, State.RUNNING)

    def reserves_memory(self, name: str) -> bool:
        """Return True if a stopped join's memory is reserved, because a replay may need it."""
        return not self.claims(name) and not self.is_safely_stopped(name)
