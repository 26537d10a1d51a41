"""Test the rules of the twin on cases worked by hand, and its invariants on random ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins.rankers import ByKey, Fixed, Ranker, Scored
from twins.window import (
    LEFT,
    RIGHT,
    SHED_WHEN,
    NaiveJoin,
    Pairs,
    Row,
    Time,
    Windows,
    check_bound,
    exact,
)

INF = (math.inf, math.inf)
FIFO: Mapping[int, float] = {}


def left(uid: int, time: Time, key: int = 1, row_hash: int = 0, size: int = 1) -> Row:
    """Make a left row."""
    return Row(LEFT, key, time, row_hash, uid, size)


def right(uid: int, time: Time, key: int = 1, row_hash: int = 0, size: int = 1) -> Row:
    """Make a right row."""
    return Row(RIGHT, key, time, row_hash, uid, size)


def run(join: NaiveJoin, *feeds: Sequence[Row]) -> Pairs:
    """Feed the join, finish it, and return the pairs in order of uid."""
    pairs = [pair for rows in feeds for pair in join.feed(rows)]
    return sorted(pairs + join.finish())


def held(join: NaiveJoin) -> list[int]:
    """Return the uids of held rows, in order of arrival."""
    return [h.row.uid for h in sorted(join.held, key=lambda h: h.seq)]


# The pair rule, and how long a row is held


def test_pair_rule_is_strict_on_both_sides() -> None:
    """W_L = 3, W_R = 2: a left row at 10 joins right rows at 9, 10, 11, 12, not at 8 or 13."""
    rows = [left(0, 10)] + [right(t, t) for t in range(7, 15)]
    assert exact(rows, (3, 2)) == Counter([(0, 9), (0, 10), (0, 11), (0, 12)])
    assert run(NaiveJoin(windows=(3, 2), ranker=Fixed(FIFO)), rows) == sorted(exact(rows, (3, 2)))


def test_only_equal_keys_of_two_sides_join() -> None:
    """Rows of the same side or of different keys never join."""
    rows = [left(0, 1), left(1, 1), right(2, 1, key=2)]
    assert exact(rows, (5, 5)) == Counter()
    assert run(NaiveJoin(windows=(5, 5), ranker=Fixed(FIFO)), rows) == []


@pytest.mark.parametrize(
    ("row", "windows", "lateness", "last"),
    [
        (left(0, 10), (3, 9), 0, 12),
        (right(0, 10), (9, 3), 0, 12),
        (left(0, 10), (3, 9), 2, 14),
        (right(0, 10), (9, 3), 2, 14),
        (left(0, 10), (math.inf, 1), 0, 10**9),
    ],
)
def test_row_is_held_until_its_window_and_the_lateness_are_over(
    row: Row, windows: tuple[Time, Time], lateness: Time, last: Time
) -> None:
    """The row is held up to the clock `last`. Lateness only makes this longer."""
    join = NaiveJoin(windows=windows, lateness=lateness, ranker=Fixed(FIFO))
    join.feed([row], clocks=(last, last))
    assert held(join) == [0]
    join.feed([], clocks=(last + 1, last + 1))
    assert held(join) == ([] if math.isfinite(windows[LEFT]) else [0])
    assert join.shed == []


def test_lateness_adds_no_pairs() -> None:
    """A row that is held for late partners only does not join a row that is on time."""
    join = NaiveJoin(windows=(3, 3), lateness=5, ranker=Fixed(FIFO))
    assert run(join, [left(0, 10)], [right(1, 13)], [right(2, 12)]) == [(0, 2)]


# Streams that are out of step


def test_a_row_waits_for_the_other_stream() -> None:
    """The left stream's clock expires rows of the right stream, not of its own."""
    join = NaiveJoin(windows=(3, 3), ranker=Fixed(FIFO))
    join.feed([left(t, t) for t in range(10)])
    assert held(join) == list(range(9))
    assert sorted(join.feed([right(20, 4)])) == [(t, 20) for t in (2, 3, 4, 5, 6)]
    assert held(join) == list(range(2, 9))


