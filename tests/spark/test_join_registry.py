"""The registry knows which joins run, from starts, reports and ends in any order."""

from __future__ import annotations

from tidegate.spark.join_registry import JoinRegistry, State


def _states(registry: JoinRegistry) -> str:
    return ", ".join(registry[name].state for name in "ab")


def test_an_unknown_start_may_be_any_built_join() -> None:
    registry = JoinRegistry()
    for name in "ab":
        registry.build(name, replays=False)
    assert registry.is_safely_stopped("a")
    registry.start("run", "query")
    assert registry.may_run("a")
    assert not registry.is_safely_stopped("b")
    assert registry.on_progress("run", "query", {"a"}) == {"a"}
    assert _states(registry) == "running, no query yet"
    assert registry.is_safely_stopped("b")
    # The query of a known checkpoint is recognised.
    registry.end("run", in_flight=False)
    assert _states(registry) == "ended, no query yet"
    assert not registry.claims("a")
    registry.start("second", "query")
    assert (registry["a"].state, registry["a"].run) == (State.RUNNING, "second")


def test_a_run_that_ended_within_a_batch_may_replay_it() -> None:
    registry = JoinRegistry()
    for name in "abc":
        registry.build(name, replays=False)
    registry.on_progress("run", "query", {"a"})
    registry.end("run", in_flight=True)
    assert registry.reserves_memory("a")
    # Built again, it takes part in the division, but may still replay the batch.
    registry.build("a", replays=False)
    assert registry.claims("a")
    assert not registry.is_safely_stopped("a")
    # A run that never reported may have contained any built join.
    registry.start("silent", "other")
    registry.end("silent", in_flight=True)
    assert not registry.is_safely_stopped("b")
    # A report of an ended run only says which joins it contained.
    assert registry.on_progress("silent", "other", {"c"}) == set()
    assert (registry["c"].state, registry["b"].state) == (State.ENDED, State.BUILT)
    assert registry.reserves_memory("c")
    registry.on_progress("third", "third", {"b", "unknown"})
    assert registry["b"].state == State.RUNNING
    assert not registry["b"].replays


def test_a_removed_join_may_still_have_a_running_query() -> None:
    registry = JoinRegistry()
    registry.build("a", replays=False)
    registry.on_progress("run", "query", {"a"})
    registry.remove("a")
    assert registry.still_runs("a")
    assert registry.on_progress("run", "query", {"a"}) == set()
    registry.end("run", in_flight=False)
    assert not registry.still_runs("a")
    assert "a" not in registry


def test_starts_that_are_announced_late() -> None:
    registry = JoinRegistry()
    registry.starts_precede_batches = False
    registry.build("a", replays=False)
    assert not registry.is_safely_stopped("a")
    registry.on_progress("run", "query", {"a"})
    registry.end("run", in_flight=False)
    assert registry.is_safely_stopped("a")
