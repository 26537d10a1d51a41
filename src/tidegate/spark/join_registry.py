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
    """The query of a join of a pool, if it has one, and whether it runs."""

    BUILT = "no query yet"
    RUNNING = "running"
    ENDED = "ended"
    #: It ran when the pool was last open, and has not been built again.
    ABSENT = "not built again"


@dataclass
class JoinEntry:
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
        self.starts_precede_batches = True
        self._joins: dict[str, JoinEntry] = {}
        #: Runs that have not reported which joins they contain, with the joins they may contain.
        self._starting: dict[str, set[str]] = {}
        self._ended: set[str] = set()
        #: Runs that ended before their first report: the joins they may contain, and whether a
        #: batch was in flight.
        self._unreported: dict[str, tuple[set[str], bool]] = {}
        #: Removed joins whose queries still run, with the id of that run.
        self._removed: dict[str, str] = {}

    def __getitem__(self, name: str) -> JoinEntry:
        return self._joins[name]

    def __contains__(self, name: object) -> bool:
        return name in self._joins

    def build(self, name: str, *, replays: bool) -> None:
        """Register a join whose query is built, for the first time or again."""
        old = self._joins.get(name)
        self._joins[name] = JoinEntry(
            State.BUILT,
            query=None if old is None else old.query,
            replays=replays or (old is not None and old.replays),
        )

    def expect(self, name: str) -> None:
        """Register a join that ran when the pool was last open."""
        self._joins[name] = JoinEntry(State.ABSENT, replays=True)

    def remove(self, name: str) -> None:
        """Remove a join. While its run goes on, `still_runs` remembers that."""
        entry = self._joins.pop(name)
        if entry.run is not None and entry.run not in self._ended:
            self._removed[name] = entry.run

    def still_runs(self, name: str) -> bool:
        """Return True if a join of this name was removed while its query still runs."""
        return name in self._removed

    def start(self, run: str, query: str) -> None:
        """Register the start of a run. If its query is unknown, it may contain any built join."""
        own = [entry for entry in self._joins.values() if entry.query == query]
        for entry in own:
            if entry.state in (State.BUILT, State.ENDED):
                entry.state, entry.run = State.RUNNING, run
        if not own:
            built = {name for name, entry in self._joins.items() if entry.state == State.BUILT}
            self._starting[run] = built

    def on_progress(self, run: str, query: str, names: set[str]) -> set[str]:
        """Register which joins a run contains. Return those it reports for; none if it ended."""
        self._starting.pop(run, None)
        if run in self._ended:
            built, in_flight = self._unreported.pop(run, (set(), False))
            for name in names & built & set(self._joins):
                if self._joins[name].state == State.BUILT:
                    self._joins[name] = JoinEntry(State.ENDED, run, query, in_flight)
            return set()
        own = {name for name in names & set(self._joins) if self._removed.get(name) != run}
        for name in own:
            self._joins[name] = JoinEntry(State.RUNNING, run, query)
        return own

    def end(self, run: str, *, in_flight: bool) -> None:
        """Register the end of a run. `in_flight`: a planned batch was not committed."""
        self._ended.add(run)
        self._removed = {name: own for name, own in self._removed.items() if own != run}
        for entry in self._joins.values():
            if entry.run == run and entry.state == State.RUNNING:
                entry.state, entry.replays = State.ENDED, in_flight
        built = self._starting.pop(run, set())
        if built:
            self._unreported[run] = built, in_flight
        for name in built:
            if name in self._joins and self._joins[name].state == State.BUILT:
                self._joins[name].replays |= in_flight

    def may_run(self, name: str) -> bool:
        """Return True if a join runs, or may have started to."""
        starting = any(name in names for names in self._starting.values())
        return self._joins[name].state == State.RUNNING or starting

    def is_safely_stopped(self, name: str) -> bool:
        """Return True if a restart is sure to apply the latest budget before it reads rows."""
        entry = self._joins[name]
        known = self.starts_precede_batches or entry.state != State.BUILT
        return known and not self.may_run(name) and not entry.replays

    def claims(self, name: str) -> bool:
        """Return True if the join takes part in the division of the memory."""
        return self._joins[name].state in (State.BUILT, State.RUNNING)

    def reserves_memory(self, name: str) -> bool:
        """Return True if a stopped join's memory is reserved, because a replay may need it."""
        return not self.claims(name) and not self.is_safely_stopped(name)