def test_the_oldest_row_that_only_a_lagging_stream_could_join_is_shed_first() -> None:
    """By the clock, rows 0 and 1 are out of their windows, and are removed whatever their ranks."""
    ranker = Fixed({0: 9.0, 1: 8.0, 2: 2.0, 3: 3.0})
    join = NaiveJoin(windows=(3, 3), memory=3, ranker=ranker)
    run(join, [left(0, 0), left(1, 1), left(2, 4), left(3, 5)])
    assert held(join) == [1, 2, 3]
    run(join, [left(4, 5, key=9)])
    assert held(join) == [2, 3, 4]
    assert [(gone.uid, gone.why) for gone in join.shed] == [(0, "overdue"), (1, "overdue")]


def test_a_newcomer_that_is_overdue_itself_may_be_the_oldest() -> None:
    """It is removed at once, and is neither rejected nor shed."""
    join = NaiveJoin(windows=(3, 3), memory=1, ranker=Fixed(FIFO))
    run(join, [left(0, 2)], [left(1, 6)], [left(2, 1)])
    assert held(join) == [1]
    assert [(gone.uid, gone.why) for gone in join.shed] == [(2, "overdue"), (0, "overdue")]


# Schedules


def test_a_rows_window_is_the_one_of_its_own_time() -> None:
    """Row 0 came before the left's window became shorter, and is held longer than row 1."""
    rows = [left(0, 4), left(1, 5), right(2, 6), right(3, 7), right(4, 12), right(5, 14)]
    windows = ([(0, 10), (5, 2)], 1)
    assert sorted(exact(rows, windows)) == [(0, 2), (0, 3), (0, 4), (1, 2)]
    join = NaiveJoin(windows=windows, ranker=Fixed(FIFO))
    assert run(join, rows[:4]) == [(0, 2), (0, 3), (1, 2)]
    assert held(join) == [0, 2, 3]
    assert run(join, rows[4:]) == [(0, 4)]


@pytest.mark.parametrize(
    ("shed_when", "pairs"), [("after-probe", [(0, 2), (1, 2)]), ("before-probe", [(1, 2)])]
)
def test_memory_shrinks_after_the_probes_of_its_tick_or_before(
    shed_when: str, pairs: Pairs
) -> None:
    """At the time of the change, `shed_when` decides whether a row that is shed still joins."""
    rows = [left(0, 0), left(1, 1), right(2, 5, key=1)]
    join = NaiveJoin(
        windows=(9, 1),
        memory=[(0, 2), (5, 1)],
        shed_when=shed_when,
        ranker=Fixed({1: 1.0, 2: -1.0}),
    )
    assert run(join, rows) == pairs
    assert held(join) == [1]
    assert [(s.uid, s.when, s.why) for s in join.shed] == [(0, 5, "shed"), (2, 5, "rejected")]


@pytest.mark.parametrize("shed_when", SHED_WHEN)
def test_memory_that_shrank_between_two_ticks_is_small_at_the_next(shed_when: str) -> None:
    """The memory grew again before the next row came, but rows were shed all the same."""
    rows = [left(0, 0), left(1, 1), right(2, 5)]
    join = NaiveJoin(
        windows=(9, 1), memory=[(0, 2), (3, 1), (4, 9)], shed_when=shed_when, ranker=Fixed(FIFO)
    )
    assert run(join, rows) == [(1, 2)]
    assert held(join) == [1, 2]
    assert [(s.uid, s.when, s.why) for s in join.shed] == [(0, 5, "shed")]


# Ticks


def test_order_inside_a_tick() -> None:
    """The order is left before right, then key, row hash and uid, not that of the input."""
    rows = [right(5, 1, key=1), left(4, 1, key=2), left(3, 1, row_hash=7), left(2, 1, row_hash=3)]
    rows += [left(1, 1, row_hash=3), right(0, 0, key=9)]
    join = NaiveJoin(windows=(9, 9), ranker=Fixed(FIFO))
    run(join, rows)
    assert held(join) == [0, 1, 2, 3, 4, 5]


def test_open_tick_probes_at_once_but_is_admitted_when_it_closes() -> None:
    """With `after-probe`, each pair is found once, in the feed that completes it."""
    join = NaiveJoin(windows=(9, 9), ranker=Fixed(FIFO))
    join.feed([left(0, 1)])
    assert join.held == []
    assert join.feed([right(1, 2)]) == [(0, 1)]
    assert held(join) == [0]
    assert sorted(join.feed([left(2, 2), right(3, 2)])) == [(0, 3), (2, 1), (2, 3)]
    assert held(join) == [0]
    assert join.finish() == []
    assert held(join) == [0, 2, 1, 3]


