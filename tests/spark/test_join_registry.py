"""Which joins run: by starts, reports and ends, in whatever order they come."""

from __future__ import annotations

from tidegate.spark.join_registry import Seats, State


def _states(seats: Seats) -> str:
    return ", ".join(seats[name].state for name in "ab")


def test_a_start_may_be_of_any_that_was_built() -> None:
    seats = Seats()
    for name in "ab":
        seats.build(name, replays=False)
    assert seats.rests("a")
    seats.start("run", "query")
    assert seats.may_run("a")
    assert not seats.rests("b")
    assert seats.hear("run", "query", {"a"}) == {"a"}
    assert _states(seats) == "running, no query yet"
    assert seats.rests("b")
    # The same checkpoint is known again.
    seats.end("run", in_flight=False)
    assert _states(seats) == "ended, no query yet"
    assert not seats.claims("a")
    seats.start("second", "query")
    assert (seats["a"].state, seats["a"].run) == (State.RUNNING, "second")


def test_what_ended_in_a_batch_may_do_it_again() -> None:
    seats = Seats()
    for name in "abc":
        seats.build(name, replays=False)
    seats.hear("run", "query", {"a"})
    seats.end("run", in_flight=True)
    assert seats.keeps("a")
    # Built again it has a part in what is divided, and still all orders count.
    seats.build("a", replays=False)
    assert seats.claims("a")
    assert not seats.rests("a")
    # A run that never said whose it was may have been of any.
    seats.start("silent", "other")
    seats.end("silent", in_flight=True)
    assert not seats.rests("b")
    # Reports of a run that has ended say whose it was, and no more.
    assert seats.hear("silent", "other", {"c"}) == set()
    assert (seats["c"].state, seats["b"].state) == (State.ENDED, State.BUILT)
    assert seats.keeps("c")
    seats.hear("third", "third", {"b", "unknown"})
    assert seats["b"].state == State.RUNNING
    assert not seats["b"].replays


def test_a_join_that_is_gone_may_still_have_a_query() -> None:
    seats = Seats()
    seats.build("a", replays=False)
    seats.hear("run", "query", {"a"})
    seats.leave("a")
    assert seats.still_runs("a")
    assert seats.hear("run", "query", {"a"}) == set()
    seats.end("run", in_flight=False)
    assert not seats.still_runs("a")
    assert "a" not in seats


def test_starts_that_are_heard_of_late() -> None:
    seats = Seats()
    seats.prompt = False
    seats.build("a", replays=False)
    assert not seats.rests("a")
    seats.hear("run", "query", {"a"})
    seats.end("run", in_flight=False)
    assert seats.rests("a")
