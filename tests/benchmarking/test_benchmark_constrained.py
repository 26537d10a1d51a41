"""The benchmark of constrained joins at a tiny size: figures must fit together."""

from __future__ import annotations

from benchmarks import constrained
from tidegate.joins.constrained.constraints import RIDS, Monitor

TINY = constrained.Scale(300, 200, (0, 20), 150, 600, 20, 700, 1, 2)


def test_state_and_cost_against_k() -> None:
    for kind in constrained.JOINS:
        rows = constrained.against_k(kind, TINY, lambda text: None)
        assert [row[1] for row in rows] == ["0", "20"]
        strict, loose = (int(row[2].replace(",", "")) for row in rows)
        assert strict <= loose < int(rows[0][3].replace(",", ""))


def test_a_changing_k_is_followed() -> None:
    found = constrained.tracked("oap", Monitor(), TINY)
    assert 0 <= found.missing <= found.worst_block <= 1
    assert 0 <= found.in_use <= 1


def test_the_motivating_query_needs_a_hundredth() -> None:
    given = [RIDS(join, within=k) for join, k in constrained.LINK_KS.items()]
    mine = constrained.motivating(TINY, 1, constraints=given, choose=False)
    swj = constrained.motivating(TINY, 1, eliminate=False)
    assert mine.results.num_rows == swj.results.num_rows
    assert 100 * max(mine.held) < max(swj.held)


def test_detected_ks_are_compared_with_given_ones() -> None:
    known, ways = constrained.all_detected(TINY, lambda text: None)
    assert 0 < known < ways["detected"].held
    for each in ways.values():
        assert 0 <= each.lost <= each.results
        assert 0 <= each.covered <= TINY.seeds
    assert ways["given half the delay, p=0.05"].lost > 0