@pytest.mark.parametrize("shed_when", ["before-probe", "before-arrival"])
def test_open_tick_waits_as_a_whole_otherwise(shed_when: str) -> None:
    """The open tick gives no results until a row of a later time arrives."""
    join = NaiveJoin(windows=(9, 9), shed_when=shed_when, ranker=Fixed(FIFO))
    assert join.feed([left(0, 1)]) == []
    assert join.feed([right(1, 1)]) == []
    assert join.feed([right(2, 2)]) == [(0, 1)]
    assert join.finish() == [(0, 2)]


@pytest.mark.parametrize("shed_when", SHED_WHEN)
def test_rows_of_the_open_tick_are_admitted_in_one_order(shed_when: str) -> None:
    """The left row is first in the tick and is shed, although the right row was fed before it."""
    join = NaiveJoin(windows=(9, 9), memory=1, shed_when=shed_when, ranker=Fixed(FIFO))
    run(join, [right(0, 1)], [left(1, 1)])
    assert held(join) == [0]
    assert join.shed == [(1, 1, "shed")]


@pytest.mark.parametrize("shed_when", SHED_WHEN)
def test_given_clock_closes_the_open_tick_at_its_own_time_then_expires(shed_when: str) -> None:
    """At time 2 row 1 is shed by its rank while row 0 is live; then the clock expires row 0."""
    ranker = Fixed({0: 5.0, 1: 1.0})
    join = NaiveJoin(windows=(3, 3), memory=1, shed_when=shed_when, ranker=ranker)
    join.feed([left(0, 1)])
    join.feed([left(1, 2)], clocks=(2, 2))
    assert (held(join), len(join.open), join.shed) == ([0], 1, [])
    join.feed([], clocks=(4, 4))
    assert (held(join), join.open, join.shed) == ([], [], [(1, 2, "rejected")])


def test_given_clock_below_the_rows_changes_nothing() -> None:
    """The clock is the largest time seen, and never goes back."""
    join = NaiveJoin(windows=(3, 3), ranker=Fixed(FIFO))
    join.feed([left(0, 5)], clocks=(4, 4))
    assert (join.clock, len(join.open)) == (5, 1)


def test_row_at_the_given_clock_is_not_late() -> None:
    """The row opens the tick of that time."""
    join = NaiveJoin(windows=(3, 3), ranker=Fixed(FIFO))
    join.feed([left(0, 1)], clocks=(3, 3))
    assert join.feed([right(1, 3)]) == [(0, 1)]
    assert (held(join), len(join.open)) == ([0], 1)


# When rows are shed


@pytest.mark.parametrize(
    ("shed_when", "ranks", "pairs"),
    [  # Memory for one row: row 0 is held, row 1 comes, and one of the two is shed.
        ("after-probe", {0: 1, 1: 2}, [(0, 1)]),
        ("before-probe", {0: 1, 1: 2}, []),
        ("before-arrival", {0: 1, 1: 2}, []),
        ("after-probe", {0: 2, 1: 1}, [(0, 1)]),
        ("before-probe", {0: 2, 1: 1}, [(0, 1)]),
        ("before-arrival", {0: 2, 1: 1}, []),
    ],
)
def test_victim_and_rejected_newcomer(
    shed_when: str, ranks: dict[int, float], pairs: Pairs
) -> None:
    """Every combination of `shed_when` and of the row that is shed."""
    join = NaiveJoin(windows=(9, 9), memory=1, shed_when=shed_when, ranker=Fixed(ranks))
    assert run(join, [left(0, 1), right(1, 2)]) == pairs


@pytest.mark.parametrize(
    ("shed_when", "pairs"),
    [("after-probe", [(0, 1)]), ("before-probe", [(0, 1)]), ("before-arrival", [])],
)
def test_newcomers_of_one_tick(shed_when: str, pairs: Pairs) -> None:
    """Newcomers join each other in any memory, unless a newcomer that is shed does not probe."""
    join = NaiveJoin(windows=(9, 9), memory=1, shed_when=shed_when, ranker=Fixed(FIFO))
    assert run(join, [left(0, 1), right(1, 1)]) == pairs


