"""Joins together never hold more than the memory, however late updates and reports are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.pool.ledger import AllocationLedger, Shares

MEMORY = 40
NAMES = "abc"


class Joins:
    """Joins that apply updates late, each shard on its own, and report even later."""

    def __init__(self) -> None:
        self.sent: dict[str, list[tuple[int, Shares]]] = {}
        self.now: dict[tuple[str, int], tuple[int, int]] = {}
        #: Joins that do not run. When they start, they apply the latest update first.
        self.resting: set[str] = set()
        self.said: dict[tuple[str, int], tuple[int, int]] = {}

    def start(self, name: str, shards: int) -> None:
        self.sent[name] = []
        for shard in range(shards):
            self.now[name, shard] = self.said[name, shard] = (0, 0)

    def stop(self, name: str) -> None:
        del self.sent[name]
        self.resting.discard(name)
        for book in (self.now, self.said):
            for at in [at for at in book if at[0] == name]:
                del book[at]

    def rest(self, name: str) -> None:
        """Stop: hold nothing."""
        self.resting.add(name)
        for at in [at for at in self.now if at[0] == name]:
            self.now[at] = self.now[at][0], 0

    def wake(self, name: str) -> None:
        """Apply all updates before anything else."""
        self.resting.discard(name)
        for _, shard in [at for at in self.now if at[0] == name]:
            self.apply_budget(name, shard, len(self.sent[name]))

    def apply_budget(self, name: str, shard: int, upto: int) -> None:
        """Apply the latest of the first `upto` updates sent, unless a later one was applied."""
        if name in self.resting:
            return
        for number, shares in self.sent[name][:upto]:
            if number > self.now[name, shard][0]:
                self.now[name, shard] = number, shares[shard]

    @property
    def held(self) -> int:
        return sum(allowed for _, allowed in self.now.values())


steps = st.one_of(
    st.tuples(st.just("target"), st.lists(st.integers(0, 20), min_size=9, max_size=9)),
    st.tuples(st.just("follow"), st.tuples(st.integers(0, 8), st.integers(0, 9))),
    st.tuples(st.just("say"), st.integers(0, 8)),
    st.tuples(st.just("start"), st.tuples(st.sampled_from(NAMES), st.integers(1, 3))),
    st.tuples(st.just("leave"), st.sampled_from(NAMES)),
    st.tuples(st.just("stop"), st.sampled_from(NAMES)),
    st.tuples(st.just("rest"), st.sampled_from(NAMES)),
    st.tuples(st.just("wake"), st.sampled_from(NAMES)),
)


@given(st.lists(steps, max_size=60))
def test_joins_never_hold_more_than_the_memory(script: list[tuple[str, object]]) -> None:
    ledger, joins = AllocationLedger(MEMORY), Joins()
    target: list[int] = [13] * 9
    for what, value in script:
        shards = sorted(joins.now)
        if what == "target" and isinstance(value, list):
            scale = min(MEMORY / max(sum(value), 1), 1)
            target = [int(v * scale) for v in value]
        elif what == "follow" and isinstance(value, tuple) and value[0] < len(shards):
            joins.apply_budget(*shards[value[0]], value[1])
        elif what == "rest" and isinstance(value, str) and value in joins.sent:
            joins.rest(value)
        elif what == "wake" and isinstance(value, str) and value in joins.resting:
            joins.wake(value)
        elif what == "say" and isinstance(value, int) and value < len(shards):
            if shards[value][0] in joins.resting:
                continue
            joins.said[shards[value]] = joins.now[shards[value]]
            ledger.confirm(*shards[value], *joins.now[shards[value]])
        elif what == "start" and isinstance(value, tuple) and value[0] not in joins.sent:
            ledger.open(value[0], value[1], 1.0, 1)
            joins.start(*value)
            joins.sent[value[0]].append(ledger.repeat_latest(value[0]))
        elif what == "leave" and isinstance(value, str) and value in ledger.names:
            ledger.leave(value)
        elif what == "stop" and isinstance(value, str) and value in joins.sent:
            if value in ledger.names:
                ledger.leave(value)
            ledger.close(value)
            joins.stop(value)
        targets = {}
        for at, name in enumerate(ledger.names):
            n = len(ledger.allowed(name))
            targets[name] = [t // len(ledger.names) for t in target[3 * at : 3 * at + n]]
        for name, update in ledger.updates(targets).items():
            joins.sent[name].append(update)
        for name in [name for name in ledger.names if name in joins.resting]:
            ledger.assume_latest(name)
        assert joins.held <= ledger.granted <= MEMORY


def test_memory_moves_once_it_is_confirmed_free() -> None:
    ledger = AllocationLedger(100)
    ledger.open("a", 2, 1.0, 1)
    assert ledger.updates({"a": [60, 40]}) == {"a": (1, (60, 40))}
    ledger.open("b", 1, 1.0, 1)
    targets = {"a": [20, 30], "b": [50]}
    # Nothing is confirmed as free: "a" has to shrink, and "b" gets nothing yet.
    assert ledger.updates(targets) == {"a": (2, (20, 30))}
    assert ledger.updates(targets) == {}
    ledger.confirm("a", 0, 2, 20)
    assert ledger.updates(targets) == {"b": (1, (40,))}
    ledger.confirm("a", 1, 2, 30)
    assert ledger.updates(targets) == {"b": (2, (50,))}
    ledger.confirm("b", 0, 2, 50)
    assert (ledger.granted, ledger.allowed("a"), ledger.latest_shares("b")) == (
        100,
        [20, 30],
        (50,),
    )
    # A late report changes nothing.
    ledger.confirm("a", 0, 1, 60)
    assert ledger.granted == 100
    ledger.leave("a")
    assert ledger.updates({"b": [100]}) == {"a": (3, (0, 0))}
    # With its last shard the join has left. The confirmed updates are where it would resume.
    assert [ledger.confirm("a", shard, 3, 0) for shard in range(2)] == [(), ((3, 0), (3, 0))]
    assert ledger.updates({"b": [100]}) == {"b": (3, (100,))}
    assert ledger.names == ["b"]


def test_a_reopened_pool_waits_for_confirmations() -> None:
    ledger = AllocationLedger(100)
    ledger.open("a", 1, 1.0, 1, {1: (90,), 2: (30,)})
    ledger.open("b", 1, 1.0, 1, {1: (10,), 2: (70,)})
    assert (ledger.latest_shares("a"), ledger.latest_shares("b")) == ((30,), (70,))
    assert ledger.updates({"a": [30], "b": [70]}) == {}
    assert ledger.updates({"a": [40], "b": [60]}) == {"b": (3, (60,))}
    ledger.confirm("a", 0, 2, 30)
    assert ledger.updates({"a": [40], "b": [60]}) == {}
    ledger.confirm("b", 0, 3, 60)
    assert ledger.updates({"a": [40], "b": [60]}) == {"a": (3, (40,))}
    assert ledger.granted == 100


def test_a_stopped_join_counts_with_its_latest_update_only() -> None:
    ledger = AllocationLedger(100)
    ledger.open("a", 1, 1.0, 1)
    ledger.open("b", 1, 1.0, 1)
    assert ledger.repeat_latest("a") == (1, (0,))
    assert ledger.updates({"a": [60], "b": [40]}) == {"a": (2, (60,)), "b": (1, (40,))}
    assert ledger.updates({"a": [0], "b": [100]}) == {"a": (3, (0,))}
    ledger.assume_latest("a")
    assert (ledger.most("a"), ledger.confirmed("a"), ledger.granted) == (0, ((2, 0),), 40)
    assert ledger.updates({"a": [0], "b": [100]}) == {"b": (2, (100,))}
    ledger.confirm("a", 0, 2, 60)
    ledger.confirm("a", 0, 3, 0)
    assert ledger.granted == 100


def test_a_rebuilt_join_keeps_its_account() -> None:
    ledger = AllocationLedger(10)
    ledger.open("a", 2, 1.0, 0, {1: (9, 1), 2: (2, 2), 3: (4, 3)}, ((2, 2), (3, 3)))
    assert (ledger.most("a"), ledger.latest_shares("a")) == (7, (4, 3))
    ledger.renew("a", 2, 2.0, 4)
    assert (ledger.weight("a"), ledger.least("a")) == (2.0, [4, 4])
    with pytest.raises(tg.TidegateError, match='"a" had 2 shards when it last ran'):
        ledger.renew("a", 1, 1.0, 1)
    with pytest.raises(tg.TidegateError, match="a pool of 10 is too small for 1 joins"):
        ledger.renew("a", 2, 1.0, 6)


def test_unsuitable_joins_are_refused() -> None:
    ledger = AllocationLedger(5)
    ledger.open("a", 2, 1.0, 2)
    with pytest.raises(tg.TidegateError, match='has a join "a" already; each needs a name'):
        ledger.open("a", 1, 1.0, 1)
    with pytest.raises(tg.TidegateError, match="a pool of 5 is too small for 2 joins.* need 6"):
        ledger.open("b", 2, 1.0, 1)
    with pytest.raises(tg.TidegateError, match='no join "b"; it has "a"'):
        ledger.leave("b")
    with pytest.raises(tg.TidegateError, match='"b" had 3 shards when it last ran'):
        ledger.open("b", 1, 1.0, 1, {1: (1, 1, 1)})
    ledger.updates({"a": [2, 3]})
    ledger.leave("a")
    with pytest.raises(tg.TidegateError, match=r"it has none \(it is leaving already\)"):
        ledger.leave("a")
    with pytest.raises(tg.TidegateError, match="still leaving: stop its query first"):
        ledger.open("a", 1, 1.0, 1)