def test_before_probe_probes_held_rows_only_once() -> None:
    """Newcomers that are admitted are not probed a second time as held rows."""
    join = NaiveJoin(windows=(9, 9), memory=9, shed_when="before-probe", ranker=Fixed(FIFO))
    assert run(join, [left(0, 1), left(1, 2), right(2, 2)]) == [(0, 2), (1, 2)]


# Admission


def test_of_equal_ranks_the_earlier_leaves() -> None:
    """PROB's tie rule (Das et al., 4.2.1)."""
    join = NaiveJoin(windows=(9, 9), memory=2, ranker=Fixed({0: 2, 1: 1, 2: 1}))
    run(join, [left(0, 1), left(1, 2), left(2, 3)])
    assert held(join) == [0, 2]
    assert join.shed == [(1, 3, "shed")]


def test_newcomer_is_a_candidate() -> None:
    """A newcomer of the lowest rank is rejected.

    One that a later row of its tick displaces is shed.
    """
    join = NaiveJoin(windows=(9, 9), memory=1, ranker=Fixed({0: 2, 1: 1, 2: 3, 3: 4}))
    run(join, [left(0, 1), left(1, 2), left(2, 3), left(3, 3)])
    assert held(join) == [3]
    assert join.shed == [(1, 2, "rejected"), (0, 3, "shed"), (2, 3, "shed")]


def test_bytes() -> None:
    """A large newcomer may displace several rows, and be shed later.

    One larger than the budget displaces none.
    """
    ranks = {0: 1, 1: 2, 2: 9, 3: 3, 4: 99}
    join = NaiveJoin(windows=(9, 9), memory=10, in_bytes=True, ranker=Fixed(ranks))
    sizes = [3, 3, 4, 7, 11]
    run(join, [left(uid, uid, size=size) for uid, size in enumerate(sizes)])
    assert join.shed == [
        (0, 3, "shed"),
        (1, 3, "shed"),
        (3, 3, "rejected"),
        (4, 4, "rejected"),
    ]
    assert held(join) == [2]


@pytest.mark.parametrize(
    ("memory", "split", "budgets"),
    [(7, None, [7]), (7, 0.5, [3, 4]), (10, 0.25, [2, 8]), (3, 0.1, [1, 2]), (2, 0.99, [1, 1])],
)
def test_pools(memory: int, split: float | None, budgets: list[int]) -> None:
    """The left gets floor(M * s) rows, the right gets the rest, and each gets at least one."""
    assert NaiveJoin(windows=INF, memory=memory, split=split, ranker=Fixed({})).budgets == budgets


@pytest.mark.parametrize(("split", "kept"), [(None, [1, 2]), (0.5, [0, 2])])
def test_split_pools_do_not_compete(split: float | None, kept: list[int]) -> None:
    """In a shared memory the oldest row is shed; in a split one, the oldest of the right."""
    join = NaiveJoin(windows=INF, memory=2, split=split, ranker=Fixed(FIFO))
    run(join, [left(0, 1), right(1, 2), right(2, 3)])
    assert held(join) == kept


def test_bad_settings_are_refused() -> None:
    """A pool without memory for a row, and an unknown `shed_when`, are refused."""
    with pytest.raises(ValueError, match="for every pool, not 1"):
        NaiveJoin(windows=INF, memory=1, split=0.5, ranker=Fixed(FIFO))
    with pytest.raises(ValueError, match="not 'sometime'"):
        NaiveJoin(windows=INF, shed_when="sometime", ranker=Fixed(FIFO))


def test_check_bound_fails_over_budget() -> None:
    """The helper detects a pool that holds too much."""
    join = NaiveJoin(windows=INF, memory=2, split=0.5, ranker=Fixed(FIFO))
    run(join, [left(0, 1), right(1, 1)])
    check_bound(join)
    join.held.append(join.held[0]._replace(seq=9))
    with pytest.raises(AssertionError, match="pool 0 holds 2, its budget is 1"):
        check_bound(join)


# Late rows


def test_late_row_joins_memory_and_the_open_tick_once() -> None:
    """With `after-probe`, the late left row 2 joins row 1 of the open tick.

    Row 3 joins it as a held row.
    """
    join = NaiveJoin(windows=(9, 9), ranker=Fixed(FIFO))
    assert join.feed([right(0, 3), right(1, 5)]) == []
    assert sorted(join.feed([left(2, 4)])) == [(2, 0), (2, 1)]
    assert held(join) == [0, 2]
    assert join.feed([right(3, 5)]) == [(2, 3)]
    assert join.finish() == []
    assert held(join) == [0, 2, 1, 3]


@pytest.mark.parametrize("shed_when", ["before-probe", "before-arrival"])
def test_late_row_meets_the_open_tick_when_it_closes(shed_when: str) -> None:
    """Otherwise the open tick joins the late row if it is still held."""
    join = NaiveJoin(windows=(9, 9), shed_when=shed_when, ranker=Fixed(FIFO))
    join.feed([right(0, 3), right(1, 5)])
    assert join.feed([left(2, 4)]) == [(2, 0)]
    assert join.finish() == [(2, 1)]


def test_late_row_pushed_out_before_the_open_tick_closes() -> None:
    """With `before-probe` and memory for one row, late row 2 displaces late row 1.

    The open tick displaces row 2.
    """
    join = NaiveJoin(windows=(9, 9), memory=1, shed_when="before-probe", ranker=Fixed(FIFO))
    assert run(join, [right(0, 5)], [left(2, 4), left(1, 3)]) == []
    assert join.shed == [(1, 5, "shed"), (2, 5, "shed")]


def test_each_late_time_is_a_tick_before_the_open_one() -> None:
    """Late ticks are processed before the open tick and in order of time, however they are fed."""
    join = NaiveJoin(windows=(9, 9), ranker=Fixed(FIFO))
    run(join, [left(0, 5)], [left(1, 5), left(2, 4), left(3, 2)])
    assert held(join) == [3, 2, 0, 1]


def test_late_row_joins_rows_later_than_itself_by_the_pair_rule() -> None:
    """W_L = 2: the late left row 3 at time 4 joins right rows at times 4 and 5, not at 6."""
    join = NaiveJoin(windows=(2, 9), lateness=9, ranker=Fixed(FIFO))
    assert run(join, [right(0, 4), right(1, 5), right(2, 6)], [left(3, 4)]) == [(3, 0), (3, 1)]


@pytest.mark.parametrize("shed_when", SHED_WHEN)
def test_late_row_dead_on_arrival_probes_and_is_neither_admitted_nor_shed(shed_when: str) -> None:
    """The window of the left row 2 ended at 4 (W_L = 2); the right row 0 is still live."""
    join = NaiveJoin(windows=(2, 9), memory=5, shed_when=shed_when, ranker=Fixed(FIFO))
    assert run(join, [right(0, 3), right(1, 5)], [left(2, 2)]) == [(2, 0)]
    assert held(join) == [0, 1]
    assert join.shed == []


def test_late_row_is_seen_by_the_ranker_even_if_dead() -> None:
    """Its arrival is counted for its key like any other."""
    ranker = ByKey()
    run(NaiveJoin(windows=(2, 2), ranker=ranker), [right(0, 9)], [left(1, 1, key=4)])
    assert ranker.counts == [{4: 1.0}, {1: 1.0}]


# Rankers


def test_floor_lifts_later_ranks() -> None:
    """Row 1 is shed at rank 2, so row 2 has rank 1 + 2.

    Row 0 has rank 3 as well, and is shed as the earlier one.
    """
    ranks = {0: 3.0, 1: 2.0, 2: 1.0}
    join = NaiveJoin(windows=INF, memory=1, ranker=Fixed(ranks, floor_weight=1.0))
    run(join, [left(0, 1), left(1, 2), left(2, 3)])
    assert join.shed == [(1, 2, "rejected"), (0, 3, "shed")]
    assert join.floors[0] == 3.0
    join = NaiveJoin(windows=INF, memory=1, ranker=Fixed(ranks))
    run(join, [left(0, 1), left(1, 2), left(2, 3)])
    assert join.shed == [(1, 2, "rejected"), (2, 3, "rejected")]


def test_floors_are_per_pool_and_never_fall() -> None:
    """Ranks 3 and 0.5 + 3 are shed in the left pool.

    The floor of the right one is still 0 when row 4 is admitted.
    """
    ranks = {0: 3.0, 1: 4.0, 2: 0.5, 3: 2.0, 4: 1.0}
    join = NaiveJoin(windows=INF, memory=2, split=0.5, ranker=Fixed(ranks, floor_weight=1.0))
    run(join, [left(0, 1), right(3, 1), left(1, 2), left(2, 3), right(4, 4)])
    assert join.shed == [(0, 2, "shed"), (2, 3, "rejected"), (4, 4, "rejected")]
    assert join.floors == [3.5, 1.0]
    join = NaiveJoin(windows=INF, memory=2, split=0.5, ranker=Fixed(ranks))
    run(join, [left(0, 1), left(1, 2), left(2, 3)])
    assert join.floors == [3.0, 0.0]


def test_prob_ranks_by_the_other_sides_given_counts() -> None:
    """Each side keeps the key that is frequent on the other side.

    The left keeps key 2, and the right key 1.
    """
    ranker = ByKey(({1: 9.0, 2: 1.0}, {1: 1.0, 2: 9.0}), learned=False)
    join = NaiveJoin(windows=INF, memory=2, split=0.5, ranker=ranker)
    rows = [left(0, 1, key=2), left(1, 2, key=1), right(2, 1, key=1), right(3, 2, key=2)]
    run(join, rows)
    assert held(join) == [0, 2]
    assert ranker.counts == [{1: 9.0, 2: 1.0}, {1: 1.0, 2: 9.0}]


def test_prob_learns_the_whole_tick_before_it_admits() -> None:
    """Row 0 has a high rank only because of the right row 2, the last row of its tick."""
    join = NaiveJoin(windows=INF, memory=1, split=None, ranker=ByKey())
    run(join, [left(0, 1, key=1), left(1, 1, key=2), right(2, 1, key=1)])
    assert join.shed == [(1, 1, "rejected"), (0, 1, "shed")]


def test_counts_decay_by_epochs_of_the_clock() -> None:
    """Three arrivals in epoch 1 weigh less than one in epoch 3.

    A late arrival weighs as much as one of now.
    """
    ranker = ByKey(halflife=10)
    join = NaiveJoin(windows=INF, ranker=ranker)
    run(join, [right(t, t, key=1) for t in (17, 18, 19)], [right(3, 35, key=2)], [left(4, 12)])
    assert ranker.counts == [{1: 4.0}, {1: 3.0, 2: 4.0}]


def test_epochs_of_fractional_and_negative_clocks() -> None:
    """Epochs are rounded down, not towards zero: -0.25 is in epoch -1, and 0.25 in epoch 0."""
    ranker = ByKey(halflife=0.5)
    run(NaiveJoin(windows=INF, ranker=ranker), [left(0, -0.25), left(1, 0.25)])
    assert ranker.counts == [{1: 1.0 + 2.0}, {}]


def test_rarest_idle_keys_are_forgotten_beyond_the_cap() -> None:
    """Of the four idle keys 1 to 4 (cap 3), only the one with the largest count is kept.

    Key 5 is held.
    """
    ranker = ByKey(cap=3)
    join = NaiveJoin(windows=(1, 1), ranker=ranker)
    run(join, [left(0, 1, key=1), right(1, 1, key=1), right(2, 2, key=2), right(3, 2, key=2)])
    run(join, [left(4, 3, key=3)])
    assert ranker.counts == [{1: 1.0, 3: 1.0}, {1: 1.0, 2: 2.0}]
    run(join, [left(5, 4, key=4)])
    assert ranker.counts == [{1: 1.0, 3: 1.0, 4: 1.0}, {1: 1.0, 2: 2.0}]
    join.feed([left(6, 5, key=5)], clocks=(5, 5))
    join.finish()
    assert ranker.counts == [{5: 1.0}, {2: 2.0}]


def test_of_equal_counts_the_larger_key_is_remembered() -> None:
    """With a cap of 2, only the largest of the three idle keys is kept."""
    ranker = ByKey(cap=2)
    join = NaiveJoin(windows=(1, 1), ranker=ranker)
    for k in (1, 2, 3, 4):
        join.feed([left(k, k, key=k)], clocks=(k, k))
    join.finish()
    assert ranker.counts == [{3: 1.0, 4: 1.0}, {}]


@pytest.mark.parametrize(
    ("windows", "kept"),
    [((10, 10), 1), ((100, 100), 0), ((math.inf, 10), 0)],
)
def test_life_weighs_the_count_with_the_life_left(windows: Windows, kept: int) -> None:
    """Ranks are counts times lives at time 8: 3 (W - 8) for row 0, 2 W for row 1."""
    ranker = Scored("life", windows, {}, counts=({}, {1: 3.0, 2: 2.0}), learned=False)
    join = NaiveJoin(windows=windows, memory=1, lateness=50, ranker=ranker)
    run(join, [left(0, 0, key=1), left(1, 8, key=2)])
    assert held(join) == [kept]


def test_life_that_is_over_is_worth_least() -> None:
    """The late row 1, held for late partners only, ranks below row 0 of an unknown key."""
    ranker = Scored("life", (2, 2), {}, counts=({}, {1: 3.0}), learned=False)
    join = NaiveJoin(windows=(2, 2), memory=1, lateness=50, ranker=ranker)
    join.feed([left(0, 9, key=2)], clocks=(10, 10))
    join.feed([left(1, 0, key=1)])
    assert join.shed == [(1, 10, "rejected")]


# The papers' examples

IMPORTANCE = {"a": 1, "b": 2, "c": 3, "d": 4}


def ijoin_rows() -> list[Row]:
    """Return the streams of paper 5's slides, with uids 1 to 8 and 11 to 18."""
    streams = ((LEFT, 0, "abcddbac"), (RIGHT, 10, "babbccda"))
    return [
        Row(side, ord(v), time, 0, base + time, importance=IMPORTANCE[v])
        for side, base, values in streams
        for time, v in enumerate(values, start=1)
    ]


def total_importance(rows: Sequence[Row], pairs: Pairs) -> float:
    """Add up the importance of results, which is the smaller one of their two rows."""
    imp = {row.uid: row.importance for row in rows}
    return sum(min(imp[x], imp[y]) for x, y in pairs)


@pytest.mark.parametrize(
    ("policy", "shed_when", "results", "importance"),
    [
        ("fifo", "before-arrival", 4, 6),
        ("fifo", "after-probe", 9, 20),
        ("greedy", "before-arrival", 5, 13),
        ("greedy", "after-probe", 9, 23),
    ],
)
def test_ijoin_example(policy: str, shed_when: str, results: int, importance: int) -> None:
    """Paper 5's tables of FIFO and GREEDY with two rows a stream, and with `after-probe` too."""
    rows = ijoin_rows()
    ranks = {row.uid: row.importance for row in rows} if policy == "greedy" else FIFO
    join = NaiveJoin(windows=INF, memory=4, split=0.5, shed_when=shed_when, ranker=Fixed(ranks))
    pairs = run(join, rows)
    assert (len(pairs), total_importance(rows, pairs)) == (results, importance)


@pytest.mark.parametrize("shed_when", SHED_WHEN)
def test_ijoin_example_exact(shed_when: str) -> None:
    """Paper 5: with unlimited memory there are 16 results with an importance of 36."""
    rows = ijoin_rows()
    pairs = run(NaiveJoin(windows=INF, shed_when=shed_when, ranker=Fixed(FIFO)), rows)
    assert (len(pairs), total_importance(rows, pairs)) == (16, 36)
    assert Counter(pairs) == exact(rows, INF)


FIGURE_3 = [left(t, t, key=k) for t, k in enumerate((1, 1, 1, 3, 2))] + [
    right(10 + t, t, key=k) for t, k in enumerate((2, 3, 1, 1, 3))
]


def test_figure_3_exact() -> None:
    """Paper 1, figure 3: there are 7 results."""
    seven = [(0, 12), (1, 12), (1, 13), (2, 12), (2, 13), (3, 11), (3, 14)]
    assert exact(FIGURE_3, (3, 3)) == Counter(seven)
    assert run(NaiveJoin(windows=(3, 3), ranker=Fixed(FIFO)), FIGURE_3) == seven


def test_figure_3_optimum() -> None:
    """Ranks that keep the same rows as the paper's flow give its 5 results.

    Those are all but (r1, s2) and (r1, s3).
    """
    ranks = {1: 1.0, 0: 2.0, 2: 3.0, 3: 4.0, 4: 5.0, 11: 9.0}
    join = NaiveJoin(windows=(3, 3), memory=2, split=0.5, ranker=Fixed(ranks))
    assert run(join, FIGURE_3) == [(0, 12), (2, 12), (2, 13), (3, 11), (3, 14)]


# Invariants

CELL = st.tuples(
    st.sampled_from((LEFT, RIGHT)),
    st.integers(1, 3),  # key
    st.integers(0, 6),  # time
    st.integers(0, 1),  # tie
    st.integers(1, 4),  # size
)
ROWS = st.lists(CELL, max_size=14).map(
    lambda cells: [
        Row(s, k, t, row_hash, uid, size) for uid, (s, k, t, row_hash, size) in enumerate(cells)
    ]
)
WINDOWS = st.tuples(st.sampled_from((1, 3, math.inf)), st.sampled_from((1, 2, 5)))
SETTINGS = st.fixed_dictionaries(
    {
        "windows": WINDOWS,
        "memory": st.sampled_from((2, 3, 5)),
        "in_bytes": st.booleans(),
        "split": st.sampled_from((None, 0.5, 0.7)),
        "shed_when": st.sampled_from(SHED_WHEN),
        "lateness": st.sampled_from((0, 2)),
    }
)
POLICIES = st.sampled_from(("fifo", "fixed", "floor", "prob", "prob-capped", "life"))


def ranker_of(policy: str, windows: Windows) -> Ranker:
    """Return a new ranker of a kind."""
    spread = {uid: uid * 7 % 5 for uid in range(20)}
    return {
        "fifo": Fixed(FIFO),
        "fixed": Fixed(spread),
        "floor": Fixed(spread, floor_weight=1.0),
        "prob": ByKey(halflife=2),
        "prob-capped": ByKey(cap=1),
        "life": Scored("life", windows, {}, halflife=3, cap=2),
    }[policy]


@given(ROWS, SETTINGS, POLICIES, st.data())
def test_cutting_a_time_ordered_input_changes_nothing(
    rows: list[Row], settings: dict[str, object], policy: str, data: st.DataObject
) -> None:
    """Where feeds end and how a tick's rows are ordered has no effect on results and state."""
    ordered = sorted(data.draw(st.permutations(rows)), key=lambda row: row.time)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    feeds = [ordered[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]

    def outcome(parts: list[list[Row]]) -> tuple[object, ...]:
        ranker = ranker_of(policy, settings["windows"])  # type: ignore[arg-type]
        join = NaiveJoin(ranker=ranker, **settings)  # type: ignore[arg-type]
        return Counter(run(join, *parts)), join.held, join.shed

    assert outcome(feeds) == outcome([rows])


def renumbered(feeds: list[list[Row]]) -> list[list[Row]]:
    """Number the rows of all feeds, so that uids are unique."""
    uids = count()
    return [[replace(row, uid=next(uids)) for row in rows] for rows in feeds]


@given(st.lists(ROWS, max_size=4), SETTINGS, POLICIES)
def test_bound_and_sub_multiset_hold_for_any_input(
    feeds: list[list[Row]], settings: dict[str, object], policy: str
) -> None:
    """For any input with late rows, the budget is kept.

    Each pair is one of the exact join, and comes once.
    """
    batches = renumbered(feeds)
    windows: Windows = settings["windows"]  # type: ignore[assignment]
    join = NaiveJoin(ranker=ranker_of(policy, windows), **settings)  # type: ignore[arg-type]
    pairs: Pairs = []
    for batch in batches:
        pairs += join.feed(batch)
        check_bound(join)
    pairs += join.finish()
    check_bound(join)
    assert Counter(pairs) <= exact([row for batch in batches for row in batch], windows)


@given(ROWS, WINDOWS, st.sampled_from(SHED_WHEN), st.sampled_from((None, 100)))
def test_enough_memory_is_exact(
    rows: list[Row], windows: Windows, shed_when: str, memory: int | None
) -> None:
    """Without a budget, or with one that is never reached, every pair comes once."""
    join = NaiveJoin(windows=windows, memory=memory, shed_when=shed_when, ranker=ByKey())
    assert Counter(run(join, rows)) == exact(rows, windows)
    assert join.shed == []


@given(st.lists(ROWS, max_size=4), WINDOWS, st.sampled_from(SHED_WHEN))
def test_enough_lateness_is_exact_in_any_order(
    feeds: list[list[Row]], windows: Windows, shed_when: str
) -> None:
    """If no row expires before its last partner comes, each pair comes exactly once."""
    batches = renumbered(feeds)
    join = NaiveJoin(windows=windows, shed_when=shed_when, lateness=10, ranker=Fixed(FIFO))
    assert Counter(run(join, *batches)) == exact([r for b in batches for r in b], windows)
